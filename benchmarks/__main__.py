"""``python -m benchmarks``: the table of the README, measured here and now."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ablations import compare
from benchmarks.captures import with_lens, with_nnsight, with_torch_hooks
from benchmarks.timing import ratios
from tsfm_lens.models import Lens, architectures, load

Row = tuple[str, str, str, str, bool | None]
"""measurement, value, range, target, met (None: no target)."""


def published(name: str, size: str) -> Lens:
    """A model of published size with random weights, so large that every head matters."""
    # with the library's initialisation a head moves a forecast by 1e-7, and comparing results would mean nothing
    return load(architectures()[name].build(size), check=False)


def series(count: int, length: int) -> list[np.ndarray]:
    """Seasonal series with noise."""
    rng = np.random.default_rng(0)
    steps = np.arange(length)
    return [np.sin(2 * np.pi * steps / (12 + i)) + 0.1 * rng.standard_normal(length) for i in range(count)]


def idle(lens: Lens, rounds: int) -> Row:
    """(a) A forecast through the lens with no hook set, against the native pipeline."""
    batch = series(2, 512)
    contexts = [torch.tensor(values) for values in batch]
    token = lens.adapter.readout == "token"
    horizon, samples = (8, 4) if token else (lens.adapter.prediction_length, None)

    def native() -> object:
        torch.manual_seed(0)
        if token:
            return lens.native.predict_quantiles(contexts, prediction_length=horizon, num_samples=samples)
        return lens.native.predict_quantiles(contexts, prediction_length=horizon)

    found = ratios([lambda: lens.forecast(batch, horizon, num_samples=samples)], native, rounds=rounds)
    return _row(f"(a) {lens.wiring.architecture}: forecast, idle lens / native", found[0], 1.02)


def capture(lens: Lens, rounds: int) -> list[Row]:
    """(b) Every residual stream and every head's z, against a native forward."""
    batch = series(2, 512)
    future = np.stack([values[-16:] for values in batch]) if lens.adapter.readout == "token" else None
    encoded = lens.encode(batch, future=future)
    ways: dict[str, Callable[[], object] | None] = {
        "run_with_cache": with_lens(lens, encoded),
        "plain torch hooks": with_torch_hooks(lens, encoded),
        "nnsight": with_nnsight(lens, encoded),
    }
    there = {name: way for name, way in ways.items() if way is not None}
    with torch.no_grad():
        found = ratios(list(there.values()), lambda: lens.adapter.run(encoded.inputs), rounds=rounds)
    rows = [
        _row(f"(b) {lens.wiring.architecture}: capture by {name} / native", found[index], 1.15 if index == 0 else None)
        for index, name in enumerate(there)
    ]
    if ways["nnsight"] is None:
        rows.append((f"(b) {lens.wiring.architecture}: capture by nnsight", "not installed", "", "", None))
    return rows


def ablations(lens: Lens, sample: int | None) -> list[Row]:
    """(c) All 288 single-head ablations of the decoder on 8 series of 512 points."""
    encoded = lens.encode(series(8, 512))
    result = compare(lens, encoded, sample=sample)
    timed = f"{result.timed} of {result.heads} full forwards timed"
    return [
        (
            "(c) 288 head ablations: one forward a head / ours",
            f"{result.speed:.1f} ×",
            timed,
            "≥ 12",
            result.speed >= 12,
        ),
        (
            "(c) largest relative deviation of the results",
            f"{result.error:.1e}",
            f"a head moves them by {result.effect:.1e}",
            "≤ 1e-5",
            result.error <= 1e-5,
        ),
        (
            "(c) arithmetic limit of that ratio",
            f"{result.limit:.0f} ×",
            f"reached {result.speed / result.limit:.0%}",
            "",
            None,
        ),
        ("(c) peak memory of the process", f"{result.memory:.1f} GiB", "", "", None),
    ]


def _row(name: str, found: tuple[float, float, float], target: float | None) -> Row:
    median, low, high = found
    met = None if target is None else median <= target
    return name, f"{median:.3f}", f"{low:.3f}–{high:.3f}", "" if target is None else f"≤ {target}", met


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="a,b,c", help="measurements, e.g. a,c (default: all)")
    parser.add_argument("--rounds", type=int, default=9, help="paired runs of (a) and (b)")
    parser.add_argument("--full", action="store_true", help="(c): time every full forward, not a sample of 16")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    wanted = set(options.only.split(","))
    console = Console(width=130)
    rows: list[Row] = []
    with console.status("building models"):
        bolt = published("chronos-bolt", "base")
        lenses = [published("chronos", "small"), bolt] if wanted & {"a", "b"} else []
    for lens in lenses:
        if "a" in wanted:
            with console.status(f"(a) {lens.wiring.architecture}"):
                rows.append(idle(lens, options.rounds))
        if "b" in wanted:
            with console.status(f"(b) {lens.wiring.architecture}"):
                rows += capture(lens, options.rounds)
    if "c" in wanted:
        with console.status("(c) head ablations"):
            rows += ablations(bolt, None if options.full else 16)
    place = (
        f"{platform.machine()}, {os.cpu_count()} cores, {options.threads} torch thread(s), torch {torch.__version__}"
    )
    table = Table("measurement", "median", "range / note", "target", "met", title=f"random weights; {place}")
    for name, value, span, target, met in rows:
        table.add_row(name, value, span, target, "" if met is None else ("yes" if met else "no"))
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps({"machine": place, "rows": rows}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
