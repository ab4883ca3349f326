"""The linked view of the report in a real browser: a click shows another head, the toggle its ablation."""

from __future__ import annotations

import json
import time

import pytest
import xarray as xr

from tsfm_lens.registry import find
from tsfm_lens.testing import last_digit
from tsfm_lens.viz.head_states import TRACES, read_explore

# seconds after which something is taken to hang
PATIENCE = 300

PLOT = "const plot = document.querySelector('.controls').parentElement.querySelector('.plot'); "


@pytest.fixture(scope="module")
def page(explored, new_browser):
    browser = new_browser("--window-size=1280,1000")
    browser.get(explored.as_uri())
    end = time.monotonic() + PATIENCE
    while browser.execute_script("return document.documentElement.dataset.drawn") is None:
        assert time.monotonic() < end, f"not drawn; console: {browser.get_log('browser')}"
        time.sleep(0.1)
    yield browser
    browser.quit()


def trace(page, name: str, key: str):
    script = PLOT + "const value = plot._fullData[arguments[0]][arguments[1]];"
    script += "return ArrayBuffer.isView(value) ? Array.from(value) : value;"
    return page.execute_script(script, TRACES.index(name), key)


def click(page, layer: int, head: int) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    # at once, though the page scrolls smoothly: nobody can tell when that has ended
    page.execute_script(PLOT + "plot.closest('figure').scrollIntoView({behavior: 'instant'})")
    x, y = page.execute_script(
        PLOT
        + "const box = plot.getBoundingClientRect(), {xaxis: x, yaxis: y} = plot._fullLayout;"
        + "return [box.left + x._offset + x.d2p(arguments[1]), box.top + y._offset + y.d2p(arguments[0])]",
        layer,
        head,
    )
    actions = ActionChains(page, duration=50)
    actions.w3c_actions.pointer_action.move_to_location(int(x) - 4, int(y)).move_to_location(int(x), int(y)).click()
    actions.perform()


def said(page) -> str:
    return page.execute_script("return document.querySelector('.said').textContent")


def until_said(page, words: str) -> None:
    end = time.monotonic() + PATIENCE
    while not said(page).startswith(words):
        assert time.monotonic() < end, said(page)
        time.sleep(0.02)


@pytest.mark.browser
def test_a_click_shows_another_head_and_the_toggle_its_ablation(page, results):
    ds = results["explore"]
    assert said(page).startswith("layer 1, head 2:")
    assert trace(page, "write", "y") == [12.0] * 5
    click(page, 0, 1)
    until_said(page, "layer 0, head 1:")
    assert trace(page, "write", "y") == [1.0] * 5
    assert trace(page, "chosen", "x")[:2] == [0.5, 1.5]
    band = trace(page, "attention", "z")[0]
    assert band.index(75) == len(band) - 2
    assert trace(page, "ablated median", "visible") is False

    page.find_element("css selector", ".controls input").click()
    assert trace(page, "ablated median", "visible") is True
    assert trace(page, "ablated median", "y") == [v + 1 for v in ds["truth"].values[0]]
    assert trace(page, "median", "y") == list(ds["truth"].values[0])
    # the toggle stays as the next head is chosen
    click(page, 1, 0)
    until_said(page, "layer 1, head 0:")
    assert trace(page, "ablated median", "y") == [v + 10 for v in ds["truth"].values[0]]
    page.find_element("css selector", ".controls input").click()
    assert trace(page, "ablated median", "visible") is False
    assert page.get_log("browser") == []


@pytest.mark.browser
def test_the_menus_do_the_same_by_keyboard(page):
    score, head = page.find_elements("css selector", ".controls select")
    score.send_keys("stable rank of OV")
    assert trace(page, "scores", "z") == [[2, 3, 4], [12, 13, 14]]
    head.send_keys("layer 0, head 2")
    until_said(page, "layer 0, head 2:")
    assert trace(page, "write", "y") == [2.0] * 5


def test_the_reading_names_the_planted_head(results):
    reading = " ".join(read_explore(results["explore"]))
    # other heads may move it more: a report names the kind and the head as other sections do
    told = "Of the heads of decoder cross-attention the forecast moves most without decoder.1.cross_attn.2: by 12 "
    assert reading.startswith(told)
    assert "It also writes most" in reading


def test_heads_of_which_none_leads_are_of_one_kind_as_well(results):
    ds = results["explore"]
    ds["mean_shift_leads"] = ds["mean_shift_leads"] & False
    reading = " ".join(read_explore(ds))
    assert reading.startswith("Of the heads of decoder cross-attention none stands out")
    assert "decoder.1.cross_attn.2 writes most: 12 " in reading


@pytest.mark.parametrize(("steps", "per"), [(1, ""), (4, " per step")])
def test_attention_spread_over_a_token_is_labelled_per_step(results, steps, per):
    ds = results["explore"]
    ds["attention"].attrs["token_steps"] = steps
    band = next(find("explore").draw_panels(ds)).figure.data[TRACES.index("attention")]
    assert band.colorbar.title.text == f"attention (%{per})"
    assert f"% of the head's attention{per}<" in band.hovertemplate


def test_a_long_context_is_drawn_in_wider_stripes(results):
    ds = results["explore"]
    times = 100
    longer = ds.drop_vars(["attention", "context", "context_timestamp", "time"]).assign(
        attention=(("layer", "head", "time"), ds["attention"].values.repeat(times, axis=-1) / times),
        context=(("series", "time"), ds["context"].values.repeat(times, axis=-1)),
    )
    longer = longer.assign_coords(time=range(-longer.sizes["time"], 0))
    fig = next(find("explore").draw_panels(longer)).figure
    states = fig.layout.meta["states"]
    for layer in range(2):
        for head in range(3):
            z = states["cells"][layer][head]["update"][str(TRACES.index("attention"))]["z"][0]
            assert len(z) <= 1024
            assert sum(z) == pytest.approx(75, rel=last_digit(3))
    assert len(fig.data[TRACES.index("attention")].x) == len(z) + 1
    assert "3 steps wide" in fig.layout.meta["subtitle"]
    assert fig.data[TRACES.index("attention")].colorbar.title.text == "attention (% per 3 steps)"


def test_the_states_of_a_large_model_are_a_fraction_of_the_page(results):
    ds: xr.Dataset = results["explore"]
    large = ds.isel(layer=[0, 1] * 6, head=[0, 1, 2] * 4)
    large = large.assign_coords(layer=[str(v) for v in range(12)], head=range(12))
    fig = next(find("explore").draw_panels(large)).figure
    assert len(json.dumps(fig.layout.meta["states"])) < 400_000
