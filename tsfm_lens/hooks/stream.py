"""Share of each write that arrives at the end of a residual stream."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from torch import Tensor

from tsfm_lens.hooks.wiring import Stack

Place = tuple[int, str] | Literal["embed"]
"""(layer, kind of branch), or the embedding."""


class Recorded(Protocol):
    """Recorded activations by the names of their hook points."""

    def __getitem__(self, name: str) -> Tensor: ...

    def __contains__(self, name: object) -> bool: ...


def carry_factors(model: Any, stack: Stack, until: tuple[int, int] | None = None) -> dict[Place, float]:
    """Return the factor with which each write reaches the stack's last ``hook_resid_post``, or an earlier place.

    It is 1 where blocks add to the stream. Where blocks also rescale it (Toto 2), every later scale is in
    the factor, so that ``hook_embed`` and all ``hook_out``, each times its factor, sum to the last stream.

    Args:
        model: the native module.
        stack: one of its stacks.
        until: a layer and the number of its branches that have written before the place; the stack's end if None.
    """
    layer, branches = (stack.n_layers, 0) if until is None else until
    places: list[tuple[Place, float]] = [("embed", 1.0)]
    for index in range(layer + (branches > 0)):
        block = model.get_submodule(stack.block(index))
        for row in stack.rows(index)[: branches if index == layer else None]:
            places.append(((index, row.kind), 1.0 if row.mix is None else row.mix(block)[1]))
    factors: dict[Place, float] = {}
    later = 1.0
    for place, gain in reversed(places):
        factors[place] = later
        later *= gain
    return factors
