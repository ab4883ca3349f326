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
from tsfm_lens.hooks.names import Point, hook_points
from tsfm_lens.hooks.native import (
    get_input,
    get_output,
    put_input,
    put_output,
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
        n_series: series in the running batch; rows of an activation are series-major multiples of it.
        step: forecast steps already read out in this run.
        offset: by stack, the position of an activation's first token (above 0 with a key-value cache).
    """

    n_series: int | None = None
    step: int = 0
    offset: dict[str, int] = field(default_factory=dict)

    def restart(self, n_series: int) -> None:
        """Stand at the beginning of a run."""
        self.n_series, self.step = n_series, 0
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
        self.state = RunState()
        self.hooked: dict[str, HookPoint] = {name: HookPoint() for name in self.points}
        self._modules = self._resolve()
        self._live: set[str] = set()
        self._tracked = False
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

    def stack_of(self, point: Point) -> Stack:
        """The stack that a hook point belongs to."""
        return self.wiring.stack(point.stack)

    @contextmanager
    def attach(self) -> Iterator[None]:
        """Connect every hook point that has a hook now to the native model while the block runs.

        Nested calls connect only what is not connected yet. With no hook set, nothing is installed.
        """
        fresh = [p for name, p in self.points.items() if name not in self._live and _in_use(self.hooked[name])]
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
            if tapped:
                stack.enter_context(self._tap.labelled(tapped))
            yield

    def _track(self, stack: ExitStack) -> None:
        """Keep :attr:`state` true while anything is attached."""

        def read_out(_module: nn.Module, _args: Any, _output: Any) -> None:
            self.state.step += self.wiring.steps_per_readout

        unembed = self._modules[self.wiring.unembed.module]
        for row in self.wiring.stacks:
            if row.entry and row.cache:
                module = self._modules[row.entry]
                stack.callback(module.register_forward_pre_hook(self._on_entry(row), with_kwargs=True).remove)
        stack.callback(unembed.register_forward_hook(read_out, always_call=True).remove)

    def _on_entry(self, row: Stack) -> Callable[..., None]:
        def entered(_module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
            cache = kwargs.get(row.cache)
            self.state.offset[row.name] = 0 if cache is None else int(cache.get_seq_length())

        return entered

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

    def _hook_result(self, stack: ExitStack, point: Point, module: nn.Module) -> None:
        """Each head's write, computed from what enters the output projection; only an edit changes the sum."""
        row = self.stack_of(point)
        weights = head_output_weights(self.model, row, point.layer, point.kind)

        def after(_module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            z = to_vocabulary(get_input(args, {}, 0), point.site.layout, _HEADS, row.n_heads)
            result = (z.transpose(-2, -3) @ weights.to(z)).transpose(-2, -3)
            new = self._through(point, result)
            return None if new is result else output + (new - result).sum(dim=-2)

        stack.callback(module.register_forward_hook(after).remove)

    def _fire(self, point: Point, native: Tensor) -> Tensor:
        """Show a native tensor to a hook point; the very same tensor comes back if nobody changed it."""
        n_heads = self.stack_of(point).n_heads
        value = to_vocabulary(native, point.site.layout, point.axes, n_heads)
        new = self._through(point, value)
        return native if new is value else to_native(new, point.site.layout, point.axes)

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
        point = self._inside_attention[path, how]  # type: ignore[index]
        if how in ("scores", "pattern"):
            return self._through(point, tensor)
        value = tensor.transpose(-2, -3)
        new = self._through(point, value)
        return tensor if new is value else new.transpose(-2, -3)


_TAPPED = ("q", "k", "v", "scores", "pattern")
_HEADS = ("batch", "pos", "head", "d_head")


def _in_use(hook_point: HookPoint) -> bool:
    return bool(hook_point.fwd_hooks or hook_point.bwd_hooks)
