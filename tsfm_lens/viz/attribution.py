"""Contributions of components to the forecast, and to the residual stream.

:func:`attribution_bars` draws mean sizes over the forecast steps,
:func:`attribution_heatmap` every step. All figures and tables show one decomposition of
one series, which ``_select_contributions`` cuts from the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.findings import EffectEstimate, describe_flat, find_estimate
from tsfm_lens.viz.generic import draw_variable, generic_figure
from tsfm_lens.viz.grid import LOG_AXIS
from tsfm_lens.viz.panels import timeline
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    array,
    find_unit,
    forecast_series,
    median_position,
    name_model,
    name_statistic,
    names,
    position,
    series_position,
)
from tsfm_lens.viz.sheet import Style, sheet
from tsfm_lens.viz.summary import summarize, summary
from tsfm_lens.viz.theme import BLUE, PALE, VERMILION, percent, plain
from tsfm_lens.viz.words import after_number, measured, signed

__all__ = ["attribution_bars", "attribution_heatmap"]

# verb, whether the mean is raised, and colour of a component's side
_SIDES = (
    ("raises", True, VERMILION),
    ("lowers", False, BLUE),
)
_SIGNS = {
    "colorscale": [[0.0, BLUE], [0.5, "#FFFFFF"], [1.0, VERMILION]],
    "cmin": -1,
    "cmax": 1,
    "showscale": False,
}
_MAX_GAPS = 48  # steps up to which their signs have gaps between them
_WIDE = 30  # ratio of sizes above which their axis is logarithmic
_METHOD_WORDS = {
    "logit": "logit attribution",
    "probability": "probability attribution",
    "expected_value": "expected-value attribution",
    "lens_difference": "lens differences",
    "linearised": "linearised attribution",
    "integrated": "integrated attribution",
}
# decompositions of token models, whose results have no quantiles
_OF_TOKENS = ("logit", "probability", "expected_value")


def read_attribution(ds: xr.Dataset, decomposition: str, series: int) -> list[str]:
    """Describe the largest components, and the error of the sum of all of them."""
    if flat := describe_flat(ds, series, "components"):
        return flat
    chosen = _select_contributions(ds, decomposition, series)
    ds = with_decompositions(ds)
    index = names(ds, "decomposition").index(decomposition)
    directions = np.where(chosen.mean < 0, "lowers it", "raises it")
    components = [
        f"{name} {direction}"
        for name, direction in zip(chosen.components, directions, strict=True)
    ]
    write = measured(chosen.unit)
    return summarize(
        ds.isel(decomposition=index, series=series),
        "What moves the {subject} of {series} most ({decomposition}, mean size over"
        " {steps}, in {unit}): {sizes:largest}.",
        "All that raise it add {above} on average, all that lower it take {below} off.",
        "Completeness error of the sum: {completeness_error:percent} of the forecast.",
        subject=chosen.subject,
        decomposition=chosen.decomposition,
        steps=chosen.steps,
        unit=chosen.unit,
        sizes=xr.DataArray(chosen.size, {"component": components}, ["component"]),
        above=write(chosen.mean[chosen.mean > 0].sum()),
        # adding 0 makes 0 of -0
        below=write(0.0 - chosen.mean[chosen.mean < 0].sum()),
    )


def with_decompositions(ds: xr.Dataset) -> xr.Dataset:
    """Add the dimension "decomposition" where a result of a single one lacks it."""
    if "decomposition" in ds.dims:
        return ds
    return ds.expand_dims("decomposition")


def _find_unit(ds: xr.Dataset, decomposition: int, series: int) -> str:
    """Return the unit of a decomposition; where it is that of the data, the series'."""
    unit = ""
    if "unit" in ds.coords:
        unit = str(np.atleast_1d(ds["unit"].values)[decomposition])
    if unit in ("", "data units"):
        unit = find_unit(ds, series)
    return unit or "data units"


