"""Hooks that last as long as a block, in the thread and task that opened it; the lens sets hooks in this way alone."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Any, Generic, Literal, Protocol, TypeVar

from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint, LensHandle

from tsfm_lens.errors import HookError, UnknownNameError
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.names import Point, select
from tsfm_lens.hooks.obstacles import refuse_hidden

Direction = Literal["fwd", "bwd"]
Hook = tuple[str, Callable[..., Any], Direction]
"""(exact name of a hook point, function of an activation and ``hook=``, direction)."""
Observer = Callable[[Point, Tensor], None]
T = TypeVar("T")

# open blocks of the running task or thread; a task begins with those that were open at its creation
_CURRENT: ContextVar[tuple[HookScope[Any], ...]] = ContextVar("open blocks", default=())


class ThreadHooks(Protocol):
    """Hooks of one thread on a model, for the scope of a block: see :class:`tsfm_lens.hooks.session.Session`."""

    scopes: tuple[HookScope[Any], ...]

    def acting(self) -> list[HookScope[Any]]: ...

    def unconnected(self) -> list[str]: ...

    def settle(self) -> None: ...

    def refuse_inert(self, scope: HookScope[Any]) -> None: ...


class Owner(Protocol):
    """Hook points and the threads that use them: see :class:`tsfm_lens.hooks.registry.HookRegistry`."""

    model: nn.Module
    modules: dict[str, nn.Module]
    points: dict[str, Point]
    hooked: dict[str, HookPoint]

    @property
    def session(self) -> ThreadHooks: ...


class Held:
    """Hook of a block; as a forward hook it leaves the runs of other threads and tasks alone.

    Attributes:
        function: the caller's.
        scope: of the block.
        reads_only: whether it never changes what it sees.
        by_row: whether it treats every row of a batch by itself.
        by_place: whether it does so once it knows which rows of a batch run.
        calls: how often it was called.
    """

    def __init__(self, function: Callable[..., Any], scope: HookScope[Any], direction: Direction) -> None:
        self.function, self.scope, self.calls = function, scope, 0
        self.reads_only = bool(getattr(function, "reads_only", False))
        self.by_row = bool(getattr(function, "by_row", False))
        self.by_place = bool(getattr(function, "by_place", False))
        self._forward = direction == "fwd"

    def __repr__(self) -> str:
        # TransformerLens asks whenever a hook is set, and a partial shows every number of its tensors
        function = self.function
        while isinstance(function, partial):
            function = function.func
        return repr(function)

    def __call__(self, value: Any, hook: HookPoint) -> Any:
        """Call the function, or nothing in another thread or task."""
        # backward hooks run in threads of autograd's own, and torch keeps them as long as the graph
        if not (self.scope.acts() if self._forward else self.scope.is_open):
            return None
        self.calls += 1
        return self.function(value, hook=hook)


def resolved(
    registry: Owner,
    hooks: Iterable[tuple[str | Callable[[str], bool], Callable[..., Any]]],
    direction: Direction,
) -> list[Hook]:
    """Resolve globs and predicates to hooks with exact names.

    Raises:
        UnknownNameError: a name matches no hook point, or a predicate is true of none.
    """
    by_name: list[Hook] = []
    for name, hook in hooks:
        names = list(filter(name, registry.points)) if callable(name) else select(registry.points, name)
        if not names:
            raise UnknownNameError(f"{name!r} is true of no hook point; lens.hook_table() lists them")
        by_name += [(exact, hook, direction) for exact in names]
    return by_name


def holding(registry: Owner, hooks: Iterable[Hook], value: T, after: Callable[[], object] | None = None) -> Block[T]:
    """Set hooks and connect their points to the native model for as long as a block.

    Contexts act in the order in which the model passes their hook points, however they are nested; hooks on one point
    act in the order in which they were set.

    Args:
        registry: the model's hook points.
        hooks: to set.
        value: returned by the block.
        after: called when it ends; twice, where an interrupt broke it off.

    Raises:
        WiringError: compiled or replaced modules would pass a hook by.
        HookError: on leaving, the model ran and never passed a hook point, or no backward hook was ever called.
    """
    return Block(HookScope(registry, value, hooks, after=after))


class HookScope(Generic[T]):
    """Hooks of one thread's block on the native model.

    Attributes:
        names: hook points that it connects and that the model must pass.
        targets: those, and the writes that carry their edits.
        observer: the function that receives every activation in place of the hooks.
        trace: hook points that the run has passed.
        full_runs: modules that ran to their end.
        elsewhere: whether hooked modules ran in another thread or task.
    """

    def __init__(
        self,
        registry: Owner,
        value: T,
        hooks: Iterable[Hook] = (),
        *,
        observer: Observer | None = None,
        after: Callable[[], object] | None = None,
    ) -> None:
        self.is_open, self.observer = False, observer
        self.names: list[str] = []
        self.targets: set[str] = set()
        self.trace: set[str] = set()
        self.full_runs: set[str] = set()
        self.elsewhere = False
        self._registry, self._value, self._hooks, self._after = registry, value, tuple(hooks), after
        self._scoped: tuple[tuple[str, Held, Direction], ...] = ()
        self._is_closed, self._has_gradient = True, False

    def open(self) -> T:
        """Set the hooks and connect their points."""
        registry, session = self._registry, self._registry.session
        self._session, self._task, self._generator = session, _running_task(), _open_generator()
        self.targets, self.trace, self.full_runs = set(), set(), set()
        self.elsewhere = self._is_closed = False
        connections = set().union(*(scope.targets for scope in session.acting()))
        self._scoped = tuple((name, Held(hook, self, direction), direction) for name, hook, direction in self._hooks)
        self.is_open = True
        session.scopes = (*session.scopes, self)
        _CURRENT.set((*_CURRENT.get(), self))
        for name, entry, direction in self._scoped:
            registry.hooked[name].add_hook(entry, dir=direction)
        if self.observer is None:
            in_use = {*session.unconnected(), *(name for name, _entry, _direction in self._scoped)}
            self.names = [name for name in registry.points if name in in_use]
        # a write that carries edits of the stream is shown first, as it is without them
        targets = {*self.names, *(aside for name in self.names if (aside := registry.points[name].aside))}
        paths = {registry.points[name].site.module for name in targets - connections}
        refuse_hidden(registry.model, [(path, registry.modules[path]) for path in paths])
        self.targets = targets
        session.settle()
        return self._value

    def close(self) -> None:
        """Take everything off; another thread than the block's leaves the functions that torch calls to that one."""
        if self._is_closed:
            return
        self.is_open = False
        self._has_gradient = any(entry.calls for _name, entry, direction in self._scoped if direction == "bwd")
        for name, entry, _direction in self._scoped:
            _detach(self._registry.hooked[name], entry)
        _CURRENT.set(tuple(scope for scope in _CURRENT.get() if scope.is_open))
        self._session.settle()
        if self._after is not None:
            self._after()
        self._is_closed = True
        # hooks know their scope, and their records are not to wait for the collector of cycles
        self._scoped = ()

    def check(self) -> None:
        """Raise HookError for hooks that did nothing though the model ran."""
        self._session.refuse_inert(self)
        silent = [name for name, _hook, direction in self._hooks if direction == "bwd" and name in self.trace]
        if silent and not self._has_gradient:
            raise HookError(
                f"no gradient came to the backward hook on {silent[0]}: call backward() inside the block, on a loss of "
                "what the model gave there, and not under torch.no_grad()"
            )

    def acts(self) -> bool:
        """Return whether the block is open where the running code stands.

        Raises:
            HookError: it is open in a generator that waits at a ``yield``.
        """
        if not self.is_open or self._registry.session is not self._session:
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


