"""Training at low rank: a small Chronos with attention of given ranks.

``python -m tsfm_lens.studies.recipes.lowrank --out DIR`` trains and measures every run.
Read :func:`runs` first, which lists them, then :func:`records`, which compares them
once they have ended. Figures of the records are in
:mod:`tsfm_lens.studies.recipes.figures`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import typer
import xarray as xr

from tsfm_lens.compress import BlockShape, compute_ratio, matrices, quality, sizes
from tsfm_lens.compress.timing import in_turn
from tsfm_lens.core.console import console
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.io import check_writable, replacing
from tsfm_lens.core.stats import mean_interval, over_windows
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.models import Lens
from tsfm_lens.studies.recipes.corpus import build_corpus, load_corpus
from tsfm_lens.studies.recipes.history import TrainingHistory
from tsfm_lens.studies.recipes.models import attention_ranks
from tsfm_lens.studies.recipes.recipe import LOW_RANK, AttentionRank, TrainingRecipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.training.command import Threads, run_command
from tsfm_lens.training.series_source import Corpus
from tsfm_lens.training.state import STATE

DENSE = "dense"
SEEDS = 3
CORPUS_SEED = 0
HELD_OUT_SEED = 20_261_123


BASE = TrainingRecipe(**LOW_RANK["base"])
"""chronos-nano cut down; ``recipes.yaml`` has it."""
ATTENTION: dict[str, AttentionRank | None] = {
    name: fields and AttentionRank(**fields)
    for name, fields in LOW_RANK["attention"].items()
}
"""Ranks of attention by arm; None for the dense one."""


class RecipeRun(NamedTuple):
    """Run of a recipe: name of the configuration, seed, and the recipe itself.

    The seed is that of weights and batches.
    """

    name: str
    seed: int
    recipe: TrainingRecipe

    @property
    def folder(self) -> str:
        """Name of the run's folder."""
        return f"{self.name.replace(' ', '-')}-{self.seed}"

    def load_corpus(self, corpora: Path) -> Corpus:
        """Load the series that it is trained on, kept in a folder of corpora."""
        return load_corpus(self.recipe.corpus, seed=CORPUS_SEED, cache=corpora)


