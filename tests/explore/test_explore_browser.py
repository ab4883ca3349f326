"""The linked view in a real JupyterLab: open, click, see the change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains

from tsfm_lens.data import bundled
from tsfm_lens.models import load
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.head_states import TRACES

# seconds after which something is taken to hang
PATIENCE = 300

pytestmark = pytest.mark.browser

READY = """
const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
const session = panel && panel.sessionContext && panel.sessionContext.session;
return Boolean(session && session.kernel && session.kernel.status === 'idle' && document.querySelector('.jp-CodeCell'));
"""
PLOT = "const plot = document.querySelector('.js-plotly-plot'); "
# the figure's frame is there before its traces are
DRAWN = PLOT + f"return Boolean(plot && plot._fullData && plot._fullData.length >= {len(TRACES)});"
CELL_AT = (
    PLOT
    + """
const box = plot.getBoundingClientRect(), {xaxis, yaxis} = plot._fullLayout;
return [box.left + xaxis._offset + xaxis.d2p(arguments[1]), box.top + yaxis._offset + yaxis.d2p(arguments[0])];
"""
)


def until(driver: Any, script: str, what: str, seconds: float = PATIENCE) -> Any:
    """What a script returns once it is true."""
    end = time.monotonic() + seconds
    while not (found := driver.execute_script(script)):
        assert time.monotonic() < end, f"{what}; the page shows: {driver.find_element('tag name', 'body').text[-3000:]}"
        time.sleep(0.05)
    return found


def trace(driver: Any, name: str, key: str) -> Any:
    """A property of a trace as the browser holds it, lists for arrays."""
    script = PLOT + "const value = plot._fullData[arguments[0]][arguments[1]];"
    script += "return ArrayBuffer.isView(value) ? Array.from(value) : value;"
    return driver.execute_script(script, TRACES.index(name), key)


def words(driver: Any, part: str) -> str:
    return driver.execute_script(f"return document.querySelector('.tsfm-lens-{part}').textContent")


def changed(read: Callable[[], Any], before: Any, what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while (found := read()) == before:
        assert time.monotonic() < end, f"{what} stayed {before!r}"
        time.sleep(0.02)
    return found


def test_open_click_ablate(driver: Any, notebook_url: str) -> None:
    driver.get(notebook_url)
    until(driver, READY, "the kernel is not ready")
    driver.execute_script("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    until(driver, DRAWN, "no figure")
    driver.execute_script("document.querySelector('.js-plotly-plot').scrollIntoView()")

    # a click on another cell of the map
    left, low = trace(driver, "chosen", "x")[0], trace(driver, "chosen", "y")[0]
    chosen = round(low + 0.5), round(left + 0.5)
    wanted = (chosen[0] + 1) % 3, (chosen[1] + 1) % 4
    before = {name: trace(driver, name, "y") for name in ("write", "QK", "chosen")}
    said = words(driver, "words")
    x, y = driver.execute_script(CELL_AT, *wanted)
    actions = ActionChains(driver, duration=50)
    # the map answers a click where the pointer has hovered
    actions.w3c_actions.pointer_action.move_to_location(int(x) - 4, int(y)).move_to_location(int(x), int(y)).click()
    actions.perform()
    assert changed(lambda: words(driver, "words"), said, "the text").startswith(f"layer {wanted[0]}, head {wanted[1]}:")
    for name, values in before.items():
        changed(lambda name=name: trace(driver, name, "y"), values, name)
    assert trace(driver, "chosen", "y")[0] == wanted[0] - 0.5

    # its ablation, and back
    assert trace(driver, "ablated median", "visible") is False
    button = driver.find_element("css selector", ".widget-toggle-button")
    said = words(driver, "effect")
    # the notebook's toolbar covers what is scrolled to the top
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    changed(lambda: trace(driver, "ablated median", "visible"), False, "the forecast")
    assert changed(lambda: words(driver, "effect"), said, "the text").startswith("without 1 head")
    lens, (context, _) = load("bolt-nano", check=False), bundled("electricity").tail(120).split(12)
    with lens.ablate(f"decoder.{wanted[0]}.cross_attn.{wanted[1]}"):
        expected = lens.forecast(context, 12).median[0]
    assert_close(trace(driver, "ablated median", "y"), expected, depth=1000, dtype=np.float32)
    assert not np.allclose(trace(driver, "median", "y"), expected)
    button.click()
    changed(lambda: trace(driver, "ablated median", "visible"), True, "the forecast")

    # nothing that uploads the figure, and nothing went wrong on the way
    assert driver.execute_script("return document.querySelectorAll('[data-title*=\"Share\"]').length") == 0
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
