"""Registry of measurements: what computes a kind of result, and what draws it.

A measurement is declared once: by :func:`probe` on the function that computes it, or by
:func:`measurement` where no run makes it. Its figures join it by its kind, with
:func:`figure` and :func:`panels`, whichever is imported first. :func:`find` looks in
what is loaded, then loads the packages of this library, and last the one extension
whose entry point has the name of the kind; only :func:`measurements` loads all of them.
Read :class:`Measurement` first.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from importlib import import_module
from inspect import cleandoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from tsfm_lens.core.errors import InputError, LensError, unknown_name
from tsfm_lens.core.extensions import MEASUREMENTS, load_all, load_extension
from tsfm_lens.core.foreign_words import answers_arguments
from tsfm_lens.core.needs import NEEDS
from tsfm_lens.core.progress import DelayedProgress

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    import xarray as xr

    from tsfm_lens.core.estimates import Result

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
Options = Mapping[str, Any]
Cost = Literal["weights", "forwards", "search"]
"""What a measurement costs.

It takes the weights alone, a number of forwards that grows with the model, or a search
over forwards.
"""

# in this order `find` imports one after the other, until one of them has the kind:
# figures come last, since plotly is slow to import
_PROBE_PACKAGES = ("probes", "explain", "compress", "zoo")
_FIGURE_PACKAGES = ("viz",)
_MEASUREMENTS: dict[str, Measurement] = {}
_FIGURES: defaultdict[str, list[Figure]] = defaultdict(list)
_PANELS: dict[str, Callable[[Any], Iterator[FigurePanel]]] = {}
TABULATE = "_tabulate"
"""Attribute of a figure that makes the table of its measurement, where it has one."""
# at most one entry, which `viz` sets, since `core` must not import it
_DEFAULT: list[tuple[Callable[..., Any], Table]] = []
_ANY_KIND = ""  # of panels of the kinds that have no figure
# a context variable and no global, so that probes in two threads do not take each other
# for nested ones
_IS_WITHIN_PROBE = ContextVar("within a probe", default=False)
_INPUT_DESCRIPTIONS = {
    "run": " on all series",
    "first": " on the first series",
    "lens": ", from the weights alone",
    "pair": ", the first series against itself with its season half a period later",
    "lenses": " of the models that are named",
    "runs": " of the models that are named, on all series",
}
_RAISES = """

Raises:
    InputError: the result is of another kind, or an argument has no meaning for it.
    UnknownNameError: a label or name that the result does not have; the message has
        the nearest.
