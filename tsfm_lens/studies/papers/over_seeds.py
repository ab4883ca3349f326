"""Comparison of results printed as mean ± deviation over seeds, or over many cells.

:func:`compare` tests two such results, :func:`improvement` sums errors over the cells
of two tables. Tests on measured windows are in
:mod:`tsfm_lens.studies.papers.verdicts`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from scipy import stats

CellName = TypeVar("CellName", bound=Hashable)


@dataclass(frozen=True)
class Comparison:
    """Comparison of two means over seeds."""

    difference: float
    welch: float
    pooled: float


def compare(
    first: tuple[float, float],
    second: tuple[float, float],
    *,
    n: int = 5,
    n_second: int = 5,
) -> Comparison:
    """Compare two means with their sample deviations over seeds.

    The p-values are those of Welch's and of Student's pooled t-test.
    """
    difference = first[0] - second[0]
    if first[1] == second[1] == 0:
        # without any deviation both tests divide zero by zero
        p = 0.0 if difference else 1.0
        return Comparison(difference, p, p)
    welch, pooled = (
        float(
            stats.ttest_ind_from_stats(
                *first, n, *second, n_second, equal_var=equal
            ).pvalue
        )
        for equal in (False, True)
    )
    return Comparison(difference, welch, pooled)


def improvement(
    ours: Mapping[CellName, float], theirs: Mapping[CellName, float]
) -> float:
    """Compute the improvement in per cent over the cells that both tables have.

    It is 100 · (1 − Σ ours / Σ theirs).
    """
    both = [cell for cell in ours if cell in theirs]
    total = sum(theirs[cell] for cell in both)
    return 100 * (1 - sum(ours[cell] for cell in both) / total)
