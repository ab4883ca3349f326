"""Oracles at the ends of a model: embedding, readout, forecast steps, rows of samples,
gradients.
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
_FAR = 1e-3
_SAME = 1e-4


@oracle(
    13,
    "ends",
    2e-5,
    "`embed`, `unembed` and its `layout`, `ln_final`, `steps_per_readout`",
)
def ends(case: Case) -> Deviations:
    """Check that the stream comes out of ``embed`` and goes through ``ln_final`` into
    ``unembed``: the forecast.
    """
    for part in (_embedding, _unembedding, _bottleneck, _labels, _steps):
        yield from part(case)


def _embedding(case: Case) -> Deviations:
    """Check that ``hook_embed`` differs between two series as the output of ``embed``
    does, token by token.
    """
    lens = case.lens
    path = case.lens.wiring.embed
    twins = _tied_modules(lens.adapter.model, path)
    stacks = [stack for stack in lens.wiring.stacks if not stack.follows]
    names = [first_stream(stack) for stack in stacks]
    recordings = []
    for encoded in (case.encoded, case.other_encoded):
        with recorded_calls(lens.adapter.model, twins) as calls:
            _, activations = lens.run_with_cache(encoded, names_filter=names)
        recordings.append(
            (activations, [call for control in twins for call in calls[control]])
        )
    (activations, first_calls), (rest, second_calls) = recordings
    if not first_calls or len(first_calls) != len(second_calls):
        yield f"embed {path!r} is called once per stream", math.inf
        return
    # differences cancel positions, start tokens and registers, which are added or
    # inserted
    changed = [
        call.gave() - second.gave()
        for call, second in zip(first_calls, second_calls, strict=True)
    ]
    changes = [
        _large_rows((activations[name] - rest[name]).flatten(0, -2)) for name in names
    ]
    if not any(len(rows) for rows in changes):
        yield "two series have two embeddings", math.inf
    for stack, rows in zip(stacks, changes, strict=True):
        # a module may be called again for later layers, as a shared one is, or for
        # covariates
        sources = [_rows(change, stack.d_model) for change in changed]
        separate = min(
            _distance(rows, source) for source in (*sources, torch.cat(sources))
        )
        yield f"embed {path!r} of stack {stack.name!r}", separate


def _tied_modules(model: nn.Module, path: str) -> list[str]:
    """Return a module's path, and those of its kind that hold the very same parameters
    (T5 ties embeddings).
    """

    def pointers(module: nn.Module) -> list[int]:
        return [parameter.data_ptr() for parameter in module.parameters()]

    own = model.get_submodule(path)
    kin = [
        name
        for name, item in model.named_modules()
        if type(item) is type(own) and pointers(item) == pointers(own)
    ]
    if pointers(own):
        return kin
    return [path]


def _rows(tensor: Tensor, d_model: int) -> Tensor:
    """Collect vectors of the stream's width from a tensor that has an axis of that
    length, (row, d_model).
    """
    axes = [axis for axis in range(tensor.ndim) if tensor.shape[axis] == d_model]
    if not axes:
        # a head may take all tokens at once
        flat = tensor.shape[-1] % d_model == 0
        if flat:
            return tensor.reshape(-1, d_model)
        return tensor.new_zeros(0, d_model)
    return tensor.movedim(axes[-1], -1).reshape(-1, d_model)


def _large_rows(rows: Tensor) -> Tensor:
    size = rows.norm(dim=-1)
    if len(rows) and float(size.max()) > 0:
        return rows[size > _FAR * size.max()]
    return rows[:0]


def _distance(rows: Tensor, source: Tensor) -> float:
    """Compute the largest distance of a row from the source's nearest row, up to a
    factor common to all rows.
    """
    if len(rows) == 0:
        return 0.0
    source = _large_rows(source)
    if len(source) == 0:
        return math.inf
    unit = source / source.norm(dim=-1, keepdim=True)
    nearest = ((rows / rows.norm(dim=-1, keepdim=True)) @ unit.T).argmax(dim=-1)
    factor = (
        (rows * source[nearest]).sum(-1) / source[nearest].pow(2).sum(-1)
    ).median()
    # where an embedding has one direction (one step a token), the nearest direction
    # does not tell the factor
    return min(
        _at_factor(rows, source, item) for item in (factor, torch.ones_like(factor))
    )


def _at_factor(rows: Tensor, source: Tensor, factor: Tensor) -> float:
    # rows of one direction and several lengths are told apart by the factor
    # torch has no distances in half precision
    # by differences: by products, rows that are alike are not told apart
    exact = "donot_use_mm_for_euclid_dist"
    targets = factor * source
    distances = torch.cdist(rows.float(), targets.float(), compute_mode=exact)
    return relative(targets[distances.argmin(dim=-1)], rows)


def _unembedding(case: Case) -> Deviations:
    """Check that ``unembed`` reads the last stream through ``ln_final``, or the stream
    itself; T5 also scales it.
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
        separate = _distance(_large_rows(inputs), source.flatten(0, -2))
    else:
        separate = math.inf
    yield f"what enters unembed {path!r} (ln_final={stack.ln_final!r})", separate


