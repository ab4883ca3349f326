"""Options for reading a file of series, their words in messages, and checks before a model is opened."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsfm_lens.console import echo

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch
    from tsfm_lens.models.architecture import Architecture

Reading = dict[str, Any]
"""Arguments of ``read_series`` that the command line gives."""
_OPTIONS: dict[str, tuple[Any, tuple[str, ...], str | None, str]] = {
    "id_column": (str, ("--id-column",), "NAME", "Column that tells series apart."),
    "time_column": (str, ("--time-column",), "NAME", "Column of timestamps."),
    "time_format": (str, ("--time-format",), "FORMAT", "Such as %d.%m.%Y, or s since 1970; else ISO."),
    "targets": (list[str], ("--target", "-t"), "NAME", "Column that is a series; repeatable."),
    "variates": (list[str], ("--variate",), "NAME", "Column that is a variate of one item; repeatable."),
    "known": (
        list[str],
        ("--known",),
        "NAME[,NAME…]",
        "Column of a covariate whose future is known; repeatable. Commas part names, but for those in a name.",
    ),
    "past": (
        list[str],
        ("--past",),
        "NAME[,NAME…]",
        "Column of a covariate that is seen up to the forecast; repeatable, commas as in --known.",
    ),
    "freq": (str, ("--freq",), "ALIAS", "h, D, W, MS, …; else from the timestamps."),
    "units": (str, ("--unit",), "TEXT", "Of the series' values, such as kWh."),
    "delimiter": (str, ("--delimiter",), "SIGN", "What parts columns; tab and space."),
    "decimal": (str, ("--decimal",), "SIGN", "Decimal sign: . or ,"),
    "encoding": (str, ("--encoding",), "NAME", "Such as cp1252; else UTF-8."),
    "header": (bool, ("--header/--no-header",), None, "Whether the first line has names."),
}
_FLAGS = {name: flags[0].split("/")[0] for name, (_, flags, *_) in _OPTIONS.items()} | {
    name: f"--{name}" for name in ("holdout", "horizon", "how", "method", "reference", "seed")
}
_FLAGS |= {"num_samples": "--samples", "components": "--component", "quantiles": "--quantile"}
# an option as messages of the library spell it: time_column='ds', targets=[…], freq=…
_KEYWORD = re.compile(rf"\b({'|'.join(_FLAGS)})=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|…|True|False|[-\w.]+)")
_PHRASES = (
    (r"\bnum_samples\b", "--samples"),
    (r"`lens\.components\(\)`", "`tsfm-lens hooks MODEL --components`"),
    (r"\blens\.forecast\b", "`tsfm-lens forecast`"),
    (r"use run\.shortened\((\d+)\)(?:\.in_one_pass\(\))?", r"give --horizon \1"),
    (r"use run\.select\(…\)", "name one, as in --data bundled:co2"),
    (r"batch\.targets\(\) leaves them out", "leave --known and --past away"),
    (r"\bload\(folder\)", "name the folder"),
    (r"\bload\('([^']+)'\)", r"\1"),
    (r"\bload\(\) takes", "MODEL is"),
)


def in_option_words(message: str) -> str:
    """Replace keyword arguments in a message of the library by options: ``freq='h'`` becomes ``--freq h``."""

    def option(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if value in ("True", "False"):
            return f"--no-{name}" if value == "False" else f"--{name}"
        flag = _FLAGS[name]
        if value in ("…", "[…]"):
            return f"{flag} …"
        plain = value[1:-1] if value[:1] in "'\"" else ",".join(re.findall(r"'([^']*)'", value)) or value
        return f"{flag} {plain}" if re.fullmatch(r"[\w.,-]+", plain) else f"{flag} {value}"

    text = _KEYWORD.sub(option, message)
    for pattern, words in _PHRASES:
        text = re.sub(pattern, words, text)
    return text


def reads_files(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above; it receives those that are set as one keyword argument ``reading``."""
    signature = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [each.replace(kind=keyword) for each in signature.parameters.values() if each.name != "reading"]
    for name, (kind, flags, metavar, words) in _OPTIONS.items():
        option = typer.Option(*flags, metavar=metavar, rich_help_panel="Reading a file", help=words)
        parameters.append(inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind | None, option]))

    @wraps(command)
    def run(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in _OPTIONS}
        reading = {name: value for name, value in values.items() if value is not None and value != []}
        command(**arguments, reading=reading)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def read_data(
    sources: Sequence[str], reading: Reading, horizon: int | None = None, holdout: bool | None = None
) -> SeriesBatch:
    """Read the series of every ``--data``, note choices made by rule, and refuse an end that cannot be held out."""
    from tsfm_lens.report.pipeline import read_sources

    batch = read_sources(sources, **reading)
    for note in batch.notes:
        echo(f"note: {in_option_words(note)}", err=True)
    if holdout and horizon is not None:
        from tsfm_lens.data.ends import held_out

        held_out(batch, horizon)
    return batch


def check_sampling(model: str, samples: int | None) -> Architecture | None:
    """Return a model's architecture where it is known without weights; refuse samples of a model of quantiles."""
    from tsfm_lens.errors import InputError
    from tsfm_lens.models.opening import architecture_named

    architecture = architecture_named(model)
    if architecture is not None and architecture.readout == "quantile" and samples is not None:
        raise InputError(f"{model} forecasts quantiles and draws no samples; leave --samples out")
    return architecture


def checked_kinds(model: str, sections: str | None, default: Sequence[str], samples: int | None) -> tuple[str, ...]:
    """Return the measurements that ``--sections`` names; refuse them if the model's architecture allows none."""
    from tsfm_lens.errors import InputError
    from tsfm_lens.report.pipeline import checked_sections

    names = default if sections is None else [kind.strip() for kind in sections.split(",") if kind.strip()]
    measurements = checked_sections(names)
    architecture = check_sampling(model, samples)
    reasons = []
    for measurement in measurements if architecture is not None else ():
        try:
            if measurement.needs is not None:
                measurement.needs.check_architecture(architecture, model, f"{measurement.kind!r}")
        except InputError as error:
            reasons.append(str(error))
    if len(reasons) == len(measurements):
        raise InputError("; ".join(reasons))
    return tuple(names)
