"""Input attribution: effect of each input segment on each step and quantile of a forecast, in data units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.notices import saying_once
from tsfm_lens.ablation.points import Progress
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.explain.baselines import flow_shares, rollout_shares
from tsfm_lens.explain.gradients import gradient_times_input, integrated_gradients
from tsfm_lens.explain.masking import Reference, reference_words
from tsfm_lens.explain.occlusion import include_one, leave_one_out
from tsfm_lens.explain.segments import EXACT, Segment, given_parts
from tsfm_lens.explain.shapley import Array, all_masks, exact_shapley, sampled_shapley, shapley_interactions
from tsfm_lens.explain.values import Masks, quantiles_of, statistic_of
from tsfm_lens.models.forecast import is_count
from tsfm_lens.models.noise import rounding
from tsfm_lens.models.run import Run
from tsfm_lens.registry import probe

__all__ = ["METHODS", "attribute_inputs"]


@dataclass
class Found:
    """Result of a method.

    Attributes:
        attribution: (segment, quantile, step).
        error: standard errors of it, None where nothing is sampled.
        more: further variables of the result, dimensions and values.
        attrs: facts of the method.
        source: where the method is from.
    """

    attribution: Array
    error: Array | None = None
    more: dict[str, tuple[tuple[str, ...], Array]] = field(default_factory=dict)
    attrs: dict[str, object] = field(default_factory=dict)
    source: str = ""


def _shapley(masks: Masks, *, exact: int = EXACT, interactions: bool = False, **how: Any) -> Found:
    players = len(masks.segments)
    if players > exact:
        estimate = sampled_shapley(lambda keep: _with_mean(masks(keep)), players, seed=masks.run.seed, **how)
        facts: dict[str, object] = {"exact": 0, "orders": estimate.orders, "settled": int(estimate.settled)}
        result = Found(estimate.attribution[..., :-1], estimate.error[..., :-1], attrs=facts, source=SOURCES["shapley"])
        result.more["mean_error"] = (("segment", "quantile"), estimate.error[..., -1])
        return result
    values = masks(all_masks(players))
    result = Found(exact_shapley(values, players), attrs={"exact": 1}, source=SOURCES["shapley"])
    if interactions and players > 1:
        dims = ("segment", "other_segment", "quantile", "step")
        result.more["interaction"] = (dims, shapley_interactions(values, players))
    return result


def _with_mean(values: Array) -> Array:
    """Append the mean over steps as one step more, since its error does not follow from those of the steps."""
    return np.concatenate([values, values.mean(-1, keepdims=True)], -1)


def _occlusion(masks: Masks) -> Found:
    return Found(leave_one_out(masks, len(masks.segments)), source=SOURCES["occlusion"])


def _inclusion(masks: Masks) -> Found:
    return Found(include_one(masks, len(masks.segments)), source=SOURCES["inclusion"])


def _integrated(masks: Masks, *, steps: int = 32) -> Found:
    return Found(integrated_gradients(masks, steps), attrs={"places": steps}, source=SOURCES["integrated gradients"])


def _slope(masks: Masks) -> Found:
    return Found(gradient_times_input(masks), source=SOURCES["gradient × input"])


def _scaled_by_change(shares: Array, masks: Masks, name: str) -> Found:
    """Scale shares (segment, step) by the forecast less the reference forecast."""
    whole, nothing = _ends(masks)
    dims = ("segment", "step")
    return Found(shares[:, None] * (whole - nothing), more={"share": (dims, shares)}, source=SOURCES[name])


def _rollout(masks: Masks) -> Found:
    return _scaled_by_change(rollout_shares(masks), masks, "attention roll-out")


def _flow(masks: Masks) -> Found:
    return _scaled_by_change(flow_shares(masks), masks, "attention flow")


SOURCES = {
    "attention roll-out": "Abnar and Zuidema 2020, arXiv:2005.00928",
    "attention flow": "Abnar and Zuidema 2020, arXiv:2005.00928",
    "integrated gradients": "Sundararajan et al. 2017, arXiv:1703.01365",
    "gradient × input": "Shrikumar et al. 2017, arXiv:1605.01713",
    "shapley": "Shapley 1953; Lundberg and Lee 2017, arXiv:1705.07874",
    "occlusion": "Zeiler and Fergus 2014, arXiv:1311.2901",
    "inclusion": "Covert et al. 2021, arXiv:2011.14878, include individual features",
}
METHODS: dict[str, Callable[..., Found]] = {
    "shapley": _shapley,
    "occlusion": _occlusion,
    "inclusion": _inclusion,
    "integrated gradients": _integrated,
    "gradient × input": _slope,
    "attention roll-out": _rollout,
    "attention flow": _flow,
}


@probe("input_attribution", "first", options={"reference": "mean", "parts": 6})
@saying_once
def attribute_inputs(
    run: Run,
    item: int | str = 0,
    method: str = "shapley",
    reference: Reference = "mean",
    *,
    target: int | str = 0,
    parts: Sequence[Segment] | Mapping[str, Any] | int | None = None,
    seed: int = 0,
    repeats: int = 4,
    progress: Progress | None = None,
    **how: Any,
) -> xr.Dataset:
    """Attribute each step and quantile of one target's forecast to the segments of one item's input.

    The value of a mask is the forecast from its visible input; see :func:`tsfm_lens.explain.forecasts`.

    - "shapley": mean contribution of a segment over all orders in which segments may be shown. Of up to ``exact``
      segments all masks are run; of more, sampled orders with standard errors, which end by ``orders`` and
      ``tolerance``. ``interactions=True`` adds the joint effect of every two segments beyond the sum of both.
    - "occlusion": the forecast less that without the segment.
    - "inclusion": the forecast of the segment alone less the reference forecast.
    - "integrated gradients": the slope towards the segment, integrated from the reference to the input; "gradient ×
      input": the slope at the input alone. The reference must be numbers. From a constant reference, such as "mean",
      both are the same in models that normalise each series: the way between only rescales it.
    - "attention roll-out", "attention flow": the share of attention on a segment, times the forecast less the reference
      forecast. It measures no effect; it is here for comparison, because it is common.

    Args:
        run: the forecast to explain.
        item: of the run's batch: a position or a name.
        method: one of the above.
        reference: values of masked steps, see :func:`tsfm_lens.explain.reference_values`.
        target: of the item's targets, by position or name.
        parts: segments, or arguments of :func:`tsfm_lens.explain.segments`, or its ``parts`` alone.
        seed: of a shuffled reference.
        repeats: seeds of the sample paths, in rollouts of models that draw; see there the standard errors.
        progress: called with the masks done and their number.
        how: arguments of the method.

    Returns:
        Dataset of kind "input_attribution": ``attribution`` (segment, step, quantile) in data units; ``forecast`` with
        everything shown and ``reference_forecast`` with all segments masked (step, quantile); ``remainder`` (step,
        quantile), their difference less the sum over segments: 0 up to rounding for Shapley values, the error of
        completeness for gradients, and the interaction of segments for occlusion and inclusion;
        ``attribution_error`` (segment, step, quantile) standard errors, where orders or sample paths are drawn, and
        ``mean_error`` (segment, quantile) that of the mean over steps; ``share`` (segment, step) of attention. In
        rollouts of models that draw, all masks draw the same random numbers, and everything is the mean over so many
        ``repeats`` under seeds of their own, whose spread gives the errors. Attributes
        ``rounding``: how far rounding moves the forecast; ``reference_distance``: how far the middle of the reference
        forecast is from the mean of the context, in its standard deviations: what is far from 0 is no forecast of
        this series, and its level is a part of what is explained; ``missing_values``: see
        :func:`tsfm_lens.explain.mask_seen`. Coordinates of ``segment``: ``row``, ``start``, ``stop``,
        ``kind``.

    Source:
        Shapley 1953; Lundberg and Lee 2017, arXiv:1705.07874; Zeiler and Fergus 2014, arXiv:1311.2901.

    Raises:
        UnknownNameError: no such method, reference, item or target.
        InputError: as in :func:`tsfm_lens.explain.forecasts`.

    Example:
        >>> found = explain.attribute_inputs(driven, method="occlusion", reference="mean", parts=2)
        >>> dict(found["attribution"].sizes)
        {'segment': 4, 'step': 8, 'quantile': 9}
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if not is_count(repeats):
        raise InputError(f"repeats is {repeats!r}, expected how many seeds sample paths are drawn under, 1 or more")
    masks = Masks(run, given_parts(run, item, target, parts), reference, item, target, seed, progress, repeats)
    result = _over_seeds([METHODS[method](each, **how) for each in masks.redrawn])
    data = described(masks, result.attribution, result.error)
    for name, (dims, values) in result.more.items():
        data[name] = (dims, values)
    data = data.transpose(..., "step", "quantile")
    data.attrs = masks.run.describe(
        "input_attribution",
        "Input attribution",
        result.source,
        method=method,
        reference=reference_words(reference),
        missing_values=masks.mask,
        statistic=statistic_of(run),
        target=masks.batch.ids[masks.row],
        units=masks.batch.units[masks.row],
        forecasts=sum(each.made for each in masks.redrawn),
        rounding=float(rounding(masks.run, masks.run.point)[masks.row]),
        reference_distance=_distance(masks),
        **result.attrs,
    )
    return data


