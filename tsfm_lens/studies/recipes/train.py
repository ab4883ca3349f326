"""Training of a checkpoint of the zoo from its recipe.

``python -m tsfm_lens.studies.recipes.train chronos-nano --out DIR`` is the command.
Read :class:`Trainer` first, the training loop of :mod:`tsfm_lens.training` with the
phases of a recipe; :class:`RecipeTask` is its model, batches and loss. Recipes
themselves are in :mod:`tsfm_lens.studies.recipes.recipe`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from tsfm_lens.core.errors import CheckpointError, InputError
from tsfm_lens.core.io import check_writable
from tsfm_lens.studies.recipes.corpus import load_corpus
from tsfm_lens.studies.recipes.export import export
from tsfm_lens.studies.recipes.models import build_model, widened
from tsfm_lens.studies.recipes.muon import BETAS, MuonAdamW
from tsfm_lens.studies.recipes.recipe import Phase, TrainingRecipe
from tsfm_lens.studies.recipes.recipe import recipe as find_recipe
from tsfm_lens.training import Plan, Training
from tsfm_lens.training.command import Threads, run_command
from tsfm_lens.training.losses import patch_loss, token_loss
from tsfm_lens.training.series_source import Corpus, SeriesSource
from tsfm_lens.training.state import (
    put_back,
    read_state,
    run_files,
    snapshot_files,
)

SAVE_EVERY = 200
CHECKPOINTS = 20
LATER_CHECKPOINTS = 9
GRADIENT_NORM = 1.0


class RecipeTask:
    """Recipe as a task of the training loop, on series of a corpus and on a device."""

    def __init__(self, recipe: TrainingRecipe, corpus: Corpus, device: str) -> None:
        self.recipe = recipe
        self.name = recipe.name
        self.identity = recipe.identity
        self.device = device
        self.model = build_model(recipe).to(device)
        self.source = SeriesSource(corpus, seed=recipe.seed, device=device)

    def loss(self, step: int) -> Tensor:
        """Compute the loss of the batch of a step."""
        stage = self.recipe.stage(step)
        with torch.autocast(
            "cuda", torch.bfloat16, enabled=self.device.startswith("cuda")
        ):
            settings = stage.model_dump(
                include={"mix", "rows", "context", "horizon", "far", "short"}
            )
            context, future = self.source.batch(step, **settings)
            if self.recipe.kind == "token":
                return token_loss(self.model, context, future, stage, seed=step)
            return patch_loss(self.model, context, future, stage)

    def evaluate(self) -> dict[str, float]:
        """Return no error: skill is measured at the end, on other series."""
        return {}


def _plan(recipe: TrainingRecipe) -> Plan:
    steps = np.geomspace(max(1, recipe.steps // 400), recipe.steps, CHECKPOINTS - 1)
    _, *starts = [phase.at for phase in recipe.phases()]
    later = [
        np.linspace(first, last, LATER_CHECKPOINTS)
        for first, last in pairwise([*starts, recipe.steps])
    ]
    snapshots = np.unique(np.concatenate([[0], steps, *later]).round().astype(int))
    return Plan(
        steps=recipe.steps,
        save_every=SAVE_EVERY,
        snapshots=tuple(snapshots.tolist()),
        clip=GRADIENT_NORM,
    )


def _optimizer(
    model: PreTrainedModel, recipe: TrainingRecipe, phase: Phase
) -> torch.optim.Optimizer:
    """Make a fresh optimiser of a phase."""
    rate = recipe.learning_rate
    decay = recipe.weight_decay
    # weights that are not trained have no gradient, and both leave them as they are
    if phase.optimizer == "Muon":
        return MuonAdamW(model, lr=rate, weight_decay=decay)
    weights = model.parameters()
    return torch.optim.AdamW(weights, lr=rate, weight_decay=decay, betas=BETAS)


class Trainer(Training):
    """Training run of a recipe."""

    task: RecipeTask
    out: Path

    def __init__(
        self,
        recipe: TrainingRecipe,
        out: Path,
        corpus: Corpus,
        *,
        device: str | None = None,
    ) -> None:
        # refuse now, not after hours, a later phase that cannot begin
        for phase in recipe.phases():
            if phase.optimizer == "Muon" and not hasattr(torch.optim, "Muon"):
                raise InputError(
                    f"{recipe.name} has a phase of Muon, which torch has from 2.9 on;"
                    f" this is torch {torch.__version__}, expected a newer one"
                )
            if phase.config:
                before = build_model(recipe, phase.at - 1)
                widened(before, phase.config, seed=recipe.seed)
        task = RecipeTask(
            recipe, corpus, device or ("cuda" if torch.cuda.is_available() else "cpu")
        )
        super().__init__(
            task,
            _optimizer(task.model, recipe, recipe.phase(0)),
            _plan(recipe),
            out,
            rate=recipe.rate,
        )
        self._phase_of = 0

    @property
    def recipe(self) -> TrainingRecipe:
        """Recipe that is trained."""
        return self.task.recipe

    def resume(self) -> None:
        # a state at a restart is still that of the phase before it
        last = int(read_state(self.out, self.task.identity, self.device)["step"]) - 1
        self.task.model = build_model(self.recipe, last).to(self.device)
        self._enter_phase(self.recipe.phase(last))
        super().resume()

    def train_step(self) -> Tensor:
        self._begin_if_due()
        return super().train_step()

    def _begin_if_due(self) -> None:
        phase = self.recipe.phase(self.step)
        if phase.at == self._phase_of:
            return
        if phase.from_mean:
            before = self.recipe.phase(phase.at - 1).at
            checkpoints = snapshot_files(self.out)
            if before not in checkpoints:
                raise CheckpointError(
                    f"{self.out} has lost its checkpoint of step {before}, which the"
                    " mean needs"
                )
            weights = load_file(checkpoints[before])
            with torch.no_grad():
                for name, weight in self.model.named_parameters():
                    weight.lerp_(weights[name].to(weight), 0.5)
        if phase.config:
            self.task.model = widened(
                self.task.model, phase.config, seed=self.recipe.seed
            )
        self._enter_phase(phase)

    def _enter_phase(self, phase: Phase) -> None:
        self.optimizer = _optimizer(self.model, self.recipe, phase)
        self._phase_of = phase.at


def _check_no_run(out: Path) -> None:
    """Raise if the folder holds a run, which would be overwritten."""
    files = run_files(out)
    if files:
        raise CheckpointError(
            f"{out} holds a run already ({', '.join(files)}); go on with it by"
            " --resume, give another --out, or remove that folder"
        )


def main(
    name: Annotated[str, typer.Argument(help="chronos-nano or bolt-nano")],
    out: Annotated[
        Path,
        typer.Option(
            file_okay=False, help="folder of the run and of the exported checkpoint"
        ),
    ],
    *,
    real: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="training series of tools/build_training_series.py",
        ),
    ],
    steps: Annotated[
        int | None, typer.Option(min=1, help="optimiser steps instead of the recipe's")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="seed instead of the recipe's")
    ] = None,
    threads: Threads = 1,
    resume: Annotated[bool, typer.Option(help="go on from the state in --out")] = False,
) -> None:
    """Train a reference checkpoint and write it in the native format to OUT/NAME."""
    torch.set_num_threads(threads)
    recipe = find_recipe(name)
    if steps is not None:
        recipe = recipe.changed(steps=steps)
    if seed is not None:
        recipe = recipe.changed(seed=seed)
    # refuse errors now: the series take minutes to draw
    check_writable(out)
    if resume:
        # a state from which the recipe cannot go on
        state = read_state(out, recipe.identity, torch.device("cpu"))
        model = build_model(recipe, state["step"] - 1)
        optimizer = _optimizer(model, recipe, recipe.phase(state["step"] - 1))
        put_back(out, state, model, optimizer)
    else:
        _check_no_run(out)
    corpus = load_corpus(
        recipe.corpus, seed=recipe.seed, cache=out.parent / "corpora", real=real
    )
    trainer = Trainer(recipe, out, corpus)
    if resume:
        trainer.resume()
    if trainer.run():
        export(trainer.model, out / name)


if __name__ == "__main__":
    run_command(main)
