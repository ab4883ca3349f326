"""Logit lens: the forecast read after every layer, and the gain of each layer.

:func:`logit_map` draws the probabilities of a token model, :func:`lens_forecast` the
forecasts of any model, :func:`layer_errors` their errors. Logits are in
:mod:`tsfm_lens.viz.lens_logits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.findings import describe_flat
from tsfm_lens.viz.forecast import naive_forecast
from tsfm_lens.viz.generic import draw_variable, generic_figure, with_range
from tsfm_lens.viz.grid import LOG_AXIS, panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import (
    SeriesWindow,
    draw_bands,
    fit,
    fitted_range,
    mark_start,
    series_window,
)
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    array,
    find_unit,
    forecast_series,
    median_position,
    name_model,
    name_statistic,
    names,
    positions,
    series_position,
    varying,
)
from tsfm_lens.viz.sheet import Sheet, Style
from tsfm_lens.viz.summary import labelled, summarize
from tsfm_lens.viz.tables import quantile_table
from tsfm_lens.viz.theme import GREY, VERMILION, percent, plain
from tsfm_lens.viz.words import layer_names, layers

__all__ = ["layer_errors", "lens_forecast", "logit_map"]

_ROWS = 48  # of values in a panel, at most
_CELLS = 150_000  # in the whole figure, at most
_LONG = 128  # steps above which a row has two panels at most
FLOOR = 1e-3  # smaller probabilities are drawn as this one
_WIDE = 20  # ratio of errors above which their axis is logarithmic


def read_entropy(ds: xr.Dataset) -> list[str]:
    """Describe at which layers the model becomes certain."""
    entropy = ds["entropy"].mean("step").isel(series=varying(ds))
    middle = entropy.median("series")
    n = entropy.sizes["series"]
    return summarize(
        ds,
        "The entropy of the next value goes from {entropies:ends nats}{over}. That is"
        " an effective number of bins (its exponential) of {bins:ends}.",
        "Layers that change it most: {changes:largest signed nats}.",
        entropies=middle,
        over=f", median over {n} series" if n > 1 else "",
        bins=np.exp(middle),
        changes=entropy.diff("layer"),
    )


def read_logit_map(ds: xr.Dataset, series: int) -> list[str]:
    """State how close each layer's top bin is to the final one, and to the truth."""
    if flat := describe_flat(ds, series, "layers"):
        return flat
    one = ds.isel(series=[series])
    probability = array(one, "probability", "layer", "step", "bin", series=0)
    value = array(one, "value", "bin", series=0)
    mode = labelled(one, value[probability.argmax(axis=-1)], "layer", "step")
    width = np.median(np.diff(np.sort(value))) if len(value) > 1 else 0.0
    # within one bin, as 1.5 lies between the distances of one bin and of two
    agree = (abs(mode - mode[-1]) <= 1.5 * width).mean("step")
    truth = one["truth"][0] if "truth" in one else np.nan
    return summarize(
        one,
        "On {series} the top bin agrees with the final one (± 1 bin) at this share of "
        "steps: {agree:ends percent}. At half of them or more at layers:"
        " {often:which}.",
        "The median distance of the top bin from the truth goes from {error:ends unit};"
        " smallest: {error:lowest unit}.",
        agree=agree,
        often=agree >= 0.5,
        # the median, as a single step that is far off would decide a mean
        error=abs(mode - truth).median("step"),
    )


def read_lens_forecast(ds: xr.Dataset, series: int) -> list[str]:
    """State how far each layer's forecast is from the last one, and from the truth."""
    if flat := describe_flat(ds, series, "layers"):
        return flat
    one = ds.isel(series=[series])
    median_index = median_position(one["quantile"].values)
    median = one["quantile_forecast"].isel(quantile=median_index, series=0)
    truth = one["truth"].isel(series=0) if "truth" in one else np.nan
    error = abs(median - truth).mean("step")
    away = abs(median - median.isel(layer=-1)).mean("step")
    return summarize(
        one,
        "Distance of the {statistic} forecast of {series} read from a layer to the"
        " final one, mean over steps: {away:ends unit}.",
        "Closest to the truth: {error:lowest unit}; the last layer misses it by "
        "{last:unit}.",
        statistic=name_statistic(ds),
        away=away[:-1],
        error=error,
        last=error.isel(layer=-1),
    )


