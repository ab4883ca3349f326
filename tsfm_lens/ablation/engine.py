"""Run variants of one forward pass at the cost of their differences.

Modules that no change of a variant reaches are replayed from a pass of the unchanged
model; the variants then run as blocks of rows of one batch. Read :func:`run_variants`
first. It calls the loop :func:`sweep`, as does :mod:`tsfm_lens.ablation.rollouts` for
forecasts over several passes.
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
from tsfm_lens.hooks.edit import as_index, is_part_wise, resolve
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
    out_of_memory,
    retry_halved,
)
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.recording import forward_ranges

# number of multiplications that take about as long as the fixed overhead of a pass, a
# few milliseconds
_PASS_OVERHEAD = 50_000_000


@dataclass(frozen=True)
class Variant:
    """Altered model: a name and the interventions that make it."""

    name: str
    interventions: tuple[Intervention, ...]

    @classmethod
    def zero(cls, *components: Component) -> Variant:
        """Knock components out together.

        Args:
            components: heads, MLPs or layers.

        Returns:
            A variant, named after its components.
        """
        return cls(
            "+".join(map(str, components)),
            tuple(Zero(component) for component in components),
        )


class Start(NamedTuple):
    """First point at which a variant differs from the model.

    Layer -1 is a stack's input, layer ``n_layers`` what follows its last block. The
    branches of a block are numbered in the order in which they write to the stream.
    With ``heads`` true, everything in the branch up to the heads' outputs is unchanged.
    """

    # compared field by field in this order, which is that of execution: `min` finds a
    # variant's first start, and a sorted list begins with the earliest
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
    """Compute the output of one forward pass of every variant.

    The batch runs in parts if memory is short; variants run one by one while the caller
    has hooks set.

    Args:
        lens: the model.
        encoded: the batch, from ``lens.encode``, or series.
        variants: the models.
        max_rows: most rows, series times variants, that run side by side.
        replay: False computes everything anew (the result is the same).
        read: function of outputs (variant, series, …) and the part of the batch that
            they are of; it returns what is kept of them, also (variant, series, …).

    Returns:
        Outputs with the variant as the first axis; the axes of ``lens.forward`` follow.

    Raises:
        InputError: max_rows below 1, or too little memory.
        UnknownNameError: a target does not exist.

    Example:
        >>> heads = lens.components("decoder.0.cross_attn.*")
        >>> variants = [ablation.Variant.zero(head) for head in heads]
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
    # names of hook points at which the change of one row may depend on other rows
    coupling_points = lens.registry.session.across_rows()
    coupling_points += [
        point.name
        for intervention, point in iterate_points(lens, *variants)
        if not is_part_wise(intervention, point)
    ]
    unsplittable_reason = ""
    if coupling_points:
        unsplittable_reason = (
            f"give fewer series at once, since what is done at {coupling_points[0]} may"
            " look at several of them"
        )
    fitting_rows = _count_fitting_rows(lens, encoded, len(variants), max_rows)
    rows_at_once = min(max_rows, fitting_rows)

    def run_part(start: int, stop: int) -> Tensor:
        if stop - start == len(encoded.batch):
            part = encoded
        else:
            part = encoded.part(start, stop)
        read_part = None if read is None else lambda output: read(output, part)
        work = OnePass(
            part,
            lambda copies: lens.adapter.run(part.repeated(copies)),
            read_part,
            lens.wiring.unread,
        )
        return _within_memory(lens, work, variants, rows_at_once, replay)

    if coupling_points:
        # rows that depend on each other stay in one batch
        ranges = [(0, len(encoded.batch))]
    else:
        ranges = forward_ranges(lens, encoded)
    # a part that runs out of memory is halved and run again
    outputs = retry_halved(run_part, encoded.batch, ranges, unsplittable_reason)
    if len(outputs) == 1:
        return outputs[0]
    return torch.cat(outputs, dim=1)


def iterate_points(
    lens: Lens, *variants: Variant
) -> Iterator[tuple[Intervention, Point]]:
    """Iterate over interventions and the hook points of each.

    Yields:
        An intervention, and a hook point at which it acts.

    Raises:
        UnknownNameError: a target does not exist.
    """
    for variant in variants:
        for intervention in variant.interventions:
            for name, _head in resolve(lens.registry, intervention):
                yield intervention, lens.registry.points[name]


