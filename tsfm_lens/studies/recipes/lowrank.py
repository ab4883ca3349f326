"""Training at low rank: a small Chronos with attention of given ranks.

``python -m tsfm_lens.studies.recipes.lowrank --out DIR`` trains and measures every run.
Read :func:`runs` first, which lists them, then :func:`records`, which compares them
once they have ended. Figures of the records are in
:mod:`tsfm_lens.studies.recipes.figures`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
import xarray as xr

from tsfm_lens.compress import compute_ratio, matrices, quality, sizes
from tsfm_lens.compress.timing import in_turn
from tsfm_lens.core.console import console
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.io import check_writable, replacing
from tsfm_lens.core.stats import mean_interval, over_windows
from tsfm_lens.data import SeriesBatch
from tsfm_lens.models import Lens
from tsfm_lens.probes.weights import weight_matrices
from tsfm_lens.studies.recipes.corpus import build_corpus, load_corpus
from tsfm_lens.studies.recipes.history import TrainingHistory
from tsfm_lens.studies.recipes.models import attention_ranks
from tsfm_lens.studies.recipes.recipe import LOW_RANK, AttentionRank, TrainingRecipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.training.command import Threads, run_command
from tsfm_lens.training.series_source import Corpus

DENSE = "dense"
SEEDS = 3
CORPUS_SEED = 0
HELD_OUT_SEED = 20_261_123


BASE = TrainingRecipe(**LOW_RANK["base"])
"""chronos-nano cut down; ``recipes.yaml`` has it."""


def make_run(name: str, seed: int, steps: int | None, **changes: Any) -> TrainingRecipe:
    """Return :data:`BASE` with some changes, of ``steps`` steps.

    The seed is that of weights and batches.
    """
    if steps is not None:
        changes |= {"steps": steps, "decay": steps // 4}
    return BASE.changed(name=name, seed=seed, **changes)


def runs(*, steps: int | None = None, seeds: int = SEEDS) -> list[TrainingRecipe]:
    """List every run, those of seed 0 first, which every comparison needs.

    The dense run of a seed is its first.
    """
    return [
        make_run(name, seed, steps, attention_rank=rank)
        for seed in range(seeds)
        for name, rank in LOW_RANK["attention"].items()
    ]


def run_folder(out: Path, run: TrainingRecipe) -> Path:
    """Return the folder of a run below `out`."""
    return out / f"{run.name.replace(' ', '-')}-{run.seed}"


def load_series(run: TrainingRecipe, corpora: Path) -> Corpus:
    """Load the series that a run is trained on, kept in a folder of corpora."""
    return load_corpus(run.corpus, seed=CORPUS_SEED, cache=corpora)


N_SPECTRA = 8
"""Checkpoints of which spectra are kept, of the twenty of a run."""
PER_FAMILY = 16
ROUNDS = 24
SCORES = ["mase", "wql"]
_SOURCE = "after Flow of ranks, section 5 and appendices G and I"


def draw_held_out(run: TrainingRecipe, per_family: int = PER_FAMILY) -> SeriesBatch:
    """Draw series of the families that a run is trained on, of another seed.

    They are as long as its context and horizon.
    """
    stage = run.stages[-1]
    corpus = build_corpus(dict.fromkeys(run.corpus, per_family), seed=HELD_OUT_SEED)
    steps = stage.context + stage.horizon
    values = corpus.values[:, -steps:].astype(float)
    names = [f"{family} {row}" for family in corpus.rows for row in range(per_family)]
    return SeriesBatch(tuple(values), tuple(names))


def attention_record(
    runs: Sequence[TrainingRecipe], out: Path, corpus: Corpus
) -> xr.Dataset:
    """Compare runs of attention with the dense one of the same seed."""
    first = runs[0]
    by_seed: dict[int, dict[str, Lens]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, {})[run.name] = _last(run_folder(out, run))
    series = draw_held_out(first)
    steps = first.stages[-1].horizon
    found = []
    for seed, lenses in by_seed.items():
        dense = lenses[DENSE].run(series, steps, holdout=True, seed=seed)
        scores = [quality(dense, lens).isel(model=1) for lens in lenses.values()]
        found.append(xr.concat(scores, pd.Index(list(lenses), name="arm")))
    data = xr.concat(found, pd.Index(list(by_seed), name="seed"))[SCORES]
    # of the coordinates, arms, seeds and series are left
    data = data.reset_coords(drop=True).assign_coords(arm=data["arm"].values)
    data = data.astype(np.float32).transpose("arm", "seed", ...)
    data.attrs = _attributes("low_rank_training", "Training at low rank", first)
    for name in SCORES:
        data = _add_rise(data, name)
    arms = [run for run in runs if run.seed == first.seed]
    return data.assign(_sizes(arms, by_seed[first.seed])).assign(_times(arms, corpus))


def _add_rise(data: xr.Dataset, name: str) -> xr.Dataset:
    """Add the rise of a score over the dense arm of the same seed, and test it.

    The test is over seeds.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: Any = np.log(data[name].astype(float))
        # a series that one arm forecasts without error has no ratio
        rise = np.expm1(over_windows((logs - logs.sel(arm=DENSE)).values))
    effect = f"{name}_rise"
    data = data.assign({effect: (("arm", "seed"), rise)})
    result = add_estimates(data, effect, floor=0.0, signed=True, over="seed")
    unused = ("leads", "lead_share", "floor")
    return result.drop_vars([f"{effect}_{part}" for part in unused])