def described(masks: Masks, attribution: Array, error: Array | None = None) -> xr.Dataset:
    """Build the dataset that every input attribution shares; see :func:`attribute_inputs`.

    Args:
        masks: the forecast to explain, by masks.
        attribution: (segment, quantile, step).
        error: standard errors of it, if any.
    """
    parts = masks.segments
    whole, nothing = _ends(masks)
    places = {name: ("segment", [getattr(part, name) for part in parts]) for name in ("row", "start", "stop", "kind")}
    names = {"segment": [part.name for part in parts], "quantile": list(quantiles_of(masks.run))}
    data = masks.run.dataset().assign_coords({**names, **places})
    axes = ("segment", "quantile", "step")
    data["attribution"] = (axes, attribution)
    if error is not None:
        data["attribution_error"] = (axes, error)
    data["forecast"], data["reference_forecast"] = (axes[1:], whole), (axes[1:], nothing)
    data["remainder"] = (axes[1:], whole - nothing - attribution.sum(0))
    return data.transpose(..., "step", "quantile")


def _ends(masks: Masks) -> tuple[Array, Array]:
    """Compute the forecast of everything, and of nothing but the reference, (quantile, step) each."""
    players = len(masks.segments)
    ends = np.array([[True] * players, [False] * players])
    whole, nothing = np.mean([each(ends) for each in masks.redrawn], axis=0)
    return whole, nothing


def _over_seeds(results: Sequence[Found]) -> Found:
    """Average results under several seeds, and add their standard errors."""
    if len(results) < 2:
        return results[0]
    values = np.stack([each.attribution for each in results])
    by_seed = 1 / np.sqrt(len(results))
    more = {
        name: (dims, np.mean([each.more[name][1] for each in results], axis=0))
        for name, (dims, _) in results[0].more.items()
    }
    # the spread over seeds has that over orders in it
    more["mean_error"] = (("segment", "quantile"), values.mean(-1).std(0, ddof=1) * by_seed)
    error = values.std(0, ddof=1) * by_seed
    return Found(values.mean(0), error, more, {**results[0].attrs, "repeats": len(results)}, results[0].source)


def _distance(masks: Masks) -> float:
    """Compute the mean distance of the reference forecast's middle from the context's mean, in standard deviations."""
    context = masks.batch.values[masks.row]
    _, nothing = _ends(masks)
    middle = nothing[int(np.argmin(np.abs(np.array(quantiles_of(masks.run)) - 0.5)))]
    spread = float(np.nanstd(context))
    return float(np.abs(middle - np.nanmean(context)).mean()) / spread if spread > 0 else float("nan")
