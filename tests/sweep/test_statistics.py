"""Sums, changes and their intervals against explicit loops, closed forms and simulated studies with a known effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.sweep.statistics import bootstrap
from tsfm_lens.sweep.statistics.changes import (
    METRICS,
    changes,
    dataset_changes,
    dataset_metrics,
    difference,
    geometric_mean,
    holm,
    normalised,
    per_series,
    pooled,
    resilience,
)
from tsfm_lens.sweep.statistics.scores import DISTANCES, SUMS
from tsfm_lens.testing import assert_close, last_digit

# how near the bootstrap comes to Student's t: a p-value of few units, an end of an interval over four seeds
OF_STUDENT, OF_SEEDS = 0.4, 0.02

STEPS = 24.0


def row(variant: str, dataset: str, item: str, error: float, **more: Any) -> dict[str, Any]:
    """A stored row whose mean scaled error is ``error``; every metric follows from it."""
    sums = dict.fromkeys(SUMS, error * STEPS) | {"n_invalid": 0.0, "abs_label": 2 * STEPS}
    sums |= {name: STEPS for name in SUMS if name.startswith("n") and name != "n_invalid"}
    key = {"model": "m", "variant": variant, "dataset": dataset, "item": item, "window": 0, "variate": 0}
    return {"cell": "c", **key, **sums, **dict.fromkeys(DISTANCES, 0.25), **more}


def study(errors: dict[str, dict[str, list[float]]]) -> pd.DataFrame:
    """Rows from errors by variant and dataset, one a series."""
    return pd.DataFrame(
        [
            row(variant, dataset, f"s{k}", error)
            for variant, datasets in errors.items()
            for dataset, values in datasets.items()
            for k, error in enumerate(values)
        ]
    )


def simulated(
    rng: np.random.Generator, datasets: int, series: int, between: float, within: float, variants: int = 1
) -> pd.DataFrame:
    """Studies whose true change is 0.1: datasets differ by ``between``, series by ``within``, scales by a lot."""
    plain = np.exp(rng.normal(size=(datasets, 1)) + 0.3 * rng.normal(size=(datasets, series)))
    where = [(f"d{d:02d}", f"s{k}") for d in range(datasets) for k in range(series)]
    key = {"model": "m", "window": 0, "variate": 0, "n": STEPS, "n_invalid": 0.0, "n_scaled": STEPS}
    parts = []
    for number in range(variants + 1):
        shift = 0.1 + between * rng.normal(size=(datasets, 1)) + within * rng.normal(size=(datasets, series))
        errors, variant = (plain * (1 + shift), f"v{number}") if number else (plain, "plain")
        table = pd.DataFrame(where, columns=["dataset", "item"])
        parts.append(table.assign(variant=variant, scaled_error=errors.ravel(), **key))
    return pd.concat(parts, ignore_index=True)


# sums and pooled metrics


def test_sums_of_a_series_are_those_of_its_windows_and_variates() -> None:
    rng = np.random.default_rng(0)
    rows = [
        row(v, d, i, 1.0, window=w, variate=c, **{name: float(rng.random()) for name in (*SUMS, *DISTANCES)})
        for v in ("plain", "v")
        for d in ("b", "a")
        for i in ("x", "y")
        for w in range(2)
        for c in range(2)
    ]
    rows[3]["pearson_distance"] = np.nan
    frame = pd.DataFrame(rows).sample(frac=1.0, random_state=0)
    as_categories = frame.assign(**{name: frame[name].astype("category") for name in ("variant", "dataset", "item")})
    for given in (frame, as_categories):
        found = per_series(given).astype(dict.fromkeys(("variant", "dataset", "item"), str))
        assert len(found) == 8
        for _, sums in found.iterrows():
            of = frame[(frame["variant"] == sums["variant"]) & (frame["dataset"] == sums["dataset"])]
            of = of[of["item"] == sums["item"]]
            assert sums["n_rows"] == len(of) == 4
            for name in SUMS:
                assert sums[name] == pytest.approx(of[name].sum())
            for name in DISTANCES:
                assert sums[name] == pytest.approx(of[name].sum())
                assert sums[f"n_{name}"] == of[name].notna().sum()


def test_metrics_of_a_dataset_are_pooled_and_not_averaged() -> None:
    frame = pd.DataFrame(
        [
            row("plain", "d", "a", 1.0, scaled_error=10.0, n_scaled=2.0, n=4.0, squared_error_mean=8.0, abs_label=4.0),
            row("plain", "d", "b", 1.0, scaled_error=2.0, n_scaled=8.0, n=4.0, squared_error_mean=10.0, abs_label=12.0),
        ]
    )
    frame["spearman_distance"] = [0.5, np.nan]
    found = dataset_metrics(frame).loc[("m", "plain", "d")]
    assert found["MASE"] == pytest.approx(12 / 10)
    assert found["RMSE"] == pytest.approx(1.5)
    assert found["NRMSE"] == pytest.approx(1.5 / 2)
    assert found["spearman_distance"] == 0.5
    assert (found["n_series"], found["n_rows"]) == (2, 2)
    assert set(METRICS) <= set(found.index)
    table = pooled(per_series(frame))
    assert table["MASE"].tolist() == [5.0, 0.25]


def test_damaged_rows_are_refused() -> None:
    frame = study({"plain": {"d": [1.0, 2.0]}, "v": {"d": [1.0, 2.0]}})
    with pytest.raises(InputError, match="there twice: model 'm', variant 'plain', dataset 'd', item 's1'"):
        per_series(pd.concat([frame, frame.iloc[1:2]]))
    with pytest.raises(InputError, match=r"\['abs_error'\] hold NaN"):
        per_series(frame.assign(abs_error=np.nan))
    with pytest.raises(InputError, match=r"lack the columns \['window'\]"):
        per_series(frame.drop(columns="window"))
    with pytest.raises(UnknownNameError, match="MASE"):
        changes(frame, metric="MAZE")
    with pytest.raises(UnknownNameError, match="plain"):
        changes(frame, plain="plane")
    with pytest.raises(UnknownNameError, match="baseline of m"):
        changes(frame[frame["variant"] == "v"])
    with pytest.raises(InputError, match="no change to report"):
        changes(frame[frame["variant"] == "plain"])
    with pytest.raises(InputError, match="give `per_series` all measures"):
        changes(per_series(frame, ["CRPS"]))
    with pytest.raises(InputError, match="at least 100"):
        changes(frame, replicates=5)


def test_ratios_to_the_seasonal_naive_forecast() -> None:
    frame = study({"plain": {"a": [1.0], "b": [3.0]}, "v": {"a": [2.0], "b": [3.0]}})
    naive = study({"seasonal_naive": {"a": [2.0], "b": [6.0]}}).assign(model="")
    found = normalised(dataset_metrics(pd.concat([frame, naive])))["MASE"]
    assert found.to_dict() == {
        ("m", "plain", "a"): 0.5,
        ("m", "plain", "b"): 0.5,
        ("m", "v", "a"): 1.0,
        ("m", "v", "b"): 0.5,
    }
    table = found.unstack("variant").droplevel("model")
    mean, left_out = geometric_mean(table)
    assert mean.to_dict() == pytest.approx({"plain": 0.5, "v": np.sqrt(0.5)})
    assert left_out == []
    with pytest.raises(InputError, match="seasonal naive"):
        normalised(dataset_metrics(frame))
    with pytest.raises(InputError, match="more than one"):
        normalised(dataset_metrics(pd.concat([frame, naive, naive.assign(model="other")])))
    nowhere = normalised(dataset_metrics(frame), dataset_metrics(naive[naive["dataset"] == "a"]))["MASE"]
    assert np.isnan(nowhere[("m", "v", "b")])


def test_the_geometric_mean_leaves_out_the_same_datasets_for_all() -> None:
    table = pd.DataFrame(
        {"x": [1.0, 4.0, 9.0, 9.0, 9.0], "y": [2.0, 8.0, np.nan, 0.0, np.inf]}, index=["a", "b", "c", "d", "e"]
    )
    mean, left_out = geometric_mean(table)
    assert mean.to_dict() == pytest.approx({"x": 2.0, "y": 4.0})
    assert left_out == ["c", "d", "e"]
    assert geometric_mean(table["x"]) == (pytest.approx((4 * 9**3) ** (1 / 5)), [])
    nothing, left_out = geometric_mean(pd.Series([0.0], index=["z"]))
    assert np.isnan(nothing)
    assert left_out == ["z"]


# the bootstrap


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
        assert p == pytest.approx(ttest_1samp(sample, 0.0).pvalue, rel=OF_STUDENT)
    same = np.full((2000, 1), 0.1)
    assert bootstrap.two_sided(same, 50)[0] > 1e-4  # no spread tells nothing of the tail
    assert bootstrap.two_sided(0 * same, 50)[0] == 1.0


# changes


def test_a_change_by_hand() -> None:
    frame = study({"plain": {"a": [1.0, 3.0], "b": [5.0, 5.0]}, "v": {"a": [2.0, 3.0], "b": [5.0, 4.0]}})
    found = changes(frame).iloc[0]
    assert found["baseline"] == pytest.approx(np.sqrt(2.0 * 5.0))
    assert found["value"] == pytest.approx(np.sqrt(2.5 * 4.5))
    assert found["change"] == pytest.approx(np.sqrt(2.5 * 4.5 / 10.0) - 1)
    assert (found["n_datasets"], found["n_series"], found["n_unpaired"], found["left_out"]) == (2, 4, 0, ())
    assert found["lower"] < found["change"] < found["upper"]
    assert "2 datasets and within them over 4 series" in found["method"]
    for metric in METRICS:
        assert np.isfinite(changes(frame, metric=metric).iloc[0]["change"])


def test_equal_forecasts_do_not_change_and_do_not_stand() -> None:
    errors = {f"d{d}": list(np.random.default_rng(d).random(5) + 0.5) for d in range(6)}
    harmed = {name: [2.0 * e * (1 + 0.01 * k) for k, e in enumerate(values)] for name, values in errors.items()}
    found = changes(study({"plain": errors, "same": errors, "harmed": harmed})).set_index("variant")
    assert found.loc["same", ["change", "lower", "upper"]].tolist() == [0.0, 0.0, 0.0]
    assert found.loc["same", ["p_value", "p_holm"]].tolist() == [1.0, 1.0]
    assert not found.loc["same", "stands"]
    assert found.loc["harmed", "stands"]
    assert found.loc["harmed", "lower"] > 0.9


def test_a_normaliser_of_a_dataset_cancels() -> None:
    rng = np.random.default_rng(5)
    frame = simulated(rng, 5, 4, 0.1, 0.2)
    scaled = frame.assign(scaled_error=frame["scaled_error"] * frame["dataset"].map(lambda d: 10.0 ** int(d[1:])))
    one, other = changes(frame).iloc[0], changes(scaled).iloc[0]
    assert other["value"] != pytest.approx(one["value"])
    for name in ("change", "lower", "upper", "p_value"):
        assert_close(other[name], one[name], depth=10000)


@pytest.mark.parametrize(
    ("datasets", "series", "between", "within"), [(6, 6, 0.05, 0.1), (12, 3, 0.0, 0.2), (15, 1, 0.1, 0.1)]
)
def test_intervals_cover_a_known_effect(datasets: int, series: int, between: float, within: float) -> None:
    frame = simulated(np.random.default_rng(datasets), datasets, series, between, within, 300)
    # E log(1 + shift) of a dataset's pooled ratio, to second order
    truth = np.exp(np.log(1.1) - (between**2 + within**2 / series) / 2 / 1.1**2) - 1
    each = {variant: variant for variant in frame["variant"].unique()}
    sums = per_series(frame, ["MASE"])
    found = changes(sums, family=each)
    assert len(found) == 300
    assert 0.88 <= ((found["lower"] <= truth) & (truth <= found["upper"])).mean() <= 0.995
    # and without an effect few stand
    sums.loc[sums["variant"] != "plain", "scaled_error"] /= 1 + truth
    assert changes(sums, family=each)["stands"].mean() <= 0.1


def test_datasets_that_differ_widen_the_interval() -> None:
    frame = simulated(np.random.default_rng(6), 12, 30, 0.3, 0.1)
    clustered, fixed = (changes(frame, datasets=how).iloc[0] for how in ("sampled", "fixed"))
    assert clustered["change"] == fixed["change"]
    # the standard errors are about 0.3 / sqrt(12) and 0.1 / sqrt(360)
    assert clustered["upper"] - clustered["lower"] > 8 * (fixed["upper"] - fixed["lower"])
    assert "fixed datasets" in fixed["method"]


def test_one_dataset_and_one_series() -> None:
    frame = simulated(np.random.default_rng(7), 1, 20, 0.0, 0.2)
    one = changes(frame).iloc[0]
    assert "over 20 series of one dataset" in one["method"]
    assert one["lower"] < one["change"] < one["upper"]
    alone = changes(frame[frame["item"] == "s0"]).iloc[0]
    assert np.isfinite(alone["change"])
    assert alone[["lower", "upper", "p_value", "p_holm"]].isna().all()
    assert not alone["stands"]
    assert alone["method"].startswith("no interval: 1 series")


def test_datasets_without_a_metric_are_left_out_of_both_sides_and_named() -> None:
    plain = {"a": [1.0, 1.0], "b": [4.0, 4.0], "c": [9.0, 9.0], "d": [2.0, 2.0]}
    frame = study({"plain": plain, "broken": plain, "whole": plain, "perfect": plain | {"c": [0.0, 0.0]}})
    frame.loc[(frame["variant"] == "broken") & (frame["dataset"] == "b") & (frame["item"] == "s0"), "n_invalid"] = 1.0
    found = changes(frame).set_index("variant")
    assert found.loc["broken", "left_out"] == ("b",)
    assert found.loc["perfect", "left_out"] == ("c",)
    assert found.loc["whole", "left_out"] == ()
    assert found.loc["broken", "baseline"] == found.loc["broken", "value"] == pytest.approx(18 ** (1 / 3))
    assert found["n_datasets"].to_dict() == {"broken": 3, "perfect": 3, "whole": 4}
    counts = resilience(frame).set_index("variant")
    assert counts.loc["broken", ["n_datasets", "n_left_out"]].tolist() == [3, 1]
    none = changes(frame.assign(n_invalid=1.0)).iloc[0]
    assert np.isnan(none["change"])
    assert none["left_out"] == ("a", "b", "c", "d")
    assert dataset_changes(frame.assign(n_invalid=1.0))["change"].isna().all()


def test_series_are_compared_on_the_same_windows_only() -> None:
    rows = [
        row(v, d, i, 1.0 if v == "plain" else 2.0, window=w)
        for v in ("plain", "v")
        for d in "ab"
        for i in "xy"
        for w in range(2)
    ]
    frame = pd.DataFrame(rows)
    lost = (frame["variant"] == "v") & (frame["dataset"] == "a") & (frame["item"] == "x") & (frame["window"] == 1)
    frame.loc[(frame["item"] == "x") & (frame["dataset"] == "a"), "scaled_error"] *= 100
    found = changes(frame[~lost]).iloc[0]
    assert (found["n_series"], found["n_unpaired"]) == (3, 1)
    assert (found["baseline"], found["value"]) == (pytest.approx(1.0), pytest.approx(2.0))
    # what is left of dataset a has no geometric mean, whatever the series that is not compared says
    perfect = frame[~lost].copy()
    perfect.loc[(frame["variant"] == "v") & (frame["dataset"] == "a") & (frame["item"] == "y"), "scaled_error"] = 0.0
    assert changes(perfect).iloc[0]["left_out"] == ("a",)
    # as many windows, but others
    moved = frame.assign(window=frame["window"].where(~lost, 5))
    assert changes(moved).iloc[0]["n_unpaired"] == 1
    extra = pd.concat([frame, pd.DataFrame([row("v", "c", "z", 50.0)])])
    assert changes(extra).iloc[0]["value"] == pytest.approx(changes(frame).iloc[0]["value"])


def test_a_series_without_a_scale_has_no_part_in_mase() -> None:
    errors = {"plain": {"a": [1.0, 1.0], "b": [1.0, 1.0]}, "v": {"a": [2.0, 9.0], "b": [2.0, 2.0]}}
    frame = study(errors)
    frame.loc[(frame["dataset"] == "a") & (frame["item"] == "s1"), ["n_scaled", "scaled_error"]] = 0.0
    found = changes(frame).iloc[0]
    assert (found["n_series"], found["change"]) == (3, pytest.approx(1.0))
    assert changes(frame, metric="MAE").iloc[0]["n_series"] == 4


def test_distances_have_an_interval_and_no_test() -> None:
    frame = study({"plain": {"a": [1.0] * 3, "b": [1.0] * 3}, "v": {"a": [1.0] * 3, "b": [1.0] * 3}})
    changed = frame["variant"] == "v"
    frame.loc[changed, "spearman_distance"] = [0.1, 0.2, 0.3, 0.4, np.nan, 0.8]
    found = changes(frame, metric="spearman_distance").iloc[0]
    assert found["value"] == pytest.approx((0.2 + 0.6) / 2)
    assert 0.0 <= found["lower"] < found["value"] < found["upper"] <= 2.0
    assert found["n_series"] == 5
    assert found[["baseline", "change", "p_value", "p_holm"]].isna().all()
    assert not found["stands"]


# families


def test_holm_by_hand() -> None:
    p = np.array([0.01, 0.04, np.nan, 0.03, 0.2])
    # sorted 0.01 · 4, 0.03 · 3, 0.04 · 2 but no less than before it, 0.2 · 1
    np.testing.assert_allclose(holm(p), [0.04, 0.09, np.nan, 0.09, 0.2])
    np.testing.assert_allclose(holm(p, ["x", "y", "x", "x", "y"]), [0.02, 0.08, np.nan, 0.03, 0.2])


def test_families_are_corrected_by_themselves() -> None:
    rng = np.random.default_rng(8)
    plain = {f"d{d}": list(rng.random(4) + 0.5) for d in range(8)}
    errors = {"plain": plain}
    for number in range(4):
        errors[f"v{number}"] = {
            d: [e * (1 + 0.05 * number + 0.1 * rng.normal()) for e in values] for d, values in plain.items()
        }
    frame = study(errors)
    frame["family"] = frame["variant"].map(lambda v: "layers" if v == "v1" else "heads")
    found = changes(frame, family="family")
    by_mapping = changes(frame.drop(columns="family"), family={"v1": "layers"})
    pd.testing.assert_series_equal(found["p_holm"], by_mapping["p_holm"])
    for name, part in found.groupby("family"):
        np.testing.assert_allclose(part["p_holm"], holm(part["p_value"].to_numpy()), err_msg=name)
    assert (changes(frame)["p_holm"] >= found["p_holm"]).all()
    two = pd.concat([frame, frame.assign(model="other")])
    both = changes(two, family="family")
    for model in ("m", "other"):
        part = both[both["model"] == model].reset_index(drop=True)
        pd.testing.assert_frame_equal(part.drop(columns="model"), found.drop(columns="model"))
    with pytest.raises(UnknownNameError, match="column of families"):
        changes(frame, family="kind")
    with pytest.raises(InputError, match="more than one family"):
        changes(pd.concat([frame, frame.assign(family="all", window=1)]), family="family")


# counts and random choices


def test_resilient_and_improved_datasets_by_hand() -> None:
    names = "abcdef"
    factors = {"a": 0.9, "b": 0.999, "c": 1.0, "d": 1.049, "e": 1.05, "f": 2.0}
    plain = {name: [4.0] for name in names}
    frame = study({"plain": plain, "v": {name: [4.0 * factors[name]] for name in names}})
    frame.loc[(frame["variant"] == "v") & (frame["dataset"] == "e"), "scaled_error"] = 4.2 * STEPS
    found = resilience(frame).iloc[0]
    assert found[["n_resilient", "n_improved", "n_datasets", "n_left_out"]].tolist() == [4, 2, 6, 0]
    assert resilience(frame, tolerance=0.06).iloc[0]["n_resilient"] == 5
    table = dataset_changes(frame).set_index("dataset")["change"]
    assert table.to_dict() == pytest.approx({name: factor - 1 for name, factor in factors.items()})


def test_informed_against_random_choices() -> None:
    rng = np.random.default_rng(9)
    plain = {f"d{d}": list(rng.random(3) + 0.5) for d in range(30)}
    factors = {"informed": 1.1, "r0": 1.2, "r1": 1.3, "r2": 1.5, "r3": 1.2}
    errors = {v: {d: [e * factor for e in values] for d, values in plain.items()} for v, factor in factors.items()}
    frame = study({"plain": plain, **errors})
    found = difference(frame, "informed", ["r0", "r1", "r2", "r3"])
    assert found["change_informed"] == pytest.approx(0.1)
    assert found["change_random"] == pytest.approx(0.3)
    assert found["difference"] == pytest.approx(-0.2)
    # series and datasets all agree, so that only the choice of seeds varies: sd / sqrt(4), Student's t of 3 degrees
    spread = np.std([0.2, 0.3, 0.5, 0.2]) / 2
    reach = 3.182 * np.sqrt(4 / 3) * spread
    assert found["lower"] == pytest.approx(-0.2 - reach, abs=OF_SEEDS)
    assert found["upper"] == pytest.approx(-0.2 + reach, abs=OF_SEEDS)
    one = difference(frame, "informed", ["r1"])
    assert (one["lower"], one["upper"]) == (pytest.approx(-0.2), pytest.approx(-0.2))
    assert "taken as it is" in one["method"]
    same = study({"plain": plain, **dict.fromkeys(factors, errors["r1"])})
    nothing = difference(same, "informed", ["r0", "r1"])
    assert (nothing["difference"], nothing["p_value"]) == (0.0, 1.0)
    with pytest.raises(UnknownNameError, match="r1"):
        difference(frame, "informed", ["r11"])
    with pytest.raises(InputError, match="name one"):
        difference(pd.concat([frame, frame.assign(model="other")]), "informed", ["r0"])
    two = pd.concat([frame, frame.assign(model="other")])
    pd.testing.assert_series_equal(difference(two, "informed", ["r1"], model="m"), one)


def test_all_choices_are_compared_on_the_datasets_that_all_have() -> None:
    plain = {f"d{d}": [1.0, 2.0] for d in range(4)}
    frame = study({"plain": plain, "informed": plain, "r0": plain, "r1": plain})
    frame = frame[~((frame["variant"] == "r1") & (frame["dataset"] == "d2"))]
    frame.loc[(frame["variant"] == "informed") & (frame["dataset"] == "d2"), "scaled_error"] *= 50
    found = difference(frame, "informed", ["r0", "r1"])
    assert (found["n_datasets"], found["left_out"], found["difference"]) == (3, ("d2",), 0.0)


@pytest.mark.parametrize("replay", [changes, lambda frame: difference(frame, "v1", ["v2"]), resilience])
def test_results_depend_on_rows_and_seed_only(replay: Callable[[pd.DataFrame], Any]) -> None:
    frame = simulated(np.random.default_rng(10), 4, 3, 0.1, 0.1, 2)
    shuffled = frame.sample(frac=1.0, random_state=1)
    one, again = pd.DataFrame(replay(frame)), pd.DataFrame(replay(shuffled))
    pd.testing.assert_frame_equal(one, again)
    pd.testing.assert_frame_equal(one, pd.DataFrame(replay(per_series(shuffled, ["MASE"]))))
    # stores give texts as categories, in whatever order they came
    coded = shuffled.astype(dict.fromkeys(["model", "variant", "dataset", "item"], "category"))
    for key in ("variant", "dataset", "item"):
        coded[key] = coded[key].cat.reorder_categories(list(coded[key].cat.categories)[::-1])
    pd.testing.assert_frame_equal(one, pd.DataFrame(replay(coded)))
