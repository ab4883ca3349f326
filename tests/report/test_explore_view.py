"""The linked view of the report in a real browser: a click shows another head, the toggle its ablation."""

from __future__ import annotations

import pytest

from browsing import Plot, press, until, until_drawn
from tsfm_lens.viz.head_states import TRACES, read_explore


@pytest.fixture(scope="module")
def plot(explored, new_browser):
    browser = new_browser("--window-size=1280,1000")
    browser.get(explored.as_uri())
    until_drawn(browser)
    find_plot = "document.querySelector('.controls').parentElement.querySelector('.plot')"
    yield Plot(browser, find_plot, list(TRACES))
    browser.quit()


def said(plot) -> str:
    return plot.driver.execute_script("return document.querySelector('.said').textContent")


def until_said(plot, words: str) -> None:
    until(lambda: said(plot).startswith(words), lambda: said(plot))


@pytest.mark.browser
def test_a_click_shows_another_head_and_the_toggle_its_ablation(plot, results):
    ds, toggle = results["explore"], plot.driver.find_element("css selector", ".controls input")
    assert said(plot).startswith("layer 1, head 2:")
    assert plot.trace("write", "y") == [12.0] * 5
    plot.click(0, 1)
    until_said(plot, "layer 0, head 1:")
    assert plot.trace("write", "y") == [1.0] * 5
    assert plot.trace("chosen", "x")[:2] == [0.5, 1.5]
    band = plot.trace("attention", "z")[0]
    assert band.index(75) == len(band) - 2
    assert plot.trace("ablated median", "visible") is False
    press(plot.driver, toggle)
    assert plot.trace("ablated median", "y") == [v + 1 for v in ds["truth"].values[0]]
    assert plot.trace("median", "y") == list(ds["truth"].values[0])
    # the toggle stays as the next head is chosen
    plot.click(1, 0)
    until_said(plot, "layer 1, head 0:")
    assert plot.trace("ablated median", "y") == [v + 10 for v in ds["truth"].values[0]]
    press(plot.driver, toggle)
    assert plot.trace("ablated median", "visible") is False
    # the menus do the same by keyboard
    score, head = plot.driver.find_elements("css selector", ".controls select")
    score.send_keys("stable rank of OV")
    assert plot.trace("scores", "z") == [[2, 3, 4], [12, 13, 14]]
    head.send_keys("layer 0, head 2")
    until_said(plot, "layer 0, head 2:")
    assert plot.trace("write", "y") == [2.0] * 5
    assert plot.driver.get_log("browser") == []


def test_the_reading_names_the_planted_head(results):
    reading = " ".join(read_explore(results["explore"]))
    # other heads may move it more: a report names the kind and the head as other sections do
    told = "Of the heads of decoder cross-attention the forecast moves most without decoder.1.cross_attn.2: by 12 "
    assert reading.startswith(told)
    assert "It also writes most" in reading
