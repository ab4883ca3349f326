"""Attribution patching: gradient estimates of patching."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale

from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.contrast import way, when
from tsfm_lens.viz.needs import GRADIENTS
from tsfm_lens.viz.panels import fitted_range
from tsfm_lens.viz.patching import patch_cell, patch_cells, patching_map
from tsfm_lens.viz.places import places_in
from tsfm_lens.viz.select import array, forecast_series, model_of, names, series_rows, shown
from tsfm_lens.viz.sheet import Look, blank
from tsfm_lens.viz.standing import Standing
from tsfm_lens.viz.theme import GREY, PALE, SEQUENTIAL, number, plain
from tsfm_lens.viz.words import listed, num, signed

__all__ = ["attribution_patching_scatter"]
_MAX_SERIES = 3  # series with figures of their own
_MAX_NAMES = 3  # places in a sentence
_MAX_LAYERS = 12  # layers that a legend lists; of more, a colour bar has them
# the first layer is dark enough to be seen
_SHADES = ((0.0, "#E8CF5A"), *((0.3 + 0.7 * (at - 0.4) / 0.6, colour) for at, colour in SEQUENTIAL if at >= 0.4))


ATTRIBUTION_PATCHING = measurement(
    "attribution_patching",
    theme="Causes",
    title="Attribution patching",
    summary="attribution patching, with its error",
    description="The same to first order, from one gradient: an estimate for all places at once, held against patching "
    "itself where that was done.",
    source="Nanda 2023; Syed et al. 2023",
    needs=GRADIENTS,
)


def read_attribution_patching(ds: xr.Dataset) -> list[str]:
    """State whether the estimate can stand in for patching."""
    estimate, exact = (array(ds, name, "component", "position", "series") for name in ("first_order", "recovered"))
    error = np.abs(estimate - exact)
    both = [Standing(ds, name, "component", "position").leader() for name in ("first_order", "recovered")]
    first, other = (patch_cell(ds, place or 0) for place in both)
    if None in both:
        same = "No single place leads in both, so that they cannot be compared by it."
    else:
        apart = f"The estimate finds most at {first}, patching at {other}."
        same = f"Both find most at {first}." if both[0] == both[1] else apart
    return [
        f"The estimate misses the share that patching recovers by {num(error.mean())} on average and by up to "
        f"{num(error.mean(-1).max())} at a place. Its rank correlation with patching is "
        f"{num(float(ds.attrs['rank_correlation']))}.",
        same,
    ]


def read_estimate(ds: xr.Dataset, series: int) -> list[str]:
    """Describe where the estimated share is largest."""
    estimate = array(ds, "first_order", "component", "position", series=series)
    places = Standing(ds, "first_order", "component", "position").named(_MAX_NAMES)
    name = names(ds, "series")[series]
    if not places:
        return [f"No estimate for {name} stands out of the noise."]
    most = [f"{patch_cell(ds, flat)} ({signed(estimate.flat[flat])})" for flat in places]
    return [f"The largest estimates for {name}, as shares of the way, are at {listed(most)}."]


@ATTRIBUTION_PATCHING.figure(
    "Gradient estimates of patching against the exact values.", variables=("first_order", "recovered")
)
def attribution_patching_scatter(ds: xr.Dataset, *, series: str | int | None = None) -> go.Figure:
    """Draw the estimate against what patching recovers, a dot per place, position and series.

    Args:
        ds: of kind "attribution_patching", made with ``exact=True``.
        series: id, or place counted from 0; all unless given.

    Returns:
        Dots coloured by layer, and the line on which the estimate is exact.
    """
    ids, rows, places = names(ds, "series"), series_rows(ds, series), places_in(ds)
    estimate, exact = (
        array(ds, name, "component", "position", "series")[places.order][..., rows]
        for name in ("first_order", "recovered")
    )
    moments = [when(ds, col) for col in range(ds.sizes["position"])]
    words = [
        plain(", ".join(part for part in (label, time, ids[row] if len(rows) > 1 else "") if part))
        for label in places.labels
        for time in moments
        for row in rows
    ]
    sheet = blank(360)
    panel = sheet.panel()
    x, y = exact.ravel(), estimate.ravel()
    ends = [float(np.nanmin([x, y])), float(np.nanmax([x, y]))]
    panel.line(ends, ends, "estimate = exact", colour=GREY, width=1, dash="dash")
    layer, hover = np.repeat(places.layer, estimate[0].size), "%{text}<br>estimate %{y:.3g}, exact %{x:.3g}"
    layers = np.unique(places.layer)
    if len(layers) <= _MAX_LAYERS:
        shades = sample_colorscale([list(stop) for stop in _SHADES], np.linspace(0, 1, len(layers)).tolist())
        for one, shade in zip(layers, shades, strict=True):
            mine = np.flatnonzero(layer == one)
            look: Look = {"colour": shade, "edge": "#FFFFFF", "text": [words[i] for i in mine]}
            panel.dots(x[mine], y[mine], f"layer {one}", hover, **look)
    else:
        look = {"colour": layer, "edge": "#FFFFFF", "marker": {"coloraxis": "coloraxis"}, "text": words}
        panel.dots(x, y, "a place and position", hover, legend=False, **look)
        bar = {"title": {"text": "layer", "side": "right"}}
        sheet.colours({"colorscale": _SHADES, "cmin": int(layers[0]), "cmax": int(layers[-1]), "colorbar": bar})
    for axis, title, values in ((panel.x, "share recovered by patching", x), (panel.y, "estimated share", y)):
        axis(title, range=fitted_range(values, np.empty(0))[0], zeroline=True, zerolinecolor=PALE)
    quality = [
        f"{word} {number(float(ds.attrs[name]))}"
        for name, word in (("mean_absolute_error", "mean absolute error"), ("rank_correlation", "rank correlation"))
        if name in ds.attrs
    ]
    base, source = way(ds)
    return sheet.dress(
        f"Attribution patching of {model_of(ds)} against patching",
        ", ".join(quality) or "each dot a place, position and series",
        f"{places.what()}, {shown([ids[row] for row in rows])}",
        f"1 is the {source} forecast, 0 the {base}",
    )


@ATTRIBUTION_PATCHING.panels
def _attribution(ds: xr.Dataset) -> Iterator[ReportPanel]:
    variables = [name for name in ("first_order", "recovered", "error") if name in ds]
    if "recovered" in variables:
        words = read_attribution_patching(ds)
        yield ReportPanel(attribution_patching_scatter(ds), patch_cells(ds, *variables), words)
    for i in forecast_series(ds, _MAX_SERIES):
        table = patch_cells(ds.isel(series=[i]), *variables)
        yield ReportPanel(patching_map(ds, value="first_order", series=i), table, read_estimate(ds, i))


ATTRIBUTION_PATCHING.figure("Gradient estimates, place by place.", options={"value": "first_order"})(patching_map)
