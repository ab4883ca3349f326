"""A native tensor passes a hook point: brought into the vocabulary, shown to the hooks, and put back if changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import LensHandle

from tsfm_lens.errors import HookError, WiringError
from tsfm_lens.hooks.names import HEADS, RESIDUAL, Point
from tsfm_lens.hooks.native import (
    fold_leading,
    get_input,
    get_output,
    put_input,
    put_output,
    rms_scale,
    same_bits,
    to_native,
    to_vocabulary,
)
from tsfm_lens.hooks.obstacles import refuse_recomputation
from tsfm_lens.hooks.slots import Entering, Leaving
from tsfm_lens.hooks.weights import head_output_weights

if TYPE_CHECKING:
    from tsfm_lens.hooks.registry import HookRegistry
    from tsfm_lens.hooks.state import RunState

Put = Callable[[str, str, float, Callable[..., Any]], None]
"""(module path, "in" or "out", rank, what acts there) sets a torch hook."""


class Passing:
    """What happens at the hook points of one thread.

    Args:
        registry: the hook points.
        session: the thread, as hooks that belong to its blocks name it.
        state: where its run stands.
    """

    def __init__(self, registry: HookRegistry, session: object, state: RunState) -> None:
        self._registry, self._model, self._session, self._state = registry, registry.model, session, state
        # how often each hook point was passed
        self.count: Counter[str] = Counter()
        # whether gradients were recorded when the model was entered
        self.gradients = False
        # what is shown every activation in place of the hooks
        self.observer: Callable[[Point, Tensor], None] | None = None
        self._edits: dict[str, Tensor] = {}
        # by hook point, what its heads put out in this pass
        self._heads: dict[str, Tensor] = {}

    def acting(self, handles: Iterable[LensHandle]) -> list[Any]:
        """The hooks that act in this thread: those of its own blocks, and those that belong to the lens."""
        here = self._session
        return [hook for handle in handles if getattr(hook := handle.user_hook, "session", here) is here]

    def in_use(self, name: str) -> bool:
        """Whether a hook acts at a hook point."""
        hooked = self._registry.hooked[name]
        # most points have none, and all are asked whenever a block is entered
        return bool(
            (hooked.fwd_hooks and self.acting(hooked.fwd_hooks)) or (hooked.bwd_hooks and self.acting(hooked.bwd_hooks))
        )

    # --- what torch hooks do -------------------------------------------------------------------------------

    def on_input(self, point: Point) -> Entering:
        """What runs on a module's inputs where a hook point stands there."""

        def act(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            tensor = get_input(args, kwargs, point.site.arg)
            new = self.fire(point, tensor)
            return None if new is tensor else put_input(args, kwargs, point.site.arg, new)

        return act

    def on_output(self, point: Point) -> Leaving:
        """What runs on a module's output where a hook point stands there."""

        def act(_module: nn.Module, _args: Any, output: Any) -> Any:
            tensor = get_output(output, point.site.arg)
            new = self.fire(point, tensor)
            return None if new is tensor else put_output(output, point.site.arg, new)

        return act

    def carry_edits(self, stack: ExitStack, put: Put, point: Point) -> None:
        """Add what was edited on the way into a branch to what the branch writes, so that the stream has it too."""
        write = self._registry.points[point.aside]
        column = self._registry.stack_of(point)
        row = column.writer(write.kind, write.layer)
        native = self._model.get_submodule(column.block(write.layer))

        def after(_module: nn.Module, _args: Any, output: Any) -> Any:
            change = self._edits.pop(point.name, None)
            if change is None:
                return None
            write_gain, keep = (1.0, 1.0) if row.mix is None else row.mix(native)
            sizes = {**self._state.sizes, "head": column.n_heads}
            edit = to_native(change * (keep / write_gain), write.site.layout, RESIDUAL, sizes)
            written = get_output(output, write.site.arg)
            return put_output(output, write.site.arg, written + edit.reshape(written.shape))

        stack.callback(self._edits.pop, point.name, None)
        # after the hook point of the write itself
        put(write.site.module, "out", self._registry.rank[write.name] + 0.5, after)

    def note_heads(self, point: Point, z: Tensor) -> Tensor:
        """Keep what the heads put out for :meth:`head_results`; gives it back."""
        self._heads[point.name] = z
        return z

    def head_results(self, put: Put, point: Point) -> bool:
        """Each head's write, computed from what enters the output projection; only an edit changes the sum.

        Where a norm stands between the heads and the stream, its scale is frozen to that of this pass.

        Returns:
            Whether the heads are to be noted from inside the attention call.
        """
        row, rank = self._registry.stack_of(point), self._registry.rank[point.name]
        writer = row.attention(point.kind, point.layer)
        layout = writer.write.layout if writer.post_norm else writer.stream_layout

        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.note_heads(point, get_input(args, kwargs, 0))

        def after(norm: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            weights = head_output_weights(self._model, row, point.layer, point.kind)
            factor = self._registry.factor(point)
            sizes = {**self._state.sizes, "head": row.n_heads}
            entered = self._heads.pop(point.name)
            z = to_vocabulary(fold_leading(entered, point.site.layout), point.site.layout, HEADS, sizes)
            result = (z.transpose(-2, -3) @ weights.to(z)).transpose(-2, -3)
            written = get_output(output, 0)
            if writer.post_norm:
                scale = rms_scale(norm, get_input(args, {}, 0))
                wide = fold_leading(scale.expand_as(written), layout)
                result = result * to_vocabulary(wide, layout, RESIDUAL, sizes).unsqueeze(-2)
            result = result * factor if factor != 1.0 else result
            new = self._through(point, result)
            if new is result:
                return None
            change = to_native((new - result).sum(dim=-2) / factor, layout, RESIDUAL, sizes)
            return put_output(output, 0, written + change.reshape(written.shape))

        at = f"{row.block(point.layer)}.{writer.post_norm}" if writer.post_norm else point.site.module
        if not writer.z_inside:
            put(point.site.module, "in", rank, before)
        put(at, "out", rank, after)
        return writer.z_inside

    def fire(self, point: Point, native: Tensor) -> Tensor:
        """Show a native tensor to a hook point; the very same tensor comes back if nobody changed it."""
        layout, axes = point.site.layout, point.axes
        sizes = {**self._state.sizes, "head": self._registry.stack_of(point).n_heads}
        value = to_vocabulary(fold_leading(native, layout), layout, axes, sizes)
        factor = self._registry.factor(point) if point.name.endswith("hook_out") else 1.0
        if factor != 1.0:
            value = value * factor
        # keys and values that a library repeats for every query head before the call
        copies = value.shape[2] // point.heads if point.heads else 1
        shown = value[:, :, ::copies] if copies > 1 else value
        new = self._through(point, shown)
        if new is shown:
            return native
        new = new.repeat_interleave(copies, dim=2) if copies > 1 else new
        if point.aside:
            self._edits[point.name] = new - value
        return to_native(new if factor == 1.0 else new / factor, layout, axes, sizes).reshape(native.shape)

    def _through(self, point: Point, value: Tensor) -> Tensor:
        refuse_recomputation(point.name, self.gradients)
        self.count[point.name] += 1
        if self.observer is not None:
            self.observer(point, value)
            return value
        hooked = self._registry.hooked[point.name]
        if hooked.bwd_hooks and len(self.acting(hooked.bwd_hooks)) < len(hooked.bwd_hooks):
            raise HookError(
                f"another thread has backward hooks on {point.name}, and torch cannot keep those of two threads apart. "
                "Let one block with backward hooks end before another thread hooks the same points."
            )
        acting = self.acting(hooked.fwd_hooks)
        if all(getattr(hook, "reads_only", False) for hook in acting):
            if hooked.bwd_hooks:
                shown: Tensor = hooked(value)
                return shown
            for hook in acting:
                hook(value, hook=hooked)
            return value
        # hooks may write in place, so they get a copy
        copy = value.clone()
        new = hooked(copy)
        if new is copy and same_bits(copy, value):
            return value
        if not isinstance(new, Tensor) or new.shape != value.shape:
            got = f"shape {tuple(new.shape)}" if isinstance(new, Tensor) else f"a {type(new).__name__}"
            raise WiringError(
                f"the hook on {point.name} returned {got}, expected {tuple(value.shape)} ({' '.join(point.axes)})"
            )
        # what was made under torch.inference_mode() may not enter the graph of a run outside of it
        return new.clone() if new.is_inference() and not torch.is_inference_mode_enabled() else new
