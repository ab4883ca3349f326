"""Forecast without a brushed stretch of the past."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as widgets
import numpy as np
import plotly.graph_objects as go

from tsfm_lens.errors import InputError, LensError
from tsfm_lens.explain import Masks, Segment, item_of
from tsfm_lens.explain.masking import Reference
from tsfm_lens.explore.figures import WIDE, change_words, figure_widget
from tsfm_lens.models.run import Run
from tsfm_lens.viz import forecast_fan
from tsfm_lens.viz.panels import scene
from tsfm_lens.viz.theme import VERMILION, number

WITHOUT = "median without what is brushed"


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
        view = scene(data, 0, self._length)
        # a date of numpy's is no corner that plotly draws
        self._past = [str(at) if isinstance(at, np.datetime64) else at for at in view.time.at(view.past)]
        figure = forecast_fan(data, series=0, context_steps=self._length)
        self._add_brush(figure)
        self.figure = figure_widget(figure)
        self._points, self._line = self.figure.data[-2:]
        self._points.on_selection(self._on_selection)
        names = [(name or "series", row) for row, name in enumerate(self.run.batch.variates)]
        self.which = widgets.Dropdown(options=names, description="brush", **WIDE)
        self.steps = widgets.IntRangeSlider(
            value=(0, 0), min=-self._length, max=0, description="steps", layout=widgets.Layout(width="600px"), **WIDE
        )
        self.words = widgets.HTML()
        self.words.add_class("tsfm-lens-words")
        self.which.observe(lambda change: self.mark(*(self.marked or (0, 0)), series=change["new"]), "value")
        self.steps.observe(lambda change: self.mark(*change["new"]), "value")
        heading = f"<b>{escape(str(figure.layout.meta['title']))}: drag over the past to leave a stretch out</b>"
        super().__init__([widgets.HTML(heading), widgets.HBox([self.which, self.steps]), self.figure, self.words])
        self._describe()

    def _add_brush(self, figure: go.Figure) -> None:
        """Add invisible points to select, and the line of the forecast without the selection."""
        forecast = next(trace for trace in figure.data if str(trace.name).startswith("median"))
        values = self.run.batch.values[0][-self._length :]
        points = {"x": self._past, "y": values, "mode": "markers", "marker": {"opacity": 0, "size": 8}}
        line = {"color": VERMILION, "width": 2, "dash": "dash"}
        figure.add_trace(go.Scatter(**points, showlegend=False, hoverinfo="skip"))
        figure.add_trace(go.Scatter(x=forecast.x, y=self.median, mode="lines", line=line, name=WITHOUT))
        figure.update_layout(dragmode="select", selectdirection="h")

    def _on_selection(self, _trace: Any, points: Any, _selector: Any) -> None:
        places = list(points.point_inds)
        if places:
            self.mark(min(places) - self._length, max(places) + 1 - self._length)

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
            self._line.y = without
            shapes = [shape for shape in self.figure.layout.shapes if shape.name != "brushed"]
            if self.marked is not None:
                ends = (self._past[start + self._length], self._past[stop - 1 + self._length])
                band = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 0}, "name": "brushed"}
                shapes.append(go.layout.Shape(x0=ends[0], x1=ends[1], fillcolor=VERMILION, opacity=0.12, **band))
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
        self.words.value = escape(f"without steps {start} to {stop - 1} of {name} {change}")
