"""Measures of the experiments and theorems on rank; of no model, from a seed.

The functions ``by_rank`` to ``chebyshev`` run an experiment of
:mod:`tsfm_lens.studies.rank_theory`; those after them count how often random examples
break the bound of a theorem (``above_…``, ``below_…``), of which a true theorem has
none. Read :func:`by_rank` and :func:`embeddings` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tsfm_lens.core.ranks import flow_bound
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers.context import (
    Context,
    MeasuredValues,
    judge_parts,
    measure,
)
from tsfm_lens.studies.papers.verdicts import ClaimPart
from tsfm_lens.studies.rank_theory.compression import residual_layer
from tsfm_lens.studies.rank_theory.experiments import children, of_spectrum

COMPARABLE_WITHIN = 1.25  # a factor
CHEBYSHEV_RANKS = (1, 2, 4, 8, 16, 32)
# of theorem 2
EPSILONS = (0.2, 0.3, 0.5, 0.7, 1.0)
PATCH = 4
HEADS = (1, 2, 4)  # of theorem 4
SKETCHES = ((2, 8, 3), (3, 6, 2), (4, 8, 3), (8, 6, 2))  # h, d_h and d̃ of theorem 6
_VARIANCES = {"entries of weights": "variance 1/√d of W_Q and W_K, 1 of W_V"}


@measure("S0-J1A")
def by_rank(
    context: Context, *, width: int = 512, n_tokens: int = 4096, n_ranks: int = 40
) -> MeasuredValues:
    """Measure the slope over the singular value cut off, and distances from bounds."""
    data = rank_theory.compression_by_rank(
        width=width, n_tokens=n_tokens, n_ranks=n_ranks, **_draws(context, 1)
    )
    ranks = data["rank"].values
    tested = {"ranks": f"{len(ranks)} from {ranks[0]} to {ranks[-1]}", **_VARIANCES}
    result = _result(
        context, 1, {"d": str(width), "tokens": str(n_tokens), **tested}, intervals=True
    )
    for name, slope in (
        ("slope_of_rank", "slope"),
        ("slope with all ranks", "slope_of_all"),
    ):
        result.mean(name, data[slope].sel(scaling="theorem").values)
    result.add("largest error over √d σ", (data["error"] / data["rate"]).max())
    result.add(
        "largest error over the bound with √L", (data["error"] / data["bound"]).max()
    )
    return result


@measure("S0-J1B")
def by_width(
    context: Context,
    *,
    widths: Sequence[int] = (32, 64, 128, 256, 512),
    n_tokens: int = 1024,
) -> MeasuredValues:
    """Measure the slope over the width with its interval, and that of other weights."""
    data = rank_theory.compression_by_width(
        widths=widths, n_tokens=n_tokens, **_draws(context, 50)
    )
    sizes = {
        "d": ", ".join(map(str, widths)),
        "tokens": str(n_tokens),
        "rank": str(data.attrs["rank"]),
        **_VARIANCES,
    }
    result = _result(context, 50, sizes, intervals=True)
    for weights, name in (
        ("theorem", "slope_of_width"),
        ("orthogonal", "slope with W_V √d times orthogonal"),
        ("normalised", "slope with all weights of variance 1/d"),
    ):
        result.add(
            name,
            *(
                data[end].sel(weights=weights)
                for end in ("slope", "slope_low", "slope_high")
            ),
        )
    return result


@measure("S0-J2")
def sketching(
    context: Context,
    *,
    width: int = 2048,
    heads: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
    decay: float = 200.0,
) -> MeasuredValues:
    """Measure growth of the effective rank with the heads.

    Sparse sketches are compared with dense ones.
    """
    data = rank_theory.sketching_by_heads(
        width=width, heads=heads, decay=decay, **_draws(context, 6)
    )
    sparse, dense = (data["distance"].sel(sketch=name) for name in ("sparse", "dense"))
    deviations = np.asarray(np.abs(np.log(sparse.values / dense.values)).mean(axis=-1))
    margin = f"logarithm of {COMPARABLE_WITHIN:g}, less that of their ratio"
    settings = {
        "d": str(width),
        "tokens": "any from d on",
        "rank of a head": str(data.attrs["rank"]),
        "heads": f"{heads[0]} to {heads[-1]}",
        "entries of a row": "d / h",
        "singular values": f"exp(−(j − 1)/{decay:g})",
    }
    result = _result(context, 6, settings, intervals=True)
    result.claims["comparable"] = judge_parts(
        "draw", ClaimPart("", np.log(COMPARABLE_WITHIN) - deviations, margin)
    )
    result.mean("slope_of_heads", data["slope"].sel(sketch="sparse").values)
    for count in data["heads"].values:
        result.add(f"sketching error, {count} heads", sparse.sel(heads=count).mean())
    return result


@measure("S0-J3")
def head_spectra(
    context: Context,
    *,
    width: int = 128,
    n_tokens: int = 256,
    heads: Sequence[int] = (1, 2, 4, 8, 16, 32),
) -> MeasuredValues:
    """Test that rank grows from each number of heads to the next.

    It is measured again where softmax is even.
    """
    data = rank_theory.spectra_by_heads(
        width=width, n_tokens=n_tokens, heads=heads, **_draws(context, 8)
    )
    ranks = data["rank"].sel(input="times √L")
    increase = ranks.diff("heads").transpose("heads", "draw").values
    parts = [
        ClaimPart(f"from {one} to {other}", margins, "ε-rank")
        for one, other, margins in zip(heads[:-1], heads[1:], increase, strict=True)
    ]
    settings = {
        "d": str(width),
        "tokens": str(n_tokens),
        "singular values": f"√L exp(−(j − 1)/{data.attrs['decay']:g})",
        "ε": f"{data.attrs['epsilon']:g}",
    }
    result = _result(context, 8, settings, intervals=True)
    result.claims["higher_rank_by_heads"] = judge_parts("draw", *parts)
    for count in heads:
        result.mean(f"rank with {count} heads", ranks.sel(heads=count).values)
    result.add("rank of the input", data["input_rank"])
    even = data["rank"].sel(input="of norm 1") - data["input_rank"]
    result.add("rank added at most where softmax is even", even.max())
    result.add(
        "deviation of scores", data["logit_deviation"].sel(input="times √L").mean()
    )
    return result


@measure("S0-F14")
def chebyshev(
    context: Context, *, dimension: int = 768, n_points: int = 4096
) -> MeasuredValues:
    """Measure the rank of every embedding."""
    data = rank_theory.chebyshev_curves(
        dimension=dimension, ranks=CHEBYSHEV_RANKS, n_points=n_points, seed=context.seed
    )
    pairs = zip(data["rank"].values, data["found_rank"].values, strict=True)
    values = {
        f"rank of the embedding made for rank {rank}": float(number)
        for rank, number in pairs
    }
    sizes = {
        "d": str(dimension),
        "points": str(n_points),
        "largest value": f"{data.attrs['largest']:g}",
    }
    return MeasuredValues(values, sizes)


@measure("S0-TH1", key="above_theorem_1", gated=False)
@measure("S0-C2", key="above_corollary_2", gated=True)
def embeddings(context: Context, *, key: str, gated: bool) -> MeasuredValues:
    """Check theorem 1, or corollary 2, on embedded points of [−1, 1].

    Singular values above their bounds are counted.
    """
    sizes = d, n_tokens = 64, 1000
    rng = np.random.default_rng(context.seed)
    points = rng.uniform(-1, 1, n_tokens)
    knots = rng.uniform(-0.9, 0.9, d)[:, None]
    rates = rng.uniform(-2, 2, d)[:, None]
    # the ellipse of radius 1.5 reaches this far up: the poles of 1/(1 + a²x²) stand at
    # i/2 or further
    up = (1.5 - 1 / 1.5) / 2
    one, three = (
        rank_theory.differentiable_bound(*sizes, order=n, variation=v)
        for n, v in ((1, 2.0), (3, 12.0))
    )
    smooth = {
        "exp(wx)": (
            np.exp(rates * points),
            rank_theory.analytic_bound(*sizes, radius=2.5, largest=float(np.exp(2.9))),
        ),
        "1/(1 + a²x²)": (
            1 / (1 + (rates * points) ** 2),
            rank_theory.analytic_bound(*sizes, radius=1.5, largest=1 / (1 - 4 * up**2)),
        ),
        "|x − c|": (np.abs(points - knots), one),
        "|x − c|³": (np.abs(points - knots) ** 3, three),
    }
    gates = (
        rank_theory.GatedEmbedding.random(d, seed=context.seed)(points),
        rank_theory.gated_bound(*sizes, beta=1.0),
    )
    above = 0
    for tokens, bound in [gates] if gated else smooth.values():
        singular = np.linalg.svd(tokens, compute_uv=False)
        # smaller values are rounding in double precision
        above += int((singular > bound + 1e-12 * singular[0]).sum())
    if gated:
        about = {"β": "1"}
    else:
        about = {"embeddings": ", ".join(smooth)}
    return MeasuredValues({key: above}, {**about, "d": str(d), "tokens": str(n_tokens)})


@measure("S0-TH2")
def residual_mlps(context: Context) -> MeasuredValues:
    """Check theorem 2."""
    d = 64
    n_tokens = 1000
    counts = []
    columns = np.random.default_rng(context.seed).normal(size=(PATCH, n_tokens))
    for child in children(context.seed, context.draws(10)):
        for activation in rank_theory.ACTIVATIONS:
            mlp = rank_theory.ResidualMlpEmbedding.random(
                d, PATCH, activation=activation, seed=child
            )
            counts.append(np.subtract(*rank_theory.mlp_count(mlp, columns, EPSILONS)))
    result = _result(
        context, 10, {"patch": str(PATCH), "d": str(d), "tokens": str(n_tokens)}
    )
    result.add("above_theorem_2", (np.array(counts) > 0).sum())
    result.add("residual MLPs and thresholds", np.size(counts))
    return result


@measure("S0-TH3")
def compression(context: Context) -> MeasuredValues:
    """Check theorems 3 and 5: errors, a repeated token, and incompressible inputs.

    The last are inputs that no value matrix compresses.
    """
    d = 32
    n_tokens = 64
    heads = (1, 4)
    ranks = range(1, d)
    exceeded = []
    for child in children(context.seed, context.draws(20)):
        rng = np.random.default_rng(child)
        vocabulary = of_spectrum(
            np.exp(-np.arange(d) / rng.uniform(1, d / 2)), 4 * d, rng
        )
        tokens = vocabulary[:, rng.integers(0, 4 * d, n_tokens)]
        for count in heads:
            weights = rank_theory.AttentionWeights.random(d, count, seed=child + 1)
            errors = [
                _output_distance(
                    tokens, weights, rank_theory.compressed(weights, vocabulary, rank)
                )
                for rank in ranks
            ]
            exceeded.append(
                errors
                > rank_theory.compression_bound(vocabulary, weights, ranks, n_tokens)
            )
    # a repeated second-best token, of a vocabulary as bad as any
    steep = np.diag(np.append(1.0, np.full(d - 1, 0.1)))
    weights = rank_theory.AttentionWeights.random(d).with_value(np.sqrt(d) * np.eye(d))
    less = rank_theory.compressed(weights, steep, 1)
    once, often = (
        _output_distance(np.repeat(steep[:, 1:2], length, axis=1), weights, less)
        for length in (1, 256)
    )
    singular = np.exp(-np.arange(d) / d)
    layers = [
        rank_theory.incompressible(singular, length, seed=context.seed)
        for length in (d, 4 * d + 1, 16 * d)
    ]
    smallest = np.array(
        [
            [rank_theory.least_value_error(*layer, rank) for rank in ranks]
            for layer in layers
        ]
    )
    sizes = {"heads": ", ".join(map(str, heads)), "d": str(d), "tokens": str(n_tokens)}
    result = _result(context, 20, sizes)
    result.add("above_theorem_3", np.sum(exceeded))
    result.add("below_theorem_3", (smallest < singular[1:] / 4).sum())
    result.add("error of one token 256 times over that of the token once", often / once)
    result.add("errors", np.size(exceeded))
    result.add("smallest loss over σ/4", (smallest / (singular[1:] / 4)).min())
    return result


def _output_distance(
    tokens: np.ndarray,
    full: rank_theory.AttentionWeights,
    less: rank_theory.AttentionWeights,
) -> np.floating[Any]:
    """Compute the distance of a compressed layer's output, in the Frobenius norm."""
    return np.linalg.norm(
        rank_theory.attention(tokens, full) - rank_theory.attention(tokens, less)
    )


