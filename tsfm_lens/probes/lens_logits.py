"""Logits of every value after each layer."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.models.run import Run
from tsfm_lens.probes.logit_lens import layer_streams
from tsfm_lens.registry import probe

__all__ = ["lens_logits"]


@probe("lens_logits", "first")
def lens_logits(run: Run) -> xr.Dataset:
    """Compute the logits themselves, where :func:`logit_lens` gives probabilities.

    Args:
        run: the forecast to explain, of a model that forecasts by tokens.

    Returns:
        Dataset of kind "lens_logits": ``logit`` (layer, series, step, bin); ``value`` (series, bin) in data units.

    Source:
        tsfm-lens paper, section 2 and figure 1C (S3-DLA).

    Raises:
        InputError: the model has no vocabulary, or a horizon longer than one pass.

    Example:
        >>> probes.lens_logits(run)["logit"].dims
        ('layer', 'series', 'step', 'bin')
    """
    lens = run.lens
    if lens.emits != "token":
        raise InputError(
            f"{lens.model_id} emits {lens.emits}s, not tokens of a vocabulary, so that there are no logits; "
            "logit_lens gives the forecast that each of its layers holds"
        )
    names, streams = layer_streams(run)
    first = lens.first_value_token
    with torch.no_grad():
        logits = [lens.readout(stream, run.encoded)[..., first:].float().cpu().numpy() for stream in streams]
    data = run.dataset().assign_coords(layer=names)
    data["logit"] = (("layer", "series", "step", "bin"), np.stack(logits))
    data["value"] = (("series", "bin"), lens.bin_values(run.encoded).double().cpu().numpy())
    source = "tsfm-lens paper, section 2 and figure 1C (S3-DLA)"
    data.attrs = run.describe("lens_logits", "Lens logits", source)
    return data
