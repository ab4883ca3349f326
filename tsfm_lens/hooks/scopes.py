"""Hooks of a block, in force in the thread and task that opened it and nowhere else."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

from torch import Tensor
from transformer_lens.hook_points import HookPoint, LensHandle

from tsfm_lens.errors import HookError, UnknownNameError
from tsfm_lens.hooks.hook_checks import refuse_hidden
from tsfm_lens.hooks.names import select

Direction = Literal["fwd", "bwd"]
Hook = tuple[str, Callable[..., Any], Direction]
"""(exact name of a hook point, function of an activation and ``hook=``, direction)."""
T_co = TypeVar("T_co", covariant=True)

# open blocks of the running task or thread; a task begins with those that were open at its creation
_CURRENT: ContextVar[tuple[HookScope[Any], ...]] = ContextVar("open blocks", default=())


class HookScope(Generic[T_co]):
    """``with`` block of hooks that act where it was opened, in the order in which a model passes their points."""

    def __init__(self, registry: Any, value: T_co, hooks: Iterable[Hook] = ()) -> None:
        self._registry, self._value, self._hooks = registry, value, tuple(hooks)
        # points that it connects and that the model must pass, and with those the writes that carry their edits
        self.names, self.targets = list[str](), set[str]()
        self._scoped: tuple[tuple[str, ScopedHook], ...] = ()
        self.is_open = self._has_gradient = False

    def __enter__(self) -> T_co:
        """Set the hooks and connect their points."""
        if self.is_open:
            raise HookError("this block is open already; make another of the same kind to enter it once more")
        registry = self._registry
        self._dispatcher = dispatcher = registry.session
        # hook points that the run has passed, modules that ran to their end, and whether some ran in another thread
        self.targets, self.trace, self.full_runs = set(), set[str](), set[str]()
        self.elsewhere = False
        self._scoped = tuple([(name, ScopedHook(hook, self, side)) for name, hook, side in self._hooks])
        in_use = {*dispatcher.unconnected(), *dict(self._scoped)}
        connected = set().union(*[scope.targets for scope in dispatcher.acting()])
        self._task = _running_task()
        self.is_open = True
        try:
            _CURRENT.set((*_CURRENT.get(), self))
            dispatcher.scopes = (*dispatcher.scopes, self)
            for name, hook in self._scoped:
                registry.hooked[name].add_hook(hook, dir=hook.direction)
            self.names = sorted(in_use, key=registry.rank.__getitem__)
            # a write that carries edits of the stream is shown first, as it is without them
            targets = {*self.names, *filter(None, [registry.points[name].aside for name in self.names])}
            paths = {registry.points[name].site.module for name in targets - connected}
            refuse_hidden(registry.model, [(path, registry.modules[path]) for path in paths])
            self.targets = targets
            dispatcher.settle()
        except BaseException:
            self._close()
            raise
        return self._value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take everything off; HookError, where none was raised, for hooks that did nothing though the model ran."""
        self._close()
        if kind is not None:
            return
        if not self.trace.issuperset(self.names):
            self._dispatcher.refuse_inert(self)
        silent = [name for name, _hook, direction in self._hooks if direction == "bwd" and name in self.trace]
        if silent and not self._has_gradient:
            raise HookError(
                f"no gradient came to the backward hook on {silent[0]}: call backward() inside the block, on a loss of "
                "what the model gave there, and not under torch.no_grad()"
            )

    def _close(self) -> None:
        self._has_gradient = any(hook.calls for _name, hook in self._scoped if hook.direction == "bwd")
        self.is_open = False
        _CURRENT.set(tuple([scope for scope in _CURRENT.get() if scope.is_open]))
        for name, hook in self._scoped:
            detach(self._registry.hooked[name], hook)
        # hooks know their scope, and their records are not to wait for the collector of cycles
        self._scoped = ()
        self._dispatcher.settle()

    def acts(self) -> bool:
        """Return whether the block is open where the running code stands."""
        if not self.is_open or getattr(self._registry.threads, "dispatcher", None) is not self._dispatcher:
            return False
        if self in _CURRENT.get():
            return True
        # of a task that ended without leaving its block, as a notebook's cell does, the thread takes it over
        task = None if self._task is None else self._task()
        return self._task is not None and (task is None or task.done())


