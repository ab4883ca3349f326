"""What grids of training runs came to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import num
from tsfm_lens.viz import run_curves
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


def _plates(ds: xr.Dataset) -> Iterator[Plate]:
    columns = [name for name in ("validation_mse", "test_mse", "test_mae", "best_epoch", "parameters") if name in ds]
    yield Plate(run_curves(ds), frame(ds, *columns), read_runs(ds))


MEASUREMENTS = (
    Measurement(
        kind="lab_runs",
        theme="Training",
        about="errors of training runs by arm and seed, epoch by epoch",
        heading="Validation error over training",
        guide="Arms differ in model or optimiser alone; runs of one seed see the same batches.",
        compute=None,
        plates=_plates,
        figures=(Figure("run_curves", "Validation error of every arm and seed by epoch."),),
        source="after SAMformer, figures 1, 2 and 15 (S1-F1)",
        paper=("S1-F1", "S1-F15", "S1-F3", "S1-T1", "S1-T6"),
        maker="made by grids of trainings: `python -m tsfm_lens.lab` makes it, `tsfm_lens.lab` ships some",
        subject=lambda ds: str(ds.attrs.get("about", ds.attrs["title"])),
    ),
)
