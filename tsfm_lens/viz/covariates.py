"""Figure of what forecasts are without each covariate."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.select import array, draws, model_of, names, shown
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.theme import CATEGORICAL, plain

__all__ = ["covariate_dots"]

WORDS = {"removed": "removed", "constant": "constant, at its mean", "shuffled": "in random order"}
_APART = 0.22


@draws("covariate_use", needs=("moved", "moved_estimate"))
def covariate_dots(ds: xr.Dataset) -> go.Figure:
    """Draw how much forecasts move without each covariate and, with the truth, what it was worth.

    Args:
        ds: of kind "covariate_use".

    Returns:
        A panel of the change of the forecast and, with a truth, one of the change of its error; a row per covariate
        with a dot for each way to go without it, its 95 % interval over series, hollow within the noise.

    Example:
        >>> "covariate_dots" in viz.__all__
        True
    """
    covariates, ways = names(ds, "covariate"), names(ds, "way")
    panels = [("moved", "change of the median forecast\n(MASE)", "moves the forecast")]
    if "worth" in ds:
        panels.append(("worth", "change of the error without it\n(MASE; above 0: it helps)", "is worth"))
    height = max(150, 64 * len(covariates))
    canvas = sheet(
        [height], [1] * len(panels), column_gap=0.05, min_width=360 * len(panels), below=68, shared_yaxes=True
    )
    for panel, (name, title, _) in zip(canvas, panels, strict=True):
        for place, way in enumerate(ways):
            noise = finding(ds, name, "covariate", unit="MASE", way=place)
            mean = array(ds, f"{name}_estimate", "covariate", way=place)
            at = np.arange(len(covariates)) + _APART * (place - (len(ways) - 1) / 2)
            look: dict[str, Any] = {"text": [f"{plain(each)}, {WORDS.get(way, way)}" for each in covariates]}
            hover = "%{text}<br>%{x:.3g} MASE"
            colour = CATEGORICAL[place % len(CATEGORICAL)]
            panel.dots(mean, at, WORDS.get(way, way), hover, colour=colour, noise=noise, across=True, **look)
        panel.upright(0.0)
        panel.x(title)
    ticks = [f"{plain(name)}<br>({role})" for name, role in zip(covariates, ds["role_of"].values, strict=True)]
    canvas.y(tickvals=list(range(len(covariates))), ticktext=ticks, range=[len(covariates) - 0.5, -0.5], showgrid=False)
    series = names(ds, "series")
    return canvas.dress(f"Use of covariates by {model_of(ds)}", "mean over " * (len(series) > 1) + shown(series))
