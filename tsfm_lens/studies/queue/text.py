"""Text for language models: the documentation of Python's standard library.

It is on every machine with Python, under Python's own licence. :func:`python_text`
reads it; its digest guards a record against another version's text. A text that
:func:`save_text` put beside the records is taken instead, on a machine with another
Python.
"""

from __future__ import annotations

import ast
import hashlib
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.io import replacing
from tsfm_lens.studies.samformer.tasks import stream

SYMBOLS = "\n" + "".join(map(chr, range(32, 127)))
"""The 96 characters of the text; what has another is left out."""
LEFT_OUT = {"site-packages", "test", "tests", "idle_test", "__pycache__"}
HELD_OUT = 20
"""One of so many documents is held out."""
SAVED = "text.npz"
"""Name of a saved text."""


@dataclass(frozen=True, eq=False)
class Text:
    """Characters as numbers of ``SYMBOLS``, for training and held out.

    The two are from different documents.
    """

    training: np.ndarray
    held_out: np.ndarray
    source: str

    @property
    def digest(self) -> str:
        """Short hash of both."""
        return hashlib.sha256(
            self.training.tobytes() + b"|" + self.held_out.tobytes()
        ).hexdigest()[:16]

    @property
    def facts(self) -> dict[str, str]:
        """Where it is from, for a record."""
        return {"text": self.source, "text_digest": self.digest}


def check_text(record: xr.Dataset | None, text: Text) -> None:
    """Raise if a record is of another text, as another version of Python has.

    Raises:
        InputError: the record's text is another one.
    """
    if record is not None and record.attrs["text_digest"] != text.digest:
        raise InputError(
            f"the record is of {record.attrs['text']}, and here is"
            f" {text.facts['text']}: run it with that"
        )


@cache
def python_text() -> Text:
    """Read the docstrings of the standard library and the topics of its help.

    Docstrings are read module by module.
    """
    documents = [_encoded(document) for document in _documents()]
    parts = [part for index, part in enumerate(documents) if index % HELD_OUT]
    source = (
        f"docstrings and help topics of Python {platform.python_version()}, PSF licence"
    )
    return Text(np.concatenate(parts), np.concatenate(documents[::HELD_OUT]), source)


def save_text(text: Text, file: Path) -> None:
    """Save a text as .npz; named ``SAVED`` beside the records, it is the queue's."""
    with replacing(file) as new, new.open("wb") as stream:
        np.savez_compressed(stream, **vars(text))


def find_text(records: Path) -> Text:
    """Return the text saved beside the records, or that of the Python at hand."""
    file = records / SAVED
    if not file.exists():
        return python_text()
    with np.load(file) as saved:
        return Text(saved["training"], saved["held_out"], str(saved["source"]))


def _documents() -> Iterator[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(root.rglob("*.py")):
        if LEFT_OUT & set(file.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [
            ast.get_docstring(node)
            for node in ast.walk(tree)
            if isinstance(node, kinds)
        ]
        if any(found):
            yield "\n\n".join(item for item in found if item) + "\n\n"
    # a module without a stable place in typeshed
    from pydoc_data import topics  # type: ignore[import-not-found, unused-ignore]

    for name in sorted(topics.topics):
        yield topics.topics[name] + "\n\n"


def _encoded(document: str) -> np.ndarray:
    found = map(SYMBOLS.find, document)
    return np.array([number for number in found if number >= 0], dtype=np.uint8)


def draw_windows(ids: Tensor, count: int, length: int, *parts: int) -> Tensor:
    """Draw windows (window, token) of a text, by the parts of a seed."""
    starts = torch.randint(len(ids) - length + 1, (count,), generator=stream(*parts))
    return ids[starts[:, None] + torch.arange(length)]


def decoded(symbols: np.ndarray) -> str:
    """Return the characters of numbers."""
    return "".join(SYMBOLS[number] for number in symbols)
