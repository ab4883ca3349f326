"""What a user runs into at the edges: places that cannot be written, ends without
values, numbers too close to tell.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from tsfm_lens.cli import app, main

HOURS = pd.date_range("2024-03-01", periods=120, freq="h")
CO2 = ("--data", "bundled:co2", "--horizon", "6")


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, args)))


def written(folder: Path, **columns: object) -> Path:
    file = folder / "series.csv"
    pd.DataFrame({"timestamp": HOURS, **columns}).to_csv(file, index=False)
    return file


@pytest.fixture
def waves() -> np.ndarray:
    return 5 + np.sin(np.arange(120) / 4)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object, **__: object) -> None:
        pytest.fail("a model was opened first")

    monkeypatch.setattr("tsfm_lens.load", opened)


COMMANDS = {
    "report": ["report", "bolt-nano", *CO2],
    "explain": ["explain", "bolt-nano", *CO2],
    "figure": ["figure", "forecast_fan", "bolt-nano", *CO2, "--format", "svg"],
    "compress": ["compress", "bolt-nano", *CO2, "--keep", "0.25"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("no_model")
def test_unwritable_place_is_reported_before_loading(
    command: str, tmp_path: Path
) -> None:
    """A place that cannot be written is reported before a model is opened."""
    file = tmp_path / "afile"
    file.touch()
    texts = [word.replace("FILE", str(file)) for word in COMMANDS[command]]
    if "--out" in texts:
        out = []
    else:
        out = ["--out", file / "deep" / "below"]
    result = run(*texts, *out)
    assert result.exit_code == 1, result.output
    assert str(file) in result.stderr
    assert "cannot be written" in result.stderr or "exists" in result.stderr
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("command", ["report", "ablate"])
@pytest.mark.usefixtures("no_model")
def test_missing_end_is_no_truth(
    command: str, waves: np.ndarray, tmp_path: Path
) -> None:
    """An end without values is no truth."""
    file = written(tmp_path, load=np.r_[waves[:90], np.full(30, np.nan)])
    if command == "report":
        out = ["--out", tmp_path / "page"]
    else:
        out = []
    result = run(command, "bolt-nano", "--data", file, "--horizon", "24", *out)
    assert result.exit_code == 1
    assert (
        "'load' ends with 30 missing values: the truth of all 24 steps is missing"
        in result.stderr
    )
    assert "--no-holdout" in result.stderr


def test_high_levels_show_different_quantiles(
    waves: np.ndarray, tmp_path: Path
) -> None:
    """A forecast at a high level shows how its quantiles differ."""
    file = written(tmp_path, load=1e9 + 1e6 * waves)
    asked = ["--data", file, "--horizon", "2", "-q", "0.1", "-q", "0.5", "-q", "0.9"]
    cells = run("forecast", "bolt-nano", *asked).stdout.splitlines()[1].split()[-3:]
    assert len(set(cells)) == 3


def parse_table(*args: str | Path) -> pd.DataFrame:
    result = run("forecast", *args, "--horizon", "6", "--csv")
    return pd.read_csv(io.StringIO(result.stdout), float_precision="round_trip")


def test_held_out_end_shows_truth_beside(
    tmp_path: Path,
) -> None:
    """A forecast of the end of each series has its truth beside it."""
    steps = np.arange(120)
    frame = pd.DataFrame(
        {"timestamp": HOURS, "load": 5 + np.sin(steps / 4), "heat": np.cos(steps / 4)}
    )
    full = tmp_path / "whole.csv"
    context = tmp_path / "context.csv"
    frame.to_csv(full, index=False)
    frame[:-6].to_csv(context, index=False)
    visible = parse_table("bolt-nano", "--data", full, "--holdout")
    ahead = parse_table("bolt-nano", "--data", context)
    pd.testing.assert_frame_equal(visible.drop(columns="truth"), ahead)
    assert visible["truth"].tolist() == [*frame["load"][-6:], *frame["heat"][-6:]]
    # of covariates the target alone is listed
    asked = "--targets load --known heat --holdout".split()
    driven = parse_table("chronos2-nano", "--data", full, *asked)
    assert driven["truth"].tolist() == frame["load"][-6:].tolist()


FULL = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="there is no device that is always full"
)


def ended(
    monkeypatch: pytest.MonkeyPatch, stdout: io.TextIOBase | None, *args: str
) -> tuple[int, str]:
    """Exit code and stderr of a command that writes to a stream."""
    monkeypatch.setattr("sys.argv", ["tsfm-lens", *args])
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0), sys.stderr.getvalue()  # type: ignore[attr-defined]


SHORT = [
    ("data",),
    ("data", "--json"),
    ("--help",),
    ("--version",),
    ("figure", "--list"),
]


@FULL
@pytest.mark.parametrize(
    "args", [*SHORT, ("forecast", "bolt-nano", *CO2, "--csv")], ids=" ".join
)
def test_full_device_is_reported_in_line(
    args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full device is reported in one line."""
    with Path("/dev/full").open("w") as full:
        code, reported = ended(monkeypatch, full, *args)
    # beside progress and notes on the data
    lines = [
        line
        for line in reported.splitlines()
        if "━" not in line and not line.startswith("note:")
    ]
    assert (code, lines) == (1, ["error: No space left on device"])


@pytest.mark.parametrize("args", SHORT, ids=" ".join)
def test_closed_pipe_prints_nothing(
    args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is printed when nobody reads on."""
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as pipe:
        assert ended(monkeypatch, pipe, *args) == (1, "")


@pytest.mark.parametrize("args", SHORT, ids=" ".join)
def test_unencodable_characters_are_escaped(
    args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an encoding cannot hold is escaped."""
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert ended(monkeypatch, plain, *args) == (0, "")
    assert plain.buffer.getvalue()  # type: ignore[attr-defined]
