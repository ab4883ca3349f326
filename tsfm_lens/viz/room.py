"""Rough widths of words in pixels, and lines that fit them."""

from __future__ import annotations

import re
from math import ceil
from textwrap import wrap

import plotly.graph_objects as go

_LETTER = 0.6  # width of a letter, in type sizes; that of DejaVu Sans, which browsers fall back to
_TAG = re.compile(r"<(?!br)[^>]*>")
_SIGN = 45  # pixels of an entry of the legend beside its name


def text_width(text: str, size: float) -> float:
    """Estimate the width in pixels of the longest line of a text, markup apart."""
    return _LETTER * size * max(len(line) for line in re.split(r"<br>|\n", _TAG.sub("", text)))


def shortened(text: str, width: float, size: float, lines: int = 4) -> str:
    """Break a text into at most so many lines of a width in pixels, cut off with an ellipsis where it is longer.

    Args:
        text: without markup; lines of its own are kept.
        width: pixels; size: of the type in pixels.
        lines: how many.
    """
    letters = max(int(width / (_LETTER * size)), 6)
    parts = [part for line in text.split("\n") for part in wrap(line, letters) or [""]]
    if len(parts) > lines:
        parts = [*parts[: lines - 1], parts[lines - 1][: letters - 1].rstrip() + "…"]
    return "\n".join(parts)


def wrapped(title: str, length: float, size: float) -> str:
    """Break a title, safe for plotly, before its unit and at spaces into lines of a length in pixels."""
    letters = max(int(length / (_LETTER * size)), 8)
    words = title if len(title) <= letters or "<br>" in title else title.replace(" (", "<br>(", 1)
    return "<br>".join(part for line in words.split("<br>") for part in wrap(line, letters, break_long_words=False))


def legend_rows(fig: go.Figure, width: float) -> int:
    """Estimate the rows of the legend under a figure of a width in pixels; none without a legend."""
    if fig.layout.showlegend is False:
        return 0
    entries = [trace.name for trace in fig.data if trace.showlegend and trace.legend in (None, "legend")]
    return ceil(sum(text_width(name, 12) + _SIGN for name in entries) / (width - 84))
