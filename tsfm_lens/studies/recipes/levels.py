"""Chronos whose encoder scores by nested blocks of tokens: ``python -m tsfm_lens.studies.recipes.levels --out DIR``.

Trains every arm, standard attention among them, at equal steps, and writes their losses on series of another seed.
Arms that are done are left as they are, so that a run that was stopped goes on with the same command.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
import xarray as xr

from tsfm_lens.console import console
from tsfm_lens.places import refuse_unwritable, replacing
from tsfm_lens.studies.recipes.arms import BASE, Arm
from tsfm_lens.studies.recipes.compared import HELD_OUT_SEED
from tsfm_lens.studies.recipes.corpus import Corpus, build_corpus, load_corpus
from tsfm_lens.studies.recipes.lowrank import CORPUS_SEED, trained
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.studies.structured import level_attention_operations
from tsfm_lens.training import read_log
from tsfm_lens.training.command import run_command
from tsfm_lens.training.losses import token_step_losses
from tsfm_lens.training.state import LOG

__all__ = ["LEVELS", "level_arms", "level_record"]

LEVELS: dict[str, tuple[int, ...]] = {"standard": (), "MLR 8+2+2+2+1+1": (8, 2, 2, 2, 1, 1), "MLR 12+4": (12, 4)}
"""Ranks of heads of 16: the paper's 32|10|8|8|4|2 for Chronos and its 48|16 for ETTh1, a quarter of each, rounded to
whole numbers of the same sum."""
PER_FAMILY = 64


def level_arms(*, steps: int | None = None, seeds: int = 3) -> list[Arm]:
    """List every run, seed by seed; the standard one is the dense arm of training at low rank.

    Args:
        steps: instead of those of :data:`tsfm_lens.studies.recipes.arms.BASE`.
        seeds: of each arm.
    """
    base = BASE if steps is None else BASE.model_copy(update={"steps": steps, "decay": steps // 4})
    return [
        Arm(name, seed, base.model_copy(update={"name": f"levels {name}", "seed": seed, "attention_levels": ranks}))
        for seed in range(seeds)
        for name, ranks in LEVELS.items()
    ]


def level_record(arms: Sequence[Arm], out: Path, corpus: Corpus, *, per_family: int = PER_FAMILY) -> xr.Dataset:
    """Compute the losses of arms that have ended.

    Args:
        arms: runs.
        out: folder of their folders.
        corpus: that they were trained on.
        per_family: series of each family that the loss is taken on.

    Returns:
        Dataset of kind "level_training" over ``arm`` and ``seed``: ``loss``, the mean cross-entropy of the steps of
        held-out futures, each after the true ones, in nats; ``curve`` (arm, seed, line), the training loss of every 200
        steps; and by arm ``score_share``, the multiply-adds of the encoder's scores over those
        of standard attention.
    """
    names, seeds = list(dict.fromkeys(arm.name for arm in arms)), sorted({arm.seed for arm in arms})
    stage = arms[0].recipe.stages[-1].model_copy(update={"smoothing": 0.0})
    held_out = build_corpus(dict.fromkeys(arms[0].recipe.corpus, per_family), seed=HELD_OUT_SEED)
    series = torch.from_numpy(held_out.values[:, -stage.context - stage.horizon :])
    past, future = series[:, : stage.context], series[:, stage.context :]
    loss, curves = np.full((len(names), len(seeds)), np.nan), {}
    for arm in arms:
        trainer = Trainer(arm.recipe, out / arm.folder, corpus, device="cpu")
        trainer.resume()
        at = names.index(arm.name), seeds.index(arm.seed)
        with torch.no_grad():
            loss[at] = float(token_step_losses(trainer.model.eval(), past, future, stage).mean())
        curves[at] = [line["loss"] for line in read_log(out / arm.folder / LOG)]
    lines = np.full((*loss.shape, max(map(len, curves.values()))), np.nan)
    for at, curve in curves.items():
        lines[at][: len(curve)] = curve
    recipe = {arm.name: arm.recipe for arm in arms}
    # up to the end that closes every context
    tokens = -(-(stage.context + 1) // 2**5) * 2**5
    whole = tokens**2 * recipe[names[0]].config["d_kv"]
    shares = [
        float(level_attention_operations(tokens, recipe[name].attention_levels) / whole)
        if recipe[name].attention_levels
        else 1.0
        for name in names
    ]
    first = arms[0].recipe
    return xr.Dataset(
        {"loss": (("arm", "seed"), loss), "curve": (("arm", "seed", "line"), lines)},
        coords={"arm": names, "seed": seeds, "score_share": ("arm", shares)},
        attrs={
            "kind": "level_training",
            "title": "Chronos with scores by levels of tokens",
            "steps": first.steps,
            "rows": first.stages[-1].rows,
            "context": stage.context,
            "horizon": stage.horizon,
            "series": len(series),
        },
    )


def main(
    out: Annotated[Path, typer.Option(file_okay=False, help="folder of the runs")],
    *,
    steps: Annotated[int | None, typer.Option(min=1, help="optimiser steps of each arm")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="seeds of each arm")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
) -> None:
    """Train every arm, then write what they came to as OUT/chronos_levels.nc."""
    torch.set_num_threads(threads)
    refuse_unwritable(out)
    corpus = load_corpus(BASE.corpus, seed=CORPUS_SEED, cache=out / "corpora")
    runs = level_arms(steps=steps, seeds=seeds)
    for arm in runs:
        if not trained(arm, out, corpus):
            console().print("stopped; the same command goes on")
            raise typer.Exit(130)
    with replacing(out / "chronos_levels.nc") as part:
        level_record(runs, out, corpus).to_netcdf(part, engine="scipy")
    console().print(str(out / "chronos_levels.nc"))


if __name__ == "__main__":
    run_command(main)
