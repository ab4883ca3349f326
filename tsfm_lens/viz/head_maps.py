"""Layer × head maps side by side, each with its own colours, heads of interest outlined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.viz.maps import cells, colour_axis
from tsfm_lens.viz.select import layer_name, names
from tsfm_lens.viz.theme import VERMILION, dress, plain

_PRINTED = 60  # cells of a map that still have room for their number
_BAR = 62  # pixels under the maps for the head axis and the colour bars


@dataclass(frozen=True)
class HeadMap:
    """One map.

    Attributes:
        values: (layer, head), NaN where there is none.
        title: over the map; bar: what the colours mean, with the unit.
        low, high: ends of the colours; those of the finite values if None.
        diverging: whether colours part at 0, then equally far to both sides.
        reverse: whether low values are dark.
    """

    values: np.ndarray
    title: str
    bar: str
    low: float | None = None
    high: float | None = None
    diverging: bool = False
    reverse: bool = False

    def colours(self, **bar: Any) -> dict[str, Any]:
        """The colour axis; ``bar`` places its bar."""
        known = self.values[np.isfinite(self.values)]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        # white is for nothing, so a scale that does not start at nothing begins below its lowest value
        pad = 0.1 * ((high - low) or 1.0)
        low = (low if self.reverse else low - pad) if self.low is None else self.low
        high = (high + pad if self.reverse else high) if self.high is None else self.high
        if self.diverging:
            high = (float(np.abs(known).max()) if len(known) else 0.0) or 1.0
            low = -high
        options = {"diverging": self.diverging, "dark_low": self.reverse}
        axis = colour_axis(self.values, plain(self.bar), bounds=(low, high), **options, **bar)
        axis["colorbar"]["title"]["side"] = "bottom"
        return axis


def head_maps(
    ds: xr.Dataset, panels: Sequence[HeadMap], title: str, subtitle: str, *, outlined: np.ndarray | None = None
) -> go.Figure:
    """Maps on the same layer and head axes.

    Args:
        ds: whose layers and heads these are.
        panels: the maps.
        title, subtitle: of the figure.
        outlined: (layer, head), cells to draw a frame around in every map.

    Returns:
        The dressed figure; trace and colour axis number i are those of map i.
    """
    layers, heads = [layer_name(name) for name in names(ds, "layer")], names(ds, "head")
    fig = make_subplots(
        rows=1,
        cols=len(panels),
        shared_yaxes=True,
        subplot_titles=[plain(panel.title) for panel in panels],
        horizontal_spacing=0.06 if len(panels) > 1 else 0,
    )
    fig.update_annotations(font={"size": 12}, yshift=1)
    height = max(24 * len(layers), 130)
    bars = {}
    for index, panel in enumerate(panels):
        axis = f"coloraxis{index + 1 if index else ''}"
        place = f"{plain(panel.bar)} %{{z:.4g}}<extra></extra>"
        trace = cells(
            panel.values, layers, heads, f"%{{y}}, head %{{x}}<br>{place}", write=_two_digits, printed=_PRINTED
        )
        trace.update(coloraxis=axis, name=panel.title, xgap=0, ygap=0)
        fig.add_trace(trace, row=1, col=1 + index)
        first, last = fig.get_subplot(1, 1 + index).xaxis.domain
        bars[axis] = panel.colours(**_bar((first + last) / 2, last - first, height))
    fig.update_xaxes(title_text="head", type="category", dtick=max(len(heads) // 12, 1))
    fig.update_yaxes(type="category", autorange="reversed", dtick=1 if len(layers) <= 24 else 2)
    fig.update_layout(**bars)
    if outlined is not None:
        _outline(fig, outlined, len(panels))
    least = 110 + len(panels) * max(26 * len(heads), 150)
    return dress(fig, title, subtitle, plot_height=height, above=30, below=46 + _BAR, min_width=least)


def _bar(middle: float, width: float, height: int) -> dict[str, Any]:
    return {
        "orientation": "h",
        "x": middle,
        "len": 0.9 * width,
        "y": -46 / height,
        "yanchor": "top",
        "thickness": 10,
        "nticks": 4,
        "tickangle": 0,
    }


def _two_digits(value: float) -> str:
    # adding 0 takes the sign off a rounded -0.0
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def _outline(fig: go.Figure, outlined: np.ndarray, panels: int) -> None:
    places = np.argwhere(outlined)
    for col in range(1, panels + 1):
        for layer, head in places:
            fig.add_shape(
                type="rect",
                x0=head - 0.46,
                x1=head + 0.46,
                y0=layer - 0.46,
                y1=layer + 0.46,
                line={"color": VERMILION, "width": 2},
                row=1,
                col=col,
            )
