"""The datasets of a configuration, read from files that the tests write."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml
from gluonts.dataset.arrow import ArrowWriter
from gluonts.dataset.common import FileDataset
from numpy.testing import assert_array_equal

from refusals import expect_error
from sweep.test_gift_eval import write_folder
from tsfm_lens.data import SeriesBatch
from tsfm_lens.sweep import EvaluationSet, holdout_sets
from tsfm_lens.sweep.planner.config import parse_config, read_config

DAYS = pd.date_range("2021-03-01", periods=40, freq="D")


def content(*sources: dict[str, Any]) -> dict[str, Any]:
    return {
        "models": [{"source": "bolt-nano"}],
        "data": list(sources),
        "variants": {"layers": {}},
    }


def sets(*sources: dict[str, Any]) -> list[EvaluationSet]:
    return parse_config(content(*sources)).evaluation_sets()


def file(path: Path, **fields: Any) -> dict[str, Any]:
    return {"source": "file", "path": str(path), "horizon": 4, **fields}


def numbers(shape: int | tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-99, 99, shape).astype(float)


@pytest.fixture
def multivariate(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """Items a and b of three variates, and their values (item, time, variate)."""
    values = numbers((2, 40, 3))
    frame = pd.DataFrame(values.reshape(80, 3), columns=["y", "y2", "wind"])
    frame.insert(0, "unique_id", np.repeat(["a", "b"], 40))
    frame.insert(1, "ds", np.tile(DAYS, 2))
    frame.to_csv(tmp_path / "multi.csv", index=False)
    return tmp_path / "multi.csv", values


def test_columns_are_variates_of_one_item(
    multivariate: tuple[Path, np.ndarray],
) -> None:
    """The columns of a file are the variates of one item."""
    path, values = multivariate
    (found,) = sets(
        file(path, variates=["wind", "y2"], windows=2, stride=3, seasonality=7)
    )
    assert (found.name, found.freq, found.seasonality, len(found)) == (
        "multi",
        "D",
        7,
        4,
    )
    for window in found.windows:
        series = values["ab".index(window.item)].T[[2, 1]]
        trimmed = 33 + 3 * window.index
        assert_array_equal(window.context, series[:, :trimmed])
        assert_array_equal(window.label, series[:, trimmed : trimmed + 4])
        assert window.start == DAYS[0]
    assert found.notes == (
        "not read: 'y'; past=[…] or known=[…] reads columns as covariates",
    )
    (separate,) = sets(file(path, targets=["wind", "y2"], name="mine"))
    assert [window.item for window in separate.windows] == [
        "a/wind",
        "a/y2",
        "b/wind",
        "b/y2",
    ]
    assert separate.name == "mine"
    assert {window.n_variates for window in separate.windows} == {1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"variates": ["winds"]}, r"multi\.csv: no column 'winds'\. Closest: wind"),
        ({"id_column": "uniqueid"}, r"no column 'uniqueid'\. Closest: unique_id"),
        ({"windows": 20}, "'a' has 40 steps: 20 windows of horizon 4"),
        ({"seasonality": 0}, "data.0.file.seasonality: .*greater than or equal to 1"),
        (
            {"variate": ["y"]},
            r"data\.0\.file\.variate is not a field .*nearest is 'variates'",
        ),
    ],
)
def test_wrong_fields_of_a_file(
    multivariate: tuple[Path, np.ndarray], fields: dict[str, Any], message: str
) -> None:
    expect_error(message, sets, file(multivariate[0], **fields))


def test_folders_and_globs_are_many_datasets(tmp_path: Path) -> None:
    """A folder or a glob of files is one dataset for each file."""
    plants = tmp_path / "plants"
    plants.mkdir()
    for seed, name in enumerate(("north", "south", "sea")):
        frame = pd.DataFrame({"timestamp": DAYS, "load": numbers(40, seed)})
        frame.to_csv(plants / f"{name}.csv", index=False)
    (plants / "README.md").write_text("not data")
    alone = {
        name: sets(file(plants / f"{name}.csv"))[0]
        for name in ("north", "sea", "south")
    }
    for path, names in (("", ["north", "sea", "south"]), ("s*.csv", ["sea", "south"])):
        found = sets(file(plants / path if path else plants))
        assert [entry.name for entry in found] == names
        for item in found:
            assert_array_equal(item.windows[0].label, alone[item.name].windows[0].label)
    assert [entry.name for entry in sets(file(plants, name="p"))] == [
        "p/north",
        "p/sea",
        "p/south",
    ]
    (tmp_path / "sweep.yaml").write_text(
        yaml.safe_dump(content(file(Path("plants/n*.csv"))))
    )
    (one,) = read_config(tmp_path / "sweep.yaml").evaluation_sets()
    assert one.name == "north"
    expect_error(
        r"no file that can be read: expected \.csv", sets, file(plants / "x*.csv")
    )


def entries(values: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"item_id": f"i{n}", "start": "2021-03-01", "target": value.tolist()}
        for n, value in enumerate(values)
    ]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def gluonts(path: Path, **fields: Any) -> dict[str, Any]:
    return {"source": "gluonts", "path": str(path), "horizon": 4, "freq": "D", **fields}


@pytest.mark.parametrize("variates", [0, 2])
@pytest.mark.parametrize("name", ["own.json", "own.jsonl.gz", "own.arrow"])
def test_gluonts_files_are_what_gluonts_reads(
    tmp_path: Path, name: str, variates: int
) -> None:
    values = numbers((3, variates, 30) if variates else (3, 30))
    path = tmp_path / name
    if name == "own.arrow":
        rows = [
            {**row, "target": value}
            for row, value in zip(entries(values), values, strict=True)
        ]
        ArrowWriter().write_to_file(rows, path)
    else:
        write_lines(path, entries(values))
    (found,) = sets(gluonts(path, windows=2, seasonality=7))
    assert (found.name, found.freq, found.seasonality, len(found)) == ("own", "D", 7, 6)
    assert found.source == f"gluonts dataset {name}"
    for number, entry in enumerate(FileDataset(path, "D", one_dim_target=not variates)):
        first, last = found.windows[2 * number : 2 * number + 2]
        assert (first.item, last.item) == (entry["item_id"], entry["item_id"])
        assert first.start == entry["start"].start_time
        series = np.atleast_2d(entry["target"])
        assert_array_equal(first.label, series[:, -8:-4])
        assert_array_equal(np.hstack([last.context, last.label]), series)


def test_wrong_gluonts_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = write_lines(tmp_path / "good.json", entries(numbers((2, 20))))
    monkeypatch.chdir(tmp_path)
    for name in ("both/train", "both/test", "none"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data.csv").write_text("a,b\n")
    (tmp_path / "text.json").write_text("[1\n")
    full = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        full, pa.schema({"target": pa.list_(pa.float32())})
    ) as stream:
        stream.write_batch(
            pa.record_batch({"target": pa.array([[1.0, 2.0]], pa.list_(pa.float32()))})
        )
    (tmp_path / "cut.arrow").write_bytes(full.getvalue().to_pybytes()[:150])
    write_lines(tmp_path / "bare.json", [{"target": [1.0, 2.0]}])
    write_lines(tmp_path / "word.json", [{"start": "2020", "target": [1.0, "x"]}])
    write_lines(tmp_path / "twice.json", entries(numbers((1, 20))) * 2)
    (tmp_path / "list.json").write_text("[1, 2]\n")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(good.read_bytes())[:-20])
    for name, message in {
        "nowhere": "no file or folder 'nowhere'",
        "both": "holds test and train; give the folder of one",
        "data.csv": "gluonts reads no data.csv: expected .json",
        "text.json": "text.json is not a dataset of gluonts: line 1 is no JSON",
        "cut.arrow": "cut.arrow is not a dataset",
        "bare.json": (
            "bare.json holds entries with target, expected 'start' and 'target'"
        ),
        "word.json": "word.json is not a dataset of gluonts: .*'x'",
        "twice.json": "twice.json: .*'i0' more than once",
        "list.json": r"list.json holds \[1, 2\]",
        "none": "has no window",
        "cut.json.gz": "cut.json.gz is not a dataset",
    }.items():
        expect_error(message, sets, gluonts(Path(name)))
    expect_error(
        r"data\.0\.gluonts\.freqs is not a field .*'freq'",
        parse_config,
        content(gluonts(good, freqs="D")),
    )


def test_folders_of_gift_eval_are_read(tmp_path: Path) -> None:
    """Folders in the layout of GIFT-Eval are read."""
    values = numbers((2, 700))
    write_folder(tmp_path / "mine", list(values), "H")
    # a bare word beside the configuration is its folder too
    (tmp_path / "sweep.yaml").write_text(
        yaml.safe_dump(content({"source": "folder", "path": "mine"}))
    )
    (found,) = read_config(tmp_path / "sweep.yaml").evaluation_sets()
    # a tenth of 700 steps is two windows of the benchmark's 48 hours
    assert (found.name, found.horizon, found.freq, found.seasonality, len(found)) == (
        "mine/short",
        48,
        "h",
        24,
        4,
    )
    assert_array_equal(found.windows[2].label[0], values[1, -96:-48])
    source = {"source": "folder", "path": str(tmp_path / "mine")}
    (changed,) = sets(
        {
            **source,
            "name": "days",
            "freq": "D",
            "horizon": 7,
            "term": "long",
            "domain": "sales",
        }
    )
    assert (changed.name, changed.freq, changed.horizon, changed.domain) == (
        "days",
        "D",
        7,
        "sales",
    )
    assert len(changed) == 2 * 10
    (medium,) = sets({**source, "term": "medium"})
    assert (medium.name, medium.horizon) == ("mine/medium", 480)
    expect_error(
        r"data\.0\.folder\.term: .*'short', 'medium' or 'long'",
        sets,
        {**source, "term": "brief"},
    )
    expect_error(
        r"'mine/short' is in the configuration more than once", sets, source, source
    )


# --- values that are not there
# --------------------------------------------------------------------------------------


def with_gap(values: np.ndarray, gap: slice) -> np.ndarray:
    values = values.copy()
    values[..., gap] = np.nan
    return values


def rows_of_file(path: Path, values: np.ndarray, suffix: str) -> dict[str, Any]:
    frame = pd.DataFrame({"ds": DAYS, "y": values})
    if suffix == ".csv":
        frame.to_csv(path.with_suffix(suffix), index=False)
    else:
        frame.to_parquet(path.with_suffix(suffix))
    return file(path.with_suffix(suffix))


def entries_of_gluonts(path: Path, values: np.ndarray) -> dict[str, Any]:
    entry = {
        "item_id": "a",
        "start": pd.Period("2021-03-01", freq="D"),
        "target": values,
    }
    ArrowWriter(stream=True).write_to_file([entry], path.with_suffix(".arrow"))
    return {
        "source": "gluonts",
        "path": str(path.with_suffix(".arrow")),
        "horizon": 4,
        "freq": "D",
    }


CARRIERS = {
    "csv": lambda path, values: rows_of_file(path, values, ".csv"),
    "parquet": lambda path, values: rows_of_file(path, values, ".parquet"),
    "gluonts": entries_of_gluonts,
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("empty", [1, 4, 9])
def test_windows_end_before_trailing_gaps(
    tmp_path: Path, carrier: str, empty: int
) -> None:
    """As if the file ended there; a note says so."""
    values = numbers(40)
    source = CARRIERS[carrier](
        tmp_path / "data", with_gap(values, slice(40 - empty, None))
    ) | {"windows": 2}
    (found,) = sets(source)
    assert any(str(empty) in note and "no value" in note for note in found.notes)
    assert [window.index for window in found.windows] == [0, 1]
    assert_array_equal(found.windows[1].label[0], values[36 - empty : 40 - empty])
    assert_array_equal(found.windows[1].context[0], values[: 36 - empty])
    _, truth = found.batch([0, 1])
    assert np.isfinite(truth).all()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_window_inside_gap_is_skipped(tmp_path: Path, carrier: str) -> None:
    """A window inside a gap is left out, and the run says so."""
    values = with_gap(numbers(40), slice(32, 36))
    source = CARRIERS[carrier](tmp_path / "data", values) | {"windows": 3}
    (found,) = sets(source)
    assert [window.index for window in found.windows] == [0, 2]
    assert any("1 of 3 windows" in note for note in found.notes)
    empty = CARRIERS[carrier](tmp_path / "empty", with_gap(numbers(40), slice(3, None)))
    expect_error("3 steps", sets, empty)


def test_a_complete_file_has_no_note(tmp_path: Path) -> None:
    for carrier, write in CARRIERS.items():
        (found,) = sets(write(tmp_path / carrier, numbers(40)))
        assert not any("no value" in note for note in found.notes)


def test_one_missing_variate_is_no_gap(tmp_path: Path) -> None:
    """Steps at which only one variate has no values are no gap."""
    frame = pd.DataFrame(
        {"ds": DAYS, "y": numbers(40), "wind": with_gap(numbers(40), slice(30, None))}
    )
    frame.to_csv(tmp_path / "two.csv", index=False)
    (found,) = sets(file(tmp_path / "two.csv", variates=["y", "wind"]))
    assert found.windows[0].context.shape == (2, 36)


def test_notes_are_of_their_own_set() -> None:
    """A gap of hourly series is no note of the daily ones."""
    values = numbers(40)
    series = SeriesBatch(
        values=(with_gap(values, slice(37, None)), values),
        freqs=("h", "D"),
        starts=(pd.Timestamp("2024-01-01"),) * 2,
    )
    hourly, daily = holdout_sets(series, 4)
    assert (hourly.freq, daily.freq) == ("h", "D")
    assert any("no value" in note for note in hourly.notes)
    assert not daily.notes
