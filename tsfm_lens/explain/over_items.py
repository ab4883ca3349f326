"""Input attribution of every item of a batch: sizes and directions of effects over many series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.notices import saying_once
from tsfm_lens.ablation.points import Progress
from tsfm_lens.data.naive import seasonal_error
from tsfm_lens.explain.attribution import attribute_inputs
from tsfm_lens.explain.masking import Reference
from tsfm_lens.explain.nulls import Null, held_against
from tsfm_lens.models.noise import own_rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import judge
from tsfm_lens.registry import probe

__all__ = ["input_effects"]


@probe("input_effects", options={"parts": 6})
@saying_once
def input_effects(
    run: Run,
    *,
    method: str = "shapley",
    reference: Reference = "mean",
    parts: Mapping[str, Any] | int | None = None,
    seed: int = 0,
    against: Null | None = None,
    progress: Progress | None = None,
    **how: Any,
) -> xr.Dataset:
    """Measure the effect of each segment of the input on the forecasts of many items.

    Every item's first target is explained by itself; segments of the same name are one over all items. Effects are in
    multiples of the context's mean absolute seasonal difference, as MASE counts, so that items can be compared.

    Args:
        run: the forecasts to explain.
        method, reference, seed: see :func:`tsfm_lens.explain.attribute_inputs`.
        parts: arguments of :func:`tsfm_lens.explain.segments`, or its ``parts`` alone.
        against: also hold the sizes against a null, see :func:`tsfm_lens.explain.held_against`, which adds
            ``size_share``.
        progress: called with the items done and their number.
        how: arguments of the method.

    Returns:
        Dataset of kind "input_effects" over (segment, series), NaN where an item has no such segment or its target is
        constant: ``effect``, what
        it moves the middle of the forecast by, mean over steps; ``size``, the mean of the sizes over steps, with what
        :func:`tsfm_lens.probes.findings.judge` adds, segments of each kind for themselves; ``value``, the mean of the
        segment's values, in standard deviations from the mean of their context: whether a high value moves the
        forecast up (NaN of a whole context). ``unit`` (series) in data units. Coordinates of ``segment``: ``row``,
        ``start``, ``stop``, ``kind``.

    Source:
        Shapley 1953; Lundberg and Lee 2017, arXiv:1705.07874, the summary plot.

    Raises:
        UnknownNameError, InputError: as in :func:`tsfm_lens.explain.attribute_inputs`.

    Example:
        >>> dict(explain.input_effects(driven, method="occlusion", parts=2)["effect"].sizes)
        {'segment': 4, 'series': 1}
    """
    if against is not None:
        more: dict[str, Any] = {"method": method, "reference": reference, "parts": parts, "seed": seed, **how}
        return held_against(input_effects, run, against, name="size", groups="kind", **more)
    batch = run.batch
    groups = list(dict.fromkeys(batch.groups))
    rows = [batch.groups.index(group) for group in groups]
    unit = np.array([seasonal_error(batch.values[row], batch.seasonalities[row]) for row in rows])
    results: list[xr.Dataset] = []
    for item in range(len(groups)):
        results.append(attribute_inputs(run, item, method, reference, parts=parts, seed=seed, **how))
        if progress is not None:
            progress(item + 1, len(groups))
    names = list(dict.fromkeys(name for one in results for name in one["segment"].values))
    shape = (len(names), len(rows))
    effect, size, value = np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape, np.nan)
    for column, one in enumerate(results):
        places = [names.index(name) for name in one["segment"].values]
        middle = one["attribution"].sel(quantile=0.5, method="nearest")
        effect[places, column] = middle.mean("step").values / unit[column]
        size[places, column] = np.abs(middle.values).mean(middle.dims.index("step")) / unit[column]
        value[places, column] = _heights(one)
    data = run.dataset().isel(series=rows).assign_coords({"segment": names, **_places(results, names)})
    axes = ("segment", "series")
    data = data.assign(effect=(axes, effect), size=(axes, size), value=(axes, value), unit=(("series",), unit))
    about = {name: results[0].attrs[name] for name in ("method", "reference", "statistic", "missing_values")}
    total = sum(int(one.attrs["forecasts"]) for one in results)
    data.attrs = run.describe(
        "input_effects", "Effects of inputs", results[0].attrs["source"], **about, forecasts=total
    )
    return judge(data, "size", floor=own_rounding(run)[rows] / unit, groups="kind")


def _places(results: list[xr.Dataset], names: list[str]) -> dict[str, tuple[str, list[Any]]]:
    """Return coordinates of all segments, of each as in the first item that has it."""
    first = {name: one.sel(segment=name) for one in reversed(results) for name in one["segment"].values}
    return {
        what: ("segment", [first[name][what].item() for name in names]) for what in ("row", "start", "stop", "kind")
    }


def _heights(one: xr.Dataset) -> np.ndarray:
    """Compute the mean of each segment's values, in standard deviations from their context's mean, (segment,)."""
    context = one["context"].values
    ahead = one["known_future"].values if "known_future" in one else np.full((len(context), 0), np.nan)
    length = context.shape[1]
    heights = []
    for row, start, stop in zip(one["row"].values, one["start"].values, one["stop"].values, strict=True):
        whole = np.concatenate([context[row], ahead[row]])
        past = context[row][np.isfinite(context[row])]
        part = whole[start + length : stop + length]
        part = part[np.isfinite(part)]
        # the mean of a whole context is its mean
        part = part if len(part) < len(past) or start >= 0 else part[:0]
        spread = float(past.std())
        heights.append(float(part.mean() - past.mean()) / spread if len(part) and spread > 0 else np.nan)
    return np.array(heights)
