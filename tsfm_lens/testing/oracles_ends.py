"""Oracles at the ends of a model: embedding, head, rows of samples, gradients.

Read :func:`ends` first; its five parts follow it. :func:`rows_are_series` and
:func:`gradients` check what no single hook point shows. What lies between the ends is
checked in :mod:`tsfm_lens.testing.oracles`.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tsfm_lens.core.errors import WiringError
from tsfm_lens.data import as_series
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.replay import recorded_calls, recorded_outputs, replayed
from tsfm_lens.models.draws import BlockDraws, Piece
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing.oracles import (
    RAW,
    Case,
    Deviations,
    by_themselves,
    first_stream,
    last_stream,
    oracle,
    relative,
)

# relative error that kinks of ReLUs and single precision leave in a derivative by small
# steps
_GRADIENT_BOUND = 0.05
# rows shorter than this share of the longest are taken for zero, and not compared
_ZERO_SHARE = 1e-3
# rows and positions that change by less than this share of the largest change count as
# unmoved
_UNMOVED_SHARE = 1e-4


@oracle(
    13,
    "ends",
    2e-5,
    "`embed`, `unembed` and its `layout`, `ln_final`, `steps_per_readout`",
)
def ends(case: Case) -> Deviations:
    """Check that the stream leads from ``embed`` to ``unembed``, and to the forecast.

    ``unembed`` must read it through ``ln_final``, if there is one.

    Yields:
        A label, and the relative deviation there.
    """
    for part in (_embedding, _unembedding, _bottleneck, _layout, _steps):
        yield from part(case)


def _embedding(case: Case) -> Deviations:
    """Check that two inputs differ in ``hook_embed`` as in the output of ``embed``.

    Differences are compared token by token, up to one common factor.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    # the module that the table names may never run, but one that shares its weights
    path = case.lens.wiring.embed
    tied_paths = _tied_modules(lens.adapter.model, path)
    # a stack that follows another has no embedding of its own
    stacks = [stack for stack in lens.wiring.stacks if not stack.follows]
    names = [first_stream(stack) for stack in stacks]
    recordings = []
    for encoded in (case.encoded, case.other_encoded):
        with recorded_calls(lens.adapter.model, tied_paths) as calls:
            _, activations = lens.run_with_cache(encoded, names_filter=names)
        embed_calls = [call for tied_path in tied_paths for call in calls[tied_path]]
        recordings.append((activations, embed_calls))
    (activations, first_calls), (other_activations, second_calls) = recordings
    if not first_calls or len(first_calls) != len(second_calls):
        yield f"embed {path!r} is called once per stream", math.inf
        return
    # differences cancel positions, start tokens and registers, which are added or
    # inserted
    output_changes = [
        first.gave() - second.gave()
        for first, second in zip(first_calls, second_calls, strict=True)
    ]
    stream_changes = [
        _large_rows((activations[name] - other_activations[name]).flatten(0, -2))
        for name in names
    ]
    if not any(len(rows) for rows in stream_changes):
        yield "two series have two embeddings", math.inf
    for stack, rows in zip(stacks, stream_changes, strict=True):
        # the module may also be called for other stacks, later layers or covariates, so
        # the best call counts; or each call embeds only some of the stack's tokens, and
        # all of them count together
        sources = [_rows(change, stack.d_model) for change in output_changes]
        distance = min(
            _distance(rows, source) for source in (*sources, torch.cat(sources))
        )
        yield f"embed {path!r} of stack {stack.name!r}", distance


def _tied_modules(model: nn.Module, path: str) -> list[str]:
    """Return the paths of all modules of a module's class that share its parameters.

    T5, for example, ties the embeddings of its encoder and decoder.
    """

    def pointers(module: nn.Module) -> list[int]:
        return [parameter.data_ptr() for parameter in module.parameters()]

    module = model.get_submodule(path)
    # without parameters, every module of the class would count as tied
    if not pointers(module):
        return [path]
    return [
        name
        for name, other in model.named_modules()
        if type(other) is type(module) and pointers(other) == pointers(module)
    ]


