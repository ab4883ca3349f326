"""Commands name an error in one line before they draw series, and keep old runs."""

from __future__ import annotations

import runpy
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest

from refusals import expect_error
from tsfm_lens.studies.recipes import train
from tsfm_lens.studies.recipes.recipe import TrainingRecipe
from tsfm_lens.studies.recipes.train import main
from tsfm_lens.training.series_source import Corpus
from tsfm_lens.training.state import STATE

STUDY = "studies.recipes"
PLACES = {"planted": "zoo"}


def run_command(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    """Exit code and stderr of ``python -m argv[0] argv[1:]``."""
    monkeypatch.setattr(sys, "argv", argv)
    with warnings.catch_warnings():
        # the module was imported by others before it is run
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(SystemExit) as end:
            runpy.run_module(argv[0], run_name="__main__")
    return int(end.value.code or 0), " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["train", "chronos-nan", "--out", "OUT", "--real", "TEXT"],
            1,
            "Closest: chronos-nano",
        ),
        (
            ["train", "chronos-nano", "--out", "OUT", "--real", "TEXT"],
            1,
            "holds no series",
        ),
        (["lowrank", "--out", "OUT", "--seeds", "0"], 2, "greater than or equal to 1"),
        (["history", "NONE", "--out", "OUT.nc"], 1, "NONE"),
        (["evaluate", "."], 1, "(found: TEXT)"),
        (
            ["train", "chronos-nano", "--out", "TEXT/run", "--real", "TEXT"],
            1,
            "TEXT is a file",
        ),
        (["lowrank", "--out", "TEXT/run"], 1, "TEXT is a file"),
        (
            ["planted", "local-mean", "chronos", "--out", "TEXT/run"],
            1,
            "TEXT is a file",
        ),
        (
            ["planted", "local-men", "chronos", "--out", "OUT"],
            1,
            "local-mean in chronos",
        ),
    ],
)
def test_commands_say_what_is_wrong(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "TEXT").write_text("no series")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    found, messages = run_command(
        [f"tsfm_lens.{PLACES.get(arguments[0], STUDY)}.{arguments[0]}", *arguments[1:]],
        capsys,
        monkeypatch,
    )
    assert found == code, messages
    assert message in messages
    assert "Traceback" not in messages


def undrawn(*_args: object, **_options: object) -> Corpus:
    raise AssertionError("the series were drawn")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def command(
    token_recipe: TrainingRecipe,
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> partial[None]:
    """The command on a tiny recipe; --out is the folder "run"."""
    monkeypatch.setattr(train, "find_recipe", lambda name: token_recipe)
    monkeypatch.setattr(train, "load_corpus", lambda *_args, **_options: corpus)
    return partial(main, "chronos-nano", tmp_path / "run", real=tmp_path / "real.npz")


def test_a_run_is_not_written_over(
    command: partial[None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command()
    run = contents(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(train, "load_corpus", undrawn)
        expect_error(
            r"holds a run .*state\.pt, log\.jsonl, history.* by --resume", command
        )
    assert contents(tmp_path / "run") == run
    command(resume=True)
    (tmp_path / "run" / STATE).unlink()
    expect_error(r"\(log\.jsonl, history\); .*give another --out", command)
