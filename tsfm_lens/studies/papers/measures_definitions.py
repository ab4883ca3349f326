"""How definitions of the paper on the flow of ranks are held against known answers here; of no model, from a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tsfm_lens import compress, ranks
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers import values_ranks as said
from tsfm_lens.studies.papers.measuring import Asked, Found

ROUNDING = 1e-12  # of the largest entry: below this nothing is told from zero in double precision
WIDTH, TOKENS = 24, 40
HEADS = (1, 2, 4)
LEVELS = (0.5, 0.1, 0.01, 0.001)


def epsilon_ranks(asked: Asked) -> Found:
    """Matrices cut at their ε-rank, and one rank lower."""
    off, within = 0, 0
    for rng in _draws(asked):
        matrix = rng.normal(size=(TOKENS, WIDTH)) * 10.0 ** -rng.uniform(0, 4, WIDTH)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        for level, rank in zip(LEVELS, ranks.epsilon_rank(values, LEVELS), strict=True):
            errors = [
                np.linalg.norm(matrix - (left[:, :kept] * values[:kept]) @ right[:kept], 2) for kept in (rank, rank - 1)
            ]
            off += errors[0] > level * values[0] * (1 + ROUNDING)
            within += errors[1] <= level * values[0]
    found: dict[str, float] = {
        said.CUT_OFF: off,
        said.CUT_FURTHER: within,
        said.ZERO: int(ranks.epsilon_rank(np.zeros(WIDTH), 0.1)),
    }
    found["matrices and thresholds"] = _count(asked) * len(LEVELS)
    return Found(found, {"matrices": f"{TOKENS} × {WIDTH}", "ε": _listed(LEVELS), **_seeds(asked)})


def line_angles(asked: Asked) -> Found:
    """Lines in a plane whose angles are known."""
    degrees, off, outside = np.arange(0, 180, 7.0), 0, 0
    apart = np.abs(degrees[:, None] - degrees)
    known = np.minimum(apart, 180 - apart)
    for rng in _draws(asked):
        plane = rank_theory.orthonormal(WIDTH, 2, rng)
        turned = np.radians(degrees)
        signs = rng.choice([-1.0, 1.0], len(degrees)) * rng.uniform(0.1, 9, len(degrees))
        found = np.degrees(ranks.angles(plane @ np.stack([np.cos(turned), np.sin(turned)]) * signs))
        outside += int(((found < 0) | (found > 90)).sum())
        # parallel lines are exact to half of the digits only
        off += _off(found[apart > 0], known[apart > 0])
    values: dict[str, float] = {
        said.ANGLES_OFF: off,
        said.ANGLES_OUTSIDE: outside,
        "pairs of lines": _count(asked) * (known > 0).sum(),
    }
    return Found(values, {"lines": f"{len(degrees)} in a plane of {WIDTH} dimensions", **_seeds(asked)})


def decades(asked: Asked, *, each: int = 40) -> Found:
    """Singular values of which so many are put into each decade."""
    wrong = 0
    for rng in _draws(asked):
        planted = 10.0 ** -(np.arange(5)[:, None] + rng.uniform(0, 0.999, (5, each)))
        planted[0, 0] = 1.0
        wrong += int(np.abs(ranks.decade_histogram(rng.permutation(planted.ravel())) - each).sum())
    edges = ranks.decade_histogram(10.0 ** -np.arange(5.0))
    values: dict[str, float] = {
        said.DECADES_OFF: wrong,
        said.DECADES: len(edges),
        said.ON_EDGES: int(np.abs(edges - 1).sum()),
    }
    return Found(values, {"singular values of a decade": str(each), **_seeds(asked)})


def patch_embedding(asked: Asked, *, steps: int = 512, patch: int = 16) -> Found:
    """Tokens of a series beside φ of each of its patches."""
    off = count = 0
    for rng in _draws(asked):
        mix = rng.normal(size=(WIDTH, patch))
        series = rng.normal(size=steps)
        tokens = rank_theory.PatchEmbedding(lambda x, mix=mix: np.tanh(mix @ x), patch)(series)  # type: ignore[misc]
        known = np.array([np.tanh(mix @ series[start : start + patch]) for start in range(0, steps, patch)]).T
        off, count = off + _off(tokens, known), tokens.shape[1]
    return Found({said.PATCHES_OFF: off, said.PATCHES: count}, {"steps": str(steps), **_seeds(asked)})


def quantised_embedding(asked: Asked, *, bins: int = 64) -> Found:
    """Tokens of a series beside the sum over bins of the paper's definition."""
    off, rank = 0, 0
    for rng in _draws(asked):
        embedding = rank_theory.QuantisedEmbedding.random(WIDTH, bins, largest=3.0, seed=int(rng.integers(2**31)))
        series = rng.normal(size=TOKENS)
        edges = np.concatenate([[-np.inf], embedding.edges, [np.inf]])
        inside = (series >= edges[:-1, None]) & (series < edges[1:, None])
        tokens = embedding(series)
        off += _off(tokens, embedding.vectors @ inside.astype(float)) + int((inside.sum(0) != 1).sum())
        rank = max(rank, int(np.linalg.matrix_rank(embedding(np.repeat(series[:5], 8)))))
    values: dict[str, float] = {said.BINS_OFF: off, said.FIVE_VALUES: rank}
    return Found(values, {"bins": str(bins), "d": str(WIDTH), **_seeds(asked)})


