"""Induction heads, and their overlap with sharp ones.

A sharp head has a low entropy of attention. :func:`past_both` decides which heads are
significantly above both thresholds of induction; :func:`induction_corner` draws the two
scores against each other.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.core.stats import LEVEL, holm, sign_test
from tsfm_lens.viz.select import array, name_model, names
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.summary import labelled, summary
from tsfm_lens.viz.theme import BLUE, GREY, VERMILION, mixed, number

__all__ = ["induction_corner"]


_DIMS = ("layer", "head")
_THRESHOLDS = {"prefix_matching": "prefix_from", "copy_score": "copy_from"}


def past_both(ds: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the heads above both thresholds, and those that are undecided.

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


# Width and height of a label, as shares of the axes of the narrowest figure.
_LABEL = (0.1, 0.05)
# colour and symbol of dots: of all heads, or of those that are not sharp; of sharp ones
_STYLES = ((GREY, "circle"), (BLUE, "diamond"))
_MAX_LABELLED = 24  # heads; of more, those in the corner alone have their names


@figure(
    "induction_overlap",
    "Prefix matching and copying of every head, and which are sharp.",
    table=("prefix_matching", "copy_score", "normalised", "induction", "sharp"),
    sentences=summary(
        "Heads that are significantly induction heads: {surely:which}; undecided: "
        "{undecided:count}.",
        "Highest prefix matching: {prefix_matching:highest}; it takes {prefix_from}.",
        "Highest copy score: {copy_score:highest}; it takes {copy_from}.",
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
    """Draw every head by its prefix matching and its copy score.

    The shaded corner holds the heads past both thresholds.

    Args:
        ds: result of kind "induction_overlap" or "induction_scores".

    Returns:
        One panel with a point for each head: prefix matching as a share of attention,
        and the copy score in standard deviations.

    Example:
        >>> scores = probes.induction_scores(lens, motif=8, n_sequences=8)
        >>> viz.induction_corner(scores).layout.meta["title"]
        'Induction heads of chronos-nano: 3 of 12'
    """
    prefix, copy = (array(ds, name, *_DIMS).ravel() for name in _THRESHOLDS)
    prefix_from, copy_from = (float(ds.attrs[key]) for key in _THRESHOLDS.values())
    # array() returns booleans as floats
    induction = array(ds, "induction", *_DIMS).ravel() > 0
    groups = {"heads": np.ones_like(induction)}
    sharpness = ""
    if "sharp" in ds:
        sharp = array(ds, "sharp", *_DIMS).ravel() > 0
        groups = {"other heads": ~sharp, "sharp heads": sharp}
        sharpness = (
            "sharp: entropy of attention below"
            f" {number(float(ds.attrs['sharp_below']))} of its range, along"
            f" {ds.attrs.get('entropy_along', 'forecasts')}"
        )
    labels = [
        f"L{layer}H{head}" for layer in names(ds, "layer") for head in names(ds, "head")
    ]
    is_named = induction | (len(labels) <= _MAX_LABELLED)
    shown_names = np.where(is_named, labels, "")
    x_range, y_range = (
        _reach(values, threshold)
        for values, threshold in ((prefix, prefix_from), (copy, copy_from))
    )
    sides = _label_sides(
        prefix / np.ptp(x_range), copy / np.ptp(y_range), shown_names != ""
    )
    canvas = blank(340, 420)
    panel = canvas.panel()
    panel.shape(
        "rect",
        (prefix_from, x_range[1]),
        (copy_from, y_range[1]),
        fillcolor=mixed(VERMILION, 0.14),
        line_width=0,
        layer="below",
    )
    for (word, mask), (colour, symbol) in zip(groups.items(), _STYLES, strict=False):
        if mask.any():
            panel.dots(
                prefix[mask],
                copy[mask],
                f"{word} ({int(mask.sum())})" if sharpness else "",
                "%{customdata}<br>prefix matching %{x:.3g}<br>copy score %{y:.3g}",
                colour=colour,
                symbol=symbol,
                mode="markers+text",
                text=shown_names[mask],
                customdata=np.array(labels)[mask],
                textposition=sides[mask].tolist(),
                textfont_size=11,
            )
    corner = f"past both: {int(induction.sum())} of {induction.size}"
    panel.note(corner, x_range[1], y_range[1], xanchor="right", yanchor="top")
    panel.vline(prefix_from, dash="4px,3px")
    panel.hline(copy_from, dash="4px,3px")
    panel.x("prefix matching (share of attention)", range=x_range)
    panel.y("copy score (standard deviations)", range=y_range)
    surely, undecided = past_both(ds)
    position = {
        "last": "at the last decoder position",
        "first": "after the prompt",
    }.get(ds.attrs.get("positions", ""), "")
    return canvas.finalize(
        f"Induction heads of {name_model(ds)}: {int(induction.sum())} of"
        f" {induction.size}",
        f"shaded: mean prefix matching of {number(prefix_from)} and copy score of"
        f" {number(copy_from)} or more, {position}".removesuffix(", "),
        f"significant over all heads together: {int(surely.sum())}, undecided:"
        f" {int(undecided.sum())}",
        sharpness,
    )


figure(
    "induction_scores",
    "Prefix matching and copying of every head.",
    table=("prefix_matching", "copy_score", "induction"),
    sentences=summary(
        "Induction heads, whose mean prefix matching is at least {prefix_from} and "
        "mean copy score at least {copy_from}: {induction:which}.",
        "Heads significantly above both thresholds: {surely:which}; undecided: "
        "{undecided:count}.",
        "The model predicts the motif's next token in {copy_accuracy:percent} of "
        "cases.",
        surely=lambda ds: labelled(ds, past_both(ds)[0], *_DIMS),
        undecided=lambda ds: labelled(ds, past_both(ds)[1], *_DIMS),
    ),
)(induction_corner)


def _reach(values: np.ndarray, threshold: float) -> tuple[float, float]:
    """Return a range that holds all values, and some of what lies past a threshold."""
    known = np.append(values[np.isfinite(values)], [0.0, 1.25 * threshold])
    pad = 0.08 * float(np.ptp(known))
    return float(known.min()) - pad, float(known.max()) + pad


def _label_sides(x: np.ndarray, y: np.ndarray, named: np.ndarray) -> np.ndarray:
    """Return where the labels of points stand, whose places are shares of the axes.

    They stand over the points, or under those whose label would cover another.
    """
    sides = np.full(x.shape, "top center", dtype=object)
    above: list[int] = []
    for at in np.flatnonzero(named):
        near = [
            other
            for other in above
            if abs(x[at] - x[other]) < _LABEL[0] and abs(y[at] - y[other]) < _LABEL[1]
        ]
        if near:
            sides[at] = "bottom center"
        else:
            above.append(int(at))
    return sides
