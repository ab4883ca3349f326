"""Covariates enter a batch with their target, whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from refusals import expect_error
from tsfm_lens import data
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError

HOURS, AHEAD = 30, 6
OPTIONS: dict[str, Any] = {
    "targets": ["load"],
    "known": ["temperature", "weekday", "holiday"],
    "past": ["price"],
    "id_column": "site",
    "time_column": "ts",
}


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    times = pd.date_range("2024-01-01", periods=HOURS + AHEAD, freq="h")
    known = {"weekday": times.day_name(), "holiday": rng.random(len(times)) < 0.5}

    def site(name: str) -> pd.DataFrame:
        past_only = {what: np.r_[rng.normal(size=HOURS), np.full(AHEAD, np.nan)] for what in ("load", "price")}
        return pd.DataFrame(
            {"site": name, "ts": times, **past_only, "temperature": rng.normal(size=len(times)), **known}
        )

    return pd.concat([site("A"), site("B")], ignore_index=True)


def test_the_context_ends_with_the_target_and_what_is_known_goes_on(frame: pd.DataFrame) -> None:
    batch = as_series(frame, **OPTIONS)
    assert batch.roles == ("target", "past", "known", "known", "known") * 2
    assert batch.variates[:5] == ("load", "price", "temperature", "weekday", "holiday")
    assert batch.lengths == (HOURS,) * 10
    first = frame[frame.site == "A"]
    np.testing.assert_array_equal(batch.values[2], first.temperature[:HOURS])
    np.testing.assert_array_equal(batch.futures[2], first.temperature[HOURS:])
    np.testing.assert_array_equal(batch.futures[4], first.holiday[HOURS:])
    assert batch.categories[3] == ("Monday", "Tuesday")
    stamps = batch.timestamps(0)
    assert stamps is not None
    assert stamps[-1] == first.ts.iloc[HOURS - 1]


def test_a_file_and_two_frames_give_the_same_batch(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "sites.csv", index=False)
    ahead = frame.load.isna()
    ways = [
        data.read_series(tmp_path / "sites.csv", **OPTIONS),
        as_series(frame[~ahead], future=frame[ahead].drop(columns=["load", "price"]), **OPTIONS),
    ]
    whole = as_series(frame, **OPTIONS)
    for batch in ways:
        assert (batch.ids, batch.roles, batch.categories) == (whole.ids, whole.roles, whole.categories)
        for ours, theirs in zip((*batch.values, *batch.futures), (*whole.values, *whole.futures), strict=True):
            if ours is None or theirs is None:
                assert ours is theirs
            else:
                np.testing.assert_allclose(ours, theirs, rtol=np.finfo(float).eps)


def test_a_unit_is_of_targets_alone(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "sites.csv", index=False)
    for batch in (
        data.read_series(tmp_path / "sites.csv", units="kWh", **OPTIONS),
        as_series(tmp_path / "sites.csv", units="kWh", **OPTIONS),
        as_series(frame, units="kWh", **OPTIONS),
    ):
        assert batch.units == ("kWh", "", "", "", "") * 2
    with pytest.raises(InputError, match="units"):
        data.read_series(tmp_path / "sites.csv", units=5, **OPTIONS)  # type: ignore[arg-type]


@pytest.mark.parametrize("dropped", [False, True])
def test_a_gap_in_a_known_future_is_named_as_the_user_counts(
    frame: pd.DataFrame, dropped: bool, tmp_path: Path
) -> None:
    place = int(np.flatnonzero((frame.site == "B") & frame.load.isna())[2])
    gap = frame.drop(index=place) if dropped else frame.assign(temperature=frame.temperature.mask(frame.index == place))
    gap.to_csv(tmp_path / "sites.csv", index=False)
    # rows of a file count from its first line, which has the names
    for row, read in ((place, lambda: as_series(gap, **OPTIONS)), (place + 2, lambda: _read(tmp_path))):
        with pytest.raises(InputError, match="step 3 of 6 after the context") as caught:
            read()
        where = "no row has it" if dropped else f"row {row}"
        assert f"'B/temperature' has no number at {frame.ts[place]} ({where})" in str(caught.value)


def _read(folder: Path) -> SeriesBatch:
    return data.read_series(folder / "sites.csv", **OPTIONS)


def test_a_column_with_a_comma_in_its_name_is_one_covariate(frame: pd.DataFrame, tmp_path: Path) -> None:
    named = frame.rename(columns={"temperature": "temperature, indoors"})
    named.to_csv(tmp_path / "sites.csv", index=False)
    how = {**OPTIONS, "known": ["temperature, indoors", "weekday,holiday"]}
    for batch in (as_series(named, **how), data.read_series(tmp_path / "sites.csv", **how)):
        assert batch.variates[:5] == ("load", "price", "temperature, indoors", "weekday", "holiday")
        np.testing.assert_array_equal(batch.values[2], as_series(frame, **OPTIONS).values[2])
    expect_error("temprature", as_series, named, **{**OPTIONS, "known": ["weekday,temprature"]})


def test_held_out_steps_become_the_known_future(frame: pd.DataFrame) -> None:
    batch = as_series(frame, **OPTIONS)
    shown, truth = batch.split(4)
    known = shown.known_future(4 + AHEAD)
    np.testing.assert_array_equal(known[2], np.r_[batch.values[2][-4:], batch.futures[2]])
    assert np.isnan(known[:2]).all()
    np.testing.assert_array_equal(truth[0], batch.values[0][-4:])
    assert shown.tail(5).futures[2] is not None
    assert shown.targets().ids == ("A/load", "B/load")
    assert not shown.targets().multivariate


def test_entries_of_other_libraries_are_understood() -> None:
    target, feature, past = np.arange(8.0), np.arange(11.0), np.ones(8)
    gluonts = {"target": target, "item_id": "a", "feat_dynamic_real": [feature], "past_feat_dynamic_real": [past]}
    chronos = {
        "target": target,
        "past_covariates": {"p": past, "k": feature[:8]},
        "future_covariates": {"k": feature[8:]},
    }
    for entry, names in ((gluonts, ["past_feat_dynamic_real/0", "feat_dynamic_real/0"]), (chronos, ["p", "k"])):
        batch = as_series([entry])
        assert list(batch.variates[1:]) == names
        assert batch.roles == ("target", "past", "known")
        np.testing.assert_array_equal(batch.futures[2], feature[8:])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"known": ["temperature"], "past": ["temperature"]}, "named twice, as past and as known"),
        ({"known": ["temperature", "temperature"]}, "named twice, leave one out"),
        ({"known": ["load"]}, "load"),
        ({"known": ["ts"]}, "ids or timestamps"),
        ({"known": ["temprature"]}, "temperature"),
    ],
)
def test_columns_that_cannot_be_covariates_are_refused(
    frame: pd.DataFrame, change: dict[str, Any], complaint: str
) -> None:
    expect_error(complaint, as_series, frame, **{**OPTIONS, "past": [], **change})


@pytest.mark.parametrize(("period", "freq"), [("2024-01-01", "D"), ("2024-01", "M")])
def test_a_dataset_of_gluonts_is_read_with_the_frequency_of_its_periods(period: str, freq: str) -> None:
    entries: list[dict[str, Any]] = [
        {"target": np.arange(40.0), "start": pd.Period(period, freq), "item_id": name} for name in "ab"
    ]

    class Dataset:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter(entries)

        def __len__(self) -> int:
            return len(entries)

    for given in (entries, Dataset()):
        batch = as_series(given)
        assert batch.ids == ("a", "b")
        stamps = batch.timestamps(0)
        assert stamps is not None
        assert stamps[1] == (entries[0]["start"] + 1).to_timestamp()
    mixed = [*entries, {"target": np.arange(40.0), "start": pd.Period("2024-01-01", "h"), "item_id": "c"}]
    assert as_series(mixed).timestamps(0) is None
