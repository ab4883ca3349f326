"""Logits of every value after each layer, less the mean of the values drawn.

:func:`lens_logit_map` draws them; probabilities are in :mod:`tsfm_lens.viz.logit_lens`.
A bin is a token that stands for a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.logit_lens import central_range, visible_rows
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import series_window
from tsfm_lens.viz.select import array, name_model, positions
from tsfm_lens.viz.sheet import Style
from tsfm_lens.viz.theme import BLACK, number, plain
from tsfm_lens.viz.words import layer_names

__all__ = ["lens_logit_map"]

_ROWS = 64  # of values in a map, at most


@figure(
    "logit_lens",
    "Logits of values after each layer.",
    variables=("logit",),
    probe_options={"logits": True},
    needs="tokens",
    instead="lens_forecast",
)
def lens_logit_map(
    ds: xr.Dataset,
    *,
    series: str | int = 0,
    layers: Sequence[str | int] | None = None,
    value_range: tuple[float, float] | None = None,
) -> go.Figure:
    """Draw the logit of every value at every forecast step, a panel per layer.

    At each layer and step, the mean over the values drawn is subtracted. These are the
    values within ``value_range`` (in data units; the series and the central 98 % of the
    last layer's forecast if None), averaged over neighbours to at most 64 rows.

    Args:
        ds: result of kind "logit_lens".
        series: id of the series, or its place counted from 0.
        layers: labels or numbers of the layers, all if None.
        value_range: lowest and highest value, in data units; what the data need if
            None.

    Returns:
        A value × forecast step map of logits for each layer. Values are in data units;
        the title of a map has the range of its colours.

    Example:
        >>> logits = probes.logit_lens(run, logits=True)
        >>> fig = viz.lens_logit_map(logits, layers=[-1, 2])
        >>> [panel.text.partition("<br>")[0] for panel in fig.layout.annotations]
        ['embedding', 'layer 2']
    """
    indices = positions(ds, "layer", layers)
    view = series_window(ds, series, ds.sizes["step"])
    centres = array(ds, "value", "bin", series=view.index)
    order = np.argsort(centres)
    logits = array(ds, "logit", "layer", "step", "bin", series=view.index)[..., order]
    centres = centres[order]
    # Softmax of the last layer, up to a factor. Unless the largest logit is subtracted,
    # exp could overflow.
    weights = np.exp(logits[-1] - logits[-1].max(axis=-1, keepdims=True))
    bounds = value_range or central_range(centres, weights, view.observations)
    # visible_rows sums over the bins of a row, so sums of ones count them
    ones = np.ones((1, 1, len(centres)))
    edges, sums, _ = visible_rows(centres, ones, bounds, _ROWS)
    bins_per_row = sums[0, 0].astype(int)
    first = int(np.searchsorted(centres, edges[0]))
    stops = first + np.cumsum(bins_per_row)
    # up to the last drawn bin: reduceat would add all bins above to the last row
    row_sums = np.add.reduceat(logits[..., : stops[-1]], stops - bins_per_row, axis=-1)
    means = row_sums / bins_per_row
    # softmax ignores a shift of all logits, so their mean level says nothing
    means -= means.mean(axis=-1, keepdims=True)
    colour_limits = [float(np.nanmax(np.abs(means[i]))) or 1.0 for i in indices]
    labels = layer_names(ds, indices)
    titles = [
        (label, f"± {number(limit)}")
        for label, limit in zip(labels, colour_limits, strict=True)
    ]
    grid = panel_grid(titles, row_height=150)
    x = view.time.at(view.future)
    for panel, i, limit, label in zip(
        grid, indices, colour_limits, labels, strict=True
    ):
        panel.cells(
            # one colour bar serves all panels, each in shares of its own limit
            (means[i].T / limit).astype(np.float32),
            x,
            edges,
            f"{plain(label)}, {view.time.hover}<br>logit %{{customdata:.3g}} of a value"
            f" near %{{y:.4g}} {plain(view.unit)}",
            customdata=means[i].T.astype(np.float32),
            xgap=0,
            ygap=0,
        )
        if view.has_truth:
            panel.line(
                x,
                view.truth,
                "observed",
                view.hover("observed"),
                colour=BLACK,
                width=1.4,
                dash="2px,2px",
            )
    grid.y(range=[edges[0], edges[-1]], nticks=5)
    title_axes(grid, view.time.short_title, view.title)
    ticks: Style = {"tickvals": [-1, 0, 1], "ticktext": ["−1", "0", "1"]}
    grid.colours(
        colour_scale("logit / panel's limit", high=1.0, diverging=True, **ticks)
    )
    return grid.finalize(
        f"Lens logits on {view.id}, layer by layer, in {name_model(ds)}",
        "the output head applied to the residual stream after each layer, less the mean"
        " over the values drawn",
        "colours end at the panel's largest absolute value",
        "observed dashed" if view.has_truth else "",
        view.time.remark,
    )