def continuous_embedding(asked: Asked, *, dimension: int = 256, patch: int = 16, n_tokens: int = 512) -> Found:
    """Both continuous embeddings beside their formulas, and how many directions random ones use."""
    mlp_off, gated_off, ranks = 0, 0, []
    for rng in _draws(asked, of=5):
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
        ranks.append([_rank(tokens), _rank(gated(values))])
    mean = np.mean(ranks, axis=0)
    found: dict[str, float] = {
        said.MLP_OFF: mlp_off,
        said.GATED_OFF: gated_off,
        "0.1-rank of white noise in a random residual MLP": float(mean[0]),
        "0.1-rank of single values in a random gated embedding": float(mean[1]),
    }
    return Found(found, {"d": str(dimension), "patch": str(patch), **_seeds(asked, of=5)})


def one_head(asked: Asked) -> Found:
    """Attention beside its formula, token by token."""
    off, sums = 0, 0
    for rng in _draws(asked):
        tokens = rng.normal(size=(WIDTH, TOKENS))
        weights = rank_theory.AttentionWeights.random(WIDTH, seed=int(rng.integers(2**31)))
        off += _off(rank_theory.attention(tokens, weights), _written_out(tokens, weights, 0))
        columns = rank_theory.column_softmax(rank_theory.logits(tokens, weights)).sum(axis=-2)
        sums += _off(columns, np.ones_like(columns))
    return Found({said.ATTENTION_OFF: off, said.SUMS_OFF: sums}, _sizes(asked))


def several_heads(asked: Asked) -> Found:
    """Several heads beside each by itself, and one beside attention of one head."""
    off, one = 0, 0
    for rng in _draws(asked):
        tokens = rng.normal(size=(WIDTH, TOKENS))
        query, key, value = rng.normal(size=(3, WIDTH, WIDTH)) / WIDTH**0.25
        for heads in HEADS:
            weights = rank_theory.AttentionWeights.stacked(query, key, value, heads)
            known = np.concatenate([_written_out(tokens, weights, head) for head in range(heads)])
            off += _off(rank_theory.attention(tokens, weights), known)
        scores = tokens.T @ query.T @ key @ tokens / np.sqrt(WIDTH)
        formula = value @ tokens @ rank_theory.column_softmax(scores)
        one += _off(rank_theory.attention(tokens, rank_theory.AttentionWeights.stacked(query, key, value)), formula)
    return Found({said.ONE_HEAD_OFF: one, said.HEADS_OFF: off}, {"heads": _listed(HEADS), **_sizes(asked)})


def exact_compression(asked: Asked, *, rank: int = 5) -> Found:
    """Heads whose vocabulary has the rank that is kept, and one rank less."""
    off, less = 0, []
    for rng in _draws(asked):
        vocabulary = rng.normal(size=(WIDTH, rank)) @ rng.normal(size=(rank, 4 * WIDTH))
        tokens = vocabulary[:, rng.integers(0, vocabulary.shape[1], TOKENS)]
        for heads in HEADS:
            weights = rank_theory.AttentionWeights.random(
                WIDTH, heads, scaling="normalised", seed=int(rng.integers(2**31))
            )
            whole = rank_theory.attention(tokens, weights)
            # scores of the size of the tokens are rounded, too
            cut, short = (
                rank_theory.attention(tokens, rank_theory.compressed(weights, vocabulary, kept))
                for kept in (rank, rank - 1)
            )
            off += _off(cut, whole, times=100)
            less.append(float(np.linalg.norm(short - whole) / np.linalg.norm(whole)))
    values = {said.EXACT_OFF: off, "smallest error at one rank less, of the output's norm": min(less)}
    return Found(values, {"heads": _listed(HEADS), "rank of the vocabulary": str(rank), **_sizes(asked)})


