"""Measures of the experiments and theorems on rank, on random inputs without a model.

The functions ``by_rank`` to ``chebyshev`` run an experiment of
:mod:`tsfm_lens.studies.rank_theory`. Those after them count how often random examples
break the bound of a theorem (``above_…``, ``below_…``): 0 times if the theorem is true.
Read :func:`by_rank` and :func:`embeddings` first.

Numbers that the paper gives are named by their key there (``slope_of_rank``), others by
their description. Symbols are the paper's: width d, L tokens, h heads of width d_h,
rank d̃, and σ_j the j-th singular value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from tsfm_lens.core.ranks import flow_bound
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers.context import (
    Context,
    MeasuredValues,
    measure,
)
from tsfm_lens.studies.papers.values import by_name
from tsfm_lens.studies.papers.verdicts import POSITIVE
from tsfm_lens.studies.rank_theory.compression import residual_layer
from tsfm_lens.studies.rank_theory.experiments import children, of_spectrum

# errors of sparse and dense sketches are comparable up to this ratio
COMPARABLE_WITHIN = 1.25
# of theorem 2: the thresholds ε of singular values, and the steps of a patch
EPSILONS = (0.2, 0.3, 0.5, 0.7, 1.0)
PATCH = 4
# numbers of heads in theorem 4 and corollary 1
HEADS = (1, 2, 4)
# (h, d_h, d̃) in theorem 6
SKETCHES = ((2, 8, 3), (3, 6, 2), (4, 8, 3), (8, 6, 2))
_WEIGHTS_SETTING = {"entries of weights": "variance 1/√d of W_Q and W_K, 1 of W_V"}


@measure("S0-J1A", draws=1)
def by_rank(context: Context, **sizes: int) -> MeasuredValues:
    """Measure how the error of a compressed layer falls with σ_{d̃+1}, and its bounds.

    The slope is that of the error over the first singular value that is cut off, both
    as logarithms.
    """
    data = rank_theory.compression_by_rank(**sizes, **asdict(context))
    ranks = data["rank"].values
    settings = {
        "d": data.attrs["width"],
        "tokens": data.attrs["n_tokens"],
        "ranks": f"{len(ranks)} from {ranks[0]} to {ranks[-1]}",
        **_WEIGHTS_SETTING,
    }
    result = _result(context, settings)
    result.mean("slope_of_rank", data["slope"].values)
    result.mean("slope with all ranks", data["slope_of_all"].values)
    result.add("largest error over √d σ", (data["error"] / data["rate"]).max())
    result.add(
        "largest error over the bound with √L", (data["error"] / data["bound"]).max()
    )
    return result


@measure("S0-J1B", draws=50)
def by_width(context: Context, **sizes: Any) -> MeasuredValues:
    """Measure how the error of a layer of fixed rank grows with its width.

    The slope of its logarithm over that of the width is given with its interval, for
    the weights of the theorem and for two other kinds.
    """
    data = rank_theory.compression_by_width(**sizes, **asdict(context))
    settings = {
        "d": data["width"],
        "tokens": data.attrs["n_tokens"],
        "rank": data.attrs["rank"],
        **_WEIGHTS_SETTING,
    }
    result = _result(context, settings)
    slopes = data[["slope", "slope_low", "slope_high"]].to_array()
    for weights, name in (
        ("theorem", "slope_of_width"),
        ("orthogonal", "slope with W_V √d times orthogonal"),
        ("normalised", "slope with all weights of variance 1/d"),
    ):
        result.add(name, *slopes.sel(weights=weights))
    return result


@measure("S0-J2", draws=6)
def sketching(context: Context, **sizes: Any) -> MeasuredValues:
    """Measure how the effective rank of sketches grows with the number of heads.

    Errors of sparse sketches are compared with those of dense ones.
    """
    data = rank_theory.sketching_by_heads(**sizes, **asdict(context))
    heads = data["heads"].values
    sparse, dense = (data["distance"].sel(sketch=name) for name in ("sparse", "dense"))
    # mean over the numbers of heads, (draw,)
    deviations = np.abs(np.log(sparse.values / dense.values)).mean(axis=-1)
    margin = f"logarithm of {COMPARABLE_WITHIN:g}, less that of their ratio"
    settings = {
        "d": data.attrs["width"],
        "tokens": "any from d on",
        "rank of a head": data.attrs["rank"],
        "heads": f"{heads[0]} to {heads[-1]}",
        "entries of a row": "d / h",
        "singular values": f"exp(−(j − 1)/{data.attrs['decay']:g})",
    }
    result = _result(context, settings)
    near = np.log(COMPARABLE_WITHIN) - deviations
    result.judge("comparable", near, margin)
    result.mean("slope_of_heads", data["slope"].sel(sketch="sparse").values)
    errors = by_name(sparse.mean("draw"), "heads")
    result.add_each("sketching error, {} heads", errors)
    return result


@measure("S0-J3", draws=8)
def head_spectra(context: Context, **sizes: Any) -> MeasuredValues:
    """Test that a layer's ε-rank grows from each number of heads to the next.

    The rank is measured again on an input of norm 1, on which softmax is nearly even.
    """
    data = rank_theory.spectra_by_heads(**sizes, **asdict(context))
    heads = data["heads"].values
    ranks = data["rank"].sel(input="times √L")
    increase = ranks.diff("heads").transpose("heads", "draw").values
    settings = {
        "d": data.attrs["width"],
        "tokens": data.attrs["n_tokens"],
        "singular values": f"√L exp(−(j − 1)/{data.attrs['decay']:g})",
        "ε": f"{data.attrs['epsilon']:g}",
    }
    result = _result(context, settings)
    for fewer, more, margins in zip(heads[:-1], heads[1:], increase, strict=True):
        words = f"from {fewer} to {more}"
        result.judge("higher_rank_by_heads", margins, "ε-rank", words)
    result.means("rank with {} heads", by_name(ranks, "heads"), POSITIVE)
    result.add("rank of the input", data["input_rank"])
    added_rank = data["rank"].sel(input="of norm 1") - data["input_rank"]
    result.add("rank added at most where softmax is even", added_rank.max())
    result.add(
        "deviation of scores", data["logit_deviation"].sel(input="times √L").mean()
    )
    return result


@measure("S0-F14")
def chebyshev(context: Context, **sizes: Any) -> MeasuredValues:
    """Measure the ranks of Chebyshev embeddings that are made for given ranks."""
    data = rank_theory.chebyshev_curves(**sizes, seed=context.seed)
    settings = {
        "d": data.attrs["dimension"],
        "points": data.sizes["point"],
        "largest value": f"{data.attrs['largest']:g}",
    }
    result = MeasuredValues(settings=settings)
    of_ranks = by_name(data["found_rank"], "rank")
    result.add_each("rank of the embedding made for rank {}", of_ranks)
    return result


@measure("S0-TH1", key="above_theorem_1", gated=False)
@measure("S0-C2", key="above_corollary_2", gated=True)
def embeddings(context: Context, *, key: str, gated: bool) -> MeasuredValues:
    """Count singular values above the bounds of theorem 1, or of corollary 2.

    They are those of embedded points of [−1, 1], for corollary 2 of gated embeddings.
    """
    d, n_tokens = sizes = 64, 1000
    rng = np.random.default_rng(context.seed)
    points = rng.uniform(-1, 1, n_tokens)
    # c, and w or a, of each coordinate
    knots = rng.uniform(-0.9, 0.9, d)[:, None]
    rates = rng.uniform(-2, 2, d)[:, None]
    analytic, differentiable = (
        partial(bound, *sizes)
        for bound in (rank_theory.analytic_bound, rank_theory.differentiable_bound)
    )
    # by name: the tokens (d, token) and the bounds of their singular values (d,)
    smooth = {
        # the Bernstein ellipse of radius ρ has the semi-axes (ρ ± 1/ρ)/2. At ρ = 2.5 it
        # reaches to x = 1.45, where exp(wx) is at most exp(2.9)
        "exp(wx)": (np.exp(rates * points), analytic(radius=2.5, largest=np.exp(2.9))),
        # at ρ = 1.5 it stays below the poles of 1/(1 + a²x²), at i/2 or further
        "1/(1 + a²x²)": (
            1 / (1 + (rates * points) ** 2),
            analytic(radius=1.5, largest=1 / (1 - (1.5 - 1 / 1.5) ** 2)),
        ),
        # the first derivative of |x − c| jumps by 2, the third of |x − c|³ by 12
        "|x − c|": (np.abs(points - knots), differentiable(order=1, variation=2.0)),
        "|x − c|³": (
            np.abs(points - knots) ** 3,
            differentiable(order=3, variation=12.0),
        ),
    }
    if gated:
        gated_tokens = rank_theory.GatedEmbedding.random(d, seed=context.seed)(points)
        cases = [(gated_tokens, rank_theory.gated_bound(*sizes, beta=1.0))]
        settings = {"β": "1"}
    else:
        cases = list(smooth.values())
        settings = {"embeddings": ", ".join(smooth)}
    tokens, bounds = zip(*cases, strict=True)
    singular = np.linalg.svd(tokens, compute_uv=False)
    # smaller values are rounding in double precision
    above = (singular > bounds + 1e-12 * singular[:, :1]).sum()
    return MeasuredValues({key: above}, {**settings, "d": d, "tokens": n_tokens})


@measure("S0-TH2", draws=10)
def residual_mlps(context: Context) -> MeasuredValues:
    """Check theorem 2: few singular values of a residual MLP's tokens are large."""
    d = 64
    n_tokens = 1000
    # large singular values beyond the bound, (MLP, ε)
    excess = []
    patches = np.random.default_rng(context.seed).normal(size=(PATCH, n_tokens))
    for child in children(context.seed, context.draws):
        for activation in rank_theory.ACTIVATIONS:
            mlp = rank_theory.ResidualMlpEmbedding.random(
                d, PATCH, activation=activation, seed=child
            )
            count, bound = rank_theory.mlp_count(mlp, patches, EPSILONS)
            excess.append(count - bound)
    values = {
        "above_theorem_2": (np.array(excess) > 0).sum(),
        "residual MLPs and thresholds": np.size(excess),
    }
    return _result(context, {"patch": PATCH, "d": d, "tokens": n_tokens}, values)


