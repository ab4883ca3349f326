"""Shapley values over masks: seconds a mask against one forecast each and the library's best batch; sampled orders.

Twelve segments of a context of 512 steps, random weights at the published sizes (``--models``). All 4,096 masks take
minutes on a processor, so ``--masks`` of them are run, as they stand beside one another among all: the cost of a mask
is the same. The library's best batch is the fastest of several sizes on the same masked series, prepared beforehand.
Both sides run in turn, in processor time. The error of sampled orders is measured on an embedded model
(``--sampled``), all of whose masks are run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch

from tsfm_lens import explain, load
from tsfm_lens.models import Lens, Run, architectures

SEGMENTS, CONTEXT, HORIZON = 12, 512, 64
BATCHES = (16, 64, 256)
MODELS = {"chronos-bolt": "base", "timesfm-2.5": "200m"}


def series(steps: int = CONTEXT) -> np.ndarray:
    """A daily season on a random walk."""
    rng = np.random.default_rng(0)
    return 50 + 5 * np.sin(np.arange(steps) / 24 * 2 * np.pi) + rng.normal(size=steps).cumsum()


def masks_of(run: Run, count: int) -> tuple[tuple[explain.Segment, ...], np.ndarray]:
    """Twelve segments, as equal as tokens allow, and masks that stand beside one another."""
    edges = [edge for edge in explain.values.token_edges(run) if edge >= -CONTEXT]
    picked = [edges[round(place)] for place in np.linspace(0, len(edges) - 1, SEGMENTS + 1)]
    parts = tuple(explain.Segment(f"{a} to {b - 1}", 0, a, b, "past") for a, b in pairwise(picked))
    every = explain.shapley.all_masks(SEGMENTS)[:, ::-1]
    return parts, np.ascontiguousarray(every[:count])


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    start = time.process_time()
    with torch.no_grad():
        work()
    return time.process_time() - start


def library(lens: Lens, rows: list[np.ndarray], size: int) -> Callable[[], object]:
    """The library's own forecast of masked series, so many at a time."""
    native, contexts = lens.native, [torch.tensor(row, dtype=torch.float32) for row in rows]

    def bolt() -> None:
        for first in range(0, len(rows), size):
            native.predict_quantiles(
                torch.stack(contexts[first : first + size]),
                prediction_length=HORIZON,
                quantile_levels=[level / 10 for level in range(1, 10)],
            )

    def timesfm() -> None:
        import timesfm

        steps = -(-HORIZON // native.model.o) * native.model.o
        native.compile(
            timesfm.ForecastConfig(
                max_context=CONTEXT,
                max_horizon=steps,
                normalize_inputs=True,
                use_continuous_quantile_head=True,
                infer_is_positive=True,
                fix_quantile_crossing=True,
                per_core_batch_size=size,
            )
        )
        try:
            native.forecast(horizon=HORIZON, inputs=[row.copy() for row in rows])
        finally:
            native.forecast_config = None

    return bolt if lens.wiring.architecture == "chronos-bolt" else timesfm


def compare(lens: Lens, count: int, alone: int, rounds: int) -> None:
    """Seconds a mask of ours, of one forecast each, and of the library's batches, on the same masks."""
    run = lens.run(series(), HORIZON)
    parts, keep = masks_of(run, count)
    batch = explain.masked(run.batch, parts, keep, "mean")
    rows = [np.array(values) for values in batch.values]
    explain.Masks(run, parts, "mean")(keep[:4])
    ours, single, best = [], [], {size: [] for size in BATCHES if size <= count}
    for _ in range(rounds):
        masks = explain.Masks(run, parts, "mean")
        ours.append(seconds(lambda masks=masks: masks(keep)) / count)
        single.append(seconds(lambda: [lens.forecast(row, HORIZON) for row in rows[:alone]]) / alone)
        for size, spent in best.items():
            spent.append(seconds(library(lens, rows, size)) / count)
    fastest = min(best, key=lambda size: statistics.median(best[size]))
    mine = statistics.median(ours)
    ratio = statistics.median(a / b for a, b in zip(ours, best[fastest], strict=True))
    faster = statistics.median(a / b for a, b in zip(single, ours, strict=True))
    print(
        f"{lens.model_id or lens.wiring.architecture}: {1e3 * mine:.1f} ms a mask, {mine * 2**SEGMENTS:.0f} s for all "
        f"{2**SEGMENTS}; {faster:.2f} × faster than one forecast each; {ratio:.3f} of the library's best batch "
        f"({fastest}); {count} masks, {rounds} rounds"
    )


def sampled(name: str, orders: int) -> None:
    """Largest and mean error of sampled orders against all masks, in shares of the whole, and the forecasts made."""
    lens = load(name)
    run = lens.run(series(min(CONTEXT, lens.context_length)), min(HORIZON, lens.prediction_length))
    parts = explain.segments(run, parts=SEGMENTS, season=1)
    masks = explain.Masks(run, parts, "mean")
    exact = explain.shapley.exact_shapley(masks(explain.shapley.all_masks(len(parts))), len(parts))
    fresh = explain.Masks(run, parts, "mean")
    found = explain.shapley.sampled_shapley(lambda keep: masks(keep), len(parts), orders=orders, tolerance=0)
    explain.shapley.sampled_shapley(fresh, len(parts), orders=orders, tolerance=0)
    whole = float(np.abs(exact.sum(0)).mean())
    error = np.abs(found.attribution - exact).mean((1, 2)) / whole
    stated = found.error.mean((1, 2)) / whole
    print(
        f"{name}: {found.orders} orders of {len(parts)} segments, {fresh.made} forecasts of {2 ** len(parts)}: mean "
        f"error {100 * error.mean():.2f} %, largest {100 * error.max():.2f} % of the mean change; stated standard "
        f"error {100 * stated.mean():.2f} %"
    )


def main() -> None:
    """See the first lines of this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--masks", type=int, default=256)
    parser.add_argument("--alone", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sampled", nargs="*", default=["bolt-nano"])
    parser.add_argument("--orders", type=int, default=500)
    asked = parser.parse_args()
    for name in asked.sampled:
        sampled(name, asked.orders)
    for name in asked.models:
        compare(load(architectures()[name].build(MODELS[name])), asked.masks, asked.alone, asked.rounds)


if __name__ == "__main__":
    main()
