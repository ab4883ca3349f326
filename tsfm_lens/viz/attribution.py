"""Contributions of components to a forecast: bars for one step or the mean, a map over all steps."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import draws, model_of, names, position, series_position
from tsfm_lens.viz.shares import attribution_shares
from tsfm_lens.viz.sheet import Look, Panel, blank
from tsfm_lens.viz.theme import BLUE, PALE, VERMILION, number, plain
from tsfm_lens.viz.timeline import timeline

__all__ = ["attribution_bars", "attribution_heatmap"]

_OTHERS = "#9A9A9A"
_BEYOND = {"embed": 2.0, "the first step": 1.25}  # so many times larger than all else, these leave the colours


@draws("attribution", needs=("attribution",))
def attribution_bars(
    ds: xr.Dataset,
    *,
    decomposition: str | None = None,
    series: str | int = 0,
    step: int | None = None,
    quantile: float | None = None,
    top: int = 20,
) -> go.Figure:
    """Draw the components that push the forecast most, as signed bars, largest first.

    Args:
        ds: of kind "attribution": ``attribution`` (decomposition, component, series[, quantile], step).
        decomposition: label; the first unless given.
        series: id, or place counted from 0.
        step: forecast step; the mean over steps unless given.
        quantile: level, for patch models; the median unless given.
        top: how many bars. All other components are added up in a grey one.

    Returns:
        Horizontal bars, vermilion for positive and blue for negative contributions, as in the map.

    Example:
        >>> fig = viz.attribution_bars(results["attribution"])
        >>> fig.layout.meta["title"]
        'What moves the forecast of co2 by chronos-nano: logit attribution'
    """
    shares = attribution_shares(ds, decomposition=decomposition, series=series, quantile=quantile)
    values, when = shares.values.mean(axis=1), f"mean over {shares.values.shape[1]} forecast steps"
    if step is not None:
        place = position(ds, "step", step)
        label = timeline(ds, series_position(ds, series)).label(int(names(ds, "step")[place]))
        values, when = shares.values[:, place], f"forecast {label}"
    order = np.argsort(-np.abs(np.nan_to_num(values)))
    most, rest = order[:top], order[top:]
    labels, lengths = [plain(shares.components[i]) for i in most], values[most]
    colours = [VERMILION if v >= 0 else BLUE for v in lengths]
    canvas = blank(max(110, 20 * (len(most) + bool(len(rest)))), 400)
    panel, hover = canvas.panel(), f"%{{y}}<br>moves it by %{{x:+.4g}} {plain(shares.unit)}"
    # of one step or of one series nothing is known beside the value
    noise = shares.noise if step is None else None
    panel.floor(noise, across=True)
    noise = noise and noise.at(most)
    if len(rest):
        labels, lengths = [*labels, f"{len(rest)} others, summed"], np.append(lengths, values[rest].sum())
        colours, noise = [*colours, _OTHERS], noise and noise.with_another(lengths[-1])
    panel.bars(labels, lengths, "", hover, colour=colours, across=True, noise=noise)
    _keep_readable(panel, lengths)
    panel.upright(0)
    panel.y("component", autorange="reversed", ticks="", showline=False, dtick=1)
    panel.x(f"contribution ({shares.unit})", showgrid=True, gridcolor=PALE)
    return canvas.dress(
        f"What moves the forecast of {shares.series} by {model_of(ds)}: {shares.decomposition}", when, shares.note
    )


def _keep_readable(panel: Panel, lengths: np.ndarray, ratio: float = 5.0) -> None:
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
    panel.x(range=[low, high])
    words = f"{lengths[giant]:+.4g}, beyond the axis".replace("-", "−")
    # on a white ground, since the bar may be hatched
    end: Look = {"xanchor": "right" if sign > 0 else "left", "bgcolor": "#FFFFFF", "borderpad": 1}
    panel.note(words, 0.97 * limit * sign, giant, size=11, **end)


@draws("attribution", needs=("attribution",))
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
        ds: of kind "attribution": ``attribution`` (decomposition, component, series[, quantile], step).
        decomposition: label; the first unless given.
        series: id, or place counted from 0.
        quantile: level, for patch models; the median unless given.
        top: at most so many components, those with the largest mean size; they keep the model's order.

    Returns:
        One heat map; the colours are symmetric about 0. They end at the largest contribution, or where the embedding
        or the first step dwarfs all else at the largest of the rest, which the subtitle then says.

    Example:
        >>> fig = viz.attribution_heatmap(results["attribution"])
        >>> fig.layout.meta["title"]
        'What moves the forecast of co2 by chronos-nano, by step: logit attribution'
    """
    shares = attribution_shares(ds, decomposition=decomposition, series=series, quantile=quantile)
    time = timeline(ds, series_position(ds, series))
    size = np.abs(np.nan_to_num(shares.values)).mean(axis=1)
    keep = np.sort(np.argsort(-size)[:top])
    z = shares.values[keep]
    limit, beyond = _colour_end(z, [shares.components[i] == "embed" for i in keep])
    canvas = blank(max(140, 17 * len(keep)), 480)
    panel = canvas.panel()
    panel.cells(
        z,
        time.at(np.array([int(v) for v in names(ds, "step")])),
        [plain(shares.components[i]) for i in keep],
        f"%{{y}}, {time.hover}<br>moves it by %{{z:+.4g}} {plain(shares.unit)}",
        xgap=0,
        ygap=0,
    )
    panel.y("component", autorange="reversed", ticks="", showline=False, dtick=1, tickfont_size=11)
    panel.x("date" if time.stamps is not None else "forecast step")
    canvas.colours(colour_scale(f"contribution ({shares.unit})", high=limit, diverging=True))
    return canvas.dress(
        f"What moves the forecast of {shares.series} by {model_of(ds)}, by step: {shares.decomposition}",
        shares.note,
        f"the {len(keep)} largest of {len(size)} components" if len(keep) < len(size) else "",
        beyond,
    )


def _colour_end(z: np.ndarray, embeds: list[bool]) -> tuple[float, str]:
    """Return where the colours of a (component, step) map end, and what reaches beyond them."""
    size, inside, beyond = np.abs(np.nan_to_num(z)), np.ones(z.shape, dtype=bool), []
    # what is read at the first step has seen nothing of the forecast
    first = (np.arange(z.shape[1]) == 0) & (z.shape[1] > 1)
    rows, columns = np.broadcast_to(np.array(embeds)[:, None], z.shape), np.broadcast_to(first, z.shape)
    core = float(size[~rows & ~columns].max(initial=0.0))
    for (words, times), part, other in zip(_BEYOND.items(), (rows, columns), (columns, rows), strict=True):
        if float(size[part & ~other].max(initial=0.0)) > times * core > 0:
            beyond.append(f"{words} reaches {number(float(size[part & inside].max()))}")
            inside &= ~part
    return float(size[inside].max(initial=0.0)), ", ".join([*beyond, "beyond the colours"]) if beyond else ""
