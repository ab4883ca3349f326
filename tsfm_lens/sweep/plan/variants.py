"""The families of variants that a sweep is made of: layers, ranges, heads, counts of heads, any set of components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.wiring import Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.recipes import ablated_share
from tsfm_lens.sweep.plan.heavy import random_entries, recipe_entry
from tsfm_lens.sweep.plan.parts import (
    PARTS,
    check_ranking,
    heads_at,
    kinds_of,
    known_count,
    known_layer,
    layer_words,
    order_words,
    part_components,
    part_words,
    stack_of,
    stack_tag,
)
from tsfm_lens.sweep.plan.spec import TAGS, Entry, Tags, VariantSpec, plan_frame, variant_spec
from tsfm_lens.sweep.statistics.pooling import PLAIN

__all__ = [
    "PARTS",
    "PLAIN",
    "TAGS",
    "Entry",
    "VariantSpec",
    "component_entries",
    "count_entries",
    "head_entries",
    "heads_per_layer_entries",
    "layer_entries",
    "plain_entry",
    "plan_frame",
    "random_entries",
    "range_entries",
    "recipe_entry",
    "variant_spec",
]

GROWTHS = ("outward", "up", "down")


def plain_entry(model: str) -> Entry:
    """Plan the model as it is."""
    return Entry(model, "plain", "plain model", VariantSpec())


def layer_entries(
    lens: Lens,
    model: str,
    *,
    parts: Sequence[str] = PARTS,
    sizes: Sequence[int | Literal["all"]] = (1,),
    stride: int = 1,
    stack: str | None = None,
    kind: str | None = None,
    how: str = "zero",
    seed: int = 0,
) -> list[Entry]:
    """Plan single layers, groups of consecutive layers, and whole stacks.

    Args:
        lens, model: the model and its name in the plan.
        parts: "both" (the whole layer: its block becomes the identity), "heads" (all heads, the MLP stays) and "mlp".
        sizes: layers in a group; "all" is the whole stack.
        stride: layers between the starts of two groups of one size.
        stack: whose layers; the one that is read out if None.
        kind: attention that counts as heads: every kind over time if None (self- and cross-attention of a decoder),
            "all", or one kind.
        how, seed: see :class:`VariantSpec`.

    Returns:
        Entries of families "layers" (one layer) and "groups".

    Source:
        tsfm-lens paper, figures 2, 3, 8 and 9 (S3-ZA-L, S3-ZA-H, S3-ZA-M).

    Raises:
        InputError: a size or stride that does not fit the stack.
        UnknownNameError: no such part, stack or kind.
    """
    row = stack_of(lens, stack)
    if stride < 1:
        raise InputError(f"stride is {stride}, expected 1 or more layers")
    spans = []
    for size in sizes:
        length = row.n_layers if size == "all" else int(size)
        if not 1 <= length <= row.n_layers:
            raise InputError(
                f"a group of {size} layers does not fit a stack of {row.n_layers}; expected fewer, or 'all'"
            )
        spans += [(first, first + length - 1) for first in range(0, row.n_layers - length + 1, stride)]
    entries = []
    for part in parts:
        for first, last in dict.fromkeys(spans):
            family = "layers" if first == last else "groups"
            entries += _span_entry(lens, model, family, row, part, first, last, kind, how, seed)
    return entries


def range_entries(
    lens: Lens,
    model: str,
    *,
    parts: Sequence[str] = ("heads", "mlp"),
    start: int | None = None,
    grow: str = "outward",
    stack: str | None = None,
    kind: str | None = None,
    how: str = "zero",
    seed: int = 0,
) -> list[Entry]:
    """Plan ranges of consecutive layers that grow by one layer until they reach the ends of the stack.

    Args:
        lens, model, parts, stack, kind, how, seed: see :func:`layer_entries`.
        start: first layer; the middle one of a stack that grows outward, the lowest or highest otherwise, if None.
        grow: "outward" (above and below in turn), "up" or "down".

    Source:
        tsfm-lens paper, figure 4 (S3-ZA-L).

    Raises:
        InputError: no such layer.
        UnknownNameError: no such part, growth, stack or kind.
    """
    row = stack_of(lens, stack)
    if grow not in GROWTHS:
        raise unknown_name("growth of a range", grow, GROWTHS)
    top = row.n_layers - 1
    origin = {"outward": row.n_layers // 2, "up": 0, "down": top}[grow] if start is None else start
    if not 0 <= origin <= top:
        raise InputError(f"a range cannot start at layer {start}, expected 0 to {top}")
    first = last = origin
    spans = [(first, last)]
    # a move beyond an end stands still, so that the other side goes on alone
    moves = {"outward": ("up", "down"), "up": ("up",), "down": ("down",)}[grow]
    for move in moves * row.n_layers:
        first, last = (first, min(last + 1, top)) if move == "up" else (max(first - 1, 0), last)
        spans.append((first, last))
    entries = []
    for part in parts:
        for low, high in dict.fromkeys(spans):
            entries += _span_entry(lens, model, "ranges", row, part, low, high, kind, how, seed)
    return entries


def head_entries(
    lens: Lens,
    model: str,
    *,
    layers: Sequence[int] | None = None,
    kind: str | None = None,
    paired: bool = False,
    stack: str | None = None,
    how: str = "zero",
    seed: int = 0,
) -> list[Entry]:
    """Plan every head by itself.

    Args:
        lens, model, stack, how, seed: see :func:`layer_entries`.
        layers: all if None.
        kind: kind of attention; the last one over time if None, "all" for every kind.
        paired: ablate the heads of one index of all kinds over time together, as the paper counts heads of
            encoder-decoder models.

    Raises:
        UnknownNameError: no such layer, stack or kind.
    """
    row = stack_of(lens, stack)
    entries = []
    for layer in range(row.n_layers) if layers is None else layers:
        kinds = kinds_of(row, known_layer(row, layer), kind, paired=paired)
        for group in [kinds] if paired and kinds else [[kind_of_row] for kind_of_row in kinds]:
            words = "+".join(group)
            for head in range(row.n_heads):
                label = f"head {head} of {layer_words(row, lens.wiring, layer, layer)} ({words})"
                tags: Tags = {"part": "heads", "first": layer, "last": layer, "layer": layer, "kind": words}
                tags |= {"head": head, "ablated": 1, "of": row.n_heads, **stack_tag(row, lens.wiring)}
                components = heads_at(row, layer, [head], group)
                entries.append(Entry(model, "heads", label, variant_spec(lens, components, how, seed), tags))
    return entries


def count_entries(
    lens: Lens,
    model: str,
    layer: int,
    order: str,
    ranking: Sequence[int],
    *,
    counts: Sequence[int] | None = None,
    kind: str | None = None,
    paired: bool = True,
    how: str = "zero",
    seed: int = 0,
) -> list[Entry]:
    """Plan the first k heads of a layer in some order, for several k; none of them is the plain model.

    Args:
        lens, model, how, seed: see :func:`layer_entries`; the layer is one of the stack that is read out.
        layer: whose heads.
        order: name of the order, such as "stable_rank:low".
        ranking: all heads of the layer, the first to be ablated first.
        counts: numbers of heads ablated; 0 to all if None.
        kind, paired: see :func:`head_entries`.

    Returns:
        Entries of family "head_counts".

    Source:
        tsfm-lens paper, figures 7 and 10 (S3-ORD).

    Raises:
        InputError: the ranking does not list every head once, or a count does not fit.
        UnknownNameError: no such layer or kind.
    """
    row = lens.wiring.output_stack
    kinds = kinds_of(row, known_layer(row, layer), kind, paired=paired)
    check_ranking(ranking, row, layer)
    entries = []
    for count in range(row.n_heads + 1) if counts is None else counts:
        spec = variant_spec(lens, heads_at(row, layer, ranking[: known_count(count, row)], kinds), how, seed)
        tags: Tags = {"part": "heads", "first": layer, "last": layer, "layer": layer, "kind": "+".join(kinds)}
        tags |= {"order": order, "ablated": int(count), "of": row.n_heads}
        label = f"{count} of {row.n_heads} heads of layer {layer}, {order_words(order)}"
        entries.append(Entry(model, "head_counts", label, spec, tags))
    return entries


def heads_per_layer_entries(
    lens: Lens,
    model: str,
    order: str,
    rankings: Mapping[int, Sequence[int]],
    *,
    counts: Sequence[int] | None = None,
    kind: str | None = None,
    paired: bool = True,
    how: str = "zero",
    seed: int = 0,
) -> list[Entry]:
    """Plan the first k heads of several layers at once, for several k.

    Args:
        lens, model, order, counts, kind, paired, how, seed: see :func:`count_entries`; a count is of each layer.
        rankings: layer -> all its heads, the first to be ablated first.

    Returns:
        Entries of family "heads_per_layer"; the tags ``ablated`` and ``of`` count the heads of one layer.

    Raises:
        InputError: no layer, a ranking does not list every head once, or a count does not fit.
        UnknownNameError: no such layer or kind.
    """
    row = lens.wiring.output_stack
    if not rankings:
        raise InputError("rankings is empty; expected layer -> its heads in the order in which they go")
    for layer, ranking in rankings.items():
        check_ranking(ranking, row, known_layer(row, layer))
    entries = []
    for count in range(row.n_heads + 1) if counts is None else counts:
        size = known_count(count, row)
        components = [
            head
            for layer, ranking in sorted(rankings.items())
            for head in heads_at(row, layer, ranking[:size], kinds_of(row, layer, kind, paired=paired))
        ]
        tags: Tags = {"part": "heads", "first": min(rankings), "last": max(rankings)}
        tags |= {"order": order, "ablated": size, "of": row.n_heads}
        label = f"{size} of {row.n_heads} heads in each of {len(rankings)} layers, {order_words(order)}"
        entries.append(Entry(model, "heads_per_layer", label, variant_spec(lens, components, how, seed), tags))
    return entries


def component_entries(
    lens: Lens, model: str, component_sets: Mapping[str, Sequence[str | Component]], *, how: str = "zero", seed: int = 0
) -> list[Entry]:
    """Plan any sets of components by name.

    Args:
        lens, model, how, seed: see :func:`layer_entries`.
        component_sets: label -> components or globs.

    Raises:
        InputError: a set is empty, or no list.
        UnknownNameError: a pattern matches nothing.
    """
    entries = []
    for name, patterns in component_sets.items():
        if isinstance(patterns, str | Component) or not patterns:
            raise InputError(f"{name!r} is {patterns!r}, expected a list of components or globs")
        heads, total, mlps = ablated_share(lens.wiring, lens.components(*patterns))
        tags: Tags = {"ablated": heads, "of": total, "mlps": mlps}
        entries.append(Entry(model, "components", name, variant_spec(lens, patterns, how, seed), tags))
    return entries


def _span_entry(
    lens: Lens,
    model: str,
    family: str,
    stack: Stack,
    part: str,
    first: int,
    last: int,
    kind: str | None,
    how: str,
    seed: int,
) -> list[Entry]:
    """Plan one range of layers; no entry where it has no such part."""
    components = part_components(stack, part, range(first, last + 1), kind)
    if not components:
        return []
    label = part_words(part, layer_words(stack, lens.wiring, first, last), last > first)
    tags: Tags = {"part": part, "first": first, "last": last, **stack_tag(stack, lens.wiring)}
    if first == last:
        tags["layer"] = first
    return [Entry(model, family, label, variant_spec(lens, components, how, seed), tags)]
