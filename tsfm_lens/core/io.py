"""Output paths, checked before anything is computed, and replaced at once.

:func:`check_writable` tries a folder beforehand; :func:`replacing` and
:func:`write_atomically` write a file next to its final name, so that it is there
completely or not at all.
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

# bounded, since a sweep writes files without end
WRITTEN: deque[Path] = deque(maxlen=1000)
"""Latest files and folders that this process has written."""


def check_writable(folder: str | Path) -> None:
    """Refuse a folder that files cannot be written to; create nothing.

    It is meant to be called before results are computed.
    """
    folder = Path(folder)
    with name_write_errors(folder):
        # the folder itself may be new: what decides is the nearest one that exists
        existing = next(
            path
            for path in (folder.absolute(), *folder.absolute().parents)
            if _exists(path)
        )
        if not existing.is_dir():
            raise InputError(
                f"{str(folder)!r} cannot be written: {existing} is a file; give a"
                " folder, new or old"
            )
        # permissions and read-only file systems show only when a file is made
        with tempfile.TemporaryFile(dir=existing):
            pass


def find_page(path: str | Path) -> Path:
    """Return the file of a report in a folder, or under a name that ends in .html."""
    target = Path(path)
    if target.suffix.lower() != ".html":
        target = target / "index.html"
    check_writable(target.parent)
    if target.is_dir():
        raise InputError(
            f"{str(target)!r} is a folder, expected the name of a file to write; give"
            " another place"
        )
    return target


def _exists(path: Path) -> bool:
    # Path.exists follows a link, and is false for one that leads nowhere
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def name_write_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into an `InputError` that names the path."""
    try:
        yield
    # it is a ValueError, too
    except InputError:
        raise
    # a path with a NUL is a ValueError
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{str(path)!r} cannot be written: {cause}; give a place where files can be"
            " made"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a part that takes the file's name when the block ends.

    By then it is complete and on disk.
    """
    # in the same folder: a rename is atomic only within one file system
    part = path.with_name(f".{uuid4().hex}.part")
    try:
        yield part
        follow_umask(part)
        # else a crash may leave an empty file under the final name
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
        WRITTEN.append(path)
        _sync_folder(path.parent)
    finally:
        # after an error or an interrupt, a part of the file is still there
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file completely or not at all.

    Libraries that write tensors into files of their own hide the cause of an error, so
    that they give bytes here instead.

    Raises:
        InputError: the disk is full, or the path cannot be written.
    """
    with name_write_errors(path), replacing(path) as part:
        part.write_bytes(content)


def follow_umask(file: Path) -> None:
    """Give a file the permissions of any new file beside it.

    safetensors writes files that only their owner can read.
    """
    # the umask can only be read by setting it, which other threads would notice
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
