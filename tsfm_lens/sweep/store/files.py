"""The files of a store: content keys, atomic writing, and files whose damage is noticed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tsfm_lens.errors import InputError, StoreError
from tsfm_lens.places import replacing

SCHEMA_VERSION = 3
TEXT_COLUMNS = ("cell", "model", "variant", "dataset", "item")
COUNT_COLUMNS = ("window", "variate")
KEY_COLUMNS = TEXT_COLUMNS + COUNT_COLUMNS
_FOOTER = "tsfm_lens.cells"
# 128 bits: no two of 10^15 cells share a key by chance, and footers stay short
_KEY_DIGITS = 32


class DamagedFileError(Exception):
    """A file is truncated, changed, or of another program; the store reports it or raises a StoreError."""


@dataclass(frozen=True)
class Footer:
    """Footer of a file of finished cells."""

    path: Path
    cells: tuple[str, ...]
    counts: tuple[int, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Damage:
    """A file that is not used."""

    path: Path
    why: str
    moved_to: Path | None = None

    def __str__(self) -> str:
        place = f"; it is now {self.moved_to}" if self.moved_to else ""
        return f"{self.path}: {self.why}{place}"


def cell_key(**content: object) -> str:
    """Compute the key of a cell: a hash of everything that determines its numbers, and of the schema version."""
    return _digest({"schema": SCHEMA_VERSION, **content})


def group_key(cells: Sequence[str]) -> str:
    """Compute the key of a group of cells, whatever their order: the name of its file and of its lock."""
    return _digest(sorted(cells))


def _digest(content: object) -> str:
    options: dict[str, Any] = {
        "sort_keys": True,
        "separators": (",", ":"),
        "allow_nan": False,
    }
    try:
        # numpy's numbers and arrays count as plain ones
        text = json.dumps(content, default=lambda value: value.tolist(), **options)
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"a key cannot be made of {content!r}: {error}") from None
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def make_folder(path: Path, ours: Collection[str]) -> None:
    """Make the folder of a new store; a StoreError where it holds other names than ``ours``."""
    path.mkdir(parents=True, exist_ok=True)
    # another process may be making the same store: its temporary file is hidden
    if others := sorted(
        name
        for name in os.listdir(path)
        if not name.startswith(".") and name not in ours
    ):
        advice = "give a new or empty folder"
        if len(others) == 1:
            away = shlex.join([str(path / others[0]), f"{path}.{others[0]}"])
            advice += (
                f", or move that out of it and run the same command again: mv {away}"
            )
        raise StoreError(
            f"{path} is not a store of a sweep but holds {others[0]}: {advice}"
        )


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file under a temporary name first, so that no kill or power loss leaves half of it."""
    with faults_told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(content)


@contextmanager
def faults_told(path: Path) -> Iterator[None]:
    """Turn errors of the file system into a StoreError."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise trouble(error, path) from error


def trouble(error: OSError, path: Path) -> StoreError:
    """Return a StoreError that says what an error of the file system means for the sweep, and what to do."""
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        origin = Path(error.filename) if error.filename else path
        blocking = next(
            (
                each
                for each in (origin, path, *path.parents)
                if each.is_file() or each.is_symlink()
            ),
            path,
        )
        return StoreError(
            f"{path} should be or be in a folder, but a file has its name. Move it aside and run the same command "
            f"again: mv {shlex.quote(str(blocking))} {shlex.quote(f'{blocking}.aside')}. Or choose another folder."
        )
    return StoreError(
        f"{path} could not be written or read: {error.strerror or error}. Finished cells are kept: fix that and run "
        "the same command again, or choose another folder."
    )


def checked_rows(
    rows: Any, cells: Sequence[str], values: Sequence[str] | None
) -> pa.Table:
    """Convert the rows of a group to the store's columns, cell by cell, or refuse them."""
    table = (
        pa.Table.from_pandas(rows, preserve_index=False)
        if isinstance(rows, pd.DataFrame)
        else rows
    )
    names = table.column_names
    numbers = (
        [name for name in names if name not in KEY_COLUMNS]
        if values is None
        else values
    )
    schema = schema_of([*KEY_COLUMNS, *numbers])
    if wrong := sorted(set(schema.names) ^ set(names)):
        raise InputError(
            f"rows of a sweep have the columns {', '.join(sorted(names))}; missing or unknown: {wrong}"
        )
    try:
        table = table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"a column of a sweep's rows is of a wrong type: {error}"
        ) from None
    if any(table.column(name).null_count for name in KEY_COLUMNS):
        raise InputError("a key column of a sweep's rows has missing values")
    columns = {name: table.column(name) for name in KEY_COLUMNS}
    columns |= {
        name: pc.fill_null(table.column(name), float("nan"))
        for name in schema.names[len(KEY_COLUMNS) :]
    }
    return _in_order(pa.table(columns), cells)


def schema_of(names: Iterable[str]) -> pa.Schema:
    """Return the columns of a store with their types."""
    types = dict.fromkeys(TEXT_COLUMNS, pa.string()) | dict.fromkeys(
        COUNT_COLUMNS, pa.int32()
    )
    return pa.schema([(name, types.get(name, pa.float64())) for name in names])


