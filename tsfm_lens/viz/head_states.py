"""One head in a linked view: reads, writes, spectra, and the forecast without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import unknown_name
from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.panels import Scene, as_text, mark_start, scene
from tsfm_lens.viz.select import array, layer_name, median_position, model_of, names, position, unit_of
from tsfm_lens.viz.sheet import Look, Sheet, sheet, shortened, text_width
from tsfm_lens.viz.theme import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SEQUENTIAL,
    VERMILION,
    mixed,
    number,
    percent,
    plain,
)
from tsfm_lens.viz.words import after_number, measured

__all__ = ["explore_figure"]
Update = dict[str, dict[str, Any]]
"""Trace of :data:`TRACES` -> the properties that change."""

_MAX_NUMBERED = 60  # cells with room for their number
_MIN_VISIBLE = 1e-4  # percent; attention below it is drawn as none
_WIDTH, _MAP = 884, 230  # pixels: under which the five panels cannot be read, and of the map at that
_ROW, _WIDTHS, _GAP = 195, (0.34, 0.24, 0.42), 0.13  # pixels of a row of panels; shares of the columns and between them
_LEAST = 1e-12  # of the largest singular value: what rounding leaves of one that is 0
_BAR = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "yanchor": "top",
    "len": _WIDTHS[0] * (1 - 2 * _GAP),
    "thickness": 10,
    "outlinewidth": 0,
    "tickfont": {"size": 10},
    "ypad": 0,
    "xpad": 0,
}
_LAST = {"row": 2, "col": 3}
_PLACES: dict[str, tuple[Callable[..., go.Scatter | go.Heatmap | go.Bar], dict[str, Any]]] = {
    "scores": (go.Heatmap, {"row": 1, "col": 1}),
    "crossed out": (go.Scatter, {"row": 1, "col": 1}),
    "chosen": (go.Scatter, {"row": 1, "col": 1}),
    "QK": (go.Scatter, {"row": 1, "col": 2}),
    "OV": (go.Scatter, {"row": 1, "col": 2}),
    "write": (go.Bar, {"row": 1, "col": 3}),
    "attention": (go.Heatmap, {"row": 2, "col": 1, "secondary_y": False}),
    "series": (go.Scatter, {"row": 2, "col": 1, "secondary_y": True}),
    **{f"{ablated}{name}": (go.Scatter, _LAST) for ablated in ("", "ablated ") for name in ("low", "band")},
    **dict.fromkeys(("context", "truth", "median", "ablated median"), (go.Scatter, _LAST)),
}
TRACES = tuple(_PLACES)
"""The traces in order, by what they show."""
_LEGEND = {
    "median": "median forecast",
    "ablated median": "without the crossed-out heads",
    "QK": "W<sub>Q</sub>W<sub>K</sub>ᵀ",
    "OV": "W<sub>V</sub>W<sub>O</sub>",
}
_TITLES = (
    "all heads; framed: the one shown",
    "its singular values",
    "its write to the forecast",
    "what it looks at while it forecasts",
    "forecast with and without\nthe crossed-out heads",
)

EXPLORE = measurement("explore")


def heads_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the scores, a row per series and head."""
    return pd.concat([_heads(ds.isel(series=[place])) for place in range(ds.sizes["series"])], ignore_index=True)


def _heads(ds: xr.Dataset) -> pd.DataFrame:
    layers, heads = names(ds, "layer"), names(ds, "head")
    table = pd.DataFrame(
        {"series": names(ds, "series")[0], "layer": np.repeat(layers, len(heads)), "head": np.tile(heads, len(layers))}
    )
    table["component"] = ds["component"].values.ravel()
    for key, (_, values) in scores(ds).items():
        table[key.replace(" ", "_")] = values.ravel()
    for key in ("write_share", "attention_forecast", "attention_other"):
        table[key] = array(ds, key, "layer", "head", series=0).ravel()
    return table