@measure("S0-TH3", draws=20)
def compression(context: Context) -> MeasuredValues:
    """Check theorems 3 and 5 on what attention loses when it is cut to a rank.

    Errors on random tokens must stay below the bound, with its factor √L. Errors on
    inputs that no value matrix compresses must stay above σ_{d̃+1}/4.
    """
    d = 32
    n_tokens = 64
    heads = (1, 4)
    ranks = range(1, d)
    exceeded = []
    for child in children(context.seed, context.draws):
        rng = np.random.default_rng(child)
        vocabulary = of_spectrum(
            np.exp(-np.arange(d) / rng.uniform(1, d / 2)), 4 * d, rng
        )
        tokens = vocabulary[:, rng.integers(0, 4 * d, n_tokens)]
        for count in heads:
            # another seed than the input's, whose numbers they would repeat
            weights = rank_theory.AttentionWeights.random(d, count, seed=child + 1)
            errors = [
                _loss(
                    tokens, weights, rank_theory.compressed(weights, vocabulary, rank)
                )
                for rank in ranks
            ]
            bound = rank_theory.compression_bound(vocabulary, weights, ranks, n_tokens)
            exceeded.append(errors > bound)
    # the factor √L is needed: rank 1 keeps the first token of this vocabulary and loses
    # the second, whose error grows by √L when it is repeated L times
    vocabulary = np.diag(np.append(1.0, np.full(d - 1, 0.1)))
    weights = rank_theory.AttentionWeights.random(d).with_value(np.sqrt(d) * np.eye(d))
    reduced = rank_theory.compressed(weights, vocabulary, 1)
    token = vocabulary[:, 1:2]
    once = _loss(token, weights, reduced)
    often = _loss(np.repeat(token, 256, axis=1), weights, reduced)
    singular = np.exp(-np.arange(d) / d)
    # up to 4d + 1 tokens the layer with the printed constant would do, too
    layers = [
        rank_theory.incompressible(singular, length, seed=context.seed)
        for length in (d, 4 * d + 1, 16 * d)
    ]
    # (layer, rank)
    least_errors = np.array(
        [
            [rank_theory.least_value_error(*layer, rank) for rank in ranks]
            for layer in layers
        ]
    )
    floors = singular[1:] / 4
    values = {
        "above_theorem_3": np.sum(exceeded),
        "below_theorem_3": (least_errors < floors).sum(),
        "error of one token 256 times over that of the token once": often / once,
        "errors": np.size(exceeded),
        "smallest loss over σ/4": (least_errors / floors).min(),
    }
    return _result(context, {"heads": heads, "d": d, "tokens": n_tokens}, values)


