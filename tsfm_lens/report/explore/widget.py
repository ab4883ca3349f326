"""Widgets of the notebook views.

Read :class:`Explorer` first (the linked view of heads), then :class:`Brush` (a forecast
that answers brushes). Both keep every forecast that they have made. The drawing of the
linked view is JavaScript, in :mod:`tsfm_lens.viz.linked`.
"""

from __future__ import annotations

import json
import uuid
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import numpy as np
import plotly.graph_objects as go
import traitlets
import xarray as xr
from IPython.display import HTML, display

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import mae
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.core.errors import InputError, LensError
from tsfm_lens.data.batch import Item
from tsfm_lens.explain import Masks, Segment
from tsfm_lens.explain.masking import Reference
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.models.run import Run
from tsfm_lens.viz import forecast_fan, linked
from tsfm_lens.viz.panels import as_text, series_window
from tsfm_lens.viz.saving import BROWSER_CONFIG
from tsfm_lens.viz.select import array, position, positions
from tsfm_lens.viz.theme import VERMILION, number, untitled

WIDE: dict[str, Any] = {"style": {"description_width": "initial"}}
"""Style of a control whose description is never truncated."""


def figure_widget(figure: go.Figure) -> go.FigureWidget:
    """Turn a figure into a widget, with all traces that it will have.

    Its title is left to the page around it.

    Returns:
        The widget.
    """
    bare = untitled(figure).update_layout(width=None, autosize=True)
    # before the widget is made: a browser gets its first state, whatever changes its
    # traces see later
    for trace in bare.data:
        for name in ("x", "y", "base"):
            values = getattr(trace, name, None)
            # a widget sends dates of nanoseconds as whole numbers
            if isinstance(values, np.ndarray) and values.dtype.kind == "M":
                trace[name] = as_text(values)
    widget = go.FigureWidget(bare)
    # plotly has no public option for the configuration of a widget
    widget._config = {**widget._config, **BROWSER_CONFIG}
    return widget


class Fit(anywidget.AnyWidget):
    """Invisible line that lets the figures of a page fill its width.

    They do so even if they are drawn before they are shown.
    """

    _esm = """
    export default { render({ el, signal }) {
      const fit = () => window.dispatchEvent(new Event("resize"));
      new ResizeObserver(fit).observe(el);
      document.addEventListener("plotlywidget-after-render", fit, { signal });
    } };
    """


def make_masks(
    run: Run, row: int, start: int, stop: int, reference: Reference
) -> Masks:
    """Return the masks of one stretch of a series.

    The stretch is steps ``[start, stop)``, counted from the forecast start.
    """
    # the series of an item share their time axis
    length = min(run.batch.lengths[0], run.lens.context_length)
    if not 0 <= row < len(run.batch) or not -length <= start < stop <= 0:
        raise InputError(
            f"steps {start} to {stop} of series {row}: expected steps from {-length} to"
            f" 0 of {len(run.batch)} series"
        )
    return Masks(run, (Segment("brushed", row, start, stop, "past"),), reference)


# mask of the one stretch, of which nothing is kept
_NOTHING = np.zeros((1, 1), dtype=bool)


def point_ablated(
    run: Run, row: int, start: int, stop: int, reference: Reference
) -> np.ndarray:
    """Return the run's point forecast (step,) without a stretch.

    For a token model, it is the expected value on its path.
    """
    masks = make_masks(run, row, start, stop, reference)
    return masks(_NOTHING)[0, masks.middle]


def median_ablated(
    run: Run, row: int, start: int, stop: int, reference: Reference
) -> np.ndarray:
    """Compute the median (step,) of the library's own forecast without a stretch."""
    masks = make_masks(run, row, start, stop, reference)
    if run.lens.emits == "quantile":
        return masks(_NOTHING)[0, masks.middle]
    # for other models a mask gives one forward pass, which has no median that could be
    # compared with that of the run's draws
    batch = masks.masked(_NOTHING)
    return run.lens.forecast(
        batch, run.horizon, num_samples=run.num_samples, seed=run.seed
    ).median[0]


