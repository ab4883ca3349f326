"""Planted forecasts: of whole models, of layers, under heavy ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from planted.series import THREE, described
from tsfm_lens.core.axes import depth_coords
from tsfm_lens.core.estimates import add_estimates

REACH = np.array([2.0, 2.0, 2.0, 0.5, 0.5])
LEVELS = (0.1, 0.5, 0.9)
DEPTH = depth_coords("layer", 2)


def forecast(
    on: xr.Dataset = THREE,
    bands: Mapping[float, np.ndarray | float] | None = None,
    paths: Sequence[float] = (),
) -> xr.Dataset:
    """The median misses the truth by 1 at every step; the 80 % band holds it at the
    first three steps.
    """
    if bands is None:
        bands = {0.1: 1 - REACH, 0.5: 1.0, 0.9: 1 + REACH}
    ds = described(on, "forecast").assign_coords(
        quantile=list(bands), season=("series", [2] * on.sizes["series"])
    )
    above = np.stack(
        [np.broadcast_to(band, ds.sizes["step"]) for band in bands.values()]
    )
    ds["quantile_forecast"] = (
        ("series", "quantile", "step"),
        ds["truth"].values[:, None] + above,
    )
    if len(paths):
        ds["sample"] = (
            ("series", "draw", "step"),
            ds["truth"].values[:, None] + np.array(paths)[:, None],
        )
    return ds


def token_lens(
    on: xr.Dataset = THREE,
    probability: np.ndarray | None = None,
    value: np.ndarray | None = None,
    entropy: np.ndarray | None = None,
    spread: Sequence[float] = (),
    levels: Sequence[float] = LEVELS,
) -> xr.Dataset:
    """Entropies 6, 5, 1 nats; the mode is the truth's bin from layer 0 on, at the
    embedding it is bin 0.
    """
    n = on.sizes["series"]
    horizon = on.sizes["step"]
    if probability is None:
        at_truth = np.eye(30)[np.tile(10 + np.arange(horizon), (n, 1))]
        at_zero = np.broadcast_to(np.eye(30)[0], at_truth.shape)
        probability = np.stack([at_zero, at_truth, at_truth])
        entropy = np.broadcast_to(
            np.array([6.0, 5.0, 1.0])[:, None, None], (3, n, horizon)
        ).copy()
    if entropy is None:
        entropy = -np.where(
            probability > 0,
            probability * np.log(np.where(probability > 0, probability, 1)),
            0,
        ).sum(-1)
    if value is None:
        value = np.arange(float(probability.shape[-1]))
    ds = described(on, "logit_lens", readout="token").assign_coords(
        depth_coords("layer", len(probability) - 1)
    )
    ds["probability"] = (("layer", "series", "step", "bin"), probability)
    ds["value"] = (("series", "bin"), np.tile(value, (n, 1)))
    ds["entropy"] = (("layer", "series", "step"), entropy)
    ds["n_peaks"] = (("layer", "series", "step"), np.ones(entropy.shape, dtype=int))
    if not len(spread):
        return ds
    distance = np.array(spread)[:, None, None, None] * (np.array(levels)[:, None] - 0.5)
    ds = ds.assign_coords(quantile=list(levels))
    ds["quantile_forecast"] = (
        ("layer", "series", "quantile", "step"),
        ds["truth"].values[None, :, None] + distance,
    )
    return ds


def quantile_lens(on: xr.Dataset = THREE) -> xr.Dataset:
    """Layer medians are 8, 2 and 0 metres above the truth."""
    ds = described(on, "logit_lens", readout="quantile").assign_coords(
        DEPTH | {"quantile": list(LEVELS)}
    )
    median = ds["truth"].values + np.array([8.0, 2.0, 0.0])[:, None, None]
    band = np.array([-1.0, 0.0, 1.0])[:, None]
    ds["quantile_forecast"] = (
        ("layer", "series", "quantile", "step"),
        median[:, :, None] + band,
    )
    return ds


def layer_gain(
    on: xr.Dataset = THREE,
    gain: np.ndarray | None = None,
    metrics: Sequence[str] = ("MAE", "RMSE"),
) -> xr.Dataset:
    """MAE: layer 0 changes by -30, -20, -10 %, layer 1 by +5 %; RMSE: nothing helps."""
    if gain is None:
        gain = np.full((2, 3, on.sizes["series"]), np.nan)
        gain[0, 1] = np.resize([-30.0, -20.0, -10.0], on.sizes["series"])
        gain[0, 2] = 5.0
        gain[1, 1:] = 2.0
    axes = ("metric", "layer", "series")
    ds = described(on[["series", "units"]], "layer_gain", reference="truth")
    ds = ds.assign_coords(DEPTH | {"metric": list(metrics)})
    ds["gain"], ds["error"] = (axes, gain), (axes, np.ones_like(gain) / 3)
    floor = xr.DataArray(np.zeros(gain.shape), dims=axes)
    return add_estimates(ds, "gain", floor=floor, signed=True, groups="metric")


def lens_logits(on: xr.Dataset = THREE) -> xr.Dataset:
    """Bins of width 5 from -50; the logit of value v at step h in layer l is (l + 1) *
    -|v - 5 h|.
    """
    ds = described(on, "logit_lens").assign_coords(depth_coords("layer", 1))
    value = np.tile(-50 + 5.0 * np.arange(40), (ds.sizes["series"], 1))
    gap = np.abs(value[:, None, :] - 5.0 * ds["step"].values[None, :, None])
    ds["logit"] = (("layer", "series", "step", "bin"), -np.stack([gap, 2 * gap]))
    ds["value"] = (("series", "bin"), value)
    return ds


def recipes(on: xr.Dataset = THREE) -> xr.Dataset:
    """Recipe r forecasts the truth + 10 r + 4 (q - 0.5); paths are the median - 1 and +
    1.
    """
    ds = described(on, "ablation_recipes").assign_coords(
        recipe=["original", "few", "many"], quantile=list(LEVELS)
    )
    median = ds["truth"].values[None] + 10.0 * np.arange(3)[:, None, None]
    spread = 4 * (np.array(LEVELS) - 0.5)[None, None, :, None]
    ds["quantile_forecast"] = (
        ("recipe", "series", "quantile", "step"),
        median[:, :, None] + spread,
    )
    ds["sample"] = (
        ("recipe", "series", "draw", "step"),
        np.stack([median - 1, median + 1], axis=2),
    )
    times = np.where(np.arange(ds.sizes["series"]) == 0, 1.0, 2.0)
    ds["mean_shift"] = (
        ("recipe", "series"),
        10.0 * np.repeat(np.arange(3)[:, None], ds.sizes["series"], axis=1),
    )
    ds["spearman_distance"] = (
        ("recipe", "series"),
        np.array([0.0, 0.25, 1.0])[:, None] * times,
    )
    ds["mae_change"] = (
        ("recipe", "series"),
        np.array([0.0, 0.5, 1.0])[:, None] * times,
    )
    ds["components"] = (
        "recipe",
        ["", "decoder.0.cross_attn.0", "decoder.*.cross_attn.*, decoder.*.mlp"],
    )
    ds["n_heads"], ds["n_mlps"] = ("recipe", [0, 1, 6]), ("recipe", [0, 0, 2])
    ds["heads_share"] = ("recipe", [0.0, 0.125, 0.75])
    for name, signed in (("spearman_distance", False), ("mae_change", True)):
        ds = add_estimates(ds, name, floor=0.05, signed=signed)
    return ds
