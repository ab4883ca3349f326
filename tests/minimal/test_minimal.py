"""With the mandatory dependencies alone every command works, or names the extra that it
needs before any work.

Run by ``make test-minimal``, in an environment without extras; skipped in every other
one.
"""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tsfm_lens.models import architectures

pytestmark = pytest.mark.skipif(
    find_spec("gluonts") is not None, reason="extras are installed here"
)

SERIES = ["bolt-nano", "--data", "bundled:nile", "--horizon", "6"]
CONFIG = """
name: minimal
models: [{source: bolt-nano}]
data: [{source: bundled, names: [nile], horizon: 4}]
variants: {layers: {sizes: [1]}}
"""
WORKING = {
    "forecast": ["forecast", *SERIES],
    "report": [
        "report",
        *SERIES,
        "--sections",
        "forecast,ablation_effects",
        "--out",
        "out",
    ],
    "explain": ["explain", *SERIES, "--sections", "input_attribution", "--out", "out"],
    "attribute": ["attribute", *SERIES],
    "ablate": ["ablate", *SERIES, "--components", "decoder.0.mlp"],
    "hooks": ["hooks", "bolt-nano"],
    "models": ["models"],
    "data": ["data"],
    "measurements": ["measurements"],
    "doctor": ["doctor", "--json"],
    "figure": ["figure", "forecast_fan", *SERIES, "--out", "out"],
    "compress": ["compress", *SERIES, "--keep", "0.5", "--out", "out"],
    "compare": [
        "compare",
        "bolt-nano",
        "bolt-nano",
        "--data",
        "bundled:nile",
        "--horizon",
        "6",
    ],
    "sweep help": ["sweep", "-h"],
}
MISSING = {
    "sweep": (["sweep", "config.yaml"], "sweep"),
    "plan": (["sweep", "config.yaml", "--plan"], "sweep"),
    "status": (["sweep", "status", "config.yaml"], "sweep"),
    "ray": (["sweep", "config.yaml", "--engine", "ray"], "sweep"),
    "serve": (["serve"], "notebook"),
    "svg": (
        ["figure", "forecast_fan", *SERIES, "--format", "svg", "--out", "out"],
        "static",
    ),
    "pdf": (["explain", *SERIES, "--pdf", "--out", "out"], "static"),
}
for entry in architectures().values():
    if entry.extra:
        model = next(iter(entry.published.values()))
        MISSING[entry.name] = (["forecast", model, *SERIES[1:]], entry.extra)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    from tsfm_lens.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "config.yaml").write_text(CONFIG)

    def invoke(arguments: list[str]) -> Result:
        return CliRunner().invoke(app, arguments)

    return invoke


@pytest.mark.parametrize("name", WORKING)
def test_a_command_works(run: object, name: str) -> None:
    result = run(WORKING[name])
    assert result.exit_code == 0, result.output
    assert result.exception is None


@pytest.mark.parametrize("name", MISSING)
def test_commands_name_their_missing_extra(
    run: object, name: str, tmp_path: Path
) -> None:
    """A command names the extra that it needs and writes nothing."""
    arguments, extra = MISSING[name]
    result = run(arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    text = " ".join(result.output.split())
    assert f"[{extra}]" in text or "pip install --no-deps" in text, text
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_no_extra_is_installed() -> None:
    """Otherwise the tests above would hold nothing."""
    for package in ("gluonts", "ray", "dysts", "voila", "kaleido", "timesfm", "peft"):
        with pytest.raises(metadata.PackageNotFoundError):
            metadata.version(package)
