"""``python -m benchmarks.compress``: what compression buys and costs, all sides in one run.

``quality``: the rise of MASE of both embedded models at several shares by method, on series that did not calibrate.
``speed``: published sizes with random weights cut off to a quarter of the rank of their attentions: numbers, file,
forward time, and memory, as ratios to the whole model, beside what numbers and multiplications allow.
"""

from __future__ import annotations

import argparse
import gc
import math
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from tsfm_lens import compress, load
from tsfm_lens.data import as_series
from tsfm_lens.models import Lens, Run, architectures
from tsfm_lens.models.timing import ratios
from tsfm_lens.stats import mean_interval
from tsfm_lens.studies.recipes.evaluate import VALIDATION_SEED, SkillCase, measure, real_cases, synthetic_cases

HORIZON = 24
KEEPS = (0.1, 0.25, 0.5)
SAMPLES = 20
"""Paths of a sampling model: all of chronos-nano's would take five times as long, and differences are paired."""


def calibrated(lens: Lens, count: int) -> Run:
    """A run of series that are not among the test's; a decoder follows their own ends."""
    series = [case.values for case in synthetic_cases(seed=VALIDATION_SEED, count=count)]
    run = lens.run(as_series(series), HORIZON, holdout=True)
    return lens.run(run.batch, HORIZON, forced_path=run.truth) if run.tokens_read else lens.run(run.batch, HORIZON)


def errors(lens: Lens, cases: Sequence[SkillCase]) -> dict[str, float]:
    """MASE of each series."""
    samples = SAMPLES if lens.emits == "token" else None
    return {skill.name: skill.model for skill in measure(lens.native, cases, horizon=HORIZON, samples=samples)}


def quality(model: str, methods: Sequence[str], calibration: int, cases: int) -> list[list[str]]:
    """Rows: method, share, what is left of the attentions, rise of MASE with its interval, against plain truncation."""
    lens = load(model)
    run = calibrated(lens, calibration)
    tests = [*synthetic_cases(count=cases), *real_cases()]
    plain = errors(lens, tests)
    names = list(plain)
    rows, by_svd = [], {}
    for keep in KEEPS:
        for method in methods:
            smaller, _ = compress.compressed(run, keep, method=method)
            found = errors(smaller, tests)
            logs = np.log([found[name] / plain[name] for name in names])
            mean, low, high = (100 * math.expm1(float(value)) for value in mean_interval(logs))
            if method == "svd":
                by_svd[keep] = (mean, logs)
            against, beside = by_svd.get(keep, (math.nan, logs))
            paired = [100 * math.expm1(float(value)) for value in mean_interval(logs - beside)]
            left = compress.sizes(smaller)["attention"] / compress.sizes(lens)["attention"]
            moved = float(compress.deviation(run, smaller.adapter.run(run.encoded.inputs)).mean())
            rows.append(
                [
                    model,
                    f"{keep:g}",
                    method,
                    f"{left:.2f}",
                    f"{mean:+.2f} % ({low:+.2f} to {high:+.2f})",
                    f"{mean / against:.2f}",
                    f"{paired[0]:+.2f} % ({paired[1]:+.2f} to {paired[2]:+.2f})",
                    f"{moved:.3g}",
                ]
            )
            Console(stderr=True).print(rows[-1])
    return rows


def peak(work: Callable[[], object]) -> int:
    """Bytes by which resident memory rose at most while work was done, looked at every millisecond."""
    page, rss, highest, over = 4096, Path("/proc/self/statm"), 0, threading.Event()

    def look() -> None:
        nonlocal highest
        while not over.is_set():
            highest = max(highest, int(rss.read_text().split()[1]))
            time.sleep(0.001)

    gc.collect()
    before = int(rss.read_text().split()[1])
    watcher = threading.Thread(target=look)
    watcher.start()
    work()
    over.set()
    watcher.join()
    return max(0, highest - before) * page


