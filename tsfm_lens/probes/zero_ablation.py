"""Ablation effects: what a forecast loses without a head, an MLP or a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import mae, relative_change, seasonal_scale, spearman_distance
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import Intervention
from tsfm_lens.models.ablating import ablated_variants
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import noise_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.places import component_coords, head_or_kind, listed
from tsfm_lens.registry import probe

__all__ = ["ablation_effects"]


@probe("ablation")
def ablation_effects(
    run: Run,
    *,
    components: Sequence[str | Component] | None = None,
    how: str = "zero",
    reference: Any = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Ablate components one at a time and compare the forecasts.

    In single forwards a token model's decoder follows the run's path whatever is ablated, and expected values are
    compared; in rollouts every ablated model goes its own way, under the same draws.

    Mean ablation has no effect on a part that writes the same for every series, such as a head that marks positions. An
    effect that stands out of rounding need not matter: in planted patch models most decoys stand out, loud ones too,
    zeroed or at their mean, though true parts rank before them. A part with a backup ranks low, as far as the backup
    compensates; ``self_repair`` of :func:`tsfm_lens.probes.causal_effects` names it.

    Args:
        run: the forecast to explain; with a truth for the errors.
        components: names or globs; if None every head, MLP and whole layer of the stack that is read out.
        how: "zero", "mean", "resample" or "noise"; see :meth:`Lens.ablate`.
        reference: for mean and resample; draws take the run's seed.
        progress: called with (done, of) after each component.

    Returns:
        Dataset of kind "ablation" over ``component`` and ``series``: ``spearman_distance`` to the plain
        forecast; with a truth ``mae``, ``mase``, their baselines and relative changes
        (``mae_change`` = ablated / baseline - 1); ``mean_shift``, the mean distance from the plain forecast in data
        units; for each of these what :func:`tsfm_lens.probes.findings.judge` adds. A token model's decoder reads a
        start token at its first step and no value: that step is left out of all of them, and has ``first_step_shift``
        of its own. ``forecast`` and ``baseline_forecast``, named by the attribute ``statistic``: medians in rollouts;
        in single forwards expected values of token models, means of a distribution head, medians of all others.

    Source:
        tsfm-lens paper, section 3 (S3-ZA-H, S3-ZA-M, S3-ZA-L, S3-SPEAR).

    Raises:
        UnknownNameError: a component does not exist.

    Example:
        >>> data = probes.ablation_effects(run, components="decoder.*.mlp")
        >>> data["mean_shift_leads"].dims
        ('component',)
        >>> data["component"].values.tolist()
        ['decoder.0.mlp', 'decoder.1.mlp', 'decoder.2.mlp']
    """
    lens = run.lens
    targets = _default(lens) if components is None else lens.components(*listed(components, "components"))
    data = run.dataset().assign_coords(component_coords(targets))
    plain, forecasts = run.point, ablated_points(run, targets, how, reference, progress)
    steps = ("component", "series", "step")
    data = data.assign(forecast=(steps, forecasts), baseline_forecast=(steps[1:], plain))
    later = slice(run.first_step, None)
    if later.start:
        data["first_step_shift"] = (("component", "series"), np.abs(forecasts - plain)[..., 0])
    if run.horizon > 1:
        distance = spearman_distance(forecasts[..., later], np.broadcast_to(plain, forecasts.shape)[..., later])
        data["spearman_distance"] = (("component", "series"), distance)
    data["mean_shift"] = (("component", "series"), np.abs(forecasts - plain)[..., later].mean(axis=-1))
    if run.truth is not None:
        data = _errors(data, run.batch, run.truth[..., later], forecasts[..., later], plain[..., later])
    source = "tsfm-lens paper, section 3 (S3-ZA, S3-SPEAR)"
    facts: dict[str, object] = {"how": how, "rollout": int(run.rollout), "statistic": run.statistic}
    data.attrs = run.describe("ablation", "Ablation effects", source, **facts)
    return _add_statistics(data, run)


def ablated_points(
    run: Run, components: Sequence[Component], how: str, reference: Any, progress: Progress | None = None
) -> np.ndarray:
    """Compute the forecasts of :func:`ablation_effects` alone, (component, series, step)."""
    return points_without(run, ablations_of(run, components, how, reference), how, progress)


