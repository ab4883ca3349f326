"""Patching: activations of one run inserted into another, and the share recovered.

:func:`activation_patching` patches exactly, one forward pass per site and group of
tokens; :func:`attribution_patching` estimates all of it from one gradient. Both rest on
:class:`RunPair`, which :func:`contrast` makes of a clean and a corrupted run. Effects
of one component through another are in ``path_patching``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import spearman_distance
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.nulls import centre, check_draws, draw_changes, with_nulls
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import ratio
from tsfm_lens.hooks.activations import Activations, Call
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import Change, Intervention, PatchFrom, Rows
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.scopes import RunState
from tsfm_lens.models.adapter import check_gradients
from tsfm_lens.models.noise import (
    cached_flat_contexts,
    keep_above_rounding,
    noise_floor,
    ranges,
    share_floor,
)
from tsfm_lens.models.recording import check_recordable
from tsfm_lens.models.run import Run
from tsfm_lens.probes.given import check_option
from tsfm_lens.probes.metric import GivenMetric, Metric, as_metric, metric_shares
from tsfm_lens.probes.sites import (
    PatchSite,
    group_coords,
    parse_sites,
    position_groups,
    site_coords,
)

__all__ = ["activation_patching", "attribution_patching"]


@probe(
    "pair",
    title="Activation patching",
    theme="Causes",
    summary="activation patching: layer × position × component, also in rollouts",
    description=(
        "The model runs on a clean and a corrupted version of a series. Activations "
        "of one run are patched into the other, place by place. Where the forecast "
        "follows, that place carries the difference."
    ),
    source=(
        "Meng et al. 2022 (causal tracing); Heimersheim and Nanda 2024,"
        " arXiv:2404.15255"
    ),
    example={"at": ["*.*.mlp"], "positions": "all"},
)
def activation_patching(
    clean: Run,
    corrupted: Run,
    *,
    at: str | Sequence[str | Component] = "stream",
    stack: str | None = None,
    positions: str | int | None = None,
    direction: Direction = "denoise",
    metric: GivenMetric | None = None,
    nulls: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Patch every site and token position of one run into the other.

    Clean activations are put into the corrupted run, or the other way round. The
    corruption should keep the mean and scale of a series, because patches do not carry
    them over. Where a token model's decoder is teacher-forced, both runs follow the
    path of the run that is patched, so they differ in the context alone; the forecast
    of the other run is then not the one that it would make by itself.

    Args:
        clean: the run to explain.
        corrupted: a run of the same series with something removed, of equal ids,
            starts and lengths (see :mod:`tsfm_lens.data.corruption`), with the same
            options as the clean run.
        at: "stream" (residual stream around each layer), "branches", "heads", or names
            and globs of sites.
        stack: the stack whose tokens are patched; the first if None, whose tokens cover
            the past. (Ablation takes the output stack, which writes the forecast.)
        positions: "all" tokens at once, "each" token, or that many tokens at a time;
            None makes at most 32 groups. In rollouts a group is the tokens that cover
            the same steps.
        direction: "denoise" puts clean activations into the corrupted run and tests
            what is sufficient; "noise" does the reverse and tests what is necessary.
        metric: what to measure instead of the whole forecast: a function of (forecast,
            truth, series) that returns a number, named by its ``__name__``, or a name
            with it, ``{"peak": function}``. Forecast and truth are (step,) in data
            units, the truth None where there is none; ``series`` is the clean series,
            a batch of one.
        nulls: draws beside each patch, a forward each: random directions of the
            covariance of both runs' activations there, added in place of the difference
            of the runs, with its norm token by token. Of single forwards.
        progress: called with (done, of).

    Returns:
        Dataset of kind "activation_patching":

        - ``recovered`` (component, position, series): share of the way from the
          unpatched forecast to the source's. It is a projection, so it may lie outside
          0 and 1. With a metric it is the share of the way between both metrics, NaN
          where these are the same up to noise.
        - ``effect`` (component, position, series): mean distance from the unpatched
          forecast, in data units.
        - ``metric_value`` (component, position, series): the metric itself, where there
          is one.
        - ``forecast`` (component, position, series, step): in data units.
        - ``clean_forecast``, ``corrupted_forecast`` (series, step): in data units.
        - ``corrupted_context`` (series, time): in data units.

        ``recovered`` and ``effect`` come with what :func:`.estimates.add_estimates`
        adds, with the noise of both runs; with nulls, ``recovered`` also with what
        :func:`.nulls.with_nulls` adds. Coordinates ``position_start`` and
        ``position_stop`` are in steps; ``position_special`` marks other tokens. The
        attribute ``path`` says whose path both decoders read, such as "corrupted";
        others have none.

    Source:
        Meng et al. 2022; Heimersheim and Nanda 2024 on the two directions.

    Raises:
        InputError: the runs have other options, ids, lengths or starts, the corruption
            does nothing, sites of several stacks are patched by position, the metric is
            no finite number or is not corrupted, or nulls of a rollout.
        UnknownNameError: no such site.

    Example:
        >>> data = probes.activation_patching(run, corrupted, positions="all")
        >>> dict(data["recovered"].sizes)
        {'component': 4, 'position': 1, 'series': 1}
    """
    sites = parse_sites(clean.lens, at, stack)
    measured = None if metric is None else as_metric(metric)
    check_draws(nulls, clean.rollout)
    drawn_at = _points(sites) if nulls else ()
    pair = contrast(clean, corrupted, sites, base_names=drawn_at, direction=direction)
    groups, position_coords = make_grid(pair, sites, positions)
    variants = patches(pair, sites, groups)
    for drawn in null_pairs(pair, sites, nulls):
        variants += patches(drawn, sites, groups)
    forecasts = point_forecasts(pair.base, variants, progress)
    # as in patches(), the groups of a site follow one another; the patches themselves
    # are the first of the draws
    forecasts = forecasts.reshape(-1, len(sites), len(groups), *forecasts.shape[1:])
    coords = {**site_coords(sites), **position_coords}
    drawn_forecasts = forecasts[1:] if nulls else None
    data = pair.result(forecasts[0], coords, metric=measured, nulls=drawn_forecasts)
    return data.assign_attrs(positions=str(positions))


