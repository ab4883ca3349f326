"""Seasonality bias: the amplitudes of forecast and truth, period by period."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.select import array, check, model_of, names, series_position, shown
from tsfm_lens.viz.theme import BLUE, GREEN, GREY, INK, dress, plain

__all__ = ["season_amplitudes"]

_PARTS = {
    "context": {"color": GREY, "width": 1.2},
    "truth": {"color": INK, "width": 1.4, "dash": "2px,2px"},
    "forecast": {"color": BLUE, "width": 2},
}
_TICKS = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def season_amplitudes(ds: xr.Dataset, *, series: Sequence[str | int] | None = None) -> go.Figure:
    """How strong each period is in the end of the context, the forecast and the truth, a panel a series.

    Args:
        ds: of kind "seasonality".
        series: ids, or places counted from 0; the first nine unless given.

    Returns:
        Three lines over the period, all of stretches of equal length; the context's period is marked, and the
        patch length where the model reads patches.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such series.
    """
    check(ds, "seasonality", "amplitude", "period", "amplitude_ratio")
    every = range(min(ds.sizes["series"], 9)) if series is None else series
    chosen = [series_position(ds, one) for one in every]
    parts = [part for part in _PARTS if part in names(ds, "part")]
    trial = np.asarray(ds["trial_period"].values, dtype=float)
    amplitude = array(ds, "amplitude", "part", "series", "trial_period")
    period, ratio = (array(ds, name, "series") for name in ("period", "amplitude_ratio"))
    patch = int(ds.attrs.get("patch", 0))
    ids = names(ds, "series")
    ratios = ["–" if np.isnan(value) else f"{value:.2f}" for value in ratio]
    titles: list[tuple[str, ...]] = [(ids[i], f"period {period[i]:.3g}: {ratios[i]} × context") for i in chosen]
    grid = panel_grid(titles, row_height=160)
    for panel, (i, (row, col)) in enumerate(zip(chosen, grid.places, strict=True)):
        for part in parts:
            grid.fig.add_trace(
                go.Scatter(
                    x=trial,
                    y=amplitude[names(ds, "part").index(part), i],
                    mode="lines",
                    name="end of the context" if part == "context" else part,
                    legendgroup=part,
                    showlegend=panel == 0,
                    line=_PARTS[part],
                    hovertemplate=f"{plain(ids[i])}, {part}<br>period %{{x:.3g}} steps"
                    f"<br>amplitude %{{y:.3g}} standard deviations<extra></extra>",
                ),
                row=row,
                col=col,
            )
        marks = [(period[i], GREEN, "dash"), (float(patch), GREY, "dot")]
        for where, colour, dash in marks:
            if trial[0] <= where <= trial[-1]:
                grid.fig.add_vline(x=where, line={"color": colour, "width": 1.2, "dash": dash}, row=row, col=col)
    grid.fig.update_yaxes(rangemode="tozero", nticks=5)
    title_axes(grid, "period (steps)", "amplitude (sd of the context)")
    ticks = [tick for tick in _TICKS if trial[0] <= tick <= trial[-1]]
    grid.fig.update_xaxes(type="log", tickvals=ticks[:: -(-len(ticks) // 7) or 1])
    dotted = f"; dotted: the patch length, {patch} steps" if patch > 1 else ""
    return dress(
        grid.fig,
        f"Seasons in the forecasts of {model_of(ds)}",
        f"amplitude of the best sine of each period over {ds.sizes['step']} steps; dashed: the context's strongest "
        f"period{dotted}; {shown([ids[i] for i in chosen])}",
        legend_rows=1,
        **grid.room,
    )
