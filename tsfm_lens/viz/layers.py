"""Measures that follow the depth of the model: entropy of the lens distributions, gain of every layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.viz.noise import Finding, finding
from tsfm_lens.viz.panels import fitted_range, medians
from tsfm_lens.viz.select import array, draws, layer_names, model_of, names, positions, shown
from tsfm_lens.viz.sheet import Look, Panel, Sheet, blank, sheet
from tsfm_lens.viz.theme import CATEGORICAL, GREY, INK, PALE, mixed, plain

__all__ = ["layer_entropy", "layer_gain"]

_MEASURES = {
    "entropy": ("entropy", "nats", "Entropy of the next value's distribution", "low = sure of the value"),
    "n_peaks": ("number of peaks", "count", "Peaks of the next value's distribution", ""),
    "effective_vocabulary": ("effective vocabulary", "tokens", "Effective vocabulary", ""),
}
_MAX_COLOURS = 5  # up to so many series get a colour and a name of their own


@draws("logit_lens")
def layer_entropy(ds: xr.Dataset, *, measure: str = "entropy", layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw how uncertain each layer is: a thin line per series (mean over steps) and their median.

    Args:
        ds: of kind "logit_lens" with readout "token".
        measure: "entropy" (nats), "n_peaks" or "effective_vocabulary".
        layers: labels to draw, all unless given.

    Returns:
        One trace per series, then, for two series and more, "median over series". Under "entropy" a
        dotted line marks the entropy of a uniform distribution, where it is near enough.

    Example:
        >>> fig = viz.layer_entropy(results["logit_lens"])
        >>> fig.layout.meta["title"]
        "Entropy of the next value's distribution, layer by layer, in chronos-nano"
    """
    if measure not in _MEASURES:
        raise unknown_name("measure", measure, _MEASURES)
    if measure not in ds:
        raise InputError(
            f"this logit_lens Dataset has no {measure!r}: readout {ds.attrs.get('readout')!r} gives no "
            "token distribution. lens_forecast draws it."
        )
    rows = positions(ds, "layer", layers)
    values = array(ds, measure, "layer", "series", "step")[rows].mean(axis=-1)
    word, unit, title, meaning = _MEASURES[measure]
    labels, canvas = layer_names(ds, rows), blank()
    panel = canvas.panel()
    _series_lines(panel, labels, values, names(ds, "series"), f"{word} %{{y:.3g}} {unit}")
    if measure == "entropy" and "bin" in ds.sizes:
        _uniform_line(panel, ds.sizes["bin"], float(np.nanmax(values)))
    panel.x("layer whose residual stream is read", type="category")
    panel.y(f"{word} ({unit})", rangemode="tozero")
    few_ticks(canvas, labels)
    return canvas.dress(
        f"{title}, layer by layer, in {model_of(ds)}",
        f"logit lens on {shown(names(ds, 'series'))}",
        f"mean over {ds.sizes['step']} forecast steps",
        meaning,
    )


@draws("layer_gain", needs=("gain",))
def layer_gain(
    ds: xr.Dataset,
    *,
    metrics: Sequence[str] | None = None,
    layers: Sequence[str | int] | None = None,
) -> go.Figure:
    """Draw by how many percent each layer changes the error of the forecast read from the stream before it.

    Args:
        ds: of kind "layer_gain": ``gain`` (metric, layer, series) in percent, negative = better.
        metrics: labels to draw, all unless given.
        layers: labels to draw; unless given, all that have a gain (the first has none).

    Returns:
        A panel per metric with a thin line per series, the median over series and a line at zero. A few
        far outliers are left beyond the axis, which the subtitle then says.

    Example:
        >>> fig = viz.layer_gain(results["layer_gain"])
        >>> fig.layout.meta["title"]
        'Gain of each layer of chronos-nano'
    """
    rows, columns = positions(ds, "metric", metrics), positions(ds, "layer", layers)
    gain = array(ds, "gain", "metric", "layer", "series")[rows][:, columns]
    if layers is None:
        some = np.isfinite(gain).any(axis=(0, 2))
        gain, columns = gain[:, some], [i for i, keep in zip(columns, some, strict=True) if keep]
    labels, titles, ids = layer_names(ds, columns), [names(ds, "metric")[i] for i in rows], names(ds, "series")
    ends: list[np.ndarray] = []
    canvas = sheet(
        [270], [1] * len(rows), titles=titles, column_gap=0.03, min_width=300 + 110 * len(rows), shared_yaxes=True
    )
    for panel, row, title, values in zip(canvas, rows, titles, gain, strict=True):
        noise = finding(ds, "gain", "layer", metric=row, unit="%")
        noise = noise and noise.at(columns)
        ends += [] if noise is None else [noise.low, noise.high]
        measure = f"{plain(title)} %{{y:+.3g}} % against the layer before"
        panel.level(0, layer="below")
        _series_lines(panel, labels, values, ids, measure, noise)
        panel.x("layer", type="category")
    beyond = _limit_gain(canvas, gain, ends)
    canvas.panel().y("change of the error (%)\nnegative = better")
    few_ticks(canvas, labels, 8)
    against = "the truth" if ds.attrs.get("reference", "truth") == "truth" else "the model's own forecast"
    return canvas.dress(
        f"Gain of each layer of {model_of(ds)}",
        f"change of the error against {against} from layer to layer; negative = better",
        shown(ids),
        f"{beyond} value{'s' if beyond > 1 else ''} beyond the axis" if beyond else "",
    )


