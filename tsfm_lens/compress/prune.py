"""Heads and MLPs removed from a model, with their weights.

The model becomes smaller and computes less, which an ablation does not achieve.
:func:`prune` removes parts of any architecture, and puts in layers of this library that
store what is left. :func:`prune_native` builds a smaller model of the native class, if
its configuration can express that; :func:`pruned` tries this first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor

from tsfm_lens.compress.layers import Compressed, PartialLinear, replace_layer
from tsfm_lens.compress.matrices import matrices
from tsfm_lens.core.errors import InputError, WiringError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.hooks.wiring import Attention, Branch, Mlp, Projection, Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.opening import load

__all__ = ["prune", "pruned"]

UNIFORM_HEADS = ("chronos", "chronos-bolt", "t5")
"""Architectures whose configuration sets number and size of heads independently.

The one number holds for all attentions.
"""
Side = Literal["rows", "columns"]


def prune(lens: Lens, components: Iterable[str | Component]) -> Lens:
    """Copy a model without some heads and MLPs and their weights.

    Their hook points stay and read as zero. Keys and values that several heads share
    are removed with the last of these heads.

    Args:
        lens: the model.
        components: heads, MLPs, whole attentions and layers, or globs, as
            ``lens.ablate`` takes them.

    Returns:
        The smaller copy.

    Raises:
        UnknownNameError: a component matches nothing.
        InputError: there is no component, or one of its layers is compressed already.

    Example:
        >>> smaller = compress.prune(lens, ["decoder.0.cross_attn.0", "decoder.1.mlp"])
        >>> compress.sizes(smaller)["mlp"] < compress.sizes(lens)["mlp"]
        True
    """
    patterns = list(components)
    if patterns:
        targets = lens.components(*patterns)
    else:
        targets = []
    if not targets:
        raise InputError(
            "there is no component to remove; expected at least one head, MLP or layer"
        )
    by_path = {matrix.path: matrix for matrix in matrices(lens, mlps=True).values()}
    cuts, zero_outputs = _cuts(lens, targets)
    smaller = copy.deepcopy(lens)
    for path, (of, removed) in cuts.items():
        layer: Any = smaller.adapter.model.get_submodule(path)
        if isinstance(layer, Compressed):
            raise InputError(
                f"{by_path[path].name} is compressed already ({layer}); begin with the"
                " whole model"
            )
        # ascending, as a PartialLinear has to have them
        index = (~removed).nonzero()[:, 0]
        weight = layer.weight.detach()
        if layer.bias is None:
            bias = None
        else:
            bias = layer.bias.detach().clone()
        # the removed outputs of a layer must be zero, without a bias
        if bias is not None and of == "rows":
            bias[removed] = 0.0
        if bias is not None and path in zero_outputs:
            bias.zero_()
        if of == "rows":
            stored = weight[index]
        else:
            stored = weight[:, index]
        partial = PartialLinear(
            stored, index, len(removed), of, bias, by_path[path].gain
        )
        replace_layer(smaller.adapter.model, path, partial)
    return Lens(
        smaller.adapter,
        f"{lens.model_id} ({len(targets)} components removed)",
        lens.revision,
    )


def _cuts(
    lens: Lens, targets: Sequence[Component]
) -> tuple[dict[str, tuple[Side, Tensor]], set[str]]:
    """Collect what goes of each layer: a side, and a mask over its rows or columns.

    Keys are paths of layers.

    Returns:
        The cuts, and the paths of output layers whose branch is removed as a whole, so
        that they must not write a bias either.
    """
    cuts: dict[str, tuple[Side, Tensor]] = {}
    zero_outputs: set[str] = set()

    def remove(
        block: str,
        part: Projection,
        of: Side,
        heads: list[int] | None = None,
        n_heads: int = 1,
    ) -> None:
        path = f"{block}.{part.module}"
        weight, _ = parameters(lens.adapter.model, path, part)
        size = weight.shape[0 if of == "rows" else 1]
        # q, k and v of a fused projection share a path, and one mask of all its rows
        _, removed = cuts.setdefault(path, (of, torch.zeros(size, dtype=torch.bool)))
        # None removes all
        if heads is None:
            removed[:] = True
        else:
            # the layout says which rows are a head's; heads may be interleaved
            removed[_head_indices(part, size, n_heads)[heads].flatten()] = True

    for stack in lens.wiring.stacks:
        for layer in range(stack.n_layers):
            block = stack.block(layer)
            for row in stack.rows(layer):
                heads, is_removed = _removed(targets, stack, layer, row.kind)
                if isinstance(row, Branch):
                    if is_removed:
                        raise InputError(
                            f"{stack.prefix}.{layer}.{row.kind} is no attention and no"
                            " MLP, and the wiring does not say which of its weights"
                            " can go; cut heads or MLPs"
                        )
                    continue
                if isinstance(row, Attention):
                    output = row.o
                else:
                    output = Projection(row.o)
                if is_removed:
                    norm = None
                    if row.post_norm:
                        norm = lens.adapter.model.get_submodule(
                            f"{block}.{row.post_norm}"
                        )
                    # a norm of zeros returns its bias, which the branch would still
                    # write
                    if getattr(norm, "bias", None) is not None:
                        raise WiringError(
                            f"{stack.prefix}.{layer}.{row.kind} writes through"
                            f" {row.post_norm}, whose bias stays when all before it is"
                            " gone"
                        )
                    zero_outputs.add(f"{block}.{output.module}")
                if isinstance(row, Mlp):
                    if is_removed:
                        remove(block, row.i, "rows")
                        if row.gate is not None:
                            remove(block, row.gate, "rows")
                        remove(block, output, "columns")
                    continue
                for letter, part in [*row.inputs.items(), ("o", row.o)]:
                    if letter == "o":
                        n_heads = stack.n_heads
                    else:
                        n_heads = row.count_heads(letter, stack.n_heads)
                    # query heads that share one head of keys and values are neighbours;
                    # that head goes if all of them go
                    group = stack.n_heads // n_heads
                    removed_heads = [
                        head
                        for head in range(n_heads)
                        if set(range(head * group, (head + 1) * group)) <= heads
                    ]
                    if removed_heads:
                        side: Side = "columns" if letter == "o" else "rows"
                        remove(block, part, side, removed_heads, n_heads)
    return cuts, zero_outputs


def _removed(
    targets: Sequence[Component], stack: Stack, layer: int, kind: str
) -> tuple[set[int], bool]:
    """Return the heads of a sublayer that go, and whether all of it goes."""
    heads = [
        target.head
        for target in targets
        if (target.stack, target.layer) == (stack.name, layer)
        and target.kind in (None, kind)
    ]
    # a component without a head is the full sublayer or layer
    if None in heads:
        return set(range(stack.n_heads)), True
    return {head for head in heads if head is not None}, False


def _head_indices(part: Projection, size: int, n_heads: int) -> Tensor:
    """Return the rows or columns of each head, (head, d_head)."""
    if part.parts == 1:
        return rearrange(
            torch.arange(size), f"{part.layout} -> head d_head", head=n_heads
        )
    axes = f"{part.layout} -> part head d_head"
    return rearrange(torch.arange(size), axes, head=n_heads, part=part.parts)[part.part]


def prune_native(lens: Lens, components: Iterable[str | Component]) -> Any:
    """Build a native model with fewer heads.

    The configurations of T5, Chronos and Chronos-Bolt allow it.

    Returns:
        The native model.

    Raises:
        InputError: a component is no head, or the configuration cannot say what would
            be left.
    """
    model: Any = lens.adapter.model
    if lens.wiring.architecture not in UNIFORM_HEADS:
        raise InputError(
            f"the configuration of {lens.wiring.architecture} has no place for this;"
            " prune() removes heads"
        )
    targets = lens.components(*components)
    no_head = next((target for target in targets if target.head is None), None)
    if no_head is not None:
        raise InputError(
            f"{no_head} is not a head; a native configuration can say fewer heads"
            " alone. See prune()"
        )
    remaining = {
        (stack.name, layer, row.kind): sorted(
            set(range(stack.n_heads)) - _removed(targets, stack, layer, row.kind)[0]
        )
        for stack in lens.wiring.stacks
        for layer in range(stack.n_layers)
        for row in stack.attentions(layer)
    }
    counts = {len(heads) for heads in remaining.values()}
    if len(counts) != 1 or not max(counts):
        raise InputError(
            f"attentions would keep {', '.join(map(str, sorted(counts)))} heads; the"
            f" configuration of {lens.wiring.architecture} has one number, 1 or more,"
            " for all of them. prune() removes any"
        )
    for stack in lens.wiring.stacks:
        # the first layer of a T5 stack holds a position bias by head, which all its
        # self-attentions share
        by_layer = {
            tuple(remaining[stack.name, layer, "self_attn"])
            for layer in range(stack.n_layers)
        }
        if len(by_layer) > 1:
            raise InputError(
                f"the self-attentions of the {stack.name} would keep different heads,"
                " but share a position bias by head; take the same ones out of all its"
                " layers, or use prune()"
            )
    config = copy.deepcopy(model.config)
    config.num_heads = next(iter(counts))
    smaller = type(model)(config).eval().to(next(model.parameters()))
    state = dict(model.state_dict())
    for path, (of, removed) in _cuts(lens, targets)[0].items():
        weight = state[f"{path}.weight"]
        # d_kv is set apart from num_heads, so that heads keep their size
        state[f"{path}.weight"] = (
            weight[~removed] if of == "rows" else weight[:, ~removed]
        )
    for stack in lens.wiring.stacks:
        attention = f"{stack.block(0)}.{next(stack.attentions()).module}"
        # the position bias, (bucket, head)
        bias = f"{attention}.relative_attention_bias.weight"
        state[bias] = state[bias][:, remaining[stack.name, 0, "self_attn"]]
    smaller.load_state_dict(state)
    return smaller


def pruned(lens: Lens, components: Iterable[str | Component]) -> tuple[Lens, bool]:
    """Prune a model, in the library's own form if possible.

    The library's own form is that of :func:`prune_native`, the other that of
    :func:`prune`.

    Args:
        lens: the model.
        components: heads, MLPs, whole attentions and layers, or globs.

    Returns:
        The smaller model, and True if it has the library's own form.

    Raises:
        UnknownNameError: a component matches nothing.

    Example:
        >>> compress.pruned(lens, ["*.*.*_attn.0"])[1]
        True
        >>> compress.pruned(lens, ["decoder.1.mlp"])[1]
        False
    """
    patterns = list(components)
    # made in any case: prune() checks the components, and makes the name for both forms
    smaller = prune(lens, patterns)
    try:
        native = prune_native(lens, patterns)
    except InputError:
        return smaller, False
    adapter = load(native, check=False).adapter
    return Lens(adapter, smaller.model_id, lens.revision), True
