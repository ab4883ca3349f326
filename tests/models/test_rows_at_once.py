"""Models whose cost grows with the square of a batch's rows get it in parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tsfm_lens
from tsfm_lens.ablation import Variant, forecast_variants, point_forecasts
from tsfm_lens.data import as_series
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close


@pytest.fixture(scope="module")
def nano() -> Lens:
    return tsfm_lens.load("chronos2-nano")


def rows_of_calls(lens: Lens, seen: list[int]) -> torch.utils.hooks.RemovableHandle:
    return lens.adapter.model.encoder.register_forward_pre_hook(
        lambda _module, _args, inputs: seen.append(len(inputs["inputs_embeds"])), with_kwargs=True
    )


def test_no_call_has_more_rows_than_pays(nano: Lens) -> None:
    rng = np.random.default_rng(0)
    many = as_series(list(rng.normal(size=(600, 16))))
    seen: list[int] = []
    handle = rows_of_calls(nano, seen)
    try:
        forecast = nano.forecast(many, 4)
        with torch.no_grad():
            nano.run_with_cache(many, names_filter=["blocks.0.hook_resid_post"], horizon=4)
        variants = [Variant.zero(head) for head in nano.components("*.time_attn.*")]
        some = many.select(range(50))
        point_forecasts(nano.run(some, 4), variants)
        forecast_variants(nano, some, 4, variants)
    finally:
        handle.remove()
    assert sum(seen) >= 600 * 2
    assert max(seen) <= 128, seen
    few = nano.forecast(many.select(range(3)), 4).quantiles
    assert_close(forecast.quantiles[:3].astype(np.float32), few.astype(np.float32), depth=12)


def test_an_item_stays_whole_however_many_series_it_has(nano: Lens) -> None:
    rng = np.random.default_rng(1)
    wide = as_series(rng.normal(size=(1, 300, 16)))
    seen: list[int] = []
    handle = rows_of_calls(nano, seen)
    try:
        nano.forecast(wide, 4)
    finally:
        handle.remove()
    assert set(seen) == {300}
