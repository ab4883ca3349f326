"""Many variants of one forward, at the cost of what differs between them.

Four economies, all exact: what lies before a variant's first changed component is replayed from one
plain run; inside the block of that component, earlier branches and the attention up to its heads are
replayed too; so are keys and values that a decoder takes from an unchanged encoder; and variants that
share a prefix run side by side as rows of one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.edit import as_index, resolve
from tsfm_lens.hooks.interventions import Intervention, Zero
from tsfm_lens.hooks.replay import map_tensors, recorded_inputs, recorded_outputs, replayed
from tsfm_lens.hooks.wiring import Attention, Mlp, Wiring
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
    """Where a variant begins to differ.

    Attributes:
        stack: index of the stack.
        layer: -1 is the stack's input.
        branch: index of the branch in the block.
        heads: whether all that differs in that branch comes after the heads' outputs.
    """

    stack: int
    layer: int
    branch: int = 0
    heads: bool = False


def run_variants(
    lens: Lens,
    encoded: Any,
    variants: Sequence[Variant],
    *,
    max_rows: int = 256,
    replay: bool = True,
    read: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The single-forward output of every variant.

    Args:
        lens: the model.
        encoded: the batch, from ``lens.encode``, or series.
        variants: what to change in each.
        max_rows: series times variants that run side by side; bounds the memory.
        replay: False computes everything anew (the result is the same).
        read: what to keep of outputs (…, with the axes of ``lens.forward`` behind), so that no more is held.

    Returns:
        (variant, …) with the axes of ``lens.forward``, or of what ``read`` gives, behind.

    Raises:
        InputError: max_rows below 1.
        UnknownNameError: a target does not exist.
    """
    if max_rows < 1:
        raise InputError(f"max_rows is {max_rows}, expected at least 1")
    if not isinstance(encoded, Encoded):
        encoded = lens.encode(encoded)
    found = sweep(lens, encoded, variants, max_rows=max_rows, replay=replay, read=read)
    assert found is not None
    return found