def read_explore(ds: xr.Dataset) -> list[str]:
    """Name the head of the largest ablation effect and the one that writes most."""
    amount = measured(unit_of(ds, 0) or "data units")
    shift, size = (array(ds, key, "layer", "head", series=0) for key in ("mean_shift", "write_size"))
    names_of = ds["component"].transpose("layer", "head").values.astype(str)
    loudest = tuple(int(v) for v in np.unravel_index(size.argmax(), size.shape))
    share = array(ds, "write_share", "layer", "head", series=0)[loudest]
    if not array(ds, "mean_shift_acts", "layer", "head").any():
        return [f"No head of {attention_kind(ds)} moves the forecast beyond rounding when it is ablated."]
    most = tuple(int(v) for v in np.unravel_index(shift.argmax(), shift.shape))
    out = [
        f"Among heads of {attention_kind(ds)}, ablating {names_of[most]} moves the forecast most "
        f"({amount(shift[most])} on average; median head {amount(float(np.median(shift)))})."
    ]
    same = "It also writes most" if most == loudest else f"{names_of[loudest]} writes most"
    out.append(f"{same}: {amount(size[loudest])} on average, {percent(float(share))} of all writes.")
    return out


@EXPLORE.figure(variables=("context",))
def explore_figure(
    ds: xr.Dataset,
    *,
    layer: str | int | None = None,
    head: str | int | None = None,
    ablated: bool = False,
) -> go.Figure:
    """Draw every head's score, and of one head its attention, write, spectra, and the forecast without it.

    Args:
        layer, head: labels of the chosen head; the one with the largest score unless both are given.
        ablated: also draw the forecast without the chosen head.
    """
    place = start(ds)
    if layer is not None and head is not None:
        place = position(ds, "layer", layer), position(ds, "head", head)
    view = scene(ds, 0, ds.sizes["time"])
    parts: list[Update] = [_fixed(ds, view), score_update(ds, None), head_update(ds, *place)]
    alone = array(ds, "ablated_forecast", "quantile", "step", layer=place[0], head=place[1], series=0)
    parts.append(ablation_update(ds, [place], alone) if ablated else ablation_update(ds, [], None))
    specs = [[{}, {}, {}], [{"colspan": 2, "secondary_y": True}, None, {}]]
    room: Look = {"row_gap": 160, "column_gap": _GAP, "min_width": _WIDTH, "above": 42}
    canvas = sheet([_ROW, _ROW], _WIDTHS, titles=_TITLES, specs=specs, **room)
    canvas.fig.update_annotations(yshift=4)
    for name, (kind, where) in _PLACES.items():
        properties = {key: value for part in parts for key, value in part.get(name, {}).items()}
        canvas.fig.add_trace(kind(**{"name": _LEGEND.get(name, name), **properties}), **where)
    _set_axes(canvas, ds, view)
    for row in (1, 2):
        mark_start(canvas.panel(row, 3), view.time)
    return canvas.dress(
        f"One head at a time: {attention_kind(ds)} of {model_of(ds)} on {view.id}",
        head_words(ds, *place),
        sampling_words(ds),
    ).update_layout(legend={"traceorder": "normal", "x": 1, "xanchor": "right"})


def scores(ds: xr.Dataset) -> dict[str, tuple[str, np.ndarray]]:
    """Return what the map can show, by key: its words, and values (layer, head); the effect of an ablation first."""
    unit = unit_of(ds, 0) or "data units"
    words = {
        "spearman_distance": "ablation: 1 − rank correlation",
        "mean_shift": f"ablation: mean change ({unit})",
        "write_size": f"write: mean size ({unit})",
        "entropy": "attention: entropy (nats)",
        "normalised_entropy": "attention: entropy, 0 to 1 over heads",
    }
    entries = {key: (text, array(ds, key, "layer", "head", series=0)) for key, text in words.items() if key in ds}
    for place, product in enumerate(names(ds, "product")):
        values = array(ds, "stable_rank", "layer", "head", product=place)
        entries[f"stable_rank {product}"] = (f"stable rank of {product}", values)
    return entries


def _score(ds: xr.Dataset, key: str | None) -> tuple[str, np.ndarray]:
    available = scores(ds)
    if key is not None and key not in available:
        raise unknown_name("score", key, available)
    return available[key or next(iter(available))]


def start(ds: xr.Dataset) -> tuple[int, int]:
    """Find the position (layer, head) of the head with the largest score."""
    values = _score(ds, None)[1]
    layer, head = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return int(layer), int(head)