def null_pairs(pair: RunPair, sites: Sequence[PatchSite], count: int) -> list[RunPair]:
    """Return pairs whose sources have random differences from the base at the sites.

    Each is drawn from the covariance of both runs' activations, without padding, for
    every head by itself. Token by token, it has the norm of the difference of the runs,
    and a right angle to it.
    """
    if not count:
        return []
    drawn = [
        Activations(pair.base.lens.registry.points, False, pair.base.batch.ids)
        for _ in range(count)
    ]
    for point, stack in sorted({(site.point, site.stack) for site in sites}):
        base, source = (
            acts[point].detach().cpu().double().numpy()
            for acts in (pair.base_acts, pair.source_acts)
        )
        # (series, token, head, width), where a stream or a branch counts as one head
        shape = (*base.shape[:2], -1, base.shape[-1])
        difference = (source - base).reshape(shape)
        shown = pair.base.encoded.shown(stack).cpu().numpy()
        rows = centre(
            np.concatenate([acts.reshape(shape)[shown] for acts in (base, source)])
        )
        changes = [
            draw_changes(rows[:, head], count, difference[:, :, head], pair.base.seed)
            for head in range(rows.shape[1])
        ]
        for acts, change in zip(drawn, np.stack(changes, axis=-2), strict=True):
            altered = base + change.reshape(base.shape)
            value = torch.as_tensor(altered).to(pair.base_acts[point])
            acts.recorded[point] = [Call(0, 0, value)]
    return [replace(pair, source_acts=acts) for acts in drawn]


def patches(
    pair: RunPair, sites: Sequence[PatchSite], groups: Sequence[list[int] | None]
) -> list[Variant]:
    """Return one variant per site and group of positions, sites first.

    A group of None is all positions.
    """
    return [
        Variant(str(site.target), (_patch(pair, site, group),))
        for site in sites
        for group in groups
    ]


