"""Per-layer gain: what each layer adds to the forecast's accuracy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.given import of_kind
from tsfm_lens.registry import probe

__all__ = ["layer_gain"]

METRICS = ("sMAPE", "MAE", "RMSE")


def _reference(results: Any) -> dict[str, str]:
    """Choose the reference of the gain: the model's own forecast where there is no truth."""
    truth = results.run.truth
    return {"reference": "model" if truth is None or not np.isfinite(truth).any() else "truth"}


@probe("layer_gain", ("logit_lens",), options=_reference)
def layer_gain(lens_result: xr.Dataset, *, reference: str = "truth") -> xr.Dataset:
    """Compute the change of the lens forecast's error from each layer to the next.

    ``gain_l = 100 (m_l - m_{l-1}) / m_{l-1}`` for the errors m of the point forecasts of layers l - 1 and l:
    negative is better. sMAPE is ``100 mean(|x - y| / (|x| + |y|))``. The first step of a token model's decoder, which
    reads a start token and no value, is left out of the means and has an error of its own.

    Args:
        lens_result: from :func:`tsfm_lens.probes.logit_lens`.
        reference: "truth" measures against the values after the context, "model" against the model's own forecast.

    Returns:
        Dataset of kind "layer_gain": ``error`` (metric, layer, series) and ``gain`` (metric, layer, series)
        in percent, NaN for the first layer and where the previous error is 0, with what
        :func:`tsfm_lens.probes.findings.judge` adds for each metric; of token models ``first_step_error`` (layer,
        series), the absolute error of the first step.

    Source:
        tsfm-lens paper, appendix F (S3-GAIN).

    Raises:
        InputError: the result is of another kind, or holds no truth.

    Example:
        >>> probes.layer_gain(probes.logit_lens(run))["gain"].dims
        ('metric', 'layer', 'series')
    """
    lens_result = of_kind(lens_result, "logit_lens", "layer_gain")
    if reference == "truth":
        if "truth" not in lens_result or not np.isfinite(lens_result["truth"].values).any():
            raise InputError(
                "this logit lens knows no truth; make its run with truth=… or holdout=True, or use reference='model'"
            )
        target = lens_result["truth"]
    elif reference == "model":
        target = lens_result["point_forecast"].isel(layer=-1)
    else:
        raise InputError(f"reference={reference!r} is not known, choose 'truth' or 'model'")
    forecast, axes = lens_result["point_forecast"].transpose("layer", "series", "step"), ("metric", "layer", "series")
    first = int(lens_result.attrs.get("first_step", 0))
    predictions, targets = forecast.values, target.transpose("series", "step").values
    error = _errors(predictions[..., first:], targets[..., first:])
    gain = 100 * (error / _before(error) - 1)
    coords = {"metric": list(METRICS), "layer": forecast["layer"], "series": forecast["series"]}
    result = xr.Dataset({"error": (axes, error), "gain": (axes, gain)}, coords=coords)
    if first:
        result["first_step_error"] = (axes[1:], np.abs(predictions - targets)[..., 0])
    keep = ("model", "revision", "architecture", "versions", "seed", "horizon")
    result.attrs = {
        "kind": "layer_gain",
        "title": "Gain per layer",
        "source": "tsfm-lens paper, appendix F (S3-GAIN)",
        "reference": reference,
        **{key: lens_result.attrs[key] for key in keep if key in lens_result.attrs},
    }
    # each layer's forecast may be off by itself
    off = np.broadcast_to(lens_result.get("rounding", 0.0), targets.shape[:1])[:, None]
    turn = np.where(np.arange(targets.shape[-1]) % 2, 1.0, -1.0)
    shifts = [_errors((predictions + each)[..., first:], targets[..., first:]) for each in (off * turn, off + 0 * turn)]
    doubt = np.fmax(np.abs(shifts[0] - error), np.abs(shifts[1] - error))
    floor = np.full(gain.shape, np.nan)
    floor[:, 1:] = doubt[:, 1:] + doubt[:, :-1] * (1 + gain[:, 1:] / 100)
    floor *= 100 / _before(error)
    return judge(result, "gain", floor=xr.DataArray(floor, dims=axes), signed=True, groups="metric")


def _errors(forecast: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Compute sMAPE in percent, MAE and RMSE over known steps, (layer, series, step) -> (metric, layer, series)."""
    deviation = np.abs(forecast - target)
    size = np.abs(forecast) + np.abs(target)
    share = np.divide(deviation, size, out=np.zeros_like(deviation), where=size > 0)
    valid = np.isfinite(deviation)
    share = np.where(valid, share, np.nan)
    with warnings.catch_warnings():
        # a series may have no values at all
        warnings.simplefilter("ignore", RuntimeWarning)
        means = [np.nanmean(each, axis=-1) for each in (share, deviation, deviation**2)]
    return np.stack([100 * means[0], means[1], np.sqrt(means[2])])


def _before(error: np.ndarray) -> np.ndarray:
    """Return the error of the layer before, NaN where there is none or it is 0."""
    before = np.concatenate([np.full_like(error[:, :1], np.nan), error[:, :-1]], axis=1)
    return np.where(before > 0, before, np.nan)
