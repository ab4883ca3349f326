"""Checks of definitions of the paper on the flow of ranks against exact answers; of no model, from a seed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tsfm_lens import compress, ranks
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers.context import Context, MeasuredValues, measure

ROUNDING = 1e-12  # of the largest entry: smaller values are rounding in double precision
WIDTH, TOKENS, DRAWS = 24, 40, 20
HEADS = (1, 2, 4)
LEVELS = (0.5, 0.1, 0.01, 0.001)
# model, d̃₀, α
SCHEDULES = (
    ("Chronos", 3, 0.27),
    ("Chronos", 5, 0.35),
    ("Chronos", 7, 0.40),
    ("Moirai", 8, 0.34),
    ("Moirai", 10, 0.58),
)


@measure("S0-ERANK")
def epsilon_ranks(context: Context) -> MeasuredValues:
    """Cut matrices at their ε-rank, and one rank lower."""
    off, within = 0, 0
    for rng in context.generators(DRAWS):
        matrix = rng.normal(size=(TOKENS, WIDTH)) * 10.0 ** -rng.uniform(0, 4, WIDTH)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        for level, rank in zip(LEVELS, ranks.epsilon_rank(values, LEVELS), strict=True):
            errors = [np.linalg.norm(matrix - (left[:, :k] * values[:k]) @ right[:k], 2) for k in (rank, rank - 1)]
            off += errors[0] > level * values[0] * (1 + ROUNDING)
            within += errors[1] <= level * values[0]
    zero = int(ranks.epsilon_rank(np.zeros(WIDTH), 0.1))
    numbers = {"cut_off": off, "cut_further": within, "zero": zero}
    numbers["matrices and thresholds"] = context.draws(DRAWS) * len(LEVELS)
    return _counts(context, numbers, {"matrices": f"{TOKENS} × {WIDTH}", "ε": _join(LEVELS)})


@measure("S0-ANG")
def line_angles(context: Context) -> MeasuredValues:
    """Check the angles of lines in a plane that are drawn at given angles."""
    degrees, off, outside = np.arange(0, 180, 7.0), 0, 0
    apart = np.abs(degrees[:, None] - degrees)
    expected = np.minimum(apart, 180 - apart)
    for rng in context.generators(DRAWS):
        plane = rank_theory.orthonormal(WIDTH, 2, rng)
        radians = np.radians(degrees)
        signs = rng.choice([-1.0, 1.0], len(degrees)) * rng.uniform(0.1, 9, len(degrees))
        angles = np.degrees(ranks.angles(plane @ np.stack([np.cos(radians), np.sin(radians)]) * signs))
        outside += int(((angles < 0) | (angles > 90)).sum())
        # parallel lines are exact to half of the digits only
        off += _off(angles[apart > 0], expected[apart > 0])
    numbers = {"angles_off": off, "angles_outside": outside}
    numbers["pairs of lines"] = context.draws(DRAWS) * (expected > 0).sum()
    return _counts(context, numbers, {"lines": f"{len(degrees)} in a plane of {WIDTH} dimensions"})


@measure("S0-HIST")
def decades(context: Context, *, each: int = 40) -> MeasuredValues:
    """Check the histogram of singular values of which so many are put into each decade."""
    wrong = 0
    for rng in context.generators(DRAWS):
        spectrum = 10.0 ** -(np.arange(5)[:, None] + rng.uniform(0, 0.999, (5, each)))
        spectrum[0, 0] = 1.0
        wrong += int(np.abs(ranks.decade_histogram(rng.permutation(spectrum.ravel())) - each).sum())
    edges = ranks.decade_histogram(10.0 ** -np.arange(5.0))
    numbers = {"decades_off": wrong, "decades": len(edges), "on_edges": int(np.abs(edges - 1).sum())}
    return _counts(context, numbers, {"singular values of a decade": str(each)})


@measure("S0-PATCH")
def patch_embedding(context: Context, *, steps: int = 512, patch: int = 16) -> MeasuredValues:
    """Compare the tokens of a series with φ of each of its patches."""
    off = count = 0
    for rng in context.generators(DRAWS):
        mix, series = rng.normal(size=(WIDTH, patch)), rng.normal(size=steps)
        tokens = rank_theory.PatchEmbedding(lambda x, mix=mix: np.tanh(mix @ x), patch)(series)  # type: ignore[misc]
        expected = np.array([np.tanh(mix @ series[start : start + patch]) for start in range(0, steps, patch)]).T
        off, count = off + _off(tokens, expected), tokens.shape[1]
    return _counts(context, {"patches_off": off, "patches": count}, {"steps": str(steps)})


@measure("S0-QEMB")
def quantised_embedding(context: Context, *, bins: int = 64) -> MeasuredValues:
    """Compare the tokens of a series with the sum over bins of the paper's definition."""
    off, rank = 0, 0
    for rng in context.generators(DRAWS):
        embedding = rank_theory.QuantisedEmbedding.random(WIDTH, bins, largest=3.0, seed=int(rng.integers(2**31)))
        series = rng.normal(size=TOKENS)
        edges = np.concatenate([[-np.inf], embedding.edges, [np.inf]])
        inside = (series >= edges[:-1, None]) & (series < edges[1:, None])
        off += _off(embedding(series), embedding.vectors @ inside.astype(float)) + int((inside.sum(0) != 1).sum())
        rank = max(rank, int(np.linalg.matrix_rank(embedding(np.repeat(series[:5], 8)))))
    return _counts(context, {"bins_off": off, "five_values": rank}, {"bins": str(bins), "d": str(WIDTH)})


