"""CSV without formulas: text that a spreadsheet would run is written so that it stays text.

A cell that begins with ``=``, ``+``, ``-``, ``@``, a tab or a line break is a formula to a spreadsheet unless it is a
number. As OWASP's guidance on CSV injection has it, an apostrophe is put before it, also where it follows a separator
inside a cell, since programs differ in what they take for one. Text that already has apostrophes there gets one more,
so that :func:`restored` gives back exactly what was written.

Source:
    https://owasp.org/www-community/attacks/CSV_Injection
"""

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
COMMA_NUMBER = NUMBER.replace(r"\.", ",")
_NUMBER = re.compile(NUMBER)


def defused(text: str) -> str:
    """Change a text so that no spreadsheet runs it as a formula; numbers stay as they are."""
    if _NUMBER.fullmatch(text):
        return text
    return _RISKY.sub(r"\1'\2", text)


def restored(texts: Sequence[str]) -> list[str]:
    """Undo :func:`defused` for the texts of one column or header.

    A column in which some text would run as a formula was not written by us, and stays as it is, so that no two
    different texts become one.
    """
    if not any("'" in text for text in texts):
        return list(texts)
    if any(_RAW.search(text) and not _NUMBER.fullmatch(text) for text in texts):
        return list(texts)
    return [text if _NUMBER.fullmatch(text) else _DEFUSED.sub(r"\1\2", text) for text in texts]


def to_csv(frame: pd.DataFrame, **options: Any) -> str:
    """Write a frame as CSV without its index, with text and column names defused.

    Args:
        frame: it is not changed.
        options: of ``DataFrame.to_csv``, such as ``float_format``.
    """
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
