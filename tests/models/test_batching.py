"""Forecasts in parts: the numbers of the whole batch, whatever the memory, and words where it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tsfm_lens.ablation import Variant, forecast_variants
from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks import Resample, Zero, by_row
from tsfm_lens.models import Lens, architectures, batching
from tsfm_lens.models.batching import cut, need_of_item, plan, request_of
from tsfm_lens.models.draws import block_seed
from tsfm_lens.models.memory import VARIABLE, measured
from tsfm_lens.testing import assert_close

# one encoder, one decoder, sampled: about 100 roundings a block
DEPTH = 1000
UNCUT = ("moirai-1.1", "toto-1")
Opened = Callable[[str], Lens]


def series_for(name: str, count: int = 5, *, alike: bool = False) -> list[np.ndarray]:
    """Series of unequal lengths, with a gap; token ids for a language model."""
    rng = np.random.default_rng(3)
    lengths = [44] * count if alike else [30, 50, 21, 41, 37][:count]
    if name == "t5":
        return [rng.integers(2, 30, size=length).astype(float) for length in lengths]
    found = [rng.normal(size=length).cumsum() + 1 for length in lengths]
    found[0][4:6] = np.nan
    return found


def draws_of(lens: Lens) -> dict[str, Any]:
    return {} if lens.adapter.readout == "quantile" else {"num_samples": 3}


def limit_for(lens: Lens, series: Any, items: int, horizon: int = 4) -> int:
    """A limit in which so many items fit."""
    request = request_of(lens, series, horizon, num_samples=draws_of(lens).get("num_samples"))
    return items * need_of_item(request, 2**40) + 1


def assert_same(actual: Any, expected: Any) -> None:
    assert_close(actual.quantiles, expected.quantiles, depth=DEPTH, dtype=torch.float32)
    assert_close(actual.mean, expected.mean, depth=DEPTH, dtype=torch.float32)
    assert (actual.samples is None) == (expected.samples is None)
    if expected.samples is not None:
        assert_close(actual.samples, expected.samples, depth=DEPTH, dtype=torch.float32)
    assert actual.context.ids == expected.context.ids


@pytest.mark.parametrize("name", sorted(set(architectures()) - set(UNCUT)))
def test_parts_of_unequal_series_give_the_forecast_of_the_whole(name: str, opened: Opened) -> None:
    lens, series = opened(name), series_for(name)
    whole = lens.forecast(series, 4, **draws_of(lens))
    limit = limit_for(lens, series, 2)
    request = request_of(lens, series, 4, memory=limit, **draws_of(lens))
    assert [part.stop - part.start for part in plan(request)] == [2, 2, 1]
    state = torch.get_rng_state()
    assert_same(lens.forecast(series, 4, memory=limit, **draws_of(lens)), whole)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "chronos-2", "timesfm-2.5", "moirai-2"])
def test_rollouts_beyond_one_pass_run_in_parts(name: str, opened: Opened) -> None:
    lens, series = opened(name), series_for(name)
    steps = lens.adapter.longest_pass + 3
    limit = limit_for(lens, series, 2, steps)
    cut_up = lens.forecast(series, steps, memory=limit, **draws_of(lens))
    assert_same(cut_up, lens.forecast(series, steps, **draws_of(lens)))


@pytest.mark.parametrize("name", ["chronos-2", "moirai-2", "timesfm-3", "toto-2"])
def test_the_variates_of_an_item_stay_together(name: str, opened: Opened, multivariate: list[np.ndarray]) -> None:
    lens = opened(name)
    series = as_series([*multivariate, multivariate[0][:, ::-1].copy()])
    whole = lens.forecast(series, 4)
    limit = limit_for(lens, series, 1)
    assert len(plan(request_of(lens, series, 4, memory=limit))) == 3
    assert_same(lens.forecast(series, 4, memory=limit), whole)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "timesfm-2.5"])
def test_a_run_holds_no_more_than_its_limit(name: str, opened: Opened) -> None:
    lens, series = opened(name), series_for(name, alike=True)
    limit = limit_for(lens, series, 2)
    _, free = measured(lambda: lens.forecast(series, 4, **draws_of(lens)), lens.device)
    _, peak = measured(lambda: lens.forecast(series, 4, memory=limit, **draws_of(lens)), lens.device)
    assert peak <= limit < free


@pytest.mark.parametrize("name", ["chronos", "t5", *UNCUT])
def test_a_block_of_draws_is_one_native_call(name: str, opened: Opened) -> None:
    """Against the library itself, called for each block under its seed."""
    lens, series = opened(name), series_for(name, alike=True)
    ours = lens.forecast(series, 4, seed=5, batch_size=2, **draws_of(lens))
    assert ours.samples is not None
    batch = as_series(series)
    for index, (start, stop) in enumerate([(0, 2), (2, 4), (4, 5)]):
        with torch.random.fork_rng():
            torch.manual_seed(block_seed(5, index))
            native = lens.adapter.predict(batch.select(range(start, stop)), 4, (0.5,), 3)
        assert np.array_equal(ours.samples[start:stop], native.samples.double().numpy())
    assert block_seed(5, 0) == 5
    assert len({block_seed(5, index) for index in range(100)}) == 100
    if ours.distribution is not None:
        values = torch.as_tensor(ours.median)
        alone = lens.forecast(batch.select([2, 3]), 4, num_samples=3).distribution
        assert alone is not None
        assert ours.distribution.batch_shape == (5, 4)
        assert torch.equal(ours.distribution.mean[2:4], alone.mean)
        assert torch.equal(ours.distribution.log_prob(values)[2:4], alone.log_prob(values[2:4]))
        assert ours.distribution.sample((7,)).shape == (7, 5, 4)


@pytest.mark.parametrize("name", ["chronos", *UNCUT])
def test_hooks_that_see_the_whole_batch_change_no_draw(
    name: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of the caller's own gets all rows in one run, and what is drawn stays what it is without the hook."""
    monkeypatch.setattr(batching, "DRAWN", 2)
    lens, series = opened(name), series_for(name, alike=True)
    plain = lens.forecast(series, 4, **draws_of(lens))
    rows: list[int] = []

    def look(value: Tensor, hook: Any) -> None:
        rows.append(len(value))

    point = next(name for name in lens.registry.points if name.endswith("hook_embed"))
    with lens.hooks([(point, look)]):
        looked_at = lens.forecast(series, 4, **draws_of(lens))
    together = set(rows)
    rows.clear()
    with lens.hooks([(point, by_row(look))]):
        assert_same(lens.forecast(series, 4, **draws_of(lens)), plain)
    assert together != set(rows)
    assert max(together) > max(rows)
    assert_same(looked_at, plain)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_ablations_run_in_parts(name: str, opened: Opened) -> None:
    lens, series = opened(name), series_for(name)
    target = lens.components("decoder.*.mlp")[0]
    limit = limit_for(lens, series, 2)
    with lens.ablate(target):
        assert_same(
            lens.forecast(series, 4, memory=limit, **draws_of(lens)), lens.forecast(series, 4, **draws_of(lens))
        )
    means = {"how": "mean", "reference": series, "per": "position"}
    with lens.ablate(target, **means):
        assert_same(
            lens.forecast(series, 4, memory=limit, **draws_of(lens)), lens.forecast(series, 4, **draws_of(lens))
        )
    with lens.ablate(target, rows=[0, 3]), pytest.raises(InputError, match=r"cannot run in parts.*decoder.*mlp"):
        lens.forecast(series, 4, memory=limit, **draws_of(lens))


