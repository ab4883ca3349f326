"""Shared by all tests: one torch thread a worker unless OMP_NUM_THREADS says more, and
seeded generators.
"""

from __future__ import annotations

import os

# read by torch and BLAS when they are first imported
os.environ.setdefault("OMP_NUM_THREADS", "1")
# twins take most of the time of a report; tests that are about them ask for some
os.environ.setdefault("TSFM_LENS_TWINS", "0")

import gc
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

# seconds after which a browser is taken to hang
BROWSER_PATIENCE = 300

# jsonschema, which plotly imports where Jupyter is installed, spends a second on a
# grammar in every process, unless the module of it cannot be imported
LIGHTER = str(Path(__file__).parent / "lighter")
sys.path.insert(0, LIGHTER)
PATH = os.environ.get("PYTHONPATH", "")
os.environ["PYTHONPATH"] = f"{LIGHTER}{os.pathsep}{PATH}".rstrip(os.pathsep)

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of the garbage collections to come, each of
    which would go through all of it, in vain.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random numbers in every test, whatever ran before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def new_browser() -> Callable[..., Any]:
    """Starts a headless Chromium, by flags of its own and with the logs asked for;
    skips where there is none.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium = shutil.which("chromium")
    chromedriver = shutil.which("chromedriver")
    if not (chromium and chromedriver):
        pytest.skip("no chromium and chromedriver on the path")

    def start(*flags: str, logs: tuple[str, ...] = ("browser",)) -> Any:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            *flags,
        ):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", dict.fromkeys(logs, "ALL"))
        browser = webdriver.Chrome(
            options=options, service=webdriver.ChromeService(chromedriver)
        )
        # a page that is slow to draw on a busy machine does not hang
        browser.command_executor.client_config.timeout = 2 * BROWSER_PATIENCE
        browser.set_page_load_timeout(BROWSER_PATIENCE)
        browser.set_script_timeout(BROWSER_PATIENCE)
        return browser

    return start
