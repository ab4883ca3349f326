"""Inputs that no statement of the theory is about are refused in its words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tsfm_lens.core import ranks
from tsfm_lens.core.errors import InputError, LensError, UnknownNameError
from tsfm_lens.studies import rank_theory as theory
from tsfm_lens.studies.rank_theory.compression import AttentionWeights, residual_layer

ONE, LAYER, SERIES = (
    np.ones((8, 2)),
    AttentionWeights.random(4),
    np.sin(np.arange(96) / 5.0),
)
Rows = list[tuple[Callable[[], object], str]]
MLP = theory.ResidualMlpEmbedding
REFUSED: Rows = [
    # layers
    (
        lambda: AttentionWeights.stacked(*np.ones((3, 4, 4)), heads=3),
        r"\(4, 4\) cannot be shared out over 3 heads",
    ),
    (
        lambda: AttentionWeights(*np.ones((2, 1, 2, 2)), np.full((1, 2, 2), np.nan)),
        "value has shape",
    ),
    (
        lambda: AttentionWeights(*np.ones((2, 1, 2, 2)), np.ones((1, 3, 2))),
        "one and the same",
    ),
    (
        lambda: theory.attention(np.ones((3, 5)), LAYER),
        r"\(3, 5\), expected a finite matrix \(4, tokens\)",
    ),
    (
        lambda: residual_layer(
            np.ones((4, 5)), AttentionWeights(*np.ones((3, 1, 2, 4)))
        ),
        "expected 4 as the to",
    ),
    (lambda: residual_layer(np.ones((4, 5)), LAYER, 0), "depth is 0"),
    (
        lambda: ranks.flow_bound(np.ones(4), 2, 100),
        "with 2 heads the bound is of models of 874 layers",
    ),
    (
        lambda: theory.growing(np.ones(4), 3, 8),
        "4 singular values cannot be shared out over 3 heads",
    ),
    (lambda: theory.one_layer_bound(np.array([2.0, 1.0]), 1), "expected at most 1"),
    (
        lambda: theory.readout_exists(np.ones((2, 3)), np.ones((3, 1))),
        "expected a row a channel",
    ),
    (
        lambda: theory.optimal_readout(np.ones((2, 3)), np.ones((3, 1))),
        "expected a row a channel",
    ),
    # embeddings and their bounds
    (
        lambda: theory.patches(SERIES, 7),
        "96 steps are no whole number of patches of 7; take 91",
    ),
    (lambda: theory.GatedEmbedding.random(4)(np.append(SERIES, np.nan)), "finite"),
    (lambda: theory.patches(SERIES.reshape(2, 48), 8), r"shape \(2, 48\)"),
    (
        lambda: theory.QuantisedEmbedding(np.array([0.0, 1.0]), np.eye(2)),
        "one fewer than vectors",
    ),
    (lambda: theory.QuantisedEmbedding(np.array([1.0, 0.0]), np.eye(3)), "rising"),
    (lambda: MLP(np.ones((7, 4)), np.ones((10, 6)), np.ones((10, 4))), "do not fit"),
    (lambda: theory.GatedEmbedding(np.ones(2), np.ones(2), beta=0.0), "β above 0"),
    (
        lambda: theory.ChebyshevEmbedding.random(4, 5),
        "5 orthonormal columns of 4 entries",
    ),
    (lambda: theory.ChebyshevEmbedding(np.eye(3), 0.0), "x_max=0"),
    (lambda: theory.differentiable_bound(4, 4, order=0, variation=1.0), "order is 0"),
    (lambda: theory.analytic_bound(4, 4, radius=1, largest=1.0), "radius is 1"),
    (lambda: theory.gated_bound(4, 4, beta=0), "beta is 0"),
    (
        lambda: theory.mlp_count(MLP.random(4, 4), np.ones((4, 3)), 0.5),
        "expected more coordinates",
    ),
    (lambda: theory.mlp_count(MLP.random(8, 4), np.ones((4, 3)), 0.0), "epsilon is 0"),
    # compression and sketches
    (lambda: theory.projector(np.ones((3, 5)), 0), "rank is 0, expected 1 to 3"),
    (lambda: theory.projector(np.ones((3, 5)), 4), "rank is 4, expected 1 to 3"),
    (lambda: theory.incompressible(np.array([0.5, 1.0]), 4), "rise"),
    (lambda: theory.incompressible(np.array([0.5, 0.0]), 4), "above 0"),
    (lambda: theory.incompressible(np.ones(3), 2), "2 tokens cannot have 3"),
    (
        lambda: theory.least_value_error(
            np.ones((4, 4)), AttentionWeights.random(4, 2), 1
        ),
        "2 heads, expected one",
    ),
    (
        lambda: theory.sketching_distance(np.ones((3, 5)), np.ones((2, 4))),
        r"\(2, 4\) does not fit .* shape \(3, 5\)",
    ),
    (
        lambda: theory.sketching_distance(np.ones((3, 5)), np.full((2, 3), np.inf)),
        "not a number",
    ),
    (
        lambda: theory.sparse_sketch(8, 1, 3),
        "3 heads of rank 1 do not divide a width of 8",
    ),
    (lambda: theory.head_sketch(np.ones(8), 1, 1, 8), "1 heads of rank 1"),
    (lambda: theory.head_sketch(np.ones(8), 3, 1, 8), "3 heads of rank 1"),
    (lambda: theory.head_sketch(np.ones(8), 2, 4, 8), "2 heads of rank 4"),
    # experiments
    (lambda: theory.compression_by_rank(width=3, n_tokens=8), "width 3 with 40 ranks"),
    (
        lambda: theory.compression_by_rank(width=8, n_tokens=4),
        "4 tokens cannot have 8 singular values",
    ),
    (lambda: theory.compression_by_width(widths=(8, 16)), "each above the rank 8"),
    (
        lambda: theory.spectra_by_heads(width=8, heads=(3,)),
        r"\[3\], expected divisors of the width 8",
    ),
    (
        lambda: theory.sketching_by_heads(width=8, rank=2, heads=(8,)),
        "more rows than the width 8",
    ),
    (
        lambda: theory.sketching_by_heads(width=8, rank=2, heads=(2,), draws=0),
        "draws is 0",
    ),
    (
        lambda: theory.chebyshev_curves(dimension=8, ranks=(4,), n_points=4),
        "4 points cannot show rank 4",
    ),
]
UNKNOWN: Rows = [
    (lambda: AttentionWeights.random(4, scaling="theory"), r"'theory'.*theorem"),
    (lambda: MLP.random(10, 4, activation="glue"), r"'glue'.*gelu"),
    (
        lambda: theory.compression_by_rank(width=8, n_tokens=8, scalings=("plain",)),
        "'plain'",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        *((call, InputError, words) for call, words in REFUSED),
        *((call, UnknownNameError, words) for call, words in UNKNOWN),
    ],
)
def test_what_no_statement_is_about_is_refused(
    call: Callable[[], object], error: type[LensError], words: str
) -> None:
    with pytest.raises(error, match=words or None):
        call()
