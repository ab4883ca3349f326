"""Checks of the definitions of the paper on the flow of ranks against exact answers.

They need no model, only a seed: each function draws an example whose answer is known
and counts the misses. Read :func:`per_draw` first, which registers such a function and
adds its counts up over draws. The definitions are in
:mod:`tsfm_lens.studies.rank_theory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, softmax

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


Counts = Mapping[str, Any]
Count = Callable[[np.random.Generator], Counts]
SIZES = {"d": WIDTH, "tokens": TOKENS}


def per_draw(
    name: str, settings: Mapping[str, Any], draws: int = DRAWS, **folds: str
) -> Callable[[Count], Count]:
    """Register a function of a generator as the measure of an item.

    Its counts are added up over draws, unless ``folds`` names another reduction for a
    key, by its first word.
    """

    def register(count: Count) -> Count:
        measure(name, draws=draws)(partial(_over_draws, count, settings, folds))
        return count

    return register


def _over_draws(
    count: Count,
    settings: Mapping[str, Any],
    folds: Mapping[str, str],
    context: Context,
) -> MeasuredValues:
    rows = pd.DataFrame([count(rng) for rng in context.generators()])
    values = {
        name: rows[name].agg(folds.get(name.split()[0], "sum"))
        for name in map(str, rows)
    }
    return MeasuredValues(values, {**settings, **asdict(context)})


@per_draw("S0-ERANK", {"matrices": f"{TOKENS} × {WIDTH}", "ε": LEVELS}, zero="max")
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
    zero = ranks.epsilon_rank(np.zeros(WIDTH), 0.1)
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
    outside = ((angles < 0) | (angles > 90)).sum()
    return {
        "angles_off": off,
        "angles_outside": outside,
        "pairs of lines": (expected > 0).sum(),
    }


@per_draw(
    "S0-HIST",
    {"singular values of a decade": PER_DECADE},
    decades="max",
    on_edges="max",
)
def decades(rng: np.random.Generator) -> Counts:
    """Check the histogram of singular values with ``EACH`` of them in each decade."""
    spectrum = 10.0 ** -(np.arange(5)[:, None] + rng.uniform(0, 0.999, (5, PER_DECADE)))
    spectrum[0, 0] = 1.0
    found = ranks.decade_histogram(rng.permutation(spectrum.ravel()))
    off = np.abs(found - PER_DECADE).sum()
    edges = ranks.decade_histogram(10.0 ** -np.arange(5.0))
    return {
        "decades_off": off,
        "decades": len(edges),
        "on_edges": np.abs(edges - 1).sum(),
    }


@per_draw("S0-PATCH", {"steps": STEPS}, patches="max")
def patch_embedding(rng: np.random.Generator) -> Counts:
    """Compare the tokens of a series with φ of each of its patches."""
    mix = rng.normal(size=(WIDTH, PATCH))
    series = rng.normal(size=STEPS)
    tokens = rank_theory.PatchEmbedding(lambda x: np.tanh(mix @ x), PATCH)(series)
    expected = np.tanh(mix @ series.reshape(-1, PATCH).T)
    return {"patches_off": _off(tokens, expected), "patches": tokens.shape[1]}


@per_draw("S0-QEMB", {"bins": BINS, "d": WIDTH}, five_values="max")
def quantised_embedding(rng: np.random.Generator) -> Counts:
    """Compare the tokens of a series with the paper's definition, a sum over bins."""
    embedding = rank_theory.QuantisedEmbedding.random(
        WIDTH, BINS, largest=3.0, seed=int(rng.integers(2**31))
    )
    series = rng.normal(size=TOKENS)
    edges = np.concatenate([[-np.inf], embedding.edges, [np.inf]])
    inside = (series >= edges[:-1, None]) & (series < edges[1:, None])
    off = _off(embedding(series), embedding.vectors @ inside.astype(float))
    off += (inside.sum(0) != 1).sum()
    five_values = embedding(np.repeat(series[:5], 8))
    return {"bins_off": off, "five_values": np.linalg.matrix_rank(five_values)}