@measure("S0-CEMB")
def continuous_embedding(
    context: Context, *, dimension: int = 256, patch: int = 16, n_tokens: int = 512
) -> MeasuredValues:
    """Compare both continuous embeddings with their formulas, and count the directions that random ones use."""
    mlp_off, gated_off, pairs = 0, 0, []
    for rng in context.generators(5):
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
    noise, single = np.mean(pairs, axis=0)
    numbers = {
        "mlp_off": mlp_off,
        "gated_off": gated_off,
        "0.1-rank of white noise in a random residual MLP": noise,
        "0.1-rank of single values in a random gated embedding": single,
    }
    return _counts(context, numbers, {"d": str(dimension), "patch": str(patch)}, 5)


@measure("S0-ATT")
def one_head(context: Context) -> MeasuredValues:
    """Compare attention with its formula, token by token."""
    off, sums = 0, 0
    for rng in context.generators(DRAWS):
        tokens = rng.normal(size=(WIDTH, TOKENS))
        weights = rank_theory.AttentionWeights.random(WIDTH, seed=int(rng.integers(2**31)))
        off += _off(rank_theory.attention(tokens, weights), _head_output(tokens, weights, 0))
        columns = rank_theory.column_softmax(rank_theory.logits(tokens, weights)).sum(axis=-2)
        sums += _off(columns, np.ones_like(columns))
    return _counts(context, {"attention_off": off, "sums_off": sums}, _SIZES)


@measure("S0-MHA")
def several_heads(context: Context) -> MeasuredValues:
    """Compare several heads with each by itself, and one with attention of one head."""
    off, one = 0, 0
    for rng in context.generators(DRAWS):
        tokens = rng.normal(size=(WIDTH, TOKENS))
        query, key, value = rng.normal(size=(3, WIDTH, WIDTH)) / WIDTH**0.25
        for heads in HEADS:
            weights = rank_theory.AttentionWeights.stacked(query, key, value, heads)
            expected = np.concatenate([_head_output(tokens, weights, head) for head in range(heads)])
            off += _off(rank_theory.attention(tokens, weights), expected)
        scores = tokens.T @ query.T @ key @ tokens / np.sqrt(WIDTH)
        formula = value @ tokens @ rank_theory.column_softmax(scores)
        one += _off(rank_theory.attention(tokens, rank_theory.AttentionWeights.stacked(query, key, value)), formula)
    return _counts(context, {"one_head_off": one, "heads_off": off}, {"heads": _join(HEADS), **_SIZES})


