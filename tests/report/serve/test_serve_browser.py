"""The local page in a real browser: by keyboard, offline, and nothing left running."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from browsing import PATIENCE, Linked, Plot, until
from tsfm_lens import load
from tsfm_lens.data import bundled, read_series
from tsfm_lens.models import Run
from tsfm_lens.testing import assert_close

pytest.importorskip("voila")

from tsfm_lens.report.explore import brush
from tsfm_lens.report.explore.widget import WITHOUT, Brush

pytestmark = pytest.mark.browser


@pytest.fixture
def served(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    folder = tmp_path_factory.mktemp("served")
    folders = {
        name: str(folder / name)
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    command = [
        sys.executable,
        "-m",
        "tsfm_lens",
        "serve",
        "--data",
        "bundled:nile",
        "--horizon",
        "8",
    ]
    command += ["--no-browser", "--port", "18866", "--json"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **folders, "OMP_NUM_THREADS": "1"},
            # as a shell does to what it starts in the background
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
        )
    assert server.stdout is not None
    yield server, json.loads(server.stdout.readline())["page"]
    server.kill()


FORECAST = "document.querySelector('.js-plotly-plot')"


def text(driver: Any) -> str:
    return str(driver.find_element("css selector", "body").text)


def drag_everywhere(driver: Any, view: Brush) -> None:
    """Every drag has its answer: over the past, from within what was dragged over
    before, beside the past, and back.
    """
    plot = Plot(driver, FORECAST, [trace.name for trace in view.figure.data])
    assert plot.trace(WITHOUT, "visible") is False
    year = view.run.batch.starts[0].year
    past = len(view.run.batch.values[0])
    for first, last in ((20, 40), (30, 55), (50, 36), (past + 1, past + 4), (60, 70)):
        plot.drag(f"{year + first}-07-01", f"{year + last}-07-01")
        message = "no step of the past lies there"
        if first < past:
            view.mark(min(first, last) + 1 - past, max(first, last) + 1 - past)
            message = unescape(view.words.value)
        until(lambda message=message: message in text(driver), message)
        assert_close(plot.trace(WITHOUT, "y"), view.without, depth=4, dtype=np.float32)


def without(run: Run, *heads: str) -> np.ndarray:
    """The median without heads, (step,)."""
    with run.lens.ablate(*heads):
        return run.lens.forecast(run.batch, run.horizon).median[0]


def wait_for_effect(linked: Linked, subject: str, run: Run, median: np.ndarray) -> None:
    """Wait until the view says by how much a median differs from the forecast, and both
    from the truth.
    """
    pairs = (
        (median, run.forecast.median[0]),
        (run.forecast.median[0], run.truth[0]),
        (median, run.truth[0]),
    )
    shift, *errors = (
        f"{float(f'{np.abs(one - other).mean():.3g}'):g}" for one, other in pairs
    )
    shifts = median - run.forecast.median[0]
    ways = f"up at {(shifts > 0).sum()} of {len(median)} steps"
    if (shifts < 0).any():
        ways += f" and down at {(shifts < 0).sum()}"
    change = (
        f"moves by {shift} on average, {ways} (mean absolute error {errors[0]} →"
        f" {errors[1]})."
    )
    until(
        lambda: f"{subject} the median {change}" in linked.words(),
        lambda: f"{change} not in {linked.words()}",
    )


@pytest.mark.campaign
def test_keyboard_works_offline_and_processes_end(
    served: tuple[subprocess.Popen[str], str],
    new_browser: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """The page works by keyboard and offline, and nothing is left running."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    server, address = served
    assert address.startswith("http://127.0.0.1:")
    driver = new_browser("--window-size=1300,1400")
    driver.set_page_load_timeout(PATIENCE)
    process = psutil.Process(server.pid)

    def status() -> str:
        return str(
            driver.execute_script(
                "return document.querySelector('.tsfm-lens-status')?.textContent ?? ''"
            )
        )

    try:
        # without the token of the address nobody gets a page, and no kernel starts
        driver.get(address.split("?")[0])
        until(
            lambda: (
                "with the token" in driver.find_element("css selector", "body").text
            ),
            "no refusal",
        )
        assert not process.children(recursive=True)
        driver.get(address)
        until(lambda: "bolt-nano on nile, 8 steps" in status(), "no first forecast")
        # a page that is loaded anew takes its kernel with it
        (old,) = process.children(recursive=True)
        driver.refresh()
        until(lambda: not old.is_running(), "the kernel of a closed page goes on")
        until(
            lambda: "bolt-nano on nile, 8 steps" in status(),
            "no forecast after loading anew",
        )
        until(
            lambda: driver.find_elements(
                "css selector", ".js-plotly-plot .scatterlayer"
            ),
            "no figure",
        )
        run = load("bolt-nano").run(bundled("nile"), 8, holdout=True)
        drag_everywhere(driver, brush(run))

        # a file is forecast as soon as it is there
        file = tmp_path / "waves.csv"
        file.write_text(
            "day,level\n"
            + "\n".join(f"2024-01-{d:02d},{d % 7}" for d in range(1, 32))
            + "\n"
        )
        driver.find_element("css selector", ".tsfm-lens-drop input").send_keys(
            str(file)
        )
        until(
            lambda: "bolt-nano on level, 8 steps." in status(),
            "no forecast of the file",
        )
        run = load("bolt-nano").run(read_series(file), 8, holdout=True)
        plot = Plot(driver, FORECAST, [trace.name for trace in brush(run).figure.data])
        until(
            lambda: plot.run("return plot?._fullLayout?.xaxis?.type === 'date'"),
            "the old figure stays",
        )
        assert_close(
            plot.trace("median forecast", "y"),
            run.forecast.median[0],
            depth=4,
            dtype=np.float32,
        )
        steps = driver.find_element("css selector", "input[type=number]")
        steps.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
        until(
            lambda: (
                "Press Forecast. The page still shows bolt-nano on level, 8" in status()
            ),
            "no word of waiting",
        )

        driver.execute_script("document.querySelector('.tsfm-lens-drop input').focus()")
        # by the tab key from the file to the button, and the space bar on it
        seen = []
        for _ in range(30):
            ActionChains(driver).send_keys(Keys.TAB).perform()
            seen.append(
                driver.execute_script(
                    "return document.activeElement.textContent.trim()"
                )
            )
            if seen[-1] == "Forecast":
                break
        assert seen[-1] == "Forecast", seen
        ActionChains(driver).send_keys(Keys.SPACE).perform()
        until(
            lambda: "bolt-nano on level, 6 steps" in status(), "no forecast of the file"
        )
        run = run.lens.run(read_series(file), 6, holdout=True)

        # a click shows another head
        next(
            tab
            for tab in driver.find_elements("css selector", "[role=tab]")
            if tab.text == "Heads"
        ).click()
        until(
            lambda: driver.find_elements("css selector", ".linked .cell"),
            "no view of heads",
        )
        linked = Linked(driver)
        linked.press_component("decoder.1.cross_attn.1")
        wait_for_effect(
            linked,
            "Without it",
            run,
            without(run, "decoder.1.cross_attn.1"),
        )

        # whatever the page loaded came from this machine
        hosts = driver.execute_script(
            "return performance.getEntriesByType('resource').filter(e =>"
            " e.responseStatus).map(e => new URL(e.name).host)"
        )
        assert {host for host in hosts if host} <= {re.split("[/?]", address)[2]}
        # an open page ends with the server
        kernels = process.children(recursive=True)
        assert kernels
        server.send_signal(signal.SIGINT)
        server.wait(PATIENCE)
        until(
            lambda: not any(kernel.is_running() for kernel in kernels),
            "a kernel goes on",
        )
    finally:
        driver.quit()