@pytest.mark.parametrize("name", ["chronos", "toto-1"])
def test_variants_of_many_series_draw_what_each_draws_alone(
    name: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "DRAWN", 2)
    monkeypatch.setattr("tsfm_lens.ablation.rollouts.DRAWN", 2)
    lens, series = opened(name), series_for(name, alike=True)
    target = lens.components("**.mlp" if name == "chronos" else "*.mlp")[-1]
    name = f"**.{target.layer}.mlp.hook_out"
    _, reference = lens.run_with_cache(series, names_filter=name, rollout=True, horizon=4, num_samples=1)
    changed = [Variant("none", ()), Variant.zero(target)]
    for variants in (changed, [*changed, Variant("other", (Resample(target, reference, rows=[0]),))]):
        seen: set[tuple[int, int]] = set()
        told: Callable[..., None] = partial(lambda seen, *at: seen.add(at), seen)
        found = forecast_variants(lens, series, 4, variants, num_samples=3, progress=told, non_finite="keep")
        assert max(seen) == (len(variants), len(variants))
        assert found.samples is not None
        for index, variant in enumerate(variants):
            with lens.edit(*variant.interventions):
                alone = lens.forecast(series, 4, num_samples=3).samples
            assert_close(found.samples[index], alone, depth=DEPTH, dtype=torch.float32)


