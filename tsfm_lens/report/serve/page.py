"""Local page: controls on top, then forecast, heads and explanation as tabs.

Read :class:`Page` first. The tabs hold the same views as a notebook and a report; each
is computed when it is first shown.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets
import xarray as xr
from transformers.utils import logging

from tsfm_lens.core.axes import short_ids
from tsfm_lens.core.errors import InputError, LensError
from tsfm_lens.core.registry import find
from tsfm_lens.data import SeriesBatch, bundled_names
from tsfm_lens.data.files import READABLE, list_columns
from tsfm_lens.data.sources import read_sources
from tsfm_lens.models import Lens, load
from tsfm_lens.models.run import Run
from tsfm_lens.report import explanation
from tsfm_lens.report.explore import brush, explore
from tsfm_lens.report.explore.widget import WIDE, Fit, figure_widget
from tsfm_lens.report.serve.server import FILE_LIMIT
from tsfm_lens.viz.words import capital
from tsfm_lens.zoo import checkpoint_names

_BY_RULE = "found by rule"
# titles of menus by option of read_series: of one column each, and of any number
_ONE = {"id_column": "ids", "time_column": "time stamps"}
_MANY = {
    "targets": "forecast",
    "known": "known covariates",
    "past": "past covariates",
    "categories": "categories",
}
_SCRIPT = """
function render({ model, el }) {
  const zone = document.createElement("label");
  const words = document.createElement("span");
  const input = document.createElement("input");
  zone.className = "tsfm-lens-drop";
  words.textContent = `Drop a CSV or Parquet file of up to \
${Math.floor(model.get("limit") / 2 ** 20)} MiB here, ` +
    "or choose one: ";
  input.type = "file";
  input.accept = model.get("accept");
  const refusal = document.createElement("p");
  refusal.className = "tsfm-lens-refusal";
  refusal.setAttribute("role", "alert");
  zone.append(words, input);
  el.append(zone, refusal);
  async function take(file) {
    if (!file) return;
    const limit = model.get("limit"), \
mebibytes = (bytes) => (bytes / 2 ** 20).toFixed(1) + " MiB";
    if (file.size > limit) {
      // a larger message would end the connection, and nothing would be read any more
      refusal.textContent = `${file.name} has ${mebibytes(file.size)}; \
this page reads files of up to ` +
        `${mebibytes(limit)}. Start it with the file instead: \
tsfm-lens serve --data FILE`;
      return;
    }
    refusal.textContent = "";
    model.set("name", file.name);
    model.set("content", new DataView(await file.arrayBuffer()));
    model.set("count", model.get("count") + 1);
    model.save_changes();
  }
  input.addEventListener("change", () => take(input.files[0]));
  for (const kind of ["dragover", "dragenter"]) {
    zone.addEventListener(kind, (event) => { \
event.preventDefault(); zone.dataset.over = "yes"; });
  }
  zone.addEventListener("dragleave", () => delete zone.dataset.over);
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    delete zone.dataset.over;
    take(event.dataTransfer.files[0]);
  });
}
export default { render };
"""
_STYLE = """
.tsfm-lens-drop { display: inline-block; padding: 8px 12px; \
border: 1px dashed #6b6b6b; border-radius: 4px; }
.tsfm-lens-refusal { color: #a1260d; font-weight: 600; margin: 4px 0; }
.tsfm-lens-drop[data-over], .tsfm-lens-drop:focus-within { \
border-color: #0072b2; background: #eaf3f9; }
"""


class Dropped(anywidget.AnyWidget):
    """Last file that was dropped.

    ``count`` rises with each, so that a file of the same name and content is noticed.
    """

    _esm = _SCRIPT
    _css = _STYLE
    name = traitlets.Unicode("").tag(sync=True)
    # a file arrives as a memoryview, which traitlets.Bytes refuses
    content = traitlets.Any(b"").tag(sync=True)
    count = traitlets.Int(0).tag(sync=True)
    accept = traitlets.Unicode("").tag(sync=True)
    limit = traitlets.Int(FILE_LIMIT).tag(sync=True)


class Columns(widgets.Accordion):
    """Menus for ids, times, targets and covariates.

    Where a menu is empty, the columns are found by the rules of reading.
    """

    def __init__(self, on_change: Callable[[], object]) -> None:
        # menus report their changes, also those that ``offer`` makes itself
        self._quiet = False
        self.menus: dict[str, widgets.Widget] = {
            name: widgets.Dropdown(options=[(_BY_RULE, "")], description=text, **WIDE)
            for name, text in _ONE.items()
        }
        self.menus |= {
            name: widgets.SelectMultiple(options=[], description=text, rows=4, **WIDE)
            for name, text in _MANY.items()
        }
        for menu in self.menus.values():
            menu.observe(lambda _change: self._quiet or on_change(), "value")
        layout = widgets.Layout(flex_flow="row wrap", grid_gap="6px")
        super().__init__(
            [widgets.HBox(list(self.menus.values()), layout=layout)],
            titles=("Columns of the file",),
        )
        self.offer(None)

    def offer(self, path: Path | None) -> None:
        """Offer the columns of a file.

        There are none without a file, or if it cannot be read; reading it then says
        why.
        """
        names: Sequence[str] = []
        if path is not None:
            with suppress(LensError):
                names = list_columns(path)
        # the series are read once, after all menus are set
        self._quiet = True
        for key, menu in self.menus.items():
            if key in _ONE:
                menu.options = [(_BY_RULE, ""), *((name, name) for name in names)]
                menu.value = ""
            else:
                menu.options = names
                menu.value = ()
        self._quiet = False
        self.layout.display = "" if names else "none"
        self.selected_index = None

    @property
    def chosen(self) -> dict[str, Any]:
        """Arguments of :func:`tsfm_lens.data.read_series`."""
        return {
            key: menu.value if key in _ONE else list(menu.value)
            for key, menu in self.menus.items()
            if menu.value
        }


_TABS = ("Forecast", "Heads", "Explanation")
_BUNDLED = "bundled:"


class Page(widgets.VBox):
    """Local page as a widget.

    It is made by the notebook that :func:`tsfm_lens.report.serve.serve` opens.
    """

    def __init__(
        self,
        model: str,
        sources: Sequence[str],
        reading: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self.batch: SeriesBatch | None = None
        self.run: Run | None = None
        self.shown = [False] * len(_TABS)
        self._notes = self._what = ""
        self._sources = list(sources)
        # options of the command line are for its own files: a dropped file or a bundled
        # series drops them
        self._reading = dict(reading)
        self._options = dict(options)
        # dropped files stay as long as the page
        self._folder = tempfile.TemporaryDirectory(prefix="tsfm-lens-page-")
        self._lenses: dict[str, Lens] = {}
        logging.disable_progress_bar()
        self._build(model)
        super().__init__(
            [
                widgets.HTML("<h1 style='font-size:1.4em;margin:0'>tsfm-lens</h1>"),
                self.file,
                self.columns,
                widgets.HBox([self.bundled, self.series], layout=_row()),
                widgets.HBox(
                    [self.model, self.horizon, self.holdout, self.go], layout=_row()
                ),
                self.status,
                self.tabs,
            ]
        )
        self._read()

    def _build(self, model: str) -> None:
        self.file = Dropped(accept=",".join(READABLE))
        self.bundled = widgets.Dropdown(
            options=[("–", ""), *((n, n) for n in bundled_names())], value="", **WIDE
        )
        self.bundled.description = "or a bundled series"
        self.series = widgets.Dropdown(options=[], description="series", **WIDE)
        self.columns = Columns(self._read)
        self.model = widgets.Combobox(
            value=model,
            options=checkpoint_names(),
            description="model",
            continuous_update=False,
            placeholder="embedded, folder or hub id",
            **WIDE,
        )
        steps = self._options.get("horizon") or 24
        self.horizon = widgets.BoundedIntText(
            value=steps, min=1, max=1024, description="steps", **WIDE
        )
        self.horizon.layout.width = "120px"
        self.holdout = widgets.Checkbox(
            value=bool(self._options.get("holdout", True)),
            description="hold out the last as the truth",
            indent=False,
        )
        self.holdout.layout.width = "240px"
        self.go = widgets.Button(description="Forecast", button_style="primary")
        self.status = widgets.HTML()
        self.status.add_class("tsfm-lens-status")
        self.tabs = widgets.Tab([widgets.VBox() for _ in _TABS], titles=_TABS)
        self.file.observe(lambda _change: self._take_file(), "count")
        self.bundled.observe(self._take_bundled, "value")
        for control in (self.series, self.model, self.horizon, self.holdout):
            control.observe(
                lambda _change: self._say("Press Forecast." + self._still), "value"
            )
        self.go.on_click(lambda _button: self._forecast())
        self.tabs.observe(lambda _change: self._show(), "selected_index")

    def _take_file(self) -> None:
        with self._task("reading …"):
            # the name alone: a browser may send any text, and a path must not leave the
            # folder
            path = Path(self._folder.name) / Path(self.file.name).name
            path.write_bytes(bytes(self.file.content))
            self._sources = [str(path)]
            self._reading = {}
            # this calls _take_bundled, which does nothing for an empty name
            self.bundled.value = ""
            self.columns.offer(path)
            self._read()

    def _take_bundled(self, change: Any) -> None:
        if change["new"]:
            self._sources = [_BUNDLED + change["new"]]
            self._reading = {}
            self.columns.offer(None)
            self._read()

    def _read(self) -> None:
        """Read the chosen files and forecast.

        The earlier series stay if they cannot be read.
        """
        with self._task("reading …"):
            self.batch = read_sources(
                self._sources, **self._reading | self.columns.chosen
            )
            first = dict(
                # reversed, so that of the series of an item the first one stays
                zip(reversed(self.batch.groups), reversed(self.batch.ids), strict=True)
            )
            # items are listed by the name of their first series, as the file has it
            groups = list(dict.fromkeys(self.batch.groups))
            labels = short_ids([first[group] for group in groups])
            items = list(zip(labels, groups, strict=True))
            self.series.options = items
            self.series.value = items[0][1]
            notes = list(self.batch.notes)
            if len(items) > 1:
                count = f"{len(items)} series were read; choose one in the menu"
                notes.insert(0, count)
            self._notes = "".join(f" {capital(note)}." for note in notes)
            self._clear()
            self._forecast()

    def _clear(self) -> None:
        self.run = None
        self.shown = [False] * len(_TABS)
        for tab in self.tabs.children:
            tab.children = ()

    def _forecast(self) -> None:
        if self.batch is None:
            return
        with self._task("forecasting …"):
            name = self.model.value.strip()
            if not name:
                raise InputError(
                    f"name a model: {', '.join(checkpoint_names())}, a folder or a"
                    " hub id"
                )
            if name not in self._lenses:
                self._say(f"opening {name} …")
                self._lenses[name] = load(name)
            lens = self._lenses[name]
            rows = [
                row
                for row, group in enumerate(self.batch.groups)
                if group == self.series.value
            ]
            # all three views measure single passes, so that they are of one forecast
            horizon = min(self.horizon.value, lens.longest_pass)
            self._say("forecasting …")
            run = lens.run(
                self.batch.select(rows),
                horizon,
                holdout=self.holdout.value,
                num_samples=self._options.get("num_samples"),
                seed=self._options.get("seed", 0),
            )
            # an error of the forecast itself is shown before anything of the page
            # changes
            view = brush(run)
            self._clear()
            self.run = run
            self.shown[0] = True
            self.tabs.children[0].children = (view,)
            shorter = ""
            if horizon < self.horizon.value:
                shorter = f" One pass of {name} has {horizon} steps."
            self._what = f"{name} on {self.series.label}, {horizon} steps."
            self._say(f"{self._what}{shorter}{self._notes}")
        self._show()

    def _show(self) -> None:
        """Fill the visible tab, once for each forecast."""
        tab = self.tabs.selected_index or 0
        if self.run is None or self.shown[tab]:
            return
        # what the forecast says of itself comes back after the message of this task
        status = self.status.value
        # the other tab that is filled here, 2, is the explanation: the forecast fills 0
        # itself
        is_heads = tab == 1
        with self._task("ablating every head …" if is_heads else "explaining …"):
            build = self._heads if is_heads else self._explanation
            self.tabs.children[tab].children = tuple(build(self.run))
            self.shown[tab] = True
            self.status.value = status

    def _heads(self, run: Run) -> Iterator[widgets.Widget]:
        if len(run.batch) > 1:
            name = escape(short_ids(run.batch.ids)[0])
            yield widgets.HTML(
                f"<p>Heads are analysed one series at a time: this is {name} alone,"
                " without the other series.</p>"
            )
            # the target is the first series of an item
            truth = None if run.truth is None else run.truth[:1]
            run = run.lens.run(
                run.batch.select([0]),
                run.horizon,
                truth=truth,
                num_samples=run.num_samples,
                seed=run.seed,
            )
        yield explore(run)

    def _explanation(self, run: Run) -> Iterator[widgets.Widget]:
        missing: dict[str, str] = {}
        items = len(set(run.batch.groups))
        if items > 1:
            yield widgets.HTML(
                "<p>One item is explained at a time: this is"
                f" {escape(run.batch.groups[0])}, the first of {items}.</p>"
            )
        results = explanation.explain(
            run, item=0, progress=self._progress, left_out=missing
        )
        for result in results.values():
            yield from _section(result)
        yield Fit()
        for heading, reason in missing.items():
            yield widgets.HTML(
                f"<p><b>{escape(heading)}</b> is left out: {escape(reason)}</p>"
            )

    def _progress(self, step: str, count: int, total: int) -> None:
        self._say(f"explaining: {step.replace('_', ' ')} {count} of {total}")

    @contextmanager
    def _task(self, description: str) -> Iterator[None]:
        """Show a task while it runs.

        An error is shown on the page, which stays as it was.
        """
        self._say(description)
        self.go.disabled = True
        try:
            yield
        except LensError as error:
            text = f"{error}.{self._still}" if self.run else str(error)
            self._say(text, error=True)
        except Exception as error:  # a callback's error would be seen by nobody
            self._say(
                f"{description} {type(error).__name__}: {error}. This is a fault of the"
                " page; please report it.",
                error=True,
            )
        finally:
            self.go.disabled = False

    @property
    def _still(self) -> str:
        if self.run is None:
            return ""
        return f" The page still shows {self._what}"

    def _say(self, text: str, *, error: bool = False) -> None:
        colour = "color:inherit"
        if error:
            colour = "color:#a1260d;font-weight:600"
        self.status.value = (
            '<div role="status" aria-live="polite"'
            f' style="{colour}">{escape(text)}</div>'
        )


def _row() -> widgets.Layout:
    return widgets.Layout(flex_flow="row wrap", align_items="center", grid_gap="6px")


def _section(result: xr.Dataset) -> Iterator[widgets.Widget]:
    """Show a measurement as the report does.

    It has a title, a description, figures and their sentences.

    Yields:
        A widget for the title, each figure and each sentence.
    """
    measurement = find(str(result.attrs["kind"]))
    yield widgets.HTML(
        "<h2 style='margin:12px 0"
        f" 0'>{escape(measurement.title)}</h2><p>{escape(measurement.description)}</p>"
    )
    for panel in measurement.draw_panels(result):
        yield figure_widget(panel.figure)
        if panel.sentences:
            items = "".join(f"<li>{escape(text)}</li>" for text in panel.sentences)
            yield widgets.HTML(f"<ul>{items}</ul>")
