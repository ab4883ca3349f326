"""Widget of the linked view: a plotly figure that answers clicks, and the controls beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np
import xarray as xr
from IPython import get_ipython
from IPython.display import display

from tsfm_lens.ablation.metrics import spearman_distance
from tsfm_lens.errors import LensError
from tsfm_lens.explore.figures import WIDE, change_words, figure_widget
from tsfm_lens.models.run import Run
from tsfm_lens.viz.head_states import (
    TRACES,
    Update,
    ablation_update,
    explore_figure,
    head_name,
    head_update,
    head_words,
    sampling_words,
    score_update,
    scores,
    start,
)
from tsfm_lens.viz.select import median_position, position, unit_of
from tsfm_lens.viz.theme import number

Head = tuple[int, int]
"""Position of a layer and a head in the result."""


class Explorer(widgets.VBox):
    """One linked view of a model's heads; made by :func:`tsfm_lens.explore.explore`."""

    def __init__(self, run: Run, states: xr.Dataset) -> None:
        self.run, self.states = run, states
        self.chosen: Head = start(states)
        self.ablated: tuple[Head, ...] = ()
        self._names = [[str(name) for name in row] for row in states["component"].values]
        self._places = {name: (i, j) for i, row in enumerate(self._names) for j, name in enumerate(row)}
        alone = states["ablated_forecast"].isel(series=0).transpose("layer", "head", "quantile", "step").values
        self._forecasts: dict[frozenset[Head], np.ndarray] = {
            frozenset([head]): alone[head] for head in self._places.values()
        }
        figure = explore_figure(states)
        self.figure = figure_widget(figure)
        self.figure.data[TRACES.index("scores")].on_click(self._on_click)
        self._build_controls()
        heading = f"<b>{escape(str(figure.layout.meta['title']))}</b>"
        bar = {"layout": widgets.Layout(flex_flow="row wrap", align_items="center")}
        super().__init__(
            [
                widgets.HTML(heading),
                widgets.HBox([self.score, self.head, self.toggle], **bar),
                self.words,
                self.figure,
                widgets.HBox([widgets.Label("ablated:"), self.tags, self.empty], **bar),
                self.effect,
            ]
        )
        self._describe()

    def _build_controls(self) -> None:
        options = [(words, key) for key, (words, _) in scores(self.states).items()]
        self.score = widgets.Dropdown(options=options, description="the map shows", **WIDE)
        heads = [(head_name(self.states, *place), place) for place in self._places.values()]
        self.head = widgets.Dropdown(options=heads, value=self.chosen, description="head", **WIDE)
        self.toggle = widgets.ToggleButton(value=False, description="ablate this head", icon="scissors")
        self.tags = widgets.TagsInput(value=[], allowed_tags=list(self._places), allow_duplicates=False)
        self.empty = widgets.Button(description="clear")
        self.words, self.effect = widgets.HTML(), widgets.HTML()
        self.words.add_class("tsfm-lens-words")
        self.effect.add_class("tsfm-lens-effect")
        self.score.observe(lambda change: self._draw(score_update(self.states, change["new"])), "value")
        self.head.observe(lambda change: self._choose(change["new"]), "value")
        self.toggle.observe(lambda change: self._toggle(change["new"]), "value")
        self.tags.observe(lambda change: self._ablate([self._places[name] for name in change["new"]]), "value")
        self.empty.on_click(lambda _button: self._ablate([]))

    def select(self, layer: str | int, head: str | int) -> None:
        """Show another head, by its labels."""
        self._choose((position(self.states, "layer", layer), position(self.states, "head", head)))

    def ablate(self, *components: str) -> None:
        """Show the forecast without exactly these heads, by component name; without arguments none is ablated."""
        flat = self.states["component"].values.ravel().tolist()
        labels = xr.Dataset(coords={"component": flat})
        for name in components:
            position(labels, "component", name, what="head")
        self._ablate([self._places[name] for name in dict.fromkeys(components)])

    @property
    def forecast(self) -> np.ndarray:
        """Forecast (quantile, step) without the ablated heads, the plain one if there are none; data units."""
        if self.ablated:
            return self._forecasts[frozenset(self.ablated)]
        return self.states["quantile_forecast"].isel(series=0).transpose("quantile", "step").values

    def _on_click(self, _trace: Any, points: Any, _state: Any) -> None:
        if points.xs:
            self._choose((round(points.ys[0]), round(points.xs[0])))

    def _choose(self, head: Head) -> None:
        if head == self.chosen:
            return
        self.chosen = head
        self._draw(head_update(self.states, *head))
        self.head.value = head
        self._describe()

    def _toggle(self, on: bool) -> None:
        others = [head for head in self.ablated if head != self.chosen]
        self._ablate([*others, self.chosen] if on else others)

    def _ablate(self, heads: Sequence[Head]) -> None:
        if tuple(heads) == self.ablated:
            return
        try:
            quantiles = self._without(heads) if heads else None
        except LensError as error:
            self._describe(str(error))
            return
        self.ablated = tuple(heads)
        self._draw(ablation_update(self.states, heads, quantiles))
        self._describe()

    def _without(self, heads: Sequence[Head]) -> np.ndarray:
        """Compute the forecast without some heads, (quantile, step); once for each set."""
        key = frozenset(heads)
        if key not in self._forecasts:
            run = self.run
            with run.lens.ablate(*(self._names[layer][head] for layer, head in heads)):
                forecast = run.lens.forecast(run.batch, run.horizon, num_samples=run.num_samples, seed=run.seed)
            self._forecasts[key] = forecast.quantiles[0]
        return self._forecasts[key]

    def _draw(self, update: Update) -> None:
        with self.figure.batch_update():
            for name, properties in update.items():
                self.figure.data[TRACES.index(name)].update(properties)

    def _describe(self, error: str = "") -> None:
        """Bring texts and controls in line with the selected and the ablated heads."""
        self.words.value = escape(head_words(self.states, *self.chosen))
        self.effect.value = escape(error or "; ".join(filter(None, [self._effect(), sampling_words(self.states)])))
        self.toggle.value = self.chosen in self.ablated
        self.tags.value = [self._names[layer][head] for layer, head in self.ablated]

    def _effect(self) -> str:
        """Describe the difference of the forecast without the ablated heads from the plain one."""
        if not self.ablated:
            return "no head is ablated"
        middle = median_position(self.states["quantile"].values)
        plain = self.states["quantile_forecast"].isel(series=0).transpose("quantile", "step").values[middle]
        without = self.forecast[middle]
        ranks = f", Spearman distance {number(float(spearman_distance(without, plain)))}" if len(plain) > 1 else ""
        truth = self.states["truth"].values[0] if "truth" in self.states else None
        heads = f"{len(self.ablated)} head{'s' * (len(self.ablated) > 1)}"
        return f"without {heads} {change_words(plain, without, truth, unit_of(self.states, 0), ranks)}"


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """Show a bar in the notebook while the states are computed; nothing outside of one."""
    if get_ipython() is None:
        yield None
        return
    bar = widgets.IntProgress(description="ablating heads", style={"description_width": "initial"})
    display(bar)

    def advance(count: int, total: int) -> None:
        bar.max, bar.value = total, count

    try:
        yield advance
    finally:
        bar.close()
