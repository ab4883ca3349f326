"""Necessity and sufficiency of named routes."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.deletion_curves import read_proof
from tsfm_lens.viz.needs import SERIES
from tsfm_lens.viz.select import array, model_of, segment_words, unit_of
from tsfm_lens.viz.sheet import Look, sheet
from tsfm_lens.viz.theme import BLUE, GREY, INK, VERMILION, number, plain

__all__ = ["faithfulness_dots"]

ROUTE_FAITHFULNESS = measurement(
    "route_faithfulness",
    theme="Inputs",
    title="Proof by cutting routes",
    summary="necessity and sufficiency of named routes against matched random components",
    description="The routes that are named for a segment are cut together, and restored together in the forecast "
    "without it. They explain its effect if it goes and comes back with them, more than with random "
    "components.",
    source="Geiger et al. 2021; Wang et al. 2022",
    needs=SERIES,
)


@ROUTE_FAITHFULNESS.figure(
    "What cutting and restoring the named routes does.",
    variables=("necessity", "sufficiency", "measured", "predicted"),
    table=("necessity", "sufficiency", "necessity_p", "sufficiency_p", "prediction_error", "overlap"),
    sentences=read_proof,
)
def faithfulness_dots(ds: xr.Dataset) -> go.Figure:
    """Draw what cutting, and restoring, the named routes of each segment does to its effect.

    Args:
        ds: of kind "route_faithfulness".

    Returns:
        At the left shares of each segment's effect that go with the routes, and come back with them; bars hold 95 % of
        random components of the same kinds. At the right the change that was predicted of the first segment's routes,
        cut together, and what was measured.

    Example:
        >>> "faithfulness_dots" in viz.__all__
        True
    """
    segments, unit = segment_words(ds), unit_of(ds) or "data units"
    canvas = sheet([max(230, 74 * len(segments))], [0.55, 0.45], column_gap=0.18, min_width=760, below=60)
    shares, change = canvas
    for place, (name, words, colour) in enumerate(
        (("necessity", "effect lost when cut", VERMILION), ("sufficiency", "effect back when restored", BLUE))
    ):
        at = np.arange(len(segments)) + 0.24 * (place - 0.5)
        random = array(ds, f"random_{name}", "segment", "draw")
        low, middle, high = 100 * np.quantile(random, [0.025, 0.5, 0.975], axis=1)
        bars = {"type": "data", "array": high - middle, "arrayminus": middle - low, "color": GREY, "thickness": 5}
        look: Look = {"colour": GREY, "size": 6, "symbol": "square", "error_x": bars | {"width": 0}}
        shares.dots(middle, at, "random components, 95 %", "random components, %{x:.0f} %", **look)
        value = 100 * array(ds, name, "segment")
        shares.dots(value, at, words, f"{words}<br>%{{x:.0f}} %", colour=colour, size=10)
    shares.upright(0.0)
    shares.upright(100.0, dash="dot")
    shares.x("share of the segment's effect", ticksuffix=" %")
    ticks: Look = {"tickvals": list(range(len(segments))), "ticktext": [plain(name) for name in segments]}
    shares.y(range=[len(segments) - 0.5, -0.5], **ticks)
    for name, look in (
        ("predicted", {"colour": INK, "dash": "dash"}),
        ("measured", {"colour": VERMILION, "width": 2.5}),
    ):
        values = array(ds, name, "step", segment=0, cut=-1)
        change.line(1 + np.arange(len(values)), values, f"{name} change", f"{name} %{{y:.4g}} {plain(unit)}", **look)
    change.level(0.0)
    change.x("forecast step")
    change.y(f"change of the forecast ({unit})")
    error = float(array(ds, "prediction_error", "segment")[0])
    return canvas.dress(
        f"Routes of {model_of(ds)}, cut and restored",
        f"forecast of {ds.attrs.get('target', '')}",
        f"at the right {segments[0]}, error of the prediction {number(100 * error)} %",
    )
