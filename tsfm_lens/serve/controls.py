"""Controls of the page: a drop zone for a file, and menus for the roles of its columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from tsfm_lens.data.files import columns_of
from tsfm_lens.errors import LensError
from tsfm_lens.explore.figures import WIDE

_BY_RULE = "found by rule"
_ONE = {"id_column": "ids", "time_column": "time stamps"}
_MANY = {"targets": "forecast", "known": "known covariates", "past": "past covariates"}
_SCRIPT = """
function render({ model, el }) {
  const zone = document.createElement("label");
  const words = document.createElement("span");
  const input = document.createElement("input");
  zone.className = "tsfm-lens-drop";
  words.textContent = "Drop a CSV or Parquet file here, or choose one: ";
  input.type = "file";
  input.accept = model.get("accept");
  zone.append(words, input);
  el.append(zone);
  async function take(file) {
    if (!file) return;
    model.set("name", file.name);
    model.set("content", new DataView(await file.arrayBuffer()));
    model.set("count", model.get("count") + 1);
    model.save_changes();
  }
  input.addEventListener("change", () => take(input.files[0]));
  for (const kind of ["dragover", "dragenter"]) {
    zone.addEventListener(kind, (event) => { event.preventDefault(); zone.dataset.over = "yes"; });
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
.tsfm-lens-drop { display: inline-block; padding: 8px 12px; border: 1px dashed #6b6b6b; border-radius: 4px; }
.tsfm-lens-drop[data-over], .tsfm-lens-drop:focus-within { border-color: #0072b2; background: #eaf3f9; }
"""


class Dropped(anywidget.AnyWidget):
    """Last file that was dropped."""

    _esm = _SCRIPT
    _css = _STYLE
    name = traitlets.Unicode("").tag(sync=True)
    # a browser sends a view of memory, which traitlets takes for no bytes
    content = traitlets.Any(b"").tag(sync=True)
    count = traitlets.Int(0).tag(sync=True)
    accept = traitlets.Unicode("").tag(sync=True)


class Columns(widgets.Accordion):
    """Menus for ids, times, targets and covariates; empty menus leave the choice to the rules of reading."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change, self._quiet = on_change, False
        self.menus: dict[str, widgets.Widget] = {
            name: widgets.Dropdown(options=[(_BY_RULE, "")], description=words, **WIDE) for name, words in _ONE.items()
        }
        self.menus |= {
            name: widgets.SelectMultiple(options=[], description=words, rows=4, **WIDE) for name, words in _MANY.items()
        }
        for menu in self.menus.values():
            menu.observe(self._notify, "value")
        layout = widgets.Layout(flex_flow="row wrap", grid_gap="6px")
        super().__init__([widgets.HBox(list(self.menus.values()), layout=layout)], titles=("Columns of the file",))
        self.offer(None)

    def offer(self, path: Path | None) -> None:
        """Offer the columns of a file; none if there is no file, or if it cannot be read, which reading it will say."""
        try:
            names = [] if path is None else columns_of(path)
        except LensError:
            names = []
        self._quiet = True
        for key, menu in self.menus.items():
            menu.options = [(_BY_RULE, ""), *((name, name) for name in names)] if key in _ONE else names
            menu.value = "" if key in _ONE else ()
        self._quiet = False
        self.layout.display = "" if names else "none"
        self.selected_index = None

    @property
    def chosen(self) -> dict[str, Any]:
        """Arguments of :func:`tsfm_lens.data.read_series`."""
        return {key: menu.value if key in _ONE else list(menu.value) for key, menu in self.menus.items() if menu.value}

    def _notify(self, _change: Any) -> None:
        if not self._quiet:
            self._on_change()
