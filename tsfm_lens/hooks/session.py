"""What one thread has put on a native model: torch hooks, in order of execution, and where its run stands.

A hook acts in the thread whose block set it. Torch hooks are seen by every thread, so each of ours asks whether it
is in its own before it does anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tsfm_lens.errors import HookError
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.native import get_input
from tsfm_lens.hooks.obstacles import refuse_hidden
from tsfm_lens.hooks.passing import Passing
from tsfm_lens.hooks.pool import Pool
from tsfm_lens.hooks.slots import Slot
from tsfm_lens.hooks.state import RunState
from tsfm_lens.hooks.tap import AttentionTap
from tsfm_lens.hooks.wiring import Stack

if TYPE_CHECKING:
    from tsfm_lens.hooks.registry import HookRegistry

_TAPPED = ("q", "k", "v", "scores", "pattern", "z")
# ranks before and behind those of hook points
_FIRST, _LAST = -1.0, float("inf")


class Session:
    """One thread's hooks on the model of a registry.

    Args:
        registry: the hook points.
    """

    def __init__(self, registry: HookRegistry) -> None:
        self._registry, self._wiring, self._model = registry, registry.wiring, registry.model
        self.state = RunState(sample_major=registry.wiring.sample_major)
        self._passing = Passing(registry, self, self.state)
        # how often modules ran to their end whose run should have passed hook points
        self._ran: Counter[str] = Counter()
        # calls of hooked modules by other threads
        self._elsewhere = 0
        self._pool = Pool()
        self._slots: dict[tuple[str, str], Slot] = {}
        self._inside_attention: dict[tuple[str, str], Point] = {
            (point.site.module, point.how): point for point in registry.points.values() if point.how != "site"
        }
        self._tap = AttentionTap(self._fire_tapped, self._wants, self._here)

    def _here(self) -> bool:
        """Whether the running thread is this session's; if not, the model runs elsewhere."""
        if self._registry.session is self:
            return True
        self._elsewhere += 1
        return False

    @contextmanager
    def attach(self, names: Iterable[str] = ()) -> Iterator[None]:
        """Connect hook points to the native model while the block runs.

        Args:
            names: of hook points; besides them every other that has a hook and is not connected yet.

        Raises:
            WiringError: compiled or replaced modules would pass a hook by.
            HookError: on leaving, the model ran, but one of the hook points was never passed.
        """
        points, users = self._registry.points, self._pool.users
        used = {*names, *(name for name in points if name not in users and self._passing.in_use(name))}
        if not used:
            yield
            return
        # a write that carries edits of the stream is shown first, as it is without them
        wanted = used | {points[name].aside for name in used if points[name].aside}
        modules = {point.site.module for name, point in points.items() if name in wanted and name not in users}
        refuse_hidden(self._model, [(path, self._registry.modules[path]) for path in modules])
        with ExitStack() as stack:
            stack.callback(self._pool.acquire("tracking", self._track))
            for path in {witness for name in wanted for witness in self._witnesses(points[name])}:
                stack.callback(self._pool.acquire(("ran", path), lambda opened, at=path: self._witness(opened, at)))  # type: ignore[misc]
            for name in wanted:
                stack.callback(self._pool.acquire(name, lambda opened, at=name: self._connect(opened, points[at])))  # type: ignore[misc]
            before = self._passing.count.copy(), self._ran.copy(), self._elsewhere
            yield
        self._refuse_inert([name for name in points if name in used], *before)

    @contextmanager
    def observed(self, note: Callable[[Point, Tensor], None]) -> Iterator[None]:
        """Show the activations of connected hook points to ``note`` alone; hooks that are set do not act meanwhile."""
        before, self._passing.observer = self._passing.observer, note
        try:
            yield
        finally:
            self._passing.observer = before

    def across_rows(self, *, parts: bool = True) -> list[str]:
        """Hook points in use whose hooks may look at several series at once, so that a batch must stay whole.

        A function with a true attribute ``by_row`` is known to treat every row of a batch by itself; one with a true
        attribute ``by_place``, if it can tell which rows run.

        Args:
            parts: whether the run's state says which rows of a batch run, as it does in parts of the lens's own.
        """
        return [
            name
            for name, point in self._registry.hooked.items()
            if (point.fwd_hooks or point.bwd_hooks)
            and not all(
                getattr(hook, "by_row", False) or (parts and getattr(hook, "by_place", False))
                for hook in self._passing.acting((*point.fwd_hooks, *point.bwd_hooks))
            )
        ]

    @property
    def connected(self) -> bool:
        """Whether anything of this thread is on the model."""
        return bool(self._pool.users)

    def passed(self, names: Iterable[str]) -> dict[str, int]:
        """How often each of some hook points was passed in this thread while it was connected."""
        return {name: self._passing.count[name] for name in names}

    def _refuse_inert(self, names: list[str], passed: Counter[str], ran: Counter[str], elsewhere: int) -> None:
        """Raise HookError if the model ran and did not pass a hook point."""
        points, count = self._registry.points, self._passing.count
        silent = [name for name in names if count[name] == passed[name]]
        inert = [name for name in silent if any(self._ran[at] > ran[at] for at in self._witnesses(points[name]))]
        if inert:
            path = points[inert[0]].site.module
            kind = type(self._registry.modules[path]).__name__
            others = f" (and {len(inert) - 1} more hook points)" if len(inert) > 1 else ""
            raise HookError(
                f"the model ran, but never passed {inert[0]}{others}, so the hooks there did nothing: the wiring "
                f"expects it at {path!r} ({kind}), which was not called. "
                "Code that uses the weights of a module without calling it passes hooks by (nn.MultiheadAttention, "
                "which is wired with z_inside=True; fused kernels), and so does a stack whose output was computed "
                "before the block and handed in. Wire a module that is called, turn the fused path off, or run the "
                "stack inside the block."
            )
        if len(silent) == len(names) and self._ran == ran and self._elsewhere > elsewhere:
            raise HookError(
                f"the model ran in another thread only, and hooks act in the thread whose block set them: those on "
                f"{names[0]}{' and other points' if len(names) > 1 else ''} did nothing. Open the block inside the "
                "function that the other thread runs."
            )

    def _witnesses(self, point: Point) -> tuple[str, ...]:
        """Modules that do not run to their end without passing a hook point: the model, and the point's block."""
        block = self._registry.stack_of(point).block(max(point.layer, 0))
        return ("", block) if point.layer >= 0 or point.name.endswith("hook_embed") else ("",)

    # --- setting torch hooks -----------------------------------------------------------------------------

    def _connect(self, stack: ExitStack, point: Point) -> None:
        """Set what one hook point needs; hooks on one module act in the order of the vocabulary."""

        def put(path: str, side: str, rank: float, act: Callable[..., Any]) -> None:
            self._put(stack, path, side, rank, act)

        path, rank = point.site.module, self._registry.rank[point.name]
        if point.how in _TAPPED:
            stack.callback(self._tap.label(path, self._registry.modules[path]))
        elif point.how == "result":
            if self._passing.head_results(put, point):
                stack.callback(self._tap.label(path, self._registry.modules[path]))
        elif point.site.side == "in":
            put(path, "in", rank, self._passing.on_input(point))
        else:
            put(path, "out", rank, self._passing.on_output(point))
        if point.aside:
            self._passing.carry_edits(stack, put, point)

    def _put(self, stack: ExitStack, path: str, side: str, rank: float, act: Callable[..., Any]) -> None:
        def set_up(opened: ExitStack) -> None:
            slot = self._slots[path, side] = Slot(self._registry.modules[path], side, self._here)
            opened.callback(self._slots.pop, (path, side))
            opened.callback(slot.close)

        stack.callback(self._pool.acquire((path, side), set_up))
        stack.callback(self._slots[path, side].add(rank, act))

    def _witness(self, stack: ExitStack, path: str) -> None:
        """Count the runs of a module that come to their end."""

        def ended(_module: nn.Module, _args: Any, _output: Any) -> None:
            self._ran[path] += 1

        self._put(stack, path, "out", _LAST, ended)

    def _track(self, stack: ExitStack) -> None:
        """Keep :attr:`state` true while anything is connected."""

        def begun(_args: Any, _kwargs: Any) -> None:
            self._passing.gradients = torch.is_grad_enabled()

        def read_out(_module: nn.Module, _args: Any, output: Any) -> None:
            if self._here():
                steps = self._wiring.steps_per_readout
                self.state.step += steps if isinstance(steps, int) else steps(output)

        self._passing.gradients = torch.is_grad_enabled()
        self._put(stack, "", "in", _FIRST, begun)
        for row in self._wiring.stacks:
            if row.cached is not None:
                self._put(stack, row.entry, "in", _FIRST, self._on_entry(row))
        if self._wiring.sizes_from is not None:
            self._put(stack, self._wiring.sizes_from.module, "in", _FIRST, self._on_sizes)
        unembed = self._registry.modules[self._wiring.unembed.module]
        stack.callback(unembed.register_forward_hook(read_out, always_call=True).remove)

    def _on_entry(self, row: Stack) -> Callable[..., None]:
        def entered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert row.cached is not None
            self.state.offset[row.name] = row.cached(args, kwargs)

        return entered

    def _on_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        site = self._wiring.sizes_from
        assert site is not None
        shape = get_input(args, kwargs, site.arg).shape
        named = dict(zip(site.layout.split(), shape, strict=True))
        self.state.sizes = {axis: named[axis] for axis in ("series", "variate")}

    # --- inside attention ----------------------------------------------------------------------------------

    def _wants(self, path: str, how: str) -> bool:
        point = self._inside_attention.get((path, how))
        return point is not None and point.name in self._pool.users and self._passing.in_use(point.name)

    def _fire_tapped(self, path: str, how: str, tensor: Tensor) -> Tensor:
        if not self._wants(path, how):
            return tensor
        point = self._inside_attention[path, how]
        return self._passing.note_heads(point, tensor) if how == "result" else self._passing.fire(point, tensor)
