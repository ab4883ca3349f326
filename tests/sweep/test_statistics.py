"""Sums, changes and their intervals against loops, closed forms and simulated studies
with a known effect.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from tsfm_lens.core.stats import lead_shares
from tsfm_lens.sweep.planner.config import Statistics
from tsfm_lens.sweep.results.families import SweepResults
from tsfm_lens.sweep.results.gathering import (
    better_orders,
    counted_once,
    curves,
    tabulate_heads,
)
from tsfm_lens.sweep.statistics.changes import (
    changes,
    dataset_changes,
    difference,
    leaders,
    resilience,
)
from tsfm_lens.sweep.statistics.scores import DISTANCES, METRICS, SUMS, per_series
from tsfm_lens.testing import assert_close

STEPS = 24.0


def row(
    variant: str, dataset: str, item: str, error: float, **more: Any
) -> dict[str, Any]:
    """A stored row whose mean scaled error is ``error``; all metrics follow from it."""
    sums = dict.fromkeys(SUMS, error * STEPS) | {
        "n_invalid": 0.0,
        "abs_label": 2 * STEPS,
    }
    sums |= {
        name: STEPS for name in SUMS if name.startswith("n") and name != "n_invalid"
    }
    key = {
        "model": "m",
        "variant": variant,
        "dataset": dataset,
        "item": item,
        "window": 0,
        "variate": 0,
    }
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
    rng: np.random.Generator,
    datasets: int,
    series: int,
    between: float,
    within: float,
    variants: int = 1,
) -> pd.DataFrame:
    """Studies whose true change is 0.1: datasets differ by ``between``, series by
    ``within``, scales by a lot.
    """
    plain = np.exp(
        rng.normal(size=(datasets, 1)) + 0.3 * rng.normal(size=(datasets, series))
    )
    where = [(f"d{d:02d}", f"s{k}") for d in range(datasets) for k in range(series)]
    key = {
        "model": "m",
        "window": 0,
        "variate": 0,
        "n": STEPS,
        "n_invalid": 0.0,
        "n_scaled": STEPS,
    }
    parts = []
    for number in range(variants + 1):
        shift = (
            0.1
            + between * rng.normal(size=(datasets, 1))
            + within * rng.normal(size=(datasets, series))
        )
        errors, variant = (
            (plain * (1 + shift), f"v{number}") if number else (plain, "plain")
        )
        table = pd.DataFrame(where, columns=["dataset", "item"])
        parts.append(table.assign(variant=variant, scaled_error=errors.ravel(), **key))
    return pd.concat(parts, ignore_index=True)


def test_series_sums_add_windows_and_variates() -> None:
    """The sums of a series are those of its windows and variates."""
    rng = np.random.default_rng(0)
    names = [*SUMS, *DISTANCES]
    positions = pd.MultiIndex.from_product(
        [["plain", "v"], list("ba"), list("xy"), range(2), range(2)],
        names=["variant", "dataset", "item", "window", "variate"],
    ).to_frame(index=False)
    numbers = pd.DataFrame(rng.random((len(positions), len(names))), columns=names)
    frame = pd.concat([positions, numbers], axis=1).assign(cell="c", model="m")
    frame.loc[3, "pearson_distance"] = np.nan
    frame = frame.sample(frac=1.0, random_state=0)
    keys = ["variant", "dataset", "item"]
    groups = frame.groupby(keys)[names]
    counts = groups.count()[list(DISTANCES)].add_prefix("n_")
    expected = groups.sum().join(counts).assign(n_rows=4)
    for given in (frame, frame.astype(dict.fromkeys(keys, "category"))):
        found = per_series(given).astype(dict.fromkeys(keys, str)).set_index(keys)
        found = found.sort_index()[list(expected)]
        pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def test_a_change_by_hand() -> None:
    frame = study(
        {
            "plain": {"a": [1.0, 3.0], "b": [5.0, 5.0]},
            "v": {"a": [2.0, 3.0], "b": [5.0, 4.0]},
        }
    )
    found = changes(frame).iloc[0]
    assert found["baseline"] == pytest.approx(np.sqrt(2.0 * 5.0))
    assert found["value"] == pytest.approx(np.sqrt(2.5 * 4.5))
    assert found["change"] == pytest.approx(np.sqrt(2.5 * 4.5 / 10.0) - 1)
    assert (found["n_datasets"], found["n_series"], found["left_out"]) == (2, 4, ())
    logs = np.log([2.5 / 2.0, 4.5 / 5.0])
    sizes = np.expm1(
        [
            logs.mean(),
            *scipy.stats.t.interval(0.95, 1, logs.mean(), scipy.stats.sem(logs)),
        ]
    )
    assert_close(found[["change", "lower", "upper"]].astype(float), sizes, depth=100)
    assert found[["median", "least", "most"]].tolist() == pytest.approx(
        [sizes[0], -0.1, 0.25]
    )
    assert found[["unit", "units", "p_value"]].tolist() == ["datasets", 2, 1.0]
    for metric in METRICS:
        assert np.isfinite(changes(frame, metric=metric).iloc[0]["change"])


@pytest.mark.parametrize(
    ("datasets", "series", "between", "within"),
    [(6, 6, 0.05, 0.1), (12, 3, 0.0, 0.2), (15, 1, 0.1, 0.1)],
)
def test_intervals_cover_a_known_effect(
    datasets: int, series: int, between: float, within: float
) -> None:
    frame = simulated(
        np.random.default_rng(datasets), datasets, series, between, within, 300
    )
    # E log(1 + shift) of a dataset's pooled ratio, to second order
    truth = np.exp(np.log(1.1) - (between**2 + within**2 / series) / 2 / 1.1**2) - 1
    sums = per_series(frame, ["MASE"])
    found = changes(sums)
    assert len(found) == 300
    assert (
        0.88 <= ((found["lower"] <= truth) & (truth <= found["upper"])).mean() <= 0.995
    )
    # and without an effect few are significant
    sums.loc[sums["variant"] != "plain", "scaled_error"] /= 1 + truth
    assert (changes(sums)["p_value"] < 0.05).mean() <= 0.1


def test_one_dataset_and_one_series() -> None:
    frame = simulated(np.random.default_rng(7), 1, 20, 0.0, 0.2)
    one = changes(frame).iloc[0]
    assert one[["unit", "units"]].tolist() == ["series", 20]
    # the jackknife of the pooled ratio, and the signs of each series' own
    errors = frame.pivot(index="item", columns="variant", values="scaled_error")
    total = errors.sum()
    pooled, logs = (
        np.log(item["v1"] / item["plain"]) for item in (total, total - errors)
    )
    spread = np.sqrt(19 / 20 * np.square(logs - logs.mean()).sum())
    distance = scipy.stats.t.ppf(0.975, 19) * spread
    interval = one[["lower", "upper"]].astype(float)
    assert_close(
        interval, np.expm1([pooled - distance, pooled + distance]), depth=10000
    )
    risen = int((errors["v1"] > errors["plain"]).sum())
    assert one["p_value"] == pytest.approx(scipy.stats.binomtest(risen, 20).pvalue)
    alone = changes(frame[frame["item"] == "s0"]).iloc[0]
    assert np.isfinite(alone["change"])
    assert alone[["lower", "upper"]].isna().all()
    assert alone["p_value"] == 1.0


def test_unchanged_series_count_for_neither_side() -> None:
    """Series that do not change count for neither side."""
    plain = {f"d{number}": [1.0 + number] for number in range(12)}
    half = {
        name: [errors[0] * (2.0 if int(name[1:]) < 6 else 1.0)]
        for name, errors in plain.items()
    }
    found = changes(study({"plain": plain, "half": half, "same": plain})).set_index(
        "variant"
    )
    assert found["p_value"].to_dict() == {"half": 1.0, "same": 1.0}
    assert found.loc["half", "median"] == pytest.approx(2**0.5 - 1)


def test_datasets_without_metric_are_named() -> None:
    """Datasets without a metric are left out of both sides and named."""
    plain = {"a": [1.0, 1.0], "b": [4.0, 4.0], "c": [9.0, 9.0], "d": [2.0, 2.0]}
    perfect = plain | {"c": [0.0, 0.0]}
    frame = study({"plain": plain, "broken": plain, "whole": plain, "perfect": perfect})
    broken = frame.eval("variant == 'broken' and dataset == 'b' and item == 's0'")
    frame.loc[broken, "n_invalid"] = 1.0
    found = changes(frame).set_index("variant")
    left_out = {"broken": ("b",), "perfect": ("c",), "whole": ()}
    assert found["left_out"].to_dict() == left_out
    assert found["n_datasets"].to_dict() == {"broken": 3, "perfect": 3, "whole": 4}
    both = found.loc["broken", ["baseline", "value"]].tolist()
    assert both == pytest.approx([18 ** (1 / 3)] * 2)
    counts = resilience(frame).set_index("variant")[["n_datasets", "n_left_out"]]
    assert counts.loc["broken"].tolist() == [3, 1]
    nothing = frame.assign(n_invalid=1.0)
    none = changes(nothing).iloc[0]
    assert np.isnan(none["change"])
    assert none["left_out"] == ("a", "b", "c", "d")
    assert dataset_changes(nothing)["change"].isna().all()


def test_series_are_compared_on_same_windows() -> None:
    rows = [
        row(v, d, i, 1.0 if v == "plain" else 2.0, window=w)
        for v, d, i, w in product(("plain", "v"), "ab", "xy", range(2))
    ]
    frame = pd.DataFrame(rows)
    lost = frame.eval("variant == 'v' and dataset == 'a' and item == 'x' and window")
    frame.loc[frame.eval("dataset == 'a' and item == 'x'"), "scaled_error"] *= 100
    # gone, or as many windows, but others
    for given in (frame[~lost], frame.assign(window=frame["window"].where(~lost, 5))):
        found = changes(given).iloc[0]
        assert found["n_series"] == 3
        assert found[["baseline", "value"]].tolist() == pytest.approx([1.0, 2.0])
    # what is left of dataset a has no geometric mean, whatever the series that is not
    # compared says
    perfect = frame[~lost].copy()
    exact = perfect.eval("variant == 'v' and dataset == 'a' and item == 'y'")
    perfect.loc[exact, "scaled_error"] = 0.0
    assert changes(perfect).iloc[0]["left_out"] == ("a",)
    extra = pd.concat([frame, pd.DataFrame([row("v", "c", "z", 50.0)])])
    pd.testing.assert_series_equal(*(changes(e)["value"] for e in (extra, frame)))


def test_distances_have_interval_but_no_test() -> None:
    """Distances have an interval and no significance test."""
    same = {"a": [1.0] * 3, "b": [1.0] * 3}
    frame = study({"plain": same, "v": same})
    changed = frame["variant"] == "v"
    frame.loc[changed, "spearman_distance"] = [0.1, 0.2, 0.3, 0.4, np.nan, 0.8]
    found = changes(frame, metric="spearman_distance").iloc[0]
    assert found["value"] == pytest.approx((0.2 + 0.6) / 2)
    assert 0.0 <= found["lower"] < found["value"] < found["upper"] <= 2.0
    assert found["n_series"] == 5
    assert found[["baseline", "change", "p_value"]].isna().all()


def test_resilient_and_improved_datasets_by_hand() -> None:
    factors = {"a": 0.9, "b": 0.999, "c": 1.0, "d": 1.049, "e": 1.05, "f": 2.0}
    plain = {name: [4.0] for name in factors}
    ablated = {name: [4.0 * factor] for name, factor in factors.items()}
    frame = study({"plain": plain, "v": ablated | {"e": [4.2]}})
    counts = ["n_resilient", "n_improved", "n_datasets", "n_left_out"]
    assert resilience(frame)[counts].iloc[0].tolist() == [4, 2, 6, 0]
    assert resilience(frame, tolerance=0.06).iloc[0]["n_resilient"] == 5
    table = dataset_changes(frame).set_index("dataset")["change"] + 1
    assert table.to_dict() == pytest.approx(factors)


def test_informed_against_random_choices() -> None:
    rng = np.random.default_rng(9)
    plain = rng.random((30, 3)) + 0.5
    names = ["informed", "r0", "r1", "r2"]
    factors = np.array([1.1, 1.2, 1.0, 1.5])
    errors = plain * np.exp(
        np.log(factors)[:, None, None] + 0.01 * rng.normal(size=(4, 30, 3))
    )

    def compared(of: dict[str, np.ndarray], *competitors: str) -> pd.Series:
        rows = {
            variant: {f"d{d}": list(value) for d, value in enumerate(values)}
            for variant, values in of.items()
        }
        table = changes(study(rows)).set_index("variant")
        return difference(table, "informed", list(competitors))

    every = {"plain": plain, **dict(zip(names, errors, strict=True))}
    found = compared(every, *names[1:])
    logs = np.log(errors.mean(-1))
    effects = logs[0] - logs[1:].mean(0)
    distance = scipy.stats.sem(effects) * scipy.stats.t.ppf(0.975, 29)
    want = np.expm1(effects.mean() + distance * np.array([0, -1, 1]))
    sizes = found[["difference", "lower", "upper"]].astype(float)
    assert_close(sizes, want, depth=10000)
    assert found["p_value"] == pytest.approx(2 * 0.5**30)
    assert found[["n_worse", "n_others"]].tolist() == [2, 3]
    # measured on other series, r2 is no comparison
    fewer = compared({**every, "r2": errors[3, :-1]}, *names[1:])
    assert fewer[["n_worse", "n_others"]].tolist() == [1, 2]
    same = {"plain": plain, **dict.fromkeys(names, errors[2])}
    nothing = compared(same, "r0", "r1")
    assert_close(nothing["difference"], 0.0, depth=100, magnitude=1.0)
    assert nothing["p_value"] == 1.0


@pytest.mark.parametrize("replay", [changes, resilience])
def test_row_order_changes_no_result(
    replay: Callable[[pd.DataFrame], Any],
) -> None:
    """Results depend on the rows and not on their order."""
    frame = simulated(np.random.default_rng(10), 4, 3, 0.1, 0.1, 2)
    shuffled = frame.sample(frac=1.0, random_state=1)
    one = pd.DataFrame(replay(frame))
    again = pd.DataFrame(replay(shuffled))
    pd.testing.assert_frame_equal(one, again)
    pd.testing.assert_frame_equal(
        one, pd.DataFrame(replay(per_series(shuffled, ["MASE"])))
    )
    # stores give texts as categories, in whatever order they came
    coded = shuffled.astype(
        dict.fromkeys(["model", "variant", "dataset", "item"], "category")
    )
    for key in ("variant", "dataset", "item"):
        coded[key] = coded[key].cat.reorder_categories(
            list(coded[key].cat.categories)[::-1]
        )
    pd.testing.assert_frame_equal(one, pd.DataFrame(replay(coded)))


@pytest.mark.parametrize("datasets", [5, 1])
def test_names_and_copies_change_nothing(
    datasets: int,
) -> None:
    """Names and copies of series and datasets change nothing."""
    frame = simulated(np.random.default_rng(11), datasets, 7, 0.1, 0.1, 2)
    naive = frame[frame["variant"] == "plain"].assign(variant="seasonal_naive")
    sums = per_series(pd.concat([frame, naive]), ["MASE"])
    first = sums[sums["dataset"] == "d00"]
    renamed = sums.replace(
        {"dataset": {f"d{k:02d}": f"z{9 - k}" for k in range(5)}}
    ).replace({"item": {f"s{k}": f"z{9 - k}" for k in range(7)}})
    once = {
        "other names": renamed,
        "all series twice": pd.concat([sums, sums.assign(item="copy" + sums["item"])]),
        "a dataset twice": pd.concat([sums, first.assign(dataset="copy")]),
    }
    want = changes(sums)
    same = ["change", "lower", "upper", "median", "least", "most", "p_value"]
    same += ["units", "n_datasets", "n_series"]
    for what, given in once.items():
        retained, notes = counted_once(given)
        assert_close(changes(retained)[same], want[same], depth=1000)
        twice = ["d00 holds the same series as copy; they count once."]
        assert notes == (twice if what == "a dataset twice" else [])
    # one more copy of a series weighs more in its dataset's metric, and is no other
    # witness
    retained, _ = counted_once(
        pd.concat([sums, first[first["item"] == "s0"].assign(item="copy")])
    )
    assert changes(retained)["units"].equals(want["units"])


def test_repeated_terms_add_no_evidence() -> None:
    """Three horizons on the same series, with the same errors, leave value, interval,
    p-value and units as they are.
    """
    rng = np.random.default_rng(4)
    numbers = ["value", "baseline", "change", "lower", "upper", "median"]
    numbers += ["least", "most", "p_value", "units"]
    for sets, unit in ((5, "sources"), (1, "series")):
        errors = rng.random((2, sets, 6)) + 1
        alone, both = (
            changes(
                study(
                    {
                        variant: {
                            f"set{k}/H/{term}": list(item)
                            for term in terms
                            for k, item in enumerate(of)
                        }
                        for variant, of in zip(("plain", "v"), errors, strict=True)
                    }
                )
            ).iloc[0]
            for terms in (("short",), ("short", "long"))
        )
        ours, known = (item[numbers].astype(float) for item in (both, alone))
        assert_close(ours, known, depth=10000)
        assert both["unit"] == unit
        assert both["n_datasets"] == 2 * alone["n_datasets"]


def test_leader_differs_from_whole_family() -> None:
    """One of a family leads only if it differs from every other."""
    rng = np.random.default_rng(2)
    plain = rng.random((12, 4)) + 0.5
    harms = {"plain": 0.0, "a": 0.05, "b": 0.05, "c": 0.5, "d": 0.06}
    errors = {
        name: {
            f"d{d}": list(plain[d] * (1 + harm + 0.02 * rng.normal(size=4)))
            for d in range(12)
        }
        for name, harm in harms.items()
    }
    frame = study(errors)
    table = changes(frame).set_index("variant")
    found = leaders(table)
    assert found["leads"].to_dict() == {"a": "", "b": "", "c": "highest", "d": ""}
    assert found["lead_share"].to_dict() == {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.0}
    rest = table.drop(index="c")
    close = leaders(rest)
    assert set(close["leads"]) == {""}
    shares = lead_shares(np.stack(rest["by_unit"]))
    assert_close(close["lead_share"], shares, depth=1)
    # what is as good as another up to rounding leads neither way
    copy = table.loc["c"].copy()
    copy["by_unit"] = copy["by_unit"] + 1e-14
    both = pd.concat([table, copy.to_frame("copy").T])
    assert set(leaders(both)["leads"]) == {""}
    # measured on other series, it can be compared with none
    fewer = frame[~frame.eval("variant == 'a' and dataset == 'd3'")]
    assert set(leaders(changes(fewer))["leads"]) == {""}


LOW = "stable_rank:low"
HIGH = "stable_rank:high"
# log rise of the error by layer, order and heads ablated: in layer 0 one order is far
# better, in layer 1 none is
RISES = {
    (0, LOW, 1): 0.0,
    (0, HIGH, 1): 0.4,
    (0, "random:0", 1): -0.3,
    (1, LOW, 1): 0.001,
    (1, HIGH, 1): 0.0,
    (0, LOW, 2): 1.0,
    (1, LOW, 2): 0.1,
}


def planted() -> SweepResults:
    rng = np.random.default_rng(0)
    plain = {f"d{number:02d}": list(rng.random(3) + 0.5) for number in range(14)}
    errors = {"plain": plain, "seasonal_naive": plain}
    lines = []
    for (layer, order, ablated), rise in RISES.items():
        name = f"{layer}-{order}-{ablated}"
        errors[name] = {
            d: [e * np.exp(rise + 0.02 * rng.normal()) for e in entry]
            for d, entry in plain.items()
        }
        # all heads of a layer are one variant in every order
        for item in (LOW, HIGH) if ablated == 2 else (order,):
            fields = {
                "model": "m",
                "family": "head_counts",
                "label": name,
                "variant": name,
                "layer": layer,
            }
            lines.append(fields | {"order": item, "ablated": ablated, "of": 2})
    found = [
        {
            "model": "m",
            "layer": layer,
            "order": order,
            "of": 2,
            "kept": 1,
            "change": float(np.expm1(rise)),
        }
        | {"evaluations": 2, "total": 2}
        for (layer, order, ablated), rise in RISES.items()
        if ablated == 1
    ]
    return SweepResults(
        per_series(study(errors)),
        pd.DataFrame(lines).assign(recipe=""),
        {"m": 2},
        Statistics(),
        better_orders(found),
    )


def test_only_planted_orders_are_found() -> None:
    """Orders and layers are named where they were planted and nowhere else."""
    results = planted()
    retained = tabulate_heads(results, 0.05, "scan")
    assert retained is not None
    best = retained[retained["better"]].set_index("layer")
    # chance does not win, though it costs least
    assert best["order"].to_dict() == {0: LOW, 1: HIGH}
    assert best["order_significant"].to_dict() == {0: True, 1: False}
    assert best["leads"].to_dict() == {0: "highest", 1: "lowest"}
    drawn = curves(results, retained, 0.05)
    assert drawn is not None
    assert drawn.groupby("layer")["within"].agg(set).to_dict() == {0: {1}, 1: {1}}
    assert set(drawn.loc[drawn["better"], "order"][drawn["layer"] == 0]) == {LOW}
    assert drawn.loc[drawn["layer"] == 0, "order_significant"].all()
    before = curves(results, None, 0.05)
    assert before is not None
    assert not before["better"].any()
    assert set(before["within"]) == {-1}
