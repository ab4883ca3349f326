"""Numerical experiments of the paper on rank.

They are those of theorem 3 (appendix J.1), of sketches (J.2), of heads (J.3) and of
Chebyshev polynomials (I). Read :func:`compression_by_rank` first. Every function
returns a dataset, which :mod:`tsfm_lens.studies.rank_theory.figures` draws.

Width and dimension are d, n_tokens L, rank d̃ and heads h; singular values of inputs
are exp(−(j − 1)/decay); draws are of inputs and weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.ranks import epsilon_rank, relative_spectrum
from tsfm_lens.core.stats import CONFIDENCE
from tsfm_lens.studies.rank_theory.compression import (
    AttentionWeights,
    compression_bound,
    compression_errors,
    logits,
    orthonormal,
    residual_layer,
)
from tsfm_lens.studies.rank_theory.constructions import (
    effective_index,
    sketching_distance,
    sparse_sketch,
)
from tsfm_lens.studies.rank_theory.embeddings import ChebyshevEmbedding

__all__ = [
    "chebyshev_curves",
    "compression_by_rank",
    "compression_by_width",
    "sketching_by_heads",
    "spectra_by_heads",
]

PAPER = (
    "Understanding Transformers for Time Series: Rank Structure, Flow-of-ranks, and"
    " Compressibility"
)
RESAMPLED = 2000


def labelled(
    data: Mapping[str, tuple[Any, ...]],
    coords: Mapping[str, Any],
    kind: str,
    title: str,
    where: str,
    **attrs: Any,
) -> xr.Dataset:
    """Make a dataset with its kind, title, source, seed and sizes."""
    head = {"kind": f"theory_{kind}", "title": title, "source": f"{PAPER}, {where}"}
    return xr.Dataset(data, coords, {**head, **attrs})


def of_spectrum(
    singular_values: np.ndarray, n_tokens: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw random directions with given singular values, (d, L)."""
    width = len(singular_values)
    left = orthonormal(width, width, rng)
    return (left * singular_values) @ orthonormal(n_tokens, width, rng).T


def children(seed: int, count: int) -> list[int]:
    """Return a seed for each draw.

    The first are the same whatever the count, so that more draws change none.
    """
    return [
        int(child.generate_state(1)[0])
        for child in np.random.SeedSequence(seed).spawn(count)
    ]