def _patch(pair: RunPair, site: PatchSite, group: list[int] | None) -> Intervention:
    """Return the intervention that patches one site at a group of positions."""
    if group is None or not pair.base.rollout:
        return PatchFrom(site.target, pair.source_acts, positions=group)
    # in a rollout, a token has another position in every pass, but the same steps
    spans = pair.base.spans[site.stack]
    # special tokens cover no step, and are found by their label instead
    ordinary = [token for token in group if not spans.special[token]]
    start = min((spans.start[token] for token in ordinary), default=0)
    stop = max((spans.stop[token] for token in ordinary), default=0)
    special = frozenset(spans.special[token] for token in group) - {""}
    return _steps_patch(site.target, pair.source_acts, start, stop, special)


def make_grid(
    pair: RunPair, sites: Sequence[PatchSite], positions: str | int | None
) -> tuple[list[list[int] | None], dict[str, Any]]:
    """Return groups of the sites' tokens, and their coordinates.

    The groups are [None] where all tokens are patched at once.
    """
    spans = {site.stack: pair.base.spans[site.stack] for site in sites}
    first, *rest = spans.values()
    if positions != "all":
        if rest:
            raise InputError(
                f"the places lie in {' and '.join(sorted(spans))}, whose tokens are not"
                " the same; patch one stack at a time, or positions='all'"
            )
        groups = position_groups(first, positions)
        return list(groups), group_coords(first, groups)
    stack_coords = [
        group_coords(tokens, [list(range(len(tokens)))]) for tokens in spans.values()
    ]
    reductions = {"position_start": min, "position_stop": max}
    coords = {
        # each coordinate is (dimension, [value of the one group])
        name: ("position", [reduction(coords[name][1][0] for coords in stack_coords)])
        for name, reduction in reductions.items()
    }
    return [None], {"position": [0], **coords, "position_special": ("position", [""])}


@dataclass(frozen=True, eq=False)
class _PatchEdit:
    """Intervention that a function of (value, state, point) makes."""

    # rows and positions are fields, since variants that run side by side are given
    # their rows by dataclasses.replace
    target: Component | str
    function: Callable[[Tensor, RunState, Point], Tensor]
    # PatchFrom finds the rows of a part of a batch by itself, so a batch may run in
    # parts
    by_place: bool = True
    rows: Rows = None
    positions: Rows = None

    def change(self, point: Point) -> Change:
        """Return the function at one hook point."""
        return lambda value, state: self.function(value, state, point)


def _steps_patch(
    target: Component | str,
    source: Activations,
    start: int,
    stop: int,
    special: frozenset[str],
) -> Intervention:
    """Return an intervention that replaces tokens of some steps by another run's.

    Tokens are replaced if their middle is from start to stop, or if they are among the
    special ones.
    """

    def patch(value: Tensor, state: RunState, point: Point) -> Tensor:
        assert source.spans_at is not None
        first = source.calls(point.name)[0].value.shape[1]
        offset = state.offset.get(point.stack, 0)
        spans = source.spans_at(point.stack, state.step, offset, value.shape[1], first)
        tokens = zip(spans.start, spans.stop, spans.special, strict=True)
        replaced = [
            # later passes divide the steps into other tokens than the first, so groups
            # are matched by the middle step: a token then belongs to one group and no
            # other
            label in special if label else start <= (begin + end - 1) / 2 < stop
            for begin, end, label in tokens
        ]
        # PatchFrom would look for a stored activation that this pass does not need
        if not any(replaced):
            return value
        # (row, token, …)
        mask = torch.tensor(replaced, device=value.device).reshape(
            1, -1, *[1] * (value.ndim - 2)
        )
        return torch.where(
            mask, PatchFrom(target, source).change(point)(value, state), value
        )

    return _PatchEdit(target, patch)


Direction = Literal["denoise", "noise"]


