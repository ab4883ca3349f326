"""Measure the house: size in syntax nodes, layers, names, docstrings. ``make house``
prints the table.

Tests hold the bounds of its structure; no test bounds its size.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import networkx

ROOT = Path(__file__).parents[1]
PACKAGE = "tsfm_lens"

LAYERS = (
    ("core",),
    ("data",),
    ("hooks",),
    ("models",),
    ("ablation",),
    ("probes",),
    ("explain", "training"),
    ("compress", "sweep"),
    ("testing", "zoo"),
    ("viz",),
    ("report",),
    ("verbs",),
    ("__init__",),
    ("cli",),
    ("__main__",),
    ("studies",),
)
"""Packages from the bottom up; each imports from those below it and from itself alone.
"""
LEVEL = {package: level for level, layer in enumerate(LAYERS) for package in layer}
BELOW_FIGURES = {"core", "viz"}
"""Figures are drawn of datasets: viz imports nothing that knows a model."""

PARTICIPLES = frozenset(
    "known found told said asked given made shown kept drawn wanted chosen held taken"
    " seen felt left read".split()
) - {"left", "read"}
ODD_OPENING = re.compile(r"(What|Which|Whether|How|Where)\b")


class Import(NamedTuple):
    """One import of the package: who, what, in which form, where."""

    source: str
    target: str
    form: str
    line: int


@cache
def sources() -> dict[str, str]:
    """Text of every module of the package by its dotted name."""
    files = sorted((ROOT / PACKAGE).rglob("*.py"))
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file.read_text()
        for file in files
    }


@cache
def tree(text: str) -> ast.Module:
    """The syntax tree of a text."""
    return ast.parse(text)


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """Every node of the syntax tree of a text."""
    return tuple(ast.walk(tree(text)))


@cache
def own_imports() -> list[Import]:
    """Every import between modules of the package."""
    return imports(sources())


def imports(texts: Mapping[str, str]) -> list[Import]:
    """Every import between modules: at module level, in functions, under TYPE_CHECKING,
    and by string.

    Args:
        texts: source of each module by dotted name; targets are those of them that a
            name leads to.
    """
    return [
        found
        for module, text in texts.items()
        for found in _imports(module, text, texts)
    ]


def _imports(module: str, text: str, texts: Mapping[str, str]) -> Iterator[Import]:
    within = []
    for node in nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            within.append(("in a function", _lines(node)))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            within.append(("for types", _lines(node)))
    for node in nodes(text):
        form = ""
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif (
            isinstance(node, ast.Call)
            and node.args
            and _last_name(node.func).endswith("import_module")
        ):
            form = "by string"
            if isinstance(node.args[0], ast.Constant):
                names = [str(node.args[0].value)]
        for name in names:
            target = _module(name, texts)
            if target and target != module:
                line = getattr(node, "lineno", 0)
                yield Import(module, target, form or _form(within, line), line)


def _lines(node: ast.stmt | ast.expr) -> range:
    """The lines of a piece of code."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _form(within: list[tuple[str, range]], line: int) -> str:
    """The innermost of the pieces of code, in their order, that hold a line."""
    forms = [form for form, lines in within if line in lines]
    return (forms or ["at module level"])[-1]


