"""Options for reading a file of series, the same for every command that reads one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from tsfm_lens.cli.options import OPTIONS
from tsfm_lens.cli.words import in_option_words
from tsfm_lens.console import echo

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch


@dataclass(frozen=True)
class Reading:
    """Options from the command line, by their names in Python; None where not given."""

    id_column: str | None = None
    time_column: str | None = None
    time_format: str | None = None
    targets: list[str] | None = None
    variates: list[str] | None = None
    known: list[str] | None = None
    past: list[str] | None = None
    freq: str | None = None
    units: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    header: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Options that are not None, as keyword arguments of ``read_series``."""
        return {name: value for name, value in asdict(self).items() if value is not None and value != []}


def reads_files(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above; it receives them as one keyword argument ``reading``."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "reading"]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in OPTIONS.items()
    ]

    @wraps(command)
    def run(**arguments: Any) -> None:
        reading = Reading(**{name: arguments.pop(name) for name in OPTIONS})
        command(**arguments, reading=reading)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = signature.replace(parameters=[*parameters, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *options)}
    return run


def read_data(sources: Sequence[str], reading: Reading) -> SeriesBatch:
    """Read the series of every ``--data``; print the choices that were made by rule to stderr."""
    from tsfm_lens.report.pipeline import read_sources

    batch = read_sources(sources, **reading.given)
    for note in batch.notes:
        echo(f"note: {in_option_words(note)}", err=True)
    return batch
