"""What looks at the whole batch is shown it, however little fits into memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tsfm_lens.ablation import Variant, run_variants
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks import EditPattern, Resample
from tsfm_lens.models import load

STEPS = 40
HORIZON = 3
SERIES = 3
MANY = 12
NAMES = ("bolt-nano", "chronos-nano")
MLPS = ["decoder.0.mlp", "decoder.1.mlp"]


def series(count: int = SERIES) -> SeriesBatch:
    steps = np.arange(STEPS)
    rng = np.random.default_rng(0)
    return as_series(
        [np.sin(steps / (2 + k)) + 0.1 * rng.normal(size=STEPS) for k in range(count)]
    )


def other(batch: SeriesBatch) -> SeriesBatch:
    return replace(batch, values=tuple(np.roll(values, 6) for values in batch.values))


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as where hardly anything fits."""
    for module in ("models.batching", "models.recording", "ablation.engine"):
        monkeypatch.setattr(f"tsfm_lens.{module}.fitting", lambda *_args, **_options: 1)


@pytest.mark.parametrize("name", NAMES)
def test_batch_wide_models_see_whole_batches(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that looks at the whole batch is given the whole batch."""
    lens = load(name)
    rows = list[int]()
    known: dict[str, Any] = {"horizon": HORIZON}
    if lens.adapter.readout == "token":
        known = {"future": np.ones((MANY, HORIZON))}
    _, source = lens.run_with_cache(
        other(series(MANY)), names_filter="**.mlp.hook_out", **known
    )
    encoded = lens.encode(series(MANY), **known)
    run = lens.adapter.run
    one_at_a_time(monkeypatch)
    monkeypatch.setattr(
        lens.adapter,
        "run",
        lambda inputs: rows.append(len(next(iter(inputs.values())))) or run(inputs),
    )
    for separate in (
        Resample(MLPS[0], source),
        EditPattern("decoder.0.cross_attn", torch.zeros_like),
    ):
        rows.clear()
        run_variants(lens, encoded, [Variant("apart", (separate,))])
        assert set(rows) == {MANY}
    monkeypatch.setattr(
        lens.adapter, "run", lambda _inputs: (_ for _ in ()).throw(MemoryError())
    )
    with pytest.raises(
        InputError,
        match=r"give fewer series at once, since what is done at decoder_blocks",
    ):
        run_variants(lens, encoded, [Variant("apart", (separate,))])
