"""Commands end with a line for errors made on purpose, and with a traceback for faults."""

from __future__ import annotations

import sys

import pytest
import typer

from tsfm_lens.errors import InputError
from tsfm_lens.training.command import run_command


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InputError("x=[1], expected 2"), "error: x=[1], expected 2"),
        (PermissionError(13, "No permission", "f.nc"), "error: f.nc: No permission"),
    ],
)
def test_errors_made_on_purpose_and_of_the_file_system_are_lines(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["command"])
    app = typer.Typer()
    app.command()(command)
    for one in (command, app):
        with pytest.raises(SystemExit) as end:
            run_command(one)
        assert end.value.code == 1
        assert capsys.readouterr().err.strip() == words


def test_faults_of_the_program_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def command() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(sys, "argv", ["command"])
    with pytest.raises(ZeroDivisionError):
        run_command(command)
