"""Peak resident memory of forecasts of many series, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.apart import apart, status
from tsfm_lens.models import load

Row = tuple[str, str, str, str, bool | None]
"""measurement, value, range, target, met (None: no target)."""

MODELS = ("bolt-nano", "chronos-nano")
CONTEXT = 512
HORIZON = 24
LIMIT = 4 * 10**9
"""Bytes that a process of 10,000 series may hold."""


def peak(name: str, count: int) -> int:
    """Most bytes that this process, interpreter and libraries included, holds while it
    forecasts so many series.

    Args:
        name: of the model.
        count: series of 512 steps; 24 steps ahead.
    """
    steps = np.arange(CONTEXT)
    rng = np.random.default_rng(0)
    series = [
        np.sin(2 * np.pi * steps / (6 + i % 32)) + 0.1 * rng.standard_normal(CONTEXT)
        for i in range(count)
    ]
    with torch.no_grad():
        forecast = load(name).forecast(series, HORIZON)
    assert forecast.quantiles.shape[0] == count
    return status("VmHWM")


def memory_rows(count: int) -> list[Row]:
    """(i) The peak of each model at a quarter, half and all of so many series: it must
    not grow with their number.
    """
    rows: list[Row] = []
    if not Path("/proc/self/status").exists():
        return rows
    for name in MODELS:
        for number in (count // 4, count // 2, count):
            held = apart(peak, name, number)
            what = (
                f"(i) {name}: peak memory of {number:,} series × {CONTEXT}, {HORIZON}"
                " ahead"
            )
            rows.append(
                (
                    what,
                    f"{held / 2**20:,.0f} MiB",
                    "",
                    f"≤ {LIMIT / 10**9:g} GB",
                    held <= LIMIT,
                )
            )
    return rows
