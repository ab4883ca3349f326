"""The package's shape: what importing it costs, and which package may import which."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import house
import numpy as np
import pytest

import tsfm_lens
from tiny_lenses import fresh
from tsfm_lens.hooks import Component

ROOT = Path(tsfm_lens.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# the packages of a package, each of which imports only those before it
FOLLOWING = {
    "sweep": (
        *("data", "statistics", "store", "planner"),
        *("embeddings", "engine", "results"),
    )
}


def find_package(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


@pytest.mark.parametrize("package", FOLLOWING)
def test_package_parts_follow_their_order(package: str) -> None:
    """The parts of a package import only those before them."""
    order = {
        f"tsfm_lens.{package}.{part}": position
        for position, part in enumerate(FOLLOWING[package])
    }
    inside = {
        name: text
        for name, text in house.sources().items()
        if name.startswith(f"tsfm_lens.{package}.")
    }
    parts = {name: ".".join(name.split(".")[:3]) for name in inside}
    assert set(parts.values()) == set(order)
    for item in house.imports(inside):
        assert order[parts[item.target]] <= order[parts[item.source]], item


def test_importing_the_package_is_light() -> None:
    """Importing the package loads nothing heavy, and some packages load no torch."""
    code = """
import importlib, sys, tsfm_lens
heavy = {"torch", "transformers", "transformer_lens", "chronos", "plotly"}
heavy |= {"pandas", "numpy", "xarray", "scipy"}
assert not heavy & set(sys.modules)
for package in ("core.errors", "core.ranks", "data", "viz", "report"):
    importlib.import_module(f"tsfm_lens.{package}")
    assert "torch" not in sys.modules, package
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there() -> None:
    for name in tsfm_lens.__all__:
        assert getattr(tsfm_lens, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'forecats'"):
        _ = tsfm_lens.forecats
    assert set(tsfm_lens.__all__) <= set(dir(tsfm_lens))


def test_packages_are_found_from_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every package is found from the top."""
    modules = (
        "__init__ __main__ cli console doctor embedded extensions places registry verbs"
        " verdict".split()
    )
    packages = sorted({find_package(file) for file in MODULES}.difference(modules))
    assert set(packages) <= set(dir(tsfm_lens))
    for package in packages:
        # as where nothing else has imported it
        monkeypatch.delattr(tsfm_lens, package, raising=False)
        assert getattr(tsfm_lens, package) is sys.modules[f"tsfm_lens.{package}"]
    assert callable(tsfm_lens.sweep.run_sweep)


def test_no_third_copy_of_the_version() -> None:
    import tomllib

    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == tsfm_lens.__version__
    assert project["name"] == "tsfm-lens-toolbox"
    assert (
        f"version: {tsfm_lens.__version__}"
        in (ROOT.parent / "CITATION.cff").read_text()
    )


@pytest.mark.parametrize("package", ["data", "hooks", "models", "sweep", "viz", "zoo"])
def test_packages_list_public_names_alone(package: str) -> None:
    module = import_module(f"tsfm_lens.{package}")
    assert dir(module) == sorted(module.__all__)


def test_objects_of_users_are_one_line_and_public() -> None:
    lens = fresh("chronos-bolt")
    run = lens.run([np.sin(np.arange(40.0))], 3)
    parts = [lens, run, run.encoded, lens.wiring, lens.weights, run.forecast]
    for part in [*parts, *lens.components()[:5], *run.spans.values()]:
        assert len(repr(part)) < 200
        assert "\n" not in repr(part)
    for part in (lens, run, run.forecast):
        assert not any(name.startswith("_") for name in dir(part))
    # torch's own, which work all the same
    assert "register_forward_hook" not in dir(lens)
    assert {"run", "forecast", "run_with_cache", "weights"} <= set(dir(lens))
    component = lens.components()[2]
    assert eval(repr(component), {"Component": Component}) == component