@dataclass(frozen=True)
class RunPair:
    """Two runs of batches of equal shape, and what was recorded of them.

    ``base`` is the run that is patched, ``source`` the one whose activations are put
    into it.
    """

    base: Run
    source: Run
    direction: Direction
    base_acts: Activations
    source_acts: Activations

    @property
    def difference(self) -> np.ndarray:
        """Difference of the source's forecast from the base's, (series, step)."""
        result: np.ndarray = self.source.point - self.base.point
        return result

    def recovered(self, forecasts: np.ndarray) -> np.ndarray:
        """Return the share of the difference that forecasts cover, (…, series).

        It is how far forecasts (…, series, step) have moved from the base's to the
        source's.
        """
        along = ((forecasts - self.base.point) * self.difference).sum(-1)
        return ratio(along, np.square(self.difference).sum(-1))

    def result(
        self,
        forecasts: np.ndarray,
        coords: dict[str, Any],
        dims: tuple[str, ...] = ("component", "position"),
        metric: Metric | None = None,
        nulls: np.ndarray | None = None,
    ) -> xr.Dataset:
        """Return the share recovered and the effect of patched forecasts, with tests.

        Forecasts are (…, series, step), effects in data units. With a metric, the share
        is that of the way between the metrics of both runs. Nulls are forecasts under
        draws, (null, …, series, step).
        """
        axes = (*dims, "series")
        effect = np.abs(forecasts - self.base.point).mean(-1)
        parts = {
            "recovered": (axes, self.recovered(forecasts)),
            "effect": (axes, effect),
            "forecast": ((*axes, "step"), forecasts),
        }
        data = self.dataset().assign_coords(coords).assign(parts)
        floor = self.share_floor
        if metric is not None:
            values, share, floor = metric_shares(
                metric, self.clean, self.base, self.source, forecasts
            )
            data = data.assign(recovered=(axes, share), metric_value=(axes, values))
            data.attrs["metric"] = metric.name
            data["recovered"].attrs["long_name"] = f"share of {metric.name} recovered"
        data = self.test_effects(data, floor)
        if nulls is None:
            return data
        drawn = self.recovered(nulls)
        if metric is not None:
            drawn = metric_shares(metric, self.clean, self.base, self.source, nulls)[1]
        recovered = xr.DataArray(drawn, dims=("null", *axes))
        return with_nulls(data, "recovered", recovered, floor=floor, signed=True)

    @property
    def share_floor(self) -> np.ndarray:
        """Noise of the share recovered, (series,)."""
        # an effect must exceed the noise of either run, so the larger floor counts
        floors = (share_floor(run, self.difference) for run in (self.base, self.source))
        result: np.ndarray = np.fmax(*floors)
        return result

    def test_effects(
        self, data: xr.Dataset, floor: np.ndarray | None = None
    ) -> xr.Dataset:
        """Return a result with tests of its effects, by the noise of both runs.

        ``floor`` (series,) is that of shares where they are not of the forecast.
        """
        runs = (self.base, self.source)
        if floor is None:
            floor = self.share_floor
        for name in ("recovered", "first_order", "score"):
            if name in data:
                data = add_estimates(data, name, floor=floor, signed=True)
        if "effect" in data:
            floors = [
                noise_floor(run, lambda other, plain: np.abs(other - plain).mean(-1))
                for run in runs
            ]
            scale = ranges(self.base, self.base.point)
            data = add_estimates(data, "effect", floor=np.fmax(*floors), scale=scale)
            data["effect_size"].attrs["units"] = "share of the range"
        return data

    @property
    def clean(self) -> Run:
        """The run to explain."""
        if self.direction == "denoise":
            return self.source
        return self.base

    def dataset(self) -> xr.Dataset:
        """Return both contexts, both forecasts, and their coordinates."""
        clean = self.clean
        if self.direction == "denoise":
            corrupted = self.base
        else:
            corrupted = self.source
        axes = ("series", "step")
        forecasts = {
            "clean_forecast": (axes, clean.point),
            "corrupted_forecast": (axes, corrupted.point),
        }
        flat = cached_flat_contexts(clean) & cached_flat_contexts(corrupted)
        data = clean.dataset().assign_coords(flat=("series", flat))
        data = data.assign(
            {"corrupted_context": corrupted.dataset()["context"]} | forecasts
        )
        data.attrs = self.parameters()
        return data

    def parameters(self) -> dict[str, object]:
        """Return the attributes that say how a result was run."""
        base = self.base
        path = self.source.forced_path
        shared = (
            path is not None and not base.rollout and np.array_equal(path, base.path)
        )
        parameters: dict[str, object] = {
            "direction": self.direction,
            "rollout": int(base.rollout),
            "statistic": base.statistic,
        }
        if shared:
            denoising = self.direction == "denoise"
            parameters["path"] = "corrupted" if denoising else "clean"
        return parameters