def _in_order(table: pa.Table, cells: Sequence[str]) -> pa.Table:
    if not cells or len(set(cells)) != len(cells):
        raise InputError(
            f"a group holds each of its cells once, and at least one; there are {list(cells)!r}"
        )
    place = pc.index_in(table.column("cell"), pa.array(cells)).combine_chunks()
    if place.null_count:
        other = pc.unique(table.column("cell").filter(pc.is_null(place)))[0]
        raise InputError(
            f"the rows hold the cell {other!s}, which is not one of the group's {len(cells)}"
        )
    order = place.to_numpy(zero_copy_only=False)
    counts = np.bincount(order, minlength=len(cells))
    if not counts.all():
        raise InputError(
            f"the cell {cells[int(counts.argmin())]} of the group has no row"
        )
    identity = ["cell", "item", "window", "variate"]
    if table.group_by(identity).aggregate([]).num_rows != table.num_rows:
        raise InputError(f"two rows of a sweep are of the same {', '.join(identity)}")
    return (
        table
        if (np.diff(order) >= 0).all()
        else table.take(pa.array(np.argsort(order, kind="stable")))
    )


def encode_rows(table: pa.Table, cells: Sequence[str]) -> memoryview:
    """Encode rows that ``checked_rows`` gave as a Parquet file, in memory."""
    counts = np.bincount(
        pc.index_in(table.column("cell"), pa.array(cells)).to_numpy(),
        minlength=len(cells),
    ).tolist()
    footer = json.dumps(
        {"cells": list(cells), "counts": counts, "columns": table.column_names}
    )
    sink = pa.BufferOutputStream()
    # no statistics and no Arrow schema: they would make half of a small file, and footers slow to read
    with pq.ParquetWriter(
        sink,
        table.schema.remove_metadata(),
        compression="zstd",
        use_dictionary=list(TEXT_COLUMNS),
        write_statistics=False,
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table.replace_schema_metadata(None))
        writer.add_key_value_metadata({_FOOTER: footer})
    return memoryview(sink.getvalue())


def read_footer(path: Path) -> Footer:
    """Read the list of cells that a file holds, without reading its rows."""
    try:
        metadata = pq.read_metadata(path)
        content = json.loads(metadata.metadata[_FOOTER.encode()])
        footer = Footer(
            path, *(tuple(content[name]) for name in ("cells", "counts", "columns"))
        )
        changed = path.stem != group_key(footer.cells)
        changed |= not metadata.schema.to_arrow_schema().equals(
            schema_of(footer.columns)
        )
    except PermissionError as error:
        raise trouble(error, path) from error
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        InputError,
    ) as error:
        raise DamagedFileError(f"its footer cannot be read: {error}") from error
    if changed:
        raise DamagedFileError("it was changed or renamed after it was written")
    return footer


def read_rows(
    footer: Footer, keep: Sequence[bool] = (), columns: Sequence[str] | None = None
) -> pa.Table:
    """Read rows of some cells of a file, and verify the pages that are read; texts are dictionary-encoded."""
    names = list(footer.columns if columns is None else columns)
    try:
        with pq.ParquetFile(
            footer.path,
            page_checksum_verification=True,
            read_dictionary=list(TEXT_COLUMNS),
        ) as file:
            table = file.read(
                columns=list(dict.fromkeys(["cell", *names])), use_threads=False
            )
        cells = pc.index_in(table.column("cell"), pa.array(footer.cells)).to_numpy()
        same = np.array_equal(
            cells, np.repeat(np.arange(len(footer.cells)), footer.counts)
        )
    except PermissionError as error:
        raise trouble(error, footer.path) from error
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise DamagedFileError(f"its rows cannot be read: {error}") from error
    if not same:
        raise DamagedFileError("its rows are not those of its list of cells")
    if not all(keep):
        table = table.filter(pa.array(np.repeat(keep, footer.counts)))
    return table.select(names)


def encode_json(content: Mapping[str, Any], name: str) -> bytes:
    """Encode a JSON file of some name with a checksum of both."""
    return json.dumps(
        {"sha256": _checksum(name, content), **content}, indent=1
    ).encode()


def read_json(path: Path) -> dict[str, Any]:
    """Read the content of a JSON file that ``encode_json`` made."""
    try:
        content = json.loads(path.read_bytes())
        checksum = content.pop("sha256")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DamagedFileError("it is not a file of a sweep, or was changed") from None
    if checksum != _checksum(path.name, content):
        raise DamagedFileError("it was changed or renamed after it was written")
    return dict(content)


def _checksum(name: str, content: object) -> str:
    # as it is read: names are texts, and in their order
    text = json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()


def encode_table(table: pd.DataFrame) -> tuple[memoryview, str]:
    """Encode a table as a Parquet file, in memory, and compute the checksum for its name."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_pandas(table, preserve_index=False), sink, compression="zstd"
    )
    content = memoryview(sink.getvalue())
    return content, hashlib.sha256(content).hexdigest()[:_KEY_DIGITS]


def read_table(path: Path) -> pd.DataFrame:
    """Read a table whose file's name ends in its checksum."""
    content = path.read_bytes()
    if (
        path.stem.rpartition(".")[2]
        != hashlib.sha256(content).hexdigest()[:_KEY_DIGITS]
    ):
        raise DamagedFileError(
            "it was changed, cut short or renamed after it was written"
        )
    return pq.read_table(pa.BufferReader(content)).to_pandas()
