"""Store of results: a folder of Parquet files, one per finished group of cells.

Read :class:`Store` first. Each file is written once, as a whole, and never changed. A
file that cannot be read counts as one that is not there: a warning names it, and the
next run computes its cells again. The store knows nothing of models: a cell is a key
with its rows, whose columns a :class:`RowLayout` describes, ``SWEEP`` for sweeps. A
group is the cells that a worker computes together.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from tsfm_lens.core import VERSION
from tsfm_lens.core.errors import InputError, StoreError, unknown_name
from tsfm_lens.core.io import replacing

FORMAT = "tsfm-lens sweep store"
# raised when the columns of the rows change, as by a new sum in SUMS; it is in every
# key, and a store of another version is refused
SCHEMA_VERSION = 3
TEXT_COLUMNS = ("cell", "model", "variant", "dataset", "item")
# numbers of the window within its item, and of the variate
COUNT_COLUMNS = ("window", "variate")
KEY_COLUMNS = TEXT_COLUMNS + COUNT_COLUMNS


@dataclass(frozen=True)
class RowLayout:
    """Kind of rows that a store keeps.

    Attributes:
        format: text in store.json that tells stores of this kind from others.
        version: of the columns; a store of another version is refused.
        noun: what the rows are of, with its article.
        command: makes such a store, before the path of its folder.
        types: of columns by name, each one or several that a file may have; all others
            are double.
        required: columns that all rows have, without missing values.
        identity: columns by which rows of a cell differ, as far as a table has them.
    """

    format: str
    version: int
    noun: str
    command: str
    types: Mapping[str, tuple[pa.DataType, ...]]
    required: tuple[str, ...]
    identity: tuple[str, ...]

    def schema(self, names: Iterable[str], given: pa.Schema | None = None) -> pa.Schema:
        """Return columns with their types.

        Of several types that a column may have, it is the one of the ``given`` columns.
        """
        fields = []
        for name in names:
            kinds = self.types.get(name, (pa.float64(),))
            kind = kinds[0]
            if given is not None and name in given.names:
                own = given.field(name).type
                kind = own if own in kinds else kind
            fields.append((name, kind))
        return pa.schema(fields)

    @property
    def text_columns(self) -> list[str]:
        """Columns of text that all rows have; texts repeat themselves."""
        return [name for name in self.required if self.types[name] == (pa.string(),)]


SWEEP = RowLayout(
    format=FORMAT,
    version=SCHEMA_VERSION,
    noun="a sweep",
    command="tsfm-lens sweep CONFIG --store",
    types={
        **dict.fromkeys(TEXT_COLUMNS, (pa.string(),)),
        **dict.fromkeys(COUNT_COLUMNS, (pa.int32(),)),
    },
    required=KEY_COLUMNS,
    identity=("cell", "item", "window", "variate"),
)
"""Rows of a sweep: the scores of a series and window, under a cell's model, variant and
dataset.
"""
_FOLDERS = ("cells", "plans", "locks")
_FOOTER = "tsfm_lens.cells"
# 128 bits: no two of 10^15 cells share a key by chance
_KEY_DIGITS = 32
# a write takes a second; what is left for longer was left by a killed process
_LEFTOVER_SECONDS = 3600.0
# what Arrow and our own checks raise for truncated, changed or foreign files; a damaged
# length can also ask for more memory than there is
_UNREADABLE = (
    pa.ArrowException,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    MemoryError,
)


def cell_key(**content: object) -> str:
    """Compute the key of a cell.

    It is a hash of everything that determines the cell's numbers, and of the schema
    version.

    Returns:
        Hexadecimal digits.
    """
    return _digest({"schema": SCHEMA_VERSION, **content})


def group_key(cells: Sequence[str]) -> str:
    """Compute the key of a group of cells, in whatever order they are.

    It is the name of the group's file and of its lock.

    Returns:
        Hexadecimal digits.
    """
    # two runs that plan the same cells in another order must find the same lock
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


@dataclass(frozen=True, eq=False)
class SavedPlan:
    """A plan as a store holds it: provenance, a table of entries, a table of cells."""

    name: str
    about: dict[str, Any]
    entries: pd.DataFrame
    cells: pd.DataFrame


class Store:
    """Results of sweeps, or other rows of cells, in a folder.

    Files appear when they are complete and never change::

        store.json            format, schema version, the tsfm-lens that made it
        cells/xx/KEY.parquet  rows of a group of cells, one row per series and window;
                              the footer lists the cells
        plans/NAME.plan       a plan, as a Parquet file of one row: its provenance and
                              its tables, each as JSON
        locks/KEY.lock        held by the process that computes a group; the kernel
                              frees it when the process dies

    Args:
        path: the folder.
        create: make it if it does not exist. If False, opening the store writes
            nothing.
        layout: kind of rows, by default those of a sweep.

    Raises:
        StoreError: the folder is missing, is not a store, or has another schema
            version.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        layout: RowLayout = SWEEP,
    ) -> None:
        self.path = Path(path).absolute()
        self.layout = layout
        # by file: its time and size when it was read, and its cells
        self._files: dict[Path, tuple[tuple[int, int], tuple[str, ...]]] = {}
        with as_store_error(self.path):
            schema = self._open(create)
        if schema != layout.version:
            raise StoreError(
                f"{self.path} has schema version {schema}, and this tsfm-lens reads"
                f" version {layout.version}: report on it with the tsfm-lens that wrote"
                " it (its version is in store.json), or choose another folder."
            )

    def _open(self, create: bool) -> object:
        """Read the description of the store.

        The description of a new store is written first.

        Returns:
            The schema version.
        """
        marker = self.path / "store.json"
        about = _read_marker(marker, self.layout)
        if about is None:
            if not create:
                raise StoreError(
                    f"{self.path} is not a store of {self.layout.noun}: it has no"
                    " store.json that can be read. Start one with"
                    f" {self.layout.command} {shlex.quote(str(self.path))}"
                )
            # before the folder is touched, so that a wrong path changes nothing
            self._check_folder()
            about = {
                "format": self.layout.format,
                "schema": self.layout.version,
                "created_by": f"tsfm-lens {VERSION}",
            }
            self.path.mkdir(parents=True, exist_ok=True)
            _write(marker, json.dumps(about, indent=1).encode())
        if create:
            for name in _FOLDERS:
                (self.path / name).mkdir(exist_ok=True)
        return about["schema"]

    def _check_folder(self) -> None:
        """Raise StoreError for a folder of other files.

        A folder without a description must be empty, or have cells whose description
        was lost.
        """
        is_ours = (self.path / "cells").exists() and not self._is_other_store()
        if is_ours or not self.path.exists():
            return
        # another process may be making the same store: its temporary file is hidden
        foreign = sorted(
            name
            for name in os.listdir(self.path)
            if not name.startswith(".") and name not in _FOLDERS
        )
        if foreign:
            raise StoreError(
                f"{self.path} is not a store of {self.layout.noun} but holds"
                f" {foreign[0]}: give a new or empty folder"
            )

    def _is_other_store(self) -> bool:
        """Test if the folder is a store of another kind of rows."""
        try:
            about = json.loads((self.path / "store.json").read_bytes())
        except (OSError, ValueError):
            return False
        form = about.get("format") if isinstance(about, dict) else None
        return isinstance(form, str) and form != self.layout.format

    def remove_leftovers(self) -> None:
        """Remove files over an hour old that killed processes left half written."""
        for path in self.path.rglob(".*.part"):
            # another process may have just renamed it, or it belongs to another user
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - _LEFTOVER_SECONDS:
                    path.unlink()

    def write(self, rows: Any, cells: Sequence[str]) -> Path:
        """Write the rows of a finished group of cells.

        Args:
            rows: pyarrow table or pandas frame with the columns that the layout
                requires, and others of numbers; of sweeps, one row per series and
                window.
            cells: keys of the cells; the rows hold each of them, and no other.

        Returns:
            The path of the group's file.

        Raises:
            InputError: the rows are not those of the cells, or a column is wrong.
            StoreError: no space, or no right to write; earlier files are untouched.
        """
        content = _encode(_checked(rows, cells, self.layout), cells, self.layout)
        path = self._path(cells)
        _write(path, content)
        # only spares a later reading: the file itself is safe on disk by now
        with suppress(OSError):
            self._files[path] = _stamp(path), tuple(cells)
        return path

    def _path(self, cells: Sequence[str]) -> Path:
        key = group_key(cells)
        return self.path / "cells" / key[:2] / f"{key}.parquet"

    def done(self) -> set[str]:
        """Return the keys of every finished cell.

        Files that are new since the last call are read.
        """
        return {cell for path in self._paths() for cell in self._cells(path)}

    def holds(self, cells: Sequence[str]) -> bool:
        """Test if exactly this group is finished.

        It reads one file, so it is fast in a large store.

        Args:
            cells: keys of the group's cells, in any order.

        Returns:
            True if it is.
        """
        return set(self._cells(self._path(cells))) == set(cells)

    def _paths(self) -> list[Path]:
        if not (self.path / "store.json").exists():
            raise StoreError(f"{self.path} is no longer there")
        paths = (self.path / "cells").glob("*/[!.]*.parquet")
        # names are hashes, so that a cell in several files is always read from the same
        # one
        return sorted(paths, key=lambda path: path.name)

    def _cells(self, path: Path) -> tuple[str, ...]:
        """Return the cells of a file.

        There are none if the file is missing, or if it cannot be read; then a warning
        is given.
        """
        with as_store_error(path):
            try:
                stamp = _stamp(path)
            # ``holds`` asks for files that may never have been written
            except (FileNotFoundError, NotADirectoryError):
                return ()
            known = self._files.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            try:
                cells, _ = _read_group(path, self.layout)
            # a file without the right to read it is whole: computing its cells again
            # would not help, so this is an error and not a missing cell
            except PermissionError:
                raise
            except _UNREADABLE as error:
                warnings.warn(
                    f"{path} cannot be read ({error}): its cells count as missing, and"
                    f" {self.layout.noun} computes them again",
                    stacklevel=2,
                )
                cells = ()
            self._files[path] = stamp, cells
            return cells

    def read(
        self, cells: Iterable[str], columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Read rows of some cells, with dictionary-encoded texts.

        A cell that several files hold is read once.

        Args:
            cells: their keys; the order does not matter.
            columns: names; all if None.

        Returns:
            The rows, those of one cell together.

        Raises:
            StoreError: cells are not finished, or files have different columns.
        """
        keys = set(cells)
        missing = set(keys)
        wanted: list[tuple[Path, list[str]]] = []
        for path in self._paths():
            file_cells = [cell for cell in self._cells(path) if cell in missing]
            if file_cells:
                wanted.append((path, file_cells))
                missing.difference_update(file_cells)
        if missing:
            raise StoreError(
                f"{len(missing)} of {len(keys)} cells are not in {self.path} yet, for"
                f" example {min(missing)}: run the sweep to its end, or ask for a"
                " report of what is there."
            )
        if not wanted:
            names = self.layout.required if columns is None else columns
            return self.layout.schema(names).empty_table()

        def read_rows(selection: tuple[Path, list[str]]) -> pa.Table:
            path, file_cells = selection
            with as_store_error(path):
                return _read_group(path, self.layout, file_cells, columns)[1]

        # Arrow reads and decompresses without holding the interpreter's lock
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            tables = list(pool.map(read_rows, wanted))
        try:
            # every file has dictionaries of its own
            return pa.concat_tables(tables).unify_dictionaries()
        except pa.ArrowInvalid:
            raise StoreError(
                f"files of {self.path} have different columns: choose a new folder."
            ) from None

    def read_group(self, cells: Sequence[str]) -> pa.Table:
        """Read the rows of exactly this group, from its own file.

        Args:
            cells: keys of the group's cells, in any order.

        Returns:
            The rows.

        Raises:
            StoreError: it is not finished, or its file cannot be read.
        """
        path = self._path(cells)
        try:
            return _read_group(path, self.layout)[1]
        except _UNREADABLE as error:
            raise StoreError(
                f"{path} cannot be read: {error}. Run the same command again, which"
                " computes it again"
            ) from error

    @contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Lock a group of cells by its key inside a ``with`` block.

        It yields False if another process holds the lock. On file systems without locks
        it is always True: a group may then be computed twice, and still counts once.

        Args:
            key: of the group.

        Yields:
            True if this process holds the lock.

        Raises:
            StoreError: its file cannot be made.
        """
        path = self.path / "locks" / f"{key}.lock"
        # no waiting: a group that another process computes is tried again later
        lock = FileLock(path, timeout=0)
        is_held = True
        # filelock raises NotImplementedError where the file system has no locks
        with as_store_error(path), suppress(NotImplementedError):
            try:
                lock.acquire()
            except Timeout:
                is_held = False
        try:
            yield is_held
        finally:
            lock.release()

    def write_plan(
        self,
        name: str,
        about: Mapping[str, Any],
        entries: pd.DataFrame,
        cells: pd.DataFrame,
    ) -> None:
        """Write a plan's provenance and tables under a name.

        An older plan of this name is replaced atomically.

        Args:
            name: of the plan.
            about: provenance of the sweep, as JSON can hold it.
            entries: variants of the plan, a row each.
            cells: its cells, a row each.

        Raises:
            StoreError: it cannot be written.
        """
        content: dict[str, Any] = {
            "about": about,
            "entries": entries.to_dict("list"),
            "cells": cells.to_dict("list"),
        }
        # JSON inside Parquet, whose pages have checksums: a flipped bit in plain JSON
        # could pass for another number
        table = pa.table({label: [json.dumps(part)] for label, part in content.items()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        _write(self.plan_path(name), memoryview(sink.getvalue()))

    def read_plan(self, name: str | None = None) -> SavedPlan:
        """Read a plan by its name.

        Args:
            name: of the plan, with or without the hash at its end; the only plan if
                None.

        Returns:
            The plan with its tables.

        Raises:
            StoreError: it cannot be read.
            UnknownNameError: there is none of this name.
            InputError: there is none at all, or there are several.
        """
        names = self.plans()
        if not names:
            raise InputError(
                f"no sweep was planned in {self.path}, or by an older tsfm-lens: run"
                " `tsfm-lens sweep CONFIG`, which keeps the cells that are finished"
            )
        # plan_name ends every name with a dash and a hash
        matches = [
            plan for plan in names if name in (None, plan, plan.rpartition("-")[0])
        ]
        if not matches:
            raise unknown_name("sweep", name, names)
        if len(matches) > 1:
            raise InputError(
                f"{self.path} holds several sweeps, name one of them:"
                f" {', '.join(matches)}"
            )
        path = self.plan_path(matches[0])
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                (row,) = file.read().to_pylist()
            about, entries, cells = (
                json.loads(row[label]) for label in ("about", "entries", "cells")
            )
            return SavedPlan(
                matches[0], about, pd.DataFrame(entries), pd.DataFrame(cells)
            )
        except _UNREADABLE as error:
            raise StoreError(
                f"{path} cannot be read: {error}. Run the sweep again, which makes it"
                f" again: tsfm-lens sweep CONFIG --store {shlex.quote(str(self.path))}"
            ) from None

    def plans(self) -> list[str]:
        """List the names of the plans.

        Returns:
            Names, sorted.
        """
        return sorted(path.stem for path in (self.path / "plans").glob("[!.]*.plan"))

    def plan_path(self, name: str) -> Path:
        """Return the file of a plan.

        Args:
            name: of the plan.

        Returns:
            The path, which need not exist.
        """
        return self.path / "plans" / f"{name}.plan"


def _read_marker(path: Path, layout: RowLayout) -> dict[str, Any] | None:
    """Read the description of a store.

    Returns:
        The description, None if there is none, or none that can be read.
    """
    try:
        about = json.loads(path.read_bytes())
        if about["format"] == layout.format and "schema" in about:
            return about
        return None
    except PermissionError:
        raise
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write(path: Path, content: bytes | memoryview) -> None:
    """Write a file under a temporary name first, then rename it.

    So no kill or power loss leaves half of it.
    """
    with as_store_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(content)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@contextmanager
def as_store_error(path: Path) -> Iterator[None]:
    """Turn an error of the file system into a StoreError.

    The message says what it means for the sweep, and what to do.
    """
    try:
        yield
    except StoreError:
        # which is an OSError, too
        raise
    except OSError as error:
        raise StoreError(
            f"{path} could not be written or read: {error}. Finished cells are kept:"
            " fix that and run the same command again, or choose another folder."
        ) from error


def _checked(rows: Any, cells: Sequence[str], layout: RowLayout) -> pa.Table:
    """Convert the rows of a group to the store's columns, cell by cell.

    Returns:
        The table.

    Raises:
        InputError: they are not the rows of these cells.
    """
    table = rows
    if isinstance(rows, pd.DataFrame):
        table = pa.Table.from_pandas(rows, preserve_index=False)
    names = table.column_names
    if missing := sorted(set(layout.required) - set(names)):
        raise InputError(
            f"rows of {layout.noun} have the columns {', '.join(sorted(names))};"
            f" missing: {missing}"
        )
    numbers = [name for name in names if name not in layout.types]
    described = [name for name in layout.types if name in names]
    schema = layout.schema([*described, *numbers], table.schema)
    try:
        table = table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"a column of the rows of {layout.noun} is of a wrong type: {error}"
        ) from None
    if any(table.column(name).null_count for name in layout.required):
        raise InputError(
            f"a required column of the rows of {layout.noun} has missing values"
        )
    for name in numbers:
        # the store marks missing numbers by NaN alone, of which Arrow makes nulls where
        # it converts a pandas frame
        filled = pc.fill_null(table.column(name), float("nan"))
        table = table.set_column(schema.get_field_index(name), name, filled)
    return _in_order(table, cells, layout)


def _in_order(table: pa.Table, cells: Sequence[str], layout: RowLayout) -> pa.Table:
    """Check that the rows are those of the cells, and sort them cell by cell."""
    if not cells or len(set(cells)) != len(cells):
        raise InputError(
            "a group holds each of its cells once, and at least one; there are"
            f" {list(cells)!r}"
        )
    # the position in ``cells`` of each row's cell, null for a cell that is not there
    indices = pc.index_in(table.column("cell"), pa.array(cells)).combine_chunks()
    if indices.null_count:
        foreign = pc.unique(table.column("cell").filter(pc.is_null(indices)))[0]
        raise InputError(
            f"the rows hold the cell {foreign!s}, which is not one of the group's"
            f" {len(cells)}"
        )
    order = indices.to_numpy(zero_copy_only=False)
    counts = np.bincount(order, minlength=len(cells))
    if not counts.all():
        raise InputError(
            f"the cell {cells[int(counts.argmin())]} of the group has no row"
        )
    identity = [name for name in layout.identity if name in table.column_names]
    # a grouping without aggregates has a row for each distinct identity
    if table.group_by(identity).aggregate([]).num_rows != table.num_rows:
        raise InputError(
            f"two rows of {layout.noun} are of the same {', '.join(identity)}"
        )
    # cell by cell, as the counts in the footer describe them; stable, so that the rows
    # of a cell stay in order
    if (np.diff(order) >= 0).all():
        return table
    return table.take(pa.array(np.argsort(order, kind="stable")))


def _encode(table: pa.Table, cells: Sequence[str], layout: RowLayout) -> memoryview:
    """Encode rows that ``_checked`` gave as a Parquet file, in memory."""
    indices = pc.index_in(table.column("cell"), pa.array(cells)).to_numpy()
    counts = np.bincount(indices, minlength=len(cells)).tolist()
    footer = json.dumps(
        {"cells": list(cells), "counts": counts, "columns": table.column_names}
    )
    sink = pa.BufferOutputStream()
    # bytes of vectors are sorted by their place in a number, and compress faster
    lists = [f.name for f in table.schema if pa.types.is_list(f.type)]
    # without statistics and the Arrow schema, which would be half of a small file
    with pq.ParquetWriter(
        sink,
        table.schema.remove_metadata(),
        compression="zstd",
        use_dictionary=layout.text_columns,
        use_byte_stream_split=[f"{name}.list.element" for name in lists],
        write_statistics=False,
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table.replace_schema_metadata(None))
        writer.add_key_value_metadata({_FOOTER: footer})
    return memoryview(sink.getvalue())


def _read_group(
    path: Path,
    layout: RowLayout,
    cells: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> tuple[tuple[str, ...], pa.Table]:
    """Read the list of cells of a file, and the rows of some (all if None).

    Texts are dictionary-encoded. A ValueError means that the rows are not those of the
    list, or that the file does not have the list's name.

    Returns:
        The cells, and the rows.
    """
    with pq.ParquetFile(
        path, page_checksum_verification=True, read_dictionary=layout.text_columns
    ) as file:
        footer = json.loads(file.metadata.metadata[_FOOTER.encode()])
        held = tuple(footer["cells"])
        names = list(footer["columns"] if columns is None else columns)
        # names and types of columns stand in the footer, which has no checksum
        schema = file.metadata.schema.to_arrow_schema()
        # a file that was renamed over another would answer for the cells of that one
        is_valid = path.stem == group_key(held) and (
            schema.equals(layout.schema(footer["columns"], schema))
        )
        # one thread a file, since the files are read in parallel
        table = file.read(
            columns=list(dict.fromkeys(["cell", *names])), use_threads=False
        )
    indices = pc.index_in(table.column("cell"), pa.array(held)).to_numpy()
    expected = np.repeat(np.arange(len(held)), footer["counts"])
    if not is_valid or not np.array_equal(indices, expected):
        raise ValueError("it was changed or renamed after it was written")
    if cells is not None and len(cells) < len(held):
        table = table.filter(pc.is_in(table.column("cell"), pa.array(cells)))
    return held, table.select(names)
