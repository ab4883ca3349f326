"""Optional libraries: found without an import, asked for in clear words, and never confused with an empty folder."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import tsfm_lens
from refusals import expect_error
from tsfm_lens.core.errors import MissingExtraError, install_command
from tsfm_lens.models import extras
from tsfm_lens.models.architecture import extras as optional_libraries

ROOT = Path(tsfm_lens.__file__).parent.parent
EXTRAS = optional_libraries()


def names(requirements: list[str]) -> set[str]:
    return {requirement.split(">=")[0].split("[")[0] for requirement in requirements}


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_the_library_that_is_there_is_the_real_one(name: str) -> None:
    if not EXTRAS[name].importable:
        pytest.skip(f"{name} is not installed")
    assert EXTRAS[name].require().__name__ == EXTRAS[name].imports[0]


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_a_missing_library_is_named_with_the_commands_that_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in EXTRAS[name].imports:
        monkeypatch.setitem(sys.modules, module, None)
        for known in [known for known in sys.modules if known.startswith(f"{module}.")]:
            monkeypatch.setitem(sys.modules, known, None)
    with pytest.raises(MissingExtraError, match="doctor") as caught:
        EXTRAS[name].require()
    assert install_command(name) in str(caught.value)
    for command in EXTRAS[name].install:
        assert command in str(caught.value)
    assert not EXTRAS[name].importable
    assert set(EXTRAS[name].imports) <= set(EXTRAS[name].missing)


def test_an_empty_folder_is_not_the_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The wheel of Toto leaves ``toto2/toto2``, with which ``import toto2`` succeeds and gives nothing."""
    (tmp_path / "toto2" / "toto2").mkdir(parents=True)
    for known in [known for known in sys.modules if known.split(".")[0] == "toto2"]:
        monkeypatch.delitem(sys.modules, known)
    neighbour = ModuleType("dd_unit_scaling")
    neighbour.LinearReadout = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dd_unit_scaling", neighbour)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    try:
        assert importlib.import_module("toto2").__file__ is None
        assert "toto2" in EXTRAS["toto2"].missing
        expect_error("toto2 has no Toto2Model", EXTRAS["toto2"].require)
    finally:
        sys.modules.pop("toto2", None)


def test_status_imports_nothing() -> None:
    modules = {module for extra in EXTRAS.values() for module in extra.imports} | {
        "lightning",
        "hydra",
    }
    code = (
        "import sys; from tsfm_lens.models.architecture import extras; "
        "[extra.missing for extra in extras().values()]; "
        f"print({modules} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_a_package_that_the_library_needs_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = extras.installed
    monkeypatch.setattr(
        extras,
        "installed",
        lambda package: None if package == "hydra-core" else real(package),
    )
    assert "hydra-core" in EXTRAS["moirai"].missing
    assert "hydra-core" not in EXTRAS["toto"].missing


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (
            '{"url": "file:///a%20b/clone", "dir_info": {"editable": true}}',
            'pip install -e "/a b/clone[ray]"',
        ),
        ('{"url": "file:///a/clone", "dir_info": {}}', 'pip install "/a/clone[ray]"'),
        (
            '{"url": "file:///w/t-1-py3-none-any.whl", "archive_info": {}}',
            'pip install "/w/t-1-py3-none-any.whl[ray]"',
        ),
        (
            '{"url": "https://host/repo.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            'pip install "tsfm-lens-toolbox[ray] @ git+https://host/repo.git@abc"',
        ),
        (
            '{"url": "https://host/t-1.whl", "archive_info": {}}',
            'pip install "tsfm-lens-toolbox[ray] @ https://host/t-1.whl"',
        ),
        (None, 'pip install "tsfm-lens-toolbox[ray]"'),
    ],
)
def test_an_extra_is_installed_from_where_the_package_came(
    recorded: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the record of PEP 610, which pip writes beside the package."""
    monkeypatch.setattr(
        metadata.PathDistribution, "read_text", lambda self, name: recorded
    )
    install_command.cache_clear()
    try:
        assert install_command("ray") == command
    finally:
        install_command.cache_clear()


def test_packages_of_an_extra_are_those_of_the_project_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    table = extras.packages_of_extras()
    for name in ("sweep", "ray", "dysts", "notebook", "static"):
        assert set(table[name]) == names(optional[name]), name
        assert extras.missing_packages(name) == [
            package for package in table[name] if not extras.installed(package)
        ]
    real = extras.installed
    monkeypatch.setattr(
        extras,
        "installed",
        lambda package: None if package == "gluonts" else real(package),
    )
    expect_error("gluonts not installed", extras.require_packages, "sweep", "a sweep")
    config = {
        "models": [{"source": "bolt-nano"}],
        "data": [{"source": "bundled", "horizon": 4}],
    }
    settings = tsfm_lens.sweep.parse_config({**config, "variants": {"layers": {}}})
    for call in (tsfm_lens.sweep.plan_sweep, tsfm_lens.sweep.run_sweep):
        expect_error("extra 'sweep'", call, settings, ROOT / "never.store")
    assert not (ROOT / "never.store").exists()
