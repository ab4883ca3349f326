"""Train a checkpoint of the zoo: `python -m tsfm_lens.studies.recipes.train chronos-nano --out DIR`.

A run writes `state.pt` into DIR now and then and when it is stopped; with `--resume` it goes on from there and, on one
CPU thread, ends with the weights of a run that was never stopped, because a batch depends only on seed and step.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from chronos.chronos2 import Chronos2Model
from chronos.chronos2.config import Chronos2CoreConfig
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

from tsfm_lens.errors import CheckpointError, InputError
from tsfm_lens.places import refuse_unwritable
from tsfm_lens.studies.recipes.corpus import Corpus, load_corpus
from tsfm_lens.studies.recipes.covariates import covariate_batch, group_loss
from tsfm_lens.studies.recipes.export import export, native_model, open_pipeline
from tsfm_lens.studies.recipes.grow import widened
from tsfm_lens.studies.recipes.level_scores import score_by_levels
from tsfm_lens.studies.recipes.narrow import factorise_attention, fix_vocabulary
from tsfm_lens.studies.recipes.optimizer import BETAS, MuonAdamW
from tsfm_lens.studies.recipes.recipe import Restart, Stage, TrainingRecipe
from tsfm_lens.studies.recipes.recipe import recipe as find_recipe
from tsfm_lens.training import Plan, Training
from tsfm_lens.training.command import run_command
from tsfm_lens.training.losses import patch_loss, token_loss
from tsfm_lens.training.series_source import SeriesSource
from tsfm_lens.training.state import STATE, put_back, read_state, run_files, snapshot_files

SAVE_EVERY = 200
CHECKPOINTS, LATER_CHECKPOINTS = 20, 9
GRADIENT_NORM = 1.0
EMBEDDING_NOISE = 0.1
ENDED = "ended"


def ordinal_embedding(
    tokens: int, width: int, first_bin: int, generator: torch.Generator, *, finest: float = 6.0
) -> torch.Tensor:
    """Draw an embedding (tokens, width) whose value bins are Fourier features of the bin's rank.

    Wavelengths run geometrically from twice the range to `finest` bins. So the product of two rows falls with the
    distance of their values, and the model generalises from one value to its neighbours from the first step on.
    """
    table = torch.randn(tokens, width, generator=generator)
    ranks = torch.arange(tokens - first_bin, dtype=torch.float32)[:, None]
    wavelengths = torch.logspace(np.log10(2.0 * tokens), np.log10(finest), width // 2)[None]
    angle = 2 * torch.pi * ranks / wavelengths
    features = 2**0.5 * torch.cat([torch.sin(angle), torch.cos(angle)], dim=1)
    table[first_bin:] = features + EMBEDDING_NOISE * table[first_bin:]
    return table


def _initial_bolt(config: T5Config) -> ChronosBoltModelForForecasting:
    model = ChronosBoltModelForForecasting(config)
    for block in (model.input_patch_embedding, model.output_patch_embedding):
        for linear in (block.hidden_layer, block.output_layer, block.residual_layer):
            # the native initialisation ignores the fan-in here, and the first forecasts would be 100 times too wide
            torch.nn.init.normal_(linear.weight, std=0.5 * linear.in_features**-0.5)
    return model


def _initial_chronos(config: T5Config, recipe: TrainingRecipe) -> T5ForConditionalGeneration:
    model = T5ForConditionalGeneration(config)
    first_bin = recipe.config["chronos_config"]["n_special_tokens"] + 1
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        model.shared.weight.copy_(
            ordinal_embedding(config.vocab_size, config.d_model, first_bin, generator, finest=recipe.finest)
        )
    return model


def _initial_chronos2(config: Chronos2CoreConfig) -> Chronos2Model:
    model = Chronos2Model(config)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            # the native initialisation ignores the fan-in; queries take the dot product's scale on as well (as in T5)
            fan_in = module.in_features * (config.d_kv if name.endswith(".q") else 1)
            share = 0.5 if "patch_embedding" in name else 1.0
            torch.nn.init.normal_(module.weight, std=share * fan_in**-0.5)
    return model


def build_model(recipe: TrainingRecipe, step: int = 0) -> PreTrainedModel:
    """Build the untrained native model of `recipe` from its seed, with the widths of the leg that `step` belongs to.

    Raises:
        InputError, UnknownNameError: the recipe asks for a rank or a sketch that the model cannot have.
    """
    torch.manual_seed(recipe.seed)
    model = _dense(recipe.model_copy(update={"config": recipe.config_at(step)}))
    if recipe.vocabulary_rank is not None:
        fix_vocabulary(model, recipe.vocabulary_rank, seed=recipe.seed)
    if recipe.attention_rank is not None:
        factorise_attention(model, recipe.attention_rank)
    if recipe.attention_levels:
        score_by_levels(model, recipe.attention_levels)
    return model


def _dense(recipe: TrainingRecipe) -> PreTrainedModel:
    if recipe.kind == "group":
        return _initial_chronos2(Chronos2CoreConfig(**recipe.config))
    config = T5Config(**recipe.config)
    model = _initial_bolt(config) if recipe.kind == "patch" else _initial_chronos(config, recipe)
    with torch.no_grad():
        for stack, entries in ((model.encoder, recipe.encoder_bias), (model.decoder, recipe.decoder_bias)):
            bias = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight
            for bucket, head, logit in entries:
                bias[bucket, head] += logit
    return model


def _identity(recipe: TrainingRecipe) -> str:
    """Serialise the recipe without defaults, so that a new option changes no old recipe."""
    return recipe.model_dump_json(exclude_defaults=True)


class RecipeTask:
    """Recipe as a task of the training loop.

    Args:
        recipe: what to train.
        corpus: what to draw from.
        device: where to train.
    """

    def __init__(self, recipe: TrainingRecipe, corpus: Corpus, device: str) -> None:
        self.recipe, self.device = recipe, device
        self.model = build_model(recipe).to(device)
        self.source = SeriesSource(corpus, seed=recipe.seed, device=device)

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return self.recipe.name

    @property
    def identity(self) -> str:
        """Identity of the recipe among others, as JSON."""
        return _identity(self.recipe)

    def loss(self, step: int, stage: Stage | None = None) -> Tensor:
        """Compute the loss of the batch of a step; by another stage than the step's own if one is given."""
        stage = stage or self.recipe.stage(step)
        sizes = {"context": stage.context, "horizon": stage.horizon}
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.startswith("cuda")):
            if self.recipe.kind == "group":
                groups = covariate_batch(self.source, step, mix=stage.mix, groups=stage.rows, **sizes)
                return group_loss(self.model, groups, stage)
            context, future = self.source.batch(
                step, mix=stage.mix, rows=stage.rows, far=stage.far, short=stage.short, **sizes
            )
            if self.recipe.kind == "token":
                return token_loss(self.model, context, future, stage, seed=step)
            return patch_loss(self.model, context, future, stage)

    def evaluate(self) -> dict[str, float]:
        """Return no error: skill is measured at the end, on series of their own."""
        return {}


