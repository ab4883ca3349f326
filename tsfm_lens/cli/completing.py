"""Completion at the tab key: names of models, figures, measurements and bundled series."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path


def among(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completer of names, in a list with commas from its last comma on."""

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return offer


@cache
def _names() -> dict[str, list[str]]:
    """Load the names that ``tools/write_generated.py`` wrote; computing them takes seconds, too long at a tab key."""
    names: dict[str, list[str]] = json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))
    return names


def data(incomplete: str) -> list[str]:
    """Complete bundled series after ``bundled:``; files are left to the shell."""
    from tsfm_lens.data import bundled_names

    word = "bundled:"
    if not incomplete or word.startswith(incomplete):
        return [word]
    if not incomplete.startswith(word):
        return []
    names = ["all", *bundled_names()]
    return [word + name for name in among(lambda: names)(incomplete.removeprefix(word))]


models = among(lambda: _names()["models"])
figures = among(lambda: _names()["figures"])
kinds = among(lambda: _names()["kinds"])
