"""Intervals, tests and resampling against scipy, explicit loops and simulated noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from statsmodels.stats.multitest import multipletests

from tsfm_lens.core.stats import (
    auroc,
    exceeds_controls,
    expanded_interval,
    expanded_p,
    half_width,
    holm,
    interval_within,
    lead_shares,
    leader,
    mean_interval,
    median_interval,
    sign_test,
    units_needed,
)

NEAR = 0.4  # of a p-value: resampled tails are coarse


DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "log-normal": lambda rng, shape: np.exp(1.5 * rng.normal(size=shape)) - 1,
    "t with 2 degrees": lambda rng, shape: rng.standard_t(2, size=shape),
    "alike members": lambda rng, shape: (
        rng.normal(size=shape[1:]) + 0.1 * rng.normal(size=shape)
    ),
}
"""Effects whose median is 0."""


@pytest.mark.parametrize("drawn", DRAWS)
def test_false_positives_stay_within_promised_rate(
    drawn: str,
) -> None:
    """Without true effects no more pages than promised call one significant."""
    rng = np.random.default_rng(0)
    trials = 300
    most = 0.05 * trials + 4 * np.sqrt(trials * 0.05 * 0.95)
    for units in (2, 6, 12, 40):
        wrong = sum(
            bool((holm(sign_test(DRAWS[drawn](rng, (24, units)))) <= 0.05).any())
            for _ in range(trials)
        )
        assert wrong <= most, units
        assert not wrong or units >= units_needed(24)


@pytest.mark.parametrize("members", [2, 3, 8, 30])
def test_equal_members_rarely_have_a_leader(members: int) -> None:
    """Equal members have a leader no more often than promised."""
    rng = np.random.default_rng(members)
    trials = 300
    for draw in DRAWS.values():
        led = sum(
            leader(np.abs(draw(rng, (members, 9)))) is not None for _ in range(trials)
        )
        assert led <= 0.05 * trials + 4 * np.sqrt(trials * 0.05 * 0.95)


def test_leader_exceeds_every_other() -> None:
    """A leader is larger than every other, on six series or more."""
    sizes = np.array(
        [
            [1.0, 2.0, 9.0, 1.1, 1.2, 1.3],
            [0.5, 1.9, 0.1, 0.2, 0.3, 0.2],
            [0.9, 0.1, 0.2, 0.1, 0.1, 0.1],
        ]
    )
    assert leader(sizes) == 0
    assert leader(sizes[:, :5]) is None
    assert leader(np.array([[np.nan, np.nan]])) is None
    assert leader(sizes[:1]) is None
    # differences of rounding make no leader
    close = sizes[:1] + np.array([[0.0], [1e-14], [-1e-14]])
    assert leader(close) == 1
    assert leader(close, smallest=1e-12) is None
    assert leader(sizes, smallest=1e-12) == 0


def test_leading_shares_match_all_resamples() -> None:
    """Of two members and two units, the four resamples are counted by hand."""
    sizes = np.array([[3.0, 0.0], [1.0, 2.5]])
    shares = lead_shares(sizes, replicates=4000)
    spread = 5 * (0.25 * 0.75 / 4000) ** 0.5
    np.testing.assert_allclose(shares, [0.25, 0.75], atol=spread)
    rng = np.random.default_rng(3)
    table = np.abs(rng.normal(size=(6, 9, 2)))
    shares = lead_shares(table)
    assert shares.sum() == pytest.approx(1.0)
    np.testing.assert_array_equal(shares, lead_shares(table[:, rng.permutation(9)]))
    np.testing.assert_allclose(lead_shares(np.full((3, 4), 0.2)), np.full(3, 1 / 3))
    assert lead_shares(np.array([[2.0, np.nan], [np.nan, 1.0], [0.0, 0.0]]))[2] == 0


def test_alike_models_stand_apart_rarely() -> None:
    """Each model in turn is held against all others: at most one of them passes,
    whatever the effects are.
    """
    rng = np.random.default_rng(4)
    groups = np.repeat([0, 1, 2], 8)
    for _ in range(40):
        models = np.exp(rng.normal(size=(25, 24)) * rng.uniform(0.1, 2, size=24)) / 20
        passing = [
            exceeds_controls(models[i], np.delete(models, i, axis=0), groups).any()
            for i in range(25)
        ]
        assert sum(passing) <= 1
    models[0, 5] = 1e3
    assert np.flatnonzero(exceeds_controls(models[0], models[1:], groups)).tolist() == [
        5
    ]


def test_holm_is_that_of_statsmodels() -> None:
    p = np.random.default_rng(5).random(20) ** 4
    p[3] = np.nan
    corrected = holm(p)
    assert np.isnan(corrected[3])
    tested = np.isfinite(p)
    expected = multipletests(p[tested], method="holm")[1]
    np.testing.assert_allclose(corrected[tested], expected)


def dependent_effects(rng: np.random.Generator, heads: int, true: int) -> np.ndarray:
    """(head, series): noise that heads share with one another, half of them with the
    other sign, and true effects.
    """
    shared = rng.normal(size=16) * np.where(np.arange(heads) % 2, 1.0, -1.0)[:, None]
    values = 0.8 * shared + 0.6 * rng.normal(size=(heads, 16))
    values[:true] += 3.0
    return values


def test_dependent_heads_rarely_give_false_positives() -> None:
    """Of heads that depend on each other, few results have a wrong one."""
    rng = np.random.default_rng(7)
    tries = 400
    true = 10
    wrongly = right = 0
    for _ in range(tries):
        above = holm(sign_test(dependent_effects(rng, 40, true))) <= 0.05
        wrongly += bool(above[true:].any())
        right += int(above[:true].sum())
    assert wrongly / tries <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / tries)
    assert right > 0.5 * true * tries


def test_the_interval_is_students() -> None:
    mean, low, high = mean_interval(np.array([[1.0, 2.0, 3.0], [1.0, np.nan, 2.0]]))
    assert mean.tolist() == [2.0, 1.5]
    np.testing.assert_allclose(high[0] - 2.0, scipy.stats.t.ppf(0.975, 2) / np.sqrt(3))
    assert (low[1], high[1]) == (1.5, 1.5)


@pytest.mark.parametrize(
    ("bounds", "draw"),
    [
        ((0.0, np.inf), lambda rng, n: rng.lognormal(sigma=1, size=n)),
        ((-1.0, np.inf), lambda rng, n: rng.exponential(size=n) - 1),
        ((0.0, 1.0), lambda rng, n: rng.beta(0.5, 5, size=n)),
        ((0.0, 100.0), lambda rng, n: 100 * rng.beta(5, 0.5, size=n)),
        ((-1.0, 1.0), lambda rng, n: 2 * rng.beta(8, 0.8, size=n) - 1),
    ],
    ids=["positive", "above -1", "share", "percent", "correlation"],
)
def test_intervals_stay_in_their_range(
    bounds: tuple[float, float], draw: Callable[..., np.ndarray]
) -> None:
    """Intervals within bounds never leave them, and cover as often as those without."""
    rng = np.random.default_rng(11)
    mean = draw(rng, 200_000).mean()
    covered = {"within": 0, "without": 0}
    left = 0
    for _ in range(1000):
        values = draw(rng, 7)
        distance = float(half_width(values))
        found = interval_within(values.mean(), distance, bounds)
        assert bounds[0] <= found[0] <= values.mean() <= found[1] <= bounds[1]
        covered["within"] += found[0] <= mean <= found[1]
        covered["without"] += abs(values.mean() - mean) <= distance
        left += not bounds[0] <= values.mean() - distance
        left += not values.mean() + distance <= bounds[1]
    # the case is one in which plain intervals do leave
    assert left > 0
    assert covered["within"] >= covered["without"] - scipy.stats.binom.std(1000, 0.9)


def test_narrow_intervals_need_no_other_scale() -> None:
    """Far from the bounds the interval is the plain one, to the second order."""
    for bounds in ((0.0, np.inf), (0.0, 1.0), (-1.0, 1.0)):
        for distance in (1e-4, 1e-3):
            low, high = interval_within(0.4, distance, bounds)
            curvature = distance**2 / 0.4
            assert abs(low - 0.4 + distance) < curvature
            assert abs(high - 0.4 - distance) < curvature
    assert interval_within(0.4, 0.5, (-np.inf, np.inf)) == (0.4 - 0.5, 0.4 + 0.5)
    # all values at the bound, and a width that is not known
    assert interval_within(1.0, 0.0, (0.0, 1.0)) == (1.0, 1.0)
    assert np.isnan(interval_within(0.4, np.nan, (0.0, 1.0))).all()


def test_p_values_and_intervals_agree() -> None:
    rng = np.random.default_rng(3)
    distribution = rng.normal(size=(2000, 200)) + rng.uniform(-5, 5, size=200)
    for units in (4, 10, 97):
        lower, upper = expanded_interval(distribution, 0.95, units)
        p = expanded_p(distribution, units)
        clear = np.abs(p - 0.05) > 0.01
        assert ((p < 0.05) == ((lower > 0) | (upper < 0)))[clear].all()
        assert 20 < (p < 0.05).sum() < 150


def test_few_units_use_students_t() -> None:
    """For the mean of few normal numbers the right p-value is known; the bare
    percentile one is far too small.
    """
    rng = np.random.default_rng(4)
    for units, middle in ((5, 1.0), (8, 0.9), (8, 2.5), (30, 0.35)):
        sample = rng.normal(size=units)
        sample = (sample - sample.mean()) / sample.std(ddof=1) + middle
        draws = rng.integers(units, size=(20_000, units))
        p = expanded_p(sample[draws].mean(axis=1)[:, None], units)[0]
        # as small as the replicates can show, and no smaller
        assert p == pytest.approx(
            max(scipy.stats.ttest_1samp(sample, 0.0).pvalue, 2 / 20_001), rel=NEAR
        )
    same = np.full((2000, 1), 0.1)
    assert expanded_p(same, 50)[0] > 1e-4  # no spread tells nothing of the tail
    assert expanded_p(0 * same, 50)[0] == 1.0


def test_sign_test_agrees_with_scipy() -> None:
    """The sign test is that of SciPy, and its interval of the median agrees with it."""
    rng = np.random.default_rng(6)
    for count in (5, 6, 9, 20):
        values = rng.normal(0.6, 1, size=count)
        signs = int((values > 0).sum())
        assert sign_test(values) == pytest.approx(
            scipy.stats.binomtest(signs, count).pvalue
        )
        above = scipy.stats.binomtest(
            int((values > 0.5).sum()), count, alternative="greater"
        ).pvalue
        assert sign_test(np.append(values, np.nan), 0.5, sides=1) == pytest.approx(
            above
        )
        _, low, high = median_interval(values)
        assert np.isnan(low) == (count < 6)
        assert (sign_test(values) <= 0.05) == (low > 0 or high < 0)
    assert sign_test(np.zeros(10)) == sign_test(np.zeros(10), sides=1) == 1.0
    assert sign_test(np.array([1.0] * 6 + [0.0] * 6)) == 1.0
    assert np.isnan(sign_test(np.array([np.nan])))
    for tests, sides in ((1, 2), (1, 1), (24, 2), (500, 1)):
        few = units_needed(tests, sides)
        assert tests * float(sign_test(np.ones(few), sides=sides)) <= 0.05
        assert tests * float(sign_test(np.ones(few - 1), sides=sides)) > 0.05


def test_auroc_counts_pairs_with_nan_lowest() -> None:
    """AUROC counts pairs and takes NaN as the lowest."""
    scores = np.array([0.3, np.nan, 0.3, 0.9, 0.1])
    labels = np.array([True, False, False, True, False])
    assert auroc(scores, labels) == pytest.approx(5.5 / 6)
    assert np.isnan(auroc(scores, np.zeros(5, dtype=bool)))


def test_p_values_respect_replicate_count() -> None:
    """P values are no smaller than the number of replicates allows."""
    far = np.random.default_rng(0).normal(20, 1, size=(199, 3))
    for units in (4, 30, 500):
        p = expanded_p(far, units)
        assert (p >= 2 / 200).all()
    assert p == pytest.approx(2 / 200)