@per_draw("S0-CEMB", {"d": DIMENSION, "patch": PATCH}, 5, **{"0.1-rank": "mean"})
def continuous_embedding(rng: np.random.Generator) -> Counts:
    """Compare both continuous embeddings with their formulas.

    It also counts the directions that random ones use.
    """
    seed = int(rng.integers(2**31))
    mlp = rank_theory.ResidualMlpEmbedding.random(DIMENSION, PATCH, seed=seed)
    columns = rng.normal(size=(PATCH, STEPS))
    tokens = mlp.embed(columns)
    formula = mlp.skip @ columns + mlp.outer @ np.maximum(mlp.inner @ columns, 0)
    gated = rank_theory.GatedEmbedding.random(DIMENSION, seed=seed)
    values = rng.uniform(-1, 1, STEPS)
    gates, inner = (np.outer(part, values) for part in (gated.gate, gated.value))
    return {
        "mlp_off": _off(tokens, formula),
        "gated_off": _off(gated(values), gates * expit(gates) * inner),
        "0.1-rank of white noise in a random residual MLP": _rank(tokens),
        "0.1-rank of single values in a random gated embedding": _rank(gated(values)),
    }


@per_draw("S0-ATT", SIZES)
def one_head(rng: np.random.Generator) -> Counts:
    """Compare attention with its formula, token by token."""
    tokens = rng.normal(size=(WIDTH, TOKENS))
    weights = rank_theory.AttentionWeights.random(WIDTH, seed=int(rng.integers(2**31)))
    off = _off(rank_theory.attention(tokens, weights), _head_output(tokens, weights))
    columns = column_softmax(rank_theory.logits(tokens, weights)).sum(axis=-2)
    return {"attention_off": off, "sums_off": _off(columns, np.ones_like(columns))}


@per_draw("S0-MHA", {"heads": HEADS, **SIZES})
def several_heads(rng: np.random.Generator) -> Counts:
    """Compare several heads with each head alone, and one with one-head attention."""
    tokens = rng.normal(size=(WIDTH, TOKENS))
    misses = 0
    query, key, value = rng.normal(size=(3, WIDTH, WIDTH)) / WIDTH**0.25
    for heads in HEADS:
        weights = rank_theory.AttentionWeights.stacked(query, key, value, heads)
        outputs = [_head_output(tokens, weights, head) for head in range(heads)]
        misses += _off(rank_theory.attention(tokens, weights), np.concatenate(outputs))
    one = rank_theory.AttentionWeights.stacked(query, key, value)
    off = _off(rank_theory.attention(tokens, one), _head_output(tokens, one))
    return {"one_head_off": off, "heads_off": misses}


@per_draw(
    "S0-TH5",
    {"heads": HEADS, "rank of the vocabulary": RANK, **SIZES},
    smallest="min",
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
        less.append(np.linalg.norm(inexact - full) / np.linalg.norm(full))
    return {
        "exact_off": off,
        "smallest error at one rank less, of the output's norm": min(less),
    }


@per_draw("S0-SKETCH", {"heads": HEADS, "rows of a head": "2", **SIZES})
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
    square = rng.normal(size=(WIDTH, WIDTH))
    full = rank_theory.sketching_distance(matrix, square)
    return {
        "sketch_below": below,
        "sketch_above": above,
        "sketch_full": full > ROUNDING * 100,
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
        values[f"{quantity}, not rounded up"] = exact.mean() / d_head
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
        "guide_first": guide[0],
        "guide_last": guide[-1],
        "guide_off": (np.abs(guide - exact) >= 1).sum() + (np.diff(guide) <= 0).sum(),
        "guide_one": rank_theory.guideline(1, d_model)[0],
    }
    return MeasuredValues(values, {"layers": layers, "d": d_model, "exponent": "0.5"})


def _head_output(
    tokens: np.ndarray, weights: rank_theory.AttentionWeights, head: int = 0
) -> np.ndarray:
    """Compute one head's output by the paper's formula."""
    query = weights.query[head]
    scores = tokens.T @ query.T @ weights.key[head] @ tokens
    shares = softmax(scores / len(query) ** 0.5, axis=0)
    return weights.value[head] @ tokens @ np.asarray(shares)


def _off(values: np.ndarray, expected: np.ndarray, times: float = 1.0) -> int:
    """Count the entries that differ by more than rounding, NaN included."""
    near = np.abs(values - expected) <= times * ROUNDING * np.abs(expected).max()
    return int(near.size - near.sum())


def _rank(tokens: np.ndarray) -> int:
    return int(ranks.epsilon_rank(np.linalg.svd(tokens, compute_uv=False), 0.1))
