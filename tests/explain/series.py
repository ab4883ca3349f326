"""Series that explanations are tested on."""

from __future__ import annotations

from typing import Any

import numpy as np


def drawn(steps: int = 96, horizon: int = 16, seed: int = 0) -> dict[str, Any]:
    """An item with a past covariate "a" and a known one "k" that moves the target."""
    rng = np.random.default_rng(seed)
    known, time = rng.normal(size=steps + horizon), np.arange(steps)
    target = 20 + 3 * known[:steps] + 5 * np.sin(2 * np.pi * time / 24) + 0.3 * rng.normal(size=steps)
    past = {"a": rng.normal(size=steps), "k": known[:steps]}
    return {"target": target, "past_covariates": past, "future_covariates": {"k": known[steps:]}}