def _series_lines(
    panel: Panel,
    labels: list[str],
    values: np.ndarray,
    ids: list[str],
    measure: str,
    noise: Finding | None = None,
) -> None:
    """Draw a thin line per series over ``values`` (layer, series) and the bold median of two and more.

    Where the noise of the layers is known, their mean with its interval instead, hollow where it does not stand out.
    """
    several, coloured = len(ids) > 1, len(ids) <= _MAX_COLOURS
    hover = f"%{{text}}<br>{measure}"
    if noise is not None and noise.spread:
        # under the lines, which it would hide
        panel.band(labels, noise.low, noise.high, mixed(INK, 0.15), "interval of the mean", legend=True)
    for i, name in enumerate(ids):
        panel.line(
            labels,
            values[:, i],
            name if coloured else "one series each",
            f"{plain(name)}, {hover}",
            colour=CATEGORICAL[i] if coloured else "#A8A8A8",
            width=1.2 if several else 2,
            mode="lines" if several else "lines+markers",
            text=labels,
        )
    if noise is not None:
        hover = f"mean of {len(ids)} series, {hover}"
        word, mean = "mean over series", noise.estimate
        panel.line(labels, mean, word, width=3, text=labels, legend=False)
        panel.dots(labels, mean, word, hover, size=8, text=labels, noise=noise.without_interval)
        panel.floor(noise)
    elif several:
        look: Look = {"width": 3, "dots": 6, "text": labels}
        panel.line(labels, medians(values), "median over series", f"median of {len(ids)} series, {hover}", **look)


def _uniform_line(panel: Panel, bins: int, top: float) -> None:
    """Mark the entropy of complete ignorance, ln(bins), unless it would squeeze the curves."""
    level = float(np.log(bins))
    if level <= 2 * top:
        words = f"uniform over {bins} bins: {level:.3g} nats"
        panel.level(level, dash="dot")
        side: Look = {"xanchor": "right", "yanchor": "bottom"}
        panel.note(words, 1, level, xref="domain", colour=GREY, **side)


def _limit_gain(canvas: Sheet, gain: np.ndarray, ends: list[np.ndarray]) -> int:
    """Set the gain axis so that single outliers do not flatten the rest; return how many values it leaves out."""
    flat = gain[np.isfinite(gain)]
    if not len(flat):
        return 0
    several = gain.shape[2] > 2
    middle = medians(gain.reshape(-1, gain.shape[2])) if several else np.empty(0)
    core = np.concatenate([np.quantile(flat, [0.05, 0.95]), [0.0], middle, *ends])
    bounds, _ = fitted_range(core, flat, reach=0.5)
    canvas.y(range=bounds)
    return int(((flat < bounds[0]) | (flat > bounds[1])).sum())


def few_ticks(canvas: Sheet, labels: list[str], most: int = 16) -> None:
    """Label the axis with numbers of layers, at most ``most`` of them; hover keeps the words."""
    keep = list(range(0, len(labels), max(1, -(-len(labels) // most))))
    words = ["embed." if labels[i] == "embedding" else labels[i].removeprefix("layer ") for i in keep]
    canvas.x(tickvals=keep, ticktext=words, linecolor=PALE)
