"""The report in a real browser, offline."""

from __future__ import annotations

import json
import time

import pytest

# seconds after which something is taken to hang
PATIENCE = 300

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def driver(new_browser):
    browser = new_browser(logs=("browser", "performance"))
    yield browser
    browser.quit()


def opened(driver, path, width: int = 1280) -> list[str]:
    """Open the file, wait until all is drawn; every address asked for."""
    driver.get_log("performance")
    driver.set_window_size(width, 900)
    driver.get(path.as_uri())
    end = time.monotonic() + PATIENCE
    while driver.execute_script("return document.documentElement.dataset.drawn") is None:
        assert time.monotonic() < end, f"not drawn; console: {driver.get_log('browser')}"
        time.sleep(0.1)
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def test_every_plot_is_drawn_without_error_or_network(driver, evil_whole, evil, counts):
    addresses = opened(driver, evil_whole)
    assert driver.get_log("browser") == []
    figures = driver.execute_script("return document.querySelectorAll('figure').length")
    drawn = driver.execute_script(
        "return Array.from(document.querySelectorAll('figure'))"
        ".filter(f => f.querySelector('.main-svg') && f.querySelector('.subplot')).length"
    )
    assert drawn == figures == sum(counts.values())
    assert driver.execute_script("return window.hacked") is None
    assert addresses[0] == evil_whole.as_uri()
    assert all(a.startswith("data:") for a in addresses[1:])
    # a series id with markup shows letter by letter
    heading = driver.execute_script("return document.querySelector('h3').textContent")
    assert evil in heading
    assert driver.execute_script("return document.querySelectorAll('[data-title*=\"Share\"]').length") == 0


def test_a_phone_needs_no_sideways_scrolling_of_the_page(driver, whole):
    opened(driver, whole, width=500)
    wide, seen = driver.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= seen


# corners of what is written, and by how many pixels two such rectangles, turned or not, lie on each other
_FAULTS = """
function corners(text) {
  const box = text.getBBox(), m = text.getScreenCTM();
  return [[0, 0], [1, 0], [1, 1], [0, 1]].map(([i, j]) => [box.x + i * box.width, box.y + j * box.height])
    .map(([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]);
}
function depth(one, other) {
  let least = Infinity;
  for (const from of [one, other]) for (let i = 0; i < 2; i++) {
    const dx = from[i + 1][0] - from[i][0], dy = from[i + 1][1] - from[i][1], size = Math.hypot(dx, dy);
    if (!size) return 0;
    const [a, b] = [one, other].map(all => all.map(([x, y]) => (x * dx + y * dy) / size));
    least = Math.min(least, Math.min(Math.max(...a), Math.max(...b)) - Math.max(Math.min(...a), Math.min(...b)));
  }
  return least;
}
function faults(plot) {
  const frame = plot.querySelector(".main-svg").getBoundingClientRect(), found = [];
  const shown = text => text.textContent.trim() && !text.closest(".hoverlayer, defs, .modebar")
    && getComputedStyle(text).visibility !== "hidden" && text.getBoundingClientRect().width > 0;
  const texts = [...plot.querySelectorAll("text")].filter(shown)
    .map(text => [text.textContent, corners(text), parseFloat(getComputedStyle(text).fontSize)]);
  texts.forEach(([text, at, size], i) => {
    const xs = at.map(corner => corner[0]), ys = at.map(corner => corner[1]);
    const beyond = Math.max(
      frame.left - Math.min(...xs), Math.max(...xs) - frame.right,
      frame.top - Math.min(...ys), Math.max(...ys) - frame.bottom);
    // a box holds room for accents and tails that few letters have
    if (beyond > 0.25 * size) found.push(`cut: ${text}`);
    for (const [other, there, its] of texts.slice(i + 1))
      if (depth(at, there) > 0.35 * Math.min(size, its)) found.push(`overlap: ${text} | ${other}`);
  });
  return found.map(words => `${plot.closest("figure").querySelector("h3").textContent}: ${words}`);
}
"""


@pytest.mark.parametrize("width", [1280, 500])
def test_no_text_of_a_figure_overlaps_another_or_is_cut(driver, whole, width):
    opened(driver, whole, width=width)
    assert driver.execute_script(_FAULTS + "return [...document.querySelectorAll('.plot')].flatMap(faults)") == []


def test_overlapping_and_cut_text_is_seen(driver, whole):
    opened(driver, whole)
    # one text moved onto another, and one out of its figure
    seen = driver.execute_script(
        _FAULTS
        + "const plot = document.querySelector('.plot'), [one, other] = plot.querySelectorAll('.xtick text');"
        + "one.setAttribute('x', other.getAttribute('x')); one.setAttribute('transform', '');"
        + "plot.querySelector('.ytitle').setAttribute('transform', 'translate(-500, 0)'); return faults(plot);"
    )
    assert any("overlap" in each for each in seen)
    assert any("cut" in each for each in seen)
