"""``tsfm-lens figure``: files and captions, and what fails how."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tsfm_lens.cli import app

RUNNER = CliRunner()
SERIES = ("--data", "bundled:nile", "--horizon", "6")


def run(*args: str) -> Result:
    return RUNNER.invoke(app, ["figure", *args])


def test_files_and_caption_are_named(tmp_path: Path) -> None:
    """Files and caption are written, and their paths printed."""
    result = run(
        "layer_gain",
        "bolt-nano",
        *SERIES,
        "--out",
        str(tmp_path),
        "--format",
        "json,html",
        "--seed",
        "5",
    )
    assert result.exit_code == 0, result.output
    names = [
        "layer_errors-bolt-nano.json",
        "layer_errors-bolt-nano.html",
        "layer_errors-bolt-nano.txt",
    ]
    assert result.stdout.split() == [str(tmp_path / name) for name in names]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    text = " ".join((tmp_path / names[2]).read_text().split())
    for label in (
        "Figure layer_errors.",
        "seed = 5",
        "horizon = 6",
        "bundled:nile",
        "torch",
        "S3-GAIN",
    ):
        assert label in text
    assert "compute figure" in result.stderr


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_undrawable_format_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Without kaleido, and with it but no browser; the default then writes what it can
    and says the rest.
    """
    out = tmp_path / "out"
    without_kaleido = ("tsfm_lens.viz.saving.find_spec", lambda name: None)
    asked = ["forecast_fan", "bolt-nano", *SERIES, "--out", str(out)]
    for lacking in ("kaleido", "browser"):
        with monkeypatch.context() as patch:
            if lacking == "kaleido":
                patch.setattr(*without_kaleido)
            else:
                pytest.importorskip("kaleido")
                patch.setenv("BROWSER_PATH", str(tmp_path / "nothing"))
            result = run(*asked, "--format", f"html,{kind}")
            assert result.exit_code == 1, result.output
            assert "open the model" not in result.output
            assert not out.exists()
            if kind == "svg":
                result = run(*asked)
                assert result.exit_code == 0, result.output
                assert {path.suffix for path in out.iterdir()} == {".html", ".txt"}
                assert "only html" in result.stderr
                shutil.rmtree(out)
