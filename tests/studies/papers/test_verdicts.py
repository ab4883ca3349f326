"""Verdicts: what is claimed wrongly at most as often as promised, what is found, and
what stays undecided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

import tsfm_lens
from reproductions import nano
from tsfm_lens.probes import head_entropy, induction_overlap, induction_scores
from tsfm_lens.studies.papers.measures import induction as measures
from tsfm_lens.studies.papers.measures.induction import (
    HeadScores,
    correlations,
    proportions,
    sharp_of_induction,
)
from tsfm_lens.studies.papers.measures.lens_records import ablatable_parts
from tsfm_lens.studies.papers.verdicts import (
    DEPENDS,
    FAILS,
    HOLDS,
    UNDECIDED,
    ClaimPart,
    Verdict,
    exactly,
    fewest,
    interval,
    judge_parts,
    judged_together,
    judged_trends,
    resampled,
)
from tsfm_lens.testing import assert_close

Draw = Callable[[np.random.Generator], np.ndarray]
STUDIES = 200
# of so many studies, at a true rate of 2.5 %, more come up in one of 10,000 series of
# studies
MOST = int(stats.binom.ppf(0.9999, STUDIES, 0.025))


def outcomes(draw: Draw, parts: int = 1, studies: int = STUDIES) -> Counter[str]:
    """Verdicts on claims of so many parts, drawn again and again."""
    rng = np.random.default_rng(7)
    found: Counter[str] = Counter()
    for _ in range(studies):
        claim = [ClaimPart(str(number), draw(rng), "x") for number in range(parts)]
        found[judge_parts("draw", *claim).outcome] += 1
    return found


def of_means(*layers: float) -> np.ndarray:
    """(layer, window) distances of 16 windows about some means, each window with a
    level of its own.
    """
    rng = np.random.default_rng(3)
    return np.array(layers)[:, None] * rng.uniform(0.5, 1.5, 16) + 0.02 * rng.normal(
        size=(len(layers), 16)
    )


@pytest.mark.parametrize(
    "windows", [8, pytest.param(16, marks=pytest.mark.exhaustive), 40]
)
@pytest.mark.parametrize(
    "noise",
    [
        lambda rng, n: rng.normal(size=n),
        lambda rng, n: rng.standard_t(1.5, size=n),
        lambda rng, n: rng.exponential(size=n) - np.log(2),
        lambda rng, n: np.log(2) - rng.exponential(size=n),
        lambda rng, n: rng.choice([-1.0, 1.0], size=n),
    ],
    ids=["normal", "heavy tails", "skewed", "skewed the other way", "two values"],
)
def test_false_verdicts_keep_their_promised_rate(
    windows: int, noise: Callable[[np.random.Generator, int], np.ndarray]
) -> None:
    """Where nothing is true, no verdict comes more often than promised."""
    found = outcomes(lambda rng: noise(rng, windows))
    assert found[HOLDS] <= MOST
    assert found[FAILS] <= MOST


def test_planted_effects_are_found() -> None:
    """Planted effects of either sign are found."""
    assert (
        outcomes(lambda rng: 1.5 + rng.normal(size=16), parts=2)[HOLDS] > 0.9 * STUDIES
    )
    assert (
        outcomes(lambda rng: -1.5 + rng.normal(size=16), parts=2)[FAILS] > 0.9 * STUDIES
    )


def test_middles_are_compared_with_each_end() -> None:
    """The middle is compared with each end, not with the mean of both."""
    first, middle, last = of_means(0.98, 0.41, 0.18)
    # the mean of both ends lies above the middle, and the claim is false
    assert ((first + last) / 2 > middle).mean() > 0.9
    verdict = judge_parts(
        "run",
        ClaimPart("first", first - middle, "x"),
        ClaimPart("last", last - middle, "x"),
    )
    assert [part.outcome for part in verdict.parts] == [HOLDS, FAILS]
    assert verdict.outcome == FAILS
    for layers in ((0.98, 0.41, 0.18), (0.18, 0.41, 0.98), (0.41, 0.98, 0.18)):
        parts = ablatable_parts(of_means(*layers))
        assert judge_parts("run", *parts).outcome == FAILS
    parts = ablatable_parts(of_means(0.98, 0.18, 0.41))
    assert judge_parts("run", *parts).outcome == HOLDS


def test_too_few_windows_are_undecided() -> None:
    # windows that all agree do so by chance in 2 of 2^n
    for parts in (1, 2, 6, 12):
        assert (
            2 * 0.5 ** fewest(parts) * parts
            <= 0.05
            < 2 * 0.5 ** (fewest(parts) - 1) * parts
        )
    for count, outcome in ((5, UNDECIDED), (6, HOLDS)):
        verdict = judge_parts("draw", ClaimPart("", np.linspace(1, 2, count), "x"))
        assert verdict.outcome == outcome
    few = judge_parts(
        "draw", ClaimPart("", np.ones(5), "x"), ClaimPart("b", np.ones(5), "x")
    )
    assert few.why == "5 draws, too few for a test: 2 parts need 7 or more"
    unknown = judge_parts("draw", ClaimPart("", np.full(9, np.nan), "x"))
    assert (unknown.outcome, unknown.why) == (UNDECIDED, "it is not defined here")
    mixed = judge_parts("draw", ClaimPart("", np.array([1.0, -1.0] * 6), "x"))
    assert mixed.why == "interval contains 0"


def test_mean_intervals_are_student_s() -> None:
    values = np.random.default_rng(6).normal(size=9)
    low, high = stats.t.interval(0.95, 8, values.mean(), stats.sem(values))
    found = interval(np.append(values, np.nan))
    assert_close([found.low, found.high], [low, high], depth=100)
    assert np.isnan(interval(values[:2]).low)


def test_verdicts_from_counts_are_exact() -> None:
    """What follows from counts is exact."""
    assert exactly("", true=True, of="x").outcome == HOLDS
    assert exactly("", true=False, of="x").outcome == FAILS


def test_verdicts_join_all_values_of_epsilon() -> None:
    """A claim has one verdict over all values of epsilon."""
    for coarse, fine, outcome in (
        ("11", "1", HOLDS),
        ("10", "0", FAILS),
        ("10", "1", DEPENDS),
        ("11", "0", DEPENDS),
    ):
        parts = [
            exactly("", item == "1", "x", level)
            for level, of in ((0.1, coarse), (0.01, fine))
            for item in of
        ]
        assert Verdict(tuple(parts)).outcome == outcome
        assert parts[0].name == "ε = 0.1"


def test_trends_are_tested_over_every_order() -> None:
    positions = [1, 2, 4, 8, 16, 32]
    values = np.array([3.0, 1.0, 4.0, 5.0, 9.0, 7.0])
    (part,) = judged_trends([ClaimPart("", values, "x")], positions, "run").parts
    rho = stats.spearmanr(values, positions).statistic
    orders = [
        stats.spearmanr(permutation, positions).statistic
        for permutation in permutations(values)
    ]
    assert_close(part.p, 2 * np.mean(np.array(orders) >= rho - 1e-12), depth=8)
    assert (
        judged_trends(
            [ClaimPart("", values, "x")], [-position for position in positions], "run"
        ).outcome
        == FAILS
    )
    few = judged_trends([ClaimPart("", values[:4], "x")], positions[:4], "run")
    assert few.why == "4 runs, not testable with this record: one part needs 5 or more"
    flat = judged_trends([ClaimPart("", np.ones(6), "x")], positions, "run")
    assert (flat.outcome, flat.why) == (UNDECIDED, "interval contains 0")


def scores(
    rng: np.random.Generator, *, units: int, slope: float, noise: float, seed: int = 0
) -> HeadScores:
    """Scores of 24 heads whose entropy falls with their prefix score by a slope,
    measured with noise.
    """
    truth = rng.normal(size=24)
    entropy = -slope * truth + np.sqrt(1 - slope**2) * rng.permutation(truth)
    prefix = truth + noise * rng.normal(size=(units, 24))
    return HeadScores(
        prefix, prefix, entropy + noise * rng.normal(size=(units, 24)), seed
    )


def test_the_bootstrap_covers_and_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bootstrap over sequences and series covers the truth and finds effects."""
    monkeypatch.setattr(measures, "DRAWS", 200)
    rng = np.random.default_rng(8)
    visible: Counter[str] = Counter()
    for _ in range(200):
        # a mean of 0, as a quantity of all units together
        values = rng.normal(size=12)
        often = rng.multinomial(12, np.full(12, 1 / 12), size=1000) / 12
        visible[
            judged_together(
                [resampled("", "x", values.mean(), often @ values, 12)]
            ).outcome
        ] += 1
    most = stats.binom.ppf(0.9999, 200, 0.025)
    assert visible[HOLDS] <= most
    assert visible[FAILS] <= most
    falls = [
        judged_together(
            [
                scores(rng, units=16, slope=slope, noise=0.5).part(
                    "", "x", lambda p, _, e: -correlations(p, e)
                )
            ]
        ).outcome
        for slope in [0.95] * 10 + [-0.95] * 10
    ]
    assert falls == [HOLDS] * 10 + [FAILS] * 10
    draws = np.where(np.arange(1000) % 10 == 0, np.nan, 1.0)
    assert (
        judged_together([resampled("", "x", 1.0, draws, 16)]).why
        == "undefined in too many draws"
    )
    assert (
        judged_together([resampled("", "x", np.nan, draws, 16)]).why
        == "it is not defined here"
    )
    few = judged_together([resampled("", "x", 1.0, np.ones(1000), 4)])
    assert "too few for a test" in few.why


