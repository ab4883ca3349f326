"""The display of long work in Python."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from tsfm_lens.core import console as console_module
from tsfm_lens.core import progress as progress_module
from tsfm_lens.core import registry
from tsfm_lens.core.progress import DelayedProgress
from tsfm_lens.core.registry import probe


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A terminal that keeps what is written to it, on which nothing is delayed."""
    kept = Console(force_terminal=True, record=True, width=100)
    monkeypatch.setattr(console_module, "console", lambda **_: kept)
    monkeypatch.setattr(progress_module, "_DELAY", -1.0)
    return kept


def test_long_work_is_shown(terminal: Console, capsys: Any) -> None:
    with DelayedProgress("Inputs") as shown:
        shown(1, 4)
        shown(4, 4)
    assert "Inputs" in capsys.readouterr().out


def test_steps_have_bars_of_their_names(terminal: Console, capsys: Any) -> None:
    with DelayedProgress() as shown:
        shown("forecast", 1, 2)
        shown("routes", 1, 3)
    text = capsys.readouterr().out
    assert "forecast" in text
    assert "routes" in text


def test_quick_work_leaves_no_trace(
    terminal: Console, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "_DELAY", 1e9)
    with DelayedProgress("Inputs") as shown:
        shown(1, 1)
    assert capsys.readouterr().out == ""


def test_displays_do_not_collide(terminal: Console) -> None:
    """Work inside of a display of the command line goes on without one."""
    with console_module.progress() as outer:
        outer.add_task("sweep", total=2)
        with DelayedProgress("Inputs") as shown:
            shown(1, 2)


def test_probes_report_progress_by_themselves(
    terminal: Console, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback of the caller takes the place of the display."""
    # what is declared here is forgotten afterwards
    monkeypatch.setattr(registry, "_MEASUREMENTS", dict(registry._MEASUREMENTS))

    @probe(title="Slow measurement", theme="Activations")
    def slow_measurement(run: Any, *, progress: Any = None) -> Any:
        progress(1, 2)
        raise ValueError("enough")

    for own, expected in (({}, True), ({"progress": lambda *_: None}, False)):
        with pytest.raises(ValueError, match="enough"):
            slow_measurement(None, **own)
        assert ("Slow measurement" in capsys.readouterr().out) is expected