@measure("S0-TH4")
def growth(context: Context) -> MeasuredValues:
    """Check theorem 4.

    The upper bound is checked with the fewest layers that it is about, the lower one
    with the construction for one layer.
    """
    depths = [int(np.ceil((2 * np.exp(2) * count) ** 2)) for count in HEADS]
    singular, spectra, result = _growth(context, depths)
    relative = spectra / spectra[..., :1]
    upper = np.array(
        [flow_bound(singular, *bounds) for bounds in zip(HEADS, depths, strict=True)]
    )
    constructions = [
        rank_theory.growing(singular, count, 2 * len(singular)) for count in HEADS
    ]
    largest = np.array(
        [
            np.linalg.svd(residual_layer(*construction), compute_uv=False)
            for construction in constructions
        ]
    )
    floors = np.array([rank_theory.flow_floor(singular, count, 1) for count in HEADS])
    share = largest / largest[:, :1] / np.where(floors > 0, floors, np.nan)
    result.settings = {
        "layers": f"{', '.join(map(str, depths))} above, 1 below",
        **result.settings,
    }
    result.add("above_theorem_4", (relative > upper[:, None]).sum())
    result.add("below_theorem_4", (share < 1).sum())
    result.add("singular values", relative.size)
    result.add(
        "smallest singular value of the construction over its bound", np.nanmin(share)
    )
    return result


