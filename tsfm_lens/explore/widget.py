"""Widgets of the notebook views: plotly figures that answer clicks and brushes, and the controls beside them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import anywidget
import ipywidgets as widgets
import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.ablation.metrics import mae, spearman_distance
from tsfm_lens.errors import InputError, LensError
from tsfm_lens.explain import Masks, Segment
from tsfm_lens.explain.masking import Reference
from tsfm_lens.explain.segments import item_of
from tsfm_lens.models.run import Run
from tsfm_lens.viz import forecast_fan
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
from tsfm_lens.viz.panels import as_text, scene
from tsfm_lens.viz.saving import BROWSER_CONFIG
from tsfm_lens.viz.select import median_position, position, unit_of
from tsfm_lens.viz.theme import VERMILION, number, untitled

WIDE: dict[str, Any] = {"style": {"description_width": "initial"}}
"""Style of a control whose description is never cut."""
_COORDINATES = ("x", "y", "base")


def figure_widget(figure: go.Figure) -> go.FigureWidget:
    """Turn a figure into a widget, with all traces that it will have; its title is left to the page around it."""
    bare = untitled(figure).update_layout(width=None, autosize=True)
    # before the widget is made: a browser gets its first state, whatever changes its traces see later
    for trace in bare.data:
        for name in _COORDINATES:
            values = getattr(trace, name, None)
            # a widget sends dates of nanoseconds as whole numbers
            if isinstance(values, np.ndarray) and values.dtype.kind == "M":
                trace[name] = as_text(values)
    widget = go.FigureWidget(bare)
    widget._config = {**widget._config, **BROWSER_CONFIG}
    return widget


class Fit(anywidget.AnyWidget):
    """Invisible line beside figures that lets them fill its width, also where they are drawn before they are shown."""

    _esm = """
    export default { render({ el, signal }) {
      const fit = () => window.dispatchEvent(new Event("resize"));
      new ResizeObserver(fit).observe(el);
      document.addEventListener("plotlywidget-after-render", fit, { signal });
    } };
    """


def change_words(plain: np.ndarray, other: np.ndarray, truth: np.ndarray | None, unit: str, detail: str) -> str:
    """Describe by how much a median (step,) moves, with a detail, and its error before and after."""
    unit = unit or "data units"
    words = f"the median moves by {number(float(np.abs(other - plain).mean()))} {unit} on average{detail}"
    if truth is not None and np.isfinite(truth).any():
        before, after = (number(float(mae(median, truth))) for median in (plain, other))
        words += f"; mean absolute error {before} → {after} {unit}"
    return words


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
                Fit(),
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


WITHOUT = "median without the brushed stretch"
# a drag that begins within the outline of the last one would be taken by that
_THROUGH = "<style>.selectionlayer path { pointer-events: none !important; }</style>"


class Brush(widgets.VBox):
    """Forecast without a brushed stretch ``marked``; see :func:`tsfm_lens.explore.brush`. Medians are (step,)."""

    def __init__(self, run: Run, item: int | str, reference: Reference) -> None:
        self.run, self.reference = item_of(run, item), reference
        self.series = 0
        self.marked: tuple[int, int] | None = None
        self._cache: dict[tuple[int, int, int], np.ndarray] = {}
        self.median: np.ndarray = self.run.forecast.median[0]
        self.without = self.median
        self._length = min(self.run.batch.lengths[0], self.run.lens.context_length)
        data = self.run.forecast.to_dataset(self.run.truth)
        self._view = scene(data, 0, self._length)
        figure = forecast_fan(data, series=0, context_steps=self._length)
        line = {"color": VERMILION, "width": 2, "dash": "dash"}
        where = {"x": self._view.time.at(self._view.future), "y": self.median, "mode": "lines"}
        figure.add_trace(go.Scatter(**where, line=line, name=WITHOUT, visible=False))
        figure.update_layout(dragmode="select", selectdirection="h")
        self.figure = figure_widget(figure)
        # without points plotly offers no way back from zooming
        self.figure._config = {**self.figure._config, "modeBarButtonsToAdd": ["select2d"]}
        self._line = self.figure.data[-1]
        # events of a trace go the way of hovering, where the last one alone arrives
        self.figure.layout.on_change(self._on_selection, "selections")
        names = [(name or "series", row) for row, name in enumerate(self.run.batch.variates)]
        self.which = widgets.Dropdown(options=names, description="brush", **WIDE)
        self.steps = widgets.IntRangeSlider(
            value=(0, 0), min=-self._length, max=0, description="steps", layout=widgets.Layout(width="600px"), **WIDE
        )
        self.steps.continuous_update = False
        self.words = widgets.HTML()
        self.words.add_class("tsfm-lens-words")
        self.which.observe(lambda change: self.mark(*(self.marked or (0, 0)), series=change["new"]), "value")
        self.steps.observe(lambda change: self.mark(*change["new"]), "value")
        heading = f"<b>{escape(str(figure.layout.meta['title']))}: drag over the past to leave a stretch out</b>"
        controls = widgets.HBox([self.which, self.steps])
        super().__init__([widgets.HTML(heading + _THROUGH), controls, self.figure, Fit(), self.words])
        self._describe()

    def _on_selection(self, layout: Any, _selections: Any) -> None:
        # the argument is of before
        if not (selections := layout.to_plotly_json().get("selections")):
            return
        at = self._view.time.at(self._view.past)
        first, last = sorted(np.array([selections[-1][end] for end in ("x0", "x1")]).astype(at.dtype))
        steps = self._view.past[(at >= first) & (at <= last)]
        if len(steps):
            self.mark(int(steps[0]), int(steps[-1]) + 1)
        else:
            self._describe("no step of the past lies there: drag to the left of the dotted line, over one step or more")
        self.figure.plotly_relayout({"selections": []})

    def mark(self, start: int, stop: int, *, series: int | None = None) -> None:
        """Leave out steps ``[start, stop)`` of a series, from the forecast start; refusals stand under the figure."""
        row = self.series if series is None else series
        try:
            without = self._forecast(row, start, stop) if stop > start else self.median
        except LensError as error:
            self._describe(str(error))
            return
        self.series, self.marked, self.without = row, (start, stop) if stop > start else None, without
        with self.figure.batch_update():
            self._line.update(y=without, visible=self.marked is not None)
            shapes = [shape for shape in self.figure.layout.shapes if shape.name != "brushed"]
            if self.marked is not None:
                band = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 0}, "name": "brushed"}
                band |= {"x0": self._view.time.scalar(start - 0.5), "x1": self._view.time.scalar(stop - 0.5)}
                shapes.append(go.layout.Shape(fillcolor=VERMILION, opacity=0.12, **band))
            self.figure.layout.shapes = shapes
        self.which.value, self.steps.value = row, (start, stop) if self.marked else (0, 0)
        self._describe()

    def _forecast(self, row: int, start: int, stop: int) -> np.ndarray:
        """Compute the median without a stretch, (step,); once for each."""
        if not 0 <= row < len(self.run.batch) or not -self._length <= start < stop <= 0:
            raise InputError(
                f"steps {start} to {stop} of series {row}: expected steps from {-self._length} to 0 of one of "
                f"{len(self.run.batch)} series"
            )
        key = (row, start, stop)
        if key not in self._cache:
            self.words.value = f"forecasting without steps {start} to {stop - 1} …"
            masks = Masks(self.run, (Segment("brushed", row, start, stop, "past"),), self.reference)
            quantiles = masks(np.zeros((1, 1), dtype=bool))[0]
            self._cache[key] = quantiles[len(quantiles) // 2]
        return self._cache[key]

    def _describe(self, error: str = "") -> None:
        if error or self.marked is None:
            self.words.value = escape(error or "nothing is left out")
            return
        name = self.run.batch.variates[self.series] or self.run.batch.ids[self.series]
        start, stop = self.marked
        largest = f", by {number(float(np.max(np.abs(self.without - self.median))))} at most"
        truth = None if self.run.truth is None else self.run.truth[0]
        change = change_words(self.median, self.without, truth, self.run.batch.units[0], largest)
        time = self._view.time
        dates = "" if time.stamps is None else f" ({time.date(start)} to {time.date(stop - 1)})".replace(" 00:00", "")
        self.words.value = escape(f"without steps {start} to {stop - 1}{dates} of {name} {change}")
