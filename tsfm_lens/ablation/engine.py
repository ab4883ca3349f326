"""Variants of one forward at the cost of their differences: what is unchanged is
replayed, the rest side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.edit import acts_by_place, as_index, resolve
from tsfm_lens.hooks.interventions import Intervention, Zero
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.replay import (
    OtherCalls,
    called_once,
    only,
    recorded_inputs,
    recorded_outputs,
    replayed,
)
from tsfm_lens.hooks.wiring import Attention, Wiring, Writer
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.batching import (
    count_tokens,
    estimate_bytes,
    fitting,
    halved,
    out_of_memory,
)
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.recording import forward_ranges

# multiplications that take about as long as the overhead of a pass of any size: a few
# milliseconds
_PASS = 50_000_000


@dataclass(frozen=True)
class Variant:
    """Altered model: a name and the interventions that make it."""

    name: str
    interventions: tuple[Intervention, ...]

    @classmethod
    def zero(cls, *components: Component) -> Variant:
        """Knock components out together."""
        return cls(
            "+".join(map(str, components)),
            tuple(Zero(component) for component in components),
        )


class Start(NamedTuple):
    """First place at which a variant differs; layer -1 is a stack's input, heads: only
    after the heads' outputs.
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
    read: Callable[[Tensor, Encoded], Tensor] | None = None,
) -> Tensor:
    """Compute the single-forward output of every variant, (variant, …) with the axes of
    ``lens.forward`` behind.

    The batch runs in parts if memory is short; variants run one by one while the caller
    has hooks set.

    Args:
        lens: the model.
        encoded: the batch, from ``lens.encode``, or series.
        variants: the models.
        max_rows: series times variants that run side by side at most.
        replay: False computes everything anew (the result is the same).
        read: reduces outputs (…, with the axes of ``lens.forward`` behind) of a batch
            or a part of it.

    Raises:
        InputError: max_rows below 1, or too little memory.
        UnknownNameError: a target does not exist.

    Example:
        >>> variants = [ablation.Variant.zero(head) for head in lens.components("decoder.0.cross_attn.*")]
        >>> ablation.run_variants(lens, run.encoded, variants).shape[0]
        4
    """
    if max_rows < 1:
        raise InputError(f"max_rows is {max_rows}, expected at least 1")
    if not isinstance(encoded, Encoded):
        encoded = lens.encode(encoded)
    if lens.registry.in_use:
        # hooks of the caller's own may act on chosen rows, and must see every pass
        replay = False
        max_rows = 1
    # hook points where rows cannot be taken apart
    full = lens.registry.session.across_rows()
    full += [
        point.name
        for item, point in iterate_points(lens, *variants)
        if not acts_by_place(item, point)
    ]
    untrimmed = ""
    if full:
        untrimmed = (
            f"give fewer series at once, since what is done at {full[0]} may look at"
            " several of them"
        )
    rows = min(max_rows, _rows_abreast(lens, encoded, len(variants), max_rows))

    def outputs(start: int, stop: int) -> Tensor:
        if stop - start == len(encoded.batch):
            part = encoded
        else:
            part = encoded.part(start, stop)
        reduced = None if read is None else lambda output: read(output, part)
        work = OnePass(
            part,
            lambda copies: lens.adapter.run(part.repeated(copies)),
            reduced,
            lens.wiring.unread,
        )
        return _within_memory(lens, work, variants, rows, replay)

    if full:
        ranges = [(0, len(encoded.batch))]
    else:
        ranges = forward_ranges(lens, encoded)
    of_parts = halved(outputs, encoded.batch, ranges, untrimmed)
    if len(of_parts) == 1:
        return of_parts[0]
    return torch.cat(of_parts, dim=1)


def iterate_points(
    lens: Lens, *variants: Variant
) -> Iterator[tuple[Intervention, Point]]:
    """Iterate over interventions and the hook points of each; UnknownNameError for an
    unknown target.
    """
    for intervention in (
        item for variant in variants for item in variant.interventions
    ):
        for name, _head in resolve(lens.registry, intervention):
            yield intervention, lens.registry.points[name]


def side_by_side(variants: Sequence[Variant], rows: int) -> list[Intervention]:
    """Restrict interventions to the blocks of rows that their variants are in one
    batch.
    """
    edits = []
    for block, variant in enumerate(variants):
        for intervention in variant.interventions:
            first = block * rows
            own = (
                slice(first, first + rows)
                if intervention.rows is None
                else as_index(intervention.rows, rows, "rows") + first
            )
            edits.append(replace(intervention, rows=own))  # type: ignore[type-var]
    return edits