def _bottleneck(case: Case) -> Deviations:
    """Check that ``unembed``'s output of a run without one component gives that run's
    output.
    """
    lens = case.lens
    path = case.lens.wiring.unembed.module
    plain = lens.forward(case.encoded)
    with (
        lens.ablate(writers(lens.wiring)[0]),
        recorded_outputs(lens.adapter.model, [path]) as outputs,
    ):
        without = lens.forward(case.encoded)
    with replayed(lens.adapter.model, outputs, rows=len(case.encoded.rows), copies=1):
        output = lens.forward(case.encoded)
    if relative(without, plain) < 1e-6:
        yield "a component moves the output", math.inf
    yield f"unembed {path!r} makes the output", relative(output, without)


def _labels(case: Case) -> Deviations:
    """Check that a new last stream in one row, or at one position, moves ``unembed``'s
    output there alone.
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
    for axis, position in (("batch", 1), ("pos", stream.shape[1] - 1)):
        if axis not in axes:
            continue
        other = stream.clone()
        other.select(int(axis == "pos"), position).copy_(
            stream.select(int(axis == "pos"), position).roll(1, dims=-1)
        )
        with lens.hooks([(last, lambda value, hook, other=other: other)]):
            _, new_acts = lens.run_with_cache(case.encoded, names_filter=RAW)
        separate = (
            (new_acts[RAW] - plain)
            .abs()
            .transpose(0, axes.index(axis))
            .flatten(1)
            .amax(dim=1)
        )
        positions = torch.nonzero(separate > _SAME * separate.max()).flatten().tolist()
        if axis == "batch":
            right = positions == [position]
        else:
            right = len(positions) == 1
        yield (
            f"{RAW} ({' '.join(axes)}): {axis} {position} moves {axis} {positions}",
            0.0 if right else math.inf,
        )


def _steps(case: Case) -> Deviations:
    """Check ``steps_per_readout``: a rollout calls the head once for so many steps and
    twice for one more.
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
            what = (
                f"steps_per_readout={steps}, and {horizon} steps take"
                f" {len(activations.calls(RAW))} readouts"
            )
            yield what, float(abs(len(activations.calls(RAW)) - expected))


def _draws(lens: Lens) -> dict[str, Any]:
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
    """Check that an edit of one series moves that series' forecast, all its sample
    paths, and no other's.
    """
    lens = case.lens
    batch = by_themselves(case)
    row_of = batch.group_index
    target = Component(lens.wiring.output_stack.name, 0)
    first = lens.adapter.prediction_length
    # past the first pass, where a rollout can go there, so that rows of fed-back paths
    # count too
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
        alone = None
        if draws and axis is not None:
            alone = BlockDraws([Piece(1, 1, 0, 1)] * len(batch), axis=axis, outer=outer)
        with alone or nullcontext():
            result = lens.forecast(batch, horizon, **draws)
        return torch.as_tensor(
            result.quantiles if result.samples is None else result.samples
        )

    plain = forecast()
    for row in (0, max(row_of)):
        with lens.ablate(target, rows=[row]):
            result = forecast()
        own = [index for index, group in enumerate(row_of) if group == row]
        rest = [index for index, group in enumerate(row_of) if group != row]
        yield (
            f"rows=[{row}] moves other series",
            relative(result[rest], plain[rest]),
        )
        paths = (result[own] - plain[own]).abs().amax(dim=-1)
        # a token is drawn anew only where a probability moves past the draw
        if lens.adapter.readout == "token":
            shift = paths.max()
        else:
            shift = paths.min()
        yield f"rows=[{row}] moves its series", 0.0 if float(shift) > 0 else math.inf


@oracle(15, "gradients", _GRADIENT_BOUND, "`true_gradients`; a custom backward pass")
def gradients(case: Case) -> Deviations:
    """Check that ``true_gradients`` tells if autograd's derivative along the stream is
    that of small steps.
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
    direction = (
        torch.randn(stream.shape, generator=generator).to(stream)
        * stream.pow(2).mean().sqrt()
    )

    def output(step: Tensor) -> Tensor:
        with lens.hooks([(name, lambda value, hook: value + step * direction)]):
            return lens.forward(case.encoded).double()

    with torch.enable_grad():
        step = torch.zeros(
            (), dtype=stream.dtype, device=stream.device, requires_grad=True
        )
        out = output(step)
        weight = torch.randn(out.shape, generator=generator).to(out)
        (derivative,) = torch.autograd.grad((out * weight).sum(), step)
    width = 5e-4
    ahead, behind = (
        (output(torch.full_like(step, sign * width)) * weight).sum() for sign in (1, -1)
    )
    numeric = float(ahead - behind) / (2 * width)
    scale = max(abs(numeric), float((out.detach() * weight).norm()) * 1e-2) or 1.0
    separate = abs(numeric - float(derivative)) / scale
    true = lens.wiring.true_gradients
    wrong = separate > _GRADIENT_BOUND
    position = (
        f"true_gradients={true}: {float(derivative):.4g} by autograd, {numeric:.4g} by"
        " small steps"
    )
    yield position, separate if true else (0.0 if wrong else math.inf)
