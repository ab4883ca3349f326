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
import torch
import typer
import xarray as xr

from tsfm_lens.compress import BlockShape, compute_ratio, matrices, quality, sizes
from tsfm_lens.core.console import console
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.io import check_writable, replacing
from tsfm_lens.core.stats import mean_interval
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.models import Lens
from tsfm_lens.studies.recipes.corpus import build_corpus, load_corpus
from tsfm_lens.studies.recipes.history import TrainingHistory
from tsfm_lens.studies.recipes.models import attention_ranks
from tsfm_lens.studies.recipes.recipe import (
    MIXES,
    AttentionRank,
    TrainingRecipe,
    recipe,
)
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.training.command import run_command
from tsfm_lens.training.losses import TrainingStage
from tsfm_lens.training.series_source import Corpus
from tsfm_lens.training.state import STATE

DENSE = "dense"
SEEDS = 3
CORPUS_SEED = 0
HELD_OUT_SEED = 20_261_123


_FULL = recipe("chronos-nano")
_SHORT = {"n_tokens": 512, "context_length": 48, "prediction_length": 8}
BASE = _FULL.model_copy(
    update={
        "name": DENSE,
        "config": (
            _FULL.config
            | {"vocab_size": 512, "num_decoder_layers": 1}
            | {"chronos_config": _FULL.config["chronos_config"] | _SHORT}
        ),
        "stages": (
            TrainingStage(
                start=0,
                context=48,
                horizon=8,
                rows=16,
                mix=MIXES["copy"],
                smoothing=1.0,
            ),
        ),
        "steps": 480,
        "warmup": 40,
        "decay": 120,
        "corpus": dict.fromkeys(MIXES["copy"], 300),
        "finest": 6.0,
        # those of the full recipe come after its last step
        "restarts": (),
    }
)
"""chronos-nano cut down: 512 tokens, contexts of 48 steps, one decoder layer, 480 steps
of 16 rows, no real series.
"""
ATTENTION: dict[str, AttentionRank | None] = {
    DENSE: None,
    "small schedule": AttentionRank(rank=1, growth=0.27),
    "medium schedule": AttentionRank(rank=3, growth=0.40),
    "constant": AttentionRank(rank=4),
    "shared": AttentionRank(rank=10, sketch="shared"),
}
"""The paper's schedules for heads of size 64, a quarter of the ranks for heads of 16.
"constant" has the ranks of the medium schedule and a few more, "shared" the entries of
"constant"."""


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


