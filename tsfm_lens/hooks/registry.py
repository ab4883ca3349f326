"""The hook registry: TransformerLens hook points on a native model that is never edited.

Native torch hooks exist only while a hook point is in use: :meth:`HookRegistry.attach` installs exactly
those that the hook points in use need, and they are taken away when its block ends, however it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any
from weakref import WeakSet

from torch import nn
from transformer_lens.hook_points import HookPoint

from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.names import Point, hook_points
from tsfm_lens.hooks.scope import HookScope
from tsfm_lens.hooks.session import Session
from tsfm_lens.hooks.state import RunState
from tsfm_lens.hooks.table import check_table
from tsfm_lens.hooks.wiring import Mix, Stack, Wiring

__all__ = ["HookRegistry", "RunState", "hang"]


class HookRegistry:
    """Hook points of one native model.

    Args:
        model: the native module; it is read, hooked while needed, and never edited.
        wiring: its table.

    Raises:
        WiringError: a path of the wiring does not exist in the model, or a size is not the model's.
    """

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        self.model = model
        self.wiring = wiring
        self.modules = check_table(model, wiring)
        self.points: dict[str, Point] = hook_points(wiring)
        # order of execution among the points at one module
        self.rank = {name: float(place) for place, name in enumerate(self.points)}
        self.hooked: dict[str, HookPoint] = {name: HookPoint() for name in self.points}
        # what targets of interventions were resolved to
        self.spots: dict[Hashable, list[tuple[str, int | None]]] = {}
        self._mixes = {name: mix for name, point in self.points.items() if (mix := self._mix(point))}
        self._local = threading.local()
        self._sessions: WeakSet[Session] = WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.wiring)

    def _mix(self, point: Point) -> Callable[[], float] | None:
        """What a block that rescales its stream multiplies a branch's output with before it is added."""
        if point.layer < 0 or not point.name.endswith(("hook_out", "hook_result")):
            return None
        stack = self.stack_of(point)
        mix: Mix | None = stack.writer(point.kind, point.layer).mix
        if mix is None:
            return None
        block = self.model.get_submodule(stack.block(point.layer))
        return lambda: mix(block)[0]

    def factor(self, point: Point) -> float:
        """The factor on a write at a hook point, as the model has it now; 1 where it is added as it is."""
        mix = self._mixes.get(point.name)
        return 1.0 if mix is None else mix()

    def stack_of(self, point: Point) -> Stack:
        """The stack that a hook point belongs to."""
        return self.wiring.stack(point.stack)

    @property
    def session(self) -> Session:
        """What the running thread has put on the model."""
        try:
            session: Session = self._local.session
        except AttributeError:
            session = self._local.session = Session(self)
            self._sessions.add(session)
        return session

    @property
    def busy(self) -> bool:
        """Whether any thread has hooks on the model."""
        return any(scope.opened for session in list(self._sessions) for scope in session.scopes)

    @property
    def in_use(self) -> bool:
        """Whether any hook point has a hook."""
        return any(point.fwd_hooks or point.bwd_hooks for point in self.hooked.values())

    @property
    def state(self) -> RunState:
        """Where the run of this thread stands."""
        return self.session.state

    def attach(self) -> AbstractContextManager[None]:
        """Connect every hook point with a hook to the native model while the block runs, in this thread and task.

        With no hook set that no open block has connected, nothing is installed.

        Raises:
            WiringError: compiled or replaced modules would pass a hook by.
            HookError: on leaving, the model ran, but one of the hook points was never passed.
        """
        return Block(HookScope(self, None)) if self.session.unconnected() else nullcontext()


class Place(nn.Module):
    """A part of the tree that hook points hang in; the native model holds the weights."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            held = ", ".join(self._modules) if "_modules" in self.__dict__ else ""
        raise AttributeError(
            f"no {name!r} here, only hook points: {held}. Weights are in lens.weights.heads(layer) and .mlp(layer)"
        )


def hang(root: nn.Module, name: str, point: nn.Module) -> None:
    """Hang a hook point into a tree of plain modules so that its dotted name is its path, and layers can be counted."""
    parts = name.split(".")
    for part, inside in pairwise(parts):
        if part not in root._modules:
            root.add_module(part, nn.ModuleList() if inside.isdigit() else Place())
        child = root._modules[part]
        assert child is not None
        root = child
    root.add_module(parts[-1], point)
