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

# kinks of ReLUs and single precision leave as much in the derivative by small steps
_GRADIENT_BOUND = 0.05
# rows smaller than this share of the largest are taken for zero, and not compared
_FAR = 1e-3
# a share of the largest change, below which a row or position counts as unmoved
_SAME = 1e-4


@oracle(
    13,
    "ends",
    2e-5,
    "`embed`, `unembed` and its `layout`, `ln_final`, `steps_per_readout`",
)
def ends(case: Case) -> Deviations:
    """Check that the stream leads from ``embed`` to ``unembed``, and to the forecast.

    It must go through ``ln_final`` into ``unembed``.
    """
    for part in (_embedding, _unembedding, _bottleneck, _labels, _steps):
        yield from part(case)


def _embedding(case: Case) -> Deviations:
    """Check that ``hook_embed`` differs between series as the output of ``embed`` does.

    Differences are compared token by token.
    """
    lens = case.lens
    # a tied module may be the one that runs in place of the one that the table names
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
    changed = [
        first.gave() - second.gave()
        for first, second in zip(first_calls, second_calls, strict=True)
    ]
    changes = [
        _large_rows((activations[name] - other_activations[name]).flatten(0, -2))
        for name in names
    ]
    if not any(len(rows) for rows in changes):
        yield "two series have two embeddings", math.inf
    for stack, rows in zip(stacks, changes, strict=True):
        # a module may be called again for later layers, as a shared one is, or for
        # covariates
        sources = [_rows(change, stack.d_model) for change in changed]
        distance = min(
            # concatenated, where each call embeds only some of the stack's tokens
            _distance(rows, source)
            for source in (*sources, torch.cat(sources))
        )
        yield f"embed {path!r} of stack {stack.name!r}", distance


def _tied_modules(model: nn.Module, path: str) -> list[str]:
    """Return the paths of a module and of those that share its parameters.

    They are of its kind; T5, for example, ties embeddings.
    """

    def pointers(module: nn.Module) -> list[int]:
        return [parameter.data_ptr() for parameter in module.parameters()]

    module = model.get_submodule(path)
    tied = [
        name
        for name, other in model.named_modules()
        if type(other) is type(module) and pointers(other) == pointers(module)
    ]
    # without parameters, any module of the kind would count as tied
    if pointers(module):
        return tied
    return [path]


def _rows(tensor: Tensor, d_model: int) -> Tensor:
    """Collect vectors of the stream's width from a tensor, (row, d_model).

    They lie along its last axis of that length.
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
        return rows[size > _FAR * size.max()]
    return rows[:0]


def _distance(rows: Tensor, source: Tensor) -> float:
    """Compute the largest distance of a row from the source's nearest row.

    One factor common to all rows is divided out.
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
    # each row's least-squares factor; the median, as some rows may have found a wrong
    # partner
    factor = (products / source[nearest].pow(2).sum(-1)).median()
    # where an embedding has one direction (one step a token), the nearest direction
    # does not tell the factor
    return min(
        _at_factor(rows, source, candidate)
        for candidate in (factor, torch.ones_like(factor))
    )


def _at_factor(rows: Tensor, source: Tensor, factor: Tensor) -> float:
    """Compute the largest distance of a row from the nearest source row.

    Source rows are multiplied by the factor first.
    """
    # with the factor, rows of one direction can differ by their lengths; distances are
    # in single precision because torch has none in half, and by differences because
    # products do not tell similar rows apart
    exact = "donot_use_mm_for_euclid_dist"
    targets = factor * source
    distances = torch.cdist(rows.float(), targets.float(), compute_mode=exact)
    return relative(targets[distances.argmin(dim=-1)], rows)


def _unembedding(case: Case) -> Deviations:
    """Check that ``unembed`` reads the last stream, through ``ln_final`` if it exists.

    T5 also scales what it reads.
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

    That of a run without one component must give the run's output.
    """
    lens = case.lens
    path = case.lens.wiring.unembed.module
    plain = lens.forward(case.encoded)
    with (
        lens.ablate(writers(lens.wiring)[0]),
        recorded_outputs(lens.adapter.model, [path]) as outputs,
    ):
        without = lens.forward(case.encoded)
    # the whole model runs, but its head gives what it gave without the component: what
    # reaches the output past the head is then the plain model's
    with replayed(lens.adapter.model, outputs, rows=len(case.encoded.rows), copies=1):
        output = lens.forward(case.encoded)
    if relative(without, plain) < 1e-6:
        yield "a component moves the output", math.inf
    yield f"unembed {path!r} makes the output", relative(output, without)


