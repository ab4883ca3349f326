"""Hooks of one thread on a native model: torch hooks, in order of execution, and the state of its run.

A hook acts where its block is open. Torch hooks are seen by every thread, so each of ours first asks whether it is in
its own. The hooks on the model follow from the open blocks: nothing is counted up or down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tsfm_lens.errors import HookError
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.native import get_input
from tsfm_lens.hooks.passing import Passing
from tsfm_lens.hooks.point_table import PointTable
from tsfm_lens.hooks.scope import HookScope
from tsfm_lens.hooks.slots import Act, Connection, Place, Slot
from tsfm_lens.hooks.state import RunState
from tsfm_lens.hooks.tap import AttentionTap
from tsfm_lens.hooks.wiring import Stack

_INSIDE = ("q", "k", "v", "scores", "pattern", "z")
# ranks before and behind those of hook points
_FIRST, _LAST = -1.0, float("inf")


class Session:
    """One thread's hooks on the model of a registry.

    Args:
        table: the hook points.
        here: returns whether the running thread is this one.

    Attributes:
        scopes: of the open blocks, in order of entry; they alone determine the hooks on the model.
        state: of the thread's run.
    """

    def __init__(self, table: PointTable, here: Callable[[Session], bool]) -> None:
        self._table, self._wiring, self._model, self._here = table, table.wiring, table.model, here
        self.scopes: tuple[HookScope[Any], ...] = ()
        self.state = RunState(sample_major=table.wiring.sample_major)
        self._thread = threading.current_thread()
        self._passing = Passing(table, self.acting, self.state)
        self._slots: dict[Place, Slot] = {}
        self._connections: dict[str, list[Connection]] = {}
        self._inside_attention: dict[tuple[str, str], Point] = {
            (point.site.module, point.how): point for point in table.points.values() if point.how != "site"
        }
        self._tap = AttentionTap(self._fire_inside, self._in_use)

    def acting(self) -> list[HookScope[Any]]:
        """Return the open blocks that act on what runs now; errors as in :meth:`HookScope.acts`."""
        return [scope for scope in self.scopes if scope.acts()]

    def running(self, acts: tuple[Act, ...]) -> Sequence[Act]:
        """Select the acts that apply to a module's current call, of all that may apply there."""
        scopes = self.acting() if self._here(self) else []
        if len(scopes) == len(self.scopes):
            return acts if scopes else ()
        for scope in self.scopes:
            scope.elsewhere |= scope not in scopes
        return [act for act in acts if any(not act.names.isdisjoint(scope.targets) for scope in scopes)]

    def unconnected(self) -> list[str]:
        """Return the hook points where a hook acts and that no block has connected."""
        if any(not scope.is_open for scope in self.scopes) or (self._slots and not self.scopes):
            self.settle()
        points = self._table.hooked.items()
        # asked before every run, mostly of a model without hooks
        in_use = [name for name, point in points if point.fwd_hooks or point.bwd_hooks]
        connections = set().union(*(scope.targets for scope in self.acting())) if in_use else set()
        return [name for name in in_use if name not in connections and self._passing.in_use(name)]

    def across_rows(self, *, parts: bool = True) -> list[str]:
        """Return the hook points whose hooks may look at several series at once, so that a batch must stay whole.

        A function with a true attribute ``by_row`` is known to treat every row of a batch by itself; one with a true
        attribute ``by_place``, if it can tell which rows run.

        Args:
            parts: whether the run's state says which rows of a batch run, as it does in parts of the lens's own.
        """
        return [
            name
            for name, point in self._table.hooked.items()
            if (point.fwd_hooks or point.bwd_hooks)
            and not all(
                getattr(hook, "by_row", False) or (parts and getattr(hook, "by_place", False))
                for hook in self._passing.acting((*point.fwd_hooks, *point.bwd_hooks))
            )
        ]

    def refuse_inert(self, scope: HookScope[Any]) -> None:
        """Raise HookError if the model ran and did not pass a hook point of a block."""
        points, names = self._table.points, scope.names
        silent = [name for name in names if name not in scope.trace]
        inert = [name for name in silent if not scope.full_runs.isdisjoint(self._witnesses(points[name]))]
        if inert:
            path = points[inert[0]].site.module
            kind = type(self._table.modules[path]).__name__
            others = f" (and {len(inert) - 1} more hook points)" if len(inert) > 1 else ""
            raise HookError(
                f"the model ran, but never passed {inert[0]}{others}, so the hooks there did nothing: the wiring "
                f"expects it at {path!r} ({kind}), which was not called. "
                "Code that uses the weights of a module without calling it passes hooks by (nn.MultiheadAttention, "
                "which is wired with z_inside=True; fused kernels), and so does a stack whose output was computed "
                "before the block and handed in. Wire a module that is called, turn the fused path off, or run the "
                "stack inside the block."
            )
        if names and len(silent) == len(names) and not scope.full_runs and scope.elsewhere:
            raise HookError(
                f"the model ran in another thread only, or in another task, and hooks act where their block was "
                f"opened: those on {names[0]}{' and other points' if len(names) > 1 else ''} did nothing. Open the "
                "block inside the function that the other thread or task runs."
            )

    def _witnesses(self, point: Point) -> tuple[str, ...]:
        """Return modules that cannot run to their end without passing a hook point: the model, and its block."""
        block = self._table.stack_of(point).block(max(point.layer, 0))
        return ("", block) if point.layer >= 0 or point.name.endswith("hook_embed") else ("",)

    # --- setting torch hooks -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring the hooks on the model in line with the open blocks; may be broken off, and called again."""
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            # a block that the collector ends in another thread; its hooks are inert, and this one's next block settles
            return
        self.scopes = tuple(scope for scope in self.scopes if scope.is_open)
        acts: dict[Place, dict[str, Act]] = {}
        for name in dict.fromkeys(name for scope in self.scopes for name in scope.targets):
            if name not in self._connections:
                self._connections[name] = list(self._connect(self._table.points[name]))
            for place, key, rank, call in self._connections[name]:
                acts.setdefault(place, {}).setdefault(key, Act(rank, call)).names.add(name)
        if acts and not self._slots:
            self._passing.gradients = torch.is_grad_enabled()
        for place in tuple(self._slots):
            if place not in acts:
                self._slots[place].remove()
                self._slots.pop(place, None)
        for place, those in acts.items():
            if place not in self._slots:
                self._slots[place] = Slot(self.running, self._table.modules[place[0]], place[1])
            self._slots[place].acts = tuple(sorted(those.values(), key=lambda act: act.rank))
            self._slots[place].set()
        paths = {path for (path, _side), those in acts.items() if "check" in those}
        self._tap.look_at({self._table.modules[path]: path for path in paths})
        if not self.scopes:
            self._passing.forget()

    def _connect(self, point: Point) -> Iterator[Connection]:
        """Yield the connections that one hook point needs on the model."""
        path, rank = point.site.module, self._table.rank[point.name]
        yield from self._track()
        for witness in self._witnesses(point):
            yield (witness, "out"), "ran", _LAST, self._on_end(witness)
        if point.how in _INSIDE:
            yield from self._tap_connections(path)
        elif point.how == "result":
            inside, connections = self._passing.head_results(point)
            yield from connections
            if inside:
                yield from self._tap_connections(path)
        elif point.site.side == "in":
            yield (path, "in"), point.name, rank, self._passing.on_input(point)
        else:
            yield (path, "out"), point.name, rank, self._passing.on_output(point)
        if point.aside:
            yield self._passing.carry_edits(point)

    def _tap_connections(self, path: str) -> Iterator[Connection]:
        for at in self._tap.brackets(path, self._table.modules[path]):
            yield (at, "end"), "tap", _FIRST, self._tap.leave
            yield (at, "in"), "tap", _LAST, self._tap.enter
        yield (path, "out"), "check", _FIRST, self._tap.check(path)

    def _on_end(self, path: str) -> Callable[..., None]:
        """Note the runs of a module that come to their end."""

        def note(*_call: Any) -> None:
            for scope in self.acting():
                scope.full_runs.add(path)

        return note

    def _track(self) -> Iterator[Connection]:
        """Keep :attr:`state` true while anything is connected."""

        def begin(*_call: Any) -> None:
            self._passing.gradients = torch.is_grad_enabled()

        def count_steps(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
            steps = self._wiring.steps_per_readout
            self.state.step += steps if isinstance(steps, int) else steps(output)

        yield ("", "in"), "begun", _FIRST, begin
        for row in self._wiring.stacks:
            if row.cached is not None:
                yield (row.entry, "in"), f"entered {row.name}", _FIRST, self._on_entry(row)
        if self._wiring.sizes_from is not None:
            yield (self._wiring.sizes_from.module, "in"), "sizes", _FIRST, self._on_sizes
        yield (self._wiring.unembed.module, "out"), "read out", _FIRST, count_steps

    def _on_entry(self, row: Stack) -> Callable[..., None]:
        def note_offset(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert row.cached is not None
            self.state.offset[row.name] = row.cached(args, kwargs)

        return note_offset

    def _on_sizes(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        site = self._wiring.sizes_from
        assert site is not None
        shape = get_input(args, kwargs, site.arg).shape
        lengths = dict(zip(site.layout.split(), shape, strict=True))
        self.state.sizes = {axis: lengths[axis] for axis in ("series", "variate")}

    # --- inside attention ----------------------------------------------------------------------------------

    def _in_use(self, path: str, how: str) -> bool:
        point = self._inside_attention.get((path, how))
        # asked at every attention call, mostly of points that no block has connected
        return (
            point is not None
            and any(point.name in scope.targets and scope.acts() for scope in self.scopes)
            and self._passing.in_use(point.name)
        )

    def _fire_inside(self, path: str, how: str, tensor: Tensor) -> Tensor:
        if not self._in_use(path, how):
            return tensor
        point = self._inside_attention[path, how]
        return self._passing.note_heads(point, tensor) if how == "result" else self._passing.fire(point, tensor)
