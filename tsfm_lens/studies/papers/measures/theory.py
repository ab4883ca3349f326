"""Measures of the experiments and theorems on rank; of no model, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers.context import Context, MeasuredValues, measure, verdict_over
from tsfm_lens.studies.papers.verdicts import ClaimPart

COMPARABLE_WITHIN = 1.25  # a factor
CHEBYSHEV_RANKS = (1, 2, 4, 8, 16, 32)
_VARIANCES = {"entries of weights": "variance 1/√d of W_Q and W_K, 1 of W_V"}


@measure("S0-J1A")
def by_rank(context: Context, *, width: int = 512, n_tokens: int = 4096, n_ranks: int = 40) -> MeasuredValues:
    """Measure the slope over the singular value that is cut off, and the distance from the bounds."""
    data = rank_theory.compression_by_rank(width=width, n_tokens=n_tokens, n_ranks=n_ranks, **_draws(context, 1))
    ranks = data["rank"].values
    tested = {"ranks": f"{len(ranks)} from {ranks[0]} to {ranks[-1]}", **_VARIANCES}
    result = _result(data, context, {"d": str(width), "tokens": str(n_tokens), **tested}, intervals=True)
    for name, slope in (("slope_of_rank", "slope"), ("slope with all ranks", "slope_of_all")):
        result.mean(name, data[slope].sel(scaling="theorem").values)
    result.add("largest error over √d σ", (data["error"] / data["rate"]).max())
    result.add("largest error over the bound with √L", (data["error"] / data["bound"]).max())
    return result


@measure("S0-J1B")
def by_width(
    context: Context, *, widths: Sequence[int] = (32, 64, 128, 256, 512), n_tokens: int = 1024
) -> MeasuredValues:
    """Measure the slope over the width with its interval, and that of other weights."""
    data = rank_theory.compression_by_width(widths=widths, n_tokens=n_tokens, **_draws(context, 50))
    sizes = {"d": ", ".join(map(str, widths)), "tokens": str(n_tokens), "rank": str(data.attrs["rank"]), **_VARIANCES}
    result = _result(data, context, sizes, intervals=True)
    for weights, name in (
        ("theorem", "slope_of_width"),
        ("orthogonal", "slope with W_V √d times orthogonal"),
        ("normalised", "slope with all weights of variance 1/d"),
    ):
        result.add(name, *(data[end].sel(weights=weights) for end in ("slope", "slope_low", "slope_high")))
    return result


@measure("S0-J2")
def sketching(
    context: Context, *, width: int = 2048, heads: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128), decay: float = 200.0
) -> MeasuredValues:
    """Measure growth of the effective rank with the heads, and compare sparse sketches with dense ones."""
    data = rank_theory.sketching_by_heads(width=width, heads=heads, decay=decay, **_draws(context, 6))
    sparse, dense = (data["distance"].sel(sketch=name) for name in ("sparse", "dense"))
    apart = np.asarray(np.abs(np.log(sparse.values / dense.values)).mean(axis=-1))
    words = f"logarithm of {COMPARABLE_WITHIN:g}, less that of their ratio"
    settings = {
        "d": str(width),
        "tokens": "any from d on",
        "rank of a head": str(data.attrs["rank"]),
        "heads": f"{heads[0]} to {heads[-1]}",
        "entries of a row": "d / h",
        "singular values": f"exp(−(j − 1)/{decay:g})",
    }
    result = _result(data, context, settings, intervals=True)
    result.claims["comparable"] = verdict_over("draw", ClaimPart("", np.log(COMPARABLE_WITHIN) - apart, words))
    result.mean("slope_of_heads", data["slope"].sel(sketch="sparse").values)
    for count in data["heads"].values:
        result.add(f"sketching error, {count} heads", sparse.sel(heads=count).mean())
    return result


@measure("S0-J3")
def head_spectra(
    context: Context, *, width: int = 128, n_tokens: int = 256, heads: Sequence[int] = (1, 2, 4, 8, 16, 32)
) -> MeasuredValues:
    """Test that rank grows from each number of heads to the next, and measure it where softmax is even."""
    data = rank_theory.spectra_by_heads(width=width, n_tokens=n_tokens, heads=heads, **_draws(context, 8))
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
    result = _result(data, context, settings, intervals=True)
    result.claims["higher_rank_by_heads"] = verdict_over("draw", *parts)
    for count in heads:
        result.mean(f"rank with {count} heads", ranks.sel(heads=count).values)
    result.add("rank of the input", data["input_rank"])
    even = data["rank"].sel(input="of norm 1") - data["input_rank"]
    result.add("rank added at most where softmax is even", even.max())
    result.add("deviation of scores", data["logit_deviation"].sel(input="times √L").mean())
    return result


@measure("S0-F14")
def chebyshev(context: Context, *, dimension: int = 768, n_points: int = 4096) -> MeasuredValues:
    """Measure the rank of every embedding."""
    data = rank_theory.chebyshev_curves(
        dimension=dimension, ranks=CHEBYSHEV_RANKS, n_points=n_points, seed=context.seed
    )
    pairs = zip(data["rank"].values, data["found_rank"].values, strict=True)
    values = {f"rank of the embedding made for rank {rank}": float(number) for rank, number in pairs}
    sizes = {"d": str(dimension), "points": str(n_points), "largest value": f"{data.attrs['largest']:g}"}
    return MeasuredValues(values, sizes)


@measure("S0-TH1", key="above_theorem_1", gated=False)
@measure("S0-C2", key="above_corollary_2", gated=True)
def embeddings(context: Context, *, key: str, gated: bool) -> MeasuredValues:
    """Check theorem 1, or corollary 2, by the singular values above their bounds."""
    data = rank_theory.embedding_bounds(draws=1, seed=context.seed)
    name = "gated, β = 1"
    data = data.sel(embedding=[name]) if gated else data.drop_sel(embedding=name)
    # smaller values are rounding in double precision
    least = 1e-12 * data["singular_value"].isel(index=0)
    above = float((data["singular_value"] > data["bound"] + least).sum())
    about = {"β": "1"} if gated else {"embeddings": _list(data, "embedding")}
    return MeasuredValues({key: above}, {**about, **_sizes(data)})


@measure("S0-TH2")
def residual_mlps(context: Context) -> MeasuredValues:
    """Check theorem 2."""
    data = rank_theory.embedding_bounds(**_draws(context, 10))
    result = _result(data, context, {"patch": str(data.attrs["patch"]), **_sizes(data)})
    result.add("above_theorem_2", (data["count"] > data["most"]).sum())
    result.add("residual MLPs and thresholds", data["count"].size)
    return result


@measure("S0-TH3")
def compression(context: Context) -> MeasuredValues:
    """Check theorems 3 and 5."""
    data = rank_theory.compression_bounds(**_draws(context, 20))
    repetition, least = data["repeated_error"], data["least_error"]
    result = _result(data, context, {"heads": _list(data, "heads"), **_sizes(data)})
    result.add("above_theorem_3", (data["error"] > data["bound"]).sum())
    result.add("below_theorem_3", (least < data["floor"]).sum())
    result.add(
        "error of one token 256 times over that of the token once",
        repetition.sel(length=256) / repetition.sel(length=1),
    )
    result.add("errors", data["error"].size)
    result.add("smallest loss over σ/4", (least / data["floor"]).min())
    return result


@measure("S0-TH4")
def growth(context: Context) -> MeasuredValues:
    """Check theorem 4."""
    data, result = _growth(context)
    lower = data["lower"].where(data["lower"] > 0)
    result.settings = {"layers": f"{_list(data, 'depth')} above, 1 below", **result.settings}
    result.add("above_theorem_4", (data["relative"] > data["upper"]).sum())
    result.add("below_theorem_4", (data["grown"] < lower).sum())
    result.add("singular values", data["relative"].size)
    result.add("smallest singular value of the construction over its bound", (data["grown"] / lower).min())
    return result


@measure("S0-C1")
def corollary(context: Context) -> MeasuredValues:
    """Check corollary 1."""
    data, result = _growth(context)
    for key, form in (("above_proof", "of the proof"), ("above_printed", "as printed")):
        result.add(key, (data["alone"] > data["corollary"].sel(form=form)).sum())
    result.add("singular values", data["alone"].size)
    return result


@measure("S0-TH6")
def sketches(context: Context) -> MeasuredValues:
    """Check theorem 6."""
    data = rank_theory.sketch_bounds(**_draws(context, 20))
    shared, own = data["shared_error"], data["own_error"]
    result = _result(data, context, {"sizes": "; ".join(map(str, data["size"].values))})
    result.add("shared_below", (shared < data["shared_floor"]).sum())
    result.add("own_above", (own > data["own_bound"]).sum())
    result.add("constructions", own.size)
    result.add("how many times as near a sketch for each head is, at least", (shared / own).min())
    return result


def _growth(context: Context) -> tuple[xr.Dataset, MeasuredValues]:
    """Compute growth and its bounds, and begin a result with their settings."""
    data = rank_theory.growth_bounds(**_draws(context, 10))
    first = f"1, then {data.attrs['gap']:g} · exp(−(j − 2)/{data.attrs['decay']:g})"
    return data, _result(data, context, {"heads": _list(data, "heads"), "singular values": first, **_sizes(data)})


def _draws(context: Context, default: int) -> dict[str, Any]:
    return {"draws": context.draws(default), "seed": context.seed}


def _list(data: xr.Dataset, name: str) -> str:
    return ", ".join(map(str, data[name].values))


def _sizes(data: xr.Dataset) -> dict[str, str]:
    words = {"width": "d", "dimension": "d", "n_tokens": "tokens"}
    return {words[key]: str(value) for key, value in data.attrs.items() if key in words}


def _result(data: xr.Dataset, context: Context, settings: dict[str, str], *, intervals: bool = False) -> MeasuredValues:
    """Begin a result with the settings of an experiment and its draws."""
    draws = {"draws": str(data.sizes["draw"]), "seed": str(context.seed)}
    over = {"intervals over": "draws"} if intervals and data.sizes["draw"] > 1 else {}
    return MeasuredValues(settings={**settings, **draws, **over})
