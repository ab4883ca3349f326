"""Every probe runs as few series at once as the memory asks for, and finds what it finds of the whole batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from tsfm_lens.ablation import Variant, run_variants
from tsfm_lens.core.needs import NEEDS
from tsfm_lens.core.registry import find, measurements
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks import EditPattern, Resample
from tsfm_lens.models import Lens, load
from tsfm_lens.testing import assert_close

STEPS, HORIZON, SERIES, MANY = 40, 3, 3, 12
# roundings between two ways to multiply the same matrices, through all layers and what probes make of them
DEPTH = 10_000
NAMES = ("bolt-nano", "chronos-nano")
MLPS = ["decoder.0.mlp", "decoder.1.mlp"]
# differences of equals, and signs of parts of size 0, which are rounding and nothing else
ROUNDING = {
    "completeness_error",
    "identity_error",
    "path_error",
    "sign_agreement",
    "series_agreement",
}


def series(count: int = SERIES) -> SeriesBatch:
    steps, rng = np.arange(STEPS), np.random.default_rng(0)
    return as_series(
        [np.sin(steps / (2 + k)) + 0.1 * rng.normal(size=STEPS) for k in range(count)]
    )


def other(batch: SeriesBatch) -> SeriesBatch:
    return replace(batch, values=tuple(np.roll(values, 6) for values in batch.values))


def kinds_of(lens: Lens) -> list[str]:
    """Kinds that a probe computes of all series of a run or of a pair, and may compute in parts."""
    return [
        kind
        for kind, entry in measurements().items()
        if entry.home.startswith("tsfm_lens.probes.")
        and entry.takes in ("run", "pair")
        and not entry.whole_batch
        and (not entry.needs or NEEDS[entry.needs].met(lens))
    ]


def compute(kind: str, lens: Lens, batch: SeriesBatch) -> xr.Dataset:
    """Compute a measurement as its declaration keeps a trial of it small."""
    entry = find(kind)
    if entry.takes == "pair":
        pair = [
            lens.run(each, HORIZON, rollout=False) for each in (batch, other(batch))
        ]
        return entry.function(*pair, **entry.example)
    options = {"num_samples": 2} if lens.adapter.readout == "token" else {}
    return entry.function(lens.run(batch, HORIZON, **options), **entry.example)


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as where hardly anything fits."""
    for module in ("models.batching", "models.recording", "ablation.engine"):
        monkeypatch.setattr(f"tsfm_lens.{module}.fitting", lambda *_args, **_options: 1)


@pytest.mark.parametrize("name", NAMES)
def test_probes_find_the_same_one_series_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens, batch = load(name), series()
    expected = {kind: compute(kind, lens, batch) for kind in kinds_of(lens)}

    one_at_a_time(monkeypatch)
    rows: list[int] = []
    run, predict = lens.adapter.run, lens.adapter.predict

    def seen(inputs: Any) -> torch.Tensor:
        rows.append(
            len(
                next(
                    value
                    for value in inputs.values()
                    if isinstance(value, torch.Tensor)
                )
            )
        )
        return run(inputs)

    def seen_batch(part: SeriesBatch, *rest: Any) -> Any:
        rows.append(len(part))
        return predict(part, *rest)

    monkeypatch.setattr(lens.adapter, "run", seen)
    monkeypatch.setattr(lens.adapter, "predict", seen_batch)
    for kind, whole in expected.items():
        rows.clear()
        found = compute(kind, lens, batch)
        assert set(rows) == {1}, (kind, rows)
        assert set(found) == set(whole)
        for variable in set(found) - ROUNDING:
            what, actual = f"{kind}: {variable}", found[variable].values
            if actual.dtype.kind == "f":
                assert_close(
                    actual,
                    whole[variable].values,
                    depth=DEPTH,
                    dtype=torch.float32,
                    what=what,
                )
            else:
                assert np.array_equal(actual, whole[variable].values), what


@pytest.mark.parametrize("name", NAMES)
def test_what_looks_at_the_whole_batch_is_shown_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens, rows = load(name), list[int]()
    known: dict[str, Any] = {"horizon": HORIZON}
    if lens.adapter.readout == "token":
        known = {"future": np.ones((MANY, HORIZON))}
    _, source = lens.run_with_cache(
        other(series(MANY)), names_filter="**.mlp.hook_out", **known
    )
    encoded, run = lens.encode(series(MANY), **known), lens.adapter.run
    one_at_a_time(monkeypatch)
    monkeypatch.setattr(
        lens.adapter,
        "run",
        lambda inputs: rows.append(len(next(iter(inputs.values())))) or run(inputs),
    )
    for apart in (
        Resample(MLPS[0], source),
        EditPattern("decoder.0.cross_attn", torch.zeros_like),
    ):
        rows.clear()
        run_variants(lens, encoded, [Variant("apart", (apart,))])
        assert set(rows) == {MANY}
    monkeypatch.setattr(
        lens.adapter, "run", lambda _inputs: (_ for _ in ()).throw(MemoryError())
    )
    with pytest.raises(
        InputError,
        match=r"give fewer series at once, since what is done at decoder_blocks",
    ):
        run_variants(lens, encoded, [Variant("apart", (apart,))])
