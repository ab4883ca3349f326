"""Datasets on disk, as ``Dataset.save_to_disk`` and gluonts write them.

:func:`read_folder` reads those of Hugging Face, :func:`gluonts_rows` those of gluonts.
Both return rows as they are stored; other packages make batches of them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tsfm_lens.core.errors import InputError, MissingExtraError, missing_extra
from tsfm_lens.data.text import file_content
from tsfm_lens.data.values import label

# the marker of a message and a length of 0, as Arrow's format of streams ends
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@dataclass(frozen=True, eq=False)
class StoredSeries:
    """One row of a stored dataset."""

    item: str
    start: Any
    freq: str | None
    values: np.ndarray


def read_folder(folder: Path) -> list[StoredSeries]:
    """Read all rows of a dataset of ``save_to_disk``.

    Values stay in the mapped files until they are used.

    Returns:
        The rows, one for each series.
    """
    rows: list[StoredSeries] = []
    for file in _shards(folder):
        for batch in _batches(file):
            rows += _rows(batch, file, len(rows))
    if not rows:
        raise InputError(f"{folder} has no series")
    return rows


def gluonts_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a file of gluonts.

    Targets are in single precision, as gluonts' FileDataset has them.
    """
    plain = file.name.lower().removesuffix(".gz")
    if not plain.endswith((".json", ".jsonl", ".arrow", ".feather", ".parquet")):
        raise InputError(
            f"gluonts reads no {file.name}: expected .json, .jsonl, .arrow, .feather or"
            " .parquet"
        )
    try:
        is_json = plain.endswith((".json", ".jsonl"))
        for entry in (
            _json_rows(file)
            if is_json
            # JSON is read without gluonts, which is an extra
            else gluonts_module("dataset.arrow").File.infer(file)
        ):
            if (
                not isinstance(entry, dict)
                or "target" not in entry
                or "start" not in entry
            ):
                if isinstance(entry, dict):
                    holds = f"entries with {', '.join(map(str, entry))}"
                else:
                    holds = repr(entry)[:80]
                raise InputError(f"{file} holds {holds}, expected 'start' and 'target'")
            yield entry | {"target": np.asarray(entry["target"], dtype=np.float32)}
    # a missing library says nothing about the file, so that its message stays as it is
    except MissingExtraError:
        raise
    except InputError as error:
        message = str(error)
        raise InputError(
            message
            # messages from above name the file already, those of gluonts and of JSON do
            # not
            if str(file) in message
            else f"{file} is not a dataset of gluonts: {message}"
        ) from error
    except (ValueError, TypeError, KeyError, OSError, EOFError) as error:
        # a line of JSON may be long
        raise InputError(
            f"{file} is not a dataset of gluonts: {str(error)[:200]}"
        ) from error


def gluonts_module(name: str) -> Any:
    """Import a module of gluonts, which sweeps and its own files alone need."""
    try:
        with warnings.catch_warnings():
            # it recommends a faster JSON library, and nothing here reads JSON through
            # it
            warnings.filterwarnings(
                "ignore", message="Using `json`-module", category=UserWarning
            )
            return import_module(f"gluonts.{name}")
    except ImportError as error:
        raise missing_extra("this", "sweep", ["gluonts"]) from error


def _json_rows(file: Path) -> Iterator[Any]:
    for number, line in enumerate(file_content(file).decode("utf-8").splitlines()):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number + 1} is no JSON: {error}") from error


def _shards(folder: Path) -> list[Path]:
    """List the data files in the order of state.json."""
    state = folder / "state.json"
    if not state.is_file():
        raise InputError(
            f"{str(folder)!r} is not a dataset of save_to_disk, a folder with"
            " state.json and data-*.arrow"
        )
    try:
        names = [
            entry["filename"]
            for entry in json.loads(state.read_text(encoding="utf-8"))["_data_files"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{state} lists no data files: {error!r}") from error
    return [folder / name for name in names]


def _batches(file: Path) -> list[pa.RecordBatch]:
    """Map the record batches of a complete Arrow stream."""
    try:
        with pa.memory_map(str(file)) as source:
            # the buffers of the batches keep the mapping alive when the file is closed
            batches = list(pa.ipc.open_stream(source))
            # read while the file is open, and judged below: a stream that is no Arrow
            # at all fails first
            source.seek(max(0, source.size() - len(_END_OF_STREAM)))
            end = source.read()
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise InputError(
            f"{file} is not a complete Arrow stream: {error}. Copy it again."
        ) from error
    # a stream that was cut between two batches reads without any error
    if end != _END_OF_STREAM:
        raise InputError(
            f"{file} ends early, after {sum(map(len, batches))} rows. Copy it again."
        )
    return batches


def _rows(batch: pa.RecordBatch, file: Path, first_row: int) -> list[StoredSeries]:
    """Return the rows of a record batch, numbered from ``first_row`` where ids lack."""
    names = batch.schema.names
    if "target" not in names:
        raise InputError(f"{file} has no column 'target'; it has {', '.join(names)}")

    def column(name: str) -> list[Any]:
        if name in names:
            return batch.column(name).to_pylist()
        return [None] * len(batch)

    items = enumerate(column("item_id"), first_row)
    ids = [
        str(row) if item is None else label(item, f"{file}: item_id of row {row}")
        for row, item in items
    ]
    target = batch.column("target")
    if not _is_list(target.type):
        raise InputError(
            f"the column 'target' holds {target.type}, expected lists of numbers"
        )
    values = [
        _array(cell.values, name, file) for cell, name in zip(target, ids, strict=True)
    ]
    return list(map(StoredSeries, ids, column("start"), column("freq"), values))


def _array(cells: pa.Array | None, name: str, file: Path) -> np.ndarray:
    """View a list of numbers, or of lists of them, as (variate, time).

    It is copied where it has nulls or is not of floats.

    Returns:
        The array.
    """
    if cells is None:
        raise InputError(f"{file}: series {name!r} has no target")
    count = 1
    if _is_list(cells.type):
        steps = set(pc.list_value_length(cells).to_pylist())
        if len(steps) != 1:
            raise InputError(
                f"{file}: series {name!r} has variates of {sorted(steps)} steps"
            )
        # a list of lists is (variate, time), whose rows lie one after the other in the
        # flat array
        count = len(cells)
        cells = cells.flatten()
    if not (pa.types.is_floating(cells.type) or pa.types.is_integer(cells.type)):
        raise InputError(
            f"{file}: the column 'target' holds {cells.type}, expected numbers"
        )
    # a view of the mapped file, if nothing must be converted
    values = cells.to_numpy(zero_copy_only=False)
    if values.dtype not in (np.float32, np.float64):
        # half precision and whole numbers alike; single precision is kept, since it
        # holds what is stored
        values = values.astype(np.float64)
    return values.reshape(count, -1)


def _is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
    )
