"""What every command keeps to: refusals before work, progress, a clean end, and numbers as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import tsfm_lens
from tsfm_lens import compress, probes
from tsfm_lens.cli import app
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError
from tsfm_lens.report import explanation

NILE = ["--data", "bundled:nile", "--horizon", "8"]
ANALYSES = ("report", "forecast", "ablate", "attribute", "explain", "figure forecast_fan", "serve", "compress --rank 1")


def run(command: str, *words: str) -> Result:
    return CliRunner().invoke(app, [*command.split(), "bolt-nano", *words])


def outputs(command: str, folder: Path) -> list[str]:
    return ["--out", str(folder / "out")] if command.split()[0] in ("report", "explain", "figure", "compress") else []


@pytest.mark.parametrize("command", ANALYSES)
def test_covariates_are_refused_before_a_model_is_opened(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tsfm_lens, "load", lambda *_, **__: pytest.fail("it was opened"))
    columns = {name: np.arange(40.0) for name in ("load", "price")}
    days = pd.date_range("2024", periods=40)
    pd.DataFrame({"day": days, **columns}).to_csv(tmp_path / "load.csv", index=False)
    done = run(command, "--data", str(tmp_path / "load.csv"), "--past", "price", *outputs(command, tmp_path))
    assert done.exit_code == 1, done.output
    assert "chronos-bolt takes no past covariates" in " ".join(done.output.split())


def test_covariates_are_refused_when_a_run_is_made() -> None:
    entry = {"target": np.arange(40.0), "past_covariates": {"price": np.arange(40.0)}}
    lens = tsfm_lens.load("bolt-nano")
    with pytest.raises(InputError, match="takes no past covariates"):
        lens.run([entry], 8)


@pytest.mark.parametrize("command", [*(each for each in ANALYSES if each != "serve"), "hooks", "doctor"])
def test_an_interrupt_leaves_nothing_and_says_so_in_a_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tsfm_lens, "load", interrupt)
    done = run(command, *(NILE if command not in ("hooks", "doctor") else []), *outputs(command, tmp_path))
    assert done.exit_code == 130, done.output
    # doctor prints what is installed first
    *_, last = done.output.splitlines()
    assert last == "interrupted; nothing was left behind"
    assert command == "doctor" or "read the series" in done.output or command == "hooks"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_files_are_written_leaves_none_and_names_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupt)
        done = run("report", *NILE, "--sections", "forecast", "--out", str(tmp_path / "page"))
    assert (done.exit_code, list((tmp_path / "page").iterdir())) == (130, [])
    assert "interrupted; nothing was left behind" in done.output
    monkeypatch.setattr(compress, "quality", interrupt)
    small = tmp_path / "small"
    done = run("compress", *NILE, "--keep", "0.25", "--method", "svd", "--out", str(small))
    assert done.exit_code == 130
    assert done.output.splitlines()[-1] == f"interrupted; what stands is {small}"
    tsfm_lens.load(str(small))


def test_a_signal_ends_a_process_without_a_traceback() -> None:
    words = ["forecast", "bolt-nano", *NILE]
    script = (
        "import os, signal, sys, tsfm_lens\nfrom tsfm_lens.cli import main\n"
        "tsfm_lens.load = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\n"
        f"sys.argv = ['tsfm-lens', *{words}]\nmain()"
    )
    # a shell that starts it in the background may have it ignore the signal
    done = subprocess.run(
        [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert done.stderr.splitlines()[-1] == "interrupted; nothing was left behind"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("command", "stage"), [("forecast", "forecast"), ("attribute", "attribution")])
def test_work_is_shown_on_stderr_alone(command: str, stage: str) -> None:
    done = run(command, *NILE)
    assert done.exit_code == 0, done.output
    for words in ("read the series", "open the model", stage):
        assert words in done.stderr
        assert f"{words} ━" not in done.stdout


def test_json_holds_the_numbers(tmp_path: Path) -> None:
    model = tsfm_lens.load("bolt-nano").run(bundled("nile"), 8, holdout=True)
    report = run("report", *NILE, "--sections", "forecast", "--out", str(tmp_path), "--json")
    figure = run("figure forecast_fan", *NILE, "--format", "json", "--out", str(tmp_path), "--json")
    for result in (json.loads(report.stdout)["results"]["forecast"], json.loads(figure.stdout)["results"][0]):
        values = np.array(result["data_vars"]["quantile_forecast"]["data"])
        np.testing.assert_allclose(values.ravel(), model.forecast.quantiles.ravel(), rtol=1e-6)
    kinds = ["--sections", "forecast,input_attribution"]
    told = json.loads(run("explain", *NILE, *kinds, "--out", str(tmp_path), "--json").stdout)
    model = tsfm_lens.load("bolt-nano").run(bundled("nile"), 8)
    ds = explanation.explain(model, sections=kinds[1].split(","))["input_attribution"]
    median = ds["attribution"].sel(quantile=0.5)
    totals = {each["input"]: each for each in told["inputs"]}
    assert list(totals) == [str(ds["segment"].values[i]) for i in np.argsort(-abs(median).mean("step").values)]
    for name, total in totals.items():
        of_segment = median.sel(segment=name)
        assert total["mean"] == pytest.approx(float(of_segment.mean()), rel=1e-5, abs=1e-6)
        assert total["mean_absolute"] == pytest.approx(float(abs(of_segment).mean()), rel=1e-5, abs=1e-6)
    assert told["headline"].startswith("On average over 8 steps the forecast of nile is ")
    assert told["results"].keys() == {"forecast", "input_attribution"}


def test_a_figure_that_does_not_apply_names_the_one_that_does() -> None:
    done = run("figure logit_map", *NILE)
    assert (done.exit_code, "figure 'lens_forecast'" in " ".join(done.output.split())) == (1, True)
    run_of_bolt = tsfm_lens.load("bolt-nano").run(bundled("nile"), 8)
    with pytest.raises(InputError, match=r"lens_forecast draws it\."):
        tsfm_lens.viz.logit_map(probes.logit_lens(run_of_bolt))