"""


@dataclass(frozen=True)
class FigurePanel:
    """One drawn figure, with what stands beside it on a page or in a folder.

    Attributes:
        figure: as drawn.
        table: its numbers; None where it has no table.
        sentences: what it says.
        name: of its files, where it gets files of its own; else "".
        series: the one series that is drawn; "" where it is of several.
    """

    figure: go.Figure
    table: pd.DataFrame | None = None
    sentences: Sequence[str] = ()
    name: str = ""
    series: str = ""


@dataclass(frozen=True)
class Figure:
    """One way to draw a measurement, as :func:`figure` declares it.

    Attributes:
        name: of its function.
        title: content, as a sentence.
        function: draws results.
        kind: of the measurement.
        options: of the function where the figure is drawn by its name alone.
        probe_options: options of the probe that it is drawn of.
        beside: kinds of further results that the function takes.
        needs: requirement on a model beyond that of the measurement.
        instead: figure for models that do not meet it.
        table, sentences: of the result, for the panel of a report.
        variable: the one drawn, where a result is drawn by its dimensions alone; ""
            for a figure that :func:`figure` declares.
    """

    name: str
    title: str
    function: Callable[..., Any]
    kind: str
    options: Options = field(default_factory=dict)
    probe_options: Options = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    needs: str = ""
    instead: str = ""
    table: Table | None = None
    sentences: Callable[[Any], list[str]] | None = None
    variable: str = ""

    def draw(self, *results: xr.Dataset) -> go.Figure:
        """Draw a result, with those that the function takes beside it."""
        return self.function(*results, **self.options)


@dataclass
class Measurement:
    """One kind of result: what computes it, draws it, tabulates it and describes it.

    Attributes:
        kind: of its result, ``result.attrs["kind"]``, and name of the function that
            computes it.
        theme: one of :data:`THEMES`.
        title: heading of its section.
        summary: what is measured, in one line.
        description: what a reader of the section must know, in one or two sentences.
        source: of the definition.
        paper: ids of reported values that it measures, as ``tsfm-lens reproduce`` has
            them.
        needs: requirement on a model; "" for every model.
        maker: origin of a result that no probe of a run gives.
        subject: what a section is about: a function of the result, or a text in which
            "{name}" stands for an attribute of it; its model and series unless given.
        home: module that declares it.
        function: computes it; None for a result of many runs or of no model.
        takes: positional arguments of the function: "run", the "first" item's run, the
            "lens", a "pair" of runs (the first series, and the same with its season
            half a period later), "lenses" of several models or their "runs" on the same
            series, kinds of other results, or
            a function that makes them of the results of a run.
        computes: what is computed on what, in words.
        options: of the function, of the results of a run.
        each: options by name of the results that a report shows; one result without
            options if None.
        cost: see :data:`Cost`.
        example: options that keep a trial of it small.
        one_item: if it is of one item of a run, beside those that take the "first" or a
            "pair".
        whole_batch: if it must see all series of a run at once, so that it cannot run
            in parts.
    """

    kind: str
    theme: str
    title: str
    summary: str
    description: str
    source: str = ""
    paper: tuple[str, ...] = ()
    needs: str = ""
    maker: str = ""
    subject: Callable[[Any], str] | str = ""
    home: str = ""
    function: Callable[..., Result] | None = None
    takes: Takes = "run"
    computes: str = ""
    options: Callable[[Any], Options] = lambda results: {}
    each: Callable[[Any], Mapping[str, Options]] | None = None
    cost: Cost = "forwards"
    example: Options = field(default_factory=dict)
    one_item: bool = False
    whole_batch: bool = False

    @property
    def figures(self) -> list[Figure]:
        """Ways to draw it, the default one of ``plot()`` first.

        The default is the first figure that a result has everything for.
        """
        return find_figures(self.kind)

    @property
    def has_own_panels(self) -> bool:
        """Test if a function makes its panels, and not each figure with a table."""
        return self.kind in _PANELS

    @property
    def function_name(self) -> str:
        """Name of its public function in :mod:`tsfm_lens.probes`.

        A function of another package is "package.name"; "" where there is none.
        """
        if self.function is not None:
            return _get_name(self.function)
        return ""

    @property
    def of_run(self) -> bool:
        """Test if a probe computes it of one run."""
        return self.function is not None and not self.of_models

    @property
    def of_models(self) -> bool:
        """Test if a probe computes it of several models, any number of them."""
        return self.takes in ("lenses", "runs")

    @property
    def of_one_item(self) -> bool:
        """Test if it measures one item of a run.

        The item is to be named where a run has several.
        """
        return self.one_item or self.takes in ("first", "pair")

    @property
    def origin(self) -> str:
        """Origin of a result that no single run gives, in words."""
        if self.function is not None:
            return (
                f"made of several models: `{self.function_name}` makes it, `tsfm-lens"
                " figure` draws it"
            )
        sweep = (
            "made of many runs: `tsfm-lens sweep` makes it, and `tsfm-lens sweep"
            " report` draws it"
        )
        return self.maker or sweep

    def describe_subject(self, result: Any) -> str:
        """Describe what a section of this result is about.

        Returns:
            The text, "" where it is about its model and series.
        """
        if callable(self.subject):
            return self.subject(result)
        return self.subject.format_map(defaultdict(lambda: "?", result.attrs))

    def draw_panels(self, result: Any) -> Iterator[FigurePanel]:
        """Draw the panels of a report, each with its table and its sentences."""
        # first, since it imports the packages of figures, and these also register
        # panels
        figures = self.figures
        make = _PANELS.get(self.kind)
        if make is None and self.kind not in _FIGURES:
            make = _PANELS.get(_ANY_KIND)
        if make is not None:
            yield from make(result)
            return
        for figure in figures:
            if figure.table is None:
                continue
            if figure.sentences:
                sentences = figure.sentences(result)
            else:
                sentences = []
            yield FigurePanel(figure.draw(result), figure.table(result), sentences)

    def check(self, lens: Any) -> None:
        """Refuse a model that the definition does not allow."""
        if self.needs:
            NEEDS[self.needs].check(lens, f"{self.kind!r}")


def measurement(
    kind: str,
    *,
    theme: str,
    title: str,
    summary: str,
    description: str,
    **attributes: Any,
) -> Measurement:
    """Declare a measurement of results that no probe of a run makes.

    Args:
        kind: of its result.
        theme: one of :data:`THEMES`.
        title: heading of its section.
        summary: what it measures, in one line.
        description: what a reader of its section must know, in one or two sentences.
        attributes: further attributes of :class:`Measurement`.

    Returns:
        The measurement.

    Raises:
        InputError: another module has taken the kind, or the theme is not one of
            :data:`THEMES`.
    """
    # the module that calls is the home of the measurement
    home = str(sys._getframe(1).f_globals.get("__name__", ""))
    return _declare(
        Measurement(kind, theme, title, summary, description, home=home, **attributes)
    )


def declare_measurements(file: Path, **attributes: Any) -> None:
    """Declare the measurements of a YAML file, by kind.

    ``attributes`` are those of every measurement that does not have them in the file.
    """
    # as in :func:`measurement`, the module that calls
    home = str(sys._getframe(1).f_globals.get("__name__", ""))
    for kind, fields in declarations(file).items():
        _declare(Measurement(kind=kind, home=home, **{**attributes, **fields}))


def _declare(entry: Measurement) -> Measurement:
    """Add a measurement; one of another module with the same kind is refused."""
    # an extension cannot take a kind of this library whose module is not loaded yet
    if not entry.home.startswith("tsfm_lens."):
        _load_packages()
    # a module may declare its own kind again, as a notebook's cell that runs twice
    taken = _MEASUREMENTS.get(entry.kind)
    if taken is not None and taken.home != entry.home:
        raise InputError(
            f"kind {entry.kind!r} is taken by {taken.home}; choose another"
        )
    if entry.theme not in THEMES:
        raise InputError(
            f"theme={entry.theme!r} is not known, choose one of {', '.join(THEMES)}"
        )
    _check_needs(entry.needs)
    _MEASUREMENTS[entry.kind] = entry
    return entry


def _check_needs(name: str) -> None:
    """Refuse a requirement that no table has, where it is declared."""
    if name and name not in NEEDS:
        raise unknown_name("needs", name, NEEDS)


@cache
def declarations(file: Path) -> dict[str, dict[str, Any]]:
    """Read a YAML file of declarations; none where there is no file."""
    import yaml

    if not file.is_file():
        return {}
    # the loader in C takes a tenth of the time
    result: dict[str, dict[str, Any]] = yaml.load(
        file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return result


def probe(
    takes: Takes = "run",
    *,
    computes: str = "",
    options: Options | Callable[[Any], Options] | None = None,
    title: str = "",
    theme: str = "Behaviour",
    summary: str = "",
    description: str = "",
    **attributes: Any,
) -> Callable[[Callable[P, xr.Dataset]], Callable[P, Result]]:
    """Declare a measurement by the function that computes it, which gives it its name.

    Args:
        takes: positional arguments of the function: "run", the "first" item's run, the
            "lens", a "pair" of runs, several "lenses" or "runs", or kinds of other
            results.
        computes: what is computed on what, in words.
        options: of the function, or a function of the results of a run that gives them.
        title: heading; the name in words unless given.
        theme: one of :data:`THEMES`.
        summary: what it measures, in one line.
        description: what a reader of its section must know, in one or two sentences.
        attributes: further attributes of :class:`Measurement`.

    Returns:
        A decorator.

    Raises:
        InputError: another module has taken the name, or the theme is not one of
            :data:`THEMES`.
        UnknownNameError: ``takes`` or ``needs`` is not a word that the registry knows.
    """
    if isinstance(takes, str) and takes not in _INPUT_DESCRIPTIONS:
        raise unknown_name("takes", takes, _INPUT_DESCRIPTIONS)

    def register(function: Callable[P, xr.Dataset]) -> Callable[P, Result]:
        kind = function.__name__
        takes_progress = "progress" in signature(function).parameters

        @answers_arguments(kind)
        @wraps(function)
        def compute(*args: P.args, **arguments: P.kwargs) -> Result:
            # a probe that another one calls leaves the twins to its caller
            is_nested = _IS_WITHIN_PROBE.get()
            given = _flatten(args)
            counts = [getattr(argument, "n_twins", 0) or 0 for argument in given]
            if is_nested:
                n_twins = 0
            else:
                # below 0 stands for as many as a report has, and must not lose against
                # a 0
                n_twins = max(counts, key=abs, default=0)
            # a sum over all parameters, which only the twins need
            work = 0
            if n_twins:
                work = _count_work(given)
            token = _IS_WITHIN_PROBE.set(True)
            try:
                with DelayedProgress(entry.title) as shown:
                    is_shown = takes_progress and not is_nested
                    if is_shown and arguments.get("progress") is None:
                        arguments["progress"] = shown
                    result = function(*args, **arguments)
            finally:
                _IS_WITHIN_PROBE.reset(token)
            # numpy and xarray take longer to import than the help of the command line
            from tsfm_lens.core.estimates import Result, compare_with_twins, of_targets

            if n_twins:
                spent = _count_work(given) - work
                result = compare_with_twins(
                    function, result, n_twins, args, arguments, spent
                )
            if not is_nested:
                result = of_targets(result, given)
            if "kind" not in result.attrs:
                # the first argument, mostly a run or lens, may be given by keyword
                subject = [*args, *arguments.values()][0]
                # what the probe says itself wins
                result.attrs = _attributes(entry, subject) | result.attrs
            # probes return plain datasets; only this class has the methods of `verbs`
            return Result(result.data_vars, result.coords, result.attrs)

        entry = Measurement(
            kind,
            theme,
            title or kind.replace("_", " ").capitalize(),
            summary,
            description,
            home=function.__module__,
            function=compute,
            takes=takes,
            computes=computes or f"{_get_name(function)}{_input_description(takes)}",
            options=options if callable(options) else lambda results: options or {},
            **attributes,
        )
        _declare(entry)
        return compute

    return register


def _input_description(takes: Takes) -> str:
    if isinstance(takes, str):
        return _INPUT_DESCRIPTIONS[takes]
    if isinstance(takes, tuple):
        return f" of {' and '.join(takes)}"
    return ""


def _attributes(entry: Measurement, subject: Any) -> dict[str, Any]:
    """Return the attributes of a result: those of its kind, and of its subject.

    A run or a lens as subject describes itself.
    """
    names = (entry.kind, entry.title, entry.source)
    if hasattr(subject, "describe"):
        result: dict[str, Any] = subject.describe(*names)
        return result
    return dict(zip(("kind", "title", "source"), names, strict=True))


def _flatten(args: Sequence[Any]) -> list[Any]:
    """Put the members of lists in place of these, as of the runs of several models."""
    flat: list[Any] = []
    for argument in args:
        if isinstance(argument, list | tuple):
            flat += argument
        else:
            flat.append(argument)
    return flat


def _count_work(args: Sequence[Any]) -> int:
    """Return the work of a probe's runs so far, in parameters × forwards."""
    return max((int(getattr(argument, "work", 0)) for argument in args), default=0)


