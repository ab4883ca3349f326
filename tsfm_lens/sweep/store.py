"""The store of a sweep: one content-keyed Parquet file a finished group of cells.

    store.json            format, schema version, the tsfm-lens that made it, names of the columns of numbers
    cells/xx/KEY.parquet  rows of a group of cells, one row a series and window; the footer lists the cells
    plans/NAME.json, .parquet   what was asked for, and where it comes from
    claims/KEY.lock       held by the process that computes a group; the kernel frees it when the process dies
    damaged/              files that could not be read, moved aside

A file appears under its name only when it is whole and on disk, and is never changed afterwards. A cell's key is a hash
of all that decides its numbers, so what another configuration left behind is never read by mistake, two processes may
share a store, and two stores are joined by copying their ``cells`` together.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from tsfm_lens.errors import InputError, StoreError, unknown_name
from tsfm_lens.sweep.files import (
    KEY_COLUMNS,
    SCHEMA_VERSION,
    DamagedFileError,
    Footer,
    cell_key,
    check_schema,
    checked_rows,
    encode,
    group_key,
    read_footer,
    read_rows,
    trouble,
    write_atomically,
)

__all__ = ["KEY_COLUMNS", "SCHEMA_VERSION", "Damage", "Store", "cell_key", "group_key"]

FORMAT = "tsfm-lens sweep store"
_ROOMS = ("cells", "plans", "claims", "damaged")
# a write takes a second; what is left for longer was left by a killed process
_LEFTOVER_SECONDS = 3600.0


@dataclass(frozen=True)
class Damage:
    """A file that is not used.

    Attributes:
        path: where it was found.
        why: what is wrong with it.
        moved_to: where it is now; None if it was left in place.
    """

    path: Path
    why: str
    moved_to: Path | None = None

    def __str__(self) -> str:
        place = f"; it is now {self.moved_to}" if self.moved_to else ""
        return f"{self.path}: {self.why}{place}"


class Store:
    """Results of sweeps in a folder.

    Args:
        path: the folder.
        create: make it if it is not there; without, nothing is written before the first result.
        values: names of the columns of numbers. A new store keeps them; of an existing one they must be the same.

    Raises:
        StoreError: the folder is none, is no store, is of another schema version or has other columns.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = True, values: Sequence[str] | None = None
    ) -> None:
        self.path = Path(path).absolute()
        self._footers: dict[str, tuple[tuple[int, int], Footer | Damage]] = {}
        try:
            about = self._open(create, values)
        except OSError as error:
            raise error if isinstance(error, StoreError) else trouble(error, self.path) from error
        kept = about.get("values")
        self.values: tuple[str, ...] | None = None if kept is None else tuple(kept)
        if values is not None and self.values is not None and set(values) != set(self.values):
            differ = ", ".join(sorted(set(values) ^ set(self.values)))
            raise StoreError(
                f"{self.path} holds other columns than this tsfm-lens writes ({differ}): choose a new folder."
            )

    def _open(self, create: bool, values: Sequence[str] | None) -> Mapping[str, Any]:
        marker = self.path / "store.json"
        if create and not marker.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            # another process may be making the same store: its temporary file is hidden
            others = {each.name for each in self.path.iterdir() if not each.name.startswith(".")}
            if not others <= {*_ROOMS, "store.json"}:
                name = min(others - set(_ROOMS))
                raise StoreError(f"{self.path} is no store of a sweep but holds {name}: give a new or empty folder.")
            if not marker.exists():
                from tsfm_lens import __version__

                about = {"format": FORMAT, "schema": SCHEMA_VERSION, "created_by": f"tsfm-lens {__version__}"}
                about |= {"values": None if values is None else list(values)}
                write_atomically(marker, json.dumps(about, indent=1).encode())
        if not marker.exists():
            raise StoreError(
                f"{self.path} is no store of a sweep: it has no store.json. Start one with tsfm-lens sweep."
            )
        try:
            about = json.loads(marker.read_bytes())
            name = about["format"]
        except (ValueError, KeyError, TypeError):
            name, about = "", {}
        if name != FORMAT:
            raise StoreError(f"{marker} is not that of a sweep's store, or is damaged: choose another folder.")
        check_schema(about.get("schema"), self.path)
        if create:
            for room in _ROOMS:
                (self.path / room).mkdir(exist_ok=True)
        return about

    def write(self, rows: Any, cells: Sequence[str]) -> Path:
        """Keep the rows of a finished group of cells.

        Args:
            rows: pyarrow table or pandas frame: ``KEY_COLUMNS`` and columns of numbers, one row a series and window.
            cells: keys of the cells; the rows hold each of them, and no other.

        Returns:
            The file, which is on disk when this returns.

        Raises:
            InputError: the rows are not those of the cells, or a column is wrong.
            StoreError: no space, or no right to write; earlier files are untouched.
        """
        table = checked_rows(rows, cells, self.values)
        key = group_key(cells)
        path = self.path / "cells" / key[:2] / f"{key}.parquet"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise trouble(error, path) from error
        write_atomically(path, encode(table, cells))
        return path

    def done(self) -> set[str]:
        """Keys of every finished cell; reads the footers of files that are new since the last call."""
        return {cell for footer in self._whole() for cell in footer.cells}

    def holds(self, cells: Sequence[str]) -> bool:
        """Whether this very group is finished; looks at one file, so it is fast in a large store."""
        key = group_key(cells)
        path = self.path / "cells" / key[:2] / f"{key}.parquet"
        try:
            return set(read_footer(path).cells) >= set(cells)
        except DamagedFileError:
            return False

    def unused(self, cells: Iterable[str]) -> int:
        """How many finished cells are none of these: left by another configuration, and not read."""
        return len(self.done() - set(cells))

    def read(
        self, cells: Iterable[str], columns: Sequence[str] | None = None, *, allow_missing: bool = False
    ) -> pa.Table:
        """Rows of some cells, each cell once even where several files hold it.

        Args:
            cells: their keys; the order does not matter.
            columns: names; all if None.
            allow_missing: leave out cells that are not finished.

        Returns:
            A table with dictionary-encoded text columns, in the order of file names; of two files with the same cell
            the first one counts.

        Raises:
            StoreError: cells are not finished, a file is damaged, or files have different columns.
        """
        wanted = set(cells)
        picks: list[tuple[Footer, list[bool]]] = []
        left = set(wanted)
        for footer in self._whole():
            keep = [cell in left for cell in footer.cells]
            if any(keep):
                picks.append((footer, keep))
                left.difference_update(footer.cells)
        if left and not allow_missing:
            raise StoreError(
                f"{len(left)} of {len(wanted)} cells are not in {self.path} yet, for example {min(left)}: run the "
                "sweep to its end, or ask for a report of what is there."
            )
        if columns is not None and picks:
            for name in columns:
                if name not in picks[0][0].columns:
                    raise unknown_name("column", name, picks[0][0].columns)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            tables = list(pool.map(lambda pick: self._rows(pick[0], pick[1], columns), picks))
        if not tables:
            return self._empty(columns)
        try:
            return pa.concat_tables(tables).unify_dictionaries()
        except pa.ArrowInvalid:
            raise StoreError(f"files of {self.path} have different columns: choose a new folder.") from None

    def _empty(self, columns: Sequence[str] | None) -> pa.Table:
        text = pa.dictionary(pa.int32(), pa.string())
        types = {name: pa.int32() if name in ("window", "variate") else text for name in KEY_COLUMNS}
        names = columns if columns is not None else (*KEY_COLUMNS, *(self.values or ()))
        return pa.schema([(name, types.get(name, pa.float64())) for name in names]).empty_table()

    def _rows(self, footer: Footer, keep: Sequence[bool], columns: Sequence[str] | None) -> pa.Table:
        try:
            return read_rows(footer, keep, columns)
        except DamagedFileError as error:
            raise StoreError(
                f"{footer.path} is damaged: {error}. Run the sweep again: it moves the file aside and computes its "
                f"{len(footer.cells)} cells again."
            ) from None

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Claim a group of cells while the context lasts; the kernel frees the claim of a process that dies.

        Args:
            key: of the group.

        Yields:
            Whether the claim is ours; False while another process, or another claim of this one, has it. Where the
            file system has no locks it is always True: groups may then be computed twice, and still count once.
        """
        path = self.path / "claims" / f"{key}.lock"
        lock = FileLock(path, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            yield False
            return
        except NotImplementedError:
            yield True
            return
        except OSError as error:
            raise trouble(error, path) from error
        try:
            yield True
        finally:
            lock.release()

    def damaged(self, *, move: bool = False) -> list[Damage]:
        """Read every file, checksums included, and find those that are cut short, changed, or not a store's.

        Args:
            move: move them into ``damaged``, and remove what killed processes left half written. Nothing else is
                ever deleted.

        Returns:
            The damaged files; their cells count as not finished.
        """
        found = []
        for footer in self._scan():
            damage = footer if isinstance(footer, Damage) else self._verify(footer)
            if damage is not None:
                found.append(self._set_aside(damage) if move else damage)
        if move:
            self._sweep_leftovers()
        return found

    def _verify(self, footer: Footer) -> Damage | None:
        try:
            read_rows(footer, [True] * len(footer.cells))
        except DamagedFileError as error:
            return Damage(footer.path, str(error))
        return None

    def _set_aside(self, damage: Damage) -> Damage:
        target = self.path / "damaged" / f"{damage.path.stem}.{time.time_ns()}.parquet"
        try:
            damage.path.rename(target)
        except FileNotFoundError:
            # another process was faster
            return damage
        except OSError as error:
            raise trouble(error, damage.path) from error
        self._footers.pop(damage.path.name, None)
        return Damage(damage.path, damage.why, target)

    def _sweep_leftovers(self) -> None:
        oldest = time.time() - _LEFTOVER_SECONDS
        for path in self.path.rglob(".*.tmp"):
            try:
                if path.stat().st_mtime < oldest:
                    path.unlink()
            except OSError:
                # it has just been renamed, or is not ours
                continue

    def _whole(self) -> list[Footer]:
        return [each for each in self._scan() if isinstance(each, Footer)]

    def _scan(self) -> list[Footer | Damage]:
        """Footers of all files by file name, from memory where the file has not changed."""
        fresh: dict[str, tuple[tuple[int, int], Footer | Damage]] = {}
        try:
            folders = [each for each in os.scandir(self.path / "cells") if each.is_dir()]
            files = [file for folder in folders for file in os.scandir(folder) if file.name.endswith(".parquet")]
            for file in files:
                if file.name.startswith("."):
                    continue
                state = file.stat()
                stamp = state.st_mtime_ns, state.st_size
                known = self._footers.get(file.name)
                fresh[file.name] = known if known and known[0] == stamp else (stamp, _footer(Path(file.path)))
        except FileNotFoundError:
            if not (self.path / "store.json").exists():
                raise StoreError(f"{self.path} is no longer there") from None
        except OSError as error:
            raise error if isinstance(error, StoreError) else trouble(error, self.path) from error
        self._footers = fresh
        return [fresh[name][1] for name in sorted(fresh)]

    def write_plan(self, name: str, content: pd.DataFrame | Mapping[str, Any]) -> Path:
        """Keep a plan (a frame) or its provenance (a mapping that JSON can hold) under a name, replacing an older one.

        Raises:
            InputError: the name cannot be that of a file.
            StoreError: it cannot be written.
        """
        if isinstance(content, pd.DataFrame):
            sink = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pandas(content, preserve_index=False), sink)
            path, data = self._plan(name, ".parquet"), memoryview(sink.getvalue())
        else:
            path, data = self._plan(name, ".json"), memoryview(json.dumps(content, indent=1).encode())
        write_atomically(path, data)
        return path

    def read_plan(self, name: str) -> Any:
        """A plan (a frame) or provenance (a mapping) by its name; a frame where there are both.

        Raises:
            UnknownNameError: there is none of this name.
            StoreError: it is damaged.
        """
        try:
            if (path := self._plan(name, ".parquet")).exists():
                return pq.read_table(path).to_pandas()
            if (path := self._plan(name, ".json")).exists():
                return json.loads(path.read_bytes())
        except (pa.ArrowException, ValueError) as error:
            raise StoreError(f"{path} is damaged: {error}. Run the sweep again, which writes it anew.") from error
        raise unknown_name("plan", name, self.plans())

    def plans(self) -> list[str]:
        """Names of the plans and of their provenance."""
        found = (self.path / "plans").glob("[!.]*")
        return sorted({path.stem for path in found if path.suffix in (".parquet", ".json")})

    def _plan(self, name: str, suffix: str) -> Path:
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise InputError(f"the name of a plan has letters, digits, dots and dashes only, not {name!r}")
        return self.path / "plans" / f"{name}{suffix}"


def _footer(path: Path) -> Footer | Damage:
    try:
        return read_footer(path)
    except DamagedFileError as error:
        return Damage(path, str(error))
