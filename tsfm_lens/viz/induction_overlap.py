"""Overlap of induction scores with the sharpness of attention."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.induction import past_both
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.needs import SEQUENCES
from tsfm_lens.viz.panels import fitted_range
from tsfm_lens.viz.select import array, model_of, names
from tsfm_lens.viz.sheet import Look, Panel, sheet
from tsfm_lens.viz.theme import BLACK, BLUE, GREY, INK, PALE, VERMILION, number, plain

__all__ = ["induction_corner", "overlap_thresholds"]
_THRESHOLDS = {"prefix_matching": "prefix_from", "copy_score": "copy_from", "normalised": "sharp_below"}
_AXES = {"prefix_matching": "prefix matching", "copy_score": "copy score (std)", "normalised": "normalised entropy"}
_GROUPS = (
    ("neither", False, False, PALE, "circle"),
    ("sharp", False, True, BLUE, "square"),
    ("induction", True, False, VERMILION, "diamond"),
    ("both", True, True, BLACK, "star"),
)


INDUCTION_OVERLAP = measurement(
    "induction_overlap",
    theme="Behaviour",
    title="Induction heads and sharp heads",
    summary="overlap of induction and sharp heads, over thresholds",
    description="Whether the heads that copy a motif are those that attend sharply, and how much that hangs on the "
    "thresholds.",
    source="tsfm-lens, table 5 and figure 23",
    paper=("S3-T5", "S3-F23"),
    needs=SEQUENCES,
)


def read_overlap(ds: xr.Dataset) -> list[str]:
    """Count the induction heads that are sharp."""
    sharp = array(ds, "sharp", "layer", "head") > 0
    surely, perhaps = past_both(ds)
    return [
        f"{int(surely.sum())} of {sharp.size} heads are induction heads beyond doubt, of {int(perhaps.sum())} more "
        f"these sequences do not tell, and {int(sharp.sum())} are sharp; {int((surely & sharp).sum())} are surely "
        f"both, {int((perhaps & sharp).sum())} perhaps."
    ]


@INDUCTION_OVERLAP.figure(
    "Prefix-matching, copying and entropy against each other.",
    variables=(*_AXES, "correlation"),
    table=(*_AXES, "induction", "sharp"),
    sentences=read_overlap,
)
def induction_corner(ds: xr.Dataset) -> go.Figure:
    """Draw prefix matching, copy score and normalised entropy of all heads, each against each.

    Args:
        ds: of kind "induction_overlap".

    Returns:
        A 3 × 3 corner plot: histograms on the diagonal, a point per head below it, correlations above it.
    """
    scores = {name: array(ds, name, "layer", "head").ravel() for name in _AXES}
    ranges = {name: fitted_range(values, np.empty(0))[0] for name, values in scores.items()}
    canvas = sheet([156] * 3, [1] * 3, row_gap=26, column_gap=0.07, min_width=640)
    thresholds, dashes = {name: float(ds.attrs[key]) for name, key in _THRESHOLDS.items()}, "4px,3px"
    for row, below in enumerate(_AXES, start=1):
        for col, beside in enumerate(_AXES, start=1):
            panel = canvas.panel(row, col)
            if col > row:
                panel.x(visible=False)
                panel.y(visible=False)
                value = float(ds["correlation"].sel(score=below, other_score=beside))
                text = f"r = {value:+.2f}".replace("-", "−") if np.isfinite(value) else "r undefined"
                place = canvas.fig.get_subplot(row, col)
                where: Look = {letter: sum(getattr(place, f"{letter}axis").domain) / 2 for letter in "xy"}
                # what hangs on an invisible axis is not drawn
                where |= {"xref": "paper", "yref": "paper", "xanchor": "center", "font": {"size": 14, "color": GREY}}
                canvas.fig.add_annotation(text=text, **where)
                continue
            # the lines of one column share their axis, the histogram's heights have their own
            title = _AXES[beside] if row == 3 else None
            panel.x(title, showticklabels=row == 3, range=ranges[beside])
            if col == row:
                _histogram(panel, scores[beside], _AXES[beside])
                panel.y("heads", side="right", nticks=4)
            else:
                _scatter(panel, ds, scores[beside], scores[below])
                panel.y(_AXES[below] if col == 1 else None, range=ranges[below], nticks=5)
                panel.level(thresholds[below], dash=dashes)
            panel.upright(thresholds[beside], dash=dashes)
    count = ds["count"].values
    return canvas.dress(
        f"Induction and sharpness of the {int(count.sum())} heads of {model_of(ds)}",
        f"{int(count[0].sum())} by the means induction heads, {int(count[:, 0].sum())} sharp, {int(count[0, 0])} both",
        f"entropy along {ds.attrs.get('entropy_along', 'forecasts')}; dashed: thresholds; r: Pearson",
    )


@INDUCTION_OVERLAP.figure(
    "Overlap of induction and sharp heads over thresholds.",
    variables=("sweep_sharp_given_induction", "sweep_induction_given_sharp"),
    table=("sweep_sharp_given_induction", "sweep_induction_given_sharp"),
)
def overlap_thresholds(ds: xr.Dataset) -> go.Figure:
    """Draw how the overlap of induction heads and sharp heads, and their number, depend on the thresholds.

    Args:
        ds: of kind "induction_overlap".

    Returns:
        Three heat maps: the shares of induction heads that are sharp and of sharp heads that are induction heads, over
        copy score and entropy; the share of induction heads, over copy score and prefix matching.
    """
    sharp = ("entropy_threshold", "sharp_below", "normalised entropy below")
    prefix = ("prefix_threshold", "prefix_from", "prefix matching from")
    maps = {
        "share of induction heads\nthat are sharp": ("sweep_sharp_given_induction", *sharp),
        "share of sharp heads\nthat are induction heads": ("sweep_induction_given_sharp", *sharp),
        "share of all heads\nthat are induction heads": ("sweep_proportion_induction", *prefix),
    }
    canvas = sheet([300], [1] * 3, titles=list(maps), column_gap=0.04, min_width=760, above=44, shared_yaxes=True)
    for panel, (title, (name, dim, key, words)) in zip(canvas, maps.items(), strict=True):
        share, y = title.replace("\n", " "), ds["copy_threshold"].values
        hover = f"{words} %{{x:.3g}}, copy score from %{{y:.3g}}<br>{share} %{{z:.3g}}"
        values = array(ds, name, "copy_threshold", dim)
        panel.cells(values, ds[dim].values, y, hover, name=share, xgap=0, ygap=0)
        cross: Look = {"symbol": "x-thin", "size": 11, "marker": {"line": {"width": 2.5, "color": VERMILION}}}
        panel.dots([ds.attrs.get(key)], [ds.attrs.get("copy_from")], "thresholds of the other figures", **cross)
        panel.x(words, nticks=6)
    canvas.panel().y("copy score from (std)")
    canvas.colours(colour_scale("share of heads", low=0.0, high=1.0))
    # 0 is white, so what is undefined must not be
    canvas.fig.update_layout(plot_bgcolor=PALE)
    return canvas.dress(
        f"Overlap of induction and sharp heads of {model_of(ds)} under other thresholds",
        f"left and middle: prefix matching of at least {number(float(ds.attrs.get('prefix_from', np.nan)))}",
        "grey: no head to take a share of",
    )


def _scatter(panel: Panel, ds: xr.Dataset, x: np.ndarray, y: np.ndarray) -> None:
    places = np.array([f"layer {layer}, head {head}" for layer in names(ds, "layer") for head in names(ds, "head")])
    induction, sharp = (array(ds, name, "layer", "head").ravel() > 0 for name in ("induction", "sharp"))
    for word, is_induction, is_sharp, colour, symbol in _GROUPS:
        mask = (induction == is_induction) & (sharp == is_sharp)
        if mask.any():
            hover = f"%{{customdata}}: {plain(word)}<br>%{{x:.3g}}, %{{y:.3g}}"
            look: Look = {"colour": colour, "symbol": symbol, "edge": INK, "customdata": places[mask]}
            panel.dots(x[mask], y[mask], f"{word} ({int(mask.sum())})", hover, **look)


def _histogram(panel: Panel, values: np.ndarray, word: str) -> None:
    count, edges = np.histogram(values, bins=min(max(len(values) // 4, 6), 24))
    middles, hover = (edges[:-1] + edges[1:]) / 2, f"{word} near %{{x:.3g}}: %{{y}} heads"
    outline: Look = {"marker_line": {"color": GREY, "width": 0.5}, "width": np.diff(edges)}
    panel.bars(middles, count, word, hover, colour=PALE, legend=False, **outline)
