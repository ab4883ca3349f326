"""CSV and Parquet files as series."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pandas as pd

from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.frames import from_frame
from tsfm_lens.errors import InputError, UnknownNameError

READABLE = (".csv", ".csv.gz", ".txt", ".tsv", ".parquet", ".pq")


def read_series(
    path: str | Path,
    *,
    freq: str | None = None,
    targets: Sequence[str] | None = None,
    variates: Sequence[str] | None = None,
    id_column: str | None = None,
    time_column: str | None = None,
) -> SeriesBatch:
    """Series of a file, with the columns that :func:`tsfm_lens.data.frames.from_frame` reads.

    A CSV without a header line and with numbers only is read as one series a column.

    Args:
        path: .csv, .csv.gz, .txt, .tsv, .parquet or .pq.
        freq: pandas frequency alias; inferred from timestamps if None.
        targets: columns to read, each a series of its own.
        variates: columns to read together, as the variates of one group.
        id_column: whose values tell the series apart; found by its name if None.
        time_column: of the timestamps; found by its name if None.

    Raises:
        InputError: the file is missing, empty or unreadable; the message names row and column.
        UnknownNameError: a column that is named does not exist.
    """
    file = Path(path).expanduser()
    if not _exists(file):
        near = [item.name for item in file.parent.glob("*") if item.suffix in READABLE] if file.parent.is_dir() else []
        hint = f" That folder has: {', '.join(sorted(near)[:5])}." if near else ""
        raise InputError(f"there is no file {str(path)!r}.{hint}")
    if file.is_dir() or not file.name.lower().endswith(READABLE):
        raise InputError(f"cannot read {str(path)!r}: expected a file that ends in {', '.join(READABLE)}")
    try:
        frame = _frame(file)
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{path} is empty") from error
    except (pd.errors.ParserError, UnicodeDecodeError, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    try:
        return from_frame(
            frame, freq=freq, targets=targets, variates=variates, id_column=id_column, time_column=time_column
        )
    except (InputError, UnknownNameError) as error:
        raise type(error)(f"{path}: {error}") from error


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:
        # no path at all, such as one that is too long
        return False


def _frame(file: Path) -> pd.DataFrame:
    if file.suffix.lower() in (".parquet", ".pq"):
        return pd.read_parquet(file)
    frame = _read_csv(file, header="infer")
    if all(_is_number(column) for column in frame.columns):
        frame = _read_csv(file, header=None)
        frame.columns = pd.Index([f"column-{index}" for index in range(frame.shape[1])])
    return frame


def _read_csv(file: Path, header: Literal["infer"] | None) -> pd.DataFrame:
    separators = {".tsv": "\t", ".txt": r"[,;\s]\s*"}
    separator = separators.get(file.suffix.lower(), ",")
    frame = pd.read_csv(file, sep=separator, header=header, engine="python" if len(separator) > 1 else "c")
    if frame.shape[1] == 1 and ";" in str(frame.columns[0]):
        frame = pd.read_csv(file, sep=";", header=header)
    return frame


def _is_number(text: object) -> bool:
    try:
        float(str(text))
    except ValueError:
        return False
    return True
