"""Hook points of a native model as a table: their activations, places, and TransformerLens hook points."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import nn
from transformer_lens.hook_points import HookPoint

from tsfm_lens.hooks.names import Point, hook_points
from tsfm_lens.hooks.table import check_table
from tsfm_lens.hooks.wiring import Mix, Stack, Wiring


class PointTable:
    """Hook points of one native model.

    Args:
        model: the native module; it is read, and never edited.
        wiring: its table.

    Attributes:
        modules: those that the wiring names, by path.
        points: by name, in order of execution.
        rank: place of each among all.
        hooked: the TransformerLens hook point of each.
        spots: the resolved targets of interventions.

    Raises:
        WiringError: a path of the wiring does not exist in the model, or a size is not the model's.
    """

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        self.model = model
        self.wiring = wiring
        self.modules = check_table(model, wiring)
        self.points: dict[str, Point] = hook_points(wiring)
        self.rank = {name: float(place) for place, name in enumerate(self.points)}
        self.hooked: dict[str, HookPoint] = {name: HookPoint() for name in self.points}
        self.spots: dict[Hashable, list[tuple[str, int | None]]] = {}
        self._mixes = {name: mix for name, point in self.points.items() if (mix := self._mix(point))}

    def _mix(self, point: Point) -> Callable[[], float] | None:
        """Return the factor on a branch's output in a block that rescales its stream; None elsewhere."""
        if point.layer < 0 or not point.name.endswith(("hook_out", "hook_result")):
            return None
        stack = self.stack_of(point)
        mix: Mix | None = stack.writer(point.kind, point.layer).mix
        if mix is None:
            return None
        block = self.model.get_submodule(stack.block(point.layer))
        return lambda: mix(block)[0]

    def factor(self, point: Point) -> float:
        """Return the factor on a write at a hook point, as the model has it now; 1 where it is added as it is."""
        mix = self._mixes.get(point.name)
        return 1.0 if mix is None else mix()

    def stack_of(self, point: Point) -> Stack:
        """Return the stack that a hook point belongs to."""
        return self.wiring.stack(point.stack)

    @property
    def in_use(self) -> bool:
        """True if any hook point has a hook."""
        return any(point.fwd_hooks or point.bwd_hooks for point in self.hooked.values())
