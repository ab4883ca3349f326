"""Optional libraries: found without an import, asked for in clear words, and never
confused with an empty folder.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import tsfm_lens
from refusals import expect_error
from tsfm_lens.core.errors import MissingExtraError, install_command
from tsfm_lens.models import extras
from tsfm_lens.models.architecture import extras as optional_libraries
from warm import run_code

EXTRAS = optional_libraries()


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_installed_libraries_are_the_real_ones(name: str) -> None:
    """The library that is installed is the real one."""
    if not EXTRAS[name].importable:
        pytest.skip(f"{name} is not installed")
    assert EXTRAS[name].require().__name__ == EXTRAS[name].imports[0]


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_missing_libraries_come_with_install_commands(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing library is named with the commands that install it."""
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


def test_empty_folders_are_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The wheel of Toto leaves ``toto2/toto2``, with which ``import toto2`` succeeds
    and gives nothing.
    """
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


def test_status_imports_nothing(tmp_path: Path) -> None:
    modules = {module for extra in EXTRAS.values() for module in extra.imports} | {
        "lightning",
        "hydra",
    }
    code = (
        "import sys; from tsfm_lens.models.architecture import extras; "
        "[extra.missing for extra in extras().values()]; "
        f"print({modules} & set(sys.modules))"
    )
    done = run_code(code, folder=tmp_path)
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (
            '{"url": "file:///a%20b/clone", "dir_info": {"editable": true}}',
            'pip install -e "/a b/clone[ray]"',
        ),
        (
            (
                '{"url": "https://host/repo.git", "vcs_info": {"vcs": "git",'
                ' "commit_id": "abc"}}'
            ),
            'pip install "tsfm-lens-toolbox[ray] @ git+https://host/repo.git@abc"',
        ),
        (None, 'pip install "tsfm-lens-toolbox[ray]"'),
    ],
)
def test_extras_install_from_the_package_source(
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


def test_sweeps_without_extras_write_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sweep without its extra is refused before it writes."""
    real = extras.installed
    gone = lambda package: None if package == "gluonts" else real(package)  # noqa: E731
    monkeypatch.setattr(extras, "installed", gone)
    expect_error("gluonts not installed", extras.require_packages, "sweep", "a sweep")
    config = {
        "models": [{"source": "bolt-nano"}],
        "data": [{"source": "bundled", "horizon": 4}],
    }
    settings = tsfm_lens.sweep.parse_config({**config, "variants": {"layers": {}}})
    for call in (tsfm_lens.sweep.plan_sweep, tsfm_lens.sweep.run_sweep):
        expect_error("extra 'sweep'", call, settings, tmp_path / "never.store")
    assert not list(tmp_path.iterdir())
