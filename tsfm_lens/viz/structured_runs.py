"""Grids of runs with structured scores: errors by learning rate and width, and losses by what the scores cost."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.noise import mean_of_seeds
from tsfm_lens.viz.select import array, draws, names
from tsfm_lens.viz.sheet import blank, sheet
from tsfm_lens.viz.theme import CATEGORICAL, mixed

__all__ = ["learning_rates", "losses_by_cost"]


@draws("transfer_runs", needs=("mse",))
def learning_rates(ds: xr.Dataset) -> go.Figure:
    """Error at the end by learning rate, a colour for each width, a panel for each parametrisation.

    Args:
        ds: of kind "transfer_runs".

    Returns:
        Thin lines are seeds, thick ones their mean; a diamond marks the rate of the lowest mean of a width. Rates at
        which a run came to no finite error have no point.

    Example:
        >>> fig = viz.learning_rates(lab.record("transfer"))
        >>> fig.layout.meta["title"]
        'Learning rates across widths'
    """
    titles = names(ds, "parametrisation")
    made = sheet(
        [300],
        [1] * len(titles),
        titles=titles,
        column_gap=0.05,
        min_width=230 * len(titles) + 80,
        shared_yaxes=True,
    )
    errors = array(ds, "mse", "parametrisation", "width", "rate", "seed")
    rates = np.asarray(ds["rate"].values, float)
    for panel, of_kind in zip(made, errors, strict=True):
        for place, (width, of_width) in enumerate(zip(ds["width"].values.tolist(), of_kind, strict=True)):
            colour, title = CATEGORICAL[place % len(CATEGORICAL)], f"width {width}"
            for seed in of_width.T:
                panel.line(
                    rates, seed, "", f"{title}<br>rate %{{x:.3g}}: %{{y:.3g}}", colour=mixed(colour, 0.4), width=0.8
                )
            known = np.isfinite(of_width).any(axis=1)
            if known.any():
                mean = np.where(known, np.nanmean(np.where(known[:, None], of_width, 0.0), axis=1), np.nan)
                hover = f"{title}, mean<br>rate %{{x:.3g}}: %{{y:.3g}}"
                panel.line(rates, mean, title, hover, colour=colour, width=2.2)
                best = int(np.nanargmin(mean))
                panel.dots(
                    rates[[best]], mean[[best]], "", f"best of {title}", colour=colour, size=11, symbol="diamond"
                )
        panel.x("learning rate", **log_axis(rates))
    made.panel().y("squared error, of 1 without learning")
    count = int(np.isfinite(errors).any(axis=(1, 2)).sum(-1).max())
    remark = f"thin: {count} seeds, thick: their mean" if count > 1 else "one seed"
    return made.dress("Learning rates across widths", remark, "diamonds: the best rate of a width")


@draws("level_training", needs=("loss",))
def losses_by_cost(ds: xr.Dataset) -> go.Figure:
    """Loss on held-out series by the multiply-adds of the scores, a colour for each arm.

    Args:
        ds: of kind "level_training".

    Returns:
        Small points are seeds, large ones their mean with its 95 % interval.

    Example:
        >>> fig = viz.losses_by_cost(lab.record("chronos_levels"))
        >>> fig.layout.meta["title"]
        'Loss by what the scores cost'
    """
    made = blank(300, min_width=420)
    panel = next(iter(made))
    losses, share = array(ds, "loss", "arm", "seed"), np.asarray(ds["score_share"].values, float)
    for place, (arm, of_seeds) in enumerate(zip(names(ds, "arm"), losses, strict=True)):
        colour, known = CATEGORICAL[place % len(CATEGORICAL)], of_seeds[np.isfinite(of_seeds)]
        where = np.full(len(known), share[place])
        pale = mixed(colour, 0.45)
        panel.dots(where, known, "", f"{arm}<br>one seed: %{{y:.4g}}", colour=pale, size=4, group=arm)
        panel.dots(
            share[[place]],
            known.mean(keepdims=True),
            arm,
            f"{arm}<br>mean of {len(known)} seeds: %{{y:.4g}}",
            colour=colour,
            size=9,
            noise=mean_of_seeds(known),
        )
    panel.x("multiply-adds of the encoder's scores / those of standard attention", rangemode="tozero")
    panel.y("cross-entropy in nats a step")
    count = int(np.isfinite(losses).sum(axis=1).max())
    return made.dress("Loss by what the scores cost", f"{ds.attrs.get('steps', '?')} steps, up to {count} seeds")
