"""Minimal circuits: which components they keep, what is left of the forecast, and how it was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.effects import ablation_word
from tsfm_lens.viz.panels import draw_scene, fitted_range, scene, value_hover
from tsfm_lens.viz.paths import path_values
from tsfm_lens.viz.places import OUTPUT, Places, kind_word, places_in
from tsfm_lens.viz.select import (
    array,
    check,
    model_of,
    names,
    series_position,
    shown,
    statistic_of,
    unit_of,
    value_title,
)
from tsfm_lens.viz.theme import BLUE, GREY, INK, PALE, PURPLE, VERMILION, dress, mixed, plain

__all__ = ["circuit_curve", "circuit_forecasts", "circuit_graph"]

_HEIGHT, _WIDTH = 340, 640  # pixels that the nodes share
_LAYER_GAP = 0.8  # between layers, in columns
_PARTS = {
    "model": ("whole model", {"color": mixed(GREY, 0.45), "width": 5}),
    "circuit": ("circuit alone", {"color": BLUE, "width": 2}),
    "complement": ("all but the circuit", {"color": VERMILION, "width": 1.6}),
    "nothing": ("none of the components", {"color": INK, "width": 1.4, "dash": "2px,2px"}),
}


def circuit_graph(ds: xr.Dataset, edges: xr.Dataset | None = None, *, most: int = 30) -> go.Figure:
    """The circuit drawn on the model: every head and MLP at its place, those of the circuit filled.

    Args:
        ds: of kind "circuit".
        edges: of kind "edges", over the same components.
        most: how many edges are drawn, the strongest by the median over series.

    Returns:
        Layers from left to right, in each a column a branch with its heads. Edges are as wide as their score is
        large, pale where an end is outside the circuit.

    Raises:
        InputError: a Dataset is of another kind, or the edges are of other components.
    """
    check(ds, "circuit", "in_circuit")
    places = places_in(ds)
    kept = np.asarray(ds["in_circuit"].values, dtype=bool)[places.order]
    board = _Board.of(places)
    fig = go.Figure()
    drawn = _draw_edges(fig, board, places, kept, edges, most) if edges is not None else 0
    _draw_nodes(fig, board, places, kept)
    if edges is not None:
        x, y = board.output
        fig.add_trace(
            go.Scatter(
                x=[x],
                y=[y],
                mode="markers",
                marker={"color": INK, "size": 13, "symbol": "diamond"},
                hovertemplate="the forecast<extra></extra>",
                showlegend=False,
            )
        )
    fig.update_xaxes(tickvals=board.ticks, ticktext=board.labels, title_text="layer", ticks="", showline=False)
    fig.update_xaxes(range=[-0.8, board.output[0] + (0.8 if edges is not None else -0.4)])
    reach = max(board.reach, *(float(np.abs(trace.y).max()) for trace in fig.data if trace.name == "edge"), 0.0) + 0.7
    fig.update_yaxes(visible=False, range=[-reach, reach])
    notes = [_quality(ds), f"pale: outside, {ablation_word(ds)}"]
    if edges is not None:
        notes.append(
            f"diamond: the forecast; the {drawn} strongest edges by attribution, as wide as their score, {_signs(fig)}"
            "pale where an end is outside"
        )
    return dress(
        fig,
        f"Circuit of {model_of(ds)} for {_behaviour(ds)} of {shown(names(ds, 'series'))}: "
        f"{int(kept.sum())} of {len(kept)} components",
        "; ".join(notes),
        plot_height=_HEIGHT,
        legend_rows=1,
        min_width=max(420, 60 + 34 * len(set(board.x.tolist()))),
    )


def circuit_forecasts(ds: xr.Dataset, *, series: str | int = 0, context_steps: int | None = None) -> go.Figure:
    """The forecast of the whole model, of the circuit alone, of all but the circuit, and of none of the components.

    Args:
        ds: of kind "circuit".
        series: id, or place counted from 0.
        context_steps: how much of the context is drawn; two horizons (at least 24 steps) unless given.

    Returns:
        One panel.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such series.
    """
    check(ds, "circuit", "forecast", "faithfulness", "completeness")
    at = series_position(ds, series)
    view = scene(ds, at, max(2 * ds.sizes["step"], 24) if context_steps is None else context_steps)
    unit, statistic = unit_of(ds, at), statistic_of(ds)
    fig = go.Figure()
    forecasts = {name: array(ds, "forecast", "step", series=at, part=i) for i, name in enumerate(names(ds, "part"))}
    for name, (words, line) in _PARTS.items():
        fig.add_trace(
            go.Scatter(
                x=view.time.at(view.future),
                y=forecasts[name],
                mode="lines",
                name=words,
                line=line,
                hovertemplate=value_hover(f"{words} ({statistic})", view.time, unit),
            )
        )
    draw_scene(fig, view, unit=unit)
    core = np.concatenate([view.context, view.truth, forecasts["model"], forecasts["circuit"]])
    bounds, cut = fitted_range(core, np.concatenate([forecasts["complement"], forecasts["nothing"]]), reach=1.0)
    fig.update_yaxes(title_text=plain(value_title(ds, at)), range=bounds)
    fig.update_xaxes(title_text=plain(view.time.title))
    return dress(
        fig,
        f"Forecasts of {names(ds, 'series')[at]} by {model_of(ds)} and by its circuit alone",
        f"{_quality(ds, at)}; what is outside is {ablation_word(ds)}; {statistic} forecasts, {view.remark}"
        f"{'; what leaves the axis is cut off' if cut else ''}",
        plot_height=300,
        legend_rows=2,
    )


def circuit_curve(ds: xr.Dataset) -> go.Figure:
    """Faithfulness against the number of components kept, on the way to the circuit.

    Args:
        ds: of kind "circuit".

    Returns:
        A dot for each number of components that was tried, the mean over series; a dashed line at the allowed loss,
        and the circuit's size marked.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "circuit", "curve", "in_circuit")
    curve, sizes = array(ds, "curve", "size"), np.asarray(ds["size"].values, dtype=int)
    known = np.isfinite(curve)
    size = int(ds["in_circuit"].values.sum())
    least = 1 - float(ds.attrs.get("tolerance", 0.0))
    ids = names(ds, "series")
    hover = "%{x} components<br>faithfulness %{y:.3g}<extra></extra>"
    fig = go.Figure(
        go.Scatter(
            x=sizes[known],
            y=curve[known],
            mode="lines+markers",
            name="faithfulness",
            line={"color": BLUE, "width": 1.5},
            marker_size=6,
            hovertemplate=hover,
        )
    )
    fig.add_hline(y=least, line={"color": GREY, "width": 1, "dash": "dash"})
    fig.add_annotation(
        x=0, xref="x domain", xanchor="left", y=least, yanchor="bottom", text=f"{least:.3g} asked for", font_color=GREY
    )
    fig.add_vline(x=size, line={"color": VERMILION, "width": 1.5, "dash": "dot"})
    fig.add_annotation(
        x=size,
        y=0.02,
        yref="y domain",
        yanchor="bottom",
        xanchor="left" if size < len(sizes) / 2 else "right",
        text=f" {size} components ",
        font_color=VERMILION,
    )
    low = min(float(np.nanmin(curve)), least)
    fig.update_xaxes(title_text="components kept", range=[-0.5, sizes[-1] + 0.5])
    fig.update_yaxes(title_text="faithfulness", range=[1 - 1.1 * (1 - low), 1 + 0.08 * (1 - low)])
    fig.update_yaxes(showgrid=True, gridcolor=PALE)
    ways = {
        "greedy": "at each step what is missed least goes; sizes below the circuit were not reached",
        "effects": "kept: those whose ablation alone changes most",
        "edges": "kept: those with the largest edges by attribution",
    }
    ranking = str(ds.attrs.get("ranking", ""))
    return dress(
        fig,
        f"How many components of {model_of(ds)} keep {_behaviour(ds)}",
        "; ".join(
            [
                f"{'mean over ' if len(ids) > 1 else ''}{shown(ids)}, others {ablation_word(ds)}",
                f"ranking {ranking!r}: {ways[ranking]}" if ranking in ways else f"ranking {ranking!r}",
                "1: the whole model, 0: none of the components",
            ]
        ),
        plot_height=280,
        legend_rows=0,
    ).update_layout(showlegend=False)


