"""Attention matrices over tokens beside the forecast: which patch of the context a head selects."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.data import as_series
from tsfm_lens.models.forecast import context_dataset
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.head_states import forecast_queries
from tsfm_lens.probes.rollout import rollout_maps
from tsfm_lens.probes.spectra import head_spectra
from tsfm_lens.probes.trajectory import describe


def patch_attention(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    kind: str | None = None,
    truth: Any = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """A matrix a head, forecast tokens × context tokens, its stable rank, and the patch that it reads most.

    Beyond one pass of a model that reads its forecast again, every pass gives its rows, and keys are places in the
    window that the pass reads, as in the paper.

    Args:
        lens: the model.
        series: exactly one series.
        horizon: forecast steps; the model's prediction length if None.
        kind: kind of attention of the stack that is read out; its last one over time if None.
        truth: (1, step) where known.
        num_samples, seed: of the forecast.

    Returns:
        Dataset of kind "patch_attention": ``attention`` (layer, head, query, key), rows summing to 1;
        ``stable_rank`` (layer, head) of W_Q W_Kᵀ; ``entropy`` (layer, head) in nats; ``argmax_key`` (layer, head),
        the key over time of the largest mean weight over the tokens that forecast, ``argmax_weight``, that weight,
        and ``argmax_start``, the first step that the key covers in the first pass; the context, the truth and
        ``quantile_forecast``.

    Source:
        tsfm-lens paper, appendix D.2 and figure 21 (S3-ROLL, S3-SRANK).

    Raises:
        InputError: see :func:`tsfm_lens.probes.rollout_maps`.
        UnknownNameError: no such kind of attention.
    """
    batch = as_series(series)
    maps = rollout_maps(lens, batch, horizon, kind=kind, keys="window", num_samples=num_samples, seed=seed)
    steps = int(maps.attrs["horizon"])
    forecast = lens.forecast(batch, steps, num_samples=num_samples, seed=seed)
    known = None if truth is None else np.asarray(truth, dtype=float)
    data = context_dataset(batch, steps, known).assign_coords(quantile=list(forecast.levels))
    data["quantile_forecast"] = (("series", "quantile", "step"), forecast.quantiles)
    data["attention"] = maps["attention"].transpose("layer", "head", "query", "key")
    data["entropy"] = maps["entropy"]
    spectra = head_spectra(lens, kind=str(maps.attrs["attention"]), stack=str(maps.attrs["stack"]), products=["QK"])
    data["stable_rank"] = spectra["stable_rank"].sel(product="QK", drop=True).sel(layer=maps["layer"])
    # special tokens cover no time, so that none of them can be marked in a series
    timed = np.flatnonzero([not str(word) for word in maps["key_special"].values])
    # a causal model has rows for its context too, which read only what is before them
    mean = data["attention"].values[:, :, forecast_queries(data)].mean(axis=2)[..., timed]
    chosen = timed[mean.argmax(axis=-1)]
    data["argmax_weight"] = (("layer", "head"), mean.max(axis=-1))
    data["argmax_key"] = (("layer", "head"), chosen)
    data["argmax_start"] = (("layer", "head"), maps["key_start"].values[chosen])
    data.attrs = describe(
        lens,
        "patch_attention",
        "Attention between forecast and context tokens",
        "tsfm-lens paper, appendix D.2 and figure 21 (S3-ROLL, S3-SRANK)",
        stack=str(maps.attrs["stack"]),
        attention=str(maps.attrs["attention"]),
        seed=seed,
        horizon=steps,
    )
    return data
