"""``tsfm-lens doctor``: what it finds, what it says is missing, and when it fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from typer.testing import CliRunner, Result

import tsfm_lens.testing
from tsfm_lens.cli import app, doctor
from tsfm_lens.cli.doctor import examine
from tsfm_lens.models.architecture import extras as optional_libraries
from tsfm_lens.testing import OracleResult
from tsfm_lens.zoo import checkpoint_names

EXTRAS = optional_libraries()

HELD = "amazon/chronos-bolt-tiny"


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *args])


def strict(text: str) -> Any:
    return json.loads(
        text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON")
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one published model, the settings alone of another, and a model
    of no family known.
    """
    for hub_id, file in (
        (HELD, "model.safetensors"),
        ("amazon/chronos-t5-tiny", "config.json"),
        ("a/b", "x.bin"),
    ):
        retained = tmp_path / f"models--{hub_id.replace('/', '--')}"
        (retained / "refs").mkdir(parents=True)
        (retained / "refs" / "main").write_text("c0ffee")
        (retained / "snapshots" / "c0ffee").mkdir(parents=True)
        (retained / "snapshots" / "c0ffee" / file).write_bytes(b"x" * 1000)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_text_and_json_tell_the_same() -> None:
    visible = run()
    metadata = strict(run("--json").stdout)
    assert visible.exit_code == 0, visible.output
    assert metadata["conformance"] is None
    assert metadata["versions"]["torch"] == torch.__version__
    assert metadata["embedded"] == list(checkpoint_names())
    assert [extra["name"] for extra in metadata["extras"]] == list(EXTRAS)
    assert metadata["devices"][0]["name"] == "cpu"
    for word in (
        metadata["python"],
        torch.__version__,
        metadata["hub"]["folder"],
        *EXTRAS,
        *metadata["embedded"],
    ):
        assert word in visible.stdout


def test_missing_library_comes_with_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing library is named with the commands that install it."""
    monkeypatch.setitem(sys.modules, "uni2ts", None)
    (found,) = [extra for extra in examine()["extras"] if extra["name"] == "moirai"]
    assert "uni2ts" in found["missing"]
    visible = run()
    assert visible.exit_code == 0
    for command in EXTRAS["moirai"].install:
        assert command in visible.stdout


def test_hub_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub = examine()["hub"]
    assert hub["folder"] == str(cache)
    assert hub["size"] >= 3000
    assert list(hub["models"]) == [HELD]
    assert hub["offline"]
    assert hub["flags"]["HF_HUB_OFFLINE"] == "1"
    assert HELD in run().stdout
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "none"))
    hub = examine()["hub"]
    assert (hub["exists"], hub["size"], hub["models"]) == (False, 0, {})


def test_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chromium = pytest.importorskip("choreographer.browsers.chromium")
    monkeypatch.setattr(chromium, "get_chrome_download_path", lambda **_: None)
    browser = tmp_path / "chrome"
    monkeypatch.setenv("BROWSER_PATH", str(browser))
    assert "is not a file" in examine()["static"]["missing"]
    browser.touch()
    assert examine()["static"]["browser"] == str(browser)
    monkeypatch.setattr(chromium.Chromium, "find_browser", lambda **_: None)
    assert "apt install chromium" in examine()["static"]["missing"]
    monkeypatch.setattr(doctor, "installed", lambda package: None)
    assert "[static]" in examine()["static"]["missing"]


def test_a_model_that_fails_an_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [
        OracleResult("1 first", 0.0, 1e-5),
        OracleResult("2 second", float("nan"), 1e-5, "layer [0]"),
    ]
    monkeypatch.setattr(tsfm_lens.testing, "check_lens", lambda lens: results)
    visible = run("bolt-nano")
    assert visible.exit_code == 1
    assert any(
        "2 second" in line and "FAILED" in line for line in visible.stdout.splitlines()
    )
    assert "layer [0]" in visible.stdout
    reported = run("bolt-nano", "--json")
    assert reported.exit_code == 1
    last = strict(reported.stdout)["conformance"]["oracles"][-1]
    assert last == {
        "oracle": "2 second",
        "error": None,
        "bound": 1e-5,
        "detail": "layer [0]",
        "passed": False,
        "skipped": False,
    }
