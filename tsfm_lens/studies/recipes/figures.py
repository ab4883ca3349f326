"""Measurements of training at low rank, and a figure of spectra.

The records are made in :mod:`tsfm_lens.studies.recipes.lowrank`.
"""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import declare_measurements, figure, frame
from tsfm_lens.studies.curves import curve_sheet

__all__ = ["training_spectra"]


_MAKER = (
    "made by training many models: `python -m tsfm_lens.studies.recipes.lowrank` "
    "makes it, `tsfm_lens.studies.recipes` ships one"
)
declare_measurements(
    Path(__file__).with_name("measurements.yaml"),
    theme="Training",
    maker=_MAKER,
    subject="{model}, {steps} steps of {rows} rows",
)


@figure(
    "training_spectra",
    "Singular values of W_Q at several steps of training.",
    variables=("singular_value",),
    table=("singular_value",),
)
def training_spectra(ds: xr.Dataset) -> go.Figure:
    """Draw singular values of W_Q at several steps of training.

    They are means over seeds, a panel per layer.

    Example:
        >>> record = recipes.low_rank_record("spectra")
        >>> figures.training_spectra(record).layout.meta["title"]
        'Singular values of W_Q over training'
    """
    drawn = curve_sheet(
        frame(ds.mean("seed"), "singular_value"),
        "index",
        "singular_value",
        "training_step",
        panel="layer",
        axes=("index", "singular value"),
        width=1.2,
    )
    drawn.y(rangemode="tozero")
    return drawn.finalize(
        "Singular values of W_Q over training",
        f"encoder, {ds.attrs['heads']} heads of {ds.attrs['head_size']}, mean over"
        f" {ds.sizes['seed']} seeds",
        "absolute, not relative to the largest",
    )
