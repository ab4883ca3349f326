"""Induction heads, and their overlap with sharp ones.

:func:`past_both` decides which heads are significantly above both thresholds;
:func:`induction_maps` frames them, and :func:`induction_corner` draws their scores in
pairs.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.core.stats import LEVEL, holm, sign_test
from tsfm_lens.viz.findings import find_estimate
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.maps import HeadMap, head_maps
from tsfm_lens.viz.select import array, name_model, names
from tsfm_lens.viz.sheet import Panel, Style, sheet
from tsfm_lens.viz.summary import labelled, summary
from tsfm_lens.viz.theme import (
    BLACK,
    BLUE,
    INK,
    PALE,
    VERMILION,
    number,
    plain,
    true_minus,
)

__all__ = ["induction_corner", "induction_maps"]


_DIMS = ("layer", "head")
_THRESHOLDS = {"prefix_matching": "prefix_from", "copy_score": "copy_from"}


def past_both(ds: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Find the heads above both thresholds, and those that are undecided.

    Both are (layer, head). The first are significantly above both thresholds; the
    others are not, but are not significantly below either.

    The sign tests run over sequences and are corrected for all heads and both scores
    together.
    """
    if any(f"{name}_by_sequence" not in ds for name in _THRESHOLDS):
        # without values of single sequences there is nothing to test, and means decide
        passing = array(ds, "induction", "layer", "head") > 0
        return passing, np.zeros_like(passing)
    away = np.stack(
        [
            array(ds, f"{name}_by_sequence", "layer", "head", "sequence")
            - float(ds.attrs[key])
            for name, key in _THRESHOLDS.items()
        ]
    )
    # One-sided tests in both directions: a head that passes neither is undecided. The
    # scores and heads of one direction are one family, (score, layer, head) flattened.
    above, below = (
        holm(sign_test(side, sides=1).ravel()).reshape(away.shape[:-1]) <= LEVEL
        for side in (away, -away)
    )
    surely = above.all(0)
    return np.asarray(surely), np.asarray(~surely & ~below.any(0))


@figure(
    "induction_scores",
    "Prefix-matching and copying of every head.",
    table=("prefix_matching", "copy_score", "induction"),
    sentences=summary(
        "Heads significantly above both thresholds, prefix matching of {prefix_from} "
        "and a copy score of {copy_from}: {surely:which}; undecided: "
        "{undecided:count}.",
        "The model predicts the motif's next token in {copy_accuracy:percent} of "
        "cases.",
        surely=lambda ds: labelled(ds, past_both(ds)[0], *_DIMS),
        undecided=lambda ds: labelled(ds, past_both(ds)[1], *_DIMS),
    ),
)
def induction_maps(ds: xr.Dataset) -> go.Figure:
    """Draw layer × head maps of prefix matching and copy score.

    The entropy is a third map where it is known.
    """
    surely, perhaps = past_both(ds)
    target = "the last instance"
    if ds.attrs.get("offset", 1):
        target = "the token after the last instance"
    scores: dict[str, tuple[str, str, str, Style]] = {
        "prefix_matching": (
            "prefix matching",
            f"attention to {target}",
            "",
            {"low": 0.0},
        ),
        "copy_score": ("copying", "copy score", "standard deviations", {}),
        "entropy": ("attention entropy", "entropy", "nats", {"reverse": True}),
    }
    maps = [
        HeadMap(
            array(ds, name, "layer", "head"),
            title,
            word,
            unit,
            noise=find_estimate(ds, name, *_DIMS),
            **options,
        )
        for name, (title, word, unit, options) in scores.items()
        if name in ds
    ]
    thresholds = " and ".join(
        f"{word} of at least {number(ds.attrs[key])}"
        for word, key in (
            ("prefix matching", "prefix_from"),
            ("a copy score", "copy_from"),
        )
        if key in ds.attrs
    )
    motif = ds.attrs.get("motif", "?")
    repeats = ds.attrs.get("repeats", "?")
    moment = {"last": "at the last decoder position", "first": "after the prompt"}.get(
        ds.attrs.get("positions", "")
    )
    return head_maps(
        ds,
        maps,
        f"Induction heads of {name_model(ds)}: {int(surely.sum())} of {surely.size}"
        " cross-attention heads",
        f"{motif} random tokens shown {repeats} times"
        + (f", scores read {moment}" if moment else ""),
        f"framed: {thresholds or 'induction heads'}, significant over all heads"
        " together",
        f"{int(perhaps.sum())} more are undecided" if perhaps.any() else "",
        outlined=surely,
    )


