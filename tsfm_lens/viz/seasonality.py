"""Amplitudes of a season in series and forecast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.select import array, model_of, names, series_position, shown
from tsfm_lens.viz.theme import BLUE, GREEN, GREY, INK, percent, plain
from tsfm_lens.viz.words import listed, num, signed

__all__ = ["season_amplitudes"]
_PARTS: dict[str, dict[str, Any]] = {
    "context": {"colour": GREY, "width": 1.2},
    "truth": {"colour": INK, "width": 1.4, "dash": "2px,2px"},
    "forecast": {"colour": BLUE, "width": 2},
}
_TICKS = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)

SEASONALITY = measurement(
    "seasonality",
    theme="Behaviour",
    title="Seasons",
    summary="power at the season, mean regression, pull towards the patch length",
    description="How strong each period is in the forecast, against the end of the context and the truth: seasons that "
    "are kept, flattened or brought in.",
    source="tsfm-lens, section 5",
)


def read_seasons(ds: xr.Dataset) -> list[str]:
    """Describe which series keep their season, which lose it, and what the patch length adds."""
    ids = names(ds, "series")
    ratio, spread = (array(ds, v, "series") for v in ("amplitude_ratio", "spread_ratio"))
    rows = np.flatnonzero(np.isfinite(ratio))
    out = []
    if not len(rows):
        out.append("No horizon is as long as the strongest period of its context, so no season can be compared.")
    else:
        parts = [f"{ids[i]} {percent(float(ratio[i]))} (period {num(float(ds['period'].values[i]))})" for i in rows[:6]]
        out.append(f"At the context's strongest period the forecast has this share of its amplitude: {listed(parts)}.")
        truth = array(ds, "truth_amplitude", "series")[rows] if "truth_amplitude" in ds else np.array([np.nan])
        if np.isfinite(truth).any():
            weaker, both = (array(ds, "forecast_amplitude", "series")[rows] < truth).sum(), np.isfinite(truth).sum()
            out.append(f"It is weaker than the truth's in {weaker} of {both} series.")
    flat = [ids[i] for i in np.flatnonzero(spread < 0.25)]
    if flat:
        out.append(f"The forecast varies less than a quarter as much as the context in {listed(flat[:6])}.")
    if "patch_pull" in ds and np.isfinite(ds["patch_pull"].values).any():
        pull = array(ds, "patch_pull", "series")
        at = int(np.nanargmax(np.abs(pull)))
        out.append(
            f"At the patch length of {ds.attrs.get('patch', '?')} steps it differs most from the context in {ids[at]}, "
            f"by {signed(pull[at])} standard deviations."
        )
    return out


@SEASONALITY.figure(
    "Seasonal amplitude of the forecast against that of context and truth.",
    variables=("amplitude", "period", "amplitude_ratio"),
    table=("amplitude",),
    sentences=read_seasons,
)
def season_amplitudes(ds: xr.Dataset, *, series: Sequence[str | int] | None = None) -> go.Figure:
    """Draw how strong each period is in the end of the context, the forecast and the truth, a panel per series.

    Args:
        ds: of kind "seasonality".
        series: ids, or places counted from 0; the first nine unless given.

    Returns:
        Three lines over the period, all of stretches of equal length; the context's period and the patch length, where
        there is one, are marked.
    """
    rows = [series_position(ds, one) for one in (range(min(ds.sizes["series"], 9)) if series is None else series)]
    trial, parts = np.asarray(ds["trial_period"].values, dtype=float), names(ds, "part")
    amplitude = array(ds, "amplitude", "part", "series", "trial_period")
    period, ratio = (array(ds, name, "series") for name in ("period", "amplitude_ratio"))
    patch, ids = int(ds.attrs.get("patch", 0)), names(ds, "series")
    ratios = ["–" if np.isnan(value) else f"{value:.2f}" for value in ratio]
    grid = panel_grid([(ids[i], f"period {period[i]:.3g}: {ratios[i]} × context") for i in rows], row_height=160)
    for panel, i in zip(grid, rows, strict=True):
        for part in filter(parts.__contains__, _PARTS):
            hover = f"{plain(ids[i])}, {part}<br>period %{{x:.3g}} steps<br>amplitude %{{y:.3g}} standard deviations"
            name = "end of the context" if part == "context" else part
            panel.line(trial, amplitude[parts.index(part), i], name, hover, **_PARTS[part])
        for where, colour, dash in ((period[i], GREEN, "dash"), (float(patch), GREY, "dot")):
            if trial[0] <= where <= trial[-1]:
                panel.upright(where, colour=colour, width=1.2, dash=dash)
    grid.y(rangemode="tozero", nticks=5)
    title_axes(grid, "period (steps)", "amplitude (sd of the context)")
    ticks = [tick for tick in _TICKS if trial[0] <= tick <= trial[-1]]
    grid.x(type="log", tickvals=ticks[:: -(-len(ticks) // 7) or 1])
    return grid.dress(
        f"Seasons in the forecasts of {model_of(ds)}",
        f"amplitude of the best sine of each period over {ds.sizes['step']} steps",
        "dashed: the context's strongest period",
        f"dotted: the patch length, {patch} steps" if patch > 1 else "",
        shown([ids[i] for i in rows]),
    )
