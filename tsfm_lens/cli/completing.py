"""Completion at the tab key: models, figures, measurements and bundled series.

The names are cached in a file, since importing the library takes too long at a tab key.
Read :func:`make_completer` first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import typer

from tsfm_lens.core import VERSION


def make_completer(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completer of names.

    In a list with commas, it completes what follows the last comma.
    """

    def offer(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return offer


@cache
def _names() -> dict[str, list[str]]:
    """Return the names, from a file in the user's cache.

    Computing them takes seconds, too long at a tab key.
    """
    # a changed source file may have other names
    newest = max(
        file.stat().st_mtime_ns for file in Path(__file__).parents[1].rglob("*.py")
    )
    file = Path(typer.get_app_dir("tsfm-lens")) / "names.json"
    key = f"{VERSION} {newest}"
    # a file that is missing, broken or of another version is computed anew
    with suppress(OSError, ValueError, KeyError):
        saved: dict[str, dict[str, list[str]]] = json.loads(
            file.read_text(encoding="utf-8")
        )
        return saved[key]
    names = _computed_names()
    # without a writable cache, completion is slow and works
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({key: names}), encoding="utf-8")
    return names


def _computed_names() -> dict[str, list[str]]:
    from tsfm_lens.core.embedded import checkpoint_names
    from tsfm_lens.core.registry import figures, measurements
    from tsfm_lens.models.locating import published_ids

    return {
        "figures": list(figures()),
        "kinds": [
            kind for kind, measurement in measurements().items() if measurement.of_run
        ],
        "models": [*checkpoint_names(), *published_ids()],
    }


def data(incomplete: str) -> list[str]:
    """Complete bundled series after ``bundled:``; files are left to the shell."""
    from tsfm_lens.data import bundled_names

    word = "bundled:"
    if not incomplete or word.startswith(incomplete):
        return [word]
    if not incomplete.startswith(word):
        return []
    names = ["all", *bundled_names()]
    return [
        word + name
        for name in make_completer(lambda: names)(incomplete.removeprefix(word))
    ]


models = make_completer(lambda: _names()["models"])
figures = make_completer(lambda: _names()["figures"])
kinds = make_completer(lambda: _names()["kinds"])
