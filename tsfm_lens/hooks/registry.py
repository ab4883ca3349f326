"""Hook registry: TransformerLens hook points on a native model that is never edited."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

from torch import nn

from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.dispatch import HookDispatcher, HookScope, Observer, dispatcher_of
from tsfm_lens.hooks.hook_table import HookTable
from tsfm_lens.hooks.state import RunState


class HookRegistry(HookTable):
    """Hook points of one native model, and the hooks of threads on it.

    Args:
        model: the native module; it is read, hooked while needed, and never edited.
        wiring: its table.

    Raises:
        WiringError: a path of the wiring does not exist in the model, or a size is not the model's.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.wiring)

    @property
    def session(self) -> HookDispatcher:
        """Hooks of the running thread on the model."""
        return dispatcher_of(self)

    @property
    def busy(self) -> bool:
        """True if any thread has hooks on the model."""
        return any(scope.is_open for dispatcher in list(self.dispatchers) for scope in dispatcher.scopes)

    @property
    def state(self) -> RunState:
        """State of this thread's run."""
        return dispatcher_of(self).state

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
        return Block(HookScope(self, None)) if dispatcher_of(self).unconnected() else nullcontext()


class Namespace(nn.Module):
    """Part of the tree of hook points; the native model holds the weights."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            names = ", ".join(self._modules) if "_modules" in self.__dict__ else ""
        raise AttributeError(
            f"no {name!r} here, only hook points: {names}. Weights are in lens.weights.heads(layer) and .mlp(layer)"
        )


def attach_point(root: nn.Module, name: str, point: nn.Module) -> None:
    """Register a hook point in a tree of plain modules so that its dotted name is its path, and layers are counted."""
    parts = name.split(".")
    for part, inside in pairwise(parts):
        if part not in root._modules:
            root.add_module(part, nn.ModuleList() if inside.isdigit() else Namespace())
        root = root.get_submodule(part)
    root.add_module(parts[-1], point)
