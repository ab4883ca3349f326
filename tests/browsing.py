"""Pages: waiting for one, its parts as a parser has them, contrasts of its colours, and
a plotly figure as a browser holds it.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np

# seconds after which something is taken to hang
PATIENCE = 300
# of text on its ground, by WCAG 2.2, level AA
LEAST_CONTRAST = 4.5


def until(
    condition: Callable[[], Any], message: str | Callable[[], str], pause: float = 0.05
) -> Any:
    """Wait for a condition, and return its value."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, (
            message if isinstance(message, str) else message()
        )
        time.sleep(pause)
    return value


def until_ready(driver: Any) -> None:
    """Wait until the first screen of a report is drawn."""
    script = "return document.documentElement.dataset.ready"
    until(
        lambda: driver.execute_script(script) is not None,
        lambda: f"not drawn: {driver.get_log('browser')}",
    )


def until_drawn(driver: Any) -> None:
    """Open all that a report folds, and wait until every figure is drawn."""
    until_ready(driver)
    script = "document.querySelectorAll('details').forEach(each => each.open = true)"
    driver.execute_script(f"{script}; drawAll()")
    script = "return document.documentElement.dataset.whole"
    until(
        lambda: driver.execute_script(script) is not None,
        lambda: f"not drawn: {driver.get_log('browser')}",
    )


def press(driver: Any, element: Any) -> None:
    """Click an element in the middle of the window, at once though the page scrolls
    smoothly.
    """
    driver.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element
    )
    element.click()


def luminance(colour: str) -> float:
    """Relative luminance by WCAG of a colour as a browser computes it."""
    channels = np.array([float(each) for each in re.findall(r"[\d.]+", colour)[:3]])
    if colour.startswith("rgb"):
        channels /= 255
    low = channels / 12.92
    high = ((channels + 0.055) / 1.055) ** 2.4
    return float(np.where(channels <= 0.04045, low, high) @ [0.2126, 0.7152, 0.0722])


def contrast(text: str, ground: str) -> float:
    """Contrast by WCAG of two colours, 1 of equal ones to 21 of black on white."""
    dark, light = sorted([luminance(text), luminance(ground)])
    return (light + 0.05) / (dark + 0.05)


class Plot:
    """A figure of the page in a browser, by the expression that finds it; traces go by
    their names.
    """

    def __init__(self, driver: Any, expression: str, traces: list[str]) -> None:
        self.driver = driver
        self.traces = traces
        self._find = f"const plot = {expression}; "

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(self._find + script, *arguments)

    def trace(self, name: str, key: str) -> Any:
        """A property of a trace, lists for arrays."""
        script = "const value = plot._fullData[arguments[0]][arguments[1]];"
        script += "return ArrayBuffer.isView(value) ? Array.from(value) : value;"
        return self.run(script, self.traces.index(name), key)

    def _at(self, x: object, y: object) -> tuple[int, int]:
        """Place on the screen of a value of the first axes; y halfway up where it is
        None.
        """
        # at once, though the page scrolls smoothly: nobody can tell when that has ended
        self.run("plot.scrollIntoView({behavior: 'instant'})")
        left, top = self.run(
            "const box = plot.getBoundingClientRect(), {xaxis: x, yaxis: y} ="
            " plot._fullLayout;const down = arguments[1] === null ? y._length / 2 :"
            " y.d2p(arguments[1]);return [box.left + x._offset + x.d2p(arguments[0]),"
            " box.top + y._offset + down]",
            x,
            y,
        )
        return int(left), int(top)

    def drag(self, first: object, last: object) -> None:
        """Drag along the first x axis from a value to another."""
        from selenium.webdriver.common.action_chains import ActionChains

        actions = ActionChains(self.driver, duration=50)
        pointer = actions.w3c_actions.pointer_action
        pointer.move_to_location(*self._at(first, None)).pointer_down()
        pointer.move_to_location(*self._at(last, None)).pointer_up()
        actions.perform()


class Linked:
    """The linked view of heads, of a report or live."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def part(self, name: str) -> Any:
        return self.driver.find_element("css selector", f".linked [data-part={name}]")

    def text(self, name: str) -> str:
        return str(self.part(name).text)

    def words(self) -> str:
        """All that is said: the headline, below it, and below the panels."""
        texts = [self.text(name) for name in ("headline", "words", "more")]
        return " ".join(text for text in texts if text)

    def lines(self) -> list[str]:
        """What the lines of the forecast are, in order."""
        paths = self.part("forecast").find_elements("css selector", "path")
        return [path.get_attribute("class") for path in paths]

    def press(self, name: str) -> None:
        press(self.driver, self.part(name))

    def press_component(self, name: str, *, shift: bool = False) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        cell = self.driver.find_element(
            "css selector", f".linked [data-component='{name}']"
        )
        self.driver.execute_script(
            "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", cell
        )
        actions = ActionChains(self.driver, duration=30)
        if shift:
            actions = actions.key_down("\ue008").click(cell).key_up("\ue008")
        else:
            actions = actions.click(cell)
        actions.perform()

    def drag(self, first: float, last: float, steps: int) -> None:
        """Brush the context from a step to another, of so many."""
        from selenium.webdriver.common.action_chains import ActionChains

        svg = self.part("context").find_element("css selector", "svg")
        self.driver.execute_script(
            "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", svg
        )
        box = self.driver.execute_script(
            "return arguments[0].getBoundingClientRect()", svg
        )
        left, width = self.driver.execute_script(
            "const box = arguments[0].querySelector('.frame').getBoundingClientRect();"
            "return [box.left, box.width]",
            svg,
        )
        actions = ActionChains(self.driver, duration=30)
        pointer = actions.w3c_actions.pointer_action
        pointer.move_to_location(
            round(left + width * first / steps), round(box["top"] + 60)
        ).pointer_down()
        pointer.move_to_location(
            round(left + width * last / steps), round(box["top"] + 60)
        ).pointer_up()
        actions.perform()


class Page(HTMLParser):
    """Elements, texts and script contents of a page as a browser's parser delimits
    them.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._inside = ""
        self._script = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self._script = dict(attrs).get("id") or f"inline-{len(self.scripts)}"
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[self._script] += data
        elif self._inside != "style":
            self.text += data

    def unpacked(self, name: str) -> str:
        """Text of a script that is packed in the page."""
        return gzip.decompress(base64.b64decode(self.scripts[name])).decode()

    @property
    def specs(self) -> list[Any]:
        """Figures of a report, in order."""
        return [
            json.loads(self.unpacked(name))
            for name in self.scripts
            if name.endswith("-spec")
        ]

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for tag, attrs in self.tags if tag == name]

    @property
    def loads(self) -> list[str]:
        """Addresses that the page names."""
        return [
            attrs[key] or ""
            for _, attrs in self.tags
            for key in ("src", "href")
            if key in attrs
        ]
