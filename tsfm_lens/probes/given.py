"""Checks of a probe's arguments, which are a run, a lens or another probe's result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import isfunction, signature
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

__all__ = []

_RUN, _LENS = "a Run, as lens.run(...) gives", "a Lens, as tsfm_lens.load(...) gives"


def refuse_word(name: str, value: object, words: Sequence[str]) -> None:
    """Refuse an option that is none of these words."""
    if value not in words:
        raise InputError(
            f"{name}={value!r} is not known, choose {' or '.join(map(repr, words))}"
        )


def _several(kind: type, value: object) -> bool:
    """Check a list or tuple by its entries; those of other iterables are made one by one, and not looked at."""
    if isinstance(value, list | tuple):
        return all(isinstance(each, kind) for each in value)
    return (
        kind is Lens
        and isinstance(value, Iterable)
        and not isinstance(value, str | np.ndarray)
    )


# annotation -> a check of the argument, and the argument's name in messages
_CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    "Run": (lambda value: isinstance(value, Run), _RUN),
    "Run | None": (lambda value: isinstance(value, Run | None), f"{_RUN}, or None"),
    "Run | Sequence[Run]": (
        lambda value: _several(Run, [value]) or _several(Run, value),
        f"{_RUN}, or a list of such",
    ),
    "Lens": (lambda value: isinstance(value, Lens), _LENS),
    "Iterable[Lens]": (
        lambda value: _several(Lens, value),
        "several lenses, as tsfm_lens.load(...) gives each",
    ),
    "Mapping[int, Lens]": (
        lambda value: isinstance(value, Mapping),
        "a mapping of steps to lenses",
    ),
}


def refuse_others(package: str) -> None:
    """Let the functions of a package refuse what is not a run or lens, where an annotation asks for one."""
    namespace = vars(sys.modules[package])
    for name in namespace["__all__"]:
        if isfunction(probe := namespace[name]):
            home = vars(sys.modules[probe.__module__])
            namespace[name] = home[name] = _guard(
                f"{package.rpartition('.')[2]}.{name}", probe
            )


def _guard(name: str, probe: Callable[..., Any]) -> Callable[..., Any]:
    call = signature(probe)
    checks = {
        each.name: str(each.annotation)
        for each in call.parameters.values()
        if str(each.annotation) in _CHECKS
    }
    first = next(iter(call.parameters), "")
    if not checks:
        return probe

    @wraps(probe)
    def checked(*args: Any, **options: Any) -> Any:
        values = call.bind_partial(*args, **options).arguments
        for argument, words in checks.items():
            fits, requirement = _CHECKS[words]
            if argument in values and not fits(value := values[argument]):
                cure = (
                    "; its .lens is one"
                    if words == "Lens" and isinstance(value, Run)
                    else ""
                )
                of = "" if argument == first else f"as {argument} "
                raise InputError(
                    f"{name} takes {of}{requirement}; this is {called(value)}{cure}"
                )
        return probe(*args, **options)

    return checked


def of_kind(result: Any, kind: str, probe: str) -> xr.Dataset:
    """Check that a result of another probe is of a kind, and return it."""
    if isinstance(result, xr.Dataset) and result.attrs.get("kind") == kind:
        return result
    words = (
        f"of kind {result.attrs.get('kind')!r}"
        if isinstance(result, xr.Dataset)
        else called(result)
    )
    requirement = f"a Dataset of kind {kind!r}, as probes.{kind}(...) gives"
    raise InputError(f"probes.{probe} takes {requirement}; this is {words}")


def called(value: object) -> str:
    """Name an object in a message, by its type."""
    name = type(value).__name__
    return (
        "None"
        if value is None
        else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
    )


def describe(
    lens: Lens, kind: str, title: str, source: str, **parameters: object
) -> dict[str, object]:
    """Return kind, title, source, provenance and the probe's parameters; results of runs take ``run.describe``."""
    return {
        "kind": kind,
        "title": title,
        "source": source,
        **lens.provenance(),
        **parameters,
    }
