"""Series in lists, tuples and dicts: read as each is read alone, by its index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from refusals import expect_error
from tsfm_lens.core.errors import LensError
from tsfm_lens.data import SeriesBatch, as_series

DAYS = pd.date_range("2024-01-01", periods=16)
MONTHS = pd.date_range("2024-01-01", periods=16, freq="MS")
VALUES = np.arange(16.0)

INDEXES: dict[str, Any] = {
    "timestamps": DAYS,
    "periods": pd.PeriodIndex(DAYS, freq="D"),
    "text": DAYS.strftime("%Y-%m-%d"),
    "dates": pd.Index([day.date() for day in DAYS], dtype=object),
    "categories": pd.CategoricalIndex(DAYS),
    "row numbers": pd.RangeIndex(16),
    "numbers of a filtered frame": pd.Index(
        [3, 1, 4, 15, 9, 2, 6, 5, 35, 8, 97, 93, 23, 84, 62, 64]
    ),
    "a zone": DAYS.tz_localize("Asia/Tokyo"),
}
ORDERS: dict[str, Callable[[pd.Series], pd.Series]] = {
    "oldest first": lambda series: series,
    "newest first": lambda series: series[::-1],
    "shuffled": lambda series: series.sample(frac=1, random_state=4),
    "with a gap": lambda series: series.drop(series.index[3]),
}
CONTAINERS: dict[str, Callable[[list[pd.Series]], Any]] = {
    "list": list,
    "tuple": tuple,
    "dict": lambda items: dict(zip("ab", items, strict=True)),
}


def content(batch: SeriesBatch) -> list[tuple[Any, ...]]:
    values = [
        [None if value != value else value for value in row] for row in batch.values
    ]
    return list(zip(values, batch.starts, batch.freqs, strict=True))


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("index", INDEXES)
def test_series_are_read_as_each_alone(index: str, order: str, container: str) -> None:
    first, second = (
        ORDERS[order](pd.Series(VALUES + k, index=INDEXES[index])) for k in (0, 100)
    )
    batch = as_series(CONTAINERS[container]([first, second]))
    alone = [as_series(series) for series in (first, second)]
    assert content(batch) == [row for item in alone for row in content(item)]
    assert batch.ids == (
        ("a", "b") if container == "dict" else ("series-0", "series-1")
    )
    assert (
        set(batch.notes) == {note for item in alone for note in item.notes}
        or "with a gap" in order
    )
    if "number" not in index and order != "with a gap":
        assert batch.values[0].tolist() == VALUES.tolist()
        assert batch.starts[0] is not None


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(
    ("index", "message"),
    [
        (pd.DatetimeIndex([*DAYS[:15], DAYS[0]]), "two values at 2024-01-01"),
        (pd.DatetimeIndex([*DAYS[:15], pd.NaT]), "no timestamp"),
        (pd.RangeIndex(2001, 2017, name="year"), "time_format='%Y'"),
        (
            pd.DatetimeIndex(DAYS[0] + pd.to_timedelta(np.arange(16) ** 2, unit="D")),
            "irregular",
        ),
    ],
)
def test_refused_items_in_containers_are_named(
    index: pd.Index, message: str, container: str
) -> None:
    """What is refused alone is refused in a container, by its name."""
    good = pd.Series(VALUES, index=DAYS)
    bad = pd.Series(VALUES, index=index)
    expect_error(message, as_series, bad)
    name = "series-1"
    if container == "dict":
        name = "b"
    expect_error(f"'{name}'.*{message}", as_series, CONTAINERS[container]([good, bad]))


def test_time_options_reach_contained_series() -> None:
    """Options of times reach the series inside containers."""
    german = pd.Series(VALUES, index=DAYS.strftime("%d.%m.%Y").rename("date"))
    years = pd.Series(VALUES, index=pd.RangeIndex(2001, 2017, name="year"))
    local = pd.Series(VALUES, index=pd.date_range("2024-07-01", periods=16, freq="h"))
    cases: list[tuple[pd.Series, dict[str, Any]]] = [
        (german, {"time_format": "%d.%m.%Y"}),
        (local, {"round_time": "1h", "timezone": "Europe/Berlin"}),
        (years, {"time_column": "year", "time_format": "%Y"}),
    ]
    for series, options in cases:
        expected = content(as_series(series, **options))
        assert expected[0][1] is not None
        for make in CONTAINERS.values():
            assert content(as_series(make([series, series]), **options)) == expected * 2
    text = "time_format='%Y' names columns"
    expect_error(text, as_series, [VALUES, VALUES], time_format="%Y")


def test_mixed_item_kinds_are_not_silent() -> None:
    """Items of several kinds are not mixed silently."""
    series = pd.Series(VALUES, index=INDEXES["text"])
    for other in (VALUES, pd.Series(VALUES), VALUES.tolist()):
        for items in ([series, other], {"a": other, "b": series}):
            expect_error("some series have timestamps", as_series, items)
    plain = as_series([pd.Series(VALUES), VALUES, pd.Series(["1", "2.5", None])])
    assert content(plain)[2][0] == [1.0, 2.5, None]
    months = pd.Series(VALUES, index=MONTHS)
    assert as_series([pd.Series(VALUES, index=DAYS), months]).freqs == ("D", "MS")
    days = xr.DataArray(VALUES[::-1], dims="day", coords={"day": DAYS[::-1]})
    assert content(as_series([days])) == content(as_series(days))


@pytest.mark.parametrize("index", ["timestamps", "text", "dates", "periods"])
@pytest.mark.parametrize(
    "field", ["target", "feat_dynamic_real", "past_feat_dynamic_real", "past", "known"]
)
def test_dates_in_entries_keep_their_order(index: str, field: str) -> None:
    """Dates of series in entries are not read backwards."""
    series = pd.Series(VALUES, index=INDEXES[index])

    def entry(values: Any) -> dict[str, Any]:
        plain = {"target": VALUES, "item_id": "a"}
        if field in ("past", "known"):
            if field == "known":
                later = {"x": values}
            else:
                later = {}
            return plain | {
                "past_covariates": {"x": values},
                "future_covariates": later,
            }
        return plain | {field: values if field == "target" else [values]}

    assert content(as_series(entry(series))) == content(as_series(entry(VALUES)))
    expect_error("dates.*sort_index", as_series, entry(series[::-1]))
    assert content(as_series(entry(series[::-1].sort_index()))) == content(
        as_series(entry(VALUES))
    )


def test_an_empty_series_is_named() -> None:
    for items in (
        [pd.Series(VALUES, index=DAYS), pd.Series([], dtype=float)],
        {"a": pd.Series([], dtype=float)},
    ):
        with pytest.raises(LensError, match=r"'series-1'|'a'"):
            as_series(items)
