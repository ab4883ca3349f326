"""The figure of several models on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tsfm_lens import load
from tsfm_lens.cli import app
from tsfm_lens.models.architecture import architectures
from tsfm_lens.studies.rank_theory import figures_models, ranks_by_model

RUNNER = CliRunner()
SERIES = ("--data", "bundled:nile", "--horizon", "6")


def run(*args: str) -> Result:
    return RUNNER.invoke(app, ["figure", *args])


@pytest.fixture(scope="module")
def bolt(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("checkpoint") / "tiny bolt"
    architectures()["chronos-bolt"].tiny().save_pretrained(path)
    return str(path)


def test_a_figure_of_several_models_takes_them_all(bolt: str, tmp_path: Path) -> None:
    args = (*SERIES, "--out", str(tmp_path), "--format", "json")
    result = run("model_rank_dots", bolt, "chronos-nano", *args)
    assert result.exit_code == 0, result.output
    drawn = tmp_path / "model_rank_dots-tiny-bolt-and-1-more.json"
    assert result.stdout.split() == [str(drawn), str(drawn.with_suffix(".txt"))]
    lenses = [load(bolt), load("chronos-nano")]
    expected = figures_models.model_rank_dots(ranks_by_model(lenses)).to_json()
    assert json.loads(drawn.read_text()) == json.loads(expected)
    text = drawn.with_suffix(".txt").read_text()
    models = [line for line in text.splitlines() if line.startswith("  model: ")]
    assert models == [f"  model: {bolt}.", "  model: chronos-nano."]
    # one alone is drawn alone
    assert run("model_rank_dots", bolt, *args).exit_code == 0
    assert (tmp_path / "model_rank_dots-tiny-bolt.json").exists()
