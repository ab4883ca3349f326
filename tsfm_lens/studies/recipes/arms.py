"""Arms of the experiment on training at low rank, each a recipe and a seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tsfm_lens.studies.recipes.mixes import COPY_MIX
from tsfm_lens.studies.recipes.recipe import CHRONOS_NANO, AttentionRank, Stage, TrainingRecipe

__all__ = ["ATTENTION", "BASE", "DENSE", "SEEDS", "VOCABULARIES", "Arm", "arms"]

DENSE = "dense"
TOKENS = 512
SEEDS = 3

_CHRONOS = CHRONOS_NANO.config["chronos_config"]
_SIZES = {"n_tokens": TOKENS, "context_length": 48, "prediction_length": 8}

BASE = CHRONOS_NANO.model_copy(
    update={
        "name": DENSE,
        "config": CHRONOS_NANO.config
        | {"vocab_size": TOKENS, "num_decoder_layers": 1, "chronos_config": _CHRONOS | _SIZES},
        "stages": (Stage(start=0, context=48, horizon=8, rows=16, mix=COPY_MIX, smoothing=1.0),),
        "steps": 480,
        "warmup": 40,
        "decay": 120,
        "corpus": dict.fromkeys(COPY_MIX, 300),
        "finest": 6.0,
    }
)
"""chronos-nano cut down: 512 tokens, contexts of 48 steps, one decoder layer, 480 steps of 16 rows, no real series."""

ATTENTION: dict[str, AttentionRank | None] = {
    DENSE: None,
    "small schedule": AttentionRank(rank=1, growth=0.27),
    "medium schedule": AttentionRank(rank=3, growth=0.40),
    "constant": AttentionRank(rank=4),
    "shared": AttentionRank(rank=10, sketch="shared"),
}
"""The paper's schedules for heads of size 64, a quarter of the ranks for heads of 16. "constant" has the ranks of the
medium schedule and a few more, "shared" the entries of "constant"."""

VOCABULARIES = (1, 2, 4, 8, 16, 32)
"""Ranks of fixed vocabularies."""


class Arm(NamedTuple):
    """One run.

    Attributes:
        name: of the arm.
        seed: of weights and batches; arms of one seed see the same series.
        recipe: of the run.
    """

    name: str
    seed: int
    recipe: TrainingRecipe

    @property
    def folder(self) -> str:
        """Name of the run's folder."""
        return f"{self.name.replace(' ', '-')}-{self.seed}"


def arms(*, steps: int | None = None, seeds: int = SEEDS, vocabulary_seeds: int = 1) -> Iterator[Arm]:
    """Yield every run; those first that every comparison needs.

    Args:
        steps: instead of those of :data:`BASE`.
        seeds: of each arm of attention.
        vocabulary_seeds: of each vocabulary.
    """
    base = BASE if steps is None else BASE.model_copy(update={"steps": steps, "decay": steps // 4})
    attention = [
        Arm(name, seed, base.model_copy(update={"name": name, "seed": seed, "attention_rank": rank}))
        for seed in range(seeds)
        for name, rank in ATTENTION.items()
    ]
    vocabularies = [
        Arm(name, seed, base.model_copy(update={"name": name, "seed": seed, "vocabulary_rank": number}))
        for seed in range(vocabulary_seeds)
        for number in VOCABULARIES
        for name in (f"vocabulary {number}",)
    ]
    once = [arm for arm in (*attention, *vocabularies) if arm.seed == 0]
    yield from once
    yield from (arm for arm in (*attention, *vocabularies) if arm.seed)
