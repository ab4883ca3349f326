"""Gain of each layer in the accuracy of the forecast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.logit_lens import few_ticks, series_lines
from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.panels import fitted_range, medians
from tsfm_lens.viz.select import array, layer_names, model_of, names, positions, shown
from tsfm_lens.viz.sheet import Sheet, sheet
from tsfm_lens.viz.standing import Standing
from tsfm_lens.viz.theme import plain
from tsfm_lens.viz.words import layers, listed, num, verb

__all__ = ["layer_gain"]

LAYER_GAIN = measurement(
    "layer_gain",
    theme="Activations",
    title="Gain of each layer",
    summary="what each layer gains",
    description="The error of the forecast read after a layer, compared with that read one layer before. Negative is "
    "better.",
    source="tsfm-lens, appendix F",
    paper=("S3-F22",),
)


def read_gain(ds: xr.Dataset) -> list[str]:
    """Name the layers that help and those that hurt beyond the noise, for every metric."""
    words = layers(ds)
    out = []
    for place, metric in enumerate(names(ds, "metric")):
        gain = Standing(ds, "gain", "layer", metric=place)
        if not np.isfinite(gain.estimate).any():
            continue
        lowering, raising = (gain.named(len(words), side) for side in (gain.estimate < 0, gain.estimate > 0))
        parts = []
        first = gain.leader(gain.estimate < 0)
        if first is not None:
            drop = gain.told(first, lambda percent: f"{num(-percent)} %")
            parts.append(f"{words[first]} lowers the error most, by {drop}")
        for places, word in (([] if parts else lowering, "lower"), (raising, "raise")):
            if places:
                what = f"{verb(len(places), word)} {'it' if parts else 'the error'}"
                parts.append(f"{listed([words[i] for i in sorted(places)])} {what}")
        out.append(f"{metric}: {'; '.join(parts) or 'no layer changes the error by more than the noise'}.")
    return out


def gain_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate error and gain in percent, a row per metric, layer and series."""
    dims = ("metric", "layer", "series")
    table = pd.MultiIndex.from_product([names(ds, dim) for dim in dims], names=dims).to_frame(index=False)
    if "error" in ds:
        table["error"] = array(ds, "error", *dims).ravel()
    return table.assign(gain_percent=array(ds, "gain", *dims).ravel())


@LAYER_GAIN.figure("What each layer adds to the accuracy.", variables=("gain",))
def layer_gain(
    ds: xr.Dataset, *, metrics: Sequence[str] | None = None, layers: Sequence[str | int] | None = None
) -> go.Figure:
    """Draw by how many percent each layer changes the error of the forecast read from the stream before it.

    Args:
        ds: of kind "layer_gain": ``gain`` (metric, layer, series) in percent, negative = better.
        metrics: labels to draw, all unless given.
        layers: labels to draw; unless given, all that have a gain (the first has none).

    Returns:
        A panel per metric with a thin line per series, their median and a line at zero. The subtitle counts values
        beyond the axis.
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
        series_lines(panel, labels, values, ids, measure, noise)
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


def _limit_gain(canvas: Sheet, gain: np.ndarray, ends: list[np.ndarray]) -> int:
    """Set the gain axis so that single outliers do not flatten the rest; return how many values it leaves out."""
    flat = gain[np.isfinite(gain)]
    if not len(flat):
        return 0
    middle = medians(gain.reshape(-1, gain.shape[2])) if gain.shape[2] > 2 else np.empty(0)
    core = np.concatenate([np.quantile(flat, [0.05, 0.95]), [0.0], middle, *ends])
    bounds, _ = fitted_range(core, flat, reach=0.5)
    canvas.y(range=bounds)
    return int(((flat < bounds[0]) | (flat > bounds[1])).sum())


@LAYER_GAIN.panels
def _panels(ds: xr.Dataset) -> Iterator[ReportPanel]:
    # where every layer's forecast is exact there is no gain
    if np.isfinite(ds["gain"].values).any():
        yield ReportPanel(layer_gain(ds), gain_table(ds), read_gain(ds))
