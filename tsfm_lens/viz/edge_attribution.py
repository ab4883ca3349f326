"""Edge attribution: gradient estimates of path patching."""

from __future__ import annotations

from collections.abc import Iterator

import xarray as xr

from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.needs import GRADIENTS
from tsfm_lens.viz.path_patching import path_map, read_paths
from tsfm_lens.viz.tables import frame

__all__ = []

EDGES = measurement(
    "edges",
    theme="Causes",
    title="Edge attribution",
    summary="edge attribution",
    description="The same for every pair of components, with what the forecast makes of a change taken from its "
    "gradient.",
    source="Syed et al. 2023; Hanna et al. 2024",
    needs=GRADIENTS,
)


@EDGES.panels
def _edges(ds: xr.Dataset) -> Iterator[ReportPanel]:
    yield ReportPanel(path_map(ds), frame(ds, "score").query("score != 0"), read_paths(ds))


EDGES.figure("Gradient estimates of what flows between single components.")(path_map)
