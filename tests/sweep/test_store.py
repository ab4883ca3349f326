"""A store keeps each finished cell once and whole, whatever happens to the process, and
notices every damage.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import sweep_toys as toys
from sweep_toys import Start, Wait

from refusals import expect_error
from tsfm_lens.sweep import store as stores
from tsfm_lens.sweep.store import SCHEMA_VERSION, Store, cell_key

CELLS = toys.CELLS


def temporary_files(store: Store) -> list[Path]:
    return list(store.path.rglob(".*.part"))


def test_keys_follow_content_alone() -> None:
    """A key follows the content and nothing else."""
    key = cell_key(
        levels=(0.1, 0.5), model={"name": "m", "seed": 3}, horizon=np.int64(8)
    )
    assert key == cell_key(
        horizon=8, model={"seed": 3, "name": "m"}, levels=np.array([0.1, 0.5])
    )
    rest = [
        cell_key(levels=(0.5, 0.1), model={"name": "m", "seed": 3}, horizon=8),
        cell_key(levels=(0.1, 0.5), model={"name": "m", "seed": 4}, horizon=8),
        cell_key(levels=(0.1, 0.5), model={"name": "m", "seed": 3}, horizon="8"),
        cell_key(levels=(0.1, 0.5), model={"name": "m", "seed": 3}),
    ]
    assert len({key, *rest}) == 5
    assert len(key) == 32
    assert int(key, 16)
    expect_error("nan", cell_key, level=float("nan"))
    expect_error("object", cell_key, model=object())


def test_stored_values_are_read_bit_exactly(store: Store) -> None:
    """What was written is read to the last bit."""
    rows = toys.toy_rows(CELLS[:3]).to_pandas()
    rows.loc[4, "error"] = np.nan
    rows.loc[5, "error"] = np.inf
    # rows of a cell need not stand together, and columns may stand in any order
    mixed = rows.iloc[np.random.default_rng(0).permutation(len(rows))]
    store.write(mixed[sorted(mixed.columns)], CELLS[:3])
    assert store.done() == set(CELLS[:3])
    assert store.holds(CELLS[:3])
    assert not store.holds(CELLS[:2])
    found = Store(store.path, create=False).read(CELLS[:3]).to_pandas()
    found = found.astype(dict.fromkeys(stores.TEXT_COLUMNS, object))
    order = ["cell", "item"]
    pd.testing.assert_frame_equal(
        found.sort_values(order, ignore_index=True)[list(rows)],
        rows.sort_values(order, ignore_index=True),
        check_dtype=False,
    )
    assert found["window"].dtype == np.int32
    assert found["error"].dtype == np.float64


def test_only_wanted_cells_are_read(store: Store) -> None:
    """Only the cells and columns that are asked for are read."""
    store.write(toys.toy_rows(CELLS[:3]), CELLS[:3])
    store.write(toys.toy_rows(CELLS[3:4]), CELLS[3:4])
    found = store.read([CELLS[3], CELLS[1]], ["cell", "error"])
    assert found.column_names == ["cell", "error"]
    assert set(found.column("cell").to_pylist()) == {CELLS[1], CELLS[3]}
    assert (
        store.read([CELLS[1]], ["error"]).to_pydict()
        == toys.toy_rows(CELLS[1:2]).select(["error"]).to_pydict()
    )
    # a cell in two files, as after a change of the size of groups, counts once
    store.write(toys.toy_rows(CELLS[2:5]), CELLS[2:5])
    assert store.read(CELLS[:5]).to_pandas()[
        "cell"
    ].value_counts().to_dict() == dict.fromkeys(CELLS[:5], 3)
    expect_error(
        r"1 of 6 cells are not in .*run the sweep to its end", store.read, CELLS
    )
    other = toys.toy_rows(CELLS[5:]).to_pandas().rename(columns={"error": "rank"})
    store.write(other, CELLS[5:])
    expect_error("different columns", store.read, CELLS)
    shutil.rmtree(store.path)
    expect_error("no longer there", store.done)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns="item"), r"missing: \['item'\]"),
        (lambda rows: rows.assign(error="high"), "wrong type"),
        (lambda rows: rows.assign(window=0.5), "wrong type"),
        (
            lambda rows: rows.assign(item=rows["item"].where(rows.index > 0)),
            "missing values",
        ),
        (
            lambda rows: rows.assign(window=rows["window"].where(rows.index > 0)),
            "missing values",
        ),
        (
            lambda rows: rows[rows["cell"] != CELLS[1]],
            f"the cell {CELLS[1]} of the group has no row",
        ),
        (
            lambda rows: rows.replace(CELLS[1], CELLS[4]),
            f"hold the cell {CELLS[4]}, which is not one",
        ),
        (
            lambda rows: pd.concat([rows, rows.iloc[:1]]),
            "two rows of a sweep are of the same cell, item",
        ),
    ],
)
def test_rows_must_belong_to_the_cells(
    store: Store, change: Callable[[pd.DataFrame], pd.DataFrame], message: str
) -> None:
    """Rows that are not those of the cells are refused."""
    rows = toys.toy_rows(CELLS[:3]).to_pandas()
    expect_error(message, store.write, change(rows), CELLS[:3])
    for cells in ((), (CELLS[0], CELLS[0])):
        expect_error("each of its cells once", store.write, rows, cells)
    assert store.done() == set()


@pytest.mark.parametrize("step", ["write", "fsync", "replace", "sync folder"])
def test_killed_write_leaves_no_partial_file(
    store: Store, start_process: Start, step: str
) -> None:
    """A kill at any step of a write leaves a whole file or none."""
    store.write(toys.toy_rows(CELLS[:3]), CELLS[:3])
    process = start_process(toys.write_and_die, store.path, CELLS[3:], step)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    toys.check_undamaged(store.path)
    # the new name is there only after the step that gives it
    assert store.done() == set(CELLS if step == "sync folder" else CELLS[:3])
    store.write(toys.toy_rows(CELLS[3:]), CELLS[3:])
    assert store.read(CELLS).num_rows == 18


def test_full_disk_loses_nothing(store: Store) -> None:
    """A full disk ends the run with advice and loses nothing."""
    store.write(toys.toy_rows(CELLS[:3]), CELLS[:3])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # files of this process grow no further, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, hard))
    try:
        expect_error(
            r"could not be written .* run the same command again",
            store.write,
            toys.toy_rows(CELLS[3:], 2000),
            CELLS[3:],
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert temporary_files(store) == []
    assert store.done() == set(CELLS[:3])
    store.write(toys.toy_rows(CELLS[3:], 2000), CELLS[3:])
    assert store.done() == set(CELLS)


def test_folder_without_store_is_refused(tmp_path: Path) -> None:
    """A folder that is no store is refused."""
    (tmp_path / "file").write_text("text")
    expect_error("Not a directory", Store, tmp_path / "file")
    expect_error("Not a directory", Store, tmp_path / "file" / "store")
    expect_error("holds file: give a new or empty folder", Store, tmp_path)
    expect_error(r"has no store\.json", Store, tmp_path / "nothing", create=False)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "store.json").write_text('{"shelves": 3}')
    expect_error("holds store.json: give a new", Store, tmp_path / "other")
    assert (tmp_path / "other" / "store.json").read_text() == '{"shelves": 3}'


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0])
def test_another_schema_is_never_mixed_in(store: Store, version: int) -> None:
    marker = store.path / "store.json"
    about = json.loads(marker.read_text())
    assert about["schema"] == SCHEMA_VERSION
    marker.write_text(json.dumps({**about, "schema": version}))
    both = (
        f"has schema version {version}, and this tsfm-lens reads version"
        f" {SCHEMA_VERSION}"
    )
    expect_error(both, Store, store.path, create=False)


def test_lock_excludes_others_until_released(
    store: Store,
    start_process: Start,
    wait_for_condition: Wait,
    tmp_path: Path,
) -> None:
    """A lock excludes others until it ends."""
    with (
        store.lock("key") as first,
        Store(store.path).lock("key") as second,
        store.lock("other") as third,
    ):
        assert (first, second, third) == (True, False, True)
    with store.lock("key") as again:
        assert again
    # the kernel frees the lock of a process that is killed; its file stays, and is in
    # nobody's way
    process = start_process(toys.hold_lock, store.path, "key", tmp_path)
    wait_for_condition(lambda: toys.list_notes(tmp_path, "lock") == [["True"]])
    with store.lock("key") as taken:
        assert not taken
    process.kill()
    process.join()
    with store.lock("key") as freed:
        assert freed


def test_plans_are_kept_by_name(store: Store) -> None:
    expect_error("no sweep was planned", store.read_plan)
    plan = pd.DataFrame(
        {
            "variant": ["a", "b"],
            "components": [["decoder.0"], []],
            "layer": [1.0, np.nan],
        }
    )
    cells = pd.DataFrame({"key": CELLS, "chunk": range(6)})
    about = {"versions": {"torch": "2"}}
    store.write_plan("sweep-1", about, entries=plan, cells=cells)
    for name in ("sweep-1", "sweep", None):
        saved = store.read_plan(name)
        assert (saved.name, saved.about) == ("sweep-1", about)
        pd.testing.assert_frame_equal(saved.entries, plan)
        pd.testing.assert_frame_equal(saved.cells, cells)
    store.write_plan("sweep-1", {}, entries=plan[:1], cells=cells)
    assert len(store.read_plan("sweep").entries) == 1
    assert store.plans() == ["sweep-1"]
    expect_error(r"Closest: sweep", store.read_plan, "sweap")
    (store.path / "plans" / "sweep-1.plan").write_bytes(b"PAR1")
    expect_error("cannot be read.*tsfm-lens sweep CONFIG", store.read_plan, "sweep")
    store.write_plan("other-1", {}, entries=plan, cells=cells)
    expect_error("several sweeps.*other-1", store.read_plan)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    # random numbers do not compress, so they stand there as they are, and only the
    # page's checksum can tell
    value = toys.toy_rows(CELLS[:1]).column("error")[1].as_py()
    content[content.index(struct.pack("<d", value))] ^= 1
    path.write_bytes(content)


def lie_about_cells(path: Path) -> None:
    content = path.read_bytes()
    # the rows are compressed, so the last is the list of cells; both keys have the same
    # length
    position = content.rindex(CELLS[1].encode())
    path.write_bytes(
        content[:position] + CELLS[5].encode() + content[position + len(CELLS[5]) :]
    )


def put_a_foreign_table(path: Path) -> None:
    pq.write_table(toys.toy_rows(CELLS[:3]), path)


@pytest.mark.parametrize(
    "damage",
    [truncate, flip_a_bit, lie_about_cells, put_a_foreign_table, Path.write_bytes],
)
def test_unreadable_file_is_a_missing_cell(
    store: Store, damage: Callable[..., Any]
) -> None:
    """A file that cannot be read is a missing cell and is named once."""
    path = store.write(toys.toy_rows(CELLS[:3]), CELLS[:3])
    store.write(toys.toy_rows(CELLS[3:]), CELLS[3:])
    assert store.done() == set(CELLS)
    damage(*((path, b"") if damage is Path.write_bytes else (path,)))
    with pytest.warns(UserWarning, match=path.name):
        assert store.done() == set(CELLS[3:])
    # no second warning
    toys.check_undamaged(store.path, store)
    assert not store.holds(CELLS[:3])
    expect_error("3 of 6 cells are not", store.read, CELLS)
    # it is computed again, and stands where it stood
    store.write(toys.toy_rows(CELLS[:3]), CELLS[:3])
    toys.check_undamaged(store.path)
    assert store.read(CELLS).num_rows == 18


def test_unreadable_description_is_rewritten(store: Store) -> None:
    """A description that cannot be read is written again."""
    store.write(toys.toy_rows(CELLS[:3]), CELLS[:3])
    for content in (b"", b"{}", b"[]"):
        (store.path / "store.json").write_bytes(content)
        expect_error("tsfm-lens sweep CONFIG", Store, store.path, create=False)
        assert Store(store.path).done() == set(CELLS[:3])


def choose_bits(content: bytes, footer: int) -> list[tuple[int, int]]:
    """A bit of 300 bytes of a file's footer, and of 100 others."""
    chosen = random.Random(0)
    parts = (
        (range(len(content) - footer), 100),
        (range(len(content) - footer, len(content)), 300),
    )
    positions = [
        position
        for part, most in parts
        for position in chosen.sample(part, min(most, len(part)))
    ]
    return [(position, 1 << chosen.randrange(8)) for position in positions]


def test_flipped_bits_never_change_results(store: Store) -> None:
    """No flipped bit of a file changes what is read from it."""
    path = store.write(toys.toy_rows(CELLS[:2]), CELLS[:2])
    full = store.read(CELLS[:2])
    content = path.read_bytes()
    # names and types of columns stand in the footer, whose length stands before the
    # last four bytes
    footer = int.from_bytes(content[-8:-4], "little") + 8
    unnoticed = 0
    for position, bit in choose_bits(content, footer):
        path.write_bytes(
            content[:position]
            + bytes([content[position] ^ bit])
            + content[position + 1 :]
        )
        fresh = Store(store.path, create=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            done = fresh.done()
        if done:
            # such as the name of the library that wrote it
            unnoticed += 1
            assert fresh.read(CELLS[:2]).equals(full), (position, bit)
            continue
        assert path.name in str(caught[0].message), (position, bit)
        expect_error("are not in", fresh.read, CELLS[:2])
    assert unnoticed < 100
