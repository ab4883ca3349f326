"""Checks of definitions of the paper on the flow of ranks against exact answers; of no model, from a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tsfm_lens import compress, ranks
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers import values_ranks as paper
from tsfm_lens.studies.papers.measuring import Asked, Found

ROUNDING = 1e-12  # of the largest entry: smaller values are rounding in double precision
WIDTH, TOKENS = 24, 40
HEADS = (1, 2, 4)
LEVELS = (0.5, 0.1, 0.01, 0.001)


def epsilon_ranks(request: Asked) -> Found:
    """Cut matrices at their ε-rank, and one rank lower."""
    off, within = 0, 0
    for rng in _draws(request):
        matrix = rng.normal(size=(TOKENS, WIDTH)) * 10.0 ** -rng.uniform(0, 4, WIDTH)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        for level, rank in zip(LEVELS, ranks.epsilon_rank(values, LEVELS), strict=True):
            errors = [np.linalg.norm(matrix - (left[:, :k] * values[:k]) @ right[:k], 2) for k in (rank, rank - 1)]
            off += errors[0] > level * values[0] * (1 + ROUNDING)
            within += errors[1] <= level * values[0]
    counts: dict[str, float] = {
        paper.CUT_OFF: off,
        paper.CUT_FURTHER: within,
        paper.ZERO: int(ranks.epsilon_rank(np.zeros(WIDTH), 0.1)),
    }
    counts["matrices and thresholds"] = _count(request) * len(LEVELS)
    return Found(counts, {"matrices": f"{TOKENS} × {WIDTH}", "ε": _join(LEVELS), **_seeds(request)})


def line_angles(request: Asked) -> Found:
    """Check the angles of lines in a plane that are drawn at given angles."""
    degrees, off, outside = np.arange(0, 180, 7.0), 0, 0
    apart = np.abs(degrees[:, None] - degrees)
    expected = np.minimum(apart, 180 - apart)
    for rng in _draws(request):
        plane = rank_theory.orthonormal(WIDTH, 2, rng)
        radians = np.radians(degrees)
        signs = rng.choice([-1.0, 1.0], len(degrees)) * rng.uniform(0.1, 9, len(degrees))
        angles = np.degrees(ranks.angles(plane @ np.stack([np.cos(radians), np.sin(radians)]) * signs))
        outside += int(((angles < 0) | (angles > 90)).sum())
        # parallel lines are exact to half of the digits only
        off += _off(angles[apart > 0], expected[apart > 0])
    values: dict[str, float] = {
        paper.ANGLES_OFF: off,
        paper.ANGLES_OUTSIDE: outside,
        "pairs of lines": _count(request) * (expected > 0).sum(),
    }
    return Found(values, {"lines": f"{len(degrees)} in a plane of {WIDTH} dimensions", **_seeds(request)})


def decades(request: Asked, *, each: int = 40) -> Found:
    """Check the histogram of singular values of which so many are put into each decade."""
    wrong = 0
    for rng in _draws(request):
        spectrum = 10.0 ** -(np.arange(5)[:, None] + rng.uniform(0, 0.999, (5, each)))
        spectrum[0, 0] = 1.0
        wrong += int(np.abs(ranks.decade_histogram(rng.permutation(spectrum.ravel())) - each).sum())
    edges = ranks.decade_histogram(10.0 ** -np.arange(5.0))
    values: dict[str, float] = {
        paper.DECADES_OFF: wrong,
        paper.DECADES: len(edges),
        paper.ON_EDGES: int(np.abs(edges - 1).sum()),
    }
    return Found(values, {"singular values of a decade": str(each), **_seeds(request)})


def patch_embedding(request: Asked, *, steps: int = 512, patch: int = 16) -> Found:
    """Compare the tokens of a series with φ of each of its patches."""
    off = count = 0
    for rng in _draws(request):
        mix = rng.normal(size=(WIDTH, patch))
        series = rng.normal(size=steps)
        tokens = rank_theory.PatchEmbedding(lambda x, mix=mix: np.tanh(mix @ x), patch)(series)  # type: ignore[misc]
        expected = np.array([np.tanh(mix @ series[start : start + patch]) for start in range(0, steps, patch)]).T
        off, count = off + _off(tokens, expected), tokens.shape[1]
    return Found({paper.PATCHES_OFF: off, paper.PATCHES: count}, {"steps": str(steps), **_seeds(request)})


def quantised_embedding(request: Asked, *, bins: int = 64) -> Found:
    """Compare the tokens of a series with the sum over bins of the paper's definition."""
    off, rank = 0, 0
    for rng in _draws(request):
        embedding = rank_theory.QuantisedEmbedding.random(WIDTH, bins, largest=3.0, seed=int(rng.integers(2**31)))
        series = rng.normal(size=TOKENS)
        edges = np.concatenate([[-np.inf], embedding.edges, [np.inf]])
        inside = (series >= edges[:-1, None]) & (series < edges[1:, None])
        tokens = embedding(series)
        off += _off(tokens, embedding.vectors @ inside.astype(float)) + int((inside.sum(0) != 1).sum())
        rank = max(rank, int(np.linalg.matrix_rank(embedding(np.repeat(series[:5], 8)))))
    values: dict[str, float] = {paper.BINS_OFF: off, paper.FIVE_VALUES: rank}
    return Found(values, {"bins": str(bins), "d": str(WIDTH), **_seeds(request)})


