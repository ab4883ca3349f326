"""Frame of the linked view: its panels, axes, and the traces with all that no click changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.panels import Scene, scene, value_hover
from tsfm_lens.viz.room import text_width
from tsfm_lens.viz.select import array, layer_name, median_position, names, unit_of
from tsfm_lens.viz.sheet import Look, Sheet
from tsfm_lens.viz.theme import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SEQUENTIAL, VERMILION, mixed, plain
from tsfm_lens.viz.timeline import Timeline, as_text

TRACES = (
    "scores",
    "crossed out",
    "chosen",
    "QK",
    "OV",
    "write",
    "attention",
    "series",
    "low",
    "band",
    "ablated low",
    "ablated band",
    "context",
    "truth",
    "median",
    "ablated median",
)
"""The traces in order, by what they show."""


ROW, WIDTHS, GAP = 195, (0.34, 0.24, 0.42), 0.13  # pixels of a row of panels; shares of the columns and between them
_ATTENTION = ((0.0, "#FFFFFF"), (1.0, mixed(ORANGE, 0.85)))
BAR = {
    "orientation": "h",
    "x": 0,
    "xanchor": "left",
    "yanchor": "top",
    "len": WIDTHS[0] * (1 - 2 * GAP),
    "thickness": 10,
    "outlinewidth": 0,
    "tickfont": {"size": 10},
    "ypad": 0,
    "xpad": 0,
}
_Kind = Callable[..., go.Scatter | go.Heatmap | go.Bar]
PLACES: dict[str, tuple[_Kind, dict[str, Any]]] = {
    "scores": (go.Heatmap, {"row": 1, "col": 1}),
    "crossed out": (go.Scatter, {"row": 1, "col": 1}),
    "chosen": (go.Scatter, {"row": 1, "col": 1}),
    "QK": (go.Scatter, {"row": 1, "col": 2}),
    "OV": (go.Scatter, {"row": 1, "col": 2}),
    "write": (go.Bar, {"row": 1, "col": 3}),
    "attention": (go.Heatmap, {"row": 2, "col": 1, "secondary_y": False}),
    "series": (go.Scatter, {"row": 2, "col": 1, "secondary_y": True}),
}
PLACES |= {name: (go.Scatter, {"row": 2, "col": 3}) for name in TRACES if name not in PLACES}
LEGEND = {
    "median": "median forecast",
    "ablated median": "without the crossed-out heads",
    "QK": "W<sub>Q</sub>W<sub>K</sub>ᵀ",
    "OV": "W<sub>V</sub>W<sub>O</sub>",
}
TITLES = (
    "all heads; framed: the one shown",
    "its singular values",
    "its write to the forecast",
    "what it looks at while it forecasts",
    "the forecast, and without\nheads that are crossed out",
)
LEAST = 1e-12  # of the largest singular value: what rounding leaves of one that is 0


def head_name(ds: xr.Dataset, layer: int, head: int) -> str:
    """Name a head's layer and number; both are positions."""
    return f"{layer_name(names(ds, 'layer')[layer])}, head {names(ds, 'head')[head]}"


def drawn(ds: xr.Dataset) -> int:
    """Count the context steps that are drawn: all from the first known value on."""
    return len(scene(ds, 0, ds.sizes["time"]).past)


