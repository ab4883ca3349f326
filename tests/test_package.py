"""The package's shape: what importing it costs, and which package may import which."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import house
import pytest

import tsfm_lens

ROOT = Path(tsfm_lens.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# the packages of a package, each of which imports only those before it
FOLLOWING = {"sweep": ("data", "statistics", "store", "planner", "engine", "results")}


def tree_of(file: Path) -> ast.Module:
    return house.tree(house.sources()[dotted(file)])


def package_of(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


def dotted(file: Path) -> str:
    return ".".join(
        ("tsfm_lens", *file.relative_to(ROOT).with_suffix("").parts)
    ).removesuffix(".__init__")


@pytest.mark.parametrize("package", FOLLOWING)
def test_parts_of_a_package_follow_each_other(package: str) -> None:
    order = {
        f"tsfm_lens.{package}.{part}": place
        for place, part in enumerate(FOLLOWING[package])
    }
    inside = {
        name: text
        for name, text in house.sources().items()
        if name.startswith(f"tsfm_lens.{package}.")
    }
    parts = {name: ".".join(name.split(".")[:3]) for name in inside}
    assert set(parts.values()) == set(order)
    for each in house.imports(inside):
        assert order[parts[each.target]] <= order[parts[each.source]], each


def test_probes_know_a_model_by_its_lens_alone() -> None:
    reaching = [
        file.name
        for file in MODULES
        if package_of(file) == "probes" and "lens.adapter" in file.read_text()
    ]
    assert not reaching


def test_one_module_prints() -> None:
    """Elsewhere a name with brackets could be taken for markup."""
    printing = re.compile(
        r"^\s*(?:import|from) rich\b(?!\.(?:padding|table|text)\b)", re.MULTILINE
    )
    assert {file.name for file in MODULES if printing.search(file.read_text())} == {
        "console.py"
    }


def test_importing_the_package_loads_nothing_heavy_and_some_packages_no_torch() -> None:
    code = """
import importlib, sys, tsfm_lens
heavy = {"torch", "transformers", "transformer_lens", "chronos", "plotly", "pandas", "numpy", "xarray", "scipy"}
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


def test_every_package_is_found_from_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = "__init__ __main__ cli console doctor embedded extensions places registry verbs verdict".split()
    packages = sorted({package_of(file) for file in MODULES}.difference(modules))
    assert set(packages) <= set(dir(tsfm_lens))
    for package in packages:
        # as where nothing else has imported it
        monkeypatch.delattr(tsfm_lens, package, raising=False)
        assert getattr(tsfm_lens, package) is sys.modules[f"tsfm_lens.{package}"]
    assert callable(tsfm_lens.sweep.run_sweep)


def test_every_file_says_what_it_is() -> None:
    assert not [file for file in MODULES if not ast.get_docstring(tree_of(file))]


def test_no_third_copy_of_the_version() -> None:
    import tomllib

    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == tsfm_lens.__version__
    assert project["name"] == "tsfm-lens-toolbox"
    assert (
        f"version: {tsfm_lens.__version__}"
        in (ROOT.parent / "CITATION.cff").read_text()
    )


def test_the_readme_code_runs() -> None:
    """The Python of the README is taken from it; it needs the embedded checkpoint."""
    if "chronos-nano" not in tsfm_lens.zoo.checkpoint_names():
        pytest.skip("the embedded checkpoint chronos-nano is not in the package folder")
    text = (ROOT.parent / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_no_file_holds_what_a_merge_left() -> None:
    """Of the files that git keeps; of all where there is no git, as in an unpacked source distribution."""
    folder = ROOT.parent
    if (folder / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        files = [folder / name for name in listed.stdout.split("\0") if name]
    else:
        files = [file for file in folder.rglob("*") if file.is_file()]
    contents = {file: file.read_bytes() for file in files if file.is_file()}
    marks = re.compile(rb"^(?:<{7}|>{7}|\|{7})(?: |$)", re.MULTILINE)
    assert ROOT / "__init__.py" in contents
    assert not [
        str(file)
        for file, content in contents.items()
        if b"\0" not in content and marks.search(content)
    ]


@pytest.mark.parametrize(
    "file",
    [file for file in MODULES if file.name == "__init__.py"],
    ids=lambda file: str(file.parent.relative_to(ROOT)),
)
def test_a_package_lists_every_name_that_it_offers(file: Path) -> None:
    bound: set[str] = set()
    for node in tree_of(file).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            f"{dotted(file)}."
        ):
            bound |= {
                alias.asname or alias.name for alias in node.names if alias.name != "*"
            }
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
    exports = getattr(importlib.import_module(dotted(file)), "__all__", ())
    assert {name for name in bound if not name.startswith("_")} <= {
        *exports,
        "export",
        "*",
    }


@pytest.mark.parametrize("package", ["explain", "probes", "viz"])
def test_exports_at_run_time_are_those_that_type_checkers_see(package: str) -> None:
    text = (ROOT / package / "__init__.py").read_text()
    seen = re.findall(
        rf"^    from tsfm_lens\.{package}\.(\w+) import \*$", text, flags=re.MULTILINE
    )
    offering = [
        file.stem
        for file in (ROOT / package).glob("*.py")
        if "\n__all__ = [" in file.read_text()
    ]
    # a list for editors: a module that is not in it yet is exported all the same
    assert set(seen) <= set(offering) - {"given"}
    module = importlib.import_module(f"tsfm_lens.{package}")
    assert all(
        not isinstance(getattr(module, name), ModuleType) for name in module.__all__
    )