def make_run(name: str, seed: int, steps: int | None, **changes: Any) -> RecipeRun:
    """Return a run of :data:`BASE` with some changes, of ``steps`` steps."""
    if steps is not None:
        changes |= {"steps": steps, "decay": steps // 4}
    changes |= {"name": name, "seed": seed}
    return RecipeRun(name, seed, BASE.model_copy(update=changes))


def runs(*, steps: int | None = None, seeds: int = SEEDS) -> list[RecipeRun]:
    """List every run, those of seed 0 first, which every comparison needs."""
    return [
        make_run(name, seed, steps, attention_rank=rank)
        for seed in range(seeds)
        for name, rank in ATTENTION.items()
    ]


Runs = Mapping[str, Mapping[int, RecipeRun]]
"""Runs by name and seed."""
N_SPECTRA = 8
"""Checkpoints of which spectra are kept, of the twenty of a run."""
PER_FAMILY = 16
ROUNDS = 24
SCORES = ["mase", "wql"]
_SOURCE = "after Flow of ranks, section 5 and appendices G and I"


def draw_held_out(run: RecipeRun) -> SeriesBatch:
    """Draw series of the families that a run is trained on, of another seed.

    They are as long as its context and horizon.
    """
    stage = run.recipe.stages[-1]
    corpus = build_corpus(
        dict.fromkeys(run.recipe.corpus, PER_FAMILY), seed=HELD_OUT_SEED
    )
    steps = stage.context + stage.horizon
    values = corpus.values[:, -steps:].astype(float)
    names = [f"{family} {row}" for family in corpus.rows for row in range(PER_FAMILY)]
    return SeriesBatch(tuple(values), tuple(names))


def attention_record(runs: Runs, out: Path, corpus: Corpus) -> xr.Dataset:
    """Compare runs of attention with the dense one of the same seed."""
    names = list(runs)
    seeds = list(runs[DENSE])
    first = runs[DENSE][seeds[0]]
    series = draw_held_out(first)
    steps = first.recipe.stages[-1].horizon
    found = []
    for seed in seeds:
        lenses = {name: _last(out / runs[name][seed].folder) for name in names}
        dense = lenses[DENSE].run(series, steps, holdout=True, seed=seed)
        scores = [quality(dense, lens).isel(model=1) for lens in lenses.values()]
        found.append(xr.concat(scores, pd.Index(names, name="arm")))
    data = xr.concat(found, pd.Index(seeds, name="seed"))[SCORES]
    # of the coordinates, arms, seeds and series are left
    data = data.reset_coords(drop=True).assign_coords(arm=names)
    data = data.astype(np.float32).transpose("arm", "seed", ...)
    data.attrs = _attributes("low_rank_training", "Training at low rank", first)
    for name in SCORES:
        data = _add_rise(data, name, names.index(DENSE))
    arms = {name: runs[name][seeds[0]] for name in names}
    lenses = {name: _last(out / arm.folder) for name, arm in arms.items()}
    return data.assign(_sizes(arms, lenses, lenses[DENSE])).assign(_times(arms, corpus))


def _add_rise(data: xr.Dataset, name: str, dense: int) -> xr.Dataset:
    """Add the rise of a score over the dense arm of the same seed, and test it.

    The test is over seeds.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(data[name].values.astype(float))
        # a series that one arm forecasts without error has no ratio
        rise = np.expm1(over_windows(logs - logs[dense]))
    effect = f"{name}_rise"
    data = data.assign({effect: (("arm", "seed"), rise)})
    result = add_estimates(data, effect, floor=0.0, signed=True, over="seed")
    unused = ("leads", "lead_share", "floor")
    return result.drop_vars([f"{effect}_{part}" for part in unused])


def _sizes(
    arms: Mapping[str, RecipeRun], lenses: Mapping[str, Lens], dense: Lens
) -> xr.Dataset:
    """Count the numbers in the model, and find ranks by layer and their ratio."""
    dense_matrices = matrices(dense)
    rows = []
    for name, arm in arms.items():
        target = arm.recipe.attention_rank
        by_head = target is None or target.sketch == "by head"
        forms: dict[str, BlockShape] = {
            key: matrix.form(by_head=by_head) for key, matrix in dense_matrices.items()
        }
        ranks = {key: form.full for key, form in forms.items()}
        if target is not None:
            ranks = attention_ranks(dense, target)
        numbers = sizes(lenses[name])
        # all of a layer have one rank
        by_layer = {
            matrix.layer: ranks[key]
            for key, matrix in dense_matrices.items()
            if matrix.stack == "encoder"
        }
        row = {
            "parameters": numbers["all"],
            "attention_parameters": numbers["attention"],
            "rank": ("layer", list(by_layer.values())),
            "rank_ratio": compute_ratio(forms, ranks).ranks,
        }
        rows.append(xr.Dataset(row))
    return xr.concat(rows, "arm")


def _times(arms: Mapping[str, RecipeRun], corpus: Corpus) -> dict[str, Any]:
    """Measure the CPU time of a training step over the dense arm's.

    Arms are timed in turn, so that a slow phase of the machine affects all alike.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainers = [
            Trainer(arm.recipe, Path(folder, arm.folder), corpus, device="cpu")
            for arm in arms.values()
        ]
        times = in_turn(
            [trainer.train_step for trainer in trainers],
            rounds=ROUNDS,
            clock=time.process_time,
        )
    logs = np.log(times)
    estimates = np.exp(mean_interval(logs - logs[list(arms).index(DENSE)]))
    names = ("step_time", "step_time_low", "step_time_high")
    return {
        name: ("arm", values) for name, values in zip(names, estimates, strict=True)
    }


def spectra_record(runs: Mapping[int, RecipeRun], out: Path) -> xr.Dataset:
    """Compute singular values of W_Q of the encoder over training.

    They are (seed, training_step, layer, index).
    """
    parts = [_spectra(out / run.folder) for run in runs.values()]
    arm = next(iter(runs.values()))
    data = xr.concat(parts, pd.Index(list(runs), name="seed"))
    return data.assign_attrs(
        _attributes("training_spectra", "Singular values of W_Q during training", arm)
    )


def _spectra(folder: Path) -> xr.Dataset:
    """Compute W_Q's singular values (training_step, layer, index) in a run."""
    history = TrainingHistory(folder)
    steps = np.array(sorted(history))
    chosen = np.linspace(0, len(steps) - 1, N_SPECTRA).round().astype(int)
    steps = steps[np.unique(chosen)]
    weights = [
        # W_Q of every layer of the encoder
        [
            parameters(lens.adapter.model, matrix.path)[0].double().numpy(force=True)
            for name, matrix in matrices(lens).items()
            if matrix.stack == "encoder" and name.endswith(".q")
        ]
        for lens in map(history.__getitem__, steps)
    ]
    values = np.linalg.svd(weights, compute_uv=False).astype(np.float32)
    return xr.Dataset(
        {"singular_value": (("training_step", "layer", "index"), values)},
        coords={"training_step": steps},
    )


def _last(folder: Path) -> Lens:
    history = TrainingHistory(folder)
    return history[max(history)]


def _attributes(kind: str, title: str, arm: RecipeRun) -> dict[str, Any]:
    recipe = arm.recipe
    return {
        "kind": kind,
        "title": title,
        "source": _SOURCE,
        "model": "chronos-nano, cut down",
        "steps": recipe.steps,
        "rows": recipe.stages[-1].rows,
        "width": recipe.config["d_model"],
        "heads": recipe.config["num_heads"],
        "head_size": recipe.config["d_kv"],
        "encoder_layers": recipe.config["num_layers"],
    }


def open_trainer(run: RecipeRun, out: Path, corpus: Corpus) -> Trainer:
    """Open the training of a run in its folder below `out`.

    It goes on from its last saved state if there is one.
    """
    trainer = Trainer(run.recipe, out / run.folder, corpus, device="cpu")
    if (trainer.out / STATE).exists():
        trainer.resume()
    return trainer


def records(every: list[RecipeRun], out: Path, corpus: Corpus) -> dict[str, xr.Dataset]:
    """Compute the results of the finished runs below `out`, by the name of their file.

    All seeds of a run are needed.
    """
    by_name: dict[str, dict[int, RecipeRun]] = {}
    for run in every:
        by_name.setdefault(run.name, {})[run.seed] = run
    return {
        "attention": attention_record(by_name, out, corpus),
        "spectra": spectra_record(by_name[DENSE], out),
    }


def main(
    out: Annotated[Path, typer.Option(file_okay=False, help="folder of the runs")],
    *,
    steps: Annotated[
        int | None, typer.Option(min=1, help="optimiser steps of each run")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="seeds of each rank of attention")
    ] = SEEDS,
    threads: Threads = 1,
) -> None:
    """Train every run, then write attention.nc and spectra.nc to OUT."""
    torch.set_num_threads(threads)
    check_writable(out)
    every = runs(steps=steps, seeds=seeds)
    corpus = load_corpus(BASE.corpus, seed=CORPUS_SEED, cache=out / "corpora")
    for run in every:
        if not open_trainer(run, out, corpus).run():
            console().print("stopped; the same command goes on")
            raise typer.Exit(130)
    for name, record in records(every, out, corpus).items():
        with replacing(out / f"{name}.nc") as part:
            record.to_netcdf(part, engine="scipy")
        console().print(f"{out / name}.nc: {record.attrs['title']}")


if __name__ == "__main__":
    run_command(main)
