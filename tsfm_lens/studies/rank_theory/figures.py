"""Figures of the numerical experiments on rank.

Read :func:`compression_rank_lines` first. The experiments themselves are in
:mod:`tsfm_lens.studies.rank_theory.experiments`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import declare_measurements, figure, frame
from tsfm_lens.studies.curves import add_curves, add_reference, curve_sheet
from tsfm_lens.studies.rank_theory.of_models import list_parameters
from tsfm_lens.viz.grid import LOG_AXIS, panel_grid, title_axes
from tsfm_lens.viz.sheet import sheet

__all__ = [
    "chebyshev_curves",
    "compression_rank_lines",
    "compression_width_lines",
    "head_spectra_lines",
    "sketching_lines",
]

LEAST = 1e-17  # of a spectrum relative to its largest: double precision ends


declare_measurements(
    Path(__file__).with_name("measurements.yaml"),
    theme="Theory",
    maker="made of no model: `tsfm_lens.studies.rank_theory` makes it",
    subject=list_parameters,
)


@figure(
    "theory_compression_rank",
    "Error of a layer cut to a rank over the singular value that is cut off.",
    variables=(
        "error",
        "next_singular_value",
        "bound",
        "slope",
    ),
    table=(
        "error",
        "bound",
    ),
)
def compression_rank_lines(ds: xr.Dataset) -> go.Figure:
    """Draw the error of a layer cut to a rank over the first singular value cut off.

    Its bound with √L is drawn too.

    Example:
        >>> sizes = {"width": 16, "n_tokens": 32, "n_ranks": 6}
        >>> found = rank_theory.compression_by_rank(**sizes)
        >>> figures.compression_rank_lines(found).layout.meta["title"]
        'Error of attention cut to a rank grows with the singular value that is cut off'
    """
    squares = ds[["error", "bound"]] ** 2
    table = frame(squares.mean("draw") ** 0.5, "error", "bound")
    cut = ds["next_singular_value"].values
    table = table.assign(
        cut=cut,
        errors=f"slope {float(ds['slope'].mean()):.2f}",
        bounds="bound, with √L",
    )
    drawn = curve_sheet(
        table,
        "cut",
        "error",
        "errors",
        log="xy",
        axes=("first singular value that is cut off", "error (Frobenius norm)"),
        reference=("slope 1", *_power(cut, table["error"], 1.0)),
        mode="markers",
    )
    panel = drawn.panel()
    add_curves(panel, table, "cut", "bound", "bounds", dash="dot", width=1)
    drawn.y(**LOG_AXIS)
    return drawn.finalize(
        "Error of attention cut to a rank grows with the singular value that is"
        " cut off",
        list_parameters(ds),
    )


@figure(
    "theory_compression_width",
    "Error of a layer cut to a fixed rank over its width.",
    variables=(
        "error",
        "slope",
        "slope_low",
        "slope_high",
    ),
    table=("error",),
)
def compression_width_lines(ds: xr.Dataset) -> go.Figure:
    """Draw the error of a layer cut to a fixed rank over its width.

    It has a thin line per draw and a line per kind of weights.

    Example:
        >>> sizes = {"widths": (16, 32), "rank": 4, "n_tokens": 64, "draws": 2}
        >>> found = rank_theory.compression_by_width(**sizes)
        >>> figures.compression_width_lines(found).layout.meta["title"]
        'Error of attention cut to rank 4, by width'
    """
    table = frame(ds, "error")
    slopes = ds[["slope", "slope_low", "slope_high"]].to_dataframe()
    text = {
        str(row.Index): (
            f"{row.Index}: slope {row.slope:.2f} "
            f"({row.slope_low:.2f} to {row.slope_high:.2f})"
        )
        for row in slopes.itertuples()
    }
    table["weights"] = table["weights"].map(text)
    widths = ds["width"].values
    first = table[table["weights"] == table["weights"].iloc[0]]["error"]
    drawn = curve_sheet(
        table,
        "width",
        "error",
        "weights",
        repeat="draw",
        log="xy",
        axes=("width d", "error (Frobenius norm)"),
        reference=("slope 1/2", *_power(widths, first, 0.5)),
    )
    return drawn.finalize(
        f"Error of attention cut to rank {ds.attrs['rank']}, by width",
        list_parameters(ds),
    )


@figure(
    "theory_sketching",
    "What sketches of several heads miss, and where on the input's spectrum that is.",
    variables=(
        "distance",
        "effective_index",
        "floor",
        "singular_value",
    ),
    table=(
        "distance",
        "effective_index",
    ),
)
def sketching_lines(ds: xr.Dataset) -> go.Figure:
    """Draw the errors of sketches of several heads, and the input's spectrum.

    Sketches are sparse, dense, and the best of as many rows.

    Example:
        >>> sizes = {"width": 32, "rank": 2, "heads": (1, 2, 4), "decay": 4.0}
        >>> found = rank_theory.sketching_by_heads(**sizes)
        >>> figures.sketching_lines(found).layout.meta["title"]
        'What sketches of 2 rows a head miss of an input of width 32'
    """
    spectrum = frame(ds, "singular_value").assign(input="singular values of the input")
    spectrum = spectrum[spectrum["singular_value"] > LEAST]
    distance = frame(ds.mean("draw"), "distance")
    titles = ["singular values of the input", "sketching error"]
    drawn = sheet([280], [0.5, 0.5], titles=titles, column_gap=0.14)
    left, right = drawn
    add_curves(left, spectrum, "index", "singular_value", "input")
    add_curves(right, distance, "heads", "distance", "sketch")
    heads = ds["heads"].values
    add_reference(right, "best of as many rows", heads, ds["floor"].values)
    left.x("index", type="log")
    left.y("singular value", **LOG_AXIS)
    right.x("heads h", **LOG_AXIS)
    right.y(**LOG_AXIS)
    return drawn.finalize(
        f"What sketches of {ds.attrs['rank']} rows a head miss of an input of width"
        f" {ds.attrs['width']}",
        list_parameters(ds),
    )


@figure(
    "theory_head_spectra",
    "Singular values of a layer's output by heads.",
    variables=(
        "singular_value",
        "rank",
        "logit_deviation",
        "input_singular_value",
    ),
    table=(
        "rank",
        "logit_deviation",
    ),
)
def head_spectra_lines(ds: xr.Dataset) -> go.Figure:
    """Draw relative singular values of a layer's output by number of heads.

    They are medians over draws.

    Example:
        >>> sizes = {"width": 16, "n_tokens": 32, "heads": (1, 4), "decay": 1.0}
        >>> found = rank_theory.spectra_by_heads(**sizes, draws=2)
        >>> figures.head_spectra_lines(found).layout.meta["title"]
        'Spectra of U + attention(U) by heads'
    """
    values = ds["singular_value"].median("draw")
    table = frame(values.where(values > LEAST).to_dataset(), "singular_value")
    first = ds["input_singular_value"].values
    drawn = curve_sheet(
        table,
        "index",
        "singular_value",
        "heads",
        panel="input",
        log="y",
        axes=("index", "relative singular value"),
        reference=("input", ds["index"].values, np.where(first > LEAST, first, np.nan)),
    )
    drawn.y(range=[-8, 0.2])
    return drawn.finalize("Spectra of U + attention(U) by heads", list_parameters(ds))


@figure(
    "theory_chebyshev",
    "The curves that embeddings of several ranks draw in hidden space.",
    variables=(
        "coordinate",
        "found_rank",
    ),
    table=("found_rank",),
)
def chebyshev_curves(ds: xr.Dataset) -> go.Figure:
    """Draw the first two coordinates of embeddings of Chebyshev polynomials by rank.

    Example:
        >>> sizes = {"dimension": 8, "ranks": (1, 3), "n_points": 40}
        >>> curves = rank_theory.chebyshev_curves(**sizes)
        >>> figures.chebyshev_curves(curves).layout.meta["title"]
        'Embeddings of Chebyshev polynomials: the first two of 8 coordinates'
    """
    across, up = (ds["coordinate"].isel(axis=axis) for axis in (0, 1))
    table = frame(xr.Dataset({"across": across, "up": up}, ds.coords), "across", "up")
    titles = [(f"rank {rank}",) for rank in ds["rank"].values]
    grid = panel_grid(titles, row_height=200, most=3, own_x=True)
    for panel, (name, rows) in zip(
        grid, table.groupby("rank", sort=False), strict=True
    ):
        panel.line(rows["across"], rows["up"], f"rank {name}", "%{x:.3g}, %{y:.3g}")
    title_axes(grid, "coordinate 1", "coordinate 2")
    return grid.finalize(
        f"Embeddings of Chebyshev polynomials: the first two of {ds.attrs['dimension']}"
        " coordinates",
        f"{ds.sizes['point']} values",
    )


def _power(
    x: np.ndarray, values: pd.Series, slope: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return both end points of a line of a given slope on logarithmic axes.

    It goes through the middle of a curve.
    """
    bounds = np.array([x.min(), x.max()])
    middle = np.log(values).mean() + slope * (np.log(bounds) - np.log(x).mean())
    return bounds, np.exp(middle)
