"""What a figure is: what it computes, what draws it, and the series and horizon that it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.pipeline import Task, prepare


@dataclass(frozen=True)
class Request:
    """A model and whole series, as a figure is asked for.

    Attributes:
        lens: the model.
        series: whole series; their ends are held out.
        horizon: forecast steps; what the figure takes by itself if None.
        holdout: whether the last steps are the truth.
        seed: of every sampling step.
    """

    lens: Lens
    series: SeriesBatch
    horizon: int | None = None
    holdout: bool = True
    seed: int = 0

    def task(self) -> Task:
        """Context, truth and horizon of one pass: the horizon asked for, or the model's own."""
        own = min(self.lens.adapter.prediction_length, self.lens.adapter.longest_pass)
        return prepare(self.lens, self.series, self.horizon or self._short(own), holdout=self.holdout)

    def long_task(self, paper: int, *, within_pass: bool = False) -> Task:
        """Context, truth and horizon of a long roll-out.

        Args:
            paper: steps that the paper takes; less where the shortest series would keep for its context neither half
                of its steps nor as many as the model takes.
            within_pass: at most one pass, for what cannot be followed beyond.
        """
        limit = self.lens.adapter.longest_pass if within_pass else paper
        steps = self.horizon or self._short(min(paper, limit))
        return prepare(self.lens, self.series, steps, holdout=self.holdout)

    def within_pass(self) -> Request:
        """The same request with at most one pass, for what is looked at beside a longer roll-out."""
        limit = self.lens.adapter.longest_pass
        return replace(self, horizon=None if self.horizon is None else min(self.horizon, limit))

    def one(self, series: int = 0) -> Request:
        """The same request for a single series; the variates of an item stay together."""
        picked = self.series.groups[series]
        return replace(self, series=self.series.select([i for i, g in enumerate(self.series.groups) if g == picked]))

    def _short(self, steps: int) -> int:
        shortest = min(self.series.lengths)
        room = max(shortest - self.lens.adapter.context_length, shortest // 2)
        return max(1, min(steps, room)) if self.holdout else steps


@dataclass(frozen=True)
class Plate:
    """One file of a figure.

    Attributes:
        suffix: "A", "B" … where a figure has several, else "".
        figure: as it is shown on a screen.
        results: what it is drawn from.
        note: what the caption adds.
    """

    suffix: str
    figure: go.Figure
    results: tuple[xr.Dataset, ...]
    note: str = ""


@dataclass(frozen=True)
class Entry:
    """One figure by name.

    Attributes:
        name: as the command takes it.
        title: what it shows.
        computes: the probes it calls, in words.
        renderers: names in ``tsfm_lens.viz``.
        draw: makes its plates.
        paper: with what the paper drew it, "" for a figure that is not the paper's.
    """

    name: str
    title: str
    computes: str
    renderers: tuple[str, ...]
    draw: Callable[[Request], list[Plate]]
    paper: str = field(default="")


def need_tokens(request: Request, name: str, instead: str) -> None:
    """Refuse a figure whose definition asks for a distribution over tokens.

    Raises:
        InputError: the model has none.
    """
    readout = request.lens.adapter.readout
    if readout != "token":
        raise InputError(
            f"figure {name} is defined by logits over a vocabulary, and {request.lens.model_id} emits {readout}s; "
            f"figure {instead!r} shows what its layers hold"
        )
