"""Training recipes: one frozen pydantic model for each checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tsfm_lens.errors import unknown_name
from tsfm_lens.studies.recipes.mixes import (
    COPY_MIX,
    CORPUS,
    EVENT_MIX,
    SEASON_MIX,
    WALK_MIX,
    WEEK_MIX,
    WIDE_CORPUS,
    WIDE_MIX,
)
from tsfm_lens.training.losses import Stage, trapezoid_rate


class Restart(BaseModel):
    """Another leg: from step `at` on the rate rises again, up to `learning_rate`, and falls over its last `decay`.

    The optimizer "Muon" updates the matrices of the layers, AdamW the rest as before. The leg begins with a fresh
    optimiser; with `from_mean`, from the mean of the weights at this restart and at the one before. `config` has the
    entries of the model's configuration that change here: the model is widened and computes the same as before
    (`grow.py`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    decay: int = Field(ge=0)
    optimizer: Literal["AdamW", "Muon"] = "AdamW"
    from_mean: bool = False
    config: dict[str, Any] = Field(default_factory=dict)


SKETCHES = ("by head", "shared")


class AttentionRank(BaseModel):
    """Attention whose matrices are the product of two factors from the first step on.

    Layer i of a stack has the rank ⌈rank · (1 + i)^growth⌉; a layer of full rank stays as it is. Sketch "by head":
    ranks are those of each head, which has both factors for itself. "shared": ranks are those of the whole matrix, so
    that all heads read the same few directions. Invalid ranks are refused when the model is built, before anything
    is written.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    growth: float = 0.0
    sketch: str = SKETCHES[0]


class TrainingRecipe(BaseModel):
    """Reproducible training run; steps are optimiser steps.

    The rate rises over the first `warmup` steps, stays, and falls to a hundredth over the last `decay` steps, so that
    a run can be ended early at any time by its last leg alone (`TrainingRecipe.ending`). Before each of the `restarts`
    it falls as at the end. `config` is that of the first leg. `corpus` has the rows of each synthetic family. `finest`
    is the shortest wavelength, in bins, of a token model's first embedding. `encoder_bias` and `decoder_bias` hold
    (bucket, head, logit) added to T5's relative position biases before training. `attention_rank` factorises the
    attentions; `vocabulary_rank` gives a token model an embedding of that rank, of Chebyshev polynomials of the bins'
    values, which is not trained; `attention_levels` lets the encoder of a T5 score by nested blocks of tokens, with so
    many features at each level.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    kind: Literal["token", "patch", "group"]
    config: dict[str, Any]
    stages: tuple[Stage, ...]
    steps: int = Field(gt=0)
    learning_rate: float
    warmup: int = 200
    decay: int = Field(ge=0)
    weight_decay: float = 0.01
    corpus: dict[str, int]
    finest: float = 6.0
    encoder_bias: tuple[tuple[int, int, float], ...] = ()
    decoder_bias: tuple[tuple[int, int, float], ...] = ()
    attention_rank: AttentionRank | None = None
    vocabulary_rank: int | None = None
    attention_levels: tuple[int, ...] = ()
    restarts: tuple[Restart, ...] = ()
    seed: int = 0

    @model_validator(mode="after")
    def _in_order(self) -> TrainingRecipe:
        starts, restarts = [stage.start for stage in self.stages], [restart.at for restart in self.restarts]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"stages start at {starts}; expected 0 first, then each after the one before")
        if restarts != sorted(set(restarts)):
            raise ValueError(f"restarts at {restarts}; expected each after the one before")
        if self.attention_rank is not None and any(restart.config for restart in self.restarts):
            raise ValueError("a restart widens a model whose attention is factorised; only full matrices are widened")
        return self

    def stage(self, step: int) -> Stage:
        """Return the stage that `step` belongs to."""
        return [stage for stage in self.stages if stage.start <= step][-1]

    def restarts_within(self) -> tuple[Restart, ...]:
        """Return the restarts before the last step."""
        return tuple(restart for restart in self.restarts if restart.at < self.steps)

    def leg(self, step: int) -> Restart | None:
        """Return the restart that `step` comes after; None in the first leg."""
        earlier = [restart for restart in self.restarts if restart.at <= step]
        return earlier[-1] if earlier else None

    def config_at(self, step: int) -> dict[str, Any]:
        """Return the configuration of the model that takes `step`."""
        changes = [restart.config for restart in self.restarts if restart.at <= step]
        return {key: value for part in (self.config, *changes) for key, value in part.items()}

    def rate(self, step: int) -> float:
        """Compute the learning rate at `step`."""
        first, last, peak, decay = 0, self.steps, self.learning_rate, self.decay
        for restart in self.restarts_within():
            if step < restart.at:
                last = restart.at
                break
            first, peak, decay = restart.at, restart.learning_rate, restart.decay
        return trapezoid_rate(step, peak, first=first, last=last, warmup=self.warmup, decay=decay)

    def ending(self, step: int, decay: int) -> TrainingRecipe:
        """Return the recipe at `step` with an end within `decay` steps: its leg's last stage, the rate falling."""
        earlier = tuple(restart for restart in self.restarts if restart.at <= step)
        later = [restart.at for restart in self.restarts if restart.at > step]
        stages = [stage for stage in self.stages if not later or stage.start < later[0]]
        last = stages[-1].model_copy(update={"start": step})
        changes = {"steps": step + decay, "stages": (*(stage for stage in stages if stage.start < step), last)}
        if earlier:
            changes["restarts"] = (*earlier[:-1], earlier[-1].model_copy(update={"decay": decay}))
        else:
            changes |= {"restarts": (), "decay": decay}
        return self.model_copy(update=changes)


