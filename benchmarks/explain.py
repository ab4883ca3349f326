"""Shapley values over masks: seconds a mask against one forecast each and the library's
best batch; sampled masks.

Twelve segments of a context of 512 steps, random weights at the published sizes
(``--models``). All 4,096 masks take minutes on a processor, so ``--masks`` of them are
run, as they stand beside one another among all: the cost of a mask is the same. The
library's best batch is the fastest of several sizes on the same masked series, prepared
beforehand. Both sides run in turn, in processor time. The error of sampled masks is
measured on embedded models (``--sampled``), all of whose masks are run, beside the
explainers of shap where it is installed (pip install shap).
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from tsfm_lens import explain, load, testing
from tsfm_lens.data import as_series
from tsfm_lens.models import Lens, Run

SEGMENTS = 12
CONTEXT = 512
HORIZON = 64
BATCHES = (16, 64, 256)
MODELS = {"chronos-bolt": "base", "timesfm-2.5": "200m"}


def series(steps: int = CONTEXT) -> np.ndarray:
    """A daily season on a random walk."""
    rng = np.random.default_rng(0)
    return (
        50
        + 5 * np.sin(np.arange(steps) / 24 * 2 * np.pi)
        + rng.normal(size=steps).cumsum()
    )


def make_masks(run: Run, count: int) -> tuple[tuple[explain.Segment, ...], np.ndarray]:
    """Twelve segments, as equal as tokens allow, and masks that stand beside one
    another.
    """
    edges = [edge for edge in explain.values.token_edges(run) if edge >= -CONTEXT]
    picked = [
        edges[round(position)]
        for position in np.linspace(0, len(edges) - 1, SEGMENTS + 1)
    ]
    parts = tuple(
        explain.Segment(f"{a} to {b - 1}", 0, a, b, "past") for a, b in pairwise(picked)
    )
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
    native = lens.native
    contexts = [torch.tensor(row, dtype=torch.float32) for row in rows]

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

    if lens.wiring.architecture == "chronos-bolt":
        return bolt
    return timesfm


def compare(lens: Lens, count: int, alone: int, rounds: int) -> None:
    """Seconds a mask of ours, of one forecast each, and of the library's batches, on
    the same masks.
    """
    run = lens.run(series(), HORIZON)
    parts, keep = make_masks(run, count)
    batch = explain.masked(run.batch, parts, keep, "mean")
    rows = [np.array(values) for values in batch.values]
    explain.Masks(run, parts, "mean")(keep[:4])
    ours = []
    single = []
    best = {size: [] for size in BATCHES if size <= count}
    for _ in range(rounds):
        masks = explain.Masks(run, parts, "mean")
        ours.append(seconds(lambda masks=masks: masks(keep)) / count)
        single.append(
            seconds(lambda: [lens.forecast(row, HORIZON) for row in rows[:alone]])
            / alone
        )
        for size, spent in best.items():
            spent.append(seconds(library(lens, rows, size)) / count)
    fastest = min(best, key=lambda size: statistics.median(best[size]))
    mine = statistics.median(ours)
    ratio = statistics.median(a / b for a, b in zip(ours, best[fastest], strict=True))
    faster = statistics.median(a / b for a, b in zip(single, ours, strict=True))
    print(
        f"{lens.model_id or lens.wiring.architecture}: {1e3 * mine:.1f} ms a mask,"
        f" {mine * 2**SEGMENTS:.0f} s for all {2**SEGMENTS}; {faster:.2f} × faster than"
        f" one forecast each; {ratio:.3f} of the library's best batch ({fastest});"
        f" {count} masks, {rounds} rounds"
    )


Sampler = Callable[
    [Callable[[np.ndarray], np.ndarray], int, int, int],
    tuple[np.ndarray, np.ndarray | None],
]
"""Value, players, budget and seed -> Shapley values (player, output), and half of their
95 % intervals.
"""


def ours(
    value: Callable, players: int, budget: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Our regression, which stops at the budget alone."""
    found = explain.shapley.sampled_shapley(
        value, players, budget=budget, tolerance=0, seed=seed
    )
    return found.attribution, found.half_width


