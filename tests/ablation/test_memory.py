"""Variants side by side: as many as run at once, fewer where memory runs out, and
always the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tiny_lenses import lens_of
from tsfm_lens.ablation import (
    Variant,
    engine,
    forecast_variants,
    rollouts,
    run_variants,
)
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series
from tsfm_lens.hooks import writers
from tsfm_lens.models import Lens, batching
from tsfm_lens.testing import assert_close

BATCH = as_series([np.sin(np.arange(50) / 3), np.cos(np.arange(50) / 2)])


def counted(monkeypatch: pytest.MonkeyPatch, fits: int = 10**6) -> list[int]:
    """Sizes of all chunks of a rollout; above ``fits`` variants memory runs out."""
    chunks: list[int] = []
    run = rollouts.VariantRequest.together

    def together(request: rollouts.VariantRequest, variants: Any) -> Any:
        chunks.append(len(variants))
        if len(variants) > fits:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB"
            )
        return run(request, variants)

    monkeypatch.setattr(rollouts.VariantRequest, "together", together)
    return chunks


def lens_and_variants(name: str, count: int) -> tuple[Lens, list[Variant]]:
    lens = lens_of(name)
    return lens, [Variant.zero(part) for part in writers(lens.wiring)[:count]]


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "timesfm-2.5"])
def test_memory_bounds_the_parallel_variants(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes at once bound how many variants run side by side."""
    lens, variants = lens_and_variants(name, 8)
    if lens.adapter.readout == "quantile":
        draws = {}
    else:
        draws = {"num_samples": 4}
    # where replay would do, the rollout is what is looked at here
    if name == "chronos":
        horizon = 4
    else:
        horizon = lens.adapter.longest_pass + 2
    loop = forecast_variants(lens, BATCH, horizon, variants, economy=False, **draws)
    chunks = counted(monkeypatch)
    for bytes_at_once, largest in ((2**30, 8), (1, 1)):
        chunks.clear()
        monkeypatch.setattr(batching, "BYTES_AT_ONCE", bytes_at_once)
        monkeypatch.setattr(
            batching, "memory_limit", lambda _device, most=bytes_at_once: most
        )
        found = forecast_variants(lens, BATCH, horizon, variants, **draws)
        assert sum(chunks) == 8
        assert max(chunks) == largest
        assert_close(found.quantiles, loop.quantiles, depth=1000, dtype=np.float32)


def test_out_of_memory_halves_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Running out of memory halves the chunks."""
    lens, variants = lens_and_variants("timesfm-2.5", 9)
    # beyond one pass, where nothing can be replayed
    horizon = lens.adapter.longest_pass + 2
    loop = forecast_variants(lens, BATCH, horizon, variants, economy=False)
    monkeypatch.setattr(rollouts.VariantRequest, "abreast", lambda _request: 9)
    with monkeypatch.context() as patch:
        chunks = counted(patch, fits=3)
        found = forecast_variants(lens, BATCH, horizon, variants)
    assert chunks == [9, 3, 3, 3]
    assert_close(found.quantiles, loop.quantiles, depth=1000, dtype=np.float32)
    counted(monkeypatch, fits=0)
    with pytest.raises(
        InputError, match="one variant of this batch runs out of memory"
    ):
        forecast_variants(lens, BATCH, horizon, variants)
    bug = lambda *_args: (_ for _ in ()).throw(RuntimeError("a bug"))  # noqa: E731
    monkeypatch.setattr(rollouts.VariantRequest, "together", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        forecast_variants(lens, BATCH, horizon, variants)


def test_less_memory_means_fewer_forward_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forward passes of variants take fewer rows where memory runs out."""
    lens, variants = lens_and_variants("chronos-bolt", 6)
    monkeypatch.setattr(engine, "_PASS_OVERHEAD", 10**12)
    encoded = lens.encode(BATCH)
    full = run_variants(lens, encoded, variants)
    run = lens.adapter.run
    rows = list[int]()
    most = 4

    def scarce(inputs: Any) -> torch.Tensor:
        rows.append(len(inputs["context"]))
        if rows[-1] > most:
            raise MemoryError
        return run(inputs)

    monkeypatch.setattr(lens.adapter, "run", scarce)
    assert_close(run_variants(lens, encoded, variants), full, depth=300)
    assert max(rows[2:]) == 6
    most = 1
    assert_close(run_variants(lens, encoded, variants), full, depth=300)
    most = 0
    with pytest.raises(InputError, match="run out of memory"):
        run_variants(lens, encoded, variants)
