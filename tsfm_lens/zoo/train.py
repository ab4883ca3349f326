"""Train a checkpoint of the zoo: `python -m tsfm_lens.zoo.train chronos-nano --out DIR`.

A run writes `state.pt` into DIR now and then; with `--resume` it goes on from there and ends with the weights of
a run that was never stopped, because a batch depends only on the seed and the step.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

from tsfm_lens.console import progress
from tsfm_lens.errors import CheckpointError
from tsfm_lens.zoo.export import export
from tsfm_lens.zoo.objectives import patch_loss, token_loss
from tsfm_lens.zoo.recipes import Recipe
from tsfm_lens.zoo.recipes import recipe as find_recipe
from tsfm_lens.zoo.source import SeriesSource

STATE = "state.pt"
LOG = "loss.csv"
SAVE_EVERY = 200
GRADIENT_NORM = 1.0
EMBEDDING_NOISE = 0.1


def ordinal_embedding(tokens: int, width: int, first_bin: int, generator: torch.Generator) -> torch.Tensor:
    """Embedding (tokens, width) whose value bins are Fourier features of the bin's rank.

    Wavelengths run geometrically from twice the range to six bins, so that the product of two rows falls off with the
    distance of their values: what is learnt about one value holds for its neighbours from the first step on.
    """
    table = torch.randn(tokens, width, generator=generator)
    ranks = torch.arange(tokens - first_bin, dtype=torch.float32)[:, None]
    wavelengths = torch.logspace(np.log10(2.0 * tokens), np.log10(6.0), width // 2)[None]
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


def _initial_chronos(config: T5Config, recipe: Recipe) -> T5ForConditionalGeneration:
    model = T5ForConditionalGeneration(config)
    first_bin = recipe.config["chronos_config"]["n_special_tokens"] + 1
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        model.shared.weight.copy_(ordinal_embedding(config.vocab_size, config.d_model, first_bin, generator))
    return model


def build_model(recipe: Recipe) -> PreTrainedModel:
    """Build the untrained native model of `recipe` from its seed."""
    torch.manual_seed(recipe.seed)
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
        recipe: What to train.
        out: Folder of the state, the loss log and the corpus cache.
        device: Where to train; by default a GPU if there is one.
    """

    def __init__(self, recipe: Recipe, out: Path, *, device: str | None = None) -> None:
        self.recipe = recipe
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        self.model = build_model(recipe).to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=(0.9, 0.98)
        )
        self.source = SeriesSource(
            seed=recipe.seed,
            cache=out.parent / "corpora",
            corpus_size=recipe.corpus_size,
            corpus_length=recipe.corpus_length,
        )
        self.step = 0
        self.seconds = 0.0

    def resume(self) -> None:
        """Load the last saved state; raises `CheckpointError` where there is none."""
        path = self.out / STATE
        if not path.exists():
            raise CheckpointError(f"no {STATE} in {self.out}; start without --resume, or give the folder of a run")
        state = torch.load(path, map_location=self.model.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        """Write the state; the old one is replaced only once the new one is whole."""
        temporary = self.out / f"{STATE}.part"
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "step": self.step, "seconds": self.seconds}, temporary)
        temporary.replace(self.out / STATE)

    def train_step(self) -> float:
        """Do one optimiser step; return its loss."""
        began = time.perf_counter()
        stage = self.recipe.stage(self.step)
        past, future = (
            torch.from_numpy(part)
            for part in self.source.batch(
                self.step, mix=stage.mix, rows=stage.rows, context=stage.context, horizon=stage.horizon
            )
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.step)
        if self.recipe.kind == "token":
            loss = token_loss(self.model, past, future, stage, seed=self.step)
        else:
            loss = patch_loss(self.model, past, future, stage)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM)
        self.optimizer.step()
        self.step += 1
        self.seconds += time.perf_counter() - began
        return loss.item()


def run(trainer: Trainer, *, until: int | None = None) -> None:
    """Train to step `until` (default: the recipe's last) with a progress bar, saving state and losses."""
    last = trainer.recipe.steps if until is None else until
    losses: list[float] = []
    trainer.model.train()
    with progress(eta=True) as bar, (trainer.out / LOG).open("a") as log:
        task = bar.add_task(trainer.recipe.name, total=last, completed=trainer.step)
        while trainer.step < last:
            losses.append(trainer.train_step())
            if trainer.step % SAVE_EVERY == 0 or trainer.step == last:
                mean = float(np.mean(losses))
                csv.writer(log).writerow([trainer.step, round(trainer.seconds, 1), round(mean, 4)])
                log.flush()
                trainer.save()
                bar.update(task, description=f"{trainer.recipe.name} loss {mean:.3f}")
                losses.clear()
            bar.update(task, completed=trainer.step)


def main(
    name: Annotated[str, typer.Argument(help="chronos-nano or bolt-nano")],
    out: Annotated[Path, typer.Option(help="folder of the run and of the exported checkpoint")],
    steps: Annotated[int | None, typer.Option(help="optimiser steps instead of the recipe's")] = None,
    seed: Annotated[int | None, typer.Option(help="seed instead of the recipe's")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads")] = 1,
    resume: Annotated[bool, typer.Option(help="go on from the state in --out")] = False,
) -> None:
    """Train a reference checkpoint and write it in the native format to OUT/NAME."""
    torch.set_num_threads(threads)
    changes = {key: value for key, value in (("steps", steps), ("seed", seed)) if value is not None}
    trainer = Trainer(find_recipe(name).model_copy(update=changes), out)
    if resume:
        trainer.resume()
    run(trainer)
    export(trainer.model, out / name)


if __name__ == "__main__":
    typer.run(main)
