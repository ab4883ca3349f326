"""Figures as widgets of a notebook."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from tsfm_lens.viz.saving import BROWSER_CONFIG
from tsfm_lens.viz.theme import untitled

WIDTH = 920  # pixels
_COORDINATES = ("x", "y", "base")


def figure_widget(figure: go.Figure) -> go.FigureWidget:
    """A figure that answers; its title is left to the page around it.

    Its width is fixed, because the browser lays widgets out before it knows how wide the cell is, and no button uploads
    it.
    """
    widget = go.FigureWidget(untitled(figure).update_layout(width=WIDTH))
    for trace in widget.data:
        for name in _COORDINATES:
            values = getattr(trace, name, None)
            # a widget would send dates of nanoseconds as whole numbers
            if isinstance(values, np.ndarray) and values.dtype.kind == "M":
                trace[name] = values.astype("datetime64[ms]").astype(object)
    widget._config = {**widget._config, **BROWSER_CONFIG}
    return widget
