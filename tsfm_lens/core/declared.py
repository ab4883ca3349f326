"""Names of measurements and figures, read from source files without importing them.

A measurement is declared on the function that computes it, in a module that imports
torch. To refuse a wrong name at once, :func:`declared_kinds` and
:func:`declared_figures` read these declarations as syntax trees. What a name stands for
is in :mod:`tsfm_lens.core.registry`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.extensions import MEASUREMENTS, extension_modules

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = ("probes", "explain", "compress", "zoo", "viz")
"""Packages whose modules declare measurements and figures."""
# what a measurement of several models takes
_OF_SEVERAL = ("lenses", "runs")
_WORDS = ("probe(", "measurement(", "figure(")


@dataclass(frozen=True)
class DeclaredKind:
    """What the declaration of a measurement says.

    Attributes:
        kind: of its result.
        needs: requirement on a model; "" for every model.
        of_run: whether a probe computes it of one run; None where only the module of
            an extension tells.
    """

    kind: str
    needs: str = ""
    of_run: bool | None = None


def declared_kinds() -> dict[str, DeclaredKind]:
    """Return the declared measurements by kind, those of extensions included."""
    kinds = {entry.kind: entry for entry in _read()[0]}
    # the name of an entry point is the kind that it registers
    extensions = {name: DeclaredKind(name) for name in extension_modules(MEASUREMENTS)}
    return extensions | kinds


def declared_figures() -> frozenset[str]:
    """Return the names of figures, and of kinds, which stand for their first figure."""
    return frozenset(_read()[1]) | frozenset(declared_kinds())


def check_kind(kind: str) -> DeclaredKind:
    """Return the declaration of a kind.

    Raises:
        UnknownNameError: no package and no extension declares it.
    """
    kinds = declared_kinds()
    if kind not in kinds:
        hint = (
            "`tsfm-lens measurements` lists them all; docs/howto/own-probe.md gives a"
            " probe of your own a figure."
        )
        raise unknown_name("measurement", kind, sorted(kinds), hint=hint)
    return kinds[kind]


def check_figure_name(name: str) -> None:
    """Refuse a figure that nothing declares.

    With extensions of other distributions, whose figures are known only once they are
    imported, nothing is refused.
    """
    names = declared_figures()
    if name in names or _has_foreign_extensions():
        return
    hint = "`tsfm-lens figure --list` names all, and what a sweep draws."
    raise unknown_name("figure", name, sorted(names), hint=hint)


def _has_foreign_extensions() -> bool:
    modules = extension_modules(MEASUREMENTS).values()
    return any(not module.startswith("tsfm_lens.") for module in modules)


@cache
def _read() -> tuple[list[DeclaredKind], list[str]]:
    """Read the declarations of kinds, and the names of figures."""
    kinds: list[DeclaredKind] = []
    figures: list[str] = []
    for node in _statements():
        # of the function that is decorated
        name = getattr(node, "name", "")
        for call in _calls(node):
            first, second, *_ = [*map(_text, call.args), "", ""]
            options = {item.arg: _text(item.value) for item in call.keywords}
            takes = options.get("takes", "")
            needs = options.get("needs", "")
            word = ast.unparse(call.func)
            if word == "probe":
                of_run = (first or takes) not in _OF_SEVERAL
                kinds.append(DeclaredKind(name, needs, of_run))
            elif word == "measurement":
                of_run = "function" in options and takes not in _OF_SEVERAL
                kinds.append(DeclaredKind(first, needs, of_run))
            elif word == "figure" and name:
                figures.append(name)
            elif word == "generic_figure":
                figures.append(f"{first}_{second}")
    return kinds, figures


def _statements() -> Iterator[ast.stmt]:
    """Yield the statements of the files that declare something."""
    for file in _files():
        text = file.read_text(encoding="utf-8")
        # most files declare nothing, and a syntax tree takes long to make
        if any(word in text for word in _WORDS):
            yield from ast.parse(text).body


def _files() -> Iterator[Path]:
    for folder in _FOLDERS:
        yield from sorted((_PACKAGE / folder).rglob("*.py"))
    for module in sorted(set(extension_modules(MEASUREMENTS).values())):
        path = _PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
        if module.startswith("tsfm_lens.") and path.exists():
            yield path


def _calls(node: ast.stmt) -> Iterator[ast.Call]:
    """Yield the calls that decorate a statement, or are one."""
    found: list[ast.expr] = []
    if isinstance(node, ast.FunctionDef):
        found = node.decorator_list
    elif isinstance(node, ast.Expr | ast.Assign):
        found = [node.value]
    yield from (call for call in found if isinstance(call, ast.Call))


def _text(node: ast.expr) -> str:
    """Return a text as it is, and "" for any other value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""