def contrast(
    clean: Run,
    corrupted: Run,
    sites: Sequence[PatchSite],
    *,
    base_names: Sequence[str] = (),
    direction: Direction = "denoise",
) -> RunPair:
    """Return both runs, with activations of the source at the sites.

    A pair whose forecasts are the same is refused.
    """
    check_option("direction", direction, ("denoise", "noise"))
    _check_pair(clean, corrupted)
    if direction == "denoise":
        source = clean
        base = corrupted
    else:
        source = corrupted
        base = clean
    # a teacher-forced decoder reads the path as well, so runs on two paths would differ
    # in more than the context
    if base.tokens_read and not base.rollout and source.forced_path is None:
        source = source.following(base.path)
    base_acts = _record(base, base_names)
    source_acts = _record(source, _points(sites))
    same = (keep_above_rounding(base, source.point, base.point) == base.point).all(-1)
    # in a twin both may well be the same, and such a series has no share
    if same.any() and clean.original is None:
        name = clean.batch.ids[int(np.argmax(same))]
        raise InputError(
            f"clean and corrupted forecasts of series {name!r} are the same, so there"
            " is nothing to recover: corrupt more, or what the model reads"
        )
    return RunPair(base, source, direction, base_acts, source_acts)


def _record(run: Run, names: Sequence[str]) -> Activations:
    # a recording needs a name, and would cost a forward pass
    if names:
        return run.record(names)
    return Activations(run.lens.registry.points, run.rollout, run.batch.ids)


def _same_model(one: Run, other: Run) -> bool:
    """Return whether two runs have the same lens, or the same twin of it."""
    if one.original is not None and other.original is not None:
        same_twin = one.lens.model_id == other.lens.model_id
        return same_twin and _same_model(one.original, other.original)
    return one.lens is other.lens


def _check_pair(clean: Run, corrupted: Run) -> None:
    """Refuse two runs that differ in more than the values of their series."""
    if not _same_model(clean, corrupted):
        raise InputError(
            f"the clean run is of {clean.lens.model_id}, the corrupted of"
            f" {corrupted.lens.model_id} as another lens; make both with the same lens"
        )
    for name in ("horizon", "rollout", "num_samples", "seed"):
        one = getattr(clean, name)
        other = getattr(corrupted, name)
        if one != other:
            raise InputError(
                f"the clean run has {name} {one}, the corrupted {other}; make both with"
                f" the same {name}"
            )
    batch = clean.batch
    changed = corrupted.batch
    if batch.ids != changed.ids:
        raise InputError(
            f"the clean series are {', '.join(batch.ids)}, the corrupted ones"
            f" {', '.join(changed.ids)}, and a pair has the same ids:"
            " corrupted.select(clean.batch.ids) puts them in order; data.shift_phase,"
            " swap_season and remove_motif corrupt a series;"
            " dataclasses.replace(batch, ids=…) names series that are meant as a pair"
        )
    if batch.lengths != changed.lengths:
        raise InputError(
            f"the clean series have lengths {batch.lengths}, the corrupted"
            f" {changed.lengths}: their tokens must stand at the same positions, so"
            " corrupt values without adding or removing steps"
        )
    for name, one, other in zip(batch.ids, batch.starts, changed.starts, strict=True):
        if one is not None and other is not None and one != other:
            raise InputError(
                f"the clean series {name!r} starts at {one}, the corrupted at {other}:"
                " the same tokens would show other dates. Cut both alike, such as"
                " holdout=True for both runs or for none;"
                " dataclasses.replace(batch, starts=clean.batch.starts) is a series"
                " that is meant as its pair"
            )
    if not np.array_equal(batch.group_index, changed.group_index):
        raise InputError(
            "clean and corrupted series are grouped into items differently, so variates"
            " would differ"
        )


