"""What grids of regression in context came to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import num
from tsfm_lens.viz import in_context_errors
from tsfm_lens.viz.select import array, names


def read_in_context(ds: xr.Dataset) -> list[str]:
    """The error of every arm after the last pair, lowest first."""
    last = array(ds, "by_pairs", "arm", "seed", "pairs")[..., -1]
    told = []
    for arm, ratio, values in zip(names(ds, "arm"), ds["rank_ratio"].values, last, strict=True):
        known = values[np.isfinite(values)]
        if len(known):
            ends = f"{num(float(known.min()))} to {num(float(known.max()))}, {len(known)} seeds"
            words = f"{arm}: {num(float(known.mean()))} ({ends}), scores of rank {num(float(ratio))} d."
            told.append((float(known.mean()), words))
    return [words for _, words in sorted(told)]


def _plates(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(in_context_errors(ds), frame(ds, "by_pairs"), read_in_context(ds))


MEASUREMENTS = (
    Measurement(
        kind="in_context_runs",
        theme="Training",
        about="errors of regression in context by the rank of the scores, the width and the number of pairs",
        heading="Regression in context",
        guide="1 is the error without learning, 0 that of least squares once there are as many pairs as inputs. Few "
        "steps: an arm that is high may be slow as well as unable.",
        compute=None,
        plates=_plates,
        figures=(Figure("in_context_errors", "Error of regression in context by rank or width, and by pairs."),),
        source="after structured attention, figures 2, 3, 6 and 11 (S2-F2)",
        paper=("S2-F2", "S2-F3", "S2-F11"),
        maker="made by grids of trainings: `python -m tsfm_lens.lab` makes it, `tsfm_lens.lab` ships one",
        subject=lambda ds: f"d = {ds.attrs.get('inputs', '?')}",
    ),
)