def figure(
    kind: str,
    title: str = "",
    *,
    variables: Sequence[str] = (),
    table: Sequence[str] | Table | None = None,
    **attributes: Any,
) -> Callable[[Draw[P]], Draw[P]]:
    """Register a function that draws results of a kind.

    The function then refuses results of other kinds.

    Args:
        kind: of the measurement, which may be declared before or after.
        title: content of the figure, as a sentence; the first line of its docstring
            unless given.
        variables: that the result must have.
        table: of the report's panel: variables that share their dimensions, or a
            function of the result.
        attributes: ``sentences``, ``options``, ``probe_options``, ``beside``,
            ``needs``, ``instead``; see :class:`Figure`.

    Returns:
        A decorator.
    """
    _check_needs(attributes.get("needs", ""))

    def register(function: Draw[P]) -> Draw[P]:
        instead = attributes.get("instead", "")
        options = attributes.get("probe_options", {})
        draw = _checked(function, kind, tuple(variables), instead, options)
        name = function.__name__
        content = title or cleandoc(function.__doc__ or name).partition("\n")[0]
        tabulate = _make_table(table)
        if tabulate is not None:
            draw.tables[kind] = tabulate  # type: ignore[attr-defined]
        entry = Figure(name, content, draw, kind, table=tabulate, **attributes)
        # a cell of a notebook may run twice
        rest = [former for former in _FIGURES[kind] if former.name != name]
        _FIGURES[kind] = [*rest, entry]
        return draw

    return register


