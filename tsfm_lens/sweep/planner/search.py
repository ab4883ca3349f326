"""Smallest number of heads that a layer can keep (heads@k): an exact scan, a bisection, or sequential tests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tsfm_lens.core.errors import InputError
from tsfm_lens.sweep.planner.looks import (
    Looks,
    log_change,
    spending_bounds,
    student_bound,
)

TOLERANCE = 0.01


@dataclass(frozen=True, eq=False)
class PairedErrors:
    """Errors of the same series under ablation and of the plain model, at least 0."""

    ablated: np.ndarray
    plain: np.ndarray


Evaluation = tuple[int, int]
"""(heads kept, look); the look is always 0 where there is but one."""
Answer = float | PairedErrors
"""The relative change of the error on all windows; for sequential tests the errors of the units that a look adds."""


@dataclass(frozen=True)
class SearchResult:
    """Smallest number of heads kept, its relative change, and the cost: evaluations of one count on all windows."""

    kept: int
    of: int
    change: float
    tolerance: float
    method: str
    evaluations: float
    exact: bool
    monotone: bool
    alpha: float = 0.0
    changes: Mapping[int, float] = field(default_factory=dict)

    @property
    def saved(self) -> float:
        """Evaluations that a scan of every count would have taken more; the plain model's is never counted."""
        return self.of - self.evaluations


Steps = Generator[list[Evaluation], dict[Evaluation, Answer], SearchResult]


class Search:
    """Search under way; :func:`run_search` is its loop."""

    def __init__(
        self, of: int, tolerance: float, method: str, steps: Callable[[Search], Steps]
    ) -> None:
        if of < 1:
            raise InputError(
                f"a layer of {of} heads has none to search among, expected 1 or more"
            )
        # a tolerance of zero could be failed by the plain model itself
        if not tolerance > 0:
            raise InputError(
                f"the tolerance is {tolerance}, expected a relative change above 0, such as 0.01"
            )
        self.of, self.tolerance, self.method = of, float(tolerance), method
        self.result: SearchResult | None = None
        self._answers: dict[Evaluation, Answer] = {}
        self._steps = steps(self)
        self._queue: list[Evaluation] = next(self._steps)

    def requests(self) -> list[Evaluation]:
        """Return the next evaluations: (heads kept, look); none once the search is finished."""
        return (
            []
            if self.result
            else [request for request in self._queue if request not in self._answers]
        )

    def answer(self, values: Mapping[Evaluation, Answer]) -> None:
        """Hand in requested values, in one piece or in several."""
        for request, value in values.items():
            if request not in self.requests():
                raise InputError(
                    f"{request} was not asked for; expected some of {self.requests()}"
                )
            if not isinstance(value, PairedErrors) and np.isnan(value):
                raise InputError(
                    f"the change with {request[0]} heads kept is not a number; its error is not defined"
                )
            self._answers[request] = value
        if self.result or self.requests():
            return
        answers, self._answers = self._answers, {}
        try:
            self._queue = self._steps.send(answers)
        except StopIteration as end:
            self.result = end.value

    def found(
        self,
        smallest: int,
        changes: Mapping[int, float],
        evaluations: float,
        **more: Any,
    ) -> SearchResult:
        """Compose the result, with all that follows from the known changes."""
        passes = [change < self.tolerance for _, change in sorted(changes.items())]
        change = {**changes, self.of: 0.0}[smallest]
        more = {
            "exact": all(k in changes for k in range(smallest)),
            "monotone": passes == sorted(passes),
            **more,
        }
        facts = (smallest, self.of, change, self.tolerance, self.method, evaluations)
        return SearchResult(*facts, changes=dict(changes), **more)


def run_search(search: Search, evaluate: Callable[[int, int], Answer]) -> SearchResult:
    """Run one search to its end."""
    while requests := search.requests():
        search.answer({request: evaluate(*request) for request in requests})
    assert search.result is not None
    return search.result


def better(results: Mapping[str, SearchResult]) -> tuple[str, SearchResult]:
    """Choose the order that keeps fewest heads, then changes least; orders at random only among themselves."""
    if not results:
        raise InputError("there are no results of heads@k to choose from")
    definite = {
        order: result for order, result in results.items() if not is_random(order)
    }
    return min(
        (definite or results).items(), key=lambda item: (item[1].kept, item[1].change)
    )


def is_random(order: str) -> bool:
    """Return whether an order is one of chance, such as "random:3"."""
    return str(order).partition(":")[0] == "random"