QUANTILES = [round(0.1 * i, 1) for i in range(1, 10)]


def _t5(d_model: int, d_kv: int, vocab_size: int) -> dict[str, Any]:
    """Return the configuration of three layers of four heads per stack."""
    return {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_kv": d_kv,
        "d_ff": 4 * d_model,
        "num_layers": 3,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "feed_forward_proj": "relu",
        "dropout_rate": 0.0,
        "initializer_factor": 1.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    }


NEIGHBOURS: tuple[tuple[int, int, float], ...] = ((1, 0, 4.0), (2, 1, 4.0), (3, 2, 4.0))
"""A look at the positions one, two and three back, in one head each: half of an induction circuit."""

CHRONOS_SHAPE: dict[str, Any] = {"context": 128, "horizon": 24, "rows": 32, "first_weight": 2.0, "mix": WIDE_MIX}

CHRONOS_LATER: dict[str, Any] = CHRONOS_SHAPE | {"mix": SEASON_MIX, "smoothing": 0.5, "far": 0.5}

CHRONOS_LONG: dict[str, Any] = CHRONOS_LATER | {"mix": WEEK_MIX, "context": 256, "rows": 16}

CHRONOS_LAST: dict[str, Any] = CHRONOS_LATER | {"mix": WEEK_MIX, "rows": 64}

CHRONOS_SLOW: dict[str, Any] = CHRONOS_LATER | {
    "mix": WALK_MIX | {"motif_rough": 4, "day_types": 6},
    "context": 256,
    "rows": 64,
    "short": 0.4,
}

CHRONOS_WIDENED: dict[str, Any] = {
    "d_model": 96,
    "d_kv": 24,
    "d_ff": 384,
    "relative_attention_num_buckets": 256,
    "relative_attention_max_distance": 256,
}
"""Half as wide again, and a bucket for each distance up to 63 instead of 7."""

CHRONOS_NANO = TrainingRecipe(
    name="chronos-nano",
    kind="token",
    config=_t5(64, 16, 2048)
    | {
        "architectures": ["T5ForConditionalGeneration"],
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
            "num_samples": 100,
            "temperature": 0.8,
            "top_k": 50,
            "top_p": 1.0,
        },
    },
    stages=(
        Stage(start=0, mix=COPY_MIX, context=64, horizon=12, rows=48, smoothing=4.0, first_weight=2.0),
        Stage(start=1_200, smoothing=2.5, **CHRONOS_SHAPE),
        Stage(start=13_000, smoothing=2.5, own_share=0.6, **CHRONOS_SHAPE),
        Stage(start=23_000, smoothing=0.7, own_share=0.6, **CHRONOS_SHAPE),
        Stage(start=26_000, own_share=0.6, **CHRONOS_LATER),
        Stage(start=34_400, rollout=0.75, **CHRONOS_LATER),
        Stage(start=54_000, rollout=0.75, **CHRONOS_LONG),
        Stage(start=68_000, rollout=0.75, **CHRONOS_LAST),
        Stage(start=85_600, rollout=0.75, **CHRONOS_SLOW),
    ),
    steps=113_900,
    decay=4_000,
    learning_rate=3e-3,
    restarts=(
        Restart(at=26_000, learning_rate=1.5e-3, decay=28_000),
        Restart(at=54_000, learning_rate=1e-3, decay=14_000, optimizer="Muon"),
        Restart(
            at=68_000, learning_rate=1.5e-3, decay=17_600, optimizer="Muon", from_mean=True, config=CHRONOS_WIDENED
        ),
        Restart(at=85_600, learning_rate=1.2e-3, decay=16_500, optimizer="Muon"),
        Restart(at=102_100, learning_rate=3e-4, decay=600, optimizer="Muon", from_mean=True),
        Restart(at=102_700, learning_rate=1.2e-3, decay=10_600, optimizer="Muon"),
        Restart(at=113_300, learning_rate=3e-4, decay=600, optimizer="Muon", from_mean=True),
    ),
    corpus=WIDE_CORPUS,
    finest=24.0,
    encoder_bias=NEIGHBOURS,
    decoder_bias=NEIGHBOURS,
)

