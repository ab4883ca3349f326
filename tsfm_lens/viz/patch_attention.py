"""Attention between patches, and the patch that a layer selects."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.attention import sentence_start, weight_colours
from tsfm_lens.viz.grid import panel_grid
from tsfm_lens.viz.panels import draw_bands, fitted_range, scene
from tsfm_lens.viz.select import array, layer_names, model_of, names, position
from tsfm_lens.viz.sheet import Look, blank
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.theme import VERMILION, number, percent, plain
from tsfm_lens.viz.words import count_of, num, verb

__all__ = ["patch_attention_grid", "selected_patch"]
_FEW = 5  # rows that are all numbered
_NARROW = 600  # steps that one column has room for

PATCH_ATTENTION = measurement(
    "patch_attention",
    theme="Activations",
    title="Attention between patches",
    summary="attention between patches, with the stable rank of each head",
    description="The attention of each forecast token over the tokens of the context, head by head.",
    source="tsfm-lens, figure 21",
    paper=("S3-F21",),
)


def read_patches(ds: xr.Dataset) -> list[str]:
    """Describe how many heads have a favourite patch, and where it is."""
    weight, start = (array(ds, name, "layer", "head") for name in ("argmax_weight", "argmax_start"))
    strong = weight > 0.5
    heads = int(strong.sum())
    out = [
        f"{count_of(heads, weight.size, 'heads')} {verb(heads, 'give')} more than half of "
        f"{verb(heads, 'their', 'its')} attention to one token over time."
    ]
    if strong.any():
        first, counts = np.unique(start[strong], return_counts=True)
        most = int(counts.argmax())
        out.append(f"The token from step {num(int(first[most]))} on is that of {int(counts[most])} of them.")
    return out


@PATCH_ATTENTION.figure("Attention matrices of the first layer, head by head.", variables=("attention", "stable_rank"))
def patch_attention_grid(ds: xr.Dataset, *, layer: str | int = 0, zmax: float | None = None) -> go.Figure:
    """Draw every head of a layer as a matrix, forecast tokens downwards and context tokens to the right.

    A vertical line is a head that selects a fixed place of the context, an oblique one a head that moves along.

    Args:
        ds: of kind "patch_attention".
        layer: label; a negative integer counts from the last.
        zmax: weight at which the colours end; the 99.9 % quantile over all layers if None.

    Returns:
        Small multiples on shared axes, the stable rank of W_Q W_Kᵀ in their titles.
    """
    at = position(ds, "layer", layer)
    everything = array(ds, "attention", "layer", "head", "query", "key")
    limit = zmax or float(np.nanquantile(everything, 0.999)) or 1.0
    ranks, heads = array(ds, "stable_rank", "layer", "head")[at], names(ds, "head")
    titles = [(f"head {h}", f"stable rank {number(r)}") for h, r in zip(heads, ranks, strict=True)]
    spans = zip(ds["key_start"].values, ds["key_stop"].values, ds["key_special"].values, strict=True)
    words = [str(word) or f"steps {start} to {stop - 1}" for start, stop, word in spans]
    grid = panel_grid(titles, row_height=130)
    for panel, head, weights in zip(grid, heads, everything[at], strict=True):
        panel.cells(
            weights.astype(np.float32),
            hover=f"head {plain(head)}, forecast token %{{y}}<br>context token %{{x}} %{{text}}<br>weight %{{z:.3g}}",
            text=[words] * ds.sizes["query"] if weights.size <= 20_000 else None,
            xgap=0,
            ygap=0,
        )
    ticks: Look = {"nticks": 5} if ds.sizes["query"] > _FEW else {"dtick": 1}
    grid.y(autorange="reversed", **ticks)
    grid.x(nticks=4)
    # a causal model has queries in its context too
    ahead = "query_start" not in ds.coords or bool((ds["query_start"] >= 0).all())
    for row, col in grid.places:
        if (row + 1, col) not in grid.places:
            grid.panel(row, col).x("context token")
        if col == 1:
            grid.panel(row, col).y("forecast token" if ahead else "query token")
    grid.colours(weight_colours(limit))
    special = [str(word) for word in ds["key_special"].values if str(word)]
    width = int((ds["key_stop"] - ds["key_start"]).max())
    return grid.dress(
        f"{sentence_start(ds)} of {layer_names(ds)[at]} of {model_of(ds)}",
        f"{names(ds, 'series')[0]}, {ds.sizes['step']} steps ahead",
        f"context tokens of {width} step{'s' * (width > 1)}" + (f", then {', '.join(special)}" if special else ""),
        f"darkest: {number(limit)} and more",
    )


@PATCH_ATTENTION.figure(
    "The patch that a head of the last layer selects.", variables=("quantile_forecast", "argmax_start", "argmax_weight")
)
def selected_patch(ds: xr.Dataset, *, layer: str | int = -1, head: int | None = None) -> go.Figure:
    """Draw the forecast over its context, and a dashed line at the patch that a head reads most.

    Args:
        ds: of kind "patch_attention".
        layer: label; a negative integer counts from the last.
        head: number; the one with the largest mean weight on one patch if None.

    Returns:
        Context, truth and forecast with its central intervals; the line stands at the first step of the patch.
    """
    at = position(ds, "layer", layer)
    weights = array(ds, "argmax_weight", "layer", "head")[at]
    which = int(np.argmax(weights)) if head is None else position(ds, "head", head)
    view = scene(ds, 0, ds.sizes["time"])
    values = array(ds, "quantile_forecast", "quantile", "step", series=0)
    sheet = blank(260, min_width=430 if len(view.past) + len(view.future) <= _NARROW else 640)
    panel = sheet.panel()
    draw_bands(panel, view, ds["quantile"].values, values)
    view.draw(panel)
    start = int(ds["argmax_start"].values[at, which])
    bounds, _ = fitted_range(np.append(view.observations, values), np.empty(0))
    place, where = f"{layer_names(ds)[at]}, head {names(ds, 'head')[which]}", view.time.at(float(start))
    words = f"{plain(place)} reads most from {plain(view.time.label(start))} on"
    look: Look = {"colour": VERMILION, "width": 1.6, "dash": "6px,3px"}
    panel.line([where, where], list(bounds), f"most read by {place}", words, **look)
    view.title_axes(panel)
    # a patch at the very start does not stand on the axis
    ends = (view.past[0] - 0.02 * len(view.past), view.future[-1] + 0.5)
    panel.x(range=[view.time.scalar(float(end)) for end in ends])
    panel.y(range=bounds)
    return sheet.dress(
        f"Forecast of {view.id} by {model_of(ds)}, and the patch that {place} selects",
        f"{ds.sizes['step']} steps ahead from {view.remark}",
        f"the patch holds {percent(float(weights[which]))} of the weight, mean over forecast tokens",
    )


@PATCH_ATTENTION.panels
def _panels(ds: xr.Dataset) -> Iterator[ReportPanel]:
    table = frame(ds, "stable_rank", "entropy", "argmax_start", "argmax_weight")
    yield ReportPanel(patch_attention_grid(ds, layer=-1), table, read_patches(ds))
    yield ReportPanel(selected_patch(ds), table, [])