def _last_name(function: ast.expr) -> str:
    """The name by which a function is called, without what it is looked up in."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _module(name: str, texts: Mapping[str, str]) -> str:
    """The module that a dotted name leads to; "" if none."""
    while name and name not in texts:
        name = name.rpartition(".")[0]
    return name


def find_package(module: str) -> str:
    """The package below the root that a module belongs to."""
    if "." in module:
        return module.split(".")[1]
    return "__init__"


def upward(found: list[Import]) -> list[Import]:
    """Imports that do not lead to a package further down."""
    arrows = []
    for item in found:
        source = find_package(item.source)
        target = find_package(item.target)
        if source != target and (
            LEVEL[target] >= LEVEL[source]
            or (source == "viz" and target not in BELOW_FIGURES)
        ):
            arrows.append(item)
    return arrows


def circles(found: list[Import]) -> list[set[str]]:
    """Groups of modules that import each other, in whatever form; the largest first."""
    graph = networkx.DiGraph((item.source, item.target) for item in found)
    groups = [
        group
        for group in networkx.strongly_connected_components(graph)
        if len(group) > 1
    ]
    return sorted(groups, key=len, reverse=True)


def bindings(text: str) -> Iterator[ast.Name]:
    """Names that are assigned."""
    for node in nodes(text):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node


def summaries(source: str) -> Iterator[str]:
    """First line of every docstring."""
    for node in nodes(source):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ):
            text = ast.get_docstring(node)
            if text:
                yield text.splitlines()[0]


def shared_class_names(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Names of classes that several modules define, and these modules."""
    homes: dict[str, set[str]] = defaultdict(set)
    for module, text in texts.items():
        for node in nodes(text):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(module)
    return {name: modules for name, modules in homes.items() if len(modules) > 1}


def size(folder: Path, *, without: str = "") -> tuple[int, int, int]:
    """Count the syntax nodes, statements and lines of Python in a folder, one of its
    folders left out.
    """
    files = (
        file
        for file in folder.rglob("*.py")
        if not without or without not in file.relative_to(folder).parts
    )
    texts = [file.read_text() for file in files]
    found = [node for text in texts for node in nodes(text)]
    statements = sum(isinstance(node, ast.stmt) for node in found)
    return len(found), statements, sum(text.count("\n") for text in texts)


def sizes() -> dict[str, float]:
    """Compute the size of each wing, and how densely it is written."""
    table: dict[str, float] = {}
    wings = {
        "core": size(ROOT / PACKAGE, without="studies"),
        "studies": size(ROOT / PACKAGE / "studies"),
        "tests": size(ROOT / "tests"),
    }
    for wing, (count, statements, lines) in wings.items():
        table[f"{wing} nodes"] = count
        table[f"{wing} nodes a line"] = count / max(lines, 1)
        table[f"{wing} nodes a statement"] = count / max(statements, 1)
    return table


def measures() -> dict[str, float]:
    """Compute the measures of structure and names."""
    texts = sources()
    opening = [summary for text in texts.values() for summary in summaries(text)]
    found = own_imports()
    groups = circles(found)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "files": len(texts),
        "upward imports": len(
            {(item.source, item.target, item.form) for item in upward(found)}
        ),
        "largest circle": len(groups[0]) if groups else 0,
        "participles": sum(
            node.id in PARTICIPLES for text in texts.values() for node in bindings(text)
        ),
        "odd docstrings, %": (
            100 * sum(bool(ODD_OPENING.match(item)) for item in opening) / len(opening)
        ),
        "class names with several homes": len(shared_class_names(texts)),
        "mandatory dependencies": len(project["dependencies"]),
    }


BOUNDS = {
    "upward imports": 0,
    "largest circle": 0,
    "odd docstrings, %": 1,
    "class names with several homes": 0,
    "mandatory dependencies": 15,
}


def main() -> None:
    """Print the table; with ``--arrows`` also every upward import and circle."""
    for name, value in (sizes() | measures()).items():
        bound = ""
        if name in BOUNDS:
            bound = f"  (at most {BOUNDS[name]:,})"
        print(
            f"{name:32} {value:10,.1f}{bound}"
            if isinstance(value, float)
            else f"{name:32} {value:10,}{bound}"
        )
    if "--arrows" in sys.argv:
        found = own_imports()
        for item in sorted(set(upward(found))):
            print(f"{item.source}:{item.line} imports {item.target} {item.form}")
        for group in circles(found):
            print("circle:", ", ".join(sorted(group)))


if __name__ == "__main__":
    main()
