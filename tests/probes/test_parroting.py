"""Parroting and seasons on series whose copies, amplitudes and periods are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from closeness import close_in_float32
from tiny_lenses import ATTENDING, archetypes, fresh, lens_of
from tiny_series import few_draws, forecast_instead, make_reader, make_series
from tsfm_lens.data import as_series, bundled
from tsfm_lens.hooks import EditPattern
from tsfm_lens.models import load
from tsfm_lens.probes import (
    context_parroting,
    head_parroting,
    lag_attention,
    seasonality_bias,
)
from tsfm_lens.probes.parroting import (
    best_lag,
    dominant_period,
    fit_amplitude,
    naive_parrot,
)
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.parroting import read_lag, read_parroting

SEASON = np.array([0.0, 2.0, 1.0, 5.0, 3.0, 4.0, -1.0])


def test_copies_are_found_at_their_source() -> None:
    """A copy that keeps the noise is found where it was taken."""
    rng = np.random.default_rng(0)
    context = np.sin(2 * np.pi * np.arange(256) / 16) + 0.2 * rng.normal(size=256)
    assert best_lag(context, context[256 - 112 : 256 - 88]) == 112


def test_missing_values_are_left_out() -> None:
    rng = np.random.default_rng(0)
    values = np.sin(2 * np.pi * np.arange(280) / 16) + 0.1 * rng.normal(size=280)
    context = values[:256].copy()
    context[rng.permutation(256)[:40]] = np.nan
    assert best_lag(context, values[256:]) == 16
    for nothing in (1.0, np.nan):
        assert best_lag(np.full(20, nothing), np.ones(4)) == 0
    # too short a stretch has no amplitude and no period
    assert np.isnan(fit_amplitude(np.arange(5.0), 12))
    gaps = np.array([1, np.nan, np.nan, np.nan, 2, 3, np.nan, np.nan])
    assert dominant_period(gaps) == 2.0


SHAPES = {
    "sine": lambda rng, turn: np.sin(2 * np.pi * turn),
    "square": lambda rng, turn: np.sign(turn % 1 - 0.5),
    # the second harmonic is three times the fundamental: half of the period nearly is
    # one
    "weak fundamental": lambda rng, turn: (
        np.sin(2 * np.pi * turn) / 3 + np.sin(4 * np.pi * turn + 1)
    ),
    "random motif": lambda rng, turn: np.resize(
        rng.standard_normal(round(1 / (turn[1] - turn[0]))), turn.size
    ),
}


@pytest.mark.parametrize("slope", [0.0, -0.4, 2.0])
@pytest.mark.parametrize("period", [7, 24])
@pytest.mark.parametrize("shape", SHAPES)
def test_seasons_on_a_trend_are_found(shape: str, period: int, slope: float) -> None:
    """A perfect forecast goes on with both; a parrot repeats the values as they are."""
    rng = np.random.default_rng([period, sorted(SHAPES).index(shape)])
    steps = np.arange(284)
    found = []
    repeated = []
    for _ in range(6):
        clean = SHAPES[shape](rng, steps / period + rng.random()) + slope * steps
        values = clean + 0.1 * rng.standard_normal(284)
        found.append(best_lag(values[:260], clean[260:]))
        parrot = np.resize(values[260 - period : 260], 24)
        repeated.append(best_lag(values[:260], parrot))
    assert np.mean(np.equal(found, period)) >= 5 / 6, found
    assert repeated == [period] * 6


@pytest.mark.parametrize("horizon", [8, 24])
@pytest.mark.parametrize("slope", [0.0, 0.1])
@pytest.mark.parametrize("forecast", ["noise", "mean"])
def test_noise_is_copied_at_no_lag(forecast: str, slope: float, horizon: int) -> None:
    """Of many lags one is always nearest; it is none unless it is nearer than chance
    brings it.
    """
    draws = 20
    found = []
    for seed in range(draws):
        noise = np.random.default_rng(seed).standard_normal(200 + horizon)
        if forecast == "mean":
            noise[200:] = noise[:200].mean()
        values = noise + slope * np.arange(len(noise))
        found.append(best_lag(values[:200], values[200:]))
    # at a level of 1 %
    assert np.count_nonzero(found) <= 2, found


def test_repeated_last_values_have_lag_1() -> None:
    """Repeating the last value is a copy at lag 1."""
    context = np.random.default_rng(0).standard_normal(200)
    assert best_lag(context, np.full(12, context[-1])) == 1


def test_forecasts_without_copies_have_no_lag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forecast that copies nothing has no lag in results and sentences."""
    lens = fresh("chronos-bolt")
    noise = np.random.default_rng(0).standard_normal((2, 100))
    forecast_instead(monkeypatch, lens, noise[1])
    run = lens.run(noise[0], 12)
    parroting = context_parroting(run)
    heads = head_parroting(run)
    for name in (
        parroting["best_lag"],
        parroting["copy_error"],
        heads["lag"],
        heads["copy_error"],
        heads["mass"],
    ):
        assert np.isnan(name).all()
    assert np.isfinite(parroting["lag_error"]).all()
    assert "at no lag" in read_parroting(parroting, 0)[0]
    assert np.isfinite(head_parroting(run, lag=7)["mass"]).all()