def test_what_does_not_fit_says_so_before_it_runs(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    lens, series = opened("chronos"), series_for("chronos")
    ran: list[int] = []
    whole = batching.forecast_part
    monkeypatch.setattr("tsfm_lens.models.lens.forecast_part", lambda *asked: ran.append(1) or whole(*asked))
    fits = limit_for(lens, series, 1)
    batching._NEEDS.clear()
    with pytest.raises(InputError, match=r"one item of this forecast .* needs more than .* is free, .*raise memory"):
        lens.forecast(series, 4, num_samples=3, memory=fits // 3)
    # once it is known, the need is told
    lens.forecast(series, 4, num_samples=3, memory=fits)
    ran.clear()
    with pytest.raises(InputError, match=r"one item .* needs \d"):
        lens.forecast(series, 4, num_samples=3, memory=fits // 3)
    monkeypatch.setenv(VARIABLE, str(fits // 3))
    with pytest.raises(InputError, match=rf"{VARIABLE}"):
        lens.forecast(series, 4, num_samples=3)
    assert not ran


@pytest.mark.parametrize("name", UNCUT)
def test_draws_that_cannot_be_cut_are_refused(name: str, opened: Opened) -> None:
    lens, series = opened(name), series_for(name)
    with pytest.raises(InputError, match=r"drawn for a block.*batch_size=2"):
        lens.forecast(series, 4, num_samples=3, memory=limit_for(lens, series, 2))
    assert lens.forecast(series, 4, num_samples=3, memory=limit_for(lens, series, 2), batch_size=2).samples is not None


def test_batches_are_cut_between_items() -> None:
    batch = as_series([np.zeros((count, 5)) for count in (1, 2, 3, 1, 1)])
    assert cut(batch, 1) == [(0, 1), (1, 3), (3, 6), (6, 7), (7, 8)]
    assert cut(batch, 3) == [(0, 3), (3, 6), (6, 8)]
    assert cut(batch, 4) == [(0, 3), (3, 7), (7, 8)]
    assert cut(batch, 99) == [(0, 8)]


def test_only_sizes_are_batch_sizes(opened: Opened) -> None:
    for wrong in (0, -1, 2.5, True, "all"):
        with pytest.raises(InputError, match=r"batch_size"):
            opened("chronos-bolt").forecast(series_for("chronos-bolt"), 4, batch_size=wrong)  # type: ignore[arg-type]


def test_the_need_of_a_longer_series_serves_for_shorter_ones(opened: Opened) -> None:
    lens = opened("chronos-bolt")
    request = request_of(lens, series_for("chronos-bolt"), 4)
    batching._NEEDS.pop(lens, None)
    need = need_of_item(request, 2**40)
    shorter = replace(request, batch=request.batch.select([0]))
    assert need_of_item(shorter, 1) == need
    assert len(batching._NEEDS[lens]) == 1


def test_zero_is_known_to_act_by_row(opened: Opened) -> None:
    lens = opened("chronos-bolt")
    with lens.edit(Zero("decoder.0.mlp")):
        assert not lens.registry.session.across_rows()
    with lens.edit(Zero("decoder.0.mlp", rows=[0])):
        assert lens.registry.session.across_rows() == ["decoder_blocks.0.mlp.hook_out"]