@dataclass
class RunState:
    """State of a run; interventions and recorders read it.

    Attributes:
        n_series: series (a variate is one) in the running batch; activations have a multiple of it as rows.
        step: forecast steps already read out in this run.
        offset: by stack, the position of an activation's first token (above 0 with a key-value cache).
        block_rows: series of one variant, where several variants run side by side.
        first, whole: where the run is a part of a batch, the place of its first row there, and the rows of all of it.
        sample_major: whether sample paths are the outermost part of the rows.
        sizes: lengths of "series" and "variate" in the running pass, for models that keep them apart.
    """

    n_series: int | None = None
    step: int = 0
    offset: dict[str, int] = field(default_factory=dict)
    block_rows: int | None = None
    first: int = 0
    whole: int | None = None
    sample_major: bool = False
    sizes: dict[str, int] = field(default_factory=dict)

    def restart(
        self, n_series: int | None = None, block_rows: int | None = None, part: tuple[int, int | None] = (0, None)
    ) -> None:
        """Go to the beginning of a run; without ``n_series``, of one that the lens did not start."""
        self.n_series, self.step, self.block_rows = n_series, 0, block_rows
        self.first, self.whole = part
        self.offset.clear()

    @contextmanager
    def running(
        self, rows: int, place: tuple[int, int | None] = (0, None), block_rows: int | None = None
    ) -> Iterator[None]:
        """Count steps and rows of one run of the lens's own while the block runs."""
        self.restart(rows, block_rows, place)
        try:
            yield
        finally:
            self.restart()

    def own(self, rows: Tensor) -> Tensor:
        """Return the rows of the part that runs, of a tensor with the rows of the whole batch."""
        if self.whole is None:
            return rows
        series = self.block_rows or self.n_series
        assert series is not None
        paths = (len(rows) // self.whole, self.whole, -1) if self.sample_major else (1, self.whole, -1)
        return rows.unflatten(0, paths).narrow(1, self.first, series).flatten(0, 2)


class ScopedHook:
    """Hook of a block; as a forward hook it leaves the runs of other threads and tasks alone."""

    def __init__(self, function: Callable[..., Any], scope: HookScope[Any], direction: Direction) -> None:
        self.function, self.scope, self.direction, self.calls = function, scope, direction, 0
        # never changes what it sees; treats every row of a batch by itself; does so once it knows which rows run
        marks = [bool(getattr(function, mark, False)) for mark in ("reads_only", "by_row", "by_place")]
        self.reads_only, self.by_row, self.by_place = marks

    def __repr__(self) -> str:
        # TransformerLens asks whenever a hook is set, and a partial shows every number of its tensors
        function = self.function
        while isinstance(function, partial):
            function = function.func
        return repr(function)

    def __call__(self, value: Any, hook: HookPoint) -> Any:
        """Call the function, or nothing in another thread or task."""
        # backward hooks run in threads of autograd's own, and torch keeps them as long as the graph
        if not (self.scope.acts() if self.direction == "fwd" else self.scope.is_open):
            return None
        self.calls += 1
        return self.function(value, hook=hook)


def acting_hooks(handles: Iterable[LensHandle], scopes: Collection[HookScope[Any]]) -> list[Any]:
    """Return the hooks of a hook point that act here: those of acting blocks, and those that belong to the lens."""
    # another thread may take a hook out of the list meanwhile
    hooks = [handle.user_hook for handle in tuple(handles)]
    return [hook for hook in hooks if not isinstance(hook, ScopedHook) or hook.scope in scopes]


def resolve_hooks(
    names: Iterable[str], hooks: Iterable[tuple[str | Callable[[str], bool], Callable[..., Any]]], direction: Direction
) -> list[Hook]:
    """Resolve globs and predicates to hooks with exact names; UnknownNameError where one matches no hook point."""
    by_name: list[Hook] = []
    for name, hook in hooks:
        matches = list(filter(name, names)) if callable(name) else select(names, name)
        if not matches:
            raise UnknownNameError(f"{name!r} is true of no hook point; lens.hook_table() lists them")
        by_name += [(exact, hook, direction) for exact in matches]
    return by_name


def detach(point: HookPoint, hook: ScopedHook) -> None:
    """Take a hook off its hook point."""
    handles = point.fwd_hooks if hook.direction == "fwd" else point.bwd_hooks
    for handle in [handle for handle in handles if handle.user_hook is hook]:
        handle.hook.remove()
        handles.remove(handle)


def _running_task() -> weakref.ref[asyncio.Task[Any]] | None:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else weakref.ref(task)
