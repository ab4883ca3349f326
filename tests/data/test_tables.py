"""Tables of any library: read as the pandas frame with the same columns, or refused;
never as rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xarray as xr

import tsfm_lens
from refusals import expect_error
from tsfm_lens.core.errors import InputError, LensError
from tsfm_lens.data import SeriesBatch, as_series, from_frame, read_series

WIDE = {"a": [1, 2, 3], "b": [4, 5, 6]}
LONG = {
    "id": ["u", "u", "v", "v"],
    "timestamp": [dt.datetime(2020, 1, day) for day in (1, 2, 1, 2)],
    "target": [Decimal("0.1"), None, Decimal("1234567.891"), Decimal("2")],
    "count": [1, None, 3, 2**53],
}
DAYS = pd.date_range("2020-01-01", periods=3)


def polars(columns: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("polars").DataFrame(columns)


TABLES: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "Arrow table": pa.table,
    "Arrow record batch": lambda columns: pa.table(columns).to_batches()[0],
    "Arrow struct": lambda columns: pa.table(columns).to_struct_array(),
    "pandas on Arrow": (
        lambda columns: pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)
    ),
    "polars": polars,
    "xarray": lambda columns: xr.Dataset.from_dataframe(pd.DataFrame(columns)),
}


def content(batch: SeriesBatch) -> tuple[Any, ...]:
    values = [
        [None if value != value else value for value in row] for row in batch.values
    ]
    return batch.ids, values, batch.starts, batch.freq, batch.categories


@pytest.mark.parametrize("name", TABLES)
def test_long_tables_read_like_pandas(name: str) -> None:
    """A long table is read as the same frame of pandas is."""
    table = TABLES[name](LONG)
    for options in ({"targets": ["target", "count"]}, {"past": ["count"]}):
        assert content(as_series(TABLES[name](LONG), **options)) == content(
            as_series(pd.DataFrame(LONG), **options)
        )
    batch = as_series(table, targets=["target", "count"])
    assert batch.ids == ("u/target", "u/count", "v/target", "v/count")
    assert content(batch)[1] == [
        [0.1, None],
        [1.0, None],
        [1234567.891, 2.0],
        [3.0, 2.0**53],
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 3]),
        pa.array(["1", None, "3"]).dictionary_encode(),
        xr.DataArray([1.0, np.nan, 3.0], dims="time"),
        pd.Series(["1", None, "3"], dtype=pd.ArrowDtype(pa.string())),
        [1.0, np.ma.masked, 3.0],
    ],
    ids=lambda column: type(column).__name__,
)
def test_a_column_is_a_series(column: Any) -> None:
    assert content(as_series(column))[1] == [[1.0, None, 3.0]]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("dims", "coords", "options", "ids"),
    [
        (("time", "series"), {}, {}, ("0", "1")),
        (("day", "site"), {"day": DAYS, "site": ["p", "q"]}, {}, ("p", "q")),
        (("x", "y"), {}, {"time_column": "x", "id_column": "y"}, ("0", "1")),
    ],
)
def test_dimensions_are_read_by_their_names(
    reverse: bool,
    dims: tuple[str, str],
    coords: dict[str, Any],
    options: dict[str, str],
    ids: tuple[str, ...],
) -> None:
    array = xr.DataArray(np.arange(6.0).reshape(3, 2), dims=dims, coords=coords)
    if reverse:
        array = array.transpose(*reversed(dims))
    batch = as_series(array, **options)
    assert content(batch)[:2] == (ids, [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]])
    assert batch.starts[0] == (DAYS[0] if "day" in coords else None)


ARRAY = xr.DataArray(np.zeros((3, 2)), dims=("x", "y"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ARRAY, "levels x, y: .*id_column=… and time_column=…"),
        (
            xr.DataArray(np.zeros((2, 2, 3)), dims=("series", "variate", "time")),
            r"series, variate, time.*to_dataset",
        ),
        (
            xr.Dataset({"load": ("time", [1.0, 2.0]), "area": 3.0}),
            "of all variables alike",
        ),
        ([pa.table(WIDE)], "series 'series-0' is a frame; give its values transposed"),
        (
            type(
                "Frame", (), {"columns": ["a"], "__array__": lambda _: np.zeros((3, 1))}
            )(),
            "Frame has columns with",
        ),
        (
            type("Frame", (), {"__arrow_c_stream__": lambda _, *__: 1})(),
            "cannot be converted to pandas",
        ),
    ],
    ids=lambda data: type(data).__name__,
)
def test_ambiguous_column_names_are_refused(data: Any, message: str) -> None:
    """What the names of columns do not tell is refused."""
    expect_error(message, as_series, data)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (
            pa.array(
                [
                    Decimal(12345678901234567890),
                    Decimal(12345678901234567891),
                    Decimal(1),
                ],
                pa.decimal128(38, 0),
            ),
            ("12345678901234567890", "12345678901234567891", "1"),
        ),
        (
            pa.array([2**63, 2**63 + 1, 1], pa.uint64()),
            ("9223372036854775808", "9223372036854775809", "1"),
        ),
    ],
)
def test_ids_are_text_as_written(
    ids: pa.Array, expected: tuple[str, ...], tmp_path: Path
) -> None:
    table = pa.table({"id": ids, "target": [1.0, 2.0, 3.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert expected == as_series(table).ids == read_series(tmp_path / "a.parquet").ids


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, True], "a value like 'True' that reads alike"),
        ([Decimal("1.0"), Decimal("1.00")], "a value like '1.00'"),
        (["1", 1], "a value like '1' that reads alike"),
        ([b"a", b"b"], r"is bytes \(b'a'\), expected text"),
    ],
)
def test_ids_must_be_text(ids: list[Any], message: str) -> None:
    """Ids that are no text are refused."""
    expect_error(
        message,
        from_frame,
        pd.DataFrame({"id": pd.Series(ids, dtype=object), "target": [1.0, 2.0]}),
    )


HOURS = np.array([1, 2, 3], dtype="timedelta64[h]")
REFUSED = {
    "durations": (HOURS, "expected real numbers"),
    "complex": (np.array([1j, 2, 3]), "expected real numbers"),
    "bytes": ([b"a", b"b", b"a"], "expected real numbers|which is not a number"),
    "ragged": ([[1.0], [2.0, 3.0], [4.0]], "not a regular array"),
}
READ = {
    "masked integers": (np.ma.masked_array([1, 999, 3], [0, 1, 0]), [1.0, None, 3.0]),
    "a masked one": ([1, np.ma.masked, 3], [1.0, None, 3.0]),
    "decimals": ([Decimal("0.1"), None, Decimal(3)], [0.1, None, 3.0]),
    "booleans": ([True, None, np.False_], [1.0, None, 0.0]),
    "bfloat16": (
        torch.tensor(
            [1.0, float("nan"), 3.0], dtype=torch.bfloat16, requires_grad=True
        ),
        [1.0, None, 3.0],
    ),
    "Arrow": (pa.array([Decimal("0.1"), None, Decimal(3)]), [0.1, None, 3.0]),
}


def entry(values: Any, role: str) -> Any:
    """The values as a target, alone and in a list, or as a covariate of an entry."""
    if role == "target":
        return [{"target": values, "start": None}]
    if role == "variate":
        return [{"target": [values, [1.0, 2.0, 3.0]], "start": None}]
    if role == "feature":
        return [{"target": [1.0, 2.0, 3.0], "past_feat_dynamic_real": [values]}]
    return [{"target": [1.0, 2.0, 3.0], "past_covariates": {"x": values}}]


ROLES = ("target", "variate", "feature", "covariate")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", READ)
def test_entry_values_are_read_unchanged(name: str, role: str) -> None:
    """Values of entries are read as they are written."""
    values, expected = READ[name]
    batch = as_series(entry(values, role))
    assert content(batch)[1][0 if role in ("target", "variate") else 1] == expected
    truths = None
    if (name, role) == ("booleans", "covariate"):
        truths = ("False", "True")
    assert batch.categories[-1] == truths


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", REFUSED)
def test_entry_values_must_be_numbers(name: str, role: str) -> None:
    """Values of entries that are no numbers are refused."""
    values, message = REFUSED[name]
    expect_error(
        "not a regular array" if name in ("ragged", "rows") else message,
        as_series,
        entry(values, role),
    )


def test_text_is_categories_unless_numbers_mix() -> None:
    """Text is read as categories; numbers mixed with it are refused."""
    for values in (
        ["a", None, "b"],
        ["a", np.ma.masked, "b"],
        pa.array(["a", None, "b"]),
    ):
        batch = as_series(entry(values, "covariate"))
        assert (content(batch)[1][1], batch.categories[1]) == (
            [0.0, None, 1.0],
            ("a", "b"),
        )
    both = {"past_covariates": {"x": ["a", "b"]}, "future_covariates": {"x": [1.0]}}
    for data in (
        entry(["a", 1.0, "b"], "covariate"),
        entry(["1", 1.0, "b"], "covariate"),
        [{"target": [1.0, 2.0], **both}],
        [
            {
                "target": [1.0, 2.0],
                "past_covariates": {"x": [1.0, 2.0]},
                "future_covariates": {"x": ["5"]},
            }
        ],
    ):
        expect_error(r"covariate 'x' holds text .* beside", as_series, data)
    with pytest.raises(InputError, match="covariate 'x' holds text"):
        as_series(pd.DataFrame({"target": [1.0, 2.0], "x": ["a", 1.0]}), past=["x"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"past_covariates": [1.0, 2.0]},
            "past_covariates of 'series-0' is list, expected a dict",
        ),
        (
            {"past_covariates": {1: [1.0, 2.0], "1": [3.0, 4.0]}},
            "names in past_covariates .* unique; '1'",
        ),
        ({"past_covariates": {"x": 5}}, r"has shape \(\) and its target 2 steps"),
        (
            {"feat_dynamic_real": np.zeros((1, 1, 2))},
            r"shape \(1, 1, 2\), expected \(feature, time\)",
        ),
    ],
)
def test_fields_of_entries_are_checked(fields: dict[str, Any], message: str) -> None:
    expect_error(message, as_series, [{"target": [1.0, 2.0], **fields}])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "as_array", [np.asarray, torch.tensor, lambda rows: [list(row) for row in rows]]
)
def test_dicts_with_target_are_items(count: int, as_array: Any) -> None:
    """Dicts with nothing but a target are read as items of the library."""
    lens = tsfm_lens.load("chronos2-nano")
    rows = [np.random.default_rng(seed).normal(size=(2, 40)) for seed in range(count)]
    batch = as_series([{"target": as_array(element)} for element in rows])
    assert batch.groups == tuple(
        f"series-{item}" for item in range(count) for _ in range(2)
    )
    theirs = torch.cat(
        lens.native.predict(
            [{"target": element} for element in rows], prediction_length=4
        )
    )
    ours = lens.forecast(batch, 4, quantiles=lens.adapter.levels)
    np.testing.assert_array_equal(ours.quantiles, theirs)


def test_mixed_dicts_refused_without_their_values() -> None:
    """Lists that mix kinds of dicts are refused without showing their values."""
    full = {"target": np.full((2, 40), 7.25)}
    for data, text in (
        ([full, {"start": None}], "entry 1 has no 'target'"),
        ([full, {"targt": [1.0]}], "'targt'.*target"),
        ([full, np.arange(40.0)], "'series-0' is a dict.*arrays"),
        ([np.arange(3.0), object()], "not a number"),
    ):
        with pytest.raises(LensError, match=text) as caught:
            as_series(data)
        assert "7.25" not in str(caught.value)


@pytest.mark.parametrize("column", [[1.0, None], [1, 1.0], [2.0, 3.0]], ids=str)
def test_whole_numbers_are_ids_by_digits(column: list[Any]) -> None:
    """Whole numbers are read as ids by their digits."""
    frame = pd.DataFrame(
        {"id": [item or 7.0 for item in column for _ in range(2)], "y": np.arange(4.0)}
    )
    expected = {str(int(item or 7)) for item in column}
    assert {*as_series(frame).ids} == expected
    assert {*as_series(frame.astype({"id": "Float64"})).ids} == expected


def test_equal_ids_read_differently_are_refused() -> None:
    """Ids that are equal but would be read differently are refused."""
    values = np.arange(6.0)
    for pair in ([1, 1.0], [np.int64(2), 2.0], [1, True]):
        expect_error(f"{pair[0]} and {pair[1]}", as_series, [values, values], ids=pair)
        items = [{"target": values, "item_id": item} for item in pair]
        expect_error(f"{pair[0]} and {pair[1]}", as_series, items)
    assert as_series([values, values], ids=["1", "1.0"]).ids == ("1", "1.0")


def test_ids_come_from_any_iterable() -> None:
    series = [np.arange(3.0), np.arange(4.0)]
    for ids in (np.array([5, 6]), (item for item in (5, 6)), pd.Index([5, 6])):
        assert as_series(series, ids=ids).ids == ("5", "6")
    # and a name is not its letters
    assert as_series([1.0, 2.0], ids="ab").ids == ("ab",)


@pytest.mark.parametrize(
    "option", [{"time_column": "ds"}, {"timezone": "UTC"}, {"targets": ["y"]}], ids=str
)
def test_frame_options_are_refused_for_entries(option: dict[str, Any]) -> None:
    """Options of frames are refused together with entries."""
    stamps = pd.date_range("2024-01-01", periods=4)
    entry = {"target": pd.Series(np.arange(4.0), stamps), "start": stamps[0]}
    for data in (entry, [entry]):
        expect_error(
            f"{next(iter(option))}=.* names columns of a frame",
            as_series,
            data,
            **option,
        )
