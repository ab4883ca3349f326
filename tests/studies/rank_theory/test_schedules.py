"""Ranks by depth, as the paper prints and defines them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tsfm_lens import compress
from tsfm_lens.compress import BlockShape
from tsfm_lens.core.errors import InputError
from tsfm_lens.studies import rank_theory
from tsfm_lens.testing import last_digit

# rank, exponent; mean rank over 64 of twelve layers counted from 0 and from 1; the
# ranks of the first where known
SCHEDULES = [
    (3, 0.27, 0.082, 0.086, "3 4 5 5 5 5 6 6 6 6 6 6"),
    (5, 0.35, 0.151, 0.161, "5 7 8 9 9 10 10 11 11 12 12 12"),
    (7, 0.40, 0.229, 0.246, "7 10 11 13 14 15 16 17 17 18 19 19"),
    (8, 0.34, 0.233, 0.249, "8 11 12 13 14 15 16 17 17 18 19 19"),
    (10, 0.58, 0.451, 0.496, "10 15 19 23 26 29 31 34 36 39 41 43"),
]


@pytest.mark.parametrize(("first", "exponent", "from_0", "from_1", "ranks"), SCHEDULES)
def test_schedules_of_the_paper(
    first: float, exponent: float, from_0: float, from_1: float, ranks: str
) -> None:
    found = rank_theory.rank_schedule(first, exponent, 12, 64)
    assert found.tolist() == [int(rank) for rank in ranks.split()]
    for start, expected in ((0, from_0), (1, from_1)):
        counted = rank_theory.rank_schedule(first, exponent, 12, 64, start=start)
        # per head, a matrix of 12 heads has 12 blocks of 64 x 768
        ratio = compress.compute_ratio([BlockShape(12, 64, 768)] * 12, counted.tolist())
        assert ratio.ranks == pytest.approx(expected, abs=last_digit(3))
        assert ratio.ranks == pytest.approx(counted.mean() / 64)


def test_the_guideline_follows_its_formula() -> None:
    # 12 + (32 - 12) * sqrt((0, 1, 4) / 4)
    assert rank_theory.guideline(5, 64, r_min=12)[[0, 1, 4]].tolist() == [12, 22, 32]
    assert rank_theory.guideline(1, 64).tolist() == [16]
    ranks = rank_theory.guideline(24, 768)
    assert (ranks[0], ranks[-1]) == (16, 384)
    assert (np.diff(ranks) > 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank_theory.rank_schedule(0, 0.3, 2, 8), "rank 0"),
        (lambda: rank_theory.rank_schedule(3, -0.1, 2, 8), "-0.1"),
        (lambda: rank_theory.rank_schedule(3, float("nan"), 2, 8), "nan"),
        (lambda: rank_theory.rank_schedule(3, 0.1, 0, 8), "0 layers"),
        (lambda: rank_theory.guideline(3, 16, r_min=9), "r_min"),
        (lambda: rank_theory.guideline(3, 64, exponent=0), "exponent 0"),
    ],
)
def test_what_is_no_schedule_is_refused(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call()
