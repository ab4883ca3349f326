"""Commands tell what is wrong with their arguments in a line, without a traceback."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import typer

from tsfm_lens.errors import CheckpointError, InputError
from tsfm_lens.studies.recipes.corpus import arrays_of
from tsfm_lens.training.command import run_command

STUDY, PLACES = "studies.recipes", {"planted": "zoo"}


def told(argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Exit code and stderr of ``python -m argv[0] argv[1:]``."""
    monkeypatch.setattr(sys, "argv", argv)
    with warnings.catch_warnings():
        # the module was imported by others before it is run
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(SystemExit) as end:
            runpy.run_module(argv[0], run_name="__main__")
    return int(end.value.code or 0), " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["train", "chronos-nan", "--out", "OUT", "--real", "TEXT"], 1, "Closest: chronos-nano"),
        (["train", "chronos-nano", "--out", "OUT", "--real", "TEXT", "--steps", "0"], 2, "greater than or equal to 1"),
        (["train", "chronos-nano", "--out", "OUT", "--real", "NONE"], 2, "does not exist"),
        (["train", "chronos-nano", "--out", "TEXT", "--real", "TEXT"], 2, "is a file"),
        (["train", "chronos-nano", "--out", "OUT", "--real", "TEXT"], 1, "holds no series"),
        (["lowrank", "--out", "OUT", "--seeds", "0"], 2, "greater than or equal to 1"),
        (["lowrank", "--out", "TEXT"], 2, "is a file"),
        (["history", "NONE", "--out", "OUT.nc"], 1, "NONE"),
        (["evaluate", "NONE"], 2, "does not exist"),
        (["evaluate", ".", "--horizon", "0"], 2, "greater than or equal to 1"),
        (["evaluate", "."], 1, "it has no *.safetensors file (found: TEXT)"),
        (["train", "chronos-nano", "--out", "TEXT/run", "--real", "TEXT"], 1, "TEXT is a file"),
        (["levels", "--out", "TEXT/run"], 1, "TEXT is a file"),
        (["planted", "local-mean", "chronos", "--out", "TEXT/run"], 1, "TEXT is a file"),
        (["planted", "local-mean", "chronos", "--out", "OUT", "--seed", "-1"], 2, "greater than or equal to 0"),
        (["planted", "local-men", "chronos", "--out", "OUT"], 1, "local-mean in chronos"),
    ],
)
def test_the_zoos_commands_say_what_is_wrong(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "TEXT").write_text("no series")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    found, said = told(
        [f"tsfm_lens.{PLACES.get(arguments[0], STUDY)}.{arguments[0]}", *arguments[1:]], capsys, monkeypatch
    )
    assert found == code, said
    assert words in said
    assert "Traceback" not in said


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


def test_files_that_hold_no_series_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    np.save(tmp_path / "one.npy", np.zeros(3))
    for name in ("empty.npz", "cut.npz", "one.npy", "none.npz"):
        with pytest.raises(CheckpointError, match=name), arrays_of(tmp_path / name):
            pass