def _loss(
    tokens: np.ndarray,
    full: rank_theory.AttentionWeights,
    reduced: rank_theory.AttentionWeights,
) -> np.floating[Any]:
    """Compute the Frobenius distance between the outputs of a layer in full and cut."""
    return np.linalg.norm(
        rank_theory.attention(tokens, full) - rank_theory.attention(tokens, reduced)
    )


@measure("S0-TH4", draws=10)
def growth(context: Context) -> MeasuredValues:
    """Check theorem 4, which bounds a layer's spectrum from both sides.

    The upper bound is checked on random layers of models with as few layers as the
    theorem allows, the lower one on the construction for a model of one layer.
    """
    # √D ≥ 2e²h
    depths = [int(np.ceil((2 * np.exp(2) * count) ** 2)) for count in HEADS]
    singular, spectra, settings = _growth(context, depths)
    relative = spectra / spectra[..., :1]
    # (heads, index), as are all arrays below
    upper = np.array(list(map(flow_bound, [singular] * len(HEADS), HEADS, depths)))
    constructions = [
        rank_theory.growing(singular, count, 2 * len(singular)) for count in HEADS
    ]
    construction_spectra = np.linalg.svd(
        [residual_layer(*construction) for construction in constructions],
        compute_uv=False,
    )
    floors = np.array([rank_theory.flow_floor(singular, count, 1) for count in HEADS])
    construction_relative = construction_spectra / construction_spectra[:, :1]
    # a floor of 0 stands for no bound
    ratio = construction_relative / np.where(floors > 0, floors, np.nan)
    layers = f"{', '.join(map(str, depths))} above, 1 below"
    values = {
        "above_theorem_4": (relative > upper[:, None]).sum(),
        "below_theorem_4": (ratio < 1).sum(),
        "singular values": relative.size,
        "smallest singular value of the construction over its bound": np.nanmin(ratio),
    }
    return _result(context, {"layers": layers, **settings}, values)