def continuous_embedding(request: Asked, *, dimension: int = 256, patch: int = 16, n_tokens: int = 512) -> Found:
    """Compare both continuous embeddings with their formulas, and count the directions that random ones use."""
    mlp_off, gated_off, pairs = 0, 0, []
    for rng in _draws(request, of=5):
        seed = int(rng.integers(2**31))
        mlp = rank_theory.ResidualMlpEmbedding.random(dimension, patch, seed=seed)
        columns = rng.normal(size=(patch, n_tokens))
        tokens = mlp.embed(columns)
        one_by_one = [mlp.skip @ x + mlp.outer @ np.maximum(mlp.inner @ x, 0) for x in columns.T]
        mlp_off += _off(tokens, np.array(one_by_one).T)
        gated, values = rank_theory.GatedEmbedding.random(dimension, seed=seed), rng.uniform(-1, 1, n_tokens)
        swish = [
            [w * x / (1 + np.exp(-w * x)) * v * x for x in values] for w, v in zip(gated.gate, gated.value, strict=True)
        ]
        gated_off += _off(gated(values), np.array(swish))
        pairs.append([_rank(tokens), _rank(gated(values))])
    mean = np.mean(pairs, axis=0)
    results: dict[str, float] = {
        paper.MLP_OFF: mlp_off,
        paper.GATED_OFF: gated_off,
        "0.1-rank of white noise in a random residual MLP": float(mean[0]),
        "0.1-rank of single values in a random gated embedding": float(mean[1]),
    }
    return Found(results, {"d": str(dimension), "patch": str(patch), **_seeds(request, of=5)})


def one_head(request: Asked) -> Found:
    """Compare attention with its formula, token by token."""
    off, sums = 0, 0
    for rng in _draws(request):
        tokens = rng.normal(size=(WIDTH, TOKENS))
        weights = rank_theory.AttentionWeights.random(WIDTH, seed=int(rng.integers(2**31)))
        off += _off(rank_theory.attention(tokens, weights), _head_output(tokens, weights, 0))
        columns = rank_theory.column_softmax(rank_theory.logits(tokens, weights)).sum(axis=-2)
        sums += _off(columns, np.ones_like(columns))
    return Found({paper.ATTENTION_OFF: off, paper.SUMS_OFF: sums}, _sizes(request))


