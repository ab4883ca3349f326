"""Hooks of a block: in force where it was opened, in its thread and task, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Any, Literal, TypeVar

from transformer_lens.hook_points import HookPoint, LensHandle

from tsfm_lens.errors import HookError, UnknownNameError
from tsfm_lens.hooks.block import Scope
from tsfm_lens.hooks.names import select

Direction = Literal["fwd", "bwd"]
Hook = tuple[str, Callable[..., Any], Direction]
"""(exact name of a hook point, function of an activation and ``hook=``, direction)."""
T = TypeVar("T")

# open contexts of the running task or thread; a task begins with those that were open at its creation
_CURRENT: ContextVar[tuple[Context[Any], ...]] = ContextVar("open contexts", default=())


class Context(Scope[T]):
    """Scope that is in force in the thread and task that opened it.

    Args:
        threads: dispatchers of a model's hooks, by thread.
    """

    def __init__(self, threads: threading.local) -> None:
        self._threads = threads
        self._dispatcher: Any = None

    def begin(self) -> None:
        """Note where the running code stands, and be open there."""
        self._task, self._generator = _running_task(), _open_generator()
        self.is_open = True
        _CURRENT.set((*_CURRENT.get(), self))

    def end(self) -> None:
        """Be open nowhere; may be called again."""
        self.is_open = False
        _CURRENT.set(tuple([context for context in _CURRENT.get() if context.is_open]))

    def acts(self) -> bool:
        """Return whether the context is open where the running code stands.

        Raises:
            HookError: it is open in a generator that waits at a ``yield``.
        """
        if not self.is_open or getattr(self._threads, "dispatcher", None) is not self._dispatcher:
            return False
        if self not in _CURRENT.get():
            # of a task that ended without leaving its block, as a notebook's cell does, the thread takes it over
            task = None if self._task is None else self._task()
            if self._task is None or not (task is None or task.done()):
                return False
        if self._generator is not None and not _is_running(self._generator[0]):
            raise HookError(
                f"a context that is open in the generator {self._generator[1]} would act on what runs while that one "
                "waits at its yield, and nothing says whether it is meant to. Leave the context before the yield, or "
                "make the generator a contextlib.contextmanager and enter it by a with statement."
            )
        return True


class ScopedHook:
    """Hook of a context; as a forward hook it leaves the runs of other threads and tasks alone.

    Attributes:
        context: its context.
        direction: of the hook.
        reads_only: whether it never changes what it sees.
        by_row: whether it treats every row of a batch by itself.
        by_place: whether it does so once it knows which rows of a batch run.
        calls: how often it was called.
    """

    def __init__(self, function: Callable[..., Any], context: Context[Any], direction: Direction) -> None:
        self._function, self.context, self.direction, self.calls = function, context, direction, 0
        self.reads_only = bool(getattr(function, "reads_only", False))
        self.by_row = bool(getattr(function, "by_row", False))
        self.by_place = bool(getattr(function, "by_place", False))

    def __repr__(self) -> str:
        # TransformerLens asks whenever a hook is set, and a partial shows every number of its tensors
        function = self._function
        while isinstance(function, partial):
            function = function.func
        return repr(function)

    def __call__(self, value: Any, hook: HookPoint) -> Any:
        """Call the function, or nothing in another thread or task."""
        # backward hooks run in threads of autograd's own, and torch keeps them as long as the graph
        if not (self.context.acts() if self.direction == "fwd" else self.context.is_open):
            return None
        self.calls += 1
        return self._function(value, hook=hook)


def acting_hooks(handles: Iterable[LensHandle]) -> list[Any]:
    """Return the hooks of a hook point that act here: those of acting contexts, and those that belong to the lens."""
    # another thread may take a hook out of the list meanwhile
    hooks = [handle.user_hook for handle in tuple(handles)]
    return [hook for hook in hooks if not isinstance(hook, ScopedHook) or hook.context.acts()]


def resolve_hooks(
    names: Iterable[str],
    hooks: Iterable[tuple[str | Callable[[str], bool], Callable[..., Any]]],
    direction: Direction,
) -> list[Hook]:
    """Resolve globs and predicates to hooks with exact names.

    Raises:
        UnknownNameError: a name matches no hook point, or a predicate is true of none.
    """
    by_name: list[Hook] = []
    for name, hook in hooks:
        matches = list(filter(name, names)) if callable(name) else select(names, name)
        if not matches:
            raise UnknownNameError(f"{name!r} is true of no hook point; lens.hook_table() lists them")
        by_name += [(exact, hook, direction) for exact in matches]
    return by_name


def detach(point: HookPoint, hook: ScopedHook) -> None:
    """Take a hook off its hook point, wherever an interrupt left it."""
    is_listed = False
    for handles in (point.fwd_hooks, point.bwd_hooks):
        for handle in tuple(handles):
            if handle.user_hook is hook:
                is_listed = True
                handle.hook.remove()
                # in place and without a lock: another thread may set a hook meanwhile
                while any(other is handle for other in tuple(handles)):
                    with contextlib.suppress(ValueError):
                        handles.remove(handle)
    if is_listed:
        return
    # an interrupt came between torch's hook and its place in the list
    ids = {handle.hook.id for handle in (*point.fwd_hooks, *point.bwd_hooks)}
    for table in (point._forward_hooks, point._backward_hooks):
        for key, other in tuple(table.items()):
            if key not in ids and other.__qualname__.startswith("HookPoint.add_hook."):
                table.pop(key, None)


def _running_task() -> weakref.ref[asyncio.Task[Any]] | None:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else weakref.ref(task)


def _open_generator() -> tuple[int, str] | None:
    """Return frame and name of the generator whose ``with`` statement enters a block, if it is no context manager."""
    frame: FrameType | None = sys._getframe(1)
    package = __name__.rpartition(".")[0]
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        # a generator driven by contextlib belongs to the statement that entered it
        if module != "contextlib" and not module.startswith(package):
            if not frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
                return None
            if frame.f_back is None or frame.f_back.f_globals.get("__name__") != "contextlib":
                return id(frame), f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
    return None


def _is_running(frame_id: int) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame) != frame_id:
        frame = frame.f_back
    return frame is not None
