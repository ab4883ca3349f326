"""Tables as links that need no server."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass

import pandas as pd

from tsfm_lens.data.text import to_csv

_PLAIN = 150_000  # bytes; longer tables are compressed


@dataclass(frozen=True)
class Download:
    """A table as a link that needs no server.

    Attributes:
        name: file name. href: the whole file as a data URI. note: rows, columns, size.
    """

    name: str
    href: str
    note: str


def download(table: pd.DataFrame, name: str) -> Download:
    """Write a table as CSV with six significant digits; gzipped where long."""
    content = to_csv(table, float_format="%.6g").encode()
    kind = "text/csv;charset=utf-8"
    if len(content) > _PLAIN:
        content, kind, name = gzip.compress(content, mtime=0), "application/gzip", f"{name}.gz"
    href = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    size = f"{len(content) / 1000:.0f} kB" if len(content) >= 1000 else f"{len(content)} bytes"
    return Download(name=name, href=href, note=f"{len(table)} rows, {len(table.columns)} columns, {size}")