def several_heads(request: Asked) -> Found:
    """Compare several heads with each by itself, and one with attention of one head."""
    off, one = 0, 0
    for rng in _draws(request):
        tokens = rng.normal(size=(WIDTH, TOKENS))
        query, key, value = rng.normal(size=(3, WIDTH, WIDTH)) / WIDTH**0.25
        for heads in HEADS:
            weights = rank_theory.AttentionWeights.stacked(query, key, value, heads)
            expected = np.concatenate([_head_output(tokens, weights, head) for head in range(heads)])
            off += _off(rank_theory.attention(tokens, weights), expected)
        scores = tokens.T @ query.T @ key @ tokens / np.sqrt(WIDTH)
        formula = value @ tokens @ rank_theory.column_softmax(scores)
        one += _off(rank_theory.attention(tokens, rank_theory.AttentionWeights.stacked(query, key, value)), formula)
    return Found({paper.ONE_HEAD_OFF: one, paper.HEADS_OFF: off}, {"heads": _join(HEADS), **_sizes(request)})


def exact_compression(request: Asked, *, rank: int = 5) -> Found:
    """Compress heads to the rank of their vocabulary, and to one rank less."""
    off, less = 0, []
    for rng in _draws(request):
        vocabulary = rng.normal(size=(WIDTH, rank)) @ rng.normal(size=(rank, 4 * WIDTH))
        tokens = vocabulary[:, rng.integers(0, vocabulary.shape[1], TOKENS)]
        for heads in HEADS:
            weights = rank_theory.AttentionWeights.random(
                WIDTH, heads, scaling="normalised", seed=int(rng.integers(2**31))
            )
            whole = rank_theory.attention(tokens, weights)
            # scores of the size of the tokens are rounded, too
            exact, inexact = (
                rank_theory.attention(tokens, rank_theory.compressed(weights, vocabulary, k)) for k in (rank, rank - 1)
            )
            off += _off(exact, whole, times=100)
            less.append(float(np.linalg.norm(inexact - whole) / np.linalg.norm(whole)))
    values = {paper.EXACT_OFF: off, "smallest error at one rank less, of the output's norm": min(less)}
    return Found(values, {"heads": _join(HEADS), "rank of the vocabulary": str(rank), **_sizes(request)})


def sketching_bounds(request: Asked) -> Found:
    """Compare sketching distances with their lower bound, and with those of sketches that miss nothing."""
    below, above, full, index = 0, 0, 0, 0
    for rng in _draws(request):
        spectrum = np.exp(-np.arange(WIDTH) / rng.uniform(2, 10))
        matrix = (rank_theory.orthonormal(WIDTH, WIDTH, rng) * spectrum) @ rank_theory.orthonormal(TOKENS, WIDTH, rng).T
        for heads in HEADS:
            distance = rank_theory.sketching_distance(
                matrix, rank_theory.sparse_sketch(WIDTH, 2, heads, seed=int(rng.integers(2**31)))
            )
            below += distance < spectrum[2 * heads] * (1 - ROUNDING)
            above += distance > spectrum[0] * (1 + ROUNDING)
            # at most as many singular values reach the distance as the sketch has rows
            index += rank_theory.effective_index(spectrum, distance * (1 + ROUNDING)) > 2 * heads
        full += rank_theory.sketching_distance(matrix, rng.normal(size=(WIDTH, WIDTH))) > ROUNDING * 100
    values: dict[str, float] = {
        paper.SKETCH_BELOW: below,
        paper.SKETCH_ABOVE: above,
        paper.SKETCH_FULL: full,
        paper.SKETCH_INDEX: index,
    }
    return Found(values, {"heads": _join(HEADS), "rows of a head": "2", **_sizes(request)})