def _rows(tensor: Tensor, d_model: int) -> Tensor:
    """Collect vectors of the stream's width from a tensor, (row, d_model).

    Returns:
        The vectors, (row, d_model). Their features are along the last axis of the
        tensor that has this length.
    """
    # a library may put features before positions, as convolutions do
    axes = [axis for axis in range(tensor.ndim) if tensor.shape[axis] == d_model]
    if not axes:
        # a head may take all tokens of a series at once, flattened into one axis
        is_flat = tensor.shape[-1] % d_model == 0
        if is_flat:
            return tensor.reshape(-1, d_model)
        return tensor.new_zeros(0, d_model)
    return tensor.movedim(axes[-1], -1).reshape(-1, d_model)


def _large_rows(rows: Tensor) -> Tensor:
    """Return the rows that are not small beside the largest one."""
    size = rows.norm(dim=-1)
    if len(rows) and float(size.max()) > 0:
        return rows[size > _ZERO_SHARE * size.max()]
    return rows[:0]


def _distance(rows: Tensor, source: Tensor) -> float:
    """Compute the largest deviation of a row from the source's nearest row.

    It is relative to the largest value of all rows. The source may differ from the rows
    by one factor, which is fitted.

    Returns:
        The relative deviation.
    """
    # nothing to compare: that no row differs at all is reported by the caller
    if len(rows) == 0:
        return 0.0
    source = _large_rows(source)
    if len(source) == 0:
        return math.inf
    unit = source / source.norm(dim=-1, keepdim=True)
    nearest = ((rows / rows.norm(dim=-1, keepdim=True)) @ unit.T).argmax(dim=-1)
    products = (rows * source[nearest]).sum(-1)
    # the median of the rows' least-squares factors, as some rows may have been paired
    # with a wrong row of the source
    factor = (products / source[nearest].pow(2).sum(-1)).median()
    # an embedding of one step a token has a single direction, which does not pair rows,
    # so that the fitted factor is arbitrary: 1 is tried, too
    return min(
        _scaled_distance(rows, source, candidate)
        for candidate in (factor, torch.ones_like(factor))
    )


def _scaled_distance(rows: Tensor, source: Tensor, factor: Tensor) -> float:
    """Compute :func:`_distance` from the source times a given factor."""
    # the nearest row is looked for again, now by distance, which also tells rows of one
    # direction apart by their lengths
    targets = factor * source
    # by differences, since distances from products do not tell similar rows apart
    exact = "donot_use_mm_for_euclid_dist"
    # in single precision, since torch has no distances in half precision
    distances = torch.cdist(rows.float(), targets.float(), compute_mode=exact)
    return relative(targets[distances.argmin(dim=-1)], rows)


def _unembedding(case: Case) -> Deviations:
    """Check that ``unembed`` reads the last stream, through ``ln_final`` if it exists.

    A factor between the two is allowed, since T5 scales what ``unembed`` reads.

    Yields:
        A label, and the relative deviation there.
    """
    stack = case.lens.wiring.output_stack
    path = case.lens.wiring.unembed.module
    source = case.acts[last_stream(stack, normalized=True)]
    with recorded_calls(case.lens.adapter.model, [path]) as calls:
        case.lens.forward(case.encoded)
    if not calls[path]:
        yield f"unembed {path!r} is called", math.inf
        return
    call = calls[path][-1]
    tensors = [
        value
        for value in (*call.args, *call.kwargs.values())
        if isinstance(value, Tensor)
    ]
    if not tensors:
        raise WiringError("the module of unembed takes no tensor")
    inputs = _rows(tensors[0], stack.d_model)
    if len(inputs):
        # rows of padding may hold zeros, which have no direction
        distance = _distance(_large_rows(inputs), source.flatten(0, -2))
    else:
        distance = math.inf
    yield f"what enters unembed {path!r} (ln_final={stack.ln_final!r})", distance