@dataclass(frozen=True)
class _Board:
    """Where components are drawn: a column a branch, heads from top to bottom.

    Attributes:
        x, y: of each component; output: of the forecast; reach: the largest |y|.
        ticks, labels: of the layers.
    """

    x: np.ndarray
    y: np.ndarray
    output: tuple[float, float]
    reach: float
    ticks: list[float]
    labels: list[str]

    @classmethod
    def of(cls, places: Places) -> _Board:
        rows = list(zip(places.stack, places.layer.tolist(), places.kind, strict=True))
        columns: dict[Any, float] = {}
        at, last = -1.0, None
        for row in dict.fromkeys(rows):
            at += 1 + (_LAYER_GAP if last is not None and row[:2] != last else 0)
            columns[row], last = at, row[:2]
        x = np.array([columns[row] for row in rows])
        y = np.zeros(len(rows))
        for row in columns:
            mine = [i for i, own in enumerate(rows) if own == row]
            order = np.argsort(places.head[mine], kind="stable")
            y[np.array(mine)[order]] = (len(mine) - 1) / 2 - np.arange(len(mine))
        layers = list(dict.fromkeys(row[:2] for row in rows))
        middles = [float(np.mean([v for row, v in columns.items() if row[:2] == layer])) for layer in layers]
        several = len(set(places.stack)) > 1
        labels = [f"{stack} {layer}" if several else str(layer) for stack, layer in layers]
        return cls(x, y, (at + 1.2, 0.0), float(np.abs(y).max()), middles, [plain(label) for label in labels])