def operations(lens: Lens, inputs: dict) -> int:
    """Multiplications and additions of one forward, as torch counts them."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        lens.adapter.run(inputs)
    return int(counter.get_total_flops())


def speed(architecture: str, size: str, keep: float, shapes: Sequence[tuple[int, int]], rounds: int) -> list[list[str]]:
    """Rows: what, ratio, what is allowed."""
    whole = load(architectures()[architecture].build(size), check=False)
    ranks = compress.chosen_ranks(whole, keep=keep)
    smaller = compress.factorised(whole, ranks)
    before, after = compress.sizes(whole), compress.sizes(smaller)
    name = f"{architecture} {size} at {keep:g}"
    allowed = after["all"] / before["all"]
    rows = [
        [name, "numbers in attentions", f"{after['attention'] / before['attention']:.3f}", ""],
        [name, "numbers", f"{allowed:.3f}", ""],
    ]
    with tempfile.TemporaryDirectory() as folder:
        entry = architectures()[architecture]
        dense = Path(folder, "whole")
        native = getattr(whole.native, "inner_model", whole.native)
        entry.save(whole.native, dense) if entry.save else native.save_pretrained(dense)
        small = compress.save_compressed(smaller, Path(folder, "small"), ranks=ranks, method="svd")
        size_of = [sum(file.stat().st_size for file in where.glob("*.safetensors")) for where in (dense, small)]
    rows.append([name, "bytes of the file", f"{size_of[1] / size_of[0]:.3f}", f"{allowed:.3f}"])
    for batch, length in shapes:
        rng = np.random.default_rng(0)
        series = as_series(list(np.sin(np.arange(length) / 4) + 0.1 * rng.standard_normal((batch, length))))
        future = np.zeros((batch, 16)) if whole.adapter.readout == "token" else None
        inputs = whole.encode(series, future=future).inputs
        counted = [operations(each, inputs) for each in (whole, smaller)]
        with torch.no_grad():
            median, low, high = ratios(
                [lambda i=inputs: smaller.adapter.run(i)], lambda i=inputs: whole.adapter.run(i), rounds=rounds
            )[0]
            peaks = [peak(lambda each=each, i=inputs: each.adapter.run(i)) for each in (whole, smaller)]
        held = [4 * sizes["all"] + extra for sizes, extra in zip((before, after), peaks, strict=True)]
        what = f"{batch} x {length}"
        rows.append(
            [name, f"{what}: forward time", f"{median:.3f} ({low:.3f}-{high:.3f})", f"{counted[1] / counted[0]:.3f}"]
        )
        rows.append([name, f"{what}: weights and peak of a forward", f"{held[1] / held[0]:.3f}", f"{allowed:.3f}"])
        Console(stderr=True).print(rows[-2:])
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["quality", "speed"])
    parser.add_argument("--models", default="bolt-nano,chronos-nano")
    parser.add_argument("--methods", default="svd,weighted,measured")
    parser.add_argument("--calibration", type=int, default=48, help="series")
    parser.add_argument("--cases", type=int, default=48, help="synthetic test series, beside all bundled ones")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--published", default="chronos/base,chronos-bolt/base")
    parser.add_argument("--shapes", default="1x512,16x512", help="series x steps of context")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "quality":
        header = ["model", "kept", "method", "of attention", "rise of MASE", "/ svd's", "MASE / svd's", "moves outputs"]
        rows = [
            row
            for model in given.models.split(",")
            for row in quality(model, given.methods.split(","), given.calibration, given.cases)
        ]
    else:
        header = ["model", "measured", "ratio to the whole", "allowed"]
        shapes = [(int(shape.split("x")[0]), int(shape.split("x")[1])) for shape in given.shapes.split(",")]
        rows = [
            row for each in given.published.split(",") for row in speed(*each.split("/"), 0.25, shapes, given.rounds)
        ]
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