_ALL_THRESHOLDS = {
    "prefix_matching": "prefix_from",
    "copy_score": "copy_from",
    "normalised": "sharp_below",
}
_AXES = {
    "prefix_matching": "prefix matching",
    "copy_score": "copy score (std)",
    "normalised": "normalised entropy",
}
# Name, induction head or not, sharp or not, and the form of its dots; drawn in this
# order, so that heads that are both lie above.
_GROUPS = (
    ("neither", False, False, PALE, "circle"),
    ("sharp", False, True, BLUE, "square"),
    ("induction", True, False, VERMILION, "diamond"),
    ("both", True, True, BLACK, "star"),
)


@figure(
    "induction_overlap",
    "Prefix-matching, copying and entropy against each other.",
    table=(*_AXES, "induction", "sharp"),
    sentences=summary(
        "Heads that are significantly induction heads: {surely:count}; undecided: "
        "{undecided:count}.",
        "Sharp heads: {sharp:count}, of which {both:whole} are significantly "
        "induction heads.",
        surely=lambda ds: labelled(ds, past_both(ds)[0], *_DIMS),
        undecided=lambda ds: labelled(ds, past_both(ds)[1], *_DIMS),
        both=lambda ds: (
            past_both(ds)[0] & array(ds, "sharp", *_DIMS).astype(bool)
        ).sum(),
    ),
)
def induction_corner(ds: xr.Dataset) -> go.Figure:
    """Draw prefix matching, copy score and normalised entropy of heads in pairs."""
    thresholds = {name: float(ds.attrs[key]) for name, key in _ALL_THRESHOLDS.items()}
    pairs = list(combinations(_AXES, 2))
    titles = []
    for across, upwards in pairs:
        # a score that is the same for all heads correlates with nothing
        r = float(ds["correlation"].sel(score=across, other_score=upwards))
        known = np.isfinite(r)
        titles.append(true_minus(f"r = {r:+.2f}") if known else "r undefined")
    canvas = sheet(
        [260], [1] * len(pairs), titles=titles, column_gap=0.1, min_width=700
    )
    for panel, (across, upwards) in zip(canvas, pairs, strict=True):
        scores = (array(ds, name, *_DIMS).ravel() for name in (across, upwards))
        _draw_scores(panel, ds, *scores)
        panel.x(_AXES[across], nticks=5)
        panel.y(_AXES[upwards], nticks=5)
        panel.vline(thresholds[across], dash="4px,3px")
        panel.hline(thresholds[upwards], dash="4px,3px")
    # (induction, sharp), each of which has "yes" first
    count = ds["count"].values
    return canvas.finalize(
        f"Induction and sharpness of the {int(count.sum())} heads of {name_model(ds)}",
        f"by their means {int(count[0].sum())} are induction heads,"
        f" {int(count[:, 0].sum())} sharp, {int(count[0, 0])} both",
        f"entropy along {ds.attrs.get('entropy_along', 'forecasts')}; dashed:"
        " thresholds; r: Pearson",
    )


def _draw_scores(panel: Panel, ds: xr.Dataset, x: np.ndarray, y: np.ndarray) -> None:
    """Draw a dot for each head, by two of its scores, (layer × head,) each."""
    labels = np.array(
        [
            f"layer {layer}, head {head}"
            for layer in names(ds, "layer")
            for head in names(ds, "head")
        ]
    )
    # array() returns floats, also of marks
    induction, sharp = (
        array(ds, name, "layer", "head").ravel() > 0 for name in ("induction", "sharp")
    )
    for word, is_induction, is_sharp, colour, symbol in _GROUPS:
        mask = (induction == is_induction) & (sharp == is_sharp)
        if mask.any():
            hover = f"%{{customdata}}: {plain(word)}<br>%{{x:.3g}}, %{{y:.3g}}"
            style: Style = {
                "colour": colour,
                "symbol": symbol,
                "edge": INK,
                "customdata": labels[mask],
            }
            panel.dots(x[mask], y[mask], f"{word} ({int(mask.sum())})", hover, **style)


generic_figure(
    "induction_overlap",
    "sweep_sharp_given_induction",
    "Share of induction heads that are sharp.",
    table=("sweep_sharp_given_induction", "sweep_induction_given_sharp"),
)
generic_figure(
    "induction_overlap",
    "sweep_induction_given_sharp",
    "Share of sharp heads that are induction heads.",
)
generic_figure(
    "induction_overlap",
    "sweep_proportion_induction",
    "Share of all heads that are induction heads.",
)
