"""Registry of measurements: probes, and the figures, tables and sentences of their results."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, wraps
from inspect import cleandoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tsfm_lens.errors import InputError, LensError, unknown_name
from tsfm_lens.extensions import FIGURES, PROBES, load_extensions

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    import xarray as xr

    from tsfm_lens.findings import Result

VERSION = "0.1.0"
_WITHIN = ContextVar("within a probe", default=False)
THEMES = (
    "Weights alone",
    "Activations",
    "Behaviour",
    "Causes",
    "Inputs",
    "Sweeps",
    "Training",
    "Theory",
)

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
Draw = Callable[P, "go.Figure"]
Table = Callable[[Any], "pd.DataFrame"]
Takes = str | tuple[str, ...] | Callable[[Any], tuple[Any, ...]]

_MEASUREMENTS: dict[str, Measurement] = {}
_PROBES: dict[str, Probe] = {}
_INPUT_WORDS = {
    "run": " on all series",
    "first": " on the first series",
    "lens": ", from the weights alone",
    "pair": ", the first series against itself with its season half a period later",
    "lenses": " of the models that are named",
}
_PARAMETERS = {
    "series": "id, or place counted from 0; all, or their mean, where it is None.",
    "layers": "labels to draw, all if None.",
    "layer": "label; a negative integer counts from the last.",
    "head": "number.",
    "step": "of the forecast; the mean over all if None.",
    "context_steps": "how much of the context is drawn, a few horizons if None.",
    "value_range": "lowest and highest value; what the data need if None.",
    "rows": "the most of a map, which puts adjacent values together to keep to it.",
    "quantile": "level; the median if None.",
    "samples": "sampled paths that are drawn.",
    "top": "how many are drawn, the largest ones.",
    "decomposition": "label, the first if None.",
    "product": '"QK" or "OV".',
    "epsilon": "one of the result's, the middle one if None.",
    "stack": "one stack, all if None.",
    "model": "name or place.",
    "random": "whether choices at random are drawn beside informed ones.",
}
"""Descriptions of parameters that many figures have."""
_RAISES = """

Raises:
    InputError: the result is of another kind, or an argument has no meaning for it.
    UnknownNameError: a label or name that the result does not have; the message has the nearest.
