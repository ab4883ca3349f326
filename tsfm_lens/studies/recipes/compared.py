"""Results of the arms of training at low rank: errors side by side, sizes and times, and spectra of W_Q."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr

from tsfm_lens.compress import BlockShape, matrices, quality, ratio_of, sizes
from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.models import Lens
from tsfm_lens.probes.findings import judge
from tsfm_lens.ranks import epsilon_rank
from tsfm_lens.stats import mean_interval
from tsfm_lens.studies.recipes.arms import DENSE, Arm
from tsfm_lens.studies.recipes.corpus import Corpus, build_corpus
from tsfm_lens.studies.recipes.history import TrainingHistory
from tsfm_lens.studies.recipes.narrow import attention_ranks
from tsfm_lens.studies.recipes.train import Trainer

__all__ = ["EPSILONS", "attention_record", "held_out", "spectra_record", "vocabulary_record"]

EPSILONS = (0.3, 0.1, 0.03, 0.01)
N_SPECTRA = 8
"""Checkpoints of which spectra are kept, of the twenty of a run."""
HELD_OUT_SEED = 20_261_123
PER_FAMILY = 16
ROUNDS = 24
SCORES = ("mase", "wql", "log_perplexity")
_SOURCE = "after Flow of ranks, section 5 and appendices G and I"


def held_out(arm: Arm) -> SeriesBatch:
    """Draw series of the families that an arm is trained on, of another seed: its context and horizon long."""
    stage = arm.recipe.stages[-1]
    corpus = build_corpus(dict.fromkeys(arm.recipe.corpus, PER_FAMILY), seed=HELD_OUT_SEED)
    steps = stage.context + stage.horizon
    names = [f"{family} {row}" for family, (first, stop) in corpus.rows.items() for row in range(stop - first)]
    return SeriesBatch(tuple(row[-steps:].astype(float) for row in corpus.values), tuple(names))


def attention_record(runs: Mapping[str, Mapping[int, tuple[Arm, Path]]], corpus: Corpus) -> xr.Dataset:
    """Compare arms of attention with the dense one of the same seed.

    Args:
        runs: by arm and seed, the arm and the folder of its run, which has ended; :data:`DENSE` among them.
        corpus: for the batches that are timed.

    Returns:
        Dataset of kind "low_rank_training" by ``arm``: ``mase`` and ``wql`` (arm, seed, series); ``log_perplexity`` in
        nats a token and ``overlap`` of the ten likeliest tokens with those of the dense arm (arm, seed). Over all,
        ``…_rise`` (arm, seed) of errors the ratio to the dense arm, less 1 (geometric mean over series), of the
        perplexity the difference of logarithms, judged over seeds: ``…_rise_estimate``, ``…_low``, ``…_high`` and
        ``…_stands_out``, see :func:`tsfm_lens.probes.findings.judge`. ``parameters`` and ``attention_parameters``,
        numbers held; ``rank_ratio`` and ``stored_ratio``, shares of the ranks and of the
        numbers of the dense attentions; ``rank`` (arm, layer) of the encoder. ``step_time`` and ``forward_time`` with
        ends, CPU time over that of the dense arm, taken in turn.

    Raises:
        InputError: an arm has not been trained with each seed, or there is no dense one.
    """
    names = list(runs)
    seeds = sorted(runs.get(DENSE, {}))
    if not seeds or any(sorted(runs[name]) != seeds for name in names):
        raise InputError(f"arms {', '.join(names)} were not all trained with the seeds {seeds} of {DENSE!r}")
    first = runs[DENSE][seeds[0]][0]
    series, steps = held_out(first), first.recipe.stages[-1].horizon
    values: dict[str, list[list[Any]]] = {name: [[] for _ in names] for name in (*SCORES, "overlap")}
    for seed in seeds:
        dense = _last(runs[DENSE][seed][1]).run(series, steps, holdout=True, seed=seed)
        for row, name in enumerate(names):
            result = quality(dense, _last(runs[name][seed][1]))
            for score in SCORES:
                values[score][row].append(result[score].values[1])
            values["overlap"][row].append(float(result["overlap"]))
    data = xr.Dataset(
        {
            name: (("arm", "seed", "series")[: np.ndim(every)], np.asarray(every, dtype=np.float32))
            for name, every in values.items()
        },
        coords={"arm": names, "seed": seeds, "series": list(series.ids)},
        attrs=_attributes("low_rank_training", "Training at low rank", first),
    )
    for name in SCORES:
        data = _add_rise(data, name, names.index(DENSE))
    arms = {name: runs[name][seeds[0]][0] for name in names}
    lenses = {name: _last(runs[name][seeds[0]][1]) for name in names}
    return data.assign(_sizes(arms, lenses, lenses[DENSE])).assign(_times(arms, corpus))


def _add_rise(data: xr.Dataset, name: str, dense: int) -> xr.Dataset:
    """Add the rise of a score over the dense arm of the same seed, judged over seeds."""
    values = data[name].values.astype(float)
    if name == "log_perplexity":
        rise = values - values[dense]
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(values) - np.log(values[dense])
        # a series that one arm forecasts without error has no ratio
        rise = np.expm1(np.nanmean(np.where(np.isfinite(logs), logs, np.nan), axis=-1))
    result = judge(
        data.assign({f"{name}_rise": (("arm", "seed"), rise)}), f"{name}_rise", floor=0.0, signed=True, over="seed"
    )
    return result.drop_vars([f"{name}_rise_leads", f"{name}_rise_floor"])


def _sizes(arms: Mapping[str, Arm], lenses: Mapping[str, Lens], dense: Lens) -> dict[str, Any]:
    """Count the numbers in the model, ranks by layer and both ratios."""
    dense_matrices = matrices(dense)
    layers = 1 + max(matrix.layer for matrix in dense_matrices.values())
    rows: dict[str, list[Any]] = {}
    for name, arm in arms.items():
        target = arm.recipe.attention_rank
        by_head = target is None or target.sketch == "by head"
        forms: dict[str, BlockShape] = {key: matrix.form(by_head=by_head) for key, matrix in dense_matrices.items()}
        ranks = {key: form.full for key, form in forms.items()} if target is None else attention_ranks(dense, target)
        numbers = sizes(lenses[name])
        of_encoder = [
            next(
                ranks[key]
                for key, matrix in dense_matrices.items()
                if (matrix.stack, matrix.layer) == ("encoder", layer)
            )
            for layer in range(layers)
        ]
        row = {"parameters": numbers["all"], "attention_parameters": numbers["attention"], "rank": of_encoder}
        share = numbers["attention"] / sum(form.numbers for form in forms.values())
        for key, value in {**row, "rank_ratio": ratio_of(forms, ranks).ranks, "stored_ratio": share}.items():
            rows.setdefault(key, []).append(value)
    return {key: (("arm", "layer")[: np.ndim(values)], values) for key, values in rows.items()}


def _times(arms: Mapping[str, Arm], corpus: Corpus) -> dict[str, Any]:
    """Measure the CPU time of a training step and of a forward over those of the dense arm, round by round in turn."""
    times = np.empty((2, len(arms), ROUNDS))
    with tempfile.TemporaryDirectory() as folder:
        trainers = [Trainer(arm.recipe, Path(folder, arm.folder), corpus, device="cpu") for arm in arms.values()]
        for trainer in trainers:
            trainer.train_step()
        for at in range(ROUNDS):
            for row, trainer in enumerate(trainers):
                start = time.process_time()
                trainer.train_step()
                middle = time.process_time()
                with torch.no_grad():
                    trainer.task.loss(trainer.step, trainer.recipe.stages[-1])
                times[:, row, at] = middle - start, time.process_time() - middle
    logs = np.log(times) - np.log(times[:, list(arms).index(DENSE)])[:, None]
    return {
        f"{name}_time{end}": ("arm", np.exp(each))
        for name, of in zip(("step", "forward"), logs, strict=True)
        for end, each in zip(("", "_low", "_high"), mean_interval(of), strict=True)
    }


def vocabulary_record(runs: Mapping[int, Mapping[int, tuple[Arm, Path]]]) -> xr.Dataset:
    """Compute ranks of W_Q of the encoder over training, by the rank of a fixed vocabulary.

    Args:
        runs: by rank of the vocabulary and seed, the arm and the folder of its run.

    Returns:
        Dataset of kind "vocabulary_ranks": ``rank`` (vocabulary, seed, training_step, layer, epsilon), the ε-rank of
        W_Q; ``moved_rank`` of what training added to it; ``log_perplexity`` (vocabulary, seed) in nats a token.
    """
    numbers, seeds = sorted(runs), sorted(next(iter(runs.values())))
    first = runs[numbers[0]][seeds[0]][0]
    series, steps = held_out(first), first.recipe.stages[-1].horizon
    spectra = [[_spectra(runs[number][seed][1]) for seed in seeds] for number in numbers]
    ranks = [
        np.stack([[np.moveaxis(epsilon_rank(getattr(each, part), EPSILONS), 0, -1) for each in row] for row in spectra])
        for part in ("whole", "change")
    ]
    perplexity = []
    for number in numbers:
        lenses = [_last(runs[number][seed][1]) for seed in seeds]
        each = [quality(lens.run(series, steps, holdout=True), lens)["log_perplexity"].values[0] for lens in lenses]
        perplexity.append(each)
    dims = ("vocabulary", "seed", "training_step", "layer", "epsilon")
    coords = {"vocabulary": numbers, "seed": seeds, "training_step": spectra[0][0].steps, "epsilon": list(EPSILONS)}
    attrs = _attributes("vocabulary_ranks", "Ranks of W_Q by the rank of a fixed vocabulary", first)
    return xr.Dataset(
        {
            "rank": (dims, ranks[0].astype(np.int16)),
            "moved_rank": (dims, ranks[1].astype(np.int16)),
            "log_perplexity": (dims[:2], np.array(perplexity)),
        },
        coords=coords,
        attrs=attrs,
    )


def spectra_record(runs: Mapping[int, tuple[Arm, Path]]) -> xr.Dataset:
    """Compute singular values of W_Q of the encoder over the training of the dense arm.

    Args:
        runs: by seed, the arm and the folder of its run.

    Returns:
        Dataset of kind "training_spectra": ``singular_value`` (seed, training_step, layer, index), absolute.
    """
    spectra = {seed: _spectra(folder) for seed, (_, folder) in runs.items()}
    values = np.stack([each.whole for each in spectra.values()]).astype(np.float32)
    steps = next(iter(spectra.values())).steps
    arm = next(iter(runs.values()))[0]
    return xr.Dataset(
        {"singular_value": (("seed", "training_step", "layer", "index"), values)},
        coords={"seed": list(spectra), "training_step": steps},
        attrs=_attributes("training_spectra", "Singular values of W_Q during training", arm),
    )


class _Spectra(NamedTuple):
    """Checkpoints of the record, and singular values (step, layer, j) of W_Q and of its change in training."""

    steps: list[int]
    whole: np.ndarray
    change: np.ndarray


def _spectra(folder: Path) -> _Spectra:
    history = TrainingHistory(folder)
    checkpoints = sorted(history)
    steps = [
        checkpoints[place] for place in np.unique(np.linspace(0, len(checkpoints) - 1, N_SPECTRA).round().astype(int))
    ]
    weights = np.stack([_queries(history[step]) for step in steps])
    whole, change = (np.linalg.svd(each, compute_uv=False) for each in (weights, weights - weights[:1]))
    return _Spectra(steps, whole, change)


def _queries(lens: Lens) -> np.ndarray:
    """Return W_Q of every layer of the encoder, (layer, out, in)."""
    paths: Iterable[str] = (
        matrix.path for name, matrix in matrices(lens).items() if matrix.stack == "encoder" and name.endswith(".q")
    )
    return np.stack([parameters(lens.adapter.model, path)[0].detach().double().numpy() for path in paths])


def _last(folder: Path) -> Lens:
    history = TrainingHistory(folder)
    return history[max(history)]


def _attributes(kind: str, title: str, arm: Arm) -> dict[str, Any]:
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
