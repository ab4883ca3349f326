"""Train a checkpoint of the zoo: `python -m tsfm_lens.zoo.train chronos-nano --out DIR`.

A run writes `state.pt` into DIR now and then and when it is stopped; with `--resume` it goes on from there and, on one
CPU thread, ends with the weights of a run that was never stopped, because a batch depends only on seed and step.
"""

from __future__ import annotations

import csv
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import numpy as np
import torch
import typer
from chronos.chronos2 import Chronos2Model
from chronos.chronos2.config import Chronos2CoreConfig
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from safetensors.torch import save_file
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

from tsfm_lens.console import progress
from tsfm_lens.errors import CheckpointError
from tsfm_lens.zoo.corpus import Corpus, load_corpus
from tsfm_lens.zoo.covariates import covariate_batch
from tsfm_lens.zoo.export import export
from tsfm_lens.zoo.narrow import factorise_attention, fix_vocabulary
from tsfm_lens.zoo.objectives import group_loss, patch_loss, token_loss
from tsfm_lens.zoo.recipes import Stage, TrainingRecipe
from tsfm_lens.zoo.recipes import recipe as find_recipe
from tsfm_lens.zoo.source import SeriesSource

STATE = "state.pt"
LOG = "loss.csv"
HISTORY = "history"
SAVE_EVERY = 200
CHECKPOINTS = 20
GRADIENT_NORM = 1.0
EMBEDDING_NOISE = 0.1