"""


@dataclass(frozen=True)
class Needs:
    """Requirement of a definition on a model: what it is defined by, which models meet it, and tests of it."""

    words: str
    models: str
    met: Callable[[Any], bool]
    possible: Callable[[Any], bool] = lambda architecture: True

    def check(self, lens: Any, name: str, instead: str = "") -> None:
        """Refuse a lens that does not have it, naming what can be had ``instead``."""
        self._require(self.met(lens), lens.model_id, name, instead)

    def check_architecture(
        self, architecture: Any, model: str, name: str, instead: str = ""
    ) -> None:
        """Refuse a model that is not open yet by its architecture."""
        self._require(self.possible(architecture), model, name, instead)

    def _require(self, has: bool, model: str, name: str, instead: str) -> None:
        if not has:
            other = f"; {instead}" if instead else ""
            raise InputError(
                f"{name} is defined by {self.words}, which {model} does not have{other}"
            )


@dataclass(frozen=True)
class Probe:
    """Function that computes the result of a measurement; :func:`probe` declares it.

    Attributes:
        takes: its positional arguments: "run", the "first" item's run, the "lens", a "pair" of runs (the first series,
            and the same with its season half a period later), "lenses" of several models, kinds of other results, or
            a function that makes them of the results of a run.
        words: what is computed on what.
        options: of the function, of the results of a run.
        each: options by name of the results that a report shows; one result without options if None.
    """

    function: Callable[..., Result]
    takes: Takes
    words: str
    options: Callable[[Any], Mapping[str, Any]]
    each: Callable[[Any], Mapping[str, Mapping[str, Any]]] | None = None

    @property
    def name(self) -> str:
        """Name in :mod:`tsfm_lens.probes`, or of another package as "package.name"."""
        return _name_of(self.function)

    @property
    def of_one_item(self) -> bool:
        """Whether it measures one item of a run, which is to be named where there are several."""
        return self.takes in ("first", "pair") or "the first item" in self.words


@dataclass(frozen=True)
class Figure:
    """One way to draw a measurement; :meth:`Measurement.figure` declares it.

    Attributes:
        title: content, as a sentence.
        options: of the function where the figure is drawn by its name alone.
        probe_options: options of the probe that it is drawn of.
        beside: kinds of further results that the function takes.
        needs: requirement on a model beyond that of the measurement.
        instead: figure for models that do not meet it.
        table, sentences: of the result, for the panel of a report.
    """

    function: Callable[..., go.Figure]
    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    probe_options: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    needs: Needs | None = None
    instead: str = ""
    table: Table | None = None
    sentences: Callable[[Any], list[str]] | None = None

    @property
    def name(self) -> str:
        """Name on the command line."""
        return self.function.__name__

    def draw(self, *results: xr.Dataset) -> go.Figure:
        """Draw a result, with those that the function takes beside it."""
        return self.function(*results, **self.options)


@dataclass(frozen=True)
class ReportPanel:
    """Figure of a report with its table and its sentences.

    Attributes:
        name: of its files, where it gets files of its own.
        series: the one series that is drawn; "" where it is of several.
    """

    figure: go.Figure
    table: pd.DataFrame
    sentences: list[str]
    name: str = ""
    series: str = ""


@dataclass
class Measurement:
    """One kind of result: how it is drawn, tabulated and told; :func:`measurement` declares it.

    Attributes:
        kind: of its result, ``result.attrs["kind"]``.
        theme: one of :data:`THEMES`.
        title: heading of its section.
        summary: what is measured, in one line.
        description: what a reader of the section must know, in one or two sentences.
        source: of the definition.
        paper: ids of reported values that it measures, as ``tsfm-lens reproduce`` has them.
        needs: requirement on a model; None for every model.
        maker: origin of a result that no probe of a run gives.
        subject: words for what a section is about; the result's model and series if None.
        titles: of figures, by the names of their functions.
        panels_of: makes the panels of a report; one for each figure with a table if None.
        home: module that declares it.
    """

    kind: str
    theme: str
    title: str
    summary: str
    description: str
    source: str = ""
    paper: tuple[str, ...] = ()
    needs: Needs | None = None
    maker: str = ""
    subject: Callable[[Any], str] | None = None
    titles: Mapping[str, str] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    panels_of: Callable[[Any], Iterator[ReportPanel]] | None = None
    home: str = ""

    @property
    def probe(self) -> Probe | None:
        """Probe that computes it of a run; None for a result of many runs or of no model."""
        load_extensions(PROBES)
        return _PROBES.get(self.kind)

    @property
    def of_run(self) -> bool:
        """Test if a probe computes it of one run."""
        return self.probe is not None and self.probe.takes != "lenses"

    @property
    def origin(self) -> str:
        """Origin of a result that no single run gives, in words."""
        if self.probe is not None:
            return f"made of several models: `{self.probe.name}` makes it, `tsfm-lens figure` draws it"
        return (
            self.maker
            or "made of many runs: `tsfm-lens sweep` makes it, and `tsfm-lens sweep report` draws it"
        )

    def figure(
        self,
        title: str = "",
        *,
        variables: Sequence[str] = (),
        table: Sequence[str] | Table | None = None,
        sentences: Callable[[Any], list[str]] | None = None,
        options: Mapping[str, Any] | None = None,
        probe_options: Mapping[str, Any] | None = None,
        beside: tuple[str, ...] = (),
        needs: Needs | None = None,
        instead: str = "",
    ) -> Callable[[Draw[P]], Draw[P]]:
        """Register a function that draws the result, which then refuses results of other kinds; see :class:`Figure`.

        Args:
            title: content of the figure, as a sentence; that of ``measurements.yaml`` unless given.
            variables: that the result must have.
            table: of the report's panel: variables that share their dimensions, or a function of the result.
            sentences: of the report's panel.
            options, probe_options, beside, needs, instead: see :class:`Figure`.

        Raises:
            InputError: neither the decorator nor the file gives a title.
        """

        def register(function: Draw[P]) -> Draw[P]:
            words = title or self.titles.get(function.__name__, "")
            if not words:
                raise InputError(
                    f"{function.__name__!r} of {self.kind!r} has no title; give it to the decorator"
                )
            draw, columns = (
                _checked(function, self.kind, tuple(variables), instead),
                _table_of(table),
            )
            figure = Figure(
                draw,
                words,
                options or {},
                probe_options or {},
                beside,
                needs,
                instead,
                columns,
                sentences,
            )
            self.figures.append(figure)
            return draw

        return register

    def panels(self, function: F) -> F:
        """Register the function that makes the panels of a report."""
        self.panels_of = function
        return function

    def draw_panels(self, result: Any) -> Iterator[ReportPanel]:
        """Draw the panels of a report, each with its table and its sentences."""
        if self.panels_of is not None:
            yield from self.panels_of(result)
            return
        for figure in self.figures:
            if figure.table is not None:
                words = figure.sentences(result) if figure.sentences else []
                yield ReportPanel(figure.draw(result), figure.table(result), words)

    def check(self, lens: Any) -> None:
        """Refuse a model that the definition does not allow."""
        if self.needs is not None:
            self.needs.check(lens, f"{self.kind!r}")


def measurement(
    kind: str,
    *,
    theme: str = "",
    title: str = "",
    summary: str = "",
    description: str = "",
    source: str = "",
    paper: Sequence[str] = (),
    needs: Needs | None = None,
    maker: str = "",
    subject: Callable[[Any], str] | None = None,
) -> Measurement:
    """Declare a measurement; what is left out is that of its kind in ``measurements.yaml`` beside the module.

    Args:
        kind: of its result; see :class:`Measurement`, for the other arguments as well.

    Raises:
        InputError: another module has taken the kind, or the theme is not one of :data:`THEMES`.
    """
    module = sys._getframe(1).f_globals
    home, file = str(module.get("__name__", "")), module.get("__file__")
    # a cell of a notebook has no file
    texts = (
        declarations(Path(file).with_name("measurements.yaml")).get(kind, {})
        if file
        else {}
    )
    if not home.startswith("tsfm_lens."):
        load_extensions(FIGURES)
    if kind in _MEASUREMENTS and _MEASUREMENTS[kind].home != home:
        raise InputError(
            f"kind {kind!r} is taken by {_MEASUREMENTS[kind].home}; choose another"
        )
    theme = theme or texts.get("theme", "")
    if theme not in THEMES:
        raise InputError(
            f"theme={theme!r} is not known, choose one of {', '.join(THEMES)}"
        )
    entry = _MEASUREMENTS[kind] = Measurement(
        kind,
        theme,
        title or texts.get("title", ""),
        summary or texts.get("summary", ""),
        description or texts.get("description", ""),
        source or texts.get("source", ""),
        tuple(paper or texts.get("paper", ())),
        needs,
        maker or texts.get("maker", ""),
        subject,
        texts.get("figures", {}),
        home=home,
    )
    return entry


@cache
def declarations(file: Path) -> dict[str, dict[str, Any]]:
    """Read a YAML file of declarations, such as texts of measurements by kind; none where there is no file."""
    import yaml

    if not file.is_file():
        return {}
    # the loader in C takes a tenth of the time
    texts: dict[str, dict[str, Any]] = yaml.load(
        file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return texts


def probe(
    kind: str,
    takes: Takes = "run",
    *,
    words: str = "",
    options: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None,
    each: Callable[[Any], Mapping[str, Mapping[str, Any]]] | None = None,
) -> Callable[[Callable[P, xr.Dataset]], Callable[P, Result]]:
    """Register the function that computes the results of a kind; see :class:`Probe`.

    Raises:
        InputError: a function of another module computes this kind, or ``takes`` is not a word that a probe knows.
    """
    if isinstance(takes, str) and takes not in _INPUT_WORDS:
        raise unknown_name("takes", takes, _INPUT_WORDS)

    def register(function: Callable[P, xr.Dataset]) -> Callable[P, Result]:
        if not function.__module__.startswith("tsfm_lens."):
            load_extensions(PROBES)
        if kind in _PROBES and _PROBES[kind].function.__module__ != function.__module__:
            raise InputError(
                f"kind {kind!r} is computed by {_PROBES[kind].name}; choose another"
            )
        of_kinds = f" of {' and '.join(takes)}" if isinstance(takes, tuple) else ""
        on = _INPUT_WORDS[takes] if isinstance(takes, str) else of_kinds
        how = options if callable(options) else lambda results: options or {}

        @wraps(function)
        def compute(*args: P.args, **arguments: P.kwargs) -> Result:
            # a probe that another one calls leaves the twins to its caller
            within = _WITHIN.get()
            count = max(
                (getattr(each, "n_twins", 0) or 0 for each in args), key=abs, default=0
            ) * (not within)
            before, mark = _work_of(args) if count else 0, _WITHIN.set(True)
            try:
                result = function(*args, **arguments)
            finally:
                _WITHIN.reset(mark)
            # numpy and xarray take longer to import than the help of the command line
            from tsfm_lens.findings import Result, beside_twins, of_targets

            if count:
                result = beside_twins(
                    function, result, count, args, arguments, _work_of(args) - before
                )
            result = result if within else of_targets(result, args)
            return Result(result.data_vars, result.coords, result.attrs)

        _PROBES[kind] = Probe(
            compute, takes, words or f"{_name_of(function)}{on}", how, each
        )
        return compute

    return register


def _work_of(args: Sequence[Any]) -> int:
    """Return the work of the models of a probe's runs so far, in parameters × forwards."""
    return max((int(getattr(each, "work", 0)) for each in args), default=0)