def points_without(
    run: Run,
    ablations: Mapping[Component, tuple[Intervention, ...]],
    how: str,
    progress: Progress | None = None,
    *,
    beside: Sequence[Variant] = (),
) -> np.ndarray:
    """Forecast without each component, and behind them with further variants, (variant, series, step).

    Args:
        run: whose components are ablated.
        ablations: of each component.
        how: what takes the components' place; zero ablations of earlier probes of the run are not run again.
        progress: called with the number of finished variants and of all.
        beside: variants that run side by side with the ablations.
    """
    # the caller's own hooks may change before the next call
    shares = how == "zero" and not run.lens.registry.in_use
    cache: dict[Component, np.ndarray] = run.cache.setdefault("ablated", {}) if shares else {}
    missing = {component: parts for component, parts in ablations.items() if component not in cache}
    variants = [Variant(str(component), parts) for component, parts in missing.items()]
    new = [*variants, *beside]
    forecasts = point_forecasts(run, new, progress) if new else np.empty((0, len(run.batch), run.horizon))
    cache |= dict(zip(missing, forecasts, strict=False))
    return np.array([*(cache[component] for component in ablations), *forecasts[len(missing) :]])


def ablations_of(
    run: Run, components: Sequence[Component], how: str, reference: Any
) -> dict[Component, tuple[Intervention, ...]]:
    """Return the interventions that ablate each component, with the run's seed.

    A resampled activation replaces one of the same tokens. So a token model's single forward needs reference series in
    single forwards of their own, each along its median path.

    Args:
        run: whose components are ablated.
        components: each is ablated alone.
        how, reference: see :meth:`Lens.ablate`.
    """
    ready = reference is None or isinstance(reference, Activations | Encoded)
    if not ready and how == "resample" and run.tokens_read and not run.rollout:
        reference = run.lens.run(reference, run.horizon, rollout=False).encoded
    interventions = ablated_variants(run.lens, components, how, reference, horizon=run.horizon, seed=run.seed)
    return dict(zip(components, interventions, strict=True))


def _add_statistics(data: xr.Dataset, run: Run) -> xr.Dataset:
    """Add intervals, floors and what stands out for each measure of an effect; heads are compared with heads."""
    later = slice(run.first_step, None)
    ways: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "spearman_distance": lambda other, plain: spearman_distance(other[..., later], plain[..., later]),
        "mean_shift": lambda other, plain: np.abs(other - plain)[..., later].mean(axis=-1),
    }
    if run.truth is not None:
        truth = run.truth[..., later]

        def change(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
            return np.abs(relative_change(mae(other[..., later], truth), mae(plain[..., later], truth)))

        ways |= {"mae_change": change, "mase_change": change}
    for name, measure in ways.items():
        if name in data:
            floor = noise_floor(run, measure)
            data = judge(data, name, floor=floor, signed=name.endswith("change"), groups=head_or_kind(data))
    return data


def _default(lens: Lens) -> list[Component]:
    stack = lens.wiring.output_stack
    layers = [Component(stack.name, layer) for layer in range(stack.n_layers)]
    return sorted(
        [*writers(lens.wiring), *layers],
        key=lambda c: (c.layer, c.kind is None, c.kind or "", c.head is None, c.head or 0),
    )


def seasonal_scales(batch: SeriesBatch) -> np.ndarray:
    """Return the scale of MASE of each series, (series,)."""
    seasons = zip(batch.values, batch.seasonalities, strict=True)
    return np.array([seasonal_scale(values, season) for values, season in seasons])


def _errors(
    data: xr.Dataset, batch: SeriesBatch, truth: np.ndarray, forecasts: np.ndarray, plain: np.ndarray
) -> xr.Dataset:
    scale = seasonal_scales(batch)
    error, baseline = mae(forecasts, truth), mae(plain, truth)
    change, where = relative_change(error, baseline), ("component", "series")
    return data.assign(
        mae=(where, error),
        mae_baseline=("series", baseline),
        mase=(where, error / scale),
        mase_baseline=("series", baseline / scale),
        mae_change=(where, change),
        # the scale is the same before and after, so MASE changes as MAE does wherever it is defined
        mase_change=(where, np.where(np.isfinite(scale), change, np.nan)),
    )
