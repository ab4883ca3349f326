"""Places to patch: streams, branches and heads, and groups of token positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.component import Component, components, writers
from tsfm_lens.hooks.names import select
from tsfm_lens.hooks.wiring import Stack, Wiring
from tsfm_lens.models.forecast import is_count
from tsfm_lens.models.lens import Lens

MOST_GROUPS = 32


@dataclass(frozen=True)
class Place:
    """Activation that can be patched."""

    target: Component | str
    point: str
    stack: str
    layer: int
    kind: str
    head: int | None = None

    @property
    def component(self) -> Component:
        """Head or branch at this place; a residual stream is refused."""
        if isinstance(self.target, str):
            raise InputError(
                f"{self.target} is a residual stream; paths and circuits are made of"
                " heads and branches"
            )
        return self.target

    @property
    def branch(self) -> Component:
        """Branch that this is, or is a head of."""
        return Component(self.stack, self.layer, self.component.kind)


def list_nodes(lens: Lens, names: Any, what: str) -> list[Place]:
    """Return heads and branches by name; the heads and MLPs of the output stack for
    None.
    """
    return parse_places(
        lens, writers(lens.wiring) if names is None else listed(names, what)
    )


def parse_places(
    lens: Lens, at: str | Sequence[str | Component], stack: str | None = None
) -> list[Place]:
    """Return places by a word, or by names and globs."""
    wiring = lens.wiring
    row = first_stack(lens, stack)
    if not isinstance(at, str) or at not in ("stream", "branches", "heads"):
        # two patterns may name one place
        return list(
            dict.fromkeys(
                position
                for item in listed(at, "at")
                for position in _find_places(lens, item)
            )
        )
    if at == "stream":
        before = [
            f"{row.prefix}.{layer}.hook_resid_pre" for layer in range(row.n_layers)
        ]
        return [
            _stream(lens, name)
            for name in [*before, f"{row.prefix}.{row.n_layers - 1}.hook_resid_post"]
        ]
    level = {"branches": "branch", "heads": "head"}[at]
    return [
        find_place(wiring, c)
        for c in components(wiring)
        if c.stack == row.name and c.level == level
    ]


def first_stack(lens: Lens, name: str | None) -> Stack:
    """Return a stack by its name; the first one, which reads the series, if None."""
    return lens.wiring.stack(lens.wiring.stacks[0].name if name is None else name)


def listed(names: Any, what: str) -> list[str | Component]:
    """Return names of components as a list, each once; a single name is a list of one."""
    if isinstance(names, str | Component):
        return [names]
    try:
        items = list(dict.fromkeys(names))
    except TypeError:
        items = [names]
    for item in items:
        if not isinstance(item, str | Component):
            raise InputError(
                f"{what} holds {item!r}; expected components by name or glob, e.g."
                " 'decoder.0.mlp'"
            )
    if not items:
        raise InputError(f"{what} is empty; expected at least one component")
    return items


def _find_places(lens: Lens, name: str | Component) -> list[Place]:
    if isinstance(name, str) and "hook_" in name:
        return [_stream(lens, item) for item in select(lens.registry.points, name)]
    # a layer is its branches
    return [
        find_place(lens.wiring, item)
        for component in lens.components(name)
        for item in (
            [component]
            if component.kind
            else _branches(lens.wiring, component.stack, component.layer)
        )
    ]


def _branches(wiring: Wiring, stack: str, layer: int) -> list[Component]:
    return [
        Component(stack, layer, row.kind) for row in wiring.stack(stack).rows(layer)
    ]


def _stream(lens: Lens, name: str) -> Place:
    point = lens.registry.points[name]
    if "hook_resid" not in name and not name.endswith("hook_embed"):
        raise InputError(
            f"{name} is not a residual stream; name a component instead, e.g. a head or"
            " an MLP"
        )
    return Place(name, name, point.stack, max(point.layer, 0), "stream")


def find_place(wiring: Wiring, component: Component) -> Place:
    """Return the place of a head or branch."""
    at = f"{wiring.stack(component.stack).prefix}.{component.layer}.{component.kind}"
    end = "hook_z"
    if component.head is None:
        end = "hook_out"
    return Place(
        component,
        f"{at}.{end}",
        component.stack,
        component.layer,
        str(component.kind),
        component.head,
    )


def place_coords(places: Sequence[Place], dim: str = "component") -> dict[str, Any]:
    """Return coordinates that name places: label, stack, kind, layer_index and head (-1
    where there is none).
    """
    return {
        dim: [str(position.target) for position in places],
        "stack": (dim, [position.stack for position in places]),
        "kind": (dim, [position.kind for position in places]),
        "layer_index": (dim, [position.layer for position in places]),
        "head": (
            dim,
            [-1 if position.head is None else position.head for position in places],
        ),
    }


def component_coords(names: Sequence[Component | str]) -> dict[str, Any]:
    """Return :func:`place_coords` of components, and of other writers by name: kind is
    the name, layer_index -1.
    """
    return place_coords(
        [
            (
                Place(name, "", "", -1, name)
                if isinstance(name, str)
                else Place(
                    name, "", name.stack, name.layer, name.kind or "layer", name.head
                )
            )
            for name in names
        ]
    )


def head_or_kind(data: xr.Dataset) -> list[str]:
    """Return the group in which each component is compared: "head" for heads, the kind
    for all others.
    """
    kinds = data["kind"].values.astype(str)
    heads = data["head"].values
    return [
        "head" if head >= 0 else kind for kind, head in zip(kinds, heads, strict=True)
    ]


def later_branches(wiring: Wiring, component: Component) -> list[Component]:
    """Return every branch that runs after a component's own, later stacks included, in
    order.
    """
    branches = [
        branch
        for stack in wiring.stacks
        for layer in range(stack.n_layers)
        for branch in _branches(wiring, stack.name, layer)
    ]
    own = _branches(wiring, component.stack, component.layer)[-1]
    if component.kind is not None:
        own = Component(component.stack, component.layer, component.kind)
    return branches[branches.index(own) + 1 :]


def position_groups(spans: TokenSpans, positions: str | int | None) -> list[list[int]]:
    """Group token positions that are patched together."""
    everything = list(range(len(spans)))
    if positions == "all":
        return [everything]
    ordinary = [token for token in everything if not spans.special[token]]
    few = max(-(-len(ordinary) // MOST_GROUPS), 1)
    size = few if positions is None else 1 if positions == "each" else positions
    if not is_count(size):
        raise InputError(
            f"positions={positions!r} is not known, choose 'all', 'each' or 1 or more"
            " tokens a group"
        )
    size = int(size)
    variates = spans.variate or (0,) * len(spans)
    groups = [[token] for token in everything if spans.special[token]]
    for variate in dict.fromkeys(variates[token] for token in ordinary):
        own = [token for token in ordinary if variates[token] == variate]
        # counted from the last token, so that the newest group is whole
        groups += [
            own[max(stop - size, 0) : stop] for stop in range(len(own), 0, -size)
        ]
    return sorted(groups)


def group_coords(
    spans: TokenSpans, groups: Sequence[Sequence[int]], dim: str = "position"
) -> dict[str, Any]:
    """Return coordinates of groups: first token, start and stop of the steps covered,
    and a special token's word.
    """

    def steps(group: Sequence[int], edge: Any, of: Any) -> int:
        ordinary = [token for token in group if not spans.special[token]] or list(group)
        return int(of(edge[token] for token in ordinary))

    texts = [spans.special[group[0]] if len(group) == 1 else "" for group in groups]
    if spans.variate:
        variate = {
            f"{dim}_variate": (dim, [spans.variate[group[0]] for group in groups])
        }
    else:
        variate = {}
    return {
        **variate,
        dim: [group[0] for group in groups],
        f"{dim}_start": (dim, [steps(group, spans.start, min) for group in groups]),
        f"{dim}_stop": (dim, [steps(group, spans.stop, max) for group in groups]),
        f"{dim}_special": (dim, texts),
    }
