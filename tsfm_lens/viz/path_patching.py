"""Path patching, and its estimate, edge attribution.

:func:`generic_figure` draws both; :func:`read_paths` describes them. A path goes from a
sender to a receiver, a component that comes after it or the output.
"""

from __future__ import annotations

import xarray as xr

from tsfm_lens.core.registry import frame
from tsfm_lens.viz.generic import generic_figure
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