def _plan(recipe: TrainingRecipe) -> Plan:
    steps = np.geomspace(max(1, recipe.steps // 400), recipe.steps, CHECKPOINTS - 1)
    snapshots = {0, *(round(step) for step in steps)}
    starts = [restart.at for restart in recipe.restarts_within()]
    for first, last in pairwise([*starts, recipe.steps]):
        snapshots |= {round(step) for step in np.linspace(first, last, LATER_CHECKPOINTS)}
    return Plan(steps=recipe.steps, save_every=SAVE_EVERY, snapshots=tuple(sorted(snapshots)), clip=GRADIENT_NORM)


def _optimizer(model: PreTrainedModel, recipe: TrainingRecipe, leg: Restart | None) -> torch.optim.Optimizer:
    """Make a fresh optimiser of a leg; None is the first."""
    rate, decay = recipe.learning_rate, recipe.weight_decay
    if leg is not None and leg.optimizer == "Muon":
        return MuonAdamW(model, lr=rate, weight_decay=decay)
    free = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(free, lr=rate, weight_decay=decay, betas=BETAS)


class Trainer(Training):
    """Training run of a recipe.

    Args:
        recipe: what to train.
        out: folder of the state, the log and the history.
        corpus: what to draw from.
        device: where to train; by default a GPU if there is one. On a GPU the matrix products are in bfloat16.

    Attributes:
        recipe: as given, or its last leg.

    Raises:
        InputError, UnknownNameError: as :func:`build_model` says, before anything is written.
    """

    task: RecipeTask
    out: Path

    def __init__(self, recipe: TrainingRecipe, out: Path, corpus: Corpus, *, device: str | None = None) -> None:
        for restart in recipe.restarts_within():
            if restart.config:
                # refuse now, not after hours, a later leg that cannot grow
                widened(build_model(recipe, restart.at - 1), restart.config, seed=recipe.seed)
        task = RecipeTask(recipe, corpus, device or ("cuda" if torch.cuda.is_available() else "cpu"))
        super().__init__(task, _optimizer(task.model, recipe, None), _plan(recipe), out, rate=recipe.rate)
        self._leg_of: int | None = None

    @property
    def recipe(self) -> TrainingRecipe:
        """Recipe that is trained."""
        return self.task.recipe

    def resume(self) -> None:
        """Go back to the last saved state, as :meth:`tsfm_lens.training.Training.resume` does."""
        # a state at a restart is still that of the leg before it
        last = int(read_state(self.out, self.task.identity, self.device)["step"]) - 1
        self.task.model = build_model(self.recipe, last).to(self.device)
        self._turn_to(self.recipe.leg(last))
        super().resume()

    def train_step(self) -> Tensor:
        """Do one step of the optimiser of its leg; return its loss, still on the device."""
        self._begin_if_due()
        return super().train_step()

    def _begin_if_due(self) -> None:
        leg = self.recipe.leg(self.step)
        if leg is not None and leg.at != self._leg_of:
            if leg.from_mean:
                self._take_mean(leg)
            self._begin(leg)

    def _turn_to(self, leg: Restart | None) -> None:
        self.optimizer, self._leg_of = _optimizer(self.model, self.recipe, leg), leg.at if leg else None

    def _begin(self, leg: Restart) -> None:
        if leg.config:
            self.task.model = widened(self.task.model, leg.config, seed=self.recipe.seed)
        self._turn_to(leg)

    def _take_mean(self, leg: Restart) -> None:
        before = max((restart.at for restart in self.recipe.restarts if restart.at < leg.at), default=0)
        checkpoints = snapshot_files(self.out)
        if before not in checkpoints:
            raise CheckpointError(f"{self.out} has lost its checkpoint of step {before}, which the mean needs")
        weights = load_file(checkpoints[before])
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.lerp_(weights[name].to(weight), 0.5)

    def go_on_from(self, checkpoint: Path) -> None:
        """Take the weights of a native checkpoint for those at the recipe's last restart, or for their mean.

        Raises:
            InputError: the recipe has none.
            CheckpointError: the folder holds no checkpoint of this recipe.
        """
        self.task.model = _before_last_leg(self.recipe, checkpoint).to(self.device)
        leg = self.recipe.restarts_within()[-1]
        self.step = leg.at
        self._after()
        self._begin(leg)

    def end_within(self, steps: int, out: Path) -> None:
        """Turn this run into its own last leg of `steps` steps, saved in the folder `out`."""
        # a leg that begins here may need the checkpoints of this folder
        self._begin_if_due()
        out.mkdir(parents=True, exist_ok=True)
        self.task.recipe, self.out = self.recipe.ending(self.step, steps), out
        self.plan, self.rate = _plan(self.recipe), self.recipe.rate


def _before_last_leg(recipe: TrainingRecipe, checkpoint: Path) -> PreTrainedModel:
    """Return the model of a native checkpoint that the recipe's last leg can start from."""
    restarts = recipe.restarts_within()
    if not restarts:
        raise InputError(f"{recipe.name} is trained in one leg of {recipe.steps} steps, from its first")
    model = build_model(recipe, restarts[-1].at - 1)
    weights = native_model(open_pipeline(checkpoint)).state_dict()
    shapes = {name: part.shape for name, part in model.state_dict().items()}
    if {name: part.shape for name, part in weights.items()} != shapes:
        raise CheckpointError(
            f"{checkpoint} has other weights than {recipe.name} at step {restarts[-1].at}; give one of that"
        )
    model.load_state_dict(weights)
    return model


def _refuse_damage(recipe: TrainingRecipe, out: Path) -> None:
    """Refuse a folder from whose state the recipe cannot go on, as :meth:`Trainer.resume` does."""
    state = read_state(out, _identity(recipe), torch.device("cpu"))
    last = state["step"] - 1
    model = build_model(recipe, last)
    put_back(out, state, model, _optimizer(model, recipe, recipe.leg(last)))


def _refuse_run(out: Path, cures: str) -> None:
    """Refuse a folder whose run would be overwritten."""
    files = run_files(out)
    if files:
        going_on = "go on with it by --resume, " if STATE in files and cures else ""
        raise CheckpointError(f"{out} holds a run already ({', '.join(files)}); {going_on}{cures}remove that folder")


def main(
    name: Annotated[str, typer.Argument(help="chronos-nano, bolt-nano or chronos2-nano")],
    out: Annotated[Path, typer.Option(file_okay=False, help="folder of the run and of the exported checkpoint")],
    *,
    real: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="training series of tools/build_training_series.py")
    ],
    steps: Annotated[int | None, typer.Option(min=1, help="optimiser steps instead of the recipe's")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="seed instead of the recipe's")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
    resume: Annotated[bool, typer.Option(help="go on from the state in --out")] = False,
    start: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="checkpoint from before the last leg, which goes on from it"),
    ] = None,
    end_within: Annotated[
        int | None,
        typer.Option(min=1, help=f"end the run of --out within so many steps, in OUT/{ENDED}; the run itself stays"),
    ] = None,
) -> None:
    """Train a reference checkpoint and write it in the native format to OUT/NAME."""
    if start is not None and (resume or end_within):
        raise InputError("--start begins the last leg and goes with neither --resume nor --end-within")
    torch.set_num_threads(threads)
    changes = {key: value for key, value in (("steps", steps), ("seed", seed)) if value is not None}
    recipe = find_recipe(name).model_copy(update=changes)
    # refuse errors now: the series take minutes to draw
    refuse_unwritable(out)
    if resume or end_within:
        _refuse_damage(recipe, out)
    else:
        _refuse_run(out, "give another --out, or ")
    if end_within:
        _refuse_run(out / ENDED, "")
    if start is not None:
        _before_last_leg(recipe, start)
    corpus = load_corpus(recipe.corpus, seed=recipe.seed, cache=out.parent / "corpora", real=real)
    trainer = Trainer(recipe, out, corpus)
    if resume or end_within:
        trainer.resume()
    elif start is not None:
        trainer.go_on_from(start)
    if end_within:
        trainer.end_within(end_within, out / ENDED)
    if trainer.run():
        export(trainer.model, (out / ENDED if end_within else out) / name)


if __name__ == "__main__":
    run_command(main)