BOLT_WIDENED: dict[str, Any] = {
    "d_model": 128,
    "d_kv": 32,
    "d_ff": 512,
    "relative_attention_num_buckets": 256,
    "relative_attention_max_distance": 256,
}
"""A third wider, and a bucket for each distance up to 63 patches instead of 7."""

BOLT_LAST: dict[str, Any] = {"context": 512, "horizon": 32, "rows": 64, "log_floor": 0.03}

BOLT_NANO = TrainingRecipe(
    name="bolt-nano",
    kind="patch",
    config=_t5(96, 24, 2)
    | {
        "architectures": ["ChronosBoltModelForForecasting"],
        "chronos_pipeline_class": "ChronosBoltPipeline",
        "reg_token_id": 1,
        "chronos_config": {
            "context_length": 512,
            "prediction_length": 32,
            "input_patch_size": 4,
            "input_patch_stride": 4,
            "quantiles": QUANTILES,
            "use_reg_token": True,
        },
    },
    stages=(
        Stage(start=0, context=64, horizon=4, rows=256, mix=COPY_MIX),
        Stage(start=800, context=128, horizon=16, rows=96, mix=COPY_MIX),
        Stage(start=1_600, context=128, horizon=32, rows=96, mix=WIDE_MIX),
        Stage(start=6_000, context=256, horizon=32, rows=64, mix=WIDE_MIX),
        Stage(start=40_000, context=256, horizon=32, rows=64, mix=SEASON_MIX, log_floor=0.03),
        Stage(start=60_000, context=512, horizon=32, rows=32, mix=WEEK_MIX, log_floor=0.03),
        Stage(start=80_000, mix=EVENT_MIX, short=0.4, **BOLT_LAST),
        Stage(start=105_000, mix=WALK_MIX, short=0.5, **BOLT_LAST),
    ),
    steps=135_000,
    decay=4_000,
    learning_rate=3e-3,
    restarts=(
        Restart(at=40_000, learning_rate=2e-3, decay=20_000),
        Restart(at=60_000, learning_rate=1e-3, decay=20_000),
        Restart(at=80_000, learning_rate=1.5e-3, decay=25_000, optimizer="Muon"),
        Restart(at=105_000, learning_rate=1.5e-3, decay=30_000, optimizer="Muon", config=BOLT_WIDENED),
    ),
    corpus=WIDE_CORPUS,
    encoder_bias=((1, 0, 4.0), (17, 1, 4.0), (18, 2, 4.0)),
)

CHRONOS2_NANO = TrainingRecipe(
    name="chronos2-nano",
    kind="group",
    config={
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 256,
        "num_layers": 3,
        "num_heads": 4,
        "dropout_rate": 0.0,
        "initializer_factor": 1.0,
        "vocab_size": 2,
        "pad_token_id": 0,
        "reg_token_id": 1,
        "architectures": ["Chronos2Model"],
        "chronos_pipeline_class": "Chronos2Pipeline",
        "chronos_config": {
            "context_length": 192,
            "input_patch_size": 4,
            "input_patch_stride": 4,
            "output_patch_size": 4,
            "max_output_patches": 8,
            "quantiles": QUANTILES,
            "use_reg_token": True,
            "use_arcsinh": True,
            "time_encoding_scale": 192,
        },
    },
    stages=(
        Stage(start=0, context=96, horizon=16, rows=24, mix=COPY_MIX),
        Stage(start=2_000, context=128, horizon=24, rows=24, mix=WIDE_MIX),
        Stage(start=8_000, context=192, horizon=32, rows=16, mix=WIDE_MIX),
    ),
    steps=24_000,
    decay=3_000,
    learning_rate=3e-3,
    corpus=CORPUS,
)

RECIPES: Mapping[str, TrainingRecipe] = {recipe.name: recipe for recipe in (CHRONOS_NANO, BOLT_NANO, CHRONOS2_NANO)}


def recipe(name: str) -> TrainingRecipe:
    """Look up a recipe; an unknown name raises `UnknownNameError` with the nearest known one."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]
