"""Labelled results in closed form, for checking figures as data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr

TIME, HORIZON = 30, 6
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
IDS = ("rivers", "roads")


def base(kind: str, *, dated: bool = False) -> xr.Dataset:
    """Two series: context s*100 + t, truth s*100 + h, units per series."""
    time, step = np.arange(-TIME, 0), np.arange(HORIZON)
    offset = 100.0 * np.arange(2)[:, None]
    ds = xr.Dataset(
        {
            "context": (("series", "time"), offset + time),
            "truth": (("series", "step"), offset + step),
        },
        coords={"series": list(IDS), "time": time, "step": step, "units": ("series", ["m³/s", ""])},
        attrs={"kind": kind, "model": "toy", "units": "count", "title": "", "seed": 0, "source": ""},
    )
    if dated:
        stamps = pd.date_range("2001-01-01", periods=TIME + HORIZON, freq="D").values
        ds = ds.assign_coords(
            context_timestamp=(("series", "time"), np.tile(stamps[:TIME], (2, 1))),
            forecast_timestamp=(("series", "step"), np.tile(stamps[TIME:], (2, 1))),
        )
    return ds


def components(layers: int, heads: int, *, stack: str = "decoder") -> list[tuple[str, str, str, int, int]]:
    """(name, stack, kind, layer, head) of a small decoder, whole layers included."""
    rows = []
    for layer in range(layers):
        for kind in ("self_attn", "cross_attn"):
            rows += [(f"{stack}.{layer}.{kind}.{h}", stack, kind, layer, h) for h in range(heads)]
        rows.append((f"{stack}.{layer}.mlp", stack, "mlp", layer, -1))
        rows.append((f"{stack}.{layer}", stack, "layer", layer, -1))
    return rows


def with_components(ds: xr.Dataset, rows: list[tuple[str, str, str, int, int]]) -> xr.Dataset:
    name, stack, kind, layer, head = (list(column) for column in zip(*rows, strict=True))
    return ds.assign_coords(
        component=name,
        stack=("component", stack),
        kind=("component", kind),
        layer_index=("component", layer),
        head=("component", head),
    )


@pytest.fixture
def forecast() -> xr.Dataset:
    """Quantile q of step h of series s is s*100 + h + 4*(q - 0.5); three sampled paths h + i."""
    ds = base("forecast").assign_coords(quantile=list(QUANTILES))
    q = np.array(QUANTILES)[None, :, None]
    ds["quantile_forecast"] = (
        ("series", "quantile", "step"),
        ds["truth"].values[:, None] + 4 * (q - 0.5),
    )
    ds["sample"] = (
        ("series", "sample", "step"),
        ds["truth"].values[:, None] + np.arange(3.0)[None, :, None],
    )
    return ds


@pytest.fixture
def dated_forecast(forecast: xr.Dataset) -> xr.Dataset:
    return forecast.assign_coords(base("forecast", dated=True).coords)


@pytest.fixture
def logit() -> xr.Dataset:
    """40 bins of width 5 from -50; "embed" is uniform, "0" half uniform, "1" all on the truth's bin."""
    ds = base("logit_lens")
    ds.attrs["readout"] = "token"
    bins = 40
    value = np.tile(-50 + 5.0 * np.arange(bins), (2, 1))
    planted = np.argmin(np.abs(value[:, None, :] - ds["truth"].values[:, :, None]), axis=-1)
    sure = np.eye(bins)[planted]
    flat = np.full_like(sure, 1 / bins)
    probability = np.stack([flat, 0.5 * flat + 0.5 * sure, sure])
    entropy = -np.where(probability > 0, probability * np.log(np.where(probability > 0, probability, 1)), 0).sum(-1)
    ds = ds.assign_coords(layer=["embed", "0", "1"], quantile=list(QUANTILES))
    ds["probability"] = (("layer", "series", "step", "bin"), probability)
    ds["value"] = (("series", "bin"), value)
    ds["entropy"] = (("layer", "series", "step"), entropy)
    ds["n_peaks"] = (("layer", "series", "step"), np.ones(entropy.shape))
    spread = np.array([400.0, 20.0, 4.0])[:, None, None, None] * (np.array(QUANTILES)[:, None] - 0.5)
    ds["quantile_forecast"] = (
        ("layer", "series", "quantile", "step"),
        ds["truth"].values[None, :, None] + spread,
    )
    return ds


