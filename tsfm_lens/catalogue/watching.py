"""Chapters on trainings that were watched: sharpness and attention over steps, and the loss around the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.words import capital, listed, num
from tsfm_lens.viz import attention_snapshots, loss_landscape, nuclear_norms, training_measures
from tsfm_lens.viz.select import names

_MAKER = "made while a model is trained: `tsfm_lens.training` makes it"
_WORDS = {
    "loss": "the training loss",
    "watched_loss": "the loss of the watched data",
    "sharpness": "the sharpness",
    "noise_scale": "the gradient noise scale",
    "entropy": "the entropy of attention",
    "nuclear_norm": "its nuclear norm",
    "diagonal_mass": "its diagonal mass",
    "numerical_rank": "its numerical rank",
}


def _runs(ds: xr.Dataset) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield each run with its name, "" for a single one."""
    if "run" not in ds.dims:
        yield "", ds
        return
    for place, name in enumerate(names(ds, "run")):
        yield name, ds.isel(run=place)


def read_watch(ds: xr.Dataset) -> list[str]:
    """Describe from where to where each measure went, and whether the sharpness can be trusted."""
    out = []
    for run, one in _runs(ds):
        changes = []
        for name, words in _WORDS.items():
            if name not in one or (name == "watched_loss" and "loss" in one):
                continue
            mean = one[name].mean([dim for dim in one[name].dims if dim != "step"]).dropna("step")
            if len(mean) > 1:
                changes.append(f"{words} from {num(float(mean[0]))} to {num(float(mean[-1]))}")
            elif len(mean):
                changes.append(f"{words} is {num(float(mean[0]))}")
        if changes:
            steps = one["step"].values
            out.append(f"{run + ': ' if run else ''}{capital(listed(changes))}, step {steps[0]:,} to {steps[-1]:,}.")
        if "sharpness_residual" in one:
            share = abs(one["sharpness_residual"] / one["sharpness"]).max()
            out.append(f"{run + ': ' if run else ''}Some eigenvalue lies within {float(share):.1%} of each sharpness.")
    return out or ["Nothing was measured."]


def read_norms(ds: xr.Dataset) -> list[str]:
    """State the median of each run beside what one row for all and the identity would have."""
    out = []
    for run, one in _runs(ds):
        norm, keys = float(one["nuclear_norm"].median()), [int(value) for value in np.unique(ds["n_keys"].values)]
        whole = f", {num(norm / keys[0])} of the identity's" if len(keys) == 1 else ""
        out.append(f"{run + ': ' if run else ''}The median nuclear norm is {num(norm)}{whole}; 1 is the least.")
    return out


def read_landscape(ds: xr.Dataset) -> list[str]:
    """State how far the loss rises within the slice."""
    out = []
    for run, one in _runs(ds):
        values = one["loss"].values[np.isfinite(one["loss"].values)]
        where = f"{run + ': ' if run else ''}"
        out.append(f"{where}Within the slice the loss lies between {num(values.min())} and {num(values.max())}.")
        missing = one["loss"].size - len(values)
        if missing:
            out.append(f"{where}At {missing} of {one['loss'].size} places it is not finite.")
    return out


def _table(ds: xr.Dataset, *dims: str) -> pd.DataFrame:
    """Tabulate variables that have no further axes, a row for each combination of labels."""
    variables = [name for name in ds.data_vars if set(ds[name].dims) <= {"run", "seed", *dims}]
    return ds[variables].reset_coords(drop=True).to_dataframe().reset_index()


def _watch_plates(ds: xr.Dataset) -> Iterator[Plate]:
    table = _table(ds, "step") if "step" in ds.dims and ds.sizes["step"] else pd.DataFrame()
    if table.columns.size:
        yield Plate(training_measures(ds), table, read_watch(ds), "measures")
    if "pattern" in ds:
        steps = pd.DataFrame({"snapshot": ds["snapshot"].values})
        count = ds.sizes["snapshot"]
        first, last = steps["snapshot"].min(), steps["snapshot"].max()
        words = f"Attention was kept at {count} step{'s' * (count != 1)}, {first:,} to {last:,}."
        yield Plate(attention_snapshots(ds), steps, [words], "attention")


def _norm_plates(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(nuclear_norms(ds), _table(ds, "layer", "head", "input"), read_norms(ds))


def _landscape_plates(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(loss_landscape(ds), _table(ds, "first", "second"), read_landscape(ds))


def _entry(
    kind: str,
    about: str,
    heading: str,
    guide: str,
    plates: Callable[[xr.Dataset], Iterator[Plate]],
    source: str,
    *figures: Figure,
) -> Measurement:
    """Declare a measurement of a training."""
    subject: Callable[[xr.Dataset], str] = lambda ds: str(ds.attrs.get("model", ""))  # noqa: E731
    return Measurement(
        kind, "Training", about, heading, guide, None, plates, figures, source=source, subject=subject, maker=_MAKER
    )


MEASUREMENTS = (
    _entry(
        "training_watch",
        "sharpness, gradient noise and attention over the steps of a training",
        "A training, watched",
        "Sharpness is the largest eigenvalue of the loss's Hessian. Attention that has collapsed has a low entropy; "
        "rows that are all alike have a nuclear norm near 1.",
        _watch_plates,
        "SAMformer, figures 3, 5, 6 and 12; Zhai et al. 2023; McCandlish et al. 2018",
        Figure("training_measures", "Loss, sharpness, gradient noise and attention over training."),
        Figure("attention_film", "Attention from snapshot to snapshot, with a slider."),
        Figure("attention_snapshots", "Attention at several steps, or of several inputs, side by side."),
    ),
    _entry(
        "attention_norms",
        "nuclear norms of attention input by input",
        "Nuclear norms of attention",
        "The sum of a pattern's singular values: near 1 where all rows are alike, the number of keys for the identity.",
        _norm_plates,
        "SAMformer, figure 7",
        Figure("nuclear_norms", "How nuclear norms of attention spread over inputs."),
    ),
    _entry(
        "loss_landscape",
        "the loss around the weights, along filter-normalised directions",
        "The loss around the weights",
        "A slice shows two of very many directions: flat here is not flat everywhere.",
        _landscape_plates,
        "Li et al. 2018",
        Figure("loss_landscape", "The loss along one direction, or over two."),
    ),
)
