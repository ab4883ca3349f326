"""Forecasts in parts: the numbers of the whole batch, whatever the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from library_forecasts import count_draws
from refusals import expect_error
from split_runs import DEPTH, assert_same_forecast, make_series, plan_items
from tiny_lenses import archetypes, lens_of
from tsfm_lens.ablation import Variant, forecast_variants
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series
from tsfm_lens.hooks import Resample, by_row
from tsfm_lens.models import architectures, batching
from tsfm_lens.models.batching import check_request, plan
from tsfm_lens.models.draws import block_seed
from tsfm_lens.testing import assert_close

UNCUT = ("moirai-1.1", "toto-1")


BEYOND = (
    "chronos",
    "chronos-bolt",
    "chronos-2",
    "timesfm-2.5",
    "timestral",
    "moirai-2",
)
NAMES = sorted(set(architectures()) - set(UNCUT))


CASES = [(name, 0, False) for name in NAMES] + [(name, 3, False) for name in BEYOND]
CASES += [
    (name, 0, True)
    for name in ("chronos-2", "moirai-2", "timesfm-3", "timestral", "toto-2")
]


@pytest.mark.parametrize(("name", "beyond", "items"), archetypes(CASES))
def test_unequal_parts_give_the_whole_forecast(
    name: str,
    beyond: int,
    items: bool,
    multivariate: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts of unequal series or items give the forecast of the whole."""
    lens = lens_of(name)
    series = as_series(
        [*multivariate, multivariate[0][:, ::-1].copy()] if items else make_series(name)
    )
    steps = 4
    if beyond:
        steps = lens.adapter.longest_pass + beyond
    full = lens.forecast(series, steps, **count_draws(lens))
    plan_items(monkeypatch, 1 if items else 2)
    assert (
        plan(check_request(lens, series, steps)) == [(0, 2), (2, 4), (4, 6)]
        if items
        else [(0, 2), (2, 4), (4, 5)]
    )
    state = torch.get_rng_state()
    assert_same_forecast(lens.forecast(series, steps, **count_draws(lens)), full)
    assert torch.equal(torch.get_rng_state(), state)