def score_update(ds: xr.Dataset, score: str | None) -> Update:
    """Return the map of another score."""
    words, values = _score(ds, score)
    title = plain(shortened(words, _MAP, 12, lines=2)).replace("\n", "<br>")
    text = [[f"{v:.2g}" for v in row] for row in values] if values.size <= _MAX_NUMBERED else None
    return {
        "scores": {
            "z": values,
            "zmin": min(0.0, float(np.nanmin(values))),
            "zmax": float(np.nanmax(values)) or 1.0,
            "text": text,
            "texttemplate": "%{text}" if text else None,
            "colorbar": {**_BAR, "y": 0.536, "title": {"text": title, "side": "bottom"}},
            "hovertemplate": f"%{{customdata}}<br>{plain(words)} %{{z:.4g}}<extra></extra>",
        }
    }


def head_update(ds: xr.Dataset, layer: int, head: int) -> Update:
    """Return what another head shows; ``layer`` and ``head`` are positions."""
    at = {"layer": layer, "head": head}
    attention = 100 * array(ds, "attention", "time", **at, series=0)[-len(scene(ds, 0, ds.sizes["time"]).past) :]
    top, spectra = float(np.nanmax(attention)), {}
    for product in ("QK", "OV"):
        values = array(ds, "singular_value", "mode", **at, product=position(ds, "product", product))
        shares = values / (values[0] or np.nan)
        spectra[product] = {"y": np.where(shares > _LEAST, shares, np.nan)}
    left, right, low, high = head - 0.5, head + 0.5, layer - 0.5, layer + 0.5
    return {
        "chosen": {"x": [left, right, right, left, left], "y": [low, low, high, high, low]},
        "write": {"y": array(ds, "write", "step", **at, series=0)},
        **spectra,
        "attention": {"z": attention[None], "zmax": top if top > _MIN_VISIBLE else 1.0},
    }


def ablation_update(ds: xr.Dataset, heads: Sequence[tuple[int, int]], quantiles: np.ndarray | None) -> Update:
    """Return the forecast without heads at positions (layer, head). ``quantiles``: (quantile, step), none if None."""
    visible = quantiles is not None
    if quantiles is None:
        # what is not shown still has values: the browser's drawing of bands meets no empty line
        quantiles = array(ds, "quantile_forecast", "quantile", "step", series=0)
    low, high, middle = _envelope(ds, quantiles)
    # two strokes a cell, and a gap
    x = [edge for _, head in heads for edge in (head - 0.5, head + 0.5, None) * 2]
    y = [edge for layer, _ in heads for edge in (layer - 0.5, layer + 0.5, None, layer + 0.5, layer - 0.5, None)]
    return {
        "crossed out": {"x": x, "y": y},
        "ablated low": {"y": low, "visible": visible},
        "ablated band": {"y": high, "visible": visible},
        "ablated median": {"y": middle, "visible": visible},
    }


def head_name(ds: xr.Dataset, layer: int, head: int) -> str:
    """Name a head's layer and number; both are positions."""
    return f"{layer_name(names(ds, 'layer')[layer])}, head {names(ds, 'head')[head]}"


def head_words(ds: xr.Dataset, layer: int, head: int) -> str:
    """Write the scores of one head in words; ``layer`` and ``head`` are positions."""
    at, unit = {"layer": layer, "head": head}, after_number(unit_of(ds, 0) or "data units")

    def value(key: str) -> float:
        return float(array(ds, key, **at, series=0))

    ranks = ", ".join(
        f"{product} {number(float(array(ds, 'stable_rank', **at, product=place)))}"
        for place, product in enumerate(names(ds, "product"))
    )
    aside = {"forecast tokens": value("attention_forecast"), "special tokens and padding": value("attention_other")}
    elsewhere = [f"{percent(share)} on {words}" for words, share in aside.items() if share >= 1e-4]
    effect = f"the median moves by {number(value('mean_shift'))} {unit} on average"
    if "spearman_distance" in ds:
        effect += f", Spearman distance {number(value('spearman_distance'))}"
    return (
        f"{head_name(ds, layer, head)}: attention entropy {number(round(value('entropy'), 6))} nats"
        + (f" ({', '.join(elsewhere)})" if elsewhere else "")
        + f"; writes {number(value('write_size'))} {unit} to the {ds.attrs.get('write_to', 'forecast')} on average "
        f"({percent(value('write_share'))} of all writes); stable rank {ranks}; "
        f"without this head {effect}"
    )


