"""Forward that ends where a layer would begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.dispatch import HookScope
from tsfm_lens.hooks.hook_table import HookTable
from tsfm_lens.hooks.wiring import Wiring


class _Arrival(Exception):
    """Arrival of the stream at the layer; it leaves the native model as an error does."""


def stopping_point(wiring: Wiring, layer: int | str | Component) -> str:
    """Return the hook point at which a forward ends that stops at a layer.

    Args:
        wiring: the model's table.
        layer: an index in the stack that is read out, from its end if below 0; or a layer by name.

    Raises:
        UnknownNameError: no such layer.
        InputError: the name is not that of a whole layer.
    """
    if isinstance(layer, int):
        stack, index = wiring.output_stack, layer
    else:
        place = Component.parse(str(layer))
        if place.kind is not None:
            raise InputError(
                f"stop_at_layer {str(layer)!r} is a {place.level}; expected a layer, such as {place.layer}"
            )
        names = [each.name for each in wiring.stacks]
        if place.stack not in names:
            raise unknown_name("stack", place.stack, names)
        stack, index = wiring.stack(place.stack), place.layer
    position = index + stack.n_layers if index < 0 else index
    if position == stack.n_layers:
        return f"{stack.prefix}.{position - 1}.hook_resid_post"
    if not 0 <= position < stack.n_layers:
        raise unknown_name("layer", layer, [str(each) for each in range(stack.n_layers + 1)])
    return f"{stack.prefix}.{position}.hook_resid_pre"


def passed_before(table: HookTable, point: str) -> list[str]:
    """Return every hook point that a forward has passed when it reaches one, that one included."""
    names = list(table.points)
    return names[: names.index(point) + 1]


def stream_into(table: HookTable, layer: int | str | Component, run: Callable[[], Any]) -> Tensor:
    """Run a forward up to a layer and return its input stream, (row, pos, d_model), edits of other hooks included.

    Args:
        table: the model's hook points.
        layer: see :func:`stopping_point`.
        run: the forward.
    """

    def stop(value: Tensor, hook: Any) -> None:
        raise _Arrival(value)

    stop.reads_only = True  # type: ignore[attr-defined]
    with Block(HookScope(table, None, [(stopping_point(table.wiring, layer), stop, "fwd")])):
        try:
            run()
        except _Arrival as arrival:
            stream: Tensor = arrival.args[0]
            return stream
    raise AssertionError("the forward never came to the layer, which its block refuses")
