"""``python -m benchmarks``: the table of the README, measured here and now."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import heads_at
from benchmarks.ablations import compare
from benchmarks.captures import with_lens, with_nnsight, with_torch_hooks
from benchmarks.history import append
from benchmarks.memory import memory_rows
from benchmarks.natives import SAMPLES, native_call
from benchmarks.probes import measure
from benchmarks.sweep_engine import table as engine_rows
from benchmarks.sweep_store import engine_rows as worker_rows
from benchmarks.sweep_store import store_rows
from tsfm_lens import testing
from tsfm_lens.compress.timing import make_clock, ratios
from tsfm_lens.data import as_series
from tsfm_lens.models import Lens, load

Row = tuple[str, str, str, str, bool | None]
"""measurement, value, range, target, met (None: no target)."""


@dataclass(frozen=True)
class Plan:
    """What is measured of an architecture.

    Attributes:
        size: the published size.
        series: series of 512 steps in (c).
        heads: heads per layer that (c) ablates; all if None.
        speed: target of (c).
    """

    size: str
    series: int = 2
    heads: int | None = 2
    speed: float = 1.8


PLANS = {
    "chronos": Plan("small", speed=12.0),
    "chronos-bolt": Plan("base", series=8, heads=None, speed=12.0),
    "chronos-2": Plan("base"),
    "timesfm-2.5": Plan("200m"),
    "timesfm-2.5-transformers": Plan("200m"),
    "timesfm-3": Plan("330m"),
    "toto-1": Plan("Open-Base-1.0"),
    "toto-2": Plan("22m"),
    "timestral": Plan("28M"),
    "moirai-1.1": Plan("base"),
    "moirai-2": Plan("small"),
    "t5": Plan("small"),
    "ttm": Plan("512-96", series=8),
    "tirex": Plan("35m"),
    "fracast": Plan("0", series=8),
}


def published(name: str, size: str, device: str) -> Lens:
    """A model of published size with random weights: every head matters."""
    # with the library's initialisation a head moves a forecast by 1e-7, and comparing
    # results would mean nothing
    return load(testing.published(name, size), check=False).to(device)


def series(lens: Lens, count: int, length: int = 512) -> list[np.ndarray]:
    """Seasonal series with noise; of a language model, token ids."""
    rng = np.random.default_rng(0)
    if getattr(lens.adapter, "integers", False):
        return list(
            rng.integers(
                2, lens.adapter.model.config.vocab_size, (count, length)
            ).astype(float)
        )
    steps = np.arange(length)
    return [
        np.sin(2 * np.pi * steps / (12 + i)) + 0.1 * rng.standard_normal(length)
        for i in range(count)
    ]


def idle(lens: Lens, rounds: int, count: int = 2) -> Row:
    """(a) A forecast through the lens without hooks, against the library's own call."""
    batch = series(lens, count)
    token = lens.adapter.readout == "token"
    if token:
        horizon = 8
    else:
        horizon = min(lens.adapter.prediction_length, 64)
    samples = None
    if lens.adapter.readout != "quantile":
        samples = SAMPLES
    call = native_call(lens, batch, horizon)

    def native() -> object:
        torch.manual_seed(0)
        return call()

    visible = as_series(batch)
    ours = [lambda: lens.forecast(visible, horizon, num_samples=samples)]
    with torch.no_grad():
        ratios_to_native = ratios(
            ours, native, rounds=rounds, clock=make_clock(lens.device)
        )
    return _row(
        f"(a) {lens.wiring.architecture}: forecast, idle lens / native",
        ratios_to_native[0],
        1.02,
    )