def test_parrots_find_a_motif_seen_once() -> None:
    """The parrot finds a motif that came once before."""
    rng = np.random.default_rng(0)
    motif = rng.normal(size=8)
    follows = rng.normal(size=5)
    context = np.concatenate(
        [rng.normal(size=20), motif, follows, rng.normal(size=20), motif + 3.0]
    )
    forecast, back = naive_parrot(context, 5, 8)  # type: ignore[misc]
    assert_array_equal(forecast, follows)
    assert back == 5 + 20 + 8
    assert naive_parrot(context[:15], 5, 8) is None


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_models_that_repeat_contexts_are_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = fresh(name)
    if getattr(lens.adapter, "integers", False):
        values = np.tile(np.arange(2.0, 9.0), 6)
    else:
        values = np.tile(SEASON, 6)
    forecast_instead(monkeypatch, lens, np.tile(values, 3))
    found = context_parroting(lens.run(values, 6, **few_draws(lens)), motif=7)
    assert float(found["best_lag"][0]) == 7
    assert float(found["copy_error"][0]) == pytest.approx(0)
    assert float(found["parrot_error"][0]) == pytest.approx(0)


@pytest.mark.parametrize("name", ["timesfm-2.5", "toto-1"])
def test_an_even_spread_pays_chance(name: str) -> None:
    """Under a causal mask, too: what a query cannot see is not counted."""
    lens = lens_of(name)

    def even(pattern: torch.Tensor) -> torch.Tensor:
        seen = (pattern > 0).to(pattern.dtype)
        return seen / seen.sum(-1, keepdim=True)

    with lens.edit(
        EditPattern(f"*.{lens.wiring.output_stack.attention_kinds()[-1]}", even)
    ):
        found = lag_attention(lens.run(bundled("pedestrians").tail(60), 8), 12)
    assert 0 < float(found["chance"]) < 1
    close_in_float32(found["mass"], float(found["chance"]))


def test_lags_within_output_tokens_tell_nothing() -> None:
    """One decoder token of Chronos-Bolt forecasts 16 steps: with a lag of 8 every token
    is a multiple of it back.
    """
    series = bundled("co2").tail(60)
    lens = lens_of("chronos-bolt")
    within = lag_attention(lens.run(series, 16), 8)
    assert bool(within["vacuous"])
    assert_close(within["chance"], 1.0, depth=10)
    assert "says nothing" in read_lag(within)[0]
    beyond = lag_attention(lens.run(series, 16), 40)
    assert not bool(beyond["vacuous"])
    assert float(beyond["chance"]) < 1
    assert not bool(
        lag_attention(lens_of("chronos").run(series.tail(40), 6), 12)["vacuous"]
    )


def test_attention_mass_lies_at_the_lag() -> None:
    """A head that reads at a lag has its attention mass there."""
    lens = lens_of("chronos")

    with lens.edit(EditPattern("decoder.0.cross_attn", make_reader(12))):
        at = lag_attention(lens.run(bundled("co2").tail(40), 6), 12, width=0).sel(
            layer=0
        )
        off = lag_attention(lens.run(bundled("co2").tail(40), 6), 11, width=0).sel(
            layer=0
        )
    assert_allclose(at["mass"], 1)
    assert_allclose(off["mass"], 0)
    assert 0 < float(at["chance"]) < 0.2


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_changes_compare_forecasts_without_the_head(name: str) -> None:
    lens = lens_of(name)
    horizon = 4
    # the tiny token model has wide bins: in one of them a series would be flat to it
    batch = as_series(make_series(lens, "nile")).select(0)
    draws = few_draws(lens)
    truth = batch.values[0][None, :horizon]
    run = lens.run(batch, horizon, truth=truth, **draws)
    found = head_parroting(run, motif=5, lag=3).isel(series=0)
    context = batch.values[0]
    targets = {
        "copy_error": np.resize(context[-3:], horizon),
        "parrot_error": found["parrot"].values,
        "truth_error": truth[0],
    }
    layer = int(found["layer"].values[-1])
    head = 1
    prefix = f"{lens.wiring.output_stack.name}.".lstrip(".")
    ablated = f"{prefix}{layer}.{found.attrs['attention']}.{head}"
    with lens.ablate(ablated), torch.no_grad():
        without = run.read(lens.forward(run.encoded)).double().numpy()[0]
    for error, target in targets.items():
        before, after = (
            np.abs(one - target).mean() / context.std()
            for one in (found["forecast"].values, without)
        )
        close_in_float32(float(found[error]), before)
        change = found[f"{error}_change"].sel(layer=layer, head=head)
        close_in_float32(float(change), after - before, magnitude=before)
    looked = lag_attention(run, 3)
    assert_allclose(found["mass"], looked["mass"])
    assert float(found["chance"]) == float(looked["chance"])


