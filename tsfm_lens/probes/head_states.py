"""Data of the linked view of a model's heads: scores, attention, writes, spectra, ablations."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import Progress
from tsfm_lens.ablation.rollouts import forecast_variants
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import attention_patterns, refuse_several, shown_attention
from tsfm_lens.probes.attribution import attribute, of_median
from tsfm_lens.probes.spectra import head_spectra
from tsfm_lens.probes.zero_ablation import ablation_effects
from tsfm_lens.registry import probe

__all__ = ["head_states"]

_SOURCE = "tsfm-lens paper, sections 2 to 5 (S3-HEAD, S3-ZA-H, S3-SPEAR, S3-HENT, S3-SRANK)"
# the decompositions of an attribution whose parts are in data units, the most exact first, and what they split
_WRITES = {"expected_value": "expected value", "integrated": "median", "lens_difference": "median"}


@probe("explore", "first", each=lambda lens: {"explore": {}} if shown_attention(lens) else {})
def head_states(run: Run, *, kind: str | None = None, progress: Progress | None = None) -> xr.Dataset:
    """Collect what each head of one kind looks at, writes and is like, and the forecast without it.

    Args:
        run: the forecast to explain, of exactly one series. With and without a head it takes the same draws.
        kind: kind of attention of the stack that is read out; its last kind over time if None.
        progress: called with the heads ablated so far and their number.

    Returns:
        Dataset of kind "explore". By ``layer`` and ``head``: ``entropy`` in nats and ``normalised_entropy`` (min-max
        over the heads); ``write`` (…, step), what the head's write adds to the forecast in data units,
        ``write_size``, its mean absolute value over steps, ``write_share``, that of the sum over all components;
        ``stable_rank`` (product, …) and ``singular_value`` (product, …, mode); ``mean_shift`` and, from two steps on,
        ``spearman_distance`` as :func:`tsfm_lens.probes.ablation_effects` measures them, with what stands out
        (``mean_shift_stands_out``, ``mean_shift_leads``); ``ablated_forecast`` (…, series, quantile, step).
        ``attention`` (layer, head, time) is the mean over forecast queries of the weight on each context step, a
        token's weight spread evenly over its steps, at most ``attrs["token_steps"]`` of them; ``attention_forecast``
        and ``attention_other`` are the weight on forecast tokens, and on special tokens and padding: with them it sums
        to 1. ``quantile_forecast`` (series, quantile, step) is the plain forecast, as the ablated ones the library's
        own; coordinate ``component`` names the heads.

    Source:
        tsfm-lens paper: sections 2 to 5 (S3-HEAD, S3-ZA-H, S3-SPEAR, S3-HENT, S3-SRANK).

    Raises:
        InputError: not exactly one series, several variates, the horizon is longer than one pass, or attention of
            this kind is between variates.
        UnknownNameError: the stack has no such kind of attention.

    Example:
        >>> dict(probes.head_states(run.shortened(2))["attention"].sizes)
        {'layer': 3, 'head': 4, 'time': 128}
    """
    refuse_several(run, "heads are explored")
    maps = attention_patterns(run, kind=kind)
    attention = str(maps.attrs["attention"])
    data = run.dataset().assign_coords(layer=maps["layer"], head=maps["head"])
    names = [
        [str(Component(str(maps.attrs["stack"]), int(layer), attention, int(head))) for head in data["head"].values]
        for layer in data["layer"].values
    ]
    data = data.assign_coords(component=(("layer", "head"), names))
    data["entropy"] = maps["entropy"]
    spread = float(data["entropy"].max() - data["entropy"].min())
    data["normalised_entropy"] = (data["entropy"] - data["entropy"].min()) / (spread or 1.0)
    data.update(attention_over_steps(maps))
    spectra = head_spectra(run.lens, kind=attention).sel(layer=data["layer"])
    data.update(spectra[["singular_value", "stable_rank"]])
    parts = attribute(run)
    decomposition = next(name for name in _WRITES if name in parts["decomposition"].values)
    data.update(_writes(parts, decomposition, data["component"]))
    data.update(_shifts(run, data["component"]))
    data.update(_ablations(run, data["component"], progress))
    samples = run.forecast.samples
    facts = {"stack": maps.attrs["stack"], "attention": attention, "series": run.batch.ids[0]}
    facts |= {"units": run.batch.units[0], "decomposition": decomposition}
    facts |= {"samples": 0 if samples is None else samples.shape[1]}
    data.attrs = run.describe("explore", "One head at a time", _SOURCE, **facts)
    # whole forecasts have medians, whatever the head; the target of a write has an attribute of its own
    data.attrs["write_to"] = data.attrs.pop("statistic", _WRITES[decomposition])
    return data


def attention_over_steps(maps: xr.Dataset) -> dict[str, xr.DataArray]:
    """Average each head's attention while it forecasts, by context step.

    Args:
        maps: of kind "attention".

    Returns:
        ``attention`` (layer, head, time), ``attention_forecast`` and ``attention_other`` (layer, head); see
        :func:`head_states`.
    """
    weights = maps["pattern"].values[:, :, forecast_queries(maps)].astype(float).mean(axis=2)
    first, width = int(maps["time"].values[0]), maps.sizes["time"]
    start, stop = maps["key_start"].values, maps["key_stop"].values
    ordinary = maps["key_special"].values == ""
    past = ordinary & (start < 0) & (stop > first)
    spread = np.zeros((len(start), width))
    for key in np.flatnonzero(past):
        # of a token that reaches beyond the series, the steps that show it
        low, high = max(start[key], first) - first, min(stop[key], 0) - first
        spread[key, low:high] = 1 / (high - low)
    ahead = ordinary & (start >= 0)
    heads, most = ("layer", "head"), int((spread > 0).sum(axis=1).max(initial=0))
    return {
        "attention": xr.DataArray(weights @ spread, dims=(*heads, "time"), attrs={"token_steps": most}),
        "attention_forecast": xr.DataArray(weights[..., ahead].sum(axis=-1), dims=heads),
        "attention_other": xr.DataArray(weights[..., ~past & ~ahead].sum(axis=-1), dims=heads),
    }


def forecast_queries(maps: xr.Dataset) -> np.ndarray:
    """Return the tokens of an attention dataset that the forecast is read from, (query,) indices.

    These are the tokens of forecast steps; where a model has none, the last token of the context, whose output
    becomes the forecast.
    """
    start, stop = maps["query_start"].values, maps["query_stop"].values
    ordinary = maps["query_special"].values == ""
    ahead = np.flatnonzero(ordinary & (start >= 0) & (start < maps.sizes["step"]))
    if len(ahead):
        return ahead
    tokens = np.flatnonzero(ordinary)
    return tokens[[int(np.argmax(stop[tokens]))]]


def _writes(parts: xr.Dataset, decomposition: str, component: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return each head's part of the attributed forecast in data units."""
    attribution = parts["attribution"].sel(decomposition=decomposition).isel(series=0)
    attribution = of_median(attribution).transpose("component", "step")
    places = {str(name): place for place, name in enumerate(attribution["component"].values)}
    index = [[places[str(name)] for name in row] for row in component.values]
    sizes = np.abs(attribution.values).mean(axis=-1)
    writes = {
        "write": attribution.values[index],
        "write_size": sizes[index],
        "write_share": sizes[index] / (sizes.sum() or 1.0),
    }
    return {key: xr.DataArray(values, dims=("layer", "head", "step")[: values.ndim]) for key, values in writes.items()}