_RENDER = """
export default { render({ model, el }) {
  const root = document.createElement("div");
  // a page that says nothing of dark is light
  root.dataset.theme = document.body.dataset.jpThemeLight === "false" ? "dark" \
: "light";
  root.dataset.lmSuppressShortcuts = "true";
  const {id} = model.get("state");
  root.dataset.live = id;
  for (const still of document.querySelectorAll(`[data-still="${id}"]`)) still.remove();
  el.append(root);
  const view = linkedView(root, model.get("state"), choice => model.send(choice));
  const answer = () => view.answer(model.get("reply"));
  model.on("change:reply", answer);
  answer();
  return () => model.off("change:reply", answer);
} };
"""


# of a saved page nobody draws the widget, unless it is online: what a file can show
# stands in its place; a notebook has drawn the widget by then
_STILL = """<div data-still="{id}"></div><style>{css}</style><script>(() => {{
{js}
const place = document.querySelector('[data-still="{id}"]');
setTimeout(() => {{
  const live = document.querySelector('[data-live="{id}"]');
  if (place.isConnected && !live) linkedView(place, {state});
}}, 4000);
}})();</script>"""


class Explorer(anywidget.AnyWidget):
    """One linked view of a model's components.

    It is made by :func:`tsfm_lens.report.explore.explore`.

    ``chosen`` is a component, ``ablated`` a set of them by name, ``marked`` a stretch
    ``(start, stop)`` in steps from the forecast start, ``masked`` the forecast (step,)
    without it, ``error`` why the last choice was refused. Forecasts are the run's
    :attr:`~tsfm_lens.models.run.Run.point`, with which all effects of components are
    measured.
    """

    _drawing = Path(linked.__file__).with_suffix(".js").read_text()
    _style = Path(linked.__file__).with_suffix(".css").read_text()
    _esm = _drawing + _RENDER
    _css = _style
    state = traitlets.Dict().tag(sync=True)
    reply = traitlets.Dict().tag(sync=True)

    def __init__(self, run: Run, states: xr.Dataset) -> None:
        # whole: a kernel can answer for every head, where a file has room for the
        # strongest
        state = linked.linked_state(states, whole=True)
        state["id"] = uuid.uuid4().hex
        self.run = run
        self.states = states
        self._names = state["names"]
        self._length = len(state["series"][0]["context"])
        self.chosen: int = state["series"][0]["start"]
        self.ablated: tuple[str, ...] = ()
        self.marked: tuple[int, int] | None = None
        self.masked: np.ndarray | None = None
        self.error = ""
        self._count = 0
        # by the set of ablated components, or by the stretch that is left out; the
        # result has the forecasts without one component already
        self._forecasts: dict[Any, np.ndarray] = {
            frozenset(): array(states, "baseline_forecast", "step", series=0)
        }
        forecasts = array(states, "forecast", "component", "step", series=0)
        for name, forecast in zip(self._names, forecasts, strict=True):
            self._forecasts[frozenset([name])] = forecast
        # a reply is a trait of the widget, which must be there first
        super().__init__(state=state)
        self.on_msg(self._on_choice)
        self._answer()

    def __repr__(self) -> str:
        ids = ", ".join(self.run.batch.ids)
        return (
            f"Explorer({ids}; make it the last line of a notebook cell, elsewhere"
            " run.report(folder) has this view)"
        )

    def _ipython_display_(self) -> None:
        """Show the widget, and leave in the notebook what a page of it can show."""
        bundle = self._repr_mimebundle_()
        if bundle is None:
            return
        data, metadata = bundle
        display(data, metadata=metadata, raw=True)
        command = "run.explore() in a running notebook"
        state = linked.linked_state(self.states, command=command)
        still = _STILL.format(
            id=self.state["id"],
            css=self._style,
            js=self._drawing,
            # no text of a user ends the script
            state=json.dumps(state, separators=(",", ":")).replace("<", "\\u003c"),
        )
        display(HTML(still))

    def select(self, layer: str | int, head: str | int) -> None:
        """Show another head of the attention that is shown, by its labels."""
        row = position(self.states, "layer", layer)
        column = position(self.states, "head", head)
        name = self.states["name"].values[row, column]
        self.chosen = self._names.index(str(name))
        self._answer()

    def ablate(self, *components: str) -> None:
        """Show the forecast without exactly these components, by name.

        Without arguments, none is ablated.
        """
        known = xr.Dataset(coords={"component": self._names})
        # an unknown name is an error
        positions(known, "component", components)
        self._choose(tuple(dict.fromkeys(components)), self.marked)

    def brush(self, start: int, stop: int) -> None:
        """Show the forecast without steps ``[start, stop)``, from the forecast start.

        If the stretch is empty, the model is given all steps.
        """
        self._choose(self.ablated, (start, stop) if start != stop else None)

    @property
    def forecast(self) -> np.ndarray:
        """Forecast (step,) without the ablated components, in data units.

        It is the plain forecast if there are none.
        """
        return self._forecasts[frozenset(self.ablated)]

    def _on_choice(self, _widget: Any, choice: dict[str, Any], _buffers: Any) -> None:
        self.chosen = choice["head"]
        brush = choice["brush"]
        marked = None
        if brush:
            # the view counts steps from the beginning of the context
            marked = (brush[0] - self._length, brush[1] - self._length)
        self._choose(tuple(self._names[at] for at in choice["ablated"]), marked)

    def _choose(self, ablated: tuple[str, ...], marked: tuple[int, int] | None) -> None:
        """Forecast what is chosen, once each.

        A refused choice changes nothing but ``error``.
        """
        run = self.run
        self.error = ""
        try:
            if (chosen := frozenset(ablated)) not in self._forecasts:
                without = Variant("chosen", tuple(Zero(name) for name in ablated))
                self._forecasts[chosen] = point_forecasts(run, [without])[0, 0]
            if marked and marked not in self._forecasts:
                self._forecasts[marked] = point_ablated(run, 0, *marked, "mean")
            self.ablated = ablated
            self.marked = marked
            self.masked = self._forecasts[marked] if marked else None
        except LensError as error:
            self.error = str(error)
        finally:
            # a view that waits gets an answer in any case
            self._answer()

    def _answer(self) -> None:
        # the count makes every reply a change, which alone is sent
        self._count += 1
        brush = None
        if self.marked:
            brush = [step + self._length for step in self.marked]
        masked: dict[str, Any] = {}
        if self.masked is not None:
            masked = linked.line(self.states, self.masked)
        self.reply = {
            "count": self._count,
            "head": self.chosen,
            "ablated": [self._names.index(name) for name in self.ablated],
            "brush": brush,
            "without": linked.line(self.states, self.forecast),
            "masked": masked,
            "error": self.error,
        }


