"""Hooks of a block, which act only in the thread and task that opened it.

Read :class:`HookScope`; :class:`ScopedHook` is one of its hooks, and :class:`RunState`
says which rows and steps run. :func:`resolve_hooks` finds the hook points of a user's
hooks. Torch hooks themselves are set by :mod:`tsfm_lens.hooks.registry`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Literal, TypeVar

from torch import Tensor
from transformer_lens.hook_points import HookPoint, LensHandle

from tsfm_lens.core.errors import HookError, InputError, UnknownNameError
from tsfm_lens.hooks.block import Block, Scope, Steps
from tsfm_lens.hooks.hook_checks import check_visible_modules
from tsfm_lens.hooks.names import get_name, select
from tsfm_lens.hooks.tl_names import find_point

Direction = Literal["fwd", "bwd"]
Hook = tuple[str, Callable[..., Any], Direction]
"""Exact name of a hook point, function of an activation and ``hook=``, direction."""
T = TypeVar("T")

# open blocks of the running task or thread; a task begins with those that were open at
# its creation
_CURRENT: ContextVar[tuple[HookScope[Any], ...]] = ContextVar("open blocks", default=())
# open blocks that do not act on what runs now, see :func:`without_blocks`
_ASIDE: ContextVar[frozenset[HookScope[Any]]] = ContextVar(
    "blocks set aside", default=frozenset()
)


class HookScope(Scope[T]):
    """Hooks of one block, for its thread and task.

    They act in the order in which a model passes their points. The ``with`` statement
    yields ``value``; ``after`` is called once the hooks are off.
    """

    def __init__(
        self,
        registry: Any,
        value: T,
        hooks: Iterable[Hook] = (),
        after: Callable[[], object] | None = None,
    ) -> None:
        self._registry = registry
        self._value = value
        self._hooks = tuple(hooks)
        self._after = after
        # the hook points with hooks, which a run of the model must pass
        self.names = list[str]()
        # these, and the writes to which edits of a branch's input are added
        self.targets = set[str]()
        self._scoped: tuple[tuple[str, ScopedHook], ...] = ()
        self._is_closed = True
        self._has_gradient = False

    def open(self) -> T:
        """Set the hooks and connect their points."""
        registry = self._registry
        self._dispatcher = dispatcher = registry.session
        self.targets = set()
        # names of the hook points that the run has passed
        self.trace = set[str]()
        # paths of the modules that ran to their end
        self.full_runs = set[str]()
        # whether a hooked module ran in another thread or task
        self.elsewhere = False
        self._is_closed = False
        self._scoped = tuple(
            [(name, ScopedHook(hook, self, side)) for name, hook, side in self._hooks]
        )
        in_use = {*dispatcher.unconnected(), *dict(self._scoped)}
        acting = dispatcher.acting()
        connected = set().union(*[scope.targets for scope in acting])
        self._task = _running_task()
        self._generator = _open_generator()
        # open before anything is set: an interrupt from here on finds a block to close
        self.is_open = True
        _CURRENT.set((*_CURRENT.get(), self))
        dispatcher.scopes = (*dispatcher.scopes, self)
        # counted before this block, whose hooks are one level further in
        level = nesting_levels(acting) + 1
        for name, hook in self._scoped:
            registry.hooked[name].add_scoped(hook, hook.direction, level)
        self.names = sorted(in_use, key=registry.rank.__getitem__)
        # modules that an outer block has connected were checked by that block
        self._connect(self.names, connected)
        return self._value

    def include(self, name: str) -> None:
        """Connect a hook point on which a running hook has just set another hook."""
        if name not in self.targets:
            self._connect([name], self.targets)

    def _connect(self, names: Collection[str], connected: Collection[str]) -> None:
        """Connect those hook points that are not connected already."""
        registry = self._registry
        # a write that carries edits of the stream is a target, too: its hooks come
        # before the edits are added, and see the write without them
        targets = {
            *names,
            *filter(None, [registry.points[name].aside for name in names]),
        }
        paths = {
            registry.points[name].site.module for name in targets.difference(connected)
        }
        check_visible_modules(
            registry.model, [(path, registry.modules[path]) for path in paths]
        )
        self.targets = self.targets | targets
        self._dispatcher.sync_hooks()

    def close(self) -> None:
        """Take the block's hooks off.

        Torch hooks on the model are taken off by the block's own thread only, at its
        next block if another thread closes this one.
        """
        if self._is_closed:
            return
        # reset_hooks() may have taken a hook off; check() must not demand a gradient of
        # that one
        backward_hooks = [
            hook
            for name, hook in self._scoped
            if hook.direction == "bwd" and self._is_listed(name, hook)
        ]
        self._has_gradient = not backward_hooks or any(
            hook.calls for hook in backward_hooks
        )
        # first: from here on no hook of the block acts, whatever interrupts the rest
        self.is_open = False
        _CURRENT.set(tuple([scope for scope in _CURRENT.get() if scope.is_open]))
        for name, hook in self._scoped:
            detach(self._registry.hooked[name], hook)
        self._dispatcher.sync_hooks()
        if self._after is not None:
            self._after()
        # last: until then, close() may be called again after an interrupt
        self._is_closed = True
        # breaks the cycle of scope and hooks: what hooks recorded is freed at once, not
        # when the garbage collector runs
        self._scoped = ()

    def check(self) -> None:
        """Raise HookError for hooks that did nothing though the model ran."""
        if not self.trace.issuperset(self.names):
            self._dispatcher.check_hooks_met(self)
        silent = [
            name
            for name, _hook, direction in self._hooks
            if direction == "bwd" and name in self.trace
        ]
        if silent and not self._has_gradient:
            raise HookError(
                f"no gradient came to the backward hook on {silent[0]}: call backward()"
                " inside the block, on a loss of what the model gave there, and not"
                " under torch.no_grad()"
            )

    def _is_listed(self, name: str, hook: ScopedHook) -> bool:
        """Return whether a hook is still in the list of its hook point."""
        return any(
            handle.user_hook is hook
            for handle in tuple(self._registry.hooked[name].bwd_hooks)
        )

    @property
    def sets_hooks(self) -> bool:
        """True if the block was opened for hooks of its own."""
        return bool(self._hooks)

    @property
    def is_aside(self) -> bool:
        """True while the block does not act, see :func:`without_blocks`."""
        return self in _ASIDE.get()

    def acts(self) -> bool:
        """Return whether the block is open where the running code stands.

        Raises HookError for a block that is open in a waiting generator.
        """
        # not registry.session, which would make a dispatcher for every passing thread
        if (
            not self.is_open
            or self.is_aside
            or getattr(self._registry.threads, "dispatcher", None)
            is not self._dispatcher
        ):
            return False
        if self not in _CURRENT.get():
            if self._task is None:
                return False
            # a task may end without leaving its block, as that of a notebook's cell
            # does; the thread then takes the block over
            task = self._task()
            if task is not None and not task.done():
                return False
        if self._generator is not None and not _is_running(self._generator[0]):
            raise HookError(
                f"a context that is open in the generator {self._generator[1]} would"
                " act on what runs while that one waits at its yield, and nothing says"
                " whether it is meant to. Leave the context before the yield, or make"
                " the generator a contextlib.contextmanager and enter it by a with"
                " statement."
            )
        return True


@dataclass
class RunState:
    """State of a run; interventions and recorders read it.

    Attributes:
        n_series: series (a variate is one) in the running batch; activations have a
            multiple of it as rows.
        step: forecast steps already read out in this run.
        offset: by stack, the position of an activation's first token (above 0 with a
            key-value cache).
        block_rows: number of series of each variant, where several variants run side by
            side.
        first: index of the run's first series in the full batch, if the run is of a
            part of it.
        whole: number of series in that full batch, None if the run is not of a part.
        sample_major: whether sample paths are the outermost part of the rows.
        sizes: lengths of "series" and "variate" in the running pass, for models that
            keep them apart.
        forwards: number of series that the lens has passed through the model so far;
            a series counts once for each pass of a rollout.
    """

    n_series: int | None = None
    step: int = 0
    offset: dict[str, int] = field(default_factory=dict)
    block_rows: int | None = None
    first: int = 0
    whole: int | None = None
    sample_major: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    forwards: int = 0

    def restart(
        self,
        n_series: int | None = None,
        block_rows: int | None = None,
        part: tuple[int, int | None] = (0, None),
    ) -> None:
        """Go to the beginning of a run.

        Without ``n_series``, it is a run that the lens did not start.
        """
        self.n_series = n_series
        self.step = 0
        self.block_rows = block_rows
        self.first, self.whole = part
        self.forwards += n_series or 0
        self.offset.clear()

    def running(
        self,
        rows: int,
        place: tuple[int, int | None] = (0, None),
        block_rows: int | None = None,
    ) -> Block[None]:
        """Keep this state for a run of the lens while the block runs.

        ``place`` is (first, whole), see :class:`RunState`.

        Returns:
            A block in which hooks see this state.
        """
        return Block(
            Steps(None, lambda: self.restart(rows, block_rows, place), self.restart)
        )

    def own(self, rows: Tensor) -> Tensor:
        """Select the rows of the running part from a tensor with those of the batch."""
        if self.whole is None:
            return rows
        n_series = self.block_rows or self.n_series
        assert n_series is not None
        if self.sample_major:
            # (path, series, rest): all series of the first path, then those of the next
            paths = (len(rows) // self.whole, self.whole, -1)
        else:
            # (1, series, path): the paths of a series lie side by side
            paths = (1, self.whole, -1)
        result: Tensor = (
            rows.unflatten(0, paths).narrow(1, self.first, n_series).flatten(0, 2)
        )
        return result


class ScopedHook:
    """Hook of a block.

    As a forward hook it ignores the runs of other threads and tasks.
    """

    def __init__(
        self, function: Callable[..., Any], scope: HookScope[Any], direction: Direction
    ) -> None:
        self.function = function
        self.scope = scope
        self.direction = direction
        self.calls = 0
        # the function never changes what it sees
        self.reads_only = bool(getattr(function, "reads_only", False))
        # it treats every row of a batch by itself
        self.by_row = bool(getattr(function, "by_row", False))
        # it does so if the run's state says which rows run
        self.by_place = bool(getattr(function, "by_place", False))

    def __repr__(self) -> str:
        # TransformerLens asks whenever a hook is set, and a partial shows every number
        # of its tensors
        function = self.function
        while isinstance(function, partial):
            function = function.func
        return repr(function)

    def __call__(self, value: Any, hook: HookPoint) -> Any:
        """Call the function, or nothing in another thread or task."""
        # backward hooks run in autograd's own threads, so the thread says nothing; the
        # graph may call them even after the block
        if self.direction == "fwd":
            is_active = self.scope.acts()
        else:
            is_active = self.scope.is_open
        if not is_active:
            return None
        self.calls += 1
        return self.function(value, hook=hook)


def without_blocks(scopes: Iterable[HookScope[Any]]) -> Block[None]:
    """Let open blocks not act on what runs inside this one."""
    before = _ASIDE.get()

    def begin() -> None:
        _ASIDE.set(before.union(scopes))

    return Block(Steps(None, begin, lambda: _ASIDE.set(before)))


def nesting_levels(scopes: Iterable[HookScope[Any]]) -> int:
    """Return how deep blocks with hooks are nested.

    TransformerLens calls this ``context_level``.
    """
    return sum(scope.sets_hooks for scope in scopes)


def acting_hooks(
    handles: Iterable[LensHandle], scopes: Collection[HookScope[Any]]
) -> list[Any]:
    """Return the hooks of a hook point that act here.

    They are those of acting blocks, and those that belong to the lens.
    """
    # another thread may take a hook out of the list meanwhile
    hooks = [handle.user_hook for handle in tuple(handles)]
    return [
        hook
        for hook in hooks
        if not isinstance(hook, ScopedHook) or hook.scope in scopes
    ]


def resolve_hooks(
    names: Collection[str],
    hooks: Iterable[tuple[str | Callable[[str], bool], Callable[..., Any]]],
    direction: Direction,
) -> list[Hook]:
    """Resolve globs and predicates to hooks with exact names.

    Returns:
        One hook for each hook point that a name, glob or predicate selects.

    Raises:
        UnknownNameError: one selects no hook point.
        InputError: the hooks are not pairs of a name and a function.
    """
    by_name: list[Hook] = []
    for pair in hooks:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(
                f"{direction}_hooks has {pair!r}; expected a list of pairs, [(name,"
                " function), …]"
            )
        name = get_name(pair[0])
        hook = pair[1]
        _check_arguments(hook)
        if callable(name):
            matches = list(filter(name, names))
        else:
            matches = select(names, name)
        if not matches:
            raise UnknownNameError(
                f"{name!r} is true of no hook point; lens.hook_table() lists them"
            )
        if isinstance(name, str) and find_point(name)[1].isdigit():
            raise UnknownNameError(
                f"{name!r} is one head of {matches[0]}; hook that, whose axis 'head'"
                " has them all"
            )
        by_name += [(exact, hook, direction) for exact in matches]
    return by_name


def _check_arguments(hook: Any) -> None:
    """Refuse what cannot be called as a hook."""
    try:
        # a builtin has no signature, and raises ValueError
        inspect.signature(hook).bind(None, hook=None)
    except (TypeError, ValueError) as error:
        name = getattr(hook, "__name__", repr(hook))
        raise InputError(
            f"hook {name} cannot be called as function(value, hook=…), as hooks are:"
            f" {error}"
        ) from error


def detach(point: HookPoint, hook: ScopedHook) -> None:
    """Take a hook off its hook point, wherever an interrupt left it."""
    is_listed = False
    for handles in (point.fwd_hooks, point.bwd_hooks):
        for handle in tuple(handles):
            if handle.user_hook is hook:
                is_listed = True
                handle.hook.remove()
                # in place and without a lock: another thread may set a hook meanwhile
                while any(listed is handle for listed in tuple(handles)):
                    with contextlib.suppress(ValueError):
                        handles.remove(handle)
    if is_listed:
        return
    # an interrupt came after the hook was registered with torch, and before it was
    # entered in the list: torch's tables alone have it
    ids = {handle.hook.id for handle in (*point.fwd_hooks, *point.bwd_hooks)}
    for table in (point._forward_hooks, point._backward_hooks):
        for key, native in tuple(table.items()):
            if key not in ids and native.__qualname__.startswith("HookPoint.add_hook."):
                table.pop(key, None)


def _running_task() -> weakref.ref[asyncio.Task[Any]] | None:
    """Return the running asyncio task; None outside of one."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    if task is None:
        return None
    # weak, since a block that is left open must not keep its task alive
    return weakref.ref(task)


def _open_generator() -> tuple[int, str] | None:
    """Return frame and name of the generator that enters a block.

    None if the ``with`` statement stands in no generator, or in a function that
    ``contextlib.contextmanager`` has made a context manager.
    """
    frame: FrameType | None = sys._getframe(1)
    package = __name__.rpartition(".")[0]
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        # a generator driven by contextlib belongs to the statement that entered it
        if module != "contextlib" and not module.startswith(package):
            if not frame.f_code.co_flags & (
                inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
            ):
                return None
            if (
                frame.f_back is None
                or frame.f_back.f_globals.get("__name__") != "contextlib"
            ):
                code = frame.f_code
                name = f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
                # the id alone: a frame would keep alive all the values that it holds
                return id(frame), name
        frame = frame.f_back
    return None


def _is_running(frame_id: int) -> bool:
    """Return whether a frame is among the callers of this one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame) != frame_id:
        frame = frame.f_back
    return frame is not None
