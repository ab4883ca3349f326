"""Marks of a figure by kind and by name, and what needs a browser."""

from __future__ import annotations

import shutil
from typing import Any

import plotly.graph_objects as go
import pytest

from tsfm_lens.viz.findings import NOT_SIGNIFICANT

needs_browser = pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "google-chrome", "chrome"))),
    reason="no Chromium on the path",
)


def heatmaps(fig: go.Figure) -> list[go.Heatmap]:
    """The maps, without what is drawn over cells in the noise."""
    return [
        trace
        for trace in fig.data
        if trace.type == "heatmap" and trace.name not in (NOT_SIGNIFICANT, "outlined")
    ]


def named(fig: go.Figure, name: str) -> list[Any]:
    return [trace for trace in fig.data if trace.name == name]