@probe(
    "pair",
    title="Attribution patching",
    theme="Causes",
    summary="attribution patching, with its error",
    description=(
        "A first-order estimate of activation patching for all places from one "
        "gradient, compared with exact patching where available."
    ),
    source="Nanda 2023 (attribution patching); Syed et al. 2023, arXiv:2310.10348",
    needs="gradients",
    example={"at": ["*.*.mlp"], "positions": "all"},
    whole_batch=True,
)
def attribution_patching(
    clean: Run,
    corrupted: Run,
    *,
    at: str | Sequence[str | Component] = "stream",
    stack: str | None = None,
    positions: str | int | None = None,
    direction: Direction = "denoise",
    exact: bool = True,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Estimate the share that patching each site would recover, from one gradient.

    The gradient is that of the unpatched run. A saturated gate or softmax has no
    gradient, so the estimate misses its part.

    Args:
        clean: the run to explain.
        corrupted: a run of the same series with something removed, of equal ids,
            starts, lengths and options.
        at: "stream" (residual stream around each layer), "branches", "heads", or names
            and globs of sites.
        stack: the stack whose tokens are patched; the first if None, whose tokens cover
            the past. (Ablation takes the output stack, which writes the forecast.)
        positions: "all" tokens at once, "each" token, or that many tokens at a time;
            None makes at most 32 groups.
        direction: "denoise" puts clean activations into the corrupted run, "noise" does
            the reverse.
        exact: also patch, to measure the estimate's error.
        progress: called with (done, of), of the exact patching.

    Returns:
        Dataset of kind "attribution_patching":

        - ``first_order`` (component, position, series): estimated share recovered.
        - ``recovered`` (component, position, series): the share itself, with ``exact``.
        - ``error`` (component, position, series): the first less the second, with
          ``exact``.

        Both shares come with what :func:`.estimates.add_estimates` adds, with the noise
        of both runs. With ``exact`` the attributes ``mean_absolute_error`` and
        ``rank_correlation`` are over all cells.

    Source:
        Nanda 2023; Syed et al. 2023.

    Raises:
        InputError: a library that rescales gradients, a multivariate batch, or a
            horizon longer than one pass.

    Example:
        >>> probes.attribution_patching(run, corrupted, exact=False)["first_order"].dims
        ('component', 'position', 'series')
    """
    lens = clean.lens
    check_gradients(lens.wiring)
    sites = parse_sites(lens, at, stack)
    # a gradient is of a single forward pass
    pair = contrast(
        clean.in_one_pass(), corrupted.in_one_pass(), sites, direction=direction
    )
    activations = slopes(pair, sites)
    groups, position_coords = make_grid(pair, sites, positions)
    first_order = np.array(
        [
            [_products(site, pair.source_acts, activations, group) for group in groups]
            for site in sites
        ]
    )
    data = pair.dataset().assign_coords({**site_coords(sites), **position_coords})
    axes = ("component", "position", "series")
    data["first_order"] = (axes, first_order)
    data.attrs["positions"] = str(positions)
    if exact:
        forecasts = point_forecasts(pair.base, patches(pair, sites, groups), progress)
        recovered = pair.recovered(forecasts).reshape(first_order.shape)
        data["recovered"] = (axes, recovered)
        data["error"] = (axes, first_order - recovered)
        data.attrs |= {
            "mean_absolute_error": float(np.abs(first_order - recovered).mean()),
            "rank_correlation": rank_correlation(first_order, recovered),
        }
    return pair.test_effects(data)


def _points(sites: Sequence[PatchSite]) -> list[str]:
    return sorted({site.point for site in sites})


def slopes(pair: RunPair, sites: Sequence[PatchSite]) -> Activations:
    """Return activations of the base run, with gradients of the share recovered.

    Gradients are under ``name + "_grad"``.
    """
    run = pair.base
    encoded = pair.base.encoded
    names = _points(sites)
    if run.batch.multivariate:
        raise InputError(
            "gradients of variates that see each other cannot be told apart; patch them"
            " exactly instead"
        )
    difference = torch.as_tensor(pair.difference)
    # the share recovered is linear in the forecast, with these weights; its sum over
    # series has each series' gradient in its own rows, as series do not see each other
    weight = difference / difference.square().sum(-1, keepdim=True)

    def share(output: Tensor) -> Tensor:
        forecast = run.read(output, encoded)
        return (forecast * weight.to(forecast)).sum()

    activations = with_gradients(run, names, share)
    for name in names:
        finite = activations[f"{name}_grad"].isfinite().flatten(1).all(1)
        if not finite.all():
            series = encoded.rows[int(finite.int().argmin())]
            raise InputError(
                f"{run.lens.wiring.architecture} has no finite gradient at {name} for"
                f" series {series!r}, as where padding is divided by its zero norm;"
                " take series of one length, or one at a time, or patch exactly"
            )
    return activations


def with_gradients(
    run: Run, names: Sequence[str], loss: Callable[[Tensor], Tensor]
) -> Activations:
    """Return activations of one forward pass, with a loss's gradients at them.

    Weights get no gradients, to save time.
    """
    # the path of a token model is no forecast under these hooks
    lens = run.lens
    encoded = run.encoded
    leaves = dict[str, list[Tensor]]()
    check_recordable(lens, rollout=False, gradients=True, loss=loss)

    def enter(value: Tensor, hook: HookPoint) -> Tensor:
        """Return a leaf tensor, from which the forward pass goes on.

        The model's weights may be frozen or not.
        """
        # a point behind another one goes on in its graph: were it detached, the earlier
        # one would have no gradient
        if value.requires_grad:
            leaf = value.view_as(value)
        else:
            leaf = value.detach().requires_grad_()
        leaves.setdefault(str(hook.name), []).append(leaf)
        return leaf

    with torch.enable_grad(), lens.hooks([(name, enter) for name in names]):
        output, activations = lens.run_with_cache(encoded, names_filter=list(names))
        # a point may be called several times in a forward pass
        calls = [(name, call) for name in names for call in range(len(leaves[name]))]
        tensors = [leaves[name][call] for name, call in calls]
        losses = loss(output)
        gradients_by_loss = [
            # only of these tensors, so that the weights accumulate none; a point that
            # the loss does not depend on has zeros; the losses share one graph
            torch.autograd.grad(
                single_loss,
                tensors,
                allow_unused=True,
                materialize_grads=True,
                retain_graph=True,
            )
            for single_loss in losses.reshape(-1)
        ]
        gradients: Sequence[Tensor]
        if losses.ndim:
            gradients = [
                torch.stack(parts) for parts in zip(*gradients_by_loss, strict=True)
            ]
        else:
            gradients = gradients_by_loss[0]
    for (name, call), gradient in zip(calls, gradients, strict=True):
        activations.recorded.setdefault(f"{name}_grad", []).append(
            replace(activations.calls(name)[call], value=gradient)
        )
    return activations


def _products(
    site: PatchSite, source: Activations, base: Activations, group: Sequence[int] | None
) -> np.ndarray:
    """Return the sum of change times gradient over a group's tokens, (series,).

    A group of None is all tokens.
    """
    change = source[site.point] - base[site.point]
    # (series, token, width), at heads (series, token, head, width)
    product = change * base[f"{site.point}_grad"]
    if site.head is not None:
        product = product[:, :, site.head]
    if group is not None:
        product = product[:, list(group)]
    total = product.sum(dim=(1, 2))
    return total.detach().cpu().double().numpy()


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Compute Spearman's correlation over all cells; 0 where either is constant."""
    constant = a.size < 2 or np.ptp(a) == 0 or np.ptp(b) == 0
    if constant:
        return 0.0
    return float(1.0 - spearman_distance(a.reshape(-1), b.reshape(-1)))
