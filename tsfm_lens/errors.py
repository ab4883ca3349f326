"""The exceptions of tsfm-lens.

    LensError
    ├── InputError          a series, file or argument cannot be used as it is
    ├── UnknownNameError    no hook point, component, series or checkpoint has this name
    ├── WiringError         the model's configuration or modules are not as a wiring describes them
    ├── CheckpointError     no loadable checkpoint is there
    ├── HookError           an intervention does not fit the activation it meets
    ├── MissingExtraError   an optional package is not installed
    ├── RenderError         a figure could not be written in the format asked for
    ├── StoreError          a sweep's store cannot be written or read
    └── SweepFailedError    some groups of a sweep could not be computed; all others are kept

Each also derives from the builtin it refines, so ``except ValueError`` keeps working.
A message says what was got, what was expected and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class LensError(Exception):
    """Base of every error that tsfm-lens raises on purpose."""


class InputError(LensError, ValueError):
    """A series, file or argument cannot be used as it is."""


class UnknownNameError(LensError, KeyError):
    """No hook point, component, series or checkpoint has this name."""

    def __str__(self) -> str:
        # KeyError would print the message in quotes
        return Exception.__str__(self)


class WiringError(LensError, ValueError):
    """The model's configuration or modules are not as a wiring describes them."""


class CheckpointError(LensError, OSError):
    """No loadable checkpoint is there."""


class HookError(LensError, RuntimeError):
    """An intervention does not fit the activation it meets."""


class MissingExtraError(LensError, ImportError):
    """An optional package is not installed."""


class RenderError(LensError, RuntimeError):
    """A figure could not be written in the format asked for."""


class StoreError(LensError, OSError):
    """A sweep's store cannot be written or read."""


class SweepFailedError(LensError, RuntimeError):
    """Some groups of a sweep could not be computed; all others are kept."""


def unknown_name(what: str, name: object, known: Iterable[str], *, hint: str = "") -> UnknownNameError:
    """Build the error for a name that does not exist, with the nearest names that do.

    Args:
        what: the kind of thing, as in "hook point".
        name: what the caller asked for.
        known: every valid name.
        hint: where the full list can be had.
    """
    options = list(known)
    near = get_close_matches(str(name), options, n=3, cutoff=0.4) or options[:3]
    message = f"no {what} {str(name)!r}."
    if near:
        message += f" Closest: {', '.join(near)}."
    else:
        message += f" There is no {what} to choose from."
    return UnknownNameError(f"{message} {hint}".strip())
