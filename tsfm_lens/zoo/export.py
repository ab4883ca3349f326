"""Write a trained model in the native format, and prove that what was written is what was trained."""

from __future__ import annotations

from pathlib import Path

import torch
from chronos import BaseChronosPipeline
from transformers import PreTrainedModel

from tsfm_lens.errors import CheckpointError


def native_model(pipeline: BaseChronosPipeline) -> PreTrainedModel:
    """Return the transformers model inside a Chronos or Chronos-Bolt pipeline."""
    return pipeline.inner_model


def export(model: PreTrainedModel, folder: Path) -> None:
    """Save `model` as float32 config.json and model.safetensors, loadable by the native pipeline.

    Raises:
        CheckpointError: The native loader does not give back every weight bit for bit.
    """
    model = model.eval().to("cpu", torch.float32)
    model.save_pretrained(folder)
    loaded = native_model(BaseChronosPipeline.from_pretrained(str(folder))).state_dict()
    for name, weight in model.state_dict().items():
        if name not in loaded or not torch.equal(weight, loaded[name]):
            raise CheckpointError(f"{folder}: the native loader does not give back {name!r} as it was trained")
