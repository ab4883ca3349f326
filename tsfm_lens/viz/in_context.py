"""Regression in context: errors by the rank of the scores, and by the number of pairs, beside least squares."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.noise import mean_of_seeds
from tsfm_lens.viz.select import array, draws, names
from tsfm_lens.viz.sheet import Panel, sheet
from tsfm_lens.viz.theme import CATEGORICAL, INK, mixed

__all__ = ["in_context_errors"]


@draws("in_context_runs", needs=("by_pairs", "oracle"))
def in_context_errors(ds: xr.Dataset) -> go.Figure:
    """Error after the last pair by the rank of the scores or the model's width, and error by the number of pairs.

    Args:
        ds: of kind "in_context_runs".

    Returns:
        Left the mean over seeds with its 95 % interval, and every seed as a small point, over the rank of a head's
        scores by the inputs, or over the width where there are several; right the means over the number of pairs, at
        the largest width. Dotted: the expected error of least squares.

    Example:
        >>> fig = viz.in_context_errors(lab.record("in_context"))
        >>> fig.layout.meta["title"]
        'Regression in context'
    """
    widths = np.asarray(ds["width"].values) if "width" in ds.coords else np.zeros(ds.sizes["arm"])
    by = "width" if len(np.unique(widths)) > 1 else "rank"
    made = sheet([320], (1, 1), titles=("after the last pair", "by pairs seen"), column_gap=0.12, min_width=760)
    last, by_pairs = made
    errors = array(ds, "by_pairs", "arm", "seed", "pairs")
    at = np.asarray(ds["rank_ratio"].values, float) if by == "rank" else widths.astype(float)
    titles = [str(value) for value in ds["group"].values] if "group" in ds.coords else names(ds, "arm")
    pairs, shift = np.arange(errors.shape[2]), _beside(at)
    for place, title in enumerate(dict.fromkeys(titles)):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        rows = [row for row, name in enumerate(titles) if name == title and np.isfinite(errors[row, :, -1]).any()]
        rows.sort(key=lambda row: float(at[row]))
        known = {row: errors[row][np.isfinite(errors[row, :, -1])] for row in rows}
        if len(rows) > 1:
            means = [known[row][:, -1].mean() for row in rows]
            last.line([at[row] * shift[row] for row in rows], means, "", "", colour=mixed(colour, 0.6), width=1.2)
        for row in rows:
            _arm(last, float(at[row] * shift[row]), known[row][:, -1], title, colour)
        if rows:
            hover = f"{title}<br>after %{{x}} pairs: %{{y:.3g}}"
            by_pairs.line(pairs, known[rows[-1]].mean(0), title, hover, colour=colour, width=1.8, dots=4)
    oracle = array(ds, "oracle", "pairs")
    words = "least squares, expected"
    by_pairs.line(pairs, oracle, words, f"{words}<br>%{{x}} pairs: %{{y:.3g}}", colour=INK, width=1.4, dash="dot")
    last.line(at[[at.argmin(), at.argmax()]], np.repeat(oracle[-1], 2), words, "", colour=INK, dash="dot")
    last.x("rank of a head's scores / inputs" if by == "rank" else "width D", **log_axis(at))
    by_pairs.x("pairs seen before" if by == "rank" else f"pairs seen before, D = {widths.max():g}")
    made.y("squared error, of 1 without learning", rangemode="tozero")
    seeds = [int(np.isfinite(one[:, -1]).sum()) for one in errors]
    count = f"{min(seeds)} to {max(seeds)} seeds" if min(seeds) < max(seeds) else f"{max(seeds)} seeds"
    return made.dress(
        "Regression in context", f"d = {ds.attrs.get('inputs', '?')}", f"{count}, 95 % intervals of means"
    )


def _beside(ratio: np.ndarray) -> np.ndarray:
    """Factors that set arms of one rank side by side."""
    out = np.ones(len(ratio))
    for value in np.unique(ratio):
        same = np.flatnonzero(ratio == value)
        out[same] = 1.07 ** (np.arange(len(same)) - (len(same) - 1) / 2)
    return out


def _arm(panel: Panel, x: float, errors: np.ndarray, title: str, colour: str) -> None:
    count, noise = len(errors), mean_of_seeds(errors)
    panel.dots(
        np.full(count, x),
        errors,
        "",
        f"{title}<br>one seed: %{{y:.3g}}",
        colour=mixed(colour, 0.45),
        size=4,
        group=title,
    )
    hover = f"{title}<br>mean of {count} seeds: %{{y:.3g}}"
    panel.dots([x], noise.estimate, title, hover, colour=colour, size=9, noise=noise)
