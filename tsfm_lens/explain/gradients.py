"""Gradients as input attribution, integrated or at the input alone.

:func:`slopes` takes the forecast's derivatives towards each segment by forward-mode
differentiation, at points between the reference and the input. It finds by marked
values where each step enters the model, and refuses models whose gradients are not
derivatives. Quadrature and methods are in :mod:`tsfm_lens.explain.attribution`.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from tsfm_lens.core.errors import InputError
from tsfm_lens.explain.masking import MaskedBatch
from tsfm_lens.explain.segments import Segment
from tsfm_lens.explain.shapley import Array
from tsfm_lens.explain.values import Masks, list_levels, takes_draws
from tsfm_lens.models.adapter import at_levels
from tsfm_lens.models.architecture import Encoded

# rows of a forward that carries derivatives along
_ROWS = 256

Entries = dict[str, tuple[Tensor, np.ndarray]]
"""By native input: positions in the flattened tensor, and the values at them."""


def slopes(masks: Masks, nodes: Array, weights: Array) -> Array:
    """Return slopes towards each segment's input, weighted over nodes.

    Nodes run from the reference (0) to the input (1).

    Raises:
        InputError: the model has no true gradients towards its input, the horizon takes
            several passes, or gradients are switched off by inference mode.
    """
    run = masks.run
    lens = masks.run.lens
    name = lens.wiring.architecture
    steps = lens.longest_pass
    advice = "choose method='shapley' or 'occlusion'"
    if not lens.wiring.true_gradients:
        raise InputError(
            f"the gradients of {name} are not its derivatives (a rescaled backward"
            f" pass, or steps of bfloat16 inside); {advice}"
        )
    if run.tokens_read or lens.takes_ids:
        raise InputError(
            f"{name} reads values as tokens, so that its forecast has no slope towards"
            f" them; {advice}"
        )
    if takes_draws(run):
        raise InputError(
            f"{lens.model_id} rolls out sample paths, which have no gradient; use"
            f" run.shortened({steps}).in_one_pass(), or {advice}"
        )
    if run.horizon > steps:
        raise InputError(
            f"horizon {run.horizon} takes several passes of {name}, and gradients are"
            f" of one of at most {steps} steps; use run.shortened({steps})"
        )
    if torch.is_inference_mode_enabled():
        raise InputError(
            "there are no gradients under torch.inference_mode(); leave it,"
            f" torch.no_grad() may stay on, or {advice}"
        )
    actual, reference = _endpoints(masks)
    entries = _entries(masks)
    encoded = _encode(masks, actual)
    nodes_at_once = max(1, _ROWS // len(masks.batch))
    parts = []
    for part in masks.segments:
        selected = np.zeros(len(actual), dtype=bool)
        selected[_read_values(masks, part)] = True
        direction = np.zeros(len(actual))
        # a gap has no direction
        direction[selected] = (
            np.nan_to_num(actual - reference)[selected]
            if part.values is None
            else part.values
        )
        total: Array | float = 0.0
        for first in range(0, len(nodes), nodes_at_once):
            # (node, value): the path is the same for all segments, only the direction
            # differs
            points = reference + nodes[first : first + nodes_at_once, None] * (
                actual - reference
            )
            derivatives = _derivatives(masks, encoded, entries, points, direction)
            total = total + np.tensordot(
                weights[first : first + nodes_at_once], derivatives, 1
            )
        parts.append(total)
    return np.stack(parts)


def _bounds(masks: Masks) -> np.ndarray:
    """Return bounds (series + 1,) of each series in the row of all values.

    A series is its context followed by the horizon.
    """
    return np.cumsum(
        [0, *(length + masks.run.horizon for length in masks.batch.lengths)]
    )


def _read_values(masks: Masks, part: Segment) -> slice:
    start = _bounds(masks)[part.row] + masks.batch.lengths[part.row]
    return slice(start + part.start, start + part.stop)


def _endpoints(masks: Masks) -> tuple[Array, Array]:
    """Return input and reference of all series in a row, (value,) each.

    They are equal where the reference would be no change.
    """
    batch = masks.batch
    futures = batch.known_future(masks.run.horizon)
    actual = np.concatenate(
        # each context is followed by its own future, as _bounds() counts
        [values for pair in zip(batch.values, futures, strict=True) for values in pair]
    )
    replacements = np.concatenate(masks.stands)
    reference = actual.copy()
    for part in masks.segments:
        steps = _read_values(masks, part)
        # a gap stays one on the whole way
        change = ~np.isnan(actual[steps])
        if part.values is not None:
            reference[steps] -= part.values
            continue
        if np.isnan(replacements[steps][change]).any():
            raise InputError(
                f"the reference of {batch.ids[part.row]!r} is missing values, towards"
                " which there is no gradient; choose reference='mean', 'seasonal"
                " naive', 'shuffled' or 'zero'"
            )
        reference[steps] = np.where(change, replacements[steps], actual[steps])
    return actual, reference


def _encode(masks: Masks, values: Array) -> Encoded:
    """Encode the item with other values (value,)."""
    batch = masks.batch
    rows = list(
        zip(
            np.split(values, _bounds(masks)[1:-1]),
            batch.lengths,
            batch.futures,
            strict=True,
        )
    )
    plain = masks.masked(np.ones((1, len(masks.segments)), bool))
    columns = {field.name: getattr(plain, field.name) for field in fields(plain)}
    columns["values"] = tuple(row[:length] for row, length, _ in rows)
    columns["futures"] = tuple(
        None if future is None else row[length:] for row, length, future in rows
    )
    return masks.run.lens.encode(MaskedBatch(**columns), horizon=masks.run.horizon)


def _entries(masks: Masks) -> Entries:
    """Return where each value of each segment enters the model.

    Each value is replaced by a number that no other value has.
    """
    count = _bounds(masks)[-1]
    # whole numbers below 2 ** 24 are exact in single precision
    marks = 2.0**16 + np.arange(count)
    entries = {}
    visible = np.zeros(count, dtype=bool)
    for name, value in _encode(masks, marks).inputs.items():
        # ids and masks are no values, whatever numbers they hold
        if isinstance(value, Tensor) and value.is_floating_point():
            numbers = value.detach().reshape(-1).cpu().double().numpy() - 2.0**16
            indices = np.flatnonzero(
                (numbers >= 0) & (numbers < count) & (numbers == np.round(numbers))
            )
            if len(indices):
                entries[name] = (torch.as_tensor(indices), numbers[indices].astype(int))
                visible[entries[name][1]] = True
    for part in masks.segments:
        values = _read_values(masks, part)
        changed = marks.copy()
        changed[values] *= 1.5
        # what enters in no form moves nothing
        if not visible[values].all() and not _same_inputs(
            _encode(masks, marks), _encode(masks, changed)
        ):
            raise InputError(
                f"{masks.run.lens.wiring.architecture} is not shown the values of"
                f" {masks.batch.ids[part.row]!r}: its library normalises series before"
                " they enter the model, which gradients do not pass; choose"
                " method='shapley' or 'occlusion'"
            )
    return entries


def _same_inputs(first: Encoded, second: Encoded) -> bool:
    tensors = {
        name: value for name, value in first.inputs.items() if isinstance(value, Tensor)
    }
    return all(
        torch.equal(value, second.inputs[name]) for name, value in tensors.items()
    )


def _derivatives(
    masks: Masks, encoded: Encoded, entries: Entries, points: Array, direction: Array
) -> Array:
    """Return the forecast's derivatives along a direction, (node, quantile, step).

    They are taken at points (node, value).
    """
    run = masks.run
    lens = masks.run.lens
    copies = len(points)
    inputs = encoded.repeated(copies)
    # forward mode: one pass gives the derivatives of all steps and quantiles along a
    # direction, where backward mode would take a pass for each of them
    with forward_ad.dual_level(), torch.no_grad():
        for name, (index, value_indices) in entries.items():
            value = inputs[name]
            # (copy, entry); a clone, since of one copy repeated() gives the encoded
            # tensors themselves
            flat = value.reshape(copies, -1).clone()
            tangent = torch.zeros_like(flat)
            # missing values stand in the input as the library fills them
            finite = ~np.isnan(points[:, value_indices]).any(0)
            positions = index[torch.as_tensor(finite)].to(flat.device)
            values = value_indices[finite]
            flat[:, positions] = torch.as_tensor(points[:, values]).to(flat)
            tangent[:, positions] = torch.as_tensor(direction[values]).to(flat)
            inputs[name] = forward_ad.make_dual(
                flat.reshape(value.shape), tangent.reshape(value.shape)
            )
        # fused attention kernels have no forward-mode derivative
        with (
            sdpa_kernel(SDPBackend.MATH),
            lens.running(len(encoded.rows) * copies),
            lens.registry.attach(),
        ):
            output = forward_ad.unpack_dual(lens.adapter.run(inputs)).tangent
    if output is None:
        raise InputError(
            f"no gradient comes through {lens.wiring.architecture}; choose"
            " method='shapley'"
        )
    # (copy · series, quantile, step); models may give more steps than were asked for
    output = output[..., : run.horizon].cpu().double()
    derivatives = (
        # interpolation of levels is linear, so that it may be done on derivatives; it
        # works on the last axis
        at_levels(output.transpose(-1, -2), tuple(lens.levels), list_levels(run))
        .transpose(-1, -2)
        .numpy()
    )
    return derivatives.reshape(copies, len(masks.batch), *derivatives.shape[1:])[
        :, masks.row
    ]
