"""Commands end with one line for errors of use, and with a traceback for faults."""

from __future__ import annotations

import sys

import pytest
import typer

from tsfm_lens.core.errors import InputError
from tsfm_lens.training.command import run_command


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (InputError("x=[1], expected 2"), SystemExit, "error: x=[1], expected 2"),
        (
            PermissionError(13, "No permission", "f.nc"),
            SystemExit,
            "error: f.nc: No permission",
        ),
        (ZeroDivisionError(), ZeroDivisionError, ""),
    ],
)
def test_only_faults_show_a_traceback(
    error: Exception,
    raised: type,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Errors of use and of the file system are one line; faults have a traceback."""

    def command() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["command"])
    app = typer.Typer()
    app.command()(command)
    for one in (command, app):
        with pytest.raises(raised) as end:
            run_command(one)
        assert getattr(end.value, "code", 1) == 1
        assert capsys.readouterr().err.strip() == message
