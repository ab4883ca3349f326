"""The store of a sweep: one content-keyed Parquet file per finished group of cells."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from filelock import FileLock, Timeout

from tsfm_lens.core import VERSION
from tsfm_lens.errors import StoreError, unknown_name
from tsfm_lens.sweep.store.files import (
    KEY_COLUMNS,
    SCHEMA_VERSION,
    Damage,
    DamagedFileError,
    Footer,
    checked_rows,
    encode_json,
    encode_rows,
    encode_table,
    faults_told,
    group_key,
    make_folder,
    read_footer,
    read_json,
    read_rows,
    read_table,
    schema_of,
    trouble,
    write_atomically,
)

FORMAT = "tsfm-lens sweep store"
_FOLDERS = ("cells", "plans", "locks", "damaged")
# a write takes a second; what is left for longer was left by a killed process
_LEFTOVER_SECONDS = 3600.0


class Store:
    """Results of sweeps in a folder; files appear when they are complete and never change.

        store.json            format, schema version, the tsfm-lens that made it, names of the columns of numbers
        cells/xx/KEY.parquet  rows of a group of cells, one row per series and window; the footer lists the cells
        plans/NAME.json       a plan's provenance, which names its tables NAME.TABLE.CHECKSUM.parquet
        locks/KEY.lock        held by the process that computes a group; the kernel frees it when the process dies
        damaged/              files that could not be read, moved aside

    Args:
        path: the folder.
        create: make it if it does not exist; else nothing is written before the first result.
        values: names of the columns of numbers. A new store keeps them; of an existing one they must be the same.

    Raises:
        StoreError: the folder is missing, is not a store, or has another schema version or other columns.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        values: Sequence[str] | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self._footers: dict[str, tuple[tuple[int, int], Footer | Damage]] = {}
        self.repaired: list[Damage] = []
        with faults_told(self.path):
            about = self._open(create, values)
        value_names = about.get("values")
        self.values: tuple[str, ...] | None = (
            None if value_names is None else tuple(value_names)
        )
        if (
            values is not None
            and self.values is not None
            and set(values) != set(self.values)
        ):
            differ = ", ".join(sorted(set(values) ^ set(self.values)))
            raise StoreError(
                f"{self.path} holds other columns than tsfm-lens writes ({differ}): choose a new folder."
            )

    def _open(self, create: bool, values: Sequence[str] | None) -> Mapping[str, Any]:
        marker = self.path / "store.json"
        about = self._about(marker, create)
        if about is None:
            if not create:
                raise StoreError(
                    f"{self.path} is not a store of a sweep: it has no store.json. Start one with tsfm-lens sweep."
                )
            # beside cells of a sweep, other files are in nobody's way
            if not self.repaired:
                make_folder(self.path, {*_FOLDERS, marker.name})
            about = {
                "format": FORMAT,
                "schema": SCHEMA_VERSION,
                "created_by": f"tsfm-lens {VERSION}",
            }
            about |= {"values": None if values is None else list(values)}
            if not marker.exists():
                write_atomically(marker, encode_json(about, marker.name))
        if create:
            for name in _FOLDERS:
                (self.path / name).mkdir(exist_ok=True)
        return about

    def _about(self, marker: Path, mend: bool) -> Mapping[str, Any] | None:
        """Read the description of a store; None where it is new, or where the description is lost."""
        try:
            about = read_json(marker)
            if about.get("format") != FORMAT:
                raise DamagedFileError("it is not that of a sweep's store")
        except (FileNotFoundError, DamagedFileError, IsADirectoryError) as error:
            is_missing = isinstance(error, FileNotFoundError)
            # what is not ours stays where it is
            if not self._has_cells():
                if is_missing:
                    return None
                raise StoreError(
                    f"{marker} is not that of a sweep's store: choose another folder."
                ) from None
            damage = Damage(marker, "it is not there" if is_missing else str(error))
            if not mend:
                raise self._advice(marker, damage.why) from None
            (self.path / "damaged").mkdir(exist_ok=True)
            self.repaired.append(self._set_aside(damage))
            return None
        if about["schema"] != SCHEMA_VERSION:
            raise StoreError(
                f"{self.path} has schema version {about['schema']}, and this tsfm-lens reads version {SCHEMA_VERSION}: "
                "report on it with the tsfm-lens that wrote it (its version is in store.json), or choose another "
                "folder."
            )
        return about

    def _has_cells(self) -> bool:
        """Tell if there are cells of a sweep, or room for them, whatever else there is."""
        cells = self.path / "cells"
        folders = (
            [entry.name for entry in cells.iterdir() if entry.is_dir()]
            if cells.is_dir()
            else ["none"]
        )
        return not folders or any(re.fullmatch("[0-9a-f]{2}", name) for name in folders)

    def _advice(self, path: Path, why: object) -> StoreError:
        return StoreError(
            f"{path} is damaged: {why}. Run the sweep again, which sets it aside and makes it again: "
            f"tsfm-lens sweep CONFIG --store {shlex.quote(str(self.path))}"
        )

    def write(self, rows: Any, cells: Sequence[str]) -> Path:
        """Write the rows of a finished group of cells to disk, and return the path.

        Args:
            rows: pyarrow table or pandas frame: ``KEY_COLUMNS`` and columns of numbers, one row per series and window.
            cells: keys of the cells; the rows hold each of them, and no other.

        Raises:
            InputError: the rows are not those of the cells, or a column is wrong.
            StoreError: no space, or no right to write; earlier files are untouched.
        """
        table = checked_rows(rows, cells, self.values)
        path = self._file(cells)
        write_atomically(path, encode_rows(table, cells))
        return path

    def _file(self, cells: Sequence[str]) -> Path:
        key = group_key(cells)
        return self.path / "cells" / key[:2] / f"{key}.parquet"

    def done(self) -> set[str]:
        """Return the keys of every finished cell; reads the footers of files that are new since the last call."""
        return {cell for footer in self._finished() for cell in footer.cells}

    def holds(self, cells: Sequence[str]) -> bool:
        """Tell if exactly this group is finished; this reads one file, so it is fast in a large store."""
        try:
            return set(read_footer(self._file(cells)).cells) == set(cells)
        except DamagedFileError:
            return False

    def read(
        self, cells: Iterable[str], columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Read rows of some cells, each once even where several files hold it, with dictionary-encoded texts.

        Args:
            cells: their keys; the order does not matter.
            columns: names; all if None.

        Raises:
            StoreError: cells are not finished, a file is damaged, or files have different columns.
        """
        keys = set(cells)
        picks: list[tuple[Footer, list[bool]]] = []
        missing = set(keys)
        for footer in self._finished():
            keep = [cell in missing for cell in footer.cells]
            if any(keep):
                picks.append((footer, keep))
                missing.difference_update(footer.cells)
        if missing:
            raise StoreError(
                f"{len(missing)} of {len(keys)} cells are not in {self.path} yet, for example {min(missing)}: run the "
                "sweep to its end, or ask for a report of what is there."
            )
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            tables = list(
                pool.map(lambda pick: self._rows(pick[0], pick[1], columns), picks)
            )
        if not tables:
            return schema_of(
                columns if columns is not None else (*KEY_COLUMNS, *(self.values or ()))
            ).empty_table()
        try:
            return pa.concat_tables(tables).unify_dictionaries()
        except pa.ArrowInvalid:
            raise StoreError(
                f"files of {self.path} have different columns: choose a new folder."
            ) from None

    def _rows(
        self, footer: Footer, keep: Sequence[bool], columns: Sequence[str] | None
    ) -> pa.Table:
        try:
            return read_rows(footer, keep, columns)
        except DamagedFileError as error:
            raise self._advice(footer.path, error) from None

    @contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Lock a group of cells by its key inside a ``with`` block; yield False if another process holds the lock.

        On file systems without locks it is always True: a group may then be computed twice, and still counts once.

        Raises:
            StoreError: its file cannot be made.
        """
        path = self.path / "locks" / f"{key}.lock"
        lock, ours = FileLock(path, timeout=0), True
        with faults_told(path), suppress(NotImplementedError):
            try:
                lock.acquire()
            except Timeout:
                ours = False
        try:
            yield ours
        finally:
            lock.release()

    def damaged(self, *, move: bool = False) -> list[Damage]:
        """Find files of cells and plans that are truncated, changed, or not a store's, so that they do not count.

        Args:
            move: move them into ``damaged``, and remove what killed processes left half written, but nothing else.
        """
        results: list[object] = [
            footer
            if isinstance(footer, Damage)
            else _whole(footer.path, partial(read_rows, footer))
            for footer in self._scan()
        ]
        blocking = sorted(
            place
            for place in (self.path / "cells").glob("[0-9a-f][0-9a-f]")
            if place.is_file()
        )
        results += [
            Damage(place, "a file stands in the way of a folder") for place in blocking
        ]
        results += [
            _whole(
                path, partial(read_json if path.suffix == ".json" else read_table, path)
            )
            for path in self._plan_files()
        ]
        damages = [damage for damage in results if isinstance(damage, Damage)]
        report = [*self.repaired, *(map(self._set_aside, damages) if move else damages)]
        if move:
            self.repaired = []
            for path in self.path.rglob(".*.part"):
                # it may have just been renamed, or is not ours
                with suppress(OSError):
                    if path.stat().st_mtime < time.time() - _LEFTOVER_SECONDS:
                        path.unlink()
        return report

    def _set_aside(self, damage: Damage) -> Damage:
        target = (
            self.path
            / "damaged"
            / f"{damage.path.stem}.{time.time_ns()}{damage.path.suffix}"
        )
        with faults_told(damage.path):
            try:
                damage.path.rename(target)
            except FileNotFoundError:
                # another process was faster
                return damage
        self._footers.pop(damage.path.name, None)
        return Damage(damage.path, damage.why, target)

    def _finished(self) -> list[Footer]:
        return [footer for footer in self._scan() if isinstance(footer, Footer)]

    def _scan(self) -> list[Footer | Damage]:
        """Return the footers of all files by file name, from memory where the file has not changed."""
        fresh: dict[str, tuple[tuple[int, int], Footer | Damage]] = {}
        with faults_told(self.path):
            try:
                folders = [
                    entry for entry in os.scandir(self.path / "cells") if entry.is_dir()
                ]
                for file in (file for folder in folders for file in os.scandir(folder)):
                    if file.name.startswith(".") or not file.name.endswith(".parquet"):
                        continue
                    stamp, old = (
                        (file.stat().st_mtime_ns, file.stat().st_size),
                        self._footers.get(file.name),
                    )
                    fresh[file.name] = (
                        old
                        if old and old[0] == stamp
                        else (
                            stamp,
                            _whole(Path(file), partial(read_footer, Path(file))),
                        )
                    )
            except FileNotFoundError:
                if not (self.path / "store.json").exists():
                    raise StoreError(f"{self.path} is no longer there") from None
        self._footers = fresh
        return [fresh[name][1] for name in sorted(fresh)]

    def write_plan(
        self, name: str, about: Mapping[str, Any], **tables: pd.DataFrame
    ) -> None:
        """Write a plan's provenance (as JSON) and tables under a name; an older plan is replaced atomically.

        Raises:
            StoreError: it cannot be written.
        """
        checksums = {}
        for label, table in tables.items():
            content, checksums[label] = encode_table(table)
            write_atomically(
                self.path / "plans" / f"{name}.{label}.{checksums[label]}.parquet",
                content,
            )
        path = self.path / "plans" / f"{name}.json"
        write_atomically(
            path, encode_json({"about": about, "tables": checksums}, path.name)
        )

    def read_plan(self, name: str) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
        """Read a plan's provenance and tables by its name.

        Raises:
            UnknownNameError: there is none of this name.
            StoreError: it is damaged.
        """
        path = self.path / "plans" / f"{name}.json"
        if not path.exists():
            raise unknown_name("plan", name, self.plans())
        try:
            content = read_json(path)
            tables = {}
            for label, checksum in content["tables"].items():
                path = self.path / "plans" / f"{name}.{label}.{checksum}.parquet"
                tables[label] = read_table(path)
        except PermissionError as error:
            raise trouble(error, path) from error
        except (DamagedFileError, OSError, ValueError) as error:
            raise self._advice(path, error) from error
        return content["about"], tables

    def plans(self) -> list[str]:
        """List the names of the plans."""
        return sorted(
            path.stem for path in self._plan_files() if path.suffix == ".json"
        )

    def _plan_files(self) -> list[Path]:
        return sorted(
            path
            for path in (self.path / "plans").glob("[!.]*")
            if path.suffix in (".parquet", ".json")
        )


def _whole(path: Path, read: Callable[[], Any]) -> Any:
    """Read a file, or return its damage."""
    try:
        return read()
    except PermissionError as error:
        raise trouble(error, path) from error
    except StoreError:
        raise
    except (DamagedFileError, OSError, ValueError) as error:
        return Damage(path, str(error))
