"""How the experiments and theorems on rank are measured here; of no model, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import xarray as xr

from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.papers import values_theory as said
from tsfm_lens.studies.papers.measuring import Asked, Found
from tsfm_lens.studies.papers.verdicts import Part, interval, judged

COMPARABLE_WITHIN = 1.25  # a factor


def by_rank(asked: Asked, *, width: int = 512, n_tokens: int = 4096, n_ranks: int = 40) -> Found:
    """The slope over the singular value that is cut off, and how near the bounds are."""
    found = rank_theory.compression_by_rank(
        width=width, n_tokens=n_tokens, n_ranks=n_ranks, draws=asked.seeds or 1, seed=asked.seed
    )
    slopes = {said.SLOPE_OF_RANK: found["slope"], "slope with all ranks": found["slope_of_all"]}
    values, intervals = _means({name: of.sel(scaling="theorem") for name, of in slopes.items()})
    values["largest error over √d σ"] = float((found["error"] / found["rate"]).max())
    values["largest error over the bound with √L"] = float((found["error"] / found["bound"]).max())
    ranks = found["rank"].values
    settings = {
        "d": str(width),
        "tokens": str(n_tokens),
        "ranks": f"{len(ranks)} from {ranks[0]} to {ranks[-1]}",
        "entries of weights": "variance 1/√d of W_Q and W_K, 1 of W_V",
        **_draws(found, asked, intervals=True),
    }
    return Found(values, settings, intervals=intervals)


def by_width(asked: Asked, *, widths: Sequence[int] = (32, 64, 128, 256, 512), n_tokens: int = 1024) -> Found:
    """The slope over the width with its interval, and that of other weights."""
    found = rank_theory.compression_by_width(widths=widths, n_tokens=n_tokens, draws=asked.seeds or 50, seed=asked.seed)
    names = {
        "theorem": said.SLOPE_OF_WIDTH,
        "orthogonal": "slope with W_V √d times orthogonal",
        "normalised": "slope with all weights of variance 1/d",
    }
    values = {name: float(found["slope"].sel(weights=key)) for key, name in names.items()}
    ends = {
        name: (float(found["slope_low"].sel(weights=key)), float(found["slope_high"].sel(weights=key)))
        for key, name in names.items()
    }
    settings = {
        "d": ", ".join(map(str, widths)),
        "tokens": str(n_tokens),
        "rank": str(found.attrs["rank"]),
        "entries of weights": "variance 1/√d of W_Q and W_K, 1 of W_V",
        **_draws(found, asked, intervals=True),
    }
    return Found(values, settings, intervals=ends)


def sketching(
    asked: Asked, *, width: int = 2048, heads: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128), decay: float = 200.0
) -> Found:
    """How the effective rank grows with the heads, and sparse sketches beside dense ones."""
    found = rank_theory.sketching_by_heads(
        width=width, heads=heads, decay=decay, draws=asked.seeds or 6, seed=asked.seed
    )
    sparse, dense = (found["distance"].sel(sketch=name) for name in ("sparse", "dense"))
    apart = np.asarray(np.abs(np.log(sparse.values / dense.values)).mean(axis=-1))
    part = Part("", np.log(COMPARABLE_WITHIN) - apart, f"logarithm of {COMPARABLE_WITHIN:g}, less that of their ratio")
    values, intervals = _means({said.SLOPE_OF_HEADS: found["slope"].sel(sketch="sparse")})
    for count in found["heads"].values:
        values[f"sketching error, {count} heads"] = float(sparse.sel(heads=count).mean())
    settings = {
        "d": str(width),
        "tokens": "any from d on",
        "rank of a head": str(found.attrs["rank"]),
        "heads": f"{heads[0]} to {heads[-1]}",
        "entries of a row": "d / h",
        "singular values": f"exp(−(j − 1)/{decay:g})",
        **_draws(found, asked, intervals=True),
    }
    claims = {said.COMPARABLE: judged([part], range(found.sizes["draw"]), "draw")}
    return Found(values, settings, intervals=intervals, claims=claims)


def head_spectra(
    asked: Asked, *, width: int = 128, n_tokens: int = 256, heads: Sequence[int] = (1, 2, 4, 8, 16, 32)
) -> Found:
    """Whether rank grows from each number of heads to the next, and where softmax is even."""
    draws = asked.seeds or 8
    found = rank_theory.spectra_by_heads(width=width, n_tokens=n_tokens, heads=heads, draws=draws, seed=asked.seed)
    ranks = found["rank"].sel(input="times √L")
    grown = ranks.diff("heads").transpose("heads", "draw").values
    parts = [
        Part(f"from {one} to {other}", margins, "ε-rank")
        for one, other, margins in zip(heads[:-1], heads[1:], grown, strict=True)
    ]
    values, intervals = _means({f"rank with {count} heads": ranks.sel(heads=count) for count in heads})
    values["rank of the input"] = float(found["input_rank"])
    even = found["rank"].sel(input="of norm 1") - found["input_rank"]
    values["rank added at most where softmax is even"] = float(even.max())
    values["deviation of scores"] = float(found["logit_deviation"].sel(input="times √L").mean())
    settings = {
        "d": str(width),
        "tokens": str(n_tokens),
        "singular values": f"√L exp(−(j − 1)/{found.attrs['decay']:g})",
        "ε": f"{found.attrs['epsilon']:g}",
        **_draws(found, asked, intervals=True),
    }
    claims = {said.HIGHER_RANK_BY_HEADS: judged(parts, range(found.sizes["draw"]), "draw")}
    return Found(values, settings, intervals=intervals, claims=claims)


def chebyshev(asked: Asked, *, dimension: int = 768, n_points: int = 4096) -> Found:
    """The rank of every embedding."""
    found = rank_theory.chebyshev_curves(
        dimension=dimension, ranks=said.CHEBYSHEV_RANKS, n_points=n_points, seed=asked.seed
    )
    values = {
        said.CHEBYSHEV_RANK.format(rank=rank): float(number)
        for rank, number in zip(found["rank"].values, found["found_rank"].values, strict=True)
    }
    return Found(values, {"d": str(dimension), "points": str(n_points), "largest value": f"{found.attrs['largest']:g}"})


def smooth_embeddings(asked: Asked) -> Found:
    """Theorem 1."""
    found = rank_theory.embedding_bounds(draws=1, seed=asked.seed).drop_sel(embedding="gated, β = 1")
    settings = {"embeddings": ", ".join(map(str, found["embedding"].values)), **_sizes(found)}
    return Found({said.ABOVE_THEOREM_1: _above_bounds(found)}, settings)


def residual_mlps(asked: Asked) -> Found:
    """Theorem 2."""
    found = rank_theory.embedding_bounds(draws=asked.seeds or 10, seed=asked.seed)
    values = {
        said.ABOVE_THEOREM_2: float((found["count"] > found["most"]).sum()),
        "residual MLPs and thresholds": float(found["count"].size),
    }
    return Found(values, {"patch": str(found.attrs["patch"]), **_sizes(found), **_draws(found, asked)})


def gated_embeddings(asked: Asked) -> Found:
    """Corollary 2."""
    found = rank_theory.embedding_bounds(draws=1, seed=asked.seed).sel(embedding=["gated, β = 1"])
    return Found({said.ABOVE_COROLLARY_2: _above_bounds(found)}, {"β": "1", **_sizes(found)})


def compression(asked: Asked) -> Found:
    """Theorems 3 and 5."""
    found = rank_theory.compression_bounds(draws=asked.seeds or 20, seed=asked.seed)
    repeated = found["repeated_error"]
    values = {
        said.ABOVE_THEOREM_3: float((found["error"] > found["bound"]).sum()),
        said.BELOW_THEOREM_3: float((found["least_error"] < found["floor"]).sum()),
        said.REPEATED: float(repeated.sel(length=256) / repeated.sel(length=1)),
        "errors": float(found["error"].size),
        "smallest loss over σ/4": float((found["least_error"] / found["floor"]).min()),
    }
    settings = {"heads": ", ".join(map(str, found["heads"].values)), **_sizes(found), **_draws(found, asked)}
    return Found(values, settings)


def growth(asked: Asked) -> Found:
    """Theorem 4."""
    found = _growth(asked)
    lower = found["lower"].where(found["lower"] > 0)
    values = {
        said.ABOVE_THEOREM_4: float((found["relative"] > found["upper"]).sum()),
        said.BELOW_THEOREM_4: float((found["grown"] < lower).sum()),
        "singular values": float(found["relative"].size),
        "smallest singular value of the construction over its bound": float((found["grown"] / lower).min()),
    }
    layers = ", ".join(map(str, found["depth"].values))
    return Found(values, {"layers": f"{layers} above, 1 below", **_growth_settings(found, asked)})


def corollary(asked: Asked) -> Found:
    """Corollary 1."""
    found = _growth(asked)
    above = {form: float((found["alone"] > found["corollary"].sel(form=form)).sum()) for form in found["form"].values}
    values = {said.ABOVE_PROOF: above["of the proof"], said.ABOVE_PRINTED: above["as printed"]}
    return Found({**values, "singular values": float(found["alone"].size)}, _growth_settings(found, asked))


def sketches(asked: Asked) -> Found:
    """Theorem 6."""
    found = rank_theory.sketch_bounds(draws=asked.seeds or 20, seed=asked.seed)
    values = {
        said.SHARED_BELOW: float((found["shared_error"] < found["shared_floor"]).sum()),
        said.OWN_ABOVE: float((found["own_error"] > found["own_bound"]).sum()),
        "constructions": float(found["own_error"].size),
        "how many times as near a sketch for each head is, at least": float(
            (found["shared_error"] / found["own_error"]).min()
        ),
    }
    return Found(values, {"sizes": "; ".join(map(str, found["size"].values)), **_draws(found, asked)})


def _growth(asked: Asked) -> xr.Dataset:
    return rank_theory.growth_bounds(draws=asked.seeds or 10, seed=asked.seed)


def _growth_settings(found: xr.Dataset, asked: Asked) -> dict[str, str]:
    heads = ", ".join(map(str, found["heads"].values))
    first = f"1, then {found.attrs['gap']:g} · exp(−(j − 2)/{found.attrs['decay']:g})"
    return {"heads": heads, "singular values": first, **_sizes(found), **_draws(found, asked)}


def _above_bounds(found: xr.Dataset) -> float:
    # below this nothing is told from zero in double precision
    least = 1e-12 * found["singular_value"].isel(index=0)
    return float((found["singular_value"] > found["bound"] + least).sum())


def _means(of: dict[str, xr.DataArray]) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Means over draws, and their intervals where there are enough draws for one."""
    estimates = {name: interval(values.values, range(values.size)) for name, values in of.items()}
    ends = {name: (each.low, each.high) for name, each in estimates.items() if np.isfinite(each.low)}
    return {name: each.estimate for name, each in estimates.items()}, ends


def _sizes(found: xr.Dataset) -> dict[str, str]:
    words = {"width": "d", "dimension": "d", "n_tokens": "tokens"}
    return {words[key]: str(value) for key, value in found.attrs.items() if key in words}


def _draws(found: xr.Dataset, asked: Asked, *, intervals: bool = False) -> dict[str, str]:
    words = {"draws": str(found.sizes["draw"]), "seed": str(asked.seed)}
    return {**words, "intervals over": "draws"} if intervals and found.sizes["draw"] > 1 else words


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
