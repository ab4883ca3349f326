"""Grids of training runs: errors by epoch of every arm and seed, and where they end."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.select import array, draws, names
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.theme import CATEGORICAL, INK, mixed

__all__ = ["run_curves"]


@draws("lab_runs", needs=("curve",))
def run_curves(ds: xr.Dataset) -> go.Figure:
    """Validation error by epoch, a colour for each arm.

    Args:
        ds: of kind "lab_runs".

    Returns:
        Thin lines are seeds, thick ones their geometric mean as far as all seeds go. The dotted line is the expected
        error of the least-squares oracle where ``attrs["oracle"]`` has it.

    Example:
        >>> fig = viz.run_curves(lab.record("toy"))
        >>> fig.layout.meta["title"]
        'Validation error over training'
    """
    made = blank(320, min_width=440)
    panel = next(iter(made))
    curves, epochs = array(ds, "curve", "arm", "seed", "epoch"), np.arange(ds.sizes["epoch"])
    oracle = float(ds.attrs.get("oracle", np.nan))
    for place, (arm, of_seeds) in enumerate(zip(names(ds, "arm"), curves, strict=True)):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        known = of_seeds[np.isfinite(of_seeds).any(axis=1)]
        for number, line in enumerate(known):
            hover = f"{arm}, seed {number}<br>epoch %{{x}}: %{{y:.4g}}"
            panel.line(epochs, line, "", hover, colour=mixed(colour, 0.4), width=0.8)
        mean = np.exp(np.log(known).mean(axis=0))
        panel.line(epochs, mean, arm, f"{arm}, mean<br>epoch %{{x}}: %{{y:.4g}}", colour=colour, width=2.2)
    if np.isfinite(oracle):
        ends = epochs[[0, -1]]
        hover = "least-squares oracle, expected<br>%{y:.4g}"
        panel.line(ends, np.full(2, oracle), "least-squares oracle", hover, colour=INK, width=1.2, dash="dot")
    panel.x("epoch")
    panel.y("validation error (mean square)", **log_axis(np.append(curves.ravel(), oracle)))
    count = int(np.isfinite(curves[..., 0]).sum(axis=1).max())
    return made.dress(
        "Validation error over training",
        f"thin: {count} seeds, thick: their geometric mean",
        str(ds.attrs.get("about", "")),
    )
