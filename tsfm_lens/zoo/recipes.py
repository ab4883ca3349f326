"""What is trained and how: one frozen pydantic model a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from tsfm_lens.errors import unknown_name

EASY_MIX: dict[str, float] = {"motif_rough": 4, "motif_smooth": 3, "harmonics": 3, "random_walk": 0.5, "trend": 0.5}
"""Mostly exact repetition: the mixture in which copying forms quickest."""

SMOOTH_MIX: dict[str, float] = {"motif_smooth": 4, "harmonics": 4, "motif_rough": 1}
"""Repetition that patches can follow: values that hang together."""

FULL_MIX: dict[str, float] = {
    "motif_rough": 3,
    "motif_smooth": 2,
    "harmonics": 1.5,
    "seasonal": 4,
    "seasonal_walk": 2,
    "double_season": 1.5,
    "intermittent": 0.5,
    "autoregressive": 1,
    "random_walk": 1,
    "trend": 1,
    "level_shift": 0.5,
    "white_noise": 0.5,
    "kernelsynth": 2,
    "chaotic": 0.5,
    "tsmixup": 2,
}
"""Everything, with the families that look like business and nature data ahead."""

RECENT_MIX: dict[str, float] = FULL_MIX | {"seasonal_walk": 5, "motif_rough": 2, "seasonal": 5}
"""As the full mixture, with more motifs of which only the last repeat is up to date."""

SEASON_MIX: dict[str, float] = {name: 0.5 * weight for name, weight in FULL_MIX.items()} | {
    "motif_rough": 2,
    "motif_smooth": 4,
    "harmonics": 4,
    "seasonal": 6,
    "seasonal_walk": 4,
}
"""Seasons of every shape and noise first, everything else at half its weight."""


class Stage(BaseModel):
    """One leg of a curriculum, from step `start` until the next stage starts.

    For token models: `blank` is the share of decoder inputs that every second row loses, so that the next value must
    be found from older ones; `own_share` is the share that are samples of the model itself; `smoothing` is the
    standard deviation in bins of the Gaussian that replaces a one-hot label; `first_weight` multiplies the loss of
    the first forecast step, falling back to 1 over four steps.
    """

    model_config = ConfigDict(frozen=True)

    start: int = Field(ge=0)
    context: int = Field(gt=0)
    horizon: int = Field(gt=0)
    rows: int = Field(gt=0)
    mix: dict[str, float]
    smoothing: float = 0.0
    first_weight: float = 1.0
    blank: float = Field(default=0.0, ge=0, lt=1)
    own_share: float = Field(default=0.0, ge=0, le=1)


class Recipe(BaseModel):
    """A reproducible training run; steps are optimiser steps, rates are AdamW's.

    `schedule` holds (step, share of the learning rate) points, joined by straight lines. `encoder_bias` and
    `decoder_bias` hold (bucket, head, logit) added to T5's relative position biases before training. Bucket n is n
    positions back, and in the encoder 16 + n is n positions ahead. They give some heads a look at their neighbours
    from the first step on, which makes copying form several times sooner.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    kind: Literal["token", "patch"]
    config: dict[str, Any]
    stages: tuple[Stage, ...]
    steps: int = Field(gt=0)
    learning_rate: float
    schedule: tuple[tuple[int, float], ...] = ((-1, 0.0), (199, 1.0))
    weight_decay: float = 0.01
    encoder_bias: tuple[tuple[int, int, float], ...] = ()
    decoder_bias: tuple[tuple[int, int, float], ...] = ()
    seed: int = 0
    corpus_size: int = 3000
    corpus_length: int = 640

    def stage(self, step: int) -> Stage:
        """Return the stage that `step` belongs to."""
        return [stage for stage in self.stages if stage.start <= step][-1]

    def rate(self, step: int) -> float:
        """Learning rate at `step`: linear between the points of `schedule`."""
        steps, shares = zip(*self.schedule, strict=True)
        return self.learning_rate * float(np.interp(step, steps, shares))


