"""The local page without its browser: what is chosen, what is shown, what an error
leaves.
"""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

pytest.importorskip("anywidget")
pytest.importorskip("ipywidgets")

from tsfm_lens.report.serve.page import Page
from tsfm_lens.report.serve.server import _free, _notebook, _settings


def status_text(page: Page) -> str:
    return unescape(re.sub("<[^>]*>", "", page.status.value))


@pytest.fixture(scope="module")
def page() -> Page:
    return Page("bolt-nano", ["bundled:nile"], {}, {"horizon": 8, "seed": 3})


@pytest.fixture
def loads(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    hours = pd.date_range("2024-01-01", periods=200, freq="h")
    warm = rng.normal(size=200)
    path = tmp_path / "loads.csv"
    pd.DataFrame({"hour": hours, "load": 3 * warm + 10, "warm": warm}).to_csv(
        path, index=False
    )
    return path


def drop(page: Page, path: Path) -> None:
    """As the browser does it: name and content, then the count."""
    page.file.name = path.name
    page.file.content = memoryview(path.read_bytes())
    page.file.count += 1


def test_the_page_opens_with_a_forecast(page: Page) -> None:
    assert status_text(page) == "bolt-nano on nile, 8 steps."
    assert page.run is not None
    assert (page.run.horizon, page.run.seed, page.run.batch.ids) == (8, 3, ("nile",))
    assert page.shown == [True, False, False]


def test_dropped_file_is_forecast_at_once(page: Page, loads: Path) -> None:
    """A dropped file is forecast at once, and its columns are offered."""
    drop(page, loads)
    assert status_text(page).startswith(
        "bolt-nano on load, 8 steps. 2 series were read; choose one in the menu."
    )
    assert "Column 'hour' is read as the timestamps" in status_text(page)
    assert page.run is not None
    assert page.run.batch.ids == ("load",)
    assert list(page.columns.menus["known"].options) == ["hour", "load", "warm"]
    # what cannot be forecast leaves no forecast of another file to be seen
    page.columns.menus["targets"].value = ("load",)
    page.columns.menus["past"].value = ("warm",)
    assert status_text(page).startswith(
        "chronos-bolt takes no past covariates, such as "
    )
    assert (page.run, page.tabs.children[0].children) == (None, ())
    page.model.value = "chronos2-nano"
    assert status_text(page) == "Press Forecast."
    assert page.batch is not None
    assert page.batch.roles == ("target", "past")
    page.go.click()
    assert status_text(page).startswith(
        "chronos2-nano on load, 8 steps. Column 'hour' is"
    )
    assert page.run is not None
    assert page.run.batch.ids[0].endswith("load")
    page.tabs.selected_index = 1
    text, view = page.tabs.children[1].children
    assert "alone" in text.value
    assert view.run.batch.ids == page.run.batch.ids[:1]
    page.tabs.selected_index = 0
    page.bundled.value = "nile"
    assert status_text(page) == "chronos2-nano on nile, 8 steps."
    page.model.value = "bolt-nano"
    assert (
        status_text(page)
        == "Press Forecast. The page still shows chronos2-nano on nile, 8 steps."
    )
    assert page.columns.layout.display == "none"
    page.go.click()
    assert status_text(page) == "bolt-nano on nile, 8 steps."


def test_tabs_are_filled_when_opened(page: Page) -> None:
    """Tabs are filled when they are looked at."""
    page.go.click()
    page.tabs.selected_index = 1
    (view,) = page.tabs.children[1].children
    view.ablate("decoder.0.cross_attn.0")
    # of all components of the stack, whose self-attention comes first
    assert view.reply["ablated"] == [4]
    page.tabs.selected_index = 2
    visible = page.tabs.children[2].children
    assert page.shown == [True, True, True]
    figures = [item for item in visible if isinstance(item, go.FigureWidget)]
    headings = [item.value for item in visible if "<h2" in getattr(item, "value", "")]
    assert len(figures) >= 5
    assert any("Inputs" in heading for heading in headings)
    # the reason that a univariate model has no section on covariates
    assert any("is left out" in getattr(item, "value", "") for item in visible)
    # a new forecast empties what was of the old one
    page.tabs.selected_index = 0
    page.go.click()
    assert page.shown == [True, False, False]
    assert page.tabs.children[2].children == ()


def test_errors_leave_the_page_unchanged(page: Page, tmp_path: Path) -> None:
    """An error is reported and leaves the page as it was."""
    before = page.run
    series = page.batch
    page.model.value = "no-such-model"
    page.go.click()
    assert "no checkpoint 'no-such-model'" in status_text(page)
    assert status_text(page).endswith(
        "The page still shows bolt-nano on nile, 8 steps."
    )
    page.model.value = "bolt-nano"
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,x\n2,y,z\n")
    drop(page, wrong)
    assert "color:#a1260d" in page.status.value
    assert (page.run, page.batch) == (before, series)
    assert not page.go.disabled
    # a fault of the page itself is not silent either
    page.series.options = ["nobody"]
    page.go.click()
    assert "color:#a1260d" in page.status.value


def test_server_listens_on_this_machine_only(tmp_path: Path) -> None:
    """The server listens on this machine alone and runs the model it was given."""
    import nbformat

    port = _free(20_000)
    settings = _settings(port, "secret", browser=False)
    assert settings.Voila.ip == "127.0.0.1"
    assert settings.Voila.token == "secret"
    policy = settings.Voila.tornado_settings["headers"]["Content-Security-Policy"]
    assert set(re.findall(r"(?:https?|wss?)://\S+?(?=[; ])", policy)) == {
        f"ws://127.0.0.1:{port}"
    }
    given = {
        "model": "bolt-nano",
        "sources": ['a "quoted" \\ name.csv'],
        "reading": {"known": None},
        "options": {},
    }
    _, cell = nbformat.read(_notebook(tmp_path, given), 4).cells
    opened: list[dict[str, object]] = []
    line = cell.source.splitlines()[-1]
    eval(
        line,
        {
            "json": __import__("json"),
            "Page": lambda **arguments: opened.append(arguments),
        },
    )
    assert opened == [given]
