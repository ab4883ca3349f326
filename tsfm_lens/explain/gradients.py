"""Gradients as input attribution: integrated from the reference to the input, or taken at the input alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from tsfm_lens.errors import InputError
from tsfm_lens.explain.masking import MaskedBatch
from tsfm_lens.explain.segments import Segment
from tsfm_lens.explain.shapley import Array
from tsfm_lens.explain.values import Masks, quantiles_of, takes_draws
from tsfm_lens.models.adapter import at_levels
from tsfm_lens.models.architecture import Encoded

# rows of a forward that carries derivatives along
_ROWS = 256


def integrated_gradients(masks: Masks, steps: int = 32) -> Array:
    """Integrate the forecast's slope towards each segment along the line from the reference to the input.

    Args:
        masks: the forecast to explain, by masks; its reference must be numbers.
        steps: places on the line, of a Gauss-Legendre rule.

    Returns:
        (segment, quantile, step); over segments they sum to the forecast less the reference forecast, up to the error
        of the rule and of kinks in between.

    Source:
        Sundararajan, Taly and Yan 2017, arXiv:1703.01365.

    Raises:
        InputError: as in :func:`slopes`, or steps is no number of 1 or more.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise InputError(f"steps={steps!r} places on the way from the reference; expected an integer of 1 or more")
    places, weights = np.polynomial.legendre.leggauss(steps)
    return slopes(masks, (places + 1) / 2, weights / 2)


def gradient_times_input(masks: Masks) -> Array:
    """Multiply the forecast's slope towards each segment, at the input, by its distance from the reference.

    Args:
        masks: the forecast to explain, by masks; its reference must be numbers, and is 0 in the classical form.

    Returns:
        (segment, quantile, step), the change to first order.

    Source:
        Shrikumar et al. 2017, arXiv:1605.01713.

    Raises:
        InputError: as in :func:`slopes`.
    """
    return slopes(masks, np.ones(1), np.ones(1))


