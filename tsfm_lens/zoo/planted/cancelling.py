"""Pairs of heads that cancel each other.

Without either of the two the forecast moves; without both it stays. Read
:func:`add_cancelling_pair`, which adds a pair to a planted model. A pair does not take
part in the mechanism.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.weights import head_output_weights
from tsfm_lens.models import Lens, load
from tsfm_lens.zoo.planted.card import PlantedPart
from tsfm_lens.zoo.planted.planting import Planted

__all__ = ["add_cancelling_pair"]

GAIN = 3.0
"""Factor on what the pair writes.

It is so large that neither head can take the place of the head that they copy.
"""


def add_cancelling_pair(planted: Planted) -> Planted:
    """Let two idle heads write 3 and -3 times what a head of the mechanism writes.

    The forecast stays as it is. Without either of the two it changes more than without
    the head that they copy. Idle heads are those without a task.

    Args:
        planted: a model, which is not changed; the pair goes beside the first head of
            its mechanism that has two heads without a task in its layer.

    Returns:
        The new model, with the pair on its card, in the role "cancelling".

    Raises:
        InputError: no head of the mechanism has two heads without a task beside it.
    """
    # weights are set in place, through a lens on a copy of the model
    model = copy.deepcopy(planted.model)
    lens = load(model, check=False)
    for component in map(Component.parse, planted.card.components("mechanism")):
        idle = list(idle_heads(lens, planted, component))
        if len(idle) >= 2:
            break
    else:
        raise InputError(
            f"no head of {planted.card.name} has two heads without a task beside it in"
            " its layer"
        )
    names = [str(replace(component, head=head)) for head in idle[:2]]
    parts = []
    for head, name, partner, gain in zip(
        idle[:2], names, reversed(names), (GAIN, -GAIN), strict=True
    ):
        copy_head(lens, component, head, gain)
        does = f"writes {gain:g} times what {component} writes"
        parts.append(
            PlantedPart(component=name, role="cancelling", does=does, cancels=partner)
        )
    card = planted.card
    all_parts = tuple(sorted([*card.parts, *parts], key=lambda part: part.component))
    return Planted(
        model,
        card.model_copy(update={"name": f"{card.name}-cancelling", "parts": all_parts}),
    )


def idle_heads(lens: Lens, planted: Planted, component: Component) -> Iterator[int]:
    """Yield heads of the same attention that have no task.

    Where layers share a position bias, a head is idle if it has no task in any layer.
    """
    if component.head is None:
        return
    # copying a head sets a column of this table, which the heads of that number read in
    # all layers
    shares_bias = position_bias(lens, component) is not None
    with_task = [Component.parse(part.component) for part in planted.card.parts]
    busy = {
        other.head
        for other in with_task
        if (other.stack, other.kind) == (component.stack, component.kind)
        and (shares_bias or other.layer == component.layer)
    }
    for head in range(lens.wiring.stack(component.stack).n_heads):
        if head not in busy:
            yield head


def position_bias(lens: Lens, component: Component) -> nn.Embedding | None:
    """Return the table (bucket, head) of a stack's position biases, if it has one.

    Its first layer holds it for all layers.
    """
    stack = lens.wiring.stack(component.stack)
    attention = stack.attention(component.kind, 0)
    module = lens.adapter.model.get_submodule(f"{stack.block(0)}.{attention.module}")
    return getattr(module, "relative_attention_bias", None)


def copy_head(lens: Lens, component: Component, head: int, gain: float) -> None:
    """Give another head of the layer the weights of a component, in place.

    Its output weights are those of the component times the gain.
    """
    layer = component.layer
    kind = component.kind
    stack = component.stack
    assert kind is not None
    with torch.no_grad():
        # in one layer, both heads read the same stream, so that what they write differs
        # by the gain alone
        for letter in ("q", "k", "v"):
            weights, _ = lens.weights.projection(layer, kind, letter, stack)
            # a view of the model's own matrix, as is ``out`` below, so that setting it
            # changes the model
            weights[head] = weights[component.head]
        out = head_output_weights(
            lens.adapter.model, lens.wiring.stack(stack), layer, kind
        )
        out[head] = gain * out[component.head]
        table = position_bias(lens, component)
        if table is not None:
            table.weight[:, head] = table.weight[:, component.head]
