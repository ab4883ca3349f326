"""Path patching, and its estimate, edge attribution.

:func:`generic_figure` draws both; :func:`read_paths` describes them. A path goes from a
sender to a receiver, a component that comes after it or the output.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.core.registry import frame
from tsfm_lens.viz.findings import central_sizes, find_estimate
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.select import (
    array,
    series_position,
)
from tsfm_lens.viz.sites import OUTPUT
from tsfm_lens.viz.summary import summarize


def read_paths(ds: xr.Dataset) -> list[str]:
    """Describe the strongest paths, to the output and between components."""
    effect = "recovered"
    if ds.attrs["kind"] == "edge_attribution":
        effect = "score"
    direct = (ds["receiver"] == OUTPUT).values
    way = "the way"
    if "metric" in ds.attrs:
        way = f"the way in {ds.attrs['metric']}"
    largest = f"as shares of {way}{{{effect}:basis}}: {{{effect}:largest signed}}."
    return [
        *summarize(
            ds.isel(receiver=direct),
            f"Strongest paths straight to the output, {largest}",
        ),
        *summarize(
            ds.isel(receiver=~direct),
            f"Strongest paths through another component, {largest}",
        ),
        *summarize(ds, effect=effect, noun="paths"),
    ]


def path_values(
    ds: xr.Dataset, value: str, series: str | int | None = None
) -> np.ndarray:
    """Return (sender, receiver) of one series, or the medians over all.

    It is NaN where there is no path.
    """
    # all series are read, also for one, to see which edges have a score in any
    values = array(ds, value, "sender", "receiver", "series")
    if ds.attrs.get("kind") == "edge_attribution":
        # edge_attribution() scores pairs that no edge joins as exactly 0
        values = np.where((values == 0).all(-1, keepdims=True), np.nan, values)
    if series is not None:
        return np.asarray(values[..., series_position(ds, series)])
    sizes = central_sizes(find_estimate(ds, value, "sender", "receiver"), values)
    return np.where(np.isnan(values).all(-1), np.nan, sizes)


generic_figure(
    "path_patching",
    "recovered",
    "Effect of each component through each later one.",
    table=lambda ds: frame(ds, "recovered", "effect").dropna(ignore_index=True),
    sentences=read_paths,
)
generic_figure(
    "edge_attribution",
    "score",
    "Gradient estimates of the effect of each component through each later one.",
    table=lambda ds: frame(ds, "score").query("score != 0"),
    sentences=read_paths,
)
