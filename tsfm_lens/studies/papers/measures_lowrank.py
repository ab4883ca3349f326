"""Measures of the printed numbers of compressed models, on a model that is cut off or on models trained here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import xarray as xr

from tsfm_lens import compress
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.models import Lens
from tsfm_lens.studies import recipes
from tsfm_lens.studies.papers import values_lowrank as paper
from tsfm_lens.studies.papers.measuring import Asked, Found
from tsfm_lens.studies.papers.verdicts import Part, judged

ROUNDS = 5
_HALVINGS = 40
_ARMS = {"small schedule": paper.FIGURE_7[0], "medium schedule": paper.FIGURE_7[2]}


def cut_off(request: Asked) -> Found:
    """Measure table 2: the model cut off where its ranks come to the paper's ratios."""
    lens = request.model
    matrices = compress.matrices(lens)
    forms = {name: matrix.form() for name, matrix in matrices.items()}
    spectra = {
        name: torch.linalg.svdvals(parameters(lens.adapter.model, matrix.path)[0].detach().double()).cpu().numpy()
        for name, matrix in matrices.items()
    }
    result = Found({})
    for row in paper.TABLE_2:
        epsilon, ranks = _at_ratio(spectra, forms, row.ratio)
        smaller, of = compress.factorised(lens, ranks), f"ratio {row.ratio:g}"
        scores = compress.quality(request.run, smaller)
        _relative(result, scores, f", {of}")
        result.values[f"overlap of the ten likeliest tokens, {of}"] = float(scores.get("overlap", np.nan))
        if "log_perplexity" in scores:
            whole, other = scores["log_perplexity"].values
            result.values[f"log-perplexity over the whole model's, {of}"] = float(other / whole)
        ratio = compress.ratio_of(forms, ranks)
        result.values.update({f"ε, {of}": epsilon, f"share of ranks, {of}": ratio.ranks})
        result.values.update({f"share of numbers in factors, {of}": ratio.factors})
        for name in ("in_domain_wql", "in_domain_mase", "t5_log_perplexity", "t5_overlap"):
            result.values[f"{paper.COLUMNS_2[name]}, {of}"] = np.nan
        request.tell("ratios", paper.TABLE_2.index(row) + 1, len(paper.TABLE_2))
    return Found(result.values, {**request.settings(), "ratio": "share of ranks"}, intervals=result.intervals)


def _at_ratio(
    spectra: dict[str, np.ndarray], forms: dict[str, compress.BlockShape], ratio: float
) -> tuple[float, dict[str, int]]:
    """Find the ε at which the share of ranks is nearest to a ratio, and the ranks."""
    low, high = -12.0, 0.0
    best: tuple[float, float, dict[str, int]] | None = None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        ranks = compress.ranks_by_epsilon(spectra, 10**middle)
        share = compress.ratio_of(forms, ranks).ranks
        if best is None or abs(share - ratio) < best[0]:
            best = abs(share - ratio), 10**middle, ranks
        low, high = (middle, high) if share > ratio else (low, middle)
    assert best is not None
    return best[1], best[2]


def _relative(result: Found, scores: xr.Dataset, words: str, kind: str = "zero-shot ") -> None:
    """Add WQL and MASE over those of the whole model, with their intervals."""
    for name in ("wql", "mase"):
        value, low, high = (1 + float(scores[f"{name}_rise_{end}"]) for end in ("estimate", "low", "high"))
        result.values[f"{kind}{name.upper()}{words}"] = value
        if low < high:
            result.intervals[f"{kind}{name.upper()}{words}"] = (low, high)


def scheduled_bolt(request: Asked) -> Found:
    """Measure table 3, of a model that is cut and not trained."""
    result = Found({})
    for row in paper.TABLE_3:
        smaller = _cut(request.model, row)
        _relative(result, compress.quality(request.run, smaller), f", {row.words}")
        result.values.update({f"{name}, {row.words}": value for name, value in _cost(request, smaller).items()})
        for name in ("in-domain WQL", "in-domain MASE"):
            result.values[f"{name}, {row.words}"] = np.nan
    settings = {**request.settings(), "ranks": "cut off, not trained"}
    return Found(result.values, settings, intervals=result.intervals)


def _cut(lens: Lens, row: paper.Schedule) -> Lens:
    """Cut a model to a schedule, its ranks brought from heads of 64 to those of the model."""
    matrices = compress.matrices(lens)
    layers = {stack.name: stack.n_layers for stack in lens.wiring.stacks}
    ranks = {}
    for name, matrix in matrices.items():
        full = matrix.form(by_head=True).full
        first = max(1.0, row.first * full / paper.D_HEAD)
        ranks[name] = int(compress.rank_schedule(first, row.exponent, layers[matrix.stack], full)[matrix.layer])
    return compress.factorised(lens, ranks, by_head=True)


def _cost(request: Asked, other: Lens) -> dict[str, float]:
    """Measure time of a forward of one series, and memory of weights, over those of the whole model."""
    shape = (1, min(max(request.run.batch.lengths), request.model.adapter.context_length))
    costs = compress.cost(request.model, other, shapes=[shape], rounds=ROUNDS).isel(shape=0)
    whole, less = costs["weight_bytes"].values
    return {"time": float(costs["time_ratio"]), "space": float(less / whole)}


def schedules(request: Asked) -> Found:
    """Measure figure 7."""
    record = recipes.low_rank_record("attention")
    result, dense = Found({}), float(record["parameters"].sel(arm="dense"))
    for arm, row in _ARMS.items():
        one = record.sel(arm=arm)
        values = {
            "size ratio": float(one["rank_ratio"]),
            "time": float(one["step_time"]),
            "space": float(one["parameters"]) / dense,
        }
        result.values.update({f"{name}, {row.words}": value for name, value in values.items()})
        result.intervals[f"time, {row.words}"] = (float(one["step_time_low"]), float(one["step_time_high"]))
        _relative(result, one, f", {row.words}")
    _cuts(result, request, paper.FIGURE_7)
    return Found(result.values, _of_record(record), intervals=result.intervals)


