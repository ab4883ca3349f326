"""Measures of compressed models: one that is truncated, or models trained here.

One function a table or figure, registered by its id; :func:`truncate` is the one to
read first. The truncation itself is :mod:`tsfm_lens.compress`; training is in
:mod:`tsfm_lens.studies.recipes`, whose records are only read here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from tsfm_lens import compress
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.models import Lens
from tsfm_lens.studies import rank_theory, recipes
from tsfm_lens.studies.papers.context import (
    Context,
    MeasuredValues,
    describe_seeds,
    judge_parts,
    measure,
)
from tsfm_lens.studies.papers.verdicts import ClaimPart

ROUNDS = 5
D_HEAD = 64
"""Size of a head of the paper's models: their last rows, rank 64, are the dense ones.
"""
RATIOS = (0.073, 0.151, 0.237, 0.393, 0.569, 0.755, 0.889)
"""Rows of table 2 without the last one, ratio 1, which is the whole model."""
Schedule = tuple[float, float]
"""Rank of the first layer, and exponent."""
FIGURE_7: tuple[Schedule, ...] = ((3, 0.27), (5, 0.35), (7, 0.40))
TABLE_3: tuple[Schedule, ...] = ((2, 0.25), (3, 0.50), (5, 0.70))
TABLE_4: tuple[Schedule, ...] = ((8, 0.34), (16, 0.0), (10, 0.58), (32, 0.0))
_HALVINGS = 40


@measure("S0-T2")
def truncate(context: Context) -> MeasuredValues:
    """Measure table 2: the model truncated to the paper's shares of ranks."""
    lens = context.model
    spectra, forms = spectra_and_forms(lens)
    result = MeasuredValues(settings={**context.settings(), "ratio": "share of ranks"})
    for row, ratio in enumerate(RATIOS):
        epsilon, ranks = at_ratio(spectra, forms, ratio)
        scores = compress.quality(context.run, compress.factorised(lens, ranks))
        label = f"ratio {ratio:g}"
        _add_scores(result, scores, f", {label}")
        result.add(
            f"overlap of the ten likeliest tokens, {label}",
            scores.get("overlap", np.nan),
        )
        if "log_perplexity" in scores:
            full, other = scores["log_perplexity"].values
            result.add(f"log-perplexity over the whole model's, {label}", other / full)
        left = compress.compute_ratio(forms, ranks)
        result.add(f"ε, {label}", epsilon)
        result.add(f"share of ranks, {label}", left.ranks)
        result.add(f"share of numbers in factors, {label}", left.factors)
        tokens = "overlap of the ten likeliest tokens of T5"
        for name in ("in-domain WQL", "in-domain MASE", "log-perplexity of T5", tokens):
            result.add(f"{name}, {label}", np.nan)
        context.report("ratios", row + 1, len(RATIOS))
    return result


def spectra_and_forms(
    lens: Lens,
) -> tuple[dict[str, np.ndarray], dict[str, compress.BlockShape]]:
    """Return singular values of the attention matrices of a model, and their shapes."""
    matrices = compress.matrices(lens)
    forms = {name: matrix.form() for name, matrix in matrices.items()}
    weights = {
        name: parameters(lens.adapter.model, matrix.path)[0].detach().double()
        for name, matrix in matrices.items()
    }
    spectra = {
        name: torch.linalg.svdvals(weight).cpu().numpy()
        for name, weight in weights.items()
    }
    return spectra, forms


def at_ratio(
    spectra: dict[str, np.ndarray], forms: dict[str, compress.BlockShape], ratio: float
) -> tuple[float, dict[str, int]]:
    """Find the ε at which the share of ranks is nearest to a ratio, and the ranks.

    The search halves an interval of log₁₀ ε.
    """
    low = -12.0
    high = 0.0
    best: tuple[float, float, dict[str, int]] = (np.inf, 0.0, {})
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        ranks = compress.ranks_by_epsilon(spectra, 10**middle)
        share = compress.compute_ratio(forms, ranks).ranks
        # the share is a step function of ε, so the last halving need not be the nearest
        if abs(share - ratio) < best[0]:
            best = abs(share - ratio), 10**middle, ranks
        low, high = (middle, high) if share > ratio else (low, middle)
    return best[1:]


def _add_scores(
    result: MeasuredValues, scores: xr.Dataset, suffix: str, kind: str = "zero-shot "
) -> None:
    """Add WQL and MASE over those of the full model, with their intervals."""
    for name in ("wql", "mase"):
        middle = "size" if f"{name}_rise_size" in scores else "estimate"
        value, low, high = (
            1 + float(scores[f"{name}_rise_{end}"]) for end in (middle, "low", "high")
        )
        bounds = (low, high) if low < high else ()
        result.add(f"{kind}{name.upper()}{suffix}", value, *bounds)


@measure("S0-T3")
def scheduled_bolt(context: Context) -> MeasuredValues:
    """Measure table 3, of a model that is truncated and not trained."""
    result = MeasuredValues(
        settings={**context.settings(), "ranks": "cut off, not trained"}
    )
    shape = (
        1,
        min(max(context.run.batch.lengths), context.model.adapter.context_length),
    )
    for schedule in TABLE_3:
        smaller = _truncate_to_schedule(context.model, schedule)
        text = _schedule_label(schedule)
        _add_scores(result, compress.quality(context.run, smaller), text)
        # a forward of one series, and memory of weights, over those of the whole model
        costs = compress.cost(
            context.model, smaller, shapes=[shape], rounds=ROUNDS
        ).isel(shape=0)
        full, less = costs["weight_bytes"].values
        result.add(f"time{text}", costs["time_ratio"])
        result.add(f"space{text}", less / full)
        for name in ("in-domain WQL", "in-domain MASE"):
            result.add(f"{name}{text}", np.nan)
    return result


