"""Drop zone for a file, which mouse and keyboard can open as well."""

from __future__ import annotations

import anywidget
import traitlets

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
    """Last file that was dropped.

    Attributes:
        name: of the file.
        content: its bytes.
        count: how many were dropped; what to observe, since it changes after the other two.
        accept: endings, as HTML's input takes them.
    """

    _esm = _SCRIPT
    _css = _STYLE
    name = traitlets.Unicode("").tag(sync=True)
    # a browser sends a view of memory, which traitlets takes for no bytes
    content = traitlets.Any(b"").tag(sync=True)
    count = traitlets.Int(0).tag(sync=True)
    accept = traitlets.Unicode("").tag(sync=True)