def sketching_bounds(asked: Asked) -> Found:
    """Sketching distances beside what no sketch goes below, and of sketches that miss nothing."""
    below, above, full, index = 0, 0, 0, 0
    for rng in _draws(asked):
        spectrum = np.exp(-np.arange(WIDTH) / rng.uniform(2, 10))
        matrix = (rank_theory.orthonormal(WIDTH, WIDTH, rng) * spectrum) @ rank_theory.orthonormal(TOKENS, WIDTH, rng).T
        for heads in HEADS:
            distance = rank_theory.sketching_distance(
                matrix, rank_theory.sparse_sketch(WIDTH, 2, heads, seed=int(rng.integers(2**31)))
            )
            below += distance < spectrum[2 * heads] * (1 - ROUNDING)
            above += distance > spectrum[0] * (1 + ROUNDING)
            # as many singular values are as large as the distance as the sketch has rows, or fewer
            index += rank_theory.effective_index(spectrum, distance * (1 + ROUNDING)) > 2 * heads
        full += rank_theory.sketching_distance(matrix, rng.normal(size=(WIDTH, WIDTH))) > ROUNDING * 100
    values: dict[str, float] = {
        said.SKETCH_BELOW: below,
        said.SKETCH_ABOVE: above,
        said.SKETCH_FULL: full,
        said.SKETCH_INDEX: index,
    }
    return Found(values, {"heads": _listed(HEADS), "rows of a head": "2", **_sizes(asked)})


def schedules(asked: Asked, *, layers: int = 12, d_head: int = 64) -> Found:
    """Size ratios of the printed schedules, as the formula reads literally, and in its other readings."""
    values = {}
    for quantity, first, exponent, _ in said.SCHEDULES:
        values[quantity] = _mean_share(first, exponent, layers, d_head)
        values[f"{quantity}, layers from 1"] = _mean_share(first, exponent, layers, d_head, start=1)
        exact = first * (1.0 + np.arange(layers)) ** exponent
        values[f"{quantity}, not rounded up"] = float(exact.mean() / d_head)
    return Found(values, {"layers": f"{layers}, from 0", "rank of a head": f"at most {d_head}"})


def guidelines(asked: Asked, *, layers: int = 12, d_model: int = 768) -> Found:
    """The guideline's ends, and whether it rises ever more slowly."""
    ranks, exact = compress.guideline(layers, d_model), 16 + (d_model / 2 - 16) * np.linspace(0, 1, layers) ** 0.5
    values = {
        said.GUIDE_FIRST: float(ranks[0]),
        said.GUIDE_LAST: float(ranks[-1]),
        said.GUIDE_OFF: float((np.abs(ranks - exact) >= 1).sum() + (np.diff(ranks) <= 0).sum()),
        said.GUIDE_ONE: float(compress.guideline(1, d_model)[0]),
    }
    return Found(values, {"layers": str(layers), "d": str(d_model), "exponent": "0.5"})


def _mean_share(first: float, exponent: float, layers: int, d_head: int, start: int = 0) -> float:
    ranks = compress.rank_schedule(first, exponent, layers, d_head, start=start).tolist()
    return compress.ratio_of([compress.Form(12, d_head, 12 * d_head)] * layers, ranks).ranks


def _written_out(tokens: np.ndarray, weights: rank_theory.AttentionWeights, head: int) -> np.ndarray:
    """One head's output, a token at a time and a sum at a time."""
    query, key, value = weights.query[head], weights.key[head], weights.value[head]
    out = np.zeros((len(value), tokens.shape[1]))
    for j, attending in enumerate(tokens.T):
        scores = [float((query @ attended) @ (key @ attending)) / len(query) ** 0.5 for attended in tokens.T]
        shares = np.exp(np.array(scores) - max(scores))
        out[:, j] = sum(share * (value @ x) for share, x in zip(shares / shares.sum(), tokens.T, strict=True))
    return out


def _off(found: np.ndarray, known: np.ndarray, times: float = 1.0) -> int:
    """Entries that differ by more than rounding; one that is no number differs."""
    near = np.abs(found - known) <= times * ROUNDING * np.abs(known).max()
    return int(near.size - near.sum())


def _rank(tokens: np.ndarray) -> int:
    return int(ranks.epsilon_rank(np.linalg.svd(tokens, compute_uv=False), 0.1))


def _count(asked: Asked, of: int = 20) -> int:
    return asked.seeds or of


def _draws(asked: Asked, of: int = 20) -> list[np.random.Generator]:
    return [np.random.default_rng(child) for child in np.random.SeedSequence(asked.seed).spawn(_count(asked, of))]


def _seeds(asked: Asked, of: int = 20) -> dict[str, str]:
    return {"draws": str(_count(asked, of)), "seed": str(asked.seed)}


def _sizes(asked: Asked) -> dict[str, str]:
    return {"d": str(WIDTH), "tokens": str(TOKENS), **_seeds(asked)}


def _listed(numbers: tuple[float, ...]) -> str:
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