def layered(request: Asked) -> Found:
    """Measure table 4."""
    record = recipes.low_rank_record("attention")
    result = Found({})
    for arm, row in (("medium schedule", paper.TABLE_4[0]), ("constant", paper.TABLE_4[1])):
        one = record.sel(arm=arm)
        result.values[f"size ratio, {row.words}"] = float(one["rank_ratio"])
        _relative(result, one, f", {row.words}", kind="")
    errors = (np.log1p(record["mase_rise"].sel(arm=arm).values) for arm in ("constant", "medium schedule"))
    constant, schedule = errors
    part = Part("", constant - schedule, "logarithm of MASE with one rank, less that with the schedule")
    _cuts(result, request, paper.TABLE_4)
    claims = {paper.LAYERED: judged([part], record["seed"].values.tolist())}
    return Found(result.values, _of_record(record), intervals=result.intervals, claims=claims)


def _cuts(result: Found, request: Asked, rows: tuple[paper.Schedule, ...]) -> None:
    """Add the scores of a given model that is cut to each schedule and not trained."""
    if request.lens is None:
        return
    for row in rows:
        scores = compress.quality(request.run, _cut(request.model, row))
        _relative(result, scores, f", {row.words}", kind="cut, not trained: ")


def sketches(request: Asked) -> Found:
    """Check what equations 19 and 20 can represent, and read models trained with as many numbers."""
    generator = torch.Generator().manual_seed(request.seed)
    misses, sizes = 0, [(1, 16), (3, 5), (4, 16), (8, 8)]
    for heads, size in sizes:
        for of in ("rows", "columns"):
            weight = torch.randn(heads * size, heads * size, generator=generator, dtype=torch.float64)
            factors = compress.truncate(weight, size, heads=heads, of=of)
            off = compress.error_of(weight, compress.product(factors)) ** 0.5
            misses += off > heads * size * np.finfo(float).eps
    record = recipes.low_rank_record("attention")
    result = Found({paper.NOT_GIVEN_BACK: float(misses)})
    for arm, words in (("shared", "factors for all heads"), ("constant", "factors of each head")):
        one = record.sel(arm=arm)
        result.values[f"numbers in attention, {words}"] = float(one["attention_parameters"])
        _relative(result, one, f" over the dense model's, {words}", kind="")
    settings = {"matrices": str(2 * len(sizes)), **_of_record(record)}
    return Found(result.values, settings, intervals=result.intervals)


def vocabularies(request: Asked) -> Found:
    """Measure figure 4c."""
    record = recipes.low_rank_record("vocabulary")
    last = record.isel(training_step=-1)
    parts, values = [], {}
    for name, words in (("rank", "W_Q"), ("moved_rank", "what training added to W_Q")):
        ranks = last[name].mean("seed").transpose("epsilon", "vocabulary", "layer").astype(float)
        for epsilon, of_epsilon in zip(record["epsilon"].values, ranks, strict=True):
            margins = (of_epsilon.isel(vocabulary=-1) - of_epsilon.isel(vocabulary=0)).values
            parts.append(Part(f"{words}, ε = {epsilon:g}", margins, "ε-rank at the largest vocabulary, less at rank 1"))
            for number, mean in zip(record["vocabulary"].values, of_epsilon.mean("layer").values, strict=True):
                values[f"ε-rank of {words}, ε = {epsilon:g}, vocabulary of rank {number}"] = float(mean)
    claims = {paper.INCREASES: judged(parts, range(record.sizes["layer"]))}
    numbers = record["vocabulary"].values
    settings = {
        **_of_record(record),
        "d": str(record.attrs["width"]),
        "ranks of the vocabulary": f"{numbers[0]} to {numbers[-1]}",
        "intervals over": "layers of the encoder",
    }
    return Found(values, settings, claims=claims)


def leading(request: Asked) -> Found:
    """Measure figure 11."""
    record = recipes.low_rank_record("spectra")
    largest = record["singular_value"].isel(index=0)
    times = largest.isel(training_step=-1) / largest.isel(training_step=0)
    growth = np.log(times.transpose("layer", "seed").values)
    parts = [Part(f"layer {layer}", margins, "logarithm of its growth") for layer, margins in enumerate(growth)]
    means = np.exp(growth.mean(axis=1))
    values = {f"times that σ₁ grew, layer {layer}": float(mean) for layer, mean in enumerate(means)}
    settings = {**_of_record(record), "layers": str(len(growth))}
    return Found(values, settings, claims={paper.LEADING: judged(parts, record["seed"].values.tolist())})


def _of_record(record: xr.Dataset) -> dict[str, str]:
    attrs = record.attrs
    return {
        "model": f"{attrs['model']}: width {attrs['width']}, {attrs['encoder_layers']} layers",
        "heads": f"{attrs['heads']} of {attrs['head_size']}",
        "training": f"{attrs['steps']} steps of {attrs['rows']} synthetic rows",
        "seeds": str(record.sizes["seed"]),
        "intervals over": "seeds",
    }


MEASURES_OF_LOW_RANK: dict[str, Callable[[Asked], Found]] = {
    "S0-F11": leading,
    "S0-F4C": vocabularies,
    "S0-F7": schedules,
    "S0-LR": sketches,
    "S0-T2": cut_off,
    "S0-T3": scheduled_bolt,
    "S0-T4": layered,
}
