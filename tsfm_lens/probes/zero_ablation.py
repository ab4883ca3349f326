"""Ablation of single components, one at a time.

:func:`ablation_effects` is the probe. The other functions are shared by the probes that
ablate: :func:`make_ablations` and :func:`forecast_ablations` run the ablated models,
:func:`rank_distance` and :func:`error_change` compare their forecasts. Ablations of
many components at once are in :mod:`tsfm_lens.probes.recipes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import (
    mae,
    relative_change,
    seasonal_scale,
    spearman_distance,
)
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.nulls import (
    centre,
    check_draws,
    draw_changes,
    share_of_like_norm,
    with_nulls,
)
from tsfm_lens.core.registry import probe
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import Intervention
from tsfm_lens.models.ablating import ablated_variants
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.noise import (
    Measure,
    cached_flat_contexts,
    flat_forecasts,
    forecast_rounding,
    marked_dataset,
    noise_floor,
    ranges,
)
from tsfm_lens.models.run import Run
from tsfm_lens.probes.metric import GivenMetric, as_metric, metric_changes
from tsfm_lens.probes.sites import (
    component_coords,
    head_or_kind,
    listed,
    put_value,
)

__all__ = ["ablation_effects"]


@probe(
    title="Ablation",
    theme="Causes",
    summary="ablation of every head, MLP and layer",
    description=(
        "Each attention head, MLP and layer is set to zero in turn. The larger the "
        "change, the more the forecast relies on that component."
    ),
    source="tsfm-lens paper, section 3 (S3-ZA, S3-SPEAR)",
    paper=(
        "S3-F2",
        "S3-F8",
        "S3-F9",
    ),
    example={"components": ["*.*.mlp"]},
)
def ablation_effects(
    run: Run,
    *,
    components: Sequence[str | Component] | None = None,
    how: str = "zero",
    reference: Any = None,
    metric: GivenMetric | None = None,
    nulls: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Ablate components one at a time and compare the forecasts.

    In single forwards, a token model's decoder is teacher-forced with the values of
    ``run.path``. In rollouts, every ablated model reads its own forecasts, with the
    same random draws. Components whose work others take over rank low; see
    ``self_repair`` of :func:`tsfm_lens.probes.causal_effects`.

    Args:
        run: the forecast to explain; errors are computed if it has a truth.
        components: names or globs; if None every head, MLP and layer of the output
            stack, which writes the forecast. (Patching takes the first stack, whose
            tokens cover the past.)
        how: "zero", "mean", "resample" or "noise", which replaces the component.
        reference: activations, or series to record them on, from which "mean" and
            "resample" take their values. Random choices use the run's seed.
        metric: a measure of one's own beside these: a function of (forecast, truth,
            series) that returns a number, named by its ``__name__``, or a name with it,
            ``{"peak": function}``. Forecast and truth are (step,) in data units and
            hold every step, the truth None where there is none; ``series`` is a batch
            of this one series.
        nulls: draws beside each component, a forward each: random directions of the
            stream's own covariance, added where the component writes. Token by token
            they have the norm of its write, and a right angle to it. Of zero ablations
            in single forwards.
        progress: called with (done, of) after each component.

    Returns:
        Dataset of kind "ablation_effects":

        - ``spearman_distance`` (component, series): 1 - rank correlation with the plain
          forecast.
        - ``mean_shift`` (component, series): mean absolute difference from it, in data
          units.
        - ``forecast`` (component, series, step), ``baseline_forecast`` (series, step):
          in data units, of the statistic that the attribute ``statistic`` names.
        - ``first_step_shift`` (component, series): shift at a token model's first step,
          where the decoder reads no value. All other measures but a metric leave this
          step out.

        With a truth, or a metric:

        - ``mae`` (in data units), ``mase`` (component, series), and ``mae_baseline``,
          ``mase_baseline`` (series).
        - ``mae_change``, ``mase_change`` (component, series): ablated over baseline,
          less 1.
        - ``metric_value`` (component, series), ``metric_baseline`` (series): in the
          metric's unit.
        - ``metric_change`` (component, series): their difference as a share of the
          baseline's size, NaN where that is noise.

        With nulls:

        - ``null_low``, ``null_high`` (component, series, step): range of the forecasts
          under the draws, in data units. ``mean_shift`` has what
          :func:`.nulls.with_nulls` adds.
        - ``write_norm`` (component): root mean square of the norm of its write over
          tokens. ``mean_shift_like_norm_share`` (component): share of at most 8
          others of its kind, of the nearest norm, that move the forecast as far. Parts
          of one mechanism may be alike in both, so no claim depends on it.

        Distances and changes come with what :func:`.estimates.add_estimates` adds.

    Source:
        tsfm-lens paper, section 3 (S3-ZA-H, S3-ZA-M, S3-ZA-L, S3-SPEAR).

    Raises:
        UnknownNameError: a component does not exist.
        InputError: the metric is no finite number, or noise on every series; or nulls
            of a rollout, or of another ablation than zero.

    Example:
        >>> data = probes.ablation_effects(run, components="decoder.*.mlp")
        >>> data["component"].values.tolist()
        ['decoder.0.mlp', 'decoder.1.mlp', 'decoder.2.mlp']
    """
    lens = run.lens
    check_nulls(run, how, nulls)
    measured = None if metric is None else as_metric(metric)
    stack = run.lens.wiring.output_stack
    if components is None:
        targets = [
            *writers(lens.wiring),
            *(Component(stack.name, layer) for layer in range(stack.n_layers)),
        ]
        # by layer: the heads of each kind, then the branch, and the layer itself last
        targets.sort(
            key=lambda component: (
                component.layer,
                component.kind is None,
                component.kind or "",
                component.head is None,
                component.head or 0,
            )
        )
    else:
        targets = lens.components(*listed(components, "components"))
    ablations = make_ablations(run, targets, how, reference)
    plain = run.point
    forecasts = forecast_ablations(run, ablations, how, progress)
    data = marked_dataset(run, **component_coords(targets))
    axes = ("component", "series")
    # without a token model's first step, at which its decoder reads no value
    later = slice(run.first_step, None)
    data = data.assign(
        forecast=((*axes, "step"), forecasts),
        baseline_forecast=(("series", "step"), plain),
    )
    data.attrs = {
        "how": how,
        "rollout": int(run.rollout),
        "statistic": run.statistic,
    }
    # the first step has a variable of its own, as all measures below leave it out
    if later.start:
        data["first_step_shift"] = (axes, np.abs(forecasts - plain)[..., 0])
    # ranks need more than one step
    measures = {"spearman_distance": rank_distance(run)} if run.horizon > 1 else {}
    measures["mean_shift"] = lambda other, plain: np.abs(other - plain).mean(axis=-1)
    if run.truth is not None:
        truth = run.truth[..., later]
        scale = seasonal_scales(run)
        error = mae(forecasts[..., later], truth)
        baseline = mae(plain[..., later], truth)
        data = data.assign(mae=(axes, error), mase=(axes, error / scale))
        data = data.assign(
            mae_baseline=("series", baseline),
            mase_baseline=("series", baseline / scale),
        )
        change = error_change(run, truth)
        measures |= {"mae_change": change, "mase_change": change}
    for name, measure in measures.items():
        effect = measure(forecasts[..., later], plain[..., later])
        # the scale is the same before and after, so MASE changes as MAE does wherever
        # it is defined
        if name == "mase_change":
            effect = np.where(np.isfinite(scale), effect, np.nan)
        data[name] = (axes, effect)
        floor = noise_floor(run, compute_size(measure, later))
        data = add_estimates(
            data,
            name,
            floor=floor,
            signed=name.endswith("change"),
            # all other measures have no units
            scale=ranges(run, plain) if name == "mean_shift" else 1.0,
            groups=head_or_kind(data),
            flat_forecasts=shapeless(run, name),
        )
    data["mean_shift_size"].attrs["units"] = "share of the range"
    if nulls:
        drawn, norms = forecast_nulls(run, targets, nulls)
        ends = {"null_low": drawn.min(axis=0), "null_high": drawn.max(axis=0)}
        data = data.assign({name: ((*axes, "step"), end) for name, end in ends.items()})
        measure = measures["mean_shift"]
        data = with_nulls(
            data,
            "mean_shift",
            xr.DataArray(
                measure(drawn[..., later], plain[..., later]), dims=("null", *axes)
            ),
            floor=noise_floor(run, compute_size(measure, later)),
            scale=ranges(run, plain),
        )
        like_norm = share_of_like_norm(
            data["mean_shift_size"].values, norms, np.array(head_or_kind(data))
        )
        data = data.assign(
            write_norm=("component", norms),
            mean_shift_like_norm_share=("component", like_norm),
        )
    if measured is None:
        return data
    changes = metric_changes(measured, run, forecasts)
    values, unablated, metric_change, metric_floor = changes
    data = data.assign(
        metric_value=(axes, values),
        metric_baseline=("series", unablated),
        metric_change=(axes, metric_change),
    )
    data.attrs["metric"] = measured.name
    return add_estimates(
        data,
        "metric_change",
        floor=metric_floor,
        signed=True,
        groups=head_or_kind(data),
    )


