"""Claims of groups of cells, so that several processes on one store compute each group once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tsfm_lens.sweep.store.files import trouble


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold a claim while the context lasts; the kernel frees the claim of a process that dies.

    Args:
        path: of the claim's file.

    Yields:
        True if the claim is ours; False while another process, or another claim of this one, has it. Where the file
        system has no locks it is always True: groups may then be computed twice, and still count once.

    Raises:
        StoreError: the file cannot be made.
    """
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