def measurements() -> dict[str, Measurement]:
    """Return every measurement by the kind of its result, theme by theme."""
    load_extensions(FIGURES)
    return dict(
        sorted(_MEASUREMENTS.items(), key=lambda item: THEMES.index(item[1].theme))
    )


def find(kind: str) -> Measurement:
    """Look up a measurement by the kind of its result."""
    entries = measurements()
    if kind not in entries:
        hint = "`tsfm-lens measurements` lists them all; docs/howto/own-probe.md gives a probe of your own a figure."
        raise unknown_name("measurement", kind, entries, hint=hint)
    return entries[kind]


def drawn_by(kind: str) -> str:
    """Return the names of the figures of a kind, as a sentence lists them."""
    names = (
        [figure.name for figure in _MEASUREMENTS[kind].figures]
        if kind in _MEASUREMENTS
        else []
    )
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def check(
    ds: Any, kinds: str | Sequence[str], *variables: str, instead: str = ""
) -> None:
    """Refuse what is no result, Dataset or table, of a kind with variables; ``instead`` is a figure without them."""
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not hasattr(ds, "data_vars") and not getattr(ds, "attrs", {}).get("kind"):
        raise InputError(
            f"a labelled result (xarray.Dataset) is needed, not {type(ds).__name__}."
        )
    actual = ds.attrs.get("kind")
    form, part = (
        ("table", "column")
        if kinds[0].startswith("sweep_")
        else ("Dataset", "variable")
    )
    # a run holds its forecast
    if str(actual) not in kinds and not (actual == "run" and "forecast" in kinds):
        help_text = (
            f" {figures} draws that kind." if (figures := drawn_by(actual)) else ""
        )
        raise InputError(
            f"a {form} of kind {kinds[0]!r} is needed, this one is of kind {actual!r}.{help_text}"
        )
    for name in variables:
        if name not in ds:
            has = ", ".join(map(str, ds)) or "nothing"
            kind = actual if actual in kinds else kinds[0]
            help_text = f" {instead} draws it." if instead else ""
            raise InputError(
                f"the {kind!r} {form} has no {part} {name!r}; it has {has}.{help_text}"
            )