def fit_slope(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute the slope of the least-squares line of log y over log x, (…).

    The line is along the last axis.
    """
    curves = np.log(y).reshape(-1, len(x))
    return np.polyfit(np.log(x), curves.T, 1)[0].reshape(y.shape[:-1])


def slope_of_rms(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[float, float, float]:
    """Compute the slope of the root mean square of y (draw, n) over draws.

    Its bootstrapped 95 % interval follows.
    """
    sample = np.random.default_rng(seed).integers(0, len(y), size=(RESAMPLED, len(y)))
    slopes = fit_slope(x, np.sqrt((y[sample] ** 2).mean(axis=1)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(slopes, (tail, 1 - tail))
    return float(fit_slope(x, np.sqrt((y**2).mean(axis=0)))), low, high


def compression_by_rank(
    *,
    width: int = 512,
    n_tokens: int = 4096,
    n_ranks: int = 40,
    draws: int = 1,
    seed: int = 0,
) -> xr.Dataset:
    """Measure the error of a layer cut to a rank, over σ_{d̃+1} (S0-J1a).

    ``n_ranks`` are so many ranks from 1 to d − 1, evenly; the random weights are those
    of the theorem.

    Returns:
        Dataset of kind "theory_compression_rank". ``error`` ‖Y − Ỹ‖_F and its ``bound``
        are (draw, rank); ``next_singular_value`` σ_{d̃+1} and ``rate`` √d σ_{d̃+1} are
        (rank). ``slope`` (draw) is that of log error over log σ_{d̃+1} at ranks up to
        3/4 of the width, ``slope_of_all`` that at all ranks.

    Example:
        >>> errors = rank_theory.compression_by_rank(width=32, n_tokens=128, n_ranks=8)
        >>> 0.8 < float(errors["slope"][0]) < 1.2
        True
    """
    singular = np.exp(np.linspace(0, -5, width))
    # singular values fall evenly on a logarithmic scale, so that even ranks are even
    # there
    even = np.linspace(1, width - 1, n_ranks).round().astype(int)
    ranks = np.unique(even).tolist()
    errors, bounds = np.empty((2, draws, len(ranks)))
    for draw, child in enumerate(children(seed, draws)):
        vocabulary = of_spectrum(singular, n_tokens, np.random.default_rng(child))
        # the input's own seed would give the weights the numbers of the input
        weights = AttentionWeights.random(width, seed=child + 1)
        errors[draw] = compression_errors(vocabulary, weights, ranks)
        bounds[draw] = compression_bound(vocabulary, weights, ranks, n_tokens)
    following = singular[ranks]
    inner = np.array(ranks) <= 0.75 * width
    data = {
        "error": (("draw", "rank"), errors),
        "bound": (("draw", "rank"), bounds),
        "slope": ("draw", fit_slope(following[inner], errors[:, inner])),
        "slope_of_all": ("draw", fit_slope(following, errors)),
        "next_singular_value": ("rank", following),
        "rate": ("rank", np.sqrt(width) * following),
    }
    coords = {"draw": range(draws), "rank": ranks}
    return labelled(
        data,
        coords,
        "compression_rank",
        "Error of a layer cut to a rank",
        "appendix J.1, figure 15 left (S0-J1a)",
        width=width,
        n_tokens=n_tokens,
        seed=seed,
    )


def compression_by_width(
    *,
    widths: Sequence[int] = (32, 64, 128, 256, 512),
    rank: int = 8,
    n_tokens: int = 1024,
    draws: int = 50,
    decay: float = 8.0,
    seed: int = 0,
) -> xr.Dataset:
    """Measure the error of a layer cut to a fixed rank over its width (S0-J1b).

    Among the weights are some with ‖W_V‖ growing as √d, and some without.

    Returns:
        Dataset of kind "theory_compression_width". ``error`` is (weights, draw, width);
        ``slope`` (weights) is that of log RMS error over log d, with its interval
        ``slope_low`` to ``slope_high``.

    Example:
        >>> sizes = {"widths": (16, 32), "rank": 4, "n_tokens": 64, "draws": 3}
        >>> errors = rank_theory.compression_by_width(**sizes)
        >>> errors["error"].sizes["draw"]
        3
    """
    kinds = ("theorem", "orthogonal", "normalised")
    errors = np.empty((len(kinds), draws, len(widths)))
    for draw, child in enumerate(children(seed, draws)):
        for column, width in enumerate(widths):
            # by width, so that a grid of other widths has the same draws
            rng = np.random.default_rng([child, width])
            tokens = of_spectrum(np.exp(-np.arange(width) / decay), n_tokens, rng)
            weight_seed = int(rng.integers(2**31))
            plain, small = (
                AttentionWeights.random(width, scaling=scaling, seed=weight_seed)
                for scaling in ("theorem", "normalised")
            )
            orthogonal = plain.with_value(
                np.sqrt(width) * orthonormal(width, width, rng)
            )
            for row, weights in enumerate((plain, orthogonal, small)):
                (error,) = compression_errors(tokens, weights, [rank])
                errors[row, draw, column] = error
    slopes, low, high = np.transpose(
        [slope_of_rms(np.array(widths), kind_errors, seed) for kind_errors in errors]
    )
    data = {
        "error": (("weights", "draw", "width"), errors),
        "slope": ("weights", slopes),
        "slope_low": ("weights", low),
        "slope_high": ("weights", high),
    }
    coords = {"weights": list(kinds), "draw": range(draws), "width": list(widths)}
    return labelled(
        data,
        coords,
        "compression_width",
        "Error of a layer cut to a fixed rank, by width",
        "appendix J.1, figure 15 right (S0-J1b)",
        rank=rank,
        n_tokens=n_tokens,
        decay=decay,
        seed=seed,
    )


def sketching_by_heads(
    *,
    width: int = 2048,
    rank: int = 4,
    heads: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
    decay: float = 200.0,
    draws: int = 1,
    seed: int = 0,
) -> xr.Dataset:
    """Measure the part of an input that random sketches miss by heads (S0-J2).

    Sketches have d̃ rows of each head.

    Returns:
        Dataset of kind "theory_sketching". ``distance`` and ``effective_index``
        (sketch, draw, heads) are those of "sparse" and "dense" sketches; ``floor``
        (heads) is σ_{hd̃+1}; ``slope`` (sketch, draw) is that of log effective index
        over log h; ``singular_value`` (index) is the input's.

    Example:
        >>> sizes = {"width": 64, "rank": 2, "heads": (1, 2, 4, 8), "decay": 8.0}
        >>> sketches = rank_theory.sketching_by_heads(**sizes)
        >>> bool((sketches["distance"] >= sketches["floor"]).all())
        True
    """
    counts = np.array(heads)
    singular = np.exp(-np.arange(width) / decay)
    distances = np.empty((2, draws, len(counts)))
    for draw, child in enumerate(children(seed, draws)):
        rng = np.random.default_rng(child)
        # an orthonormal right factor would change no distance, so there is none
        matrix = orthonormal(width, width, rng) * singular
        for column, count in enumerate(counts):
            sparse = sparse_sketch(width, rank, count, seed=int(rng.integers(2**31)))
            for row, sketch in enumerate((sparse, rng.normal(size=sparse.shape))):
                distances[row, draw, column] = sketching_distance(matrix, sketch)
    indices = effective_index(singular, distances)
    data = {
        "distance": (("sketch", "draw", "heads"), distances),
        "effective_index": (("sketch", "draw", "heads"), indices),
        "slope": (("sketch", "draw"), fit_slope(counts, np.maximum(indices, 1))),
        "floor": ("heads", np.append(singular, 0.0)[rank * counts]),
        "singular_value": ("index", singular),
    }
    coords = {
        "sketch": ["sparse", "dense"],
        "draw": range(draws),
        "heads": counts,
        "index": range(1, width + 1),
    }
    return labelled(
        data,
        coords,
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
    """Compute spectra of an attention layer's output by number of heads (S0-J3).

    The layer's input is added to its output.

    Returns:
        Dataset of kind "theory_head_spectra" over ``input`` ("times √L", "of norm 1"),
        ``draw`` and ``heads``: ``singular_value`` (…, index) relative to the largest,
        ``rank`` and ``logit_deviation``. ``input_singular_value`` (index) and
        ``input_rank`` are the input's.

    Example:
        >>> sizes = {"width": 16, "n_tokens": 32, "heads": (1, 4), "decay": 1.0}
        >>> spectra = rank_theory.spectra_by_heads(**sizes, draws=1)
        >>> spectra["rank"].sel(input="times √L").values.tolist()
        [[10, 13]]
    """
    singular = np.exp(-np.arange(width) / decay)
    scales = {"times √L": np.sqrt(n_tokens), "of norm 1": 1.0}
    shape = (len(scales), draws, len(heads))
    spectra = np.empty((*shape, width))
    deviations = np.empty(shape)
    for draw, child in enumerate(children(seed, draws)):
        tokens = of_spectrum(singular, n_tokens, np.random.default_rng(child))
        for column, count in enumerate(heads):
            weights = AttentionWeights.random(
                width, count, scaling="unit", seed=child + 1
            )
            for row, scale in enumerate(scales.values()):
                spectra[row, draw, column] = np.linalg.svd(
                    residual_layer(scale * tokens, weights), compute_uv=False
                )
                deviations[row, draw, column] = logits(scale * tokens, weights).std()
    dims = ("input", "draw", "heads")
    data = {
        "singular_value": ((*dims, "index"), relative_spectrum(spectra)),
        "rank": (dims, epsilon_rank(spectra, epsilon)),
        "logit_deviation": (dims, deviations),
        "input_singular_value": ("index", singular),
        "input_rank": ((), int(epsilon_rank(singular, epsilon))),
    }
    coords = {
        "input": list(scales),
        "draw": range(draws),
        "heads": list(heads),
        "index": range(1, width + 1),
    }
    return labelled(
        data,
        coords,
        "head_spectra",
        "Spectra of a layer's output by heads",
        "appendix J.3, figure 17 (S0-J3)",
        width=width,
        n_tokens=n_tokens,
        decay=decay,
        epsilon=epsilon,
        seed=seed,
    )


def chebyshev_curves(
    *,
    dimension: int = 768,
    ranks: Sequence[int] = (1, 2, 4, 8, 16, 32),
    n_points: int = 4096,
    largest: float = 15.0,
    seed: int = 0,
) -> xr.Dataset:
    """Compute the curve of Chebyshev embeddings in hidden space by rank (S0-F14).

    Points are values from −x_max to x_max, evenly, x_max being the ``largest``.

    Returns:
        Dataset of kind "theory_chebyshev". ``coordinate`` (rank, axis, point) has the
        first two of d coordinates; ``singular_value`` is (rank, index); ``found_rank``
        (rank) counts the singular values above 1e-10 of the largest.

    Example:
        >>> sizes = {"dimension": 8, "ranks": (1, 3), "n_points": 50}
        >>> curves = rank_theory.chebyshev_curves(**sizes)
        >>> curves["found_rank"].values.tolist()
        [1, 3]
    """
    points = np.linspace(-largest, largest, n_points)
    count = min(max(ranks) + 1, dimension)
    embeddings = [
        ChebyshevEmbedding.random(dimension, rank, largest=largest, seed=seed)
        for rank in ranks
    ]
    tokens = np.stack([embedding(points) for embedding in embeddings])
    singular = np.linalg.svd(tokens, compute_uv=False)[:, :count]
    data = {
        "coordinate": (("rank", "axis", "point"), tokens[:, :2]),
        "singular_value": (("rank", "index"), singular),
        "found_rank": ("rank", (singular > 1e-10 * singular[:, :1]).sum(1)),
    }
    coords = {
        "rank": list(ranks),
        "axis": [1, 2],
        "value": ("point", points),
        "index": range(1, count + 1),
    }
    return labelled(
        data,
        coords,
        "chebyshev",
        "Embeddings of Chebyshev polynomials",
        "appendix I, figure 14 (S0-F14)",
        dimension=dimension,
        largest=largest,
        seed=seed,
    )
