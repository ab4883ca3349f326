"""Activations of other series in place of a series' own: which series, and at which
horizon they are recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tiny_lenses import ATTENDING, archetypes, lens_of
from tsfm_lens.ablation import Variant, forecast_variants
from tsfm_lens.core.errors import HookError
from tsfm_lens.hooks import Component, Resample
from tsfm_lens.models import Lens
from tsfm_lens.testing import example_case, rounding

FIXED = ("chronos-2", "moirai-1.1", "toto-2")


def draws(lens: Lens, count: int = 3) -> dict[str, Any]:
    if lens.adapter.readout == "quantile":
        return {}
    return {"num_samples": count}


def outputs(lens: Lens) -> list[str]:
    """A hook point in every stack."""
    return [f"{stack.prefix}.0.mlp.hook_out" for stack in lens.wiring.stacks]


@pytest.mark.parametrize("paths", [1, 4])
def test_encoder_and_decoder_share_drawn_series(paths: int) -> None:
    """One series is drawn for both encoder and decoder."""
    lens = lens_of("chronos")
    batch = example_case(lens, n_series=6).batch
    names = outputs(lens)
    run = {"horizon": 3, "rollout": True}
    _, activations = lens.run_with_cache(
        batch, names_filter=names, num_samples=5, **run
    )
    with lens.edit(*(Resample(name, activations, seed=3) for name in names)):
        _, seen = lens.run_with_cache(
            batch, names_filter=names, num_samples=paths, **run
        )
    drawn: dict[str, list[list[int]]] = {}
    for name in names:
        for call, source in zip(seen.calls(name), activations.calls(name), strict=True):
            source_rows = len(source.value) // len(batch)
            call_rows = len(call.value) // len(batch)
            rows = [
                int((source.value == row).flatten(1).all(1).nonzero()[0]) // source_rows
                for row in call.value
            ]
            drawn.setdefault(name, []).append(rows[::call_rows])
            # all paths of a series take paths of the same series of the reference
            assert rows == [row for row in rows[::call_rows] for _ in range(call_rows)]
    first = drawn[names[0]][0]
    assert all(rows == first for calls in drawn.values() for rows in calls)
    assert len(set(first)) > 1
    assert (
        first
        == torch.randint(
            len(batch), (len(batch),), generator=torch.Generator().manual_seed(3)
        ).tolist()
    )


@pytest.mark.parametrize("name", ["chronos", "chronos-2", "toto-1"])
def test_chosen_rows_draw_like_all_rows(name: str) -> None:
    """Each series alone, and as blocks of rows of one batch, takes what it takes among
    all.
    """
    lens = lens_of(name)
    batch = example_case(lens, n_series=4).batch
    at = outputs(lens)[-1]
    how = {"seed": 2, **draws(lens)}
    _, activations = lens.run_with_cache(
        batch, names_filter=at, rollout=True, horizon=4, **how
    )
    count = len(activations.ids)
    variants = [Variant("all", (Resample(at, activations, seed=1),))]
    variants += [
        Variant(str(row), (Resample(at, activations, seed=1, rows=[row]),))
        for row in range(count)
    ]
    loop = forecast_variants(lens, batch, 4, variants, economy=False, **how)
    found = forecast_variants(lens, batch, 4, variants, **how)
    per_item = len(batch) // count
    size = np.abs(loop.quantiles).max(axis=(0, 2, 3))
    for row in range(count):
        span = slice(row * per_item, (row + 1) * per_item)
        bound = rounding("float32", float(size[span].max()), depth=2000)
        if not lens.adapter.multivariate:
            assert (
                np.abs(loop.quantiles[1 + row, span] - loop.quantiles[0, span]).max()
                <= bound
            )
        assert np.abs(found.quantiles[:, span] - loop.quantiles[:, span]).max() <= bound


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_reference_is_recorded_at_asked_horizon(name: str) -> None:
    """As if recorded by hand, at a horizon that is not the model's own."""
    lens = lens_of(name)
    batch = example_case(lens, n_series=2).batch
    horizon = max(1, lens.adapter.prediction_length // 2 - 1)
    run = {"seed": 0, **draws(lens, 2)}
    part = Component(lens.wiring.output_stack.name, 0, "mlp")
    with lens.ablate(part, how="resample", reference=batch, horizon=horizon, seed=4):
        found = lens.forecast(batch, horizon, **run)
    _, activations = lens.run_with_cache(
        batch, names_filter=outputs(lens)[-1], rollout=True, horizon=horizon
    )
    with lens.edit(Resample(part, activations, seed=4)):
        np.testing.assert_array_equal(
            lens.forecast(batch, horizon, **run).quantiles, found.quantiles
        )
    assert (found.quantiles != lens.forecast(batch, horizon, **run).quantiles).any()
    with lens.ablate(part, how="mean", reference=batch, horizon=horizon):
        assert np.isfinite(lens.forecast(batch, horizon, **run).quantiles).all()
    if name in FIXED:
        with (
            lens.ablate(part, how="resample", reference=batch),
            pytest.raises(HookError, match="argument horizon"),
        ):
            lens.forecast(batch, horizon, **run)
