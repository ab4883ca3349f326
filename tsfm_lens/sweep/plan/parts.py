"""Parts of a model that families of variants are made of, and words for them."""

from __future__ import annotations

from collections.abc import Sequence

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.wiring import Attention, Stack, Wiring
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.head_choice import attention_over_time

PARTS = ("both", "heads", "mlp")
EVERY_KIND = "all"


def stack_of(lens: Lens, name: str | None) -> Stack:
    """Return a stack by name; the one that is read out if None.

    Raises:
        UnknownNameError: there is none of that name.
    """
    stacks = {stack.name: stack for stack in lens.wiring.stacks}
    if name is None:
        return lens.wiring.output_stack
    if name not in stacks:
        raise unknown_name("stack", name, stacks)
    return stacks[name]


def kinds_over_time(stack: Stack) -> list[str]:
    """Return the kinds of attention over time in some layer; all kinds of a stack without any."""
    over_time = {row.kind for layer in range(stack.n_layers) for row in stack.attentions(layer) if row.over == "time"}
    kinds = stack.attention_kinds()
    return [kind for kind in kinds if kind in over_time] or kinds


def kinds_of(stack: Stack, layer: int, kind: str | None, *, paired: bool) -> list[str]:
    """Return the kinds of attention whose heads are selected, as far as a layer has them.

    Args:
        stack, layer: where.
        kind: one kind, or "all"; the last one over time if None.
        paired: with None, every kind over time: self- and cross-attention of a decoder.

    Raises:
        UnknownNameError: no layer has this kind.
    """
    here = [row.kind for row in stack.attentions(layer)]
    if kind == EVERY_KIND:
        return here
    if kind is not None:
        return [row_kind for row_kind in here if row_kind == stack.layers_with(kind)[0]]
    kinds = kinds_over_time(stack) if paired else [attention_over_time(stack)]
    return [row_kind for row_kind in here if row_kind in kinds]


def heads_at(stack: Stack, layer: int, heads: Sequence[int], kinds: Sequence[str]) -> list[Component]:
    """Return the heads of some indices in each of some kinds of attention of a layer."""
    return [Component(stack.name, layer, kind, int(head)) for kind in kinds for head in heads]


def mlps_at(stack: Stack, layer: int) -> list[Component]:
    """Return the MLPs of a layer."""
    return [Component(stack.name, layer, row.kind) for row in stack.rows(layer) if not isinstance(row, Attention)]


def part_components(stack: Stack, part: str, layers: Sequence[int], kind: str | None) -> list[Component]:
    """Return the components that "both", "heads" or "mlp" stand for in some layers.

    Raises:
        UnknownNameError: no such part or kind.
    """
    if part not in PARTS:
        raise unknown_name("part of a layer", part, PARTS)
    components: list[Component] = []
    for layer in layers:
        if part == "both":
            components.append(Component(stack.name, layer))
        elif part == "mlp":
            components += mlps_at(stack, layer)
        else:
            components += heads_at(stack, layer, range(stack.n_heads), kinds_of(stack, layer, kind, paired=True))
    return components


def known_layer(stack: Stack, layer: int) -> int:
    """Return the layer itself, if the stack has it.

    Raises:
        UnknownNameError: the stack has no such layer.
    """
    if layer not in range(stack.n_layers):
        raise unknown_name("layer", layer, map(str, range(stack.n_layers)))
    return layer


def known_count(count: int, stack: Stack) -> int:
    """Return the number of heads itself, if a layer has as many.

    Raises:
        InputError: a layer has fewer heads.
    """
    if not 0 <= count <= stack.n_heads:
        raise InputError(f"{count} heads are to be ablated, and a layer has {stack.n_heads}; expected 0 to that")
    return int(count)


def check_ranking(ranking: Sequence[int], stack: Stack, layer: int) -> None:
    """Refuse a ranking that does not list every head of a layer once.

    Raises:
        InputError: it does not.
    """
    if sorted(ranking) != list(range(stack.n_heads)):
        raise InputError(
            f"the ranking of layer {layer} is {list(ranking)}, expected each of the heads 0 to {stack.n_heads - 1} once"
        )


def stack_tag(stack: Stack, wiring: Wiring) -> dict[str, str]:
    """Return the tag of a stack that is not the one that is read out."""
    return {} if stack.name == wiring.output_stack.name else {"stack": stack.name}


def layer_words(stack: Stack, wiring: Wiring, first: int, last: int) -> str:
    """Name layers, for example "layer 3", "encoder layers 2 to 4"."""
    where = f"{stack.name} " if stack_tag(stack, wiring) else ""
    return f"{where}layer {first}" if first == last else f"{where}layers {first} to {last}"


def part_words(part: str, words: str, several: bool) -> str:
    """Name a part of layers, for example "all heads of layer 3", "MLPs of layers 2 to 4"."""
    if part == "both":
        return words
    return f"all heads of {words}" if part == "heads" else f"MLP{'s' if several else ''} of {words}"


def order_words(order: str) -> str:
    """Describe an order in words: "low stable rank first", "random order 3"."""
    name, _, end = order.partition(":")
    if name == "random":
        return f"random order {end}"
    return f"{end} {name.replace('_', ' ')} first" if end else f"by {name.replace('_', ' ')}"


def share_words(count: int, of: int, mlps: int) -> str:
    """Describe a share of the components, for example "88 of 320 heads and 2 MLPs"."""
    heads = f"{count} of {of} heads"
    return heads if not mlps else f"{heads} and {mlps} MLP{'s' if mlps > 1 else ''}"


def selection_words(selection: str, draw: int) -> str:
    """Describe in words the selection of a recipe's heads."""
    if selection == "listed":
        return "as listed"
    return f"at random, seed {draw}" if selection == "random" else f"by {selection.replace('_', ' ')}"
