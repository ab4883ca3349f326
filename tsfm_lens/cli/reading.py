"""How a file of series is to be read: one set of options for every command that reads one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch

PANEL = "Reading a file"
OPTIONS: dict[str, Any] = {
    "id_column": Annotated[
        str | None,
        typer.Option("--id-column", metavar="NAME", rich_help_panel=PANEL, help="Column that tells series apart."),
    ],
    "time_column": Annotated[
        str | None, typer.Option("--time-column", metavar="NAME", rich_help_panel=PANEL, help="Column of timestamps.")
    ],
    "targets": Annotated[
        list[str] | None,
        typer.Option(
            "--target", "-t", metavar="NAME", rich_help_panel=PANEL, help="Column that is a series; repeatable."
        ),
    ],
    "variates": Annotated[
        list[str] | None,
        typer.Option(
            "--variate", metavar="NAME", rich_help_panel=PANEL, help="Column that is a variate of one item; repeatable."
        ),
    ],
    "known": Annotated[
        list[str] | None,
        typer.Option(
            "--known",
            metavar="NAME[,NAME…]",
            rich_help_panel=PANEL,
            help="Column of a covariate whose future is known; repeatable.",
        ),
    ],
    "past": Annotated[
        list[str] | None,
        typer.Option(
            "--past",
            metavar="NAME[,NAME…]",
            rich_help_panel=PANEL,
            help="Column of a covariate that is seen up to the forecast; repeatable.",
        ),
    ],
    "freq": Annotated[
        str | None,
        typer.Option(
            "--freq", metavar="ALIAS", rich_help_panel=PANEL, help="h, D, W, MS, …; else from the timestamps."
        ),
    ],
    "delimiter": Annotated[
        str | None,
        typer.Option("--delimiter", metavar="SIGN", rich_help_panel=PANEL, help="What parts columns; tab and space."),
    ],
    "decimal": Annotated[
        str | None, typer.Option("--decimal", metavar="SIGN", rich_help_panel=PANEL, help="Decimal sign: . or ,")
    ],
    "encoding": Annotated[
        str | None,
        typer.Option("--encoding", metavar="NAME", rich_help_panel=PANEL, help="Such as cp1252; else UTF-8."),
    ],
    "header": Annotated[
        bool | None,
        typer.Option("--header/--no-header", rich_help_panel=PANEL, help="Whether the first line has names."),
    ],
}
_FLAGS = {"targets": "--target", "variates": "--variate"}
# an option as messages of the library spell it: time_column='ds', targets=[…], freq=…
_SPELLED = re.compile(rf"\b({'|'.join(OPTIONS)})=('[^']*'|\"[^\"]*\"|\[…\]|…|True|False|[-\w.]+)")


@dataclass(frozen=True)
class Reading:
    """The options that were given, by their names in Python; None where not."""

    id_column: str | None = None
    time_column: str | None = None
    targets: list[str] | None = None
    variates: list[str] | None = None
    known: list[str] | None = None
    past: list[str] | None = None
    freq: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    header: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What is not None, as keyword arguments of ``read_series``."""
        given = {name: value for name, value in asdict(self).items() if value is not None and value != []}
        for name in ("known", "past"):
            if name in given:
                given[name] = [part.strip() for text in given[name] for part in text.split(",") if part.strip()]
        return given


def reads_files(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above; it receives them as one keyword argument ``reading``."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "reading"]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in OPTIONS.items()
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        reading = Reading(**{name: given.pop(name) for name in OPTIONS})
        command(**given, reading=reading)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = signature.replace(parameters=[*parameters, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *options)}
    return run


def read_data(sources: Sequence[str], reading: Reading) -> SeriesBatch:
    """Series of every ``--data``; what was decided by rule is said on stderr."""
    from tsfm_lens.pipeline import read_sources

    batch = read_sources(sources, **reading.given)
    for note in batch.notes:
        typer.echo(f"note: {in_option_words(note)}", err=True)
    return batch


def in_option_words(message: str) -> str:
    """A message of the library with its keyword arguments as options: ``freq='h'`` is ``--freq h``."""

    def option(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if name == "header":
            return "--no-header" if value == "False" else "--header"
        flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
        if value in ("…", "[…]"):
            return f"{flag} …"
        plain = value[1:-1] if value[:1] in "'\"" else value
        return f"{flag} {plain}" if re.fullmatch(r"[\w.,-]+", plain) else f"{flag} {value}"

    return _SPELLED.sub(option, message)
