"""What a shell offers at the tab key: names of models, figures, measurements and bundled series."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path


def among(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Names that begin as what is typed so far, in a list parted by commas from its last comma on."""

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return offer


@cache
def _names() -> dict[str, list[str]]:
    """Written by ``tools/write_generated.py``: to make them takes seconds, and a tab key should not."""
    names: dict[str, list[str]] = json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))
    return names


def data(incomplete: str) -> list[str]:
    """Bundled series once ``bundled:`` is begun; files are the shell's own affair."""
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
