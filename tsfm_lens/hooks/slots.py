"""One torch hook on a module, for all that one thread does there, in order of execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

Entering = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None]
"""(positional, keyword inputs) -> their replacement, or None to leave them."""
Leaving = Callable[[nn.Module, tuple[Any, ...], Any], Any]
"""(module, positional inputs, output) -> the output's replacement, or None to leave it."""


class Slot:
    """What acts on the inputs, or on the output, of a module.

    Torch calls hooks in the order in which they were set. Several hook points may stand at one module, and are set by
    whatever blocks come first; here they act by rank instead.

    Args:
        module: the native module.
        side: "in" or "out".
        here: whether the running thread is the one that acts; others run past.
    """

    def __init__(self, module: nn.Module, side: str, here: Callable[[], bool]) -> None:
        self._here = here
        self._acts: tuple[tuple[float, Callable[..., Any]], ...] = ()
        if side == "in":
            self._handle = module.register_forward_pre_hook(self._enter, with_kwargs=True)
        else:
            self._handle = module.register_forward_hook(self._leave)

    def close(self) -> None:
        """Take the torch hook off."""
        self._handle.remove()

    def add(self, rank: float, act: Entering | Leaving) -> Callable[[], None]:
        """Let something act there until the function returned is called; the lowest rank acts first."""
        entry = (rank, act)
        self._acts = tuple(sorted((*self._acts, entry), key=lambda ranked: ranked[0]))

        def remove() -> None:
            self._acts = tuple(ranked for ranked in self._acts if ranked is not entry)

        return remove

    def _enter(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        # torch leaves the keywords out where another thread takes the hook off while this one is about to call it
        if not self._here() or kwargs is None:
            return None
        changed = False
        for _rank, act in self._acts:
            new = act(args, kwargs)
            if new is not None:
                (args, kwargs), changed = new, True
        return (args, kwargs) if changed else None

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if not self._here():
            return None
        changed = False
        for _rank, act in self._acts:
            new = act(module, args, output)
            if new is not None:
                output, changed = new, True
        return output if changed else None