def map_table(fig: go.Figure, ds: xr.Dataset, series: int) -> pd.DataFrame:
    """Tabulate the drawn cells of the logit map that are not as pale as none."""
    parts = []
    # read from the figure, so that the table has the same cells
    for trace in fig.data:
        if trace.type != "heatmap":
            continue
        # (row of values, column of steps)
        mass = np.asarray(trace.customdata, dtype=float)
        edges = np.asarray(trace.y, dtype=float)
        row, column = np.nonzero(mass >= FLOOR)
        # steps that a column averages
        group = int(trace.meta["steps"])
        part = pd.DataFrame(
            {"layer": trace.name, "step": np.array(names(ds, "step"))[column * group]}
        )
        if group > 1:
            part["steps"] = group
        parts.append(
            part.assign(
                value_from=edges[row],
                value_to=edges[row + 1],
                probability=mass[row, column],
            )
        )
    table = pd.concat(parts, ignore_index=True)
    table["unit"] = find_unit(ds, series)
    return table


@figure(
    "logit_lens",
    "Probabilities of values after each layer.",
    variables=("probability",),
    needs="tokens",
    instead="lens_forecast",
)
def logit_map(
    ds: xr.Dataset,
    *,
    series: str | int = 0,
    layers: Sequence[str | int] | None = None,
    value_range: tuple[float, float] | None = None,
) -> go.Figure:
    """Draw the lens probability of values by forecast step, a panel per layer.

    Colours are the logarithm of the probability.

    Args:
        ds: result of kind "logit_lens".
        series: id of the series, or its place counted from 0.
        layers: labels or numbers of the layers, all if None.
        value_range: lowest and highest value, in data units; what the data need if
            None.

    Returns:
        A value × forecast step map of probabilities for each layer. Values are in data
        units.

    Example:
        >>> viz.logit_map(probes.logit_lens(run)).layout.meta["title"]
        'Logit lens on co2: next-value probabilities by layer of chronos-nano'
    """
    indices = positions(ds, "layer", layers)
    view = series_window(ds, series, max(ds.sizes["step"], 12))
    grid, remarks = logit_sheet(ds, view, indices, value_range, _ROWS)
    return grid.finalize(
        f"Logit lens on {view.id}: next-value probabilities by layer of"
        f" {name_model(ds)}",
        *remarks,
    )