@measure("S0-C1", draws=10)
def corollary(context: Context) -> MeasuredValues:
    """Check corollary 1 with the index of its proof and with the printed one.

    The index is that of the input's singular value that bounds the output's k-th.
    """
    singular, spectra, settings = _growth(context, [1] * len(HEADS))
    proof = np.array([rank_theory.one_layer_bound(singular, count) for count in HEADS])
    k = np.arange(1, len(singular) + 1)
    indices = [
        rank_theory.corollary_index(k, count, as_printed=True) for count in HEADS
    ]
    constants = np.array([1 + np.exp(2) * count for count in HEADS])[:, None]
    # indices count from 1
    printed = constants * singular[np.minimum(indices, len(singular)) - 1]
    values = {
        "above_proof": (spectra > proof[:, None]).sum(),
        "above_printed": (spectra > printed[:, None]).sum(),
        "singular values": spectra.size,
    }
    return _result(context, settings, values)


def _growth(
    context: Context, depths: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Compute the singular values of an input (index,) and of layers on it.

    Those of the layers are (heads, draw, index). Third come the settings of both.
    """
    d = 48
    gap = 0.02
    decay = 4.0
    draws = context.draws
    singular = np.append(1.0, gap * np.exp(-np.arange(d - 1) / decay))
    spectra = np.empty((len(HEADS), draws, d))
    for draw, child in enumerate(children(context.seed, draws)):
        tokens = of_spectrum(singular, 2 * d, np.random.default_rng(child))
        # with the largest norms of W_QᵀW_K and W_V that the theorem allows, √d_h and 1
        for row, (count, depth) in enumerate(zip(HEADS, depths, strict=True)):
            weights = rank_theory.AttentionWeights.random(
                d, count, scaling="unit", seed=child + 1
            )
            layer = residual_layer(
                tokens, weights.within(np.sqrt(d // count), 1.0), depth
            )
            spectra[row, draw] = np.linalg.svd(layer, compute_uv=False)
    settings = {
        "heads": HEADS,
        "singular values": f"1, then {gap:g} · exp(−(j − 2)/{decay:g})",
        "d": d,
    }
    return singular, spectra, settings


@measure("S0-TH6", draws=20)
def sketches(context: Context) -> MeasuredValues:
    """Check theorem 6: a sketch for each head errs less than one for all heads.

    Errors are in the spectral norm, on the construction of :func:`.head_sketch`.
    """
    # (error of one sketch, of a sketch for each head, and the bound of either)
    found = []
    for heads, size, rank in SKETCHES:
        singular = np.exp(-np.arange(heads * size) / 3.0)
        for child in children(context.seed, context.draws):
            sketch = rank_theory.head_sketch(
                singular, heads, rank, heads * size + 4, seed=child
            )
            output = rank_theory.attention(sketch.tokens, sketch.weights)
            reduced = rank_theory.attention(sketch.tokens, sketch.reduced)
            found.append(
                (
                    # the least error of any value matrix of rank d̃ for all heads
                    # (Eckart-Young)
                    np.linalg.svd(output, compute_uv=False)[rank],
                    np.linalg.norm(output - reduced, 2),
                    singular[rank] / 2,
                    4 * np.sqrt(heads) * singular[heads * rank],
                )
            )
    shared, separate, floors, bounds = np.transpose(found)
    sizes = "; ".join("h = {}, d_h = {}, d̃ = {}".format(*sizes) for sizes in SKETCHES)
    values = {
        "shared_below": (shared < floors).sum(),
        "own_above": (separate > bounds).sum(),
        "constructions": len(separate),
        "how many times as near a sketch for each head is, at least": (
            shared / separate
        ).min(),
    }
    return _result(context, {"sizes": sizes}, values)


def _result(
    context: Context, settings: dict[str, Any], values: dict[str, Any] | None = None
) -> MeasuredValues:
    """Return a result with the settings of an experiment and its number of draws.

    Without values yet, those that are added later have intervals over draws.
    """
    settings = {**settings, **asdict(context)}
    if values is None and context.draws > 1:
        settings["intervals over"] = "draws"
    return MeasuredValues(values or {}, settings, over="draw")