def make_run(name: str, seed: int, steps: int | None, **changes: Any) -> RecipeRun:
    """Return a run of :data:`BASE` with some changes, of ``steps`` steps."""
    if steps is None:
        length = {}
    else:
        length = {"steps": steps, "decay": steps // 4}
    return RecipeRun(
        name,
        seed,
        BASE.model_copy(update={**length, "name": name, "seed": seed, **changes}),
    )


def runs(*, steps: int | None = None, seeds: int = SEEDS) -> list[RecipeRun]:
    """List every run, those of seed 0 first, which every comparison needs."""
    return [
        make_run(name, seed, steps, attention_rank=rank)
        for seed in range(seeds)
        for name, rank in ATTENTION.items()
    ]


N_SPECTRA = 8
"""Checkpoints of which spectra are kept, of the twenty of a run."""
PER_FAMILY = 16
ROUNDS = 24
SCORES = ("mase", "wql", "log_perplexity")
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
    names = [
        f"{family} {row}"
        for family, (first, stop) in corpus.rows.items()
        for row in range(stop - first)
    ]
    return SeriesBatch(
        tuple(row[-steps:].astype(float) for row in corpus.values), tuple(names)
    )


def attention_record(
    runs: Mapping[str, Mapping[int, tuple[RecipeRun, Path]]], corpus: Corpus
) -> xr.Dataset:
    """Compare runs of attention with the dense one of the same seed.

    ``runs`` has them by name and seed, with their folders.
    """
    names = list(runs)
    seeds = sorted(runs.get(DENSE, {}))
    if not seeds or any(sorted(runs[name]) != seeds for name in names):
        raise InputError(
            f"arms {', '.join(names)} were not all trained with the seeds {seeds} of"
            f" {DENSE!r}"
        )
    first = runs[DENSE][seeds[0]][0]
    series = draw_held_out(first)
    steps = first.recipe.stages[-1].horizon
    found = []
    for seed in seeds:
        dense = _last(runs[DENSE][seed][1]).run(series, steps, holdout=True, seed=seed)
        others = [_last(runs[name][seed][1]) for name in names]
        found.append([quality(dense, other).isel(model=1) for other in others])
    data = xr.Dataset(
        coords={"arm": names, "seed": seeds, "series": list(series.ids)},
        attrs=_attributes("low_rank_training", "Training at low rank", first),
    )
    for name in (*SCORES, "overlap"):
        # (seed, arm) or (seed, arm, series)
        cells = [[scores[name].values for scores in of_seed] for of_seed in found]
        values = np.array(cells, dtype=np.float32).swapaxes(0, 1)
        data[name] = (("arm", "seed", "series")[: values.ndim], values)
    for name in SCORES:
        data = _add_rise(data, name, names.index(DENSE))
    arms = {name: runs[name][seeds[0]][0] for name in names}
    lenses = {name: _last(runs[name][seeds[0]][1]) for name in names}
    return data.assign(_sizes(arms, lenses, lenses[DENSE])).assign(_times(arms, corpus))


def _add_rise(data: xr.Dataset, name: str, dense: int) -> xr.Dataset:
    """Add the rise of a score over the dense arm of the same seed, and test it.

    The test is over seeds.
    """
    values = data[name].values.astype(float)
    if name == "log_perplexity":
        rise = values - values[dense]
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(values) - np.log(values[dense])
        # a series that one arm forecasts without error has no ratio
        rise = np.expm1(np.nanmean(np.where(np.isfinite(logs), logs, np.nan), axis=-1))
    result = add_estimates(
        data.assign({f"{name}_rise": (("arm", "seed"), rise)}),
        f"{name}_rise",
        floor=0.0,
        signed=True,
        over="seed",
    )
    return result.drop_vars(
        [f"{name}_rise_leads", f"{name}_rise_lead_share", f"{name}_rise_floor"]
    )


def _sizes(
    arms: Mapping[str, RecipeRun], lenses: Mapping[str, Lens], dense: Lens
) -> dict[str, Any]:
    """Count the numbers in the model, ranks by layer and both ratios."""
    dense_matrices = matrices(dense)
    rows = []
    for name, arm in arms.items():
        target = arm.recipe.attention_rank
        by_head = target is None or target.sketch == "by head"
        forms: dict[str, BlockShape] = {
            key: matrix.form(by_head=by_head) for key, matrix in dense_matrices.items()
        }
        if target is None:
            ranks = {key: form.full for key, form in forms.items()}
        else:
            ranks = attention_ranks(dense, target)
        numbers = sizes(lenses[name])
        # the first of each layer
        by_layer = {
            matrix.layer: ranks[key]
            for key, matrix in reversed(dense_matrices.items())
            if matrix.stack == "encoder"
        }
        full = sum(form.numbers for form in forms.values())
        rows.append(
            {
                "parameters": numbers["all"],
                "attention_parameters": numbers["attention"],
                "rank": [by_layer[layer] for layer in sorted(by_layer)],
                "rank_ratio": compute_ratio(forms, ranks).ranks,
                "stored_ratio": numbers["attention"] / full,
            }
        )
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    dims = ("arm", "layer")
    return {key: (dims[: values.ndim], values) for key, values in columns.items()}


def _times(arms: Mapping[str, RecipeRun], corpus: Corpus) -> dict[str, Any]:
    """Measure the CPU time of a training step and of a forward over the dense arm's.

    Arms are timed in turn, so that a slow phase of the machine affects all alike.
    """
    times = np.empty((2, len(arms), ROUNDS))
    with tempfile.TemporaryDirectory() as folder:
        trainers = [
            Trainer(arm.recipe, Path(folder, arm.folder), corpus, device="cpu")
            for arm in arms.values()
        ]
        for trainer in trainers:
            trainer.train_step()
        for round_index in range(ROUNDS):
            for row, trainer in enumerate(trainers):
                start = time.process_time()
                trainer.train_step()
                middle = time.process_time()
                with torch.no_grad():
                    trainer.task.loss(trainer.step, trainer.recipe.stages[-1])
                times[:, row, round_index] = (
                    middle - start,
                    time.process_time() - middle,
                )
    logs = np.log(times) - np.log(times[:, list(arms).index(DENSE)])[:, None]
    return {
        f"{name}_time{end}": ("arm", np.exp(bound))
        for name, arm_logs in zip(("step", "forward"), logs, strict=True)
        for end, bound in zip(
            ("", "_low", "_high"), mean_interval(arm_logs), strict=True
        )
    }


def spectra_record(runs: Mapping[int, tuple[RecipeRun, Path]]) -> xr.Dataset:
    """Compute singular values of W_Q of the encoder over training.

    They are (seed, training_step, layer, index).
    """
    spectra = {seed: _spectra(folder) for seed, (_, folder) in runs.items()}
    values = np.stack([full for _, full in spectra.values()]).astype(np.float32)
    steps, _ = next(iter(spectra.values()))
    arm = next(iter(runs.values()))[0]
    return xr.Dataset(
        {"singular_value": (("seed", "training_step", "layer", "index"), values)},
        coords={"seed": list(spectra), "training_step": steps},
        attrs=_attributes(
            "training_spectra", "Singular values of W_Q during training", arm
        ),
    )


def _spectra(folder: Path) -> tuple[list[int], np.ndarray]:
    """Return the checkpoints of a record, and W_Q's (step, layer, j) there."""
    history = TrainingHistory(folder)
    checkpoints = sorted(history)
    steps = [
        checkpoints[index]
        for index in np.unique(
            np.linspace(0, len(checkpoints) - 1, N_SPECTRA).round().astype(int)
        )
    ]
    weights = np.stack(
        [
            # W_Q of every layer of the encoder
            [
                parameters(lens.adapter.model, matrix.path)[0]
                .detach()
                .double()
                .cpu()
                .numpy()
                for name, matrix in matrices(lens).items()
                if matrix.stack == "encoder" and name.endswith(".q")
            ]
            for lens in map(history.__getitem__, steps)
        ]
    )
    return steps, np.linalg.svd(weights, compute_uv=False)


def _last(folder: Path) -> Lens:
    history = TrainingHistory(folder)
    return history[max(history)]


def _attributes(kind: str, title: str, arm: RecipeRun) -> dict[str, Any]:
    recipe, stage = arm.recipe, arm.recipe.stages[-1]
    return {
        "kind": kind,
        "title": title,
        "source": _SOURCE,
        "model": "chronos-nano, cut down",
        "steps": recipe.steps,
        "rows": stage.rows,
        "context": stage.context,
        "horizon": stage.horizon,
        "width": recipe.config["d_model"],
        "heads": recipe.config["num_heads"],
        "head_size": recipe.config["d_kv"],
        "encoder_layers": recipe.config["num_layers"],
        "tokens": recipe.config["vocab_size"],
    }


def trained(run: RecipeRun, out: Path, corpus: Corpus, *, quiet: bool = False) -> bool:
    """Train one run to its end in its folder below `out`.

    It resumes from its last saved state if there is one.
    """
    trainer = Trainer(run.recipe, out / run.folder, corpus, device="cpu")
    if (out / run.folder / STATE).exists():
        trainer.resume()
    return trainer.run(quiet=quiet)


def records(every: list[RecipeRun], out: Path, corpus: Corpus) -> dict[str, xr.Dataset]:
    """Compute the results of the finished runs below `out`, by the name of their file.

    All seeds of a run are needed.
    """
    by_name: dict[str, dict[int, tuple[RecipeRun, Path]]] = {}
    for run in every:
        by_name.setdefault(run.name, {})[run.seed] = run, out / run.folder
    return {
        "attention": attention_record(
            {name: by_name[name] for name in ATTENTION if name in by_name}, corpus
        ),
        "spectra": spectra_record(by_name[DENSE]),
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
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
) -> None:
    """Train every run, then write attention.nc and spectra.nc to OUT."""
    torch.set_num_threads(threads)
    check_writable(out)
    every = runs(steps=steps, seeds=seeds)
    corpus = load_corpus(BASE.corpus, seed=CORPUS_SEED, cache=out / "corpora")
    for run in every:
        if not trained(run, out, corpus):
            console().print("stopped; the same command goes on")
            raise typer.Exit(130)
    for name, record in records(every, out, corpus).items():
        with replacing(out / f"{name}.nc") as part:
            record.to_netcdf(part, engine="scipy")
        console().print(f"{out / name}.nc: {record.attrs['title']}")


if __name__ == "__main__":
    run_command(main)