def as_dataset(thing: Any) -> Any:
    """Return a run or a forecast as its dataset; anything else as it is."""
    return (
        thing.to_dataset()
        if not hasattr(thing, "data_vars") and hasattr(thing, "to_dataset")
        else thing
    )


def _checked(
    function: Draw[P], kind: str, variables: tuple[str, ...], instead: str
) -> Draw[P]:
    """Let a figure's function check its result; one that is registered for several kinds takes all of them."""
    if hasattr(function, "kinds"):
        function.kinds.append(kind)
        return function
    call, kinds = signature(function), [kind]

    @wraps(function)
    def draw(*args: P.args, **kwargs: P.kwargs) -> go.Figure:
        bound = call.bind(*args, **kwargs)
        first = next(iter(bound.arguments))
        bound.arguments[first] = as_dataset(bound.arguments[first])
        check(ds := bound.arguments[first], kinds, *variables, instead=instead)
        try:
            return function(*bound.args, **bound.kwargs)
        except KeyError as error:
            # a variable that the result lacks, in the words of xarray; anything else is a defect
            if isinstance(error, LensError) or (name := _missing_name(error)) in ds:
                raise
            check(ds, kinds, name)
            raise

    draw.kinds = kinds  # type: ignore[attr-defined]
    draw.__doc__ = _documentation(function, kind, list(call.parameters))
    return draw


def _missing_name(error: KeyError) -> str:
    text = str(error.args[0]) if error.args else ""
    named = re.match(r"No variable named '([^']+)'", text)
    return named[1] if named else text


def _documentation(
    function: Callable[..., Any], kind: str, parameters: list[str]
) -> str:
    """Complete a docstring with the arguments that many figures have, and with what is raised."""
    head, _, own = cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    texts = {parameters[0]: f"of kind {kind!r}.", **_PARAMETERS} if parameters else {}
    shared = [
        f"    {name}: {texts[name]}\n"
        for name in parameters
        if name in texts and f"    {name}" not in own
    ]
    return f"{head}\n\nArgs:\n{''.join(shared)}{own}".rstrip() + _RAISES


def _table_of(table: Sequence[str] | Table | None) -> Table | None:
    if table is None or callable(table):
        return table
    return lambda ds: frame(ds, *table)


def frame(ds: xr.Dataset, *variables: str) -> pd.DataFrame:
    """Tabulate those of the variables that a result has, a row per combination of labels, a column per variable."""
    return (
        ds[[name for name in variables if name in ds]]
        .reset_coords(drop=True)
        .to_dataframe()
        .reset_index()
    )


def _name_of(function: Callable[..., Any]) -> str:
    package = (
        function.__module__.rpartition(".")[0]
        .removeprefix("tsfm_lens")
        .removeprefix(".probes")
    )
    return f"{package}.{function.__name__}".lstrip(".")
