"""Many variants of one forward, at the cost of what differs between them.

Three economies, all exact: what lies before a variant's first changed component is replayed from one
plain run, keys and values that a decoder takes from an unchanged encoder are replayed too, and variants
that share a prefix run side by side as rows of one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.edit import as_index, resolve
from tsfm_lens.hooks.interventions import Intervention, Zero
from tsfm_lens.hooks.replay import recorded_outputs, replayed
from tsfm_lens.hooks.wiring import Wiring
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.lens import Lens


@dataclass(frozen=True)
class Variant:
    """One altered model: a name and the interventions that make it."""

    name: str
    interventions: tuple[Intervention, ...]

    @classmethod
    def zero(cls, *components: Component) -> Variant:
        """Components knocked out together."""
        return cls("+".join(map(str, components)), tuple(Zero(component) for component in components))


@dataclass(frozen=True, order=True)
class Start:
    """Where a variant begins to differ: index of the stack, and the layer (-1: the stack's input)."""

    stack: int
    layer: int


def run_variants(
    lens: Lens, encoded: Encoded, variants: Sequence[Variant], *, max_rows: int = 256, replay: bool = True
) -> Tensor:
    """The single-forward output of every variant.

    Args:
        lens: the model.
        encoded: the batch, from ``lens.encode``.
        variants: what to change in each.
        max_rows: series times variants that run side by side; bounds the memory.
        replay: False computes everything anew (the result is the same).

    Returns:
        (variant, …) with the axes of ``lens.forward`` behind.

    Raises:
        InputError: max_rows below 1.
        UnknownNameError: a target does not exist.
    """
    if max_rows < 1:
        raise InputError(f"max_rows is {max_rows}, expected at least 1")
    groups: dict[Start, list[int]] = {}
    for index, variant in enumerate(variants):
        groups.setdefault(_start(lens, variant), []).append(index)
    paths = {start: _unchanged(lens.wiring, start) if replay else () for start in groups}
    with torch.no_grad():
        with recorded_outputs(lens.adapter.model, {path for group in paths.values() for path in group}) as stored:
            plain = lens.forward(encoded)
        outputs = plain.new_empty(len(variants), *plain.shape)
        rows = len(encoded.rows)
        abreast = max(1, max_rows // rows)
        for start, members in sorted(groups.items()):
            kept = {path: stored[path] for path in paths[start]}
            for first in range(0, len(members), abreast):
                chunk = members[first : first + abreast]
                outputs[chunk] = _side_by_side(lens, encoded, [variants[i] for i in chunk], kept)
    return outputs


def _side_by_side(lens: Lens, encoded: Encoded, variants: Sequence[Variant], stored: dict) -> Tensor:
    """Variants as blocks of rows of one batch: (variant, series, …)."""
    rows, copies = len(encoded.rows), len(variants)
    placed = [
        _on_block(intervention, block, rows)
        for block, variant in enumerate(variants)
        for intervention in variant.interventions
    ]
    registry = lens.registry
    items = rows if encoded.items is None else encoded.items
    with replayed(lens.adapter.model, stored, rows=items, copies=copies), lens.edit(*placed):
        registry.state.restart(rows * copies)
        output = lens.adapter.run(encoded.repeated(copies))
    return output.reshape(copies, len(encoded.batch), *output.shape[1:])


def _on_block(intervention: Intervention, block: int, rows: int) -> Intervention:
    """The intervention on the rows of one variant."""
    everything = torch.arange(rows)
    own = everything if intervention.rows is None else as_index(intervention.rows, rows, "rows")
    return replace(intervention, rows=own + block * rows)  # type: ignore[type-var]


def _start(lens: Lens, variant: Variant) -> Start:
    order = {stack.name: index for index, stack in enumerate(lens.wiring.stacks)}
    places = []
    for intervention in variant.interventions:
        for name, _head in resolve(lens.registry, intervention):
            point = lens.registry.points[name]
            after_blocks = point.layer < 0 and not name.endswith("hook_embed")
            layer = lens.wiring.stack(point.stack).n_layers if after_blocks else point.layer
            places.append(Start(order[point.stack], layer))
    return min(places, default=Start(len(order) - 1, lens.wiring.output_stack.n_layers))


def _unchanged(wiring: Wiring, start: Start) -> tuple[str, ...]:
    """Modules whose outputs do not depend on anything from ``start`` on."""
    stack = wiring.stacks[start.stack]
    paths = [*wiring.unread, *stack.upstream, *(stack.block(layer) for layer in range(max(start.layer, 0)))]
    earlier = {other.name for other in wiring.stacks[: start.stack]}
    for layer in range(max(start.layer, 0), stack.n_layers):
        for row in stack.attentions(layer):
            if row.keys_from and row.keys_from in earlier:
                paths += [f"{stack.block(layer)}.{part.module}" for part in (row.k, row.v)]
    # a module inside a replayed one never runs, so it has nothing to hand back
    return tuple(path for path in paths if not any(path.startswith(f"{other}.") for other in paths))
