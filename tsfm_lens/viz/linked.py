"""State of the linked view: of every series what each head reads, and the forecast without it."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.head_states import head_name
from tsfm_lens.viz.panels import scene
from tsfm_lens.viz.select import array, median_position, names, unit_of
from tsfm_lens.viz.words import listed

_BYTES = 1_200_000  # of attention at single steps, all series together
# least share that is most of the attention, and that of a stretch which is read, in shares of an even spread
MOSTLY, EVEN = 0.5, 2.0
_FORECASTS = 64  # heads of a series whose forecasts are in the page


def linked_state(ds: xr.Dataset, *, whole: bool = False) -> dict[str, Any]:
    """Collect what :file:`linked.js` shows of an "explore" result; bounded in bytes unless it is ``whole``."""
    heads = [(i, j) for i in range(ds.sizes["layer"]) for j in range(ds.sizes["head"])]
    per_head = ds.sizes["series"] * ds.sizes["row"] * ds.sizes["bin"]
    n_rows = n_fans = len(heads)
    if not whole:
        n_rows = n_rows if ds.sizes["row"] == 1 else min(n_rows, max(_BYTES // per_head, 1))
        n_fans = min(n_fans, _FORECASTS)
    notes = [f"Every forecast from {ds.attrs['samples']} sample paths of one seed."] if ds.attrs.get("samples") else []
    for what, count in (("Attention at single steps is", n_rows), ("Forecasts without a head are", n_fans)):
        if count < len(heads):
            notes.append(f"{what} in this file for {count} of {len(heads)} heads, the strongest.")
    others = [f'run.explore(kind="{kind}")' for kind in str(ds.attrs.get("other_kinds", "")).split()]
    if others:
        notes.append(f"The heads are those of {attention_kind(ds)}; other attention of this stack: {listed(others)}.")
    return {
        "series": [_series(ds, place, heads, n_rows, n_fans) for place in range(ds.sizes["series"])],
        "layers": names(ds, "layer"),
        "heads": names(ds, "head"),
        "labels": [head_name(ds, *head) for head in heads],
        "names": [str(ds["component"].values[head]) for head in heads],
        "bin": int(ds["attention_row"].attrs["bin_steps"]),
        "token": int(ds["attention"].attrs.get("token_steps", 1)),
        "notes": notes,
        "kind": attention_kind(ds),
        "rest": other_keys(ds),
        "mostly": MOSTLY,
        "even": EVEN,
    }


def other_keys(ds: xr.Dataset) -> str:
    """Name the keys of an "explore" result that are no stretch of the series: its special tokens, if they are all."""
    special = str(ds.attrs.get("special", ""))
    return special if special and not ds["attention_forecast"].any() else "other tokens"


def effects(ds: xr.Dataset, series: int) -> np.ndarray:
    """Compute the mean distance of the median without a head from the median with it, (layer, head), data units."""
    middle = median_position(np.asarray(ds["quantile"].values, dtype=float))
    plain = array(ds, "quantile_forecast", "step", series=series, quantile=middle)
    without = array(ds, "ablated_forecast", "layer", "head", "step", series=series, quantile=middle)
    return np.abs(without - plain).mean(axis=-1)


def _series(ds: xr.Dataset, place: int, heads: list[tuple[int, int]], n_rows: int, n_fans: int) -> dict[str, Any]:
    """Collect one series; steps before its start are left away."""
    view = scene(ds, place, ds.sizes["time"])
    effect = effects(ds, place)
    order = sorted(range(len(heads)), key=lambda at: -effect[heads[at]])
    n_bins = -(-len(view.past) // int(ds["attention_row"].attrs["bin_steps"]))
    rows = array(ds, "attention_row", "layer", "head", "row", "bin", series=place)[..., -n_bins:]
    without = array(ds, "ablated_forecast", "layer", "head", "quantile", "step", series=place)
    states: list[dict[str, Any]] = []
    for at, head in enumerate(heads):
        rank = order.index(at)
        state: dict[str, Any] = {"effect": _short(effect[head]), "mean": _packed(rows[head].mean(axis=0))}
        if rank < n_rows and rows.shape[2] > 1:
            state["rows"] = [_packed(row) for row in rows[head]]
        if rank < n_fans:
            state |= fan(ds, without[head], place)
        states.append(state)
    return {
        "name": names(ds, "series")[place],
        "unit": unit_of(ds, place) or "data units",
        "context": _short(view.context),
        "truth": _short(view.truth) if view.has_truth else None,
        "times": [str(each)[:16].replace("T", " ").removesuffix(" 00:00") for each in view.time.at(view.past)],
        "ahead": [str(each)[:16].replace("T", " ").removesuffix(" 00:00") for each in view.time.at(view.future)],
        "row": [int(each) for each in array(ds, "step_row", "step", series=place)],
        "start": order[0],
        "states": states,
        **fan(ds, array(ds, "quantile_forecast", "quantile", "step", series=place), place),
    }


def fan(ds: xr.Dataset, quantiles: np.ndarray, series: int = 0) -> dict[str, Any]:
    """Describe a forecast (quantile, step): its ends, and :func:`line` of its median."""
    levels = np.asarray(ds["quantile"].values, dtype=float)
    ends = {"low": _short(quantiles[levels.argmin()]), "high": _short(quantiles[levels.argmax()])}
    return ends | line(ds, quantiles[median_position(levels)], series)


def line(ds: xr.Dataset, median: np.ndarray, series: int = 0) -> dict[str, Any]:
    """Describe a median (step,): ``effect``, its mean distance from the plain one, and its mean absolute ``error``."""
    plain = array(ds, "quantile_forecast", "quantile", "step", series=series)[median_position(ds["quantile"].values)]
    gaps = np.abs(median - array(ds, "truth", "step", series=series)) if "truth" in ds else np.empty(0)
    gaps = gaps[np.isfinite(gaps)]
    sizes = {"effect": np.abs(median - plain).mean(), "error": gaps.mean() if len(gaps) else np.nan}
    return {"median": _short(median)} | {key: _short(size, 9) for key, size in sizes.items()}


def _packed(weights: np.ndarray) -> list[Any]:
    """Write weights as one byte each, the root of its share of the largest: [largest, base64]."""
    top = float(weights.max(initial=0.0))
    shares = np.sqrt(np.clip(weights, 0, None) / (top or 1.0))
    return [_short(top), base64.b64encode(np.rint(255 * shares).astype(np.uint8).tobytes()).decode()]


def _short(values: Any, digits: int = 5) -> Any:
    """Round to digits; missing values are None."""
    if np.ndim(values):
        return [_short(value) for value in values]
    return float(f"{values:.{digits}g}") if np.isfinite(values) else None
