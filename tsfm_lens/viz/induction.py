"""Induction heads, and their overlap with sharp ones.

A sharp head has a low entropy of attention. :func:`past_both` decides which heads are
significantly above both thresholds of induction; :func:`induction_maps` maps the scores
and frames these heads, and :func:`induction_corner` draws the scores in pairs.
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

    Returns two boolean arrays (layer, head). Heads of the first are significantly above
    both thresholds. Those of the second are not, but are significantly below neither.

    The sign tests run over sequences and are corrected for all heads and both scores
    together.
    """
    if any(f"{name}_by_sequence" not in ds for name in _THRESHOLDS):
        # without values of single sequences there is nothing to test; ``induction``
        # marks the heads whose mean scores reach both thresholds
        passing = array(ds, "induction", "layer", "head") > 0
        return passing, np.zeros_like(passing)
    # (score, layer, head, sequence)
    excess = np.stack(
        [
            array(ds, f"{name}_by_sequence", "layer", "head", "sequence")
            - float(ds.attrs[key])
            for name, key in _THRESHOLDS.items()
        ]
    )

    def is_positive(values: np.ndarray) -> np.ndarray:
        p = sign_test(values, sides=1)
        return np.asarray(holm(p.ravel()).reshape(p.shape) <= LEVEL)

    is_induction = np.asarray(is_positive(excess).all(0))
    is_below = np.asarray(is_positive(-excess).any(0))
    return is_induction, ~is_induction & ~is_below


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
    is_induction, is_undecided = past_both(ds)
    target = "the last instance"
    if ds.attrs.get("offset", 1):
        target = "the token after the last instance"
    # title of the map, word and unit of its colours, and further options
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
    position = {
        "last": "at the last decoder position",
        "first": "after the prompt",
    }.get(ds.attrs.get("positions", ""))
    return head_maps(
        ds,
        maps,
        f"Induction heads of {name_model(ds)}: {int(is_induction.sum())} of"
        f" {is_induction.size} cross-attention heads",
        f"{motif} random tokens shown {repeats} times"
        + (f", scores read {position}" if position else ""),
        f"framed: {thresholds or 'induction heads'}, significant over all heads"
        " together",
        f"{int(is_undecided.sum())} more are undecided" if is_undecided.any() else "",
        outlined=is_induction,
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
# name of the group, whether its heads are induction heads, whether they are sharp,
# colour and symbol of its dots; the last group is drawn on top
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
    for x_score, y_score in pairs:
        # a score that is the same for all heads correlates with nothing
        r = float(ds["correlation"].sel(score=x_score, other_score=y_score))
        known = np.isfinite(r)
        titles.append(true_minus(f"r = {r:+.2f}") if known else "r undefined")
    canvas = sheet(
        heights=[260],
        widths=[1] * len(pairs),
        titles=titles,
        column_gap=0.1,
        min_width=700,
    )
    for panel, (x_score, y_score) in zip(canvas, pairs, strict=True):
        x, y = (array(ds, name, *_DIMS).ravel() for name in (x_score, y_score))
        _draw_scores(panel, ds, x, y)
        panel.x(_AXES[x_score], nticks=5)
        panel.y(_AXES[y_score], nticks=5)
        panel.vline(thresholds[x_score], dash="4px,3px")
        panel.hline(thresholds[y_score], dash="4px,3px")
    # (induction, sharp): index 0 counts the heads that are, index 1 those that are not
    count = ds["count"].values
    return canvas.finalize(
        f"Induction and sharpness of the {int(count.sum())} heads of {name_model(ds)}",
        f"by their means {int(count[0].sum())} are induction heads,"
        f" {int(count[:, 0].sum())} sharp, {int(count[0, 0])} both",
        f"entropy along {ds.attrs.get('entropy_along', 'forecasts')}; dashed:"
        " thresholds; r: Pearson",
    )


def _draw_scores(panel: Panel, ds: xr.Dataset, x: np.ndarray, y: np.ndarray) -> None:
    """Draw a dot for each head at two of its scores, each (layer · head,)."""
    labels = np.array(
        [
            f"layer {layer}, head {head}"
            for layer in names(ds, "layer")
            for head in names(ds, "head")
        ]
    )
    # array() returns booleans as floats
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
