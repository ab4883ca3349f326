"""Variants that take many heads and MLPs at once, chosen by a recipe or at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.head_choice import random_heads
from tsfm_lens.sweep.plan.parts import (
    EVERY_KIND,
    heads_at,
    kinds_of,
    known_layer,
    mlps_at,
    selection_words,
    share_words,
)
from tsfm_lens.sweep.plan.spec import Entry, Tags, variant_spec


def recipe_entry(
    lens: Lens,
    model: str,
    recipe: str,
    heads: Mapping[int, Sequence[int]],
    mlps: Sequence[int] = (),
    *,
    family: str = "recipes",
    selection: str = "listed",
    draw: int = -1,
    kind: str | None = None,
    paired: bool = True,
    how: str = "zero",
    seed: int = 0,
) -> Entry:
    """Build the entry of heads and MLPs of several layers at once.

    Args:
        lens, model, kind, paired, how, seed: see :func:`count_entries`.
        recipe: its name.
        heads: layer -> indices of the heads that go.
        mlps: layers whose MLP goes.
        family: "recipes" or "random".
        selection: how the heads were chosen: "listed", the name of an order, or "random".
        draw: seed of a random choice, -1 where there is none.

    Returns:
        An entry whose tags ``ablated`` and ``of`` count heads by index, so that a pair of self- and cross-attention
        heads is one.

    Source:
        tsfm-lens paper, tables 1 and 4 (S3-HEAVY).

    Raises:
        InputError: nothing is ablated.
        UnknownNameError: no such layer, head or kind.
    """
    row = lens.wiring.output_stack
    head_components: list[Component] = []
    for layer, indices in sorted(heads.items()):
        kinds = kinds_of(row, known_layer(row, layer), kind, paired=paired)
        for head in indices:
            if head not in range(row.n_heads):
                raise unknown_name(f"head of layer {layer}", head, map(str, range(row.n_heads)))
        head_components += heads_at(row, layer, indices, kinds)
    mlp_components = [mlp for layer in mlps for mlp in mlps_at(row, known_layer(row, layer))]
    if not head_components + mlp_components:
        raise InputError(f"recipe {recipe!r} ablates nothing of this model")
    total = row.n_heads * sum(bool(kinds_of(row, layer, kind, paired=paired)) for layer in range(row.n_layers))
    count = sum(len(set(indices)) for indices in heads.values())
    tags: Tags = {"recipe": recipe, "selection": selection, "seed": draw, "mlps": len(set(mlps))}
    tags |= {"ablated": count, "of": total}
    label = f"{recipe}: {share_words(count, total, len(set(mlps)))}, {selection_words(selection, draw)}"
    return Entry(model, family, label, variant_spec(lens, head_components + mlp_components, how, seed), tags)


def random_entries(
    lens: Lens,
    model: str,
    recipe: str,
    keep: Mapping[int, int],
    seeds: Sequence[int],
    mlps: Sequence[int] = (),
    *,
    kind: str | None = None,
    paired: bool = True,
    how: str = "zero",
    seed: int = 0,
) -> list[Entry]:
    """Draw a recipe's counts of heads at random without replacement, once per seed.

    Args:
        lens, model, recipe, mlps, kind, paired, how, seed: see :func:`recipe_entry`.
        keep: layer -> heads that stay.
        seeds: of the draws.

    Source:
        tsfm-lens paper, figures 12 and 13 (S3-ORD).

    Raises:
        InputError: more heads are kept than there are, or nothing is ablated.
        UnknownNameError: no such layer or kind.
    """
    entries = []
    single_kind = None if kind == EVERY_KIND else kind
    for draw in seeds:
        heads: dict[int, list[int]] = {}
        for component in random_heads(lens, dict(sorted(keep.items())), seed=draw, kind=single_kind, paired=False):
            heads.setdefault(component.layer, []).append(component.head or 0)
        options: dict[str, Any] = {"kind": kind, "paired": paired, "how": how, "seed": seed}
        entries.append(
            recipe_entry(lens, model, recipe, heads, mlps, family="random", selection="random", draw=draw, **options)
        )
    return entries
