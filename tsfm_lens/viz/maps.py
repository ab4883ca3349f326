"""Heat maps of few labelled cells: layer × head, layer × layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.select import layer_name, names
from tsfm_lens.viz.theme import DIVERGING, SEQUENTIAL

_PRINTED = 500  # cells that still have room for their number


def cells(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    hover: str,
    *,
    write: Callable[[float], str] = "{:.3g}".format,
    printed: int = _PRINTED,
) -> go.Heatmap:
    """One heat map on the figure's colour axis, with its numbers in the cells while there are few.

    Args:
        values: (row, column).
        hover: the hover box.
        write: how a number is written in its cell.
        printed: the most cells that get their number.
    """
    text = None
    if values.size <= printed:
        text = [[write(float(value)) if np.isfinite(value) else "" for value in row] for row in values]
    return go.Heatmap(
        x=list(columns),
        y=list(rows),
        z=values,
        coloraxis="coloraxis",
        text=text,
        texttemplate="%{text}" if text is not None else None,
        textfont={"size": 10 if values.shape[1] > 12 else 11},
        xgap=1,
        ygap=1,
        hoverongaps=False,
        hovertemplate=hover,
    )


def colour_axis(
    values: np.ndarray,
    title: str,
    *,
    bounds: tuple[float, float] | None = None,
    diverging: bool = False,
    dark_low: bool = False,
    **bar: Any,
) -> dict[str, Any]:
    """A colour axis over ``values``, or over ``bounds``; ``dark_low`` turns the scale round."""
    known = values[np.isfinite(values)]
    low, high = bounds or ((float(known.min()), float(known.max())) if len(known) else (0.0, 1.0))
    scale = DIVERGING if diverging else SEQUENTIAL
    return {
        "colorscale": scale,
        "reversescale": dark_low,
        "cmin": low,
        "cmax": high if high > low else low + 1,
        "colorbar": {"title": {"text": title, "side": "right"}, "nticks": 6, **bar},
    }


def head_map(
    ds: xr.Dataset,
    values: np.ndarray,
    word: str,
    *,
    unit: str = "",
    write: Callable[[float], str] = "{:.3g}".format,
    notes: Sequence[Sequence[str]] | None = None,
    **colours: Any,
) -> tuple[go.Figure, int]:
    """A layer × head heat map without its title, and the height that it wants in pixels.

    Args:
        ds: the result, for its labels.
        values: (layer, head).
        word: what the values are; unit: of them.
        notes: (layer, head), further words for each cell's hover box.
        colours: options of :func:`colour_axis`.
    """
    layers, heads = [layer_name(label) for label in names(ds, "layer")], names(ds, "head")
    hover = f"%{{y}}, head %{{x}}<br>{word} %{{z:.4g}}{f' {unit}' if unit else ''}"
    trace = cells(values, layers, heads, f"{hover}%{{customdata}}<extra></extra>", write=write)
    trace.customdata = notes if notes is not None else [[""] * len(heads) for _ in layers]
    fig = go.Figure(trace)
    fig.update_layout(coloraxis=colour_axis(values, f"{word} ({unit})" if unit else word, **colours))
    fig.update_xaxes(title_text="head", type="category", nticks=24, ticks="")
    fig.update_yaxes(type="category", autorange="reversed", ticks="", dtick=1 if len(layers) <= 24 else 2)
    return fig, max(26 * len(layers), 130)