@pytest.fixture
def gain() -> xr.Dataset:
    """Gain of metric m, layer l, series s is 10*m - l + 4*s; the first layer has none."""
    ds = base("layer_gain").assign_coords(metric=["sMAPE", "MAE", "RMSE"], layer=["embed", "0", "1"])
    values = 10.0 * np.arange(3)[:, None, None] - np.arange(3.0)[:, None] + 4.0 * np.arange(2)
    values[:, 0] = np.nan
    ds["gain"] = (("metric", "layer", "series"), values)
    ds.attrs["reference"] = "truth"
    return ds


@pytest.fixture
def ablation() -> xr.Dataset:
    """Component c has Spearman distance c/100 on "rivers" and three times that on "roads"."""
    ds = with_components(base("ablation"), components(2, 3))
    count = np.arange(ds.sizes["component"], dtype=float)
    distance = count[:, None] / 100 * np.array([1.0, 3.0])
    ds["spearman_distance"] = (("component", "series"), distance)
    ds["mae_change"] = (("component", "series"), distance - 0.05)
    ds["baseline_forecast"] = (("series", "step"), ds["truth"].values + 0.5)
    ds["forecast"] = (
        ("component", "series", "step"),
        ds["truth"].values[None] + count[:, None, None],
    )
    return ds


@pytest.fixture
def attribution() -> xr.Dataset:
    """Component c adds (c - 5) * (h + 1) logits; "expected_value" ten times that, in data units."""
    rows = [("embed", "decoder", "embed", -1, -1), *components(2, 2)]
    ds = with_components(base("attribution"), rows)
    ds = ds.assign_coords(decomposition=["logit", "expected_value"], unit=("decomposition", ["logit", "data units"]))
    one = (np.arange(len(rows)) - 5.0)[:, None, None] * (np.arange(HORIZON) + 1.0)
    both = np.stack([one, 10 * one])
    ds["attribution"] = (("decomposition", "component", "series", "step"), np.tile(both, (1, 1, 2, 1)))
    ds["completeness_error"] = (("decomposition", "series"), np.array([[0.0, 0.0], [0.02, 0.03]]))
    return ds


@pytest.fixture
def attention() -> xr.Dataset:
    """Patches of 4 over 12 context steps and a REG key; queries are two forecast steps and START.

    Weight of head h, layer l from query q to key k is proportional to 1 + k + 5q + h + 2l.
    """
    start = np.array([-12, -8, -4, -1])
    stop = np.array([-8, -4, 0, -1])
    q, k = np.arange(3)[:, None], np.arange(4)
    raw = 1.0 + k + 5 * q + np.arange(2)[:, None, None] + 2 * np.arange(2)[:, None, None, None]
    pattern = raw / raw.sum(-1, keepdims=True)
    return xr.Dataset(
        {
            "pattern": (("layer", "head", "query", "key"), pattern),
            "entropy": (("layer", "head"), -(pattern * np.log(pattern)).sum(-1).mean(-1)),
            "context": (("time",), np.arange(12.0)),
        },
        coords={
            "layer": ["0", "1"],
            "head": [0, 1],
            "time": np.arange(-12, 0),
            "key_start": ("key", start),
            "key_stop": ("key", stop),
            "key_special": ("key", ["", "", "", "REG"]),
            "query_start": ("query", [-1, 0, 1]),
            "query_stop": ("query", [-1, 1, 2]),
            "query_special": ("query", ["START", "", ""]),
        },
        attrs={
            "kind": "attention",
            "model": "toy",
            "stack": "decoder",
            "attention": "cross_attn",
            "series": "rivers",
        },
    )
