"""Which component pushes the forecast where: bars for one step or the mean, a map over all steps."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.select import model_of, names, position, series_position
from tsfm_lens.viz.shares import attribution_shares
from tsfm_lens.viz.theme import BLUE, DIVERGING, GREY, PALE, VERMILION, dress, number, plain
from tsfm_lens.viz.timeline import timeline

__all__ = ["attribution_bars", "attribution_heatmap"]


def attribution_bars(
    ds: xr.Dataset,
    *,
    decomposition: str | None = None,
    series: str | int = 0,
    step: int | None = None,
    quantile: float | None = None,
    top: int = 20,
) -> go.Figure:
    """The components that push the forecast most, as signed bars, largest first.

    Args:
        ds: of kind "attribution": ``attribution`` (decomposition, component, series[, quantile], step).
        decomposition: label; the first unless given.
        series: id, or place counted from 0.
        step: forecast step; the mean over steps unless given.
        quantile: level, for patch models; the median unless given.
        top: how many bars. All other components are added up in a grey one.

    Returns:
        Horizontal bars, vermilion for positive and blue for negative contributions, as in the map.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such decomposition, series, step or quantile.
    """
    shares = attribution_shares(ds, decomposition=decomposition, series=series, quantile=quantile)
    time = timeline(ds, series_position(ds, series))
    if step is None:
        values, when = shares.values.mean(axis=1), f"mean over {shares.values.shape[1]} forecast steps"
    else:
        place = position(ds, "step", step)
        values, when = shares.values[:, place], f"forecast {time.label(int(names(ds, 'step')[place]))}"
    order = np.argsort(-np.abs(np.nan_to_num(values)))
    most, rest = order[:top], order[top:]
    labels = [shares.components[i] for i in most] + ([f"{len(rest)} others, summed"] if len(rest) else [])
    lengths = np.append(values[most], values[rest].sum()) if len(rest) else values[most]
    colours = [VERMILION if v >= 0 else BLUE for v in lengths]
    if len(rest):
        colours[-1] = "#9A9A9A"
    fig = go.Figure(
        go.Bar(
            x=lengths,
            y=[plain(v) for v in labels],
            orientation="h",
            marker={"color": colours},
            hovertemplate="%{y}<br>moves it by %{x:+.4g} " + plain(shares.unit) + "<extra></extra>",
        )
    )
    _keep_readable(fig, lengths)
    fig.add_vline(x=0, line={"color": GREY, "width": 1})
    fig.update_yaxes(autorange="reversed", title_text="component", ticks="", showline=False, dtick=1)
    fig.update_xaxes(title_text=plain(f"contribution ({shares.unit})"), showgrid=True, gridcolor=PALE)
    return dress(
        fig,
        f"What moves the forecast of {shares.series} by {model_of(ds)}: {shares.decomposition}",
        f"{when}; {shares.note}",
        plot_height=max(110, 20 * len(labels)),
        min_width=400,
    )


def _keep_readable(fig: go.Figure, lengths: np.ndarray, ratio: float = 5.0) -> None:
    """Let one bar that dwarfs all others run off the axis, with its value written on it."""
    sizes = np.sort(np.abs(lengths[np.isfinite(lengths)]))
    if len(sizes) < 3 or not sizes[-1] > ratio * sizes[-2] > 0:
        return
    limit = 1.4 * sizes[-2]
    giant = int(np.nanargmax(np.abs(lengths)))
    sign = np.sign(lengths[giant])
    others = np.delete(lengths, giant)
    low = -limit if sign < 0 else min(1.15 * float(np.nanmin(others)), 0.0)
    high = limit if sign > 0 else max(1.15 * float(np.nanmax(others)), 0.0)
    fig.update_xaxes(range=[low, high])
    fig.add_annotation(
        x=0.6 * limit * sign,
        y=giant,
        text=f"{lengths[giant]:+.4g}, beyond the axis",
        font={"color": "#FFFFFF", "size": 12},
    )


def attribution_heatmap(
    ds: xr.Dataset,
    *,
    decomposition: str | None = None,
    series: str | int = 0,
    quantile: float | None = None,
    top: int = 40,
) -> go.Figure:
    """Component × forecast step map of contributions.

    Args:
        ds: of kind "attribution": ``attribution`` (decomposition, component, series[, quantile], step).
        decomposition: label; the first unless given.
        series: id, or place counted from 0.
        quantile: level, for patch models; the median unless given.
        top: at most so many components, those with the largest mean size; they keep the model's order.

    Returns:
        One heat map; the colours are symmetric about 0. They end at the largest contribution but the
        embedding's, where that is more than twice as large.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such decomposition, series or quantile.
    """
    shares = attribution_shares(ds, decomposition=decomposition, series=series, quantile=quantile)
    time = timeline(ds, series_position(ds, series))
    size = np.abs(np.nan_to_num(shares.values)).mean(axis=1)
    keep = np.sort(np.argsort(-size)[:top])
    z = shares.values[keep]
    peaks = np.nanmax(np.abs(z), axis=1)
    rest = [p for p, i in zip(peaks, keep, strict=True) if shares.components[i] != "embed"]
    largest, others = float(peaks.max()), float(max(rest, default=0.0))
    clipped = largest > 2 * others > 0
    limit = (others if clipped else largest) or 1.0
    steps = np.array([int(v) for v in names(ds, "step")])
    fig = go.Figure(
        go.Heatmap(
            x=time.at(steps),
            y=[plain(shares.components[i]) for i in keep],
            z=z,
            coloraxis="coloraxis",
            hovertemplate="%{y}, " + time.hover + "<br>moves it by %{z:+.4g} " + plain(shares.unit) + "<extra></extra>",
        )
    )
    fig.update_yaxes(autorange="reversed", title_text="component", ticks="", showline=False, dtick=1)
    fig.update_yaxes(tickfont_size=11)
    fig.update_xaxes(title_text="date" if time.stamps is not None else "forecast step")
    fig.update_layout(
        coloraxis={
            "colorscale": DIVERGING,
            "cmin": -limit,
            "cmax": limit,
            "cmid": 0.0,
            "colorbar": {"title": {"text": plain(f"contribution ({shares.unit})"), "side": "right"}},
        }
    )
    remarks = [shares.note]
    if len(keep) < len(size):
        remarks.append(f"the {len(keep)} largest of {len(size)} components")
    if clipped:
        remarks.append(f"embed reaches {number(largest)}, beyond the colours")
    fig = dress(
        fig,
        f"What moves the forecast of {shares.series} by {model_of(ds)}, by step: {shares.decomposition}",
        "; ".join(remarks),
        plot_height=max(140, 17 * len(keep)),
        min_width=480,
    )
    return fig.update_layout(margin_r=96)
