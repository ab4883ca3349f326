"""What is shipped as source is what is here, and what a release of a dependency could
break has a bound.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tsfm_lens.models.architecture import extras as optional_libraries

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# these promise stability, or count releases by the calendar, or only serve those who
# work on the package
UNBOUNDED = {
    "einops",
    "filelock",
    "jinja2",
    "psutil",
    "pyarrow",
    "pyyaml",
    "rich",
    "xarray",
}


def shipped() -> set[str]:
    return {
        file.distribution_path
        for file in SdistBuilder(str(ROOT)).recurse_included_files()
    }


def test_source_distribution_holds_tracked_files() -> None:
    """The source distribution holds every tracked file."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    top = subprocess.run(
        ["git", "rev-parse", "--show-prefix"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode or top.stdout.strip():
        pytest.skip("this is no git checkout of the project")
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    assert tracked - shipped() == set()


def test_dependencies_have_major_version_bounds() -> None:
    """A dependency that a major release could break has an upper bound."""
    optional = PROJECT["optional-dependencies"]
    extras = (*optional_libraries(), "ray", "dysts", "static")
    models = [line for extra in extras for line in optional[extra]]
    for requirement in (*PROJECT["dependencies"], *models):
        name = re.split(r"[\[<>=]", requirement)[0]
        assert ",<" in requirement or name in UNBOUNDED, (
            f"{requirement} has no upper bound"
        )


def pinned_versions() -> dict[str, str]:
    """Read the versions that the tests use, by name."""
    return dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )


def test_tested_versions_lie_within_bounds() -> None:
    """Every version that the tests use is within the bounds."""
    pins = pinned_versions()
    for requirement in map(Requirement, PROJECT["dependencies"]):
        if requirement.name in pins:
            assert pins[requirement.name] in requirement.specifier


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0"])
def test_tested_versions_run_on_every_python_that_is_allowed(python: str) -> None:
    """No version needs a later Python; pip would try others without an end."""
    assert python in SpecifierSet(PROJECT["requires-python"])
    checked = 0
    for name, version in pinned_versions().items():
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        if installed.version.split("+")[0] != version:
            continue
        checked += 1
        needed = installed.metadata["Requires-Python"] or ""
        assert python in SpecifierSet(needed), f"{name} {version} needs {needed}"
    assert checked > len(pinned_versions()) / 2
