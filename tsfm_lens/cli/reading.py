"""Options for series and forecasts, and checks before a model is opened.

Read :func:`forecasts` first, the decorator that gives a command these options as one
:class:`Request`. :func:`translate_options` puts messages of the library in terms of
options. Files are parsed by :mod:`tsfm_lens.data`.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tsfm_lens.cli import completing
from tsfm_lens.core.console import echo

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch
    from tsfm_lens.data.faults import Faults
    from tsfm_lens.models import Lens
    from tsfm_lens.models.locating import Known
    from tsfm_lens.models.run import Run

DATA_HELP = (
    "CSV or Parquet file, bundled:NAME[,NAME…] or bundled:all; may be given more than"
    " once."
)

_DATA: Any = typer.Option(
    "--data",
    "-d",
    metavar="FILE|bundled:NAME",
    help=DATA_HELP,
    autocompletion=completing.data,
)
Data = Annotated[list[str], _DATA]
DataIfAny = Annotated[list[str] | None, _DATA]
Horizon = Annotated[
    int | None, typer.Option(min=1, help="Forecast steps; the model's own by default.")
]
Holdout = Annotated[
    bool,
    typer.Option(help="Hold out the last HORIZON steps of each series as the truth."),
]
Windows = Annotated[
    int,
    typer.Option(min=1, help="Forecast origins of each series, HORIZON steps apart."),
]
Twins = Annotated[
    int | None,
    typer.Option(min=0, help="Untrained twins to compare with; 24 where little work."),
]
Samples = Annotated[
    int | None,
    typer.Option(
        "--num-samples",
        min=1,
        help="Sample paths of a sampling model; its own number if none.",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of every sampling step.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON to stdout, for scripts.")]
Reading = dict[str, Any]
"""Arguments of ``read_series`` that the command line gives."""


class _Option(NamedTuple):
    """Option of the command line for one argument of ``read_series``."""

    kind: Any
    flags: tuple[str, ...]
    metavar: str | None
    help: str


_OPTIONS: dict[str, _Option] = {
    "id_column": _Option(
        list[str],
        ("--id-column",),
        "NAME[,NAME…]",
        "Column of series names; several for store/item.",
    ),
    "time_column": _Option(str, ("--time-column",), "NAME", "Column of timestamps."),
    "time_format": _Option(
        str,
        ("--time-format",),
        "FORMAT",
        "Of timestamps: %d.%m.%Y, %G%V, …, s since 1970; else ISO.",
    ),
    "timezone": _Option(
        str,
        ("--timezone",),
        "ZONE",
        "Of local timestamps: Europe/Berlin; steps below a day are in UTC.",
    ),
    "round_time": _Option(
        str,
        ("--round-time",),
        "INTERVAL",
        "Round timestamps that are off by chance: 5min, h, D.",
    ),
    "targets": _Option(
        list[str],
        ("--targets", "-t"),
        "NAME[,NAME…]",
        "Column that is a series; repeatable, commas as in --known.",
    ),
    "variates": _Option(
        list[str],
        ("--variates",),
        "NAME[,NAME…]",
        "Column that is a variate of one item; repeatable, commas as in --known.",
    ),
    "known": _Option(
        list[str],
        ("--known",),
        "NAME[,NAME…]",
        (
            "Column of a covariate whose future is known; repeatable. Separate names"
            " with commas."
        ),
    ),
    "past": _Option(
        list[str],
        ("--past",),
        "NAME[,NAME…]",
        (
            "Column of a covariate that is known only in the past; repeatable, commas"
            " as in --known."
        ),
    ),
    "categories": _Option(
        list[str],
        ("--categories",),
        "NAME[,NAME…]",
        (
            "Covariate whose values are categories, even if they are numbers;"
            " repeatable, commas as in --known."
        ),
    ),
    "freq": _Option(
        str,
        ("--freq",),
        "ALIAS",
        "Frequency: h, D, W, Mon-Sat, …; else from the timestamps.",
    ),
    "seasonality": _Option(
        int,
        ("--seasonality",),
        "STEPS",
        "Steps of a season: 7 for the week of days; else by the frequency.",
    ),
    "units": _Option(str, ("--units",), "TEXT", "Unit of the values, such as kWh."),
    "delimiter": _Option(
        str,
        ("--delimiter",),
        "SIGN",
        "Column delimiter; also 'tab' or 'space'.",
    ),
    "decimal": _Option(str, ("--decimal",), "SIGN", "Decimal sign: . or ,"),
    "thousands": _Option(
        str,
        ("--thousands",),
        "SIGN",
        "Sign between thousands: . , ' or 'space'.",
    ),
    "encoding": _Option(
        str, ("--encoding",), "NAME", "Encoding, such as cp1252; else UTF-8."
    ),
    "header": _Option(
        bool,
        ("--header/--no-header",),
        None,
        "Whether the first line has column names.",
    ),
}
# annotation and default of each, as `_with_options` takes them
_FILES: dict[str, tuple[Any, Any]] = {
    name: (
        Annotated[
            option.kind | None,
            typer.Option(
                *option.flags,
                metavar=option.metavar,
                rich_help_panel="Reading a file",
                help=option.help,
            ),
        ],
        None,
    )
    for name, option in _OPTIONS.items()
}
# the first name of each option, and of "--header/--no-header" the positive one
_FLAGS = {name: option.flags[0].split("/")[0] for name, option in _OPTIONS.items()}
# further arguments that messages of the library name
_FLAGS |= {
    name: f"--{name}"
    for name in (
        "holdout",
        "horizon",
        "how",
        "method",
        "reference",
        "seed",
        "twins",
        "windows",
    )
}
_FLAGS |= {
    "num_samples": "--num-samples",
    "components": "--components",
    "quantiles": "--quantiles",
}
RENAMED = {
    "--component": "--components",
    "--quantile": "--quantiles",
    "--samples": "--num-samples",
    "--season": "--seasonality",
    "--target": "--targets",
    "--unit": "--units",
    "--variate": "--variates",
}
"""Former names of options, and those that they share with the arguments in Python."""
FOREIGN = {
    **dict.fromkeys(("--prediction-length", "--forecast-horizon"), "--horizon"),
    "--covariates": "--known (also of the future) or --past",
    **dict.fromkeys(
        ("--known-covariates", "--known-covariates-names", "--future-covariates"),
        "--known",
    ),
    "--past-covariates": "--past",
    **dict.fromkeys(("--target-column", "--target-col"), "--targets"),
    **dict.fromkeys(
        ("--timestamp", "--timestamp-column", "--time-col"), "--time-column"
    ),
    **dict.fromkeys(("--item-id", "--item-id-column", "--unique-id"), "--id-column"),
    "--quantile-levels": "--quantiles",
    **dict.fromkeys(("--n-samples", "--num-parallel-samples"), "--num-samples"),
    "--season-length": "--seasonality",
    **dict.fromkeys(("--sep", "--separator"), "--delimiter"),
}
"""Words of other libraries and programs -> our option."""
# an option as messages of the library spell it: time_column='ds', targets=[…], freq=…
_KEYWORD = re.compile(
    rf"\b({'|'.join(_FLAGS)})=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|…|True|False|[-\w.]+)"
)
_PHRASES = (
    (r"\bnum_samples\b", "--num-samples"),
    (r"`lens\.components\(\)`", "`tsfm-lens hooks MODEL --components`"),
    (r"\blens\.forecast\b", "`tsfm-lens forecast`"),
    (r"use run\.shortened\((\d+)\)(?:\.in_one_pass\(\))?", r"give --horizon \1"),
    (r"use run\.select\(…\)", "name one, as in --data bundled:co2"),
    (r"batch\.targets\(\) leaves them out", "leave --known and --past away"),
    (r"\bload\(folder\)", "name the folder"),
    (r"\bload\('([^']+)'\)", r"\1"),
    (r"\bload\(\) takes", "MODEL is"),
    (r"`tsfm_lens\.explain\.what_if` makes", "`tsfm-lens explain --set` makes"),
    (
        r"`tsfm_lens\.explain\.explain_change` makes",
        "`tsfm-lens explain --since` makes",
    ),
    (r"give the earlier run first", "the earlier file is that of --since"),
)


def translate_options(message: str) -> str:
    """Replace keyword arguments in a message of the library by options.

    ``freq='h'`` becomes ``--freq h``.

    Returns:
        The message.
    """

    def option(match: re.Match[str]) -> str:
        name = match[1]
        value = match[2]
        if value in ("True", "False"):
            if value == "False":
                return f"--no-{name}"
            return f"--{name}"
        flag = _FLAGS[name]
        if value in ("…", "[…]"):
            return f"{flag} …"
        if value[:1] in "'\"":
            plain = value[1:-1]
        else:
            plain = ",".join(re.findall(r"'([^']*)'", value)) or value
        if re.fullmatch(r"[\w.,-]+", plain):
            return f"{flag} {plain}"
        return f"{flag} {value}"

    text = _KEYWORD.sub(option, message)
    for pattern, label in _PHRASES:
        text = re.sub(pattern, label, text)
    return text


def describe_faults(faults: Faults, args: Sequence[str]) -> str:
    """Say all faults of a file with their options, and the command that reads it.

    ``args`` are the arguments of the command that was given. Files of a sweep have
    their options in its configuration, so fields of their entry are named instead.

    Returns:
        Lines of text.
    """
    in_configuration = args[:1] == ["sweep"]
    if in_configuration:
        texts = faults.sentences(_write_fields)
    else:
        texts = [translate_options(text) for text in faults.sentences(_write_flags)]
    lines = [f"{faults.path}: {texts[0]}"]
    if len(texts) > 1:
        lines = [f"{faults.path}: {len(texts)} things are wrong"]
        lines += [f"  {number}. {text}" for number, text in enumerate(texts, 1)]
    if faults.readable and in_configuration:
        lines += ["These fields of its entry under data read it:"]
        lines += [f"  {line}" for line in _list_fields(faults.changes)]
    elif faults.readable:
        command = ["tsfm-lens", *_without_flags(args, faults.changes)]
        for name, value in faults.changes.items():
            command += _flags_of(name, value)
        # before the command, which ends the message
        lines += [f"note: {translate_options(note)}" for note in faults.notes]
        lines += ["This reads it:", f"  {shlex.join(command)}"]
    return "\n".join(lines)


def _write_flags(options: Mapping[str, Any]) -> str:
    parts = []
    for name, value in options.items():
        if value is None:
            parts.append(f"no {_FLAGS[name]}")
        else:
            parts.append(shlex.join(_flags_of(name, value)))
    return " ".join(parts)


def _write_fields(options: Mapping[str, Any]) -> str:
    dropped = [f"no {name}" for name, value in options.items() if value is None]
    return " and ".join([*_list_fields(options), *dropped])


def _list_fields(options: Mapping[str, Any]) -> list[str]:
    """Write options as lines of YAML, which takes what JSON takes."""
    return [
        f"{name}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in options.items()
        if value is not None
    ]


def _flags_of(name: str, value: Any) -> list[str]:
    """Return the arguments of the command line for an option of ``read_series``."""
    flag = _FLAGS[name]
    if value is None:
        return []
    if value is True:
        return [flag]
    if value is False:
        return [f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, str):
        return [flag, value]
    return [part for item in value for part in (flag, str(item))]


def _without_flags(args: Sequence[str], names: Collection[str]) -> list[str]:
    """Leave options of ``read_series`` out of the arguments of a command."""
    flags = {
        flag: option.kind
        for name, option in _OPTIONS.items()
        if name in names
        for spelling in option.flags
        for flag in spelling.split("/")
    }
    kept = []
    is_value = False
    for arg in args:
        flag, sign, _ = arg.partition("=")
        if not arg.startswith("--"):
            # the value of a short option may stand right after it, as in -tload
            flag, sign = arg[:2], arg[2:]
        if is_value:
            is_value = False
        elif flag not in flags:
            kept.append(arg)
        else:
            is_value = not sign and flags[flag] is not bool
    return kept


def _with_options(
    command: Callable[..., None],
    name: str,
    options: Mapping[str, tuple[Any, Any]],
    build: Callable[..., Any],
) -> Callable[..., None]:
    """Give a command options (annotation, default) that it does not declare.

    The command receives all of them as one argument called ``name``.

    Returns:
        The command with all options.
    """
    # annotations are texts here, by the future import, and typer needs the objects
    signature = inspect.signature(command, eval_str=True)
    # keyword-only, since one without a default may then follow one with a default
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = {
        parameter.name: parameter.replace(kind=keyword)
        for parameter in signature.parameters.values()
        if parameter.name != name
    }
    # a command that declares an option itself has its own help or default of it
    added = {
        key: inspect.Parameter(key, keyword, default=default, annotation=kind)
        for key, (kind, default) in options.items()
        if key not in parameters
    }
    parameters |= added

    @wraps(command)
    def run(**arguments: Any) -> None:
        declared = {key: value for key, value in arguments.items() if key not in added}
        built = build(**{key: arguments[key] for key in options})
        command(**declared, **{name: built})

    # typer reads the options of a command from its signature and its type hints, which
    # `wraps` has copied from the command
    run.__signature__ = signature.replace(parameters=[*parameters.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {
        key: parameter.annotation for key, parameter in parameters.items()
    }
    return run


def _reading(**values: Any) -> Reading:
    return {
        name: value
        for name, value in values.items()
        if value is not None and value != []
    }


def reads_files(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options for reading a file.

    It receives those that are set as one keyword argument ``reading``.

    Returns:
        The command with these options.
    """
    return _with_options(command, "reading", _FILES, _reading)


