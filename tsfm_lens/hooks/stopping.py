"""Forward that ends where a layer would begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.registry import HookRegistry, HookScope
from tsfm_lens.hooks.wiring import Wiring


class _Arrival(Exception):
    """Arrival of the stream at the layer; it leaves the native model as an error does."""


def stopping_point(wiring: Wiring, layer: int | str | Component) -> str:
    """Return the hook point at which a forward ends that stops at a layer."""
    if isinstance(layer, int):
        stack, index = wiring.output_stack, layer
    else:
        place = Component.parse(str(layer))
        if place.kind is not None:
            raise InputError(
                f"stop_at_layer {str(layer)!r} is a {place.level}; expected a layer, such as {place.layer}"
            )
        stack, index = wiring.stack(place.stack), place.layer
    position = index + stack.n_layers if index < 0 else index
    if position == stack.n_layers:
        return f"{stack.prefix}.{position - 1}.hook_resid_post"
    if not 0 <= position < stack.n_layers:
        raise unknown_name("layer", layer, [str(each) for each in range(stack.n_layers + 1)])
    return f"{stack.prefix}.{position}.hook_resid_pre"


def passed_before(registry: HookRegistry, point: str) -> list[str]:
    """Return every hook point that a forward has passed when it reaches one, that one included."""
    names = list(registry.points)
    return names[: names.index(point) + 1]


def stream_into(registry: HookRegistry, layer: int | str | Component, run: Callable[[], Any]) -> Tensor:
    """Run a forward up to a layer and return its input stream, (row, pos, d_model), edits of other hooks included."""

    def stop(value: Tensor, hook: Any) -> None:
        raise _Arrival(value)

    stop.reads_only = True  # type: ignore[attr-defined]
    with Block(HookScope(registry, None, [(stopping_point(registry.wiring, layer), stop, "fwd")])):
        try:
            run()
        except _Arrival as arrival:
            stream: Tensor = arrival.args[0]
            return stream
    raise AssertionError("the forward never came to the layer, which its block refuses")
