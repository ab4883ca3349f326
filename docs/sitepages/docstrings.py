"""How docstrings are taken into the reference, and where references in them lead."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.ext.napoleon import GoogleDocstring

from sitepages.api import PACKAGES, find_module, homes, public_names

_VALUES = ("property", "attribute", "data")
_SEVERAL = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)+): (.*)$")


def before_napoleon(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Say in napoleon's words what docstrings here say otherwise.

    What is returned has its type in the annotation, not before a colon; several
    arguments may share a line; and of a constant without words of its own, those of its
    type say nothing.
    """
    if (
        what == "data"
        and "\n".join(lines).strip() == (inspect.getdoc(type(thing)) or "").strip()
    ):
        lines.clear()
    if what in _VALUES:
        _KEPT[name] = list(lines)
    # a bar is a norm or an absolute value here, never a substitution
    lines[:] = _apart(
        [":returns:" if line == "Returns:" else _bars(line) for line in lines]
    )


def after_napoleon(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Keep what stands before the first colon of a property's docstring from being
    taken for its type.
    """
    if what in _VALUES:
        made = GoogleDocstring(
            _KEPT.pop(name), app.config, app, "method", name, thing, options
        )
        lines[:] = str(made).splitlines()


def _bars(line: str) -> str:
    parts = re.split(r"(``[^`]+``|>>>.*)", line)
    return "".join(
        part if part[:1] in ("`", ">") else part.replace("|", "\\|") for part in parts
    )


_KEPT: dict[str, list[str]] = {}


def _apart(lines: list[str]) -> list[str]:
    """Lines "a, b: text" of a section as one entry each."""
    made: list[str] = []
    position = 0
    while position < len(lines):
        found = _SEVERAL.match(lines[position])
        position += 1
        if found is None:
            made.append(lines[position - 1])
            continue
        more = []
        while position < len(lines) and lines[position].startswith("      "):
            more.append(lines[position])
            position += 1
        for name in found[1].split(", "):
            made += [f"    {name}: {found[2]}", *more]
    return made


@cache
def _by_name() -> dict[str, str]:
    """Documented names by what annotations and docstrings call them: where they are
    defined, and their last word.
    """
    full: dict[str, str] = {}
    last: dict[str, set[str]] = {}
    for package in (*PACKAGES, ""):
        module = find_module(package)
        for name in public_names(package):
            thing = getattr(module, name)
            if inspect.ismodule(thing):
                continue
            home = homes()[id(thing)]
            full[f"{module.__name__}.{name}"] = home
            if hasattr(thing, "__qualname__") and hasattr(thing, "__module__"):
                full[f"{thing.__module__}.{thing.__qualname__}"] = home
            last.setdefault(name, set()).add(home)
    return {
        name: one
        for name, (one, *more) in ((n, sorted(h)) for n, h in last.items())
        if not more
    } | full


def resolve(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """A reference that leads to no entry: to the entry of the same object, or to plain
    text if it exists otherwise.
    """
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"]).removeprefix("~")
    home = _by_name().get(target)
    if home is None and "." in target:
        # a member of a documented class
        owner, _, member = target.rpartition(".")
        home = None
        if owner in _by_name():
            home = f"{_by_name()[owner]}.{member}"
    if home is not None and home != target:
        domain = env.get_domain("py")
        found = domain.resolve_xref(
            env, node["refdoc"], app.builder, "obj", home, node, contnode
        )
        if found is not None:
            return found
    exists = _exists(target) or target.rpartition(".")[2] in _defined()
    if home is not None or exists:
        return contnode
    return None


def _exists(target: str) -> bool:
    """Whether a dotted name leads to something in the package, such as a function of a
    module.
    """
    parts = target.split(".")
    if parts[0] != "tsfm_lens":
        return False
    for length in range(len(parts), 0, -1):
        try:
            thing: Any = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            if not hasattr(thing, name) and name not in getattr(
                thing, "__annotations__", {}
            ):
                return False
            thing = getattr(thing, name, None)
        return True
    return False


@cache
def _defined() -> set[str]:
    """Every name that some module of the package defines: docstrings name neighbours
    without their module.
    """
    found: set[str] = set()
    for file in Path(find_module("").__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Assign):
                found |= {
                    target.id for target in node.targets if isinstance(target, ast.Name)
                }
    return found
