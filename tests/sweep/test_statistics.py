"""Sums, changes and their intervals against explicit loops, closed forms and simulated studies with a known effect."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from simulated_studies import row, simulated, study

from refusals import expect_error
from tsfm_lens.errors import InputError
from tsfm_lens.sweep.statistics.changes import changes, dataset_changes, resilience
from tsfm_lens.sweep.statistics.scores import DISTANCES, METRICS, SUMS, per_series


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


def test_damaged_rows_are_refused() -> None:
    frame = study({"plain": {"d": [1.0, 2.0]}, "v": {"d": [1.0, 2.0]}})
    with pytest.raises(InputError, match="there twice: model 'm', variant 'plain', dataset 'd', item 's1'"):
        per_series(pd.concat([frame, frame.iloc[1:2]]))
    expect_error(r"\['abs_error'\] hold NaN", per_series, frame.assign(abs_error=np.nan))
    expect_error(r"lack the columns \['window'\]", per_series, frame.drop(columns="window"))
    expect_error("MASE", changes, frame, metric="MAZE")
    expect_error("baseline of m", changes, frame[frame["variant"] == "v"])
    expect_error("no change to report", changes, frame[frame["variant"] == "plain"])
    expect_error("give `per_series` all measures", changes, per_series(frame, ["CRPS"]))
    expect_error("at least 100", changes, frame, replicates=5)


def test_a_change_by_hand() -> None:
    frame = study({"plain": {"a": [1.0, 3.0], "b": [5.0, 5.0]}, "v": {"a": [2.0, 3.0], "b": [5.0, 4.0]}})
    found = changes(frame).iloc[0]
    assert found["baseline"] == pytest.approx(np.sqrt(2.0 * 5.0))
    assert found["value"] == pytest.approx(np.sqrt(2.5 * 4.5))
    assert found["change"] == pytest.approx(np.sqrt(2.5 * 4.5 / 10.0) - 1)
    assert (found["n_datasets"], found["n_series"], found["left_out"]) == (2, 4, ())
    assert found["lower"] < found["change"] < found["upper"]
    assert "2 datasets and within them over 4 series" in found["method"]
    for metric in METRICS:
        assert np.isfinite(changes(frame, metric=metric).iloc[0]["change"])


@pytest.mark.parametrize(
    ("datasets", "series", "between", "within"), [(6, 6, 0.05, 0.1), (12, 3, 0.0, 0.2), (15, 1, 0.1, 0.1)]
)
def test_intervals_cover_a_known_effect(datasets: int, series: int, between: float, within: float) -> None:
    frame = simulated(np.random.default_rng(datasets), datasets, series, between, within, 300)
    # E log(1 + shift) of a dataset's pooled ratio, to second order
    truth = np.exp(np.log(1.1) - (between**2 + within**2 / series) / 2 / 1.1**2) - 1
    sums = per_series(frame, ["MASE"])
    found = changes(sums)
    assert len(found) == 300
    assert 0.88 <= ((found["lower"] <= truth) & (truth <= found["upper"])).mean() <= 0.995
    # and without an effect few stand
    sums.loc[sums["variant"] != "plain", "scaled_error"] /= 1 + truth
    assert (changes(sums)["p_value"] < 0.05).mean() <= 0.1


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
    assert found["n_series"] == 3
    assert (found["baseline"], found["value"]) == (pytest.approx(1.0), pytest.approx(2.0))
    # what is left of dataset a has no geometric mean, whatever the series that is not compared says
    perfect = frame[~lost].copy()
    perfect.loc[(frame["variant"] == "v") & (frame["dataset"] == "a") & (frame["item"] == "y"), "scaled_error"] = 0.0
    assert changes(perfect).iloc[0]["left_out"] == ("a",)
    # as many windows, but others
    moved = frame.assign(window=frame["window"].where(~lost, 5))
    assert changes(moved).iloc[0]["n_series"] == 3
    extra = pd.concat([frame, pd.DataFrame([row("v", "c", "z", 50.0)])])
    assert changes(extra).iloc[0]["value"] == pytest.approx(changes(frame).iloc[0]["value"])


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
