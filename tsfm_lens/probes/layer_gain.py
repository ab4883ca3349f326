"""Per-layer gain: what each layer adds to the forecast's accuracy."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.probes.findings import judge

__all__ = ["layer_gain"]

METRICS = ("sMAPE", "MAE", "RMSE")


def layer_gain(lens_result: xr.Dataset, *, reference: str = "truth") -> xr.Dataset:
    """Change of the lens forecast's error from each layer to the next.

    ``gain_l = 100 (m_l - m_{l-1}) / m_{l-1}`` for the errors m of the point forecasts of layers l - 1 and l:
    negative is better. sMAPE is ``100 mean(|x - y| / (|x| + |y|))``. The first step of a token model's decoder, which
    reads a start token and no value, is left out of the means and has an error of its own.

    Args:
        lens_result: from :func:`tsfm_lens.probes.logit_lens`.
        reference: "truth" measures against what came after the context, "model" against the model's own
            final forecast.

    Returns:
        Dataset of kind "layer_gain": ``error`` (metric, layer, series) and ``gain`` (metric, layer, series)
        in percent, NaN for the first layer and where the previous error is 0, with what
        :func:`tsfm_lens.probes.findings.judge` adds for each metric; of token models ``first_step_error`` (layer,
        series), the absolute error of the first step.

    Source:
        tsfm-lens paper, appendix F (S3-GAIN).

    Raises:
        InputError: the result is of another kind, or holds no truth.
    """
    if lens_result.attrs.get("kind") != "logit_lens":
        raise InputError(f"layer_gain takes a result of logit_lens, got kind {lens_result.attrs.get('kind')!r}")
    if reference == "truth":
        if "truth" not in lens_result:
            raise InputError(
                "this logit lens knows no truth; make its run with truth=… or holdout=True, or use reference='model'"
            )
        target = lens_result["truth"]
    elif reference == "model":
        target = lens_result["point_forecast"].isel(layer=-1)
    else:
        raise InputError(f"reference={reference!r} is not known, choose 'truth' or 'model'")
    forecast = lens_result["point_forecast"]
    from_step = int(lens_result.attrs.get("steps_from", 0))
    later = {"step": slice(from_step, None)}
    error, gain = _gain(forecast.isel(later), target.isel(later))
    result = xr.Dataset({"error": error, "gain": gain})
    if from_step:
        result["first_step_error"] = abs(forecast - target).isel(step=0, drop=True)
    keep = ("model", "revision", "architecture", "versions", "seed", "horizon")
    result.attrs = {
        "kind": "layer_gain",
        "title": "Gain per layer",
        "source": "tsfm-lens paper, appendix F (S3-GAIN)",
        "reference": reference,
        **{key: lens_result.attrs[key] for key in keep if key in lens_result.attrs},
    }
    result = result.transpose("metric", "layer", "series", missing_dims="ignore")
    # each layer's forecast may be off by itself
    off = lens_result.get("rounding", 0.0) * xr.where(forecast["step"] % 2, 1.0, -1.0)
    to_either, to_one = (abs(_gain((forecast + o).isel(later), target.isel(later))[0] - error) for o in (off, abs(off)))
    doubt, before = to_either.where(to_either > to_one, to_one), error.shift(layer=1)
    floor = 100 * (doubt + doubt.shift(layer=1) * error / before.where(before > 0)) / before.where(before > 0)
    return judge(result, "gain", floor=floor.transpose(*result["gain"].dims), signed=True, groups="metric")


def _gain(forecast: xr.DataArray, target: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Errors (metric, layer, series) of each layer's forecasts, and their change from the layer before in percent."""
    deviation = abs(forecast - target)
    size = abs(forecast) + abs(target)
    share = xr.where(size > 0, deviation / size.where(size > 0, 1.0), 0.0).where(np.isfinite(deviation))
    errors = [100 * share.mean("step"), deviation.mean("step"), np.sqrt((deviation**2).mean("step"))]
    error = xr.concat(errors, dim="metric").assign_coords(metric=list(METRICS))
    before = error.shift(layer=1)
    return error, 100 * (error - before) / before.where(before > 0)