def check_nulls(run: Run, how: str, nulls: int) -> None:
    """Refuse draws beside a rollout, or beside another ablation than zero.

    Raises:
        InputError: draws are asked for, and there are none.
    """
    check_draws(nulls, run.rollout)
    if nulls and how != "zero":
        raise InputError(
            f"nulls={nulls} draws are beside how='zero', not how={how!r}; leave one out"
        )


def forecast_nulls(
    run: Run,
    components: Sequence[Component],
    count: int,
    frozen: Mapping[Component, tuple[Intervention, ...]] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return forecasts with random directions added in place of ablations, and norms.

    Each is drawn from the covariance of the stream after the component's layer. Token
    by token, it has the norm of what the component writes, and a right angle to it.
    ``frozen`` has interventions that come with those of a component.

    Returns:
        The forecasts (null, component, series, step), in data units; and the root mean
        square of the norms of each component's write over tokens, (component,).
    """
    wiring = run.lens.wiring
    # of each component, the hook points of its write and of what the draws change
    places = []
    for component in components:
        layer = f"{wiring.stack(component.stack).prefix}.{component.layer}"
        out = f"{layer}.{component.kind}.hook_out"
        written = out
        if component.kind is None:
            out = f"{layer}.hook_resid_post"
            written = f"{layer}.hook_resid_pre"
        elif component.head is not None:
            written = out.replace("hook_out", "hook_result")
        places.append((component, f"{layer}.hook_resid_post", out, written))
    recorded = run.record(sorted({name for place in places for name in place[1:]}))
    variants = []
    norms = []
    for component, stream, out, written in places:
        shown = run.encoded.shown(component.stack).cpu()
        rows = recorded[stream].detach().cpu().double()[shown].numpy()
        value = recorded[out]
        write = recorded[written]
        if component.kind is None:
            write = value - write
        elif component.head is not None:
            write = write[:, :, component.head]
        like = write.detach().cpu().double().numpy()
        norms.append(np.sqrt(np.square(like[shown.numpy()]).sum(-1).mean()))
        for change in draw_changes(centre(rows), count, like, run.seed):
            altered = value + torch.as_tensor(change).to(value)
            added = put_value(run, out, out, altered)
            parts = (added, *(frozen or {}).get(component, ()))
            variants.append(Variant(f"draw {component}", parts))
    forecasts = point_forecasts(run, variants)
    by_component = forecasts.reshape(len(components), count, *run.point.shape)
    return by_component.swapaxes(0, 1), np.array(norms)


def rank_distance(run: Run) -> Measure:
    """Return a function of forecasts: Spearman's distance from the plain ones.

    Forecasts are (…, series, step). The distance is NaN for a series of
    :func:`tsfm_lens.models.noise.flat_forecasts`. A flat forecast where the plain one
    is not has distance 1: nothing of the order of steps is left.
    """
    flat = flat_forecasts(run)
    rounding = forecast_rounding(run)

    def distance(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        ranked = spearman_distance(other, np.broadcast_to(plain, other.shape))
        # a forecast within rounding has ranks, but they are those of the rounding
        # errors
        lost = np.ptp(other, axis=-1) <= rounding
        return np.where(flat, np.nan, np.where(lost, 1.0, ranked))

    return distance


def shapeless(run: Run, name: str) -> np.ndarray | None:
    """Return the series without a shape, (series,), for a distance of shapes.

    Any other measure is defined for them; None is returned for it.
    """
    if name == "spearman_distance":
        return flat_forecasts(run)
    return None


def error_change(run: Run, truth: np.ndarray) -> Measure:
    """Return a function of forecasts: the relative change of the mean absolute error.

    It is NaN where the error of the plain forecast is no more than rounding.
    """
    rounding = forecast_rounding(run)
    return lambda other, plain: relative_change(
        mae(other, truth), mae(plain, truth), rounding
    )


def compute_size(measure: Measure, steps: slice = slice(None)) -> Measure:
    """Return a function of forecasts: the absolute value of a measure on some steps."""
    return lambda other, plain: np.abs(measure(other[..., steps], plain[..., steps]))


def forecast_ablations(
    run: Run,
    ablations: Mapping[Component, tuple[Intervention, ...]],
    how: str,
    progress: Progress | None = None,
    further: Sequence[Variant] = (),
) -> np.ndarray:
    """Return forecasts without each component, then with further variants.

    The result is (variant, series, step). Forecasts of zero ablations are stored for
    other probes of the run.
    """
    # forecasts under the caller's hooks are not stored, as the hooks may change before
    # the next call; nor are other ablations, which also depend on a reference
    storable = how == "zero" and not run.lens.registry.in_use
    if storable:
        cache = run.cache.setdefault("ablated", {})
    else:
        cache = {}
    missing = {
        component: parts
        for component, parts in ablations.items()
        if component not in cache
    }
    variants = [Variant(str(component), parts) for component, parts in missing.items()]
    new = [*variants, *further]
    if new:
        forecasts = point_forecasts(run, new, progress)
    else:
        forecasts = np.empty((0, len(run.batch), run.horizon))
    # in place, so that the run keeps them; not strict, as the forecasts of further
    # variants follow those of the components
    cache |= dict(zip(missing, forecasts, strict=False))
    return np.array(
        [*(cache[component] for component in ablations), *forecasts[len(missing) :]]
    )


def make_ablations(
    run: Run, components: Sequence[Component], how: str, reference: Any
) -> dict[Component, tuple[Intervention, ...]]:
    """Return the interventions that ablate each component, with the run's seed."""
    is_series = not (reference is None or isinstance(reference, Activations | Encoded))
    # in a single forward, a token model's decoder also reads tokens of the horizon: a
    # run of the reference series provides them
    if is_series and how == "resample" and run.tokens_read and not run.rollout:
        reference = run.lens.run(reference, run.horizon, rollout=False).encoded
    interventions = ablated_variants(
        run.lens, components, how, reference, horizon=run.horizon, seed=run.seed
    )
    return dict(zip(components, interventions, strict=True))


def seasonal_scales(run: Run) -> np.ndarray:
    """Return the scale of MASE of each series, (series,), in data units.

    It is NaN where the model sees a constant context.
    """
    batch = run.batch
    scales = [
        seasonal_scale(values, season)
        for values, season in zip(batch.values, batch.seasonalities, strict=True)
    ]
    return np.where(cached_flat_contexts(run), np.nan, scales)
