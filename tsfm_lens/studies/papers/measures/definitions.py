"""Checks of the definitions of the paper on the flow of ranks against exact answers.

They need no model, only a seed: each function draws an example whose answer is known
and counts the misses. Read :func:`per_draw` first, which registers such a function and
adds its counts up over draws. The definitions are in
:mod:`tsfm_lens.studies.rank_theory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tsfm_lens import compress
from tsfm_lens.core import ranks
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers.context import Context, MeasuredValues, measure
from tsfm_lens.studies.rank_theory.compression import column_softmax, orthonormal
from tsfm_lens.studies.rank_theory.constructions import effective_index

ROUNDING = (
    1e-12  # of the largest entry: smaller values are rounding in double precision
)
WIDTH = 24
TOKENS = 40
DRAWS = 20
STEPS = 512
PATCH = 16
BINS = 64
DIMENSION = 256
# singular values of a decade, and rank of a vocabulary
PER_DECADE = 40
RANK = 5
DEGREES = np.arange(0, 180, 7.0)
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


Counts = Mapping[str, float]
SIZES = {"d": str(WIDTH), "tokens": str(TOKENS)}


def _join(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def per_draw(
    name: str,
    settings: Mapping[str, str],
    draws: int = DRAWS,
    **folds: Callable[[Sequence[float]], float],
) -> Callable[
    [Callable[[np.random.Generator], Counts]], Callable[[np.random.Generator], Counts]
]:
    """Register a function of a generator as the measure of an item.

    Its counts are added up over draws, unless ``folds`` names another reduction for a
    key.
    """

    def register(
        count: Callable[[np.random.Generator], Counts],
    ) -> Callable[[np.random.Generator], Counts]:
        @measure(name)
        def over_draws(context: Context) -> MeasuredValues:
            rows = [count(rng) for rng in context.generators(draws)]
            values = {
                key: float(folds.get(key.split()[0], sum)([row[key] for row in rows]))
                for key in rows[0]
            }
            of_draws = {"draws": str(context.draws(draws)), "seed": str(context.seed)}
            return MeasuredValues(values, {**settings, **of_draws})

        return count

    return register


@per_draw("S0-ERANK", {"matrices": f"{TOKENS} × {WIDTH}", "ε": _join(LEVELS)}, zero=max)
def epsilon_ranks(rng: np.random.Generator) -> Counts:
    """Truncate a matrix at its ε-rank, and one rank lower."""
    matrix = rng.normal(size=(TOKENS, WIDTH)) * 10.0 ** -rng.uniform(0, 4, WIDTH)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    off = within = 0
    for level, rank in zip(LEVELS, ranks.epsilon_rank(values, LEVELS), strict=True):
        errors = [
            np.linalg.norm(matrix - (left[:, :k] * values[:k]) @ right[:k], 2)
            for k in (rank, rank - 1)
        ]
        off += errors[0] > level * values[0] * (1 + ROUNDING)
        within += errors[1] <= level * values[0]
    zero = int(ranks.epsilon_rank(np.zeros(WIDTH), 0.1))
    return {
        "cut_off": off,
        "cut_further": within,
        "zero": zero,
        "matrices and thresholds": len(LEVELS),
    }


@per_draw("S0-ANG", {"lines": f"{len(DEGREES)} in a plane of {WIDTH} dimensions"})
def line_angles(rng: np.random.Generator) -> Counts:
    """Check the angles of lines in a plane that are drawn at given angles."""
    separate = np.abs(DEGREES[:, None] - DEGREES)
    radians = np.radians(DEGREES)
    expected = np.minimum(separate, 180 - separate)
    plane = orthonormal(WIDTH, 2, rng)
    signs = rng.choice([-1.0, 1.0], len(DEGREES)) * rng.uniform(0.1, 9, len(DEGREES))
    angles = np.degrees(
        ranks.angles(plane @ np.stack([np.cos(radians), np.sin(radians)]) * signs)
    )
    # parallel lines are exact to half of the digits only
    off = _off(angles[separate > 0], expected[separate > 0])
    outside = int(((angles < 0) | (angles > 90)).sum())
    return {
        "angles_off": off,
        "angles_outside": outside,
        "pairs of lines": (expected > 0).sum(),
    }


@per_draw(
    "S0-HIST",
    {"singular values of a decade": str(PER_DECADE)},
    decades=max,
    on_edges=max,
)
def decades(rng: np.random.Generator) -> Counts:
    """Check the histogram of singular values with ``EACH`` of them in each decade."""
    spectrum = 10.0 ** -(np.arange(5)[:, None] + rng.uniform(0, 0.999, (5, PER_DECADE)))
    spectrum[0, 0] = 1.0
    off = int(
        np.abs(
            ranks.decade_histogram(rng.permutation(spectrum.ravel())) - PER_DECADE
        ).sum()
    )
    edges = ranks.decade_histogram(10.0 ** -np.arange(5.0))
    return {
        "decades_off": off,
        "decades": len(edges),
        "on_edges": int(np.abs(edges - 1).sum()),
    }


@per_draw("S0-PATCH", {"steps": str(STEPS)}, patches=max)
def patch_embedding(rng: np.random.Generator) -> Counts:
    """Compare the tokens of a series with φ of each of its patches."""
    mix = rng.normal(size=(WIDTH, PATCH))
    series = rng.normal(size=STEPS)
    tokens = rank_theory.PatchEmbedding(lambda x: np.tanh(mix @ x), PATCH)(series)
    expected = np.array(
        [
            np.tanh(mix @ series[start : start + PATCH])
            for start in range(0, STEPS, PATCH)
        ]
    ).T
    return {"patches_off": _off(tokens, expected), "patches": tokens.shape[1]}


@per_draw("S0-QEMB", {"bins": str(BINS), "d": str(WIDTH)}, five_values=max)
def quantised_embedding(rng: np.random.Generator) -> Counts:
    """Compare the tokens of a series with the paper's definition, a sum over bins."""
    embedding = rank_theory.QuantisedEmbedding.random(
        WIDTH, BINS, largest=3.0, seed=int(rng.integers(2**31))
    )
    series = rng.normal(size=TOKENS)
    edges = np.concatenate([[-np.inf], embedding.edges, [np.inf]])
    inside = (series >= edges[:-1, None]) & (series < edges[1:, None])
    off = _off(embedding(series), embedding.vectors @ inside.astype(float)) + int(
        (inside.sum(0) != 1).sum()
    )
    return {
        "bins_off": off,
        "five_values": int(np.linalg.matrix_rank(embedding(np.repeat(series[:5], 8)))),
    }


