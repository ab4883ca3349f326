"""The logits of every value bin, read from the residual stream after every layer."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
import xarray as xr

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.models.forecast import context_dataset
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.attribution import component_coords, component_writes
from tsfm_lens.probes.logit_lens import layer_streams
from tsfm_lens.probes.trajectory import describe, trajectory

NORMS = ("frozen", "own")


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
    _refuse(lens)
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


def component_logits(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    components: Sequence[str] | None = None,
    norm: str = "frozen",
    along: Any = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """The lens on single writes: a map of steps × vocabulary for every head, MLP and the embedding.

    Args:
        lens: a model that forecasts by tokens.
        series, horizon, along, num_samples, seed: see :func:`tsfm_lens.probes.trajectory.trajectory`.
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
    """
    _refuse(lens)
    if norm not in NORMS:
        raise InputError(f"norm={norm!r} is not known, choose {' or '.join(map(repr, NORMS))}")
    run = trajectory(lens, series, horizon, along=along, num_samples=num_samples, seed=seed)
    names, writes = component_writes(lens, run)
    words = [str(name) for name in names]
    wanted = [any(fnmatchcase(word, each) for each in components or ["*"]) for word in words]
    for each in components or []:
        if not any(fnmatchcase(word, each) for word in words):
            raise unknown_name("component", each, words)
    chosen = [place for place, want in enumerate(wanted) if want]
    whole = writes.sum(dim=0) if norm == "frozen" else None
    with torch.no_grad():
        logits = [lens.readout(writes[place], run.encoded, like=whole).float().cpu().numpy() for place in chosen]
    data = context_dataset(run.batch, run.horizon).assign_coords(component_coords([names[place] for place in chosen]))
    data["logit"] = (("component", "series", "step", "token"), np.stack(logits))
    source = "tsfm-lens paper, section 2 (S3-DLA)"
    own = {"norm": norm, "seed": seed, "horizon": run.horizon}
    data.attrs = describe(lens, "component_logits", "Logits of single components", source, **own)
    return data


def _refuse(lens: Lens) -> None:
    if lens.adapter.readout != "token":
        raise InputError(
            f"{lens.model_id} emits {lens.adapter.readout}s, not tokens of a vocabulary, so that there are no logits; "
            "logit_lens gives the forecast that each of its layers holds"
        )
