"""Effect of each segment of the input on each step and quantile of a forecast.

:func:`input_attribution` is the measurement; :data:`METHODS` holds the ways to
attribute, each a function of :class:`~tsfm_lens.explain.values.Masks`. Whether an
attribution predicts the model is tested by :mod:`tsfm_lens.explain.faithfulness`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.notices import with_messages_once
from tsfm_lens.ablation.points import Progress
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import half_width
from tsfm_lens.data.batch import Item
from tsfm_lens.explain.attention import flow_shares, rollout_shares
from tsfm_lens.explain.gradients import slopes
from tsfm_lens.explain.masking import Reference, reference_label
from tsfm_lens.explain.parts import Parts
from tsfm_lens.explain.segments import EXACT, segment_coords
from tsfm_lens.explain.shapley import Array, all_masks, exact_shapley, sampled_shapley
from tsfm_lens.explain.values import Masks, list_levels, name_statistic
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.noise import rounding
from tsfm_lens.models.run import Run

__all__ = ["METHODS", "input_attribution"]

_BUDGET = 1024  # masks of a sampled explanation


@dataclass
class MethodResult:
    """Attribution of one method, its intervals, and further variables.

    Attributes:
        attribution: (segment, quantile, step), in data units.
        half_width: half the width of its 95 % intervals; None if nothing was sampled.
        variables: more variables of the result, by name.
        attrs: more attributes of the result.
    """

    attribution: Array
    half_width: Array | None = None
    variables: dict[str, tuple[tuple[str, ...], Array]] = field(default_factory=dict)
    attrs: dict[str, object] = field(default_factory=dict)


def shapley(
    masks: Masks, *, exact: int | None = None, budget: int | None = None, **options: Any
) -> MethodResult:
    """Return Shapley values, from all masks of up to ``exact`` segments.

    Of more segments they are estimated from ``budget`` sampled masks or fewer. By
    default no explanation costs more passes of the model than the exact one of
    :data:`EXACT` segments within one pass.
    """
    players = len(masks.segments)
    affordable = 2**EXACT // masks.relative_cost
    if exact is None:
        exact = affordable.bit_length() - 1
    if budget is None:
        budget = max(min(_BUDGET, affordable), 4 * players)
    if players > exact:
        # The mean over steps is estimated as one more step, since its interval does not
        # follow from those of single steps: errors of neighbouring steps go together.
        def values_and_mean(keep: np.ndarray) -> Array:
            values = masks(keep)
            return np.concatenate([values, values.mean(-1, keepdims=True)], -1)

        estimate = sampled_shapley(
            values_and_mean,
            players,
            budget=budget,
            seed=masks.run.seed,
            **options,
        )
        widths = estimate.half_width
        attrs: dict[str, object] = {"exact": 0, "settled": int(estimate.settled)}
        result = MethodResult(
            estimate.attribution[..., :-1], widths[..., :-1], attrs=attrs
        )
        result.variables["mean_half_width"] = (
            ("segment", "quantile"),
            widths[..., -1],
        )
        return result
    return MethodResult(
        exact_shapley(masks(all_masks(players)), players), attrs={"exact": 1}
    )


def _single(masks: Masks, visible: bool) -> MethodResult:
    """Return effects of hiding each segment alone, or of showing each alone.

    A segment is hidden if all others are ``visible``, and is shown if they are not.
    """
    players = len(masks.segments)
    # the first mask shows all segments or none; each other one differs in one segment
    base = np.full((1, players), visible)
    one_changed = np.eye(players, dtype=bool) ^ visible
    values = masks(np.concatenate([base, one_changed]))
    return MethodResult(values[0] - values[1:] if visible else values[1:] - values[0])


def _integrated(masks: Masks, *, steps: int = 32) -> MethodResult:
    """Integrate gradients from the reference to the input, at ``steps`` points."""
    if not is_count(steps):
        raise InputError(
            f"steps is {steps!r}, expected a number of points between reference and"
            " input, 1 or more"
        )
    # Gauss-Legendre nodes are on [-1, 1], the path from reference to input on [0, 1]
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return MethodResult(
        slopes(masks, (nodes + 1) / 2, weights / 2), attrs={"places": steps}
    )


def _share_of_change(masks: Masks, shares_of: Callable[[Masks], Array]) -> MethodResult:
    """Attribute the forecast minus the reference forecast by shares (segment, step)."""
    additive = [part.name for part in masks.segments if part.values is not None]
    if additive:
        raise InputError(
            f"attention goes to stretches of time, and {additive[0]!r} is an additive"
            " part of one; choose method='shapley' or 'occlusion', or cut stretches,"
            " such as parts=6"
        )
    shares = shares_of(masks)
    full, nothing = masks.ends
    return MethodResult(
        shares[:, None] * (full - nothing),
        variables={"share": (("segment", "step"), shares)},
    )


_ATTENTION = "Abnar and Zuidema 2020, arXiv:2005.00928"
METHODS: dict[str, tuple[Callable[..., MethodResult], str]] = {
    "shapley": (shapley, "Shapley 1953; Lundberg and Lee 2017, arXiv:1705.07874"),
    "occlusion": (
        partial(_single, visible=True),
        "Zeiler and Fergus 2014, arXiv:1311.2901",
    ),
    "inclusion": (
        partial(_single, visible=False),
        "Covert et al. 2021, arXiv:2011.14878, include individual features",
    ),
    "integrated gradients": (_integrated, "Sundararajan et al. 2017, arXiv:1703.01365"),
    "gradient × input": (
        lambda masks: MethodResult(slopes(masks, np.ones(1), np.ones(1))),
        "Shrikumar et al. 2017, arXiv:1605.01713",
    ),
    "attention rollout": (
        partial(_share_of_change, shares_of=rollout_shares),
        _ATTENTION,
    ),
    "attention flow": (partial(_share_of_change, shares_of=flow_shares), _ATTENTION),
}
"""Methods by name, each with its source."""


@probe(
    "first",
    title="Inputs",
    theme="Inputs",
    summary=(
        "how much each stretch of the past, each variate and each covariate moves "
        "each step and quantile"
    ),
    description=(
        "The input is cut into segments, and forecasts with some of them masked "
        "give the effect of each. In data units, the effects sum to the forecast "
        "minus the reference forecast. Steps count from the forecast: −1 is the "
        "last step before it."
    ),
    source="Shapley 1953; Lundberg and Lee 2017, arXiv:1705.07874",
    options={"reference": "mean", "parts": 6},
)
@with_messages_once
def input_attribution(
    run: Run,
    item: Item = None,
    method: str = "shapley",
    reference: Reference = "mean",
    *,
    target: int | str = 0,
    parts: Parts = None,
    seed: int = 0,
    repeats: int = 4,
    progress: Progress | None = None,
    **how: Any,
) -> xr.Dataset:
    """Attribute the forecast of one target to the segments of its item's input.

    Each step and quantile is attributed by itself. The forecast under a mask is made
    from the visible input; see :func:`tsfm_lens.explain.forecasts`.

    - "shapley": exact up to ``exact`` segments (12 within one pass of the model, fewer
      where a forecast takes several); beyond, estimated from up to ``budget``
      forecasts, fewer if standard errors are within ``tolerance``.
    - "occlusion": the forecast minus the forecast without the segment.
    - "inclusion": the forecast of the segment alone minus the reference forecast.
    - "integrated gradients", "gradient × input": the slope of the forecast from
      reference to input along the segment, integrated over that way, or taken at the
      input alone. The reference must have no missing values. Both agree for a constant
      reference in models that normalise each series.
    - "attention rollout", "attention flow": the share of attention on a segment, times
      the forecast minus the reference forecast. They are for comparison and measure no
      effect.

    Args:
        run: the forecast to explain.
        item: one of the run's batch, by position or name; the only one if None.
        method: one of the above.
        reference: values of masked steps: one of :data:`REFERENCES`, a dict with one
            for each role ("target", "past", "known"), or (time + horizon,) for each
            series.
        target: of the item's targets, by position or name.
        parts: segments: their largest number in the target's past, or a dict of
            ``parts``, ``season``, ``others`` and ``cuts``; "adaptive", for stretches
            that are short where hiding them moves the forecast; or "components", for
            trend, seasons and rest (in a dict beside ``seasons``, ``calendar``,
            ``events`` and ``others``).
        seed: of a shuffled reference.
        repeats: number of seeds of the sample paths, in rollouts of models that sample.
        progress: called with the masks done and their number.
        how: arguments of the method, such as ``exact``, ``budget`` and ``tolerance`` of
            "shapley".

    Returns:
        Dataset of kind "input_attribution", in data units.

        - ``attribution`` (segment, step, quantile).
        - ``forecast`` with everything visible and ``reference_forecast`` with all
          segments masked (step, quantile); ``remainder`` (step, quantile), their
          difference less the sum over segments.
        - Where masks or sample paths are drawn, half the width of 95 % intervals:
          ``half_width`` (segment, step, quantile), and ``mean_half_width`` (segment,
          quantile) for the mean over steps.
        - ``share`` (segment, step) of attention, for methods that use it.

        Attributes: ``rounding``, how far rounding moves the forecast;
        ``reference_distance``, from the median of the reference forecast to the mean of
        the context, in standard deviations of the context; ``missing_values``, the
        model's own mask, or how its library fills gaps.

    Raises:
        UnknownNameError: no such method, reference, item or target.
        InputError: segments or the reference do not fit the item, or the model cannot
            forecast the visible rest.

    Source:
        Shapley 1953; Lundberg and Lee 2017, arXiv:1705.07874; Zeiler and Fergus 2014,
        arXiv:1311.2901.

    Example:
        >>> found = explain.input_attribution(
        ...     driven, method="occlusion", reference="mean", parts=2
        ... )
        >>> dict(found["attribution"].sizes)
        {'segment': 4, 'step': 8, 'quantile': 9}
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if not is_count(repeats):
        raise InputError(
            f"repeats is {repeats!r}, expected a number of seeds for sample paths, 1 or"
            " more"
        )
    masks = Masks(run, parts, reference, item, target, seed, progress, repeats)
    function, source = METHODS[method]
    # forecasts are cached for each seed, so that masks.ends below costs nothing
    result = _over_seeds([function(seeded, **how) for seeded in masks.per_seed])
    full, nothing = masks.ends
    axes = ("segment", "quantile", "step")
    data = masks.run.dataset().assign_coords(
        segment_coords(masks.segments) | {"quantile": list(list_levels(masks.run))}
    )
    data["attribution"] = (axes, result.attribution)
    if result.half_width is not None:
        data["half_width"] = (axes, result.half_width)
    data["forecast"] = (axes[1:], full)
    data["reference_forecast"] = (axes[1:], nothing)
    data["remainder"] = (axes[1:], full - nothing - result.attribution.sum(0))
    for name, variable in result.variables.items():
        data[name] = variable
    data = data.transpose(..., "step", "quantile")
    context = masks.batch.values[masks.row]
    spread = float(np.nanstd(context))
    distance = np.abs(nothing[masks.middle] - np.nanmean(context)).mean()
    return data.assign_attrs(
        source=source,
        method=method,
        reference=reference_label(reference),
        missing_values=masks.mask,
        statistic=name_statistic(run),
        target=masks.name,
        units=masks.units,
        forecasts=sum(seeded.made for seeded in masks.per_seed),
        rounding=float(rounding(masks.run, masks.run.point)[masks.row]),
        reference_distance=float(distance) / spread if spread > 0 else float("nan"),
        **result.attrs,
    )


def _over_seeds(results: Sequence[MethodResult]) -> MethodResult:
    """Average results over seeds, with intervals from their spread."""
    if len(results) < 2:
        return results[0]
    # (segment, quantile, step, seed)
    values = np.stack([result.attribution for result in results], axis=-1)
    variables = {
        name: (dims, np.mean([result.variables[name][1] for result in results], axis=0))
        for name, (dims, _) in results[0].variables.items()
    }
    # each seed samples its own masks, so the spread over seeds includes that over masks
    variables["mean_half_width"] = (("segment", "quantile"), half_width(values.mean(2)))
    return MethodResult(
        values.mean(-1),
        half_width(values),
        variables,
        {**results[0].attrs, "repeats": len(results)},
    )
