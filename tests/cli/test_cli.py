"""The command line on small random checkpoints: what scripts read, what people read,
what fails how.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner, Result

import tsfm_lens
from tsfm_lens import testing
from tsfm_lens.cli import app
from tsfm_lens.testing import assert_close

RUNNER = CliRunner()
BOLT = "bolt-nano"


def run(*args: str) -> Result:
    return RUNNER.invoke(app, list(args))


@pytest.fixture(scope="module", params=["chronos", "chronos-bolt"])
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> str:
    path = tmp_path_factory.mktemp("checkpoint") / request.param
    testing.tiny(request.param).save_pretrained(path)
    return str(path)


@pytest.fixture
def waves(tmp_path: Path) -> str:
    file = tmp_path / "waves.csv"
    rows = [
        f"{name},{day},{np.sin(day / k):.6f}"
        for name, k in (("slow", 9), ("fast", 3))
        for day in range(80)
    ]
    file.write_text("id,timestamp,target\n" + "\n".join(rows) + "\n")
    return str(file)


def test_forecast_files_match_the_library(
    folder: str, waves: str, tmp_path: Path
) -> None:
    """A forecast as CSV or strict JSON is what the library returns."""
    asked = ["forecast", folder, "--data", waves, *"--horizon 4 --seed 3".split()]
    asked += "-q 0.2 -q 0.5".split()
    expected = tsfm_lens.load(folder).forecast(waves, 4, quantiles=[0.2, 0.5], seed=3)
    result = run(*asked, "--csv")
    assert result.exit_code == 0, result.output
    table = pd.read_csv(io.StringIO(result.stdout))
    assert table["id"].tolist() == ["slow"] * 4 + ["fast"] * 4
    found = table[["0.2", "0.5"]].to_numpy().reshape(2, 4, 2).transpose(0, 2, 1)
    assert_close(found, expected.quantiles, depth=16, dtype=np.float32)
    result = run(*asked, "--json", "--plot", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert "Forecast of slow" in page
    assert "Forecast of fast" in page
    answer = json.loads(
        result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is not JSON")
    )
    assert answer["attrs"]["kind"] == "forecast"
    assert answer["coords"]["series"]["data"] == ["slow", "fast"]
    forecast = answer["data_vars"]["quantile_forecast"]
    assert forecast["dims"] == ["series", "quantile", "step"]
    found = np.array(forecast["data"])
    assert_close(found, expected.quantiles, depth=16, dtype=np.float32)


def test_hooks_lists_true_shapes(folder: str) -> None:
    result = run(
        "hooks",
        folder,
        "--filter",
        "decoder_blocks.*.cross_attn.hook_pattern",
        "--json",
    )
    assert result.exit_code == 0, result.output
    lens = tsfm_lens.load(folder)
    stack = lens.wiring.output_stack
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == [
        f"decoder_blocks.{layer}.cross_attn.hook_pattern"
        for layer in range(stack.n_layers)
    ]
    assert all(len(row["axes"]) == len(row["shape"]) for row in rows)
    assert all(row["shape"][:2] == [1, stack.n_heads] for row in rows)
    every = json.loads(run("hooks", folder, "--json").stdout)
    assert [row["name"] for row in every] == [name for name, _ in lens.hook_table()]


def test_report_writes_page_and_prints_path(
    folder: str, waves: str, tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "report"
    result = run("report", folder, "--data", waves, "--out", str(out), "--horizon", "4")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out / "index.html")
    page = (out / "index.html").read_text()
    for heading in ("Forecast", "Logit lens", "Attribution", "Ablation", "Attention"):
        assert heading in page
    assert "held out as the truth" in page
    assert "write the report" in result.stderr


def test_compare_shows_where_tuned_models_differ(waves: str, tmp_path: Path) -> None:
    """Compare says where a tuned model differs, or that it does not."""
    tuned = tsfm_lens.load(BOLT)
    with torch.no_grad():
        tuned.adapter.model.get_submodule(
            "decoder.block.2.layer.2.DenseReluDense.wo"
        ).weight.mul_(1.2)
    folder = str(tmp_path / "tuned")
    tuned.adapter.model.save_pretrained(folder)
    how = ("--data", waves, "--horizon", "8", "--holdout")
    result = run("compare", BOLT, folder, *how, "--out", str(tmp_path / "page"))
    assert result.exit_code == 0, result.output
    assert "decoder.2.mlp" in result.stdout
    assert "weights differ" in result.stderr
    assert "Effects of tuned weights" in (tmp_path / "page" / "index.html").read_text()
    same = run("compare", BOLT, BOLT, *how)
    assert same.stderr.strip().splitlines()[-1].startswith("Nothing differs")
    answer = json.loads(run("compare", BOLT, folder, *how, "--json").stdout)
    assert answer["coords"]["component"]["data"] == ["decoder.2.mlp"]
