"""Variants of a sweep by family: layers, ranges, heads, counts of heads, recipes.

Read :class:`VariantPlanner` first: each of its methods plans one family, as a list of
:class:`PlanEntry`. A :class:`VariantSpec` names the ablated components; the
interventions are made of it when it runs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.core.choices import checked_how
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.hooks.component import Component, components
from tsfm_lens.hooks.wiring import Attention, Stack
from tsfm_lens.models.ablating import (
    DRAWING,
    KINDS,
    draw_options,
    knock_outs,
    reference_activations,
)
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.attention import attention_over_time
from tsfm_lens.probes.recipes import ablated_share, random_heads
from tsfm_lens.sweep.planner.orders import describe_order
from tsfm_lens.sweep.statistics.scores import PLAIN

PARTS = ("both", "heads", "mlp")
# way in which a range grows -> the ends that move, in turn
_MOVES = {"outward": ("up", "down"), "up": ("up",), "down": ("down",)}
TAGS = (
    *("part", "first", "last", "layer", "kind", "head", "order"),
    *("ablated", "of", "recipe", "selection", "seed", "mlps", "possible"),
)
"""Columns of a plan that say what its entries ablate; each family has some of them."""


@dataclass(frozen=True)
class VariantSpec:
    """Ablated components of a model.

    Specs with the same components in another order have the same ``id``.
    """

    components: tuple[str, ...] = ()
    how: str = "zero"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.how not in KINDS:
            raise unknown_name("way to ablate", self.how, KINDS)
        # without components there is one variant, the plain model, whatever the method
        if not self.components:
            object.__setattr__(self, "how", "zero")
        # nor does the seed matter where nothing is drawn: sweeps with other seeds then
        # share the cells
        if self.how not in DRAWING:
            object.__setattr__(self, "seed", 0)

    @property
    def id(self) -> str:
        """Name of the variant: "plain", or a hash of 16 digits over its content."""
        if not self.components:
            return PLAIN
        content = json.dumps([sorted(set(self.components)), self.how, self.seed])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def to_variant(
        self, lens: Lens, reference: Any = None, horizon: int | None = None
    ) -> Variant:
        """Return the variant as interventions on a lens."""
        if not self.components:
            return Variant(PLAIN, ())
        options = draw_options(self.how, self.seed)
        if checked_how(self.how):
            # activations that are recorded already are returned as they are, so that
            # all variants of a chunk share one recording
            options["reference"] = reference_activations(
                lens, self.how, reference, horizon
            )
        interventions = knock_outs(lens, self.components, self.how, **options)
        return Variant(self.id, tuple(interventions))


@dataclass(frozen=True)
class PlanEntry:
    """One line of a plan: a variant of a model, with its family, label and tags."""

    model: str
    family: str
    label: str
    spec: VariantSpec
    tags: dict[str, str | int | float] = field(default_factory=dict)


def variant_spec(
    lens: Lens, patterns: Iterable[str | Component], how: str = "zero", seed: int = 0
) -> VariantSpec:
    """Specify the variant in which some components are ablated.

    They are given by name or as globs, whose order and overlaps do not matter.

    Returns:
        The variant.
    """
    pattern_list = list(patterns)
    subset: set[Component] = set()
    # without patterns, a lens gives all of its components
    for component in lens.components(*pattern_list) if pattern_list else []:
        # each row of a wiring is a branch: an attention, or the MLP
        rows = lens.wiring.stack(component.stack).rows(component.layer)
        branches = {
            Component(component.stack, component.layer, row.kind) for row in rows
        }
        # a layer is the same variant as the set of its branches
        subset |= {component} if component.kind else branches
    if how != "noise":
        # in an ablated branch nothing is left of its heads, so that they need not be
        # ablated as well; noise is different, as it is added to what both write
        subset = {
            c
            for c in subset
            if c.head is None or Component(c.stack, c.layer, c.kind) not in subset
        }
    names = tuple(
        # in the wiring's order, on which keys of cells rely
        str(component)
        for component in components(lens.wiring)
        if component in subset
    )
    return VariantSpec(names, how, seed)


def plan_frame(entries: Iterable[PlanEntry]) -> pd.DataFrame:
    """Return a plan as a table, one row per entry.

    A tag that an entry does not have is None.
    """
    rows = []
    for e in entries:
        spec = (e.spec.id, list(e.spec.components), e.spec.how, e.spec.seed)
        rows.append((e.model, e.family, e.label, *spec, *map(e.tags.get, TAGS)))
    columns = [
        "model",
        "family",
        "label",
        "variant",
        "components",
        "how",
        "spec_seed",
        *TAGS,
    ]
    # as objects, since beside None numpy would make whole numbers floats
    return pd.DataFrame(rows, columns=columns, dtype=object).astype({"spec_seed": int})


def list_kinds(stack: Stack, layer: int, *, paired: bool = True) -> list[str]:
    """Return the kinds of attention of a layer whose heads are selected.

    If ``paired``, they are all kinds that attend over time, or all kinds if the stack
    has none of these; otherwise only the one of :func:`attention_over_time`.
    """
    layer_kinds = [row.kind for row in stack.attentions(layer)]
    if paired:
        over_time = {
            row.kind
            for index in range(stack.n_layers)
            for row in stack.attentions(index)
            if row.over == "time"
        }
        stack_kinds = stack.attention_kinds()
        selected = [kind for kind in stack_kinds if kind in over_time] or stack_kinds
    else:
        selected = [attention_over_time(stack)]
    return [kind for kind in layer_kinds if kind in selected]


def select_heads(
    stack: Stack, layer: int, heads: Collection[int], kinds: Iterable[str]
) -> list[Component]:
    """Return heads of a layer, by indices and kinds of attention."""
    return [
        Component(stack.name, layer, kind, int(head))
        for kind in kinds
        for head in heads
    ]


def select_mlps(stack: Stack, layer: int) -> list[Component]:
    """Return the branches of a layer that are no attention, such as its MLP."""
    return [
        Component(stack.name, layer, row.kind)
        for row in stack.rows(layer)
        if not isinstance(row, Attention)
    ]


@dataclass(frozen=True)
class VariantPlanner:
    """Planner of the variants of one model, in its output stack."""

    lens: Lens
    model: str
    how: str = "zero"
    seed: int = 0

    @property
    def stack(self) -> Stack:
        """Stack before the output head."""
        return self.lens.wiring.output_stack

    def _entry(
        self,
        family: str,
        label: str,
        components: Iterable[str | Component],
        **tags: str | int | float,
    ) -> PlanEntry:
        return PlanEntry(
            self.model,
            family,
            label,
            variant_spec(self.lens, components, self.how, self.seed),
            tags,
        )

    def plain(self) -> PlanEntry:
        """Plan the model as it is."""
        return PlanEntry(self.model, "plain", "plain model", VariantSpec())

    def layers(
        self, parts: Sequence[str] = PARTS, sizes: Sequence[int | Literal["all"]] = (1,)
    ) -> list[PlanEntry]:
        """Plan single layers, groups of consecutive layers, and the whole stack."""
        depth = self.stack.n_layers
        spans = []
        for size in sizes:
            length = depth if size == "all" else int(size)
            if not 1 <= length <= depth:
                raise InputError(
                    f"a group of {size} layers does not fit a stack of {depth};"
                    " expected fewer, or 'all'"
                )
            spans += [
                (first, first + length - 1) for first in range(depth - length + 1)
            ]
        entries = []
        for part in parts:
            for first, last in dict.fromkeys(spans):
                family = "layers" if first == last else "groups"
                entries += self._span(family, part, first, last)
        return entries

    def ranges(
        self, grow: str = "outward", parts: Sequence[str] = ("heads", "mlp")
    ) -> list[PlanEntry]:
        """Plan ranges of consecutive layers that grow by one layer at a time.

        They end when they reach the ends of the stack.

        Returns:
            Entries of the plan.
        """
        top = self.stack.n_layers - 1
        starts = {"outward": self.stack.n_layers // 2, "up": 0, "down": top}
        first = last = starts[grow]
        spans = [(first, last)]
        # these are more moves than are needed: an end of the range that has reached the
        # end of the stack stays there, and the other one moves on
        for move in _MOVES[grow] * self.stack.n_layers:
            if move == "up":
                last = min(last + 1, top)
            else:
                first = max(first - 1, 0)
            spans.append((first, last))
        return [
            entry
            for part in parts
            # a move that changed nothing has repeated a range
            for span in dict.fromkeys(spans)
            for entry in self._span("ranges", part, *span)
        ]

    def _heads(self, by_layer: Mapping[int, Collection[int]]) -> list[Component]:
        """Return the heads of some indices in each layer, of every kind over time."""
        heads: list[Component] = []
        for layer in sorted(by_layer):
            kinds = list_kinds(self.stack, layer)
            heads += select_heads(self.stack, layer, by_layer[layer], kinds)
        return heads

    def _span(self, family: str, part: str, first: int, last: int) -> list[PlanEntry]:
        """Plan one range of layers; none if it has no such part."""
        stack = self.stack
        layers = range(first, last + 1)
        components = {
            "both": [Component(stack.name, layer) for layer in layers],
            "mlp": [mlp for layer in layers for mlp in select_mlps(stack, layer)],
            "heads": self._heads(dict.fromkeys(layers, range(stack.n_heads))),
        }[part]
        if not components:
            return []
        single: dict[str, int] = {}
        plural = "s"
        span = f"layers {first} to {last}"
        if first == last:
            single = {"layer": first}
            plural = ""
            span = f"layer {first}"
        # what a layer has beside attention need not be an MLP
        noun = "rest"
        if all(component.kind == "mlp" for component in components):
            noun = "MLP"
        prefixes = {
            "both": "",
            "heads": "all heads of ",
            "mlp": f"{noun}{plural} of ",
        }
        label = prefixes[part] + span
        tags = {"first": first, "last": last, **single}
        return [self._entry(family, label, components, part=part, **tags)]

    def heads(self, *, paired: bool = False) -> list[PlanEntry]:
        """Plan every head by itself.

        If ``paired``, heads of one index in several kinds of attention are ablated
        together.

        Returns:
            Entries of the plan.
        """
        stack = self.stack
        entries = []
        for layer in range(stack.n_layers):
            kinds = list_kinds(stack, layer, paired=paired)
            groups = [[kind] for kind in kinds]
            if paired and kinds:
                groups = [kinds]
            for group in groups:
                kind_names = "+".join(group)
                for head in range(stack.n_heads):
                    label = f"head {head} of layer {layer} ({kind_names})"
                    heads = select_heads(stack, layer, [head], group)
                    tags = {
                        **_in_layer(layer, kind_names),
                        "head": head,
                        "ablated": 1,
                        "of": stack.n_heads,
                    }
                    entries.append(self._entry("heads", label, heads, **tags))
        return entries

    def head_counts(
        self,
        layer: int,
        order: str,
        ranking: Sequence[int],
        counts: Sequence[int] | None = None,
    ) -> list[PlanEntry]:
        """Plan the first k heads of a layer in some order, for several k.

        Without any of them, it is the plain model.

        Returns:
            Entries of the plan.
        """
        of = self.stack.n_heads
        entries = []
        tags = {
            **_in_layer(layer, "+".join(list_kinds(self.stack, layer))),
            "order": order,
            "of": of,
        }
        for count in range(of + 1) if counts is None else counts:
            label = f"{count} of {of} heads of layer {layer}, {describe_order(order)}"
            heads = self._heads({layer: ranking[:count]})
            entries.append(
                self._entry("head_counts", label, heads, **tags, ablated=int(count))
            )
        return entries

    def heads_per_layer(
        self, order: str, rankings: Mapping[int, Sequence[int]], counts: Sequence[int]
    ) -> list[PlanEntry]:
        """Plan the first k heads of several layers at once, for several k."""
        of = self.stack.n_heads
        entries = []
        tags: dict[str, str | int] = {
            "part": "heads",
            "first": min(rankings),
            "last": max(rankings),
            "order": order,
        }
        for count in counts:
            if not 0 <= count <= of:
                raise InputError(
                    f"{count} heads cannot be ablated in a layer of {of}; expected 0 to"
                    f" {of}"
                )
            heads = self._heads(
                {layer: ranking[:count] for layer, ranking in rankings.items()}
            )
            label = (
                f"{count} of {of} heads in each of {len(rankings)} layers,"
                f" {describe_order(order)}"
            )
            entries.append(
                self._entry(
                    "heads_per_layer", label, heads, **tags, ablated=count, of=of
                )
            )
        return entries

    def components(self, sets: Mapping[str, Sequence[str]]) -> list[PlanEntry]:
        """Plan any sets of components: label -> components or globs."""
        entries = []
        for name, patterns in sets.items():
            if not patterns:
                raise InputError(
                    f"{name!r} is {patterns!r}, expected a list of components or globs"
                )
            heads, total, mlps = ablated_share(
                self.lens.wiring, self.lens.components(*patterns)
            )
            entries.append(
                self._entry(
                    "components", name, patterns, ablated=heads, of=total, mlps=mlps
                )
            )
        return entries

    def recipe(
        self,
        name: str,
        heads: Mapping[int, Sequence[int]],
        mlps: Sequence[int] = (),
        *,
        selection: str = "listed",
        draw: int = -1,
    ) -> PlanEntry:
        """Plan heads and MLPs of several layers at once."""
        stack = self.stack
        components = self._heads(heads)
        for layer in mlps:
            components += select_mlps(stack, layer)
        if not components:
            raise InputError(f"recipe {name!r} ablates nothing of this model")
        layers_with_heads = sum(
            bool(list_kinds(stack, layer)) for layer in range(stack.n_layers)
        )
        # heads of one index in several kinds of attention are ablated together, and
        # count as one
        total = stack.n_heads * layers_with_heads
        count = sum(len(set(indices)) for indices in heads.values())
        n_mlps = len(set(mlps))
        share = f"{count} of {total} heads"
        if n_mlps:
            share += f" and {n_mlps} MLP" + ("s" if n_mlps > 1 else "")
        methods = {"listed": "as listed", "random": f"at random, seed {draw}"}
        method = methods.get(selection, "by " + selection.replace("_", " "))
        label = f"{name}: {share}, {method}"
        family = "recipes"
        if selection == "random":
            family = "random"
        tags: dict[str, str | int] = {
            "recipe": name,
            "selection": selection,
            "seed": draw,
            "mlps": n_mlps,
        }
        return self._entry(family, label, components, **tags, ablated=count, of=total)

    def random(
        self,
        recipe: str,
        keep: Mapping[int, int],
        seeds: Sequence[int],
        mlps: Sequence[int] = (),
        *,
        chosen: Mapping[int, Collection[int]] | None = None,
    ) -> list[PlanEntry]:
        """Draw sets of heads to ablate, so that ``keep`` (layer -> count) of them stay.

        They are drawn without replacement. A seed that repeats an earlier set, or
        draws the heads ``chosen`` (layer -> heads), is left out, and the next seeds
        after the last take its place.

        Returns:
            Entries of the plan, one for each distinct set: as many as seeds, or fewer
            where there are no more sets. Their tag ``possible`` is the number of sets.
        """
        entries: list[PlanEntry] = []
        n_heads = self.stack.n_heads
        possible = math.prod(math.comb(n_heads, kept) for kept in keep.values())
        seen = set()
        if chosen is not None:
            possible -= 1
            seen.add(_as_set(chosen))
        further = itertools.count(max(seeds, default=-1) + 1)
        for draw in itertools.chain(seeds, further):
            if len(entries) == min(len(seeds), possible):
                break
            heads: dict[int, list[int]] = {}
            # of one kind alone, as ``recipe`` adds the other kinds of each index
            drawn = random_heads(
                self.lens, dict(sorted(keep.items())), seed=draw, paired=False
            )
            for component in drawn:
                # a drawn component is a head, so its index is never None; 0 is for the
                # type checker
                heads.setdefault(component.layer, []).append(component.head or 0)
            if _as_set(heads) in seen:
                continue
            seen.add(_as_set(heads))
            entry = self.recipe(recipe, heads, mlps, selection="random", draw=draw)
            entry.tags["possible"] = possible
            entries.append(entry)
        return entries


def _as_set(heads: Mapping[int, Collection[int]]) -> frozenset[tuple[int, int]]:
    """Return heads by layer as a set of (layer, head)."""
    return frozenset(
        (layer, head) for layer, indices in heads.items() for head in indices
    )


def _in_layer(layer: int, kinds: str) -> dict[str, str | int]:
    """Return the tags of an entry that ablates heads of one layer."""
    return {
        "part": "heads",
        "first": layer,
        "last": layer,
        "layer": layer,
        "kind": kinds,
    }
