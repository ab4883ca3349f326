"""Planted copies and seasons."""

from __future__ import annotations

import numpy as np
import xarray as xr

from planted.series import THREE, described
from tsfm_lens.core.estimates import add_estimates


def parroting(on: xr.Dataset = THREE) -> xr.Dataset:
    """The forecast is the context 7 back; the truth is further away; the last context
    is constant.
    """
    ds = described(on, "context_parroting", motif=4)
    n, time, horizon = (ds.sizes[name] for name in ("series", "time", "step"))
    lag = np.arange(1, time)
    error = np.tile(np.abs(lag - 7) / 10.0, (n, 1))
    error[-1] = np.nan
    best = np.full(n, 7.0)
    best[-1] = np.nan
    copied = ds["context"].values[:, time - 7 : time - 7 + horizon]
    ds = ds.assign_coords(lag=lag)
    ds["forecast"], ds["parrot"] = (
        (("series", "step"), copied),
        (("series", "step"), copied + 1.0),
    )
    ds["lag_error"], ds["best_lag"] = (("series", "lag"), error), ("series", best)
    ds["copy_error"] = ("series", np.where(best > 0, 0.0, np.nan))
    ds["parrot_error"], ds["parrot_match"] = (
        ("series", np.full(n, 0.5)),
        ("series", np.full(n, 9.0)),
    )
    for name in ("copy_error", "parrot_error"):
        ds = add_estimates(ds, name, floor=0.01)
    return ds


def seasonality(on: xr.Dataset = THREE) -> xr.Dataset:
    """The forecast has half of the context's amplitude at period 4, the truth all."""
    ds = described(on, "seasonality_bias", patch=3)
    n = ds.sizes["series"]
    ds = ds.assign_coords(
        part=["context", "forecast", "truth"], trial_period=[3.0, 4.0, 5.0]
    )
    curve = np.tile(np.array([0.1, 1.0, 0.2]), (n, 1))
    ds["amplitude"] = (
        ("part", "series", "trial_period"),
        np.stack([factor * curve for factor in (1.0, 0.5, 1.0)]),
    )
    known = {
        "period": 4.0,
        "context_amplitude": 2.0,
        "forecast_amplitude": 1.0,
        "truth_amplitude": 2.0,
    }
    known |= {
        "amplitude_ratio": 0.5,
        "amplitude_change": -0.5,
        "spread_ratio": 0.5,
        "patch_pull": 0.0,
    }
    for name, value in known.items():
        ds[name] = ("series", np.full(n, value))
    # the first series is flattened, and pulled to the patch
    ds["spread_ratio"][0], ds["patch_pull"][0] = 0.1, 0.5
    for name in ("amplitude_change", "patch_pull"):
        ds = add_estimates(ds, name, floor=0.01, signed=True)
    return ds
