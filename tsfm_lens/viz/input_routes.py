"""Routes of the input through components to the forecast.

:func:`generic_figure` makes the figures, of one item and of many series;
:func:`read_routes` describes the routes of one item.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.core.registry import frame
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.panels import name_segments
from tsfm_lens.viz.summary import summarize, summary

_MAX_NAMES = 3


def read_routes(ds: xr.Dataset) -> list[str]:
    """Return sentences on through which components the most influential segments act.

    A sentence says what the parts sum to.
    """
    ds = ds.assign_coords(segment=name_segments(ds))
    movement = abs(ds["total"]).mean("step")
    order = np.argsort(-movement.values, kind="stable")[:_MAX_NAMES]
    leading = order[movement.values[order] > float(ds["total_floor"])]
    if not len(leading):
        return ["No segment moves the forecast by more than the noise."]
    # routes within rounding count as 0, so that sums over segments still have a value
    acting = ds["size"].where(ds["size_acts"] > 0).fillna(0.0)
    rest = abs(ds["rest"]).mean("step").sum() / movement.sum()
    return summarize(
        ds.isel(segment=leading),
        "Masking moves the forecast most, on average, at these segments: "
        "{movement:largest unit}.",
        "Most of that goes through: {routes:largest unit}.",
        "Components that carry most over all segments: {carried:largest unit}.",
        "Share of the effect that bypasses attention (negative: attention overshoots;"
        " above 100 %: attention reverses the excess): {no_attention_share:each"
        " percent}.",
        "Direct contributions explain all but {rest:percent} of these effects; the rest"
        " is interaction in the output head.",
        "Gradients selected the {top} components that were tested. A random check of"
        " the others found {miss_rate:percent} missed (at most"
        " {miss_rate_high:percent}).",
        movement=movement[leading],
        routes=acting[leading],
        carried=acting.sum("segment"),
        rest=rest,
    )


generic_figure(
    "route_effects",
    "carried",
    "Share of the input's effect that each component carries.",
    table=("carried",),
    sentences=summary(
        "Components that carry most of the input's influence{carried:basis}: "
        "{carried:largest percent}.",
        effect="carried",
        noun="components",
    ),
)
generic_figure(
    "input_routes",
    "size",
    "Effect of each segment through each component.",
    table=lambda ds: frame(ds, "size", "share").dropna(ignore_index=True),
    sentences=read_routes,
)