def _rows_abreast(lens: Lens, encoded: Encoded, variants: int, max_rows: int) -> int:
    """Count the rows of variants that fit in the memory side by side."""
    rows = len(encoded.rows)
    per_item = -(-len(encoded.batch) // encoded.n_items)
    most = encoded.n_items * max(1, min(variants, max_rows // rows))
    fit = fitting(
        estimate_bytes(lens, count_tokens(encoded), 1, per_item), most, lens.device
    )
    if fit == most:
        return max_rows
    return max(1, fit * rows // encoded.n_items)


def _within_memory(
    lens: Lens, work: OnePass, variants: Sequence[Variant], rows: int, replay: bool
) -> Tensor:
    """Sweep over a part of a batch; with fewer variants side by side where that runs
    out of memory.
    """
    while True:
        try:
            return sweep(lens, work, variants, max_rows=rows, replay=replay)
        except OtherCalls:
            # a model that runs its modules several times a forward; nothing of it can
            # be handed back
            work = replace(work, once=False)
            replay = False
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error) or rows < 2 * work.rows or len(variants) == 1:
                raise
            rows = min(rows, len(variants) * work.rows) // 2


@dataclass(frozen=True)
class OnePass:
    """Pass of a sweep: the model over copies of a batch, and the reduction of its
    output.
    """

    encoded: Encoded
    run: Callable[[int], Tensor]
    read: Callable[[Tensor], Tensor] | None = None
    unread: tuple[str, ...] = ()
    once: bool = True

    @property
    def rows(self) -> int:
        """Rows that hooks see of one variant."""
        return len(self.encoded.rows)


def sweep(
    lens: Lens,
    work: OnePass,
    variants: Sequence[Variant],
    *,
    max_rows: int,
    replay: bool = True,
    on_progress: Callable[[int], None] = lambda _count: None,
) -> Tensor:
    """Compute one pass of every variant, (variant, series, …)."""
    wiring = lens.wiring
    model = lens.adapter.model
    groups: dict[Start, list[int]] = {}
    for index, variant in enumerate(variants):
        # without replay nothing is spared by where a variant begins, and all of them
        # can run side by side
        groups.setdefault(_start(lens, variant) if replay else Start(0, -1), []).append(
            index
        )
    paths = {
        start: _unchanged_modules(wiring, start, work.unread) if replay else ()
        for start in groups
    }
    heads = {
        start: position
        for start in groups
        if replay and (position := _find_heads(wiring, start))
    }
    modules = {path for group in paths.values() for path in group} | {
        module for module, _ in heads.values()
    }
    with torch.no_grad():
        with (
            recorded_outputs(model, modules) as plain_outputs,
            recorded_inputs(
                model, {projection for _, projection in heads.values()}
            ) as z,
        ):
            plain = _side_by_side(lens, work, [Variant("plain", ())], {}, {})[0]
        outputs = plain.new_empty(len(variants), *plain.shape)
        done = 0
        abreast = max(
            1, min(max_rows, lens.adapter.rows_at_once or max_rows) // work.rows
        )
        for start, members in _join(lens, groups, work, abreast):
            before = {path: plain_outputs.get(path, []) for path in paths[start]}
            unfinished = {}
            if start in heads:
                module, projection = heads[start]
                unfinished[module] = (
                    model.get_submodule(projection),
                    z[projection][-1],
                    only(plain_outputs, module),
                )
            for first in range(0, len(members), abreast):
                chunk = members[first : first + abreast]
                outputs[chunk] = _side_by_side(
                    lens, work, [variants[i] for i in chunk], before, unfinished
                )
                done += len(chunk)
                on_progress(done)
    return outputs


def _join(
    lens: Lens, groups: Mapping[Start, Sequence[int]], work: OnePass, abreast: int
) -> list[tuple[Start, list[int]]]:
    """Join groups that run together from the first one's start, where that costs less
    than one pass more.
    """
    tokens = max(len(work.encoded.batch), work.rows) * max(
        len(spans) for spans in work.encoded.spans.values()
    )
    weights = {
        (index, layer): sum(
            parameter.numel()
            for parameter in lens.registry.modules[stack.block(layer)].parameters()
        )
        for index, stack in enumerate(lens.wiring.stacks)
        for layer in range(stack.n_layers)
    }
    merged: list[tuple[Start, list[int]]] = []
    for start, members in sorted(groups.items()):
        if merged:
            first, before = merged[-1]
            between = sum(
                count
                for position, count in weights.items()
                if first[:2] <= position <= start[:2]
            )
            if (
                len(before) + len(members) <= abreast
                and len(members) * tokens * between <= _PASS
            ):
                before.extend(members)
                continue
        merged.append((start, list(members)))
    return merged


def _side_by_side(
    lens: Lens,
    work: OnePass,
    variants: Sequence[Variant],
    outputs: Mapping[str, Sequence[Any]],
    unfinished: Mapping[str, tuple[nn.Module, Tensor, Any]],
) -> Tensor:
    """Run variants as blocks of rows of one batch: (variant, series, …)."""
    encoded, rows, copies = work.encoded, work.rows, len(variants)
    state, model = lens.registry.state, lens.adapter.model
    once = (
        called_once(model, lens.wiring.unembed.module) if work.once else nullcontext()
    )
    with (
        once,
        replayed(
            model,
            outputs,
            rows=encoded.items or rows,
            copies=copies,
            unfinished=unfinished,
        ),
        lens.edit(*side_by_side(variants, rows)),
        state.running(rows * copies, encoded.place, rows),
    ):
        output = work.run(copies)
    output = output.reshape(copies, len(encoded.batch), *output.shape[1:])
    return output if work.read is None else work.read(output)


def _start(lens: Lens, variant: Variant) -> Start:
    order = {stack.name: index for index, stack in enumerate(lens.wiring.stacks)}
    positions = []
    for _intervention, point in iterate_points(lens, variant):
        stack = lens.wiring.stack(point.stack)
        name = point.name
        if point.layer < 0 and not name.endswith("hook_embed"):
            positions.append(Start(order[point.stack], stack.n_layers))
        elif name.endswith("hook_resid_post"):
            positions.append(
                Start(order[point.stack], point.layer, len(stack.rows(point.layer)))
            )
        elif point.kind:
            kinds = [row.kind for row in stack.rows(point.layer)]
            late = name.endswith(("hook_z", "hook_result", "hook_out"))
            positions.append(
                Start(order[point.stack], point.layer, kinds.index(point.kind), late)
            )
        else:
            # the stream before a branch; at the block's entry or later makes no
            # difference to the savings
            positions.append(Start(order[point.stack], point.layer))
    return min(
        positions, default=Start(len(order) - 1, lens.wiring.output_stack.n_layers)
    )


def _find_heads(wiring: Wiring, start: Start) -> tuple[str, str] | None:
    """Return attention module and output projection of a branch that can go on from its
    heads' outputs.
    """
    stack = wiring.stacks[start.stack]
    if not start.heads or not 0 <= start.layer < stack.n_layers:
        return None
    row = stack.rows(start.layer)[start.branch]
    # inside torch's own attention the output matrix is no module that could be run
    # alone
    if not isinstance(row, Attention) or row.z_inside or not _rows_lead(row):
        return None
    block = stack.block(start.layer)
    return f"{block}.{row.module}", f"{block}.{row.o.module}"


def _rows_lead(row: Writer) -> bool:
    """Return whether the first axis of a branch's tensors counts rows, so that variants
    can be stacked along it.
    """
    return not (
        row.z_layout if isinstance(row, Attention) else row.write.layout
    ).startswith("pos ")


def _unchanged_modules(
    wiring: Wiring, start: Start, unread: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the modules whose outputs do not depend on anything from ``start`` on."""
    stack = wiring.stacks[start.stack]
    before = range(max(start.layer, 0))
    leads = [
        layer
        for layer in before
        if not stack.rows(layer)[0].reads.layout.startswith("pos ")
    ]
    paths = [*unread, *stack.upstream, *map(stack.block, leads)]
    if 0 <= start.layer < stack.n_layers:
        for row in stack.rows(start.layer)[: start.branch]:
            if isinstance(row, Attention):
                inner = row.module
            else:
                inner = row.write.module
            if _rows_lead(row):
                paths.append(f"{stack.block(start.layer)}.{inner}")
    earlier = {other.name for other in wiring.stacks[: start.stack]}
    for layer in range(max(start.layer, 0), stack.n_layers):
        for row in stack.attentions(layer):
            if row.keys_from and row.keys_from in earlier:
                paths += [
                    f"{stack.block(layer)}.{part.module}"
                    for part in (row.k, row.v)
                    if part.module != row.module
                ]
    # a module inside a replayed one never runs, so it has nothing to hand back
    return tuple(
        path
        for path in paths
        if not any(path.startswith(f"{other}.") for other in paths)
    )