def schedules(request: Asked, *, layers: int = 12, d_head: int = 64) -> Found:
    """Compute size ratios of the printed schedules, by the literal formula and by its other readings."""
    values = {}
    for quantity, first, exponent, _ in paper.SCHEDULES:
        values[quantity] = _mean_share(first, exponent, layers, d_head)
        values[f"{quantity}, layers from 1"] = _mean_share(first, exponent, layers, d_head, start=1)
        exact = first * (1.0 + np.arange(layers)) ** exponent
        values[f"{quantity}, not rounded up"] = float(exact.mean() / d_head)
    return Found(values, {"layers": f"{layers}, from 0", "rank of a head": f"at most {d_head}"})


def guidelines(request: Asked, *, layers: int = 12, d_model: int = 768) -> Found:
    """Check the ends of the guideline, and that it rises ever more slowly."""
    ranks, exact = compress.guideline(layers, d_model), 16 + (d_model / 2 - 16) * np.linspace(0, 1, layers) ** 0.5
    values = {
        paper.GUIDE_FIRST: float(ranks[0]),
        paper.GUIDE_LAST: float(ranks[-1]),
        paper.GUIDE_OFF: float((np.abs(ranks - exact) >= 1).sum() + (np.diff(ranks) <= 0).sum()),
        paper.GUIDE_ONE: float(compress.guideline(1, d_model)[0]),
    }
    return Found(values, {"layers": str(layers), "d": str(d_model), "exponent": "0.5"})


def _mean_share(first: float, exponent: float, layers: int, d_head: int, start: int = 0) -> float:
    ranks = compress.rank_schedule(first, exponent, layers, d_head, start=start).tolist()
    return compress.ratio_of([compress.BlockShape(12, d_head, 12 * d_head)] * layers, ranks).ranks


def _head_output(tokens: np.ndarray, weights: rank_theory.AttentionWeights, head: int) -> np.ndarray:
    """Compute one head's output, a token at a time and a sum at a time."""
    query, key, value = weights.query[head], weights.key[head], weights.value[head]
    out = np.zeros((len(value), tokens.shape[1]))
    for j, column in enumerate(tokens.T):
        scores = [float((query @ token) @ (key @ column)) / len(query) ** 0.5 for token in tokens.T]
        shares = np.exp(np.array(scores) - max(scores))
        out[:, j] = sum(share * (value @ x) for share, x in zip(shares / shares.sum(), tokens.T, strict=True))
    return out


def _off(values: np.ndarray, expected: np.ndarray, times: float = 1.0) -> int:
    """Count the entries that differ by more than rounding; one that is no number differs."""
    near = np.abs(values - expected) <= times * ROUNDING * np.abs(expected).max()
    return int(near.size - near.sum())


def _rank(tokens: np.ndarray) -> int:
    return int(ranks.epsilon_rank(np.linalg.svd(tokens, compute_uv=False), 0.1))


def _count(request: Asked, of: int = 20) -> int:
    return request.seeds or of


def _draws(request: Asked, of: int = 20) -> list[np.random.Generator]:
    return [np.random.default_rng(child) for child in np.random.SeedSequence(request.seed).spawn(_count(request, of))]


def _seeds(request: Asked, of: int = 20) -> dict[str, str]:
    return {"draws": str(_count(request, of)), "seed": str(request.seed)}


def _sizes(request: Asked) -> dict[str, str]:
    return {"d": str(WIDTH), "tokens": str(TOKENS), **_seeds(request)}


def _join(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


MEASURES_OF_DEFINITIONS: dict[str, Callable[[Asked], Found]] = {
    "S0-ANG": line_angles,
    "S0-ATT": one_head,
    "S0-CEMB": continuous_embedding,
    "S0-ERANK": epsilon_ranks,
    "S0-GUIDE": guidelines,
    "S0-HIST": decades,
    "S0-MHA": several_heads,
    "S0-PATCH": patch_embedding,
    "S0-QEMB": quantised_embedding,
    "S0-SCHED": schedules,
    "S0-SKETCH": sketching_bounds,
    "S0-TH5": exact_compression,
}