def sweep(
    lens: Lens,
    encoded: Encoded,
    variants: Sequence[Variant],
    *,
    max_rows: int | Callable[[int], int],
    replay: bool = True,
    read: Callable[[Tensor], Tensor] | None = None,
    accept: Callable[[Tensor], bool] = lambda _plain: True,
    done: Callable[[int], None] = lambda _count: None,
) -> Tensor | None:
    """:func:`run_variants`, which shows the plain output first and goes on only if that is accepted.

    Args:
        lens, encoded, variants, replay, read: as there.
        max_rows: as there, or a function of the bytes that are held for replay; 0 rows end the run with None.
        accept: called with the plain output, read; False ends the run with None.
        done: called with the number of variants that ran side by side, after them.
    """
    groups: dict[Start, list[int]] = {}
    for index, variant in enumerate(variants):
        # without replay nothing is spared by where a variant begins, and all of them can run side by side
        groups.setdefault(_start(lens, variant) if replay else Start(0, -1), []).append(index)
    paths = {start: _unchanged(lens.wiring, start) if replay else () for start in groups}
    heads = {place for start in groups if replay and (place := _heads_of(lens.wiring, start))}
    everything = {path for group in paths.values() for path in group} | {place[0] for place in heads}
    model = lens.adapter.model
    with torch.no_grad():
        with recorded_outputs(model, everything) as stored, recorded_inputs(model, {o for _, o in heads}) as z:
            plain = lens.forward(encoded) if read is None else read(lens.forward(encoded))
        if not accept(plain):
            return None
        outputs = plain.new_empty(len(variants), *plain.shape)
        rows = len(encoded.rows)
        side = max_rows if isinstance(max_rows, int) else max_rows(_held(stored, z))
        if side < 1:
            return None
        abreast = max(1, side // rows)
        for start, members in sorted(groups.items()):
            kept = {path: stored[path] for path in paths[start]}
            place = _heads_of(lens.wiring, start) if replay else None
            resumed = {place[0]: (model.get_submodule(place[1]), z[place[1]], stored[place[0]])} if place else {}
            for first in range(0, len(members), abreast):
                chunk = members[first : first + abreast]
                found = _side_by_side(lens, encoded, [variants[i] for i in chunk], kept, resumed)
                outputs[chunk] = found if read is None else read(found)
                done(len(chunk))
    return outputs


def _held(*records: Mapping[str, Any]) -> int:
    """Bytes of all tensors in what was recorded."""
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    for record in records:
        for value in record.values():
            map_tensors(value, note)
    return sum(storages.values())


def _side_by_side(
    lens: Lens,
    encoded: Encoded,
    variants: Sequence[Variant],
    stored: Mapping[str, Any],
    resumed: Mapping[str, tuple[nn.Module, Tensor, Any]],
) -> Tensor:
    """Variants as blocks of rows of one batch: (variant, series, …)."""
    rows, copies = len(encoded.rows), len(variants)
    placed = [
        on_block(intervention, block, rows)
        for block, variant in enumerate(variants)
        for intervention in variant.interventions
    ]
    registry = lens.registry
    items = rows if encoded.items is None else encoded.items
    with (
        replayed(lens.adapter.model, stored, rows=items, copies=copies, resumed=resumed),
        lens.edit(*placed),
    ):
        registry.state.restart(rows * copies, block_rows=rows)
        try:
            output = lens.adapter.run(encoded.repeated(copies))
        finally:
            registry.state.restart()
    return output.reshape(copies, len(encoded.batch), *output.shape[1:])


def on_block(intervention: Intervention, block: int, rows: int) -> Intervention:
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
            stack = lens.wiring.stack(point.stack)
            if point.layer < 0 and not name.endswith("hook_embed"):
                places.append(Start(order[point.stack], stack.n_layers))
            elif name.endswith("hook_resid_post"):
                places.append(Start(order[point.stack], point.layer, len(stack.rows(point.layer))))
            elif point.kind:
                kinds = [row.kind for row in stack.rows(point.layer)]
                late = name.endswith(("hook_z", "hook_result", "hook_out"))
                places.append(Start(order[point.stack], point.layer, kinds.index(point.kind), late))
            else:
                # the stream before a branch; at the block's entry or later makes no difference to what is spared
                places.append(Start(order[point.stack], point.layer))
    return min(places, default=Start(len(order) - 1, lens.wiring.output_stack.n_layers))


def _heads_of(wiring: Wiring, start: Start) -> tuple[str, str] | None:
    """Attention module and output projection of a branch that can go on from its heads' outputs."""
    stack = wiring.stacks[start.stack]
    if not start.heads or not 0 <= start.layer < stack.n_layers:
        return None
    row = stack.rows(start.layer)[start.branch]
    if not isinstance(row, Attention) or not _rows_lead(row):
        return None
    block = stack.block(start.layer)
    return f"{block}.{row.module}", f"{block}.{row.o.module}"


def _rows_lead(row: Attention | Mlp) -> bool:
    """Whether the first axis of a branch's tensors counts rows, so that variants can be stacked along it."""
    return not isinstance(row, Attention) or not row.z_layout.startswith("pos ")


def _unchanged(wiring: Wiring, start: Start) -> tuple[str, ...]:
    """Modules whose outputs do not depend on anything from ``start`` on."""
    stack = wiring.stacks[start.stack]
    paths = [*wiring.unread, *stack.upstream, *(stack.block(layer) for layer in range(max(start.layer, 0)))]
    if 0 <= start.layer < stack.n_layers:
        for row in stack.rows(start.layer)[: start.branch]:
            inner = row.module if isinstance(row, Attention) else row.write.module
            if _rows_lead(row):
                paths.append(f"{stack.block(start.layer)}.{inner}")
    earlier = {other.name for other in wiring.stacks[: start.stack]}
    for layer in range(max(start.layer, 0), stack.n_layers):
        for row in stack.attentions(layer):
            if row.keys_from and row.keys_from in earlier:
                paths += [f"{stack.block(layer)}.{part.module}" for part in (row.k, row.v)]
    # a module inside a replayed one never runs, so it has nothing to hand back
    return tuple(path for path in paths if not any(path.startswith(f"{other}.") for other in paths))
