"""The linked view in a real JupyterLab: open, click, see the change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from browsing import Plot, until
from tsfm_lens.data import bundled
from tsfm_lens.models import load
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.head_states import TRACES

pytestmark = pytest.mark.browser

READY = """
const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
const session = panel && panel.sessionContext && panel.sessionContext.session;
return Boolean(session && session.kernel && session.kernel.status === 'idle' && document.querySelector('.jp-CodeCell'));
"""


def changed(read: Callable[[], Any], before: Any, what: str) -> Any:
    until(lambda: read() != before, f"{what} stayed {before!r}")
    return read()


def test_open_click_ablate(driver: Any, notebook_url: str) -> None:
    def words(part: str) -> str:
        return driver.execute_script(f"return document.querySelector('.tsfm-lens-{part}').textContent")

    def page() -> str:
        return f"the page shows: {driver.find_element('tag name', 'body').text[-3000:]}"

    plot = Plot(driver, "document.querySelector('.js-plotly-plot')", list(TRACES))
    driver.get(notebook_url)
    until(lambda: driver.execute_script(READY), page)
    driver.execute_script("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    # the figure's frame is there before its traces are
    drawn = f"return Boolean(plot && plot._fullData && plot._fullData.length >= {len(TRACES)});"
    until(lambda: plot.run(drawn), page)

    # a click on another cell of the map
    left, low = plot.trace("chosen", "x")[0], plot.trace("chosen", "y")[0]
    wanted = (round(low + 0.5) + 1) % 3, (round(left + 0.5) + 1) % 4
    before = {name: plot.trace(name, "y") for name in ("write", "QK", "chosen")}
    said = words("words")
    plot.click(*wanted)
    assert changed(lambda: words("words"), said, "the text").startswith(f"layer {wanted[0]}, head {wanted[1]}:")
    for name, values in before.items():
        changed(lambda name=name: plot.trace(name, "y"), values, name)
    assert plot.trace("chosen", "y")[0] == wanted[0] - 0.5

    # its ablation, and back
    assert plot.trace("ablated median", "visible") is False
    button = driver.find_element("css selector", ".widget-toggle-button")
    said = words("effect")
    # the notebook's toolbar covers what is scrolled to the top
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    changed(lambda: plot.trace("ablated median", "visible"), False, "the forecast")
    assert changed(lambda: words("effect"), said, "the text").startswith("without 1 head")
    lens, (context, _) = load("bolt-nano", check=False), bundled("electricity").tail(120).split(12)
    with lens.ablate(f"decoder.{wanted[0]}.cross_attn.{wanted[1]}"):
        expected = lens.forecast(context, 12).median[0]
    assert_close(plot.trace("ablated median", "y"), expected, depth=1000, dtype=np.float32)
    assert not np.allclose(plot.trace("median", "y"), expected)
    button.click()
    changed(lambda: plot.trace("ablated median", "visible"), True, "the forecast")

    # nothing that uploads the figure, and nothing went wrong on the way
    assert driver.execute_script("return document.querySelectorAll('[data-title*=\"Share\"]').length") == 0
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
