"""Blocks that undo everything at their end, even after an interrupt.

Read :class:`Scope`, what a block begins and ends, then :class:`Block`, the ``with``
statement of it. :class:`TorchHook` and :func:`hooked` are the torch hooks that blocks
set. Nothing here knows of hook points or models.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, TypeVar

from torch import nn

from tsfm_lens.core.errors import HookError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
# the scopes that were entered, the newest last, and in which thread
_ENTERED: weakref.WeakKeyDictionary[Scope[Any], int] = weakref.WeakKeyDictionary()

Side = Literal["in", "out", "end"]
"""Side of a module: before its forward, after it, or after it even if it failed."""


class Scope(Protocol[T_co]):
    """State that a block begins and ends."""

    is_open: bool = False
    label: str = ""
    """What the block does, for its repr."""

    def open(self) -> T_co:
        """Begin; :attr:`is_open` is set before anything else is done."""

    def close(self) -> None:
        """End what was begun; may be interrupted and called again."""

    def check(self) -> None:
        """Raise for a silent failure.

        Called after a block that ended without an error.
        """
        return


class Steps(Scope[T]):
    """Scope of two functions; ``end`` may be interrupted and called again."""

    def __init__(
        self,
        value: T,
        begin: Callable[[], Any],
        end: Callable[[], Any],
        check: Callable[[], None] | None = None,
    ) -> None:
        self._value = value
        self._begin = begin
        self._end = end
        self._check = check

    def open(self) -> T:
        """Enter the block, and return the value that it yields."""
        self.is_open = True
        self._begin()
        return self._value

    def close(self) -> None:
        """Undo what entering the block did."""
        if self.is_open:
            self._end()
            self.is_open = False

    def check(self) -> None:
        """Check, after a block that did not raise, that it did its work."""
        if self._check is not None:
            self._check()


class _Exit(partial[None]):
    """Call that leaves a block; deleting it without a call leaves the block, too."""

    owner: Block[Any]

    def __del__(self) -> None:
        self.args[0].close()


class _Way:
    """``__enter__`` or ``__exit__`` as a ``partial``.

    An interrupt then finds no Python frame that holds the block.

    A traceback keeps the frames that an interrupt broke off. They hold the scope, while
    the ``with`` statement alone holds the way out: however it is broken off, it drops
    that.
    """

    def __init__(self, kind: type[partial[Any]], act: Callable[..., Any]) -> None:
        self._kind = kind
        self._act = act

    def __get__(self, block: Block[Any] | None, _type: type) -> Callable[..., Any]:
        if block is None:
            # contextlib looks the methods up on the class
            return lambda block, *error: self._act(block._scope, *error)
        way = self._kind(self._act, block._scope)
        way.owner = block  # type: ignore[attr-defined]
        return way


def _enter(scope: Scope[T_co]) -> T_co:
    """Begin a scope; end it at once if that fails."""
    if scope.is_open:
        raise HookError(
            "this block is open already; make another of the same kind to enter it once"
            " more"
        )
    # taken out first, so that a block entered again is the newest
    _ENTERED.pop(scope, None)
    _ENTERED[scope] = threading.get_ident()
    try:
        return scope.open()
    # KeyboardInterrupt is no Exception
    except BaseException:
        scope.close()
        raise


def _leave(
    scope: Scope[Any], kind: type[BaseException] | None = None, *_error: Any
) -> None:
    """End a scope, and check it if the block raised no error."""
    scope.close()
    if kind is None:
        scope.check()


def _leave_blocks_of_lost_threads() -> None:
    """Leave, in the child of a fork, the blocks of threads that it lacks.

    Nobody else would, and their turns would last.

    What they changed is undone in the child as at their end: hooks, shadowed forwards,
    the random state.
    """
    running_thread = threading.get_ident()
    # newest first, as nested blocks end
    for scope, thread in reversed(list(_ENTERED.items())):
        if thread != running_thread:
            scope.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_blocks_of_lost_threads)


class Block(Generic[T_co]):
    """``with`` block that begins and ends a scope.

    It yields what the scope's ``open`` returns.
    """

    def __init__(self, scope: Scope[T_co]) -> None:
        self._scope = scope

    def __del__(self) -> None:
        self._scope.close()

    def __repr__(self) -> str:
        return f"Block({self._scope.label}), open inside a with statement"

    if TYPE_CHECKING:

        def __enter__(self) -> T_co: ...

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None: ...

    else:
        __enter__ = _Way(partial, _enter)
        __exit__ = _Way(_Exit, _leave)


class TorchHook:
    """Torch hook ``act(module, args, kwargs[, output])``.

    Whether it is on is read from the module, not kept here.
    """

    def __init__(self, module: nn.Module, side: Side, act: Callable[..., Any]) -> None:
        self._module = module
        self._side = side
        self._act = act
        self._ids: set[int] = set()

    def __call__(self, *call: Any) -> Any:
        # torch leaves the keywords out where another thread takes the hook off while
        # this one is about to call it
        """Act on a call of the module, where the hook is not switched off."""
        n_arguments = 3 if self._side == "in" else 4
        if len(call) != n_arguments:
            return None
        return self._act(*call)

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise HookError(
            f"a context is open, and its hook on a {type(self._module).__name__} would"
            " stay on a copy; leave it first"
        )

    def set(self) -> None:
        """Put the hook on its module, if it is not."""
        module = self._module
        if self._side == "in":
            table = module._forward_pre_hooks
        else:
            table = module._forward_hooks
        # a copy, since another thread may set a hook meanwhile
        if self in tuple(table.values()):
            return
        if self._side == "in":
            module.register_forward_pre_hook(self, with_kwargs=True)
        else:
            module.register_forward_hook(
                self, with_kwargs=True, always_call=self._side == "end"
            )

    def remove(self) -> None:
        """Take the hook off, if it is on."""
        module = self._module
        tables: tuple[dict[int, Any], ...] = (
            module._forward_pre_hooks,
            module._forward_hooks,
        )
        for table in tables:
            for key, hook in tuple(table.items()):
                if hook is self:
                    # kept: an interrupt between two of the tables below leaves the key
                    # in the rest
                    self._ids.add(key)
        marks = module._forward_pre_hooks_with_kwargs, module._forward_hooks_with_kwargs
        for table in (*tables, *marks, module._forward_hooks_always_called):
            for key in self._ids:
                table.pop(key, None)


def hooked(
    hooks: Iterable[TorchHook], value: T, check: Callable[[], None] | None = None
) -> Block[T]:
    """Set torch hooks while a block runs.

    Returns:
        A block that yields ``value`` and calls ``check`` at its end, unless it raised.
    """
    hooks = tuple(hooks)

    def begin() -> None:
        for hook in hooks:
            hook.set()

    def end() -> None:
        for hook in hooks:
            hook.remove()

    return Block(Steps(value, begin, end, check))
