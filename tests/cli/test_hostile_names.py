"""Names that look like markup come out as they went in, from every command."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tsfm_lens import console
from tsfm_lens.cli import app
from tsfm_lens.cli.common import SweepDisplay, show_rows
from tsfm_lens.cli.sweep import _show_outcome
from tsfm_lens.models.architecture import architectures
from tsfm_lens.sweep.run.sweeping import Outcome
from tsfm_lens.testing import OracleResult, oracle_table

NAMES = ("[/b]", "[/tmp/x]", "[cuda]", "[bold]x", "\\[red]", ":smile:", "[link=x]y")
RUNNER = CliRunner()


def run(*args: str) -> Result:
    return RUNNER.invoke(app, list(args))


def joined(text: str) -> str:
    """Without the frames and line ends of usage errors."""
    return "".join(text.replace("│", "").split())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("checkpoint") / "[" / "b] [cuda] :smile:"
    path.parent.mkdir()
    architectures()["chronos-bolt"].tiny().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("data") / "[cuda].csv"
    rows = [f"{name},{day},{np.sin(day / 3):.4f}" for name in NAMES for day in range(40)]
    file.write_text("id,timestamp,target\n" + "\n".join(rows) + "\n")
    return str(file)


def test_series_keep_their_names(model: str, data: str) -> None:
    result = run("forecast", model, "--data", data, "--horizon", "2")
    assert result.exit_code == 0, result.output
    shown = {line.split()[0] for line in result.stdout.splitlines()[1:]}
    assert shown == set(NAMES)


@pytest.mark.parametrize(
    "args",
    [
        ("ablate", "-c", "decoder.0.mlp", "--horizon", "1"),
        ("ablate", "-c", "decoder.0.mlp", "--horizon", "1", "--no-holdout"),
        ("attribute", "--horizon", "1"),
    ],
)
def test_analyses_of_hostile_names_and_a_single_step(args: tuple[str, ...], model: str, data: str) -> None:
    command, *options = args
    result = run(command, model, "--data", data, *options)
    assert result.exit_code == 0, result.output
    assert "decoder.0.mlp" in result.stdout


@pytest.mark.parametrize("name", ["[/tmp/x]", "[cuda]", ":smile:"])
@pytest.mark.parametrize(
    "args",
    [
        ("forecast", "NAME", "--data", "bundled:co2"),
        ("forecast", "bolt-nano", "--data", "NAME"),
        ("report", "NAME", "--data", "bundled:co2"),
        ("ablate", "NAME", "--data", "bundled:co2"),
        ("attribute", "NAME", "--data", "bundled:co2"),
        ("hooks", "NAME"),
        ("doctor", "NAME"),
        ("figure", "NAME", "bolt-nano", "--data", "bundled:co2"),
        ("figure", "1C", "bolt-nano", "--data", "bundled:co2", "--column", "NAME"),
        ("reproduce", "NAME"),
        ("sweep", "NAME.yaml"),
        ("sweep", "status", "NAME.yaml"),
        ("sweep", "report", "NAME"),
        ("NAME",),
    ],
    ids=" ".join,
)
def test_errors_keep_names(args: tuple[str, ...], name: str) -> None:
    result = run(*(arg.replace("NAME", name) for arg in args))
    assert result.exit_code in (1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    # ids of tables are read in capitals
    assert joined(name).lower() in joined(result.stderr).lower()


def test_tables_keep_names(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(NAMES, [NAMES])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == row.split() == list(NAMES)
    console.console(width=1000).print(
        oracle_table([OracleResult("oracle", 0.0, 1.0, name) for name in NAMES], " ".join(NAMES))
    )
    shown = capsys.readouterr().out
    assert all(shown.count(name) >= 2 for name in NAMES)
    assert "passed" in shown


def test_results_of_sweeps_keep_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = " ".join(NAMES)
    _show_outcome(Outcome(failed=[words], notes=[words]), tmp_path / words.replace("/", ""), as_json=False)
    with SweepDisplay() as display:
        display.update(words, 1, 2, None)
    captured = capsys.readouterr()
    assert captured.err.count(words) == 3
    with console.progress() as bar:
        bar.add_task(words, total=1)
        bar.console.file = io.StringIO()


def test_files_that_people_write_are_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    good = {"models": [{"source": "bolt-nano"}], "data": [{"source": "bundled", "horizon": 4, "windows": 1}]}
    texts = {
        "data: [{start: 2020-02-30}]": "day is out of range for month",
        "a: " + "[" * 2000: "nested too deeply",
        "a: " + "{a: " * 2000: "nested too deeply",
        "n: " + "1" * 5000: "holds a value that is none",
        "\0": "no YAML",
        "!!python/object:os.system {}": "no YAML",
        "[" * 20: "no YAML",
    }
    for orders, words in (
        ("random:0..999999999", "expected 1 to 1000"),
        ("random:9..3", "expected 1 to 1000"),
        ("random:²", "has a seed"),
    ):
        texts[json.dumps({**good, "variants": {"heads_at": {"orders": [orders]}}})] = words
    texts[json.dumps({**good, "variants": {"heads": {}, "random_seeds": 10**9}})] = "random_seeds"
    for text, words in texts.items():
        file.write_text(text)
        result = run("sweep", str(file), "--store", str(tmp_path / "store"))
        assert result.exit_code == 1, (text[:60], result.exception)
        assert joined(words) in joined(result.stderr), (text[:60], result.stderr)
    assert not (tmp_path / "store").exists()
