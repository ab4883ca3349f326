"""Checks of a probe's arguments: runs, lenses and results of other probes.

:func:`check_arguments` wraps all functions of a package once, by their annotations;
probes call the other checks themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from inspect import isfunction, signature, unwrap
from typing import Any, get_type_hints

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.foreign_words import answers_arguments
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

__all__ = []

# annotation -> the type of the argument, and its description in messages
_TYPES: dict[Any, tuple[Any, str]] = {
    Run: (Run, "a Run, as lens.run(...) gives"),
    Run | None: (Run | None, "a Run, as lens.run(...) gives, or None"),
    Lens: (Lens, "a Lens, as tsfm_lens.load(...) gives"),
    Mapping[int, Lens]: (Mapping, "a mapping of steps to lenses"),
}


def check_option(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse an option that is none of the words given."""
    if value not in choices:
        raise InputError(
            f"{name}={value!r} is not known, choose {' or '.join(map(repr, choices))}"
        )


def check_seed(seed: Any) -> None:
    """Refuse what random numbers cannot start from."""
    # True is an int
    is_whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not is_whole or not 0 <= seed < 2**63:
        raise InputError(f"seed is {seed!r}, expected an integer from 0 to 2**63 - 1")


def check_arguments(package: str) -> None:
    """Let the functions of a package refuse what is not a run or lens, in words.

    An argument is checked where its annotation asks for one, and so is a seed; one that
    a function does not have is refused by
    :func:`~tsfm_lens.core.foreign_words.answers_arguments`.
    """
    namespace = vars(sys.modules[package])
    for name in namespace["__all__"]:
        if isfunction(probe := namespace[name]):
            home = vars(sys.modules[probe.__module__])
            label = f"{package.rpartition('.')[2]}.{name}"
            guarded = answers_arguments(label)(_guard(label, probe))
            namespace[name] = home[name] = guarded


def _guard(name: str, probe: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function with the checks of its arguments, if it has any."""
    call = signature(probe)
    annotations = get_type_hints(unwrap(probe))
    checks = {
        parameter: _TYPES[annotations[parameter]]
        for parameter in call.parameters
        if _is_checked(annotations.get(parameter))
    }

    has_seed = annotations.get("seed") is int

    @wraps(probe)
    def checked(*args: Any, **options: Any) -> Any:
        values = call.bind_partial(*args, **options).arguments
        if has_seed and "seed" in values:
            check_seed(values["seed"])
        for argument, (expected, requirement) in checks.items():
            if argument not in values or isinstance(values[argument], expected):
                continue
            value = values[argument]
            is_first = argument == next(iter(call.parameters))
            if is_first:
                label = requirement
            else:
                label = f"as {argument} {requirement}"
            advice = ""
            if expected is Lens and isinstance(value, Run):
                advice = "; its .lens is one"
            raise InputError(f"{name} takes {label}; this is {called(value)}{advice}")
        return probe(*args, **options)

    if checks or has_seed:
        return checked
    return probe


def _is_checked(annotation: Any) -> bool:
    # annotations such as Literal of a list are not hashable
    return isinstance(annotation, Hashable) and annotation in _TYPES


def of_kind(result: Any, kind: str, probe: str) -> xr.Dataset:
    """Check that a result of another probe is of a kind, and return it."""
    if isinstance(result, xr.Dataset) and result.attrs.get("kind") == kind:
        return result
    if isinstance(result, xr.Dataset):
        label = f"of kind {result.attrs.get('kind')!r}"
    else:
        label = called(result)
    requirement = f"a Dataset of kind {kind!r}, as probes.{kind}(...) gives"
    raise InputError(f"probes.{probe} takes {requirement}; this is {label}")


def called(value: object) -> str:
    """Name an object in a message, by its type."""
    if value is None:
        return "None"
    return f"a {type(value).__name__}"
