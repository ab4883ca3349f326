"""Logit lens: the forecast that the output head reads after every layer.

:func:`logit_lens` applies the model's own final norm and output head to each residual
stream; :func:`layer_gain` turns its result into the gain of each layer. No readout is
trained, so early streams may lie outside of what the head was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.axes import depth_coords
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import SMALLEST, over_windows, ratio
from tsfm_lens.hooks.hook_checks import check_additive
from tsfm_lens.models.arguments import DECILES
from tsfm_lens.models.noise import marked_dataset, rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attribution import model_readout
from tsfm_lens.probes.given import check_option, of_kind

__all__ = ["layer_gain", "logit_lens"]


PEAK_HEIGHT = 0.02  # least probability of a mode
PEAK_DISTANCE = 2  # least distance between modes, in bins
EFFECTIVE_PROBABILITY = 0.01  # tokens above it count as effective vocabulary


@probe(
    title="Logit lens",
    theme="Activations",
    summary="what each layer would forecast",
    description=(
        "The model's own output head is applied to its residual stream after every "
        "layer, as if the model ended there. This shows at which layers the "
        "forecast forms."
    ),
    source=(
        "tsfm-lens paper, section 2 and figure 1C-D (S3-DLA, S3-ENT); "
        "nostalgebraist, interpreting GPT: the logit lens"
    ),
    paper=("S3-F1D",),
    needs="sums",
)
def logit_lens(
    run: Run, *, levels: Sequence[float] = DECILES, logits: bool = False
) -> xr.Dataset:
    """Apply the model's own final norm and output head to every residual stream.

    Args:
        run: the forecast to explain.
        levels: quantiles of a token model's lens distribution.
        logits: also the ``logit`` of every value bin, of a token model.

    Returns:
        Dataset of kind "logit_lens". ``layer`` is -1 for the embedding, named in
        ``layer_label``; the last layer is the model's own output, in a token model
        after the tokens of the run's path.

        - ``quantile_forecast`` (layer, series, quantile, step): in data units.
        - ``point_forecast`` (layer, series, step): in data units, the most probable bin
          of a token model; of others the median, or the mean if the head emits a
          distribution.
        - ``native_median`` (series, step): median of the library's forecast, in data
          units.
        - ``rounding`` (series): a bound of the rounding error of that median, in data
          units.

        Of token models also:

        - ``probability`` (layer, series, step, bin): of every value bin.
        - ``value`` (series, bin): of each bin, in data units.
        - ``entropy`` (layer, series, step): in nats over the full vocabulary.
        - ``n_peaks`` (layer, series, step): number of modes.
        - ``effective_vocabulary`` (layer, series, step).

    Raises:
        InputError: a horizon longer than one pass, hooks that change the model after
            the last block, or logits of a model without a vocabulary.
        WiringError: the lens of the last layer differs from the model's own forecast by
            more than rounding.

    Example:
        >>> probes.logit_lens(run)["layer"].values.tolist()
        [-1, 0, 1, 2]
    """
    readout = run.lens.emits
    if logits and readout != "token":
        raise InputError(
            f"{run.lens.model_id} emits {readout}s, not tokens of a vocabulary, so"
            " there are no logits"
        )
    check_additive(run.lens.wiring, run.lens.wiring.output_stack)
    streams = layer_streams(run)
    depth = depth_coords("layer", len(streams) - 1)
    seasons = ("series", list(run.batch.seasonalities))
    data = marked_dataset(run.in_one_pass(), **depth, season=seasons)
    data["native_median"] = (("series", "step"), run.forecast.median)
    data["rounding"] = ("series", rounding(run, data["native_median"].values))
    data.attrs = {"readout": readout, "first_step": run.first_step}
    if readout == "token":
        return _token_lens(run, streams, data, tuple(levels), with_logits=logits)
    return _quantile_lens(run, streams, data)


def layer_streams(run: Run) -> list[Tensor]:
    """Return the residual stream after the embedding and after every block.

    Streams are (series, pos, d_model).
    """
    stack = run.lens.wiring.output_stack
    points = [
        f"{stack.name}.hook_embed".lstrip("."),
        *(f"{stack.prefix}.{layer}.hook_resid_post" for layer in range(stack.n_layers)),
    ]
    activations = run.in_one_pass().record(points)
    return [activations[point] for point in points]


def _token_lens(
    run: Run,
    streams: list[Tensor],
    data: xr.Dataset,
    levels: tuple[float, ...],
    *,
    with_logits: bool,
) -> xr.Dataset:
    """Add the distribution over bins after each layer, and what follows from it."""
    lens = run.lens
    first = lens.first_value_token
    values = lens.bin_values(run.encoded).double().numpy()
    by_layer = []
    bin_logits = []
    for stream in streams:
        with torch.no_grad():
            logits = lens.readout(stream, run.encoded)
            # own_readout checks that the last stream gives the model's own forecast
            if stream is streams[-1]:
                logits = model_readout(run, logits)
            token_probability = torch.softmax(logits.double(), dim=-1).cpu()
        if with_logits:
            bin_logits.append(logits[..., first:].float().cpu().numpy())
        bins = token_probability[..., first:].numpy()
        by_layer.append(
            (
                bins.astype(np.float32),
                torch.special.entr(token_probability).sum(-1).numpy(),
                count_peaks(bins),
                (token_probability > EFFECTIVE_PROBABILITY).sum(-1).numpy(),
                bin_quantiles(bins, values, levels),
            )
        )
    probability, entropy, peaks, effective, quantiles = (
        np.stack(layers) for layers in zip(*by_layer, strict=True)
    )
    best = probability.argmax(axis=-1)
    most_probable = np.take_along_axis(values[None, :, None], best[..., None], -1)
    axes = ("layer", "series", "step")
    if bin_logits:
        data = data.assign(logit=((*axes, "bin"), np.stack(bin_logits)))
    return data.assign_coords(quantile=list(levels)).assign(
        probability=((*axes, "bin"), probability),
        value=(("series", "bin"), values),
        entropy=(axes, entropy, {"units": "nats"}),
        n_peaks=(axes, peaks),
        effective_vocabulary=(axes, effective),
        quantile_forecast=(("layer", "series", "quantile", "step"), quantiles),
        point_forecast=(axes, most_probable[..., 0]),
    )


def _quantile_lens(run: Run, streams: list[Tensor], data: xr.Dataset) -> xr.Dataset:
    """Add the quantiles after each layer."""
    lens = run.lens
    with torch.no_grad():
        *below, last = (lens.readout(stream, run.encoded) for stream in streams)
        quantiles = torch.stack([*below, model_readout(run, last)])
    forecasts = quantiles[..., : run.horizon].cpu().double().numpy()
    median = int(np.argmin(np.abs(np.array(lens.levels) - 0.5)))
    return data.assign_coords(quantile=list(lens.levels)).assign(
        quantile_forecast=(("layer", "series", "quantile", "step"), forecasts),
        point_forecast=(("layer", "series", "step"), forecasts[:, :, median]),
    )


def count_peaks(probability: np.ndarray) -> np.ndarray:
    """Return the number of modes of distributions over bins, (…, bin) -> (…).

    A mode is a peak of at least 0.02, at least two bins from the next one.
    """
    # scipy.signal takes half a second to import
    from scipy.signal import find_peaks

    flat = probability.reshape(-1, probability.shape[-1])
    # padding lets a mode in the first or last bin count
    padded = np.pad(flat, ((0, 0), (1, 1)))
    counts = [
        len(find_peaks(row, height=PEAK_HEIGHT, distance=PEAK_DISTANCE)[0])
        for row in padded
    ]
    return np.array(counts, dtype=int).reshape(probability.shape[:-1])


def bin_quantiles(
    probability: np.ndarray, values: np.ndarray, levels: Sequence[float]
) -> np.ndarray:
    """Return quantiles of distributions over bins.

    A quantile is the first value whose cumulative probability reaches the level.
    """
    cumulative = np.cumsum(probability, axis=-1)
    cumulative /= cumulative[..., -1:]
    # a sum that reaches the level but for rounding counts as reaching it
    first = [np.argmax(cumulative >= level - 1e-12, axis=-1) for level in levels]
    return np.stack(
        [np.take_along_axis(values, index, axis=-1) for index in first], axis=1
    )


METRICS = ("sMAPE", "MAE", "RMSE")


def _reference(results: Any) -> dict[str, str]:
    """Return the reference of the gain, as options.

    It is the model's own forecast where there is no truth.
    """
    truth = results.run.truth
    if truth is None or not np.isfinite(truth).any():
        return {"reference": "model"}
    return {"reference": "truth"}


@probe(
    ("logit_lens",),
    title="Gain of each layer",
    theme="Activations",
    summary="change of the lens forecast's error from layer to layer",
    description=(
        "The error of the forecast read after a layer, compared with that of the "
        "layer before. Negative is better."
    ),
    source="tsfm-lens paper, appendix F (S3-GAIN)",
    paper=("S3-F22",),
    needs="sums",
    options=_reference,
)
def layer_gain(lens_result: xr.Dataset, *, reference: str = "truth") -> xr.Dataset:
    """Compute the change of the lens forecast's error from each layer to the next.

    ``gain_l = 100 (m_l - m_{l-1}) / m_{l-1}`` for the errors m of point forecasts:
    negative is better. At its first step a token model's decoder reads only a start
    token, so errors leave this step out, and ``first_step_error`` has it alone, if the
    horizon is longer than 2 steps. Measured against the model's own forecast, the last
    layer has no gain: its error is 0 by definition.

    Args:
        lens_result: result of kind "logit_lens".
        reference: "truth" measures against the values after the context, "model"
            against the model's own forecast.

    Returns:
        Dataset of kind "layer_gain", with the context and the truth that errors are
        measured against. ``metric`` is MAE, RMSE and sMAPE, ``100 mean(|x - y| / (|x| +
        |y|))``.

        - ``error`` (metric, layer, series): in data units, sMAPE in percent.
        - ``gain`` (metric, layer, series): in percent, NaN for the first layer and
          after an error within rounding, with what :func:`.estimates.add_estimates`
          adds for each metric.
        - ``first_step_error`` (layer, series): of token models, in data units.

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
        if (
            "truth" not in lens_result
            or not np.isfinite(lens_result["truth"].values).any()
        ):
            raise InputError(
                "this logit lens has no truth; make its run with truth=… or"
                " holdout=True, or use reference='model'"
            )
        target = lens_result["truth"]
    else:
        check_option("reference", reference, ("truth", "model"))
        target = lens_result["point_forecast"].isel(layer=-1)
    forecast = lens_result["point_forecast"].transpose("layer", "series", "step")
    axes = ("metric", "layer", "series")
    first = int(lens_result.attrs.get("first_step", 0))
    predictions = forecast.values
    targets = target.transpose("series", "step").values
    error = _errors(predictions[..., first:], targets[..., first:])
    # the uncertainty of an error is its change when rounding moves all steps of the
    # forecast in alternating directions or in one, whichever is larger
    bounds = lens_result.get("rounding", 0.0)
    rounding_errors = np.broadcast_to(bounds, targets.shape[:1])[:, None]
    signs = np.where(np.arange(targets.shape[-1]) % 2, 1.0, -1.0)
    shifts = [
        _errors((predictions + shift)[..., first:], targets[..., first:]) - error
        for shift in (rounding_errors * signs, rounding_errors + 0 * signs)
    ]
    uncertainty = np.fmax(*np.abs(shifts))
    # the gain is NaN after an error within rounding, and at the first layer
    known = np.where(error > uncertainty, error, np.nan)[:, :-1]
    before = np.pad(known, ((0, 0), (1, 0), (0, 0)), constant_values=np.nan)
    gain = 100 * (error / before - 1)
    if reference == "model":
        # the last layer is the reference, so its error is always 0
        gain[:, -1] = np.nan
    coords = {
        "metric": list(METRICS),
        "layer": forecast["layer"],
        "layer_label": forecast["layer_label"],
        "series": forecast["series"],
    }
    result = xr.Dataset({"error": (axes, error), "gain": (axes, gain)}, coords=coords)
    if first:
        result["first_step_error"] = (axes[1:], np.abs(predictions - targets)[..., 0])
    shared = ("model", "revision", "architecture", "versions", "seed", "horizon")
    # add_estimates() finds equal series, and windows of one series, by these variables
    result = result.assign(
        {
            name: lens_result[name]
            for name in ("context", "item", "flat", "truth", "season")
            if name in lens_result
        }
    )
    result.attrs = {
        "reference": reference,
        "first_step": first,
        **{key: lens_result.attrs[key] for key in shared if key in lens_result.attrs},
    }
    # first-order uncertainty of error / before, which equals 1 + gain / 100
    floor = np.full(gain.shape, np.nan)
    floor[:, 1:] = uncertainty[:, 1:] + uncertainty[:, :-1] * (1 + gain[:, 1:] / 100)
    floor *= 100 / before
    return add_estimates(
        result,
        "gain",
        floor=xr.DataArray(floor, dims=axes),
        signed=True,
        smallest=100 * SMALLEST,
        groups="metric",
    )


def _errors(forecast: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return sMAPE in percent, MAE and RMSE over known steps.

    (layer, series, step) -> (metric, layer, series).
    """
    deviation = np.abs(forecast - target)
    size = np.abs(forecast) + np.abs(target)
    share = np.where(np.isfinite(deviation), ratio(deviation, size, 0.0), np.nan)
    means = [over_windows(values) for values in (share, deviation, deviation**2)]
    return np.stack([100 * means[0], means[1], np.sqrt(means[2])])