def panels(kind: str) -> Callable[[F], F]:
    """Register the function that makes the panels of a report of a kind.

    Without one, each figure with a table makes a panel.

    Returns:
        A decorator.
    """

    def register(function: F) -> F:
        _PANELS[kind] = function
        return function

    return register


def default_figure(
    function: Callable[..., go.Figure],
    table: Table,
    panels: Callable[[Any], Iterator[FigurePanel]],
) -> None:
    """Register how results of the kinds that have no figure are drawn.

    Args:
        function: draws them.
        table: tabulates them.
        panels: makes their panels of a report.
    """
    # replaced and not appended: there is one default, however often `viz` is imported
    _DEFAULT[:] = [(function, table)]
    _PANELS[_ANY_KIND] = panels


def _load_packages() -> None:
    """Import the packages of this library that declare measurements and figures."""
    for package in (*_PROBE_PACKAGES, *_FIGURE_PACKAGES):
        import_module(f"tsfm_lens.{package}")


def measurements() -> dict[str, Measurement]:
    """Return every measurement by the kind of its result, theme by theme.

    Loads all extensions.
    """
    _load_packages()
    load_all(MEASUREMENTS)
    order = sorted(
        _MEASUREMENTS.values(),
        key=lambda entry: (THEMES.index(entry.theme), entry.kind),
    )
    return {entry.kind: entry for entry in order}