def test_scores_equal_those_of_the_overlap() -> None:
    lens = nano("chronos-nano")
    induction = induction_scores(lens, motif=16, n_sequences=4)
    entropy = head_entropy(
        lens.run(tsfm_lens.bundled("co2").tail(100), 12, holdout=True)
    )
    overlap = induction_overlap(induction, entropy)
    one = HeadScores(
        *(
            data[name].values.reshape(1, -1)
            for data, name in (
                (induction, "prefix_matching"),
                (induction, "copy_score"),
                (entropy, "entropy"),
            )
        ),
        seed=0,
    )
    prefix, copy, normalised = (
        bootstrap_mean[:1] for bootstrap_mean in one.bootstrap_means
    )
    numbers = proportions(prefix, copy, normalised)
    cells = overlap["proportion"]
    for name, value in {
        "proportion induction, sharp": cells.sel(
            induction_state="induction", sharp_state="sharp"
        ),
        "proportion not induction, sharp": cells.sel(
            induction_state="other", sharp_state="sharp"
        ),
        "proportion sharp": overlap["proportion_sharp"].sel(sharp_state="sharp"),
        "P(sharp | induction)": overlap["p_sharp_given_induction"],
        "P(induction | sharp)": overlap["p_induction_given_sharp"],
    }.items():
        assert_close(numbers[name][0], float(value), depth=10)
    given, share = sharp_of_induction(prefix, copy, normalised)
    expected = [numbers["P(sharp | induction)"][0], numbers["proportion sharp"][0]]
    assert_close([given[0], share[0]], expected, depth=10)
    correlation = overlap["correlation"].sel(
        score="prefix_matching", other_score="normalised"
    )
    assert_close(correlations(prefix, normalised)[0], float(correlation), depth=100)