def slopes(masks: Masks, places: Array, weights: Array) -> Array:
    """Compute directional derivatives towards each segment's input, weighted over places from reference to input.

    One forward carries the derivative of all steps and quantiles along, so that the cost does not depend on them.

    Args:
        masks: the forecast to explain, by masks.
        places: 0 is the reference, 1 the input.
        weights: of each place.

    Returns:
        (segment, quantile, step).

    Raises:
        InputError: the library's gradients are no derivatives, the model reads tokens, or what enters it is not the
            series' values; the reference is missing values; the horizon is longer than one pass, or paths are drawn.
    """
    run = masks.run
    lens = run.lens
    if not lens.wiring.true_gradients:
        raise InputError(
            f"the library of {lens.wiring.architecture} rescales its backward pass and has no forward derivatives, so "
            "that there are no gradients; choose method='shapley' or 'occlusion'"
        )
    if run.tokens_read or lens.takes_ids:
        raise InputError(
            f"{lens.wiring.architecture} reads values as tokens, so that its forecast has no slope towards them; "
            "choose method='shapley' or 'occlusion'"
        )
    actual, reference = _ends(masks)
    parts = []
    if takes_draws(run):
        raise InputError(
            f"{lens.model_id} rolls out sample paths, which have no gradient; use "
            f"run.shortened({lens.longest_pass}).in_one_pass(), or choose method='shapley' or 'occlusion'"
        )
    if run.horizon > lens.longest_pass:
        raise InputError(
            f"horizon {run.horizon} takes several passes of {lens.wiring.architecture}, and gradients are of one of at "
            f"most {lens.longest_pass} steps; use run.shortened({lens.longest_pass})"
        )
    places_of = _places(masks)
    per = max(1, _ROWS // len(masks.batch))
    for part in masks.segments:
        total: Array | float = 0.0
        for first in range(0, len(places), per):
            at, weight = places[first : first + per], weights[first : first + per]
            tangents = _tangents(masks, places_of, part, actual, reference, at)
            total = total + np.tensordot(weight, tangents, 1)
        parts.append(total)
    return np.stack(parts)


def _ends(masks: Masks) -> tuple[list[Array], list[Array]]:
    """Return input and reference of each series, (time + horizon,); equal where the reference would be no change."""
    batch, horizon = masks.batch, masks.run.horizon
    futures = batch.known_future(horizon)
    actual = [np.concatenate([values, ahead]) for values, ahead in zip(batch.values, futures, strict=True)]
    reference = []
    for row, (values, other) in enumerate(zip(actual, masks.stands, strict=True)):
        inside = _inside(masks.segments, row, len(values), batch.lengths[row])
        if (inside & np.isnan(other) & ~np.isnan(values)).any():
            raise InputError(
                f"the reference of {batch.ids[row]!r} is missing values, towards which there is no gradient; choose "
                "reference='mean', 'seasonal naive', 'shuffled' or 'zero'"
            )
        # a gap stays one on the whole way
        reference.append(np.where(inside & ~np.isnan(values), other, values))
    return actual, reference


def _inside(segments: Sequence[Segment], row: int, count: int, length: int) -> np.ndarray:
    inside = np.zeros(count, dtype=bool)
    for part in segments:
        if part.row == row:
            inside[part.start + length : part.stop + length] = True
    return inside


@dataclass(frozen=True)
class _Place:
    """Positions of the series' values in one native input.

    Attributes:
        name: of the input.
        index: (value,) places in the flattened input.
        row, step: (value,) of the value.
    """

    name: str
    index: Tensor
    row: np.ndarray
    step: np.ndarray

    def of(self, rows: list[Array]) -> Array:
        """Select the values (value,) from series (time + horizon,)."""
        return np.array([rows[row][step] for row, step in zip(self.row, self.step, strict=True)])


def _encode(masks: Masks, rows: list[Array]) -> Encoded:
    """Encode the item with other values, (time + horizon,) by series."""
    batch, lengths = masks.batch, masks.batch.lengths
    plain = masks.masked(np.ones((1, len(masks.segments)), bool))
    ahead = [None if future is None else row[n:] for future, row, n in zip(batch.futures, rows, lengths, strict=True)]
    columns = {each.name: getattr(plain, each.name) for each in fields(plain)}
    values = tuple(row[:n] for row, n in zip(rows, lengths, strict=True))
    variant = MaskedBatch(**{**columns, "values": values, "futures": tuple(ahead)})
    return masks.run.lens.encode(variant, horizon=masks.run.horizon)


def _places(masks: Masks) -> list[_Place]:
    """Find the position of each value of each segment in the model's inputs, by values that no other one has.

    Raises:
        InputError: some enter in another form: the library normalises series before they enter the model.
    """
    batch, horizon = masks.batch, masks.run.horizon
    widths = [length + horizon for length in batch.lengths]
    first = np.concatenate([[0], np.cumsum(widths)])
    # whole numbers below 2 ** 24 are exact in single precision
    marks = [2.0**16 + np.arange(a, b) for a, b in pairwise(first)]
    places, visible = [], np.zeros(first[-1], dtype=bool)
    for name, value in _encode(masks, marks).inputs.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        number = value.detach().reshape(-1).cpu().double().numpy() - 2.0**16
        at = np.flatnonzero((number >= 0) & (number < first[-1]) & (number == np.round(number)))
        which = number[at].astype(int)
        row = np.searchsorted(first, which, side="right") - 1
        visible[which] = True
        if len(at):
            places.append(_Place(name, torch.as_tensor(at), row, which - first[row]))
    for part in masks.segments:
        start = first[part.row] + batch.lengths[part.row]
        values = slice(start + part.start, start + part.stop)
        # what enters in no form moves nothing
        if not visible[values].all() and _changes_input(masks, marks, part):
            raise InputError(
                f"{masks.run.lens.wiring.architecture} is not shown the values of {batch.ids[part.row]!r}: its library "
                "normalises series before they enter the model, which gradients do not pass; choose method='shapley' "
                "or 'occlusion'"
            )
    return places


def _changes_input(masks: Masks, rows: list[Array], part: Segment) -> bool:
    """Test if the values of a segment change any input of the model."""
    others = [row.copy() for row in rows]
    start = masks.batch.lengths[part.row]
    others[part.row][start + part.start : start + part.stop] *= 1.5
    before, after = (_encode(masks, each).inputs for each in (rows, others))
    tensors = [name for name, value in before.items() if isinstance(value, Tensor)]
    return not all(torch.equal(before[name], after[name]) for name in tensors)


def _tangents(
    masks: Masks, places: list[_Place], part: Segment, actual: list[Array], reference: list[Array], at: Array
) -> Array:
    """Compute derivatives of the target's forecast towards one segment, (place, quantile, step)."""
    run, copies = masks.run, len(at)
    lens, encoded = run.lens, _encode(masks, actual)
    inputs, length = encoded.repeated(copies), masks.batch.lengths[part.row]
    with forward_ad.dual_level(), torch.no_grad():
        for place in places:
            value = inputs[place.name]
            here, there = place.of(actual), place.of(reference)
            selection = (
                (place.row == part.row) & (place.step >= part.start + length) & (place.step < part.stop + length)
            )
            # a gap has no direction
            ahead = np.where(selection, np.nan_to_num(here - there), 0.0)
            inputs[place.name] = _dual(value, place.index, there + at[:, None] * (here - there), ahead)
        rows = len(encoded.rows) * copies
        with sdpa_kernel(SDPBackend.MATH), lens.running(rows), lens.registry.attach():
            output = forward_ad.unpack_dual(lens.adapter.run(inputs)).tangent
    if output is None:
        raise InputError(f"no gradient comes through {lens.wiring.architecture}; choose method='shapley'")
    output = output[..., : run.horizon].cpu().double()
    levels = tuple(lens.levels)
    derivatives = at_levels(output.transpose(-1, -2), levels, quantiles_of(run)).transpose(-1, -2).numpy()
    return np.asarray(derivatives.reshape(copies, len(masks.batch), *derivatives.shape[1:])[:, masks.row])


def _dual(value: Tensor, index: Tensor, points: Array, ahead: Array) -> Tensor:
    """Build the input of all copies, with points (copy, value) on the way and the direction (value,) as tangent."""
    flat = value.reshape(len(points), -1).clone()
    tangent = torch.zeros_like(flat)
    # missing values stand in the input as the library fills them
    finite = ~np.isnan(points).any(0)
    at = index[torch.as_tensor(finite)].to(flat.device)
    flat[:, at] = torch.as_tensor(points[:, finite]).to(flat)
    tangent[:, at] = torch.as_tensor(ahead[finite]).to(flat)
    return forward_ad.make_dual(flat.reshape(value.shape), tangent.reshape(value.shape))
