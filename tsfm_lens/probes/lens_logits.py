"""The logits of every value bin, read from the residual stream after every layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.models.forecast import context_dataset
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.logit_lens import layer_streams
from tsfm_lens.probes.trajectory import describe, trajectory


def lens_logits(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    truth: Any = None,
    along: Any = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """The logits themselves, where :func:`tsfm_lens.probes.logit_lens` gives probabilities.

    Args:
        lens: a model that forecasts by tokens.
        series, horizon, truth, along, num_samples, seed: see :func:`tsfm_lens.probes.trajectory.trajectory`.

    Returns:
        Dataset of kind "lens_logits": ``logit`` (layer, series, step, bin), as the head gives them;
        ``value`` (series, bin) in data units. Layers as in the logit lens.

    Source:
        tsfm-lens paper, section 2 and figure 1C (S3-DLA).

    Raises:
        InputError: the model has no vocabulary, or the horizon is longer than one pass.
    """
    if lens.adapter.readout != "token":
        raise InputError(
            f"{lens.model_id} emits {lens.adapter.readout}s, not tokens of a vocabulary, so that there are no logits; "
            "logit_lens gives the forecast that each of its layers holds"
        )
    run = trajectory(lens, series, horizon, truth=truth, along=along, num_samples=num_samples, seed=seed)
    names, streams = layer_streams(lens, run)
    first: int = lens.adapter.first_value_token  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = [lens.readout(stream, run.encoded)[..., first:].float().cpu().numpy() for stream in streams]
    data = context_dataset(run.batch, run.horizon, run.truth).assign_coords(layer=names)
    data["logit"] = (("layer", "series", "step", "bin"), np.stack(logits))
    data["value"] = (("series", "bin"), lens.adapter.values(run.encoded)[:, first:].double().cpu().numpy())
    source = "tsfm-lens paper, section 2 and figure 1C (S3-DLA)"
    data.attrs = describe(lens, "lens_logits", "Lens logits", source, seed=seed, horizon=run.horizon)
    return data
