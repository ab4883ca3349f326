"""Definition of a figure: its computation, its drawing, and the runs that it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.models.architecture import Architecture
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.registry import Needs


def long_run(run: Run, paper: int, *, within_pass: bool = False) -> Run:
    """Extend the run to a long horizon: the caller's choice, else the paper's as far as the series allow."""
    adapter = run.lens.adapter
    steps = min(paper, adapter.longest_pass) if within_pass else paper
    if run.explicit_horizon:
        return run
    if run.full_batch is not None:
        shortest = min(run.full_batch.lengths)
        steps = max(1, min(steps, max(shortest - adapter.context_length, shortest // 2)))
    return run.at(steps)


def within_pass(run: Run) -> Run:
    """Shorten the run to at most one pass, for measurements beside a longer rollout."""
    return run.at(min(run.horizon, run.lens.adapter.longest_pass))


@dataclass(frozen=True)
class FigureFile:
    """One file of a figure."""

    suffix: str
    figure: go.Figure
    results: tuple[xr.Dataset, ...]
    note: str = ""


@dataclass(frozen=True)
class NamedFigure:
    """One figure by name."""

    name: str
    title: str
    computes: str
    renderers: tuple[str, ...]
    draw: Callable[[Run], list[FigureFile]]
    paper: str = field(default="")
    compare: Callable[[Sequence[Lens]], list[FigureFile]] | None = None
    needs: tuple[Needs, ...] = ()
    instead: str = ""

    def check(self, lens: Lens) -> None:
        """Refuse a model that the figure's definition does not allow."""
        for needs in self.needs:
            needs.check(lens, f"figure {self.name}", self.instead)

    def check_architecture(self, architecture: Architecture, model: str) -> None:
        """Refuse a model that is not open yet by its architecture; see :meth:`check`."""
        for needs in self.needs:
            needs.check_architecture(architecture, model, f"figure {self.name}", self.instead)