def scan(
    of: int, tolerance: float = TOLERANCE, *, abreast: int | None = None
) -> Search:
    """Scan the counts from none kept upwards, ``abreast`` at a time, to the first that passes; by None all of them."""
    if abreast is not None and abreast < 1:
        raise InputError(f"abreast is {abreast}, expected 1 or more counts")

    def steps(search: Search) -> Steps:
        changes: dict[int, float] = {}
        smallest = of
        while rest := range(len(changes), of)[:abreast]:
            answers = yield [(k, 0) for k in rest]
            changes |= {k: _change(value) for (k, _), value in answers.items()}
            passing = [k for k, change in changes.items() if change < search.tolerance]
            smallest = min(passing, default=of)
            if passing:
                break
        return search.found(smallest, changes, len(changes))

    return Search(of, tolerance, "scan", steps)


def bisection(of: int, tolerance: float = TOLERANCE, *, check: int = 2) -> Search:
    """Halve the counts as if all above one that passes passed too, then ``check`` so many just below the result."""
    if check < 0:
        raise InputError(f"check is {check}, expected 0 or more counts")

    def steps(search: Search) -> Steps:
        changes: dict[int, float] = {}
        fails, smallest = -1, of
        while smallest - fails > 1:
            middle = (fails + smallest) // 2
            answers = yield [(middle, 0)]
            changes[middle] = _change(answers[middle, 0])
            fails, smallest = (
                (fails, middle)
                if changes[middle] < search.tolerance
                else (middle, smallest)
            )
        while below := [
            k for k in range(max(smallest - check, 0), smallest) if k not in changes
        ]:
            answers = yield [(k, 0) for k in below]
            changes |= {k: _change(value) for (k, _), value in answers.items()}
            smallest = min(
                [smallest, *(k for k in below if changes[k] < search.tolerance)]
            )
        return search.found(smallest, changes, len(changes))

    return Search(of, tolerance, "bisection", steps)


def sequential(
    of: int, looks: Looks, tolerance: float = TOLERANCE, *, alpha: float = 0.05
) -> Search:
    """Test the counts upwards on growing parts of the series; another answer than the scan's has chance ``alpha``."""
    # a count can be misjudged in one direction only, and every count may be the one that is
    bounds = [*spending_bounds(looks.shares, alpha / of), 0.0]
    limit = np.log1p(tolerance) if tolerance > 0 else 0.0

    def steps(search: Search) -> Steps:
        tests = [_Test(looks, bounds, limit) for _ in range(of)]
        count, heads = 0, 0
        while heads < of and not tests[heads].passes:
            look = tests[heads].look
            answers = yield [(heads, look)]
            count += len(looks.added[look])
            tests[heads].see(answers[heads, look])
            heads += tests[heads].passes is False
        changes = {
            k: float(np.expm1(test.estimate))
            for k, test in enumerate(tests)
            if test.look
        }
        full = all(test.look == len(looks.added) for test in tests[: heads + 1])
        return search.found(
            heads, changes, count / looks.total, exact=full, monotone=True, alpha=alpha
        )

    return Search(of, tolerance, "sequential", steps)


class _Test:
    """Errors of one count so far, and whether it passes: None while open."""

    def __init__(self, looks: Looks, bounds: list[float], limit: float) -> None:
        self.looks, self.bounds, self.limit = looks, bounds, limit
        self.ablated, self.plain = np.full((2, looks.total), np.nan)
        self.look = 0
        self.estimate = np.nan
        self.passes: bool | None = None

    def see(self, errors: Answer) -> None:
        units = self.looks.added[self.look]
        if not isinstance(errors, PairedErrors) or {
            np.shape(errors.ablated),
            np.shape(errors.plain),
        } != {units.shape}:
            raise InputError(
                f"look {self.look} of a sequential test adds {len(units)} series; expected PairedErrors of so many"
            )
        self.ablated[units], self.plain[units] = errors.ablated, errors.plain
        visible = np.zeros(self.looks.total, dtype=bool)
        visible[np.concatenate(self.looks.added[: self.look + 1])] = True
        self.estimate, error, freedom = log_change(
            self.ablated, self.plain, self.looks.groups, visible
        )
        away = abs(self.estimate - self.limit)
        last = self.look == len(self.looks.added) - 1
        if last or away > student_bound(self.bounds[self.look], freedom) * error:
            self.passes = bool(self.estimate < self.limit)
        self.look += 1


def _change(answer: Answer) -> float:
    """Return the relative change on all windows."""
    assert not isinstance(answer, PairedErrors)
    return float(answer)