def test_long_forecasts_add_no_rows() -> None:
    """Beyond one pass a call has no more rows than within one."""
    lens = lens_of("chronos-2")
    done = list[tuple[int, int]]()
    series = as_series([np.sin(np.arange(24) / 3 + index) for index in range(150)])
    steps = lens.adapter.longest_pass
    levels = len(lens.adapter.levels)
    sizes = [
        {
            stop - start
            for start, stop in plan(check_request(lens, series, steps + more))
        }
        for more in (0, 1)
    ]
    assert [max(size) for size in sizes] == [75, 128 // levels]
    lens.forecast(series, steps, progress=lambda *counts: done.append(counts))
    assert done == [(75, 150), (150, 150)]


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_parts_beyond_memory_run_as_two(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that runs out of memory runs as two."""
    lens = lens_of(name)
    series = make_series(name)
    full = lens.forecast(series, 4, **count_draws(lens))
    predict = lens.adapter.predict
    sizes = list[int]()
    most = 2

    def scarce(batch: Any, *rest: Any) -> Any:
        sizes.append(len(batch))
        if len(batch) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return predict(batch, *rest)

    monkeypatch.setattr(lens.adapter, "predict", scarce)
    assert_same_forecast(lens.forecast(series, 4, **count_draws(lens)), full)
    assert sizes == [5, 3, 2, 1, 2]
    most = 0
    expect_error(
        r"1 series × .* run out of memory; shorten",
        lens.forecast,
        series,
        4,
        **count_draws(lens),
    )
    with (
        lens.ablate("decoder.0.mlp", rows=[0, 3]),
        pytest.raises(InputError, match=r"by_row \(at decoder"),
    ):
        lens.forecast(series, 4, **count_draws(lens))


def test_free_memory_alone_cuts_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks of draws are cut by the free memory alone."""
    lens = lens_of("chronos")
    series = make_series("chronos")
    request = check_request(lens, series, 4)
    monkeypatch.setattr(batching, "BYTES_AT_ONCE", 1)
    # a part draws the numbers of its whole block
    assert plan(request) == [(0, 5)]
    need = request.need(5)
    monkeypatch.setattr(batching, "memory_limit", lambda _device: 3 * need)
    assert plan(request) == [(0, 3), (3, 5)]


@pytest.mark.parametrize("name", ["chronos", "t5", *UNCUT])
def test_blocks_of_draws_are_single_calls(name: str) -> None:
    """Against the library itself, called for each block under its seed."""
    lens = lens_of(name)
    series = make_series(name, alike=True)
    ours = lens.forecast(series, 4, seed=5, batch_size=2, **count_draws(lens))
    assert ours.samples is not None
    batch = as_series(series)
    for index, (start, stop) in enumerate([(0, 2), (2, 4), (4, 5)]):
        with torch.random.fork_rng():
            torch.manual_seed(block_seed(5, index))
            native = lens.adapter.predict(
                batch.select(range(start, stop)), 4, (0.5,), 3
            )
        assert np.array_equal(ours.samples[start:stop], native.samples.double().numpy())
    assert block_seed(5, 0) == 5
    assert len({block_seed(5, index) for index in range(100)}) == 100


@pytest.mark.parametrize("name", ["chronos", *UNCUT])
def test_hooks_on_batches_change_no_draw(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of the caller's own gets all rows in one run, and what is drawn stays what
    it is without the hook.
    """
    monkeypatch.setattr(batching, "DRAWN", 2)
    lens = lens_of(name)
    series = make_series(name, alike=True)
    plain = lens.forecast(series, 4, **count_draws(lens))
    rows: list[int] = []

    def count_rows(value: Tensor, hook: Any) -> None:
        rows.append(len(value))

    point = next(name for name in lens.registry.points if name.endswith("hook_embed"))
    with lens.hooks([(point, count_rows)]):
        counted = lens.forecast(series, 4, **count_draws(lens))
    together = set(rows)
    rows.clear()
    with lens.hooks([(point, by_row(count_rows))]):
        assert_same_forecast(lens.forecast(series, 4, **count_draws(lens)), plain)
    assert together != set(rows)
    assert max(together) > max(rows)
    assert_same_forecast(counted, plain)


@pytest.mark.parametrize("name", ["chronos", "toto-1"])
def test_variants_draw_as_each_series_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variants of many series draw what each series draws alone."""
    monkeypatch.setattr(batching, "DRAWN", 2)
    monkeypatch.setattr("tsfm_lens.ablation.rollouts.DRAWN", 2)
    lens = lens_of(name)
    series = make_series(name, alike=True)
    target = lens.components("**.mlp" if name == "chronos" else "*.mlp")[-1]
    point = f"**.{target.layer}.mlp.hook_out"
    _, reference = lens.run_with_cache(
        series, names_filter=point, rollout=True, horizon=4, num_samples=1
    )
    # the last one looks at the whole batch
    variants = [
        Variant("none", ()),
        Variant.zero(target),
        Variant("other", (Resample(target, reference, rows=[0]),)),
    ]
    for chosen in (variants[:2], variants):
        found = forecast_variants(lens, series, 4, chosen, num_samples=3)
        assert found.samples is not None
        for samples, variant in zip(found.samples, chosen, strict=True):
            with lens.edit(*variant.interventions):
                alone = lens.forecast(series, 4, num_samples=3).samples
            assert_close(samples, alone, depth=DEPTH, dtype=torch.float32)


def test_parts_are_planned_for_largest_items() -> None:
    """Memory is estimated from above, also where items have unequal variates."""
    lens = lens_of("chronos-2")
    rng = np.random.default_rng(0)
    batch = as_series([rng.normal(size=(count, 48)) for count in (1, 1, 6, 1)])
    largest = batch.select(batch.rows("series-2"))
    mixed, alone = (check_request(lens, item, 4) for item in (batch, largest))
    assert mixed.per_item == alone.per_item == 6
    # by every step, and by the true number of tokens
    for items in (1, 10**9):
        assert mixed.need(items) >= alone.need(items)
    ranges = plan(mixed)
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == len(batch)