def _bottleneck(case: Case) -> Deviations:
    """Check that the output follows from ``unembed``'s output alone.

    If the plain model's head returns what it returned without one component, the
    model's output must be that without the component.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    path = case.lens.wiring.unembed.module
    plain = lens.forward(case.encoded)
    with (
        lens.ablate(writers(lens.wiring)[0]),
        recorded_outputs(lens.adapter.model, [path]) as outputs,
    ):
        without = lens.forward(case.encoded)
    # only the head's output is replaced: what reaches the model's output past the head
    # comes from the plain model, and makes a difference
    with replayed(lens.adapter.model, outputs, rows=len(case.encoded.rows), copies=1):
        output = lens.forward(case.encoded)
    if relative(without, plain) < 1e-6:
        yield "a component moves the output", math.inf
    yield f"unembed {path!r} makes the output", relative(output, without)


def _layout(case: Case) -> Deviations:
    """Check the axes that ``unembed``'s layout calls batch and position.

    A change of one row of the last stream must move one row of the output alone; so
    must a change at one position.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    last = last_stream(case.lens.wiring.output_stack)
    axes = lens.registry.points[RAW].axes
    plain = case.acts[RAW]
    stream = case.acts[last]
    yield (
        f"{RAW} has as many rows as the stream",
        float(abs(plain.shape[0] - stream.shape[0])),
    )
    for axis, index in (("batch", 1), ("pos", stream.shape[1] - 1)):
        if axis not in axes:
            continue
        stream_axis = int(axis == "pos")
        changed = stream.clone()
        # features are rolled, since a norm would undo a change by a factor
        changed.select(stream_axis, index).copy_(
            stream.select(stream_axis, index).roll(1, dims=-1)
        )
        # bound as a default, so that the hook keeps this iteration's tensor
        with lens.hooks([(last, lambda value, hook, changed=changed: changed)]):
            _, activations = lens.run_with_cache(case.encoded, names_filter=RAW)
        difference = (activations[RAW] - plain).abs()
        # (index along the axis,): the largest change over all that remains
        moves = difference.transpose(0, axes.index(axis)).flatten(1).amax(dim=1)
        moved = torch.nonzero(moves > _UNMOVED_SHARE * moves.max()).flatten().tolist()
        # positions of the output need not be those of the stream
        if axis == "batch":
            is_alone = moved == [index]
        else:
            is_alone = len(moved) == 1
        yield (
            f"{RAW} ({' '.join(axes)}): {axis} {index} moves {axis} {moved}",
            0.0 if is_alone else math.inf,
        )


def _steps(case: Case) -> Deviations:
    """Check ``steps_per_readout`` against the calls of the head.

    A rollout over that number of steps must call the head once, and over one step more
    twice. A model of a single pass must give as many steps as its calls yield.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    wiring = case.lens.wiring
    steps = wiring.steps_per_readout
    if lens.adapter.rollout == "single":
        n_steps = lens.adapter.run(lens.encode(case.batch).inputs).shape[-1]
        with recorded_calls(lens.adapter.model, [wiring.unembed.module]) as calls:
            lens.forecast(case.batch, lens.adapter.prediction_length, **_draws(lens))
        total = sum(
            steps if isinstance(steps, int) else steps(call.output)
            for call in calls[wiring.unembed.module]
        )
        yield (
            f"steps_per_readout={total}, one pass gives {n_steps}",
            float(abs(total - n_steps)),
        )
    elif not isinstance(steps, int) or steps < 1:
        yield f"steps_per_readout={steps!r} is a number of steps", math.inf
    else:
        # not every library can roll out items of several variates
        if lens.adapter.joint_rollout:
            batch = case.batch
        else:
            batch = as_series(list(case.batch.values))
        for horizon, expected in ((steps, 1), (steps + 1, 2)):
            _, activations = lens.run_with_cache(
                batch, names_filter=RAW, rollout=True, horizon=horizon, **_draws(lens)
            )
            n_readouts = len(activations.calls(RAW))
            yield (
                f"steps_per_readout={steps}, and {horizon} steps take"
                f" {n_readouts} readouts",
                float(abs(n_readouts - expected)),
            )


def _draws(lens: Lens) -> dict[str, Any]:
    """Return options for few, seeded sample paths; none if the model draws nothing."""
    if lens.adapter.readout in ("token", "distribution"):
        return {"num_samples": 2, "seed": 1}
    return {}


@oracle(
    14,
    "rows are series",
    2e-5,
    "`sample_major`, `sizes_from`, inputs whose first axis is not the batch",
)
def rows_are_series(case: Case) -> Deviations:
    """Check that an edit of one series moves that series' forecast alone.

    All its sample paths must move, and those of no other series. Where an item needs
    several variates, the item stands for the series.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    batch = by_themselves(case)
    # item of each series, (series,)
    items = batch.group_index
    target = Component(lens.wiring.output_stack.name, 0)
    first = lens.adapter.prediction_length
    # a rollout goes one step beyond the first pass, so that the rows of sample paths
    # that are fed back are checked, too
    if lens.adapter.rollout in ("cache", "refeed"):
        horizon = first + 1
    else:
        horizon = min(case.horizon, first)
    draws = _draws(lens)
    axis = lens.adapter.draw_axis

    def forecast() -> Tensor:
        # groups of rows that hold all series each
        outer = 1
        if draws and lens.wiring.sample_major:
            outer = draws["num_samples"]
        # every series draws for itself: how many numbers a draw uses up may depend on
        # its distribution, so that an edit would shift those of the next series
        drawing = None
        if draws and axis is not None:
            pieces = [Piece(seed=1, count=1, first=0, size=1)] * len(batch)
            drawing = BlockDraws(pieces, axis=axis, outer=outer)
        with drawing or nullcontext():
            result = lens.forecast(batch, horizon, **draws)
        values = result.quantiles if result.samples is None else result.samples
        return torch.as_tensor(values)

    plain = forecast()
    # the first and the last: rows that are off by one, or reversed, move another series
    for row in (0, max(items)):
        with lens.ablate(target, rows=[row]):
            result = forecast()
        edited = [index for index, item in enumerate(items) if item == row]
        unedited = [index for index, item in enumerate(items) if item != row]
        yield (
            f"rows=[{row}] moves other series",
            relative(result[unedited], plain[unedited]),
        )
        # largest change of each sample path or quantile
        changes = (result[edited] - plain[edited]).abs().amax(dim=-1)
        # of drawn tokens one path is enough: a path keeps its tokens if no probability
        # moves past the number drawn
        if lens.adapter.readout == "token":
            shift = changes.max()
        else:
            shift = changes.min()
        yield f"rows=[{row}] moves its series", 0.0 if float(shift) > 0 else math.inf


