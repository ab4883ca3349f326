"""Random variants × series × levels × architectures: side by side as one forecast a variant."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tsfm_lens.ablation import Variant, forecast_variants
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks import Noise, Zero, writers
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.models.extras import status
from tsfm_lens.testing import example_case, rounding

CASES = int(os.environ.get("TSFM_LENS_CASES", "2000"))


@cache
def lens_of(name: str) -> Lens:
    entry = architectures()[name]
    if entry.extra and not status()[entry.extra].importable:
        pytest.skip(f"the extra {entry.extra} is not installed")
    return load(entry.tiny(), check=False)


def series_of(lens: Lens, rng: np.random.Generator) -> SeriesBatch:
    """One to four series of any level, spread and length; token ids where a model reads those."""
    if lens.adapter.architecture == "t5":
        return example_case(lens, n_series=int(rng.integers(1, 4))).batch
    found = []
    for _ in range(int(rng.integers(1, 5))):
        steps = np.arange(int(rng.integers(12, 60)))
        level, offset = 10.0 ** rng.uniform(-6, 6), rng.choice([0.0, 1.0, -1.0, 30.0])
        one = level * (offset + np.sin(steps / rng.uniform(1, 9)) + 0.3 * rng.standard_normal(len(steps)))
        found.append(np.stack([one, one[::-1]]) if lens.adapter.multivariate else one)
    return as_series(found)


def variant_of(lens: Lens, rng: np.random.Generator) -> Variant:
    """One or two components zeroed, or noise in the stream, of all series or of the first."""
    parts = [part for stack in lens.wiring.stacks for part in writers(lens.wiring, stack.name)]
    rows = [0] if rng.random() < 0.2 else None
    edits: list[Any] = [Zero(parts[i], rows=rows) for i in rng.choice(len(parts), int(rng.integers(1, 3)))]
    if rng.random() < 0.3:
        stack = lens.wiring.output_stack
        layer = int(rng.integers(stack.n_layers))
        at = f"{stack.prefix}.{layer}.hook_resid_post"
        edits = [Noise(at, scale=float(rng.uniform(0.1, 1)), seed=int(rng.integers(99)))]
    return Variant("", tuple(edits))


@pytest.mark.campaign
@pytest.mark.parametrize("name", sorted(architectures()))
def test_random_variants(name: str, record_property: Callable[[str, object], None]) -> None:
    lens, rng = lens_of(name), np.random.default_rng(0)
    depth = 300 * sum(stack.n_layers for stack in lens.wiring.stacks)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for case in range(-(-CASES // len(architectures()) // 5)):
        batch, variants = series_of(lens, rng), [variant_of(lens, rng) for _ in range(5)]
        horizon = int(rng.integers(1, min(12, lens.adapter.prediction_length) + 1))
        how: dict[str, Any] = {"seed": case} | ({} if lens.adapter.readout == "quantile" else {"num_samples": 2})
        found = forecast_variants(lens, batch, horizon, variants, **how).quantiles
        alone = forecast_variants(lens, batch, horizon, variants, economy=False, **how).quantiles
        for series, values in enumerate(batch.values):
            largest = max(float(np.abs(alone[:, series]).max()), float(np.nanmax(np.abs(values))))
            off = np.abs(found[:, series] - alone[:, series]).max(axis=(1, 2))
            bad = off > rounding("float32", largest, depth=depth)
            counts["cells"] += len(variants)
            wrong += [f"case {case}, variant {v}, series {series}: off by {off[v]:.3g}" for v in np.flatnonzero(bad)]
        counts["variants"] += len(variants)
    for what, count in counts.items():
        record_property(what, count)
    assert not wrong, f"{len(wrong)} of {counts['cells']}: {wrong[:5]}"
