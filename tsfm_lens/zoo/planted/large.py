"""Planted models among many more heads, MLPs and layers.

:func:`enlarge` adds parts that write noise to where nobody reads, so that a mechanism
is harder to find and costs more to search for.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.models import Lens, load
from tsfm_lens.zoo.planted.card import Card
from tsfm_lens.zoo.planted.draft import orthogonal
from tsfm_lens.zoo.planted.planting import Planted
from tsfm_lens.zoo.planted.variants import finish, head_views, sort_parts

__all__ = ["enlarge"]

LAYERS = 8
"""Layers of each stack of a large model."""
HEADS = 12
"""Heads of each attention of a large model."""
FORMATS = ("chronos", "chronos-bolt")
_COMPONENT = re.compile(r"(encoder|decoder)\.\d+\.(mlp|(self|cross)_attn\.\d+)")


def enlarge(planted: Planted) -> Planted:
    """Place a planted model into one of eight layers and twelve heads, of 304 parts.

    Its layers keep their order, the first one its place; its heads get other numbers.
    All other parts write noise in the directions in which those without a task wrote
    noise, and together about as much.

    Args:
        planted: a model of Chronos or Chronos-Bolt, which is not changed.

    Returns:
        The large model, whose card names the parts by their new places.

    Raises:
        InputError: the model is of another architecture, as large already, or has a
            stack in which every head has a task.
    """
    card = planted.card
    old = planted.model
    if card.architecture not in FORMATS:
        raise InputError(
            f"{card.name} is of {card.architecture}, expected {' or '.join(FORMATS)}"
        )
    if old.config.num_heads >= HEADS or old.config.num_layers >= LAYERS:
        raise InputError(f"{card.name} has {HEADS} heads or {LAYERS} layers already")
    config = copy.deepcopy(old.config)
    config.num_layers = config.num_decoder_layers = LAYERS
    config.num_heads = HEADS
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(card.seed)
        model = type(old)(config).eval()
        parameters = dict(model.named_parameters())
        for name, weight in old.named_parameters():
            if ".block." not in name:
                parameters[name].copy_(weight)
        lens, new = (load(each, check=False) for each in (old, model))
        places = {
            name: _place_stack(lens, new, name, card) for name in ("encoder", "decoder")
        }
    return finish(model, _move(card, places), "large")


Places = tuple[list[int], list[int]]
"""New places of layers, and new numbers of heads."""


def _place_stack(old: Lens, model: Lens, stack: str, card: Card) -> Places:
    """Copy the blocks of a stack into a larger one, and fill the rest with noise."""
    blocks, new_blocks = (
        getattr(lens.adapter.model, stack).block for lens in (old, model)
    )
    # a mechanism may need that nothing has written before its first layer
    later = 1 + torch.randperm(LAYERS - 1)[: len(blocks) - 1]
    layers = [0, *sorted(later.tolist())]
    numbers = torch.randperm(HEADS)[: old.wiring.stack(stack).n_heads].tolist()
    heads, new_heads = (_list_heads(lens, stack) for lens in (old, model))
    template = _find_idle(old, heads, card)
    # all noise together stays as long as it was
    template[-1].mul_((len(heads) / len(new_heads)) ** 0.5)
    _fill(model, new_heads, new_blocks, template)
    table, old_table = (
        each[0].layer[0].SelfAttention.relative_attention_bias.weight
        for each in (new_blocks, blocks)
    )
    table.copy_(0.3 * torch.randn(table.shape))
    table[:, numbers] = old_table
    for layer, block in zip(layers, blocks, strict=True):
        for part, new_part in zip(block.layer, new_blocks[layer].layer, strict=True):
            new_part.layer_norm.load_state_dict(part.layer_norm.state_dict())
            if hasattr(part, "DenseReluDense"):
                new_part.load_state_dict(part.state_dict())
    for head in heads:
        place = _move_part(head, layers, numbers)
        views = zip(head_views(old, head), head_views(model, place), strict=True)
        for weight, new in views:
            new.copy_(weight)
    return layers, numbers


def _list_heads(lens: Lens, stack: str) -> list[Component]:
    return [one for one in writers(lens.wiring, stack) if one.head is not None]


def _find_idle(old: Lens, heads: Sequence[Component], card: Card) -> list[Tensor]:
    """Return copies of the weights of a self-attention head that has no task."""
    busy = {part.component for part in card.parts}
    for head in heads:
        if head.kind == "self_attn" and str(head) not in busy:
            return [weight.clone() for weight in head_views(old, head)]
    raise InputError(f"every head of the {heads[0].stack} of {card.name} has a task")


def _fill(
    model: Lens, heads: Sequence[Component], blocks: Any, template: Sequence[Tensor]
) -> None:
    """Let all parts of a stack write noise where the template writes."""
    *reads, writes = template
    width, channels = writes.shape

    def turn(size: int) -> Tensor:
        return orthogonal(size, int(torch.randint(2**31, ()))).float()

    for head in heads:
        *views, output = head_views(model, head)
        for view, weight in zip(views, reads, strict=True):
            view.copy_(weight @ turn(width))
        output.copy_(writes @ turn(channels))
    for block in blocks:
        mlp = block.layer[-1].DenseReluDense
        units = mlp.wi.weight.shape[0]
        mlp.wi.weight.copy_(reads[-1].std() * torch.randn(units, width))
        mlp.wo.weight.copy_(writes @ torch.randn(channels, units) / units**0.5)


def _move_part(part: Component, layers: list[int], numbers: list[int]) -> Component:
    """Return the new place of a head or MLP."""
    head = part.head
    if head is not None:
        head = numbers[head]
    return replace(part, layer=layers[part.layer], head=head)


def _move(card: Card, places: dict[str, Places]) -> Card:
    """Name all components of a card by their new places."""

    def rename(match: re.Match[str]) -> str:
        component = Component.parse(match[0])
        return str(_move_part(component, *places[component.stack]))

    moved = Card.model_validate_json(_COMPONENT.sub(rename, card.model_dump_json()))
    return moved.model_copy(update={"parts": sort_parts(moved.parts)})
