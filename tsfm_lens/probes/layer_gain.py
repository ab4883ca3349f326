"""Per-layer gain: what each layer adds to the forecast's accuracy."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError

__all__ = ["layer_gain"]

METRICS = ("sMAPE", "MAE", "RMSE")


def layer_gain(lens_result: xr.Dataset, *, reference: str = "truth") -> xr.Dataset:
    """Change of the lens forecast's error from each layer to the next.

    ``gain_l = 100 (m_l - m_{l-1}) / m_{l-1}`` for the errors m of the point forecasts of layers l - 1 and l:
    negative is better. sMAPE is ``100 mean(|x - y| / (|x| + |y|))``.

    Args:
        lens_result: from :func:`tsfm_lens.probes.logit_lens`.
        reference: "truth" measures against what came after the context, "model" against the model's own
            final forecast.

    Returns:
        Dataset of kind "layer_gain": ``error`` (metric, layer, series) and ``gain`` (metric, layer, series)
        in percent, NaN for the first layer and where the previous error is 0.

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
    deviation = abs(forecast - target)
    size = abs(forecast) + abs(target)
    share = xr.where(size > 0, deviation / size.where(size > 0, 1.0), 0.0).where(np.isfinite(deviation))
    errors = [100 * share.mean("step"), deviation.mean("step"), np.sqrt((deviation**2).mean("step"))]
    error = xr.concat(errors, dim="metric").assign_coords(metric=list(METRICS))
    before = error.shift(layer=1)
    result = xr.Dataset({"error": error, "gain": 100 * (error - before) / before.where(before > 0)})
    keep = ("model", "revision", "architecture", "versions", "seed", "horizon")
    result.attrs = {
        "kind": "layer_gain",
        "title": "Gain per layer",
        "source": "tsfm-lens paper, appendix F (S3-GAIN)",
        "reference": reference,
        **{key: lens_result.attrs[key] for key in keep if key in lens_result.attrs},
    }
    return result.transpose("metric", "layer", "series")