@per_draw(
    "S0-CEMB", {"d": str(DIMENSION), "patch": str(PATCH)}, 5, **{"0.1-rank": np.mean}
)
def continuous_embedding(rng: np.random.Generator) -> Counts:
    """Compare both continuous embeddings with their formulas.

    It also counts the directions that random ones use.
    """
    seed = int(rng.integers(2**31))
    mlp = rank_theory.ResidualMlpEmbedding.random(DIMENSION, PATCH, seed=seed)
    columns = rng.normal(size=(PATCH, STEPS))
    tokens = mlp.embed(columns)
    one_by_one = [
        mlp.skip @ x + mlp.outer @ np.maximum(mlp.inner @ x, 0) for x in columns.T
    ]
    gated = rank_theory.GatedEmbedding.random(DIMENSION, seed=seed)
    values = rng.uniform(-1, 1, STEPS)
    swish = [
        [w * x / (1 + np.exp(-w * x)) * v * x for x in values]
        for w, v in zip(gated.gate, gated.value, strict=True)
    ]
    return {
        "mlp_off": _off(tokens, np.array(one_by_one).T),
        "gated_off": _off(gated(values), np.array(swish)),
        "0.1-rank of white noise in a random residual MLP": _rank(tokens),
        "0.1-rank of single values in a random gated embedding": _rank(gated(values)),
    }


@per_draw("S0-ATT", SIZES)
def one_head(rng: np.random.Generator) -> Counts:
    """Compare attention with its formula, token by token."""
    tokens = rng.normal(size=(WIDTH, TOKENS))
    weights = rank_theory.AttentionWeights.random(WIDTH, seed=int(rng.integers(2**31)))
    off = _off(rank_theory.attention(tokens, weights), _head_output(tokens, weights, 0))
    columns = column_softmax(rank_theory.logits(tokens, weights)).sum(axis=-2)
    return {"attention_off": off, "sums_off": _off(columns, np.ones_like(columns))}


@per_draw("S0-MHA", {"heads": _join(HEADS), **SIZES})
def several_heads(rng: np.random.Generator) -> Counts:
    """Compare several heads with each head alone, and one with one-head attention."""
    tokens = rng.normal(size=(WIDTH, TOKENS))
    misses = 0
    query, key, value = rng.normal(size=(3, WIDTH, WIDTH)) / WIDTH**0.25
    for heads in HEADS:
        weights = rank_theory.AttentionWeights.stacked(query, key, value, heads)
        expected = np.concatenate(
            [_head_output(tokens, weights, head) for head in range(heads)]
        )
        misses += _off(rank_theory.attention(tokens, weights), expected)
    formula = (
        value
        @ tokens
        @ column_softmax(tokens.T @ query.T @ key @ tokens / np.sqrt(WIDTH))
    )
    single = rank_theory.attention(
        tokens, rank_theory.AttentionWeights.stacked(query, key, value)
    )
    return {"one_head_off": _off(single, formula), "heads_off": misses}


