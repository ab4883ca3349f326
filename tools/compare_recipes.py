"""Small experiments on data and matching: short runs of changed recipes, scored on the validation sets alone.

``python tools/compare_recipes.py --real runs/real.npz --out runs/experiments`` runs what ``results.csv`` in the folder
does not have yet, so that it can be stopped at any time; the test sets are never opened.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import torch
import typer

from tsfm_lens.console import console
from tsfm_lens.studies.recipes.corpus import load_corpus
from tsfm_lens.studies.recipes.evaluate import validation
from tsfm_lens.studies.recipes.recipe import MIXES, TrainingRecipe
from tsfm_lens.studies.recipes.recipe import recipe as find_recipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.training.losses import Stage
from tsfm_lens.training.state import STATE

Change = Callable[[TrainingRecipe], TrainingRecipe]


def short(recipe: TrainingRecipe, steps: int) -> TrainingRecipe:
    """The recipe's curriculum in `steps` steps: copying first, then everything at one size."""
    start = recipe.stages[0].model_copy(update={"rows": min(recipe.stages[0].rows, 96)})
    last = recipe.stages[1 if recipe.kind == "token" else 2].model_copy(
        update={"start": steps // 4}
    )
    changes = {
        "steps": steps,
        "decay": steps // 4,
        "stages": (start, last),
        "restarts": (),
    }
    return recipe.model_copy(update=changes)


def mixed(mix: Mapping[str, float]) -> Change:
    """Another mixture after the first stage."""

    def change(recipe: TrainingRecipe) -> TrainingRecipe:
        first, *later = recipe.stages
        stages: tuple[Stage, ...] = (
            first,
            *(stage.model_copy(update={"mix": dict(mix)}) for stage in later),
        )
        return recipe.model_copy(update={"stages": stages})

    return change


def without(*families: str) -> Change:
    """The wide mixture without some families."""
    return mixed(
        {name: weight for name, weight in MIXES["wide"].items() if name not in families}
    )


def smoothed(factor: float) -> Change:
    """Labels smoothed by another width in bins."""

    def change(recipe: TrainingRecipe) -> TrainingRecipe:
        stages = tuple(
            stage.model_copy(update={"smoothing": factor * stage.smoothing})
            for stage in recipe.stages
        )
        return recipe.model_copy(update={"stages": stages})

    return change


def coarse(recipe: TrainingRecipe) -> TrainingRecipe:
    """A quarter of the bins."""
    chronos = recipe.config["chronos_config"] | {"n_tokens": 512, "top_k": 512}
    stages = tuple(
        stage.model_copy(update={"smoothing": stage.smoothing / 4})
        for stage in recipe.stages
    )
    config = recipe.config | {"vocab_size": 512, "chronos_config": chronos}
    return recipe.model_copy(
        update={"config": config, "finest": recipe.finest / 4, "stages": stages}
    )


def unplanted(recipe: TrainingRecipe) -> TrainingRecipe:
    """No bias towards neighbours before training."""
    return recipe.model_copy(update={"encoder_bias": (), "decoder_bias": ()})


COMMON: dict[str, Change] = {
    "as it is": lambda recipe: recipe,
    "no real series": without("real", "tsmixup"),
    "no generators": without(*MIXES["home"]),
    "more copying": mixed(
        {
            name: weight + 2 * MIXES["copy"].get(name, 0.0)
            for name, weight in MIXES["wide"].items()
        }
    ),
    "another seed": lambda recipe: recipe.model_copy(update={"seed": 1}),
    "no planted bias": unplanted,
    "half the rate": lambda recipe: recipe.model_copy(
        update={"learning_rate": recipe.learning_rate / 2}
    ),
}
TOKEN: dict[str, Change] = {"512 bins": coarse, "labels twice as smooth": smoothed(2.0)}


def main(
    real: Annotated[
        Path, typer.Option(help="training series of tools/build_training_series.py")
    ],
    out: Annotated[Path, typer.Option(help="folder of the runs and of results.csv")],
    *,
    steps: Annotated[int, typer.Option(help="optimiser steps per run")] = 1_200,
    names: Annotated[
        str, typer.Option(help="recipes to compare, with commas")
    ] = "bolt-nano,chronos-nano",
    threads: Annotated[int, typer.Option(help="CPU threads")] = 1,
) -> None:
    """Run every change of every recipe that has no result yet, one after the other."""
    torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.csv"
    done = set()
    if results.exists():
        with results.open(newline="") as file:
            done = {
                (row["recipe"], row["change"], int(row["steps"]))
                for row in csv.DictReader(file)
            }
    for change in {**COMMON, **TOKEN}:
        for name in names.split(","):
            recipe = find_recipe(name)
            if (name, change, steps) in done or (
                change in TOKEN and recipe.kind != "token"
            ):
                continue
            changed = {**COMMON, **TOKEN}[change](short(recipe, steps))
            corpus = load_corpus(
                changed.corpus,
                seed=recipe.seed,
                cache=out.parent / "corpora",
                real=real,
            )
            folder = out / f"{name} {change} {steps}".replace(" ", "-")
            trainer = Trainer(changed, folder, corpus)
            if (folder / STATE).exists():
                trainer.resume()
            if not trainer.run():
                return
            trainer.model.eval()
            row: dict[str, object] = {"recipe": name, "change": change, "steps": steps}
            for kind, skill in validation(trainer.model, real=real).items():
                assert isinstance(skill, dict)
                row |= {f"{kind} {measure}": value for measure, value in skill.items()}
            fresh = not results.exists()
            with results.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(row))
                if fresh:
                    writer.writeheader()
                writer.writerow(row)
            console().print(row)


if __name__ == "__main__":
    typer.run(main)