def _schedule_label(schedule: Schedule) -> str:
    return f", schedule ({schedule[0]:g}, {schedule[1]:g})"


def _truncate_to_schedule(lens: Lens, schedule: Schedule) -> Lens:
    """Truncate a model to a schedule of ranks.

    The schedule is stated for heads of size 64; its first rank is scaled to the size of
    the model's heads.
    """
    layers = {stack.name: stack.n_layers for stack in lens.wiring.stacks}
    ranks = {}
    for name, matrix in compress.matrices(lens).items():
        full = matrix.form(by_head=True).full
        first = max(1.0, schedule[0] * full / D_HEAD)
        ranks[name] = int(
            rank_theory.rank_schedule(first, schedule[1], layers[matrix.stack], full)[
                matrix.layer
            ]
        )
    return compress.factorised(lens, ranks, by_head=True)


@measure("S0-F7")
def schedules(context: Context) -> MeasuredValues:
    """Measure figure 7."""
    record, result = _record("attention")
    dense = float(record["parameters"].sel(arm="dense"))
    for arm, schedule in (
        ("small schedule", FIGURE_7[0]),
        ("medium schedule", FIGURE_7[2]),
    ):
        one = record.sel(arm=arm)
        text = _schedule_label(schedule)
        result.add(f"size ratio{text}", one["rank_ratio"])
        result.add(
            f"time{text}",
            one["step_time"],
            one["step_time_low"],
            one["step_time_high"],
        )
        result.add(f"space{text}", float(one["parameters"]) / dense)
        _add_scores(result, one, text)
    _add_truncated_scores(result, context, FIGURE_7)
    return result


@measure("S0-T4")
def layered(context: Context) -> MeasuredValues:
    """Measure table 4."""
    record, result = _record("attention")
    for arm, schedule in (("medium schedule", TABLE_4[0]), ("constant", TABLE_4[1])):
        one = record.sel(arm=arm)
        result.add(f"size ratio{_schedule_label(schedule)}", one["rank_ratio"])
        _add_scores(result, one, _schedule_label(schedule), kind="")
    constant, scheduled = (
        np.log1p(record["mase_rise"].sel(arm=arm).values)
        for arm in ("constant", "medium schedule")
    )
    part = ClaimPart(
        "",
        constant - scheduled,
        "logarithm of MASE with one rank, less that with the schedule",
    )
    _add_truncated_scores(result, context, TABLE_4)
    result.claims["layered"] = judge_parts("seed", part)
    return result


def _add_truncated_scores(
    result: MeasuredValues, context: Context, rows: Sequence[Schedule]
) -> None:
    """Add the scores of a given model, truncated to each schedule and not trained."""
    for schedule in rows if context.optional_run is not None else ():
        scores = compress.quality(
            context.run, _truncate_to_schedule(context.model, schedule)
        )
        _add_scores(
            result, scores, _schedule_label(schedule), kind="cut, not trained: "
        )


@measure("S0-LR")
def sketches(context: Context) -> MeasuredValues:
    """Check what equations 19 and 20 can represent, and read trained models' scores.

    The compared models have equally many numbers.
    """
    generator = torch.Generator().manual_seed(context.seed)
    misses = 0
    sizes = [(1, 16), (3, 5), (4, 16), (8, 8)]
    for heads, size in sizes:
        for of in ("rows", "columns"):
            weight = torch.randn(
                heads * size, heads * size, generator=generator, dtype=torch.float64
            )
            factors = compress.truncate(weight, size, heads=heads, of=of)
            off = (
                compress.layers.relative_error(weight, compress.product(factors)) ** 0.5
            )
            misses += off > heads * size * np.finfo(float).eps
    record, result = _record("attention", {"matrices": str(2 * len(sizes))})
    result.add("not_given_back", misses)
    for arm, text in (
        ("shared", "factors for all heads"),
        ("constant", "factors of each head"),
    ):
        one = record.sel(arm=arm)
        result.add(f"numbers in attention, {text}", one["attention_parameters"])
        _add_scores(result, one, f" over the dense model's, {text}", kind="")
    return result


@measure("S0-F11")
def leading(context: Context) -> MeasuredValues:
    """Measure figure 11."""
    record, result = _record("spectra")
    largest = record["singular_value"].isel(index=0)
    times = largest.isel(training_step=-1) / largest.isel(training_step=0)
    growth = np.log(times.transpose("layer", "seed").values)
    part = ClaimPart(
        "", growth.min(axis=0), "logarithm of its growth in the layer where it is least"
    )
    for layer, mean in enumerate(np.exp(growth.mean(axis=1))):
        result.add(f"times that σ₁ grew, layer {layer}", mean)
    result.settings["layers"] = str(len(growth))
    result.claims["leading"] = judge_parts("seed", part)
    return result


def _record(
    name: str, settings: dict[str, str] | None = None
) -> tuple[xr.Dataset, MeasuredValues]:
    """Read a record of models trained here, and begin a result with its settings."""
    record = recipes.low_rank_record(name)
    attrs = record.attrs
    return record, MeasuredValues(
        settings={
            **(settings or {}),
            "model": (
                f"{attrs['model']}: width {attrs['width']}, {attrs['encoder_layers']}"
                " layers"
            ),
            "heads": f"{attrs['heads']} of {attrs['head_size']}",
            "training": f"{attrs['steps']} steps of {attrs['rows']} synthetic rows",
            "seeds": describe_seeds(record, record.sizes["seed"]),
            "intervals over": "seeds",
        }
    )
