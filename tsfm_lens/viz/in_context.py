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
    """Error after the last pair by the rank of the scores, and error by the number of pairs.

    Args:
        ds: of kind "in_context_runs".

    Returns:
        Left the mean over seeds with its 95 % interval, and every seed as a small point, over the rank of a head's
        scores by the inputs; right the means over the number of pairs. Dotted: the expected error of least squares.

    Example:
        >>> fig = viz.in_context_errors(lab.record("in_context"))
        >>> fig.layout.meta["title"]
        'Regression in context'
    """
    made = sheet([320], (1, 1), titles=("after the last pair", "by pairs seen"), column_gap=0.12, min_width=760)
    by_rank, by_pairs = made
    errors = array(ds, "by_pairs", "arm", "seed", "pairs")
    ratio, pairs = np.asarray(ds["rank_ratio"].values, float), np.arange(errors.shape[2])
    titles = [str(value) for value in ds["group"].values] if "group" in ds.coords else names(ds, "arm")
    shift = _beside(ratio)
    for place, (title, of_seeds) in enumerate(zip(titles, errors, strict=True)):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        known = of_seeds[np.isfinite(of_seeds[:, -1])]
        if len(known):
            _arm(by_rank, float(ratio[place] * shift[place]), known[:, -1], title, colour)
            hover = f"{title}<br>after %{{x}} pairs: %{{y:.3g}}"
            by_pairs.line(pairs, known.mean(0), title, hover, colour=colour, width=1.8, dots=4)
    oracle = array(ds, "oracle", "pairs")
    words = "least squares, expected"
    by_pairs.line(pairs, oracle, words, f"{words}<br>%{{x}} pairs: %{{y:.3g}}", colour=INK, width=1.4, dash="dot")
    by_rank.line(ratio[[ratio.argmin(), ratio.argmax()]], np.repeat(oracle[-1], 2), words, "", colour=INK, dash="dot")
    by_rank.x("rank of a head's scores / inputs", **log_axis(ratio))
    by_pairs.x("pairs seen before")
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
