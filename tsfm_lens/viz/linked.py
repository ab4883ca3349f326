"""State of the linked view, which :file:`linked.js` shows.

:func:`linked_state` collects, for every series, what each head reads and the forecast
without each component. It computes no effect anew; the effects are those of
:func:`tsfm_lens.probes.head_states`.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.axes import layer_name
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.head_states import (
    EVEN,
    MOSTLY,
    UNREAD,
    component_name,
    describe_attention,
    write_times,
)
from tsfm_lens.viz.panels import series_window
from tsfm_lens.viz.select import (
    array,
    find_unit,
    kind_word,
    name_statistic,
    names,
)
from tsfm_lens.viz.words import after_number

_BYTES = 1_200_000  # of attention at single steps, all series together
_FORECASTS = 128  # components of a series without which the forecast is in the page


def linked_state(
    ds: xr.Dataset, *, whole: bool = False, command: str = ""
) -> dict[str, Any]:
    """Return what :file:`linked.js` shows of an "explore" result.

    Its size in bytes is bounded, unless it is ``whole``. ``command`` opens a view that
    forecasts anew; one without a model behind it names the command.
    """
    heads = ds["name"].size
    components = names(ds, "component")
    queries = ds.sizes["query"]
    # a weight takes one byte; see _packed()
    per_head = max(ds.sizes["series"] * queries * ds.sizes["key"], 1)
    n_rows = heads
    n_lines = len(components)
    if not whole:
        # the attention of a single query is the mean, which every head has anyway
        if queries != 1:
            n_rows = min(n_rows, max(_BYTES // per_head, 1))
        n_lines = min(n_lines, _FORECASTS)
    notes = []
    if n_rows < heads:
        notes.append(
            f"Attention at single steps is in this file for {n_rows} of {heads} heads,"
            " the strongest."
        )
    if n_lines < len(components):
        notes.append(
            f"Forecasts are in this file for {n_lines} of {len(components)} components,"
            " the strongest."
        )
    first = int(ds.attrs.get("first_step", 0))
    if first:
        notes.append(
            f"Effects and errors are of the {name_statistic(ds)} along the forecast's"
            " own path; they leave out its first step, whose decoder reads no value."
        )
    return {
        "series": [
            _series(ds, position, n_rows, n_lines)
            for position in range(ds.sizes["series"])
        ],
        "rows": _map_rows(ds),
        "labels": [component_name(ds, position) for position in range(len(components))],
        "names": components,
        "queries": ds["query_start"].values.tolist(),
        "row": ds["step_query"].values.tolist(),
        "notes": notes,
        "command": command,
        "first": first,
        "kind": attention_kind(ds),
        "statistic": name_statistic(ds),
        "unread": UNREAD,
        "mostly": MOSTLY,
        "even": EVEN,
    }


def _map_rows(ds: xr.Dataset) -> list[dict[str, Any]]:
    """Return the components as the stack computes them.

    Every layer has a row of heads for each kind of attention, and its MLP.
    """
    layers = ds["component_layer"].values
    kinds = ds["component_kind"].values.astype(str)
    rows: dict[tuple[int, str], list[int]] = {}
    for position, key in enumerate(zip(layers.tolist(), kinds.tolist(), strict=True)):
        rows.setdefault(key, []).append(position)
    return [
        {
            "layer": layer_name(str(layer)),
            "kind": kind_word(kind),
            "alone": kind == "mlp",
            "cells": cells,
        }
        for (layer, kind), cells in rows.items()
    ]


def _series(ds: xr.Dataset, series: int, n_rows: int, n_lines: int) -> dict[str, Any]:
    """Collect one series, without the steps before its start."""
    view = series_window(ds, series, ds.sizes["time"])
    components = names(ds, "component")
    effect = array(ds, "mean_shift", "component", series=series)
    # rank of each component, 0 for the largest effect
    ranks = np.argsort(np.argsort(-effect, kind="stable"), kind="stable")
    states: list[dict[str, Any]] = [{"effect": _short(size)} for size in effect]
    for state, rank, forecast in zip(
        states,
        ranks,
        array(ds, "forecast", "component", "step", series=series),
        strict=True,
    ):
        if rank < n_lines:
            described = line(ds, forecast, series)
            # the plain forecast and the shift give it
            del described["line"]
            state |= described
    # Stretches of the context, (key, 2). The padding of shorter series covers no step
    # and is left away.
    edges = np.stack(
        [array(ds, name, "key", series=series) for name in ("key_start", "key_stop")],
        axis=-1,
    ).astype(int)
    is_covered = edges[:, 1] > edges[:, 0]
    attention = array(ds, "attention", "layer", "head", "query", "key", series=series)[
        ..., is_covered
    ]
    # Share of the steps that each query forecasts, (query,). Weighted by it, attention
    # is a mean over steps.
    counts = (
        np.bincount(ds["step_query"].values, minlength=ds.sizes["query"])
        / ds.sizes["step"]
    )
    heads = [components.index(str(name)) for name in ds["name"].values.ravel()]
    strongest = sorted(heads, key=lambda at: ranks[at])
    reading_heads = set()
    for at, (layer, head) in zip(heads, np.ndindex(*ds["name"].shape), strict=True):
        rows = attention[layer, head]
        state = states[at]
        reading = describe_attention(ds, series, layer, head)
        state["reading"] = reading.as_plain()
        if reading.reads:
            reading_heads.add(at)
        state["mean"] = _packed(counts @ rows)
        if len(rows) > 1 and strongest.index(at) < n_rows:
            state["rows"] = [_packed(row) for row in rows]
    floor = float(ds["mean_shift_floor"].values[series])
    named = [at for at in strongest if at in reading_heads and effect[at] > floor]
    # sorted at every step, so that the first is the lowest whatever the levels' order
    bands = np.sort(
        array(ds, "quantile_forecast", "quantile", "step", series=series), axis=0
    )
    steps = len(view.past)
    return {
        "name": names(ds, "series")[series],
        "unit": after_number(find_unit(ds, series)),
        "context": _short(view.context),
        "truth": _short(view.truth) if view.has_truth else None,
        "times": write_times(view.time.at(view.past)),
        "ahead": write_times(view.time.at(view.future)),
        "keys": edges[is_covered].tolist(),
        # indices into the context, in which a first token may begin too early
        "spans": (np.clip(edges[is_covered], -steps, 0) + steps).tolist(),
        "floor": _short(floor),
        # the strongest head that says where it looks; the map has those that move the
        # forecast further
        "start": (named or [int(np.argmin(ranks))])[0],
        "states": states,
        "low": _short(bands[0]),
        "high": _short(bands[-1]),
        **line(ds, array(ds, "baseline_forecast", "step", series=series), series),
    }


def line(ds: xr.Dataset, forecast: np.ndarray, series: int = 0) -> dict[str, Any]:
    """Return the description of a forecast (step,).

    ``shift`` (step,) is its difference from the plain forecast, ``effect`` the mean
    size of that, ``up`` and ``down`` the numbers of steps that it is above and below 0,
    ``error`` the mean distance from the truth.
    """
    later = slice(int(ds.attrs.get("first_step", 0)), None)
    shift = forecast - array(ds, "baseline_forecast", "step", series=series)
    if "truth" in ds:
        gaps = np.abs(forecast - array(ds, "truth", "step", series=series))[later]
    else:
        gaps = np.empty(0)
    gaps = gaps[np.isfinite(gaps)]
    error = gaps.mean() if len(gaps) else np.nan
    return {
        "line": _short(forecast),
        "shift": _short(shift, 4),
        "effect": _short(np.abs(shift[later]).mean(), 9),
        "up": int((shift[later] > 0).sum()),
        "down": int((shift[later] < 0).sum()),
        "error": _short(error, 9),
    }


def _packed(weights: np.ndarray) -> list[Any]:
    """Return weights as one byte each: [largest, base64].

    A byte is the root of the weight's share of the largest.
    """
    top = float(weights.max(initial=0.0))
    # the root gives small weights, of which there are most, more of the 256 values
    shares = np.sqrt(np.clip(weights, 0, None) / (top or 1.0))
    return [
        _short(top),
        base64.b64encode(np.rint(255 * shares).astype(np.uint8).tobytes()).decode(),
    ]


def _short(values: Any, digits: int = 5) -> Any:
    """Round to digits; missing values are None."""
    if np.ndim(values):
        return [_short(value, digits) for value in values]
    if np.isfinite(values):
        return float(f"{values:.{digits}g}")
    # JSON has no NaN
    return None
