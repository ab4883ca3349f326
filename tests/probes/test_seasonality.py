"""Seasons of known amplitude and period."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrasted import few_draws, forecast_instead
from tiny_lenses import fresh
from tsfm_lens.errors import InputError
from tsfm_lens.models import architectures, load
from tsfm_lens.probes import seasonality_bias
from tsfm_lens.probes.parroting import amplitude_at, dominant_period
from tsfm_lens.testing import assert_close

# of the paths on which periods are tried: a noisy season of ten turns tells its period to a fraction of one turn
FOUND = 0.02
# neighbours among the periods that are tried, as a share, and the shortest of them, of a grid that is not refined
NEXT_PERIOD, PERIOD_GRID = 0.05, 0.1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.floats(0.01, 1e4), st.floats(2.5, 20), st.floats(0, 6), st.floats(-50, 50), st.floats(-3, 3))
def test_a_sine_has_its_amplitude_whatever_it_rides_on(
    size: float, period: float, phase: float, level: float, slope: float
) -> None:
    steps = np.arange(60)
    values = size * np.sin(2 * np.pi * steps / period + phase) + level + slope * steps
    assert_close(amplitude_at(values, period), size, depth=16, dtype=np.float32)
    values[7:11] = np.nan
    assert_close(amplitude_at(values, period), size, depth=16, dtype=np.float32)


def test_too_short_a_stretch_has_none() -> None:
    assert np.isnan(amplitude_at(np.arange(5.0), 12))
    assert np.isnan(amplitude_at(np.array([1.0, np.nan, np.nan, 2.0, 3.0]), 2))
    assert dominant_period(np.array([1, np.nan, np.nan, np.nan, 2, 3, np.nan, np.nan])) == 2.0


@pytest.mark.parametrize("period", [4, 7, 12, 15.5, 24])
def test_the_period_of_a_season_is_found(period: float) -> None:
    steps = np.arange(150)
    rng = np.random.default_rng(0)
    values = 3 * np.sin(2 * np.pi * steps / period) + 0.05 * steps + 0.2 * rng.standard_normal(150)
    assert dominant_period(values) == pytest.approx(period, rel=FOUND)


@pytest.mark.parametrize("name", sorted(architectures()))
def test_a_flat_forecast_has_lost_its_season(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lens = fresh(name)
    steps = np.arange(48)
    season = np.round(5 + 3 * np.sin(2 * np.pi * steps / 6))
    draws = few_draws(lens)
    plain = seasonality_bias(lens.run(season, 8, **draws))
    assert float(plain["period"][0]) == pytest.approx(6, rel=NEXT_PERIOD)
    forecast_instead(monkeypatch, lens, np.full(8, 4.0))
    found = seasonality_bias(lens.run(season, 8, truth=season[None, :8], **draws))
    assert_close(float(found["amplitude_ratio"][0]), 0, depth=100, magnitude=4.0)
    assert_close(float(found["spread_ratio"][0]), 0, depth=100, magnitude=4.0)
    assert float(found["truth_amplitude"][0]) > 2
    with pytest.raises(InputError, match="periods"):
        seasonality_bias(lens.run(season, 8, **draws), periods=[1.0])


def test_amplitudes_over_periods_are_those_of_the_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = load("bolt-nano")
    steps = np.arange(152)
    season = 3 * np.sin(2 * np.pi * steps / 8) + np.sin(2 * np.pi * steps / 4)
    forecast_instead(monkeypatch, lens, season[120:152] / 2)
    found = seasonality_bias(lens.run(season[:120], 32, truth=season[None, 120:]))
    spread = season[:120].std()
    amplitude = found["amplitude"].isel(series=0)
    assert found["trial_period"].min() == pytest.approx(3, abs=PERIOD_GRID)
    assert found["trial_period"].max() == 32
    # both periods are whole fractions of the horizon, so they are among those tried
    for period, size in ((8, 3.0), (4, 1.0)):
        at = amplitude.sel(trial_period=period, method="nearest")
        assert float(at["trial_period"]) == pytest.approx(period)
        np.testing.assert_allclose(at.sel(part=["context", "truth"]), size / spread, rtol=NEXT_PERIOD)
        assert float(at.sel(part="forecast")) == pytest.approx(float(at.sel(part="truth")) / 2)
    assert float(amplitude.sel(part="truth").idxmax()) == pytest.approx(8, rel=NEXT_PERIOD)