def _draw_nodes(fig: go.Figure, board: _Board, places: Places, kept: np.ndarray) -> None:
    room = min(_HEIGHT / (2 * board.reach + 2), _WIDTH / (board.output[0] + 1))
    size = float(np.clip(0.75 * room, 7, 24))
    headed = {kind for kind, head in zip(places.kind, places.head, strict=True) if head >= 0}
    for kind, colour in places.colours().items():
        for inside in (True, False):
            mine = [i for i, own in enumerate(places.kind) if own == kind and kept[i] == inside]
            heads = [str(places.head[i]) if places.head[i] >= 0 and size >= 13 else "" for i in mine]
            fig.add_trace(
                go.Scatter(
                    # an empty trace would have no legend
                    x=board.x[mine] if mine else [None],
                    y=board.y[mine] if mine else [None],
                    mode="markers+text",
                    name=kind_word(kind),
                    legendgroup=kind,
                    showlegend=inside,
                    marker={
                        "color": colour if inside else mixed(colour, 0.1),
                        "size": size,
                        "symbol": "circle" if kind in headed else "square",
                        "line": {"color": colour if inside else mixed(colour, 0.4), "width": 1},
                    },
                    text=heads,
                    textfont={"size": 10, "color": "#FFFFFF" if inside else GREY},
                    customdata=[plain(places.names[i]) for i in mine],
                    hovertemplate=f"%{{customdata}}<br>{'in' if inside else 'outside'} the circuit<extra></extra>",
                )
            )


def _draw_edges(fig: go.Figure, board: _Board, places: Places, kept: np.ndarray, edges: xr.Dataset, most: int) -> int:
    """The strongest edges, weakest first so that the others lie above; how many."""
    check(edges, "edges", "score")
    spots = {name: (board.x[i], board.y[i], bool(kept[i])) for i, name in enumerate(places.names)}
    spots[OUTPUT] = (*board.output, True)
    scores = path_values(edges, "score")
    senders, receivers = names(edges, "sender"), names(edges, "receiver")
    strange = [name for name in (*senders, *receivers) if name not in spots]
    if strange:
        raise InputError(f"the edges reach {strange[0]}, which is no component of this circuit's result.")
    order = [int(i) for i in np.argsort(-np.abs(np.nan_to_num(scores)).ravel(), kind="stable")][: max(most, 0)]
    pairs = [divmod(i, len(receivers)) for i in order]
    pairs = [(a, b) for a, b in pairs if np.isfinite(scores[a, b])]
    largest = max((abs(float(scores[a, b])) for a, b in pairs), default=1.0)
    for a, b in reversed(pairs):
        (x0, y0, here), (x1, y1, there) = spots[senders[a]], spots[receivers[b]]
        score = float(scores[a, b])
        # none of the nodes' colours
        colour = INK if score > 0 else PURPLE
        x, y = _bow(x0, y0, x1, y1, 0.25 * (board.reach + 1))
        fig.add_trace(
            go.Scatter(
                x=x,
                y=y,
                mode="lines",
                line={
                    "color": mixed(colour, 0.85 if here and there else 0.3),
                    "width": 0.6 + 5.4 * abs(score) / largest,
                },
                name="edge",
                showlegend=False,
                hovertemplate=f"{plain(senders[a])} → {plain(receivers[b])}<br>score {score:.3g}<extra></extra>",
            )
        )
    return len(pairs)


def _bow(x0: float, y0: float, x1: float, y1: float, most: float) -> tuple[np.ndarray, np.ndarray]:
    """A line from one node to another, bent by at most so much, so that it passes the nodes between them."""
    t = np.linspace(0, 1, 25)
    height = min(0.36 * (x1 - x0), 4 * most) * (1 if y0 + y1 >= 0 else -1)
    return x0 + (x1 - x0) * t, y0 + (y1 - y0) * (3 * t**2 - 2 * t**3) + height * t * (1 - t)


def _signs(fig: go.Figure) -> str:
    colours = {str(trace.line.color) for trace in fig.data if trace.name == "edge"}
    negative = colours & {mixed(PURPLE, 0.85), mixed(PURPLE, 0.3)}
    return "purple where negative, " if negative else ""


def _quality(ds: xr.Dataset, series: int | None = None) -> str:
    """Faithfulness and completeness in words, of one series or the mean."""
    values = {
        name: np.nanmean(array(ds, name, "series")[slice(None) if series is None else [series]])
        for name in ("faithfulness", "completeness")
    }
    over = f" (means over {ds.sizes['series']} series)" if series is None and ds.sizes["series"] > 1 else ""
    size = int(ds["in_circuit"].values.sum())
    return f"{size} of {ds.sizes['component']} components, " * (series is not None) + (
        f"faithfulness {values['faithfulness']:.3g}, completeness {values['completeness']:.3g}{over}"
    )


def _behaviour(ds: xr.Dataset) -> str:
    word = str(ds.attrs.get("behaviour", "forecast"))
    return "the forecast" if word == "forecast" else f"{word!r}"
