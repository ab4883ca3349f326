"""Parroting against series whose copies are known."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from contrasted import few_draws, forecast_instead, reads_at
from tiny_lenses import fresh, lens_of
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError
from tsfm_lens.hooks import EditPattern
from tsfm_lens.models import architectures
from tsfm_lens.probes import context_parroting, lag_attention
from tsfm_lens.probes.parroting import best_lag, lag_errors, naive_parrot
from tsfm_lens.testing import assert_close
from tsfm_lens.viz import lag_attention_map

SEASON = np.array([0.0, 2.0, 1.0, 5.0, 3.0, 4.0, -1.0])


def test_a_periodic_continuation_is_a_copy_at_its_period() -> None:
    whole = np.tile(SEASON, 8)
    errors = lag_errors(whole[:42], whole[42:52])
    assert np.flatnonzero(errors < 1e-12).tolist() == [6, 13, 20, 27, 34]  # lags 7, 14, … counted from 1
    assert errors[0] == pytest.approx(np.abs(whole[42:52] - whole[41]).mean())


WAVES = {
    "sine": lambda turn: np.sin(2 * np.pi * turn),
    "square": lambda turn: np.where(turn % 1 < 0.5, 1.0, -1.0),
    "saw": lambda turn: turn % 1,
    "two harmonics": lambda turn: np.sin(2 * np.pi * turn) + np.sin(4 * np.pi * turn + 1),
    # the second harmonic is three times the fundamental: half of the period nearly is one
    "weak fundamental": lambda turn: np.sin(2 * np.pi * turn) / 3 + np.sin(4 * np.pi * turn + 1),
}
PERIODS = (3, 7, 12, 16, 24, 31, 48)


def planted(seed: int, noise: float, wave: str, period: int) -> int:
    """The lag found where a wave of this period goes on, with noise that is a share of its standard deviation."""
    rng = np.random.default_rng([seed, period, sorted(WAVES).index(wave)])
    length, horizon = 256, 24
    clean = WAVES[wave](np.arange(length + horizon) / period + rng.random())
    values = clean + noise * clean.std() * rng.normal(size=len(clean))
    # a forecast may be noisy, as samples are, or not
    forecast = values[length:] if seed % 2 else clean[length:]
    return best_lag(values[:length], forecast)


@pytest.mark.campaign
@pytest.mark.parametrize(("noise", "share"), [(0.05, 0.99), (0.2, 0.95)])
def test_the_planted_period_is_found_under_noise(noise: float, share: float) -> None:
    draws = int(os.environ.get("TSFM_LENS_CASES", "2"))
    cases = [(wave, period) for wave in WAVES for period in PERIODS]
    right = [planted(seed, noise, *case) == case[1] for case in cases for seed in range(draws)]
    assert np.mean(right) >= share


def test_a_copy_that_keeps_the_noise_is_found_where_it_was_taken() -> None:
    rng = np.random.default_rng(0)
    context = np.sin(2 * np.pi * np.arange(256) / 16) + 0.2 * rng.normal(size=256)
    assert best_lag(context, context[256 - 112 : 256 - 88]) == 112


def test_missing_values_are_left_out() -> None:
    rng = np.random.default_rng(0)
    values = np.sin(2 * np.pi * np.arange(280) / 16) + 0.1 * rng.normal(size=280)
    context = values[:256].copy()
    context[rng.permutation(256)[:40]] = np.nan
    assert best_lag(context, values[256:]) == 16
    assert best_lag(np.ones(20), np.ones(4)) == 0
    assert best_lag(np.full(20, np.nan), np.ones(4)) == 0


def test_the_parrot_finds_a_motif_that_came_once_before() -> None:
    rng = np.random.default_rng(0)
    motif, follows = rng.normal(size=8), rng.normal(size=5)
    context = np.concatenate([rng.normal(size=20), motif, follows, rng.normal(size=20), motif + 3.0])
    forecast, back = naive_parrot(context, 5, 8)  # type: ignore[misc]
    np.testing.assert_array_equal(forecast, follows)
    assert back == 5 + 20 + 8
    assert naive_parrot(context[:15], 5, 8) is None


@pytest.mark.parametrize("name", sorted(architectures()))
def test_a_model_that_repeats_its_context_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lens = fresh(name)
    values = np.tile(np.arange(2.0, 9.0), 6) if getattr(lens.adapter, "integers", False) else np.tile(SEASON, 6)
    forecast_instead(monkeypatch, lens, np.tile(values, 3))
    found = context_parroting(lens.run(values, 6, **few_draws(lens)), motif=7)
    assert float(found["best_lag"][0]) == 7
    assert float(found["copy_error"][0]) == pytest.approx(0)
    assert float(found["parrot_error"][0]) == pytest.approx(0)


def test_real_series_with_a_truth() -> None:
    context, truth = bundled("co2", "elnino").split(8)
    found = context_parroting(lens_of("chronos-bolt").run(context.tail(60), 8, truth=truth))
    assert np.isfinite(found["copy_error"]).all()
    chosen = found["lag_error"].sel(lag=found["best_lag"].astype(int))
    np.testing.assert_array_equal(found["copy_error"], chosen)
    with pytest.raises(InputError, match="motif"):
        context_parroting(lens_of("chronos-bolt").run(context, 8), motif=1)


@pytest.mark.parametrize("name", ["timesfm-2.5", "toto-1"])
def test_an_even_spread_pays_chance(name: str) -> None:
    """Under a causal mask, too: what a query cannot see is not counted."""
    lens = lens_of(name)

    def even(pattern: torch.Tensor) -> torch.Tensor:
        seen = (pattern > 0).to(pattern.dtype)
        return seen / seen.sum(-1, keepdim=True)

    with lens.edit(EditPattern(f"*.{lens.wiring.output_stack.attention_kinds()[-1]}", even)):
        found = lag_attention(lens.run(bundled("pedestrians").tail(60), 8), 12)
    assert 0 < float(found["chance"]) < 1
    assert_close(found["mass"], float(found["chance"]), depth=100, dtype=np.float32)


def test_a_lag_within_the_steps_of_one_output_token_is_said_to_tell_nothing() -> None:
    """One decoder token of Chronos-Bolt forecasts 16 steps: with a lag of 8 every token is a multiple of it back."""
    series, lens = bundled("co2").tail(60), lens_of("chronos-bolt")
    within = lag_attention(lens.run(series, 16), 8)
    assert bool(within["vacuous"])
    assert_close(within["chance"], 1.0, depth=10)
    assert "this says nothing" in lag_attention_map(within).layout.meta["subtitle"]
    beyond = lag_attention(lens.run(series, 16), 40)
    assert not bool(beyond["vacuous"])
    assert float(beyond["chance"]) < 1
    assert not bool(lag_attention(lens_of("chronos").run(series.tail(40), 6), 12)["vacuous"])


def test_a_head_that_reads_at_a_lag_has_its_mass_there() -> None:
    lens = lens_of("chronos")

    with lens.edit(EditPattern("decoder.0.cross_attn", reads_at(12))):
        at = lag_attention(lens.run(bundled("co2").tail(40), 6), 12, width=0).sel(layer="0")
        off = lag_attention(lens.run(bundled("co2").tail(40), 6), 11, width=0).sel(layer="0")
    np.testing.assert_allclose(at["mass"], 1)
    np.testing.assert_allclose(off["mass"], 0)
    assert 0 < float(at["chance"]) < 0.2
    with pytest.raises(InputError, match="lag 0"):
        lag_attention(lens.run(bundled("co2").tail(40)), 0)
