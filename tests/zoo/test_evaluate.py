"""Skill measures against hand computation, and a forecaster whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tsfm_lens.zoo.evaluate import (
    Case,
    geometric_mean,
    mase,
    measure,
    seasonal_naive,
    synthetic_cases,
    windows,
)


class LastSeason:
    """A pipeline that repeats the last four values."""

    def predict_quantiles(
        self, inputs: list[torch.Tensor], *, prediction_length: int, quantile_levels: list[float]
    ) -> tuple[torch.Tensor, None]:
        rows = [context[-4:].repeat(prediction_length)[:prediction_length] for context in inputs]
        return torch.stack(rows)[:, :, None], None


def test_seasonal_naive_fills_gaps_before_it_repeats() -> None:
    context = np.array([9.0, 1.0, 2.0, np.nan, 4.0])
    np.testing.assert_array_equal(seasonal_naive(context, 3, 5), [2, 2, 4, 2, 2])


def test_mase_by_hand() -> None:
    context = np.array([0.0, 0.0, 2.0, 3.0])  # seasonal differences 2 and 3, mean 2.5
    assert mase(np.array([1.0, 1.0]), np.array([6.0, 1.0]), context, 2) == pytest.approx(2.5 / 2.5)


def test_geometric_mean_of_reciprocals_is_one() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)


def test_windows_do_not_overlap_and_see_no_future() -> None:
    case = Case("ramp", np.arange(100.0), 4)
    pairs = list(windows(case, 10))
    assert len(pairs) == 5
    np.testing.assert_array_equal(np.concatenate([truth for _, truth in pairs[::-1]]), np.arange(50.0, 100.0))
    assert all(context[-1] == truth[0] - 1 for context, truth in pairs)


def test_a_seasonal_naive_model_has_ratio_one() -> None:
    values = np.random.default_rng(0).normal(size=120)
    cases = [Case("noise", values, 4), Case("walk", values.cumsum(), 4)]
    results = measure(LastSeason(), cases, horizon=12)
    assert [result.name for result in results] == ["noise", "walk"]
    assert [result.ratio for result in results] == pytest.approx([1.0, 1.0], rel=1e-5)


def test_short_cases_are_left_out() -> None:
    assert measure(LastSeason(), [Case("short", np.arange(20.0), 4)], horizon=12) == []


def test_held_out_series_have_their_season() -> None:
    for case in synthetic_cases(count=12):
        lagged = np.abs(case.values[case.season :] - case.values[: -case.season]).mean()
        other = np.abs(case.values[case.season // 2 :] - case.values[: -(case.season // 2)]).mean()
        assert lagged < other