def capture(lens: Lens, rounds: int, count: int = 2) -> list[Row]:
    """(b) Every residual stream and every head's z, against a native forward."""
    batch = series(lens, count)
    future = None
    if lens.adapter.readout == "token":
        future = np.stack([values[-16:] for values in batch])
    encoded = lens.encode(batch, future=future)
    ways: dict[str, Callable[[], object] | None] = {
        "run_with_cache": with_lens(lens, encoded),
        "plain torch hooks": with_torch_hooks(lens, encoded),
        "nnsight": with_nnsight(lens, encoded),
    }
    there = {name: way for name, way in ways.items() if way is not None}
    with torch.no_grad():
        plain = partial(lens.adapter.run, encoded.inputs)
        ratios_to_plain = ratios(
            list(there.values()), plain, rounds=rounds, clock=make_clock(lens.device)
        )
    target = 1.2
    if lens.wiring.architecture in ("chronos", "chronos-bolt"):
        target = 1.15
    return [
        _row(
            f"(b) {lens.wiring.architecture}: capture by {name} / native",
            ratios_to_plain[index],
            target if index == 0 else None,
        )
        for index, name in enumerate(there)
    ]


def ablations(lens: Lens, plan: Plan, sample: int | None) -> list[Row]:
    """(c) Single-head ablations of the decoder or trunk on series of 512 points."""
    batch = series(lens, plan.series)
    future = None
    if lens.adapter.readout == "token":
        future = np.stack([values[-16:] for values in batch])
    result = compare(
        lens,
        lens.encode(batch, future=future),
        sample=sample,
        heads_per_layer=plan.heads,
    )
    name = f"(c) {lens.wiring.architecture}"
    timed = (
        f"{result.heads} heads, {result.timed} full forwards timed; limit"
        f" {result.limit:.1f} ×"
    )
    reached = f"{timed}, reached {result.speed / result.limit:.0%}"
    effect = (
        f"a head moves them by {result.effect:.1e}; peak memory {result.memory:.1f} GiB"
    )
    return [
        (
            f"{name}: one forward per head / ours",
            f"{result.speed:.1f} ×",
            reached,
            f"≥ {plan.speed:g}",
            result.speed >= plan.speed,
        ),
        (
            f"{name}: largest deviation of the results",
            f"{result.error:.1e}",
            effect,
            "≤ 1e-5",
            result.error <= 1e-5,
        ),
    ]


def linked_view(rounds: int) -> list[Row]:
    """(e) From a choice in ``run.explore`` to the state that a browser gets, without
    its drawing.
    """
    # a machine that measures other things may lack the widgets
    from benchmarks.explore import LIMIT, latencies

    rows: list[Row] = []
    for name, *times in latencies(rounds):
        median, low, high = (1000 * seconds for seconds in times)
        met = median <= 1000 * LIMIT
        rows.append(
            (
                f"(e) {name}",
                f"{median:.0f} ms",
                f"{low:.0f}–{high:.0f}",
                f"≤ {1000 * LIMIT:.0f} ms",
                met,
            )
        )
    return rows


def sweep_engine(sample: int | None, device: str) -> list[Row]:
    """(f) The sweep engine: single forwards of two models, and sampling rollouts of a
    third.
    """
    rows: list[Row] = []
    lens = published("chronos-bolt", "base", device)
    rows += engine_rows(
        lens, lens.encode(series(lens, 64)), "64 series × 512", 15.0, sample, None
    )
    lens = published("timesfm-2.5", "200m", device)
    rows += engine_rows(
        lens, lens.encode(series(lens, 2)), "2 series × 512", 2.0, sample, 2
    )
    lens = published("chronos", "small", device)
    return rows + engine_rows(
        lens, as_series(series(lens, 1)), "20 samples × 64 steps", 4.0, sample, None
    )


def heads_at_rows() -> list[Row]:
    """(g) What heads@k of one layer of 12 heads takes: every method on both orders of
    stable rank.
    """
    rows: list[Row] = []
    for search in heads_at.measure():
        name = f"heads@k, {search.order}, {search.tolerance:.0%}: {search.method}"
        note = (
            f"keeps {search.kept}, saves {search.saved:.1f} of {heads_at.HEADS}; as the"
            f" scan in {search.agrees:.0%}"
        )
        rows.append((name, f"{search.evaluations:.1f} evaluations", note, "", None))
    return rows


