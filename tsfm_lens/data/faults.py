"""Faults of a file: all of them at once, and the options under which it reads.

A reader stops at the first thing that it cannot decide. :func:`find_faults` applies the
cure that the error proposes and reads again, until the file reads or an error has no
cure; a proposal is only ever reported, never used to read. Where cures come from is at
the errors, see :attr:`tsfm_lens.core.errors.LensError.cures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tsfm_lens.core.errors import InputError, LensError, UnknownNameError

Options = dict[str, Any]
_MAX_FAULTS = 12
_MAX_OTHERS = 2


Write = Callable[[Mapping[str, Any]], str]
"""Function that writes options, as a call or a command has them."""


@dataclass(frozen=True)
class Fault:
    """One thing that a file or an option leaves open.

    Attributes:
        message: of the error that it raises.
        options: that avoid it; None for an option that is to be left out.
        others: further options that may do, in place of these.
        advice: end of the message that says the same in words.
    """

    message: str
    options: Mapping[str, Any]
    others: tuple[Mapping[str, Any], ...] = ()
    advice: str = ""

    def describe_alone(self, write: Write) -> str:
        """Say what is wrong, and the options that its message leaves out.

        Those of ``options`` are in the call or command that reads the file.

        Returns:
            The text.
        """
        left_out = [
            write(options)
            for options in self.others
            if None not in options.values()
            and not all(part in self.message for part in list_arguments(options))
        ]
        if not left_out:
            return self.message
        return f"{self.message}. Also possible: {' or '.join(left_out)}"

    def describe(self, write: Write) -> str:
        """Say what is wrong, and the options that avoid it."""
        if not self.options:
            return self.message.removesuffix(".")
        problem = self.message.removesuffix(self.advice).removesuffix(".")
        alternatives = [write(options) for options in (self.options, *self.others)]
        return f"{problem}; give {' or '.join(alternatives)}"


@dataclass(frozen=True)
class Faults:
    """Faults of a file in the order in which a reader meets them.

    Attributes:
        path: of the file, as the caller wrote it.
        found: the faults.
        changes: options that differ from those given, by name; None for one that is to
            be left out.
        readable: whether the file reads with them.
        notes: of what is then read by rule, such as which columns are forecast.
    """

    path: str
    found: tuple[Fault, ...]
    changes: Mapping[str, Any]
    readable: bool
    notes: tuple[str, ...] = ()

    def sentences(self, write: Write) -> list[str]:
        """Say each fault in a sentence, without its full stop."""
        if len(self.found) == 1:
            return [self.found[0].describe_alone(write)]
        return [fault.describe(write) for fault in self.found]

    def describe(self, call: str) -> str:
        """Say all faults, and the call that reads the file."""
        sentences = self.sentences(_write_arguments)
        text = f"{self.path}: {sentences[0]}"
        if len(sentences) > 1:
            numbered = [f"({i}) {text}" for i, text in enumerate(sentences, 1)]
            text = (
                f"{self.path}: {len(numbered)} things are wrong. {'. '.join(numbered)}"
            )
        if self.readable:
            return f"{text}. This reads it: {call}"
        return text


def _write_arguments(options: Mapping[str, Any]) -> str:
    return " and ".join(list_arguments(options))


def list_arguments(options: Mapping[str, Any]) -> list[str]:
    """Write each option as a keyword argument."""
    parts = []
    for name, value in options.items():
        if value is None:
            parts.append(f"no {name}")
        elif isinstance(value, tuple):
            parts.append(f"{name}={list(value)!r}")
        else:
            parts.append(f"{name}={value!r}")
    return parts


def find_faults(
    path: str, read: Callable[..., Any], options: Options, first: LensError
) -> Faults:
    """Find what else is wrong with a file that a reader has refused.

    Args:
        path: of the file.
        read: reader of the file, called with options.
        options: that were given.
        first: error of the reader under them.

    Returns:
        All faults that were found, and the options that cure them.
    """
    current = dict(options)
    error: LensError | None = first
    faults: list[Fault] = []
    tried = [current]
    while error is not None and len(faults) < _MAX_FAULTS:
        # an option that is not given need not be left out
        cures = [cure for cure in error.cures if _merge(current, cure) != current]
        cure, next_error = _apply(read, current, error, cures)
        others = [other for other in cures if other != cure][:_MAX_OTHERS]
        faults.append(Fault(str(error), cure, tuple(others), error.advice))
        # options that were tried before lead round in a circle
        if not cure or _merge(current, cure) in tried:
            break
        current = _merge(current, cure)
        tried.append(current)
        error = next_error
    names = [*options, *(name for name in current if name not in options)]
    changes = {
        name: current.get(name)
        for name in names
        if current.get(name) != options.get(name)
    }
    notes: tuple[str, ...] = ()
    if error is None:
        notes = read(**current).notes
    return Faults(path, tuple(faults), changes, readable=error is None, notes=notes)


def _apply(
    read: Callable[..., Any],
    options: Options,
    error: LensError,
    cures: Sequence[Mapping[str, Any]],
) -> tuple[Mapping[str, Any], LensError | None]:
    """Return the first cure that leads on, and the error that is met then.

    The error is None if the file reads. Without such a cure, it is the same one.
    """
    partial: tuple[Mapping[str, Any], LensError | None] = ({}, error)
    for cure in cures:
        following = _attempt(read, _merge(options, cure))
        if following is None:
            return cure, None
        # the same message again: the cure did not do
        if str(following) != str(error) and not partial[0]:
            partial = (cure, following)
    return partial


def _attempt(read: Callable[..., Any], options: Options) -> LensError | None:
    try:
        read(**options)
    except (InputError, UnknownNameError) as error:
        return error
    return None


def _merge(options: Options, cure: Mapping[str, Any]) -> Options:
    merged = {**options, **cure}
    # a cure names one more covariate, beside those that were named
    if "categories" in cure:
        merged["categories"] = (*options.get("categories", ()), *cure["categories"])
    return {name: value for name, value in merged.items() if value is not None}
