"""Export of a trained model in the native format.

:func:`export` writes the files, opens them again by the native loader and compares
every weight with the trained one; a factorised model is written in the format of
:mod:`tsfm_lens.compress` instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from chronos import (
    Chronos2Pipeline,
    ChronosBoltPipeline,
    ChronosConfig,
    ChronosPipeline,
)
from chronos.chronos import ChronosModel
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from transformers import PreTrainedModel

from tsfm_lens.compress import Compressed, save_compressed
from tsfm_lens.core.errors import CheckpointError
from tsfm_lens.core.io import follow_umask
from tsfm_lens.models import load
from tsfm_lens.models.checkpoint import WEIGHTS

Pipeline = Any
"""A native pipeline: `ChronosPipeline`, `ChronosBoltPipeline` or `Chronos2Pipeline`."""


def as_pipeline(model: PreTrainedModel) -> Pipeline:
    """Put a model into its native pipeline, as it stands, on its device."""
    if isinstance(model, ChronosBoltModelForForecasting):
        return ChronosBoltPipeline(model)
    config = ChronosConfig(**model.config.chronos_config)
    return ChronosPipeline(config.create_tokenizer(), ChronosModel(config, model))


def open_pipeline(folder: Path) -> Pipeline:
    """Open a folder by the native loader, with the checks of :func:`tsfm_lens.load`."""
    # a relative one may be the name of an embedded checkpoint
    lens = load(folder.absolute(), check=False)
    if not isinstance(
        lens.native, ChronosPipeline | ChronosBoltPipeline | Chronos2Pipeline
    ):
        raise CheckpointError(
            f"{folder} holds a {type(lens.native).__name__}, expected Chronos,"
            " Chronos-Bolt or Chronos-2; is chronos_config missing from its"
            " config.json?"
        )
    return lens.native


def export(model: PreTrainedModel, folder: Path) -> None:
    """Save `model` as float32 config.json and model.safetensors.

    The native pipeline can load them, unless the model is factorised.
    """
    model = model.eval().to("cpu", torch.float32)
    if any(isinstance(module, Compressed) for module in model.modules()):
        save_compressed(
            load(as_pipeline(model), check=False), folder, method="trained at low rank"
        )
        return
    model.save_pretrained(folder)
    # safetensors writes files that only their owner can read
    follow_umask(folder / WEIGHTS)
    weights = load(folder.absolute(), check=False).adapter.model.state_dict()
    for name, weight in model.state_dict().items():
        if name not in weights or not torch.equal(weight, weights[name]):
            raise CheckpointError(
                f"{folder}: the native loader does not give back {name!r} as it was"
                " trained"
            )
