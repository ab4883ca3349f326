"""Resampling against explicit loops and Student's t, and what so many replicates can say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp
from simulated_studies import row, simulated, study

from tsfm_lens.sweep.statistics import bootstrap
from tsfm_lens.sweep.statistics.changes import changes
from tsfm_lens.testing import assert_close, last_digit

# how near the bootstrap comes to Student's t: a p-value of few units
OF_STUDENT = 0.4


def ratio(total: np.ndarray, n: np.ndarray) -> np.ndarray:
    return np.log(total / n)


@pytest.mark.parametrize("sampled", [True, False])
def test_replicates_equal_an_explicit_loop(sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    sizes, starts = [3, 1, 4], np.array([0, 3, 4])
    errors, plain, steps = rng.random((2, 8)) + 0.5, rng.random((1, 8)) + 0.5, rng.integers(1, 5, (1, 8)).astype(float)
    changed = bootstrap.Sums((errors, np.repeat(steps, 2, axis=0)), starts)
    replicates, seed = 40, 7
    kwargs: dict[str, Any] = {"replicates": replicates, "seed": seed, "sampled": sampled}
    found = bootstrap.replicates_of(changed, bootstrap.Sums((plain, steps), starts), ratio, **kwargs)

    # the same random numbers, one draw at a time: datasets, then lists of series, then pooled ratios
    of_datasets, *of_series = np.random.SeedSequence(seed).spawn(4)
    copies = np.ones((replicates, 3), dtype=int)
    if sampled:
        copies = np.random.default_rng(of_datasets).multinomial(3, [1 / 3] * 3, size=replicates)
    streams = [np.random.default_rng(stream) for stream in of_series]
    logs: list[list[np.ndarray]] = [[] for _ in range(replicates)]
    for d, size in enumerate(sizes):
        for b in range(replicates):
            for _ in range(copies[b, d]):
                series = [starts[d] + k for k in streams[d].integers(size, size=size)]
                sums = [sum(errors[v, k] for k in series) for v in range(2)]
                below = sum(plain[0, k] for k in series)
                logs[b].append(np.log(np.array(sums) / below))
    assert {len(row) for row in logs} == {3}
    assert_close(found, [np.mean(row, axis=0) for row in logs], depth=1000)

    monkeypatch.setattr(bootstrap, "_BLOCK", 6)
    again = bootstrap.replicates_of(changed, bootstrap.Sums((plain, steps), starts), ratio, **kwargs)
    assert_close(again, found, depth=1000)


def test_datasets_of_one_source_are_drawn_together() -> None:
    rng = np.random.default_rng(2)
    errors = rng.random((1, 6)) + 0.5
    # the second and fourth dataset hold the series of the first and third once more
    twice = np.concatenate([errors[:, :4], errors[:, :4], errors[:, 4:], errors[:, 4:]], axis=1)
    once, again = (
        bootstrap.Sums((values, np.ones_like(values)), np.array(starts))
        for values, starts in ((errors, [0, 4]), (twice, [0, 4, 8, 10]))
    )
    for sampled in (True, False):
        kwargs: dict[str, Any] = {"replicates": 50, "seed": 3, "sampled": sampled}
        alone = bootstrap.replicates_of(once, None, ratio, **kwargs)
        together = bootstrap.replicates_of(again, None, ratio, sources=[0, 0, 1, 1], **kwargs)
        assert_close(together, alone, depth=1000)
        assert not np.allclose(bootstrap.replicates_of(again, None, ratio, **kwargs), alone)


def test_terms_of_one_set_say_no_more_than_one_of_them() -> None:
    """Three horizons on the same series, with the same errors, leave value, interval, p-value and units as they are."""
    rng = np.random.default_rng(4)
    sets = [f"set{k}/H/short" for k in range(5)]
    known = {variant: {name: list(rng.random(6) + 1) for name in sets} for variant in ("plain", "v")}
    more = {
        variant: {name.replace("short", term): errors for name, errors in of.items() for term in ("short", "long")}
        for variant, of in known.items()
    }
    for fixed in ("sampled", "fixed"):
        alone, all_terms = (changes(study(errors), datasets=fixed).iloc[0] for errors in (known, more))
        for name in ("value", "baseline", "change", "lower", "upper", "p_value"):
            assert_close(float(all_terms[name]), float(alone[name]), depth=1000)
        assert (all_terms["n_datasets"], alone["n_datasets"]) == (10, 5)
        assert "of 5 sources" in all_terms["method"]
    (one,) = changes(study({v: {n: of[n] for n in list(of)[:2]} for v, of in more.items()})).to_dict("records")
    assert "over 6 series of 2 datasets of 1 source" in one["method"]


def test_a_draw_that_leaves_nothing_to_measure_is_left_out_of_its_replicate() -> None:
    steps = np.array([[1.0, 0.0, 1.0, 1.0]])
    sums = bootstrap.Sums((np.array([[2.0, 0.0, 4.0, 4.0]]), steps), np.array([0, 2]))
    found = bootstrap.replicates_of(sums, None, ratio, replicates=400, seed=0, sampled=False)
    # the first dataset is log 2, or a quarter of the times nothing; the second log 4
    # a quarter to within five standard errors of 400 replicates
    values, counts = np.unique(found.round(9), return_counts=True)
    np.testing.assert_allclose(values, [np.log(8) / 2, np.log(4)], atol=last_digit(9))
    assert counts[1] / 400 == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 400) ** 0.5)


def test_p_values_and_intervals_agree() -> None:
    rng = np.random.default_rng(3)
    distribution = rng.normal(size=(2000, 200)) + rng.uniform(-5, 5, size=200)
    for units in (4, 10, 97):
        lower, upper = bootstrap.interval(distribution, 0.95, units)
        p = bootstrap.two_sided(distribution, units)
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
        p = bootstrap.two_sided(sample[draws].mean(axis=1)[:, None], units)[0]
        # as small as the replicates can show, and no smaller
        assert p == pytest.approx(max(ttest_1samp(sample, 0.0).pvalue, 2 / 20_001), rel=OF_STUDENT)
    same = np.full((2000, 1), 0.1)
    assert bootstrap.two_sided(same, 50)[0] > 1e-4  # no spread tells nothing of the tail
    assert bootstrap.two_sided(0 * same, 50)[0] == 1.0


# what so many replicates can say


def test_p_values_say_no_more_than_the_replicates() -> None:
    far = np.random.default_rng(0).normal(20, 1, size=(199, 3))
    for units in (4, 30, 500):
        p = bootstrap.two_sided(far, units)
        assert (p >= 2 / 200).all()
    assert p == pytest.approx(2 / 200)
    for tests in (1, 7, 640):
        enough = bootstrap.replicates_for(tests, 0.95)
        assert tests * bootstrap.smallest_p(enough) < 0.05 <= tests * bootstrap.smallest_p(enough - 2)


def test_a_large_family_draws_as_many_replicates_as_it_needs() -> None:
    rng = np.random.default_rng(1)
    frame = simulated(rng, 12, 3, 0.0, 0.02, 80)
    found = changes(frame, replicates=100)
    assert set(found["replicates"]) == {3200}
    assert found["stands"].all()
    single = changes(frame, replicates=100, family={v: v for v in frame["variant"].unique()})
    assert set(single["replicates"]) == {100}
    assert set(single["tests"]) == {1}


def test_one_of_a_family_leads_only_if_it_differs_from_every_other() -> None:
    rng = np.random.default_rng(2)
    plain = {f"d{d}": list(rng.random(4) + 0.5) for d in range(12)}

    def harmed(by: float) -> dict[str, list[float]]:
        return {d: [e * (1 + by + 0.02 * rng.normal()) for e in values] for d, values in plain.items()}

    errors = {"plain": plain, "a": harmed(0.05), "b": harmed(0.05), "c": harmed(0.5), "d": harmed(0.06)}
    leads = changes(study(errors)).set_index("variant")["leads"].to_dict()
    assert leads == {"a": "", "b": "", "c": "highest", "d": ""}
    alone = changes(study(errors), family={"c": "c"}).set_index("variant")["leads"]
    assert alone.to_dict() == dict.fromkeys("abcd", "")
    # measured on other series, it can be compared with none
    frame = study(errors)
    fewer = frame[~((frame["variant"] == "a") & (frame["dataset"] == "d3"))]
    assert set(changes(fewer)["leads"]) == {""}


def test_chance_makes_no_leader() -> None:
    rng, led = np.random.default_rng(3), 0
    for _ in range(60):
        led += bool((changes(simulated(rng, 10, 3, 0.05, 0.1, 6), replicates=300)["leads"] != "").any())
    # an end of six that are alike is called a leader in 5 % of studies at most, for each of two ends
    assert led <= 60 * 0.1 + 3 * (60 * 0.1 * 0.9) ** 0.5


def test_windows_of_one_series_are_not_resampled() -> None:
    rows = [
        row(v, "d", "only", error, window=w)
        for v, errors in (("plain", [1.0, 2.0, 3.0]), ("v", [2.0, 3.0, 5.0]))
        for w, error in enumerate(errors)
    ]
    found = changes(pd.DataFrame(rows)).iloc[0]
    assert found[["lower", "upper", "p_value"]].isna().all()
    assert found["method"].endswith("windows of one series are not independent")
