"""The store of a sweep: one content-keyed Parquet file a finished group of cells.

    store.json            format, schema version, the tsfm-lens that made it, names of the columns of numbers
    cells/xx/KEY.parquet  rows of a group of cells, one row per series and window; the footer lists the cells
    plans/NAME.json, .parquet   the plan and its provenance
    claims/KEY.lock       held by the process that computes a group; the kernel frees it when the process dies
    damaged/              files that could not be read, moved aside

A file appears under its name only when it is whole and on disk, and is never changed afterwards. Digests in it cover
its content, its columns and its name (``seals``). A cell's key is a hash of all that decides its numbers. So cells of
another configuration are never read by mistake, two processes may share a store, and two stores are joined by copying
their ``cells`` together.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from tsfm_lens.errors import InputError, StoreError, unknown_name
from tsfm_lens.registry import VERSION
from tsfm_lens.sweep.store.claims import claimed
from tsfm_lens.sweep.store.files import (
    KEY_COLUMNS,
    SCHEMA_VERSION,
    Damage,
    Footer,
    cell_key,
    cells_file,
    check_schema,
    checked_rows,
    encode,
    group_key,
    make_folder,
    parquet_of,
    read_footer,
    read_plan_file,
    read_rows,
    refuse_older_store,
    trouble,
    write_atomically,
)
from tsfm_lens.sweep.store.seals import DamagedFileError, read_json, sealed_json

__all__ = ["KEY_COLUMNS", "SCHEMA_VERSION", "Damage", "Store", "cell_key", "group_key"]

FORMAT = "tsfm-lens sweep store"
_FOLDERS = ("cells", "plans", "claims", "damaged")
# a write takes a second; what is left for longer was left by a killed process
_LEFTOVER_SECONDS = 3600.0


class Store:
    """Results of sweeps in a folder.

    Args:
        path: the folder.
        create: make it if it is not there; without, nothing is written before the first result.
        values: names of the columns of numbers. A new store keeps them; of an existing one they must be the same.

    Attributes:
        repaired: files that were damaged and moved aside when the store was opened.

    Raises:
        StoreError: the folder is none, is no store, is of another schema version or has other columns.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = True, values: Sequence[str] | None = None
    ) -> None:
        self.path = Path(path).absolute()
        self._footers: dict[str, tuple[tuple[int, int], Footer | Damage]] = {}
        self.repaired: list[Damage] = []
        try:
            about = self._open(create, values)
        except OSError as error:
            raise error if isinstance(error, StoreError) else trouble(error, self.path) from error
        value_names = about.get("values")
        self.values: tuple[str, ...] | None = None if value_names is None else tuple(value_names)
        if values is not None and self.values is not None and set(values) != set(self.values):
            differ = ", ".join(sorted(set(values) ^ set(self.values)))
            raise StoreError(
                f"{self.path} holds other columns than this tsfm-lens writes ({differ}): choose a new folder."
            )

    def _open(self, create: bool, values: Sequence[str] | None) -> Mapping[str, Any]:
        marker = self.path / "store.json"
        about = self._about(marker, create)
        if about is None:
            if not create:
                raise StoreError(
                    f"{self.path} is no store of a sweep: it has no store.json. Start one with tsfm-lens sweep."
                )
            # beside cells of a sweep, other files are in nobody's way
            if not self.repaired:
                make_folder(self.path, {*_FOLDERS, marker.name})
            about = {"format": FORMAT, "schema": SCHEMA_VERSION, "created_by": f"tsfm-lens {VERSION}"}
            about |= {"values": None if values is None else list(values)}
            if not marker.exists():
                write_atomically(marker, sealed_json(about, marker.name))
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
            refuse_older_store(marker)
            is_missing = isinstance(error, FileNotFoundError)
            # what is not ours stays where it is
            if not self._has_cells():
                if is_missing:
                    return None
                raise StoreError(f"{marker} is not that of a sweep's store: choose another folder.") from None
            damage = Damage(marker, "it is not there" if is_missing else str(error))
            if not mend:
                raise self._advice(marker, damage.why) from None
            (self.path / "damaged").mkdir(exist_ok=True)
            self.repaired.append(self._set_aside(damage))
            return None
        check_schema(about.get("schema"), self.path)
        return about

    def _has_cells(self) -> bool:
        """Tell if there are cells of a sweep, or room for them, whatever else there is."""
        cells = self.path / "cells"
        folders = [entry.name for entry in cells.iterdir() if entry.is_dir()] if cells.is_dir() else ["none"]
        return not folders or any(re.fullmatch("[0-9a-f]{2}", name) for name in folders)

    def _advice(self, path: Path, why: object) -> StoreError:
        return StoreError(
            f"{path} is damaged: {why}. Run the sweep again, which sets it aside and makes it anew: "
            f"tsfm-lens sweep CONFIG --store {shlex.quote(str(self.path))}"
        )

    def write(self, rows: Any, cells: Sequence[str]) -> Path:
        """Keep the rows of a finished group of cells.

        Args:
            rows: pyarrow table or pandas frame: ``KEY_COLUMNS`` and columns of numbers, one row per series and window.
            cells: keys of the cells; the rows hold each of them, and no other.

        Returns:
            The file, which is on disk when this returns.

        Raises:
            InputError: the rows are not those of the cells, or a column is wrong.
            StoreError: no space, or no right to write; earlier files are untouched.
        """
        table = checked_rows(rows, cells, self.values)
        key = group_key(cells)
        path = self.path / "cells" / key[:2] / cells_file(cells)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise trouble(error, path) from error
        write_atomically(path, encode(table, cells))
        return path

    def done(self) -> set[str]:
        """Return the keys of every finished cell; reads the footers of files that are new since the last call."""
        return {cell for footer in self._whole() for cell in footer.cells}

    def holds(self, cells: Sequence[str]) -> bool:
        """Tell if this very group is finished; looks at one file, so it is fast in a large store."""
        key = group_key(cells)
        path = self.path / "cells" / key[:2] / cells_file(cells)
        try:
            return set(read_footer(path).cells) >= set(cells)
        except DamagedFileError:
            return False

    def unused(self, cells: Iterable[str]) -> int:
        """Count the finished cells that are none of these: left by another configuration, and not read."""
        return len(self.done() - set(cells))

    def read(
        self, cells: Iterable[str], columns: Sequence[str] | None = None, *, allow_missing: bool = False
    ) -> pa.Table:
        """Read rows of some cells, each cell once even where several files hold it.

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
        keys = set(cells)
        picks: list[tuple[Footer, list[bool]]] = []
        missing = set(keys)
        for footer in self._whole():
            keep = [cell in missing for cell in footer.cells]
            if any(keep):
                picks.append((footer, keep))
                missing.difference_update(footer.cells)
        if missing and not allow_missing:
            raise StoreError(
                f"{len(missing)} of {len(keys)} cells are not in {self.path} yet, for example {min(missing)}: run the "
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
            raise self._advice(footer.path, error) from None

    def claim(self, key: str) -> AbstractContextManager[bool]:
        """Claim a group of cells by its key while the context lasts; see :func:`.claims.claimed`."""
        return claimed(self.path / "claims" / f"{key}.lock")

    def damaged(self, *, move: bool = False) -> list[Damage]:
        """Read every file of cells and every plan, and find those that are cut short, changed, or not a store's.

        Args:
            move: move them into ``damaged``, and remove what killed processes left half written. Nothing else is
                ever deleted.

        Returns:
            The damaged files, with those that were moved aside when the store was opened; their cells count as not
            finished.
        """
        whole = (
            footer if isinstance(footer, Damage) else _find_damage(footer.path, partial(_all_rows, footer))
            for footer in self._scan()
        )
        plans = (_find_damage(path, partial(read_plan_file, path)) for path in self._plans())
        damages = [damage for damage in (*whole, *self._blocking_files(), *plans) if damage is not None]
        report = [*self.repaired, *(map(self._set_aside, damages) if move else damages)]
        if move:
            self.repaired = []
            self._sweep_leftovers()
        return report

    def _set_aside(self, damage: Damage) -> Damage:
        target = self.path / "damaged" / f"{damage.path.stem}.{time.time_ns()}{damage.path.suffix}"
        try:
            damage.path.rename(target)
        except FileNotFoundError:
            # another process was faster
            return damage
        except OSError as error:
            raise trouble(error, damage.path) from error
        self._footers.pop(damage.path.name, None)
        return Damage(damage.path, damage.why, target)

    def _blocking_files(self) -> list[Damage]:
        """Find files that stand where a folder of results belongs."""
        files = (place for place in (self.path / "cells").glob("[0-9a-f][0-9a-f]") if place.is_file())
        return [Damage(place, "a file stands in the way of a folder") for place in sorted(files)]

    def _sweep_leftovers(self) -> None:
        oldest = time.time() - _LEFTOVER_SECONDS
        for path in self.path.rglob(".*.part"):
            try:
                if path.stat().st_mtime < oldest:
                    path.unlink()
            except OSError:
                # it has just been renamed, or is not ours
                continue

    def _whole(self) -> list[Footer]:
        return [footer for footer in self._scan() if isinstance(footer, Footer)]

    def _scan(self) -> list[Footer | Damage]:
        """Return the footers of all files by file name, from memory where the file has not changed."""
        fresh: dict[str, tuple[tuple[int, int], Footer | Damage]] = {}
        try:
            folders = [entry for entry in os.scandir(self.path / "cells") if entry.is_dir()]
            files = [file for folder in folders for file in os.scandir(folder) if file.name.endswith(".parquet")]
            for file in files:
                if file.name.startswith("."):
                    continue
                state = file.stat()
                stamp = state.st_mtime_ns, state.st_size
                cached = self._footers.get(file.name)
                fresh[file.name] = cached if cached and cached[0] == stamp else (stamp, _footer(Path(file.path)))
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
            path = self._plan(name, ".parquet")
            data = parquet_of(pa.Table.from_pandas(content, preserve_index=False), path.name)
        else:
            path = self._plan(name, ".json")
            data = sealed_json(content, path.name)
        write_atomically(path, data)
        return path

    def read_plan(self, name: str) -> Any:
        """Read a plan (a frame) or provenance (a mapping) by its name; a frame where there are both.

        Raises:
            UnknownNameError: there is none of this name.
            StoreError: it is damaged.
        """
        for path in (self._plan(name, ".parquet"), self._plan(name, ".json")):
            try:
                return read_plan_file(path)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                raise trouble(error, path) from error
            except (DamagedFileError, OSError, ValueError) as error:
                raise self._advice(path, error) from error
        raise unknown_name("plan", name, self.plans())

    def plans(self) -> list[str]:
        """List the names of the plans and of their provenance."""
        return sorted({path.stem for path in self._plans()})

    def _plans(self) -> list[Path]:
        paths = (self.path / "plans").glob("[!.]*")
        return sorted(path for path in paths if path.suffix in (".parquet", ".json"))

    def _plan(self, name: str, suffix: str) -> Path:
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise InputError(f"the name of a plan has letters, digits, dots and dashes only, not {name!r}")
        return self.path / "plans" / f"{name}{suffix}"


def _footer(path: Path) -> Footer | Damage:
    try:
        return read_footer(path)
    except DamagedFileError as error:
        return Damage(path, str(error))


def _all_rows(footer: Footer) -> pa.Table:
    return read_rows(footer, [True] * len(footer.cells))


def _find_damage(path: Path, read: Callable[[], object]) -> Damage | None:
    try:
        read()
    except PermissionError as error:
        raise trouble(error, path) from error
    except StoreError:
        raise
    except (DamagedFileError, OSError, ValueError) as error:
        return Damage(path, str(error))
    return None
