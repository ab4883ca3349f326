"""Activation patching: which place, and which stretch of time, carries a forecast from one run into another."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.viz.contrast import Contrast, patching_kind, scalar, way, when
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import fitted_range, value_hover
from tsfm_lens.viz.places import Places, kind_word, places_in, separate
from tsfm_lens.viz.select import (
    array,
    check,
    model_of,
    names,
    series_position,
    statistic_of,
    unit_of,
    value_title,
)
from tsfm_lens.viz.theme import (
    DIVERGING,
    GREY,
    INK,
    SEQUENTIAL,
    dress,
    mixed,
    plain,
)
from tsfm_lens.viz.timeline import Timeline
from tsfm_lens.viz.tokens import TokenAxis, token_axis

__all__ = ["patched_forecasts", "patching_map"]

KINDS = {"patching": "Activation patching", "attribution_patching": "Attribution patching"}
WORDS = {
    "recovered": "share recovered",
    "effect": "mean change",
    "first_order": "estimated share recovered",
    "error": "error of the estimate",
}
_UPPER, _GAP = 170, 34  # pixels: the panel of the series, and what parts it from the next
_BAR = 210  # pixels: the shortest colour bar that its title fits beside
_BEYOND = 1.5  # shares above run off the colours


def patching_map(ds: xr.Dataset, *, value: str | None = None, series: str | int = 0) -> go.Figure:
    """Place × time map of what patching does, under the two series on the same time axis.

    Args:
        ds: of kind "patching" or "attribution_patching".
        value: "recovered" or "effect", of attribution patching "first_order", "recovered" or "error"; if None the
            first.
        series: id, or place counted from 0.

    Returns:
        Above, both contexts and forecasts, the steps where the contexts differ shaded. Below, a heat map whose cells
        are as wide as the steps that a group of tokens covers, special tokens in a column of their own. Tokens of
        several variates have a map each. Where all positions were patched at once, a bar a place instead.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such value or series.
    """
    kind = patching_kind(ds)
    known = [name for name in WORDS if name in ds and not (kind == "patching" and name in ("first_order", "error"))]
    if kind == "attribution_patching":
        known.sort(key=lambda name: name == "recovered")
    chosen = known[0] if value is None else value
    if chosen not in known:
        raise unknown_name("value", chosen, known)
    at, places = series_position(ds, series), places_in(ds)
    values = array(ds, chosen, "component", "position", series=at)[places.order]
    draw = _bars if ds.attrs.get("positions") == "all" else _map
    fig, height, remark = draw(ds, places, values, chosen, at)
    base, source = way(ds)
    fig = dress(
        fig,
        f"{KINDS[kind]} of {model_of(ds)} on {names(ds, 'series')[at]}: {WORDS[chosen]}"
        f"{' of the forecast' if chosen == 'effect' else ''}",
        "; ".join(
            [
                f"{places.what()}: activations of the {source} run put into the {base} run",
                *([f"0: the {base} forecast, 1: the {source}"] if chosen in ("recovered", "first_order") else []),
                _difference(ds, at),
                *([remark] if remark else []),
            ]
        ),
        plot_height=height,
        above=14,
        below=76 if draw is _bars else 52,
        legend_rows=1,
        min_width=560,
    )
    return fig.update_layout(margin_r=110) if draw is _map else fig


def patched_forecasts(ds: xr.Dataset, *, top: int = 3, series: str | int = 0) -> go.Figure:
    """The forecasts of the places that recover most, between the clean and the corrupted forecast.

    Args:
        ds: of kind "patching".
        top: how many places.
        series: id, or place counted from 0.

    Returns:
        A panel a place on shared axes, the largest share first, with the end of both contexts.

    Raises:
        InputError: ``ds`` is of another kind, or ``top`` is below 1.
        UnknownNameError: no such series.
    """
    check(ds, "patching", "forecast", "recovered")
    if top < 1:
        raise InputError(f"top is {top}, expected 1 or more")
    at, places = series_position(ds, series), places_in(ds)
    recovered = array(ds, "recovered", "component", "position", series=at)[places.order]
    forecasts = array(ds, "forecast", "component", "position", "step", series=at)[places.order]
    found = np.argsort(-recovered.ravel(), kind="stable")[:top]
    chosen = [divmod(int(flat), recovered.shape[1]) for flat in found]
    titles = [
        tuple(part for part in (places.labels[row], when(ds, col), f"recovers {recovered[row, col]:.3g}") if part)
        for row, col in chosen
    ]
    grid = panel_grid(titles, row_height=190)
    view, unit = Contrast.of(ds, at), unit_of(ds, at)
    tail = max(2 * ds.sizes["step"], 24)
    for panel, (row, col) in enumerate(grid.places):
        where: dict[str, Any] = {"row": row, "col": col}
        view.draw(grid.fig, unit, tail=tail, legend=panel == 0, **where)
        grid.fig.add_trace(
            go.Scatter(
                x=view.time.at(view.future),
                y=forecasts[chosen[panel]],
                mode="lines",
                name="patched forecast",
                legendgroup="patched",
                showlegend=panel == 0,
                line={"color": INK, "width": 1.6, "dash": "4px,2px"},
                hovertemplate=value_hover(f"patched at {titles[panel][0]} ({statistic_of(ds)})", view.time, unit),
            ),
            **where,
        )
    core = np.concatenate([view.clean[-tail:], view.corrupted[-tail:], *view.forecasts])
    bounds, cut = fitted_range(core, np.concatenate([forecasts[place] for place in chosen]), reach=1.0)
    grid.fig.update_yaxes(range=bounds, nticks=5)
    title_axes(grid, view.time.short_title, value_title(ds, at))
    base, source = way(ds)
    return dress(
        grid.fig,
        f"Forecasts of {names(ds, 'series')[at]} by {model_of(ds)}, patched where most is recovered",
        f"{statistic_of(ds)} forecasts; activations of the {source} run put into the {base} run at one place; "
        f"recovers: share of the way to the {source} forecast{'; what leaves the axis is cut off' if cut else ''}"
        f"{view.time.remark}",
        legend_rows=1,
        **grid.room,
    )


def _map(ds: xr.Dataset, places: Places, values: np.ndarray, value: str, series: int) -> tuple[go.Figure, int, str]:
    """The series over a heat map a variate; the figure, the height of its panels, and a remark."""
    axes = [(lane, token_axis(ds.isel(position=lane), "position")) for lane in _lanes(ds)]
    count = len(places.names)
    row_height = int(np.clip(480 / count, 8, 32))
    heights = [_UPPER, *(max(count * row_height, 130) for _ in axes)]
    total = sum(heights) + _GAP * len(axes)
    aside = any(len(axis.aside) for _, axis in axes)
    fig = make_subplots(
        rows=1 + len(axes),
        cols=2 if aside else 1,
        column_widths=[0.94, 0.06] if aside else None,
        row_heights=heights,
        horizontal_spacing=0.015,
        vertical_spacing=_GAP / total,
        specs=[[{}, None] if aside else [{}], *([{}, {}] if aside else [{}] for _ in axes)],
    )
    view = Contrast.of(ds, series)
    view.draw(fig, unit_of(ds, series), row=1, col=1)
    fig.update_yaxes(title_text=plain(value_title(ds, series)), row=1, col=1)
    fig.update_xaxes(showticklabels=len(axes) == 0, row=1, col=1)
    edges = [float(view.past[0]) - 0.5, float(view.future[-1]) + 0.5]
    for row, (lane, axis) in enumerate(axes, start=2):
        _tokens(fig, places, values[:, lane], axis, view.time, value, row)
        edges += axis.cells()[0].tolist()
        variate = f" (variate {row - 1})" if len(axes) > 1 else ""
        fig.update_yaxes(
            title_text=f"{'residual stream' if set(places.kind) == {'stream'} else 'component'}{variate}",
            row=row,
            col=1,
        )
        if aside:
            fig.update_yaxes(showticklabels=False, ticks="", row=row, col=2)
    fig.update_xaxes(range=[scalar(view.time, edge) for edge in (min(edges), max(edges))], matches="x", col=1)
    fig.update_xaxes(matches=None, row=1, col=1)
    fig.update_xaxes(title_text=plain(view.time.title), row=1 + len(axes), col=1)
    fig.update_layout(coloraxis=_colours(values, value, unit_of(ds, series), max(sum(heights[1:]), _BAR) / total))
    return fig, total, _beyond(values, value)


def _tokens(
    fig: go.Figure, places: Places, values: np.ndarray, axis: TokenAxis, time: Timeline, value: str, row: int
) -> None:
    """One heat map over time, and one of the special tokens beside it."""
    y = np.arange(len(places.names))
    labels = [plain(label) for label in places.labels]
    edges, owner = axis.cells()
    panels: list[tuple[int, Any, np.ndarray]] = []
    if len(owner):
        panels.append((1, time.at(edges), owner))
    if len(axis.aside):
        panels.append((2, axis.aside_labels(), axis.aside))
    for col, x, tokens in panels:
        z = np.where(tokens >= 0, values[:, tokens], np.nan)
        words = [axis.words(int(token)) if token >= 0 else "" for token in tokens]
        fig.add_trace(
            go.Heatmap(
                x=x,
                y=y,
                z=z,
                coloraxis="coloraxis",
                hoverongaps=False,
                text=[[f"{label}, {word}" for word in words] for label in labels],
                hovertemplate=f"%{{text}}<br>{WORDS[value]} %{{z:.3g}}<extra></extra>",
                ygap=1 if len(y) <= 40 else 0,
            ),
            row=row,
            col=col,
        )
        fig.update_yaxes(autorange="reversed", showline=False, **places.ticks(), row=row, col=col)
        separate(fig, places.breaks, row=row, col=col)


def _bars(ds: xr.Dataset, places: Places, values: np.ndarray, value: str, series: int) -> tuple[go.Figure, int, str]:
    """The series over a bar a place; the figure, the height of its panels, and a remark."""
    lower, gap = 220, 70
    total = _UPPER + lower + gap
    fig = make_subplots(rows=2, cols=1, row_heights=[_UPPER, lower], vertical_spacing=gap / total)
    view, unit = Contrast.of(ds, series), unit_of(ds, series)
    view.draw(fig, unit, row=1, col=1)
    fig.update_xaxes(title_text=plain(view.time.title), row=1, col=1)
    fig.update_yaxes(title_text=plain(value_title(ds, series)), row=1, col=1)
    for kind, colour in places.colours().items():
        mine = [i for i, own in enumerate(places.kind) if own == kind]
        fig.add_trace(
            go.Bar(
                x=mine,
                y=values[mine, 0],
                name=kind_word(kind) if kind != "stream" else "residual stream",
                marker_color=mixed(colour, 0.75),
                text=[plain(places.labels[i]) for i in mine],
                textposition="none",
                hovertemplate=f"%{{text}}<br>{WORDS[value]} %{{y:.3g}}<extra></extra>",
            ),
            row=2,
            col=1,
        )
    marks = (0.0, 1.0) if value in ("recovered", "first_order") and np.nanmax(values) > 0.5 else (0.0,)
    for mark in marks:
        dash = "dash" if mark else "solid"
        fig.add_hline(y=mark, line={"color": GREY, "width": 1, "dash": dash}, row=2, col=1)
    separate(fig, places.breaks, across=False, row=2, col=1)
    fig.update_xaxes(title_text="component", tickangle=-90, range=[-0.6, len(places.names) - 0.4], row=2, col=1)
    fig.update_xaxes(**places.ticks(60), row=2, col=1)
    fig.update_yaxes(title_text=plain(_titled(value, unit)), row=2, col=1)
    return fig.update_layout(bargap=0.25), total, "all positions patched at once"


def _colours(values: np.ndarray, value: str, unit: str, length: float) -> dict[str, Any]:
    """Colours around 0 with 1 written beside them, or of sizes from 0 up; the bar beside the maps."""
    finite = np.abs(values[np.isfinite(values)])
    limit = float(finite.max(initial=0.0)) or 1.0
    bar: dict[str, Any] = {
        "title": {"text": plain(_titled(value, unit)), "side": "right"},
        "len": length,
        "y": 0,
        "yanchor": "bottom",
        "nticks": 6,
    }
    if value == "effect":
        return {"colorscale": SEQUENTIAL, "cmin": 0.0, "cmax": limit, "colorbar": bar}
    limit = min(limit, _BEYOND)
    if limit >= 0.75 and value != "error":
        limit = max(limit, 1.0)
        bar |= {"tickvals": [-1, -0.5, 0, 0.5, 1], "ticktext": ["−1", "−0.5", "0 (none)", "0.5", "1 (all)"]}
    return {"colorscale": DIVERGING, "cmin": -limit, "cmax": limit, "cmid": 0.0, "colorbar": bar}


def _beyond(values: np.ndarray, value: str) -> str:
    finite = values[np.isfinite(values)]
    if value == "effect" or not len(finite):
        return ""
    low, high = float(finite.min()), float(finite.max())
    spread = f"values from {low:.2g} to {high:.2g}".replace("-", "−")
    if max(-low, high) > _BEYOND:
        return f"{spread}, colours end at ±{_BEYOND:g}"
    return "" if high >= 0.75 else spread


def _titled(value: str, unit: str) -> str:
    return f"{WORDS[value]} ({unit or 'data units'})" if value == "effect" else WORDS[value]


def _difference(ds: xr.Dataset, series: int) -> str:
    differ = Contrast.of(ds, series).differ
    if differ.all():
        return f"the contexts differ at all {len(differ)} steps"
    return f"shaded: where the contexts differ ({int(differ.sum())} of {len(differ)} steps)"


def _lanes(ds: xr.Dataset) -> list[list[int]]:
    """Positions that do not cover the same steps: one list, or one a variate where variates share a sequence."""
    lanes: list[list[int]] = [[]]
    end = -np.inf
    for i, (start, stop, special) in enumerate(
        zip(*(ds[f"position_{name}"].values for name in ("start", "stop", "special")), strict=True)
    ):
        if not special:
            if start < end:
                lanes.append([])
            end = stop
        lanes[-1].append(i)
    return lanes
