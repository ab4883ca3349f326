"""Embeddings of a file are those of its series, whatever stops the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import tsfm_lens
from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens.cli import app
from tsfm_lens.core.errors import StoreError
from tsfm_lens.data import SeriesBatch, read_series
from tsfm_lens.data.file_parts import read_parts
from tsfm_lens.sweep import Store, read_embeddings, write_embeddings
from tsfm_lens.testing import assert_close

ROWS = 60
LENGTHS = (33, 50, 20, 41, 90, 27)


def long_frame(**columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    parts = [
        pd.DataFrame(
            {
                "id": f"item {index}",
                "timestamp": pd.date_range("2024-01-01", periods=length, freq="D"),
                "target": rng.normal(10, 1, length).round(3),
            }
        )
        for index, length in enumerate(LENGTHS)
    ]
    return pd.concat(parts, ignore_index=True).assign(**columns)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "long.parquet"
    long_frame().to_parquet(path)
    return path


def write(file: Any, folder: Path, *args: Any, **options: Any) -> Any:
    lens = lens_of("chronos-bolt")
    return write_embeddings(lens, file, folder, *args, rows=ROWS, **options)


def assert_same_frames(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """The same rows; vectors up to the padding of their parts."""
    pd.testing.assert_frame_equal(
        found.drop(columns="vector"), expected.drop(columns="vector")
    )
    matrices = [np.stack(frame["vector"].tolist()) for frame in (found, expected)]
    assert_close(*matrices, depth=200, dtype=np.float32)


@pytest.mark.parametrize(
    "options", [{"layer": -1}, {"layer": 0, "pool": "mean"}, {"stack": "decoder"}]
)
@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz"])
def test_files_give_the_vectors_of_their_series(
    ending: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / f"long.{ending}"
    if ending == "parquet":
        long_frame().to_parquet(path)
    else:
        long_frame().to_csv(path, index=False)
    outcome = write(path, tmp_path / "out", **options)
    assert outcome.parts > 2
    assert outcome.series == len(LENGTHS)
    expected = lens_of("chronos-bolt").embed(read_series(path), **options)
    found = read_embeddings(tmp_path / "out")
    assert_same_frames(found, expected)
    assert found.attrs["source"] == str(path)


def test_killed_runs_go_on(file: Path, tmp_path: Path) -> None:
    """What was finished is kept, and the end is that of a run without a stop."""
    folder = tmp_path / "out"

    def stop(series: int) -> None:
        if series >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(file, folder, 1, progress=stop)
    expect_error("not finished: run the same command", read_embeddings, folder)
    expect_error("layer 1 and not 0.*new folder", write, file, folder, 0)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    assert before
    outcome = write(file, folder, 1)
    assert outcome.resumed == len(before) < outcome.parts
    assert {path: path.stat().st_mtime_ns for path in before} == before
    write(file, tmp_path / "undisturbed", 1)
    pd.testing.assert_frame_equal(
        read_embeddings(folder), read_embeddings(tmp_path / "undisturbed")
    )
    again = write(file, folder, 1)
    assert again.resumed == again.parts == outcome.parts


def test_damaged_parts_are_computed_again(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write(file, folder, 1)
    expected = read_embeddings(folder)
    damaged = min(folder.rglob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    expect_error("(?i)run the same command again", read_embeddings, folder)
    with pytest.warns(UserWarning, match=damaged.name):
        outcome = write(file, folder, 1)
    assert outcome.resumed == outcome.parts - 1
    pd.testing.assert_frame_equal(read_embeddings(folder), expected)


def test_other_embeddings_are_refused(file: Path, tmp_path: Path) -> None:
    """A folder keeps the vectors of one model, layer and file."""
    folder = tmp_path / "out"
    write(file, folder, 1)
    refused = [
        ((file, folder, 0), {}, "layer 1 and not 0"),
        ((file, folder, 1), {"pool": "mean"}, "pool None and not 'mean'"),
        ((file, folder, 1), {"stack": "decoder"}, "stack 'encoder'"),
        ((file, folder, 1), {"freq": "D"}, "options of reading"),
    ]
    for args, options, message in refused:
        expect_error(rf"(?i){message}.*new folder", write, *args, **options)
    other = lens_of("chronos")
    expect_error(
        "of model .*new folder", write_embeddings, other, file, folder, 1, rows=ROWS
    )
    long_frame(target=1.5).to_parquet(file)
    expect_error("other content.*new folder", write, file, folder, 1)
    # advice that works
    assert write(file, tmp_path / "new", 1).parts
    expect_error("not a store of a sweep", Store, folder, create=False)
    expect_error("not a store of a sweep but holds", Store, folder)


def test_two_writers_do_not_meet(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"

    def start_second(series: int) -> None:
        with pytest.raises(StoreError, match="another process"):
            write(file, folder, 1)

    assert write(file, folder, 1, progress=start_second).parts > 2


def test_hooks_are_refused(file: Path, tmp_path: Path) -> None:
    lens = lens_of("chronos-bolt")
    with lens.ablate("encoder.0.*"):
        expect_error("hooks are set", write, file, tmp_path / "out", 1)


def test_series_in_memory_are_written_too(tmp_path: Path) -> None:
    """Items with several variates stay whole, and keep their labels."""
    lens = lens_of("chronos-2")
    rng = np.random.default_rng(0)
    batch = SeriesBatch(
        tuple(rng.normal(size=(6, 40))),
        groups=("x", "x", "y", "y", "z", "z"),
        variates=("u", "v") * 3,
    )
    outcome = write_embeddings(lens, batch, tmp_path / "out", 0, rows=80)
    assert outcome.parts == 3
    assert_same_frames(read_embeddings(outcome.folder), lens.embed(batch, 0))


def test_files_that_cannot_be_cut_are_refused(tmp_path: Path) -> None:
    """What would be read otherwise in parts than as a whole is an error."""
    frame = long_frame()
    path = tmp_path / "long.csv"
    apart = pd.concat([frame, frame.iloc[:5]])
    words = frame.assign(note=frame.index)
    words["note"] = words["note"].astype(object).where(words.index < 150, "open")
    levels = frame.assign(sky=np.where(frame.index % 2, "grey", "blue"))
    cases = [
        (apart, {}, r"rows of 'item 0' stand apart; sort"),
        (words, {}, r"'note' is numbers in some rows.*targets="),
        (levels, {"past": ["sky"]}, r"/sky' is text.*read_series"),
    ]
    for index, (table, options, message) in enumerate(cases):
        table.to_csv(path, index=False)
        folder = tmp_path / f"out {index}"
        expect_error(message, write, path, folder, 1, **options)
    words.to_csv(path, index=False)
    assert write(path, tmp_path / "named", 1, targets=["target"]).parts > 2


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("rows", [1, 40])
def test_parts_may_be_small(ending: str, rows: int, tmp_path: Path) -> None:
    """The series are the same, and no part has less than one of them."""
    path = tmp_path / f"long.{ending}"
    if ending == "parquet":
        long_frame().to_parquet(path)
    else:
        long_frame().to_csv(path, index=False)
    parts = list(read_parts(path, rows))
    whole = read_series(path)
    read = SeriesBatch.concat(parts).values
    assert [name for part in parts for name in part.ids] == list(whole.ids)
    for found, expected in zip(read, whole.values, strict=True):
        np.testing.assert_array_equal(found, expected)
    if rows == 1:
        assert len(parts) == len(whole)


def test_parts_share_a_grid(tmp_path: Path) -> None:
    """Series with gaps in a later part are on the grid of the first part."""
    frame = long_frame()
    is_last = frame["id"] == frame["id"].iloc[-1]
    frame = frame[~is_last | (frame.index % 2 == 0)]
    path = tmp_path / "long.parquet"
    frame.to_parquet(path)
    read = SeriesBatch.concat(list(read_parts(path, ROWS)))
    whole = read_series(path, freq="D")
    assert read.freqs == whole.freqs
    assert read.lengths == whole.lengths


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_empty_files_are_refused(ending: str, tmp_path: Path) -> None:
    empty = tmp_path / f"empty.{ending}"
    empty.write_bytes(b"")
    bare = tmp_path / f"bare.{ending}"
    if ending == "parquet":
        long_frame().iloc[:0].to_parquet(bare)
    else:
        long_frame().iloc[:0].to_csv(bare, index=False)
    expect_error(rf"empty\.{ending}", write, empty, tmp_path / "out")
    expect_error(rf"bare\.{ending}.*no rows", write, bare, tmp_path / "out")


def test_wrong_calls_leave_the_folder_free(file: Path, tmp_path: Path) -> None:
    """What is refused is no reason to refuse the call that is right."""
    folder = tmp_path / "out"
    lens = lens_of("chronos-bolt")
    refused = [
        ({"rows": 0}, "rows=0.*expected an integer from 1"),
        ({"rows": 2.5}, r"rows=2\.5.*expected an integer from 1"),
        ({"h": 3}, "takes no 'h'; the number of forecast steps"),
        ({"poool": "mean"}, "takes no 'poool'; did you mean pool"),
        ({"pool": ["mean"]}, r"no pool .*mean"),
        ({"ids": ["a"]}, "ids=… does not fit a file"),
        ({"targets": ["load"]}, "load"),
    ]
    for options, message in refused:
        expect_error(message, write_embeddings, lens, file, folder, 1, **options)
    assert write(file, folder, 1).parts > 2


def test_series_are_told_apart_by_labels(tmp_path: Path) -> None:
    """Series of the same values under other names, units or seasons are others."""
    lens = lens_of("chronos-bolt")
    batch = SeriesBatch((np.arange(40.0), np.arange(30.0)), freq="D")
    write_embeddings(lens, batch, tmp_path, 0)
    for changed in (
        replace(batch, ids=("a", "b")),
        replace(batch, seasonalities=(12, 12)),
        replace(batch, units=("kW", "MW")),
    ):
        expect_error("other content", write_embeddings, lens, changed, tmp_path, 0)


def test_files_without_ids_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(70, 3)), columns=["u", "v", "w"])
    wide.to_csv(path, index=False)
    outcome = write(path, tmp_path / "out", 1)
    assert outcome.series == 3
    assert set(read_embeddings(outcome.folder)["id"]) == {"u", "v", "w"}


def test_the_command_writes_what_the_library_gives(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "vectors"
    words = ["embed", "bolt-nano", str(file), "--layer", "0", "--pool", "last"]
    done = CliRunner().invoke(app, [*words, "--out", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["series"] == len(LENGTHS)
    expected = tsfm_lens.load("bolt-nano").embed(read_series(file), 0, pool="last")
    assert_same_frames(read_embeddings(folder), expected)
    again = CliRunner().invoke(app, [*words[:3], "--out", str(folder)])
    assert again.exit_code == 1
    assert "give a new folder" in again.stderr
