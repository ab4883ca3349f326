"""Forecasts of many variants against the plain loop: one forecast a variant (oracle 9
on the library's own road).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tiny_lenses import NAMES, archetypes, fresh, lens_of
from tsfm_lens import testing
from tsfm_lens.ablation import Variant, VariantForecasts, forecast_variants, rollouts
from tsfm_lens.core.errors import InputError, UnknownNameError
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks import (
    Component,
    EditPattern,
    Mean,
    Noise,
    Resample,
    Steer,
    Zero,
    writers,
)
from tsfm_lens.models import Lens, load
from tsfm_lens.models.architecture import is_row_independent
from tsfm_lens.testing import example_case, native_traces, rounding

LEVELS = (1e-6, 1e-3, 1.0, 3e6, 1e3)


def draws(lens: Lens, count: int = 2) -> dict[str, Any]:
    if lens.adapter.readout == "quantile":
        return {}
    return {"num_samples": count}


def example_series(lens: Lens) -> SeriesBatch:
    """Series of unequal length, with gaps, and with two variates each where the model
    takes them.
    """
    return example_case(lens, n_series=2).batch


def make_levels(lens: Lens) -> SeriesBatch:
    """One series a level, of both signs, the one at 3e6 beside the sine at 1; series of
    token ids have no level.
    """
    if lens.adapter.readout == "token" and hasattr(lens.adapter, "example"):
        return example_series(lens)
    rng = np.random.default_rng(0)
    steps = np.arange(40)
    shapes = [
        np.sin(steps / (2 + index)) + 0.2 * rng.standard_normal(40) + index % 2
        for index in range(len(LEVELS))
    ]
    values = [level * shape for level, shape in zip(LEVELS, shapes, strict=True)]
    return as_series(
        [
            np.stack([one, one[::-1]]) if lens.adapter.multivariate else one
            for one in values
        ]
    )


def of_every_kind(lens: Lens, batch: SeriesBatch, horizon: int) -> list[Variant]:
    """Heads, branches, layers, mixtures; zero, mean, resample, noise; some rows, all
    rows; and no change at all.
    """
    found = [Variant("nothing", ())]
    for stack in lens.wiring.stacks:
        parts = writers(lens.wiring, stack.name)
        heads = [part for part in parts if part.head is not None]
        last = stack.n_layers - 1
        heads = heads or parts
        kind = stack.rows(last)[-1].kind
        out = f"{stack.prefix}.{last}.{kind}.hook_out"
        run = {"rollout": True, "horizon": horizon, "seed": 5, **draws(lens)}
        _, activations = lens.run_with_cache(batch, names_filter=out, **run)
        found += [
            Variant.zero(heads[0]),
            Variant.zero(heads[-1], parts[-1]),
            Variant.zero(Component(stack.name, last)),
            Variant.zero(*[part for part in heads if part.layer == 0]),
            Variant("mean", (Mean(out, activations, per="pooled"),)),
            Variant("resample", (Resample(out, activations, seed=3),)),
            Variant(
                "noise",
                (Noise(f"{stack.prefix}.0.hook_resid_post", scale=0.5, seed=2),),
            ),
            Variant(
                "some rows",
                (
                    Zero(out, rows=[0]),
                    Noise(f"{stack.prefix}.0.hook_resid_post", seed=1),
                ),
            ),
            Variant(
                "steered", (Zero(out), Steer(out, 0.1 * torch.ones(stack.d_model)))
            ),
            Variant(
                "layer without",
                (
                    Zero(Component(stack.name, 0)),
                    Zero(Component(stack.name, last, kind)),
                ),
            ),
        ]
    return found


def check(
    lens: Lens, batch: SeriesBatch, found: VariantForecasts, loop: VariantForecasts
) -> None:
    """The same forecasts up to roundings of each series' own values in the precision of
    the model.
    """
    depth = 100 * sum(stack.n_layers for stack in lens.wiring.stacks)
    dtype = next(lens.parameters()).dtype
    assert found.levels == loop.levels
    for name in ("quantiles", "mean", "samples"):
        ours = getattr(found, name)
        theirs = getattr(loop, name)
        assert (ours is None) == (theirs is None)
        for index, values in enumerate(batch.values if theirs is not None else ()):
            largest = max(np.abs(theirs[:, index]).max(), np.nanmax(np.abs(values)))
            off = np.abs(ours[:, index] - theirs[:, index]).max()
            assert off <= rounding(dtype, largest, depth=depth), (
                name,
                batch.ids[index],
                off,
                largest,
            )


def part(forecasts: VariantForecasts, chosen: Any) -> VariantForecasts:
    """Some of the variants."""
    if forecasts.samples is None:
        samples = None
    else:
        samples = forecasts.samples[chosen]
    return VariantForecasts(
        forecasts.quantiles[chosen], forecasts.levels, forecasts.mean[chosen], samples
    )


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_one_pass_equals_the_plain_loop(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = lens_of(name)
    assert is_row_independent(lens.adapter)
    for batch in (example_series(lens), make_levels(lens)):
        horizon = min(6, lens.adapter.prediction_length)
        variants = of_every_kind(lens, batch, horizon)
        loop = forecast_variants(
            lens, batch, horizon, variants, seed=1, economy=False, **draws(lens)
        )
        # changes that nobody sees would be equal however they were mixed up
        moved = np.abs(loop.quantiles[1:] - loop.quantiles[0]).max(
            axis=(2, 3)
        ) / np.ptp(loop.quantiles[0], axis=(1, 2))
        assert (moved.max(axis=0) > 1e-2).all()
        check(
            lens,
            batch,
            forecast_variants(lens, batch, horizon, variants, seed=1, **draws(lens)),
            loop,
        )
        with monkeypatch.context() as patch:
            patch.setattr(rollouts, "_TOKENS", 1)
            patch.setattr(rollouts.VariantRequest, "abreast", lambda _request: 3)
            found = forecast_variants(
                lens, batch, horizon, variants[1:6], seed=1, **draws(lens)
            )
        check(lens, batch, found, part(loop, slice(1, 6)))


SOME = (
    "chronos",
    "chronos-2",
    "chronos-bolt",
    "moirai-2",
    "timesfm-2.5",
    "timestral",
    "toto-1",
)
BEYOND = [name for name in NAMES if name in SOME]


@pytest.mark.parametrize("name", archetypes(BEYOND))
def test_long_rollouts_equal_the_plain_loop(name: str) -> None:
    """Rollouts beyond one pass equal the plain loop."""
    lens = lens_of(name)
    batch = example_series(lens)
    if not lens.adapter.joint_rollout:
        batch = as_series(list(batch.values[::2]))
    horizon = lens.adapter.longest_pass + 3
    variants = of_every_kind(lens, batch, horizon)[::2]
    loop = forecast_variants(
        lens, batch, horizon, variants, seed=2, economy=False, **draws(lens)
    )
    check(
        lens,
        batch,
        forecast_variants(lens, batch, horizon, variants, seed=2, **draws(lens)),
        loop,
    )


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_plain_loop_forecasts_each_variant_once(name: str) -> None:
    """The plain loop is one forecast for each variant."""
    lens = lens_of(name)
    batch = example_series(lens)
    variant = Variant.zero(writers(lens.wiring)[0])
    if len(lens.adapter.levels) != 1:
        levels = (0.3, 0.5)
    else:
        levels = (0.5,)
    how = {"quantiles": levels, "seed": 4, **draws(lens)}
    # where nothing is refused, the loop does not go through lens.forecast
    retained = forecast_variants(
        lens, batch, 3, [variant], economy=False, non_finite="keep", **how
    )
    assert retained.levels == levels
    with lens.edit(*variant.interventions):
        edited = lens.forecast(batch, 3, **how)
    np.testing.assert_array_equal(retained.quantiles[0], edited.quantiles)
    np.testing.assert_array_equal(retained.mean[0], edited.mean)
    if retained.samples is not None:
        np.testing.assert_array_equal(retained.samples[0], edited.samples)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "toto-1"])
def test_nothing_is_left_behind(name: str) -> None:
    lens = lens_of(name)
    batch = example_series(lens)

    state = torch.get_rng_state()
    first = writers(lens.wiring)[0]
    good = [
        Variant.zero(first),
        Variant("", ()),
        Variant.zero(Component(first.stack, 0)),
    ]
    plain = lens.forecast(batch, 3, **draws(lens)).quantiles
    forecast_variants(lens, batch, 3, good, **draws(lens))
    assert torch.equal(torch.get_rng_state(), state)

    def fails(_pattern: torch.Tensor) -> torch.Tensor:
        raise ValueError("from the caller's own function")

    bad = Variant("bad", (EditPattern(Component(first.stack, 0, first.kind), fails),))
    for how in ({}, {"non_finite": "keep"}, {"non_finite": "keep", "economy": False}):
        with pytest.raises(ValueError, match="caller's own"):
            forecast_variants(lens, batch, 3, [*good, bad], **how, **draws(lens))
    assert native_traces(lens) == 0
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(
        lens.forecast(batch, 3, **draws(lens)).quantiles, plain
    )


def steered(lens: Lens, size: float) -> Variant:
    """Other from the first layer on, and no number at all for an infinite size."""
    stack = lens.wiring.output_stack
    return Variant(
        f"by {size}",
        (
            Steer(
                f"{stack.prefix}.0.hook_resid_post", torch.full((stack.d_model,), size)
            ),
        ),
    )


MIXED = [
    "bolt-nano",
    "chronos-nano",
    "chronos-2",
    "moirai-1.1",
    "t5",
    "timesfm-2.5",
    "toto-1",
]


@pytest.mark.parametrize("economy", [True, False])
@pytest.mark.parametrize(
    "name", archetypes(MIXED, "bolt-nano", "chronos-nano", "toto-1")
)
def test_variant_without_numbers_fails_alone(name: str, economy: bool) -> None:
    """A variant without numbers is lost and no other with it."""
    if name.endswith("nano"):
        lens = load(name)
    else:
        lens = lens_of(name)
    batch = example_series(lens)
    # what begins at the same place runs side by side in single passes too
    good = [
        Variant("", ()),
        steered(lens, 0.2),
        *[Variant.zero(part) for part in writers(lens.wiring)[:3]],
    ]
    mixed = [*good[:2], steered(lens, np.inf), *good[2:], steered(lens, np.inf)]
    reaches = name in BEYOND or name == "bolt-nano"
    if reaches and not lens.adapter.joint_rollout:
        batch = as_series(list(batch.values[::2]))
    for horizon in (
        4,
        *([lens.adapter.longest_pass + 3] if reaches and economy else []),
    ):
        how = {"economy": economy, "seed": 3, **draws(lens)}
        alone = forecast_variants(lens, batch, horizon, good, **how)
        state = torch.get_rng_state()
        counts = list[int]()
        how["progress"] = lambda done, _of, counts=counts: counts.append(done)
        found = forecast_variants(lens, batch, horizon, mixed, non_finite="keep", **how)
        assert torch.equal(torch.get_rng_state(), state)
        assert counts == sorted(set(counts))
        assert counts[-1] == len(mixed)
        lost = part(found, [2, 6])
        assert all(
            np.isnan(item).all()
            for item in (lost.quantiles, lost.mean, lost.samples)
            if item is not None
        )
        check(lens, batch, part(found, [0, 1, 3, 4, 5]), alone)
        with pytest.raises(InputError, match="forecasts no number at step 0"):
            forecast_variants(lens, batch, horizon, mixed, **how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"variants": []}, "no variant"),
        ({"non_finite": "drop"}, "non_finite is 'drop'"),
        ({"variants": [Variant("", (Zero("decoder.9.mlp"),))]}, r"decoder\.9"),
    ],
)
def test_what_cannot_be_run_is_refused(how: dict[str, Any], message: str) -> None:
    lens = lens_of("chronos-bolt")
    with pytest.raises((InputError, UnknownNameError), match=message):
        forecast_variants(
            lens,
            example_series(lens),
            4,
            **{"variants": [Variant.zero(writers(lens.wiring)[0])], **how},
        )


TIMESFM = {
    "both signs": {"force_flip_invariance": True},
    "rolled out": {"max_horizon": 32},
    "not normalised": {"normalize_inputs": False, "infer_is_positive": True},
}


@pytest.mark.parametrize("options", TIMESFM.values(), ids=TIMESFM)
def test_whatever_an_object_was_compiled_with(options: dict[str, Any]) -> None:
    lens_of("timesfm-2.5")
    import timesfm

    native = testing.tiny("timesfm-2.5")
    config = timesfm.ForecastConfig(
        max_context=64, max_horizon=16, normalize_inputs=True, per_core_batch_size=1
    )
    for name, value in options.items():
        object.__setattr__(config, name, value)
    native.compile(config)
    lens = load(native, check=False)
    batch = make_levels(lens)
    variants = [Variant.zero(part) for part in writers(lens.wiring)[::4]]
    loop = forecast_variants(lens, batch, 6, variants, economy=False)
    check(lens, batch, forecast_variants(lens, batch, 6, variants), loop)


def test_what_is_zeroed_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = fresh("chronos")
    rows: list[int] = []
    mm = torch.mm
    monkeypatch.setattr(
        torch, "mm", lambda a, b, **kwargs: rows.append(len(a)) or mm(a, b, **kwargs)
    )
    batch = as_series([np.sin(np.arange(40) / 3)])
    variants = [
        Variant.zero(Component("decoder", 0, "mlp")),
        *[Variant.zero(Component("decoder", 1))] * 3,
    ]
    forecast_variants(lens, batch, 1, variants, num_samples=2)
    # block 0: wi and wo for three of four variants; block 1: q, k, v, o, q, o, wi, wo
    # for one
    assert sorted(rows) == [2] * 8 + [6] * 2
