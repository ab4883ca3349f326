"""Measures of compressed models that were trained here, read from their records.

One function a table or figure, registered by its id. Training is in
:mod:`tsfm_lens.studies.recipes`.
"""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr

from tsfm_lens import compress
from tsfm_lens.studies import recipes
from tsfm_lens.studies.papers.context import (
    Context,
    MeasuredValues,
    describe_seeds,
    measure,
)

RATIOS = (0.073, 0.151, 0.237, 0.393, 0.569, 0.755, 0.889)
"""Rows of table 2 without the last one, ratio 1, which is the whole model."""
TABLE_3 = ((2, 0.25), (3, 0.50), (5, 0.70))
"""Ranks of the first layer, and exponents."""


def _add_scores(
    result: MeasuredValues, scores: xr.Dataset, suffix: str, kind: str = "zero-shot "
) -> None:
    """Add WQL and MASE over those of the full model, with their intervals."""
    for name in ("wql", "mase"):
        ratio = (
            1 + float(scores[f"{name}_rise_{end}"]) for end in ("size", "low", "high")
        )
        result.add(f"{kind}{name.upper()}{suffix}", *ratio)


@measure("S0-F7")
def schedules(context: Context) -> MeasuredValues:
    """Measure figure 7."""
    record, result = _record("attention")
    dense = float(record["parameters"].sel(arm="dense"))
    for arm, schedule in (("small", "(3, 0.27)"), ("medium", "(7, 0.4)")):
        one = record.sel(arm=f"{arm} schedule")
        text = f", schedule {schedule}"
        result.add(f"size ratio{text}", one["rank_ratio"])
        result.add(
            f"time{text}",
            one["step_time"],
            one["step_time_low"],
            one["step_time_high"],
        )
        result.add(f"space{text}", float(one["parameters"]) / dense)
        _add_scores(result, one, text)
    return result


@measure("S0-T4")
def layered(context: Context) -> MeasuredValues:
    """Measure table 4."""
    record, result = _record("attention")
    for arm, schedule in (("medium schedule", "(8, 0.34)"), ("constant", "(16, 0)")):
        one = record.sel(arm=arm)
        result.add(f"size ratio, schedule {schedule}", one["rank_ratio"])
        _add_scores(result, one, f", schedule {schedule}", kind="")
    constant, scheduled = (
        np.log1p(record["mase_rise"].sel(arm=arm).values)
        for arm in ("constant", "medium schedule")
    )
    of = "logarithm of MASE with one rank, less that with the schedule"
    result.judge("layered", constant - scheduled, of)
    return result


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
    of_layers = dict(enumerate(np.exp(growth.mean(axis=1))))
    result.add_each("times that σ₁ grew, layer {}", of_layers)
    result.settings["layers"] = str(len(growth))
    of = "logarithm of its growth in the layer where it is least"
    result.judge("leading", growth.min(axis=0), of)
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
