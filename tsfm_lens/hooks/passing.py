"""Passage of a native tensor through a hook point: to the vocabulary, to the hooks, and back if changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

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
from tsfm_lens.hooks.point_table import PointTable
from tsfm_lens.hooks.scope import Held, HookScope
from tsfm_lens.hooks.slots import Connection
from tsfm_lens.hooks.state import RunState
from tsfm_lens.hooks.weights import head_output_weights


class Passing:
    """Hook points of one thread, and the tensors that pass them.

    Args:
        table: the hook points.
        scopes: gives the blocks that act on what runs now.
        state: of its run.
    """

    def __init__(self, table: PointTable, scopes: Callable[[], list[HookScope[Any]]], state: RunState) -> None:
        self._table, self._model, self._scopes, self._state = table, table.model, scopes, state
        # whether gradients were recorded when the model was entered
        self.gradients = False
        self._edits: dict[str, Tensor] = {}
        # by hook point, the output of its heads in this pass
        self._heads: dict[str, Tensor] = {}

    def acting(self, handles: Iterable[LensHandle]) -> list[Any]:
        """Return the hooks that act here: those of acting blocks, and those that belong to the lens."""
        # another thread may take a hook out of the list meanwhile
        hooks = [handle.user_hook for handle in tuple(handles)]
        return [hook for hook in hooks if not isinstance(hook, Held) or hook.scope.acts()]

    def in_use(self, name: str) -> bool:
        """Return whether a hook acts at a hook point."""
        point = self._table.hooked[name]
        # most points have none, and all are asked whenever a block is entered
        return bool(
            (point.fwd_hooks and self.acting(point.fwd_hooks)) or (point.bwd_hooks and self.acting(point.bwd_hooks))
        )

    def forget(self) -> None:
        """Drop the remains of a run that was broken off."""
        self._edits.clear()
        self._heads.clear()

    # --- functions of torch hooks --------------------------------------------------------------------------

    def on_input(self, point: Point) -> Callable[..., Any]:
        """Make the torch hook for a hook point on a module's inputs."""

        def act(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            tensor = get_input(args, kwargs, point.site.arg)
            new = self.fire(point, tensor)
            return None if new is tensor else put_input(args, kwargs, point.site.arg, new)

        return act

    def on_output(self, point: Point) -> Callable[..., Any]:
        """Make the torch hook for a hook point on a module's output."""

        def act(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
            tensor = get_output(output, point.site.arg)
            new = self.fire(point, tensor)
            return None if new is tensor else put_output(output, point.site.arg, new)

        return act

    def carry_edits(self, point: Point) -> Connection:
        """Add an edit on the way into a branch to the branch's write, so that the stream has it too."""
        write = self._table.points[point.aside]
        column = self._table.stack_of(point)
        row = column.writer(write.kind, write.layer)
        native = self._model.get_submodule(column.block(write.layer))

        def after(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
            change = self._edits.pop(point.name, None)
            if change is None:
                return None
            write_gain, stream_gain = (1.0, 1.0) if row.mix is None else row.mix(native)
            sizes = {**self._state.sizes, "head": column.n_heads}
            edit = to_native(change * (stream_gain / write_gain), write.site.layout, RESIDUAL, sizes)
            tensor = get_output(output, write.site.arg)
            return put_output(output, write.site.arg, tensor + edit.reshape(tensor.shape))

        # after the hook point of the write itself
        rank = self._table.rank[write.name] + 0.5
        return (write.site.module, "out"), f"edits of {point.name}", rank, after

    def note_heads(self, point: Point, z: Tensor) -> Tensor:
        """Keep the heads' outputs for :meth:`head_results`, and return them."""
        self._heads[point.name] = z
        return z

    def head_results(self, point: Point) -> tuple[bool, list[Connection]]:
        """Compute each head's write from the input of the output projection; only an edit changes the sum.

        Where a norm stands between the heads and the stream, its scale is frozen to that of this pass.

        Returns:
            Whether the heads are to be noted from inside the attention call, and the connections to the model.
        """
        row, rank = self._table.stack_of(point), self._table.rank[point.name]
        writer = row.attention(point.kind, point.layer)
        layout = writer.write.layout if writer.post_norm else writer.stream_layout

        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.note_heads(point, get_input(args, kwargs, 0))

        def after(norm: nn.Module, args: tuple[Any, ...], _kwargs: Any, output: Any) -> Any:
            weights = head_output_weights(self._model, row, point.layer, point.kind)
            factor = self._table.factor(point)
            sizes = {**self._state.sizes, "head": row.n_heads}
            heads = self._heads.pop(point.name)
            z = to_vocabulary(fold_leading(heads, point.site.layout), point.site.layout, HEADS, sizes)
            result = (z.transpose(-2, -3) @ weights.to(z)).transpose(-2, -3)
            tensor = get_output(output, 0)
            if writer.post_norm:
                scale = rms_scale(norm, get_input(args, {}, 0))
                wide = fold_leading(scale.expand_as(tensor), layout)
                result = result * to_vocabulary(wide, layout, RESIDUAL, sizes).unsqueeze(-2)
            result = result * factor if factor != 1.0 else result
            new = self._through(point, result)
            if new is result:
                return None
            change = to_native((new - result).sum(dim=-2) / factor, layout, RESIDUAL, sizes)
            return put_output(output, 0, tensor + change.reshape(tensor.shape))

        at = f"{row.block(point.layer)}.{writer.post_norm}" if writer.post_norm else point.site.module
        connections: list[Connection] = [((at, "out"), point.name, rank, after)]
        if not writer.z_inside:
            connections.append(((point.site.module, "in"), point.name, rank, before))
        return writer.z_inside, connections

    def fire(self, point: Point, native: Tensor) -> Tensor:
        """Pass a native tensor to a hook point's hooks; the very same tensor comes back if nobody changed it."""
        layout, axes = point.site.layout, point.axes
        sizes = {**self._state.sizes, "head": self._table.stack_of(point).n_heads}
        value = to_vocabulary(fold_leading(native, layout), layout, axes, sizes)
        factor = self._table.factor(point) if point.name.endswith("hook_out") else 1.0
        if factor != 1.0:
            value = value * factor
        # keys and values that a library repeats for every query head before the call
        copies = value.shape[2] // point.heads if point.heads else 1
        distinct = value[:, :, ::copies] if copies > 1 else value
        # of a pass that was broken off
        self._edits.pop(point.name, None)
        new = self._through(point, distinct)
        if new is distinct:
            return native
        new = new.repeat_interleave(copies, dim=2) if copies > 1 else new
        if point.aside:
            self._edits[point.name] = new - value
        return to_native(new if factor == 1.0 else new / factor, layout, axes, sizes).reshape(native.shape)

    def _through(self, point: Point, value: Tensor) -> Tensor:
        refuse_recomputation(point.name, self.gradients)
        scopes = self._scopes()
        for scope in scopes:
            scope.trace.add(point.name)
        for scope in reversed(scopes):
            if scope.observer is not None:
                scope.observer(point, value)
                return value
        hook_point = self._table.hooked[point.name]
        if hook_point.bwd_hooks and len(self.acting(hook_point.bwd_hooks)) < len(hook_point.bwd_hooks):
            raise HookError(
                f"another thread has backward hooks on {point.name}, or another task has, and torch cannot keep them "
                "apart. Let one block with backward hooks end before another thread or task hooks the same points."
            )
        hooks = self.acting(hook_point.fwd_hooks)
        if all(getattr(hook, "reads_only", False) for hook in hooks):
            if hook_point.bwd_hooks:
                result: Tensor = hook_point(value)
                return result
            for hook in hooks:
                hook(value, hook=hook_point)
            return value
        # hooks may write in place, so they get a copy
        copy = value.clone()
        new = hook_point(copy)
        if new is copy and same_bits(copy, value):
            return value
        if not isinstance(new, Tensor) or _kind(new) != _kind(value):
            kind = f"shape {_kind(new)}" if isinstance(new, Tensor) else f"a {type(new).__name__}"
            raise WiringError(
                f"the hook on {point.name} returned {kind}, expected {_kind(value)} ({' '.join(point.axes)})"
            )
        # a tensor made under torch.inference_mode() may not enter the graph of a run outside of it
        return new.clone() if new.is_inference() and not torch.is_inference_mode_enabled() else new


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
