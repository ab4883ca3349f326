"""Sites to patch: streams, branches and heads, and groups of token positions.

:class:`PatchSite` is one site; :func:`parse_sites` finds sites by names and globs, and
:func:`position_groups` divides the tokens of a stack. The other functions label the
results of probes. Nothing is patched here; see ``patching``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.activations import Activations, Call, TokenSpans
from tsfm_lens.hooks.component import Component, components, writers
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.hooks.names import select
from tsfm_lens.hooks.wiring import Stack, Wiring
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

MOST_GROUPS = 32


@dataclass(frozen=True)
class PatchSite:
    """Activation that can be patched: a residual stream, a branch or a head."""

    target: Component | str
    point: str
    stack: str
    layer: int
    kind: str
    head: int | None = None

    @property
    def component(self) -> Component:
        """Head or branch at this site; a residual stream is refused."""
        if isinstance(self.target, str):
            raise InputError(
                f"{self.target} is a residual stream; paths and circuits are made of"
                " heads and branches"
            )
        return self.target

    @property
    def branch(self) -> Component:
        """Branch that this site is, or is a head of."""
        return Component(self.stack, self.layer, self.component.kind)


def list_nodes(lens: Lens, names: Any, what: str) -> list[PatchSite]:
    """Return heads and branches by name.

    None stands for the heads and MLPs of the output stack.
    """
    return parse_sites(
        lens, writers(lens.wiring) if names is None else listed(names, what)
    )


def parse_sites(
    lens: Lens, at: str | Sequence[str | Component], stack: str | None = None
) -> list[PatchSite]:
    """Return sites by a keyword, or by names and globs.

    Keywords are "stream" (the residual stream around each layer), "branches" and
    "heads".
    """
    wiring = lens.wiring
    chosen = first_stack(lens, stack)
    keywords = ("stream", "branches", "heads")
    if isinstance(at, str) and at.isalpha() and at not in keywords:
        raise InputError(
            f"at={at!r} is not known, choose 'stream', 'branches', 'heads', or names"
            f" and globs of components, such as {chosen.name or '*'!s}.*.mlp"
        )
    if not isinstance(at, str) or at not in keywords:
        # without repetition, as two patterns may name one site
        return list(
            dict.fromkeys(
                site for name in listed(at, "at") for site in _find_sites(lens, name)
            )
        )
    if at == "stream":
        before = [
            f"{chosen.prefix}.{layer}.hook_resid_pre"
            for layer in range(chosen.n_layers)
        ]
        last = f"{chosen.prefix}.{chosen.n_layers - 1}.hook_resid_post"
        return [_stream(lens, name) for name in [*before, last]]
    level = {"branches": "branch", "heads": "head"}[at]
    return [
        find_site(wiring, component)
        for component in components(wiring)
        if component.stack == chosen.name and component.level == level
    ]


def first_stack(lens: Lens, name: str | None) -> Stack:
    """Return a stack by its name; if None, the first one, which reads the series."""
    return lens.wiring.stack(lens.wiring.stacks[0].name if name is None else name)


def listed(names: Any, what: str) -> list[str | Component]:
    """Return names of components as a list, without repetition.

    A single name is a list of one.
    """
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


def _find_sites(lens: Lens, name: str | Component) -> list[PatchSite]:
    """Return the sites of one name or glob, of a component or of a hook point."""
    if isinstance(name, str) and "hook_" in name:
        return [_stream(lens, point) for point in select(lens.registry.points, name)]
    sites = []
    for component in lens.components(name):
        # a layer is patched by its branches
        if component.kind:
            parts = [component]
        else:
            parts = _branches(lens.wiring, component.stack, component.layer)
        sites += [find_site(lens.wiring, part) for part in parts]
    return sites


def _branches(wiring: Wiring, stack: str, layer: int) -> list[Component]:
    """Return the branches of a layer, in order of writing."""
    return [
        Component(stack, layer, writer.kind)
        for writer in wiring.stack(stack).rows(layer)
    ]


def _stream(lens: Lens, name: str) -> PatchSite:
    """Return the site of a residual stream."""
    point = lens.registry.points[name]
    if "hook_resid" not in name and not name.endswith("hook_embed"):
        raise InputError(
            f"{name} is not a residual stream; name a component instead, e.g. a head or"
            " an MLP"
        )
    # an embedding has layer -1, and stands with the first layer
    return PatchSite(name, name, point.stack, max(point.layer, 0), "stream")


def find_site(wiring: Wiring, component: Component) -> PatchSite:
    """Return the site of a head or branch."""
    stack = wiring.stack(component.stack)
    # heads are patched at z, before W_O mixes them, branches at what they write
    hook = "hook_z"
    if component.head is None:
        hook = "hook_out"
    return PatchSite(
        component,
        f"{stack.prefix}.{component.layer}.{component.kind}.{hook}",
        component.stack,
        component.layer,
        str(component.kind),
        component.head,
    )


def put_value(
    run: Run, target: Component | str, point: str, value: Tensor
) -> PatchFrom:
    """Return the intervention that puts a value in place of that of a hook point.

    The value is of a single forward of the whole batch.
    """
    source = Activations(run.lens.registry.points, False, run.batch.ids)
    source.recorded[point] = [Call(0, 0, value)]
    return PatchFrom(target, source)


def site_coords(sites: Sequence[PatchSite], dim: str = "component") -> dict[str, Any]:
    """Return coordinates that name sites.

    They are the label, stack, kind, layer and head (-1 where there is none).
    """
    return {
        dim: [str(site.target) for site in sites],
        "stack": (dim, [site.stack for site in sites]),
        "kind": (dim, [site.kind for site in sites]),
        "layer": (dim, [site.layer for site in sites]),
        "head": (dim, [-1 if site.head is None else site.head for site in sites]),
    }


def component_coords(names: Sequence[Component | str]) -> dict[str, Any]:
    """Return :func:`site_coords` of components, and of other writers by name.

    The kind of another writer is its name, its layer -1.
    """
    sites = []
    for name in names:
        if isinstance(name, str):
            site = PatchSite(name, "", "", -1, name)
        else:
            kind = name.kind or "layer"
            site = PatchSite(name, "", name.stack, name.layer, kind, name.head)
        sites.append(site)
    return site_coords(sites)


def head_or_kind(data: xr.Dataset) -> list[str]:
    """Return the group in which each component is compared.

    It is "head" for heads, and the kind for all others.
    """
    kinds = data["kind"].values.astype(str)
    heads = data["head"].values
    return [
        "head" if head >= 0 else kind for kind, head in zip(kinds, heads, strict=True)
    ]


def later_branches(wiring: Wiring, component: Component) -> list[Component]:
    """Return every branch that runs after a component, in order.

    Those of later stacks are included.
    """
    branches = [
        branch
        for stack in wiring.stacks
        for layer in range(stack.n_layers)
        for branch in _branches(wiring, stack.name, layer)
    ]
    # of a layer, the branches after its last one
    branch = _branches(wiring, component.stack, component.layer)[-1]
    if component.kind is not None:
        branch = Component(component.stack, component.layer, component.kind)
    return branches[branches.index(branch) + 1 :]


def position_groups(spans: TokenSpans, positions: str | int | None) -> list[list[int]]:
    """Group token positions that are patched together."""
    everything = list(range(len(spans)))
    if positions == "all":
        return [everything]
    ordinary = [token for token in everything if not spans.special[token]]
    requested: Any = positions
    if positions is None:
        requested = max(-(-len(ordinary) // MOST_GROUPS), 1)
    elif positions == "each":
        requested = 1
    if isinstance(positions, Sequence) and not isinstance(positions, str):
        raise InputError(
            f"positions={positions!r} names single tokens; choose 'each', and take"
            f" result.sel(position={list(positions)!r}) of the result;"
            " lens.patch(activations, point, positions=[…]) patches several at once"
        )
    if not is_count(requested):
        raise InputError(
            f"positions={positions!r} is not known, choose 'all', 'each' or 1 or more"
            " tokens a group"
        )
    size = int(requested)
    # a group must not reach from the end of one variate into the start of the next
    variates = spans.variate or (0,) * len(spans)
    groups = [[token] for token in everything if spans.special[token]]
    for variate in dict.fromkeys(variates[token] for token in ordinary):
        tokens = [token for token in ordinary if variates[token] == variate]
        # counted from the last token, so that the newest group is full
        groups += [
            tokens[max(stop - size, 0) : stop] for stop in range(len(tokens), 0, -size)
        ]
    # by first token, since special tokens may stand between or before the others
    return sorted(groups)


def group_coords(
    spans: TokenSpans, groups: Sequence[Sequence[int]], dim: str = "position"
) -> dict[str, Any]:
    """Return the coordinates of groups of tokens.

    They are the first token, start and stop of the steps covered, and the label of a
    special token.
    """

    def covered(group: Sequence[int], bounds: Any, reduction: Any) -> int:
        # a special token has bounds too, which count only where it is alone
        ordinary = [token for token in group if not spans.special[token]] or list(group)
        return int(reduction(bounds[token] for token in ordinary))

    labels = [spans.special[group[0]] if len(group) == 1 else "" for group in groups]
    if spans.variate:
        variate = {
            f"{dim}_variate": (dim, [spans.variate[group[0]] for group in groups])
        }
    else:
        variate = {}
    return {
        **variate,
        dim: [group[0] for group in groups],
        f"{dim}_start": (dim, [covered(group, spans.start, min) for group in groups]),
        f"{dim}_stop": (dim, [covered(group, spans.stop, max) for group in groups]),
        f"{dim}_special": (dim, labels),
    }
