"""Effects over every item of a batch: of its inputs, and of the components that they go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import xarray as xr

from tsfm_lens.ablation.notices import saying_once
from tsfm_lens.ablation.points import Progress
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.evaluation import seasonal_error
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.explain.attribution import attribute_inputs
from tsfm_lens.explain.masking import Reference, reference_words
from tsfm_lens.explain.routes import PairedRuns, all_effects, route_coords
from tsfm_lens.explain.segments import segment_coords, segments_in
from tsfm_lens.explain.values import single_pass
from tsfm_lens.findings import judge
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.forecast import is_count
from tsfm_lens.models.noise import own_rounding, ranges
from tsfm_lens.models.run import Run
from tsfm_lens.models.twins import untrained_twin
from tsfm_lens.registry import probe
from tsfm_lens.stats import CONFIDENCE, Control

__all__ = ["NULLS", "compared_to_null", "input_effects", "route_effects", "untrained_twin"]

Null = Literal["untrained", "random components", "shuffled series"]
NULLS: tuple[Null, ...] = ("untrained", "random components", "shuffled series")
"""What a claim is held against; see :func:`compared_to_null`."""
DRAWS = 3
"""Untrained twins, or orders of the series."""


def compared_to_null(
    probe: Callable[..., xr.Dataset],
    run: Run,
    null: Null = "untrained",
    *,
    name: str,
    groups: str | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    control: Control = "by",
    **options: Any,
) -> xr.Dataset:
    """Compare a probe's result with the same probe under a null, as shares of the sum over all members of each series.

    "untrained" are twins without learned structure: a component must be larger than 95 % of the components of its group
    in them, a segment than itself in each. Under "random components" it must be larger than 95 % of the others of its
    group. "shuffled series" are the same values in random order: a member must be larger than itself there.

    Args:
        probe: of a run, such as ``probes.ablation_effects`` or ``explain.route_effects``.
        run: the forecasts of the claim.
        null: one of :data:`NULLS`.
        name: the variable that is claimed, over (member, …, series), at least 0.
        groups: coordinate over members, within which they are compared; all are alike if None.
        draws: untrained twins, or orders.
        seed: of them.
        control: see :func:`tsfm_lens.findings.judge`.
        options: of the probe.

    Returns:
        What the probe gives, with ``NAME_share``, and what ``judge`` adds to it: ``NAME_share_floor`` is what the null
        reaches, ``NAME_share_significant`` the larger shares. Attributes ``against`` and ``null_draws``.

    Source:
        Adebayo et al. 2018, arXiv:1810.03292 (sanity checks); Benjamini and Yekutieli 2001.

    Raises:
        UnknownNameError: no such null or control.
        InputError: the result has no such variable over series, or draws is no count.

    Example:
        >>> found = explain.compared_to_null(probes.ablation_effects, run, "untrained", name="mean_shift", draws=1)
        >>> found.attrs["against"]
        'untrained'
    """
    if null not in NULLS:
        raise unknown_name("null", null, NULLS)
    if not is_count(draws):
        raise InputError(f"draws is {draws!r}, expected how many twins or orders are drawn, 1 or more")
    data = probe(run, **options)
    if name not in data or "series" not in data[name].dims or data[name].ndim < 2:
        raise InputError(f"the result of kind {data.attrs.get('kind')!r} has no {name!r} over members and series")
    dims = [str(dim) for dim in data[name].dims if dim != "series"]
    own = _shares(data, name, dims)
    labels = np.zeros(own.shape[:-1], dtype=int)
    if groups is not None:
        numbers = data[groups].copy(data=np.unique(data[groups].values.astype(str), return_inverse=True)[1])
        labels = numbers.broadcast_like(data[name].isel(series=0)).transpose(*dims).values
    if null == "random components":
        floor = _of_others(own, labels)
    else:
        others = np.stack([_shares(probe(other, **options), name, dims) for other in null_runs(run, null, draws, seed)])
        floor = others.max(0)
        if null == "untrained" and "segment" not in dims:
            for label in np.unique(labels):
                # (draw, member, series) of one group
                floor[labels == label] = np.nanquantile(others[:, labels == label], CONFIDENCE, axis=(0, 1))
    share = f"{name}_share"
    data[share] = ((*dims, "series"), own)
    data = judge(data, share, floor=data[share].copy(data=floor), groups=groups, control=control)
    return data.assign_attrs(against=null, null_draws=0 if null == "random components" else draws)


def _shares(data: xr.Dataset, name: str, dims: list[str]) -> np.ndarray:
    """Compute shares of the sum over members, (member, …, series)."""
    values = np.abs(data[name].transpose(*dims, "series").values.astype(float))
    whole = np.nansum(values, axis=tuple(range(values.ndim - 1)))
    return np.divide(values, whole, out=np.zeros_like(values), where=whole > 0)


def _of_others(own: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Compute the 95 % quantile over all other members of the group, (member, …, series); infinity without any."""
    floor = np.full(own.shape, np.inf)
    for place in np.ndindex(*labels.shape):
        others = labels == labels[place]
        others[place] = False
        if others.any():
            floor[place] = np.nanquantile(own[others], CONFIDENCE, axis=0)
    return floor


