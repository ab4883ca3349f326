"""Multivariate items and covariates: how they are read, kept together, checked and
parted again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from refusals import expect_error
from tsfm_lens import data
from tsfm_lens.core.errors import InputError, UnknownNameError
from tsfm_lens.data import SeriesBatch, as_series, by_variate
from tsfm_lens.models.forecast import context_dataset

ITEMS = npst.arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(2, 12)),
    elements=st.floats(-1e9, 1e9) | st.just(float("nan")),
).filter(lambda array: not np.isnan(array[..., :-1]).all(axis=-1).any())


def uneven() -> SeriesBatch:
    """A univariate item between two of two and three variates."""
    return as_series(
        [np.arange(6.0).reshape(2, 3), np.arange(4.0), np.arange(12.0).reshape(3, 4)]
    )


@given(ITEMS, st.booleans())
@settings(deadline=None, max_examples=60)
def test_arrays_come_back_by_variate(array: np.ndarray, tensor: bool) -> None:
    given_ = array
    if tensor:
        given_ = torch.tensor(array)
    copy = array.copy()
    batch = as_series(given_)
    np.testing.assert_array_equal(np.asarray(given_), copy)
    assert not any(
        np.shares_memory(series, np.asarray(given_)) for series in batch.values
    )
    n_series, n_variates = array.shape[:2]
    assert (len(batch), batch.n_variates, batch.multivariate) == (
        n_series * n_variates,
        n_variates,
        n_variates > 1,
    )
    assert batch.group_index.tolist() == [
        item for item in range(n_series) for _ in range(n_variates)
    ]
    context, truth = batch.split(1)
    assert (context.groups, context.variates) == (batch.groups, batch.variates)
    data = context_dataset(context, 1, truth)
    if not batch.multivariate:
        assert "variate" not in data.coords
        return
    parted = by_variate(data)
    assert parted["context"].dims == ("series", "variate", "time")
    np.testing.assert_array_equal(parted["context"], array[..., :-1])
    np.testing.assert_array_equal(parted["truth"], array[..., -1:])
    assert parted["series"].values.tolist() == [
        f"series-{item}" for item in range(n_series)
    ]
    assert parted["variate"].values.tolist() == [
        str(variate) for variate in range(n_variates)
    ]


@pytest.mark.parametrize(
    "data",
    [
        np.ones((2, 2, 3)),
        [np.ones((2, 3)), torch.ones(2, 3)],
        {"x": np.ones((2, 3)), "y": [[1, 1, 1], [1, 1, 1]]},
    ],
    ids=["array", "list", "dict"],
)
def test_ids_name_items(data: object) -> None:
    batch = as_series(data, ids=["a", "b"])
    assert batch.ids == ("a/0", "a/1", "b/0", "b/1")
    assert batch.groups == ("a", "a", "b", "b")
    assert as_series(batch, ids=["c", "d"]).ids == ("c/0", "c/1", "d/0", "d/1")
    assert as_series(batch, ids=batch.ids).groups == batch.groups
    expect_error("2 series came with 3 ids", as_series, data, ids=["a", "b", "c"])
    expect_error("'a' occurs more than once", as_series, data, ids=["a", "a"])


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": ["a"] * 3 + ["b"] * 4,
            "timestamp": [
                *pd.date_range("2020-01-01", periods=3),
                *pd.date_range("2021-01-01", periods=4),
            ],
            "load": np.arange(7.0),
            "heat": [1, np.nan, 3, 4, 5, 6, 7],
        }
    )


def test_named_columns_are_read_together() -> None:
    frame = table()
    batch = as_series(frame, variates=["load", "heat"])
    pd.testing.assert_frame_equal(frame, table())
    assert batch.ids == ("a/load", "a/heat", "b/load", "b/heat")
    assert batch.groups == ("a", "a", "b", "b")
    assert batch.variates == ("load", "heat") * 2
    assert batch.freq == "D"
    np.testing.assert_array_equal(batch.values[1], [1, np.nan, 3])
    assert not as_series(frame, targets=["load", "heat"]).multivariate
    expect_error("Closest: load", as_series, frame, variates=["loads"])
    expect_error("not both", as_series, frame, targets=["load"], variates=["heat"])
    twice = "'a/load', 'b/load' occurs more than once"
    expect_error(twice, as_series, frame, variates=["load", "load"])
    assert as_series(frame, variates=["load"]).ids == ("a/load", "b/load")


ROWS = (np.arange(3.0), np.arange(3.0), np.arange(3.0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"groups": "aba", "variates": "xyz"}, "group 'a' are at positions 0, 2"),
        (
            {"groups": "aab", "variates": "xxy"},
            "group 'a' has variate 'x' more than once",
        ),
        (
            {"groups": "aaa", "variates": "xyz", "roles": ("past", "target", "target")},
            "target first",
        ),
        (
            {"groups": "aaa", "variates": "xyz", "roles": ("target", "known", "past")},
            "known future",
        ),
        (
            {"groups": "aaa", "variates": "xyz", "roles": ("target", "target", "known")}
            | {"futures": (None, None, [1.0, np.nan, 1.0])},
            "no number at step 2 of 3 after",
        ),
        (
            {"groups": "aab", "variates": "xyz", "freqs": ("h", "D", "h")},
            r"different frequencies \(h, D\)",
        ),
        (
            {
                "groups": "abb",
                "variates": "xyz",
                "starts": (None, pd.Timestamp(0), pd.Timestamp(1)),
            },
            "group 'b' have different starts",
        ),
        (
            {
                "groups": "aab",
                "variates": "xyz",
                "values": (np.arange(3.0), np.arange(4.0), np.arange(3.0)),
            },
            r"different lengths \(3, 4\).*pad with NaN",
        ),
    ],
)
def test_groups_are_checked(fields: dict, message: str) -> None:
    expect_error(message, SeriesBatch, **{"values": ROWS, **fields})


def test_methods_carry_groups_and_variates() -> None:
    batch = uneven()
    parts = [batch.select([0, 1]), batch.select([2, 3, 4, 5])]
    for other in (batch.tail(2), batch.split(1)[0], SeriesBatch.concat(parts)):
        assert (other.groups, other.variates) == (batch.groups, batch.variates)
    assert batch.select("series-2").ids == ("series-2/0", "series-2/1", "series-2/2")
    assert batch.select(["series-2/2", "series-1"]).variates == ("2", "")
    expect_error("'series-0' are at positions 0, 2", batch.select, [0, 2, 1])
    with pytest.raises(UnknownNameError):
        batch.select("series-9")
    labels = batch.to_frame().drop_duplicates("id")
    assert tuple(labels["group"]) == batch.groups
    assert tuple(labels["variate"]) == batch.variates


def test_gaps_are_missing_values() -> None:
    flat = context_dataset(uneven(), 2)
    rows = np.arange(flat.sizes["series"])
    flat["single"] = ("series", rows.astype(np.float32))
    flat["when"] = ("series", pd.date_range("2020-01-01", periods=6).to_numpy())
    flat["level"] = ("step", np.array([1, 2], dtype=np.int8), {"unit": "m"})
    parted = by_variate(flat)
    assert parted["variate"].values.tolist() == ["0", "1", "", "2"]
    held = np.array([[0, 1, np.nan, np.nan], [np.nan, np.nan, 2, np.nan]])
    np.testing.assert_array_equal(parted["single"][:2], held)
    gaps = np.isnan(parted["single"])
    assert parted["single"].dtype == np.float32
    np.testing.assert_array_equal(np.isnat(parted["when"]), gaps)
    np.testing.assert_array_equal(np.isnan(parted["context"]).all("time"), gaps)
    xr.testing.assert_identical(parted["level"], flat["level"])


HOURS = 30
AHEAD = 6
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
        past_only = {
            what: np.r_[rng.normal(size=HOURS), np.full(AHEAD, np.nan)]
            for what in ("load", "price")
        }
        return pd.DataFrame(
            {
                "site": name,
                "ts": times,
                **past_only,
                "temperature": rng.normal(size=len(times)),
                **known,
            }
        )

    return pd.concat([site("A"), site("B")], ignore_index=True)


def test_context_ends_before_known_future(
    frame: pd.DataFrame,
) -> None:
    """The context ends with the target, and known covariates go on."""
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


def test_file_and_frames_agree(frame: pd.DataFrame, tmp_path: Path) -> None:
    """A file and two frames give the same batch."""
    frame.to_csv(tmp_path / "sites.csv", index=False)
    ahead = frame.load.isna()
    ways = [
        data.read_series(tmp_path / "sites.csv", **OPTIONS),
        as_series(
            frame[~ahead],
            future=frame[ahead].drop(columns=["load", "price"]),
            **OPTIONS,
        ),
    ]
    full = as_series(frame, **OPTIONS)
    for batch in ways:
        assert (batch.ids, batch.roles, batch.categories) == (
            full.ids,
            full.roles,
            full.categories,
        )
        for ours, theirs in zip(
            (*batch.values, *batch.futures),
            (*full.values, *full.futures),
            strict=True,
        ):
            if ours is None or theirs is None:
                assert ours is theirs
            else:
                np.testing.assert_allclose(ours, theirs, rtol=np.finfo(float).eps)


def test_columns_without_a_role_are_named(frame: pd.DataFrame) -> None:
    ahead = frame.load.isna()
    how: dict[str, Any] = {
        "future": frame[ahead].drop(columns=["load", "price"]),
        "id_column": "site",
    }
    with pytest.raises(InputError, match="'load', 'price' may be the target"):
        as_series(frame[~ahead], **how)
    one, both = (
        as_series(frame[~ahead], targets=names, **how)
        for names in (["load"], ["load", "price"])
    )
    assert (
        "not read: 'price'; past=[…] or known=[…] reads columns as covariates"
        in one.notes
    )
    assert both.ids[:2] == ("A/load", "A/load/temperature")


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
def test_gap_in_known_future_is_refused(frame: pd.DataFrame, dropped: bool) -> None:
    position = int(np.flatnonzero((frame.site == "B") & frame.load.isna())[2])
    if dropped:
        gap = frame.drop(index=position)
    else:
        gap = frame.assign(temperature=frame.temperature.mask(frame.index == position))
    expect_error(
        "'B/temperature' has no number at step 3 of 6 after the context",
        as_series,
        gap,
        **OPTIONS,
    )


def test_comma_in_name_is_one_covariate(frame: pd.DataFrame, tmp_path: Path) -> None:
    """A column with a comma in its name is one covariate."""
    named = frame.rename(columns={"temperature": "temperature, indoors"})
    named.to_csv(tmp_path / "sites.csv", index=False)
    how = {**OPTIONS, "known": ["temperature, indoors", "weekday,holiday"]}
    for batch in (
        as_series(named, **how),
        data.read_series(tmp_path / "sites.csv", **how),
    ):
        assert batch.variates[:5] == (
            "load",
            "price",
            "temperature, indoors",
            "weekday",
            "holiday",
        )
        np.testing.assert_array_equal(
            batch.values[2], as_series(frame, **OPTIONS).values[2]
        )
    expect_error(
        "temprature", as_series, named, **{**OPTIONS, "known": ["weekday,temprature"]}
    )


def test_held_out_steps_become_known_future(frame: pd.DataFrame) -> None:
    batch = as_series(frame, **OPTIONS)
    visible, truth = batch.split(4)
    known = visible.known_future(4 + AHEAD)
    np.testing.assert_array_equal(
        known[2], np.r_[batch.values[2][-4:], batch.futures[2]]
    )
    assert np.isnan(known[:2]).all()
    np.testing.assert_array_equal(truth[0], batch.values[0][-4:])
    assert visible.tail(5).futures[2] is not None
    assert visible.targets().ids == ("A/load", "B/load")
    assert not visible.targets().multivariate


def test_entries_of_other_libraries_are_understood() -> None:
    target = np.arange(8.0)
    feature = np.arange(11.0)
    past = np.ones(8)
    gluonts = {
        "target": target,
        "item_id": "a",
        "feat_dynamic_real": [feature],
        "past_feat_dynamic_real": [past],
    }
    chronos = {
        "target": target,
        "past_covariates": {"p": past, "k": feature[:8]},
        "future_covariates": {"k": feature[8:]},
    }
    for entry, names in (
        (gluonts, ["past_feat_dynamic_real/0", "feat_dynamic_real/0"]),
        (chronos, ["p", "k"]),
    ):
        batch = as_series([entry])
        assert list(batch.variates[1:]) == names
        assert batch.roles == ("target", "past", "known")
        np.testing.assert_array_equal(batch.futures[2], feature[8:])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"known": ["temperature"], "past": ["temperature"]},
            "named twice, as past and as known",
        ),
        ({"known": ["load"]}, "load"),
        ({"known": ["temprature"]}, "temperature"),
    ],
)
def test_unusable_covariate_columns_are_refused(
    frame: pd.DataFrame, change: dict[str, Any], complaint: str
) -> None:
    """Columns that cannot be covariates are refused."""
    expect_error(complaint, as_series, frame, **{**OPTIONS, "past": [], **change})


class Dataset:
    """As gluonts has it: what can be gone through again and again, and no list."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.entries = entries

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@pytest.mark.parametrize("kind", [list, Dataset])
@pytest.mark.parametrize(("period", "freq"), [("2024-01-01", "D"), ("2024-01", "M")])
def test_gluonts_dataset_keeps_period_frequency(
    period: str, freq: str, kind: Any
) -> None:
    """A dataset of GluonTS is read with the frequency of its periods."""
    start = pd.Period(period, freq)
    entry = {"target": np.arange(40.0), "start": start}
    batch = as_series(kind([{**entry, "item_id": name} for name in "ab"]))
    assert batch.ids == ("a", "b")
    assert batch.timestamps(0)[1] == (start + 1).to_timestamp()  # type: ignore[index]
