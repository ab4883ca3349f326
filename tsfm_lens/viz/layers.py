"""Measures that follow the depth of the model: entropy of the lens distributions, gain of every layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.viz.panels import fitted_range, medians
from tsfm_lens.viz.select import array, check, layer_name, model_of, names, positions, shown
from tsfm_lens.viz.theme import CATEGORICAL, GREY, INK, PALE, dress, plain

__all__ = ["layer_entropy", "layer_gain"]

_MEASURES = {
    "entropy": ("entropy", "nats", "Entropy of the next value's distribution", "; low = sure of the value"),
    "n_peaks": ("number of peaks", "count", "Peaks of the next value's distribution", ""),
    "effective_vocabulary": ("effective vocabulary", "tokens", "Effective vocabulary", ""),
}
_COLOURED = 5  # up to so many series get a colour and a name of their own


def layer_entropy(ds: xr.Dataset, *, measure: str = "entropy", layers: Sequence[str | int] | None = None) -> go.Figure:
    """How uncertain each layer is: a thin line per series (mean over steps) and their median.

    Args:
        ds: of kind "logit_lens" with readout "token".
        measure: "entropy" (nats), "n_peaks" or "effective_vocabulary".
        layers: labels to draw, all unless given.

    Returns:
        One trace per series, then, for two series and more, "median over series". Under "entropy" a
        dotted line marks the entropy of a uniform distribution, where it is near enough.

    Raises:
        InputError: ``ds`` is of another kind or readout.
        UnknownNameError: no such measure or layer.
    """
    check(ds, "logit_lens")
    if measure not in _MEASURES:
        raise unknown_name("measure", measure, _MEASURES)
    if measure not in ds:
        raise InputError(
            f"this logit_lens Dataset has no {measure!r}: readout {ds.attrs.get('readout')!r} gives no "
            "token distribution. lens_forecast draws it."
        )
    chosen = positions(ds, "layer", layers)
    values = array(ds, measure, "layer", "series", "step")[chosen].mean(axis=-1)
    labels = [layer_name(names(ds, "layer")[i]) for i in chosen]
    word, unit, title, meaning = _MEASURES[measure]
    fig = go.Figure()
    _series_lines(fig, labels, values, names(ds, "series"), f"{word} %{{y:.3g}} {unit}")
    if measure == "entropy" and "bin" in ds.sizes:
        _uniform_line(fig, ds.sizes["bin"], float(np.nanmax(values)))
    fig.update_xaxes(title_text="layer whose residual stream is read", type="category")
    fig.update_yaxes(title_text=f"{word} ({unit})", rangemode="tozero")
    few_ticks(fig, labels)
    return dress(
        fig,
        f"{title}, layer by layer, in {model_of(ds)}",
        f"logit lens on {shown(names(ds, 'series'))}; mean over {ds.sizes['step']} forecast steps{meaning}",
        plot_height=300,
        legend_rows=1,
    )


def layer_gain(
    ds: xr.Dataset,
    *,
    metrics: Sequence[str] | None = None,
    layers: Sequence[str | int] | None = None,
) -> go.Figure:
    """By how many percent each layer changes the error of the forecast read from the stream before it.

    Args:
        ds: of kind "layer_gain": ``gain`` (metric, layer, series) in percent, negative = better.
        metrics: labels to draw, all unless given.
        layers: labels to draw; unless given, all that have a gain (the first has none).

    Returns:
        A panel per metric with a thin line per series, the median over series and a line at zero. A few
        far outliers are left beyond the axis, which the subtitle then says.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such metric or layer.
    """
    check(ds, "layer_gain", "gain")
    rows, chosen = positions(ds, "metric", metrics), positions(ds, "layer", layers)
    gain = array(ds, "gain", "metric", "layer", "series")[rows][:, chosen]
    if layers is None:
        some = np.isfinite(gain).any(axis=(0, 2))
        gain, chosen = gain[:, some], [i for i, keep in zip(chosen, some, strict=True) if keep]
    labels = [layer_name(names(ds, "layer")[i]) for i in chosen]
    titles = [names(ds, "metric")[i] for i in rows]
    fig = make_subplots(
        cols=len(rows), subplot_titles=[plain(t) for t in titles], shared_yaxes=True, horizontal_spacing=0.03
    )
    for panel in range(len(rows)):
        _series_lines(
            fig,
            labels,
            gain[panel],
            names(ds, "series"),
            f"{plain(titles[panel])} %{{y:+.3g}} % against the layer before",
            legend=panel == 0,
            row=1,
            col=panel + 1,
        )
        fig.add_hline(y=0, line={"color": GREY, "width": 1}, layer="below", row=1, col=panel + 1)
        fig.update_xaxes(title_text="layer", type="category", row=1, col=panel + 1)
    fig.update_annotations(font={"size": 13})
    beyond = _limit_gain(fig, gain)
    fig.update_yaxes(title_text="change of the error (%)<br>negative = better", row=1, col=1)
    few_ticks(fig, labels, 8)
    against = "the truth" if ds.attrs.get("reference", "truth") == "truth" else "the model's own forecast"
    remark = f"; {beyond} value{'s' if beyond > 1 else ''} beyond the axis" if beyond else ""
    return dress(
        fig,
        f"Gain of each layer of {model_of(ds)}",
        f"change of the error against {against} from layer to layer; negative = better; "
        f"{shown(names(ds, 'series'))}{remark}",
        plot_height=270,
        above=30,
        legend_rows=1,
        min_width=300 + 110 * len(rows),
    )


def _series_lines(
    fig: go.Figure,
    labels: list[str],
    values: np.ndarray,
    ids: list[str],
    measure: str,
    *,
    legend: bool = True,
    **at: int,
) -> None:
    """A thin line per series over ``values`` (layer, series) and the bold median of two and more."""
    several, coloured = len(ids) > 1, len(ids) <= _COLOURED
    for i, name in enumerate(ids):
        colour = CATEGORICAL[i] if coloured else "#A8A8A8"
        fig.add_trace(
            go.Scatter(
                x=labels,
                y=values[:, i],
                mode="lines" if several else "lines+markers",
                name=plain(name) if coloured else "one series each",
                legendgroup=plain(name) if coloured else "series",
                showlegend=legend and (coloured or i == 0),
                line={"color": colour, "width": 1.2 if several else 2},
                text=labels,
                hovertemplate=f"{plain(name)}, %{{text}}<br>{measure}<extra></extra>",
            ),
            **at,
        )
    if several:
        fig.add_trace(
            go.Scatter(
                x=labels,
                y=medians(values),
                mode="lines+markers",
                name="median over series",
                legendgroup="median",
                showlegend=legend,
                line={"color": INK, "width": 3},
                marker={"size": 6},
                text=labels,
                hovertemplate=f"median of {len(ids)} series, %{{text}}<br>{measure}<extra></extra>",
            ),
            **at,
        )


def _uniform_line(fig: go.Figure, bins: int, top: float) -> None:
    """Mark the entropy of complete ignorance, ln(bins), unless it would squeeze the curves."""
    level = float(np.log(bins))
    if level > 2 * top:
        return
    fig.add_hline(
        y=level,
        line={"color": GREY, "width": 1, "dash": "dot"},
        annotation={
            "text": f"uniform over {bins} bins: {level:.3g} nats",
            "font": {"size": 11, "color": GREY},
            "showarrow": False,
            "xanchor": "right",
            "yanchor": "bottom",
        },
    )


def _limit_gain(fig: go.Figure, gain: np.ndarray) -> int:
    """Set the gain axis so that single outliers do not flatten the rest; how many values it leaves out."""
    flat = gain[np.isfinite(gain)]
    if not len(flat):
        return 0
    several = gain.shape[2] > 2
    middle = medians(gain.reshape(-1, gain.shape[2])) if several else np.empty(0)
    core = np.concatenate([np.quantile(flat, [0.05, 0.95]), [0.0], middle])
    bounds, _ = fitted_range(core, flat, reach=0.5)
    fig.update_yaxes(range=bounds)
    return int(((flat < bounds[0]) | (flat > bounds[1])).sum())


def few_ticks(fig: go.Figure, labels: list[str], most: int = 16) -> None:
    """Number the layers on the axis, at most ``most`` of them; hover keeps the words."""
    keep = list(range(0, len(labels), -(-len(labels) // most)))
    words = ["embed." if labels[i] == "embedding" else labels[i].removeprefix("layer ") for i in keep]
    fig.update_xaxes(tickvals=keep, ticktext=words)
    fig.update_xaxes(linecolor=PALE)