@per_draw(
    "S0-TH5",
    {"heads": _join(HEADS), "rank of the vocabulary": str(RANK), **SIZES},
    smallest=min,
)
def exact_compression(rng: np.random.Generator) -> Counts:
    """Compress heads to the rank of their vocabulary, and to one rank less."""
    off = 0
    less = []
    vocabulary = rng.normal(size=(WIDTH, RANK)) @ rng.normal(size=(RANK, 4 * WIDTH))
    tokens = vocabulary[:, rng.integers(0, vocabulary.shape[1], TOKENS)]
    for heads in HEADS:
        seed = int(rng.integers(2**31))
        weights = rank_theory.AttentionWeights.random(
            WIDTH, heads, scaling="normalised", seed=seed
        )
        full = rank_theory.attention(tokens, weights)
        exact, inexact = (
            rank_theory.attention(
                tokens, rank_theory.compressed(weights, vocabulary, k)
            )
            for k in (RANK, RANK - 1)
        )
        # scores of the size of the tokens are rounded, too
        off += _off(exact, full, times=100)
        less.append(float(np.linalg.norm(inexact - full) / np.linalg.norm(full)))
    return {
        "exact_off": off,
        "smallest error at one rank less, of the output's norm": min(less),
    }


@per_draw("S0-SKETCH", {"heads": _join(HEADS), "rows of a head": "2", **SIZES})
def sketching_bounds(rng: np.random.Generator) -> Counts:
    """Compare sketching distances with their bounds.

    The bounds are the lower bound of the paper, the largest singular value, and 0 for a
    sketch that misses nothing.
    """
    below = above = index = 0
    spectrum = np.exp(-np.arange(WIDTH) / rng.uniform(2, 10))
    matrix = (orthonormal(WIDTH, WIDTH, rng) * spectrum) @ orthonormal(
        TOKENS, WIDTH, rng
    ).T
    for heads in HEADS:
        sketch = rank_theory.sparse_sketch(
            WIDTH, 2, heads, seed=int(rng.integers(2**31))
        )
        distance = rank_theory.sketching_distance(matrix, sketch)
        below += distance < spectrum[2 * heads] * (1 - ROUNDING)
        above += distance > spectrum[0] * (1 + ROUNDING)
        # at most as many singular values reach the distance as the sketch has rows
        index += effective_index(spectrum, distance * (1 + ROUNDING)) > 2 * heads
    full = (
        rank_theory.sketching_distance(matrix, rng.normal(size=(WIDTH, WIDTH)))
        > ROUNDING * 100
    )
    return {
        "sketch_below": below,
        "sketch_above": above,
        "sketch_full": full,
        "sketch_index": index,
    }


@measure("S0-SCHED")
def schedules(
    context: Context, *, layers: int = 12, d_head: int = 64
) -> MeasuredValues:
    """Compute size ratios of the printed schedules, by the formula and its variants."""
    values = {}
    for model, first, exponent in SCHEDULES:
        quantity = f"size ratio of {model}, d̃₀ = {first}, α = {exponent:.2f}"
        for text, start in (("", 0), (", layers from 1", 1)):
            rounded = rank_theory.rank_schedule(
                first, exponent, layers, d_head, start=start
            ).tolist()
            ratio = compress.compute_ratio(
                [compress.BlockShape(12, d_head, 12 * d_head)] * layers, rounded
            )
            values[quantity + text] = ratio.ranks
        exact = first * (1.0 + np.arange(layers)) ** exponent
        values[f"{quantity}, not rounded up"] = float(exact.mean() / d_head)
    return MeasuredValues(
        values, {"layers": f"{layers}, from 0", "rank of a head": f"at most {d_head}"}
    )


@measure("S0-GUIDE")
def guidelines(
    context: Context, *, layers: int = 12, d_model: int = 768
) -> MeasuredValues:
    """Check the guideline's first and last rank, and that it rises ever more slowly."""
    guide = rank_theory.guideline(layers, d_model)
    exact = 16 + (d_model / 2 - 16) * np.linspace(0, 1, layers) ** 0.5
    values = {
        "guide_first": float(guide[0]),
        "guide_last": float(guide[-1]),
        "guide_off": float(
            (np.abs(guide - exact) >= 1).sum() + (np.diff(guide) <= 0).sum()
        ),
        "guide_one": float(rank_theory.guideline(1, d_model)[0]),
    }
    return MeasuredValues(
        values, {"layers": str(layers), "d": str(d_model), "exponent": "0.5"}
    )


def _head_output(
    tokens: np.ndarray, weights: rank_theory.AttentionWeights, head: int
) -> np.ndarray:
    """Compute one head's output, a token at a time and a sum at a time."""
    query = weights.query[head]
    key = weights.key[head]
    value = weights.value[head]
    out = np.zeros((len(value), tokens.shape[1]))
    for j, column in enumerate(tokens.T):
        scores = [
            float((query @ token) @ (key @ column)) / len(query) ** 0.5
            for token in tokens.T
        ]
        shares = np.exp(np.array(scores) - max(scores))
        out[:, j] = sum(
            share * (value @ x)
            for share, x in zip(shares / shares.sum(), tokens.T, strict=True)
        )
    return out


def _off(values: np.ndarray, expected: np.ndarray, times: float = 1.0) -> int:
    """Count the entries that differ by more than rounding, NaN included."""
    near = np.abs(values - expected) <= times * ROUNDING * np.abs(expected).max()
    return int(near.size - near.sum())


def _rank(tokens: np.ndarray) -> int:
    return int(ranks.epsilon_rank(np.linalg.svd(tokens, compute_uv=False), 0.1))
