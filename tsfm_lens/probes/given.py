"""What a probe is given: a run, a lens or another probe's result; anything else is refused by what it takes."""

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


def _all(kind: type, given: object) -> bool:
    """Whether several are given; what is made one by one is not looked at."""
    return not isinstance(given, list | tuple) or all(isinstance(each, kind) for each in given)


# by the words of an annotation: whether something is what it asks for, and what that is called
_ASKED: dict[str, tuple[Callable[[object], bool], str]] = {
    "Run": (lambda given: isinstance(given, Run), _RUN),
    "Run | None": (lambda given: given is None or isinstance(given, Run), f"{_RUN}, or None"),
    "Run | Sequence[Run]": (
        lambda given: isinstance(given, Run) or (isinstance(given, list | tuple) and _all(Run, given)),
        f"{_RUN}, or a list of such",
    ),
    "Lens": (lambda given: isinstance(given, Lens), _LENS),
    "Iterable[Lens]": (
        lambda given: isinstance(given, Iterable) and not isinstance(given, str | np.ndarray) and _all(Lens, given),
        "several lenses, as tsfm_lens.load(...) gives each",
    ),
    "Mapping[int, Lens]": (lambda given: isinstance(given, Mapping), "a mapping of steps to lenses"),
}


def refuse_others(room: str) -> None:
    """Let every function that a room offers refuse what is no run, or no lens, where its annotation asks for one.

    Each stands under its name in the room and in its own module, with the signature and the docstring that it has.

    Args:
        room: dotted name of the package, whose ``__all__`` is known by then.
    """
    offered = vars(sys.modules[room])
    for name in offered["__all__"]:
        probe = offered[name]
        if isfunction(probe) and (asked := _asked(probe)):
            own = vars(sys.modules[probe.__module__])
            offered[name] = own[name] = _refusing(f"{room.rpartition('.')[2]}.{name}", probe, asked)


def of_kind(result: Any, kind: str, probe: str, made_by: str = "") -> xr.Dataset:
    """A result of another probe.

    Args:
        result: what the probe was given.
        kind: that its attributes must name, such as "logit_lens".
        probe: that takes it, such as "layer_gain".
        made_by: the probe whose result it is, if it has another name than the kind.

    Raises:
        InputError: it is of another kind, or no result.
    """
    found = result.attrs.get("kind") if isinstance(result, xr.Dataset) else None
    if found != kind:
        words = f"of kind {found!r}" if isinstance(result, xr.Dataset) else called(result)
        wanted = f"a Dataset of kind {kind!r}, as probes.{made_by or kind}(...) gives"
        raise InputError(f"probes.{probe} takes {wanted}; this is {words}")
    checked: xr.Dataset = result
    return checked


def _asked(probe: Callable[..., Any]) -> list[tuple[int, str, str]]:
    """Place, name and annotation of the arguments that are runs or lenses."""
    arguments = [(each.name, str(each.annotation)) for each in signature(probe).parameters.values()]
    return [(place, name, words) for place, (name, words) in enumerate(arguments) if words in _ASKED]


def _refusing(name: str, probe: Callable[..., Any], asked: list[tuple[int, str, str]]) -> Callable[..., Any]:
    @wraps(probe)
    def probing(*args: Any, **options: Any) -> Any:
        for place, argument, words in asked:
            # what is not given has a default, or is refused by the probe
            if place < len(args) or argument in options:
                given = args[place] if place < len(args) else options[argument]
                fits, wanted = _ASKED[words]
                if not fits(given):
                    cure = "; its .lens is one" if words == "Lens" and isinstance(given, Run) else ""
                    of = f"as {argument} " if place else ""
                    raise InputError(f"{name} takes {of}{wanted}; this is {called(given)}{cure}")
        return probe(*args, **options)

    return probing


def called(given: object) -> str:
    """An object as a message speaks of it: by its type."""
    if given is None:
        return "None"
    name = type(given).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
