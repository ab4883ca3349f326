"""Experiments on theorem 3 (appendix J.1), and the embedding of a chosen rank (appendix I)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.studies.rank_theory.attention import AttentionWeights, column_softmax, logits, orthonormal
from tsfm_lens.studies.rank_theory.compression import compression_bound, compression_errors, projector
from tsfm_lens.studies.rank_theory.embeddings import ChebyshevEmbedding
from tsfm_lens.studies.rank_theory.experiments.making import children, labelled, of_spectrum, slope_of, slope_of_rms


def compression_by_rank(
    *,
    width: int = 512,
    n_tokens: int = 4096,
    n_ranks: int = 40,
    scalings: Sequence[str] = ("theorem",),
    draws: int = 1,
    seed: int = 0,
) -> xr.Dataset:
    """Measure the error of a layer whose matrices are cut to a rank, over the first singular value that is cut off.

    Singular values of the vocabulary fall evenly on a logarithmic scale from 1 to e⁻⁵, and all of it is the input.

    Args:
        width: d.
        n_tokens: N, which is L too.
        n_ranks: how many ranks from 1 to d − 1, evenly.
        scalings: of the random weights, from :data:`tsfm_lens.studies.rank_theory.SCALINGS`.
        draws: of vocabulary and weights.
        seed: of the draws.

    Returns:
        Dataset of kind "theory_compression_rank". Over ``scaling``, ``draw`` and ``rank``: ``error``
        ‖Y − Ỹ‖_F, and ``bound``, which it cannot exceed. Over ``rank``: ``next_singular_value`` σ_{d̃+1} and ``rate``
        √d σ_{d̃+1}, as printed. ``slope`` (scaling, draw): of log error over log σ_{d̃+1} at ranks up to 3/4 of the
        width, and ``slope_of_all``: at all, where it is steeper, since errors add up over ever fewer directions.

    Source:
        Flow of ranks, appendix J.1, figure 15 left (S0-J1a).

    Raises:
        InputError: fewer tokens than the width, or a width below 4.

    Example:
        >>> found = rank_theory.compression_by_rank(width=32, n_tokens=128, n_ranks=8)
        >>> 0.8 < float(found["slope"][0, 0]) < 1.2
        True
    """
    if width < 4 or n_ranks < 4:
        raise InputError(f"width {width} with {n_ranks} ranks, expected 4 of both or more: a slope needs two ranks")
    singular = np.exp(np.linspace(0, -5, width))
    # singular values fall evenly on a logarithmic scale, so that even ranks are even there
    ranks = sorted({round(float(rank)) for rank in np.linspace(1, width - 1, n_ranks)})
    errors, bounds = np.empty((2, len(scalings), draws, len(ranks)))
    for draw, child in enumerate(children(seed, draws)):
        vocabulary = of_spectrum(singular, n_tokens, np.random.default_rng(child))
        for place, scaling in enumerate(scalings):
            weights = AttentionWeights.random(width, scaling=scaling, seed=child + 1)
            errors[place, draw] = compression_errors(vocabulary, weights, ranks)
            bounds[place, draw] = compression_bound(vocabulary, weights, ranks, n_tokens)
    following = singular[ranks]
    inner = np.array(ranks) <= 0.75 * width
    return labelled(
        {
            "error": (("scaling", "draw", "rank"), errors),
            "bound": (("scaling", "draw", "rank"), bounds),
            "slope": (("scaling", "draw"), slope_of(following[inner], errors[..., inner])),
            "slope_of_all": (("scaling", "draw"), slope_of(following, errors)),
            "next_singular_value": ("rank", following),
            "rate": ("rank", np.sqrt(width) * following),
        },
        {"scaling": list(scalings), "draw": range(draws), "rank": ranks},
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
    """Measure the error of a layer cut to a fixed rank, over its width, for weights that grow with it and for others.

    Singular values of the vocabulary are exp(−(j − 1)/decay), the same leading ones at every width; all else is drawn
    anew. Weights of scaling "theorem" have ‖W_V‖ grow as √d, "normalised" ones do not grow, and "orthogonal" ones are
    as "theorem" with W_V = √d times an orthogonal matrix: what the cut of W_V alone does is then exactly
    √d‖(I − P)UG‖.

    Args:
        widths: d, each above the rank.
        rank: d̃.
        n_tokens: N, at least the largest width.
        draws: for each width.
        decay: of the singular values.
        seed: of the draws.

    Returns:
        Dataset of kind "theory_compression_width". ``error`` (weights, draw, width); ``value_error`` and ``residual``
        ‖(I − P)UG‖_F (draw, width), of orthogonal weights; ``slope``, ``slope_low``, ``slope_high`` (weights): of the
        log of the root mean square over draws over log d, with its 95 % interval over draws.

    Source:
        Flow of ranks, appendix J.1, figure 15 right (S0-J1b), whose √d needs ‖W_V‖ to grow as √d.

    Raises:
        InputError: fewer than two widths, one that is not above the rank, or fewer tokens than the largest.

    Example:
        >>> found = rank_theory.compression_by_width(widths=(16, 32), rank=4, n_tokens=64, draws=3)
        >>> found["error"].sizes["draw"]
        3
    """
    if len(widths) < 2 or min(widths) <= rank:
        raise InputError(f"widths are {list(widths)}, expected two or more, each above the rank {rank}")
    kinds = ("theorem", "orthogonal", "normalised")
    errors = np.empty((len(kinds), draws, len(widths)))
    values, residuals = np.empty((2, draws, len(widths)))
    for draw, child in enumerate(children(seed, draws)):
        for place, width in enumerate(widths):
            rng = np.random.default_rng([child, width])
            tokens = of_spectrum(np.exp(-np.arange(width) / decay), n_tokens, rng)
            weight_seed = int(rng.integers(2**31))
            plain = AttentionWeights.random(width, seed=weight_seed)
            orthogonal = plain.with_value(np.sqrt(width) * orthonormal(width, width, rng))
            small = AttentionWeights.random(width, scaling="normalised", seed=weight_seed)
            for which, weights in enumerate((plain, orthogonal, small)):
                errors[which, draw, place] = compression_errors(tokens, weights, [rank])[0]
            residual = tokens - projector(tokens, rank) @ tokens
            mixed = column_softmax(logits(tokens, orthogonal)[0])
            values[draw, place] = np.linalg.norm(orthogonal.value[0] @ residual @ mixed)
            residuals[draw, place] = np.linalg.norm(residual @ mixed)
    fits = np.array([slope_of_rms(np.array(widths, dtype=float), of, seed) for of in errors]).T
    return labelled(
        {
            "error": (("weights", "draw", "width"), errors),
            "value_error": (("draw", "width"), values),
            "residual": (("draw", "width"), residuals),
            **{name: ("weights", fit) for name, fit in zip(("slope", "slope_low", "slope_high"), fits, strict=True)},
        },
        {"weights": list(kinds), "draw": range(draws), "width": list(widths)},
        "compression_width",
        "Error of a layer cut to a fixed rank, by width",
        "appendix J.1, figure 15 right (S0-J1b)",
        rank=rank,
        n_tokens=n_tokens,
        decay=decay,
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
    """Compute the curve of embeddings of Chebyshev polynomials in hidden space, by their rank.

    Args:
        dimension: d.
        ranks: k, each up to d.
        n_points: values from −largest to largest, evenly.
        largest: x_max.
        seed: of the directions.

    Returns:
        Dataset of kind "theory_chebyshev". ``coordinate`` (rank, axis, point): the first two of d; ``value`` (point);
        ``singular_value`` (rank, index): of all coordinates, one more than the largest rank; ``found_rank`` (rank):
        how many are above 1e-10 of the largest.

    Source:
        Flow of ranks, appendix I, figure 14 (S0-F14).

    Raises:
        InputError: a rank that is not from 1 to the dimension, or no more points than it.

    Example:
        >>> rank_theory.chebyshev_curves(dimension=8, ranks=(1, 3), n_points=50)["found_rank"].values.tolist()
        [1, 3]
    """
    if n_points <= max(ranks, default=0):
        raise InputError(f"{n_points} points cannot show rank {max(ranks)}, expected more")
    points = np.linspace(-largest, largest, n_points)
    count = min(max(ranks) + 1, dimension)
    coordinates, spectra = [], []
    for rank in ranks:
        tokens = ChebyshevEmbedding.random(dimension, rank, largest=largest, seed=seed)(points)
        coordinates.append(tokens[:2])
        spectra.append(np.linalg.svd(tokens, compute_uv=False)[:count])
    singular = np.array(spectra)
    return labelled(
        {
            "coordinate": (("rank", "axis", "point"), np.array(coordinates)),
            "singular_value": (("rank", "index"), singular),
            "found_rank": ("rank", (singular > 1e-10 * singular[:, :1]).sum(1)),
        },
        {"rank": list(ranks), "axis": [1, 2], "value": ("point", points), "index": range(1, count + 1)},
        "chebyshev",
        "Embeddings of Chebyshev polynomials",
        "appendix I, figure 14 (S0-F14)",
        dimension=dimension,
        largest=largest,
        seed=seed,
    )
