"""Intervals, tests and resampling against scipy, explicit loops and simulated noise."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from statsmodels.stats.multitest import multipletests

from tsfm_lens.stats import (
    CORRECTIONS,
    LEVEL,
    Control,
    auroc,
    benjamini_yekutieli,
    bootstrap_interval,
    expanded_interval,
    expanded_p,
    half_width,
    holm,
    leader,
    mean_interval,
    median_interval,
    sign_test,
)

NEAR = 0.4  # of a p-value: resampled tails are coarse


def test_of_noise_no_component_is_significant_or_leads_more_often_than_promised() -> None:
    rng = np.random.default_rng(0)
    draws = [rng.normal(size=(24, 12)) for _ in range(400)]
    # 5 % of 400, and four standard deviations of that count
    most = 20 + 4 * np.sqrt(400 * 0.05 * 0.95)
    assert sum(bool((holm(sign_test(values)) <= LEVEL).any()) for values in draws) <= most
    assert sum(leader(values) is not None for values in draws) <= most


def test_a_lead_on_one_of_two_series_is_none() -> None:
    assert leader(np.array([[1.0, 0.2], [0.5, 0.4]])) is None
    assert leader(np.array([[1.0] * 6, [0.5] * 6])) == 0
    assert leader(np.array([[1.0] * 5, [0.5] * 5])) is None
    assert leader(np.array([[np.nan, np.nan]])) is None


def test_holm_is_that_of_statsmodels_in_each_family() -> None:
    rng = np.random.default_rng(5)
    p, families = rng.random(20) ** 4, rng.integers(0, 3, 20).tolist()
    p[3] = np.nan
    corrected = holm(p, families)
    assert np.isnan(corrected[3])
    for label in set(families):
        own = [i for i in range(20) if families[i] == label and i != 3]
        np.testing.assert_allclose(corrected[own], multipletests(p[own], method="holm")[1])


def test_benjamini_and_yekutieli_is_that_of_scipy() -> None:
    p = np.random.default_rng(6).random(20) ** 4
    np.testing.assert_allclose(benjamini_yekutieli(p), scipy.stats.false_discovery_control(p, method="by"))


def dependent_effects(rng: np.random.Generator, heads: int, true: int) -> np.ndarray:
    """(head, series): noise that heads share with one another, half of them with the other sign, and true effects."""
    shared = rng.normal(size=12) * np.where(np.arange(heads) % 2, 1.0, -1.0)[:, None]
    values = 0.8 * shared + 0.6 * rng.normal(size=(heads, 12))
    values[:true] += 3.0
    return values


@pytest.mark.parametrize("control", ["holm", "by"])
def test_of_heads_that_depend_on_each_other_no_more_are_wrong_than_promised(control: Control) -> None:
    rng = np.random.default_rng(7)
    tries, true = 400, 10
    wrong, wrongly, found = 0.0, 0, 0
    for _ in range(tries):
        above = CORRECTIONS[control](sign_test(dependent_effects(rng, 40, true))) <= LEVEL
        named = int(above.sum())
        wrong += float(above[true:].sum() / max(named, 1))
        wrongly += bool(above[true:].any())
        found += int(above[:true].sum())
    allowed = 0.05 + 4 * np.sqrt(0.05 * 0.95 / tries)
    assert wrong / tries <= allowed
    # only Holm promises that few results have any wrong head
    assert control == "by" or wrongly / tries <= allowed
    assert found > 0.5 * true * tries


def test_the_interval_is_students() -> None:
    mean, low, high = mean_interval(np.array([[1.0, 2.0, 3.0], [1.0, np.nan, 2.0]]))
    assert mean.tolist() == [2.0, 1.5]
    np.testing.assert_allclose(high[0] - 2.0, scipy.stats.t.ppf(0.975, 2) / np.sqrt(3))
    assert (low[1], high[1]) == (1.5, 1.5)


def test_p_values_and_intervals_agree() -> None:
    rng = np.random.default_rng(3)
    distribution = rng.normal(size=(2000, 200)) + rng.uniform(-5, 5, size=200)
    for units in (4, 10, 97):
        lower, upper = expanded_interval(distribution, 0.95, units)
        p = expanded_p(distribution, units)
        clear = np.abs(p - 0.05) > 0.01
        assert ((p < 0.05) == ((lower > 0) | (upper < 0)))[clear].all()
        assert 20 < (p < 0.05).sum() < 150


def test_few_units_are_treated_as_by_students_t() -> None:
    """For the mean of few normal numbers the right p-value is known; the bare percentile one is far too small."""
    rng = np.random.default_rng(4)
    for units, middle in ((5, 1.0), (8, 0.9), (8, 2.5), (30, 0.35)):
        sample = rng.normal(size=units)
        sample = (sample - sample.mean()) / sample.std(ddof=1) + middle
        draws = rng.integers(units, size=(20_000, units))
        p = expanded_p(sample[draws].mean(axis=1)[:, None], units)[0]
        # as small as the replicates can show, and no smaller
        assert p == pytest.approx(max(scipy.stats.ttest_1samp(sample, 0.0).pvalue, 2 / 20_001), rel=NEAR)
    same = np.full((2000, 1), 0.1)
    assert expanded_p(same, 50)[0] > 1e-4  # no spread tells nothing of the tail
    assert expanded_p(0 * same, 50)[0] == 1.0


def test_p_values_say_no_more_than_the_replicates() -> None:
    far = np.random.default_rng(0).normal(20, 1, size=(199, 3))
    for units in (4, 30, 500):
        p = expanded_p(far, units)
        assert (p >= 2 / 200).all()
    assert p == pytest.approx(2 / 200)


def test_sign_test_and_median_interval_agree_and_zeros_speak_for_neither_side() -> None:
    rng = np.random.default_rng(6)
    for count in (5, 6, 9, 20):
        values = rng.normal(0.6, 1, size=count)
        signs = int((values > 0).sum())
        assert sign_test(values) == pytest.approx(scipy.stats.binomtest(signs, count).pvalue)
        _, low, high = median_interval(values)
        assert np.isnan(low) == (count < 6)
        assert (sign_test(values) <= 0.05) == (low > 0 or high < 0)
    assert sign_test(np.zeros(10)) == 1.0
    assert sign_test(np.array([1.0] * 6 + [0.0] * 6)) == 1.0


def test_auroc_counts_pairs_and_lets_nan_be_lowest() -> None:
    scores, labels = np.array([0.3, np.nan, 0.3, 0.9, 0.1]), np.array([True, False, False, True, False])
    assert auroc(scores, labels) == pytest.approx(5.5 / 6)
    assert np.isnan(auroc(scores, np.zeros(5, dtype=bool)))


def test_a_bootstrap_of_means_comes_near_the_normal_interval() -> None:
    values = np.random.default_rng(7).normal(size=200)
    low, high = bootstrap_interval(values, lambda sample: sample.mean(axis=1), seed=0)
    reach = float(half_width(values))
    np.testing.assert_allclose([low, high], [values.mean() - reach, values.mean() + reach], atol=0.1 * reach)
