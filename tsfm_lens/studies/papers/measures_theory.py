"""Measures of the experiments and theorems on rank; of no model, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers import values_theory as paper
from tsfm_lens.studies.papers.measuring import Asked, Found
from tsfm_lens.studies.papers.verdicts import Part, interval, judged

COMPARABLE_WITHIN = 1.25  # a factor


def by_rank(request: Asked, *, width: int = 512, n_tokens: int = 4096, n_ranks: int = 40) -> Found:
    """Measure the slope over the singular value that is cut off, and the distance from the bounds."""
    data = rank_theory.compression_by_rank(
        width=width, n_tokens=n_tokens, n_ranks=n_ranks, draws=request.seeds or 1, seed=request.seed
    )
    slopes = {paper.SLOPE_OF_RANK: data["slope"], "slope with all ranks": data["slope_of_all"]}
    values, intervals = _means({name: of.sel(scaling="theorem") for name, of in slopes.items()})
    values["largest error over √d σ"] = float((data["error"] / data["rate"]).max())
    values["largest error over the bound with √L"] = float((data["error"] / data["bound"]).max())
    ranks = data["rank"].values
    settings = {
        "d": str(width),
        "tokens": str(n_tokens),
        "ranks": f"{len(ranks)} from {ranks[0]} to {ranks[-1]}",
        "entries of weights": "variance 1/√d of W_Q and W_K, 1 of W_V",
        **_draws(data, request, intervals=True),
    }
    return Found(values, settings, intervals=intervals)


def by_width(request: Asked, *, widths: Sequence[int] = (32, 64, 128, 256, 512), n_tokens: int = 1024) -> Found:
    """Measure the slope over the width with its interval, and that of other weights."""
    data = rank_theory.compression_by_width(
        widths=widths, n_tokens=n_tokens, draws=request.seeds or 50, seed=request.seed
    )
    names = {
        "theorem": paper.SLOPE_OF_WIDTH,
        "orthogonal": "slope with W_V √d times orthogonal",
        "normalised": "slope with all weights of variance 1/d",
    }
    values = {name: float(data["slope"].sel(weights=key)) for key, name in names.items()}
    ends = {
        name: (float(data["slope_low"].sel(weights=key)), float(data["slope_high"].sel(weights=key)))
        for key, name in names.items()
    }
    settings = {
        "d": ", ".join(map(str, widths)),
        "tokens": str(n_tokens),
        "rank": str(data.attrs["rank"]),
        "entries of weights": "variance 1/√d of W_Q and W_K, 1 of W_V",
        **_draws(data, request, intervals=True),
    }
    return Found(values, settings, intervals=ends)


def sketching(
    request: Asked, *, width: int = 2048, heads: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128), decay: float = 200.0
) -> Found:
    """Measure growth of the effective rank with the heads, and compare sparse sketches with dense ones."""
    data = rank_theory.sketching_by_heads(
        width=width, heads=heads, decay=decay, draws=request.seeds or 6, seed=request.seed
    )
    sparse, dense = (data["distance"].sel(sketch=name) for name in ("sparse", "dense"))
    apart = np.asarray(np.abs(np.log(sparse.values / dense.values)).mean(axis=-1))
    part = Part("", np.log(COMPARABLE_WITHIN) - apart, f"logarithm of {COMPARABLE_WITHIN:g}, less that of their ratio")
    values, intervals = _means({paper.SLOPE_OF_HEADS: data["slope"].sel(sketch="sparse")})
    for count in data["heads"].values:
        values[f"sketching error, {count} heads"] = float(sparse.sel(heads=count).mean())
    settings = {
        "d": str(width),
        "tokens": "any from d on",
        "rank of a head": str(data.attrs["rank"]),
        "heads": f"{heads[0]} to {heads[-1]}",
        "entries of a row": "d / h",
        "singular values": f"exp(−(j − 1)/{decay:g})",
        **_draws(data, request, intervals=True),
    }
    claims = {paper.COMPARABLE: judged([part], range(data.sizes["draw"]), "draw")}
    return Found(values, settings, intervals=intervals, claims=claims)


def head_spectra(
    request: Asked, *, width: int = 128, n_tokens: int = 256, heads: Sequence[int] = (1, 2, 4, 8, 16, 32)
) -> Found:
    """Test that rank grows from each number of heads to the next, and measure it where softmax is even."""
    draws = request.seeds or 8
    data = rank_theory.spectra_by_heads(width=width, n_tokens=n_tokens, heads=heads, draws=draws, seed=request.seed)
    ranks = data["rank"].sel(input="times √L")
    increase = ranks.diff("heads").transpose("heads", "draw").values
    parts = [
        Part(f"from {one} to {other}", margins, "ε-rank")
        for one, other, margins in zip(heads[:-1], heads[1:], increase, strict=True)
    ]
    values, intervals = _means({f"rank with {count} heads": ranks.sel(heads=count) for count in heads})
    values["rank of the input"] = float(data["input_rank"])
    even = data["rank"].sel(input="of norm 1") - data["input_rank"]
    values["rank added at most where softmax is even"] = float(even.max())
    values["deviation of scores"] = float(data["logit_deviation"].sel(input="times √L").mean())
    settings = {
        "d": str(width),
        "tokens": str(n_tokens),
        "singular values": f"√L exp(−(j − 1)/{data.attrs['decay']:g})",
        "ε": f"{data.attrs['epsilon']:g}",
        **_draws(data, request, intervals=True),
    }
    claims = {paper.HIGHER_RANK_BY_HEADS: judged(parts, range(data.sizes["draw"]), "draw")}
    return Found(values, settings, intervals=intervals, claims=claims)


def chebyshev(request: Asked, *, dimension: int = 768, n_points: int = 4096) -> Found:
    """Measure the rank of every embedding."""
    data = rank_theory.chebyshev_curves(
        dimension=dimension, ranks=paper.CHEBYSHEV_RANKS, n_points=n_points, seed=request.seed
    )
    values = {
        paper.CHEBYSHEV_RANK.format(rank=rank): float(number)
        for rank, number in zip(data["rank"].values, data["found_rank"].values, strict=True)
    }
    return Found(values, {"d": str(dimension), "points": str(n_points), "largest value": f"{data.attrs['largest']:g}"})


def smooth_embeddings(request: Asked) -> Found:
    """Check theorem 1."""
    data = rank_theory.embedding_bounds(draws=1, seed=request.seed).drop_sel(embedding="gated, β = 1")
    settings = {"embeddings": ", ".join(map(str, data["embedding"].values)), **_sizes(data)}
    return Found({paper.ABOVE_THEOREM_1: _above_bounds(data)}, settings)


def residual_mlps(request: Asked) -> Found:
    """Check theorem 2."""
    data = rank_theory.embedding_bounds(draws=request.seeds or 10, seed=request.seed)
    values = {
        paper.ABOVE_THEOREM_2: float((data["count"] > data["most"]).sum()),
        "residual MLPs and thresholds": float(data["count"].size),
    }
    return Found(values, {"patch": str(data.attrs["patch"]), **_sizes(data), **_draws(data, request)})


def gated_embeddings(request: Asked) -> Found:
    """Check corollary 2."""
    data = rank_theory.embedding_bounds(draws=1, seed=request.seed).sel(embedding=["gated, β = 1"])
    return Found({paper.ABOVE_COROLLARY_2: _above_bounds(data)}, {"β": "1", **_sizes(data)})


def compression(request: Asked) -> Found:
    """Check theorems 3 and 5."""
    data = rank_theory.compression_bounds(draws=request.seeds or 20, seed=request.seed)
    repetition_error = data["repeated_error"]
    values = {
        paper.ABOVE_THEOREM_3: float((data["error"] > data["bound"]).sum()),
        paper.BELOW_THEOREM_3: float((data["least_error"] < data["floor"]).sum()),
        paper.REPEATED: float(repetition_error.sel(length=256) / repetition_error.sel(length=1)),
        "errors": float(data["error"].size),
        "smallest loss over σ/4": float((data["least_error"] / data["floor"]).min()),
    }
    settings = {"heads": ", ".join(map(str, data["heads"].values)), **_sizes(data), **_draws(data, request)}
    return Found(values, settings)


def growth(request: Asked) -> Found:
    """Check theorem 4."""
    data = _growth(request)
    lower = data["lower"].where(data["lower"] > 0)
    values = {
        paper.ABOVE_THEOREM_4: float((data["relative"] > data["upper"]).sum()),
        paper.BELOW_THEOREM_4: float((data["grown"] < lower).sum()),
        "singular values": float(data["relative"].size),
        "smallest singular value of the construction over its bound": float((data["grown"] / lower).min()),
    }
    layers = ", ".join(map(str, data["depth"].values))
    return Found(values, {"layers": f"{layers} above, 1 below", **_growth_settings(data, request)})


def corollary(request: Asked) -> Found:
    """Check corollary 1."""
    data = _growth(request)
    above = {form: float((data["alone"] > data["corollary"].sel(form=form)).sum()) for form in data["form"].values}
    values = {paper.ABOVE_PROOF: above["of the proof"], paper.ABOVE_PRINTED: above["as printed"]}
    return Found({**values, "singular values": float(data["alone"].size)}, _growth_settings(data, request))


def sketches(request: Asked) -> Found:
    """Check theorem 6."""
    data = rank_theory.sketch_bounds(draws=request.seeds or 20, seed=request.seed)
    values = {
        paper.SHARED_BELOW: float((data["shared_error"] < data["shared_floor"]).sum()),
        paper.OWN_ABOVE: float((data["own_error"] > data["own_bound"]).sum()),
        "constructions": float(data["own_error"].size),
        "how many times as near a sketch for each head is, at least": float(
            (data["shared_error"] / data["own_error"]).min()
        ),
    }
    return Found(values, {"sizes": "; ".join(map(str, data["size"].values)), **_draws(data, request)})


def _growth(request: Asked) -> xr.Dataset:
    return rank_theory.growth_bounds(draws=request.seeds or 10, seed=request.seed)


def _growth_settings(data: xr.Dataset, request: Asked) -> dict[str, str]:
    heads = ", ".join(map(str, data["heads"].values))
    first = f"1, then {data.attrs['gap']:g} · exp(−(j − 2)/{data.attrs['decay']:g})"
    return {"heads": heads, "singular values": first, **_sizes(data), **_draws(data, request)}


def _above_bounds(data: xr.Dataset) -> float:
    # smaller values are rounding in double precision
    least = 1e-12 * data["singular_value"].isel(index=0)
    return float((data["singular_value"] > data["bound"] + least).sum())


def _means(of: dict[str, xr.DataArray]) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Compute means over draws, and their intervals where there are enough draws for one."""
    estimates = {name: interval(values.values, range(values.size)) for name, values in of.items()}
    ends = {name: (each.low, each.high) for name, each in estimates.items() if np.isfinite(each.low)}
    return {name: each.estimate for name, each in estimates.items()}, ends


def _sizes(data: xr.Dataset) -> dict[str, str]:
    words = {"width": "d", "dimension": "d", "n_tokens": "tokens"}
    return {words[key]: str(value) for key, value in data.attrs.items() if key in words}


def _draws(data: xr.Dataset, request: Asked, *, intervals: bool = False) -> dict[str, str]:
    words = {"draws": str(data.sizes["draw"]), "seed": str(request.seed)}
    return {**words, "intervals over": "draws"} if intervals and data.sizes["draw"] > 1 else words


MEASURES_OF_THEORY: dict[str, Callable[[Asked], Found]] = {
    "S0-C1": corollary,
    "S0-C2": gated_embeddings,
    "S0-F14": chebyshev,
    "S0-J1A": by_rank,
    "S0-J1B": by_width,
    "S0-J2": sketching,
    "S0-J3": head_spectra,
    "S0-TH1": smooth_embeddings,
    "S0-TH2": residual_mlps,
    "S0-TH3": compression,
    "S0-TH4": growth,
    "S0-TH6": sketches,
}
