"""The training command writes over no run, and says what is wrong before it draws the series."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tsfm_lens.errors import CheckpointError
from tsfm_lens.studies.recipes import train
from tsfm_lens.studies.recipes.corpus import Corpus, load_corpus, real_rows
from tsfm_lens.studies.recipes.recipe import TrainingRecipe
from tsfm_lens.studies.recipes.train import Trainer, main
from tsfm_lens.training.state import STATE


def undrawn(*_args: object, **_options: object) -> Corpus:
    raise AssertionError("the series were drawn")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.fixture
def command(
    token_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> partial[None]:
    """The command on a tiny recipe; --out is the folder "run"."""
    monkeypatch.setattr(train, "find_recipe", lambda name: token_recipe)
    monkeypatch.setattr(train, "load_corpus", lambda *_args, **_options: corpus)
    return partial(main, "chronos-nano", tmp_path / "run", real=tmp_path / "real.npz")


def test_a_run_is_not_written_over(command: partial[None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command()
    run = contents(tmp_path / "run")
    for asked in ({}, {"start": tmp_path / "run" / "chronos-nano"}):
        with monkeypatch.context() as patch:
            patch.setattr(train, "load_corpus", undrawn)
            with pytest.raises(CheckpointError, match=r"holds a run .*state\.pt, log\.jsonl, history.* by --resume"):
                command(**asked)
    assert contents(tmp_path / "run") == run
    command(resume=True)
    command(end_within=2)
    (tmp_path / "run" / STATE).unlink()
    with pytest.raises(CheckpointError, match=r"\(log\.jsonl, history\); give another --out, or remove that folder"):
        command()


def test_an_end_is_not_written_over(
    command: partial[None], token_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path
) -> None:
    Trainer(token_recipe, tmp_path / "run", corpus, device="cpu").run(until=4, quiet=True)
    run = {name: data for name, data in contents(tmp_path / "run").items() if "ended" not in name}
    command(end_within=2)
    ended = contents(tmp_path / "run" / "ended")
    with pytest.raises(CheckpointError, match=r"ended holds a run already .*; remove that folder"):
        command(end_within=2)
    assert contents(tmp_path / "run") == run | ended


def test_a_damaged_state_is_told_before_the_series_are_drawn(
    command: partial[None],
    token_recipe: TrainingRecipe,
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Trainer(token_recipe, tmp_path / "run", corpus, device="cpu").run(until=2, quiet=True)
    path = tmp_path / "run" / STATE
    state = torch.load(path, weights_only=True)
    del state["model"]["shared.weight"]
    torch.save(state, path)
    monkeypatch.setattr(train, "load_corpus", undrawn)
    for asked in ({"resume": True}, {"end_within": 2}):
        with pytest.raises(CheckpointError, match=r"state\.pt is damaged: model lacks shared\.weight; put"):
            command(**asked)


WRONG = {
    "two axes": (np.zeros((30, 2)), r"shape \[30, 2\] and type float64"),
    "none": (np.array(3.0), r"shape \[\] and type float64"),
    "texts": (np.array(["a", "b"]), "type <U1"),
    "objects": (np.array([{}], dtype=object), "cannot be read"),
    "no steps": (np.zeros(0), "0 steps and no value"),
    "gaps alone": (np.full(20, np.nan), "20 steps and no value"),
    "infinite": (np.array([1.0, np.inf]), "is inf at step 1"),
    "too large": (np.array([1.0, 2.0, 1e39]), r"is 1e\+39 at step 2"),
}


@pytest.mark.parametrize(("values", "said"), WRONG.values(), ids=WRONG)
def test_arrays_that_are_no_series_are_named_before_the_user_waits(
    values: np.ndarray, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "real.npz"
    np.savez(path, **{"training/good": np.arange(700.0), "training/wrong": values})
    with pytest.raises(CheckpointError, match=f"real.npz: array training/wrong .*{said}"):
        load_corpus({"harmonics": 2}, seed=0, cache=tmp_path / "corpora", real=path)
    assert "drawing" not in capsys.readouterr().err
    assert not (tmp_path / "corpora").exists()


def test_gaps_and_whole_numbers_are_series(tmp_path: Path) -> None:
    path = tmp_path / "real.npz"
    np.savez(path, **{"training/a": np.array([1.0, np.nan, 3.0]), "training/b": np.arange(5)})
    rows = real_rows(path)
    np.testing.assert_array_equal(rows[0, -3:], [1, np.nan, 3])
    np.testing.assert_array_equal(rows[-1, -5:], np.arange(5))


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        load_corpus({"harmonics": 2}, seed=0, cache=tmp_path / "file" / "corpora")
    assert "drawing" not in capsys.readouterr().err
