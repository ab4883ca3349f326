"""Torch hooks on native modules, set and taken off so that an interrupt leaves none behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar

from torch import nn

from tsfm_lens.errors import HookError
from tsfm_lens.hooks.block import Block, Scope

Side = Literal["in", "out", "end"]
T = TypeVar("T")
ModuleSide = tuple[str, Side]
"""Path of a module, and the side of it."""


class TorchHook:
    """One torch hook on a module.

    The module itself says whether the hook is on, so that :meth:`set` and :meth:`remove` may be broken off anywhere and
    called again.

    Args:
        module: the native module.
        side: "in", before its forward; "out", after it; "end", after it even where it raised an error.
        act: takes (module, positional, keyword inputs), on the other sides the output as well; returns the
            replacement of the inputs, (positional, keyword), or of the output, or None to leave them.
    """

    def __init__(self, module: nn.Module, side: Side, act: Callable[..., Any]) -> None:
        self._module, self._side, self._act = module, side, act
        self._ids: set[int] = set()

    def __call__(self, *call: Any) -> Any:
        # torch leaves the keywords out where another thread takes the hook off while this one is about to call it
        return self._act(*call) if len(call) == (3 if self._side == "in" else 4) else None

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise HookError(
            f"a context is open, and its hook on a {type(self._module).__name__} would stay on a copy; leave it first"
        )

    def set(self) -> None:
        """Put the hook on its module, if it is not."""
        module = self._module
        table = module._forward_pre_hooks if self._side == "in" else module._forward_hooks
        if self in tuple(table.values()):
            return
        if self._side == "in":
            module.register_forward_pre_hook(self, with_kwargs=True)
        else:
            module.register_forward_hook(self, with_kwargs=True, always_call=self._side == "end")

    def remove(self) -> None:
        """Take the hook off, if it is on."""
        module = self._module
        tables: tuple[dict[int, Any], ...] = (module._forward_pre_hooks, module._forward_hooks)
        self._ids |= {key for table in tables for key, hook in tuple(table.items()) if hook is self}
        marks = (
            module._forward_pre_hooks_with_kwargs,
            module._forward_hooks_with_kwargs,
            module._forward_hooks_always_called,
        )
        for table in (*tables, *marks):
            for key in self._ids:
                table.pop(key, None)


class _Hooks(Scope[T]):
    """Several torch hooks."""

    def __init__(self, hooks: Iterable[TorchHook], value: T, check: Callable[[], None]) -> None:
        self._hooks, self._value, self.check = tuple(hooks), value, check  # type: ignore[method-assign]

    def open(self) -> T:
        self.is_open = True
        for hook in self._hooks:
            hook.set()
        return self._value

    def close(self) -> None:
        for hook in self._hooks if self.is_open else ():
            hook.remove()
        self.is_open = False


def hooked(hooks: Iterable[TorchHook], value: T, check: Callable[[], None] = lambda: None) -> Block[T]:
    """Set torch hooks for as long as a block, which gives ``value``; ``check`` is called after it, without an error."""
    return Block(_Hooks(hooks, value, check))


@dataclass
class Act:
    """Function at one side of a module.

    Attributes:
        rank: its place in the order there, lowest first.
        call: with the arguments and results of the act of a :class:`TorchHook`.
        names: hook points that need it.
    """

    rank: float
    call: Callable[..., Any]
    names: set[str] = field(default_factory=set)


class OrderedHooks(TorchHook):
    """Torch hook of one thread at one side of a module, for all acts there, in order of rank.

    Torch calls hooks in the order in which they were set. Several hook points may stand at one module, and are set by
    whatever blocks come first; here they act by rank instead.

    Args:
        module: the native module.
        side: of it.
        select: selects the acts that apply to the current call.

    Attributes:
        acts: in order of rank.
    """

    def __init__(self, module: nn.Module, side: Side, select: Callable[[tuple[Act, ...]], Sequence[Act]]) -> None:
        super().__init__(module, side, self._run)
        self._select = select
        self.acts: tuple[Act, ...] = ()

    def _run(self, module: nn.Module, args: Any, kwargs: Any, *output: Any) -> Any:
        replacement = None
        for act in self._select(self.acts):
            new = act.call(module, args, kwargs, *output)
            if new is None:
                continue
            replacement = new
            if output:
                output = (new,)
            else:
                args, kwargs = new
        return replacement
