"""heads@k against brute force, and how often a sequential test errs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm

from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens.sweep.planner.looks import schedule_analyses, spending_bounds
from tsfm_lens.sweep.planner.search import (
    PairedErrors,
    Search,
    SearchResult,
    bisection,
    scan,
    sequential,
)

# of the normal integral by which the bounds are checked, in several dimensions and at
# the tails
QUADRATURE = 0.05

CURVES = st.lists(
    st.sampled_from([-0.05, 0.0, 0.0099, 0.01, 0.0101, 0.3, np.inf]),
    min_size=1,
    max_size=16,
)


def brute_force(curve: list[float], tolerance: float = 0.01) -> int:
    """Definition 5.2: the smallest count that passes; all heads kept always does."""
    return next(
        (retained for retained, change in enumerate(curve) if change < tolerance),
        len(curve),
    )


def run_search(
    of: int, steps: object, evaluate: Callable[[int, int], object]
) -> SearchResult:
    """Answer one round of requests after the other."""
    search = Search(of, steps)
    while search.result is None:
        search.answer({request: evaluate(*request) for request in search.requests})
    return search.result


@given(CURVES)
@settings(deadline=None, max_examples=200, derandomize=True)
def test_scan_follows_definition_on_any_curve(curve: list[float]) -> None:
    """The scan follows its definition, whatever the curve."""
    expected = brute_force(curve)
    of = len(curve)
    full = run_search(of, scan(of, 0.01), lambda kept, _: curve[kept])
    assert (full.kept, full.evaluations, full.exact) == (expected, of, True)
    assert full.change == (curve[expected] if expected < of else 0.0)


@given(st.integers(1, 20), st.integers(0, 20))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_bisection_finds_step_in_few_evaluations(of: int, step: int) -> None:
    """Bisection finds the step of a monotone curve in few evaluations."""
    curve = [0.5 if kept < step else 0.0 for kept in range(of)]
    found = run_search(of, bisection(of, 0.01), lambda kept, _: curve[kept])
    assert found.kept == brute_force(curve)
    assert found.evaluations <= np.ceil(np.log2(of + 1)) + 2


@given(CURVES)
@settings(deadline=None, max_examples=200, derandomize=True)
def test_bisection_admits_what_it_skipped(
    curve: list[float],
) -> None:
    """Bisection ends at a passing count; it is exact only if no smaller one passes."""
    of = len(curve)
    found = run_search(of, bisection(of, 0.01), lambda kept, _: curve[kept])
    assert found.kept >= brute_force(curve)
    assert found.kept == of or curve[found.kept] < 0.01
    # neither of the counts just below passes, and "exact" means that none below does
    assert all(
        curve[kept] >= 0.01 for kept in range(max(found.kept - 2, 0), found.kept)
    )
    assert not found.exact or found.kept == brute_force(curve)


def test_searches_refuse_missing_numbers() -> None:
    """Searches ask round by round and refuse what is not a number."""
    search = Search(3, scan(3, 0.01))
    assert search.requests == [(0, 0), (1, 0), (2, 0)]
    undefined = {(0, 0): 0.2, (1, 0): 0.2, (2, 0): float("nan")}
    expect_error("2 heads kept is not a number", search.answer, undefined)
    search.answer({**undefined, (2, 0): 0.0})
    assert search.requests == []
    assert search.result is not None
    assert search.result.kept == 2


@pytest.mark.parametrize("alpha", [0.05, 0.004])
def test_bounds_spend_alpha_over_all_looks(
    alpha: float,
) -> None:
    """Bounds spend alpha under the joint distribution of the looks."""
    shares = (0.2, 0.5, 0.6, 1.0)
    bounds = spending_bounds(shares, alpha)
    # the correlation of two samples' means about that of all, one part of the other,
    # drawn without replacement
    information = [share / (1 - share) for share in shares[:-1]]
    joint = [[np.sqrt(min(a, b) / max(a, b)) for a in information] for b in information]
    stays = multivariate_normal(cov=joint, seed=0).cdf(bounds)
    assert 1 - stays == pytest.approx(alpha, rel=QUADRATURE)
    time = shares[0] / shares[2]
    close_in_float32(norm.sf(bounds[0]), alpha * np.log1p((np.e - 1) * time), depth=16)
    assert spending_bounds((1.0,), alpha) == ()


def simulated(
    rng: np.random.Generator, units: int, logs: np.ndarray, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Errors (count, unit) whose log changes scatter about a curve by head count."""
    plain = rng.gamma(3.0, size=units)
    noise = rng.normal(0.0, spread, size=(len(logs), units))
    return plain * np.exp(logs[:, None] + noise), plain


def decide(
    ablated: np.ndarray, plain: np.ndarray, looks: object, alpha: float = 0.05
) -> SearchResult:
    def evaluate(kept: int, look: int) -> PairedErrors:
        added = looks.added[look]
        return PairedErrors(ablated[kept, added], plain[added])

    of = len(ablated)
    return run_search(of, sequential(of, looks, 0.01, alpha), evaluate)


def exact_kept(ablated: np.ndarray, plain: np.ndarray, groups: np.ndarray) -> int:
    """By brute force on all units, in plain numpy."""
    curve = []
    for row in ablated:
        logs = [
            np.log(row[groups == g].mean() / plain[groups == g].mean())
            for g in np.unique(groups)
        ]
        curve.append(np.expm1(np.mean(logs)))
    return brute_force(curve)


@pytest.mark.parametrize("sets", [["a"] * 200, ["a", "b"] * 100])
def test_clear_cases_are_decided_early(sets: list[str]) -> None:
    """Clear cases are decided early, and as the scan decides them."""
    rng = np.random.default_rng(0)
    logs = np.linspace(0.3, -0.1, 12)
    ablated, plain = simulated(rng, 200, logs, 0.02)
    looks = schedule_analyses(sets, seed=1)
    found = decide(ablated, plain, looks)
    assert found.kept == exact_kept(ablated, plain, looks.groups)
    assert not found.exact
    assert found.evaluations < 0.5 * (found.kept + 1)
    # without early looks it is the scan that stops at the first count that passes
    full = decide(ablated, plain, schedule_analyses(sets, (1.0,)))
    assert (full.kept, full.exact, full.evaluations) == (
        found.kept,
        True,
        found.kept + 1,
    )


def test_answer_rarely_differs_from_scan() -> None:
    """Curves that hug the tolerance, so that every count is hard, and heavy-tailed
    errors of unequal series.
    """
    runs = 300
    wrong = 0
    used = 0.0
    alpha = 0.1
    for seed in range(runs):
        rng = np.random.default_rng([seed, 5])
        logs = np.log(1.01) + rng.choice([-1.0, 1.0], size=6) * 0.004
        ablated, plain = simulated(rng, 120, logs, 0.05)
        looks = schedule_analyses(["a"] * 120, seed=seed)
        found = decide(ablated, plain, looks, alpha=alpha)
        wrong += found.kept != exact_kept(ablated, plain, looks.groups)
        used += found.evaluations
    # three standard deviations of a binomial above alpha
    assert wrong / runs <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / runs)
    assert used < 0.95 * runs * 6
