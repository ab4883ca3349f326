"""The hook registry: TransformerLens hook points on a native model that is never edited.

Native torch hooks exist only while a hook point is in use: :meth:`HookRegistry.attach` installs exactly
those that the hook points in use need, and takes them away when its block ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.names import HEADS, RESIDUAL, Point, hook_points
from tsfm_lens.hooks.native import (
    fold_leading,
    get_input,
    get_output,
    put_input,
    put_output,
    rms_scale,
    to_native,
    to_vocabulary,
)
from tsfm_lens.hooks.tap import AttentionTap
from tsfm_lens.hooks.weights import head_output_weights
from tsfm_lens.hooks.wiring import Stack, Wiring


@dataclass
class RunState:
    """Where a run stands; interventions and recorders read it.

    Attributes:
        n_series: series (a variate is one) in the running batch; activations have a multiple of it as rows.
        step: forecast steps already read out in this run.
        offset: by stack, the position of an activation's first token (above 0 with a key-value cache).
        block_rows: series of one variant, where several variants run side by side.
        sample_major: whether sample paths are the outermost part of the rows.
        sizes: lengths of "series" and "variate" in the running pass, for models that keep them apart.
    """

    n_series: int | None = None
    step: int = 0
    offset: dict[str, int] = field(default_factory=dict)
    block_rows: int | None = None
    sample_major: bool = False
    sizes: dict[str, int] = field(default_factory=dict)

    def restart(self, n_series: int | None = None, block_rows: int | None = None) -> None:
        """Stand at the beginning of a run; of one that is not the lens's own if no series are given."""
        self.n_series, self.step, self.block_rows = n_series, 0, block_rows
        self.offset.clear()


