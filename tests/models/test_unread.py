"""What a model does not read of its series is noted: steps before its context,
variation below its numbers' step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import tsfm_lens
from tiny_lenses import lens_of
from tsfm_lens.cli import app
from tsfm_lens.data import SeriesBatch, as_series

NAMES = ["chronos", "chronos-bolt", "chronos-2", "timestral"]
# what is read does not depend on how many paths are drawn
FEW = {"chronos": {"num_samples": 2}}


def noisy(steps: int, level: float = 0.0, spread: float = 1.0) -> np.ndarray:
    return level + spread * np.random.default_rng(steps).normal(size=steps)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beyond", [-1, 0, 1, 300])
def test_only_cut_histories_are_noted(name: str, beyond: int) -> None:
    """A history that is cut is noted, and no other."""
    lens = lens_of(name)
    limit = lens.context_length
    values = noisy(limit + beyond)
    batch = as_series({"long": values, "short": noisy(9)})
    found = lens.forecast(batch, 3, **FEW.get(name, {}))
    run = lens.run(batch, 3, **FEW.get(name, {}))
    for noted in (found.context, run.batch, run.forecast.context):
        assert [
            f"{limit} of {limit + beyond} of 'long'" in note for note in noted.notes
        ] == [True] * (beyond > 0)
        assert not any("'short'" in note for note in noted.notes)
    # the note is true: what comes before does not reach the forecast
    changed = np.where(np.arange(len(values)) < beyond, values + 50, values)
    other = lens.forecast(
        as_series({"long": changed, "short": noisy(9)}), 3, **FEW.get(name, {})
    )
    np.testing.assert_array_equal(other.quantiles, found.quantiles)
    held_out = lens.run(batch, 3, holdout=True)
    assert any("'long'" in note for note in held_out.batch.notes) == (beyond > 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("role", ["target", "past", "known"])
@pytest.mark.parametrize("level", [0.0, 1e6, -1e9])
def test_unresolved_variation_is_noted(name: str, role: str, level: float) -> None:
    """Variation below the step of what a model reads is noted."""
    lens = lens_of(name)
    if role != "target" and name not in ("chronos-2", "timestral"):
        pytest.skip("it takes no covariates")
    steps = 50
    ahead = 3
    column, row = ("y", 0) if role == "target" else ("x", 1)
    frame = pd.DataFrame({"y": noisy(steps + ahead), "x": 0.0})
    frame[column] = noisy(steps + ahead, level, 3.0)
    options: dict[str, Any] = {"targets": ["y"]}
    if role != "target":
        options[role] = ["x"]
    if role == "known":
        frame.loc[steps:, "y"] = np.nan
    run = lens.run(as_series(frame, **options), ahead)
    read = np.unique(np.float32(run.batch.values[row]))
    if name == "chronos":
        read = np.unique(run.encoded.inputs["input_ids"][row].numpy())
    noted = [note for note in run.batch.notes if "subtract" in note]
    assert bool(noted) == (len(read) < 7)
    if noted:
        # the one item without a name goes without saying
        name = run.batch.ids[row].removeprefix("series-0/")
        assert repr(name) in noted[0]
        frame[column] -= level
        cured = lens.run(as_series(frame, **options), ahead)
        assert not any("subtract" in note for note in cured.batch.notes)


def test_constant_and_missing_values_hide_nothing() -> None:
    lens = tsfm_lens.load("bolt-nano")
    series = {
        "flat": np.full(20, 1e9),
        "late": np.r_[np.full(600, 1.0), np.full(520, np.nan), 2.0],
    }
    notes = lens.forecast(as_series(series), 2).context.notes
    assert not any("subtract" in note for note in notes)


def test_commands_and_pages_tell_unread_input(tmp_path: Path) -> None:
    """The command line and pages say what is not read."""
    limit = tsfm_lens.load("bolt-nano").context_length
    pd.DataFrame({"load": noisy(limit + 40, 1e9)}).to_csv(
        tmp_path / "load.csv", index=False
    )
    command = ["bolt-nano", "--data", str(tmp_path / "load.csv"), "--horizon", "4"]
    pages = {
        "forecast": ("--plot", str(tmp_path / "plot.html")),
        "report": ("--out", str(tmp_path / "report")),
    }
    for name, out in pages.items():
        if name == "report":
            more = ("--sections", "forecast")
        else:
            more = ()
        found = CliRunner().invoke(app, [name, *command, *out, *more])
        assert found.exit_code == 0, found.output
        if name == "forecast":
            page = Path(out[1])
        else:
            page = Path(out[1]) / "index.html"
        for text in (" ".join(found.stderr.split()), page.read_text(encoding="utf-8")):
            assert f"{limit} of {limit + 40 - 4 * (name == 'report')} of" in text
            assert "subtract" in text


@pytest.mark.parametrize("name", ["chronos-bolt", "chronos-2", "ttm"])
def test_idle_forecast_checks_no_series_again(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # validation of a batch that is one already took a tenth of a small forecast
    lens = lens_of(name)
    length = lens.context_length + 7
    batch = as_series([np.arange(length) % 5.0, np.arange(length) % 7.0])
    checked = list[int]()
    check = SeriesBatch.__post_init__

    def count(batch: SeriesBatch) -> None:
        checked.append(len(batch.values))
        check(batch)

    monkeypatch.setattr(SeriesBatch, "__post_init__", count)
    forecast = lens.forecast(batch, 4)
    assert not checked
    assert str(length) in forecast.context.notes[0]
    assert batch.notes == ()
