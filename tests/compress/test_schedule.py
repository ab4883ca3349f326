"""Ranks by schedule, by threshold and by share, against the paper's table and counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tsfm_lens import compress
from tsfm_lens.compress import BlockShape
from tsfm_lens.errors import InputError
from tsfm_lens.testing.tolerance import last_digit

# rank, exponent; mean rank over 64 of twelve layers counted from 0 and from 1; the ranks of the first where known
SCHEDULES = [
    (3, 0.27, 0.082, 0.086, "3 4 5 5 5 5 6 6 6 6 6 6"),
    (5, 0.35, 0.151, 0.161, "5 7 8 9 9 10 10 11 11 12 12 12"),
    (7, 0.40, 0.229, 0.246, "7 10 11 13 14 15 16 17 17 18 19 19"),
    (8, 0.34, 0.233, 0.249, "8 11 12 13 14 15 16 17 17 18 19 19"),
    (10, 0.58, 0.451, 0.496, "10 15 19 23 26 29 31 34 36 39 41 43"),
]


@pytest.mark.parametrize(("first", "exponent", "from_0", "from_1", "ranks"), SCHEDULES)
def test_schedules_of_the_paper(first: float, exponent: float, from_0: float, from_1: float, ranks: str) -> None:
    found = compress.rank_schedule(first, exponent, 12, 64)
    assert found.tolist() == [int(rank) for rank in ranks.split()]
    for start, expected in ((0, from_0), (1, from_1)):
        counted = compress.rank_schedule(first, exponent, 12, 64, start=start)
        # per head, a matrix of 12 heads has 12 blocks of 64 x 768
        ratio = compress.ratio_of([BlockShape(12, 64, 768)] * 12, counted.tolist())
        assert ratio.ranks == pytest.approx(expected, abs=last_digit(3))
        assert ratio.ranks == pytest.approx(counted.mean() / 64)


def test_a_schedule_never_exceeds_the_head() -> None:
    assert compress.rank_schedule(10, 2.0, 4, 64).tolist() == [10, 40, 64, 64]
    assert compress.rank_schedule(64, 0.0, 3, 64).tolist() == [64, 64, 64]


def test_the_guideline_is_what_its_formula_says() -> None:
    # 12 + (32 - 12) * sqrt((0, 1, 4) / 4)
    assert compress.guideline(5, 64, r_min=12)[[0, 1, 4]].tolist() == [12, 22, 32]
    assert compress.guideline(1, 64).tolist() == [16]
    ranks = compress.guideline(24, 768)
    assert (ranks[0], ranks[-1]) == (16, 384)
    assert (np.diff(ranks) > 0).all()
    # rounding up moves a difference by at most one
    assert (np.diff(ranks, 2) <= 1).all()


def test_ranks_by_epsilon_leave_at_most_epsilon() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((12, 9)) * 0.5 ** np.arange(9)
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    rank = compress.ranks_by_epsilon({"w": s}, 0.05)["w"]
    assert 1 < rank < 9
    assert np.linalg.norm(matrix - (u[:, :rank] * s[:rank]) @ v[:rank], 2) <= 0.05 * s[0]
    assert np.linalg.norm(matrix - (u[:, : rank - 1] * s[: rank - 1]) @ v[: rank - 1], 2) > 0.05 * s[0]
    # of heads the one that needs most
    assert compress.ranks_by_epsilon({"w": np.array([[1.0, 0.01], [1.0, 0.5]])}, 0.1) == {"w": 2}
    assert compress.ranks_by_epsilon({"w": np.zeros(4)}, 0.1) == {"w": 1}


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.9, 1.0])
def test_shares_are_met_and_no_larger_rank_meets_them(share: float) -> None:
    forms = {"square": BlockShape(1, 64, 64), "wide": BlockShape(1, 64, 256), "heads": BlockShape(4, 16, 64)}
    assert compress.ratio_of(forms, compress.ranks_by_share(forms, share)).ranks == pytest.approx(share, abs=0.5 / 16)
    ranks = compress.ranks_by_share({k: v for k, v in forms.items() if k != "heads"}, share, of="parameters")
    for name, rank in ranks.items():
        form = forms[name]
        best = max(r for r in range(1, form.full + 1) if share == 1 or form.factors(r) <= share * form.numbers)
        assert rank == best


def test_both_readings_of_the_ratio() -> None:
    forms = {"q": BlockShape(1, 36, 36), "o": BlockShape(2, 36, 18)}
    ratio = compress.ratio_of(forms, {"q": 9, "o": 18})
    # 9 + 2 * 18 of 36 + 2 * 18 ranks; 9 * 72 + 2 * 18 * 54 numbers of 2 * 36 * 36, of which o is kept whole
    assert ratio == pytest.approx((45 / 72, (648 + 1944) / 2592, (648 + 1296) / 2592))
    assert compress.ratio_of([BlockShape(1, 8, 8)], [8]) == (1.0, 2.0, 1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: compress.rank_schedule(0, 0.3, 2, 8), "rank 0"),
        (lambda: compress.rank_schedule(3, -0.1, 2, 8), "-0.1"),
        (lambda: compress.rank_schedule(3, float("nan"), 2, 8), "nan"),
        (lambda: compress.rank_schedule(3, 0.1, 0, 8), "0 layers"),
        (lambda: compress.guideline(3, 16, r_min=9), "r_min"),
        (lambda: compress.guideline(3, 64, exponent=0), "exponent 0"),
        (lambda: compress.ranks_by_epsilon({"q": np.ones(2)}, 1.0), "epsilon is 1"),
        (lambda: compress.ranks_by_epsilon({"q": np.ones(2)}, 0.0), "epsilon is 0"),
        (lambda: compress.ranks_by_share({"q": BlockShape(1, 8, 8)}, 0.0), "share of 0"),
        (lambda: compress.ranks_by_share({"q": BlockShape(1, 8, 8)}, 0.1, of="parameters"), "no rank meets"),
        (lambda: compress.ranks_by_share({"q": BlockShape(1, 8, 8)}, 0.5, of="size"), "'size'"),  # type: ignore[arg-type]
        (lambda: compress.ratio_of({"q": BlockShape(1, 8, 8)}, {"k": 3}), "one each"),
        (lambda: compress.ratio_of([BlockShape(1, 8, 8)], [9]), "from 1 to 8"),
    ],
)
def test_what_cannot_be_met_is_refused(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()  # type: ignore[operator]
