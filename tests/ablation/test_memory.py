"""The memory limit against what torch's own allocator counts, and what happens when memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tsfm_lens.ablation import Variant, fanout, forecast_variants
from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks import writers
from tsfm_lens.models import architectures, load
from tsfm_lens.models.memory import fitting, measured
from tsfm_lens.testing import assert_close

CPU = torch.device("cpu")
BATCH = as_series([np.sin(np.arange(50) / 3), np.cos(np.arange(50) / 2)])


def allocated(work: Callable[[], Any]) -> int:
    """Peak of what the allocator has given and not taken back since the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        work()
    assert run.profiler is not None
    events = [event for event in run.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def test_what_is_measured_is_what_is_held() -> None:
    def work() -> torch.Tensor:
        first = torch.zeros(1000, 1000)
        second = first + 1
        del first
        view = second.t()[:10]
        del second, view
        return torch.ones(500, 1000).view(-1)

    kept, peak = measured(work, CPU)
    assert kept.shape == (500_000,)
    assert peak == 8_000_000


def test_sizes_follow_from_smaller_runs() -> None:
    assert fitting({1: 100}, 350) == 3
    # what three need, six need at most twice
    assert fitting({1: 100, 3: 150}, 350) == 7
    assert fitting({1: 100, 3: 150}, 100) == 1
    with pytest.raises(InputError, match=r"at least 100 bytes"):
        fitting({1: 100}, 99)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "timesfm-2.5"])
def test_the_limit_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lens = load(architectures()[name].tiny(), check=False)
    draws = {} if lens.adapter.readout == "quantile" else {"num_samples": 10}
    variants = [Variant.zero(part) for part in writers(lens.wiring)[:12]]
    # where replay would do, the rollout is what is measured here
    horizon = 4 if name == "chronos" else lens.adapter.longest_pass + 2
    chunks: list[int] = []
    run = fanout.Fan.side_by_side

    def counted(fan: fanout.Fan, chosen: Any) -> Any:
        chunks.append(len(chosen))
        return run(fan, chosen)

    monkeypatch.setattr(fanout.Fan, "side_by_side", counted)
    free = allocated(lambda: forecast_variants(lens, BATCH, horizon, variants, max_rows=24, **draws))
    assert chunks == [12]
    one = allocated(lambda: forecast_variants(lens, BATCH, horizon, variants[:1], max_rows=2, **draws))
    limit = (one + free) // 2
    assert free > 1.3 * limit
    chunks.clear()
    kept: list[Any] = []
    peak = allocated(lambda: kept.append(forecast_variants(lens, BATCH, horizon, variants, memory=limit, **draws)))
    # the first variant by itself is only measured
    assert chunks[0] == 1
    assert sum(chunks[1:]) == 12
    assert 2 <= max(chunks) < 12
    assert peak <= 1.2 * limit, (peak, limit, chunks)
    loop = forecast_variants(lens, BATCH, horizon, variants, economy=False, **draws)
    assert_close(kept[0].quantiles, loop.quantiles, depth=1000, dtype=np.float32)


def test_no_bit_depends_on_what_ran_before(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = load(architectures()["chronos-bolt"].tiny(), check=False)
    variants = [Variant.zero(part) for part in writers(lens.wiring)[:5]]
    horizon = lens.adapter.longest_pass + 2
    chunks: list[int] = []
    run = fanout.Fan.side_by_side

    def counted(fan: fanout.Fan, chosen: Any) -> Any:
        chunks.append(len(chosen))
        return run(fan, chosen)

    monkeypatch.setattr(fanout.Fan, "side_by_side", counted)
    first = forecast_variants(lens, BATCH, horizon, variants)
    begun = chunks.copy()
    again = forecast_variants(lens, BATCH, horizon, variants)
    # the process has measured by then, and the variants run side by side as before
    assert begun == [1, *chunks[len(begun) :]]
    np.testing.assert_array_equal(first.quantiles, again.quantiles)


def test_running_out_of_memory_halves_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = load(architectures()["timesfm-2.5"].tiny(), check=False)
    variants = [Variant.zero(part) for part in writers(lens.wiring)[:9]]
    # beyond one pass, where nothing can be replayed
    horizon = lens.adapter.longest_pass + 2
    tried: list[int] = []
    run, fits = fanout.Fan.side_by_side, 3

    def scarce(fan: fanout.Fan, chosen: Any) -> Any:
        tried.append(len(chosen))
        if len(chosen) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return run(fan, chosen)

    monkeypatch.setattr(fanout.Fan, "side_by_side", scarce)
    found = forecast_variants(lens, BATCH, horizon, variants, max_rows=18)
    assert tried == [9, 3, 3, 3]
    loop = forecast_variants(lens, BATCH, horizon, variants, economy=False)
    assert_close(found.quantiles, loop.quantiles, depth=1000, dtype=np.float32)
    fits = 0
    with pytest.raises(InputError, match="one variant of this batch runs out of memory"):
        forecast_variants(lens, BATCH, horizon, variants, max_rows=18)
    monkeypatch.setattr(fanout.Fan, "side_by_side", lambda *_args: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        forecast_variants(lens, BATCH, horizon, variants, max_rows=18)
