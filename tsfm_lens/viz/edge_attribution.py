"""Edge attribution: gradient estimates of path patching."""

from __future__ import annotations

from tsfm_lens.registry import measurement
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

EDGES.figure(
    "Gradient estimates of what flows between single components.",
    table=lambda ds: frame(ds, "score").query("score != 0"),
    sentences=read_paths,
)(path_map)
