"""Parroting against series whose copies are known."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError
from tsfm_lens.hooks import EditPattern
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.probes import context_parroting, lag_attention
from tsfm_lens.probes.parroting import lag_errors, naive_parrot

SEASON = np.array([0.0, 2.0, 1.0, 5.0, 3.0, 4.0, -1.0])


@cache
def lens_of(name: str) -> Lens:
    return load(architectures()[name].tiny(), check=False)


def test_a_periodic_continuation_is_a_copy_at_its_period() -> None:
    whole = np.tile(SEASON, 8)
    errors = lag_errors(whole[:42], whole[42:52])
    assert np.flatnonzero(errors < 1e-12).tolist() == [6, 13, 20, 27, 34]  # lags 7, 14, … counted from 1
    assert errors[0] == pytest.approx(np.abs(whole[42:52] - whole[41]).mean())


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
    lens = load(architectures()[name].tiny(), check=False)
    values = np.tile(np.arange(2.0, 9.0), 6) if getattr(lens.adapter, "integers", False) else np.tile(SEASON, 6)
    true = lens.forecast

    def repeating(series: object, horizon: int, **options: object) -> object:
        found = true(series, horizon, **options)  # type: ignore[arg-type]
        found.quantiles[:] = np.tile(values, 3)[:horizon]
        return found

    monkeypatch.setattr(lens, "forecast", repeating)
    draws = {"num_samples": 2} if lens.adapter.readout != "quantile" else {}
    found = context_parroting(lens, values, 6, motif=7, **draws)
    assert float(found["best_lag"][0]) == 7
    assert float(found["copy_error"][0]) == pytest.approx(0)
    assert float(found["parrot_error"][0]) == pytest.approx(0)


def test_real_series_with_a_truth() -> None:
    context, truth = bundled("co2", "elnino").split(8)
    found = context_parroting(lens_of("chronos-bolt"), context.tail(60), 8, truth=truth)
    assert np.isfinite(found["copy_error"]).all()
    assert (found["copy_error"] <= found["lag_error"].min("lag") * 1.01 + 1e-9).all()
    with pytest.raises(InputError, match="motif"):
        context_parroting(lens_of("chronos-bolt"), context, 8, motif=1)


@pytest.mark.parametrize("name", ["timesfm-2.5", "toto-1"])
def test_an_even_spread_pays_chance(name: str) -> None:
    """Under a causal mask, too: what a query cannot see is not counted."""
    lens = lens_of(name)

    def even(pattern: torch.Tensor) -> torch.Tensor:
        seen = (pattern > 0).to(pattern.dtype)
        return seen / seen.sum(-1, keepdim=True)

    with lens.edit(EditPattern(f"*.{lens.wiring.output_stack.attention_kinds()[-1]}", even)):
        found = lag_attention(lens, bundled("pedestrians").tail(60), 12, 8)
    assert 0 < float(found["chance"]) < 1
    np.testing.assert_allclose(found["mass"], float(found["chance"]), rtol=1e-5)


def test_a_head_that_reads_at_a_lag_has_its_mass_there() -> None:
    lens = lens_of("chronos")

    def lag(pattern: object) -> object:
        moved = pattern * 0  # type: ignore[operator]
        keys = moved.shape[-1]
        for query in range(moved.shape[-2]):
            moved[:, :, query, keys - 1 + query - 12] = 1.0
        return moved

    with lens.edit(EditPattern("decoder.0.cross_attn", lag)):  # type: ignore[arg-type]
        at = lag_attention(lens, bundled("co2").tail(40), 12, 6, width=0).sel(layer="0")
        off = lag_attention(lens, bundled("co2").tail(40), 11, 6, width=0).sel(layer="0")
    np.testing.assert_allclose(at["mass"], 1)
    np.testing.assert_allclose(off["mass"], 0)
    assert 0 < float(at["chance"]) < 0.2
    with pytest.raises(InputError, match="lag 0"):
        lag_attention(lens, bundled("co2").tail(40), 0)
