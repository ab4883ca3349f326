"""Output paths: refused before anything is computed if they cannot be written, and
replaced whole or not at all.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from tsfm_lens.core.errors import InputError

WRITTEN: deque[Path] = deque(maxlen=1000)
"""Latest files and folders that this process has put in their places."""


def refuse_unwritable(folder: str | Path) -> None:
    """Refuse a folder that files cannot be written to, before results are computed;
    create nothing.
    """
    folder = Path(folder)
    with name_write_errors(folder):
        there = next(
            position
            for position in (folder.absolute(), *folder.absolute().parents)
            if _stands(position)
        )
        if not there.is_dir():
            raise InputError(
                f"{str(folder)!r} cannot be written: {there} is a file; give a folder,"
                " new or old"
            )
        with tempfile.TemporaryFile(dir=there):
            pass


def _stands(place: Path) -> bool:
    try:
        os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def name_write_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into an `InputError` that names the path."""
    try:
        yield
    except InputError:
        raise
    # a path with a NUL is a ValueError
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{str(path)!r} cannot be written: {why}; give a place where files can be"
            " made"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a part that takes the file's name, whole and on disk, when the
    block ends.
    """
    # in the same folder: a rename is atomic only within one file system
    part = path.with_name(f".{uuid4().hex}.part")
    try:
        yield part
        follow_umask(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        WRITTEN.append(path)
        _sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file whole or not at all; InputError where the disk is full or the place
    cannot be written.

    Libraries that write tensors into files of their own hide the cause, so that they
    give bytes here instead.
    """
    with name_write_errors(path), replacing(path) as part:
        part.write_bytes(content)


def follow_umask(file: Path) -> None:
    """Give a file the permissions of any new file beside it; safetensors writes for the
    owner alone.
    """
    new = file.with_name(f".{uuid4().hex}.part")
    new.touch(exist_ok=False)
    try:
        file.chmod(new.stat().st_mode)
    finally:
        new.unlink()


def _sync_folder(folder: Path) -> None:
    # a new name is on disk only when its folder is; Windows has no such call
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
