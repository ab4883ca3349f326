"""Colour scales, and heat maps of layer × head.

:func:`head_maps` draws one or several :class:`HeadMap`; :func:`colour_scale` makes the
colour axis of any map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.findings import EffectEstimate
from tsfm_lens.viz.select import names
from tsfm_lens.viz.sheet import PRINTED, Style, sheet, shortened
from tsfm_lens.viz.theme import DIVERGING, LABEL_TYPE, SEQUENTIAL, VERMILION, plain
from tsfm_lens.viz.words import layer_names

_MAX_NUMBERED = 60  # cells of one of several maps that still have room for their number
_ABREAST = 3  # maps in one row; of more, two
# Pixels under the maps for the head axis, and for colour bars.
_FOOT = 46
_BAR = 62


def colour_scale(
    title: str,
    values: np.ndarray | None = None,
    *,
    low: float | None = None,
    high: float | None = None,
    diverging: bool = False,
    dark_low: bool = False,
    root: bool = False,
    **bar: Any,
) -> dict[str, Any]:
    """Return a colour axis from ``low`` to ``high``.

    It is over ``values`` where these are not given. With ``root``, colours go by the
    square root of the distance from white, so that small values are seen beside large
    ones.
    """
    if values is None:
        finite = np.empty(0)
    else:
        finite = values[np.isfinite(values)]
    sizes = finite
    if diverging:
        sizes = np.abs(finite)
    if high is not None:
        top = high
    elif len(sizes):
        top = float(sizes.max())
    else:
        top = 1.0
    # both sides reach equally far, so that white is 0
    if diverging:
        top = top or 1.0
        low = -top
    elif low is None:
        low = 0.0
        if len(finite):
            low = float(finite.min())
    side = "right"
    if bar.get("orientation") == "h":
        side = "bottom"
    stops = SEQUENTIAL
    if diverging:
        stops = DIVERGING
    if root:
        # Plotly has no colours by a root, so the stops move instead: a stop at a share
        # d of the way from white goes to d². White is in the middle or at the start.
        white = 0.5 * diverging
        stops = tuple(
            (white + (at - white) * abs(at - white) / (1 - white), colour)
            for at, colour in stops
        )
    return {
        "colorscale": stops,
        "reversescale": dark_low,
        "cmin": low,
        # plotly takes no empty range
        "cmax": top if top > low else low + 1,
        **({"cmid": 0.0} if diverging else {}),
        "colorbar": {
            "title": {"text": plain(title).replace("\n", "<br>"), "side": side},
            "nticks": 6,
            **bar,
        },
    }


@dataclass(frozen=True)
class HeadMap:
    """Values of one map, (layer, head), and how they are drawn.

    Attributes:
        title: over the map, where there are several.
        word, unit: what the colours mean.
        low, high: ends of the colours; from the values if None.
        reverse: whether low values are dark.
        write: gives the text in a cell; two decimals if None.
        notes: additions to the hover boxes, (layer, head).
        noise: tests of the values, where there are any.
    """

    values: np.ndarray
    title: str
    word: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    diverging: bool = False
    reverse: bool = False
    write: Callable[[float], str] | None = None
    notes: Sequence[Sequence[str]] | None = None
    noise: EffectEstimate | None = None

    @property
    def hover(self) -> str:
        """Hover box of a cell."""
        if self.unit:
            unit = f" {plain(self.unit)}"
        else:
            unit = ""
        return (
            f"%{{y}}, head %{{x}}<br>{plain(self.word)} %{{z:.4g}}{unit}%{{customdata}}"
        )

    @property
    def words(self) -> list[list[str]]:
        """Additions to the hover box of each cell, (layer, head)."""
        texts = np.full(self.values.shape, "", dtype=object)
        if self.notes is not None:
            texts[:] = self.notes
        if self.noise is not None:
            for position in np.ndindex(*texts.shape):
                texts[position] += f"<br>{self.noise.hover(position)}"
        return [list(row) for row in texts]

    @property
    def label(self) -> str:
        """Meaning of the colours, with the unit."""
        if self.unit:
            return f"{self.word} ({self.unit})"
        return self.word

    def colours(self, title: str = "", **bar: Any) -> dict[str, Any]:
        """Return the colour axis.

        ``title`` is that of its bar, with its line breaks; it is :attr:`label` unless
        given. ``bar`` places the bar.
        """
        finite = self.values[np.isfinite(self.values)]
        low, high = (
            (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
        )
        # White is for nothing, so a scale that does not start at nothing begins below
        # its lowest value, or ends above its highest if that end is white.
        pad = 0.1 * ((high - low) or 1.0)
        bounds: Style = {
            "low": low - pad * (not self.reverse) if self.low is None else self.low,
            "high": high + pad * self.reverse if self.high is None else self.high,
        }
        if self.diverging:
            options = {"diverging": True}
        else:
            options = {"dark_low": self.reverse, **bounds}
        return colour_scale(title or self.label, self.values, **options, **bar)


def head_maps(
    ds: xr.Dataset,
    maps: Sequence[HeadMap],
    title: str,
    *remarks: str,
    outlined: np.ndarray | None = None,
) -> go.Figure:
    """Draw maps on the same layer and head axes, each with its own colours.

    The colour bar stands at the side of a single map, and under each of several.

    Returns:
        A panel for each map.
    """
    layers = layer_names(ds)
    heads = names(ds, "head")
    several = len(maps) > 1
    columns = 2
    if len(maps) <= _ABREAST:
        columns = len(maps)
    if several:
        width = max(130, 16 * len(heads))
    else:
        width = 26 * len(heads)
    titles = [shortened(head_map.label, 0.95 * width, LABEL_TYPE) for head_map in maps]
    foot = _FOOT + _BAR + 14 * max(title.count("\n") for title in titles)
    canvas = sheet(
        [max((24 if several else 26) * len(layers), 130)] * -(-len(maps) // columns),
        [1] * columns,
        titles=[head_map.title for head_map in maps] if several else None,
        row_gap=foot + 30,
        column_gap=0.06,
        min_width=110 + columns * width if several else max(360, 150 + width),
        below=foot if several else 52,
        shared_yaxes=True,
    )
    for index, (head_map, panel) in enumerate(zip(maps, canvas, strict=False)):
        # plotly's first colour axis has no number, the others have 2, 3, …
        axis = f"coloraxis{index + 1 if index else ''}"
        printed = PRINTED
        if several:
            printed = _MAX_NUMBERED
        style: Style = {
            "coloraxis": axis,
            "name": head_map.title,
            "customdata": head_map.words,
            "noise": head_map.noise,
        }
        panel.cells(
            head_map.values,
            heads,
            layers,
            head_map.hover,
            write=head_map.write or two_digits,
            printed=printed,
            **style,
        )
        if several:
            subplot = canvas.fig.get_subplot(*canvas.positions[index])
            canvas.fig.update_layout(
                {
                    axis: head_map.colours(
                        titles[index], **under(subplot, canvas.plot_height)
                    )
                }
            )
        else:
            canvas.colours(head_map.colours())
        if outlined is not None:
            panel.frames(outlined, VERMILION)
    canvas.x(
        "head", type="category", ticks="", dtick=max(len(heads) // 12, 1), tickangle=0
    )
    canvas.y(
        type="category",
        autorange="reversed",
        ticks="",
        dtick=1 if len(layers) <= 24 else 2,
    )
    # the last row may have more places than maps
    for row, col in canvas.positions[len(maps) :]:
        canvas.panel(row, col).x(visible=False)
        canvas.panel(row, col).y(visible=False)
    return canvas.finalize(title, *remarks)


def under(subplot: Any, height: int) -> dict[str, Any]:
    """Return the position of a colour bar under its map.

    ``height`` is that of all panels of the sheet together, in pixels.
    """
    first, last = subplot.xaxis.domain
    placement: Style = {
        "orientation": "h",
        "x": (first + last) / 2,
        "len": 0.9 * (last - first),
        "yanchor": "top",
    }
    return {
        **placement,
        "y": subplot.yaxis.domain[0] - _FOOT / height,
        "thickness": 10,
        "nticks": 4,
        "tickangle": 0,
    }


def two_digits(value: float) -> str:
    """Write two decimals, with a true minus and no minus zero."""
    # adding 0.0 takes the sign off a rounded -0.0
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
