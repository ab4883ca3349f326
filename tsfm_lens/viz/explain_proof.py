"""Figures of proof: deletion and insertion curves, and what cutting and restoring named routes does."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.select import array, draws, model_of, names, segment_words, unit_of
from tsfm_lens.viz.sheet import Look, sheet
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, GREY, INK, PALE, VERMILION, mixed, number, plain

__all__ = ["deletion_lines", "proof_dots"]

_BAND = "95 % of random orders"
_CURVES = (("deletion", "largest masked first"), ("insertion", "largest shown first"))


@draws("deletion_curves", needs=("deletion", "insertion", "area"))
def deletion_lines(ds: xr.Dataset) -> go.Figure:
    """Draw how far the forecast moves as segments are masked, and shown, in the order of each explanation.

    Args:
        ds: of kind "deletion_curves".

    Returns:
        A panel for deletion, where a good explanation rises early, and one for insertion, where it falls early; the
        band holds random orders. The subtitle has the areas between the curves.

    Example:
        >>> "deletion_lines" in viz.__all__
        True
    """
    explanations, unit = names(ds, "explanation"), unit_of(ds) or "data units"
    area, p = array(ds, "area", "explanation"), array(ds, "p", "explanation")
    canvas = sheet(
        [280], [1, 1], titles=[words for _, words in _CURVES], column_gap=0.05, min_width=640, shared_yaxes=True
    )
    count = np.arange(ds.sizes["masked"])
    for place, (panel, (name, _)) in enumerate(zip(canvas, _CURVES, strict=True)):
        low, high = (array(ds, f"random_{end}", "masked", curve=place) for end in ("low", "high"))
        panel.band(count, low, high, mixed(PALE, 0.7), _BAND, legend=True)
        panel.line(
            count, array(ds, f"random_{name}", "draw", "masked").mean(0), "random orders, mean", colour=GREY, dash="dot"
        )
        for row, explanation in enumerate(explanations):
            y = array(ds, name, "masked", explanation=row)
            hover = f"{plain(explanation)}<br>%{{x}} segments<br>%{{y:.4g}} {plain(unit)}"
            colour = CATEGORICAL[row % len(CATEGORICAL)]
            panel.line(count, y, explanation, hover, colour=colour, width=2.5 if row == 0 else 1.5, dots=5)
        panel.x("segments masked" if name == "deletion" else "segments shown", dtick=max(1, len(count) // 12))
    canvas.panel(1, 1).y(f"distance from the\nwhole forecast ({unit})", rangemode="tozero")
    areas = [f"{name} {a:.2f} (p {q:.2g})" for name, a, q in zip(explanations, area, p, strict=True)]
    return canvas.dress(
        f"Deletion and insertion on {model_of(ds)}",
        f"forecast of {ds.attrs.get('target', '')}",
        f"area between the curves, random 0: {', '.join(areas)}",
    )


@draws("route_proof", needs=("necessity", "sufficiency", "measured", "predicted"))
def proof_dots(ds: xr.Dataset) -> go.Figure:
    """Draw what cutting, and restoring, the named routes of each segment does to its effect.

    Args:
        ds: of kind "route_proof".

    Returns:
        At the left shares of each segment's effect that go with the routes, and come back with them; bars hold 95 % of
        random components of the same kinds. At the right the change that was predicted of the first segment's routes,
        cut together, and what was measured.

    Example:
        >>> "proof_dots" in viz.__all__
        True
    """
    segments, unit = segment_words(ds), unit_of(ds) or "data units"
    height = max(230, 74 * len(segments))
    canvas = sheet([height], [0.55, 0.45], column_gap=0.18, min_width=760, below=60)
    shares, change = canvas
    for place, (name, words, colour) in enumerate(
        (("necessity", "effect lost when cut", VERMILION), ("sufficiency", "effect back when restored", BLUE))
    ):
        at = np.arange(len(segments)) + 0.24 * (place - 0.5)
        random = array(ds, f"random_{name}", "segment", "draw")
        low, middle, high = 100 * np.quantile(random, [0.025, 0.5, 0.975], axis=1)
        bars = {
            "type": "data",
            "array": high - middle,
            "arrayminus": middle - low,
            "color": GREY,
            "thickness": 5,
            "width": 0,
        }
        hover = "random components, %{x:.0f} %"
        shares.dots(middle, at, "random components, 95 %", hover, colour=GREY, size=6, symbol="square", error_x=bars)
        value = 100 * array(ds, name, "segment")
        shares.dots(value, at, words, f"{words}<br>%{{x:.0f}} %", colour=colour, size=10)
    shares.upright(0.0)
    shares.upright(100.0, dash="dot")
    shares.x("share of the segment's effect", ticksuffix=" %")
    ticks: Look = {"tickvals": list(range(len(segments))), "ticktext": [plain(name) for name in segments]}
    shares.y(range=[len(segments) - 0.5, -0.5], **ticks)
    predicted, measured = (array(ds, name, "step", segment=0, cut=-1) for name in ("predicted", "measured"))
    steps = np.arange(1, len(measured) + 1)
    change.line(steps, predicted, "predicted change", f"predicted %{{y:.4g}} {plain(unit)}", colour=INK, dash="dash")
    change.line(steps, measured, "measured change", f"measured %{{y:.4g}} {plain(unit)}", colour=VERMILION, width=2.5)
    change.level(0.0)
    change.x("forecast step")
    change.y(f"change of the forecast ({unit})")
    error = float(array(ds, "prediction_error", "segment")[0])
    return canvas.dress(
        f"Routes of {model_of(ds)}, cut and restored",
        f"forecast of {ds.attrs.get('target', '')}",
        f"at the right {segments[0]}, error of the prediction {number(100 * error)} %",
    )
