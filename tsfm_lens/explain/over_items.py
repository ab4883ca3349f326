"""Effects over every item of a batch: of its inputs, and through its components.

:func:`input_effects` collects :func:`tsfm_lens.explain.input_attribution`, and
:func:`route_effects` the routes of :mod:`tsfm_lens.explain.routes`, with one target of
each item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.notices import with_messages_once
from tsfm_lens.ablation.points import Progress
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import probe
from tsfm_lens.data.seasonal import seasonal_error
from tsfm_lens.explain.attribution import input_attribution
from tsfm_lens.explain.masking import Reference, reference_label
from tsfm_lens.explain.parts import Parts
from tsfm_lens.explain.routes import PairedRuns, all_effects, route_coords
from tsfm_lens.explain.segments import read_segments, segment_coords
from tsfm_lens.explain.values import single_pass
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.noise import forecast_rounding, marked_dataset
from tsfm_lens.models.run import Run
from tsfm_lens.models.twins import untrained_twin

__all__ = ["input_effects", "route_effects", "untrained_twin"]


@probe(
    title="Inputs over all series",
    theme="Inputs",
    summary="effects of the same segments over many series, with their sign",
    description=(
        "Every item is explained by itself. A dot is a series. Its colour shows "
        "whether the segment's values are above or below the mean of their context."
    ),
    source="Lundberg and Lee 2017, arXiv:1705.07874",
    example={"parts": 3},
)
@with_messages_once
def input_effects(
    run: Run,
    *,
    method: str = "shapley",
    reference: Reference = "mean",
    parts: Parts = 6,
    seed: int = 0,
    progress: Progress | None = None,
    **how: Any,
) -> xr.Dataset:
    """Measure the effect of each input segment on the first target of every item.

    Segments of the same name are compared over all items. Effects are in multiples of
    the context's mean absolute seasonal difference, as in MASE.

    Args:
        run: the forecasts to explain.
        method: "shapley", "occlusion", "inclusion", "integrated gradients", "gradient ×
            input", "attention rollout" or "attention flow".
        reference: values of masked steps: one of :data:`REFERENCES`, a dict with one
            for each role ("target", "past", "known"), or (time + horizon,) for each
            series.
        parts: largest number of segments of a target's past, or a dict of ``parts``,
            ``season``, ``others`` and ``cuts``.
        seed: of a shuffled reference.
        progress: called with the items done and their number.
        how: arguments of the method, such as ``exact``, ``budget`` and ``tolerance`` of
            "shapley".

    Returns:
        Dataset of kind "input_effects" over (segment, series). NaN stands for an item
        that has no such segment, or whose target repeats its season exactly, as a
        constant does.

        - ``effect``: the change of the median forecast, mean over steps.
        - ``size``: its mean absolute value over steps, with what
          :func:`.estimates.add_estimates` adds within each kind.
        - ``value``: the mean of the segment's values, in standard deviations from the
          mean of their context (NaN of a segment that is all of it).
        - ``unit`` (series), in data units; ``error`` (series), the mean absolute error
          of the forecast in this unit, NaN without a truth.

    Raises:
        UnknownNameError: no such method or reference.
        InputError: segments or the reference do not fit an item, or the model cannot
            forecast the visible rest.

    Source:
        Shapley 1953; Lundberg and Lee 2017, arXiv:1705.07874, the summary plot.

    Example:
        >>> found = explain.input_effects(driven, method="occlusion", parts=2)
        >>> dict(found["effect"].sizes)
        {'segment': 4, 'series': 1}
    """
    batch = run.batch
    rows = _first_rows(run)
    unit = np.array(
        [seasonal_error(batch.values[row], batch.seasonalities[row]) for row in rows]
    )
    results = []
    for item in range(len(rows)):
        results.append(
            input_attribution(
                run, item, method, reference, parts=parts, seed=seed, **how
            )
        )
        if progress is not None:
            progress(item + 1, len(rows))
    # coordinates of each segment are those in the first item that has it
    segments = {
        part.name: part
        # a dict keeps the last of equal keys, which in reverse is the first item
        for result in reversed(results)
        for part in read_segments(result)
    }
    names = list(
        dict.fromkeys(name for result in results for name in result["segment"].values)
    )
    effect, size, value = np.full((3, len(names), len(rows)), np.nan)
    for column, result in enumerate(results):
        indices = [names.index(name) for name in result["segment"].values]
        # nearest, since some models give no median
        median_effect = result["attribution"].sel(quantile=0.5, method="nearest")
        effect[indices, column] = median_effect.mean("step").values / unit[column]
        size[indices, column] = (
            np.abs(median_effect.values).mean(median_effect.dims.index("step"))
            / unit[column]
        )
        value[indices, column] = _heights(result)
    data = (
        marked_dataset(run)
        .isel(series=rows)
        .assign_coords(segment_coords([segments[name] for name in names]))
    )
    axes = ("segment", "series")
    error = np.full(len(rows), np.nan)
    if run.truth is not None:
        distance = np.abs(run.truth[rows] - run.point[rows])
        known = np.isfinite(distance).any(axis=1)
        error[known] = np.nanmean(distance[known], axis=1) / unit[known]
    data = data.assign(
        error=(("series",), error),
        effect=(axes, effect),
        size=(axes, size),
        value=(axes, value),
        unit=(("series",), unit),
    )
    metadata = {
        name: results[0].attrs[name]
        for name in ("source", "method", "reference", "statistic", "missing_values")
    }
    data.attrs = metadata | {
        "forecasts": sum(result.attrs["forecasts"] for result in results)
    }
    return add_estimates(
        data, "size", floor=forecast_rounding(run)[rows] / unit, groups="kind"
    )


def _first_rows(run: Run) -> list[int]:
    """Return the row of the first series of each item."""
    return [run.batch.groups.index(group) for group in dict.fromkeys(run.batch.groups)]


def _heights(result: xr.Dataset) -> np.ndarray:
    """Return how high each segment's values lie in their context, (segment,).

    The height is the distance of their mean from the context's mean, in its standard
    deviations.
    """
    context = result["context"].values
    if "known_future" in result:
        ahead = result["known_future"].values
    else:
        ahead = np.full((len(context), 0), np.nan)
    length = context.shape[1]
    heights = []
    for row, start, stop in zip(
        result["row"].values, result["start"].values, result["stop"].values, strict=True
    ):
        # the dataset pads shorter contexts on the left, so that steps count from the
        # end of the context
        full = np.concatenate([context[row], ahead[row]])
        past = context[row][np.isfinite(context[row])]
        part = full[start + length : stop + length]
        part = part[np.isfinite(part)]
        # the mean of a whole context is its mean
        if not (len(part) < len(past) or start >= 0):
            part = part[:0]
        spread = float(past.std())
        height = np.nan
        if len(part) and spread > 0:
            height = float(part.mean() - past.mean()) / spread
        heights.append(height)
    return np.array(heights)


@probe(
    lambda results: (single_pass(results.run),),
    title="Routes over all series",
    theme="Inputs",
    summary="share of the input's effect that each component carries, over many series",
    description=(
        "For every series, the effects of all segments through a component divided "
        "by their total effects. Hollow points are not significant."
    ),
    source="Wang et al. 2022",
    needs="series",
    computes="route_effects of all items",
)
@with_messages_once
def route_effects(
    run: Run,
    *,
    parts: Parts = 3,
    reference: Reference = "mean",
    components: Sequence[str | Component] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the share of the input's influence that each component carries.

    It is measured for the first target of every item.

    Args:
        run: the forecasts to explain.
        parts: largest number of segments of a target's past, or a dict of ``parts``,
            ``season``, ``others`` and ``cuts``.
        reference: values of masked steps: one of :data:`REFERENCES`, a dict with one
            for each role ("target", "past", "known"), or (time + horizon,) for each
            series.
        components: heads and branches; all heads and MLPs of all stacks if None. Every
            one is tried.
        seed: of a shuffled reference.
        progress: called with the items done and their number.

    Returns:
        Dataset of kind "route_effects":

        - ``carried`` (component, series): mean absolute effect of all segments through
          the component over their mean absolute total effect, with what
          :func:`.estimates.add_estimates` adds within each kind.

    Raises:
        InputError: masking changes the number of tokens, segments or the reference do
            not fit an item, or the model cannot forecast the visible rest.
        UnknownNameError: no such reference or component.

    Source:
        Wang et al. 2022 (path patching).

    Example:
        >>> dict(explain.route_effects(driven, parts=2)["carried"].sizes)["series"]
        1
    """
    rows = _first_rows(run)
    shares = []
    noise = []
    for item, row in enumerate(rows):
        sites, effect, total = all_effects(
            PairedRuns(run, parts, reference, item, 0, seed), components
        )
        sizes = np.abs(effect).mean(-1).sum(0)
        total_size = np.abs(total).mean(-1).sum()
        shares.append(sizes / total_size if total_size > 0 else np.zeros(len(sizes)))
        # every segment adds its rounding to a sum of sizes
        rounding_size = len(total) * forecast_rounding(run)[row]
        noise.append(rounding_size / max(total_size, np.finfo(float).tiny))
        if progress is not None:
            progress(item + 1, len(rows))
    data = marked_dataset(run).isel(series=rows).assign_coords(route_coords(sites))
    data["carried"] = (("component", "series"), np.stack(shares, axis=1))
    data.attrs = {"reference": reference_label(reference), "units": ""}
    return add_estimates(
        data, "carried", floor=np.array(noise), groups="component_kind"
    )
