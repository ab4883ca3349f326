"""Extension from outside: entry points, added methods, and lists of exports.

:func:`load_extension` and :func:`load_all` import what other distributions register;
:func:`add_method` gives classes methods that upper packages define; :func:`export`
binds in a package what its modules list in ``__all__``, and :func:`import_on_use` does
so at the first use of a name.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from inspect import ismodule
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, TypeVar

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.foreign_words import refuse_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MEASUREMENTS = "tsfm_lens.measurements"
"""Group of entry points that are named by the kind of a measurement.

Each refers to the module that registers this measurement with its figures.
"""
WIRINGS = "tsfm_lens.wirings"
"""Group of entry points: modules that register architectures."""
COMMANDS = "tsfm_lens.commands"
"""Group of entry points that are named by a command; each refers to its module."""

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

# both by the name of the class
_CLASSES: dict[str, type] = {}
_METHODS: dict[str, list[Callable[..., Any]]] = {}


def extensible(owner: C) -> C:
    """Let packages above add methods to a class; see :func:`add_method`."""
    _CLASSES[owner.__name__] = owner
    # methods may be there before their class, as `verbs` is imported first of all
    for method in _METHODS.get(owner.__name__, ()):
        setattr(owner, method.__name__, method)
    return owner


def add_method(*owners: str) -> Callable[[F], F]:
    """Make a function a method of the :func:`extensible` classes of these names.

    A class that is imported later gets the method then.

    Returns:
        A decorator.
    """

    def attach(method: F) -> F:
        for owner in owners:
            _METHODS.setdefault(owner, []).append(method)
            if owner in _CLASSES:
                setattr(_CLASSES[owner], method.__name__, method)
        return method

    return attach


@cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name.

    Those whose package does not exist are left out.
    """
    # imported here, as it takes half of the import time of the package
    from importlib.metadata import entry_points

    found = {}
    for point in entry_points(group=group):
        if _has_package(point.module):
            found[point.name] = point
    return found


def _has_package(module: str) -> bool:
    """Test if the package that contains a module exists.

    The metadata of an installation still list a package that was deleted from it.

    Returns:
        True if it does.
    """
    parent = module.rpartition(".")[0]
    try:
        return not parent or find_spec(parent) is not None
    except ModuleNotFoundError:
        return False


def extension_modules(group: str) -> dict[str, str]:
    """Return the module of each entry point of a group, and import none."""
    return {name: point.module for name, point in _entry_points(group).items()}


def load_extension(group: str, name: str) -> None:
    """Import the module that registers one name of a group.

    Any distribution may have the entry point; without one, nothing is imported.

    Raises:
        InputError: the module cannot be imported.
    """
    point = _entry_points(group).get(name)
    if point is None:
        return
    try:
        import_module(point.module)
    # code of others may raise anything when it is imported
    except Exception as error:
        raise InputError(_failure(point, error)) from error


def load_all(group: str) -> None:
    """Import the modules of all entry points of a group.

    A module that cannot be imported is named in a warning.
    """
    # one module may register many names
    by_module = {point.module: point for point in _entry_points(group).values()}
    for module, point in by_module.items():
        try:
            import_module(module)
        # one broken extension must not take the others away
        except Exception as error:
            warnings.warn(_failure(point, error), stacklevel=2)


def _failure(point: EntryPoint, error: Exception) -> str:
    cause = f"{type(error).__name__}: {error}"
    return f"extension {point.name!r} ({point.module}) cannot be loaded: {cause}"


def export(package: str) -> list[str]:
    """Bind in a package what its modules list in ``__all__``.

    Of other names, the package says what replaces them.

    Returns:
        The names, sorted.
    """
    namespace = vars(sys.modules[package])
    modules = [
        import_module(f"{package}.{iter_module.name}")
        for iter_module in iter_modules(namespace["__path__"])
    ]
    # a function with the name of its module replaces the module in the package
    names = {
        name: getattr(module, name)
        for module in modules
        for name in getattr(module, "__all__", ())
    }
    # after all imports, each of which binds its module under the same name
    namespace.update(names)
    namespace["__getattr__"] = partial(refuse_name, package)
    return sorted(names)


def public_attributes(names: Iterable[str]) -> list[str]:
    """Keep the names of an object's attributes that are not private, sorted.

    ``__dir__`` of what users hold returns them, so that completion shows nothing else.

    Returns:
        The names.
    """
    return sorted({name for name in names if not name.startswith("_")})


def public_names(namespace: Mapping[str, Any]) -> list[str]:
    """List the names of a package's namespace that are neither modules nor private."""
    return sorted(
        name
        for name, item in namespace.items()
        if name[0] != "_" and not ismodule(item)
    )


def import_on_use(
    package: str, modules: Mapping[str, Sequence[str]]
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names are imported at first use.

    ``modules`` has the public names of each module of the package.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return find
