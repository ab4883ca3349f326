"""Checks of a probe's arguments: a run, a lens or another probe's result; anything else is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import isfunction, signature
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

_RUN, _LENS = "a Run, as lens.run(...) gives", "a Lens, as tsfm_lens.load(...) gives"


def _all(kind: type, value: object) -> bool:
    """Check the entries of a list or tuple; entries that are made one by one are not looked at."""
    return not isinstance(value, list | tuple) or all(isinstance(each, kind) for each in value)


# annotation -> a check of the argument, and the argument's name in messages
_CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    "Run": (lambda value: isinstance(value, Run), _RUN),
    "Run | None": (lambda value: value is None or isinstance(value, Run), f"{_RUN}, or None"),
    "Run | Sequence[Run]": (
        lambda value: isinstance(value, Run) or (isinstance(value, list | tuple) and _all(Run, value)),
        f"{_RUN}, or a list of such",
    ),
    "Lens": (lambda value: isinstance(value, Lens), _LENS),
    "Iterable[Lens]": (
        lambda value: isinstance(value, Iterable) and not isinstance(value, str | np.ndarray) and _all(Lens, value),
        "several lenses, as tsfm_lens.load(...) gives each",
    ),
    "Mapping[int, Lens]": (lambda value: isinstance(value, Mapping), "a mapping of steps to lenses"),
}


def refuse_others(package: str) -> None:
    """Let every function of a package refuse what is no run or lens, where its annotation asks for one.

    Each checked function replaces the original in the package and in its own module, with the same signature and
    docstring.

    Args:
        package: dotted name of the package, which has set ``__all__`` before.
    """
    namespace = vars(sys.modules[package])
    for name in namespace["__all__"]:
        probe = namespace[name]
        if isfunction(probe) and (arguments := _run_arguments(probe)):
            home = vars(sys.modules[probe.__module__])
            namespace[name] = home[name] = _guard(f"{package.rpartition('.')[2]}.{name}", probe, arguments)


def of_kind(result: Any, kind: str, probe: str, source: str = "") -> xr.Dataset:
    """Check that a result of another probe is of a kind, and return it.

    Args:
        result: the probe's argument.
        kind: required kind of the result, such as "logit_lens".
        probe: name of the probe that takes it, such as "layer_gain".
        source: name of the probe that computes such results, if it differs from the kind.

    Raises:
        InputError: the result is of another kind, or not a Dataset.
    """
    actual = result.attrs.get("kind") if isinstance(result, xr.Dataset) else None
    if actual != kind:
        words = f"of kind {actual!r}" if isinstance(result, xr.Dataset) else called(result)
        requirement = f"a Dataset of kind {kind!r}, as probes.{source or kind}(...) gives"
        raise InputError(f"probes.{probe} takes {requirement}; this is {words}")
    dataset: xr.Dataset = result
    return dataset


def _run_arguments(probe: Callable[..., Any]) -> list[tuple[int, str, str]]:
    """Return place, name and annotation of the arguments that are runs or lenses."""
    arguments = [(each.name, str(each.annotation)) for each in signature(probe).parameters.values()]
    return [(place, name, words) for place, (name, words) in enumerate(arguments) if words in _CHECKS]


def _guard(name: str, probe: Callable[..., Any], arguments: list[tuple[int, str, str]]) -> Callable[..., Any]:
    @wraps(probe)
    def call(*args: Any, **options: Any) -> Any:
        for place, argument, words in arguments:
            # a missing argument has a default, or the probe refuses the call
            if place < len(args) or argument in options:
                value = args[place] if place < len(args) else options[argument]
                fits, requirement = _CHECKS[words]
                if not fits(value):
                    cure = "; its .lens is one" if words == "Lens" and isinstance(value, Run) else ""
                    of = f"as {argument} " if place else ""
                    raise InputError(f"{name} takes {of}{requirement}; this is {called(value)}{cure}")
        return probe(*args, **options)

    return call


def called(value: object) -> str:
    """Name an object in a message, by its type."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