@measure("S0-C1")
def corollary(context: Context) -> MeasuredValues:
    """Check corollary 1 with the index of its proof and with the printed one."""
    singular, spectra, result = _growth(context, [1] * len(HEADS))
    proof = np.array([rank_theory.one_layer_bound(singular, count) for count in HEADS])
    k = np.arange(1, len(singular) + 1)
    indices = [
        rank_theory.corollary_index(k, count, as_printed=True) for count in HEADS
    ]
    constants = np.array([1 + np.exp(2) * count for count in HEADS])[:, None]
    printed = constants * singular[np.minimum(indices, len(singular)) - 1]
    result.add("above_proof", (spectra > proof[:, None]).sum())
    result.add("above_printed", (spectra > printed[:, None]).sum())
    result.add("singular values", spectra.size)
    return result


def _growth(
    context: Context, depths: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, MeasuredValues]:
    """Compute singular values of an input and of layers with the largest norms allowed.

    Those of the layers are (heads, draw, index).
    """
    d = 48
    gap = 0.02
    decay = 4.0
    draws = context.draws(10)
    singular = np.append(1.0, gap * np.exp(-np.arange(d - 1) / decay))
    spectra = np.empty((len(HEADS), draws, d))
    for draw, child in enumerate(children(context.seed, draws)):
        tokens = of_spectrum(singular, 2 * d, np.random.default_rng(child))
        for row, (count, depth) in enumerate(zip(HEADS, depths, strict=True)):
            weights = rank_theory.AttentionWeights.random(
                d, count, scaling="unit", seed=child + 1
            )
            layer = residual_layer(
                tokens, weights.within(np.sqrt(d // count), 1.0), depth
            )
            spectra[row, draw] = np.linalg.svd(layer, compute_uv=False)
    spectrum = f"1, then {gap:g} · exp(−(j − 2)/{decay:g})"
    settings = {
        "heads": ", ".join(map(str, HEADS)),
        "singular values": spectrum,
        "d": str(d),
    }
    return singular, spectra, _result(context, 10, settings)


@measure("S0-TH6")
def sketches(context: Context) -> MeasuredValues:
    """Check theorem 6: spectral errors with a sketch for all heads or for each one."""
    shared = []
    separate = []
    floors = []
    bounds = []
    for heads, size, rank in SKETCHES:
        singular = np.exp(-np.arange(heads * size) / 3.0)
        for child in children(context.seed, context.draws(20)):
            sketch = rank_theory.head_sketch(
                singular, heads, rank, heads * size + 4, seed=child
            )
            output = rank_theory.attention(sketch.tokens, sketch.weights)
            # a value matrix of rank d̃ for all heads misses at least this
            shared.append(np.linalg.svd(output, compute_uv=False)[rank])
            separate.append(
                np.linalg.norm(
                    output - rank_theory.attention(sketch.tokens, sketch.reduced), 2
                )
            )
            floors.append(singular[rank] / 2)
            bounds.append(4 * np.sqrt(heads) * singular[heads * rank])
    sizes = "; ".join(
        f"h = {heads}, d_h = {size}, d̃ = {rank}" for heads, size, rank in SKETCHES
    )
    result = _result(context, 20, {"sizes": sizes})
    result.add("shared_below", np.less(shared, floors).sum())
    result.add("own_above", np.greater(separate, bounds).sum())
    result.add("constructions", len(separate))
    result.add(
        "how many times as near a sketch for each head is, at least",
        np.divide(shared, separate).min(),
    )
    return result


def _draws(context: Context, default: int) -> dict[str, Any]:
    return {"draws": context.draws(default), "seed": context.seed}


def _result(
    context: Context, draws: int, settings: dict[str, str], *, intervals: bool = False
) -> MeasuredValues:
    """Begin a result with the settings of an experiment and its number of draws.

    It is ``draws`` unless the context has its own.
    """
    count = context.draws(draws)
    if intervals and count > 1:
        over = {"intervals over": "draws"}
    else:
        over = {}
    return MeasuredValues(
        settings={**settings, "draws": str(count), "seed": str(context.seed), **over}
    )
