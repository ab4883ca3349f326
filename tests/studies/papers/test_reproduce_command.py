"""``tsfm-lens reproduce``: what people read, what scripts read, what fails how."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner, Result

from tsfm_lens.cli import app
from tsfm_lens.studies.commands.reproduce import _render
from tsfm_lens.studies.papers.items import ITEMS
from tsfm_lens.sweep.run.sweeping import Outcome

RUNNER = CliRunner()


def run(*args: str) -> Result:
    return RUNNER.invoke(app, ["reproduce", *args])


def test_the_list_has_every_id_and_number() -> None:
    shown = run("--list")
    assert shown.exit_code == 0, shown.output
    listed = json.loads(run("--list", "--json").stdout)
    assert [entry["id"] for entry in listed] == [item.id for item in ITEMS]
    for entry, item in zip(listed, ITEMS, strict=True):
        assert item.id in shown.stdout
        assert len(entry["values"]) == len(item.values)
    table_5 = next(entry for entry in listed if entry["id"] == "S3-T5")
    assert table_5["values"]["P(sharp | induction)"]["paper"] == 0.1667


def test_the_table_shows_the_paper_s_number_ours_and_the_settings() -> None:
    result = run("S3-HENT", "--model", "chronos-nano", "--data", "bundled:co2", "--horizon", "6", "--samples", "2")
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "sharp heads of all" in line)
    assert "6.9" in line
    assert "appendix G" in line
    model = next(line for line in result.stdout.splitlines() if "model" in line)
    assert "amazon/chronos-t5-base" in model
    assert "chronos-nano" in model
    assert "mechanics only" in result.stderr
    assert "mechanics only" not in result.stdout


def test_claims_are_words_for_people_and_numbers_for_scripts() -> None:
    options = ("s3-f1e", "--model", "bolt-nano", "--windows", "1", "--horizon", "6")
    shown = run(*options)
    lines = shown.stdout.splitlines()
    claim = next(number for number, line in enumerate(lines) if "a higher average entropic rank" in line)
    assert "undecided" in lines[claim]
    assert "- than in layer 0" in lines[claim + 1]
    assert "- than in layer 2" in lines[claim + 2]
    assert "one series or window, too few for a test: 2 parts need 7 or more" in shown.stdout
    assert "A claim holds if all of its parts do" in " ".join(shown.stdout.split())
    found = json.loads(run(*options, "--json").stdout)
    assert found["attrs"]["kind"] == "reproduction"
    assert found["data_vars"]["paper"]["data"][0] == 1
    assert found["data_vars"]["verdict"]["data"][:4] == ["undecided"] * 3 + [""]
    # what is undecided is neither 0 nor 1, and a number that the paper does not print is missing, not 0
    assert found["data_vars"]["ours"]["data"][0] is None
    assert found["data_vars"]["paper"]["data"][1] is None


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("S3-T4", "--model", "bolt-nano"), 1, "where is GIFT-Eval"),
        (("S3-T4", "--model", "bolt-nano", "--gift-eval", "no-such-folder"), 1, "no folder 'no-such-folder'"),
        (("S3-T5", "--model", "chronos-nano", "--store", "x"), 1, "S3-T5 is no sweep"),
        (("S3-T55",), 1, "Closest: S3-T5"),
        ((), 2, "id of a table or figure"),
        (("S3-F1D", "--model", "bolt-nano", "--windows", "1"), 1, "no logits"),
    ],
)
def test_failures_say_what_to_do(
    args: tuple[str, ...], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GIFT_EVAL", raising=False)
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
    assert result.stdout == ""
    # a sweep that cannot start leaves no store behind
    assert not list(tmp_path.iterdir())


def test_a_sweep_shows_intervals_and_keeps_its_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("s3-t1", "--model", "bolt-nano", "--data", "bundled:nile,elnino", "--horizon", "6")
    shown = run(*options)
    assert shown.exit_code == 0, shown.output
    header = next(line for line in shown.stdout.splitlines() if "quantity" in line)
    assert "interval" in header
    line = next(line for line in shown.stdout.splitlines() if "toto-29 scaled to bolt-nano: change of MASE" in line)
    assert re.search(r" -?[\d.e+]+ to -?[\d.e+]+ ", line)
    assert "not given by the paper" in shown.stderr
    assert "cells" not in shown.stdout
    cells = {file: file.stat().st_mtime_ns for file in (tmp_path / "S3-T1.store" / "cells").rglob("*.parquet")}
    assert cells
    found = json.loads(run(*options, "--json").stdout)
    assert cells == {file: file.stat().st_mtime_ns for file in (tmp_path / "S3-T1.store" / "cells").rglob("*.parquet")}
    lower, upper = (found["data_vars"][name]["data"] for name in ("low", "high"))
    assert any(low is not None and low <= high for low, high in zip(lower, upper, strict=True))
    assert lower[found["coords"]["quantity"]["data"].index("toto-29 scaled to bolt-nano: MLPs ablated")] is None


def test_a_cancelled_sweep_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tsfm_lens.studies.papers.sweeps.run_sweep", lambda *args, **options: Outcome(cancelled=True))
    result = run("S3-T1", "--model", "bolt-nano", "--data", "bundled:nile", "--horizon", "6")
    assert result.exit_code == 130
    assert "the same command goes on" in result.stderr


def test_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    words = "[/b] [/tmp/x] [cuda] [bold]x \\[red] :smile: [link=x]y"
    texts = {"title": words, "note": ""}
    columns = {name: ("quantity", [1.0]) for name in ("paper", "ours", "difference")}
    columns |= {name: ("quantity", [np.nan]) for name in ("low", "high", "estimate")}
    columns |= {name: ("quantity", [""]) for name in ("verdict", "why", "margin", "part_of")}
    columns |= {name: ("quantity", [words]) for name in ("unit", "where")}
    columns |= {name: ("setting", [words]) for name in ("paper_setting", "our_setting")}
    _render(xr.Dataset(columns, coords={"quantity": [words], "setting": [words]}, attrs=texts))
    assert capsys.readouterr().out.count(words) == 7