def find(kind: str) -> Measurement:
    """Look up a measurement by the kind of its result.

    Returns:
        The measurement.

    Raises:
        UnknownNameError: no package and no extension has it.
    """
    # one by one, so that looking up a measurement of a probe imports no plotly
    for package in (*_PROBE_PACKAGES, *_FIGURE_PACKAGES):
        if kind in _MEASUREMENTS:
            break
        import_module(f"tsfm_lens.{package}")
    if kind not in _MEASUREMENTS:
        load_extension(MEASUREMENTS, kind)
    if kind not in _MEASUREMENTS:
        hint = (
            "`tsfm-lens measurements` lists them all; docs/howto/own-probe.md gives a"
            " probe of your own a figure."
        )
        raise unknown_name("measurement", kind, measurements(), hint=hint)
    return _MEASUREMENTS[kind]


def find_figures(kind: str) -> list[Figure]:
    """Return the ways to draw results of a kind.

    Loads the figures of this library, or one extension. A measurement without a figure
    is drawn by its dimensions alone, under the name of its kind.
    """
    for package in _FIGURE_PACKAGES:
        if kind in _FIGURES:
            break
        import_module(f"tsfm_lens.{package}")
    if kind not in _FIGURES:
        load_extension(MEASUREMENTS, kind)
    if kind in _FIGURES or kind not in _MEASUREMENTS:
        # by `get`: indexing this defaultdict would add an empty list, and the kind
        # would then pass for one that has figures
        return _FIGURES.get(kind, [])
    summary = _MEASUREMENTS[kind].summary or _MEASUREMENTS[kind].title
    title = f"{summary[:1].upper()}{summary[1:]}."
    return [
        Figure(kind, title, function, kind, table=table) for function, table in _DEFAULT
    ]