def _shifts(run: Run, component: xr.DataArray) -> dict[str, xr.DataArray]:
    """Measure how far the forecast moves without each head, as for every ablation."""
    effects = ablation_effects(run, components=[str(name) for name in component.values.ravel()])
    names = ["mean_shift", "mean_shift_stands_out", "mean_shift_leads", "spearman_distance"]
    return {
        name: xr.DataArray(effects[name].values.reshape(component.shape), dims=("layer", "head"))
        for name in names
        if name in effects
    }


def _ablations(run: Run, component: xr.DataArray, progress: Progress | None) -> dict[str, xr.DataArray]:
    """Return the library's own forecast, plain and without each head."""
    plain = run.forecast
    # whole distributions, which single forwards of a token model do not give
    quantiles = forecast_variants(
        run.lens,
        run.batch,
        run.horizon,
        [Variant(str(name), (Zero(str(name)),)) for name in component.values.ravel()],
        quantiles=plain.levels,
        num_samples=run.num_samples,
        seed=run.seed,
        progress=progress,
    ).quantiles
    heads, axes = ("layer", "head"), ("series", "quantile", "step")
    levels = {"quantile": list(plain.levels)}
    return {
        "quantile_forecast": xr.DataArray(plain.quantiles, dims=axes, coords=levels),
        "ablated_forecast": xr.DataArray(
            quantiles.reshape(*component.shape, *plain.quantiles.shape), dims=(*heads, *axes), coords=levels
        ),
    }
