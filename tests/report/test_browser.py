"""The report in a real browser, offline."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from browsing import LEAST_CONTRAST, contrast, luminance, until_drawn

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def driver(new_browser):
    browser = new_browser(logs=("browser", "performance"))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def addresses(driver, evil_whole) -> list[str]:
    """Every address that was asked for until all figures of the page were drawn, in a
    wide window and light.
    """
    driver.set_window_size(1400, 900)
    driver.get(evil_whole.as_uri())
    until_drawn(driver)
    events = [
        json.loads(entry["message"])["message"]
        for entry in driver.get_log("performance")
    ]
    return [
        e["params"]["request"]["url"]
        for e in events
        if e["method"] == "Network.requestWillBeSent"
    ]


def test_plots_draw_without_error_or_network(driver, addresses, evil_whole, evil):
    """Every plot is drawn without an error and without the network."""
    assert driver.get_log("browser") == []
    figures = driver.execute_script("return document.querySelectorAll('figure').length")
    drawn = driver.execute_script(
        "return Array.from(document.querySelectorAll('figure')).filter(f =>"
        " f.querySelector('.main-svg') && f.querySelector('.subplot')).length"
    )
    assert drawn == figures > 50
    assert driver.execute_script("return window.hacked") is None
    assert addresses[0] == evil_whole.as_uri()
    assert all(a.startswith("data:") for a in addresses[1:])
    # a series id with markup shows letter by letter
    heading = driver.execute_script(
        "return document.querySelector('figure :is(h2, h3)').textContent"
    )
    assert evil in heading
    assert (
        driver.execute_script(
            "return document.querySelectorAll('[data-title*=\"Share\"]').length"
        )
        == 0
    )


# of every number in a map its text, size, colour, value and scale of colours
NUMBERS = """return plots.flatMap(plot => Array.from(
  plot.querySelectorAll(".heatmap-label text")).map(text => {
    const label = text.closest(".heatmap-label");
    const {trace} = text.closest(".hm").__data__[0];
    const scale = plot._fullLayout[trace.coloraxis];
    const {fill, fontSize} = getComputedStyle(text);
    return scale && {text: text.textContent, fill, size: parseFloat(fontSize),
      value: label.__data__.z, limits: [scale.cmin, scale.cmax],
      stops: scale.colorscale};
  })).filter(Boolean)"""


def channels(colour: str) -> list[float]:
    """Red, green and blue of a colour as plotly writes it, from 0 to 255."""
    if colour.startswith("#"):
        return [int(part, 16) for part in re.findall(r"\w\w", colour)]
    return [float(part) for part in re.findall(r"[\d.]+", colour)[:3]]


def cell_colour(number) -> str:
    """The colour of a cell by its value, as CSS writes it."""
    low, high = number["limits"]
    places, colours = zip(*number["stops"], strict=True)
    parts = np.transpose([channels(colour) for colour in colours])
    share = (number["value"] - low) / (high - low)
    red, green, blue = (np.interp(share, places, part) for part in parts)
    return f"rgb({red}, {green}, {blue})"


# of every map its scale of colours
SCALES = """return plots.flatMap(plot => Object.entries(plot._fullLayout).filter(
  ([name]) => name.startsWith("coloraxis")).map(([, axis]) => axis.colorscale))"""


@pytest.fixture(scope="module")
def light(driver, addresses):
    """Numbers and scales of the maps as they were drawn first."""
    return [driver.execute_script(script) for script in (NUMBERS, SCALES)]


@pytest.fixture(scope="module")
def dark(driver, light):
    """The same after all figures were drawn anew, on a dark phone."""
    driver.set_window_size(500, 900)
    driver.execute_script("document.documentElement.dataset.theme = 'dark'; redraw()")
    return [driver.execute_script(script) for script in (NUMBERS, SCALES)]


def test_phones_need_no_sideways_scrolling(driver, dark):
    """On a phone the page needs no sideways scrolling."""
    wide, seen = driver.execute_script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    assert wide <= seen == 500


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_in_maps_can_be_read(theme, request):
    """Numbers in maps are told from their cells, and none is tiny."""
    numbers = [each for each in request.getfixturevalue(theme)[0] if each["text"]]
    for number in numbers:
        ground = cell_colour(number)
        assert contrast(number["fill"], ground) >= LEAST_CONTRAST, number
        assert number["size"] >= 10, number
    if theme == "light":
        # dark and light cells are among those that have room for their numbers
        lights = [luminance(cell_colour(number)) for number in numbers]
        assert min(lights) < 0.1 < 0.6 < max(lights)


def test_maps_are_dark_on_dark_pages(light, dark):
    """What is next to nothing has the colour of the page in a map, light or dark."""
    whites = 0
    for bright, dim in zip(light[1], dark[1], strict=True):
        for (_, before), (_, after) in zip(bright, dim, strict=True):
            if luminance(f"rgb{(*channels(before),)}") > 0.99:
                whites += 1
                assert luminance(f"rgb{(*channels(after),)}") < 0.02
    assert whites > 10
