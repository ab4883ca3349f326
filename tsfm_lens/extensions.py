"""Extension from outside: entry points, methods that upper packages add, export lists of packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import ismodule
from pkgutil import iter_modules
from typing import Any, TypeVar

PROBES, FIGURES, COMMANDS = (
    "tsfm_lens.probes",
    "tsfm_lens.figures",
    "tsfm_lens.commands",
)
"""Groups of entry points: modules that register probes, measurements with their figures, commands."""

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_CLASSES: dict[str, type] = {}
_METHODS: dict[str, list[Callable[..., Any]]] = {}


def extensible(owner: C) -> C:
    """Let packages above add methods to a class; see :func:`method_of`."""
    _CLASSES[owner.__name__] = owner
    for method in _METHODS.get(owner.__name__, ()):
        setattr(owner, method.__name__, method)
    return owner


def method_of(*owners: str) -> Callable[[F], F]:
    """Make a function a method of :func:`extensible` classes, given by name, whether or not they are imported yet."""

    def attach(method: F) -> F:
        for owner in owners:
            _METHODS.setdefault(owner, []).append(method)
            if owner in _CLASSES:
                setattr(_CLASSES[owner], method.__name__, method)
        return method

    return attach


@cache
def load_extensions(group: str) -> None:
    """Import every module that an entry point of any distribution names in a group; importing one registers it."""
    # half of the time that an import of the package takes
    from importlib.metadata import entry_points

    for point in entry_points(group=group):
        parent = point.module.rpartition(".")[0]
        # an installation outlives a package that was taken out of it
        if not parent or find_spec(parent) is not None:
            point.load()


def export(package: str) -> list[str]:
    """Import the modules of a package, bind in it what each lists in ``__all__``, and return these names."""
    namespace = vars(sys.modules[package])
    modules = [
        import_module(f"{package}.{each.name}")
        for each in iter_modules(namespace["__path__"])
    ]
    # a function may have the name of its module, and stands for it in the package
    names = {
        name: getattr(module, name)
        for module in modules
        for name in getattr(module, "__all__", ())
    }
    namespace.update(names)
    return sorted(names)


def public_names(namespace: Mapping[str, Any]) -> list[str]:
    """List the names of a package's namespace that are neither modules nor private."""
    return sorted(
        name
        for name, each in namespace.items()
        if name[0] != "_" and not ismodule(each)
    )
