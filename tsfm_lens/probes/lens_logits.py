"""Logits of every value bin, read from the residual stream after every layer."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
import xarray as xr

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.probes.logit_lens import layer_streams
from tsfm_lens.probes.places import component_coords
from tsfm_lens.probes.writes import own_readout, writes_and_stream
from tsfm_lens.registry import probe

__all__ = ["lens_logits"]

NORMS = ("frozen", "own")


@probe("lens_logits", "first")
def lens_logits(run: Run) -> xr.Dataset:
    """Compute the logits themselves, where :func:`tsfm_lens.probes.logit_lens` gives probabilities.

    Args:
        run: the forecast to explain, of a model that forecasts by tokens.

    Returns:
        Dataset of kind "lens_logits": ``logit`` (layer, series, step, bin), as the head gives them;
        ``value`` (series, bin) in data units. Layers as in the logit lens.

    Source:
        tsfm-lens paper, section 2 and figure 1C (S3-DLA).

    Raises:
        InputError: the model has no vocabulary, or the horizon is longer than one pass.

    Example:
        >>> probes.lens_logits(run)["logit"].dims
        ('layer', 'series', 'step', 'bin')
    """
    lens = run.lens
    _refuse(lens)
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


def component_logits(run: Run, *, components: Sequence[str] | None = None, norm: str = "frozen") -> xr.Dataset:
    """Read out single writes: a map of steps × vocabulary for every head, MLP and the embedding.

    Args:
        run: the forecast to explain, of a model that forecasts by tokens.
        components: names or globs of names, such as "decoder.1.cross_attn.*" or "embed"; all if None.
        norm: "frozen" scales every write as the final norm scales the whole stream, so that the maps of all components
            sum to the model's logits; "own" applies the final norm to the write itself, as the paper's released code.

    Returns:
        Dataset of kind "component_logits": ``logit`` (component, series, step, token), over the whole vocabulary; and
        coordinates that place the components in the model.

    Source:
        tsfm-lens paper, section 2 (S3-DLA).

    Raises:
        InputError: the model has no vocabulary, ``norm`` is neither, or the horizon is longer than one pass.
        UnknownNameError: no such component.
        WiringError: as in :func:`tsfm_lens.probes.attribute`.
    """
    lens = run.lens
    _refuse(lens)
    if norm not in NORMS:
        raise InputError(f"norm={norm!r} is not known, choose {' or '.join(map(repr, NORMS))}")
    names, writes, last = writes_and_stream(run)
    words = [str(name) for name in names]
    matches = [any(fnmatchcase(word, each) for each in components or ["*"]) for word in words]
    for each in components or []:
        if not any(fnmatchcase(word, each) for word in words):
            raise unknown_name("component", each, words)
    places = [place for place, match in enumerate(matches) if match]
    whole = last if norm == "frozen" else None
    with torch.no_grad():
        own_readout(run, last)
        logits = [lens.readout(writes[place], run.encoded, like=whole).float().cpu().numpy() for place in places]
    data = run.dataset().assign_coords(component_coords([names[place] for place in places]))
    data["logit"] = (("component", "series", "step", "token"), np.stack(logits))
    source = "tsfm-lens paper, section 2 (S3-DLA)"
    data.attrs = run.describe("component_logits", "Logits of single components", source, norm=norm)
    return data


def _refuse(lens: Lens) -> None:
    if lens.emits != "token":
        raise InputError(
            f"{lens.model_id} emits {lens.emits}s, not tokens of a vocabulary, so that there are no logits; "
            "logit_lens gives the forecast that each of its layers holds"
        )
