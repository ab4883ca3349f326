"""``tsfm-lens figure``: files and captions, and what fails how."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tsfm_lens.cli import app
from tsfm_lens.figures.named import figures
from tsfm_lens.models.architecture import architectures

RUNNER = CliRunner()
SERIES = ("--data", "bundled:nile", "--horizon", "6")


def run(*args: str) -> Result:
    return RUNNER.invoke(app, ["figure", *args])


@pytest.fixture(scope="module")
def bolt(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("checkpoint") / "tiny bolt"
    architectures()["chronos-bolt"].tiny().save_pretrained(path)
    return str(path)


def test_files_and_caption_are_written_and_named(bolt: str, tmp_path: Path) -> None:
    result = run("fig. 22", bolt, *SERIES, "--out", str(tmp_path), "--format", "json,html", "--seed", "5")
    assert result.exit_code == 0, result.output
    names = ["22-tiny-bolt.json", "22-tiny-bolt.html", "22-tiny-bolt.txt"]
    assert result.stdout.split() == [str(tmp_path / name) for name in names]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    text = " ".join((tmp_path / names[2]).read_text().split())
    for words in ("Figure 22.", "seed = 5", "horizon = 6", "bundled:nile", "117 windows", "torch", "S3-GAIN"):
        assert words in text
    assert "compute figure" in result.stderr


@pytest.mark.browser
@pytest.mark.skipif(
    not (shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")),
    reason="no Chromium on the path",
)
def test_static_files_have_the_width_of_the_column(bolt: str, tmp_path: Path) -> None:
    pytest.importorskip("kaleido")
    args = ("--out", str(tmp_path), "--format", "svg", "--column", "double")
    result = run("stable_rank_map", bolt, *SERIES, *args)
    assert result.exit_code == 0, result.output
    svg = (tmp_path / "stable_rank_map-tiny-bolt.svg").read_text()
    width = re.search(r'<svg[^>]* width="(\d+)"', svg)
    assert width is not None
    assert int(width[1]) == round(183 / 25.4 * 96)
    assert "Stable rank of the" not in svg
    assert "183 ×" in (tmp_path / "stable_rank_map-tiny-bolt.txt").read_text()


def test_list_names_every_figure() -> None:
    result = run("--list")
    assert result.exit_code == 0, result.output
    listed = {line.split()[0] for line in result.stdout.splitlines() if line.strip()}
    assert set(figures()) <= listed


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("stable_rank", "{bolt}", *SERIES), "stable_rank_map"),
        (("1C", "{bolt}", *SERIES), "lens_forecast"),
        (("22", "{bolt}", *SERIES, "--format", "jpg"), "no format 'jpg'"),
        (("22", "{bolt}", "--data", "bundled:nyle"), "nile"),
        (("22", "{bolt}", "--data", "bundled:nile", "--horizon", "200"), "hold out"),
        (("22", "./nowhere", *SERIES), "nowhere"),
        (("22", "./nowhere", "{bolt}", "{bolt}", *SERIES), "can show two models side by side, and 3 are named"),
        (("model_rank_dots", "{bolt}", "{bolt}", *SERIES), "two models are called"),
    ],
)
def test_an_error_is_a_message_exit_code_1_and_no_file(
    bolt: str, tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    out = tmp_path / "out"
    result = run(*(arg.format(bolt=bolt) for arg in args), "--out", str(out))
    assert result.exit_code == 1
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert not out.exists()


@pytest.mark.parametrize(
    "args",
    [(), ("22",), ("22", "x"), ("22", "x", *SERIES, "--column", "triple"), ("22", "x", *SERIES, "--format", ",")],
)
def test_wrong_usage_is_exit_code_2(args: tuple[str, ...]) -> None:
    assert run(*args).exit_code == 2
