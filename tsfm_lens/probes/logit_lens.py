"""Logit lens: the forecast that each layer's residual stream already holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from scipy.signal import find_peaks
from torch import Tensor

from tsfm_lens.models.adapter import DECILES
from tsfm_lens.models.noise import rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.writes import own_readout
from tsfm_lens.registry import probe

__all__ = ["bin_quantiles", "count_peaks", "logit_lens"]

PEAK_HEIGHT = 0.02
PEAK_DISTANCE = 2
EFFECTIVE_PROBABILITY = 0.01

_SOURCE = (
    "tsfm-lens paper, section 2 and figure 1C-D (S3-DLA, S3-ENT); nostalgebraist, interpreting GPT: the logit lens"
)


@probe("logit_lens")
def logit_lens(run: Run, *, levels: Sequence[float] = DECILES) -> xr.Dataset:
    """Read every layer's residual stream out through the model's own final norm and head.

    Args:
        run: the forecast to explain.
        levels: quantiles of a token model's lens distribution.

    Returns:
        Dataset of kind "logit_lens" over ``layer`` ("embed", "0", … in the stack that is read out),
        ``series``, ``step``. Token models: ``probability`` of every value bin, its ``value`` in data units,
        ``entropy`` in nats over the whole vocabulary, ``n_peaks``, ``effective_vocabulary``,
        ``quantile_forecast`` and ``point_forecast`` (the most probable bin). Patch models:
        ``quantile_forecast`` and its median as ``point_forecast``; models with a distribution head: its mean,
        as the one entry of ``quantile_forecast`` (``attrs["statistic"]`` tells). All forecasts are in data
        units. The last layer is the model's own output, a token model's along the run's path; ``native_median`` is the
        median of the library's own forecast. ``rounding`` (series) bounds its rounding error, in data units.

    Raises:
        InputError: the horizon is longer than one pass of the model, or hooks change the model behind the last block.
        WiringError: the readout of the last layer is not the model's own forecast, by more than rounding.

    Example:
        >>> probes.logit_lens(run)["layer"].values.tolist()
        ['embed', '0', '1', '2']
    """
    names, streams = layer_streams(run)
    data = run.dataset().assign_coords(layer=names)
    data["native_median"] = (("series", "step"), run.forecast.median)
    readout = run.lens.emits
    data["rounding"] = ("series", rounding(run, data["native_median"].values))
    data.attrs = run.describe("logit_lens", "Logit lens", _SOURCE, readout=readout, first_step=run.first_step)
    if readout == "token":
        return _token_lens(run, streams, data, tuple(levels))
    return _quantile_lens(run, streams, data)


def layer_streams(run: Run) -> tuple[list[str], list[Tensor]]:
    """Return names and residual streams (series, pos, d_model) before the first and after every block."""
    stack = run.lens.wiring.output_stack
    dot = f"{stack.name}." if stack.name else ""
    points = [f"{dot}hook_embed", *(f"{stack.prefix}.{layer}.hook_resid_post" for layer in range(stack.n_layers))]
    acts = run.in_one_pass().record(points)
    return ["embed", *map(str, range(stack.n_layers))], [acts[point] for point in points]


def _token_lens(run: Run, streams: list[Tensor], data: xr.Dataset, levels: tuple[float, ...]) -> xr.Dataset:
    lens = run.lens
    first, values = lens.first_value_token, lens.bin_values(run.encoded).double().numpy()
    shape = (len(streams), len(run.batch), run.horizon)
    probability = np.empty((*shape, values.shape[-1]), dtype=np.float32)
    entropy, peaks, effective = np.empty(shape), np.empty(shape, dtype=int), np.empty(shape, dtype=int)
    quantiles = np.empty((shape[0], shape[1], len(levels), shape[2]))
    for layer, stream in enumerate(streams):
        with torch.no_grad():
            logits = own_readout(run, stream) if stream is streams[-1] else lens.readout(stream, run.encoded)
            p = torch.softmax(logits.double(), dim=-1).cpu()
        entropy[layer] = torch.special.entr(p).sum(-1).numpy()
        effective[layer] = (p > EFFECTIVE_PROBABILITY).sum(-1).numpy()
        bins = p[..., first:].numpy()
        probability[layer] = bins
        peaks[layer] = count_peaks(bins)
        quantiles[layer] = bin_quantiles(bins, values, levels)
    data = data.assign_coords(quantile=list(levels))
    where = ("layer", "series", "step")
    best = probability.argmax(axis=-1)
    data["probability"] = ((*where, "bin"), probability)
    data["value"] = (("series", "bin"), values)
    data["entropy"] = (where, entropy, {"units": "nats"})
    data["n_peaks"] = (where, peaks)
    data["effective_vocabulary"] = (where, effective)
    data["quantile_forecast"] = (("layer", "series", "quantile", "step"), quantiles)
    data["point_forecast"] = (where, np.take_along_axis(values[None, :, None], best[..., None], -1)[..., 0])
    return data


def _quantile_lens(run: Run, streams: list[Tensor], data: xr.Dataset) -> xr.Dataset:
    lens = run.lens
    with torch.no_grad():
        *below, last = streams
        quantiles = torch.stack([*(lens.readout(stream, run.encoded) for stream in below), own_readout(run, last)])
    array = quantiles[..., : run.horizon].cpu().double().numpy()
    levels = list(lens.levels)
    data = data.assign_coords(quantile=levels)
    data["quantile_forecast"] = (("layer", "series", "quantile", "step"), array)
    middle = int(np.argmin(np.abs(np.array(levels) - 0.5)))
    data["point_forecast"] = (("layer", "series", "step"), array[:, :, middle])
    return data


def count_peaks(probability: np.ndarray) -> np.ndarray:
    """Count modes of distributions over bins, (…, bin) -> (…): peaks of at least 0.02, two bins apart.

    Example:
        >>> int(probes.count_peaks(np.array([0.5, 0.0, 0.0, 0.0, 0.5])))
        2
    """
    flat = probability.reshape(-1, probability.shape[-1])
    # padding lets a mode in the first or last bin count
    padded = np.pad(flat, ((0, 0), (1, 1)))
    counts = [len(find_peaks(row, height=PEAK_HEIGHT, distance=PEAK_DISTANCE)[0]) for row in padded]
    return np.array(counts, dtype=int).reshape(probability.shape[:-1])


def bin_quantiles(probability: np.ndarray, values: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Compute quantiles of distributions over value bins.

    Args:
        probability: (series, step, bin), need not sum to 1 (mass on special tokens is left out).
        values: (series, bin), ascending.
        levels: between 0 and 1.

    Returns:
        (series, level, step): the first value whose cumulative probability reaches the level.

    Example:
        >>> probes.bin_quantiles(np.full((1, 1, 4), 0.25), np.array([[1.0, 2.0, 3.0, 4.0]]), [0.5]).tolist()
        [[[2.0]]]
    """
    cumulative = np.cumsum(probability, axis=-1)
    cumulative /= cumulative[..., -1:]
    out = np.empty((probability.shape[0], len(levels), probability.shape[1]))
    for index, level in enumerate(levels):
        first = np.argmax(cumulative >= level - 1e-12, axis=-1)
        out[:, index] = np.take_along_axis(values, first, axis=-1)
    return out