@pytest.mark.campaign
def test_file_limits_and_lost_connections_show(
    served: tuple[subprocess.Popen[str], str],
    new_browser: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """A large file is read, a larger one refused, a lost connection shown."""
    server, address = served
    driver = new_browser("--window-size=1300,1000")
    driver.set_page_load_timeout(PATIENCE)

    def read_text(selector: str) -> str:
        return str(
            driver.execute_script(
                f"return document.querySelector('{selector}')?.textContent ?? ''"
            )
        )

    def drop(name: str, size: int) -> None:
        """Drop a file of daily values, as large as notes in its rows make it."""
        days = pd.date_range("2024-01-01", periods=150).strftime("%Y-%m-%d")
        rows = [f"{day},{number % 7}," for number, day in enumerate(days)]
        driver.execute_script(
            "const zone = document.querySelector('.tsfm-lens-drop');"
            "const data = new DataTransfer();"
            "const note = 'x'.repeat(arguments[1]);"
            "const rows = arguments[2].map(row => row + note + '\\n');"
            "data.items.add(new File(['day,level,note\\n', ...rows], arguments[0]));"
            "const options = {dataTransfer: data, bubbles: true, cancelable: true};"
            "zone.dispatchEvent(new DragEvent('drop', options))",
            name, size // len(rows) + 1, rows,
        )  # fmt: skip

    try:
        driver.get(address)
        until(lambda: "steps." in read_text(".tsfm-lens-status"), "no first forecast")
        limit = (
            int(re.search(r"up to (\d+) MiB", read_text(".tsfm-lens-drop span"))[1])
            * 2**20
        )
        drop("huge.csv", limit)
        until(
            lambda: "huge.csv has 100.0 MiB" in read_text(".tsfm-lens-refusal"),
            "no refusal",
        )
        assert read_text(".tsfm-lens-lost") == ""
        # more than a server of Jupyter takes by itself
        drop("large.csv", 12 * 2**20)
        until(
            lambda: "bolt-nano on level, 8 steps." in read_text(".tsfm-lens-status"),
            lambda: read_text(".tsfm-lens-status"),
        )
        assert read_text(".tsfm-lens-refusal") == ""
        assert read_text(".tsfm-lens-lost") == ""
        server.send_signal(signal.SIGTERM)
        server.wait(PATIENCE)
        until(
            lambda: "lost" in read_text(".tsfm-lens-lost"),
            "no word of the lost connection",
        )
    finally:
        driver.quit()
