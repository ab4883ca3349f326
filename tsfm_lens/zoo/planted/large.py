"""Planted models among many more heads, MLPs and layers.

:func:`enlarge` adds parts that write noise to where nobody reads, so that a mechanism
is harder to find and costs more to search for.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.zoo.planted.card import Card
from tsfm_lens.zoo.planted.draft import orthogonal
from tsfm_lens.zoo.planted.planting import Planted
from tsfm_lens.zoo.planted.variants import finish, sort_parts

__all__ = ["enlarge"]

LAYERS = 8
"""Layers of each stack of a large model."""
HEADS = 12
"""Heads of each attention of a large model."""
FORMATS = ("chronos", "chronos-bolt")
_COMPONENT = re.compile(
    r"(?P<stack>encoder|decoder)\.(?P<layer>\d+)"
    r"\.(?:mlp|(?P<kind>self_attn|cross_attn)\.(?P<head>\d+))"
)


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
        places = {
            name: _place_stack(getattr(old, name), getattr(model, name), name, card)
            for name in ("encoder", "decoder")
        }
    return finish(model, _move(card, places), "large")


Places = tuple[list[int], list[int]]
"""New places of layers, and new numbers of heads."""


def _place_stack(old: Any, model: Any, stack: str, card: Card) -> Places:
    """Copy the blocks of a stack into a larger one, and fill the rest with noise."""
    n_heads = old.config.num_heads
    # a mechanism may need that nothing has written before its first layer
    later = 1 + torch.randperm(LAYERS - 1)[: len(old.block) - 1]
    layers = [0, *sorted(later.tolist())]
    heads = torch.randperm(HEADS)[:n_heads].tolist()
    template = _find_idle(old, stack, card)
    # all noise together stays as long as it was
    n_old, n_new = (sum(1 for _ in _list_heads(each)) for each in (old, model))
    template[-1].mul_((n_old / n_new) ** 0.5)
    _fill(model, template)
    table, old_table = (
        each.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        for each in (model, old)
    )
    table.copy_(0.3 * torch.randn(table.shape))
    table[:, heads] = old_table
    for layer, block in zip(layers, old.block, strict=True):
        target = model.block[layer]
        for part, new_part in zip(block.layer, target.layer, strict=True):
            new_part.layer_norm.load_state_dict(part.layer_norm.state_dict())
            if hasattr(part, "DenseReluDense"):
                new_part.load_state_dict(part.state_dict())
        for attention, new_attention in zip(
            _attentions(block), _attentions(target), strict=True
        ):
            for head, number in enumerate(heads):
                pairs = zip(
                    _views(attention, head), _views(new_attention, number), strict=True
                )
                for weight, new in pairs:
                    new.copy_(weight)
    return layers, heads


def _attentions(block: Any) -> Iterator[Any]:
    yield block.layer[0].SelfAttention
    if len(block.layer) > 2:
        yield block.layer[1].EncDecAttention


def _list_heads(stack: Any) -> Iterator[tuple[Any, int]]:
    """Yield each attention of a stack with the number of each of its heads."""
    for block in stack.block:
        for attention in _attentions(block):
            for head in range(attention.n_heads):
                yield attention, head


def _views(attention: Any, head: int) -> tuple[Tensor, ...]:
    """Return views of a head's q, k, v (channel, stream) and o (stream, channel)."""
    size = attention.key_value_proj_dim
    rows = slice(head * size, (head + 1) * size)
    q, k, v, o = (getattr(attention, name).weight for name in "qkvo")
    return q[rows], k[rows], v[rows], o[:, rows]


def _find_idle(old: Any, stack: str, card: Card) -> list[Tensor]:
    """Return copies of the weights of a head that has no task."""
    busy = {part.component for part in card.parts}
    for layer, block in enumerate(old.block):
        for head in range(old.config.num_heads):
            name = str(Component(stack, layer, "self_attn", head))
            if name not in busy:
                weights = _views(block.layer[0].SelfAttention, head)
                return [weight.clone() for weight in weights]
    raise InputError(f"every head of the {stack} of {card.name} has a task")


def _fill(stack: Any, template: list[Tensor]) -> None:
    """Let all parts of a stack write noise where the template writes."""
    channels, width = template[0].shape

    def turn(size: int) -> Tensor:
        return orthogonal(size, int(torch.randint(2**31, ()))).float()

    for attention, head in _list_heads(stack):
        views = _views(attention, head)
        for view, weight in zip(views[:3], template[:3], strict=True):
            view.copy_(weight @ turn(width))
        views[3].copy_(template[3] @ turn(channels))
    for block in stack.block:
        mlp = block.layer[-1].DenseReluDense
        units = mlp.wi.weight.shape[0]
        mlp.wi.weight.copy_(template[2].std() * torch.randn(units, width))
        mlp.wo.weight.copy_(template[3] @ torch.randn(channels, units) / units**0.5)


def _move(card: Card, places: dict[str, Places]) -> Card:
    """Name all components of a card by their new places."""

    def rename(match: re.Match[str]) -> str:
        layers, heads = places[match["stack"]]
        layer = layers[int(match["layer"])]
        if match["kind"] is None:
            return str(Component(match["stack"], layer, "mlp"))
        head = heads[int(match["head"])]
        return str(Component(match["stack"], layer, match["kind"], head))

    moved = Card.model_validate_json(_COMPONENT.sub(rename, card.model_dump_json()))
    return moved.model_copy(update={"parts": sort_parts(moved.parts)})
