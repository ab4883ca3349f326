"""Figures as widgets of a notebook."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from tsfm_lens.viz.panels import as_text
from tsfm_lens.viz.saving import BROWSER_CONFIG
from tsfm_lens.viz.theme import untitled

WIDTH = 920  # pixels
_COORDINATES = ("x", "y", "base")


def figure_widget(figure: go.Figure) -> go.FigureWidget:
    """Turn a figure into a widget, with all traces that it will have; its title is left to the page around it.

    Its width is fixed, because the browser lays widgets out before it knows how wide the cell is, and no button uploads
    it.
    """
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
