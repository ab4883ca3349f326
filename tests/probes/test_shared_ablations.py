"""Probes of one run that ablate by zeros share forecasts, and find what they would find by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tsfm_lens import probes
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.data import bundled
from tsfm_lens.models import load
from tsfm_lens.probes import zero_ablation
from tsfm_lens.testing import assert_close


def test_what_was_ablated_is_not_run_again_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lens, series = load("bolt-nano"), bundled("co2").tail(64)
    asked: list[str] = []

    def counted(run: Any, variants: Any, progress: Any = None) -> np.ndarray:
        asked.extend(variant.name for variant in variants)
        return point_forecasts(run, variants, progress)

    monkeypatch.setattr(zero_ablation, "point_forecasts", counted)
    alone = probes.causal_effects(lens.run(series, 8))
    assert sum(not name.startswith("direct") for name in asked) == alone.sizes["component"]
    shared = lens.run(series, 8)
    probes.ablation_effects(shared)
    asked.clear()
    found = probes.causal_effects(shared)
    assert all(name.startswith("direct") for name in asked)
    for part in ("total", "direct"):
        assert_close(found[part].values, alone[part].values, depth=1000, magnitude=400.0, dtype=np.float32)
    # another way to take a component's place is another forecast
    asked.clear()
    probes.ablation_effects(shared, components="decoder.*.mlp", how="mean", reference=series)
    assert len(asked) == 3
