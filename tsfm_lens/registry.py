"""Registry in which packages above extend those below: methods of classes, measurements, figures, commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any, TypeVar

DISTRIBUTION, VERSION = "tsfm-lens-toolbox", "0.1.0"
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_CLASSES: dict[str, type] = {}
_METHODS: dict[str, list[Callable[..., Any]]] = {}

SHOWN, COMMANDS = "tsfm_lens.shown", "tsfm_lens.commands"


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
    """Import every module that an entry point of this distribution names in a group; importing one registers it.

    Args:
        group: :data:`SHOWN` for measurements and figures, :data:`COMMANDS` for commands of ``tsfm-lens``.
    """
    try:
        points = distribution(DISTRIBUTION).entry_points
    except PackageNotFoundError:
        return
    for point in points.select(group=group):
        # an installation outlives a package that was taken out of it
        if find_spec(point.module.rpartition(".")[0]) is not None:
            point.load()