WITHOUT = "median without the brushed stretch"
# a drag that begins within the outline of the last one would be taken by that
_THROUGH = "<style>.selectionlayer path { pointer-events: none !important; }</style>"


class Brush(widgets.VBox):
    """Forecast without the brushed stretch ``marked``, see :func:`brush`.

    Medians are (step,).
    """

    def __init__(self, run: Run, item: Item, reference: Reference) -> None:
        self.run = run.item(item)
        self.reference = reference
        self.series = 0
        self.marked: tuple[int, int] | None = None
        self._cache: dict[tuple[int, int, int], np.ndarray] = {}
        self.median: np.ndarray = self.run.forecast.median[0]
        self.without = self.median
        self._length = min(self.run.batch.lengths[0], self.run.lens.context_length)
        data = self.run.forecast.to_dataset(self.run.truth)
        self._view = series_window(data, 0, self._length)
        figure = forecast_fan(data, series=0, context_steps=self._length)
        without = go.Scatter(
            x=self._view.time.at(self._view.future),
            y=self.median,
            mode="lines",
            line={"color": VERMILION, "width": 2, "dash": "dash"},
            name=WITHOUT,
            visible=False,
        )
        figure.add_trace(without)
        figure.update_layout(dragmode="select", selectdirection="h")
        self.figure = figure_widget(figure)
        # plotly offers the tool of selecting only where a trace has points; without it
        # there would be no way back from zooming
        self.figure._config = {
            **self.figure._config,
            "modeBarButtonsToAdd": ["select2d"],
        }
        self._line = self.figure.data[-1]
        # not by events of a trace: they take the way of hovering, where the last one
        # alone arrives
        self.figure.layout.on_change(self._on_selection, "selections")
        names = [
            (name or "series", row) for row, name in enumerate(self.run.batch.variates)
        ]
        self.which = widgets.Dropdown(options=names, description="brush", **WIDE)
        self.steps = widgets.IntRangeSlider(
            value=(0, 0),
            min=-self._length,
            max=0,
            description="steps",
            layout=widgets.Layout(width="600px"),
            **WIDE,
        )
        # each value makes a forecast, so only the one at which the slider is released
        # counts
        self.steps.continuous_update = False
        self.words = widgets.HTML()
        self.words.add_class("tsfm-lens-words")
        self.which.observe(
            lambda change: self.mark(*(self.marked or (0, 0)), series=change["new"]),
            "value",
        )
        self.steps.observe(lambda change: self.mark(*change["new"]), "value")
        heading = (
            f"<b>{escape(str(figure.layout.meta['title']))}: drag over the past to"
            " leave a stretch out</b>"
        )
        controls = [
            widgets.HTML(heading + _THROUGH),
            widgets.HBox([self.which, self.steps]),
        ]
        super().__init__([*controls, self.figure, Fit(), self.words])
        self._describe()

    def _on_selection(self, layout: Any, _selections: Any) -> None:
        # the argument is the selection before this one
        if not (selections := layout.to_plotly_json().get("selections")):
            return
        times = self._view.time.at(self._view.past)
        bounds = np.array([selections[-1][name] for name in ("x0", "x1")])
        first, last = sorted(bounds.astype(times.dtype))
        steps = self._view.past[(times >= first) & (times <= last)]
        if len(steps):
            self.mark(int(steps[0]), int(steps[-1]) + 1)
        else:
            self._describe(
                "no step of the past lies there: drag to the left of the dotted line,"
                " over one step or more"
            )
        # the band of ``mark`` shows the stretch in whole steps, so the outline goes;
        # this calls back once more, without a selection
        self.figure.plotly_relayout({"selections": []})

    def mark(self, start: int, stop: int, *, series: int | None = None) -> None:
        """Leave out steps ``[start, stop)`` of a series, from the forecast start.

        If that is refused, the reason is shown under the figure.
        """
        row = self.series if series is None else series
        marked = (start, stop) if stop > start else None
        try:
            without = self._forecast(row, start, stop) if marked else self.median
        except LensError as error:
            self._describe(str(error))
            return
        self.series = row
        self.marked = marked
        self.without = without
        with self.figure.batch_update():
            self._line.update(y=without, visible=self.marked is not None)
            shapes = [
                shape for shape in self.figure.layout.shapes if shape.name != "brushed"
            ]
            if self.marked is not None:
                band = go.layout.Shape(
                    type="rect",
                    x0=self._view.time.scalar(start - 0.5),
                    x1=self._view.time.scalar(stop - 0.5),
                    yref="paper",
                    y0=0,
                    y1=1,
                    fillcolor=VERMILION,
                    opacity=0.12,
                    line={"width": 0},
                    name="brushed",
                )
                shapes.append(band)
            self.figure.layout.shapes = shapes
        # these call ``mark`` again with the same stretch, whose forecast is in the
        # cache
        self.which.value = row
        self.steps.value = marked or (0, 0)
        self._describe()

    def _forecast(self, row: int, start: int, stop: int) -> np.ndarray:
        """Compute the median (step,) without a stretch, once for each stretch."""
        key = (row, start, stop)
        if key not in self._cache:
            self.words.value = f"forecasting without steps {start} to {stop - 1} …"
            self._cache[key] = median_ablated(self.run, *key, self.reference)
        return self._cache[key]

    def _describe(self, error: str = "") -> None:
        if error or self.marked is None:
            self.words.value = escape(error or "nothing is left out")
            return
        name = self.run.batch.variates[self.series] or self.run.batch.ids[self.series]
        start, stop = self.marked
        gap = np.abs(self.without - self.median)
        unit = self.run.batch.units[0] or "data units"
        change = (
            f"the median moves by {number(gap.mean())} {unit} on average, by"
            f" {number(gap.max())} at most"
        )
        if (truth := self.run.truth) is not None and np.isfinite(truth[0]).any():
            before = number(float(mae(self.median, truth[0])))
            after = number(float(mae(self.without, truth[0])))
            change += f"; mean absolute error {before} → {after} {unit}"
        time = self._view.time
        dates = ""
        if time.stamps is not None:
            dates = f" ({time.date(start)} to {time.date(stop - 1)})"
            dates = dates.replace(" 00:00", "")
        self.words.value = escape(
            f"without steps {start} to {stop - 1}{dates} of {name} {change}"
        )