def figures() -> dict[str, Figure]:
    """Return every figure of a run or of several models, by name.

    Loads all extensions.
    """
    by_name: dict[str, Figure] = {}
    for entry in measurements().values():
        if entry.function is None:
            continue
        for item in entry.figures:
            # one function may draw several kinds: its name stands for the first of them
            # in the order of themes
            by_name.setdefault(item.name, item)
    return by_name


def find_figure(name: str) -> Figure:
    """Look up a figure by its name; the name of a kind stands for its first figure.

    Returns:
        The figure.

    Raises:
        UnknownNameError: no package and no extension has it.
    """
    available = figures()
    if name not in available and name in _MEASUREMENTS:
        available |= {name: find_figures(name)[0]}
    if name not in available:
        hint = "`tsfm-lens figure --list` names all, and what a sweep draws."
        raise unknown_name("figure", name, available, hint=hint)
    return available[name]


def name_figures(kind: str) -> str:
    """Return the names of the figures of a kind, as a sentence lists them."""
    names = [item.name for item in _FIGURES.get(kind, [])]
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def check(
    ds: Any,
    kinds: str | Sequence[str],
    *variables: str,
    instead: str = "",
    options: Mapping[str, Any] | None = None,
) -> None:
    """Refuse what is no result, Dataset or table, of a kind with variables.

    Args:
        ds: what is checked.
        kinds: the kind that is expected, or several.
        variables: that the result must have.
        instead: name of a figure that needs no such variables.
        options: of the measurement, by which its result has the variables.
    """
    if isinstance(kinds, str):
        kinds = [kinds]
    # the table of a sweep is a pandas DataFrame, which has no data_vars but a kind
    if not hasattr(ds, "data_vars") and not getattr(ds, "attrs", {}).get("kind"):
        raise InputError(
            f"a labelled result (xarray.Dataset) is needed, not {type(ds).__name__}."
        )
    actual = ds.attrs.get("kind")
    form, part = "Dataset", "variable"
    if kinds[0].startswith("sweep_"):
        form, part = "table", "column"
    # a run holds its forecast
    if str(actual) not in kinds and not (actual == "run" and "forecast" in kinds):
        hint = ""
        if figures := name_figures(actual):
            hint = f" {figures} draws that kind."
        raise InputError(
            f"a {form} of kind {kinds[0]!r} is needed, this one is of kind"
            f" {actual!r}.{hint}"
        )
    for name in variables:
        if name not in ds:
            names = ", ".join(map(str, ds)) or "nothing"
            if actual in kinds:
                kind = actual
            else:
                kind = kinds[0]
            hint = ""
            if options:
                given = ", ".join(f"{key}={value!r}" for key, value in options.items())
                hint = f" {kind}(…, {given}) gives it."
            if instead:
                hint += f" {instead} draws the result as it is."
            raise InputError(
                f"the {kind!r} {form} has no {part} {name!r}; it has {names}.{hint}"
            )


