"""The package's shape: what importing it costs, which room may import which, and how long files get."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tsfm_lens

ROOT = Path(tsfm_lens.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
MOST_LINES = 500
MOST_LINES_OF_A_FUNCTION = 60

# the rooms of a room, each of which imports only those before it
FOLLOWING = {"sweep": ("statistics", "plan", "store", "run", "results")}


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


def dotted(file: Path) -> str:
    return ".".join(("tsfm_lens", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imports(file: Path) -> tuple[tuple[str, bool], ...]:
    """Dotted names that a file imports, and whether the import waits inside a function."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[tuple[str, bool]]:
    tree = tree_of(file)
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "tsfm_lens" else [module]
            for name in names:
                yield name, id(node) in inside


@pytest.mark.parametrize("room", FOLLOWING)
def test_rooms_within_a_room_follow_each_other(room: str) -> None:
    order = FOLLOWING[room]
    assert {file.relative_to(ROOT / room).parts[0] for file in (ROOT / room).rglob("*.py")} == {*order, "__init__.py"}
    for file in (file for name in order for file in (ROOT / room / name).rglob("*.py")):
        own = order.index(file.relative_to(ROOT / room).parts[0])
        for name, _ in imports(file):
            parts = name.split(".")
            if parts[:2] == ["tsfm_lens", room] and len(parts) > 2:
                assert parts[2] in order[: own + 1], f"{file.relative_to(ROOT)} imports {name}"


def test_probes_know_a_model_by_its_lens_alone() -> None:
    reaching = [file.name for file in MODULES if room_of(file) == "probes" and "lens.adapter" in file.read_text()]
    assert not reaching


def test_one_module_prints() -> None:
    """Elsewhere a name with brackets could be taken for markup."""
    makers = {"rich", "rich.console", "rich.markup", "rich.progress"}
    assert {file.name for file in MODULES if makers & {name for name, _ in imports(file)}} == {"console.py"}


def test_rooms_without_torch() -> None:
    rooms = ["errors", "ranks", "data", "viz", "catalogue", "report"]
    code = f"""
import importlib, sys
for room in {rooms}:
    importlib.import_module(f"tsfm_lens.{{room}}")
    assert "torch" not in sys.modules, room
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'transformer_lens', 'chronos', 'plotly', 'pandas', 'numpy', 'xarray', 'scipy'}"
    code = f"import sys, tsfm_lens; found = {heavy} & set(sys.modules); assert not found, found"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there() -> None:
    for name in tsfm_lens.__all__:
        assert getattr(tsfm_lens, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'forecats'"):
        _ = tsfm_lens.forecats
    assert set(tsfm_lens.__all__) <= set(dir(tsfm_lens))


def test_every_room_is_found_from_the_package() -> None:
    modules = {"__init__", "__main__", "cli", "console", "doctor", "embedded", "places", "registry", "stats", "verbs"}
    rooms = sorted({room_of(file) for file in MODULES} - modules)
    assert set(rooms) <= set(dir(tsfm_lens))
    # in a fresh process, where nothing else has imported them
    code = f"import tsfm_lens; [getattr(tsfm_lens, room) for room in {rooms}]; tsfm_lens.sweep.run_sweep"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_files_stay_short_and_say_what_they_are() -> None:
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in MODULES}
    assert not {name: count for name, text in texts.items() if (count := len(text.splitlines())) > MOST_LINES}
    assert not [file for file in MODULES if not ast.get_docstring(tree_of(file))]


def test_files_of_tests_stay_short() -> None:
    lengths = {file.name: len(file.read_text().splitlines()) for file in (ROOT.parent / "tests").rglob("*.py")}
    assert not {name: length for name, length in lengths.items() if length > MOST_LINES}


def test_no_third_copy_of_the_version() -> None:
    import tomllib

    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == tsfm_lens.__version__
    assert project["name"] == "tsfm-lens-toolbox"
    assert f"version: {tsfm_lens.__version__}" in (ROOT.parent / "CITATION.cff").read_text()


def test_the_readme_names_the_commands_and_warns_of_the_other_package() -> None:
    text = (ROOT.parent / "README.md").read_text()
    first_screen = "\n".join(text.splitlines()[:30])
    assert "make report" in first_screen
    assert "make test" in first_screen
    assert "pip install tsfm-lens\n" not in text
    assert "tsfm-lens-toolbox" in text


def test_the_readme_code_runs() -> None:
    """The Python of the README is taken from it; it needs the embedded checkpoint."""
    if "chronos-nano" not in tsfm_lens.zoo.checkpoint_names():
        pytest.skip("the embedded checkpoint chronos-nano is not in the package folder")
    text = (ROOT.parent / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_functions_stay_short() -> None:
    long = {}
    for file in MODULES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
                if lines > MOST_LINES_OF_A_FUNCTION:
                    long[f"{file.relative_to(ROOT)}: {node.name}"] = lines
    assert not long


def test_no_file_holds_what_a_merge_left() -> None:
    """Of the files that git keeps; of all where there is no git, as in an unpacked source distribution."""
    folder = ROOT.parent
    if (folder / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=folder, capture_output=True, text=True, check=True)
        files = [folder / name for name in listed.stdout.split("\0") if name]
    else:
        files = [file for file in folder.rglob("*") if file.is_file()]
    contents = {file: file.read_bytes() for file in files if file.is_file()}
    marks = re.compile(rb"^(?:<{7}|>{7}|\|{7})(?: |$)", re.MULTILINE)
    assert ROOT / "__init__.py" in contents
    assert not [str(file) for file, content in contents.items() if b"\0" not in content and marks.search(content)]


@pytest.mark.parametrize(
    "file",
    [file for file in MODULES if file.name == "__init__.py"],
    ids=lambda file: str(file.parent.relative_to(ROOT)),
)
def test_a_room_lists_every_name_that_it_offers(file: Path) -> None:
    tree = ast.parse(file.read_text())
    bound: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{dotted(file)}."):
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
    offered = {name for name in bound if not name.startswith("_")}
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    assert listed or not offered, f"{file} has no __all__"
    if listed:
        assert offered <= set(listed[0]), f"{sorted(offered - set(listed[0]))} are missing from __all__"
