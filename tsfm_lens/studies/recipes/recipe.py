"""Training recipes of the embedded checkpoints, read from ``recipes.yaml``.

:class:`TrainingRecipe` is the whole description of a run, whose fields the file gives;
:func:`recipe` looks one up by name. Models are built from recipes in
:mod:`tsfm_lens.studies.recipes.models` and trained in
:mod:`tsfm_lens.studies.recipes.train`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.registry import declarations
from tsfm_lens.training.losses import TrainingStage, trapezoid_rate


class Phase(BaseModel):
    """Phase of training, with its own rise and fall of the learning rate.

    From step `at` on the rate rises, up to `learning_rate`, and falls over its
    last `decay` steps. With `from_mean` the phase starts from the mean of the weights
    that it finds and those that the phase before started from. `config` holds the
    entries of the model's configuration that grow: the model is widened to them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: int = Field(ge=0)
    learning_rate: float = Field(gt=0)
    decay: int = Field(ge=0)
    optimizer: Literal["AdamW", "Muon"] = "AdamW"
    from_mean: bool = False
    config: dict[str, Any] = Field(default_factory=dict)


class AttentionRank(BaseModel):
    """Attention whose matrices are products of two factors from the first step on.

    Layer i = 0, 1, … has the rank `rank` · (1 + i) ** `growth`, rounded up and at most
    full. It is the rank of each head's part of a matrix, or with a "shared" `sketch` of
    the whole matrix.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    growth: float = 0.0
    sketch: Literal["by head", "shared"] = "by head"


class TrainingRecipe(BaseModel):
    """Reproducible training run; steps are optimiser steps.

    Attributes:
        kind: what the model forecasts in, Chronos' tokens or the patches of
            Chronos-Bolt.
        config: configuration of the untrained model, as its config.json has it.
        stages: curriculum of the data and losses.
        corpus: rows of each family of series.
        finest: shortest wavelength of the initial embedding of the bins, in bins.
        encoder_bias, decoder_bias: (bucket, head, logit) that are added to the initial
            relative attention bias.
        attention_rank: factors of the attention matrices; full ones if None.
        vocabulary_rank: rank of an embedding that is not trained; None to train it.
        attention_levels: ranks by which the encoder scores nested blocks of tokens; ()
            for plain attention.
        restarts: phases after the first one.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    kind: Literal["token", "patch"]
    config: dict[str, Any]
    stages: tuple[TrainingStage, ...]
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
    restarts: tuple[Phase, ...] = ()
    seed: int = 0

    @model_validator(mode="after")
    def _check_phases(self) -> TrainingRecipe:
        starts = [stage.start for stage in self.stages]
        restarts = [restart.at for restart in self.restarts]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(
                f"stages start at {starts}; expected 0 first, then each after the one"
                " before"
            )
        if [0, *restarts] != sorted({0, *restarts}):
            raise ValueError(
                f"restarts at {restarts}; expected each after step 0 and the one before"
            )
        widens = any(restart.config for restart in self.restarts)
        if self.attention_rank is not None and widens:
            raise ValueError(
                "a restart widens a model whose attention is factorised; only full"
                " matrices are widened"
            )
        return self

    @property
    def identity(self) -> str:
        """JSON of the recipe without defaults: a new option changes no old JSON."""
        return self.model_dump_json(exclude_defaults=True)

    def changed(self, **changes: Any) -> TrainingRecipe:
        """Return the recipe with other fields."""
        return TrainingRecipe.model_validate(self.model_dump() | changes)

    def stage(self, step: int) -> TrainingStage:
        """Return the stage that `step` belongs to."""
        return [stage for stage in self.stages if stage.start <= step][-1]

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases that the steps of the run reach."""
        first = Phase(at=0, learning_rate=self.learning_rate, decay=self.decay)
        return (first, *(part for part in self.restarts if part.at < self.steps))

    def phase(self, step: int) -> Phase:
        """Return the phase that `step` is in."""
        return [phase for phase in self.phases() if phase.at <= step][-1]

    def select_config(self, step: int) -> dict[str, Any]:
        """Return the configuration of the model that takes `step`."""
        config = dict(self.config)
        for phase in self.phases():
            if phase.at <= step:
                config |= phase.config
        return config

    def rate(self, step: int) -> float:
        """Compute the learning rate at `step`."""
        phase = self.phase(step)
        later = [other.at for other in self.phases() if other.at > step]
        return trapezoid_rate(
            step,
            phase.learning_rate,
            first=phase.at,
            last=min(later, default=self.steps),
            warmup=self.warmup,
            decay=phase.decay,
        )


_FILE: dict[str, Any] = declarations(Path(__file__).with_name("recipes.yaml"))
MIXES: Mapping[str, dict[str, float]] = _FILE["mixes"]
"""Families of series in the proportions that recipes draw them in, by name;
``recipes.yaml`` says what each is for.
"""
LOW_RANK: Mapping[str, Any] = _FILE["low rank"]
"""Recipe of the dense arm of training at low rank, and how other arms differ."""
RECIPES: Mapping[str, TrainingRecipe] = {
    name: TrainingRecipe(name=name, **fields)
    for name, fields in _FILE["recipes"].items()
}


def recipe(name: str) -> TrainingRecipe:
    """Look up a recipe by name.

    An unknown name raises `UnknownNameError` with the nearest known one.
    """
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]
