"""Bounds of the paper beside the bounded quantities, on random draws and on the constructions that make them tight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from tsfm_lens.ranks import flow_bound
from tsfm_lens.studies.rank_theory.compression import (
    AttentionWeights,
    attention,
    column_softmax,
    compressed,
    compression_bound,
    compression_rate,
    incompressible,
    least_value_error,
    logits,
    residual_layer,
)
from tsfm_lens.studies.rank_theory.constructions import (
    corollary_index,
    flow_floor,
    growing,
    head_sketch,
    one_layer_bound,
)
from tsfm_lens.studies.rank_theory.embeddings import (
    ACTIVATIONS,
    GatedEmbedding,
    ResidualMlpEmbedding,
    analytic_bound,
    differentiable_bound,
    gated_bound,
    mlp_count,
)
from tsfm_lens.studies.rank_theory.experiments import children, divisors, labelled, of_spectrum

__all__ = ["compression_bounds", "embedding_bounds", "growth_bounds", "sketch_bounds"]

LENGTHS = (1, 4, 16, 64, 256)


def embedding_bounds(
    *,
    dimension: int = 64,
    n_tokens: int = 1000,
    epsilons: Sequence[float] = (0.2, 0.3, 0.5, 0.7, 1.0),
    patch: int = 4,
    draws: int = 10,
    seed: int = 0,
) -> xr.Dataset:
    """Compute spectra of embeddings of known smoothness and counts of residual MLPs (S0-TH1, S0-TH2, S0-C2).

    Tokens are of points drawn evenly from [−1, 1], or of patches of k Gaussian values.

    Returns:
        Dataset of kind "theory_embedding_bounds". ``singular_value`` and ``bound`` (embedding, index); ``count``
        (activation, draw, epsilon) of singular values above ε‖W₂‖‖W₁X‖, and ``most`` (epsilon).

    Raises:
        InputError: the dimension is not above the patch.

    Example:
        >>> bounds = rank_theory.embedding_bounds(dimension=16, n_tokens=50, draws=1)
        >>> bool((bounds["count"] <= bounds["most"]).all())
        True
    """
    rng = np.random.default_rng(seed)
    points, knots = rng.uniform(-1, 1, n_tokens), rng.uniform(-0.9, 0.9, dimension)[:, None]
    rates, sizes = rng.uniform(-2, 2, dimension)[:, None], (dimension, n_tokens)
    # the ellipse of radius 1.5 reaches this far up: the poles of 1/(1 + a²x²) stand at i/2 or further
    up = (1.5 - 1 / 1.5) / 2
    analytic = {
        "exp(wx)": (np.exp(rates * points), 2.5, float(np.exp(2 * (2.5 + 1 / 2.5) / 2))),
        "1/(1 + a²x²)": (1 / (1 + (rates * points) ** 2), 1.5, 1 / (1 - 4 * up**2)),
    }
    embeddings = {name: (of, analytic_bound(*sizes, radius=r, largest=m)) for name, (of, r, m) in analytic.items()}
    for order, variation in ((1, 2.0), (3, 12.0)):
        bound = differentiable_bound(*sizes, order=order, variation=variation)
        embeddings[f"|x − c|{'³' * (order == 3)}"] = (np.abs(points - knots) ** order, bound)
    embeddings["gated, β = 1"] = (GatedEmbedding.random(dimension, seed=seed)(points), gated_bound(*sizes, beta=1.0))
    spectra = [np.linalg.svd(of, compute_uv=False) for of, _ in embeddings.values()]
    columns = rng.normal(size=(patch, n_tokens))
    counts = np.empty((len(ACTIVATIONS), draws, len(epsilons)), dtype=int)
    for row, activation in enumerate(ACTIVATIONS):
        for draw, child in enumerate(children(seed, draws)):
            mlp = ResidualMlpEmbedding.random(dimension, patch, activation=activation, seed=child)
            counts[row, draw], most = mlp_count(mlp, columns, epsilons)
    count = len(spectra[0])
    data = {
        "singular_value": (("embedding", "index"), np.array(spectra)),
        "bound": (("embedding", "index"), np.array([bound[:count] for _, bound in embeddings.values()])),
        "count": (("activation", "draw", "epsilon"), counts),
        "most": ("epsilon", most),
    }
    places = {"embedding": list(embeddings), "index": range(1, count + 1), "activation": list(ACTIVATIONS)}
    coords = {**places, "draw": range(draws), "epsilon": list(epsilons)}
    title, where = "Spectra of embeddings and their bounds", "theorems 1 and 2, corollary 2 (S0-TH1, S0-TH2, S0-C2)"
    attrs = {"dimension": dimension, "n_tokens": n_tokens, "patch": patch, "seed": seed}
    return labelled(data, coords, "embedding_bounds", title, where, **attrs)


def compression_bounds(
    *, width: int = 32, heads: Sequence[int] = (1, 4), n_tokens: int = 64, draws: int = 20, seed: int = 0
) -> xr.Dataset:
    """Check both statements on compression: errors, one repeated token, incompressible inputs (S0-TH3, S0-TH5).

    Returns:
        Dataset of kind "theory_compression_bounds". ``error``, ``bound`` and ``rate`` √d σ_{d̃+1} (heads, draw, rank);
        ``repeated_error`` and ``repeated_rate`` (length) of one token repeated; ``least_error`` (length_over, rank) of
        any value matrix on the incompressible input, ``floor`` σ_{d̃+1}/4 (rank), and ``sharpness`` (logarithm,
        length_over), the smallest singular value of that input's softmax.

    Raises:
        InputError: heads that do not divide the width.

    Example:
        >>> bounds = rank_theory.compression_bounds(width=8, heads=(2,), n_tokens=12, draws=2)
        >>> bool((bounds["error"] <= bounds["bound"]).all()), bool((bounds["least_error"] >= bounds["floor"]).all())
        (True, True)
    """
    counts, ranks = divisors(width, heads), range(1, width)
    errors, bounds, rates = np.empty((3, len(counts), draws, width - 1))
    for draw, child in enumerate(children(seed, draws)):
        rng = np.random.default_rng(child)
        vocabulary = of_spectrum(np.exp(-np.arange(width) / rng.uniform(1, width / 2)), 4 * width, rng)
        tokens = vocabulary[:, rng.integers(0, 4 * width, n_tokens)]
        for row, count in enumerate(counts):
            weights = AttentionWeights.random(width, count, seed=child + 1)
            whole = attention(tokens, weights)
            outputs = (attention(tokens, compressed(weights, vocabulary, rank)) for rank in ranks)
            errors[row, draw] = [np.linalg.norm(whole - other) for other in outputs]
            bounds[row, draw] = compression_bound(vocabulary, weights, ranks, n_tokens)
            rates[row, draw] = compression_rate(vocabulary, ranks)
    # a repeated second-best token, of a vocabulary as bad as any
    steep = np.diag(np.append(1.0, np.full(width - 1, 0.1)))
    weights = AttentionWeights.random(width).with_value(np.sqrt(width) * np.eye(width))
    less, repeated = compressed(weights, steep, 1), (np.repeat(steep[:, 1:2], length, axis=1) for length in LENGTHS)
    repeat_errors = [np.linalg.norm(attention(of, weights) - attention(of, less)) for of in repeated]
    over = {"d": width, "4d + 1": 4 * width + 1, "16d": 16 * width}
    singular = np.exp(-np.arange(width) / width)
    least, sharp = np.empty((len(over), width - 1)), np.empty((2, len(over)))
    for row, length in enumerate(over.values()):
        for which, as_printed in enumerate((True, False)):
            tokens, weights = incompressible(singular, length, seed=seed, as_printed=as_printed)
            block = column_softmax(logits(tokens, weights)[0])[:width, :width]
            sharp[which, row] = np.linalg.svd(block, compute_uv=False)[-1]
        least[row] = [least_value_error(tokens, weights, rank) for rank in ranks]
    data = {
        "error": (("heads", "draw", "rank"), errors),
        "bound": (("heads", "draw", "rank"), bounds),
        "rate": (("heads", "draw", "rank"), rates),
        "repeated_error": ("length", repeat_errors),
        "repeated_rate": ("length", np.full(len(LENGTHS), compression_rate(steep, [1]))),
        "least_error": (("length_over", "rank"), least),
        "floor": ("rank", singular[1:] / 4),
        "sharpness": (("logarithm", "length_over"), sharp),
    }
    places = {"heads": counts, "draw": range(draws), "rank": list(ranks), "length": list(LENGTHS)}
    coords = {**places, "length_over": list(over), "logarithm": ["of 4d, as printed", "of 4 max(d, L)"]}
    what = "compression_bounds", "Errors of compression and their bounds", "theorems 3 and 5 (S0-TH3, S0-TH5)"
    return labelled(data, coords, *what, width=width, n_tokens=n_tokens, seed=seed)


def growth_bounds(
    *,
    width: int = 48,
    heads: Sequence[int] = (1, 2, 4),
    gap: float = 0.02,
    decay: float = 4.0,
    draws: int = 10,
    seed: int = 0,
) -> xr.Dataset:
    """Check theorem 4 and corollary 1 on random layers and on the construction that grows fastest (S0-TH4, S0-C1).

    Singular values of the input are 1, then gap · exp(−(j − 2)/decay); weights have the largest norms that are allowed.

    Returns:
        Dataset of kind "theory_growth_bounds". ``relative`` (heads, draw, index): σ_k(Z)/σ_1(Z) for the fewest layers D
        that the theorem is about, ``depth`` (heads), and ``upper`` (heads, index); ``grown`` and ``lower`` (heads,
        index): of the construction at D = 1 and its lower bound; ``alone`` (heads, draw, index): σ_k(Z) at D = 1, and
        ``corollary`` (form, heads, index), its bound by either index.

    Raises:
        InputError: heads that do not divide the width.

    Example:
        >>> bounds = rank_theory.growth_bounds(width=8, heads=(2,), draws=2)
        >>> bool((bounds["relative"] <= bounds["upper"]).all()), bool((bounds["grown"] >= bounds["lower"]).all())
        (True, True)
    """
    counts, singular = divisors(width, heads), np.append(1.0, gap * np.exp(-np.arange(width - 1) / decay))
    depths = [int(np.ceil((2 * np.exp(2) * count) ** 2)) for count in counts]
    relative, alone = np.empty((2, len(counts), draws, width))
    for draw, child in enumerate(children(seed, draws)):
        tokens = of_spectrum(singular, 2 * width, np.random.default_rng(child))
        for row, (count, depth) in enumerate(zip(counts, depths, strict=True)):
            weights = AttentionWeights.random(width, count, scaling="unit", seed=child + 1)
            weights = weights.within(np.sqrt(width // count), 1.0)
            deep = np.linalg.svd(residual_layer(tokens, weights, depth), compute_uv=False)
            relative[row, draw] = deep / deep[0]
            alone[row, draw] = np.linalg.svd(residual_layer(tokens, weights), compute_uv=False)
    constructions = [growing(singular, count, 2 * width) for count in counts]
    growth = np.array([np.linalg.svd(residual_layer(*each), compute_uv=False) for each in constructions])
    k = np.arange(1, width + 1)
    proof = np.array([one_layer_bound(singular, count) for count in counts])
    printed = [np.minimum(corollary_index(k, count, as_printed=True), width) - 1 for count in counts]
    constants = np.array([1 + np.exp(2) * count for count in counts])[:, None]
    upper = np.array([flow_bound(singular, *each) for each in zip(counts, depths, strict=True)])
    data = {
        "relative": (("heads", "draw", "index"), relative),
        "upper": (("heads", "index"), upper),
        "grown": (("heads", "index"), growth / growth[:, :1]),
        "lower": (("heads", "index"), np.array([flow_floor(singular, count, 1) for count in counts])),
        "alone": (("heads", "draw", "index"), alone),
        "corollary": (("form", "heads", "index"), np.array([proof, constants * singular[np.array(printed)]])),
        "input_singular_value": ("index", singular),
        "depth": ("heads", depths),
    }
    coords = {"heads": counts, "draw": range(draws), "index": k, "form": ["of the proof", "as printed"]}
    title, where = "Growth of rank in one layer and its bounds", "theorem 4 and corollary 1 (S0-TH4, S0-C1)"
    return labelled(data, coords, "growth_bounds", title, where, width=width, gap=gap, decay=decay, seed=seed)


def sketch_bounds(
    *,
    sizes: Sequence[tuple[int, int, int]] = ((2, 8, 3), (3, 6, 2), (4, 8, 3), (8, 6, 2)),
    decay: float = 3.0,
    draws: int = 5,
    seed: int = 0,
) -> xr.Dataset:
    """Check theorem 6: errors with one sketch for all heads and with a sketch for each, and their bounds (S0-TH6).

    ``sizes`` are (h, d_h, d̃), each with 2 heads or more and d̃ below d_h.

    Returns:
        Dataset of kind "theory_sketch_bounds". Over ``size`` and ``draw``: ``shared_error`` and ``own_error``, in the
        spectral norm. Over ``size``: ``shared_floor`` σ_{d̃+1}/2 and ``own_bound`` 4√h σ_{hd̃+1}.

    Raises:
        InputError: sizes of no construction.

    Example:
        >>> bounds = rank_theory.sketch_bounds(sizes=[(3, 6, 2)], draws=1)
        >>> bool(bounds["own_error"][0, 0] < bounds["shared_floor"][0])
        True
    """
    names = ("shared_error", "own_error", "shared_floor", "own_bound")
    measures = np.empty((len(names), len(sizes), draws))
    for row, (heads, size, rank) in enumerate(sizes):
        singular = np.exp(-np.arange(heads * size) / decay)
        for draw, child in enumerate(children(seed, draws)):
            construction = head_sketch(singular, heads, rank, heads * size + 4, seed=child)
            measures[:, row, draw] = [getattr(construction, name) for name in names]
    data = {name: (("size", "draw"), of) for name, of in zip(names[:2], measures, strict=False)}
    limits = {name: ("size", of[:, 0]) for name, of in zip(names[2:], measures[2:], strict=True)}
    coords = {"size": [f"h = {h}, d_h = {d_h}, d̃ = {rank}" for h, d_h, rank in sizes], "draw": range(draws)}
    what = "sketch_bounds", "One sketch for all heads and one for each", "theorem 6 (S0-TH6)"
    return labelled({**data, **limits}, coords, *what, decay=decay, seed=seed)
