"""Whether covariates are used: found where they are, and only there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import Tensor, nn

import tsfm_lens
from closeness import close_in_float32
from explain.test_known_answers import DEPTH, Rule, known_run, linear
from explain.test_known_answers import HORIZON as KNOWN_HORIZON
from explain.test_known_answers import STEPS as KNOWN_STEPS
from refusals import expect_error
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.explain.covariate_use import SHIFTS, WAYS, covariate_use
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.covariate_use import covariate_totals, read_use

STEPS = 160
HORIZON = 16


@pytest.fixture(scope="module")
def nano() -> Lens:
    return tsfm_lens.load("chronos2-nano")


def items(count: int, seed: int) -> list[dict[str, Any]]:
    """Targets that follow one known covariate, "cause", and not the other, "noise"."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        cause, noise = rng.normal(size=(2, STEPS + HORIZON))
        season = np.sin(2 * np.pi * np.arange(STEPS + HORIZON) / 12)
        target = 3 + season + 1.5 * cause
        past = {"cause": cause[:STEPS], "noise": noise[:STEPS]}
        future = {"cause": cause[STEPS:], "noise": noise[STEPS:]}
        made.append(
            {
                "target": target[:STEPS],
                "past_covariates": past,
                "future_covariates": future,
            }
        )
    return made


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_only_causes_are_worth_something(nano: Lens, seed: int) -> None:
    """A covariate that is a cause is worth something, and noise is not."""
    found = covariate_use(
        nano.run(as_series(items(12, seed)), HORIZON, holdout=True), shuffles=3
    )
    worth = found["worth_significant"].to_series().unstack("way")
    assert worth.loc["cause", "removed"]
    assert worth.loc["cause", "shuffled"]
    assert (found["worth_size"].sel(covariate="cause") > 0).all()
    noise = found.sel(covariate="noise")
    assert not ((noise["worth_size"] > 0) & noise["worth_significant"]).any()


def test_worth_is_told_by_way(nano: Lens) -> None:
    """What shuffling costs is told apart from the error without a covariate."""
    run = nano.run(as_series(items(4, 3)), HORIZON, holdout=True)
    found = covariate_use(run, shuffles=1)
    worth = found["worth_size"].to_series().unstack("way")
    for total in covariate_totals(found):
        row = worth.loc[total["covariate"]]
        assert (total["worth"], total["worth_removed"]) == (
            row["shuffled"],
            row["removed"],
        )
    # a covariate that costs when it is shuffled, and is better left out
    for name, by_way in (
        ("worth_size", (-0.1, -0.1, 0.1)),
        ("worth_significant", (False, False, True)),
    ):
        found[name][:] = np.array(by_way)
    assert covariate_totals(found)[0]["worth_significant"]
    assert not covariate_totals(found)[0]["worth_removed_significant"]
    for text in read_use(found):
        assert "shuffled: significant" in text
        assert "does not say it helps" in text
    found["worth_size"][:] = 0.1
    assert not any("does not say" in text for text in read_use(found))


@pytest.mark.parametrize("part", ["known", "past"])
def test_constant_covariates_leave_others_measured(nano: Lens, part: str) -> None:
    """A covariate that never changes in any series is named, the others measured."""
    entries = items(3, 8)
    for level, entry in enumerate(entries):
        entry["past_covariates"]["idle"] = np.full(STEPS, float(level))
        if part == "known":
            entry["future_covariates"]["idle"] = np.full(HORIZON, float(level))
    found = covariate_use(nano.run(as_series(entries), HORIZON), shuffles=1)
    assert found["covariate"].values.tolist() == ["cause", "noise"]
    assert np.isfinite(found["moved"]).all()
    assert "'idle' in any of 3 items" in found.attrs["left_out"]
    assert found.attrs["left_out"] in read_use(found)[-1]


def test_effects_compare_with_the_changed_series(nano: Lens) -> None:
    """Each measure of use is by the forecast of the changed series."""
    entries = items(2, 5)
    run = nano.run(as_series(entries), HORIZON)
    found = covariate_use(run, shuffles=1)
    plain = run.forecast.median[run.batch.is_target]
    unit = [np.abs(np.diff(entry["target"])).mean() for entry in entries]

    def without_noise(entry: dict[str, Any], way: str) -> dict[str, Any]:
        past, future = (
            dict(entry[f"{part}_covariates"]) for part in ("past", "future")
        )
        level = past.pop("noise").mean()
        del future["noise"]
        if way == "constant":
            past["noise"] = np.full(STEPS, level)
            future["noise"] = np.full(HORIZON, level)
        return entry | {"past_covariates": past, "future_covariates": future}

    for way in ("removed", "constant"):
        batch = as_series([without_noise(entry, way) for entry in entries])
        other = nano.forecast(batch, HORIZON).median[batch.is_target]
        moved = found["moved"].sel(covariate="noise", way=way)
        close_in_float32(moved, np.abs(other - plain).mean(-1) / unit, depth=200)
    assert "worth" not in found
    assert tuple(found["way"].values) == WAYS


TARGET = items(1, 6)[0]["target"]