def envelope(ds: xr.Dataset, quantiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lowest and highest quantile and the median, each (step,)."""
    levels = np.asarray(ds["quantile"].values, dtype=float)
    return quantiles[levels.argmin()], quantiles[levels.argmax()], quantiles[median_position(levels)]


def frame(ds: xr.Dataset, view: Scene) -> dict[str, dict[str, Any]]:
    """Return the properties of every trace that no click changes."""
    unit = unit_of(ds, 0)
    future, modes = on_axis(view, view.future), np.arange(1, ds.sizes["mode"] + 1)
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
            "hovertemplate": _hover("the head's write", view.time, unit),
        },
        "attention": {
            "x": on_axis(view, np.append(view.past - 0.5, -0.5)),
            "y": [0, 1],
            "zmin": 0,
            "colorscale": _ATTENTION,
            **attention_words(ds, view.time),
        },
        "series": _line(view, "past", view.context, INK, 1.2, "observed, given to the model", unit)
        | {"showlegend": False},
        **_forecast(ds, view),
    }


def attention_words(ds: xr.Dataset, time: Timeline, steps: int = 1) -> dict[str, Any]:
    """Return colour bar and hover box of the attention in cells of so many steps.

    A token of several steps has more attention than a cell shows, so both say how many steps a cell covers.
    """
    per = f" per {steps} steps" if steps > 1 else ""
    if not per and ds["attention"].attrs.get("token_steps", 1) > 1:
        per = " per step"
    return {
        "colorbar": {**BAR, "y": -0.15, "title": {"text": f"attention (%{per})", "side": "right"}},
        "hovertemplate": f"{time.hover}<br>%{{z:.3g}} % of the head's attention{per}<extra></extra>",
    }


def _forecast(ds: xr.Dataset, view: Scene) -> dict[str, dict[str, Any]]:
    """Return the traces of the panel with the forecasts."""
    unit, future = unit_of(ds, 0), on_axis(view, view.future)
    low, high, median = envelope(ds, array(ds, "quantile_forecast", "quantile", "step", series=0))
    levels = np.asarray(ds["quantile"].values, dtype=float)

    def band(colour: str, **more: Any) -> dict[str, Any]:
        edge = {"x": future, "mode": "lines", "hoverinfo": "skip", "line": {"width": 0, "color": colour}}
        return {**edge, "showlegend": False, **more}

    pale, faint = mixed(BLUE, 0.3), "rgba(213, 94, 0, 0.18)"
    share = f"{100 * (levels.max() - levels.min()):.3g} % band"
    has_truth = bool(np.isfinite(view.truth).any())
    cut = replace(view, past=view.past[-_tail(view) :], context=view.context[-_tail(view) :])
    return {
        "low": band(pale, y=low),
        "band": band(pale, y=high, fill="tonexty", fillcolor=pale, name=share, showlegend=True),
        "ablated low": band(faint),
        "ablated band": band(faint, fill="tonexty", fillcolor=faint),
        "context": _line(cut, "past", cut.context, INK, 1.2, "observed, given to the model", unit),
        "truth": _line(view, "future", view.truth, INK, 1.2, "what came, unknown to the model", unit)
        | {"showlegend": has_truth, "line": {"color": INK, "width": 1.2, "dash": "2px,2px"}},
        "median": _line(view, "future", median, BLUE, 2, "median forecast", unit),
        "ablated median": _line(view, "future", None, VERMILION, 2, "median without the crossed-out heads", unit),
    }


def _line(
    view: Scene, part: str, values: np.ndarray | None, colour: str, width: float, words: str, unit: str
) -> dict[str, Any]:
    return {
        "x": on_axis(view, getattr(view, part)),
        "y": values,
        "mode": "lines",
        "line": {"color": colour, "width": width},
        "hovertemplate": _hover(words, view.time, unit),
    }


def _hover(words: str, time: Timeline, unit: str) -> str:
    return f"{value_hover(words, time, unit)}<extra></extra>"


def on_axis(view: Scene, steps: np.ndarray) -> np.ndarray | list[str | None]:
    """Place steps on the axis; dates as text, since a widget sends datetime64 to the browser as bare integers."""
    where = view.time.at(steps)
    return where if view.time.stamps is None else as_text(where)


def _tail(view: Scene) -> int:
    """Count the context steps that are drawn before the forecast."""
    return max(len(view.future) // 2, 2)


def axes(canvas: Sheet, ds: xr.Dataset, view: Scene) -> None:
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
    spectra.y("relative to the largest", **log_axis(shares[shares > LEAST]))
    # the write stands above the steps of the forecast that it adds to
    ends = list(on_axis(view, np.array([view.past[-_tail(view) :][0] - 0.5, view.future[-1] + 0.5])))
    for panel, word in ((write, "write"), (last, "value")):
        panel.x(view.time.short_title, nticks=4, tickangle=0, range=ends)
        whole = f"{word} ({unit})"
        # a longer title would lie on the panel beside it; the unit is that of the series at the left
        panel.y(whole if text_width(whole, 13) <= ROW else word, nticks=6)
    edges = list(on_axis(view, np.array([view.past[0] - 0.5, -0.5])))
    canvas.panel(2, 1).x(view.time.title, range=edges)
    canvas.panel(2, 1, secondary_y=False).y(visible=False, range=[0, 1], fixedrange=True)
    canvas.panel(2, 1, secondary_y=True).y(f"value ({unit})", side="left", tickmode="auto")
    # under the spectra, beside the bar of the colours
    place = canvas.fig.get_subplot(1, 2)
    under: Look = {"x": sum(place.xaxis.domain) / 2, "xanchor": "center", "y": place.yaxis.domain[0] - 0.09}
    canvas.fig.update_layout(legend2={**under, "yanchor": "top", "yref": "paper", "orientation": "v"}, bargap=0.15)