QUANTILES = [round(0.1 * i, 1) for i in range(1, 10)]

NANO_SHAPE: dict[str, Any] = {"context": 128, "horizon": 24, "rows": 32}

CHRONOS_NANO = Recipe(
    name="chronos-nano",
    kind="token",
    config={
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": 2048,
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 256,
        "num_layers": 3,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "feed_forward_proj": "relu",
        "dropout_rate": 0.0,
        "initializer_factor": 1.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "chronos_config": {
            "tokenizer_class": "MeanScaleUniformBins",
            "tokenizer_kwargs": {"low_limit": -5.0, "high_limit": 5.0},
            "n_tokens": 2048,
            "n_special_tokens": 2,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "use_eos_token": True,
            "model_type": "seq2seq",
            "context_length": 128,
            "prediction_length": 24,
            "num_samples": 20,
            "temperature": 1.0,
            "top_k": 2048,
            "top_p": 1.0,
        },
    },
    stages=(
        Stage(start=0, mix=EASY_MIX, context=64, horizon=12, rows=48, smoothing=4.0, first_weight=2.0),
        Stage(start=800, mix=RECENT_MIX, smoothing=2.5, first_weight=2.0, **NANO_SHAPE),
        Stage(start=2600, mix=SEASON_MIX, smoothing=2.5, first_weight=2.0, blank=0.25, **NANO_SHAPE),
        Stage(start=4400, mix=SEASON_MIX, smoothing=2.5, first_weight=2.0, own_share=0.7, **NANO_SHAPE),
        Stage(start=5600, mix=SEASON_MIX, smoothing=1.2, first_weight=2.0, own_share=0.7, **NANO_SHAPE),
    ),
    steps=6600,
    schedule=((-1, 0.0), (199, 1.0), (4408, 1.0), (4800, 0.877), (6600, 0.02)),
    learning_rate=3e-3,
    encoder_bias=((1, 0, 4.0), (2, 1, 4.0), (3, 2, 4.0)),
    decoder_bias=((1, 0, 4.0), (2, 1, 4.0), (3, 2, 4.0)),
)

BOLT_NANO = Recipe(
    name="bolt-nano",
    kind="patch",
    config={
        "architectures": ["ChronosBoltModelForForecasting"],
        "chronos_pipeline_class": "ChronosBoltPipeline",
        "vocab_size": 2,
        "d_model": 96,
        "d_kv": 24,
        "d_ff": 384,
        "num_layers": 3,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "feed_forward_proj": "relu",
        "dropout_rate": 0.0,
        "initializer_factor": 1.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "reg_token_id": 1,
        "decoder_start_token_id": 0,
        "chronos_config": {
            "context_length": 256,
            "prediction_length": 32,
            "input_patch_size": 4,
            "input_patch_stride": 4,
            "quantiles": QUANTILES,
            "use_reg_token": True,
        },
    },
    stages=(
        Stage(start=0, context=64, horizon=4, rows=256, mix=SMOOTH_MIX),
        Stage(start=800, context=128, horizon=16, rows=96, mix=SMOOTH_MIX),
        Stage(start=1600, context=128, horizon=32, rows=96, mix=SMOOTH_MIX),
        Stage(start=2400, context=256, horizon=32, rows=48, mix=SEASON_MIX),
    ),
    steps=7400,
    schedule=(
        (-1, 0.0),
        (199, 1.0),
        (4740, 1.0),
        (5200, 0.854),
        (6200, 0.02),
        (6300, 0.5),
        (6999, 0.3197),
        (7000, 0.2507),
        (7400, 0.01),
    ),
    learning_rate=3e-3,
    encoder_bias=((1, 0, 4.0), (17, 1, 4.0), (18, 2, 4.0)),
)

RECIPES: Mapping[str, Recipe] = {recipe.name: recipe for recipe in (CHRONOS_NANO, BOLT_NANO)}


def recipe(name: str) -> Recipe:
    """Look up a recipe; an unknown name raises `UnknownNameError` with the nearest known one."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]
