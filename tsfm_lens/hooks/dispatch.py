"""Dispatch of native tensors to hook points: torch hooks that one thread's open blocks need, in order of execution.

Torch hooks are seen by every thread, so each of ours first asks whether it is in its own. The hooks on the model follow
from the open blocks: nothing is counted up or down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tsfm_lens.errors import HookError, WiringError
from tsfm_lens.hooks.attention_capture import AttentionCapture
from tsfm_lens.hooks.context import Context, Hook, ScopedHook, acting_hooks, detach
from tsfm_lens.hooks.hook_checks import refuse_hidden, refuse_recomputation
from tsfm_lens.hooks.hook_table import HookTable
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
from tsfm_lens.hooks.state import RunState
from tsfm_lens.hooks.torch_hooks import Act, ModuleSide, OrderedHooks
from tsfm_lens.hooks.weights import head_output_weights

Observer = Callable[[Point, Tensor], None]
T = TypeVar("T")
Connection = tuple[ModuleSide, str, float, Callable[..., Any]]
"""(side of a module, key there, rank, function): see :class:`Act`."""
# ranks before and behind those of hook points
_FIRST, _LAST = -1.0, float("inf")


class HookScope(Context[T]):
    """Hooks of one thread's block on the native model.

    Hooks act in the order in which the model passes their points, however blocks are nested; hooks on one point in the
    order in which they were set.

    Args:
        table: the model's hook points.
        value: returned by the block.
        hooks: to set.
        observer: receives every activation in place of the hooks.
        after: called when the block ends; twice, where an interrupt broke it off.

    Attributes:
        names: hook points that it connects and that the model must pass.
        targets: those, and the writes that carry their edits.
        trace: hook points that the run has passed.
        full_runs: modules that ran to their end.
        elsewhere: whether hooked modules ran in another thread or task.

    Raises:
        WiringError: on entering, compiled or replaced modules would pass a hook by.
        HookError: on leaving, the model ran and never passed a hook point, or no backward hook was ever called.
    """

    def __init__(
        self,
        table: HookTable,
        value: T,
        hooks: Iterable[Hook] = (),
        *,
        observer: Observer | None = None,
        after: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(table.threads)
        self.observer, self.names, self.targets = observer, list[str](), set[str]()
        self._table, self._value, self._hooks, self._after = table, value, tuple(hooks), after
        self._scoped: tuple[tuple[str, ScopedHook], ...] = ()
        self._is_closed, self._has_gradient = True, False

    def open(self) -> T:
        """Set the hooks and connect their points."""
        table = self._table
        self._dispatcher = dispatcher = dispatcher_of(table)
        self.targets = set()
        self.trace: set[str] = set()
        self.full_runs: set[str] = set()
        self.elsewhere = self._is_closed = False
        self._scoped = tuple([(name, ScopedHook(hook, self, side)) for name, hook, side in self._hooks])
        in_use = {*dispatcher.unconnected(), *[name for name, _hook in self._scoped]}
        connected = set().union(*[scope.targets for scope in dispatcher.acting()])
        self.begin()
        dispatcher.scopes = (*dispatcher.scopes, self)
        for name, hook in self._scoped:
            table.hooked[name].add_hook(hook, dir=hook.direction)
        if self.observer is None:
            self.names = sorted(in_use, key=table.rank.__getitem__)
        # a write that carries edits of the stream is shown first, as it is without them
        targets = {*self.names, *filter(None, [table.points[name].aside for name in self.names])}
        paths = {table.points[name].site.module for name in targets - connected}
        refuse_hidden(table.model, [(path, table.modules[path]) for path in paths])
        self.targets = targets
        dispatcher.settle()
        return self._value

    def close(self) -> None:
        """Take everything off; another thread than the block's leaves the functions that torch calls to that one."""
        if self._is_closed:
            return
        self._has_gradient = any(hook.calls for _name, hook in self._scoped if hook.direction == "bwd")
        self.end()
        for name, hook in self._scoped:
            detach(self._table.hooked[name], hook)
        self._dispatcher.settle()
        if self._after is not None:
            self._after()
        self._is_closed = True
        # hooks know their scope, and their records are not to wait for the collector of cycles
        self._scoped = ()

    def check(self) -> None:
        """Raise HookError for hooks that did nothing though the model ran."""
        if not self.trace.issuperset(self.names):
            self._dispatcher.refuse_inert(self)
        silent = [name for name, _hook, direction in self._hooks if direction == "bwd" and name in self.trace]
        if silent and not self._has_gradient:
            raise HookError(
                f"no gradient came to the backward hook on {silent[0]}: call backward() inside the block, on a loss of "
                "what the model gave there, and not under torch.no_grad()"
            )


