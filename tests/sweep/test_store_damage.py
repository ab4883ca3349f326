"""What was changed, cut short, swapped or lost in a store is noticed, told and mended."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import sweep_toys as toys

from refusals import expect_error
from tsfm_lens.errors import StoreError
from tsfm_lens.sweep.store.folder import Store

CELLS = toys.CELLS


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    # random numbers do not compress, so they stand there as they are, and only the page's checksum can tell
    value = toys.toy_rows(CELLS[:1]).column("error")[1].as_py()
    content[content.index(struct.pack("<d", value))] ^= 1
    path.write_bytes(content)


def lie_about_cells(path: Path) -> None:
    content = path.read_bytes()
    # the rows are compressed, so the last is the list of cells; both keys have the same length
    place = content.rindex(CELLS[1].encode())
    path.write_bytes(content[:place] + CELLS[5].encode() + content[place + len(CELLS[5]) :])


def put_a_foreign_table(path: Path) -> None:
    pq.write_table(toys.toy_rows(CELLS[:3]), path)


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, lie_about_cells, put_a_foreign_table, Path.write_bytes])
def test_a_damaged_file_is_found_and_moved_aside(store: Store, damage: Callable[..., Any]) -> None:
    path = store.write(toys.toy_rows(CELLS[:3]), CELLS[:3])
    store.write(toys.toy_rows(CELLS[3:]), CELLS[3:])
    store.done()
    damage(*((path, b"") if damage is Path.write_bytes else (path,)))
    broken = path.read_bytes()
    expect_error(r"is damaged.*tsfm-lens sweep CONFIG --store|3 of 6 cells are not", store.read, CELLS)
    (found,) = store.damaged()
    assert (found.path, found.moved_to) == (path, None)
    (moved,) = store.damaged(move=True)
    assert moved.moved_to.parent == store.path / "damaged"
    assert moved.moved_to.read_bytes() == broken
    assert str(moved.moved_to) in str(moved)
    assert store.damaged() == []
    assert store.done() == set(CELLS[3:])
    store.write(toys.toy_rows(CELLS[:3]), CELLS[:3])
    assert store.read(CELLS).num_rows == 18


def bits_of(content: bytes, footer: int) -> list[tuple[int, int]]:
    """A bit of 300 bytes of a file's footer, and of 100 others."""
    chosen = random.Random(0)
    parts = (range(len(content) - footer), 100), (range(len(content) - footer, len(content)), 300)
    places = [place for part, most in parts for place in chosen.sample(part, min(most, len(part)))]
    return [(place, 1 << chosen.randrange(8)) for place in places]


@pytest.mark.parametrize("kind", ["cells", "plan", "about"])
def test_no_bit_of_a_file_changes_what_is_read(store: Store, kind: str) -> None:
    store.write_plan("sweep", {"models": {"toy": {"layers": 3}}}, cells=pd.DataFrame({"key": CELLS, "chunk": range(6)}))
    path = store.write(toys.toy_rows(CELLS[:2]), CELLS[:2])
    if kind != "cells":
        (path,) = (store.path / "plans").glob("*.parquet" if kind == "plan" else "*.json")
    whole = store.read(CELLS[:2])
    content = path.read_bytes()
    # names and types of columns stand in the footer, whose length stands before the last four bytes
    footer = len(content) if kind == "about" else int.from_bytes(content[-8:-4], "little") + 8
    unnoticed = 0
    for place, bit in bits_of(content, footer):
        path.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
        fresh = Store(store.path, create=False)
        damages = [damage.path for damage in fresh.damaged()]
        if kind == "cells" and not damages:
            # such as the name of the library that wrote it
            unnoticed += 1
            assert fresh.read(CELLS[:2]).equals(whole), (place, bit)
            continue
        assert damages == [path], (place, bit)
        with pytest.raises(StoreError, match=r"are not in|tsfm-lens sweep CONFIG --store"):
            fresh.read(CELLS[:2]) if kind == "cells" else fresh.read_plan("sweep")
    assert unnoticed < 100
    path.write_bytes(content)
    assert Store(store.path, create=False).damaged() == []


def test_a_file_in_another_s_place_is_damaged(store: Store) -> None:
    first, second = (store.write(toys.toy_rows(cells), cells) for cells in (CELLS[:3], CELLS[3:]))
    for name in ("one", "two"):
        store.write_plan(name, {"turn": name})
    plans = sorted((store.path / "plans").glob("*.json"))
    for one, other in ((first, second), plans):
        contents = one.read_bytes(), other.read_bytes()
        one.write_bytes(contents[1])
        other.write_bytes(contents[0])
    assert {damage.path for damage in store.damaged(move=True)} == {first, second, *plans}
    assert store.done() == set()
    assert store.plans() == []


@pytest.mark.parametrize("name", ["store.json.bak", "cells/store.json", None, "changed"])
def test_a_store_json_that_is_gone_or_changed_is_made_anew(store: Store, name: str | None) -> None:
    store.write(toys.toy_rows(CELLS[:3]), CELLS[:3])
    marker = store.path / "store.json"
    before = marker.read_bytes()
    if name == "changed":
        marker.write_bytes(before.replace(b'"schema": 3', b'"schema": 4'))
    else:
        marker.unlink() if name is None else marker.rename(store.path / name)
    why = "it was changed" if name == "changed" else "it is not there"
    expect_error(rf"{marker} is damaged: {why}.*tsfm-lens sweep CONFIG --store", Store, store.path, create=False)
    mended = Store(store.path, values=toys.VALUES)
    assert marker.read_bytes() == before
    assert mended.read(CELLS[:3]).num_rows == 9
    (damage,) = mended.damaged(move=True)
    assert str(damage).startswith(f"{marker}: {why}")
    assert Store(store.path, create=False).damaged() == []
    # what stood under the other name is nobody's, and stays
    assert name in (None, "changed") or (store.path / name).read_bytes() == before
