"""Declaration of one measurement for every part of the toolbox that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.catalogue.tables import frame
from tsfm_lens.errors import InputError

if TYPE_CHECKING:
    from tsfm_lens.catalogue.computing import Compute, Options, Work
    from tsfm_lens.models import Lens
    from tsfm_lens.models.architecture import Architecture

THEMES = ("Weights alone", "Activations", "Behaviour", "Causes", "Inputs", "Sweeps", "Training", "Theory")


@dataclass(frozen=True)
class Plate:
    """Figure of a report with its table and its reading; a name where it gets files of its own."""

    figure: go.Figure
    table: pd.DataFrame
    reading: list[str]
    name: str = ""


@dataclass(frozen=True)
class Needs:
    """Requirement of a definition on a model.

    Attributes:
        words: what the model must have, as the end of "is defined by …".
        models: which have it, for lists.
        met: whether a model has it.
        possible: whether a model of an architecture can have it, so that one that cannot is refused unopened.
    """

    words: str
    models: str
    met: Callable[[Lens], bool]
    possible: Callable[[Architecture], bool] = lambda architecture: True

    def check(self, lens: Lens, name: str, instead: str = "") -> None:
        """Refuse a model that does not have it.

        Raises:
            InputError: the message names what is asked for and what can be had instead.
        """
        if not self.met(lens):
            raise self._refusal(name, lens.model_id, instead)

    def check_architecture(self, architecture: Architecture, model: str, name: str, instead: str = "") -> None:
        """Refuse a model that is not open yet by its architecture.

        Raises:
            InputError: no model of this architecture has it; the message is that of :meth:`check`.
        """
        if not self.possible(architecture):
            raise self._refusal(name, model, instead)

    def _refusal(self, name: str, model: str, instead: str) -> InputError:
        other = f"; {instead}" if instead else ""
        return InputError(f"{name} is defined by {self.words}, which {model} does not have{other}")


@dataclass(frozen=True)
class Figure:
    """One way to draw a measurement.

    Attributes:
        renderer: function of :mod:`tsfm_lens.viz` by name, or one of your own; its name is the figure's on the
            command line.
        title: what it shows, as a sentence.
        options: of the renderer where the figure is drawn by its name alone.
        beside: kinds of further results that the renderer takes.
        needs: what it asks of a model beyond what the measurement does.
        instead: figure for models that do not have it.
    """

    renderer: str | Callable[..., go.Figure]
    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    needs: Needs | None = None
    instead: str = ""

    @property
    def name(self) -> str:
        """Name on the command line."""
        return self.renderer if isinstance(self.renderer, str) else self.renderer.__name__

    @property
    def function(self) -> Callable[..., go.Figure]:
        """Function that draws it."""
        if isinstance(self.renderer, str):
            function: Callable[..., go.Figure] = getattr(import_module("tsfm_lens.viz"), self.renderer)
            return function
        return self.renderer

    def draw(self, *results: xr.Dataset) -> go.Figure:
        """Draw a result, with those that the renderer takes beside it."""
        return self.function(*results, **self.options)


@dataclass(frozen=True)
class Measurement:
    """One kind of result: how it is computed, drawn, tabulated and read.

    The command line, the report, the tables of the documentation and the list of reported values are all made from
    this; nothing else has to know of it.

    Attributes:
        kind: of its result, ``result.attrs["kind"]``.
        theme: one of :data:`THEMES`.
        about: what is measured, as the documentation's tables have it.
        heading: of its chapter in a report.
        guide: what a reader of the chapter must know, in one or two sentences.
        compute: computes the result of a run, a dataset. None for what no single run makes: a table of a sweep, the
            result of a study (``maker`` names it), or of a probe of several models (the first of ``helpers``).
        plates: what a report draws of a result, each with its table and its reading.
        figures: all ways to draw it.
        helpers: further functions of :mod:`tsfm_lens.probes` that belong to it.
        source: where the definition is from.
        paper: ids of the reported values that it measures, as ``tsfm-lens reproduce`` knows them.
        needs: what it asks of a model; None for every model.
        maker: what makes the result if no run does, in words.
        subject: what the chapter is about; its model and series if None.
    """

    kind: str
    theme: str
    about: str
    heading: str
    guide: str
    compute: Compute | None
    plates: Callable[[Any], Iterator[Plate]]
    figures: tuple[Figure, ...]
    helpers: tuple[str, ...] = ()
    source: str = ""
    paper: tuple[str, ...] = ()
    needs: Needs | None = None
    subject: Callable[[Any], str] | None = None
    maker: str = ""

    @property
    def probes(self) -> tuple[str, ...]:
        """Functions of :mod:`tsfm_lens.probes`, the one that gives the result first."""
        return (self.compute.name, *self.helpers) if self.compute is not None and self.compute.name else self.helpers

    @property
    def across(self) -> str:
        """Function of :mod:`tsfm_lens.probes` that makes it of several models; "" for what is made otherwise."""
        others = self.compute is not None or self.maker
        return self.helpers[0] if self.helpers and not others else ""

    @property
    def elsewhere(self) -> str:
        """Origin of the result if no run makes it, in words."""
        if self.maker:
            return self.maker
        if self.across:
            return f"made of several models: `{self.across}` makes it, `tsfm-lens figure` draws it"
        return "made of many runs: `tsfm-lens sweep` makes it, and `tsfm-lens sweep report` draws it"

    def check(self, lens: Lens) -> None:
        """Refuse a model that the definition does not allow.

        Raises:
            InputError: it does not have what the measurement needs.
        """
        if self.needs is not None:
            self.needs.check(lens, f"{self.kind!r}")

    def check_architecture(self, architecture: Architecture, model: str) -> None:
        """Refuse a model that is not open yet by its architecture.

        Raises:
            InputError: the definition allows no model of it.
        """
        if self.needs is not None:
            self.needs.check_architecture(architecture, model, f"{self.kind!r}")

    def of(self, work: Work, **options: Any) -> xr.Dataset:
        """Compute the result of a run.

        Args:
            work: the run, with the results that are there already.
            options: of the probe.

        Raises:
            InputError: the definition forbids the model or the series, or the result is one of many runs.
        """
        if self.compute is None:
            raise InputError(f"a result of kind {self.kind!r} is {self.elsewhere}")
        self.check(work.run.lens)
        return self.compute.call(work, options)

    def in_report(self, lens: Lens) -> Mapping[str, Options]:
        """Return the results that a report on a model shows of it: options of the probe by name of the result."""
        return {self.kind: {}} if self.compute is None or self.compute.each is None else self.compute.each(lens)


def shown_alone(
    kind: str,
    renderer: Callable[[xr.Dataset], go.Figure],
    reading: Callable[[xr.Dataset], list[str]],
    variables: tuple[str, ...],
    about: str,
    heading: str,
    guide: str,
    where: str,
    shows: str,
    paper: tuple[str, ...],
    *,
    theme: str,
    source: str,
    subject: Callable[[xr.Dataset], str],
    maker: str,
) -> Measurement:
    """Declare a result of no run with one figure and one table, of some of its variables.

    Args:
        renderer, shows: the figure, and what it shows; reading: what it shows in words.
        source, where: the paper, and the place in it.
    """

    def plates(ds: xr.Dataset) -> Iterator[Plate]:
        yield Plate(renderer(ds), frame(ds, *variables), reading(ds))

    return Measurement(
        kind=kind,
        theme=theme,
        about=about,
        heading=heading,
        guide=guide,
        compute=None,
        plates=plates,
        figures=(Figure(renderer, shows),),
        source=f"{source}, {where}",
        paper=paper,
        subject=subject,
        maker=maker,
    )
