"""Forecasts and activations in parts: the numbers of the whole batch, whatever the memory."""

from __future__ import annotations

from collections.abc import Callable
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
from tsfm_lens.models.batching import cut, plan, request_of
from tsfm_lens.models.draws import block_seed
from tsfm_lens.models.memory import VARIABLE, as_bytes, limit_of
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


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Plan for so many items at a time."""

    def set_to(items: int) -> None:
        for module in ("batching", "recording"):
            monkeypatch.setattr(f"tsfm_lens.models.{module}.fitting", lambda _need, count, *_a, **_k: min(count, items))

    return set_to


def assert_same(actual: Any, expected: Any) -> None:
    assert_close(actual.quantiles, expected.quantiles, depth=DEPTH, dtype=torch.float32)
    assert_close(actual.mean, expected.mean, depth=DEPTH, dtype=torch.float32)
    assert (actual.samples is None) == (expected.samples is None)
    if expected.samples is not None:
        assert_close(actual.samples, expected.samples, depth=DEPTH, dtype=torch.float32)
    assert actual.context.ids == expected.context.ids


BEYOND = ("chronos", "chronos-bolt", "chronos-2", "timesfm-2.5", "moirai-2")
NAMES = sorted(set(architectures()) - set(UNCUT))


@pytest.mark.parametrize(("name", "beyond"), [(name, 0) for name in NAMES] + [(name, 3) for name in BEYOND])
def test_parts_of_unequal_series_give_the_forecast_of_the_whole(
    name: str, beyond: int, opened: Opened, at_once: Callable[[int], None]
) -> None:
    lens, series = opened(name), series_for(name)
    steps = lens.adapter.longest_pass + beyond if beyond else 4
    whole = lens.forecast(series, steps, **draws_of(lens))
    at_once(2)
    assert plan(request_of(lens, series, steps)) == [(0, 2), (2, 4), (4, 5)]
    state = torch.get_rng_state()
    assert_same(lens.forecast(series, steps, **draws_of(lens)), whole)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["chronos-2", "moirai-2", "timesfm-3", "toto-2"])
def test_the_variates_of_an_item_stay_together(
    name: str, opened: Opened, multivariate: list[np.ndarray], at_once: Callable[[int], None]
) -> None:
    lens = opened(name)
    series = as_series([*multivariate, multivariate[0][:, ::-1].copy()])
    whole = lens.forecast(series, 4)
    at_once(1)
    assert len(plan(request_of(lens, series, 4))) == 3
    assert_same(lens.forecast(series, 4), whole)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_a_part_that_runs_out_of_memory_runs_as_two(name: str, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    lens, series = opened(name), series_for(name)
    whole = lens.forecast(series, 4, **draws_of(lens))
    predict, sizes, most = lens.adapter.predict, list[int](), 2

    def scarce(batch: Any, *rest: Any) -> Any:
        sizes.append(len(batch))
        if len(batch) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return predict(batch, *rest)

    monkeypatch.setattr(lens.adapter, "predict", scarce)
    assert_same(lens.forecast(series, 4, **draws_of(lens)), whole)
    assert sizes == [5, 3, 2, 1, 2]
    most = 0
    with pytest.raises(InputError, match=r"1 series × .* run out of memory; shorten"):
        lens.forecast(series, 4, **draws_of(lens))
    with lens.ablate("decoder.0.mlp", rows=[0, 3]), pytest.raises(InputError, match=r"by_row \(at decoder"):
        lens.forecast(series, 4, **draws_of(lens))


def test_a_memory_is_planned_for(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    lens, series = opened("chronos-bolt"), series_for("chronos-bolt")
    need = request_of(lens, series, 4, memory=1).need(5)
    assert len(plan(request_of(lens, series, 4))) == 1
    assert plan(request_of(lens, series, 4, memory=2 * need)) == [(0, 2), (2, 4), (4, 5)]
    monkeypatch.setenv(VARIABLE, "1")
    assert len(plan(request_of(lens, series, 4))) == 5
    assert limit_of("1MiB", lens.device) == 2**20
    monkeypatch.setenv(VARIABLE, "half")
    with pytest.raises(InputError, match=rf"{VARIABLE} is 'half'"):
        lens.forecast(series, 4)


@pytest.mark.parametrize(
    ("text", "size"), [("2000", 2000), ("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("7 mib", 7 * 2**20)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert as_bytes(text, "memory") == size


@pytest.mark.parametrize("wrong", ["", "lots", "-1", "0", "1e9", "2 XB", "GB", 0, True, 1.5, "9" * 30])
def test_what_is_no_size_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"expected a number of bytes"):
        as_bytes(wrong, "memory")


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
def test_ablations_run_in_parts(name: str, opened: Opened, at_once: Callable[[int], None]) -> None:
    lens, series = opened(name), series_for(name)
    target = lens.components("decoder.*.mlp")[0]
    for how in ({}, {"how": "mean", "reference": series, "per": "position"}):
        with lens.ablate(target, **how):
            whole = lens.forecast(series, 4, **draws_of(lens))
            at_once(2)
            assert_same(lens.forecast(series, 4, **draws_of(lens)), whole)


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


def test_zero_is_known_to_act_by_row(opened: Opened) -> None:
    lens = opened("chronos-bolt")
    with lens.edit(Zero("decoder.0.mlp")):
        assert not lens.registry.session.across_rows()
    with lens.edit(Zero("decoder.0.mlp", rows=[0])):
        assert lens.registry.session.across_rows() == ["decoder_blocks.0.mlp.hook_out"]
