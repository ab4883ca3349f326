"""What grids of runs with structured scores came to: learning rates across widths, and Chronos at equal steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import num
from tsfm_lens.viz import learning_rates, losses_by_cost
from tsfm_lens.viz.select import array, names


def read_rates(ds: xr.Dataset) -> list[str]:
    """The best rate of every width, by parametrisation."""
    rates, told = np.asarray(ds["rate"].values, float), []
    errors = array(ds, "mse", "parametrisation", "width", "rate", "seed")
    for kind, of_kind in zip(names(ds, "parametrisation"), errors, strict=True):
        best = []
        for width, of_width in zip(ds["width"].values.tolist(), of_kind, strict=True):
            known = np.isfinite(of_width).any(axis=1)
            if known.any():
                mean = np.array(
                    [np.nanmean(row) if some else np.inf for row, some in zip(of_width, known, strict=True)]
                )
                best.append(f"{num(float(rates[mean.argmin()]))} at width {width} ({num(float(mean.min()))})")
        told.append(f"{kind}: the best rate is {', '.join(best)}.")
    return told


def read_losses(ds: xr.Dataset) -> list[str]:
    """The loss of every arm beside what its scores cost."""
    told = []
    for arm, share, values in zip(
        names(ds, "arm"), ds["score_share"].values, array(ds, "loss", "arm", "seed"), strict=True
    ):
        known = values[np.isfinite(values)]
        ends = f"{num(float(known.min()))} to {num(float(known.max()))}, {len(known)} seeds"
        told.append(f"{arm}: {num(float(known.mean()))} nats ({ends}) at {num(float(share))} of the multiply-adds.")
    return told


def _rates(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(learning_rates(ds), frame(ds, "mse"), read_rates(ds))


def _losses(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(losses_by_cost(ds), frame(ds, "loss"), read_losses(ds))


_MAKER = "made by grids of trainings: `python -m {0}` makes it, `tsfm_lens.lab` ships one"

MEASUREMENTS = (
    Measurement(
        kind="transfer_runs",
        theme="Training",
        about="errors by learning rate at several widths, by μP and by the standard parametrisation",
        heading="Learning rates across widths",
        guide="Where the rules for weights and rates hold, curves of all widths have their lowest point at one rate.",
        compute=None,
        plates=_rates,
        figures=(Figure("learning_rates", "Error by learning rate and width, for each parametrisation."),),
        source="after structured attention, figure 5 (S2-F5)",
        paper=("S2-F5",),
        maker=_MAKER.format("tsfm_lens.lab transfer"),
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
        figures=(Figure("losses_by_cost", "Loss by the multiply-adds of the scores."),),
        source="after structured attention, section 5.2 and figure 15 (S2-CHR)",
        paper=("S2-CHR",),
        maker=_MAKER.format("tsfm_lens.zoo.levels"),
        subject=lambda ds: f"{ds.attrs.get('steps', '?')} steps",
    ),
)
