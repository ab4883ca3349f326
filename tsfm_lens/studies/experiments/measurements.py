"""Measurements of grids of training runs, as reports and the gallery show them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.studies._shim import Figure, Measurement, Plate
from tsfm_lens.studies.experiments.figures import (
    in_context_errors,
    learning_rates,
    losses_by_cost,
    run_curves,
    run_errors,
    run_errors_over,
)
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.words import num

_MAKER = "made by grids of trainings: `python -m {0}` makes it, `tsfm_lens.studies.experiments` ships one"


def read_runs(ds: xr.Dataset) -> list[str]:
    """Describe where every arm ends, and which arms stay above the oracle."""
    last, oracle = array(ds, "validation_mse", "arm", "seed"), float(ds.attrs.get("oracle", np.nan))
    out = []
    for arm, values in zip(names(ds, "arm"), last, strict=True):
        finite = values[np.isfinite(values)]
        over = f", {num(100 * (float(finite.min()) / oracle - 1))} % or more above the oracle"
        near = ", within 1 % of the oracle with every seed"
        beside = "" if not np.isfinite(oracle) else near if finite.max() <= 1.01 * oracle else over
        out.append(
            f"{arm} ends at {num(float(finite.min()))} to {num(float(finite.max()))} ({len(finite)} seeds){beside}."
        )
    return out


def read_errors(ds: xr.Dataset) -> list[str]:
    """Name the arm of the lowest test error of each benchmark, and the distance to the next one."""
    errors = array(ds, "test_mse", "arm", "seed")
    cells: dict[str, dict[str, float]] = {}
    for arm, of_seeds in zip(names(ds, "arm"), errors, strict=True):
        cell, rest = _cell(arm)
        cells.setdefault(cell, {})[rest] = float(np.nanmean(of_seeds))
    out = []
    for cell, means in cells.items():
        best, *others = sorted(means, key=means.__getitem__)
        beside = f", before {others[0]} ({num(means[others[0]])})" if others else ""
        where = f"{cell}: the" if cell else "The"
        out.append(f"{where} lowest mean test error is that of {best} ({num(means[best])}){beside}.")
    return out


def _cell(arm: str) -> tuple[str, str]:
    """Split an arm that begins with benchmark and horizon into these, else "", and the rest of its name."""
    parts = arm.split(" ", 2)
    if len(parts) < 3 or not parts[1].isdigit():
        return "", arm
    return f"{parts[0]}, H = {parts[1]}", parts[2]


def _varies(ds: xr.Dataset, over: str) -> bool:
    """Return whether arms that agree in everything else differ in ρ or in the horizon."""
    other = "horizon" if over == "rho" else "rho"
    if over == "horizon":
        return len(np.unique(ds[over].values)) > 1
    groups = zip([name.split(" ")[0] for name in names(ds, "arm")], ds[other].values.tolist(), strict=True)
    by_group: dict[tuple[str, int], set[float]] = {}
    for group, rho in zip(groups, ds[over].values.tolist(), strict=True):
        by_group.setdefault(group, set()).add(rho)
    # of benchmarks ρ is one of a few numbers by the table; a grid of it has more
    return max(map(len, by_group.values())) > 3


def _plates(ds: xr.Dataset) -> Iterator[Plate]:
    columns = [name for name in ("validation_mse", "test_mse", "test_mae", "best_epoch", "parameters") if name in ds]
    table = frame(ds, *columns)
    yield Plate(run_curves(ds), table, read_runs(ds), "curves")
    if "test_mse" in ds:
        yield Plate(run_errors(ds), table, read_errors(ds), "errors")
        for over in ("rho", "horizon") if {"rho", "horizon"} <= set(ds.coords) else ():
            if _varies(ds, over):
                yield Plate(run_errors_over(ds, over), table, read_errors(ds), f"over-{over}")


def read_in_context(ds: xr.Dataset) -> list[str]:
    """Describe the error of every arm after the last pair, lowest first."""
    last = array(ds, "by_pairs", "arm", "seed", "pairs")[..., -1]
    sentences = []
    for arm, ratio, values in zip(names(ds, "arm"), ds["rank_ratio"].values, last, strict=True):
        finite = values[np.isfinite(values)]
        if len(finite):
            ends = f"{num(float(finite.min()))} to {num(float(finite.max()))}, {len(finite)} seeds"
            words = f"{arm}: {num(float(finite.mean()))} ({ends}), scores of rank {num(float(ratio))} d."
            sentences.append((float(finite.mean()), words))
    return [words for _, words in sorted(sentences)]


def _in_context_plates(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(in_context_errors(ds), frame(ds, "by_pairs"), read_in_context(ds))


def read_rates(ds: xr.Dataset) -> list[str]:
    """Name the best rate of every width, by parametrisation."""
    rates, sentences = np.asarray(ds["rate"].values, float), []
    errors = array(ds, "mse", "parametrisation", "width", "rate", "seed")
    for kind, of_kind in zip(names(ds, "parametrisation"), errors, strict=True):
        best = []
        for width, of_width in zip(ds["width"].values.tolist(), of_kind, strict=True):
            finite = np.isfinite(of_width).any(axis=1)
            if finite.any():
                mean = np.array(
                    [np.nanmean(row) if some else np.inf for row, some in zip(of_width, finite, strict=True)]
                )
                best.append(f"{num(float(rates[mean.argmin()]))} at width {width} ({num(float(mean.min()))})")
        sentences.append(f"{kind}: the best rate is {', '.join(best)}.")
    return sentences


def read_losses(ds: xr.Dataset) -> list[str]:
    """Describe the loss of every arm with the cost of its scores."""
    sentences = []
    for arm, share, values in zip(
        names(ds, "arm"), ds["score_share"].values, array(ds, "loss", "arm", "seed"), strict=True
    ):
        finite = values[np.isfinite(values)]
        ends = f"{num(float(finite.min()))} to {num(float(finite.max()))}, {len(finite)} seeds"
        sentences.append(
            f"{arm}: {num(float(finite.mean()))} nats ({ends}) at {num(float(share))} of the multiply-adds."
        )
    return sentences


def _rates(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(learning_rates(ds), frame(ds, "mse"), read_rates(ds))


def _losses(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(losses_by_cost(ds), frame(ds, "loss"), read_losses(ds))


MEASUREMENTS = (
    Measurement(
        kind="lab_runs",
        theme="Training",
        about="errors of training runs by arm and seed, epoch by epoch",
        heading="Validation error over training",
        guide="Arms differ in model or optimiser alone; runs of one seed see the same batches.",
        compute=None,
        plates=_plates,
        figures=(
            Figure(run_curves, "Validation error of every arm and seed by epoch."),
            Figure(run_errors, "Test error of every seed, arm by arm."),
            Figure(run_errors_over, "Test error over the radius ρ of SAM, or over the horizon."),
        ),
        source="after SAMformer, figures 1, 2, 5, 8, 13, 14 and 15 (S1-F1)",
        paper=(
            *("S1-F1", "S1-F15", "S1-F3", "S1-T1", "S1-T6", "S1-T9", "S1-T10"),
            *("S1-F5", "S1-F6", "S1-F7", "S1-F8", "S1-F13", "S1-F14", "S2-ETT"),
        ),
        maker=_MAKER.format("tsfm_lens.studies.experiments"),
        subject=lambda ds: str(ds.attrs.get("about", ds.attrs["title"])),
    ),
    Measurement(
        kind="in_context_runs",
        theme="Training",
        about="errors of regression in context by the rank of the scores, the width and the number of pairs",
        heading="Regression in context",
        guide="1 is the error without learning, 0 that of least squares once there are as many pairs as inputs. Few "
        "steps: an arm that is high may be slow as well as unable.",
        compute=None,
        plates=_in_context_plates,
        figures=(Figure(in_context_errors, "Error of regression in context by rank or width, and by pairs."),),
        source="after structured attention, figures 2, 3, 6 and 11 (S2-F2)",
        paper=("S2-F2", "S2-F3", "S2-F11"),
        maker=_MAKER.format("tsfm_lens.studies.experiments"),
        subject=lambda ds: f"d = {ds.attrs.get('inputs', '?')}",
    ),
    Measurement(
        kind="transfer_runs",
        theme="Training",
        about="errors by learning rate at several widths, by μP and by the standard parametrisation",
        heading="Learning rates across widths",
        guide="Where the rules for weights and rates hold, curves of all widths have their lowest point at one rate.",
        compute=None,
        plates=_rates,
        figures=(Figure(learning_rates, "Error by learning rate and width, for each parametrisation."),),
        source="after structured attention, figure 5 (S2-F5)",
        paper=("S2-F5",),
        maker=_MAKER.format("tsfm_lens.studies.experiments transfer"),
        subject=lambda ds: f"d = {ds.attrs.get('inputs', '?')}",
    ),
    Measurement(
        kind="level_training",
        theme="Training",
        about="losses of Chronos models trained alike, with scores by nested blocks of tokens or standard ones",
        heading="Chronos with scores by levels of tokens",
        guide="All arms take the same steps on the same batches; further left, scores take fewer multiply-adds.",
        compute=None,
        plates=_losses,
        figures=(Figure(losses_by_cost, "Loss by the multiply-adds of the scores."),),
        source="after structured attention, section 5.2 and figure 15 (S2-CHR)",
        paper=("S2-CHR",),
        maker=_MAKER.format("tsfm_lens.studies.recipes.levels"),
        subject=lambda ds: f"{ds.attrs.get('steps', '?')} steps",
    ),
)
