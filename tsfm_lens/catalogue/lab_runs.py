"""What grids of training runs came to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import num
from tsfm_lens.viz import run_curves, run_errors, run_errors_over
from tsfm_lens.viz.select import array, names


def read_runs(ds: xr.Dataset) -> list[str]:
    """Where every arm ends, and which stay above the oracle."""
    last, oracle = array(ds, "validation_mse", "arm", "seed"), float(ds.attrs.get("oracle", np.nan))
    out = []
    for arm, values in zip(names(ds, "arm"), last, strict=True):
        known = values[np.isfinite(values)]
        over = f", {num(100 * (float(known.min()) / oracle - 1))} % or more above the oracle"
        near = ", within 1 % of the oracle with every seed"
        beside = "" if not np.isfinite(oracle) else near if known.max() <= 1.01 * oracle else over
        out.append(
            f"{arm} ends at {num(float(known.min()))} to {num(float(known.max()))} ({len(known)} seeds){beside}."
        )
    return out


def read_errors(ds: xr.Dataset) -> list[str]:
    """The arm of the lowest test error of each benchmark, and how far the next one is."""
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
    """Benchmark and horizon of an arm that begins with both, else "", and the rest of its name."""
    parts = arm.split(" ", 2)
    if len(parts) < 3 or not parts[1].isdigit():
        return "", arm
    return f"{parts[0]}, H = {parts[1]}", parts[2]


def _varies(ds: xr.Dataset, over: str) -> bool:
    """Whether arms that agree in all but it differ in it."""
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
            Figure("run_curves", "Validation error of every arm and seed by epoch."),
            Figure("run_errors", "Test error of every seed, arm by arm."),
            Figure("run_errors_over", "Test error over the radius ρ of SAM, or over the horizon."),
        ),
        source="after SAMformer, figures 1, 2, 5, 8, 13, 14 and 15 (S1-F1)",
        paper=(
            *("S1-F1", "S1-F15", "S1-F3", "S1-T1", "S1-T6", "S1-T9", "S1-T10"),
            *("S1-F5", "S1-F6", "S1-F7", "S1-F8", "S1-F13", "S1-F14", "S2-ETT"),
        ),
        maker="made by grids of trainings: `python -m tsfm_lens.lab` makes it, `tsfm_lens.lab` ships some",
        subject=lambda ds: str(ds.attrs.get("about", ds.attrs["title"])),
    ),
)
