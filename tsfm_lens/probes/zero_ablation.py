"""Ablation effects: what a forecast loses without a head, an MLP or a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import mae, relative_change, seasonal_scale, spearman_distance
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.models.ablating import ablated_variants
from tsfm_lens.models.forecast import context_dataset
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.attribution import component_coords
from tsfm_lens.probes.places import listed
from tsfm_lens.probes.runs import Progress, runs_of
from tsfm_lens.probes.trajectory import checked_horizon, describe


def ablation_effects(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    components: Sequence[str | Component] | None = None,
    how: str = "zero",
    reference: Any = None,
    truth: Any = None,
    num_samples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Ablate components one at a time and compare the forecasts.

    Sampling models forecast with the same seed every time, so that differences are the ablation's and not
    the draw's. Patch models within one pass are run side by side with a replayed prefix.

    Args:
        lens: the model.
        series: the context, anything that ``as_series`` takes.
        horizon: forecast steps; the model's prediction length if None.
        components: names or globs; if None every head, MLP and whole layer of the stack that is read out.
        how: "zero", "mean", "resample" or "noise"; see :meth:`Lens.ablate`.
        reference: for mean and resample.
        truth: (series, step) for the errors.
        num_samples, seed: of the forecasts.
        progress: called with (done, of) after each component.

    Returns:
        Dataset of kind "ablation" over ``component`` and ``series``: ``spearman_distance`` to the plain
        forecast; with a truth ``mae``, ``mase``, their baselines and relative changes
        (``mae_change`` = ablated / baseline - 1); ``forecast`` and ``baseline_forecast`` (medians; means
        of a model with a distribution head, where one pass is enough).

    Source:
        tsfm-lens paper, section 3 (S3-ZA-H, S3-ZA-M, S3-ZA-L, S3-SPEAR).

    Raises:
        UnknownNameError: a component does not exist.
    """
    batch = as_series(series)
    steps = checked_horizon(lens, horizon)
    chosen = _default(lens) if components is None else lens.components(*listed(components, "components"))
    data = context_dataset(batch, steps, truth).assign_coords(component_coords(list(chosen)))
    single_pass = lens.adapter.readout != "token" and steps <= lens.adapter.longest_pass
    runs = runs_of(lens, batch, steps, rollout=not single_pass, num_samples=num_samples, seed=seed)
    made = ablated_variants(lens, chosen, how, reference, horizon=steps, seed=seed)
    variants = [Variant(str(each), parts) for each, parts in zip(chosen, made, strict=True)]
    plain = runs.forecasts([Variant("plain", ())])[0]
    forecasts = runs.forecasts(variants, progress)
    data["forecast"] = (("component", "series", "step"), forecasts)
    data["baseline_forecast"] = (("series", "step"), plain)
    if steps > 1:
        distance = spearman_distance(forecasts, np.broadcast_to(plain, forecasts.shape))
        data["spearman_distance"] = (("component", "series"), distance)
    data["mean_shift"] = (("component", "series"), np.abs(forecasts - plain).mean(axis=-1))
    if truth is not None:
        data = _errors(data, batch, np.asarray(truth, dtype=float), forecasts, plain)
    data.attrs = describe(
        lens,
        "ablation",
        "Ablation effects",
        "tsfm-lens paper, section 3 (S3-ZA, S3-SPEAR)",
        how=how,
        seed=seed,
        horizon=steps,
    )
    if runs.rollout:
        # whole forecasts have medians, whatever the head
        data.attrs.pop("statistic", None)
    return data


def _default(lens: Lens) -> list[Component]:
    stack = lens.wiring.output_stack
    layers = [Component(stack.name, layer) for layer in range(stack.n_layers)]
    return sorted(
        [*writers(lens.wiring), *layers],
        key=lambda c: (c.layer, c.kind is None, c.kind or "", c.head is None, c.head or 0),
    )


def _errors(
    data: xr.Dataset, batch: SeriesBatch, truth: np.ndarray, forecasts: np.ndarray, plain: np.ndarray
) -> xr.Dataset:
    seasons = zip(batch.values, batch.seasonalities, strict=True)
    scale = np.array([seasonal_scale(values, season) for values, season in seasons])
    error, baseline = mae(forecasts, truth), mae(plain, truth)
    data["mae"] = (("component", "series"), error)
    data["mae_baseline"] = (("series",), baseline)
    data["mase"] = (("component", "series"), error / scale)
    data["mase_baseline"] = (("series",), baseline / scale)
    change = relative_change(error, baseline)
    data["mae_change"] = (("component", "series"), change)
    # the scale is the same before and after, so MASE changes as MAE does wherever it is defined
    data["mase_change"] = (("component", "series"), np.where(np.isfinite(scale), change, np.nan))
    return data
