"""Search for the smallest number of heads that a layer can keep (heads@k).

There are an exact scan, a bisection, and sequential tests. Read :class:`Search` first:
each search is a generator that yields the evaluations that it needs next, is sent their
answers, and returns the result. It runs no model; ``table.py`` has the answers. ``of``
is the number of heads in the layer, and a count is a number of heads kept.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

import numpy as np

from tsfm_lens.core.errors import InputError
from tsfm_lens.sweep.planner.looks import (
    InterimAnalyses,
    log_change,
    spending_bounds,
    student_bound,
)

# how many counts just below the result of a bisection are evaluated, too
_N_BELOW = 2


class PairedErrors(NamedTuple):
    """Errors of the same series under ablation and of the plain model, at least 0."""

    ablated: np.ndarray
    plain: np.ndarray


Evaluation = tuple[int, int]
"""(heads kept, look); only sequential tests have looks other than 0."""
Answer = float | PairedErrors
"""Relative change of the error on all windows; for sequential tests, the errors of the
units that a look adds.
"""


class SearchResult(NamedTuple):
    """Smallest number of heads kept, with its relative change and the cost.

    ``evaluations`` is the number of counts that were evaluated; one that was evaluated
    on a part of the series adds only their share. ``exact`` says that a scan would have
    the same result for certain.
    """

    of: int
    kept: int
    change: float
    evaluations: float
    exact: bool


Steps = Generator[list[Evaluation], dict[Evaluation, Answer], SearchResult]


class Search:
    """Search in progress: the next ``requests``, none once there is a ``result``."""

    def __init__(self, of: int, steps: Steps) -> None:
        self.of = of
        self._steps = steps
        self.requests = next(steps)
        self.result: SearchResult | None = None

    def answer(self, values: dict[Evaluation, Answer]) -> None:
        """Hand in the values of all requests."""
        for (kept, _), value in values.items():
            if not isinstance(value, PairedErrors) and np.isnan(value):
                raise InputError(
                    f"the change with {kept} heads kept is not a number; its error"
                    " is not defined"
                )
        try:
            self.requests = self._steps.send(values)
        except StopIteration as end:
            self.requests = []
            self.result = end.value


def better(results: Mapping[str, SearchResult]) -> tuple[str, SearchResult]:
    """Choose the order that keeps fewest heads, then the one with the smallest change.

    A random order is chosen only where all orders are random.

    Returns:
        Name of the order, and its result.
    """
    definite = {
        order: result for order, result in results.items() if not is_random(order)
    }
    candidates = definite or results
    return min(candidates.items(), key=lambda item: (item[1].kept, item[1].change))


def is_random(order: str) -> bool:
    """Return whether an order is one of chance, such as "random:3"."""
    return str(order).partition(":")[0] == "random"


def scan(of: int, tolerance: float) -> Steps:
    """Evaluate all counts; the result is the first that passes."""
    answers = yield [(kept, 0) for kept in range(of)]
    changes = _changes(answers)
    passing = [kept for kept in range(of) if changes[kept] < tolerance]
    return _result(of, min(passing, default=of), changes)


def bisection(of: int, tolerance: float) -> Steps:
    """Halve the range of counts, and then check some counts just below the result.

    It assumes that every count above one that passes would pass, too.

    Returns:
        The smallest count that passes.

    Yields:
        The counts to evaluate next, with their look.
    """
    changes: dict[int, float] = {}
    # the largest count known to fail, or -1, and the smallest known to pass
    fails = -1
    smallest = of
    while smallest - fails > 1:
        middle = (fails + smallest) // 2
        answers = yield [(middle, 0)]
        changes |= _changes(answers)
        if changes[middle] < tolerance:
            smallest = middle
        else:
            fails = middle
    # the change need not fall with every head that is kept, so a smaller count may pass
    while unknown := set(range(max(smallest - _N_BELOW, 0), smallest)) - set(changes):
        answers = yield [(kept, 0) for kept in sorted(unknown)]
        changes |= _changes(answers)
        passing = [kept for kept in unknown if changes[kept] < tolerance]
        smallest = min([smallest, *passing])
    return _result(of, smallest, changes)


def _changes(answers: Mapping[Evaluation, Answer]) -> dict[int, float]:
    """Return the relative changes on all windows by count."""
    return {kept: float(value) for (kept, _), value in answers.items()}  # type: ignore[arg-type]


def _result(of: int, kept: int, changes: Mapping[int, float]) -> SearchResult:
    change = 0.0
    if kept != of:
        change = changes[kept]
    # exact where every smaller count was evaluated, and so is known to fail
    is_exact = set(range(kept)) <= set(changes)
    return SearchResult(of, kept, change, float(len(changes)), is_exact)


def sequential(
    of: int, looks: InterimAnalyses, tolerance: float, alpha: float
) -> Steps:
    """Test the counts upwards on growing parts of the series.

    The chance of an answer other than the scan's is ``alpha``.

    Returns:
        The smallest count that passes.

    Yields:
        The counts to evaluate next, with their look.
    """
    # a wrong answer takes one misjudged count: each of the ``of`` counts may be it, and
    # each can be misjudged in one direction only
    bounds = [*spending_bounds(looks.shares, alpha / of), 0.0]
    limit = float(np.log1p(tolerance))
    evaluations = 0
    is_exact = True
    for kept in range(of):
        # NaN for units that no look has added yet
        ablated, plain = np.full((2, looks.total), np.nan)
        visible = np.zeros(looks.total, dtype=bool)
        for look, units in enumerate(looks.added):
            answers = yield [(kept, look)]
            evaluations += len(units)
            ablated[units], plain[units] = answers[kept, look]  # type: ignore[misc]
            visible[units] = True
            estimate, error, freedom = log_change(ablated, plain, looks.groups, visible)
            # the last bound is 0: once all units are seen, the sign of the difference
            # decides
            if abs(estimate - limit) > student_bound(bounds[look], freedom) * error:
                break
        is_exact = is_exact and look + 1 == len(looks.added)
        if estimate < limit:
            change = float(np.expm1(estimate))
            return SearchResult(of, kept, change, evaluations / looks.total, is_exact)
    return SearchResult(of, of, 0.0, evaluations / looks.total, is_exact)
