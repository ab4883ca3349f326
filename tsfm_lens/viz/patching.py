"""Activation patching of the residual stream, and its gradient estimates.

:func:`patching_map` draws both kinds of result, with the clean and the corrupted series
of a :class:`Contrast` above the map. Paths between components are in
:mod:`tsfm_lens.viz.path_patching`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.registry import FigurePanel, check, figure, frame, panels
from tsfm_lens.viz.findings import EffectEstimate, find_estimate
from tsfm_lens.viz.generic import draw_variable
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.nulls import describe_nulls, null_remark
from tsfm_lens.viz.panels import SeriesWindow, mark_start, series_window
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    array,
    forecast_series,
    name_model,
    names,
)
from tsfm_lens.viz.sheet import Panel, Sheet, Style, sheet
from tsfm_lens.viz.sites import Sites, find_positions
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import (
    BLUE,
    PALE,
    VERMILION,
    mixed,
    plain,
)
from tsfm_lens.viz.tokens import token_axis

__all__ = ["patching_map"]

KINDS = {
    "activation_patching": "Activation patching",
    "attribution_patching": "Attribution patching",
}
WORDS = {
    "recovered": "share recovered",
    "effect": "mean change",
    "first_order": "estimated share recovered",
    "error": "error of the estimate",
}
# Pixels: height of the panel of the series, and the gap between panels.
_SERIES_HEIGHT = 170
_GAP = 34
_BAR = 210  # pixels: the shortest colour bar that its title fits beside
_MAX_SHARE = 1.5  # colours end at this share, either way
_HALF = 0.5
_POSITION = ("position_start", "position_stop", "position_special")


def read_patching(ds: xr.Dataset, series: int) -> list[str]:
    """Describe which patches recover most, and how many recover half or more alone."""
    base, source = way(ds)
    one = ds.isel(series=[series])
    gap = np.abs(one["clean_forecast"] - one["corrupted_forecast"]).mean()
    share = one["recovered"]
    measure = ""
    if "metric" in ds.attrs:
        measure = f"in {ds.attrs['metric']} "
    out = summarize(
        one,
        "The clean and the corrupted forecast of {series} are {gap:unit} apart on "
        "average{shared}.",
        "Patches that recover most of the way {measure}from the {base} to the {source} "
        "one: {recovered:largest percent}.",
        "Patches that recover half of it or more alone: {half:count}; that move away by"
        " more than a tenth: {away:count}.",
        effect="recovered",
        noun="patches",
        labels=_cell_labels,
        gap=gap,
        shared=path_word(ds) and f", both{path_word(ds)}",
        measure=measure,
        base=base,
        source=source,
        half=share >= _HALF,
        away=share < -0.1,
    )
    cells = ("component", "position")
    recovered = find_estimate(ds, "recovered", *cells)
    for at in recovered.named(1) if recovered else ():
        subject = f"{patch_cell(ds, at)}: of"
        out += describe_nulls(ds, "recovered", *cells, at=at, subject=subject)
    return out


def _cell_labels(ds: xr.Dataset) -> list[str]:
    """Name all pairs of a component and a group of positions."""
    count = ds.sizes["component"] * ds.sizes["position"]
    return [patch_cell(ds, flat) for flat in range(count)]


def patch_cell(ds: xr.Dataset, flat: int) -> str:
    """Return a component and a group of positions in words.

    ``flat`` is an index into (component, position), flattened.
    """
    component, position = divmod(flat, ds.sizes["position"])
    sites = find_positions(ds)
    # sites are sorted by depth, and order has the component of each
    index = int(np.flatnonzero(sites.order == component)[0])
    label = sites.labels[index]
    if sites.kind[index] == "stream":
        label = f"the stream {label}"
    moment = when(ds, position)
    if not moment:
        return label
    article = "the " if moment.endswith(" token") else ""
    return f"{label}, {article}{moment}"


def patch_cells(ds: xr.Dataset, *variables: str) -> pd.DataFrame:
    """Return a table of variables with the steps that their positions cover.

    There is a row for each component, group of positions and series.
    """
    steps = frame(ds.reset_coords(list(_POSITION)), *_POSITION)
    return frame(ds, *variables).merge(steps, on="position")


@figure("activation_patching", "Share of the clean forecast that each patch recovers.")
def patching_map(
    ds: xr.Dataset, *, value: str | None = None, series: str | int = 0
) -> go.Figure:
    """Draw the component × time map of what patching does.

    The clean and the corrupted series stand above it, on the same time axis.

    Args:
        ds: result of kind "activation_patching" or "attribution_patching".
        value: "recovered" or "effect"; of attribution patching also "first_order" or
            "error". If None "recovered", of attribution patching "first_order".
        series: id of the series, or its place counted from 0.

    Returns:
        Panels on one time axis: both series and their forecasts in data units, and a
        component × position map, with special tokens beside it. The map has shares, or
        with "effect" data units. Where all positions were patched at once, one panel by
        component.

    Example:
        >>> ds = probes.attribution_patching(run, corrupted, exact=False)
        >>> viz.patching_map(ds).layout.meta["title"]
        'Attribution patching of chronos-nano on co2: estimated share recovered'
    """
    kind = str(ds.attrs["kind"])
    available = [
        name
        for name in WORDS
        if name in ds
        and not (kind == "activation_patching" and name in ("first_order", "error"))
    ]
    if kind == "attribution_patching":
        # the estimate comes first, and what it is an estimate of last
        available.sort(key=lambda name: name == "recovered")
    variable = value
    if value is None:
        variable = available[0]
    if variable not in available:
        raise unknown_name("value", variable, available)
    pair = Contrast.of(ds, series)
    sites = find_positions(ds)
    values = array(ds, variable, "component", "position", series=pair.view.index)[
        sites.order
    ]
    # the other values are shares, without a unit
    unit = pair.view.unit if variable == "effect" else ""
    noise = _noise(ds, variable, sites, unit)
    base, source = way(ds)
    word = name_value(ds, variable)
    title = f"{KINDS[kind]} of {name_model(ds)} on {pair.view.id}: {word}"
    if variable == "effect":
        title = f"{title} of the forecast"
    about = f"activations of the {source} run patched into the {base} run"
    # where all positions are patched at once there is no time axis to draw a map on
    if ds.attrs.get("positions") == "all":
        about = f"{about}, all positions at once"
        dots = draw_variable(
            ds, variable, series=pair.view.index, title=title, about=about
        )
        if f"{variable}_nulls" in ds:
            nulls = ds[f"{variable}_nulls"]
            dots.add_vrect(
                float(nulls.min()),
                float(nulls.max()),
                fillcolor=PALE,
                layer="below",
                annotation_text="draws",
            )
        return dots
    canvas, remark = _draw_maps(ds, sites, values, variable, pair, noise)
    scale = ""
    if variable in ("recovered", "first_order"):
        scale = f"0: the {base} forecast, 1: the {source}"
    differ = pair.differ
    if differ.all():
        shading = f"the contexts differ at all {len(differ)} steps"
    else:
        shading = (
            f"shaded: where the contexts differ ({int(differ.sum())} of"
            f" {len(differ)} steps)"
        )
    return canvas.finalize(
        title,
        f"{sites.what()}: {about}",
        scale,
        shading,
        null_remark(ds, variable),
        remark,
    )


def _noise(
    ds: xr.Dataset, value: str, sites: Sites, unit: str
) -> EffectEstimate | None:
    """Read the test of a value against noise, (site, position), sites by depth."""
    noise = find_estimate(ds, value, "component", "position", unit=unit)
    if noise is None:
        by_component = find_estimate(ds, value, "component", unit=unit)
        if by_component is None:
            return None
        # All positions of a component were tested together, so each gets its test: the
        # index is (component, position) and repeats a component along its row.
        components = np.arange(ds.sizes["component"])[:, None]
        noise = by_component.at(np.repeat(components, ds.sizes["position"], axis=1))
    # the range is over several series, and the map shows one of them
    return noise.at(sites.order).without_range


def _draw_maps(
    ds: xr.Dataset,
    sites: Sites,
    values: np.ndarray,
    value: str,
    pair: Contrast,
    noise: EffectEstimate | None,
) -> tuple[Sheet, str]:
    """Draw the series over a heat map per variate; return a remark on colours too."""
    axes = [
        (lane, token_axis(ds.isel(position=lane), "position")) for lane in _lanes(ds)
    ]
    height = max(len(sites.names) * int(np.clip(480 / len(sites.names), 8, 32)), 130)
    has_special = any(len(axis.aside) for _, axis in axes)
    # None leaves a cell of the sheet empty: a second column has the special tokens of
    # maps, and nothing beside the series
    of_series: list[Any] = [{}, None] if has_special else [{}]
    of_maps: list[Any] = [{}, {}] if has_special else [{}]
    room: Style = {"row_gap": _GAP, "column_gap": 0.1, "above": 14, "min_width": 420}
    heights = [_SERIES_HEIGHT, *(height for _ in axes)]
    widths = [0.9, 0.1] if has_special else [1.0]
    canvas = sheet(heights, widths, specs=[of_series, *(of_maps for _ in axes)], **room)
    view = pair.view
    top = canvas.panel(1, 1)
    pair.draw(top)
    top.y(view.title)
    edges = [float(view.past[0]) - 0.5, float(view.future[-1]) + 0.5]
    labels = [plain(item) for item in sites.labels]
    word = "component"
    if set(sites.kind) == {"stream"}:
        word = "residual stream"
    for row, (lane, axis) in enumerate(axes, start=2):
        cells, owner = axis.cells()
        edges += cells.tolist()
        # column of the sheet, cells on its horizontal axis, and the token of each cell
        maps: list[tuple[int, Any, np.ndarray]] = (
            [(1, view.time.at(cells), owner)] if len(owner) else []
        )
        maps += [(2, axis.special_labels(), axis.aside)] if len(axis.aside) else []
        for column, x, tokens in maps:
            panel = canvas.panel(row, column)
            # the token -1 is a gap; it picks the last position, which np.where() hides
            positions = np.array(lane)[tokens]
            texts = [axis.words(int(token)) if token >= 0 else "" for token in tokens]
            panel.cells(
                np.where(tokens >= 0, values[:, positions], np.nan),
                x,
                np.arange(len(labels)),
                f"%{{text}}<br>{plain(name_value(ds, value))} %{{z:.3g}}",
                noise=None if noise is None else noise.at(np.s_[:, positions]),
                text=[[f"{label}, {text}" for text in texts] for label in labels],
                xgap=0,
                ygap=1 if len(labels) <= 40 else 0,
            )
            panel.y(autorange="reversed", showline=False, **sites.ticks())
            panel.separators(sites.breaks)
        canvas.panel(row, 1).y(f"{word} (variate {row - 1})" if len(axes) > 1 else word)
        if has_special:
            canvas.panel(row, 2).y(showticklabels=False, ticks="")
    canvas.fig.update_xaxes(
        range=[view.time.scalar(edge) for edge in (min(edges), max(edges))],
        matches="x",
        col=1,
    )
    # the other axes match "x", which is the axis of the series; it cannot match itself
    top.x(matches=None, showticklabels=False)
    canvas.panel(1 + len(axes), 1).x(view.time.title)
    # a share of the figure's height: the colour bar stands beside the maps alone
    length = max(canvas.plot_height - _SERIES_HEIGHT - _GAP, _BAR) / canvas.plot_height
    word = name_value(ds, value)
    canvas.colours(_colours(values, value, word, view.unit, length))
    clipped = (
        value != "effect" and float(np.nanmax(np.abs(values), initial=0.0)) > _MAX_SHARE
    )
    return canvas, f"colours end at ±{_MAX_SHARE:g}" if clipped else ""


def _colours(
    values: np.ndarray, value: str, word: str, unit: str, length: float
) -> dict[str, Any]:
    """Return the colour scale of the maps, with a bar of ``length``, a share of 1.

    Shares have colours around 0, sizes of effects have colours from 0 up.
    """
    bar: Style = {"len": length, "y": 0, "yanchor": "bottom"}
    if value == "effect":
        title = f"{word} ({unit or 'data units'})"
        return colour_scale(title, values, low=0.0, **bar)
    # Shares are divided by the distance of both forecasts, and are huge where it is
    # small. A limit on the scale keeps the other shares apart.
    limit = min(
        float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0, _MAX_SHARE
    )
    return colour_scale(word, high=limit, diverging=True, **bar)


def name_value(ds: xr.Dataset, value: str) -> str:
    """Name a value; the share recovered is that of a metric, where one was given."""
    if value == "recovered" and "metric" in ds.attrs:
        return f"share of {ds.attrs['metric']} recovered"
    return WORDS[value]


def _lanes(ds: xr.Dataset) -> list[list[int]]:
    """Return positions as lists, in each of which no step is covered twice.

    There is one list, or one for each variate where variates share a sequence.
    """
    # variates of one sequence cover the same steps one after the other, so a token that
    # starts before the last one ends belongs to the next variate
    lanes: list[list[int]] = [[]]
    end = -np.inf
    for i, (start, stop, special) in enumerate(
        zip(*(ds[name].values for name in _POSITION), strict=True)
    ):
        if not special:
            if start < end:
                lanes.append([])
            end = stop
        lanes[-1].append(i)
    return lanes


@panels("activation_patching")
def _panels(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for i in forecast_series(ds, MAX_DRAWN):
        table = patch_cells(ds.isel(series=[i]), "recovered", "effect")
        label = names(ds, "series")[i]
        text = read_patching(ds, i)
        yield FigurePanel(patching_map(ds, series=i), table, text, series=label)


def read_estimate(ds: xr.Dataset, series: int) -> list[str]:
    """Describe where the estimated share is largest, and how far estimates are off."""
    one = ds.isel(series=[series])
    error = None
    if "recovered" in one:
        error = np.abs(one["first_order"] - one["recovered"])
    return summarize(
        one,
        "Largest estimates, as shares of the way{first_order:basis}: "
        "{first_order:largest signed}.",
        "On {series} an estimate differs from the share that patching recovers by "
        "{error:mean} on average, most at {error:highest}.",
        labels=_cell_labels,
        error=error,
    )


def read_agreement(ds: xr.Dataset) -> list[str]:
    """State how far estimates are from what patching recovers, over all series."""
    error = abs(ds["first_order"] - ds["recovered"]).mean("series")
    return summarize(
        ds,
        "On average over all series and patches an estimate differs from the share that"
        " patching recovers by {error:mean}; most, on average over series, at"
        " {error:highest}. Their rank correlation is {rank_correlation}.",
        labels=_cell_labels,
        error=error,
    )


@panels("attribution_patching")
def _attribution(ds: xr.Dataset) -> Iterator[FigurePanel]:
    variables = [name for name in ("first_order", "recovered", "error") if name in ds]
    if "recovered" in variables:
        table = patch_cells(ds, *variables)
        text = read_agreement(ds)
        yield FigurePanel(draw_variable(ds, "first_order"), table, text)
    for i in forecast_series(ds, MAX_DRAWN):
        table = patch_cells(ds.isel(series=[i]), *variables)
        text = read_estimate(ds, i)
        label = names(ds, "series")[i]
        yield FigurePanel(
            patching_map(ds, value="first_order", series=i), table, text, series=label
        )


# patching_map() is registered again, for results of a second kind
figure(
    "attribution_patching",
    "Gradient estimates, place by place.",
    options={"value": "first_order"},
)(patching_map)


def way(ds: xr.Dataset) -> tuple[str, str]:
    """Return the run that is patched (share 0) and the run patched from (share 1).

    These are "corrupted" and "clean", or the reverse.
    """
    if ds.attrs.get("direction") == "noise":
        return ("clean", "corrupted")
    return ("corrupted", "clean")


@dataclass(frozen=True)
class Contrast:
    """One series with its clean and its corrupted context, and both forecasts.

    Attributes:
        view: the series with its clean context.
        corrupted: context of the corrupted run, (time,).
        forecasts: the clean and the corrupted one, (step,).
        shared_path: the run whose earlier outputs both decoders read, in words, ""
            where each reads its own; see :func:`path_word`.
    """

    view: SeriesWindow
    corrupted: np.ndarray
    forecasts: tuple[np.ndarray, ...]
    shared_path: str

    @classmethod
    def of(cls, ds: xr.Dataset, series: str | int) -> Contrast:
        """Read one series from a result, without steps before its first value."""
        check(
            ds,
            str(ds.attrs.get("kind")),
            "context",
            "corrupted_context",
            "clean_forecast",
            "corrupted_forecast",
        )
        view = series_window(ds, series, ds.sizes["time"])
        forecasts = tuple(
            array(ds, f"{name}_forecast", "step", series=view.index)
            for name in ("clean", "corrupted")
        )
        return cls(
            view,
            # the view has left out the padding of a shorter series
            array(ds, "corrupted_context", "time", series=view.index)[
                -len(view.past) :
            ],
            forecasts,
            path_word(ds),
        )

    @property
    def differ(self) -> np.ndarray:
        """Context steps where the two differ, (time,)."""
        clean = self.view.context
        size = np.nanmax(np.abs(clean), initial=0.0)
        # Relative to the largest value alone: values near 0 carry its rounding. 1e-9 is
        # above the rounding of float64, and below any change that a float32 model sees.
        result: np.ndarray = ~np.isclose(
            clean, self.corrupted, rtol=0, atol=1e-9 * size, equal_nan=True
        )
        return result

    def draw(self, panel: Panel) -> None:
        """Draw both series with their forecasts.

        The steps where the contexts differ are shaded, unless they differ everywhere.
        """
        view = self.view
        differ = self.differ
        shade: Style = {
            "yref": "y domain",
            "layer": "below",
            "line_width": 0,
            "fillcolor": mixed(VERMILION, 0.1),
        }
        # shading of the whole panel would mark nothing
        runs = [] if differ.all() else _runs(differ)
        for first, last in runs:
            bounds = [
                view.time.scalar(view.past[step] + off)
                for step, off in ((first, -0.5), (last, 0.5))
            ]
            panel.shape("rect", bounds, (0, 1), **shade)
        steps = view.time.at(np.concatenate([view.past, view.future]))
        # the clean series is drawn last, so the other shows only where it differs
        for name, colour, context, forecast in (
            ("corrupted", VERMILION, self.corrupted, self.forecasts[1]),
            ("clean", BLUE, view.context, self.forecasts[0]),
        ):
            values = np.concatenate([context, forecast])
            text = (
                f"{name}, and its"
                f" forecast{'' if name in self.shared_path else self.shared_path}"
            )
            panel.line(steps, values, text, view.hover(name), colour=colour)
        mark_start(panel, view.time)


def path_word(ds: xr.Dataset) -> str:
    """Return whose path the decoders of both runs read.

    An example is " on the corrupted path"; it is "" where each has its own.
    """
    if "path" in ds.attrs:
        return f" on the {ds.attrs['path']} path"
    return ""


def when(ds: xr.Dataset, position: int) -> str:
    """Return the steps of a group of tokens in words.

    It is "" where all positions were patched at once.
    """
    if ds.attrs.get("positions") == "all":
        return ""
    word = str(ds["position_special"].values[position])
    if word:
        return f"{word} token"
    first = int(ds["position_start"].values[position])
    last = int(ds["position_stop"].values[position]) - 1
    text = f"step {first}" if first >= last else f"steps {first} to {last}"
    # a true minus, as all numbers of figures and sentences have
    return text.replace("-", "−")


def _runs(flags: np.ndarray, gap: int = 2) -> list[tuple[int, int]]:
    """Return the first and the last index of every run of True.

    Runs are joined where their ends are at most ``gap`` steps apart.
    """
    positions = np.flatnonzero(flags)
    parts = np.split(positions, np.flatnonzero(np.diff(positions) > gap) + 1)
    return [(int(part[0]), int(part[-1])) for part in parts if len(part)]
