"""Attribution patching's estimates against what patching recovers."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale

from tsfm_lens.viz.contrast import way, when
from tsfm_lens.viz.panels import fitted_range
from tsfm_lens.viz.places import places_in
from tsfm_lens.viz.select import array, draws, model_of, names, series_rows, shown
from tsfm_lens.viz.sheet import Look, blank
from tsfm_lens.viz.theme import GREY, PALE, SEQUENTIAL, number, plain

_MAX_NAMES = 12  # layers that a legend lists; of more, a colour bar has them
# the first layer is dark enough to be seen
_SHADES = ((0.0, "#E8CF5A"), *((0.3 + 0.7 * (at - 0.4) / 0.6, colour) for at, colour in SEQUENTIAL if at >= 0.4))

__all__ = ["attribution_patching_scatter"]


@draws("attribution_patching", needs=("first_order", "recovered"))
def attribution_patching_scatter(ds: xr.Dataset, *, series: str | int | None = None) -> go.Figure:
    """Draw the estimate against what patching recovers, a dot per place, position and series.

    Args:
        ds: of kind "attribution_patching", made with ``exact=True``.
        series: id, or place counted from 0; all unless given.

    Returns:
        Dots coloured by layer, and the line on which the estimate is exact. Few layers are in the legend, many have a
        colour bar. The subtitle has mean absolute error and rank correlation over all cells, as the result has them.

    Example:
        >>> fig = viz.attribution_patching_scatter(results["attribution_patching"])
        >>> fig.layout.meta["title"]
        'Attribution patching of chronos-nano against patching'
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
    if len(layers) <= _MAX_NAMES:
        shades = sample_colorscale([list(stop) for stop in _SHADES], np.linspace(0, 1, len(layers)).tolist())
        for one, shade in zip(layers, shades, strict=True):
            mine = np.flatnonzero(layer == one)
            look: Look = {"colour": shade, "edge": "#FFFFFF", "text": [words[i] for i in mine]}
            panel.dots(x[mine], y[mine], f"layer {one}", hover, **look)
    else:
        look = {"colour": layer, "edge": "#FFFFFF", "marker": {"coloraxis": "coloraxis"}, "text": words}
        panel.dots(x, y, "a place and position", hover, legend=False, **look)
        bar = {"title": {"text": "layer", "side": "right"}}
        ends_of = {"cmin": int(layers[0]), "cmax": int(layers[-1])}
        sheet.colours({"colorscale": _SHADES, **ends_of, "colorbar": bar})
    axis: Look = {"zeroline": True, "zerolinecolor": PALE}
    panel.x("share recovered by patching", range=fitted_range(x, np.empty(0))[0], **axis)
    panel.y("estimated share", range=fitted_range(y, np.empty(0))[0], **axis)
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
