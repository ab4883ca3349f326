"""Digests inside the files of a store: of every file, all bits count, and its name.

A Parquet file has two, so that its list of cells can be trusted without reading its rows: one of what stands before
the footer, and one of the footer, which holds the first. A JSON file has one. The file's name is part of the digest,
so that a file put in another's place is noticed too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NOTHING = "0" * 64
_ROWS, _FOOTER = re.compile(rb"rows-sha256:([0-9a-f]{64})"), re.compile(rb"footer-sha256:([0-9a-f]{64})")
_JSON = re.compile(rb'^\{\s*"sha256": "([0-9a-f]{64})"')
# room for the digests in a Parquet file's footer
PARQUET_SEAL = {"tsfm_lens.seal": f"rows-sha256:{_NOTHING} footer-sha256:{_NOTHING}"}
_MAGIC = b"PAR1"
_CHANGED = "it was changed, cut short or renamed after it was written"
# most footers are shorter, so that one read is enough
_TAIL = 2**16


class DamagedFileError(Exception):
    """A file is cut short, changed, or none of ours; the store turns it into a report or a StoreError."""


class UnsealedError(DamagedFileError):
    """A file has no digests: another program wrote it, or an older version."""


def sealed_parquet(content: Any, name: str) -> bytes:
    """Seal a Parquet file with its digests.

    Args:
        content: the file's bytes; its footer holds ``PARQUET_SEAL``.
        name: that it will have.
    """
    body = bytes(content)
    start = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    footer = _fill_digest(body[start:-8], _ROWS, _digest(body[:start]))
    # the footer's own digest comes last, since it covers the other
    footer = _fill_digest(footer, _FOOTER, _digest(name.encode(), footer))
    return body[:start] + footer + body[-8:]


def _fill_digest(content: bytes, place: re.Pattern[bytes], digest: str) -> bytes:
    room = place.search(content)
    assert room is not None, "there is no room for the digest"
    return content[: room.start(1)] + digest.encode() + content[room.end(1) :]


def parquet_tail(path: Path) -> bytes:
    """Read and verify the footer of a Parquet file with its length and mark, which Parquet's own reader needs.

    Raises:
        DamagedFileError: it is no Parquet file, has no digests, or its digest is another.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if len(tail) < length <= size:
            file.seek(size - length)
            tail = file.read()
    return _tail_of(tail, path.name)


def parquet_content(path: Path) -> bytes:
    """Read and verify the bytes of a whole Parquet file.

    Raises:
        DamagedFileError: as ``parquet_tail``, or what stands before the footer has another digest.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    tail = _tail_of(content, path.name)
    seal = _ROWS.search(tail)
    assert seal is not None
    if _digest(memoryview(content)[: len(content) - len(tail)]).encode() != seal[1]:
        raise DamagedFileError(_CHANGED)
    return content


def _tail_of(content: bytes, name: str) -> bytes:
    length = int.from_bytes(content[-8:-4], "little") + 8
    if content[-4:] != _MAGIC or length > len(content):
        raise DamagedFileError("it is no Parquet file, or cut short")
    tail = content[len(content) - length :]
    footer, seal = tail[:-8], _FOOTER.search(tail)
    if seal is None or _ROWS.search(tail) is None:
        raise UnsealedError("it is no file of a sweep, or was changed")
    if _digest(name.encode(), _fill_digest(footer, _FOOTER, _NOTHING)).encode() != seal[1]:
        raise DamagedFileError(_CHANGED)
    return tail


def sealed_json(content: Mapping[str, Any], name: str) -> bytes:
    """Encode a JSON file with its digest, which is its first field."""
    text = json.dumps({"sha256": _NOTHING, **content}, indent=1).encode()
    return text.replace(_NOTHING.encode(), _digest(name.encode(), text).encode(), 1)


def read_json(path: Path) -> dict[str, Any]:
    """Read the content of a JSON file that ``sealed_json`` made.

    Raises:
        DamagedFileError: it is none, or its digest is another.
        OSError: it cannot be read.
    """
    text = path.read_bytes()
    seal = _JSON.match(text)
    if seal is None:
        raise UnsealedError("it is no file of a sweep, or was changed")
    if _digest(path.name.encode(), _fill_digest(text, _JSON, _NOTHING)).encode() != seal[1]:
        raise DamagedFileError(_CHANGED)
    content: dict[str, Any] = json.loads(text)
    del content["sha256"]
    return content


def _digest(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
