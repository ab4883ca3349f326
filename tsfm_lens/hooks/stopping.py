"""A forward that ends where a layer would begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.scope import holding
from tsfm_lens.hooks.wiring import Wiring


class _Reached(Exception):
    """The stream has reached the layer; it leaves the native model by the way that errors take."""

    def __init__(self, stream: Tensor) -> None:
        super().__init__()
        self.stream = stream


def stopping_point(wiring: Wiring, layer: int | str | Component) -> str:
    """The hook point at which a forward ends that stops at a layer.

    Args:
        wiring: the model's table.
        layer: an index in the stack that is read out, from its end if below 0; or a layer by name.

    Raises:
        UnknownNameError: no such layer.
        InputError: the name is not that of a whole layer.
    """
    stack, index = wiring.output_stack, layer
    if not isinstance(layer, int):
        place = Component.parse(str(layer))
        if place.kind is not None:
            raise InputError(
                f"stop_at_layer {str(layer)!r} is a {place.level}; expected a layer, such as {place.layer}"
            )
        names = [column.name for column in wiring.stacks]
        if place.stack not in names:
            raise unknown_name("stack", place.stack, names)
        stack, index = wiring.stack(place.stack), place.layer
    assert isinstance(index, int)
    known = index + stack.n_layers if index < 0 else index
    if known == stack.n_layers:
        return f"{stack.prefix}.{known - 1}.hook_resid_post"
    if not 0 <= known < stack.n_layers:
        raise unknown_name("layer", layer, [str(each) for each in range(stack.n_layers + 1)])
    return f"{stack.prefix}.{known}.hook_resid_pre"


def passed_before(registry: HookRegistry, point: str) -> list[str]:
    """Every hook point that a forward has passed when it reaches one, that one included."""
    names = list(registry.points)
    return names[: names.index(point) + 1]


def stream_into(registry: HookRegistry, layer: int | str | Component, run: Callable[[], Any]) -> Tensor:
    """Run a forward up to a layer; the stream that enters it, (row, pos, d_model), edits of other hooks included.

    Args:
        registry: the model's hook points.
        layer: see :func:`stopping_point`.
        run: the forward.
    """

    def stop(value: Tensor, hook: Any) -> None:
        raise _Reached(value)

    stop.reads_only = True  # type: ignore[attr-defined]
    with holding(registry, [(stopping_point(registry.wiring, layer), stop, "fwd")], None):
        try:
            run()
        except _Reached as reached:
            return reached.stream
    raise AssertionError("the forward never came to the layer, which holding() refuses")
