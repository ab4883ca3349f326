"""The log of a run: a line of JSON for every saved state and every evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tsfm_lens.errors import CheckpointError
from tsfm_lens.places import replacing

__all__ = ["read_log"]


def read_log(file: str | Path) -> list[dict[str, Any]]:
    """Read the lines of a log, each a mapping with "step"; a last line that a kill has cut short is left out.

    Raises:
        CheckpointError: there is no such file, or a line before the last one is no JSON.

    Example:
        >>> _ = (folder / "log.jsonl").write_text('{"step": 1, "loss": 0.5}' + chr(10) + '{"step": 2, "lo')
        >>> training.read_log(folder / "log.jsonl")
        [{'step': 1, 'loss': 0.5}]
    """
    path = Path(file)
    if not path.exists():
        raise CheckpointError(f"there is no log {path}; expected that of a training run")
    return list(_lines(path))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    texts = path.read_text(encoding="utf-8").splitlines()
    for place, text in enumerate(texts):
        try:
            yield json.loads(text)
        except json.JSONDecodeError as error:
            if place < len(texts) - 1:
                raise CheckpointError(f"{path}, line {place + 1}: {error}; expected a line of JSON") from error


def cut(file: Path, step: int) -> None:
    """Drop the lines of a log that came after a step, which is to be gone through again."""
    if file.exists():
        lines = [line for line in _lines(file) if line["step"] <= step]
        with replacing(file) as part:
            part.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def append(file: Path, line: dict[str, Any]) -> None:
    """Add a line."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
