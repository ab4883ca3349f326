"""CSV without formulas (OWASP, CSV injection): an apostrophe keeps text that a spreadsheet would run as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

_BEFORE, _TRIGGER = r"(^|[;,|\t\r\n\"])", r"[=+\-@\t\r\n＝＋－＠]"
_RISKY = re.compile(rf"{_BEFORE}('*)(?={_TRIGGER})")
_DEFUSED = re.compile(rf"{_BEFORE}'('*)(?={_TRIGGER})")
_RAW = re.compile(rf"{_BEFORE}(?={_TRIGGER})")
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_NUMBER = re.compile(NUMBER)


def defused(text: str) -> str:
    """Change a text so that no spreadsheet runs it as a formula; numbers stay as they are."""
    if _NUMBER.fullmatch(text):
        return text
    return _RISKY.sub(r"\1'\2", text)


def restored(texts: Sequence[str]) -> list[str]:
    """Undo :func:`defused` for one column or header; one in which some text would run is not ours and stays."""
    if not any("'" in text for text in texts):
        return list(texts)
    if any(_RAW.search(text) and not _NUMBER.fullmatch(text) for text in texts):
        return list(texts)
    return [text if _NUMBER.fullmatch(text) else _DEFUSED.sub(r"\1\2", text) for text in texts]


def to_csv(frame: pd.DataFrame, **options: Any) -> str:
    """Write a frame as CSV without its index, with text and column names defused."""
    safe = frame.copy()
    safe.columns = pd.Index([defused(str(name)) for name in frame.columns])
    for place in range(frame.shape[1]):
        column = frame.iloc[:, place]
        if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
            continue
        texts = [defused(cell) if isinstance(cell, str) else cell for cell in column]
        safe.isetitem(place, pd.array(texts, dtype=object))
    text: str = safe.to_csv(index=False, lineterminator="\n", **options)
    return text
