"""Experiments on sketches of several heads (appendix J.2) and on how heads raise rank (appendix J.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.ranks import epsilon_rank, relative_spectrum
from tsfm_lens.studies.rank_theory.attention import AttentionWeights, logits, orthonormal, residual_layer
from tsfm_lens.studies.rank_theory.experiments.making import children, divisors, labelled, of_spectrum, slope_of
from tsfm_lens.studies.rank_theory.sketches import effective_index, sketching_distance, sparse_sketch


def sketching_by_heads(
    *,
    width: int = 2048,
    rank: int = 4,
    heads: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
    decay: float = 200.0,
    draws: int = 1,
    seed: int = 0,
) -> xr.Dataset:
    """Measure the part of an input that random sparse sketches miss, one of each head, by the number of heads.

    Singular values of the input are exp(−(j − 1)/decay). Neither distances nor indices depend on its right singular
    vectors, so that the number of tokens, if at least the width, plays no part and is not asked for.

    Args:
        width: d.
        rank: d̃, rows of each head's sketch.
        heads: h, divisors of d with h d̃ up to d.
        decay: of the singular values; the paper gives none.
        draws: of inputs and sketches.
        seed: of the draws.

    Returns:
        Dataset of kind "theory_sketching". Over ``sketch`` ("sparse", "dense": as many rows of Gaussian entries),
        ``draw`` and ``heads``: ``distance``, and ``effective_index``, how many singular values are at least that
        large. ``floor`` (heads): σ_{hd̃+1}, which no sketch of so many rows goes below; ``entries`` (heads): those of
        the sparse sketch that are not zero; ``slope`` (sketch, draw): of log effective index over log h;
        ``singular_value`` (index).

    Source:
        Flow of ranks, appendix J.2, figure 16 (S0-J2).

    Raises:
        InputError: heads that do not divide the width or have more rows than it.

    Example:
        >>> found = rank_theory.sketching_by_heads(width=64, rank=2, heads=(1, 2, 4, 8), decay=8.0)
        >>> bool((found["distance"] >= found["floor"]).all())
        True
    """
    counts = divisors(width, heads)
    if rank < 1 or max(counts) * rank > width:
        raise InputError(f"{max(counts)} heads of rank {rank} have more rows than the width {width}, or none")
    singular = np.exp(-np.arange(width) / decay)
    distances, entries = np.empty((2, draws, len(counts))), np.zeros(len(counts), dtype=int)
    for draw, child in enumerate(children(seed, draws)):
        rng = np.random.default_rng(child)
        matrix = orthonormal(width, width, rng) * singular
        for place, count in enumerate(counts):
            sparse = sparse_sketch(width, rank, count, seed=int(rng.integers(2**31)))
            distances[0, draw, place] = sketching_distance(matrix, sparse)
            distances[1, draw, place] = sketching_distance(matrix, rng.normal(size=sparse.shape))
            entries[place] = np.count_nonzero(sparse)
    indices = np.vectorize(lambda distance: effective_index(singular, distance))(distances)
    return labelled(
        {
            "distance": (("sketch", "draw", "heads"), distances),
            "effective_index": (("sketch", "draw", "heads"), indices),
            "slope": (("sketch", "draw"), slope_of(np.array(counts, dtype=float), np.maximum(indices, 1))),
            "floor": ("heads", np.append(singular, 0.0)[[rank * count for count in counts]]),
            "entries": ("heads", entries),
            "singular_value": ("index", singular),
        },
        {"sketch": ["sparse", "dense"], "draw": range(draws), "heads": counts, "index": range(1, width + 1)},
        "sketching",
        "What sketches of several heads miss",
        "appendix J.2, figure 16 (S0-J2)",
        width=width,
        rank=rank,
        decay=decay,
        seed=seed,
    )


def spectra_by_heads(
    *,
    width: int = 128,
    n_tokens: int = 256,
    heads: Sequence[int] = (1, 2, 4, 8, 16, 32),
    decay: float = 4.0,
    epsilon: float = 1e-3,
    draws: int = 8,
    seed: int = 0,
) -> xr.Dataset:
    """Compute spectra of one attention layer's output with its input added, over its number of heads.

    Weights are Gaussian of variance 1, the same for every number of heads. The input has singular values
    exp(−(j − 1)/decay), once as they are, by which softmax is nearly even and adds one direction at most, and once
    times √L, by which scores differ and rank grows.

    Args:
        width: d.
        n_tokens: L.
        heads: h, divisors of d.
        decay: of the singular values; the paper gives neither it nor sizes.
        epsilon: of the numerical rank.
        draws: of inputs and weights.
        seed: of the draws.

    Returns:
        Dataset of kind "theory_head_spectra". Over ``input`` ("times √L", "of norm 1"), ``draw`` and ``heads``:
        ``singular_value`` (…, index), relative to the largest, ``rank`` and ``logit_deviation``, the standard
        deviation of scores before the softmax. ``input_singular_value`` (index), and ``input_rank``.

    Source:
        Flow of ranks, appendix J.3, figure 17 (S0-J3), in which there is no 1/√D.

    Raises:
        InputError: heads that do not divide the width, or fewer tokens than it.

    Example:
        >>> found = rank_theory.spectra_by_heads(width=16, n_tokens=32, heads=(1, 4), decay=1.0, draws=1)
        >>> found["rank"].sel(input="times √L").values.tolist()
        [[10, 13]]
    """
    counts, singular = divisors(width, heads), np.exp(-np.arange(width) / decay)
    scales = {"times √L": np.sqrt(n_tokens), "of norm 1": 1.0}
    shape = (len(scales), draws, len(counts))
    spectra, deviations = np.empty((*shape, width)), np.empty(shape)
    for draw, child in enumerate(children(seed, draws)):
        tokens = of_spectrum(singular, n_tokens, np.random.default_rng(child))
        for column, count in enumerate(counts):
            weights = AttentionWeights.random(width, count, scaling="unit", seed=child + 1)
            for row, scale in enumerate(scales.values()):
                spectra[row, draw, column] = np.linalg.svd(residual_layer(scale * tokens, weights), compute_uv=False)
                deviations[row, draw, column] = logits(scale * tokens, weights).std()
    where = ("input", "draw", "heads")
    return labelled(
        {
            "singular_value": ((*where, "index"), relative_spectrum(spectra)),
            "rank": (where, epsilon_rank(spectra, epsilon)),
            "logit_deviation": (where, deviations),
            "input_singular_value": ("index", singular),
            "input_rank": ((), int(epsilon_rank(singular, epsilon))),
        },
        {"input": list(scales), "draw": range(draws), "heads": counts, "index": range(1, width + 1)},
        "head_spectra",
        "Spectra of a layer's output by heads",
        "appendix J.3, figure 17 (S0-J3)",
        width=width,
        n_tokens=n_tokens,
        decay=decay,
        epsilon=epsilon,
        seed=seed,
    )
