"""Figures as widgets of a notebook."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from tsfm_lens.ablation.metrics import mae
from tsfm_lens.viz.panels import as_text
from tsfm_lens.viz.saving import BROWSER_CONFIG
from tsfm_lens.viz.theme import number, untitled

WIDTH = 920  # pixels
WIDE: dict[str, Any] = {"style": {"description_width": "initial"}}
"""Style of a control whose description is never cut."""
_COORDINATES = ("x", "y", "base")


def figure_widget(figure: go.Figure) -> go.FigureWidget:
    """Turn a figure into a widget, with all traces that it will have; its title is left to the page around it."""
    bare = untitled(figure).update_layout(width=WIDTH)
    # before the widget is made: a browser gets its first state, whatever changes its traces see later
    for trace in bare.data:
        for name in _COORDINATES:
            values = getattr(trace, name, None)
            # a widget sends dates of nanoseconds as whole numbers
            if isinstance(values, np.ndarray) and values.dtype.kind == "M":
                trace[name] = as_text(values)
    widget = go.FigureWidget(bare)
    widget._config = {**widget._config, **BROWSER_CONFIG}
    return widget


def change_words(plain: np.ndarray, other: np.ndarray, truth: np.ndarray | None, unit: str, detail: str) -> str:
    """Describe by how much a median (step,) moves, with a detail, and its error before and after."""
    unit = unit or "data units"
    words = f"the median moves by {number(float(np.abs(other - plain).mean()))} {unit} on average{detail}"
    if truth is not None and np.isfinite(truth).any():
        before, after = (number(float(mae(median, truth))) for median in (plain, other))
        words += f"; mean absolute error {before} → {after} {unit}"
    return words
