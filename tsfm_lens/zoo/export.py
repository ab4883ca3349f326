"""Write a trained model in the native format, and prove that what was written is what was trained."""

from __future__ import annotations

from pathlib import Path

import torch
from chronos import BaseChronosPipeline
from transformers import PreTrainedModel

from tsfm_lens.errors import CheckpointError
from tsfm_lens.models import load


def native_model(pipeline: BaseChronosPipeline) -> PreTrainedModel:
    """Return the transformers model inside a Chronos or Chronos-Bolt pipeline."""
    return pipeline.inner_model


def export(model: PreTrainedModel, folder: Path) -> None:
    """Save `model` as float32 config.json and model.safetensors, loadable by the native pipeline.

    Raises:
        CheckpointError: What was written is no complete checkpoint, or does not give back every weight bit for bit.
    """
    model = model.eval().to("cpu", torch.float32)
    model.save_pretrained(folder)
    loaded = load(folder, check=False).adapter.model.state_dict()
    for name, weight in model.state_dict().items():
        if name not in loaded or not torch.equal(weight, loaded[name]):
            raise CheckpointError(f"{folder}: the native loader does not give back {name!r} as it was trained")