def side_by_side(variants: Sequence[Variant], rows: int) -> list[Intervention]:
    """Restrict interventions to the rows of their variants in one batch.

    Variant ``i`` has the ``rows`` rows of block ``i``.

    Returns:
        The interventions of all variants.
    """
    edits = []
    for block, variant in enumerate(variants):
        for intervention in variant.interventions:
            first = block * rows
            block_rows: slice | Tensor
            if intervention.rows is None:
                block_rows = slice(first, first + rows)
            else:
                # rows may be a slice, a list or negative, none of which could be
                # shifted
                block_rows = as_index(intervention.rows, rows, "rows") + first
            edit = replace(intervention, rows=block_rows)  # type: ignore[type-var]
            edits.append(edit)
    return edits


def _count_fitting_rows(
    lens: Lens, encoded: Encoded, n_variants: int, max_rows: int
) -> int:
    """Count the rows of variants that fit in memory side by side.

    A row is one series, or one item where hooks see its variates as one sequence.

    Returns:
        The number of rows.
    """
    rows = len(encoded.rows)
    series_per_item = -(-len(encoded.batch) // encoded.n_items)
    item_bytes = estimate_bytes(lens, count_tokens(encoded), variates=series_per_item)
    max_copies = max(1, min(n_variants, max_rows // rows))
    max_items = encoded.n_items * max_copies
    n_items = fitting(item_bytes, max_items, lens.device)
    if n_items == max_items:
        return max_rows
    # each item has rows / encoded.n_items rows
    return max(1, n_items * rows // encoded.n_items)


def _within_memory(
    lens: Lens, work: OnePass, variants: Sequence[Variant], rows: int, replay: bool
) -> Tensor:
    """Sweep over a part of a batch, in smaller blocks if memory runs out.

    The error is raised if memory runs out for a single variant at a time.

    Returns:
        The outputs (variant, series, …).
    """
    while True:
        try:
            return sweep(lens, work, variants, max_rows=rows, replay=replay)
        except OtherCalls:
            # the model runs its modules several times a forward: no one recorded output
            # stands for all calls
            work = replace(work, once=False)
            replay = False
        except (MemoryError, RuntimeError) as error:
            one_at_a_time = len(variants) == 1 or rows < 2 * work.rows
            if one_at_a_time or not out_of_memory(error):
                raise
            # `rows` may be more than what ran, and half of it no less
            rows = min(rows, len(variants) * work.rows) // 2


@dataclass(frozen=True)
class OnePass:
    """Forward pass over one batch, which a sweep runs for every variant.

    Attributes:
        encoded: the batch.
        run: function of a number of copies of the batch that runs the model on them.
        read: reduces the output (variant, series, …); None to keep all of it.
        unread: modules whose output the readout does not use, so that no variant needs
            to compute it.
        once: whether a pass that does not call the head exactly once raises OtherCalls.
    """

    encoded: Encoded
    run: Callable[[int], Tensor]
    read: Callable[[Tensor], Tensor] | None = None
    unread: tuple[str, ...] = ()
    once: bool = True

    @property
    def rows(self) -> int:
        """Number of rows of one variant, as hooks see them."""
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
    """Compute the outputs (variant, series, …) of one pass of every variant.

    At most ``max_rows`` rows of variants run side by side. ``on_progress`` is called
    with the number of variants that are done.

    Returns:
        The outputs.
    """
    wiring = lens.wiring
    model = lens.adapter.model
    groups: dict[Start, list[int]] = {}
    for index, variant in enumerate(variants):
        # without replay every module runs, wherever a variant starts, so that all can
        # share one start and run side by side
        start = _start(lens, variant) if replay else Start(0, -1)
        groups.setdefault(start, []).append(index)
    unchanged: dict[Start, tuple[str, ...]] = dict.fromkeys(groups, ())
    # attentions that are entered at their heads' outputs, with their output projections
    entered: dict[Start, tuple[str, str]] = {}
    if replay:
        for start in groups:
            unchanged[start] = _unchanged_modules(wiring, start, work.unread)
            attention = _find_heads(wiring, start)
            if attention is not None:
                entered[start] = attention
    recorded = {path for paths in unchanged.values() for path in paths}
    recorded |= {module for module, _ in entered.values()}
    projections = {projection for _, projection in entered.values()}
    with torch.no_grad():
        # the pass of the unchanged model, whose outputs the variants replay; it runs
        # without replay, too, as it shows the shape and type of what to make room for
        with (
            recorded_outputs(model, recorded) as plain_outputs,
            recorded_inputs(model, projections) as plain_z,
        ):
            plain = _run_side_by_side(lens, work, [Variant("plain", ())], {}, {})[0]
        outputs = plain.new_empty(len(variants), *plain.shape)
        done = 0
        # beyond an adapter's own limit, a native call costs more than its rows
        rows_at_once = min(max_rows, lens.adapter.rows_at_once or max_rows)
        variants_at_once = max(1, rows_at_once // work.rows)
        for start, members in _join(lens, groups, work, variants_at_once):
            stored = {path: plain_outputs.get(path, []) for path in unchanged[start]}
            unfinished = {}
            if start in entered:
                module, projection = entered[start]
                # the last call of the projection: `only` refuses any earlier one of the
                # module around it
                unfinished[module] = (
                    model.get_submodule(projection),
                    plain_z[projection][-1],
                    only(plain_outputs, module),
                )
            for first in range(0, len(members), variants_at_once):
                chunk = members[first : first + variants_at_once]
                chunk_variants = [variants[index] for index in chunk]
                outputs[chunk] = _run_side_by_side(
                    lens, work, chunk_variants, stored, unfinished
                )
                done += len(chunk)
                on_progress(done)
    return outputs


def _join(
    lens: Lens,
    groups: Mapping[Start, Sequence[int]],
    work: OnePass,
    variants_at_once: int,
) -> list[tuple[Start, list[int]]]:
    """Join groups of variants where that costs less than a further pass.

    A joined group runs from the first one's start, and computes anew what lies between.

    Returns:
        The start of each group, and the indices of its variants.
    """
    tokens_per_row = max(len(spans) for spans in work.encoded.spans.values())
    tokens_per_variant = max(len(work.encoded.batch), work.rows) * tokens_per_row
    # from the earliest on: what a start leaves unchanged, a later one does as well, so
    # that all members of a group can use the modules of its first start
    merged: list[tuple[Start, list[int]]] = []
    for start, members in sorted(groups.items()):
        if merged:
            earlier_start, joined = merged[-1]
            parameters_between = sum(
                count
                for block, count in lens.registry.block_parameters.items()
                if earlier_start[:2] <= block <= start[:2]
            )
            multiplications = len(members) * tokens_per_variant * parameters_between
            fits = len(joined) + len(members) <= variants_at_once
            if fits and multiplications <= _PASS_OVERHEAD:
                joined.extend(members)
                continue
        merged.append((start, list(members)))
    return merged


def _run_side_by_side(
    lens: Lens,
    work: OnePass,
    variants: Sequence[Variant],
    stored: Mapping[str, Sequence[Any]],
    unfinished: Mapping[str, tuple[nn.Module, Tensor, Any]],
) -> Tensor:
    """Run variants as blocks of rows of one batch.

    Modules of ``stored`` return these outputs, one a call. Of ``unfinished`` modules
    only the last layer runs: each has that layer, the layer's stored input, and the
    module's stored output, whose first tensor the layer's output replaces.

    Returns:
        The outputs (variant, series, …).
    """
    encoded = work.encoded
    rows = work.rows
    copies = len(variants)
    state = lens.registry.state
    model = lens.adapter.model
    once = (
        called_once(model, lens.wiring.unembed.module) if work.once else nullcontext()
    )
    with (
        once,
        replayed(
            model,
            stored,
            # length of the first axis of native tensors
            rows=encoded.items or rows,
            copies=copies,
            unfinished=unfinished,
        ),
        lens.edit(*side_by_side(variants, rows)),
        state.running(rows * copies, encoded.place, block_rows=rows),
    ):
        output = work.run(copies)
    # the native output has a row per series, also where hooks see one per item
    output = output.reshape(copies, len(encoded.batch), *output.shape[1:])
    return output if work.read is None else work.read(output)


def _start(lens: Lens, variant: Variant) -> Start:
    """Return the first point at which a variant differs from the model."""
    order = {stack.name: index for index, stack in enumerate(lens.wiring.stacks)}
    starts = []
    for _intervention, point in iterate_points(lens, variant):
        stack = lens.wiring.stack(point.stack)
        stack_index = order[point.stack]
        layer = point.layer
        name = point.name
        # points outside the blocks come after them, but for the embedding
        if layer < 0 and not name.endswith("hook_embed"):
            starts.append(Start(stack_index, stack.n_layers))
        elif name.endswith("hook_resid_post"):
            # all branches of the block have written by then
            starts.append(Start(stack_index, layer, len(stack.rows(layer))))
        elif point.kind:
            kinds = [writer.kind for writer in stack.rows(layer)]
            branch = kinds.index(point.kind)
            # the points of an attention that come behind its pattern and values
            after_heads = name.endswith(("hook_z", "hook_result", "hook_out"))
            starts.append(Start(stack_index, layer, branch, after_heads))
        else:
            # the stream before a branch; at the block's entry or later makes no
            # difference to the savings
            starts.append(Start(stack_index, layer))
    # a variant without interventions differs nowhere
    return min(starts, default=Start(len(order) - 1, lens.wiring.output_stack.n_layers))


def _find_heads(wiring: Wiring, start: Start) -> tuple[str, str] | None:
    """Find the attention of which a variant needs only the output projection.

    Returns:
        The paths of the attention module and of that projection; None if there is no
        such attention.
    """
    stack = wiring.stacks[start.stack]
    if not start.heads or not 0 <= start.layer < stack.n_layers:
        return None
    writer = stack.rows(start.layer)[start.branch]
    # inside torch's own attention the output matrix is no module that could be run
    # alone
    if not isinstance(writer, Attention) or writer.z_inside or not _rows_lead(writer):
        return None
    block = stack.block(start.layer)
    return f"{block}.{writer.module}", f"{block}.{writer.o.module}"


def _rows_lead(writer: Writer) -> bool:
    """Return whether the first axis of a branch's tensors counts rows.

    Only along such an axis can variants be stacked.
    """
    if isinstance(writer, Attention):
        layout = writer.z_layout
    else:
        layout = writer.write.layout
    return not layout.startswith("pos ")


def _unchanged_modules(
    wiring: Wiring, start: Start, unread: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the modules whose outputs do not depend on anything from ``start`` on."""
    stack = wiring.stacks[start.stack]
    # of a block whose first axis counts positions, stored rows cannot be repeated
    earlier_blocks = [
        stack.block(layer)
        for layer in range(max(start.layer, 0))
        if not stack.rows(layer)[0].reads.layout.startswith("pos ")
    ]
    # what the readout does not use may as well be replayed, wherever a variant starts
    paths = [*unread, *stack.upstream, *earlier_blocks]
    if 0 <= start.layer < stack.n_layers:
        for writer in stack.rows(start.layer)[: start.branch]:
            if isinstance(writer, Attention):
                inner = writer.module
            else:
                inner = writer.write.module
            if _rows_lead(writer):
                paths.append(f"{stack.block(start.layer)}.{inner}")
    # keys and values of an earlier stack's output; those that the attention module
    # projects itself are no module that could be replayed
    earlier_stacks = {earlier.name for earlier in wiring.stacks[: start.stack]}
    for layer in range(max(start.layer, 0), stack.n_layers):
        for writer in stack.attentions(layer):
            if writer.keys_from and writer.keys_from in earlier_stacks:
                paths += [
                    f"{stack.block(layer)}.{projection.module}"
                    for projection in (writer.k, writer.v)
                    if projection.module != writer.module
                ]
    # a module inside a replayed one never runs, so it has nothing to hand back
    return tuple(
        path
        for path in paths
        if not any(path.startswith(f"{outer}.") for outer in paths)
    )