def ordinal_embedding(
    tokens: int, width: int, first_bin: int, generator: torch.Generator, *, finest: float = 6.0
) -> torch.Tensor:
    """Embedding (tokens, width) whose value bins are Fourier features of the bin's rank.

    Wavelengths run geometrically from twice the range to `finest` bins, so that the product of two rows falls off with
    the distance of their values: what is learnt about one value holds for its neighbours from the first step on.
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


def build_model(recipe: TrainingRecipe) -> PreTrainedModel:
    """Build the untrained native model of `recipe` from its seed.

    Raises:
        InputError, UnknownNameError: the recipe asks for a rank or a sketch that the model cannot have.
    """
    torch.manual_seed(recipe.seed)
    model = _dense(recipe)
    if recipe.vocabulary_rank is not None:
        fix_vocabulary(model, recipe.vocabulary_rank, seed=recipe.seed)
    if recipe.attention_rank is not None:
        factorise_attention(model, recipe.attention_rank)
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


class Trainer:
    """Model, optimiser and data of one run.

    Args:
        recipe: what to train.
        out: folder of the state, the loss log and the history.
        corpus: what to draw from.
        device: where to train; by default a GPU if there is one. On a GPU the matrix products are in bfloat16.
    """

    def __init__(self, recipe: TrainingRecipe, out: Path, corpus: Corpus, *, device: str | None = None) -> None:
        self.recipe = recipe
        self.out = out
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        # before anything is written: a recipe may ask for what its model cannot have
        self.model = build_model(recipe).to(self.device)
        out.mkdir(parents=True, exist_ok=True)
        free = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            free, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=(0.9, 0.98)
        )
        self.source = SeriesSource(corpus, seed=recipe.seed, device=self.device)
        self.step = 0
        self.seconds = 0.0
        self.stopped = False
        steps = np.geomspace(max(1, recipe.steps // 400), recipe.steps, CHECKPOINTS - 1)
        self.kept = {0, *(round(step) for step in steps)}

    def resume(self) -> None:
        """Load the last saved state; raises `CheckpointError` where there is none, or it is of another recipe."""
        path = self.out / STATE
        if not path.exists():
            raise CheckpointError(f"no {STATE} in {self.out}; start without --resume, or give the folder of a run")
        state = torch.load(path, map_location=self.model.device, weights_only=True)
        # compared as recipes: what is saved may be from before an option came
        if TrainingRecipe.model_validate_json(state["recipe"]) != self.recipe:
            raise CheckpointError(f"{path} was trained by another recipe; go on with that one, or give another folder")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]

    def end_within(self, steps: int, out: Path) -> None:
        """Turn this run into its own last leg of `steps` steps, kept in the folder `out`."""
        out.mkdir(parents=True, exist_ok=True)
        self.recipe, self.out = self.recipe.ending(self.step, steps), out

    def save(self) -> None:
        """Write the state; the old one is replaced only once the new one is whole."""
        temporary = self.out / f"{STATE}.part"
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        progress = {"step": self.step, "seconds": self.seconds, "recipe": self.recipe.model_dump_json()}
        torch.save({**state, **progress}, temporary)
        temporary.replace(self.out / STATE)

    def keep(self) -> None:
        """Write the weights of this step into the history, if it is one of its twenty steps."""
        if self.step in self.kept:
            folder = self.out / HISTORY
            folder.mkdir(exist_ok=True)
            # tied weights are stored once, as the native format does
            shared = {tensor.data_ptr(): name for name, tensor in reversed(self.model.state_dict().items())}
            state = self.model.state_dict()
            weights = {name: state[name].detach().cpu().contiguous() for name in shared.values()}
            part = folder / "next.part"
            save_file(weights, part)
            part.replace(folder / f"step-{self.step:06d}.safetensors")

    def loss(self, stage: Stage) -> torch.Tensor:
        """Loss of the batch of this step."""
        sizes = {"context": stage.context, "horizon": stage.horizon}
        if self.recipe.kind == "group":
            groups = covariate_batch(self.source, self.step, mix=stage.mix, groups=stage.rows, **sizes)
            return group_loss(self.model, groups, stage)
        past, future = self.source.batch(self.step, mix=stage.mix, rows=stage.rows, **sizes)
        if self.recipe.kind == "token":
            return token_loss(self.model, past, future, stage, seed=self.step)
        return patch_loss(self.model, past, future, stage)

    def train_step(self) -> torch.Tensor:
        """Do one optimiser step; return its loss, still on the device."""
        began = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.startswith("cuda")):
            loss = self.loss(self.recipe.stage(self.step))
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM)
        self.optimizer.step()
        self.step += 1
        self.seconds += time.perf_counter() - began
        return loss.detach()


@contextmanager
def stopping(trainer: Trainer) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the run after the step at hand, with its state saved."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        trainer.stopped = True

    former = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def run(trainer: Trainer, *, until: int | None = None, quiet: bool = False) -> bool:
    """Train to step `until` (default: the recipe's last) with a progress bar, saving state, losses and history.

    Returns:
        Whether the last step was reached; False if the run was stopped by a signal.
    """
    last = trainer.recipe.steps if until is None else until
    losses: list[torch.Tensor] = []
    trainer.model.train()
    with stopping(trainer), progress(eta=True, hidden=quiet) as bar, (trainer.out / LOG).open("a") as log:
        task = bar.add_task(trainer.recipe.name, total=last, completed=trainer.step)
        trainer.keep()
        while trainer.step < last and not trainer.stopped:
            losses.append(trainer.train_step())
            trainer.keep()
            bar.update(task, completed=trainer.step)
            if trainer.step % SAVE_EVERY == 0 or trainer.step == last or trainer.stopped:
                mean = float(torch.stack(losses).mean())
                csv.writer(log).writerow([trainer.step, round(trainer.seconds, 1), round(mean, 4)])
                log.flush()
                trainer.save()
                bar.update(task, description=f"{trainer.recipe.name} loss {mean:.3f}")
                losses.clear()
    return trainer.step >= last


def main(
    name: Annotated[str, typer.Argument(help="chronos-nano, bolt-nano or chronos2-nano")],
    out: Annotated[Path, typer.Option(help="folder of the run and of the exported checkpoint")],
    *,
    real: Annotated[Path, typer.Option(help="training series of tools/build_training_series.py")],
    steps: Annotated[int | None, typer.Option(help="optimiser steps instead of the recipe's")] = None,
    seed: Annotated[int | None, typer.Option(help="seed instead of the recipe's")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads")] = 1,
    resume: Annotated[bool, typer.Option(help="go on from the state in --out")] = False,
    end_within: Annotated[
        int | None, typer.Option(help="end the run of --out within so many steps, in OUT/ended; the run itself stays")
    ] = None,
) -> None:
    """Train a reference checkpoint and write it in the native format to OUT/NAME."""
    torch.set_num_threads(threads)
    changes = {key: value for key, value in (("steps", steps), ("seed", seed)) if value is not None}
    recipe = find_recipe(name).model_copy(update=changes)
    corpus = load_corpus(recipe.corpus, seed=recipe.seed, cache=out.parent / "corpora", real=real)
    trainer = Trainer(recipe, out, corpus)
    if resume or end_within:
        trainer.resume()
    if end_within:
        trainer.end_within(end_within, out / "ended")
    if run(trainer):
        export(trainer.model, trainer.out / name)


if __name__ == "__main__":
    typer.run(main)