def _sizes(arms: Sequence[TrainingRecipe], lenses: Mapping[str, Lens]) -> xr.Dataset:
    """Count the numbers in the model, and find ranks by layer and their ratio."""
    dense = lenses[DENSE]
    dense_matrices = matrices(dense)
    rows = []
    for arm in arms:
        # the dense one has heads of full rank
        target = arm.attention_rank or AttentionRank(rank=arm.config["d_kv"])
        by_head = target.sketch == "by head"
        forms = {
            key: matrix.form(by_head=by_head) for key, matrix in dense_matrices.items()
        }
        ranks = attention_ranks(dense, target)
        numbers = sizes(lenses[arm.name])
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


def _times(arms: Sequence[TrainingRecipe], corpus: Corpus) -> dict[str, Any]:
    """Measure the CPU time of a training step over that of the dense arm, the first.

    Arms are timed in turn, so that a slow phase of the machine affects all alike.
    """
    with tempfile.TemporaryDirectory() as folder:
        trainers = [
            Trainer(arm, run_folder(Path(folder), arm), corpus, device="cpu")
            for arm in arms
        ]
        times = in_turn(
            [trainer.train_step for trainer in trainers],
            rounds=ROUNDS,
            clock=time.process_time,
        )
    logs = np.log(times)
    estimates = np.exp(mean_interval(logs - logs[0]))
    names = ("step_time", "step_time_low", "step_time_high")
    return {
        name: ("arm", values) for name, values in zip(names, estimates, strict=True)
    }


def spectra_record(runs: Sequence[TrainingRecipe], out: Path) -> xr.Dataset:
    """Compute singular values of W_Q of the encoder over training.

    They are (seed, training_step, layer, index).
    """
    parts = [_spectra(run_folder(out, run)) for run in runs]
    data = xr.concat(parts, pd.Index([run.seed for run in runs], name="seed"))
    title = "Singular values of W_Q during training"
    return data.assign_attrs(_attributes("training_spectra", title, runs[0]))


def _spectra(folder: Path) -> xr.Dataset:
    """Compute W_Q's singular values (training_step, layer, index) in a run."""
    history = TrainingHistory(folder)
    steps = np.array(sorted(history))
    chosen = np.linspace(0, len(steps) - 1, N_SPECTRA).round().astype(int)
    steps = steps[np.unique(chosen)]
    weights = [layer_weights(history[step], "W_Q") for step in steps]
    values = torch.linalg.svdvals(torch.stack(weights)).float()
    return xr.Dataset(
        {"singular_value": (("training_step", "layer", "index"), values.numpy())},
        coords={"training_step": steps},
    )


def layer_weights(lens: Lens, part: str, *, per_head: bool = False) -> torch.Tensor:
    """Return the matrices of a part of the encoder's layers, or of their heads."""
    stack = lens.wiring.stacks[0].name
    found = weight_matrices(lens, stack=stack, parts=[part], per_head=per_head)
    weights = [matrix.weight for matrix in found if bool(matrix.head) == per_head]
    return torch.stack(weights).double().cpu()


def _last(folder: Path) -> Lens:
    history = TrainingHistory(folder)
    return history[max(history)]


def _attributes(kind: str, title: str, recipe: TrainingRecipe) -> dict[str, Any]:
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


def records(
    runs: Sequence[TrainingRecipe], out: Path, corpus: Corpus
) -> dict[str, xr.Dataset]:
    """Compute the results of the finished runs below `out`, by the name of their file.

    All seeds of a run are needed; the first run is a dense one.
    """
    dense = [run for run in runs if run.name == DENSE]
    return {
        "attention": attention_record(runs, out, corpus),
        "spectra": spectra_record(dense, out),
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
    corpus = load_series(BASE, out / "corpora")
    for run in every:
        trainer = Trainer(run, run_folder(out, run), corpus, device="cpu")
        if not trainer.finish():
            console().print("stopped; the same command goes on")
            raise typer.Exit(130)
    for name, record in records(every, out, corpus).items():
        with replacing(out / f"{name}.nc") as part:
            record.to_netcdf(part, engine="scipy")
        console().print(f"{out / name}.nc: {record.attrs['title']}")


if __name__ == "__main__":
    run_command(main)
