"""The report in a real browser, offline."""

from __future__ import annotations

import json

import pytest

from browsing import until_drawn

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


def test_plots_draw_without_error_or_network(driver, evil_whole, evil, counts):
    """Every plot is drawn without an error and without the network."""
    addresses = opened(driver, evil_whole)
    assert driver.get_log("browser") == []
    figures = driver.execute_script("return document.querySelectorAll('figure').length")
    drawn = driver.execute_script(
        "return Array.from(document.querySelectorAll('figure')).filter(f =>"
        " f.querySelector('.main-svg') && f.querySelector('.subplot')).length"
    )
    assert drawn == figures == sum(counts.values())
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


def test_phones_need_no_sideways_scrolling(driver, evil_whole):
    """On a phone the page needs no sideways scrolling."""
    opened(driver, evil_whole, width=500)
    wide, seen = driver.execute_script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    assert wide <= seen
