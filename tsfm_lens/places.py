"""Places to write to: what cannot be written is refused before it is computed, in a line that names the path."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tsfm_lens.errors import InputError


def refuse_unwritable(folder: str | Path) -> None:
    """Refuse a folder that files cannot be written to, before what goes there is computed; nothing is made.

    Raises:
        InputError: it or a folder above it is a file, or does not let files be made.
    """
    folder = Path(folder)
    with writing_to(folder):
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if _stands(place))
        if not there.is_dir():
            raise InputError(f"{str(folder)!r} cannot be written: {there} is a file; give a folder, new or old")
        with tempfile.TemporaryFile(dir=there):
            pass


def _stands(place: Path) -> bool:
    try:
        os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Errors of the file system as an `InputError` that names the path."""
    try:
        yield
    except InputError:
        raise
    # a path with a NUL is a ValueError
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{str(path)!r} cannot be written: {why}; give a place where files can be made") from error