@dataclass(frozen=True)
class Request:
    """Series and settings of the forecast that a command is about."""

    data: list[str]
    horizon: int | None
    holdout: bool | None
    samples: int | None
    seed: int
    windows: int
    twins: int | None
    as_json: bool
    reading: Reading

    def run(self, lens: Lens, series: SeriesBatch) -> Run:
        """Make the run of a lens on the series."""
        run = lens.run(
            series,
            self.horizon,
            holdout=bool(self.holdout),
            windows=self.windows,
            twins=self.twins,
            num_samples=self.samples,
            seed=self.seed,
        )
        # the notes of the series were printed when they were read
        for note in run.batch.notes:
            if note not in series.notes:
                echo(f"note: {note}", err=True)
        pass_length = lens.adapter.prediction_length
        # the library's own warning names an argument that the command line does not
        # have; the note below says the same of this run
        if run.horizon > pass_length:
            warnings.filterwarnings(
                "ignore", message="We recommend keeping prediction length"
            )
            times = lens.adapter.relative_cost(run.horizon)
            text = (
                f"those beyond build on its forecast, and all take up to {times} times"
                " as long"
            )
            echo(
                f"note: {lens.model_id} forecasts {pass_length} steps at once; {text}",
                err=True,
            )
        return run


def forecasts(
    *without: str, holdout: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a forecast, as ``request``.

    It does not get the options in ``without``, which have their defaults; the default
    of "holdout" is ``holdout``.

    Returns:
        A decorator.
    """
    options: dict[str, tuple[Any, Any]] = {
        "data": (Data, inspect.Parameter.empty),
        "horizon": (Horizon, None),
        "holdout": (Holdout, holdout),
        "samples": (Samples, None),
        "seed": (Seed, 0),
        "windows": (Windows, 1),
        "twins": (Twins, None),
        "as_json": (AsJson, False),
    }

    # a request has all fields, also those that its command has no options for
    defaults = {name: options.pop(name)[1] for name in without}

    def build(**values: Any) -> Request:
        return Request(
            **defaults | {name: values.pop(name) for name in options},
            reading=_reading(**values),
        )

    return lambda command: _with_options(command, "request", options | _FILES, build)


def read_data(
    sources: Sequence[str],
    reading: Reading,
    horizon: int | None = None,
    holdout: bool | None = None,
) -> SeriesBatch:
    """Read the series of every ``--data``.

    Choices made by rule are printed as notes. Series are refused if their last steps
    cannot be held out.

    Returns:
        The series.
    """
    from tsfm_lens.data.sources import read_sources

    batch = read_sources(sources, **reading)
    for note in batch.notes:
        echo(f"note: {translate_options(note)}", err=True)
    if holdout and horizon is not None:
        from tsfm_lens.data.batch import hold_out

        # for its refusals alone: the run holds the steps out anew
        hold_out(batch, horizon)
    # known covariates that end with the target are for an end that is held out
    lengths = [len(future) for future in batch.futures if future is not None]
    if not holdout and horizon is not None and (any(lengths) or holdout is False):
        batch.known_future(horizon)
    if not holdout:
        for row in range(len(batch)):
            # steps beyond the last date are refused before anything runs
            batch.timestamps(row, horizon or 0)
    return batch


def check_sampling(model: str, samples: int | None) -> Known | None:
    """Return a model's architecture, where it is known without weights.

    Samples of a model that forecasts quantiles are refused.
    """
    from tsfm_lens.core.errors import InputError
    from tsfm_lens.models.locating import architecture_named

    architecture = architecture_named(model)
    if (
        architecture is not None
        and architecture.readout == "quantile"
        and samples is not None
    ):
        raise InputError(
            f"{model} forecasts quantiles and draws no samples; leave --num-samples out"
        )
    return architecture


def check_item(series: SeriesBatch, item: str) -> None:
    """Refuse an item that the series do not have; "" stands for the first."""
    from tsfm_lens.data.batch import item_rows

    item_rows(series, item or 0)


def checked_kinds(
    model: str, sections: str | None, samples: int | None, made: Collection[str] = ()
) -> tuple[str, ...] | None:
    """Return the measurements that ``--sections`` names, None without the option.

    They are refused if the model's architecture allows none of them. Those of ``made``
    are left out: other options make them.
    """
    from tsfm_lens.core.declared import check_kind
    from tsfm_lens.core.errors import InputError
    from tsfm_lens.core.needs import NEEDS

    architecture = check_sampling(model, samples)
    if sections is None:
        return None
    names = [kind.strip() for kind in sections.split(",") if kind.strip()]
    if not names:
        raise InputError(
            "a report needs at least one section; `tsfm-lens measurements` lists them"
        )
    names = [kind for kind in names if kind not in made]
    declarations = [check_kind(kind) for kind in dict.fromkeys(names)]
    reasons = []
    if architecture is not None:
        for declaration in declarations:
            try:
                if declaration.needs:
                    needs = NEEDS[declaration.needs]
                    label = f"{declaration.kind!r}"
                    needs.check_architecture(architecture, model, label)
            except InputError as error:
                reasons.append(str(error))
    # of several, those that the model does not allow are left out when they are
    # computed
    if reasons and len(reasons) == len(declarations):
        raise InputError("; ".join(reasons))
    if any(declaration.of_run is not True for declaration in declarations):
        # what makes a result that no run gives is said by the whole declaration
        from tsfm_lens.report.pipeline import checked_sections

        checked_sections(names)
    return tuple(names)
