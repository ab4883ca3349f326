"""Series in: what is taken, what is refused and how it is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import tsfm_lens
from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import (
    SeriesBatch,
    as_series,
    bundled,
    bundled_info,
    bundled_names,
    from_frame,
    read_series,
)
from tsfm_lens.data.batch import hold_out
from tsfm_lens.testing import assert_close

SERIES = npst.arrays(
    np.float64,
    st.integers(1, 40),
    elements=st.floats(-1e12, 1e12) | st.just(float("nan")),
).filter(lambda array: not np.isnan(array).all())


def frame(rows: list, columns: tuple = ("id", "timestamp", "target")) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns))


@pytest.mark.parametrize(
    "data",
    [
        [1.0, 2.0, 3.0],
        np.array([1, 2, 3]),
        np.array([[1, 2, 3]], dtype=np.float32),
        torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16, requires_grad=True),
        pd.Series([1, 2, 3]),
        {"a": [1, 2, 3]},
        frame([("a", "2020-01-01", 1), ("a", "2020-01-02", 2), ("a", "2020-01-03", 3)]),
        frame(
            [("a", "2020-01-03", 3), ("a", "2020-01-01", 1), ("a", "2020-01-02", 2)],
            ("unique_id", "ds", "y"),
        ),
    ],
    ids=lambda data: type(data).__name__,
)
def test_one_series_in_every_form(data: object) -> None:
    batch = as_series(data)
    assert batch.lengths == (3,)
    np.testing.assert_array_equal(batch.values[0], [1.0, 2.0, 3.0])
    assert batch.values[0].dtype == np.float64


REFUSED = {
    "None": (None, "NoneType is not a series: expected arrays"),
    "empty series": ([[1.0], []], "series 'series-1' is empty"),
    "nested": ({"a": {"b": 1.0}}, "series 'a' is a dict, expected an array"),
    "no steps": (np.zeros((3, 0)), "the array is empty (shape (3, 0))"),
    "a number and a list": (
        [1.0, [2.0]],
        "series 'series-0' has shape (), expected (time,) or (variate, time)",
    ),
    "text": ([1.0, "x"], "holds 'x' at position 1, which is not a number"),
    "masked text": (
        np.ma.masked_array(["a", "b"], [True, False]),
        "holds 'b' at position 1, which is not a number",
    ),
    "infinite": (
        np.array([1.0, np.nan, np.inf]),
        "is infinite at position 2; use NaN for missing values",
    ),
    "all NaN": (np.array([np.nan, np.nan]), "only NaN values (2 steps)"),
    "variate all NaN": (
        [np.array([[1.0, 2.0], [np.nan, np.nan]])],
        "'series-0/1' has only NaN values",
    ),
    "long path": ("a" * 5000, "aaa…' is not a usable path: "),
    "frame in a list": (
        [frame([(1, 2)], ("a", "b"))],
        "'series-0' is a frame; give its values transposed",
    ),
    "empty frame": (frame([]), "the frame has no rows"),
    "duplicate times": (
        frame([("a", "2020-01-01", 1), ("a", "2020-01-01", 2)]),
        "two values at",
    ),
    "irregular": (
        frame(
            [
                ("a", f"20{day}", 1)
                for day in ("20-01-01", "20-01-07", "21-03-02", "21-03-04")
            ]
        ),
        "irregular timestamps",
    ),
    "bad cell": (
        frame([("a", "2020-01-01", "1"), ("a", "2020-01-02", "two")]),
        "holds 'two' in row 1",
    ),
    "no values": (
        frame([("a", "2020-01-01", "x", "y")], ("id", "timestamp", "n", "m")),
        "no column holds the values",
    ),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_the_place(data: object, message: str) -> None:
    """What cannot be read is refused, and the message names the place."""
    expect_error(re.escape(message), as_series, data)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: as_series([[1], [2]], ids=["a"]), "2 series came with 1 ids"),
        (lambda: as_series([1, 2], freq="fortnight"), "not a pandas frequency"),
        (lambda: as_series([1, 2], freq=["D"]), r"\['D'\] is not .* all series"),
        (lambda: as_series([1, 2]).select(0.0), "0.0 is neither an id nor a position"),
        (lambda: as_series([1, 2]).select([True]), "True is neither an id"),
        (
            lambda: as_series([1, 2], variates=["load"]),
            "names columns of a frame or file, but the data is list",
        ),
        (
            lambda: as_series(frame([("a", 1, 2)]), id_column="id", time_column="id"),
            "'id' cannot hold both",
        ),
        (lambda: as_series([1, 2], start="yesterdayish"), "not a timestamp"),
        (lambda: as_series([1, 2]).split(2), "cannot hold out 2"),
        (lambda: as_series([[1], [2]]).select("serie-1"), "Closest: series-1"),
        (
            lambda: as_series(
                np.arange(500.0), freq="D", start="2262-01-01"
            ).timestamps(),
            "beyond 2262-04-11",
        ),
    ],
)
def test_names_sizes_and_options_are_checked(
    call: Callable[[], object], message: str
) -> None:
    expect_error(message, call)


@given(st.lists(SERIES, min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_batches_are_read_only_copies(
    arrays: list[np.ndarray],
) -> None:
    """Arrays of the caller are copied, and the batch is read-only."""
    copies = [array.copy() for array in arrays]
    batch = as_series(arrays)
    for given_, copy, retained in zip(arrays, copies, batch.values, strict=True):
        np.testing.assert_array_equal(given_, copy)
        np.testing.assert_array_equal(retained, copy)
        assert not np.shares_memory(retained, given_)
        with pytest.raises(ValueError, match="read-only"):
            retained[0] = 0.0


@given(
    st.lists(SERIES, min_size=1, max_size=3),
    st.sampled_from(["h", "D", "MS", "W-MON", "QS-OCT"]),
)
@settings(deadline=None, max_examples=40)
def test_frames_read_back(arrays: list[np.ndarray], freq: str) -> None:
    batch = as_series(arrays, freq=freq, start="2001-01-01")
    back = as_series(batch.to_frame(), freq=freq)
    assert back.ids == batch.ids
    for index in range(len(batch)):
        np.testing.assert_array_equal(back.values[index], batch.values[index])
        assert (back.timestamps(index) == batch.timestamps(index)).all()


def test_gaps_become_nan_and_are_noted() -> None:
    stamps = pd.date_range("2020-01-01", periods=12, freq="h").delete([3, 7, 8])
    batch = as_series(pd.DataFrame({"timestamp": stamps, "y": np.arange(9.0)}))
    assert np.flatnonzero(np.isnan(batch.values[0])).tolist() == [3, 7, 8]
    assert "3 missing timestamps" in batch.notes[0]


def test_bundled_series_are_real_and_described() -> None:
    """Bundled series are real, described and from several fields."""
    infos = [bundled_info(name) for name in bundled_names()]
    assert len(infos) >= 10
    assert len({info.field for info in infos}) >= 6
    assert len({info.freq for info in infos}) >= 5
    for info in infos:
        batch = bundled(info.name)
        assert batch.lengths == (info.length,)
        assert info.source
        assert info.licence
        assert batch.units[0] == info.unit
    # facts anyone can look up
    assert bundled("nile").values[0][:3].tolist() == [1120, 1160, 963]
    assert np.nanmax(bundled("sunspots").values[0]) == pytest.approx(190.2)
    expect_error("Closest: sunspots", bundled, "sunspot")


def test_bundled_files_match_their_packages(tmp_path: Path) -> None:
    """Bundled files equal those that the packages hold."""
    for package in ("statsmodels", "tsdata", "vega_datasets"):
        pytest.importorskip(
            package, reason=f"{package} is needed to rebuild the bundled series"
        )
    import runpy

    script = Path(__file__).parents[2] / "tools" / "build_bundled.py"
    runpy.run_path(str(script))["build"](tmp_path)
    shipped = Path(script.parents[1] / "tsfm_lens" / "data" / "bundled_series")
    for path in sorted(tmp_path.iterdir()):
        assert path.read_text() == (shipped / path.name).read_text(), path.name


def test_positions_are_whole_numbers_of_any_type() -> None:
    batch = as_series([[1.0], [2.0], [3.0]])
    for which in (
        1,
        np.int64(1),
        np.int8(-2),
        [np.uint8(1)],
        np.array([1]),
        "series-1",
    ):
        assert batch.select(which).values[0].tolist() == [2.0]


def test_mixed_frequencies_keep_their_seasons() -> None:
    """Series of mixed frequencies keep their own times and seasons."""
    batch = bundled("co2", "electricity")
    assert (batch.freq, batch.seasonality) == (None, 1)
    assert (batch.freqs, batch.seasonalities) == (("MS", "h"), (12, 24))
    context, _ = batch.tail(50).split(10)
    for index, name in enumerate(batch.ids):
        assert (context.timestamps(index) == bundled(name).timestamps()[-50:-10]).all()
    alone = batch.select("electricity")
    assert (alone.freq, alone.seasonality) == ("h", 24)
    assert SeriesBatch.concat([alone, bundled("pedestrians")]).freq == "h"


GONE = [np.nan] * 3
LONG = np.arange(12.0)


def test_held_out_end_needs_value() -> None:
    """A held-out end needs at least one value."""
    ended = np.r_[LONG, GONE]
    going = np.arange(15.0)
    with pytest.raises(
        InputError,
        match=(
            "'series-0' ends with 3 missing values: the truth of all 2 steps is missing"
        ),
    ):
        hold_out(SeriesBatch((ended,)), 2)
    context, truth = hold_out(SeriesBatch((ended,)), 4)
    assert context.notes == ()
    assert np.isfinite(truth).sum() == 1
    context, truth = hold_out(SeriesBatch((ended, going)), 2)
    assert np.isfinite(truth).tolist() == [[False] * 2, [True] * 2]


READERS: dict[str, Callable[..., SeriesBatch]] = {
    "as_series": as_series,
    "from_frame": from_frame,
    "run": lambda frame, **options: (
        tsfm_lens.load("chronos2-nano").run(frame, 2, **options).batch
    ),
    "forecast": lambda frame, **options: (
        tsfm_lens.load("chronos2-nano").forecast(frame, 2, **options).context
    ),
}


@pytest.mark.parametrize("reader", [*READERS, "read_series"])
def test_a_single_name_is_one_column(reader: str, tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"Umsatz": np.arange(12.0), "Wetter": np.arange(12) % 3, "Tag": [1, 2] * 6}
    )

    def read(**options: Any) -> SeriesBatch:
        if reader != "read_series":
            return READERS[reader](table, **options)
        table.to_csv(tmp_path / "table.csv", index=False)
        return read_series(tmp_path / "table.csv", **options)

    assert read(targets="Umsatz").ids == ("Umsatz",)
    assert read(variates="Umsatz").variates == ("Umsatz",)
    covariates = {"past": "Wetter", "categories": "Wetter"}
    assert read(targets="Umsatz", **covariates).categories == (None, ("0", "1", "2"))
    assert read(targets="Umsatz", past="Wetter,Tag").variates == (
        "Umsatz",
        "Wetter",
        "Tag",
    )


def test_forecast_accepts_reading_arguments() -> None:
    """A forecast takes the arguments of reading."""
    lens = tsfm_lens.load("bolt-nano")
    table = pd.DataFrame({"y": np.sin(np.arange(40.0)), "z": np.cos(np.arange(40.0))})
    found = lens.forecast(table, 4, targets=["z"], units="kWh")
    np.testing.assert_array_equal(found.median, lens.forecast(table["z"], 4).median)
    assert found.context.units == ("kWh",)
    expect_error("'target'.*targets", lens.forecast, table, 4, target="z")


@pytest.mark.parametrize("kind", [list, tuple])
def test_listed_batches_are_joined(kind: Any) -> None:
    """Batches in a list are joined into one."""
    parts = [
        bundled("co2"),
        bundled("elnino"),
        as_series([np.arange(9.0)], ids=["x"], units="m"),
    ]
    full = as_series(kind(parts))
    assert (full.ids, full.freqs) == tuple(
        tuple(item for part in parts for item in getattr(part, name))
        for name in ("ids", "freqs")
    )
    assert full.units == (*parts[0].units, *parts[1].units, "m")
    lens = tsfm_lens.load("bolt-nano")
    assert_close(
        lens.forecast(kind(parts), 4).median[2],
        lens.forecast(parts[2], 4).median[0],
        depth=1000,
        dtype=np.float32,
    )
    expect_error("item 1 is ndarray", as_series, [parts[0], np.arange(3.0)])
    expect_error("unique.*'co2'", as_series, [parts[0], parts[0]])
    expect_error("'a' is a SeriesBatch", as_series, {"a": parts[0]})


@pytest.mark.parametrize(
    ("data", "axis"),
    [
        (np.ones((500, 3)), "series"),
        (torch.ones(40, 2), "series"),
        (np.ones((2, 500, 3)), "variates"),
        ([np.ones((60, 4))], "variates"),
        ({"a": np.ones((99, 9))}, "variates"),
        ([{"target": torch.ones(60, 4)}], "variates"),
        ([{"target": [torch.ones(4, requires_grad=True)] * 60}], "variates"),
    ],
)
def test_arrays_of_times_by_series_are_told(data: Any, axis: str) -> None:
    """An array with a column for each series is read as many short ones, and said."""
    with pytest.warns(UserWarning, match="transpose"):
        batch = as_series(data)
    (note,) = batch.notes
    assert axis in note
    assert "array.T" in note


@pytest.mark.parametrize(
    "shape", [(3, 500), (64, 16), (20, 2), (5,), (2, 40, 8), (99, 3, 20)]
)
def test_arrays_of_series_by_time_are_not(shape: tuple[int, ...]) -> None:
    assert as_series(np.ones(shape)).notes == ()
