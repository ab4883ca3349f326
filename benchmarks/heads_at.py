"""heads@k of one layer of 12 heads: evaluations that scan, bisection and sequential
tests take, and where they end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tsfm_lens.ablation import Variant, mae, point_forecasts
from tsfm_lens.data import SeriesBatch, bundled, bundled_names
from tsfm_lens.hooks import Component
from tsfm_lens.models import Lens, load
from tsfm_lens.sweep.data.evaluation_sources import holdout_sets
from tsfm_lens.sweep.planner.looks import InterimAnalyses, schedule_analyses
from tsfm_lens.sweep.planner.orders import ENDS, head_scores
from tsfm_lens.sweep.planner.search import (
    Answer,
    PairedErrors,
    Search,
    SearchResult,
    bisection,
    scan,
    sequential,
)

HEADS = 12
MOST = 60  # windows of one series
TOLERANCES = (0.01, 0.2, 0.5)
METHODS = ("scan", "bisection", "sequential")


@dataclass(frozen=True)
class Row:
    """One method on one order.

    Attributes:
        order, tolerance, method: which.
        kept: heads kept; of sequential tests the most frequent answer over the deals.
        change: relative change of the error there, on all windows.
        evaluations, saved: of one count on all windows; means over the deals.
        rounds: times that a search had to wait for answers.
        agrees: share of the deals in which the answer is the scan's.
    """

    order: str
    tolerance: float
    method: str
    kept: int
    change: float
    evaluations: float
    saved: float
    rounds: float
    agrees: float


def measure(
    lens: Lens | None = None,
    *,
    context: int = 128,
    horizon: int = 16,
    tolerances: Sequence[float] = TOLERANCES,
    alpha: float = 0.05,
    deals: int = 20,
) -> list[Row]:
    """Evaluate every count of 12 heads once, and replay the searches on that table.

    The heads are the cross-attention heads of the decoder, of all layers together where
    a layer has fewer than 12, by stable rank. Labels of windows do not overlap, and a
    window is the unit of the sequential tests; the error is the geometric mean over
    series of the mean scaled absolute error of their windows.

    Args:
        lens: bolt-nano, which is trained, if None: 3 layers of 4 heads.
        context, horizon: steps of a window.
        tolerances: of heads@k; a model so small loses more than 1 % with any head.
        alpha: of the sequential tests.
        deals: random orders of the windows that sequential tests are run on.
    """
    chosen = lens
    if lens is None:
        chosen = load("bolt-nano")
    batch, truth, scale, groups = _windows(context, horizon)
    rows = []
    for end in ENDS:
        errors = _errors(chosen, _ranked(chosen, end), batch, truth) / scale
        for tolerance in tolerances:
            rows += _compare(
                f"stable_rank:{end}", errors, groups, tolerance, alpha, deals
            )
    return rows


def _windows(
    context: int, horizon: int
) -> tuple[SeriesBatch, np.ndarray, np.ndarray, list[str]]:
    """The last windows of the bundled series whose labels do not overlap: series,
    truth, scale, and bundled series.
    """
    parts = []
    truth = []
    scales = []
    names = []
    for name in bundled_names():
        count = (len(bundled(name).values[0]) - context) // horizon
        if count < 1:
            continue
        (dataset,) = holdout_sets([name], horizon, min(count, MOST))
        everything = range(len(dataset.windows))
        batch, after = dataset.batch(everything, context)
        parts.append(batch)
        truth.append(after)
        scales.append(dataset.scales(everything))
        names += [name] * len(batch)
    return (
        SeriesBatch.concat(parts),
        np.concatenate(truth),
        np.concatenate(scales),
        names,
    )


def _ranked(lens: Lens, end: str) -> list[Component]:
    """12 heads, the first to go first."""
    stack = lens.wiring.output_stack
    scores = head_scores(lens, "stable_rank")
    layers = scores["layer"].values[: max(1, HEADS // stack.n_heads)]
    positions = [
        (float(scores.sel(layer=x, head=h)), int(x), h)
        for x in layers
        for h in range(stack.n_heads)
    ][:HEADS]
    kind = str(scores.attrs["attention"])
    return [
        Component(stack.name, layer, kind, head)
        for _, layer, head in sorted(positions, reverse=end == "high")
    ]


def _errors(
    lens: Lens, ranked: list[Component], batch: SeriesBatch, truth: np.ndarray
) -> np.ndarray:
    """(heads kept, window) mean absolute errors; the last row is the plain model's."""
    run = lens.run(batch, truth.shape[1], rollout=False)
    variants = [
        Variant.zero(*ranked[: len(ranked) - retained])
        for retained in range(len(ranked) + 1)
    ]
    with torch.no_grad():
        return np.stack([mae(made, truth) for made in point_forecasts(run, variants)])


def _compare(
    order: str,
    errors: np.ndarray,
    groups: list[str],
    tolerance: float,
    alpha: float,
    deals: int,
) -> list[Row]:
    everything = schedule_analyses(groups, (1.0,))
    full = _Table(errors, everything)
    of = len(errors) - 1
    exact, _ = _counted(Search(of, scan(of, tolerance)), full.change)
    rows = []
    plain = (
        Search(of, scan(of, tolerance)),
        Search(of, bisection(of, tolerance)),
    )
    for method, search in zip(METHODS, plain, strict=False):
        result, rounds = _counted(search, full.change)
        agrees = float(result.kept == exact.kept)
        spent = result.evaluations
        saved = of - result.evaluations
        rows.append(
            Row(
                order,
                tolerance,
                method,
                result.kept,
                result.change,
                spent,
                saved,
                rounds,
                agrees,
            )
        )
    made = []
    for seed in range(deals):
        looks = schedule_analyses(groups, seed=seed)
        made.append(
            _counted(
                Search(of, sequential(of, looks, tolerance, alpha)),
                _Table(errors, looks).paired,
            )
        )
    retained = np.bincount([result.kept for result, _ in made]).argmax()
    spent = float(np.mean([result.evaluations for result, _ in made]))
    waited = float(np.mean([rounds for _, rounds in made]))
    agrees = float(np.mean([result.kept == exact.kept for result, _ in made]))
    change = full.change(int(retained), 0)
    return [
        *rows,
        Row(
            order,
            tolerance,
            METHODS[2],
            int(retained),
            change,
            spent,
            of - spent,
            waited,
            agrees,
        ),
    ]


def _counted(
    search: Search, evaluate: Callable[[int, int], Answer]
) -> tuple[SearchResult, int]:
    rounds = 0
    while requests := search.requests:
        rounds += 1
        search.answer({request: evaluate(*request) for request in requests})
    assert search.result is not None
    return search.result, rounds


@dataclass(frozen=True)
class _Table:
    """Errors that answer a search."""

    errors: np.ndarray
    looks: InterimAnalyses

    def paired(self, kept: int, look: int) -> PairedErrors:
        added = self.looks.added[look]
        return PairedErrors(self.errors[kept, added], self.errors[-1, added])

    def change(self, kept: int, look: int) -> float:
        groups = self.looks.groups
        ablated = self.errors[kept]
        plain = self.errors[-1]
        ratios = [
            ablated[groups == g].sum() / plain[groups == g].sum()
            for g in np.unique(groups)
        ]
        return float(np.expm1(np.log(ratios).mean()))


if __name__ == "__main__":
    for row in measure():
        print(row)
