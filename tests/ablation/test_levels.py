"""Variants side by side against one forecast a variant, each series against its own spread, at levels far apart."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tsfm_lens.ablation import Variant, VariantForecasts, forecast_variants
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks import Component, Steer, writers
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.models.architecture import stands_apart
from tsfm_lens.models.extras import status
from tsfm_lens.testing import rounding

LEVELS = (1e-6, 1e-3, 1.0, 3e6, 1e3)
# series of token ids have no level
NAMES = [name for name in sorted(architectures()) if name != "t5"]
QUANTILES = [name for name in NAMES if architectures()[name].readout == "quantile"]
HALF = [(name, dtype) for name in ("chronos", "chronos-2", "chronos-bolt") for dtype in ("bfloat16", "float16")]


@cache
def lens_of(name: str) -> Lens:
    entry = architectures()[name]
    if entry.extra and not status()[entry.extra].importable:
        pytest.skip(f"the extra {entry.extra} is not installed")
    return load(entry.tiny(), check=False)


def draws(lens: Lens) -> dict[str, Any]:
    return {} if lens.adapter.readout == "quantile" else {"num_samples": 2}


def at_levels_apart(lens: Lens) -> SeriesBatch:
    """One series a level, of both signs, the one at 3e6 beside the sine at 1."""
    rng = np.random.default_rng(0)
    steps = np.arange(40)
    shapes = [np.sin(steps / (2 + index)) + 0.2 * rng.standard_normal(40) + index % 2 for index in range(len(LEVELS))]
    values = [level * shape for level, shape in zip(LEVELS, shapes, strict=True)]
    return as_series([np.stack([one, one[::-1]]) if lens.adapter.multivariate else one for one in values])


def some_variants(lens: Lens) -> list[Variant]:
    """Parts of the first and the last layer, a push that reaches values no plain forecast has, and no change."""
    stack = lens.wiring.output_stack
    parts = writers(lens.wiring, stack.name)
    push = Steer(f"{stack.prefix}.0.hook_resid_post", torch.full((stack.d_model,), -2.0))
    chosen = [parts[0], parts[-1], Component(stack.name, stack.n_layers - 1)]
    return [Variant("nothing", ()), *[Variant.zero(part) for part in chosen], Variant("pushed", (push,))]


def loop(lens: Lens, batch: SeriesBatch, horizon: int, variants: list[Variant], **how: Any) -> VariantForecasts:
    return forecast_variants(lens, batch, horizon, variants, economy=False, **how)


def check(lens: Lens, batch: SeriesBatch, found: VariantForecasts, alone: VariantForecasts) -> None:
    """Equal up to roundings of each series' own values in the precision of the model."""
    depth = 100 * sum(stack.n_layers for stack in lens.wiring.stacks)
    dtype = next(lens.parameters()).dtype
    for name in ("quantiles", "mean", "samples"):
        ours, theirs = getattr(found, name), getattr(alone, name)
        assert (ours is None) == (theirs is None)
        if theirs is None:
            continue
        for index, values in enumerate(batch.values):
            largest = max(np.abs(theirs[:, index]).max(), np.nanmax(np.abs(values)))
            off = np.abs(ours[:, index] - theirs[:, index]).max()
            assert off <= rounding(dtype, largest, depth=depth), (name, batch.ids[index], off, largest)


def moved(alone: VariantForecasts) -> np.ndarray:
    """(variant, series): by how much a variant moves a series, in spreads of its plain forecast."""
    plain = alone.quantiles[0]
    spread = plain.max(axis=(1, 2)) - plain.min(axis=(1, 2))
    return np.abs(alone.quantiles - plain).max(axis=(2, 3)) / spread


@pytest.mark.parametrize("name", NAMES)
def test_every_series_at_its_own_level(name: str) -> None:
    lens = lens_of(name)
    batch, variants, horizon = at_levels_apart(lens), some_variants(lens), min(6, lens.adapter.prediction_length)
    assert stands_apart(lens.adapter)
    how = {"seed": 1, **draws(lens)}
    alone = loop(lens, batch, horizon, variants, **how)
    # a mix-up of variants or of series would show in every series
    assert (moved(alone)[1:].max(axis=0) > 1e-2).all()
    check(lens, batch, forecast_variants(lens, batch, horizon, variants, **how), alone)


@pytest.mark.parametrize("name", QUANTILES)
def test_a_level_far_from_zero_hides_nothing_of_its_neighbours(name: str) -> None:
    """A rounding of the one is larger than all that the other does."""
    lens = lens_of(name)
    steps = np.arange(40)
    values = [np.sin(steps / 3), 3e6 + 0.5 * np.sin(steps / 2)]
    batch = as_series([np.stack([one, one[::-1]]) if lens.adapter.multivariate else one for one in values])
    variants = some_variants(lens)
    alone = loop(lens, batch, 4, variants)
    check(lens, batch, forecast_variants(lens, batch, 4, variants), alone)


@pytest.mark.parametrize(("name", "dtype"), HALF)
def test_levels_in_half_precision(name: str, dtype: str) -> None:
    lens = load(architectures()[name].tiny(), check=False).to(getattr(torch, dtype))
    batch, variants = at_levels_apart(lens), some_variants(lens)
    if name == "chronos-2":
        batch = as_series([values[:40] for values in batch.values[::2]])
    alone = loop(lens, batch, 4, variants, **draws(lens))
    found = forecast_variants(lens, batch, 4, variants, **draws(lens))
    if lens.adapter.readout == "token":
        # a probability rounded otherwise gives another token, and all that follow it
        size = np.abs(alone.samples).max(axis=(0, 2, 3))[:, None, None]  # type: ignore[arg-type]
        other = np.abs(found.samples - alone.samples) > rounding(torch.float32, 1.0, depth=100) * size  # type: ignore[operator]
        assert other.mean() < 0.1
    else:
        check(lens, batch, found, alone)


TIMESFM = {
    "as it is": {},
    "both signs": {"force_flip_invariance": True},
    "rolled out": {"max_horizon": 32},
    "bare": {"infer_is_positive": False, "fix_quantile_crossing": False, "use_continuous_quantile_head": False},
    "not normalised": {"normalize_inputs": False, "infer_is_positive": True},
}


@pytest.mark.parametrize("options", TIMESFM.values(), ids=TIMESFM)
def test_whatever_an_object_was_compiled_with(options: dict[str, Any]) -> None:
    lens_of("timesfm-2.5")
    import timesfm

    native = architectures()["timesfm-2.5"].tiny()
    config = timesfm.ForecastConfig(max_context=64, max_horizon=16, normalize_inputs=True, per_core_batch_size=1)
    for name, value in options.items():
        object.__setattr__(config, name, value)
    native.compile(config)
    lens = load(native, check=False)
    batch = at_levels_apart(lens)
    variants = some_variants(lens)
    check(lens, batch, forecast_variants(lens, batch, 6, variants), loop(lens, batch, 6, variants))
