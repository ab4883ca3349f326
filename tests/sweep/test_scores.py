"""Sums against gluonts's own evaluation of all windows at once; distances against scipy
one pair at a time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gluonts.dataset.split import split
from gluonts.ev import metrics as ev
from gluonts.ev.ts_stats import seasonal_error
from gluonts.model.evaluation import evaluate_forecasts
from gluonts.model.forecast import QuantileForecast, SampleForecast
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.stats import pearsonr, spearmanr

from tsfm_lens.sweep.statistics.scores import (
    DISTANCES,
    METRICS,
    SUMS,
    forecast_distances,
    pooled,
    window_scores,
)
from tsfm_lens.testing import assert_close, rounding

DECILES = tuple(k / 10 for k in range(1, 10))
LEVELS = (
    DECILES,
    (0.1, 0.5, 0.9),
    (0.05, 0.2, 0.45, 0.7, 0.95),
    (0.025, 0.1, 0.5, 0.9, 0.975),
    (0.3, 0.8),
)
# our name, gluonts's name and definition
DEFINITIONS = {
    "MASE": ("MASE[0.5]", ev.MASE()),
    "sMAPE": ("sMAPE[0.5]", ev.SMAPE()),
    "MSE": ("MSE[mean]", ev.MSE()),
    "MSE[0.5]": ("MSE[0.5]", ev.MSE(forecast_type="0.5")),
    "RMSE": ("RMSE[mean]", ev.RMSE()),
    "NRMSE": ("NRMSE[mean]", ev.NRMSE()),
    "ND": ("ND[0.5]", ev.ND()),
    "MAE": ("MAE[0.5]", ev.MAE()),
    "MAPE": ("MAPE[0.5]", ev.MAPE()),
    "MSIS": ("MSIS", ev.MSIS()),
    "CRPS": (
        "mean_weighted_sum_quantile_loss",
        ev.MeanWeightedSumQuantileLoss(DECILES),
    ),
}


def drawn(rng: np.random.Generator, n: int, horizon: int) -> dict[str, Any]:
    """Windows with everything that goes wrong in a benchmark: gaps, zeros, constant and
    empty contexts.
    """
    context = rng.normal(size=(n, 20)) * 10.0 ** rng.integers(-3, 4, size=(n, 1))
    context[rng.random(context.shape) < 0.1] = np.nan
    label = rng.normal(size=(n, horizon)) + rng.integers(-2, 3, size=(n, 1))
    label[rng.random(label.shape) < 0.2] = np.nan
    label[rng.random(label.shape) < 0.2] = 0.0
    if n > 3:
        context[1], context[2], label[3] = 5.0, np.nan, np.nan
    context[0, :4] = 1.0, 2.0, 4.0, 8.0
    label[0, 0] = 3.0
    return {"context": context, "label": label}


def gluonts_metrics(
    windows: dict[str, Any], forecasts: list[Any], season: int
) -> dict[str, float]:
    horizon = windows["label"].shape[1]
    start = pd.Period("2020-01-01", freq="D")
    rows = [
        {"start": start, "target": np.concatenate(pair)}
        for pair in zip(windows["context"], windows["label"], strict=True)
    ]
    _, template = split(rows, offset=-horizon)
    table = evaluate_forecasts(
        forecasts,
        test_data=template.generate_instances(prediction_length=horizon),
        metrics=[definition for _, definition in DEFINITIONS.values()],
        axis=None,
        mask_invalid_label=True,
        seasonality=season,
    )
    return {
        ours: float(table[theirs].iloc[0]) for ours, (theirs, _) in DEFINITIONS.items()
    }


def scales(context: np.ndarray, season: int) -> np.ndarray:
    rows = [seasonal_error(np.ma.masked_invalid(row), season) for row in context]
    return np.array([float(np.ma.filled(row, np.nan)[0]) for row in rows])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 12),
    horizon=st.integers(1, 7),
    kind=st.sampled_from([*LEVELS, "samples", "one sample"]),
    with_mean=st.booleans(),
    cuts=st.lists(st.integers(0, 12), max_size=4),
)
def test_pooled_sums_equal_gluonts(
    seed: int, n: int, horizon: int, kind: Any, with_mean: bool, cuts: list[int]
) -> None:
    """Sums of any chunks pool to the scores of GluonTS for the whole."""
    rng = np.random.default_rng(seed)
    windows = drawn(rng, n, horizon)
    season = int(rng.integers(1, 4))
    start = pd.Period("2020-01-21", freq="D")
    scale = scales(windows["context"], season)
    given = {}
    if isinstance(kind, str):
        levels = DECILES
        quantiles = np.zeros((n, 9, horizon))
        samples = rng.normal(
            size=(n, 1 if kind == "one sample" else int(rng.integers(2, 24)), horizon)
        ).round(1)
        forecasts = [SampleForecast(sample, start) for sample in samples]
        given["samples"] = samples
    else:
        levels = kind
        quantiles = np.sort(rng.normal(size=(n, len(levels), horizon)).round(1), axis=1)
        names = [str(level) for level in levels]
        means = rng.normal(size=(n, 1, horizon))
        if with_mean:
            forecasts = [
                QuantileForecast(np.concatenate(pair), start, [*names, "mean"])
                for pair in zip(quantiles, means, strict=True)
            ]
            given["mean"] = means[:, 0]
        else:
            forecasts = [QuantileForecast(rows, start, names) for rows in quantiles]
    want = gluonts_metrics(windows, forecasts, season)

    total = dict.fromkeys(SUMS, 0.0)
    edges = sorted({0, n, *(trimmed for trimmed in cuts if trimmed < n)})
    for first, last in pairwise(edges):
        part = slice(first, last)
        some = {name: array[part] for name, array in given.items()}
        sums = window_scores(
            windows["label"][part], quantiles[part], levels, scale[part], **some
        )
        assert {name: array.shape for name, array in sums.items()} == dict.fromkeys(
            SUMS, (last - first,)
        )
        total = {name: total[name] + sums[name].sum() for name in SUMS}
    got = pooled(total)
    assert set(got) == set(METRICS) == set(want)
    for name, value in want.items():
        assert_close(got[name], value, depth=10000, what=name)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["quantiles", "mean", "samples"])
def test_infinite_forecast_is_counted_without_score(bad: float, where: str) -> None:
    """A forecast that is not finite is counted and gives no number."""
    truth = np.array([[1.0, np.nan], [1.0, np.nan]])
    arrays = {
        "quantiles": np.ones((2, 9, 2)),
        "mean": np.ones((2, 2)),
        "samples": np.ones((2, 5, 2)),
    }
    arrays[where][1, ..., 0] = bad  # where the label is known
    arrays[where][:, ..., 1] = bad  # where it is not
    given = {
        name: array for name, array in arrays.items() if name in {"quantiles", where}
    }
    sums = window_scores(truth, given.pop("quantiles"), DECILES, np.ones(2), **given)
    assert sums["n_invalid"].tolist() == [0, 1]
    assert sums["n"].tolist() == [1, 0]
    assert sums["abs_error"][1] == sums["quantile_loss"][1] == sums["n_scaled"][1] == 0
    assert all(np.isfinite(value).all() for value in sums.values())
    one, both = (
        {name: value[:k].sum() for name, value in sums.items()} for k in (1, 2)
    )
    assert all(
        np.isfinite(pooled(one)[name]) for name in ("MASE", "CRPS", "MSIS", "MSE")
    )
    assert all(np.isnan(value) for value in pooled(both).values())


def test_distances_take_the_first_steps() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 3, 80))
    trimmed = forecast_distances(a[:, :64], b[:, :64])
    for name, value in forecast_distances(a, b).items():
        assert_array_equal(value, trimmed[name])


def sbd(x: np.ndarray, y: np.ndarray) -> float:
    """Shape-based distance by sliding one series over the other."""
    x = x - x.mean()
    y = y - y.mean()
    best = -np.inf
    for shift in range(-len(x) + 1, len(x)):
        pairs = [(x[k + shift], y[k]) for k in range(len(y)) if 0 <= k + shift < len(x)]
        best = max(best, sum(a * b for a, b in pairs))
    return 1 - best / np.sqrt((x**2).sum() * (y**2).sum())


def hellinger(x: np.ndarray, y: np.ndarray) -> float:
    """Hellinger distance of the spectra by a sum over frequencies, each folded as a
    real signal's.
    """

    def share(z: np.ndarray) -> np.ndarray:
        n = len(z)
        angles = 2 * np.pi * np.outer(np.arange(1, n), np.arange(n)) / n
        power = (np.cos(angles) @ z) ** 2 + (np.sin(angles) @ z) ** 2
        folded = np.zeros(n // 2 + 1)
        for k in range(1, n):
            folded[min(k, n - k)] += power[k - 1]
        return folded / folded.sum()

    return float(np.sqrt(max(0.0, 1 - np.sqrt(share(x) * share(y)).sum())))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(3, 20),
    digits=st.integers(0, 3),
    power=st.integers(-100, 100),
)
def test_distances_of_rows_equal_single_ones(
    seed: int, steps: int, digits: int, power: int
) -> None:
    """Distances of many rows are those of each row alone."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 5, steps)).round(digits)
    # no constant row
    a[:, 0] = 7.0
    b[:, 0] = -7.0
    found = forecast_distances(a * 10.0**power, b * 10.0**power)
    assert tuple(found) == DISTANCES
    for row, (x, y) in enumerate(zip(a, b, strict=True)):
        want = {
            "spearman_distance": 1 - spearmanr(x, y).statistic,
            "pearson_distance": 1 - pearsonr(x, y).statistic,
            "spectral_distance": hellinger(x, y),
            "shape_distance": sbd(x, y),
            "slope_disagreement": np.mean(np.sign(np.diff(x)) != np.sign(np.diff(y))),
            "mean_shift": sum(abs(x - y)) / steps * 10.0**power,
        }
        for name, value in want.items():
            # distances are one less a share; the spectral one is its root
            near = rounding(np.float64, max(1.0, value), depth=100)
            if name == "spectral_distance":
                near = near**0.5
            assert abs(found[name][row] - value) <= near, name


def test_degenerate_forecasts_have_defined_distances() -> None:
    """Constant, short and broken forecasts have defined distances."""
    flat = np.full((1, 6), 0.1)
    wave = np.array([[1.0, 2.0, 0.0, 1.0, 5.0, 1.0]])
    one = forecast_distances(flat, wave)
    both = forecast_distances(flat, flat)
    for name in (
        "spearman_distance",
        "pearson_distance",
        "shape_distance",
        "spectral_distance",
    ):
        assert one[name][0] == 1.0
        assert np.isnan(both[name][0])
    assert (one["slope_disagreement"][0], both["slope_disagreement"][0]) == (1.0, 0.0)
    short = forecast_distances(flat[:, :1], wave[:, :1])
    assert {name for name in DISTANCES if np.isnan(short[name][0])} == {*DISTANCES} - {
        "mean_shift"
    }
    assert short["mean_shift"][0] == pytest.approx(0.9)
    for bad in (np.nan, np.inf):
        broken = np.where(np.arange(6) == 2, bad, wave)
        rows = forecast_distances(
            np.concatenate([broken, wave]), np.concatenate([wave, wave])
        )
        assert all(
            np.isnan(rows[name][0]) and np.isfinite(rows[name][1]) for name in DISTANCES
        )
