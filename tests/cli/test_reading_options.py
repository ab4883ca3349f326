"""How a file is read can be said on every command that reads one, in the command line's
words.
"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tsfm_lens import testing
from tsfm_lens.cli import app
from tsfm_lens.cli.reading import translate_options
from tsfm_lens.data import read_series
from tsfm_lens.models import load
from tsfm_lens.testing import assert_close

RUNNER = CliRunner()
# up to the data; what is wrong with them is said before a model is opened
COMMANDS = {
    "report": ("report", "chronos-nano"),
    "forecast": ("forecast", "chronos-nano"),
    "ablate": ("ablate", "chronos-nano"),
    "attribute": ("attribute", "chronos-nano"),
    "figure": ("figure", "logit_map", "chronos-nano"),
}


def run(*args: str) -> Result:
    return RUNNER.invoke(app, list(args))


def error_text(result: Result) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", result.stderr).split())


@pytest.fixture
def german(tmp_path: Path) -> Path:
    path = tmp_path / "verbrauch.csv"
    rows = [
        f"{day:02d}.01.2021;{shop};{day},{day:03d}"
        for shop in ("Nord", "=x")
        for day in range(1, 31)
    ]
    path.write_bytes(
        ("Tag;Läden;Verbrauch\n" + "\n".join(rows) + "\n").encode("cp1252")
    )
    return path


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_file_commands_take_reading_options(
    command: tuple[str, ...], german: Path
) -> None:
    """Every command that reads a file takes the options of reading."""
    help_text = re.sub(r"\x1b\[[0-9;]*m", "", run(command[0], "--help").output)
    flags = (
        "--id-column",
        "--time-column",
        "--targets",
        "--variates",
        "--freq",
        "--units",
        "--delimiter",
        "--decimal",
    )
    flags += (
        "--known",
        "--past",
        "--categories",
        "--encoding",
        "--header",
        "--time-format",
    )
    flags += ("--timezone", "--round-time", "--thousands")
    assert [flag for flag in flags if flag not in help_text] == []
    found = run(*command, "--data", str(german))
    assert (
        found.exit_code,
        "give --encoding cp1252" in error_text(found),
    ) == (1, True)
    found = run(
        *command,
        "--data",
        str(german),
        "--encoding",
        "cp1252",
        "--decimal",
        ",",
        "--freq",
        "0D",
    )
    assert (
        found.exit_code,
        "--freq 0D does not go forward in time" in error_text(found),
    ) == (1, True)


def test_messages_name_options_and_readings(german: Path, tmp_path: Path) -> None:
    """Messages name the options, and notes say how the file was read."""
    folder = tmp_path / "bolt"
    testing.tiny("chronos-bolt").save_pretrained(folder)
    command = ("forecast", str(folder), "--data", str(german), "--encoding", "cp1252")
    assert "sign is '.'; give --decimal ," in error_text(
        run(*command, "--targets", "Verbrauch")
    )
    command += ("--decimal", ",")
    assert "give --time-column Tag --time-format %d.%m.%Y" in error_text(run(*command))
    command += ("--id-column", "Läden", "--horizon", "2", "--time-column", "Tag")
    assert (
        "not a date of ISO 8601; give --time-format …, as in '%d.%m.%Y'"
        in error_text(run(*command))
    )
    command += ("--time-format", "%d.%m.%Y")
    found = run(*command, "--csv")
    assert found.exit_code == 0, found.output
    rows = list(csv.DictReader(io.StringIO(found.stdout)))
    # an id that a spreadsheet would run is defused, and restored when read again
    assert [row["id"] for row in rows] == ["Nord", "Nord", "'=x", "'=x"]
    assert rows[0]["timestamp"] == "2021-01-31"
    (tmp_path / "again.csv").write_text(found.stdout)
    assert read_series(tmp_path / "again.csv", targets=["0.5"]).ids == ("Nord", "=x")
    found = run(*command, "--units", "kWh", "--json")
    assert json.loads(found.stdout)["coords"]["units"]["data"] == ["kWh", "kWh"]
    found = run(*command[:3], "bundled:co2", "--freq", "D")
    assert "--freq D applies to files, and none is given" in error_text(found)


@pytest.mark.parametrize(
    ("python", "option"),
    [
        ("give decimal='.' or decimal=','", "give --decimal . or --decimal ,"),
        (
            "id_column='Shop name', time_column='When?'",
            "--id-column 'Shop name', --time-column 'When?'",
        ),
        (
            "targets=[…] reads, variates=[…] too; freq=…",
            "--targets … reads, --variates … too; --freq …",
        ),
    ],
)
def test_words(python: str, option: str) -> None:
    assert translate_options(python) == option


def test_file_column_can_be_a_category(tmp_path: Path) -> None:
    """A column of a file can be declared a category."""
    file = tmp_path / "load.csv"
    rows = [f"{10 + 3 * (day % 3 == 1)},{day % 3},{day % 2}" for day in range(40)]
    rows += [f",{day % 3},0" for day in range(4)]
    file.write_text("load,kind,open\n" + "\n".join(rows) + "\n")
    command = ["forecast", "chronos2-nano", "--data", str(file), "--targets", "load"]
    command += "--known kind,open --horizon 4 --json".split()
    for declared in ("kind", "kind,open"):
        found = run(*command, "--categories", declared)
        assert found.exit_code == 0, found.output
        for name in ("kind", "open"):
            noted = f"'{name}' is read as categories" in error_text(found)
            assert noted == (name in declared.split(","))
        batch = read_series(
            file, targets="load", known="kind,open", categories=declared
        )
        forecast = load("chronos2-nano").forecast(batch, 4).targets()
        medians = json.loads(found.stdout)["data_vars"]["quantile_forecast"]["data"]
        assert_close(medians, forecast.quantiles, depth=100, dtype=np.float32)
    found = run(*command, "--categories", "load")
    assert "--categories" in error_text(
        found
    ) or "categories names 'load'" in error_text(found)
    assert "--known …" in error_text(found)
