"""Runs of recipes on a CPU, from the start or from where they were stopped, and what
they end with.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tsfm_lens.studies.recipes.recipe import TrainingRecipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.training.series_source import Corpus


def run(
    recipe: TrainingRecipe, out: Path, corpus: Corpus, until: int | None = None
) -> Trainer:
    """A run to its end, or until a step."""
    trainer = Trainer(recipe, out, corpus, device="cpu")
    if until is None:
        ended = trainer.run(quiet=True)
    else:
        ended = trainer.run(until=until, quiet=True)
    assert ended == (until is None)
    return trainer


def resumed(recipe: TrainingRecipe, out: Path, corpus: Corpus) -> Trainer:
    """The run in a folder, gone on with to its end."""
    trainer = Trainer(recipe, out, corpus, device="cpu")
    trainer.resume()
    assert trainer.run(quiet=True)
    return trainer


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    """Equal to the last bit."""
    weights = other.model.state_dict()
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, weights[name]), name
