"""Planted results whose numbers are functions of the place, for checking figures as
data.
"""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import planted

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@pytest.fixture
def forecast() -> xr.Dataset:
    """Quantile q of step h of series s is s*100 + h + 4*(q - 0.5); three sampled paths
    h + i.
    """
    return planted.forecast(
        planted.rivers_and_roads(), {q: 4 * (q - 0.5) for q in QUANTILES}, range(3)
    )


@pytest.fixture
def dated_forecast(forecast: xr.Dataset) -> xr.Dataset:
    return forecast.assign_coords(planted.rivers_and_roads(dated=True).coords)


@pytest.fixture
def logit() -> xr.Dataset:
    """40 bins of width 5 from -50; the embedding is uniform, layer 0 half uniform,
    layer 1 all on the truth's bin.
    """
    on = planted.rivers_and_roads()
    value = -50 + 5.0 * np.arange(40)
    sure = np.eye(40)[
        np.argmin(np.abs(value - on["truth"].values[:, :, None]), axis=-1)
    ]
    flat = np.full_like(sure, 1 / 40)
    probability = np.stack([flat, 0.5 * flat + 0.5 * sure, sure])
    return planted.token_lens(
        on, probability, value, spread=(400.0, 20.0, 4.0), levels=QUANTILES
    )


@pytest.fixture
def gain() -> xr.Dataset:
    """Gain of metric m, layer l, series s is 10*m - l + 4*s; layer 0 has none."""
    values = (
        10.0 * np.arange(3)[:, None, None]
        - np.arange(3.0)[:, None]
        + 4.0 * np.arange(2)
    )
    values[:, 0] = np.nan
    return planted.layer_gain(
        planted.rivers_and_roads(), values, ("sMAPE", "MAE", "RMSE")
    )


@pytest.fixture
def ablation() -> xr.Dataset:
    """Component c has Spearman distance c/100 on "rivers" and three times that on
    "roads".
    """
    rows = planted.components(2, 3, ("self_attn", "cross_attn"))
    count = np.arange(len(rows), dtype=float)
    distance = count[:, None] / 100 * np.array([1.0, 3.0])
    on = planted.rivers_and_roads()
    return planted.ablation(
        on, rows, distance, moved=count, baseline=0.5, free=0.05, floor=0.0
    )


@pytest.fixture
def attribution() -> xr.Dataset:
    """Component c adds (c - 5) * (h + 1) logits; "expected_value" ten times that, in
    data units.
    """
    rows = [planted.EMBED, *planted.components(2, 2, ("self_attn", "cross_attn"))]
    on = planted.rivers_and_roads()
    one = (np.arange(len(rows)) - 5.0)[:, None] * (on["step"].values + 1.0)
    return planted.attribution(
        on, rows, np.stack([one, 10 * one]), np.array([0.02, 0.03])
    )


@pytest.fixture
def attention() -> xr.Dataset:
    """Patches of 4 over 12 context steps and a REG key; queries are two forecast steps
    and START.
    """
    q = np.arange(3)[:, None]
    k = np.arange(4)
    raw = (
        1.0
        + k
        + 5 * q
        + np.arange(2)[:, None, None]
        + 2 * np.arange(2)[:, None, None, None]
    )
    queries = {
        "query_start": ("query", [-1, 0, 1]),
        "query_stop": ("query", [-1, 1, 2]),
        "query_special": ("query", ["START", "", ""]),
    }
    positions = (
        planted.tokens("key", (-12, -8, -4), (-8, -4, 0), special="REG") | queries
    )
    on = planted.rivers_and_roads().isel(time=slice(-12, None))
    return planted.attention(on, raw / raw.sum(-1, keepdims=True), positions)
