"""Contributions of components to the forecast, and to the residual stream.

:func:`attribution_bars` draws means over the forecast, :func:`attribution_heatmap`
every step. All figures and tables show one decomposition of one series, which
``_select_shares`` cuts from the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.registry import FigurePanel, figure, panels
from tsfm_lens.viz.findings import EffectEstimate, describe_flat, find_estimate
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import fitted_range, timeline
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
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.summary import summarize, summary
from tsfm_lens.viz.theme import (
    BLUE,
    INK,
    PALE,
    VERMILION,
    number,
    percent,
    plain,
)

__all__ = ["attribution_bars", "attribution_heatmap"]

_OTHERS = "#9A9A9A"
_METHOD_WORDS = {
    "logit": "logit attribution",
    "probability": "probability attribution",
    "expected_value": "expected-value attribution",
    "lens_difference": "lens differences",
    "linearised": "linearised attribution",
    "integrated": "integrated attribution",
}


_OF_TOKENS = ("logit", "probability", "expected_value")


def read_attribution(ds: xr.Dataset, decomposition: str, series: int) -> list[str]:
    """Describe the components of largest size, and whether the sum is complete."""
    if flat := describe_flat(ds, series, "components"):
        return flat
    shares = _select_shares(ds, decomposition, series)
    ds = with_decompositions(ds)
    index = names(ds, "decomposition").index(decomposition)
    return summarize(
        ds.isel(decomposition=index, series=series),
        "Largest contributions on {series} ({decomposition}, unit {unit}, mean size "
        "over {steps}): {sizes:largest}.",
        "Positive means sum to {above:signed}, negative ones to {below}.",
        "Completeness error of the sum: {completeness_error:percent} of the forecast.",
        decomposition=shares.decomposition,
        unit=shares.unit,
        steps=shares.steps,
        sizes=_by_component(shares, shares.size),
        above=shares.mean[shares.mean > 0].sum(),
        # adding 0 takes the sign off a zero
        below=shares.mean[shares.mean < 0].sum() + 0.0,
    )


def with_decompositions(ds: xr.Dataset) -> xr.Dataset:
    """Give the attribution by one decomposition the axis that several have."""
    if "decomposition" in ds.dims:
        return ds
    return ds.expand_dims("decomposition")


def _by_component(shares: _Shares, values: np.ndarray) -> xr.DataArray:
    return xr.DataArray(values, {"component": shares.components}, ["component"])


def read_attribution_over_series(ds: xr.Dataset, decomposition: str) -> list[str]:
    """Name the components of largest size over all series.

    Further sentences say on how many series they act, and for what they are
    significant.
    """
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
    shares = _select_shares(ds, decomposition, series)
    return summarize(
        ds,
        "Largest difference between two steps, in {unit}: {spans:largest}.",
        unit=shares.unit,
        spans=_by_component(shares, np.ptp(shares.later, axis=1)),
    )


def attribution_table(ds: xr.Dataset, decomposition: str, series: int) -> pd.DataFrame:
    """Tabulate contributions, a row per component.

    Columns are the mean size, the signed mean, and the contribution at every step.
    """
    shares = _select_shares(ds, decomposition, series)
    table = pd.DataFrame({"component": shares.components, "unit": shares.unit})
    table["mean size"] = shares.size
    table["signed mean"] = shares.mean
    columns = [f"step {label}" for label in names(ds, "step")]
    steps = pd.DataFrame(shares.values, columns=columns)
    return pd.concat([table, steps], axis=1)


@figure("attribution", "Contributions to the forecast, component by component.")
def attribution_bars(
    ds: xr.Dataset,
    *,
    decomposition: str | None = None,
    series: str | int = 0,
    quantile: float | None = None,
    top: int = 20,
) -> go.Figure:
    """Draw the components of largest mean size, largest first.

    Bars are signed means; circles stand at the mean sizes.
    """
    shares = _select_shares(ds, decomposition, series, quantile)
    values = shares.mean
    size = shares.size
    order = np.argsort(-np.nan_to_num(size), kind="stable")
    largest = order[:top]
    rest = order[top:]
    labels = [plain(shares.components[i]) for i in largest]
    lengths = values[largest]
    colours = [VERMILION if v >= 0 else BLUE for v in lengths]
    canvas = blank(max(110, 20 * (len(largest) + bool(len(rest)))), 400)
    panel = canvas.panel()
    hover = f"%{{y}}<br>moves it by %{{x:+.4g}} {plain(shares.unit)}"
    panel.floor(shares.noise, across=True)
    noise = shares.noise and shares.noise.at(largest)
    if len(rest):
        labels = [*labels, f"{len(rest)} others, summed"]
        lengths = np.append(lengths, values[rest].sum())
        colours = [*colours, _OTHERS]
        noise = noise and noise.with_another(lengths[-1])
    panel.bars(labels, lengths, "", hover, colour=colours, across=True, noise=noise)
    limits = np.where(values[largest] < 0, -size[largest], size[largest])
    panel.dots(
        limits,
        labels[: len(largest)],
        "mean size",
        "%{y}<br>mean size %{x:.4g}",
        colour=INK,
        symbol="circle-open",
    )
    # one bar may dwarf all others, which are still to be read
    remaining = lengths
    if len(lengths) > 2:
        remaining = np.delete(lengths, np.nanargmax(np.abs(lengths)))
    lengths = np.append(lengths, limits)
    bounds, is_cut = fitted_range(np.append(remaining, 0.0), lengths, reach=3.0)
    panel.x(range=bounds)
    for label, value in zip(labels, values[largest], strict=False):
        if not bounds[0] <= value <= bounds[1]:
            end, side = (bounds[1], "right") if value > 0 else (bounds[0], "left")
            panel.note(
                f"<b>{number(value)}</b>", end, label, xanchor=side, bgcolor="#FFFFFF"
            )
    panel.vline(0)
    panel.y("component", autorange="reversed", ticks="", showline=False, dtick=1)
    panel.x(f"contribution ({shares.unit})", showgrid=True, gridcolor=PALE)
    return canvas.finalize(
        f"Contributions to the forecast of {shares.series} by {name_model(ds)}:"
        f" {shares.decomposition}",
        f"mean over {shares.steps}",
        shares.note,
        "values beyond the axis are cut off" if is_cut else "",
    )


@figure("attribution", "Contributions to the forecast, step by step.")
def attribution_heatmap(
    ds: xr.Dataset,
    *,
    decomposition: str | None = None,
    series: str | int = 0,
    quantile: float | None = None,
    top: int = 40,
) -> go.Figure:
    """Draw the component × forecast step map of contributions."""
    shares = _select_shares(ds, decomposition, series, quantile)
    time = timeline(ds, series_position(ds, series))
    size = np.nan_to_num(shares.size)
    keep = np.sort(np.argsort(-size)[:top])
    z = shares.values[keep]
    canvas = blank(max(140, 17 * len(keep)), 480)
    panel = canvas.panel()
    labels = [plain(shares.components[i]) for i in keep]
    hover = f"%{{y}}, {time.hover}<br>moves it by %{{z:+.4g}} {plain(shares.unit)}"
    panel.cells(
        z,
        time.at(np.array([int(v) for v in names(ds, "step")])),
        labels,
        hover,
        xgap=0,
        ygap=0,
    )
    panel.y(
        "component",
        autorange="reversed",
        ticks="",
        showline=False,
        dtick=1,
        tickfont_size=11,
    )
    panel.x("" if time.stamps is not None else "forecast step")
    canvas.colours(
        colour_scale(f"contribution ({shares.unit})", z, diverging=True, root=True)
    )
    title = (
        f"Contributions to the forecast of {shares.series} by {name_model(ds)}, by"
        f" step: {shares.decomposition}"
    )
    fewer = ""
    if len(keep) < len(size):
        fewer = f"the {len(keep)} largest of {len(size)} components"
    return canvas.finalize(title, shares.note, fewer)


class _Shares(NamedTuple):
    """Attribution of one decomposition to one series.

    ``values`` are (component, step); ``later`` are those of the steps that means are
    over.
    """

    components: list[str]
    values: np.ndarray
    series: str
    decomposition: str
    unit: str
    note: str
    noise: EffectEstimate | None
    later: np.ndarray
    mean: np.ndarray
    size: np.ndarray
    steps: str


def _select_shares(
    ds: xr.Dataset,
    decomposition: str | None,
    series: str | int,
    quantile: float | None = None,
) -> _Shares:
    """Cut an attribution to one series, decomposition and quantile.

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
    unit = ""
    if "unit" in ds.coords:
        unit = str(np.atleast_1d(ds["unit"].values)[decomposition_index])
    data_unit = find_unit(ds, at)
    if unit in ("", "data units") and data_unit:
        unit = data_unit
    else:
        unit = unit or "data units"
    note = []
    noise = None
    if "size_share_floor" in selected:
        mean, size = (
            array(selected, name, "component")
            for name in ("mean_attribution", "mean_absolute")
        )
        floor = float(selected["size_share_floor"]) * float(size.sum())
        effect = find_estimate(
            ds, "size_share", "component", decomposition=decomposition_index
        )
        if effect is None:
            significant = np.ones(len(mean), dtype=bool)
        else:
            significant = effect.significant
        noise = EffectEstimate(
            mean,
            mean,
            mean,
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
            # these split one number a step, which no quantile names
            pass
        elif is_median:
            note.append(f"of the {name_statistic(ds)}")
        else:
            # only the median's noise is known
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
    series = names(ds, "series")[at]
    method = _METHOD_WORDS.get(label, label)
    first = int(ds.attrs.get("first_step", 0))
    later = values[:, first:]
    steps = f"{later.shape[1]} forecast steps"
    if first:
        steps = f"{steps} (all but the first)"
    return _Shares(
        components,
        values,
        series,
        method,
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
    pairs = [(main, i) for i in forecast_series(ds, MAX_DRAWN)]
    for decomposition, i in [
        *pairs,
        *((other, 0) for other in decompositions if other != main),
    ]:
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