def dispatcher_of(table: HookTable) -> HookDispatcher:
    """Return the running thread's dispatcher of a model's hooks."""
    try:
        dispatcher: HookDispatcher = table.threads.dispatcher
    except AttributeError:
        dispatcher = HookDispatcher(table)
        table.dispatchers.add(dispatcher)
        table.threads.dispatcher = dispatcher
    return dispatcher


class HookDispatcher:
    """One thread's hooks on the model of a table.

    Args:
        table: the hook points.

    Attributes:
        scopes: of the open blocks, in order of entry; they alone determine the hooks on the model.
        state: of the thread's run.
    """

    def __init__(self, table: HookTable) -> None:
        self._table, self._wiring, self._thread = table, table.wiring, threading.current_thread()
        self.scopes: tuple[HookScope[Any], ...] = ()
        self.state = RunState(sample_major=table.wiring.sample_major)
        self._torch_hooks: dict[ModuleSide, OrderedHooks] = {}
        self._connections: dict[str, list[Connection]] = {}
        self._capture = AttentionCapture(self._fire_inside, self._in_use_inside)
        # whether gradients were recorded when the model was entered
        self._gradients = False
        # by hook point: edits for a write to carry, and the output of heads in this pass
        self._edits: dict[str, Tensor] = {}
        self._heads: dict[str, Tensor] = {}

    def acting(self) -> list[HookScope[Any]]:
        """Return the open blocks that act on what runs now; errors as in :meth:`Context.acts`."""
        return [*filter(HookScope.acts, self.scopes)]

    def _in_use(self, name: str) -> bool:
        """Return whether a hook acts at a hook point."""
        point = self._table.hooked[name]
        return bool(acting_hooks(point.fwd_hooks) or (point.bwd_hooks and acting_hooks(point.bwd_hooks)))

    def unconnected(self) -> list[str]:
        """Return the hook points where a hook acts and that no block has connected."""
        if not all(scope.is_open for scope in self.scopes) or (self._torch_hooks and not self.scopes):
            self.settle()
        # asked before every run, mostly of a model without hooks
        in_use = [name for name, point in self._table.hooked.items() if point.fwd_hooks or point.bwd_hooks]
        if not in_use:
            return []
        connected = set().union(*[scope.targets for scope in self.acting()])
        return [name for name in in_use if name not in connected and self._in_use(name)]

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
                for hook in acting_hooks((*point.fwd_hooks, *point.bwd_hooks))
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
        if len(silent) == len(names) and not scope.full_runs and scope.elsewhere:
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
        self.scopes = tuple([scope for scope in self.scopes if scope.is_open])
        acts: dict[ModuleSide, dict[str, Act]] = {}
        for scope in self.scopes:
            for name in scope.targets:
                if name not in self._connections:
                    self._connections[name] = list(self._connect(self._table.points[name]))
                for side, key, rank, call in self._connections[name]:
                    acts.setdefault(side, {}).setdefault(key, Act(rank, call)).names.add(name)
        if acts and not self._torch_hooks:
            self._gradients = torch.is_grad_enabled()
        for side in tuple(self._torch_hooks):
            if side not in acts:
                self._torch_hooks[side].remove()
                self._torch_hooks.pop(side, None)
        for side, by_key in acts.items():
            if side not in self._torch_hooks:
                self._torch_hooks[side] = OrderedHooks(self._table.modules[side[0]], side[1], self._select)
            self._torch_hooks[side].acts = tuple(sorted(by_key.values(), key=attrgetter("rank")))
            self._torch_hooks[side].set()
        self._capture.look_at({self._table.modules[side[0]]: side[0] for side in acts if "check" in acts[side]})
        if not self.scopes:
            # remains of a run that was broken off
            self._edits.clear()
            self._heads.clear()

    def _select(self, acts: tuple[Act, ...]) -> Sequence[Act]:
        """Select the acts that apply to a module's current call, of all that may apply there."""
        scopes = self.acting()
        if len(scopes) == len(self.scopes):
            return acts if scopes else ()
        for scope in self.scopes:
            scope.elsewhere |= scope not in scopes
        return [act for act in acts if any(not act.names.isdisjoint(scope.targets) for scope in scopes)]

    def _connect(self, point: Point) -> Iterator[Connection]:
        """Yield the connections that one hook point needs on the model."""
        path, rank = point.site.module, self._table.rank[point.name]
        yield from self._track()
        for witness in self._witnesses(point):
            yield (witness, "out"), "ran", _LAST, self._on_end(witness)
        if point.how == "result":
            yield from self._connect_result(point)
        elif point.how != "site":
            yield from self._connect_attention(path)
        else:
            yield (path, point.site.side), point.name, rank, self._at_site(point)
        if point.aside:
            yield self._carry_edits(point)

    def _connect_attention(self, path: str) -> Iterator[Connection]:
        for at in self._capture.brackets(path, self._table.modules[path]):
            yield (at, "end"), "capture", _FIRST, self._capture.leave
            yield (at, "in"), "capture", _LAST, self._capture.enter
        yield (path, "out"), "check", _FIRST, self._capture.check(path)

    def _on_end(self, path: str) -> Callable[..., None]:
        """Note the runs of a module that come to their end."""

        def note(*_call: Any) -> None:
            for scope in self.acting():
                scope.full_runs.add(path)

        return note

    def _track(self) -> Iterator[Connection]:
        """Keep :attr:`state` true while anything is connected."""

        def begin(*_call: Any) -> None:
            self._gradients = torch.is_grad_enabled()

        def count_steps(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
            steps = self._wiring.steps_per_readout
            self.state.step += steps if isinstance(steps, int) else steps(output)

        def note_sizes(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert site is not None
            lengths = dict(zip(site.layout.split(), get_input(args, kwargs, site.arg).shape, strict=True))
            self.state.sizes = {axis: lengths[axis] for axis in ("series", "variate")}

        def note_offset(name: str, cached: Callable[..., int]) -> Callable[..., None]:
            def note(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                self.state.offset[name] = cached(args, kwargs)

            return note

        site = self._wiring.sizes_from
        yield ("", "in"), "begun", _FIRST, begin
        for stack in self._wiring.stacks:
            if stack.cached is not None:
                yield (stack.entry, "in"), f"entered {stack.name}", _FIRST, note_offset(stack.name, stack.cached)
        if site is not None:
            yield (site.module, "in"), "sizes", _FIRST, note_sizes
        yield (self._wiring.unembed.module, "out"), "read out", _FIRST, count_steps

    # --- functions of torch hooks --------------------------------------------------------------------------

    def _at_site(self, point: Point) -> Callable[..., Any]:
        """Make the torch hook for a hook point on a module's inputs, or on its output."""
        arg = point.site.arg

        def on_input(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            tensor = get_input(args, kwargs, arg)
            new = self._fire(point, tensor)
            return None if new is tensor else put_input(args, kwargs, arg, new)

        def on_output(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
            tensor = get_output(output, arg)
            new = self._fire(point, tensor)
            return None if new is tensor else put_output(output, arg, new)

        return on_input if point.site.side == "in" else on_output

    def _carry_edits(self, point: Point) -> Connection:
        """Add an edit on the way into a branch to the branch's write, so that the stream has it too."""
        write, stack = self._table.points[point.aside], self._table.stack_of(point)
        mix, native = stack.writer(write.kind, write.layer).mix, self._table.modules[stack.block(write.layer)]

        def after(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
            change = self._edits.pop(point.name, None)
            if change is None:
                return None
            write_gain, stream_gain = (1.0, 1.0) if mix is None else mix(native)
            edit = to_native(change * (stream_gain / write_gain), write.site.layout, RESIDUAL, self._sizes(point))
            tensor = get_output(output, write.site.arg)
            return put_output(output, write.site.arg, tensor + edit.reshape(tensor.shape))

        # after the hook point of the write itself
        return (write.site.module, "out"), f"edits of {point.name}", self._table.rank[write.name] + 0.5, after

    def _connect_result(self, point: Point) -> Iterator[Connection]:
        """Compute each head's write from the input of the output projection; only an edit changes the sum.

        Where a norm stands between the heads and the stream, its scale is frozen to that of this pass.
        """
        stack, rank = self._table.stack_of(point), self._table.rank[point.name]
        row, path = stack.attention(point.kind, point.layer), point.site.module
        layout = row.write.layout if row.post_norm else row.stream_layout

        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._heads[point.name] = get_input(args, kwargs, 0)

        def after(norm: nn.Module, args: tuple[Any, ...], _kwargs: Any, output: Any) -> Any:
            weights = head_output_weights(self._table.model, stack, point.layer, point.kind)
            factor, sizes = self._table.factor(point), self._sizes(point)
            heads = fold_leading(self._heads.pop(point.name), point.site.layout)
            z = to_vocabulary(heads, point.site.layout, HEADS, sizes)
            result = (z.transpose(-2, -3) @ weights.to(z)).transpose(-2, -3)
            tensor = get_output(output, 0)
            if row.post_norm:
                scale = rms_scale(norm, get_input(args, {}, 0))
                wide = fold_leading(scale.expand_as(tensor), layout)
                result = result * to_vocabulary(wide, layout, RESIDUAL, sizes).unsqueeze(-2)
            result = result * factor if factor != 1.0 else result
            new = self._through(point, result)
            if new is result:
                return None
            change = to_native((new - result).sum(dim=-2) / factor, layout, RESIDUAL, sizes)
            return put_output(output, 0, tensor + change.reshape(tensor.shape))

        at = f"{stack.block(point.layer)}.{row.post_norm}" if row.post_norm else path
        yield (at, "out"), point.name, rank, after
        if row.z_inside:
            yield from self._connect_attention(path)
        else:
            yield (path, "in"), point.name, rank, before

    def _in_use_inside(self, path: str, how: str) -> bool:
        point = self._table.inside_attention.get((path, how))
        # asked at every attention call, mostly of points that no block has connected
        return (
            point is not None
            and any(point.name in scope.targets and scope.acts() for scope in self.scopes)
            and self._in_use(point.name)
        )

    def _fire_inside(self, path: str, how: str, tensor: Tensor) -> Tensor:
        if not self._in_use_inside(path, how):
            return tensor
        point = self._table.inside_attention[path, how]
        if how == "result":
            self._heads[point.name] = tensor
            return tensor
        return self._fire(point, tensor)

    # --- passage through a hook point ----------------------------------------------------------------------

    def _sizes(self, point: Point) -> dict[str, int]:
        """Return the lengths of axes that layouts may fold together."""
        return {**self.state.sizes, "head": self._table.stack_of(point).n_heads}

    def _fire(self, point: Point, native: Tensor) -> Tensor:
        """Pass a native tensor to a hook point's hooks; the very same tensor comes back if nobody changed it."""
        layout, axes, sizes = point.site.layout, point.axes, self._sizes(point)
        value = to_vocabulary(fold_leading(native, layout), layout, axes, sizes)
        factor = self._table.factor(point)
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
        refuse_recomputation(point.name, self._gradients)
        observer = None
        for scope in self.acting():
            scope.trace.add(point.name)
            observer = scope.observer or observer
        if observer is not None:
            observer(point, value)
            return value
        hook_point = self._table.hooked[point.name]
        if hook_point.bwd_hooks and len(acting_hooks(hook_point.bwd_hooks)) < len(hook_point.bwd_hooks):
            raise HookError(
                f"another thread has backward hooks on {point.name}, or another task has, and torch cannot keep them "
                "apart. Let one block with backward hooks end before another thread or task hooks the same points."
            )
        hooks = acting_hooks(hook_point.fwd_hooks)
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
