"""Everything that one linked view of a model's heads shows: scores, attention, writes, spectra, ablations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.metrics import spearman_distance
from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.forecast import Forecast, context_dataset
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.attention import attention_patterns
from tsfm_lens.probes.attribution import attribute
from tsfm_lens.probes.spectra import head_spectra
from tsfm_lens.probes.trajectory import describe

Progress = Callable[[int, int], None]

_SOURCE = "tsfm-lens paper, sections 2 to 5 (S3-HEAD, S3-ZA-H, S3-SPEAR, S3-HENT, S3-SRANK)"
# the methods of an attribution whose parts are in data units, the most exact first, and what they split
_WRITES = {
    "expected_value": "expected value",
    "integrated": "median",
    "lens_difference": "median",
}


def head_states(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    truth: Any = None,
    kind: str | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """What each head of one kind looks at, writes, is like, and what the forecast becomes without it.

    Args:
        lens: the model.
        series: exactly one series.
        horizon: steps, at most what one pass yields; the model's prediction length if None.
        truth: (1, step) what came after the context.
        kind: kind of attention of the stack that is read out; its last kind over time if None.
        num_samples, seed: of every forecast; the same draw with and without a head.
        progress: called with (done, of) after each head is ablated.

    Returns:
        Dataset of kind "explore". By ``layer`` and ``head``: ``entropy`` in nats and ``normalised_entropy`` (min-max
        over the heads); ``write`` (…, step), what the head's write adds to the forecast in data units,
        ``write_size``, its mean absolute value over steps, ``write_share``, that of the sum over all components;
        ``stable_rank`` (product, …) and ``singular_value`` (product, …, mode); ``ablated_forecast``
        (…, series, quantile, step), ``mean_shift``, the mean absolute change of the median in data units, and, from
        two steps on, ``spearman_distance``. ``attention`` (layer, head, time) is the mean over forecast queries of the
        weight on each context step, a token's weight spread evenly over its steps; ``attention_forecast`` and
        ``attention_other`` are the weight on forecast tokens, and on special tokens and padding: with them it sums
        to 1. ``quantile_forecast`` (series, quantile, step) is the plain forecast; coordinate ``component`` names the
        heads.

    Source:
        tsfm-lens paper: sections 2 to 5 (S3-HEAD, S3-ZA-H, S3-SPEAR, S3-HENT, S3-SRANK).

    Raises:
        InputError: not exactly one series, several variates, the horizon is longer than one pass, or attention of
            this kind is between variates.
        UnknownNameError: the stack has no such kind of attention.
    """
    batch = as_series(series)
    if len(batch) != 1:
        raise InputError(f"heads are explored on one series at a time, got {len(batch)}; use batch.select(…)")
    maps = attention_patterns(lens, batch, horizon, kind=kind, num_samples=num_samples, seed=seed)
    steps, chosen = int(maps.attrs["horizon"]), str(maps.attrs["attention"])
    data = context_dataset(batch, steps, truth).assign_coords(layer=maps["layer"], head=maps["head"])
    names = [
        [str(Component(str(maps.attrs["stack"]), int(layer), chosen, int(head))) for head in data["head"].values]
        for layer in data["layer"].values
    ]
    data = data.assign_coords(component=(("layer", "head"), names))
    data["entropy"] = maps["entropy"]
    spread = float(data["entropy"].max() - data["entropy"].min())
    data["normalised_entropy"] = (data["entropy"] - data["entropy"].min()) / (spread or 1.0)
    data.update(attention_over_steps(maps))
    spectra = head_spectra(lens, kind=chosen).sel(layer=data["layer"])
    data.update(spectra[["singular_value", "stable_rank"]])
    parts = attribute(lens, batch, steps, num_samples=num_samples, seed=seed)
    method = next(name for name in _WRITES if name in parts["method"].values)
    data.update(_writes(parts, method, data["component"]))
    plain = lens.forecast(batch, steps, num_samples=num_samples, seed=seed)
    data.update(_ablated(lens, plain, data["component"], num_samples, seed, progress))
    data.attrs = describe(
        lens,
        "explore",
        "One head at a time",
        _SOURCE,
        stack=maps.attrs["stack"],
        attention=chosen,
        series=batch.ids[0],
        units=batch.units[0],
        method=method,
        samples=0 if plain.samples is None else plain.samples.shape[1],
        seed=seed,
        horizon=steps,
    )
    # whole forecasts have medians, whatever the head; what a write adds to is said apart
    data.attrs["write_to"] = data.attrs.pop("statistic", _WRITES[method])
    return data


def attention_over_steps(maps: xr.Dataset) -> dict[str, xr.DataArray]:
    """Each head's mean attention while it forecasts, by context step.

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
    heads = ("layer", "head")
    return {
        "attention": xr.DataArray(weights @ spread, dims=(*heads, "time")),
        "attention_forecast": xr.DataArray(weights[..., ahead].sum(axis=-1), dims=heads),
        "attention_other": xr.DataArray(weights[..., ~past & ~ahead].sum(axis=-1), dims=heads),
    }