def _labels(case: Case) -> Deviations:
    """Check that a changed last stream moves ``unembed``'s output there alone.

    It is changed in one row, and at one position.
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
        # rolled features: a change that no norm undoes, as one undoes a factor
        changed.select(stream_axis, index).copy_(
            stream.select(stream_axis, index).roll(1, dims=-1)
        )
        # bound as a default, since the loop goes on to another tensor of that name
        with lens.hooks([(last, lambda value, hook, changed=changed: changed)]):
            _, activations = lens.run_with_cache(case.encoded, names_filter=RAW)
        difference = (activations[RAW] - plain).abs()
        # (index along the axis,): the largest change over all that remains
        moves = difference.transpose(0, axes.index(axis)).flatten(1).amax(dim=1)
        moved = torch.nonzero(moves > _SAME * moves.max()).flatten().tolist()
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
    """Check ``steps_per_readout``.

    A rollout must call the head once for so many steps, and twice for one more.
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
    """Return the options by which a sampling model draws few, seeded paths."""
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

    All its sample paths must move, and no other series'.
    """
    lens = case.lens
    batch = by_themselves(case)
    group_rows = batch.group_index
    target = Component(lens.wiring.output_stack.name, 0)
    first = lens.adapter.prediction_length
    # beyond the first pass, where a rollout goes there: rows of fed-back paths are
    # checked, too
    if lens.adapter.rollout in ("cache", "refeed"):
        horizon = first + 1
    else:
        horizon = min(case.horizon, first)
    draws = _draws(lens)
    axis = lens.adapter.draw_axis

    def forecast() -> Tensor:
        outer = 1
        if draws and lens.wiring.sample_major:
            outer = draws["num_samples"]
        # every series draws for itself: how many numbers a draw uses up may depend on
        # what it draws from
        drawing = None
        if draws and axis is not None:
            pieces = [Piece(1, 1, 0, 1)] * len(batch)
            drawing = BlockDraws(pieces, axis=axis, outer=outer)
        with drawing or nullcontext():
            result = lens.forecast(batch, horizon, **draws)
        values = result.quantiles if result.samples is None else result.samples
        return torch.as_tensor(values)

    plain = forecast()
    # the first and the last: rows that are off by one, or reversed, move another series
    for row in (0, max(group_rows)):
        with lens.ablate(target, rows=[row]):
            result = forecast()
        edited = [index for index, group in enumerate(group_rows) if group == row]
        unedited = [index for index, group in enumerate(group_rows) if group != row]
        yield (
            f"rows=[{row}] moves other series",
            relative(result[unedited], plain[unedited]),
        )
        paths = (result[edited] - plain[edited]).abs().amax(dim=-1)
        # a token is drawn anew only where a probability moves past the draw
        if lens.adapter.readout == "token":
            shift = paths.max()
        else:
            shift = paths.min()
        yield f"rows=[{row}] moves its series", 0.0 if float(shift) > 0 else math.inf


@oracle(15, "gradients", _GRADIENT_BOUND, "`true_gradients`; a custom backward pass")
def gradients(case: Case) -> Deviations:
    """Check that ``true_gradients`` says whether autograd's derivative is true.

    The derivative along the stream is compared with that of small steps.
    """
    lens = case.lens
    stack = case.lens.wiring.output_stack
    name = f"{stack.prefix}.0.hook_resid_post"
    # one series without gaps: rows of padding, which attend to nothing, have no
    # derivative
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
        # a random sum: one backward pass, in which a wrong derivative of any output
        # shows
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
        # a table that declares another derivative is wrong if they agree
        deviation = 0.0 if deviation > _GRADIENT_BOUND else math.inf
    yield (
        f"true_gradients={is_true}: {float(derivative):.4g} by autograd,"
        f" {numeric:.4g} by small steps",
        deviation,
    )