def kernel(
    value: Callable, players: int, budget: int, seed: int
) -> tuple[np.ndarray, None]:
    """KernelExplainer of shap without regularisation; it runs both ends beside its
    samples.
    """
    import shap

    np.random.seed(seed)  # noqa: NPY002, of no other generator does it draw
    explainer = shap.KernelExplainer(
        lambda masks: value(masks > 0.5), np.zeros((1, players))
    )
    found = explainer.shap_values(
        np.ones(players), nsamples=budget - 2, l1_reg=0, silent=True
    )
    return np.asarray(found), None


def permutation(
    value: Callable, players: int, budget: int, seed: int
) -> tuple[np.ndarray, None]:
    """PermutationExplainer of shap: orders forwards and backwards, as many as the
    budget allows.
    """
    import shap

    explainer = shap.PermutationExplainer(
        lambda masks: value(masks > 0.5), np.zeros((1, players)), seed=seed
    )
    return (
        np.asarray(explainer(np.ones((1, players)), max_evals=budget).values[0]),
        None,
    )


def samplers() -> dict[str, Sampler]:
    """Ours, and those of shap where it is installed."""
    if importlib.util.find_spec("shap") is None:
        return {"ours": ours}
    return {
        "ours": ours,
        "KernelExplainer": kernel,
        "PermutationExplainer": permutation,
    }


def sampled(name: str, reference: str, budgets: Sequence[int], seeds: int) -> None:
    """Errors of sampled masks against all masks, in shares of the mean change, and how
    often intervals hold.
    """
    lens = load(name)
    values = as_series(series(min(CONTEXT, lens.context_length)), seasonality=24)
    run = lens.run(values, min(HORIZON, lens.prediction_length))
    parts = explain.segments(run, parts=SEGMENTS, season=1)
    players = len(parts)
    table = explain.Masks(run, parts, reference)(
        explain.shapley.all_masks(players)
    ).reshape(2**players, -1)
    exact = explain.shapley.exact_shapley(table, players)
    made = 0
    full = float(np.abs(exact.sum(0)).mean())

    def value(masks: np.ndarray) -> np.ndarray:
        nonlocal made
        made += len(masks)
        return table[(masks * 2 ** np.arange(players)).sum(1)]

    for budget in budgets:
        for who, sampler in samplers().items():
            errors = []
            held = []
            spent = []
            made = 0
            for seed in range(seeds):
                start = time.process_time()
                attribution, distance = sampler(value, players, budget, seed)
                spent.append(time.process_time() - start)
                error = np.abs(attribution - exact)
                errors.append(100 * error.mean(1) / full)
                held.append(
                    np.nan if distance is None else 100 * (error <= distance).mean()
                )
            if distance is None:
                intervals = ""
            else:
                intervals = f"; intervals hold {np.mean(held):.1f} %"
            print(
                f"{name}, {players} segments, {reference}, {who}: {made / seeds:.0f}"
                f" forecasts, mean error {np.mean(errors):.2f} %, largest"
                f" {np.max(errors, 1).mean():.2f} % of the mean change{intervals};"
                f" {1e3 * statistics.median(spent):.0f} ms; {seeds} seeds"
            )


def main() -> None:
    """See the first lines of this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", nargs="*", default=list(MODELS), choices=list(MODELS)
    )
    parser.add_argument("--masks", type=int, default=256)
    parser.add_argument("--alone", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sampled", nargs="*", default=["bolt-nano", "chronos2-nano"])
    parser.add_argument("--budgets", nargs="*", type=int, default=[100, 300, 1000])
    parser.add_argument("--seeds", type=int, default=20)
    asked = parser.parse_args()
    if asked.sampled and len(samplers()) == 1:
        print("shap is not installed: its explainers are left out")
    for name in asked.sampled:
        for reference in ("mean", "seasonal naive"):
            sampled(name, reference, asked.budgets, asked.seeds)
    for name in asked.models:
        compare(
            load(testing.published(name, MODELS[name])),
            asked.masks,
            asked.alone,
            asked.rounds,
        )


if __name__ == "__main__":
    main()