@oracle(15, "gradients", _GRADIENT_BOUND, "`true_gradients`; a custom backward pass")
def gradients(case: Case) -> Deviations:
    """Check that ``true_gradients`` says whether autograd's derivative is true.

    A derivative along one direction of the stream is compared with that of small steps.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    stack = case.lens.wiring.output_stack
    name = f"{stack.prefix}.0.hook_resid_post"
    # the last series or item alone and without gaps, so that none is padded: rows of
    # padding attend to nothing, and have no derivative
    series = by_themselves(case)
    rows = [
        index
        for index, group in enumerate(series.group_index)
        if group == max(series.group_index)
    ]
    case = replace(case, batch=series.select(rows))
    generator = torch.Generator().manual_seed(0)
    stream = case.acts[name]
    noise = torch.randn(stream.shape, generator=generator).to(stream)
    # as large as the stream, so that the width of a step is a share of it
    direction = noise * stream.pow(2).mean().sqrt()

    def output(step: Tensor) -> Tensor:
        with lens.hooks([(name, lambda value, hook: value + step * direction)]):
            return lens.forward(case.encoded).double()

    with torch.enable_grad():
        step = torch.zeros(
            (), dtype=stream.dtype, device=stream.device, requires_grad=True
        )
        out = output(step)
        # of a random sum, as a wrong derivative of any output shows in its derivative,
        # which takes one backward pass
        weight = torch.randn(out.shape, generator=generator).to(out)
        (derivative,) = torch.autograd.grad((out * weight).sum(), step)
    # central differences: their own error is of the order of the square of the width,
    # and that of rounding 1e-7 divided by it, both far below the bound
    width = 5e-4
    ahead, behind = (
        (output(torch.full_like(step, sign * width)) * weight).sum() for sign in (1, -1)
    )
    numeric = float(ahead - behind) / (2 * width)
    # a sum of random signs may be near 0 by chance, where a ratio would say nothing
    scale = max(abs(numeric), float((out.detach() * weight).norm()) * 1e-2) or 1.0
    deviation = abs(numeric - float(derivative)) / scale
    is_true = lens.wiring.true_gradients
    if not is_true:
        # a table that calls the gradients untrue is wrong if the two agree
        deviation = 0.0 if deviation > _GRADIENT_BOUND else math.inf
    yield (
        f"true_gradients={is_true}: {float(derivative):.4g} by autograd,"
        f" {numeric:.4g} by small steps",
        deviation,
    )
