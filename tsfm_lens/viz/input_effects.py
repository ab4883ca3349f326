"""Effects of the input over many items: a dot per series."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.viz.findings import finding
from tsfm_lens.viz.input_attribution import method_words
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import segment_words
from tsfm_lens.viz.select import array, model_of, names, shown
from tsfm_lens.viz.sheet import Look, blank
from tsfm_lens.viz.summary import summary
from tsfm_lens.viz.theme import DIVERGING, GREY, PALE, plain

__all__ = ["input_beeswarm"]

_ROW, _DOT, _BINS = (
    46,
    7,
    60,
)  # pixels of a row and a dot; places along the axis within which dots stand in line


@figure(
    "input_effects",
    "Effect of each segment, a dot for each series.",
    table=("effect", "size", "value"),
    sentences=summary(
        "Largest effects of segments on forecasts{size:basis}: {size:largest MASE}.",
        effect="size",
        noun="segments",
    ),
)
def input_beeswarm(ds: xr.Dataset, *, top: int = 12) -> go.Figure:
    """Draw a dot per series for each segment: how far it moves the forecast, and how high its values are."""
    labels = segment_words(ds)
    effect, value = (
        array(ds, name, "segment", "series") for name in ("effect", "value")
    )
    noise = finding(ds, "size", "segment", unit="MASE")
    mean = array(ds, "size_size", "segment")
    order = np.argsort(-np.nan_to_num(mean, nan=-1.0), kind="stable")[:top]
    canvas = blank(max(150, _ROW * len(order)), 420)
    panel, ids = canvas.panel(), names(ds, "series")
    finite = effect[order][np.isfinite(effect[order])]
    span = float(np.ptp(finite)) if len(finite) else 1.0
    reach = (
        float(np.nanquantile(np.abs(value), 0.95)) if np.isfinite(value).any() else 1.0
    )
    panel.upright(0.0, colour=GREY)
    for place, row in enumerate(order):
        pale = noise is not None and bool(noise.pale[row])
        y = place + _swarm(effect[row], span)
        for has_value in (True, False):
            here = np.flatnonzero(np.isfinite(value[row]) == has_value)
            words = [
                f"{plain(labels[row])}, {plain(ids[i])}<br>moves the forecast by {effect[row, i]:+.3g} MASE"
                + f"<br>values {value[row, i]:+.3g} standard deviations from their mean"
                * has_value
                for i in here
            ]
            colour: Look = (
                {"color": value[row, here], "coloraxis": "coloraxis"}
                if has_value
                else {"color": GREY}
            )
            look: Look = {
                "marker": {**colour, "line": {"color": GREY, "width": 0.6}},
                "customdata": words,
            }
            symbol = "circle-open" if pale else "circle"
            if len(here):
                panel.dots(
                    effect[row, here],
                    y[here],
                    "",
                    "%{customdata}",
                    size=_DOT,
                    symbol=symbol,
                    **look,
                )
    if noise is not None:
        canvas.noisy(noise, "hollow" * bool(noise.pale[order].any()))
    panel.y(
        tickvals=list(range(len(order))), ticktext=[plain(labels[row]) for row in order]
    )
    panel.y(range=[len(order) - 0.4, -0.6], ticks="", showline=False)
    panel.x("moves the forecast by (MASE)", nticks=7)
    scale = colour_scale(
        "value, standard deviations\nfrom the mean of its context",
        high=reach or 1.0,
        diverging=True,
    )
    # a white dot would look hollow
    shades = [
        (share, PALE if shade == "#FFFFFF" else shade) for share, shade in DIVERGING
    ]
    canvas.colours({**scale, "colorscale": shades})
    fewer = (
        f"the {len(order)} largest of {len(labels)} segments"
        if len(order) < len(labels)
        else ""
    )
    return canvas.dress(
        f"Input effects on the forecasts of {model_of(ds)}",
        f"{method_words(ds)}, mean over steps",
        shown(ids),
        fewer,
    )


def _swarm(values: np.ndarray, span: float) -> np.ndarray:
    """Return offsets of dots from the middle of their row, so that those near one another stand in line."""
    bins = np.round(np.nan_to_num(values) / (span or 1.0) * _BINS)
    offsets = np.zeros(len(values))
    for each in np.unique(bins):
        here = np.flatnonzero(bins == each)
        turn = np.arange(len(here))
        offsets[here] = np.where(turn % 2, -1, 1) * ((turn + 1) // 2) * _DOT / _ROW
    return np.clip(offsets, -0.42, 0.42)
