"""Size against error of compressed models, and their forecasts.

:func:`compressed_forecasts` draws a model and a smaller one; :func:`generic_figure`
draws the curve of sizes. Models are compressed in :mod:`tsfm_lens.compress`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.core.stats import CONFIDENCE_TEXT
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.recipes import overlay
from tsfm_lens.viz.select import array, name_model, names, series_position
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.words import num

__all__ = ["compressed_forecasts"]


def read_curve(ds: xr.Dataset) -> list[str]:
    """State which point to take and why, and which series say so."""
    return [str(ds.attrs[key]) for key in ("why", "sources") if key in ds.attrs]


def read_quality(ds: xr.Dataset) -> list[str]:
    """State by how much the errors rise, and for how many series."""
    if not np.isfinite(ds["mase_rise"].values).any():
        return [
            "The errors are unknown: there is no truth, or a series has no seasonal "
            "error."
        ]
    rise, low, high = (
        100 * ds[f"mase_rise_{end}"] for end in ("estimate", "low", "high")
    )
    return summarize(
        ds,
        "{sources}",
        "MASE changes by {rise:signed %}; it falls for {falling:count} series.",
        f"The {CONFIDENCE_TEXT} interval over series goes from "
        "{low:signed %} to {high:signed %}.",
        "The two models share {overlap:percent} of their ten likeliest tokens "
        "(Jaccard).",
        rise=rise,
        low=low,
        high=high,
        # a comparison with NaN is False, and would count a series without an error
        falling=(ds["mase_rise"] < 0).where(ds["mase_rise"].notnull()),
    )


def _in_percent(ds: xr.Dataset) -> xr.Dataset:
    variables = ("mase_rise", "mase_rise_low", "mase_rise_high")
    rises = {name: 100 * ds[name] for name in variables}
    rises["mase_rise"] = rises["mase_rise"].assign_attrs(
        units="%", long_name="rise of MASE"
    )
    return ds.assign(rises)


generic_figure(
    "compression",
    "mase_rise",
    "Rise of the error over the share of parameters kept, by method of compression.",
    prepare=_in_percent,
    table=(
        "parameters",
        "rank_ratio",
        "factor_ratio",
        "mase_rise",
        "mase_rise_low",
        "mase_rise_high",
        "harm_p",
        "wql_rise",
    ),
    sentences=read_curve,
)


@figure("compression_quality", "Forecasts before and after compression.")
def compressed_forecasts(
    ds: xr.Dataset, *, series: str | int = 0, context_steps: int | None = None
) -> go.Figure:
    """Draw forecasts of a model and of a smaller one over each other.

    Args:
        ds: result of kind "compression_quality".
        series: id of the series, or its place counted from 0.
        context_steps: steps of the context that are drawn, a few horizons if None.

    Returns:
        One panel in data units by step: the context, the truth where known, and both
        medians with their intervals.

    Example:
        >>> fig = viz.compressed_forecasts(compress.quality(run, lens))
        >>> fig.layout.meta["title"].startswith("Forecasts of co2 by chronos-nano")
        True
    """
    position = series_position(ds, series)
    label = names(ds, "series")[position]
    title = f"Forecasts of {label} by {name_model(ds)} before and after compression"
    if "mase" in ds:
        errors = array(ds, "mase", "model", series=position)
    else:
        errors = np.empty(0)
    if errors.size and np.isfinite(errors).all():
        title = f"{title}: MASE {num(errors[0])} and {num(errors[-1])}"
    return overlay(
        {"whole model": ds.isel(model=0), "compressed model": ds.isel(model=-1)},
        series=series,
        context_steps=context_steps,
        title=title,
    )


@panels("compression_quality")
def _forecasts(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for position, label in enumerate(names(ds, "series")):
        table = frame(ds.isel(series=[position]), "mase", "wql")
        text = read_quality(ds)
        fig = compressed_forecasts(ds, series=position)
        yield FigurePanel(fig, table, text, series=label)
