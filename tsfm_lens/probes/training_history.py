"""Heads at every checkpoint of a training run: the birth of induction heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.induction import induction_scores
from tsfm_lens.probes.repeated_motif import repeated_motif

__all__ = ["training_history"]

_SOURCE = "after Olsson et al. 2022, arXiv:2209.11895 (induction over training)"
_STATISTICS = ("low", "high", "stands_out")
_TOKENS = {"decoding": "forced", "positions": "all"}


def training_history(
    checkpoints: Mapping[int, Lens],
    *,
    losses: Mapping[int, float] | None = None,
    name: str = "",
    seed: int = 0,
    **options: Any,
) -> xr.Dataset:
    """Score the heads of every checkpoint on the same repeated motifs.

    Token models with cross-attention take :func:`tsfm_lens.probes.induction_scores`, with forced decoding so that
    scores do not depend on how well the model copies. Other models take :func:`tsfm_lens.probes.repeated_motif`.

    Args:
        checkpoints: lens by optimiser step; each is read from the mapping once, and not kept.
        losses: training loss by step, at these steps or others.
        name: of the model that was trained; that of its last checkpoint if "".
        seed: of the motifs.
        options: of the probe above.

    Returns:
        Dataset of kind "training_history" over (training_step, layer, head). Of token models ``prefix_matching`` and
        ``copy_score``, and ``prefix_floor`` (training_step), what an even spread of attention would give; of others
        ``advantage``, attention to what followed the last match beyond that in series that repeat nothing; each with
        its 95 % interval over motifs, ``_low`` and ``_high``, and ``_stands_out``, of the noise of its checkpoint.
        ``entropy_share``, the entropy of the attention rows over that of an even spread: 0 for a head that looks at one
        key. ``copying`` (training_step), of token models the share of right tokens, of others 1 less the copy error
        relative to the motif's mean. ``loss`` over (loss_step).

    Source:
        After Olsson et al. 2022, who watch induction heads form over training.

    Raises:
        InputError: no checkpoints, they are not of one shape, or as in the probe.

    Example:
        >>> data = probes.training_history({0: lens}, n_sequences=4, motif=8)
        >>> data["prefix_matching"].dims
        ('training_step', 'layer', 'head')
    """
    if not checkpoints:
        raise InputError("no checkpoints: expected at least one lens by optimiser step")
    steps = sorted(checkpoints)
    scores: list[xr.Dataset] = []
    for step in steps:
        lens = checkpoints[step]
        is_token_model = lens.tokens is not None and "cross_attn" in lens.wiring.output_stack.attention_kinds()
        score = (_of_tokens if is_token_model else _of_values)(lens, seed, options)
        shape, first = (tuple(one["entropy_share"].shape) for one in (score, [*scores, score][0]))
        if shape != first:
            raise InputError(f"the checkpoint of step {step} has {shape} layers and heads, that of {steps[0]} {first}")
        scores.append(score)
    data = xr.concat(scores, dim="training_step", data_vars="all", combine_attrs="override").assign_coords(
        training_step=steps
    )
    if losses:
        loss_steps = sorted(losses)
        data["loss"] = (("loss_step",), np.array([losses[step] for step in loss_steps]))
        data = data.assign_coords(loss_step=loss_steps)
    data.attrs |= {"kind": "training_history", "title": "Heads over training", "source": _SOURCE}
    data.attrs["model"] = name or data.attrs["model"]
    # every checkpoint has noise of its own: an effect may be below one floor and stand out of another
    if any(bool(data[one].any()) for one in data if str(one).endswith("_stands_out")):
        data.attrs.pop("below_noise", None)
    return data


def _of_tokens(lens: Lens, seed: int, options: dict[str, Any]) -> xr.Dataset:
    result = induction_scores(lens, seed=seed, **{**_TOKENS, **options})
    # the context's tokens, and the end token
    keys = result.attrs["motif"] * result.attrs["repeats"] + 1
    variables = _with_interval(result, "prefix_matching") | _with_interval(result, "copy_score")
    variables |= {"prefix_floor": xr.DataArray(1.0 / keys), "copying": result["copy_accuracy"]}
    return _as_record(result, variables, (result["entropy"] / np.log(keys)).drop_attrs())


def _of_values(lens: Lens, seed: int, options: dict[str, Any]) -> xr.Dataset:
    result = repeated_motif(lens, seed=seed, **options)
    variables = _with_interval(result.sel(target="after_last"), "advantage")
    if "relative_copy_error" in result:
        variables |= {"copying": 1.0 - result["relative_copy_error"].mean("series")}
    return _as_record(result, variables, result["entropy_share"])


def _with_interval(data: xr.Dataset, name: str) -> dict[str, xr.DataArray]:
    return {part: data[part] for part in (name, *(f"{name}_{part}" for part in _STATISTICS))}


def _as_record(result: xr.Dataset, variables: dict[str, xr.DataArray], entropy: xr.DataArray) -> xr.Dataset:
    plain = {name: value.drop_vars("target", errors="ignore") for name, value in variables.items()}
    return xr.Dataset({**plain, "entropy_share": entropy}, attrs=result.attrs)