def null_runs(run: Run, null: Null, draws: int, seed: int) -> list[Run]:
    """Repeat a run with untrained twins, or with its series in random order."""
    base: dict[str, Any] = {"forced_path": None, "_of": None}
    if null == "untrained":
        twins = [untrained_twin(run.lens, seed + draw) for draw in range(draws)]
        return [replace(run, lens=twin, _hooks=(), **base) for twin in twins]
    return [replace(run, batch=_shuffle(run.batch, [seed, draw]), full_batch=None, **base) for draw in range(draws)]


def _shuffle(batch: SeriesBatch, seed: list[int]) -> SeriesBatch:
    """Put values in random order, gaps where they were; the series of an item share one order, so they still agree."""
    values, futures = list(batch.values), list(batch.futures)
    for number, group in enumerate(dict.fromkeys(batch.groups)):
        rows = [row for row, name in enumerate(batch.groups) if name == group]
        rng = np.random.default_rng([*seed, number])
        order = rng.permutation(batch.lengths[rows[0]])
        ahead = rng.permutation(max((len(f) for row in rows if (f := batch.futures[row]) is not None), default=0))
        for row in rows:
            series, gaps = batch.values[row][order], np.isnan(batch.values[row])
            # observed values go where observed values were
            result = np.full(len(series), np.nan)
            result[~gaps] = series[~np.isnan(series)]
            values[row] = result
            future = batch.futures[row]
            futures[row] = None if future is None else future[ahead[ahead < len(future)]]
    return replace(batch, values=tuple(values), futures=tuple(futures))


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
    """Measure the effect of each segment of the input on the first target of every item.

    Segments of the same name are one over all items. Effects are in multiples of the context's mean absolute seasonal
    difference, as MASE counts.

    Args:
        run: the forecasts to explain.
        method, reference, seed, parts, how: see :func:`tsfm_lens.explain.attribute_inputs`.
        against: also compare the sizes with a null, see :func:`tsfm_lens.explain.compared_to_null`.
        progress: called with the items done and their number.

    Returns:
        Dataset of kind "input_effects" over (segment, series), NaN where an item has no such segment or its target is
        constant: ``effect``, the move of the forecast's middle, mean over steps; ``size``, the mean of its sizes over
        steps, with what :func:`tsfm_lens.findings.judge` adds within each kind; ``value``, the mean of the
        segment's values, in standard deviations from the mean of their context (NaN of a whole context). ``unit``
        (series) in data units.

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
        return compared_to_null(input_effects, run, against, name="size", groups="kind", **more)
    batch, rows = run.batch, _first_rows(run)
    unit = np.array([seasonal_error(batch.values[row], batch.seasonalities[row]) for row in rows])
    results: list[xr.Dataset] = []
    for item in range(len(rows)):
        results.append(attribute_inputs(run, item, method, reference, parts=parts, seed=seed, **how))
        if progress is not None:
            progress(item + 1, len(rows))
    # coordinates of each segment are those in the first item that has it
    segments = {part.name: part for one in reversed(results) for part in segments_in(one)}
    names = list(dict.fromkeys(name for one in results for name in one["segment"].values))
    effect, size, value = np.full((3, len(names), len(rows)), np.nan)
    for column, one in enumerate(results):
        at = [names.index(name) for name in one["segment"].values]
        middle = one["attribution"].sel(quantile=0.5, method="nearest")
        effect[at, column] = middle.mean("step").values / unit[column]
        size[at, column] = np.abs(middle.values).mean(middle.dims.index("step")) / unit[column]
        value[at, column] = _heights(one)
    data = run.dataset().isel(series=rows).assign_coords(segment_coords([segments[name] for name in names]))
    axes = ("segment", "series")
    data = data.assign(effect=(axes, effect), size=(axes, size), value=(axes, value), unit=(("series",), unit))
    facts = {name: results[0].attrs[name] for name in ("method", "reference", "statistic", "missing_values")}
    total = sum(int(one.attrs["forecasts"]) for one in results)
    source = results[0].attrs["source"]
    data.attrs = run.describe("input_effects", "Effects of inputs", source, **facts, forecasts=total)
    return judge(data, "size", floor=own_rounding(run)[rows] / unit, groups="kind")


def _first_rows(run: Run) -> list[int]:
    """Return the row of the first series of each item."""
    return [run.batch.groups.index(group) for group in dict.fromkeys(run.batch.groups)]


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


@probe(
    "route_effects",
    lambda results: (single_pass(results.run),),
    words="route_effects of all items",
    options={"parts": 3, "reference": "mean"},
)
@saying_once
def route_effects(
    run: Run,
    *,
    parts: Mapping[str, Any] | int | None = None,
    reference: Reference = "mean",
    components: Sequence[str | Component] | None = None,
    against: Null | None = None,
    control: Control = "holm",
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the share of the input's influence that goes through each component, over the first target of every item.

    Args:
        run: the forecasts to explain.
        parts, reference, components: as in :func:`tsfm_lens.explain.input_routes`; every component is tried.
        against, control, draws: also compare with a null, see :func:`compared_to_null`.
        seed: of the null, and of a shuffled reference.
        progress: called with the items done and their number.

    Returns:
        Dataset of kind "route_effects": ``carried`` (component, series), the mean absolute effect of all segments
        through the component over their mean absolute total effect, with what ``judge`` adds within each kind.

    Source:
        Wang et al. 2022 (path patching); Adebayo et al. 2018 (nulls).

    Raises:
        InputError: as in :func:`tsfm_lens.explain.input_routes`.
        UnknownNameError: no such reference, null or control.

    Example:
        >>> dict(explain.route_effects(driven, parts=2)["carried"].sizes)["series"]
        1
    """
    if against is not None:
        how: dict[str, Any] = {"parts": parts, "reference": reference, "components": components, "seed": seed}
        more: dict[str, Any] = {"groups": "component_kind", "draws": draws, "control": control}
        return compared_to_null(route_effects, run, against, name="carried", **more, **how)
    rows, shares = _first_rows(run), []
    for item in range(len(rows)):
        places, effect, total = all_effects(PairedRuns(run, parts, reference, item, 0, seed), components)
        sizes, whole = np.abs(effect).mean(-1).sum(0), np.abs(total).mean(-1).sum()
        shares.append(sizes / whole if whole > 0 else np.zeros(len(sizes)))
        if progress is not None:
            progress(item + 1, len(rows))
    data = run.dataset().isel(series=rows).assign_coords(route_coords(places))
    data["carried"] = (("component", "series"), np.stack(shares, axis=1))
    source, words = "Wang et al. 2022; Adebayo et al. 2018, arXiv:1810.03292", reference_words(reference)
    data.attrs = run.describe("route_effects", "Routes over many series", source, reference=words, units="")
    floor = own_rounding(run)[rows] / np.maximum(ranges(run, run.point)[rows], np.finfo(float).tiny)
    return judge(data, "carried", floor=floor, groups="component_kind", control=control)