@measure("S0-TH5")
def exact_compression(context: Context, *, rank: int = 5) -> MeasuredValues:
    """Compress heads to the rank of their vocabulary, and to one rank less."""
    off, less = 0, []
    for rng in context.generators(DRAWS):
        vocabulary = rng.normal(size=(WIDTH, rank)) @ rng.normal(size=(rank, 4 * WIDTH))
        tokens = vocabulary[:, rng.integers(0, vocabulary.shape[1], TOKENS)]
        for heads in HEADS:
            seed = int(rng.integers(2**31))
            weights = rank_theory.AttentionWeights.random(WIDTH, heads, scaling="normalised", seed=seed)
            whole = rank_theory.attention(tokens, weights)
            exact, inexact = (
                rank_theory.attention(tokens, rank_theory.compressed(weights, vocabulary, k)) for k in (rank, rank - 1)
            )
            # scores of the size of the tokens are rounded, too
            off += _off(exact, whole, times=100)
            less.append(float(np.linalg.norm(inexact - whole) / np.linalg.norm(whole)))
    numbers = {"exact_off": off, "smallest error at one rank less, of the output's norm": min(less)}
    return _counts(context, numbers, {"heads": _join(HEADS), "rank of the vocabulary": str(rank), **_SIZES})


@measure("S0-SKETCH")
def sketching_bounds(context: Context) -> MeasuredValues:
    """Compare sketching distances with their lower bound, and with those of sketches that miss nothing."""
    below, above, full, index = 0, 0, 0, 0
    for rng in context.generators(DRAWS):
        spectrum = np.exp(-np.arange(WIDTH) / rng.uniform(2, 10))
        matrix = (rank_theory.orthonormal(WIDTH, WIDTH, rng) * spectrum) @ rank_theory.orthonormal(TOKENS, WIDTH, rng).T
        for heads in HEADS:
            sketch = rank_theory.sparse_sketch(WIDTH, 2, heads, seed=int(rng.integers(2**31)))
            distance = rank_theory.sketching_distance(matrix, sketch)
            below += distance < spectrum[2 * heads] * (1 - ROUNDING)
            above += distance > spectrum[0] * (1 + ROUNDING)
            # at most as many singular values reach the distance as the sketch has rows
            index += rank_theory.effective_index(spectrum, distance * (1 + ROUNDING)) > 2 * heads
        full += rank_theory.sketching_distance(matrix, rng.normal(size=(WIDTH, WIDTH))) > ROUNDING * 100
    numbers = {"sketch_below": below, "sketch_above": above, "sketch_full": full, "sketch_index": index}
    return _counts(context, numbers, {"heads": _join(HEADS), "rows of a head": "2", **_SIZES})


@measure("S0-SCHED")
def schedules(context: Context, *, layers: int = 12, d_head: int = 64) -> MeasuredValues:
    """Compute size ratios of the printed schedules, by the literal formula and by its other readings."""
    values = {}
    for model, first, exponent in SCHEDULES:
        quantity = f"size ratio of {model}, d̃₀ = {first}, α = {exponent:.2f}"
        for words, start in (("", 0), (", layers from 1", 1)):
            rounded = compress.rank_schedule(first, exponent, layers, d_head, start=start).tolist()
            ratio = compress.ratio_of([compress.BlockShape(12, d_head, 12 * d_head)] * layers, rounded)
            values[quantity + words] = ratio.ranks
        exact = first * (1.0 + np.arange(layers)) ** exponent
        values[f"{quantity}, not rounded up"] = float(exact.mean() / d_head)
    return MeasuredValues(values, {"layers": f"{layers}, from 0", "rank of a head": f"at most {d_head}"})


@measure("S0-GUIDE")
def guidelines(context: Context, *, layers: int = 12, d_model: int = 768) -> MeasuredValues:
    """Check the ends of the guideline, and that it rises ever more slowly."""
    guide, exact = compress.guideline(layers, d_model), 16 + (d_model / 2 - 16) * np.linspace(0, 1, layers) ** 0.5
    values = {
        "guide_first": float(guide[0]),
        "guide_last": float(guide[-1]),
        "guide_off": float((np.abs(guide - exact) >= 1).sum() + (np.diff(guide) <= 0).sum()),
        "guide_one": float(compress.guideline(1, d_model)[0]),
    }
    return MeasuredValues(values, {"layers": str(layers), "d": str(d_model), "exponent": "0.5"})


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


_SIZES = {"d": str(WIDTH), "tokens": str(TOKENS)}


def _counts(
    context: Context, numbers: Mapping[str, float], settings: dict[str, str], default: int = DRAWS
) -> MeasuredValues:
    """Return numbers over draws, with the settings of the draws."""
    values = {name: float(number) for name, number in numbers.items()}
    return MeasuredValues(values, {**settings, "draws": str(context.draws(default)), "seed": str(context.seed)})


def _join(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