def _detach(point: HookPoint, entry: Held) -> None:
    is_listed = False
    for handles in (point.fwd_hooks, point.bwd_hooks):
        for handle in tuple(handles):
            if handle.user_hook is entry:
                is_listed = True
                handle.hook.remove()
                _remove(handles, handle)
    if is_listed:
        return
    # an interrupt came between torch's hook and its place in the list
    ids = {handle.hook.id for handle in (*point.fwd_hooks, *point.bwd_hooks)}
    for table in (point._forward_hooks, point._backward_hooks):
        for key, hook in tuple(table.items()):
            if key not in ids and hook.__qualname__.startswith("HookPoint.add_hook."):
                table.pop(key, None)


def _remove(handles: list[LensHandle], handle: LensHandle) -> None:
    # in place and without a lock: another thread may set a hook meanwhile
    while any(other is handle for other in tuple(handles)):
        with contextlib.suppress(ValueError):
            handles.remove(handle)


def _running_task() -> weakref.ref[asyncio.Task[Any]] | None:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else weakref.ref(task)


def _open_generator() -> tuple[int, str] | None:
    """Return frame and name of the generator whose ``with`` statement enters a block, if it is no context manager."""
    frame: FrameType | None = sys._getframe(1)
    ours = __name__.rpartition(".")[0]
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        # a generator driven by contextlib belongs to the statement that entered it
        if module != "contextlib" and not module.startswith(ours):
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
