"""Deletion and insertion curves of input attributions."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.verdict import rules_of, verdict
from tsfm_lens.viz.needs import SERIES
from tsfm_lens.viz.select import array, model_of, names, unit_of
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.theme import CATEGORICAL, GREY, PALE, mixed, plain

__all__ = ["deletion_lines"]
_BAND = "95 % of random orders"
_CURVES = (("deletion", "largest masked first"), ("insertion", "largest shown first"))


DELETION_CURVES = measurement(
    "deletion_curves",
    theme="Inputs",
    title="Proof by masking",
    summary="deletion and insertion curves of input attributions against random orders and attention",
    description="Segments are masked, and shown, in the order in which an explanation names them. A true one moves the "
    "forecast sooner than random orders do; the band holds 95 % of those.",
    source="Samek et al. 2017; Petsiuk et al. 2018",
    needs=SERIES,
)


def read_proof(ds: xr.Dataset) -> list[str]:
    """State the verdict, by the rules of :mod:`tsfm_lens.verdict`."""
    word, sentences = verdict(ds)
    # the first is also said alone, at a glance: what was tried first is not all that was
    return [f"By the rules below the explanation {word}. {sentences[0]}", *sentences[1:], *rules_of(ds)]


@DELETION_CURVES.figure(
    "How soon the forecast moves in the order of an explanation.",
    variables=("deletion", "insertion", "area"),
    table=lambda ds: frame(ds, "deletion", "insertion").merge(frame(ds, "area", "p"), on="explanation"),
    sentences=read_proof,
)
def deletion_lines(ds: xr.Dataset) -> go.Figure:
    """Draw how far the forecast moves as segments are masked, and shown, in the order of each explanation.

    Args:
        ds: of kind "deletion_curves".

    Returns:
        A panel for deletion, where a good explanation rises early, and one for insertion, where it falls early; the
        band holds random orders.
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
        middle = array(ds, f"random_{name}", "draw", "masked").mean(0)
        panel.line(count, middle, "random orders, mean", colour=GREY, dash="dot")
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