def as_dataset(thing: Any) -> Any:
    """Return a run or a forecast as its dataset, a result with all its dimensions.

    A dimension of which one label was selected is there again, with this label alone;
    anything else is returned as it is.
    """
    if not hasattr(thing, "data_vars"):
        if hasattr(thing, "to_dataset"):
            return thing.to_dataset()
        return thing
    from tsfm_lens.core.estimates import restore_selected

    return restore_selected(thing)


def _checked(
    function: Draw[P],
    kind: str,
    variables: tuple[str, ...],
    instead: str,
    options: Mapping[str, Any],
) -> Draw[P]:
    """Let a figure's function check its result.

    A function that is registered for several kinds takes all of them.

    Returns:
        The function that checks first.
    """
    # of several `figure` above one function, all but the innermost get its wrapper
    if hasattr(function, "kinds"):
        function.kinds.append(kind)
        return function
    call = signature(function)
    kinds = [kind]
    # by kind, filled where the figure is registered
    tables: dict[str, Table] = {}

    @wraps(function)
    def draw(*args: P.args, **kwargs: P.kwargs) -> go.Figure:
        bound = call.bind(*args, **kwargs)
        first = next(iter(bound.arguments))
        # the result may be given by position or by name
        bound.arguments[first] = as_dataset(bound.arguments[first])
        ds = bound.arguments[first]
        check(ds, kinds, *variables, instead=instead, options=options)
        # numpy and xarray take longer to import than the help of the command line
        from tsfm_lens.core.estimates import name_lost_dimensions

        try:
            with name_lost_dimensions(ds):
                fig = function(*bound.args, **bound.kwargs)
        except KeyError as error:
            # a variable that the result lacks, in the words of xarray; anything else is
            # a defect
            if isinstance(error, LensError) or (name := _missing_name(error)) in ds:
                raise
            check(ds, kinds, name)
            raise
        tabulate = tables.get(str(ds.attrs.get("kind")))
        if tabulate is not None:
            # plotly keeps private attributes, and copies without them
            setattr(fig, TABULATE, partial(tabulate, ds))
        return fig

    draw.tables = tables  # type: ignore[attr-defined]
    draw.kinds = kinds  # type: ignore[attr-defined]
    draw.__doc__ = _documentation(function, kind, list(call.parameters))
    return draw


def _missing_name(error: KeyError) -> str:
    text = ""
    if error.args:
        text = str(error.args[0])
    # xarray's KeyError has the name only within this sentence
    named = re.match(r"No variable named '([^']+)'", text)
    if named:
        return named[1]
    return text


def _documentation(
    function: Callable[..., Any], kind: str, parameters: list[str]
) -> str:
    """Complete a figure's docstring.

    It gains its first argument, where it does not describe it itself, and what is
    raised.

    Returns:
        The docstring.
    """
    head, _, args = cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    first = ""
    if parameters and f"    {parameters[0]}:" not in args:
        first = f"    {parameters[0]}: of kind {kind!r}.\n"
    return f"{head}\n\nArgs:\n{first}{args}".rstrip() + _RAISES


def _make_table(table: Sequence[str] | Table | None) -> Table | None:
    if table is None or callable(table):
        return table
    return lambda ds: frame(ds, *table)


def frame(ds: xr.Dataset, *variables: str) -> pd.DataFrame:
    """Tabulate those of the variables that a result has.

    There is a row per combination of labels, and a column per variable.

    Returns:
        The frame.
    """
    return (
        ds[[name for name in variables if name in ds]]
        # else each further coordinate would become a column of its own
        .reset_coords(drop=True)
        .to_dataframe()
        .reset_index()
    )


def _get_name(function: Callable[..., Any]) -> str:
    # a function is public in the package of its module, and those of probes have no
    # prefix
    package = (
        function.__module__.rpartition(".")[0]
        .removeprefix("tsfm_lens")
        .removeprefix(".probes")
    )
    return f"{package}.{function.__name__}".lstrip(".")
