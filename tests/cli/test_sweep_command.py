"""``tsfm-lens sweep``: from a configuration to a report, and what wrong arguments are
told.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from tsfm_lens.cli import app

RUNNER = CliRunner()
CONTENT = {
    "name": "command",
    "models": [{"source": "bolt-nano", "context_length": 64}],
    "data": [{"source": "bundled", "names": ["co2", "nile"], "horizon": 6}],
    "variants": {
        "layers": {"parts": ["mlp", "heads"]},
        "heads_at": {"layers": [1], "tolerance": 0.2},
    },
}


def run(*args: str | Path) -> Result:
    return RUNNER.invoke(app, ["sweep", *map(str, args)])


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("command") / "small.yaml"
    path.write_text(yaml.safe_dump(CONTENT))
    return path


def test_showing_a_plan_writes_nothing(config: Path) -> None:
    """A plan is shown and nothing is written."""
    result = run(config, "--plan", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert (plan["finished"], [part["variants"] for part in plan["parts"]]) == (
        0,
        [1, 1, 6, 8],
    )
    assert not config.with_suffix(".store").exists()


def test_sweep_with_status_and_report(config: Path, tmp_path: Path) -> None:
    """A sweep runs, tells its status and writes its report."""
    first = run(config, "--json")
    assert first.exit_code == 0, first.output
    outcome = json.loads(first.stdout)
    assert outcome["finished"] == outcome["cells"]
    assert outcome["resumed"] == 0
    again = run(config)
    assert again.exit_code == 0, again.output
    cells = outcome["cells"]
    assert (
        f"{cells} of {cells} cells are finished ({cells} of them before this run)"
        in again.stdout
    )
    status = json.loads(run("status", config, "--json").stdout)
    assert status["finished"] == status["cells"]
    made = run("report", config, "--out", tmp_path / "report", "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["results"] == [
        "costs",
        "curves",
        "datasets",
        "effects",
        "heads_at",
    ]
    assert (tmp_path / "report" / "index.html").stat().st_size > 100_000
    assert {path.suffix for path in (tmp_path / "report" / "tables").iterdir()} == {
        ".csv",
        ".tex",
    }


def test_misspelt_fields_suggest_the_nearest(config: Path, tmp_path: Path) -> None:
    """A misspelt field or engine is refused, and the nearest one is named."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump({**CONTENT, "variants": {"layer": {}}}))
    result = run(wrong)
    assert result.exit_code == 1
    assert "variants.layer" in result.stderr
    assert "'layers'" in result.stderr
    assert run(config, "--engine", "rays").exit_code == run().exit_code == 2
    result = run(config, "--store", wrong)
    assert result.exit_code == 1
    assert str(wrong) in result.stderr


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"source": "files", "path": "a.csv"},
            (
                "data.0.source: there is no 'files'; the nearest is 'file' (there are"
                " 'gift"
            ),
        ),
        (
            {"source": "gluonts", "path": "a.jsonl"},
            "data.0.gluonts.freq: it is required",
        ),
    ],
)
def test_source_errors_quote_the_file(data: dict, message: str, tmp_path: Path) -> None:
    """A source that is wrong is reported in the words of the file."""
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump({**CONTENT, "data": [data]}))
    assert message in " ".join(run(wrong).stderr.split())


def test_messy_file_names_fields_that_read_it(tmp_path: Path) -> None:
    """The advice on a file of a sweep is fields of its configuration, and works."""
    rows = ["Zeit;Last [kW]", "01.01.2024 00:00;101,7", "02.01.2024 00:00;99,5"]
    rows += [f"{day:02}.01.2024 00:00;{100 + day},5" for day in range(3, 29)]
    (tmp_path / "messy.csv").write_text("\n".join(rows))
    file = tmp_path / "messy.yaml"
    data = {"source": "file", "path": "messy.csv", "horizon": 2}
    file.write_text(yaml.safe_dump({**CONTENT, "data": [data]}))
    refused = run(file, "--plan")
    assert refused.exit_code == 1
    assert "--" not in refused.stderr
    advice = refused.stderr.partition("read it:")[2]
    fields = yaml.safe_load(advice)
    assert fields["decimal"] == ","
    file.write_text(yaml.safe_dump({**CONTENT, "data": [data | fields]}))
    assert run(file, "--plan").exit_code == 0