def contributions_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate all contributions with their units, a row for each step."""
    ds = with_decompositions(ds)
    dims = ("decomposition", "series")
    units = [
        [_find_unit(ds, row, column) for column in range(ds.sizes["series"])]
        for row in range(ds.sizes["decomposition"])
    ]
    ds = ds.drop_vars("unit", errors="ignore").assign(unit=(dims, units))
    return frame(ds, "attribution", "unit")


def _by_component(chosen: _Contributions, values: np.ndarray) -> xr.DataArray:
    """Return values with the names of their components."""
    return xr.DataArray(values, {"component": chosen.components}, ["component"])


def read_attribution_over_series(ds: xr.Dataset, decomposition: str) -> list[str]:
    """Name the largest components over all series, with their test."""
    if ds.sizes["series"] < 2:
        return []
    ds = with_decompositions(ds)
    return summarize(
        ds.isel(decomposition=names(ds, "decomposition").index(decomposition)),
        "Largest components over all series, as shares of all "
        "sizes{size_share:basis}: {size_share:largest percent}.",
        effect="size_share",
        noun="components",
    )


def read_attribution_steps(
    ds: xr.Dataset, decomposition: str, series: int
) -> list[str]:
    """Name the components that vary most over the steps."""
    if flat := describe_flat(ds, series, "components"):
        return flat
    chosen = _select_contributions(ds, decomposition, series)
    if chosen.later.shape[1] < 2:
        return []
    return summarize(
        ds,
        "Largest difference between two steps, in {unit}: {spans:largest}.",
        unit=chosen.unit,
        spans=_by_component(chosen, np.ptp(chosen.later, axis=1)),
    )


def attribution_table(ds: xr.Dataset, decomposition: str, series: int) -> pd.DataFrame:
    """Return a table of contributions, a row per component.

    Columns are the mean size, the signed mean, and the contribution at every step.
    """
    chosen = _select_contributions(ds, decomposition, series)
    table = pd.DataFrame({"component": chosen.components, "unit": chosen.unit})
    table["mean size"] = chosen.size
    table["signed mean"] = chosen.mean
    columns = [f"step {label}" for label in names(ds, "step")]
    steps = pd.DataFrame(chosen.values, columns=columns)
    return pd.concat([table, steps], axis=1)


@figure(
    "attribution",
    "Contributions to the forecast, component by component.",
    table=contributions_table,
)
def attribution_bars(
    ds: xr.Dataset,
    *,
    decomposition: str | None = None,
    series: str | int = 0,
    quantile: float | None = None,
    top: int = 8,
) -> go.Figure:
    """Draw the components of largest mean size, and the sign of each at every step.

    A point is the mean size on the series, and its colour the side to which the
    component moves the mean forecast. A line is the range over all series, of shares of
    all sizes, on the scale of this series. Components stand in the order of the model;
    the last row is the sum of all others.

    Args:
        ds: result of kind "attribution".
        decomposition: label of the decomposition, the first if None.
        series: id of the series, or its place counted from 0.
        quantile: level; the median if None.
        top: number of components that are drawn, the largest ones.

    Returns:
        Two panels with a row for each component. The left one has mean sizes in the
        unit of the decomposition, the right one the sign at every forecast step.

    Example:
        >>> viz.attribution_bars(probes.attribution(run)).layout.meta["title"]
        'Contributions to the forecast of co2 by chronos-nano: logit attribution'
    """
    chosen = _select_contributions(ds, decomposition, series, quantile)
    order = np.argsort(-np.nan_to_num(chosen.size), kind="stable")
    largest = np.sort(order[:top])
    rest = order[top:]
    labels = [plain(chosen.components[i]) for i in largest]
    values = chosen.values[largest]
    if len(rest):
        labels = [*labels, f"{len(rest)} others, summed"]
        values = np.vstack([values, chosen.values[rest].sum(axis=0)])
    later = values[:, chosen.values.shape[1] - chosen.later.shape[1] :]
    sizes = np.abs(later).mean(axis=1)
    means = later.mean(axis=1)
    noise = chosen.noise and chosen.noise.at(largest)
    if noise and len(rest):
        noise = noise.with_another(sizes[-1])
    time = timeline(ds, series_position(ds, series))
    canvas = sheet(
        [max(130, 24 * len(labels))],
        [0.68, 0.32],
        titles=["", "sign at every step"],
        column_gap=0.08,
        min_width=500,
        shared_yaxes=True,
    )
    forest = canvas.panel(1, 1)
    unit = plain(after_number(chosen.unit))
    known = sizes[sizes > 0]
    is_wide = len(known) > 0 and known.max() > _WIDE * known.min()
    scale: Style = {"rangemode": "tozero"}
    how = ""
    if is_wide:
        scale = {**LOG_AXIS, "dtick": "D2"}
        how = ", log"
    else:
        # a logarithmic axis has no 0 that a band could begin at
        forest.floor(noise, signed=False, across=True)
    for verb, is_raising, colour in _SIDES:
        mask = (means >= 0) == is_raising
        forest.dots(
            sizes[mask],
            np.array(labels)[mask],
            f"{verb} the {chosen.subject}",
            f"%{{y}}<br>mean size %{{x:.4g}} {unit}<br>mean %{{customdata}} {unit}",
            colour=colour,
            size=9,
            across=True,
            noise=noise and noise.at(mask),
            customdata=[signed(value) for value in means[mask]],
        )
    strip = canvas.panel(1, 2)
    strip.cells(
        np.sign(values),
        time.at(np.array([int(step) for step in names(ds, "step")])),
        labels,
        f"%{{y}}, {time.hover}<br>moves it by %{{text:.4g}} {unit}",
        text=values,
        xgap=1 if values.shape[1] <= _MAX_GAPS else 0,
        ygap=4,
    )
    # a line between two layers
    layer_of = chosen.layers[largest]
    edges = np.flatnonzero(np.diff(layer_of)) + 0.5
    for panel in (forest, strip):
        panel.separators([*edges, len(largest) - 0.5] if len(rest) else list(edges))
    canvas.fig.update_layout(coloraxis=_SIGNS)
    forest.x(
        f"mean size{how} ({chosen.unit})",
        showgrid=True,
        gridcolor=PALE,
        **scale,
    )
    strip.x("" if time.stamps is not None else "forecast step", nticks=4)
    canvas.y(
        type="category",
        categoryorder="array",
        categoryarray=labels,
        range=[len(labels) - 0.5, -0.5],
        ticks="",
        showline=False,
        dtick=1,
    )
    ranges = ""
    if noise and noise.spread:
        ranges = f"lines: range of its share over {ds.sizes['series']} series"
    return canvas.finalize(
        f"Contributions to the forecast of {chosen.series} by {name_model(ds)}:"
        f" {chosen.decomposition}",
        f"mean over {chosen.steps}",
        chosen.note,
        ranges,
    )


@figure(
    "attribution",
    "Contributions to the forecast, step by step.",
    table=contributions_table,
)
def attribution_heatmap(
    ds: xr.Dataset,
    *,
    decomposition: str | None = None,
    series: str | int = 0,
    quantile: float | None = None,
    top: int = 40,
) -> go.Figure:
    """Draw the component × forecast step map of contributions.

    Args:
        ds: result of kind "attribution".
        decomposition: label of the decomposition, the first if None.
        series: id of the series, or its place counted from 0.
        quantile: level; the median if None.
        top: number of components that are drawn, the largest ones.

    Returns:
        One map, component × forecast step, of signed contributions in the unit of the
        decomposition.

    Example:
        >>> fig = viz.attribution_heatmap(probes.attribution(run), top=5)
        >>> fig.data[0].z.shape  # 5 components × 12 steps
        (5, 12)
    """
    chosen = _select_contributions(ds, decomposition, series, quantile)
    size = np.nan_to_num(chosen.size)
    # the largest components, in the order of the result
    keep = np.sort(np.argsort(-size)[:top])
    drawn = xr.Dataset(
        {"contribution": (("component", "step"), chosen.values[keep])},
        # as text, since numbers would make lines of a few components
        {"component": np.array(chosen.components)[keep], "step": names(ds, "step")},
        ds.attrs,
    )
    drawn["contribution"].attrs["units"] = chosen.unit
    drawn["step"].attrs["long_name"] = "forecast step"
    fewer = ""
    if len(keep) < len(size):
        fewer = f"the {len(keep)} largest of {len(size)} components"
    return draw_variable(
        drawn,
        "contribution",
        title=f"Contributions to the forecast of {chosen.series} by {name_model(ds)},"
        f" by step: {chosen.decomposition}",
        remarks=[chosen.note, fewer],
    )


class _Contributions(NamedTuple):
    """Contributions to the forecast of one series, by one decomposition.

    Attributes:
        values: (component, step).
        layers: layer of each component, (component,).
        decomposition: its name in words.
        subject: what the components move.
        note: part of a subtitle, on the quantile and the error of the sum.
        noise: the mean sizes with their range over series, noise floor and test, if
            known.
        later: values at the steps that means are over: all, or all but the first.
        mean, size: mean and mean absolute value over these steps, (component,).
        steps: these steps in words.
    """

    components: list[str]
    layers: np.ndarray
    values: np.ndarray
    series: str
    decomposition: str
    subject: str
    unit: str
    note: str
    noise: EffectEstimate | None
    later: np.ndarray
    mean: np.ndarray
    size: np.ndarray
    steps: str


def _select_contributions(
    ds: xr.Dataset,
    decomposition: str | None,
    series: str | int,
    quantile: float | None = None,
) -> _Contributions:
    """Return an attribution's one series, decomposition and quantile.

    Layers as a whole are left out: they are sums of the other components.
    """
    ds = with_decompositions(ds)
    at = series_position(ds, series)
    if decomposition is None:
        decomposition_index = 0
    else:
        decomposition_index = position(ds, "decomposition", decomposition)
    label = names(ds, "decomposition")[decomposition_index]
    selected = ds.isel(decomposition=decomposition_index, series=at)
    unit = _find_unit(ds, decomposition_index, at)
    note = []
    noise = None
    if "size_share_floor" in selected:
        size = array(selected, "mean_absolute", "component")
        # the floor is of shares of all sizes, and is turned into one of sizes
        floor = float(selected["size_share_floor"]) * float(size.sum())
        effect = find_estimate(
            ds, "size_share", "component", decomposition=decomposition_index
        )
        if effect is None:
            significant = np.ones(len(size), dtype=bool)
        else:
            significant = effect.significant
        low = high = size
        # shares of other series on the scale of this one
        if effect is not None:
            low = np.fmin(effect.low * size.sum(), size)
            high = np.fmax(effect.high * size.sum(), size)
        noise = EffectEstimate(
            size,
            low,
            high,
            (size > floor).astype(int),
            significant,
            floor,
            floor,
            unit,
        )
    if "quantile" in ds.dims:
        levels = np.asarray(ds["quantile"].values, dtype=float)
        if quantile is None:
            quantile_index = median_position(levels)
        else:
            quantile_index = int(np.argmin(np.abs(levels - quantile)))
        if quantile is not None and abs(levels[quantile_index] - quantile) > 1e-6:
            raise unknown_name("quantile", quantile, [f"{v:g}" for v in levels])
        selected = selected.isel(quantile=quantile_index)
        is_median = abs(levels[quantile_index] - 0.5) < 1e-6
        if label in _OF_TOKENS:
            # these split a single number for each step, which belongs to no quantile
            pass
        elif is_median:
            note.append(f"of the {name_statistic(ds)}")
        else:
            # the noise is known for the median alone
            noise = None
            note.append(f"of the {levels[quantile_index]:g} quantile")
    if "completeness_error" in ds:
        error = float(
            ds["completeness_error"].isel(decomposition=decomposition_index, series=at)
        )
        note.append(f"completeness error {percent(error)}")
    values = array(selected, "attribution", "component", "step")
    components = names(ds, "component")
    if "kind" in ds.coords:
        is_part = ds["kind"].values.astype(str) != "layer"
    else:
        is_part = np.zeros(len(components), dtype=bool)
    if is_part.any():
        values = values[is_part]
        noise = noise and noise.at(is_part)
        components = [components[i] for i in np.flatnonzero(is_part)]
    layer_of = np.zeros(len(components))
    if "layer" in ds.coords:
        layer_of = ds["layer"].values
        if is_part.any():
            layer_of = layer_of[is_part]
    subject = "forecast"
    if label in ("logit", "probability"):
        subject = label
    series = names(ds, "series")[at]
    method = _METHOD_WORDS.get(label, label)
    first = int(ds.attrs.get("first_step", 0))
    later = values[:, first:]
    count = later.shape[1]
    steps = f"{count} forecast steps" if count > 1 else "1 forecast step"
    if first:
        steps = f"{steps} (all but the first)"
    return _Contributions(
        components,
        layer_of,
        values,
        series,
        method,
        subject,
        unit,
        "; ".join(note),
        noise,
        later,
        mean=later.mean(axis=1),
        size=np.abs(later).mean(axis=1),
        steps=steps,
    )


@panels("attribution")
def _attribution(ds: xr.Dataset) -> Iterator[FigurePanel]:
    ds = with_decompositions(ds)
    decompositions = names(ds, "decomposition")
    main = decompositions[0]
    # the first decomposition of several series, and the others of the first series
    pairs = [(main, i) for i in forecast_series(ds, MAX_DRAWN)]
    pairs += [(other, 0) for other in decompositions if other != main]
    for decomposition, i in pairs:
        table = attribution_table(ds, decomposition, i)
        text = read_attribution(ds, decomposition, i)
        text += read_attribution_over_series(ds, main) if decomposition == main else []
        label = names(ds, "series")[i]
        yield FigurePanel(
            attribution_bars(ds, decomposition=decomposition, series=i),
            table,
            text,
            series=label,
        )
        if decomposition == main:
            steps = read_attribution_steps(ds, main, i)
            yield FigurePanel(
                attribution_heatmap(ds, decomposition=main, series=i),
                table,
                steps,
                series=label,
            )


generic_figure(
    "stream_shares",
    "share",
    "Share of the forecast that each component writes to the residual stream.",
    table=("size", "share"),
    sentences=summary(
        "Contributions to the forecast, by size: {kinds:each percent}.",
        kinds=lambda ds: ds["share"].mean("series").groupby("kind").sum(),
    ),
)
