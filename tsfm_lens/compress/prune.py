"""Heads and MLPs taken out of a model, with their weights, so that it is smaller and computes less."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor

from tsfm_lens.compress.layers import Compressed, Part, replace_layer
from tsfm_lens.compress.matrices import matrices
from tsfm_lens.errors import InputError, WiringError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.opening import load

__all__ = ["native_without", "taken_out", "without"]

UNIFORM_HEADS = ("chronos", "chronos-bolt", "t5")
"""Architectures whose configuration says how many heads all attentions have, apart from their size."""
Side = Literal["rows", "columns"]
Cuts = dict[str, tuple[Side, Tensor]]
"""By path of a layer, whether "rows" or "columns" go, and which, (size,) of bool."""


def without(lens: Lens, components: Iterable[str | Component], *, name: str | None = None) -> Lens:
    """Copy a model without some heads and MLPs: what zero-ablating them gives, without their weights.

    Queries, keys, values and outputs of a head go; keys and values that several heads share go with the last of them.
    The hook points stay, and a head that is gone reads as zero there.

    Args:
        lens: the model.
        components: heads, MLPs, whole attentions and layers, or globs, as ``lens.ablate`` takes them.
        name: of the copy.

    Raises:
        UnknownNameError: a component matches nothing.
        InputError: there is no component, or a layer of one holds less than its matrix already.
        WiringError: as in :func:`matrices`.

    Example:
        >>> smaller = compress.without(lens, ["decoder.0.cross_attn.0", "decoder.1.mlp"])
        >>> compress.sizes(smaller)["mlp"] < compress.sizes(lens)["mlp"]
        True
    """
    patterns = list(components)
    targets = lens.components(*patterns) if patterns else []
    if not targets:
        raise InputError("there is no component to take out; expected at least one head, MLP or layer")
    by_path = {matrix.path: matrix for matrix in matrices(lens, mlps=True).values()}
    cuts, silent = _cuts(lens, targets)
    twin = copy.deepcopy(lens)
    for path, (of, places) in cuts.items():
        layer: Any = twin.adapter.model.get_submodule(path)
        if isinstance(layer, Compressed):
            raise InputError(f"{by_path[path].name} is compressed already ({layer}); begin with the whole model")
        rest_index = (~places).nonzero()[:, 0]
        rest = layer.weight.detach()[rest_index] if of == "rows" else layer.weight.detach()[:, rest_index]
        bias = None if layer.bias is None else layer.bias.detach().clone()
        if bias is not None and of == "rows":
            bias[places] = 0.0
        if bias is not None and path in silent:
            bias.zero_()
        replace_layer(twin.adapter.model, path, Part(rest, rest_index, len(places), of, bias, by_path[path].gain))
    return Lens(twin.adapter, name or f"{lens.model_id} ({len(targets)} components taken out)", lens.revision)


def _cuts(lens: Lens, targets: Iterable[Component]) -> tuple[Cuts, set[str]]:
    """Collect the rows and columns to cut, and the layers whose bias goes, too, because nothing is written any more."""
    heads: dict[tuple[str, int, str], set[int]] = {}
    whole: set[tuple[str, int, str]] = set()
    for component in targets:
        stack = lens.wiring.stack(component.stack)
        for row in stack.rows(component.layer):
            place = (stack.name, component.layer, row.kind)
            if component.kind not in (None, row.kind):
                continue
            if component.head is None:
                whole.add(place)
            else:
                heads.setdefault(place, set()).add(component.head)
    cuts: Cuts = {}
    silent: set[str] = set()
    for stack in lens.wiring.stacks:
        for layer in range(stack.n_layers):
            for row in stack.rows(layer):
                place = (stack.name, layer, row.kind)
                if place in whole:
                    _refuse_other_write(lens, stack, layer, row)
                    silent.add(f"{stack.block(layer)}.{row.o.module if isinstance(row, Attention) else row.o}")
                if isinstance(row, Mlp) and place in whole:
                    _mlp(lens, stack, layer, row, cuts)
                elif isinstance(row, Attention) and (place in whole or place in heads):
                    out = set(range(stack.n_heads)) if place in whole else heads[place]
                    _heads(lens, stack, layer, row, out, cuts)
    return cuts, silent


def _refuse_other_write(lens: Lens, stack: Stack, layer: int, row: Attention | Mlp) -> None:
    norm = lens.adapter.model.get_submodule(f"{stack.block(layer)}.{row.post_norm}") if row.post_norm else None
    if getattr(norm, "bias", None) is not None:
        raise WiringError(
            f"{stack.prefix}.{layer}.{row.kind} writes through {row.post_norm}, whose bias stays when all before it is "
            "gone"
        )


def _heads(lens: Lens, stack: Stack, layer: int, row: Attention, out: set[int], cuts: Cuts) -> None:
    for letter in "qkvo":
        part: Projection = getattr(row, letter)
        path = f"{stack.block(layer)}.{part.module}"
        of: Side = "columns" if letter == "o" else "rows"
        n_heads = stack.n_heads if letter == "o" else row.heads_of(letter, stack.n_heads)
        group_size = stack.n_heads // n_heads
        # keys and values go with the last head that reads them
        theirs = [head for head in range(n_heads) if set(range(head * group_size, (head + 1) * group_size)) <= out]
        if not theirs:
            continue
        size = parameters(lens.adapter.model, path, part)[0].shape[int(of == "columns")]
        sizes = {"head": n_heads, **({"part": part.parts} if part.parts > 1 else {})}
        axes = "part head d_head" if part.parts > 1 else "head d_head"
        places = rearrange(torch.arange(size), f"{part.layout} -> {axes}", **sizes)
        if part.parts > 1:
            places = places[part.part]
        _add(cuts, path, of, size, places[theirs].flatten())


def _mlp(lens: Lens, stack: Stack, layer: int, row: Mlp, cuts: Cuts) -> None:
    for part in (row.i, row.gate):
        if part is not None:
            path = f"{stack.block(layer)}.{part.module}"
            size = parameters(lens.adapter.model, path, part)[0].shape[0]
            _add(cuts, path, "rows", size, torch.arange(size))
    path = f"{stack.block(layer)}.{row.o}"
    size = parameters(lens.adapter.model, path)[0].shape[1]
    _add(cuts, path, "columns", size, torch.arange(size))


def _add(cuts: Cuts, path: str, of: Side, size: int, places: Tensor) -> None:
    if path not in cuts:
        cuts[path] = of, torch.zeros(size, dtype=torch.bool)
    cuts[path][1][places] = True


def native_without(lens: Lens, components: Iterable[str | Component]) -> Any:
    """Build a native model with fewer heads, where its configuration can say it: T5, Chronos and Chronos-Bolt.

    Their configuration has one number of heads for all attentions, and the heads of a stack's self-attentions share the
    position bias of its first layer. So as many heads must go everywhere, and from the self-attentions of a stack the
    same ones.

    Args:
        lens: the model.
        components: heads, or globs.

    Returns:
        The library's own model, as ``load`` takes it; what it saves, the library opens.

    Raises:
        InputError: the configuration cannot say it; :func:`without` needs no such thing.

    Example:
        >>> smaller = tsfm_lens.load(compress.native_without(lens, ["*.*.*_attn.0"]))
        >>> lens.wiring.output_stack.n_heads - smaller.wiring.output_stack.n_heads
        1
    """
    model: Any = lens.adapter.model
    if lens.wiring.architecture not in UNIFORM_HEADS:
        raise InputError(
            f"the configuration of {lens.wiring.architecture} has no place for this; without() takes heads out"
        )
    remaining = _remaining_heads(lens, lens.components(*components))
    counts = {len(heads) for heads in remaining.values()}
    if len(counts) != 1 or not max(counts):
        raise InputError(
            f"attentions would keep {', '.join(map(str, sorted(counts)))} heads; the configuration of "
            f"{lens.wiring.architecture} has one number from 1 on for all of them. without() takes any out"
        )
    for stack in lens.wiring.stacks:
        choices = {remaining[stack.name, layer, "self_attn"] for layer in range(stack.n_layers)}
        if len(choices) > 1:
            raise InputError(
                f"the self-attentions of the {stack.name} would keep different heads, but share a position bias by "
                "head; take the same ones out of all its layers, or use without()"
            )
    config = copy.deepcopy(model.config)
    config.num_heads = next(iter(counts))
    smaller = type(model)(config).eval().to(next(model.parameters()))
    smaller.load_state_dict(_state_of(lens, remaining))
    return smaller


def taken_out(lens: Lens, components: Iterable[str | Component]) -> tuple[Lens, bool]:
    """Take heads and MLPs out of a model, in the library's own form where its configuration can say it.

    Returns:
        The model, and whether the library itself opens what is saved of it; see :func:`native_without` and
        :func:`without`.

    Raises:
        UnknownNameError, InputError, WiringError: as in :func:`without`.

    Example:
        >>> compress.taken_out(lens, ["*.*.*_attn.0"])[1], compress.taken_out(lens, ["decoder.1.mlp"])[1]
        (True, False)
    """
    patterns = list(components)
    smaller = without(lens, patterns)
    try:
        native = native_without(lens, patterns)
    except InputError:
        return smaller, False
    return Lens(load(native, check=False).adapter, smaller.model_id, lens.revision), True


def _remaining_heads(lens: Lens, targets: Iterable[Component]) -> dict[tuple[str, int, str], tuple[int, ...]]:
    removals: dict[tuple[str, int, str], set[int]] = {}
    for component in targets:
        if component.head is None or component.kind is None:
            raise InputError(f"{component} is no head; a native configuration can say fewer heads alone. See without()")
        removals.setdefault((component.stack, component.layer, component.kind), set()).add(component.head)
    return {
        (stack.name, layer, row.kind): tuple(
            head for head in range(stack.n_heads) if head not in removals.get((stack.name, layer, row.kind), ())
        )
        for stack in lens.wiring.stacks
        for layer in range(stack.n_layers)
        for row in stack.attentions(layer)
    }


def _state_of(lens: Lens, remaining: dict[tuple[str, int, str], tuple[int, ...]]) -> dict[str, Tensor]:
    state = dict(lens.adapter.model.state_dict())
    for stack in lens.wiring.stacks:
        for layer in range(stack.n_layers):
            for row in stack.attentions(layer):
                heads = list(remaining[stack.name, layer, row.kind])
                places = torch.arange(stack.n_heads * stack.d_head).reshape(stack.n_heads, -1)[heads].flatten()
                for part in (row.q, row.k, row.v):
                    name = f"{stack.block(layer)}.{part.module}.weight"
                    state[name] = state[name][places]
                name = f"{stack.block(layer)}.{row.o.module}.weight"
                state[name] = state[name][:, places]
                bias = f"{stack.block(layer)}.{row.module}.relative_attention_bias.weight"
                if bias in state:
                    state[bias] = state[bias][:, heads]
    return state
