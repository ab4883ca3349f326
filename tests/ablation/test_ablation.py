"""Metrics against their definitions, the engine against plain loops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.stats import rankdata

from tiny_lenses import archetypes, lens_of
from tsfm_lens.ablation import (
    Variant,
    engine,
    mae,
    relative_change,
    run_variants,
    seasonal_scale,
    spearman_distance,
)
from tsfm_lens.ablation.metrics import (
    pearson_distance,
    shape_distance,
    spectral_distance,
)
from tsfm_lens.data import bundled
from tsfm_lens.hooks import EditPattern, replay, writers
from tsfm_lens.models import architectures
from tsfm_lens.testing import assert_close, example_case
from tsfm_lens.testing.oracles_runs import fan_out_equals_alone

FORECASTS = npst.arrays(np.float64, (3, 8), elements=st.integers(-5, 5).map(float))


@given(FORECASTS, FORECASTS)
@settings(deadline=None, max_examples=60)
def test_spearman_distance_uses_average_ranks(a: np.ndarray, b: np.ndarray) -> None:
    """The Spearman distance is one minus the correlation of average ranks."""
    found = spearman_distance(a, b)
    for row in range(3):
        x = rankdata(a[row])
        y = rankdata(b[row])
        if np.array_equal(a[row], b[row]):
            assert found[row] == 0
        elif np.ptp(x) == 0 or np.ptp(y) == 0:
            assert np.isnan(found[row])
        else:
            # the difference of two numbers of size 1
            assert_close(
                found[row], 1 - np.corrcoef(x, y)[0, 1], depth=1000, magnitude=1.0
            )


@pytest.mark.parametrize(
    "distance", [spearman_distance, pearson_distance, shape_distance, spectral_distance]
)
@pytest.mark.parametrize("level", [0.0, 5.0, -1e9, 1e-12])
def test_equal_and_flat_forecasts_have_distances(distance: Any, level: float) -> None:
    """Equal forecasts have no distance, and flat ones have no shape."""
    wave = np.sin(np.arange(9.0)) + level
    flat = np.full(9, level)
    rows = np.stack([wave, flat, wave, flat, flat])
    rest = np.stack([wave, flat, flat, wave, flat + 1])
    found = distance(rows, rest)
    np.testing.assert_array_equal(found, [0, 0, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(distance(rest, rows), found)


def test_rounding_changes_have_no_ratio() -> None:
    """A change of no more than rounding has no ratio."""
    found = relative_change(
        np.array([[3.0, 3.0, 3.0]]),
        np.array([1e-9, -2.0, np.nan]),
        np.array([1e-6, 1e-6, 0.0]),
    )
    np.testing.assert_array_equal(found, [[np.nan, -2.5, np.nan]])


def test_errors_leave_unknown_truth_out() -> None:
    forecast = np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    truth = np.array([[2.0, np.nan, 5.0], [np.nan] * 3])
    np.testing.assert_allclose(mae(forecast, truth), [1.5, np.nan])
    np.testing.assert_allclose(relative_change([2.0, 1.0], [1.0, 0.0]), [1.0, np.nan])


@given(
    npst.arrays(np.float64, st.integers(3, 40), elements=st.floats(-100, 100)),
    st.integers(1, 50),
)
@settings(deadline=None, max_examples=80)
def test_seasonal_scale_is_mean_seasonal_difference(
    context: np.ndarray, season: int
) -> None:
    used = 1
    if season < len(context):
        used = season
    expected = np.abs(context[used:] - context[:-used]).mean()
    found = seasonal_scale(context, season)
    assert np.isnan(found) if expected == 0 else found == pytest.approx(expected)
    # pairs with NaN are left out
    assert seasonal_scale(np.array([1.0, np.nan, 4.0, 6.0]), 1) == pytest.approx(2.0)
    assert np.isnan(seasonal_scale(np.array([1.0]), 1))


@pytest.mark.parametrize("name", archetypes(sorted(architectures())))
def test_shared_rows_equal_the_plain_loop(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variants on rows held once equal the plain loop."""
    # as in a large model, where a pass costs too much to run groups together
    monkeypatch.setattr(replay, "_FEW", 0)
    monkeypatch.setattr(engine, "_PASS_OVERHEAD", 0)
    assert fan_out_equals_alone(example_case(lens_of(name))).passed


def test_replay_computes_the_encoder_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = lens_of("chronos-bolt")
    calls = Counter[str]()
    model = lens.adapter.model
    modules = {
        "encoder": model.encoder,
        "keys": model.decoder.block[2].layer[1].EncDecAttention.k,
    }
    for key, module in modules.items():

        def forward(
            *args: Any, original: Any = module.forward, key: str = key, **kwargs: Any
        ) -> Any:
            calls[key] += 1
            return original(*args, **kwargs)

        monkeypatch.setitem(module.__dict__, "forward", forward)
    encoded = lens.encode(bundled("co2").tail(40))
    variants = [Variant.zero(component) for component in writers(lens.wiring)]
    run_variants(lens, encoded, variants)
    assert calls == {"encoder": 1, "keys": 1}
    run_variants(lens, encoded, variants, replay=False)
    assert calls["encoder"] == 1 + 2  # the plain run, and all variants side by side


@pytest.mark.parametrize("rows", [None, [1]])
def test_variants_run_under_callers_hooks(
    rows: list[int] | None,
) -> None:
    """An edit of chosen rows, or of an attention's inside, acts on every variant as on
    a forward of its own.
    """
    lens = lens_of("chronos-bolt")
    encoded = lens.encode(bundled("co2", "nile").tail(40))
    halves = EditPattern("encoder.0.self_attn", lambda pattern: pattern / 2, rows=rows)
    variants = [
        Variant.zero(component)
        for component in lens.components("*.1.mlp", "decoder.0.cross_attn.1")
    ]
    with lens.edit(halves), torch.no_grad():
        found = run_variants(lens, encoded, variants)
        for made, variant in zip(found, variants, strict=True):
            with lens.edit(*variant.interventions):
                assert_close(made, lens.forward(encoded), depth=100)
