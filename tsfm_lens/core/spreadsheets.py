"""Text that no spreadsheet runs as a formula, and frames written as such.

:func:`to_csv` writes a frame; :func:`defused` changes one text, :func:`restored` undoes
it for a column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

# A spreadsheet runs a cell that begins with one of these signs as a formula, unless an
# apostrophe stands before it. Full-width signs count, too.
_TRIGGER = r"[=+\-@\t\r\n＝＋－＠]"
# where a cell may begin: at the start of the text, or after a delimiter in it
_CELL_START = r"(^|[;,|\t\r\n\"])"
# defused() adds one apostrophe where _RISKY matches, restored() drops that of _DEFUSED
_RISKY = re.compile(rf"{_CELL_START}('*)(?={_TRIGGER})")
_DEFUSED = re.compile(rf"{_CELL_START}'('*)(?={_TRIGGER})")
# a trigger without an apostrophe, which defused() never leaves
_RAW = re.compile(rf"{_CELL_START}(?={_TRIGGER})")
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# NUMBER stays a text, of which Arrow, whose engine is RE2, builds its own patterns
_NUMBER = re.compile(NUMBER)


def defused(text: str) -> str:
    """Change a text so that no spreadsheet runs it as a formula.

    Numbers stay as they are.

    Returns:
        The text.
    """
    if _NUMBER.fullmatch(text):
        return text
    return _RISKY.sub(r"\1'\2", text)


def restored(texts: Sequence[str]) -> list[str]:
    """Undo :func:`defused` for one column or header.

    If a spreadsheet would run one of the texts, :func:`defused` did not write them, and
    all stay as they are.

    Returns:
        The texts.
    """
    if not any("'" in text for text in texts):
        return list(texts)
    if any(_RAW.search(text) and not _NUMBER.fullmatch(text) for text in texts):
        return list(texts)
    return [
        text if _NUMBER.fullmatch(text) else _DEFUSED.sub(r"\1\2", text)
        for text in texts
    ]


def to_csv(frame: pd.DataFrame, **options: Any) -> str:
    """Write a frame as CSV without its index, with text and column names defused."""
    safe = frame.copy()
    safe.columns = pd.Index([defused(str(name)) for name in frame.columns])
    for position in range(frame.shape[1]):
        column = frame.iloc[:, position]
        if pd.api.types.is_numeric_dtype(
            column
        ) or pd.api.types.is_datetime64_any_dtype(column):
            continue
        cells = column.to_numpy(dtype=object)
        # a long table has the same few texts in thousands of rows
        texts = {cell for cell in cells if isinstance(cell, str)}
        safe_texts = {text: defused(text) for text in texts}
        written = [
            safe_texts[cell] if isinstance(cell, str) else cell for cell in cells
        ]
        # by position, because ``defused`` names may repeat; as objects, since pandas
        # would make its own type of text
        safe.isetitem(position, pd.array(written, dtype=object))
    text: str = safe.to_csv(index=False, lineterminator="\n", **options)
    return text
