"""What if the input were another, and why a forecast changed: linear forecasters with a
known answer, refusals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import tsfm_lens
from explain.test_known_answers import (
    DEPTH,
    HORIZON,
    STEPS,
    Known,
    Wired,
    known_run,
    linear,
)
from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens import explain
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models import Lens, Run
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.scenarios import read_change, read_what_if

CLOSE = {"depth": DEPTH, "magnitude": 10.0, "dtype": torch.float32}


def all_values(batch: SeriesBatch) -> np.ndarray:
    """(series, time + horizon), zero where nothing is known."""
    return np.concatenate(
        [np.stack(batch.values), np.nan_to_num(batch.known_future(HORIZON))], 1
    )


def middle(ds: Any, name: str) -> np.ndarray:
    return ds[name].sel(quantile=0.5).values


def test_changes_of_linear_forecasters_add_up() -> None:
    rule, weights = linear()
    run = known_run(rule)
    inputs = all_values(run.batch)
    found = explain.what_if(run, {"k": "*1.5"}, target="target", routes=False)
    moved = (weights[:, 2, STEPS:] * 0.5 * inputs[2, STEPS:]).sum(-1)
    change = middle(found, "changed_forecast") - middle(found, "forecast")
    for effect in (middle(found, "effect")[0], change):
        assert_close(effect, moved, **CLOSE)
    assert_allclose(found["changed_future"][2], 1.5 * inputs[2, STEPS:])
    both = explain.what_if(
        run, k=np.arange(4.0), a=2.0, start=-6, stop=-2, routes=False
    )
    at = slice(STEPS - 6, STEPS - 2)
    expected = [
        (weights[:, row, at] * (new - inputs[row, at])).sum(-1)
        for row, new in ((2, np.arange(4.0)), (1, 2.0))
    ]
    assert both["change"].values.tolist() == ["k", "a"]
    assert_close(middle(both, "effect"), np.stack(expected), **CLOSE)
    assert (both["changed_context"].values[1, at] == 2.0).all()
    # the run keeps its own input
    assert_array_equal(all_values(run.batch), inputs)


def test_past_gaps_stay_under_a_change(bolt: Lens) -> None:
    """Gaps of the past stay gaps under a change."""
    values = 10 + np.sin(np.arange(128) / 4)
    values[[100, 110]] = np.nan
    found = explain.what_if(
        bolt.run(as_series(values), 8),
        {"series-0": "+1"},
        start=-32,
        stop=0,
        routes=False,
    )
    expected = values + np.r_[np.zeros(96), np.ones(32)]
    assert_array_equal(found["changed_context"].values[0], expected)


def test_dates_and_categories() -> None:
    frame = {"target": np.arange(30.0) % 7, "k": ["dry", "wet"] * 15}
    table = pd.DataFrame(
        {**frame, "time": pd.date_range("2026-01-01", periods=30, freq="D")}
    )
    table.loc[24:, "target"] = np.nan
    series = as_series(
        table[:24],
        targets=["target"],
        known=["k"],
        time_column="time",
        future=table[24:].drop(columns="target"),
    )
    run = tsfm_lens.load("chronos2-nano").run(series, HORIZON)
    found = explain.what_if(
        run, k="=wet", start="2026-01-26", stop="2026-01-28", routes=False
    )
    assert (found["start"].item(), found["stop"].item()) == (1, 3)
    for where, message in (
        ("2016-01-26", "outside of .*shown.*2026-01-01"),
        ("2036-01-26", "outside of"),
    ):
        expect_error(message, explain.what_if, run, k="=wet", start=where, routes=False)
    expect_error(r"'sunny'.*dry", explain.what_if, run, k="sunny")


LARGE = {"depth": 100, "magnitude": 200.0, "dtype": torch.float32}
WORDS = np.resize(["dry", "wet", "wet", "dry", "dry"], 40 + HORIZON)


def of_words(lens: Lens, ahead: list[str], before: tuple[str, ...] = ()) -> Run:
    """A run whose target follows a known covariate of words, from ``before`` on."""
    text = np.r_[before, WORDS[:40]].astype(str)
    values = 100 + 50 * (text == "wet") + np.sin(np.arange(len(text))[::-1])
    item = {
        "target": values,
        "past_covariates": {"k": text},
        "future_covariates": {"k": ahead},
    }
    return lens.run(as_series([item]), HORIZON)


@pytest.mark.parametrize("name", ["chronos-2", "timestral"])
def test_words_act_as_in_edited_tables(name: str) -> None:
    """A change to a word gives the forecast of the edited table."""
    lens = lens_of(name)
    run = of_words(lens, WORDS[40:].tolist())
    for word in ("wet", "dry"):
        found = explain.what_if(run, k=f"={word}", routes=False)
        edited = of_words(lens, [word] * HORIZON).forecast.quantiles[0]
        assert_close(
            found["changed_forecast"].transpose("quantile", "step"), edited, **LARGE
        )
        assert set(found["changed_future"].values[1]) == {float(word == "wet")}
    moved = explain.input_attribution(run, reference="mean", parts=2)
    # masked by the most frequent word, as a table that says nothing else
    dry = of_words(lens, ["dry"] * HORIZON).forecast.quantiles[0]
    (future,) = (
        part for part in explain.segments(run, parts=2) if part.row and part.start == 0
    )
    only = explain.forecasts(run, [future], [[False]])
    assert_close(only[0], dry, **LARGE)
    assert_close(moved["remainder"], 0.0, **LARGE)


def test_earlier_words_use_the_later_codes() -> None:
    """Words of an earlier run are read by the codes of the later one."""
    lens = tsfm_lens.load("chronos2-nano")
    before = of_words(lens, ["wet"] * HORIZON, ("calm", "calm"))
    after = of_words(lens, ["dry"] * HORIZON)
    found = explain.explain_change(before, after, shift=0)
    future = found["effect"].sel(part="k, future").transpose("quantile", "step")
    expected = (
        after.forecast.quantiles[0]
        - of_words(lens, ["wet"] * HORIZON).forecast.quantiles[0]
    )
    assert_close(future, expected, **LARGE)
    expect_error(
        "was 'calm' in the earlier run and is only dry, wet",
        explain.explain_change,
        of_words(lens, ["calm"] * HORIZON, ("calm", "calm")),
        after,
        shift=0,
    )


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        ({}, {}, "no change"),
        ({"k": "plus 5"}, {}, r"'plus 5' is no change; expected such as '\+5'"),
        ({"k": "/0"}, {}, "not finite"),
        ({"k": [1.0, 2.0]}, {}, "one for each of 6 steps"),
        ({"a": "+1"}, {}, "start=-24, stop=0"),
        ({"a": "+1"}, {"stop": -3}, "start=-24, stop=-3"),
        ({"k": "+1"}, {"stop": 0}, "/k' ends at 0; give the first step"),
        ({"a": "+1"}, {"start": -3, "stop": 2}, "between -24 and 0"),
        ({"a": "+1"}, {"start": "2026-01-01"}, "has no dates"),
        ({"a": "+1"}, {"start": "yesterday's"}, "no step and no date"),
        ({"b": "+1"}, {}, "'b'"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    changes: dict[str, Any], where: dict[str, Any], message: str
) -> None:
    run = known_run(linear()[0])
    expect_error(message, explain.what_if, run, changes, routes=False, **where)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (None, None, (0, HORIZON)),
        (None, 2, (0, 2)),
        (3, None, (3, HORIZON)),
        (-4, None, (-4, HORIZON)),
        (-4, 2, (-4, 2)),
        (1, 3, (1, 3)),
    ],
)
def test_changes_start_at_the_forecast(
    start: Any, stop: Any, expected: tuple[int, int]
) -> None:
    """A change starts at the forecast unless told otherwise."""
    run = known_run(linear()[0])
    found = explain.what_if(
        run, k="=25", start=start, stop=stop, target="target", routes=False
    )
    assert (found["start"].item(), found["stop"].item()) == expected
    changed = (
        np.append(found["changed_context"].values[2], found["changed_future"].values[2])
        == 25
    )
    assert np.flatnonzero(changed).tolist() == [
        STEPS + step for step in range(*expected)
    ]


def rounded(magnitude: float) -> dict[str, Any]:
    return {"depth": 600, "magnitude": magnitude, "dtype": torch.float32}


PATHS = 3
DRAWING = ["chronos", "moirai-1.1", "toto-1"]


def waves(steps: int = 40, *, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return scale * (
        10
        + 4 * np.sin(np.arange(steps) / 3)
        + np.random.default_rng(seed).normal(0, 0.5, steps)
    )


@pytest.mark.parametrize("name", [*DRAWING, "chronos-bolt", "toto-2"])
@pytest.mark.parametrize(("scale", "where"), [(1.0, (-8, 0)), (2.0**10, (-30, -21))])
def test_both_forecasts_match_the_library_pipeline(
    name: str, scale: float, where: tuple[int, int]
) -> None:
    lens = lens_of(name)
    values = waves(scale=scale)
    if name in DRAWING:
        options = {"num_samples": PATHS}
    else:
        options = {}
    run = lens.run(as_series(values), 4, seed=5, **options)
    start, stop = where
    found = explain.what_if(
        run, {"series-0": "*1.5"}, start=start, stop=stop, routes=False
    )
    edited = values.copy()
    edited[len(values) + start : len(values) + stop] *= 1.5
    expected = lens.forecast(as_series(edited), 4, seed=5, **options)
    close = rounded(40 * scale)
    for variable, native in (
        ("forecast", run.forecast),
        ("changed_forecast", expected),
    ):
        ours = found[variable].transpose("quantile", "step")
        assert_close(ours, native.quantiles[0], **close)
    change = found["changed_forecast"] - found["forecast"]
    assert_close(found["effect"].sum("change"), change, **close)
    reported = " ".join(read_what_if(found))
    assert (f"median of {PATHS} sample paths" in reported) == (name in DRAWING)


@pytest.mark.parametrize("name", ["chronos-nano", *DRAWING])
def test_new_values_replace_the_forecast_median(name: str) -> None:
    """New values stand in the place of the median that was forecast."""
    lens = tsfm_lens.load(name) if "nano" in name else lens_of(name)
    values = waves(41)
    days = pd.date_range("2026-01-01", periods=41, freq="D")
    options = {"num_samples": PATHS}
    before, after = (
        lens.run(pd.Series(values[:stop], days[:stop]), 4, **options)
        for stop in (40, 41)
    )
    found = explain.explain_change(before, after)
    earlier = before.forecast.median[0, 1:]
    later = after.forecast.median[0, :3]
    hidden = np.append(values[:40], before.forecast.median[0, 0])
    old = lens.forecast(pd.Series(hidden, days), 4, **options).median[0, :3]
    for ours, expected in (
        (middle(found, "before"), earlier),
        (middle(found, "after"), later),
        (middle(found, "effect")[1], later - old),
        (middle(found, "effect")[0], old - earlier),
    ):
        assert_close(ours, expected, **rounded(40.0))
    assert found.attrs["redraw"] > 0
    assert f"median of {PATHS} sample paths" in " ".join(read_change(found))


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_routes_name_their_statistic(name: str) -> None:
    run = lens_of(name).run(as_series(waves()), 3)
    found = explain.what_if(run, {"series-0": "+5"}, start=-6)
    reported = " ".join(read_what_if(found))
    assert ("In one pass, the expected value moves" in reported) == run.tokens_read
    assert found["through"].attrs["statistic"] == run.statistic
    size = abs(found["through"]).mean("step").sum("change")
    assert str(size["component"].values[np.argmax(size.values)]) in reported
    if not run.tokens_read:
        # of one change what is measured in one pass is the forecast's own
        effect = middle(found, "effect")[0]
        assert_close(found["through_total"][0], effect, **rounded(40.0))


def pair(shift: int, seed: int = 1) -> tuple[Run, Run, np.ndarray]:
    """Two runs of a linear forecaster, the later one with new, revised and newly
    announced values; and weights.
    """
    rule, weights = linear()
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(3, STEPS + shift + HORIZON))
    lens = Lens(Wired(Known(rule)), "known")

    def batch(values: np.ndarray, start: int) -> SeriesBatch:
        now = start + STEPS
        past = {"a": values[1, start:now], "k": values[2, start:now]}
        item = {"target": values[0, start:now], "past_covariates": past}
        item["future_covariates"] = {"k": values[2, now : now + HORIZON]}
        first = pd.Timestamp("2026-01-01") + pd.Timedelta(hours=start)
        return replace(as_series([item], freq="h", seasonality=6), starts=(first,) * 3)

    before = lens.run(batch(values, 0), HORIZON)
    values = values.copy()
    values[0, STEPS - 5] += 1
    values[2, STEPS + shift + 1] -= 2
    return before, lens.run(batch(values, shift), HORIZON), weights


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_linear_forecasts_change_by_new_values(shift: int) -> None:
    before, after, weights = pair(shift)
    found = explain.explain_change(before, after)
    shared = HORIZON - shift
    effect = middle(found, "effect")
    names = [str(name) for name in found["part"].values]
    change = after.forecast.median[0, :shared] - before.forecast.median[0, shift:]
    assert found.attrs["shift"] == shift
    assert_close(effect.sum(0), change, **CLOSE)
    assert_close(middle(found, "after") - middle(found, "before"), change, **CLOSE)
    revised = weights[:shared, 0, STEPS - 5 - shift]
    assert_close(effect[names.index("target, revised")], revised, **CLOSE)
    # in steps of the later run; the last announced steps were unknown before
    announced = -2 * weights[:shared, 2, STEPS + 1]
    assert_close(effect[names.index("k, future")], announced, **CLOSE)
    revision = dict(zip(names, found["revision"].values, strict=True))
    assert_allclose(revision["target, revised"], 1)
    assert_allclose(revision["k, future"], -2)
    assert np.isnan(revision["origin"])
    # with a later start, new values move more, and others are not named
    if shift == 0:
        assert "revised future k (2 lower on average)" in read_change(found)[0]
    fresh = [name for name in names if ", new" in name]
    assert len(fresh) == (2 * shift if shift < 2 else shift + 1)
    for name in fresh if shift == 1 else []:
        row = 1
        if name.startswith("target"):
            row = 0
        if row == 0:
            known = before.forecast.median[0, 0]
        else:
            known = before.batch.values[1][-1]
        news = weights[:shared, row, STEPS - 1] * (after.batch.values[row][-1] - known)
        assert_close(effect[names.index(name)], news, **CLOSE)
    if shift == 0:
        assert_close(effect[0], 0.0, **CLOSE)
    reported = " ".join(read_change(found))
    assert ("without any new value" in reported) == (shift > 0)
    # the window of both runs is of one length
    assert found.attrs["lost"] == shift
    steps = "1 step" if shift == 1 else f"{shift} steps"
    assert (f"{steps} nearer" in reported) == (shift > 0)
    assert (f"the past loses its oldest {steps}" in reported) == (shift > 0)


def test_the_same_series_twice_have_nothing_new() -> None:
    """What is said of the start is no number of steps where both forecasts share it."""
    before, after, _ = pair(0)
    same = " ".join(read_change(explain.explain_change(before, before)))
    assert "read the same values" in same
    assert "nothing is new" in same
    revised = " ".join(read_change(explain.explain_change(before, after)))
    assert "start at the same step" in revised
    assert "same values" not in revised
    before, after, _ = pair(1)
    later = " ".join(read_change(explain.explain_change(before, after)))
    assert "made 1 step before" in later
    for text in (same, revised, later):
        assert "0 step" not in text


@pytest.mark.parametrize("shift", [1, 3])
def test_new_values_of_a_series_are_one_part(shift: int) -> None:
    """Stretches of new values together outweigh parts that each is smaller than."""
    before, after, _ = pair(shift)
    found = explain.explain_change(before, after)
    fresh = [name for name in found["part"].values if "target, new" in name]
    found["effect"][:] = 1.5
    found["effect"].loc[{"part": fresh}] = 2.0
    reported = read_change(found)[0]
    assert f"(median): new target +{2 * shift}, " in reported


def test_incomparable_runs_are_refused(covariate_run: Run) -> None:
    before, after, _ = pair(1)

    def starting(run: Run, start: Any) -> Run:
        return replace(run, batch=replace(run.batch, starts=(start,) * 3), _of=None)

    undated = [starting(run, None) for run in (before, after)]
    half = starting(after, pd.Timestamp("2026-01-01 01:30"))
    for text, runs in {
        "make both with one lens": (before, covariate_run),
        "the earlier run first": (after, before),
        "give shift=": undated,
        "no whole steps apart": (before, half),
    }.items():
        expect_error(text, explain.explain_change, *runs)
    found = explain.explain_change(*undated, shift=1)
    dated = explain.explain_change(before, after)
    assert_close(found["effect"], dated["effect"], **CLOSE)
