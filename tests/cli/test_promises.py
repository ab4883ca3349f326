"""What every command keeps to: refusals before work, progress, a clean end, and numbers
as JSON.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import tsfm_lens
from tsfm_lens import compress
from tsfm_lens.cli import app
from tsfm_lens.data import bundled
from tsfm_lens.report import explanation
from tsfm_lens.testing import assert_close

NILE = ["--data", "bundled:nile", "--horizon", "8"]
PAGES = ("report", "explain", "figure forecast_fan", "compress --rank 1")
ANALYSES = ("forecast", "ablate", "attribute", *PAGES)
NOTHING = "interrupted; nothing was left behind"


def run(command: str, *arguments: str, out: Path | None = None) -> Result:
    if out is not None and command in PAGES:
        options = ["--out", str(out)]
    else:
        options = []
    return CliRunner().invoke(
        app, [*command.split(), "bolt-nano", *arguments, *options]
    )


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", [*ANALYSES, "serve"])
def test_covariates_are_refused_before_loading(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covariates are refused before a model is opened."""
    monkeypatch.setattr(tsfm_lens, "load", interrupt)
    file = tmp_path / "load.csv"
    file.write_text(
        "day,load,price\n"
        + "".join(f"2024-01-{day:02d},{day % 7},{day}\n" for day in range(1, 32))
    )
    done = run(command, "--data", str(file), "--past", "price", out=tmp_path / "out")
    assert done.exit_code == 1, done.output
    assert "chronos-bolt takes no past covariates" in " ".join(done.output.split())


@pytest.mark.parametrize("command", [*ANALYSES, "hooks", "doctor"])
def test_interrupt_leaves_nothing_but_a_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt leaves nothing and says so in one line."""
    monkeypatch.setattr(tsfm_lens, "load", interrupt)
    done = run(command, *(NILE if command in ANALYSES else []), out=tmp_path / "out")
    assert done.exit_code == 130, done.output
    assert done.output.splitlines()[-1] == NOTHING
    assert ("read the series" in done.stderr) == (command in ANALYSES)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_writing_names_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt while files are written leaves no partial one, names whole ones."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupt)
        done = run("report", *NILE, "--sections", "forecast", out=tmp_path / "page")
    assert (done.exit_code, list((tmp_path / "page").iterdir())) == (130, [])
    assert done.output.splitlines()[-1] == NOTHING
    monkeypatch.setattr(compress, "quality", interrupt)
    small = tmp_path / "small"
    done = run("compress --rank 1", *NILE, "--method", "svd", out=small)
    assert done.exit_code == 130
    assert done.output.splitlines()[-1] == f"interrupted; files written: {small}"
    tsfm_lens.load(str(small))


def test_json_holds_the_numbers(tmp_path: Path) -> None:
    run_here = tsfm_lens.load("bolt-nano").run(bundled("nile"), 8, holdout=True)
    expected = run_here.forecast.quantiles
    report = run("report", *NILE, "--sections", "forecast", "--json", out=tmp_path)
    asked = [*NILE, "--format", "json", "--json"]
    figure = run("figure forecast_fan", *asked, out=tmp_path)
    for result in (
        json.loads(report.stdout)["results"]["forecast"],
        json.loads(figure.stdout)["results"][0],
    ):
        values = np.array(result["data_vars"]["quantile_forecast"]["data"])
        assert_close(values.ravel(), expected.ravel(), depth=4, dtype=np.float32)


def test_json_explanation_holds_its_numbers(tmp_path: Path) -> None:
    past = tsfm_lens.load("bolt-nano").run(bundled("nile"), 8)
    kind = "input_attribution"
    asked = [*NILE, "--sections", f"forecast,{kind}", "--json"]
    reported = json.loads(run("explain", *asked, out=tmp_path).stdout)
    results = explanation.explain(past, sections=["forecast", kind])
    effect = results[kind]["attribution"].sel(quantile=0.5)
    table = effect.mean([dim for dim in effect.dims if dim != "segment"]).to_series()
    sizes = abs(effect).mean("step").to_series().sort_values(ascending=False)
    assert [item["input"] for item in reported["inputs"]] == list(sizes.index)
    for key, numbers in (("mean_absolute", sizes), ("mean", table[sizes.index])):
        found = [item[key] for item in reported["inputs"]]
        assert_close(found, numbers.to_numpy(), depth=100, dtype=np.float32)
    assert list(reported["results"]) == ["forecast", kind]


@pytest.mark.parametrize("asked", [False, True])
def test_json_of_forecast_has_the_context_on_request(asked: bool) -> None:
    done = run("forecast", *NILE, "--json", *(["--context"] if asked else []))
    content = json.loads(done.stdout)
    assert ("context" in content["data_vars"]) == asked
    assert ("context_timestamp" in content["coords"]) == asked
    assert content["dims"]["step"] == 8