def test_the_lag_fits_the_whole_forecast() -> None:
    run = load("bolt-nano").run(bundled("electricity").tail(120), 8)
    found = head_parroting(run)
    full = context_parroting(run)
    assert float(found["lag"][0]) == float(full["best_lag"][0]) == 24
    assert_allclose(found["parrot"], full["parrot"])
    # the lag curve's own minimum, up to the 1 % by which a shorter lag is preferred
    for name in ("parrot_error", "copy_error"):
        close_in_float32(found[name], full[name])
    given = head_parroting(run, lag=12)
    assert (given["lag"] == 12).all()
    assert_allclose(given["copy"][0], run.batch.values[0][-12:][:8])


def test_impossible_parrots_are_unknown_or_refused() -> None:
    lens = load("bolt-nano")
    flat = head_parroting(
        lens.run([np.ones(120), bundled("electricity").tail(120).values[0]], 8)
    )
    for name in ("lag", "chance", "copy_error", "mass", "copy_error_change"):
        assert np.isnan(flat[name].isel(series=0)).all()
        assert np.isfinite(flat[name].isel(series=1)).all()


# of the paths on which periods are tried: a noisy season of ten turns tells its period
# to a fraction of one turn
FOUND = 0.02
# neighbours among the periods that are tried, as a share, and the shortest of them, of
# a grid that is not refined
NEXT_PERIOD = 0.05
PERIOD_GRID = 0.1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.floats(0.01, 1e4),
    st.floats(2.5, 20),
    st.floats(0, 6),
    st.floats(-50, 50),
    st.floats(-3, 3),
)
def test_sine_amplitudes_ignore_the_trend(
    size: float, period: float, phase: float, level: float, slope: float
) -> None:
    """A sine has its amplitude, whatever it rides on."""
    steps = np.arange(60)
    values = size * np.sin(2 * np.pi * steps / period + phase) + level + slope * steps
    close_in_float32(fit_amplitude(values, period), size, depth=16)
    values[7:11] = np.nan
    close_in_float32(fit_amplitude(values, period), size, depth=16)


@pytest.mark.parametrize("period", [4, 7, 12, 15.5, 24])
def test_the_season_s_period_is_found(period: float) -> None:
    steps = np.arange(150)
    rng = np.random.default_rng(0)
    values = (
        3 * np.sin(2 * np.pi * steps / period)
        + 0.05 * steps
        + 0.2 * rng.standard_normal(150)
    )
    assert dominant_period(values) == pytest.approx(period, rel=FOUND)


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_flat_forecasts_have_lost_their_season(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_amplitudes_over_periods_follow_the_stretches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lens = load("bolt-nano")
    steps = np.arange(152)
    season = 3 * np.sin(2 * np.pi * steps / 8) + np.sin(2 * np.pi * steps / 4)
    forecast_instead(monkeypatch, lens, season[120:152] / 2)
    found = seasonality_bias(lens.run(season[:120], 32, truth=season[None, 120:]))
    amplitude = found["amplitude"].isel(series=0) * season[:120].std()
    # both periods are whole fractions of the horizon, so they are among those tried
    for period, size in ((8, 3.0), (4, 1.0)):
        at = amplitude.sel(trial_period=period, method="nearest")
        assert float(at["trial_period"]) == pytest.approx(period)
        expected = {"context": size, "truth": size, "forecast": size / 2}
        for part, of_part in expected.items():
            assert float(at.sel(part=part)) == pytest.approx(of_part, rel=NEXT_PERIOD)
    assert float(amplitude.sel(part="truth").idxmax()) == pytest.approx(
        8, rel=NEXT_PERIOD
    )
