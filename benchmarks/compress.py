"""``python -m benchmarks.compress``: what compression buys and costs, all sides in one
run.

``quality``: the rise of MASE of the embedded models at several shares by method, on
series of sources that did not
calibrate: half of the bundled publishers, and synthetic seasons. ``--out
docs/compressing.md`` writes it into the page. ``speed``: published sizes with random
weights cut off to a quarter of the rank of their attentions: numbers, file, forward
time, and memory, as ratios to the whole model, beside what numbers and multiplications
allow.
"""

from __future__ import annotations

import argparse
import gc
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

from tsfm_lens import compress, load, testing
from tsfm_lens.compress.timing import ratios
from tsfm_lens.data import SeriesBatch, as_series, bundled
from tsfm_lens.models import Lens, architectures
from tsfm_lens.studies.recipes.evaluate import synthetic_cases

HORIZON = 24
KEEPS = (0.1, 0.25, 0.5)
SAMPLES = 20
"""Paths of a sampling model: all of chronos-nano's would take five times as long, and
differences are paired.
"""
COLUMNS = {
    "svd": "plain SVD",
    "weighted": "weighted by inputs",
    "sensitive": "and by sensitivity",
    "measured": "ranks by measured effect (default)",
}


def quality(
    model: str, keeps: Sequence[float], methods: Sequence[str], cases: int
) -> list[list[str]]:
    """Rows: model, share kept, rise of MASE with its interval by method, on sources
    that do not calibrate.
    """
    lens = load(model)
    drawn = synthetic_cases(count=cases)
    own, rest = compress.measure.split_sources(bundled(), HORIZON)
    calibration = compress.calibration_run(lens.run(own, HORIZON, holdout=True))
    samples = None
    if lens.emits == "token":
        samples = SAMPLES
    run = lens.run(
        SeriesBatch.concat([rest, drawn]),
        HORIZON,
        holdout=True,
        num_samples=samples,
    )
    rows = []
    for keep in keeps:
        row = [f"`{model}`", f"{keep:g}"]
        for method in methods:
            smaller, _ = compress.compressed(calibration, keep, method=method)
            found = compress.quality(run, smaller)
            mean, low, high = (
                100 * float(found[f"mase_rise_{end}"])
                for end in ("estimate", "low", "high")
            )
            row.append(f"{mean:+.1f} % ({low:+.1f} to {high:+.1f})")
        rows.append(row)
        Console(stderr=True).print(row)
    return rows


def insert_rows(page: Path, rows: Sequence[Sequence[str]]) -> None:
    """Put rows into the table of a page, in the place of those with the same model and
    share.
    """
    lines = page.read_text().splitlines()
    held = [position for position, line in enumerate(lines) if line.startswith("| `")]
    table = {
        tuple(lines[position].split(" | ")[:2]): lines[position] for position in held
    }
    for row in rows:
        line = f"| {' | '.join(row)} |"
        table[tuple(line.split(" | ")[:2])] = line
    lines[held[0] : held[-1] + 1] = [table[key] for key in sorted(table)]
    page.write_text("\n".join(lines) + "\n")


def peak(work: Callable[[], object]) -> int:
    """Bytes by which resident memory rose at most while work was done, looked at every
    millisecond.
    """
    page = 4096
    rss = Path("/proc/self/statm")
    highest = 0
    over = threading.Event()

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


def speed(
    architecture: str,
    size: str,
    keep: float,
    shapes: Sequence[tuple[int, int]],
    rounds: int,
) -> list[list[str]]:
    """Rows: what, ratio, what is allowed."""
    full = load(testing.published(architecture, size), check=False)
    ranks = compress.chosen_ranks(full, keep=keep)
    smaller = compress.factorised(full, ranks)
    before = compress.sizes(full)
    after = compress.sizes(smaller)
    name = f"{architecture} {size} at {keep:g}"
    allowed = after["all"] / before["all"]
    rows = [
        [
            name,
            "numbers in attentions",
            f"{after['attention'] / before['attention']:.3f}",
            "",
        ],
        [name, "numbers", f"{allowed:.3f}", ""],
    ]
    with tempfile.TemporaryDirectory() as folder:
        dense = Path(folder, "whole")
        architectures()[architecture].write(full.native, dense)
        small = compress.save_compressed(
            smaller, Path(folder, "small"), ranks=ranks, method="svd"
        )
        size_of = [
            sum(file.stat().st_size for file in where.glob("*.safetensors"))
            for where in (dense, small)
        ]
    rows.append(
        [name, "bytes of the file", f"{size_of[1] / size_of[0]:.3f}", f"{allowed:.3f}"]
    )
    for batch, length in shapes:
        rng = np.random.default_rng(0)
        series = as_series(
            list(
                np.sin(np.arange(length) / 4)
                + 0.1 * rng.standard_normal((batch, length))
            )
        )
        future = None
        if full.adapter.readout == "token":
            future = np.zeros((batch, 16))
        inputs = full.encode(series, future=future).inputs
        counted = [operations(item, inputs) for item in (full, smaller)]
        with torch.no_grad():
            median, low, high = ratios(
                [lambda i=inputs: smaller.adapter.run(i)],
                lambda i=inputs: full.adapter.run(i),
                rounds=rounds,
            )[0]
            peaks = [
                peak(lambda each=each, i=inputs: each.adapter.run(i))
                for each in (full, smaller)
            ]
        held = [
            4 * sizes["all"] + extra
            for sizes, extra in zip((before, after), peaks, strict=True)
        ]
        what = f"{batch} x {length}"
        rows.append(
            [
                name,
                f"{what}: forward time",
                f"{median:.3f} ({low:.3f}-{high:.3f})",
                f"{counted[1] / counted[0]:.3f}",
            ]
        )
        rows.append(
            [
                name,
                f"{what}: weights and peak of a forward",
                f"{held[1] / held[0]:.3f}",
                f"{allowed:.3f}",
            ]
        )
        Console(stderr=True).print(rows[-2:])
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["quality", "speed"])
    parser.add_argument("--models", default="bolt-nano,chronos-nano,chronos2-nano")
    parser.add_argument("--keeps", default=",".join(map(str, KEEPS)))
    parser.add_argument(
        "--cases", type=int, default=48, help="synthetic series, beside bundled ones"
    )
    parser.add_argument("--out", type=Path, help="page whose table is written anew")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--published", default="chronos/base,chronos-bolt/base")
    parser.add_argument(
        "--shapes", default="1x512,16x512", help="series x steps of context"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "quality":
        header = ["model", "kept", *COLUMNS.values()]
        keeps = [float(keep) for keep in given.keeps.split(",")]
        rows = [
            row
            for model in given.models.split(",")
            for row in quality(model, keeps, list(COLUMNS), given.cases)
        ]
        if given.out:
            insert_rows(given.out, rows)
    else:
        header = ["model", "measured", "ratio to the whole", "allowed"]
        shapes = [
            (int(shape.split("x")[0]), int(shape.split("x")[1]))
            for shape in given.shapes.split(",")
        ]
        rows = [
            row
            for item in given.published.split(",")
            for row in speed(*item.split("/"), 0.25, shapes, given.rounds)
        ]
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
