"""Shared by all tests: one torch thread a worker unless OMP_NUM_THREADS says more, and
seeded generators.
"""

from __future__ import annotations

import os

# read by torch and BLAS when they are first imported
os.environ.setdefault("OMP_NUM_THREADS", "1")
# twins take most of the time of a report; tests that are about them ask for some
os.environ.setdefault("TSFM_LENS_TWINS", "0")

import copy
import gc
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch

if TYPE_CHECKING:
    from tsfm_lens.models import Lens

# what is compiled of package and tests is kept for all processes that tests start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# the imports to come make hardly any garbage, and looking for it takes a quarter of
# their time
gc.disable()
# objects that are made before garbage is looked for: about those of one figure
YOUNG_OBJECTS = 50_000
# the folder whose conftest is this one, of all tests
SHARED = Path(__file__).parent
# seconds after which a browser is taken to hang
BROWSER_PATIENCE = 300

# jsonschema, which plotly imports where Jupyter is installed, spends a second on a
# grammar in every process, unless the module of it cannot be imported; all processes
# look for garbage rarely
LIGHTER = str(Path(__file__).parent / "lighter")
sys.path.insert(0, LIGHTER)
PATH = os.environ.get("PYTHONPATH", "")
os.environ["PYTHONPATH"] = f"{LIGHTER}{os.pathsep}{PATH}".rstrip(os.pathsep)

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of the garbage collections to come, each of
    which would go through all of it, in vain, as one here would; most objects of
    figures and tables end before a rare collection looks at them.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a folder with shared fixtures to one worker, and so all notebooks, which
    share a kernel; other tests go by their file.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class SharedScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = config.rootpath / super()._split_scope(nodeid)
            if file.name.startswith("test_example"):
                return "notebooks"
            if file.parent != SHARED and (file.parent / "conftest.py").exists():
                return str(file.parent)
            return str(file)

    return SharedScheduling(config, log)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random numbers in every test, whatever ran before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    # torch.manual_seed notes the whole stack for each kind of device that is not in use
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(scope="session", autouse=True)
def open_embedded_models_once() -> Iterator[Callable[..., Any]]:
    """Read and check each embedded model once a worker; whoever loads it again gets a
    copy of its own. Gives the function that reads.
    """
    from tsfm_lens.core.embedded import checkpoint_names
    from tsfm_lens.models import Lens, opening

    read = opening._open
    check = Lens.quick_check
    lenses: dict[Any, Lens] = {}
    results: dict[Any, Any] = {}
    # copies that load has not checked yet
    copies: WeakKeyDictionary[Lens, Any] = WeakKeyDictionary()

    def open_copy(
        files: Any, adapter: Any, model_id: str, commit: Any, dtype: Any, device: str
    ) -> Lens:
        key = (model_id, dtype, device)
        if adapter is not None or model_id not in checkpoint_names():
            return read(files, adapter, model_id, commit, dtype, device)
        if key not in lenses:
            lenses[key] = read(files, adapter, model_id, commit, dtype, device)
        lens = copy.deepcopy(lenses[key])
        copies[lens] = key
        return lens

    def check_once(lens: Lens) -> Any:
        key = copies.pop(lens, None)
        if key is None:
            return check(lens)
        if key not in results:
            results[key] = check(lens)
        return results[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "_open", open_copy)
        patch.setattr(Lens, "quick_check", check_once)
        yield read


@pytest.fixture
def read_models_anew(
    open_embedded_models_once: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every load reads the files, for tests of what happens then."""
    monkeypatch.setattr("tsfm_lens.models.opening._open", open_embedded_models_once)


@pytest.fixture
def models_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that times models does so once, on a short series."""
    from tsfm_lens import compress

    briefly = partial(compress.cost, shapes=[(1, 64)], rounds=1)
    monkeypatch.setattr(compress, "cost", briefly)


@pytest.fixture
def inputs_explained_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explanation has its first section, as all are computed in tests/explain."""
    from tsfm_lens.report import explanation

    first = partial(explanation.explain, sections=explanation.SECTIONS[:1])
    monkeypatch.setattr(explanation, "explain", first)


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
