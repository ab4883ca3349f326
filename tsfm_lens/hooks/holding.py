"""Hooks that last as long as a block, in the thread that opened it: the one way in which the lens sets hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

from transformer_lens.hook_points import HookPoint, LensHandle

from tsfm_lens.errors import HookError, UnknownNameError
from tsfm_lens.hooks.names import select
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.session import Session

Direction = Literal["fwd", "bwd"]
# two threads may set and take off hooks of one point
_CHANGING = threading.Lock()


class Held:
    """A hook of a block; as a forward hook it leaves the runs of other threads alone.

    Attributes:
        function: what the caller gave.
        session: the thread; None once the block has ended.
        reads_only: whether it never changes what it sees.
        by_row: whether it treats every row of a batch by itself.
        by_place: whether it does so once it knows which rows of a batch run.
        calls: how often it was called.
    """

    def __init__(self, function: Callable[..., Any], registry: HookRegistry, direction: Direction) -> None:
        self.function, self.calls = function, 0
        self.session: Session | None = registry.session
        self.reads_only = bool(getattr(function, "reads_only", False))
        self.by_row = bool(getattr(function, "by_row", False))
        self.by_place = bool(getattr(function, "by_place", False))
        self._registry, self._forward = registry, direction == "fwd"

    def __repr__(self) -> str:
        # TransformerLens asks whenever a hook is set, and a partial shows every number of the tensors that it was given
        function = self.function
        while isinstance(function, partial):
            function = function.func
        return repr(function)

    def __call__(self, value: Any, hook: HookPoint) -> Any:
        """Call the function, or nothing in another thread."""
        # backward hooks run in threads of autograd's own, and torch keeps them as long as the graph
        if self.session is None or (self._forward and self._registry.session is not self.session):
            return None
        self.calls += 1
        return self.function(value, hook=hook)


def resolved(
    registry: HookRegistry,
    hooks: Iterable[tuple[str | Callable[[str], bool], Callable[..., Any]]],
    direction: Direction,
) -> list[tuple[str, Callable[..., Any], Direction]]:
    """Hooks by exact names, from globs and predicates.

    Raises:
        UnknownNameError: a name matches no hook point, or a predicate is true of none.
    """
    by_name: list[tuple[str, Callable[..., Any], Direction]] = []
    for name, hook in hooks:
        names = list(filter(name, registry.points)) if callable(name) else select(registry.points, name)
        if not names:
            raise UnknownNameError(f"{name!r} is true of no hook point; lens.hook_table() lists them")
        by_name += [(exact, hook, direction) for exact in names]
    return by_name


@contextmanager
def holding(registry: HookRegistry, hooks: Iterable[tuple[str, Callable[..., Any], Direction]]) -> Iterator[None]:
    """Set hooks and connect their points to the native model while the block runs.

    Contexts act in the order in which the model passes their hook points, however they are nested; hooks on one point
    act in the order in which they were set.

    Args:
        registry: the model's hook points.
        hooks: (exact name of a hook point, called with the activation and ``hook=``, direction).

    Raises:
        WiringError: compiled or replaced modules would pass a hook by.
        HookError: on leaving, the model ran and never passed a hook point, or no backward hook was ever called.
    """
    asked = [(name, Held(function, registry, direction), direction) for name, function, direction in hooks]
    backward = {name: held for name, held, direction in asked if direction == "bwd"}
    with ExitStack() as stack:
        for name, held, direction in asked:
            with _CHANGING:
                handle = registry.hooked[name].add_hook(held, dir=direction)
            stack.callback(_take_off, registry.hooked[name], handle, held, direction)
        before = registry.session.passed(backward)
        with registry.attach([name for name, _held, _direction in asked]):
            yield
    ran = [name for name, times in registry.session.passed(backward).items() if times > before[name]]
    if ran and not any(held.calls for held in backward.values()):
        raise HookError(
            f"no gradient came to the backward hook on {ran[0]}: call backward() inside the block, on a loss of what "
            "the model gave there, and not under torch.no_grad()"
        )


def _take_off(point: HookPoint, handle: LensHandle, held: Held, direction: Direction) -> None:
    held.session = None
    with _CHANGING:
        handle.hook.remove()
        # a list of its own, since another thread may be going through the old one
        if direction == "fwd":
            point.fwd_hooks = [kept for kept in point.fwd_hooks if kept is not handle]
        else:
            point.bwd_hooks = [kept for kept in point.bwd_hooks if kept is not handle]
