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
    for file in _files():
        text = file.read_text(encoding="utf-8")
        # most files declare nothing, and a syntax tree takes long to make
        if not any(word in text for word in _WORDS):
            continue
        for node in ast.parse(text).body:
            kinds += _kinds(node)
            figures += _figures(node)
    return kinds, figures


def _files() -> Iterator[Path]:
    for folder in _FOLDERS:
        yield from sorted((_PACKAGE / folder).rglob("*.py"))
    for module in sorted(set(extension_modules(MEASUREMENTS).values())):
        path = _PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
        if module.startswith("tsfm_lens.") and path.exists():
            yield path


def _calls(node: ast.stmt, name: str) -> Iterator[ast.Call]:
    """Yield the calls of a function that decorate a statement, or are one."""
    found: list[ast.expr] = []
    if isinstance(node, ast.FunctionDef):
        found = node.decorator_list
    elif isinstance(node, ast.Expr | ast.Assign):
        found = [node.value]
    for call in found:
        # figure("kind")(function) registers a function that stands elsewhere
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Call):
            call = call.func
        if isinstance(call, ast.Call) and _text_of_name(call.func) == name:
            yield call


def _text_of_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return ""


def _text(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    values = [item.value for item in call.keywords if item.arg == name]
    return next(iter(values), None)


def _kinds(node: ast.stmt) -> Iterator[DeclaredKind]:
    for call in _calls(node, "probe"):
        first = call.args[0] if call.args else _keyword(call, "takes")
        assert isinstance(node, ast.FunctionDef)
        needs = _text(_keyword(call, "needs"))
        yield DeclaredKind(node.name, needs, of_run=_text(first) not in _OF_SEVERAL)
    for call in _calls(node, "measurement"):
        has_function = _keyword(call, "function") is not None
        takes = _text(_keyword(call, "takes"))
        needs = _text(_keyword(call, "needs"))
        of_run = has_function and takes not in _OF_SEVERAL
        yield DeclaredKind(_text(call.args[0]), needs, of_run)


def _figures(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef) and any(_calls(node, "figure")):
        yield node.name
    for call in _calls(node, "generic_figure"):
        kind, variable = map(_text, call.args[:2])
        yield f"{kind}_{variable}"