def logit_sheet(
    ds: xr.Dataset,
    view: SeriesWindow,
    layers: list[int],
    value_range: tuple[float, float] | None,
    rows: int,
) -> tuple[Sheet, list[str]]:
    """Draw the panels of :func:`logit_map`, and write its subtitle.

    ``layers`` are positions; ``rows`` is the largest number of rows of values.

    Returns:
        The sheet, and the parts of the subtitle.
    """
    probability = array(
        ds.isel(layer=layers), "probability", "layer", "step", "bin", series=view.index
    )
    centres = array(ds, "value", "bin", series=view.index)
    order = np.argsort(centres)
    bounds = value_range or central_range(
        centres[order], probability[-1][:, order], view.observations
    )
    edges, mass, outside = visible_rows(
        centres[order], probability[..., order], bounds, rows
    )
    notes = [
        f"{percent(round(share, 2))} outside" if share >= 0.01 else ""
        for share in outside
    ]
    long = len(view.future) > _LONG
    labels = layer_names(ds, layers)
    # means over groups of steps, where there are too many cells to draw; mass is
    # (layer, step, row)
    group = -(-mass.size // _CELLS)
    starts = np.arange(0, mass.shape[1], group)
    group_sizes = np.diff(np.append(starts, mass.shape[1]))
    mass = np.add.reduceat(mass, starts, axis=1) / group_sizes[:, None]
    if group == 1:
        columns = view.future
    else:
        columns = np.append(view.future[::group], view.future[-1] + 1) - 0.5
    hover = (
        f"{view.time.hover}<br>probability %{{customdata:.2%}} of a value near"
        f" %{{y:.4g}} {plain(view.unit)}"
    )
    grid = panel_grid(
        list(zip(labels, notes, strict=True)), row_height=150, most=2 if long else 5
    )
    for panel, cells, label in zip(grid, mass, labels, strict=True):
        panel.cells(
            np.log10(np.maximum(cells.T, FLOOR)).astype(np.float32),
            view.time.at(columns),
            edges,
            f"{plain(label)}, {hover}",
            customdata=cells.T.astype(np.float32),
            meta={"steps": group},
            name=label,
            xgap=0,
            ygap=0,
        )
        # lines are thinner where many steps share a panel
        weight = 1.0
        if long:
            weight = 0.7
        future = view.time.at(view.future)
        if view.has_truth:
            # a white edge keeps the dashes visible on the map's dark cells
            panel.line(
                future,
                view.truth,
                "edge",
                colour="rgba(255,255,255,0.7)",
                width=2.6 * weight,
                legend=False,
            )
        panel.line(
            view.time.at(view.past),
            view.context,
            "context",
            view.hover("context"),
            width=1.2 * weight,
        )
        if view.has_truth:
            style: Style = {
                "colour": VERMILION,
                "width": 1.3 * weight,
                "dash": "4px,2px",
            }
            panel.line(future, view.truth, "observed", view.hover("observed"), **style)
        mark_start(panel, view.time)
    grid.y(range=[edges[0], edges[-1]], nticks=5)
    title_axes(grid, view.time.short_title, view.title)
    # colours go by powers of ten, of which these are the exponents
    ticks = np.arange(round(np.log10(FLOOR)), 1)
    bar: Style = {
        "tickvals": ticks.tolist(),
        "ticktext": [f"{'≤ ' if t == ticks[0] else ''}{10.0**t:g}" for t in ticks],
    }
    grid.colours(
        colour_scale("probability of the row", low=float(ticks[0]), high=0, **bar)
    )
    width = (edges[-1] - edges[0]) / (len(edges) - 1)
    remarks = [
        (
            f"probability of each row of {width:.3g} {view.unit or 'data units'},"
            " observed dashed"
        ),
        "outside: probability beyond the axis",
        view.time.remark,
        f"a column: the mean of {group} steps" if group > 1 else "",
    ]
    return grid, remarks


def visible_rows(
    centres: np.ndarray, probability: np.ndarray, bounds: tuple[float, float], rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bins within ``bounds``, adjacent ones added up to at most ``rows`` rows.

    ``centres`` (bin,) ascend; ``probability`` is (layer, step, bin). All rows have the
    same number of bins, but the last one may have fewer. Returns the edges of rows, the
    probability of each row (layer, step, row), and by layer the share outside.
    """
    # a bin ends halfway to its neighbours, and at the ends it is symmetric
    middles = (centres[1:] + centres[:-1]) / 2
    if len(centres) > 1:
        limits = (
            1.5 * centres[0] - 0.5 * centres[1],
            1.5 * centres[-1] - 0.5 * centres[-2],
        )
    else:
        limits = (centres[0] - 0.5, centres[0] + 0.5)
    edges = np.concatenate([limits[:1], middles, limits[1:]])
    first = min(int(np.searchsorted(edges[1:], bounds[0])), len(centres) - 1)
    last = max(int(np.searchsorted(edges[:-1], bounds[1])), first + 1)
    # bins of a row; -(-a // b) rounds up
    group = -(-(last - first) // rows)
    starts = np.arange(first, last, group)
    stop = min(starts[-1] + group, len(centres))
    mass = np.add.reduceat(probability[..., :stop], starts, axis=-1)
    outside = np.clip(1 - mass.sum(-1).mean(-1) / probability.sum(-1).mean(-1), 0, 1)
    return np.append(edges[starts], edges[stop]), mass, outside


def central_range(
    centres: np.ndarray, probability: np.ndarray, core: np.ndarray
) -> tuple[float, float]:
    """Return a range that holds a series and the central 98 % of the probability.

    ``probability`` is (step, bin), and its central part is taken at every step. It may
    extend the range of the series, ``core``, by this range on each side at most.
    """
    share = np.cumsum(probability, axis=-1)
    share /= share[:, -1:]
    bounds = [centres[np.argmax(share >= level, axis=-1)] for level in (0.01, 0.99)]
    return fitted_range(core, np.concatenate(bounds), reach=1.0)[0]


@figure("logit_lens", "Forecast read from each layer.")
def lens_forecast(
    ds: xr.Dataset,
    *,
    series: str | int = 0,
    layers: Sequence[str | int] | None = None,
    context_steps: int | None = None,
) -> go.Figure:
    """Draw what each layer would forecast, one fan per layer.

    The output head is applied to the residual stream after the layer.

    Args:
        ds: result of kind "logit_lens".
        series: id of the series, or its place counted from 0.
        layers: labels or numbers of the layers, all if None.
        context_steps: steps of the context that are drawn, a few horizons if None.

    Returns:
        A panel for each layer, in data units by step: the median with its quantile
        bands, the end of the context, and the truth where known.

    Example:
        >>> fig = viz.lens_forecast(probes.logit_lens(run))
        >>> [panel.text for panel in fig.layout.annotations]
        ['embedding', 'layer 0', 'layer 1', 'layer 2']
    """
    view = series_window(ds, series, context_steps)
    rows = positions(ds, "layer", layers)
    grid = panel_grid([(label,) for label in layer_names(ds, rows)], row_height=140)
    values = array(
        ds, "quantile_forecast", "layer", "quantile", "step", series=view.index
    )[rows]
    for panel, value in zip(grid, values, strict=True):
        draw_bands(panel, view, ds["quantile"].values, value)
        view.draw(panel)
    cut_remark = fit(grid, np.append(view.observations, values[-1]), values.ravel())
    grid.y(nticks=5)
    title_axes(grid, view.time.short_title, view.title)
    remarks = [
        "the output head applied to the residual stream after each layer",
        view.remark,
        view.time.remark,
        cut_remark,
    ]
    return grid.finalize(
        f"Forecast of {view.id} read from each layer of {name_model(ds)}", *remarks
    )


def _entropies(ds: xr.Dataset) -> xr.Dataset:
    """Return the entropy by layer, mean over steps: median and range over series."""
    entropy = ds["entropy"].mean("step").assign_attrs(units="nats")
    return with_range(ds, entropy)


draw_entropy = generic_figure(
    "logit_lens",
    "entropy",
    "Entropy of the next value after each layer: median and range over series.",
    prepare=_entropies,
    variables=("entropy",),
    needs="tokens",
    instead="lens_forecast",
)


@panels("logit_lens")
def _panels(ds: xr.Dataset) -> Iterator[FigurePanel]:
    if "probability" not in ds:
        for i in forecast_series(ds, MAX_DRAWN):
            tables = [
                quantile_table(ds, i, layer=layer) for layer in range(ds.sizes["layer"])
            ]
            table = pd.concat(tables, ignore_index=True)
            text = read_lens_forecast(ds, i)
            label = names(ds, "series")[i]
            yield FigurePanel(lens_forecast(ds, series=i), table, text, series=label)
        return
    if "entropy" in ds:
        table = frame(
            ds[["entropy"]].astype(float).mean("step", skipna=False), "entropy"
        )
        yield FigurePanel(draw_entropy(ds), table, read_entropy(ds))
    for i in forecast_series(ds, MAX_DRAWN):
        fig = logit_map(ds, series=i)
        yield FigurePanel(
            fig,
            map_table(fig, ds, i),
            read_logit_map(ds, i),
            series=names(ds, "series")[i],
        )


def read_errors(ds: xr.Dataset, series: int) -> list[str]:
    """State where the error falls, and whether the model beats the naive forecast."""
    if flat := describe_flat(ds, series, "layers"):
        return flat
    one = ds.isel(series=[series])
    error = one["error"].sel(metric="MAE").isel(series=0)
    if _is_against_model(ds):
        return summarize(
            one,
            "On {series} the forecast read after {layer} is still {away:unit} a step"
            " from the final one.",
            layer=layers(ds)[-2],
            away=error[-2],
        )
    change = error.diff("layer")
    label, naive = _naive_error(ds, series)
    comparison = "less than"
    if float(error[-1]) > naive:
        comparison = "more than"
    return summarize(
        one,
        "On {series} the error falls most in {falls:lowest signed unit}.",
        "It rises most in {rises:highest signed unit}.",
        "The model misses by {last:unit} a step, {comparison} the {naive:unit} of the"
        " {label}.",
        "The model misses by {alone:unit} a step.",
        falls=change if bool((change < 0).any()) else None,
        rises=change if bool((change > 0).any()) else None,
        last=error[-1],
        naive=naive,
        alone=error[-1] if np.isnan(naive) else None,
        comparison=comparison,
        label=label,
    )


def read_gain(ds: xr.Dataset) -> list[str]:
    """Name the layers that lower and raise the error most, over all series."""
    if _is_against_model(ds):
        remarks = [
            "Without the values that came later there is no error: distances are from"
            " the model's own forecast. Give a truth, or hold out the last steps."
        ]
    else:
        remarks = []
    return remarks + summarize(
        ds.sel(metric=["MAE"]).isel(metric=0),
        "Change of the error by layers{gain:basis}: {gain:largest signed %}.",
        effect="gain",
        noun="layers",
    )


def _is_against_model(ds: xr.Dataset) -> bool:
    """Test if errors are distances from the model's own forecast."""
    return bool(ds.attrs.get("reference", "truth") == "model")


def _naive_error(ds: xr.Dataset, series: int) -> tuple[str, float]:
    """Return the name and the mean absolute error of the naive forecast of a series.

    The error is over the steps that the errors of layers are over; NaN where the result
    has no truth.
    """
    if "truth" not in ds:
        return "", np.nan
    label, repeated = naive_forecast(ds, series)
    truth = array(ds, "truth", "step", series=series)
    first = int(ds.attrs.get("first_step", 0))
    if not len(repeated) or not np.isfinite(truth[first:]).any():
        return label, np.nan
    return label, float(np.nanmean(np.abs(repeated - truth)[first:]))


@figure("layer_gain", "Error of the forecast read after each layer.")
def layer_errors(ds: xr.Dataset, *, series: str | int = 0) -> go.Figure:
    """Draw the mean absolute error of the forecast read after each layer.

    A dashed line is the error of the naive forecast. Without a truth the distance from
    the model's own forecast is drawn, of all layers but the last, which has none.

    Args:
        ds: result of kind "layer_gain".
        series: id of the series, or its place counted from 0.

    Returns:
        One panel with a point for each layer: the mean absolute error, or the distance,
        in data units.

    Example:
        >>> gain = probes.layer_gain(probes.logit_lens(run))
        >>> viz.layer_errors(gain).layout.meta["title"]
        'Error of the forecast of co2 by chronos-nano, read after each layer'
    """
    index = series_position(ds, series)
    error = ds["error"].sel(metric="MAE", drop=True).isel(series=index, drop=True)
    subject = f"the forecast of {names(ds, 'series')[index]} by {name_model(ds)}"
    title = f"Error of {subject}, read after each layer"
    word = "mean absolute error"
    remark = "the output head applied after each layer; the last is the model's own"
    label, naive = _naive_error(ds, index)
    if _is_against_model(ds):
        error = error[:-1]
        title = f"Distance of {subject} from the final one, read after each layer"
        word = "mean distance"
        remark = "an error needs the values that came later: a truth, or a holdout"
    elif np.isfinite(naive):
        kinds = xr.Variable("forecast", ["forecast read after the layer", label])
        error = xr.concat([error, xr.full_like(error, naive)], kinds)
    error.attrs = {"long_name": word, "units": find_unit(ds, index) or "data units"}
    fig = draw_variable(
        error.to_dataset(name="error"), "error", title=title, remarks=[remark]
    )
    # a logarithmic axis has no place for an error of 0
    lowest = float(error.min())
    if lowest > 0 and float(error.max()) > _WIDE * lowest:
        fig.update_yaxes(**LOG_AXIS, dtick="D2")
    else:
        fig.update_yaxes(rangemode="tozero")
    style = {"mode": "lines", "line": {"color": GREY, "dash": "4px,3px"}}
    return fig.update_traces(style, {"name": label})


@panels("layer_gain")
def _gain_panels(ds: xr.Dataset) -> Iterator[FigurePanel]:
    # a gain is relative to the error before, so there is none if all errors are 0
    if not np.isfinite(ds["gain"].values).any():
        return
    table = frame(ds, "error", "gain").rename(columns={"gain": "gain_percent"})
    for i in forecast_series(ds, MAX_DRAWN):
        sentences = read_errors(ds, i)
        # on the first panel alone, as it is about all series
        if i == 0:
            sentences += read_gain(ds)
        label = names(ds, "series")[i]
        yield FigurePanel(layer_errors(ds, series=i), table, sentences, series=label)