def forecast_queries(maps: xr.Dataset) -> np.ndarray:
    """The tokens of an attention dataset that the forecast is read from, (query,) indices.

    These are the tokens of forecast steps; where a model has none, the last token of the context, whose output
    becomes the forecast.
    """
    start, stop = maps["query_start"].values, maps["query_stop"].values
    ordinary = maps["query_special"].values == ""
    ahead = np.flatnonzero(ordinary & (start >= 0) & (start < maps.sizes["step"]))
    if len(ahead):
        return ahead
    seen = np.flatnonzero(ordinary)
    return seen[[int(np.argmax(stop[seen]))]]


def _writes(parts: xr.Dataset, method: str, component: xr.DataArray) -> dict[str, xr.DataArray]:
    """Each head's part of the attributed forecast in data units."""
    own = parts["attribution"].sel({"method": method}).isel(series=0)
    if "quantile" in own.dims:
        own = own.sel(quantile=0.5, method="nearest")
    own = own.transpose("component", "step")
    places = {str(name): place for place, name in enumerate(own["component"].values)}
    index = [[places[str(name)] for name in row] for row in component.values]
    sizes = np.abs(own.values).mean(axis=-1)
    found = {"write": own.values[index], "write_size": sizes[index], "write_share": sizes[index] / (sizes.sum() or 1.0)}
    return {key: xr.DataArray(values, dims=("layer", "head", "step")[: values.ndim]) for key, values in found.items()}


def _ablated(
    lens: Lens, plain: Forecast, component: xr.DataArray, num_samples: int | None, seed: int, progress: Progress | None
) -> dict[str, xr.DataArray]:
    """The forecast without each head, and how far it moves."""
    names = [str(name) for name in component.values.ravel()]
    quantiles = np.empty((len(names), *plain.quantiles.shape))
    for index, name in enumerate(names):
        with lens.ablate(name):
            without = lens.forecast(plain.context, plain.horizon, num_samples=num_samples, seed=seed)
        quantiles[index] = without.quantiles
        if progress is not None:
            progress(index + 1, len(names))
    heads, axes = ("layer", "head"), ("series", "quantile", "step")
    levels = {"quantile": list(plain.levels)}
    found = {
        "quantile_forecast": xr.DataArray(plain.quantiles, dims=axes, coords=levels),
        "ablated_forecast": xr.DataArray(
            quantiles.reshape(*component.shape, *plain.quantiles.shape), dims=(*heads, *axes), coords=levels
        ),
    }
    medians, median = quantiles[:, 0, plain.levels.index(0.5)], plain.median[0]
    shift = np.abs(medians - median).mean(axis=-1)
    found["mean_shift"] = xr.DataArray(shift.reshape(component.shape), dims=heads)
    if plain.horizon > 1:
        distance = spearman_distance(medians, np.broadcast_to(median, medians.shape))
        found["spearman_distance"] = xr.DataArray(distance.reshape(component.shape), dims=heads)
    return found
