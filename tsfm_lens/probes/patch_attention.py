"""Attention matrices over tokens beside the forecast: which patch of the context a head selects."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.models.run import Run
from tsfm_lens.probes.head_states import forecast_queries
from tsfm_lens.probes.rollout import autoregressive_attention
from tsfm_lens.probes.spectra import head_spectra
from tsfm_lens.registry import probe

__all__ = ["patch_attention"]


@probe("patch_attention", "first")
def patch_attention(run: Run, *, kind: str | None = None) -> xr.Dataset:
    """Compute a matrix a head, forecast × context tokens, its stable rank, and the patch that it reads most.

    Beyond one pass of a model that reads its forecast again, every pass has its own rows, and keys are places in the
    window that the pass reads, as in the paper.

    Args:
        run: the forecast to explain, of exactly one series.
        kind: kind of attention of the stack that is read out; its last one over time if None.

    Returns:
        Dataset of kind "patch_attention": ``attention`` (layer, head, query, key), rows summing to 1;
        ``stable_rank`` (layer, head) of W_Q W_Kᵀ; ``entropy`` (layer, head) in nats; ``argmax_key`` (layer, head),
        the key over time of the largest mean weight over the tokens that forecast, ``argmax_weight``, that weight,
        and ``argmax_start``, the first step that the key covers in the first pass; the context, the truth where known,
        and ``quantile_forecast``, the library's own.

    Source:
        tsfm-lens paper, appendix D.2 and figure 21 (S3-ROLL, S3-SRANK).

    Raises:
        InputError: see :func:`tsfm_lens.probes.autoregressive_attention`.
        UnknownNameError: no such kind of attention.

    Example:
        >>> bolt = tsfm_lens.load("bolt-nano").run(run.batch, 12)
        >>> probes.patch_attention(bolt)["attention"].dims
        ('layer', 'head', 'query', 'key')
    """
    maps = autoregressive_attention(run, kind=kind, keys="window")
    attention, stack = str(maps.attrs["attention"]), str(maps.attrs["stack"])
    data = run.dataset().assign_coords(quantile=list(run.forecast.levels))
    data["quantile_forecast"] = (("series", "quantile", "step"), run.forecast.quantiles)
    data["attention"] = maps["attention"].transpose("layer", "head", "query", "key")
    data["entropy"] = maps["entropy"]
    spectra = head_spectra(run.lens, kind=attention, stack=stack, products=["QK"])
    data["stable_rank"] = spectra["stable_rank"].sel(product="QK", drop=True).sel(layer=maps["layer"])
    # special tokens cover no time, so that none of them can be marked in a series
    timed = np.flatnonzero([not str(word) for word in maps["key_special"].values])
    # a causal model has rows for its context too, which read only what is before them
    mean = data["attention"].values[:, :, forecast_queries(data)].mean(axis=2)[..., timed]
    most = timed[mean.argmax(axis=-1)]
    data["argmax_weight"] = (("layer", "head"), mean.max(axis=-1))
    data["argmax_key"] = (("layer", "head"), most)
    data["argmax_start"] = (("layer", "head"), maps["key_start"].values[most])
    title = "Attention between forecast and context tokens"
    source = "tsfm-lens paper, appendix D.2 and figure 21 (S3-ROLL, S3-SRANK)"
    data.attrs = run.describe("patch_attention", title, source, stack=stack, attention=attention)
    return data