def _row(name: str, ratio: tuple[float, float, float], target: float | None) -> Row:
    median, low, high = ratio
    if target is None:
        met = None
    else:
        met = median <= target
    return (
        name,
        f"{median:.3f}",
        f"{low:.3f}–{high:.3f}",
        "" if target is None else f"≤ {target}",
        met,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        default="a,b,c,d,e,f,g,h,i",
        help="measurements, e.g. a,c (default: all)",
    )
    parser.add_argument(
        "--models",
        default=",".join(PLANS),
        help="architectures, e.g. chronos-bolt,moirai-2 (default: all)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=9,
        help="paired runs of (a) and (b), events of (e)",
    )
    parser.add_argument(
        "--batch", type=int, default=2, help="(a), (b): series of 512 steps"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="(c), (f): time every plain run, not a sample",
    )
    parser.add_argument(
        "--series",
        type=int,
        default=10_000,
        help="(i): series, and a quarter and half of them",
    )
    parser.add_argument(
        "--device", default="cpu", help="(a) to (c), (f): torch device of the models"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument(
        "--no-history",
        action="store_true",
        help="do not add the rows to benchmarks/history.csv",
    )
    options = parser.parse_args()
    chosen = options.models.split(",")
    if unknown := sorted(set(chosen) - set(PLANS)):
        parser.error(f"no architecture {', '.join(unknown)}; known: {', '.join(PLANS)}")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    wanted = set(options.only.split(","))
    console = Console(width=170)
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{options.threads} torch thread(s), torch {torch.__version__}"
    )
    if options.device.startswith("cuda"):
        machine += f", {torch.cuda.get_device_name(options.device)}"
    rows: list[Row] = []
    # (d) to (i) have models of their own
    for name in chosen if wanted & {"a", "b", "c"} else ():
        with console.status(f"{name}: building"):
            lens = published(name, PLANS[name].size, options.device)
        if "a" in wanted:
            with console.status(f"(a) {name}"):
                rows.append(idle(lens, options.rounds, options.batch))
        if "b" in wanted:
            with console.status(f"(b) {name}"):
                rows += capture(lens, options.rounds, options.batch)
        if "c" in wanted and any(
            component.head is not None for component in lens.components()
        ):
            with console.status(f"(c) {name}"):
                rows += ablations(lens, PLANS[name], None if options.full else 16)
        del lens
        gc.collect()
        # what was measured is kept, whatever happens to a later model
        if options.json:
            options.json.write_text(
                json.dumps(
                    {"machine": machine, "rows": rows}, indent=1, ensure_ascii=False
                )
            )
    sections: dict[str, tuple[str, Callable[[], Iterable[Row]]]] = {
        "d": ("probes", lambda: measure(options.rounds)),
        "e": ("run.explore", lambda: linked_view(options.rounds)),
        "f": (
            "sweep engine",
            lambda: sweep_engine(None if options.full else 4, options.device),
        ),
        "g": ("heads@k", heads_at_rows),
        "h": ("store and workers of sweeps", lambda: [*store_rows(), *worker_rows()]),
        "i": ("memory", lambda: memory_rows(options.series)),
    }
    for letter, (title, work) in sections.items():
        if letter not in wanted:
            continue
        with console.status(f"({letter}) {title}"):
            rows += work()
        # what was measured is kept, whatever happens to a later one
        if options.json:
            options.json.write_text(
                json.dumps(
                    {"machine": machine, "rows": rows}, indent=1, ensure_ascii=False
                )
            )
    table = Table(
        "measurement",
        "median",
        "range / note",
        "target",
        "met",
        title=f"random weights; {machine}",
    )
    for name, value, span, target, met in rows:
        table.add_row(
            name, value, span, target, "" if met is None else ("yes" if met else "no")
        )
    console.print(table)
    if not options.no_history:
        append(rows, machine)


if __name__ == "__main__":
    main()
