"""Hook registry: TransformerLens hook points on a native model that is never edited.

Native torch hooks exist only while a hook point is in use: :meth:`HookRegistry.attach` installs exactly
those that the hook points in use need, and they are taken away when its block ends, however it ends.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any
from weakref import WeakSet

from torch import nn

from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.point_table import PointTable
from tsfm_lens.hooks.scope import HookScope, Observer
from tsfm_lens.hooks.session import Session
from tsfm_lens.hooks.state import RunState
from tsfm_lens.hooks.wiring import Wiring

__all__ = ["HookRegistry", "RunState", "hang"]


class HookRegistry(PointTable):
    """Hook points of one native model, and the hooks of threads on it.

    Args:
        model: the native module; it is read, hooked while needed, and never edited.
        wiring: its table.

    Raises:
        WiringError: a path of the wiring does not exist in the model, or a size is not the model's.
    """

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        super().__init__(model, wiring)
        self._local = threading.local()
        self._sessions: WeakSet[Session] = WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.wiring)

    @property
    def session(self) -> Session:
        """Hooks of the running thread on the model."""
        try:
            session: Session = self._local.session
        except AttributeError:
            session = self._local.session = Session(self, lambda session: self.session is session)
            self._sessions.add(session)
        return session

    @property
    def busy(self) -> bool:
        """True if any thread has hooks on the model."""
        return any(scope.is_open for session in list(self._sessions) for scope in session.scopes)

    @property
    def state(self) -> RunState:
        """State of this thread's run."""
        return self.session.state

    def observed(self, note: Observer) -> Block[None]:
        """Pass the activations of connected hook points to ``note`` alone; other hooks do not act meanwhile."""
        return Block(HookScope(self, None, observer=note))

    def attach(self) -> AbstractContextManager[None]:
        """Connect every hook point with a hook to the native model while the block runs, in this thread and task.

        With no hook set that no open block has connected, nothing is installed.

        Raises:
            WiringError: compiled or replaced modules would pass a hook by.
            HookError: on leaving, the model ran, but one of the hook points was never passed.
        """
        return Block(HookScope(self, None)) if self.session.unconnected() else nullcontext()


class Place(nn.Module):
    """Part of the tree that hook points hang in; the native model holds the weights."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            names = ", ".join(self._modules) if "_modules" in self.__dict__ else ""
        raise AttributeError(
            f"no {name!r} here, only hook points: {names}. Weights are in lens.weights.heads(layer) and .mlp(layer)"
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
