"""Blocks that end all that they began, at whatever instant an interrupt comes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tsfm_lens.errors import HookError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Scope(Protocol[T_co]):
    """State that a block begins and ends."""

    is_open: bool = False

    def open(self) -> T_co:
        """Begin; :attr:`is_open` is set before anything else is done."""

    def close(self) -> None:
        """End what was begun, as far as it was; may be broken off, and called again."""

    def check(self) -> None:
        """Raise for a silent failure; called after the end of a block without an error."""
        return


class _Exit(partial[None]):
    """Call that leaves a block; whoever drops it without having called it leaves the block too."""

    owner: Block[Any]

    def __del__(self) -> None:
        self.args[0].close()


class _Way:
    """``__enter__`` or ``__exit__`` as a call of C that hands on the scope alone.

    A traceback keeps the frames that an interrupt broke off. They hold the scope, while the ``with`` statement alone
    holds the way out: however it is broken off, it drops that.
    """

    def __init__(self, kind: type[partial[Any]], act: Callable[..., Any]) -> None:
        self._kind, self._act = kind, act

    def __get__(self, block: Block[Any] | None, _type: type) -> Callable[..., Any]:
        if block is None:
            # contextlib asks the class
            return lambda block, *error: self._act(block._scope, *error)
        way = self._kind(self._act, block._scope)
        way.owner = block  # type: ignore[attr-defined]
        return way


def _enter(scope: Scope[T_co]) -> T_co:
    if scope.is_open:
        raise HookError("this block is open already; make another of the same kind to enter it once more")
    try:
        return scope.open()
    except BaseException:
        scope.close()
        raise


def _leave(scope: Scope[Any], kind: type[BaseException] | None = None, *_error: Any) -> None:
    scope.close()
    if kind is None:
        scope.check()


class Block(Generic[T_co]):
    """A ``with`` block.

    Args:
        scope: the state that it begins and ends; its ``open`` returns the value after ``as``.
    """

    def __init__(self, scope: Scope[T_co]) -> None:
        self._scope = scope

    def __del__(self) -> None:
        self._scope.close()

    if TYPE_CHECKING:

        def __enter__(self) -> T_co: ...

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

    else:
        __enter__, __exit__ = _Way(partial, _enter), _Way(_Exit, _leave)


class _Several(Scope[T]):
    """Scopes that begin one after the other and end in reverse, as one."""

    def __init__(self, value: T, scopes: list[Scope[Any]]) -> None:
        self._value, self._scopes = value, scopes

    def open(self) -> T:
        self.is_open = True
        for scope in self._scopes:
            scope.open()
        return self._value

    def close(self) -> None:
        for scope in reversed(self._scopes):
            scope.close()
        self.is_open = False

    def check(self) -> None:
        for scope in self._scopes:
            scope.check()


def together(value: T, *blocks: Block[Any]) -> Block[T]:
    """Enter several blocks as one, in this order; the block gives ``value``."""
    return Block(_Several(value, [block._scope for block in blocks]))