def sampling_words(ds: xr.Dataset) -> str:
    """Write how the forecasts were sampled, "" if they were not."""
    samples = int(ds.attrs.get("samples", 0))
    return f"every forecast from {samples} sample paths of one seed" if samples else ""


def _envelope(ds: xr.Dataset, quantiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lowest and highest quantile and the median, each (step,)."""
    levels = np.asarray(ds["quantile"].values, dtype=float)
    return quantiles[levels.argmin()], quantiles[levels.argmax()], quantiles[median_position(levels)]


def _fixed(ds: xr.Dataset, view: Scene) -> dict[str, dict[str, Any]]:
    """Return the properties of every trace that no click changes."""
    future, modes = _on_axis(view, view.future), np.arange(1, ds.sizes["mode"] + 1)
    per = " per step" * (ds["attention"].attrs.get("token_steps", 1) > 1)
    layers, heads = names(ds, "layer"), names(ds, "head")
    silent: dict[str, Any] = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
    spectrum = {"x": modes, "mode": "lines+markers", "marker": {"size": 4}, "legend": "legend2"}
    spectrum["hovertemplate"] = "mode %{x}: %{y:.3g} of the largest<extra></extra>"
    return {
        "scores": {
            "x": np.arange(len(heads)),
            "y": np.arange(len(layers)),
            "colorscale": SEQUENTIAL,
            "textfont": {"size": 10},
            "customdata": [[plain(head_name(ds, i, j)) for j in range(len(heads))] for i in range(len(layers))],
        },
        "crossed out": {**silent, "line": {"color": VERMILION, "width": 1.5}},
        "chosen": {**silent, "cliponaxis": False, "line": {"color": VERMILION, "width": 3}},
        "QK": {**spectrum, "line": {"color": PURPLE}},
        "OV": {**spectrum, "line": {"color": GREY, "dash": "4px,2px"}},
        "write": {
            "x": future,
            # one colour of bars needs no hatch in print
            "marker": {"color": GREEN, "pattern": {"shape": ""}},
            "showlegend": False,
            "hovertemplate": view.hover("the head's write") + "<extra></extra>",
        },
        "attention": {
            "x": _on_axis(view, np.append(view.past - 0.5, -0.5)),
            "y": [0, 1],
            "zmin": 0,
            "colorscale": ((0.0, "#FFFFFF"), (1.0, mixed(ORANGE, 0.85))),
            "colorbar": {**_BAR, "y": -0.15, "title": {"text": f"attention (%{per})", "side": "right"}},
            "hovertemplate": f"{view.time.hover}<br>%{{z:.3g}} % of the head's attention{per}<extra></extra>",
        },
        "series": _line(view, "past", view.context, INK, "observed, given to the model") | {"showlegend": False},
        **_forecast(ds, view),
    }


def _forecast(ds: xr.Dataset, view: Scene) -> dict[str, dict[str, Any]]:
    """Return the traces of the panel with the forecasts."""
    future = _on_axis(view, view.future)
    low, high, median = _envelope(ds, array(ds, "quantile_forecast", "quantile", "step", series=0))
    levels = np.asarray(ds["quantile"].values, dtype=float)

    def band(colour: str, **more: Any) -> dict[str, Any]:
        edge = {"x": future, "mode": "lines", "hoverinfo": "skip", "line": {"width": 0, "color": colour}}
        return {**edge, "showlegend": False, **more}

    pale, faint = mixed(BLUE, 0.3), "rgba(213, 94, 0, 0.18)"
    share = f"{100 * (levels.max() - levels.min()):.3g} % band"
    cut = replace(view, past=view.past[-_tail(view) :], context=view.context[-_tail(view) :])
    return {
        "low": band(pale, y=low),
        "band": band(pale, y=high, fill="tonexty", fillcolor=pale, name=share, showlegend=True),
        "ablated low": band(faint),
        "ablated band": band(faint, fill="tonexty", fillcolor=faint),
        "context": _line(cut, "past", cut.context, INK, "observed, given to the model"),
        "truth": _line(view, "future", view.truth, INK, "observed later, unknown to the model")
        | {"showlegend": view.has_truth, "line": {"color": INK, "width": 1.2, "dash": "2px,2px"}},
        "median": _line(view, "future", median, BLUE, "median forecast", 2),
        "ablated median": _line(view, "future", None, VERMILION, "median without the crossed-out heads", 2),
    }


def _line(
    view: Scene, part: str, values: np.ndarray | None, colour: str, words: str, width: float = 1.2
) -> dict[str, Any]:
    line = {"color": colour, "width": width}
    hover = f"{view.hover(words)}<extra></extra>"
    where = {"x": _on_axis(view, getattr(view, part)), "y": values}
    return {**where, "mode": "lines", "line": line, "hovertemplate": hover}


def _on_axis(view: Scene, steps: np.ndarray) -> np.ndarray | list[str | None]:
    """Place steps on the axis; dates as text, since a widget sends datetime64 to the browser as bare integers."""
    where = view.time.at(steps)
    return where if view.time.stamps is None else as_text(where)


def _tail(view: Scene) -> int:
    """Count the context steps that are drawn before the forecast."""
    return max(len(view.future) // 2, 2)


def _set_axes(canvas: Sheet, ds: xr.Dataset, view: Scene) -> None:
    """Set titles, ticks and ranges of all panels."""
    layers, heads, unit = names(ds, "layer"), names(ds, "head"), unit_of(ds, 0) or "data units"
    scores, spectra, write, last = (canvas.panel(*place) for place in ((1, 1), (1, 2), (1, 3), (2, 3)))
    every: Look = {"showline": False, "ticks": ""}
    few = slice(None, None, -(-len(heads) // 16))
    ticks = {"tickvals": list(range(len(heads)))[few], "ticktext": heads[few]}
    scores.x("head", range=[-0.5, len(heads) - 0.5], **ticks, **every)
    ticks = {"tickvals": list(range(len(layers))), "ticktext": layers}
    scores.y("layer", range=[len(layers) - 0.5, -0.5], **ticks, **every)
    spectra.x("mode", nticks=6)
    values = array(ds, "singular_value", "layer", "head", "product", "mode")
    largest = values[..., :1]
    shares = values / np.where(largest > 0, largest, np.nan)
    spectra.y("relative to the largest", **log_axis(shares[shares > _LEAST]))
    # the write stands above the steps of the forecast that it adds to
    ends = list(_on_axis(view, np.array([view.past[-_tail(view) :][0] - 0.5, view.future[-1] + 0.5])))
    for panel, word in ((write, "write"), (last, "value")):
        panel.x(view.time.short_title, nticks=4, tickangle=0, range=ends)
        whole = f"{word} ({unit})"
        # a longer title would lie on the panel beside it; the unit is that of the series at the left
        panel.y(whole if text_width(whole, 13) <= _ROW else word, nticks=6)
    edges = list(_on_axis(view, np.array([view.past[0] - 0.5, -0.5])))
    canvas.panel(2, 1).x(view.time.title, range=edges)
    canvas.panel(2, 1, secondary_y=False).y(visible=False, range=[0, 1], fixedrange=True)
    canvas.panel(2, 1, secondary_y=True).y(f"value ({unit})", side="left", tickmode="auto")
    # under the spectra, beside the bar of the colours
    place = canvas.fig.get_subplot(1, 2)
    under: Look = {"x": sum(place.xaxis.domain) / 2, "xanchor": "center", "y": place.yaxis.domain[0] - 0.09}
    canvas.fig.update_layout(legend2={**under, "yanchor": "top", "yref": "paper", "orientation": "v"}, bargap=0.15)


@EXPLORE.panels
def _explore(ds: xr.Dataset) -> Iterator[ReportPanel]:
    yield ReportPanel(explore_figure(ds), heads_table(ds), read_explore(ds))