@pytest.mark.parametrize(
    ("item", "shuffles", "message"),
    [
        ({"past_covariates": {"x": TARGET}}, 1, "equals the target"),
        ({"past_covariates": {"x": np.full(STEPS, 2.0)}}, 1, "2 throughout"),
        (
            {"past_covariates": {"sky": np.array(["blue"] * STEPS)}},
            1,
            "is 'blue' throughout",
        ),
        (None, 1, "no covariates"),
        ({"past_covariates": {"x": TARGET[::-1].copy()}}, 0, "shuffles"),
        (
            {"target": np.full(STEPS, 7.0), "past_covariates": {"x": TARGET}},
            1,
            "MASE is undefined",
        ),
        (
            {"target": np.resize(TARGET[:2], STEPS), "past_covariates": {"x": TARGET}},
            1,
            "repeats its season",
        ),
    ],
)
def test_what_says_nothing_is_refused(
    nano: Lens, item: dict[str, Any] | None, shuffles: int, message: str
) -> None:
    run = nano.run(
        (
            SeriesBatch((TARGET,))
            if item is None
            else as_series([{"target": TARGET, **item}], seasonality=2)
        ),
        4,
    )
    expect_error(message, covariate_use, run, shuffles=shuffles)


def test_uninformative_series_do_not_hide_others(nano: Lens) -> None:
    """What says nothing in one series is measured in the others."""
    entries = items(3, 7)
    for part in ("past_covariates", "future_covariates"):
        entries[1][part]["cause"] = np.full(len(entries[1][part]["cause"]), 2.0)
    found = covariate_use(nano.run(as_series(entries), HORIZON), shuffles=1)
    silent = np.isnan(found["moved"].sel(covariate="cause")).all("way")
    assert silent.values.tolist() == [False, True, False]
    assert not np.isnan(found["moved"].sel(covariate="noise")).any()
    (reported,) = [item for item in read_use(found) if item.startswith("cause")]
    assert "2 of 2 forecasts move" in reported
    assert reported.endswith(
        "No verdict on series-1/target, where it is constant, or the series repeats its"
        " season exactly."
    )


def of_any_item(rule: Rule) -> Rule:
    """The rule of three series, also without one of them."""

    def padded(context: Tensor, future: Tensor) -> Tensor:
        count = context.shape[1]
        full = [
            nn.functional.pad(item, (0, 0, 0, 3 - count)) for item in (context, future)
        ]
        return rule(*full)[:, :count]

    return padded


def test_linear_forecasters_have_known_responses() -> None:
    """Response and share of a linear forecaster are known."""
    rule, weights = linear()
    run = known_run(of_any_item(rule))
    found = covariate_use(run, shuffles=1).isel(series=0)
    unit = found["unit"].item()
    k = np.concatenate([run.batch.values[2], run.batch.futures[2]])
    close = {"depth": DEPTH, "magnitude": 10.0 / unit}
    for name, step, covariate_weights in (
        ("a", run.batch.values[1].std(), weights[:, 1, -2 * KNOWN_HORIZON :]),
        ("k", k.std(), weights[:, 2, KNOWN_STEPS:]),
    ):
        one = found.sel(covariate=name)
        slope = covariate_weights[:, :KNOWN_HORIZON].sum(-1).mean() * step / unit
        assert_close(one["step_size"], step, depth=10)
        close_in_float32(one["slope"], slope, **close)
        close_in_float32(one["response"], np.array(SHIFTS) * slope, **close)
    gap = weights[:, 2] * (k - run.batch.values[2].mean())
    way = np.sign(gap.sum(-1))
    parts = np.split(gap, [KNOWN_STEPS], axis=-1)
    shares = np.array([(part.sum(-1) * way).mean() for part in parts]) / unit
    close_in_float32(found["share"].sel(covariate="k"), shares, **close)
    moved = found["moved"].sel(way="constant")
    close_in_float32(found["share"].sum("part"), moved, **close)
    assert found["share"].sel(covariate="a", part="known future").item() == 0


def test_binary_covariates_are_held_at_each() -> None:
    """A covariate of two values is held at each of them."""
    rule, weights = linear(1)
    run = known_run(of_any_item(rule))
    values = list(run.batch.values)
    futures = list(run.batch.futures)
    values[2], futures[2] = (
        np.arange(steps) % 2 * 3.0 for steps in (KNOWN_STEPS, KNOWN_HORIZON)
    )
    batch = replace(run.batch, values=tuple(values), futures=tuple(futures))
    run = run.lens.run(batch, KNOWN_HORIZON)
    one = covariate_use(run, shuffles=1).sel(covariate="k").isel(series=0)
    middle = one.sel(shift=[-1, 0, 1])
    low, high = (
        (weights[:, 2, KNOWN_STEPS:] * (level - futures[2])).sum(-1).mean()
        / one["unit"].item()
        for level in (0, 3)
    )
    close = {"depth": DEPTH, "magnitude": 10.0}
    close_in_float32(middle["response"], np.array([low, 0, high]), **close)
    assert middle["value"].values.tolist() == [0, 1.5, 3]
    assert np.isnan(one["response"].sel(shift=[-2, 2])).all()
    close_in_float32(one["slope"], high - low, **close)


def test_words_keep_numbers_under_a_change() -> None:
    """Chronos-2 numbers words by the context; a constant past holds one word only."""
    days = pd.date_range("2025-01-01", periods=120, freq="D")
    rng = np.random.default_rng(0)
    text = np.where(rng.random(120) < 0.3, "yes", "no")
    sales = 20 + 8 * (text == "yes") + rng.normal(size=120)
    frame = pd.DataFrame({"day": days, "sales": sales, "promo": text})
    lens = tsfm_lens.load("chronos2-nano")
    run = lens.run(frame[:106], 14, future=frame[106:].drop(columns="sales"))
    found = covariate_use(run)
    same = lens.run(lens.adapter.numbered(run.batch), 14)
    rest = covariate_use(same)
    # of numbers the mean is constant, of words the most frequent one
    for way in ("removed", "shuffled"):
        close_in_float32(found["moved"].sel(way=way), rest["moved"].sel(way=way))
    assert np.isfinite(found["share"]).all()
    assert found["slope"].item() > 0