class HookRegistry:
    """Hook points of one native model.

    Args:
        model: the native module; it is read, hooked while needed, and never edited.
        wiring: its table.

    Raises:
        WiringError: a path of the wiring does not exist in the model.
    """

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        self.model = model
        self.wiring = wiring
        self.points: dict[str, Point] = hook_points(wiring)
        self.state = RunState(sample_major=wiring.sample_major)
        self.hooked: dict[str, HookPoint] = {name: HookPoint() for name in self.points}
        self._modules = self._resolve()
        self._factors = {p.name: f for p in self.points.values() if (f := self._factor(p)) != 1.0}
        self._live: set[str] = set()
        self._tracked = False
        self._edits: dict[str, Tensor] = {}
        self._inside_attention = {(p.site.module, p.how): p for p in self.points.values() if p.how in _TAPPED}
        self._tap = AttentionTap(self._fire_tapped, self._wants)

    def _resolve(self) -> dict[str, nn.Module]:
        modules = dict(self.model.named_modules())
        for point in self.points.values():
            if point.site.module not in modules:
                raise WiringError(
                    f"the wiring of {self.wiring.architecture!r} expects a module {point.site.module!r} for "
                    f"{point.name}, but {type(self.model).__name__} has none. "
                    "Is this a model of another architecture or library version?"
                )
        return modules

    def _factor(self, point: Point) -> float:
        """What a block that rescales its stream multiplies a branch's output with before it is added."""
        if not point.name.endswith("hook_out") or point.layer < 0:
            return 1.0
        stack = self.stack_of(point)
        mix = stack.writer(point.kind, point.layer).mix
        return 1.0 if mix is None else mix(self.model.get_submodule(stack.block(point.layer)))[0]

    def stack_of(self, point: Point) -> Stack:
        """The stack that a hook point belongs to."""
        return self.wiring.stack(point.stack)

    @contextmanager
    def attach(self) -> Iterator[None]:
        """Connect every hook point that has a hook now to the native model while the block runs.

        Nested calls connect only what is not connected yet. With no hook set, nothing is installed.
        """
        used = {name for name in self.points if _in_use(self.hooked[name])}
        # a write that carries edits of the stream is shown first, as it is without them
        used |= {self.points[name].aside for name in used if self.points[name].aside}
        fresh = [p for name, p in self.points.items() if name in used and name not in self._live]
        if not fresh:
            yield
            return
        with ExitStack() as stack:
            stack.callback(self._live.difference_update, [p.name for p in fresh])
            self._live.update(p.name for p in fresh)
            if not self._tracked:
                stack.callback(setattr, self, "_tracked", False)
                self._tracked = True
                self._track(stack)
            tapped = []
            for point in fresh:
                module = self._modules[point.site.module]
                if point.how in _TAPPED:
                    tapped.append((point.site.module, module))
                elif point.how == "result":
                    self._hook_result(stack, point, module)
                elif point.site.side == "in":
                    stack.callback(module.register_forward_pre_hook(self._on_input(point), with_kwargs=True).remove)
                else:
                    stack.callback(module.register_forward_hook(self._on_output(point)).remove)
            for point in fresh:
                if point.aside:
                    self._carry_edits(stack, point)
            if tapped:
                stack.enter_context(self._tap.labelled(tapped))
            yield

    def _track(self, stack: ExitStack) -> None:
        """Keep :attr:`state` true while anything is attached."""

        def read_out(_module: nn.Module, _args: Any, output: Any) -> None:
            steps = self.wiring.steps_per_readout
            self.state.step += steps if isinstance(steps, int) else steps(output)

        unembed = self._modules[self.wiring.unembed.module]
        for row in self.wiring.stacks:
            if row.cached is not None:
                module = self.model.get_submodule(row.entry)
                stack.callback(module.register_forward_pre_hook(self._on_entry(row), with_kwargs=True).remove)
        if self.wiring.sizes_from is not None:
            module = self.model.get_submodule(self.wiring.sizes_from.module)
            stack.callback(module.register_forward_pre_hook(self._on_sizes, with_kwargs=True).remove)
        stack.callback(unembed.register_forward_hook(read_out, always_call=True).remove)

    def _on_entry(self, row: Stack) -> Callable[..., None]:
        def entered(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert row.cached is not None
            self.state.offset[row.name] = row.cached(args, kwargs)

        return entered

    def _on_sizes(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        site = self.wiring.sizes_from
        assert site is not None
        shape = get_input(args, kwargs, site.arg).shape
        named = dict(zip(site.layout.split(), shape, strict=True))
        self.state.sizes = {axis: named[axis] for axis in ("series", "variate")}

    def _on_input(self, point: Point) -> Callable[..., Any]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            tensor = get_input(args, kwargs, point.site.arg)
            new = self._fire(point, tensor)
            return None if new is tensor else put_input(args, kwargs, point.site.arg, new)

        return hook

    def _on_output(self, point: Point) -> Callable[..., Any]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
            tensor = get_output(output, point.site.arg)
            new = self._fire(point, tensor)
            return None if new is tensor else put_output(output, point.site.arg, new)

        return hook

    def _carry_edits(self, stack: ExitStack, point: Point) -> None:
        """Add what was edited on the way into a branch to what the branch writes, so that the stream has it too."""
        write = self.points[point.aside]
        row = self.stack_of(point).writer(write.kind, write.layer)
        native = self.model.get_submodule(self.stack_of(point).block(point.layer))
        write_gain, keep = (1.0, 1.0) if row.mix is None else row.mix(native)

        def after(_module: nn.Module, _args: Any, output: Any) -> Any:
            change = self._edits.pop(point.name, None)
            if change is None:
                return None
            sizes = {**self.state.sizes, "head": self.stack_of(point).n_heads}
            own = to_native(change * (keep / write_gain), write.site.layout, RESIDUAL, sizes)
            written = get_output(output, write.site.arg)
            return put_output(output, write.site.arg, written + own.reshape(written.shape))

        stack.callback(self._edits.pop, point.name, None)
        stack.callback(self._modules[write.site.module].register_forward_hook(after).remove)

    def _hook_result(self, stack: ExitStack, point: Point, module: nn.Module) -> None:
        """Each head's write, computed from what enters the output projection; only an edit changes the sum.

        Where a norm stands between the heads and the stream, its scale is frozen to that of this pass.
        """
        row = self.stack_of(point)
        writer = row.attention(point.kind, point.layer)
        weights = head_output_weights(self.model, row, point.layer, point.kind)
        block = self.model.get_submodule(row.block(point.layer))
        factor = 1.0 if writer.mix is None else writer.mix(block)[0]
        layout = writer.write.layout if writer.post_norm else writer.stream_layout
        entered: list[Tensor] = []

        def before(_module: nn.Module, args: tuple[Any, ...]) -> None:
            entered[:] = [get_input(args, {}, 0)]

        def after(norm: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            sizes = {**self.state.sizes, "head": row.n_heads}
            z = to_vocabulary(fold_leading(entered.pop(), point.site.layout), point.site.layout, HEADS, sizes)
            result = (z.transpose(-2, -3) @ weights.to(z)).transpose(-2, -3)
            if writer.post_norm:
                scale = rms_scale(norm, get_input(args, {}, 0))
                wide = fold_leading(scale.expand_as(output), layout)
                result = result * to_vocabulary(wide, layout, RESIDUAL, sizes).unsqueeze(-2)
            result = result * factor if factor != 1.0 else result
            new = self._through(point, result)
            if new is result:
                return None
            change = to_native((new - result).sum(dim=-2) / factor, layout, RESIDUAL, sizes)
            return output + change.reshape(output.shape)

        at = f"{row.block(point.layer)}.{writer.post_norm}" if writer.post_norm else point.site.module
        stack.callback(module.register_forward_pre_hook(before).remove)
        stack.callback(self.model.get_submodule(at).register_forward_hook(after).remove)

    def _fire(self, point: Point, native: Tensor) -> Tensor:
        """Show a native tensor to a hook point; the very same tensor comes back if nobody changed it."""
        layout, axes = point.site.layout, point.axes
        sizes = {**self.state.sizes, "head": self.stack_of(point).n_heads}
        value = to_vocabulary(fold_leading(native, layout), layout, axes, sizes)
        factor = self._factors.get(point.name, 1.0)
        if factor != 1.0:
            value = value * factor
        new = self._through(point, value)
        if new is value:
            return native
        if point.aside:
            self._edits[point.name] = new - value
        return to_native(new if factor == 1.0 else new / factor, layout, axes, sizes).reshape(native.shape)

    def _through(self, point: Point, value: Tensor) -> Tensor:
        hooked = self.hooked[point.name]
        if all(getattr(handle.user_hook, "reads_only", False) for handle in hooked.fwd_hooks):
            new = hooked(value) if (hooked.fwd_hooks or hooked.bwd_hooks) else value
            return new if hooked.bwd_hooks else value
        # hooks may write in place, so they get a copy; the version counter tells whether they did
        copy = value.clone()
        version = copy._version
        new = hooked(copy)
        if new is copy and copy._version == version:
            return value
        if new.shape != value.shape:
            raise WiringError(
                f"the hook on {point.name} returned shape {tuple(new.shape)}, expected {tuple(value.shape)} "
                f"({' '.join(point.axes)})"
            )
        return new

    def _wants(self, path: str, how: str) -> bool:
        point = self._inside_attention.get((path, how))  # type: ignore[arg-type]
        return point is not None and point.name in self._live and _in_use(self.hooked[point.name])

    def _fire_tapped(self, path: str, how: str, tensor: Tensor) -> Tensor:
        if not self._wants(path, how):
            return tensor
        return self._fire(self._inside_attention[path, how], tensor)  # type: ignore[index]


_TAPPED = ("q", "k", "v", "scores", "pattern")


def _in_use(hook_point: HookPoint) -> bool:
    return bool(hook_point.fwd_hooks or hook_point.bwd_hooks)


def hang(root: nn.Module, name: str, point: nn.Module) -> None:
    """Hang a hook point into a tree of plain modules so that its dotted name is its path."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        child = root._modules[part]
        assert child is not None
        root = child
    root.add_module(last, point)
