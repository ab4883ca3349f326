"""Ranks, spectra and angles of the weights.

:func:`weight_rank_map` draws how many of its directions each matrix uses; the other
figures are made by :func:`generic_figure`. Ranks of the residual stream are in
:mod:`tsfm_lens.viz.stream_ranks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.axes import layer_name
from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.generic import draw_variable, generic_figure
from tsfm_lens.viz.select import (
    kind_word,
    names,
    position,
)
from tsfm_lens.viz.summary import summarize, summary

__all__ = ["weight_rank_map"]

_LOWEST = 1e-9  # of the largest: smaller singular values are not drawn
_ATTENTION = ("W_Q", "W_K", "W_V", "W_O")


def read_weight_ranks(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """Return sentences on the share of their directions that the matrices use.

    A sentence names the matrix that uses the least.
    """
    one = ds.isel(epsilon=level_position(ds, epsilon), matrix=select_full_matrices(ds))
    is_known = one["told"].values > 0
    if not is_known.any():
        return [
            f"At ε = {float(one['epsilon']):g} rounding of the weights hides every"
            " rank."
        ]
    share = one["rank_share"][is_known]
    return summarize(
        one,
        "At ε = {epsilon} the median matrix uses this share of its directions: "
        "{parts:each percent}.",
        "Smallest share: {share:lowest percent}.",
        "Rounding of {precision} weights hides the ranks of {hidden:whole} matrices.",
        noun="matrices",
        parts=share.groupby("part").median(),
        share=share,
        hidden=None if is_known.all() else (~is_known).sum(),
    )


def read_weight_spectra(ds: xr.Dataset) -> list[str]:
    """State how fast the spectra fall, by measures without a threshold."""
    one = ds.isel(matrix=select_full_matrices(ds))
    return summarize(
        one,
        "The effective rank is {shares:median percent} of the largest possible in the "
        "median matrix, from {shares:min percent} to {shares:max percent}.",
        "Weights are stored in {precision}: singular values below {rounding_floor:max}"
        " of the largest may be rounding.",
        shares=one["effective_rank"] / one["full"],
    )


def relative(values: np.ndarray, floor: np.ndarray | None = None) -> np.ndarray:
    """Return singular values (…, mode), descending, over the largest.

    They are NaN where they are not drawn, or below ``floor`` (…,).
    """
    top = values[..., :1]
    shares = np.divide(values, top, out=np.full_like(values, np.nan), where=top > 0)
    if floor is None:
        threshold = np.full(values.shape[:-1], _LOWEST)
    else:
        # fmax takes the other number where the floor is NaN
        threshold = np.fmax(floor, _LOWEST)
    # a comparison with NaN is false, so shares of a matrix of zeros stay NaN
    return np.where(shares >= threshold[..., None], shares, np.nan)


def level_position(ds: xr.Dataset, epsilon: float | None) -> int:
    """Return the position of an ε, of the middle one for None."""
    if epsilon is None:
        return (ds.sizes["epsilon"] - 1) // 2
    return position(ds, "epsilon", str(float(epsilon)))


def select_full_matrices(ds: xr.Dataset) -> list[int]:
    """Return the positions of the matrices over all heads."""
    return [index for index, head in enumerate(list_names(ds, "head")) if head == ""]


def list_names(ds: xr.Dataset, coordinate: str) -> list[str]:
    """Return a coordinate of the matrices as strings."""
    return [str(value) for value in ds[coordinate].values]


def _layer_labels(ds: xr.Dataset, matrices: list[int]) -> list[str]:
    """Name the layer of each matrix, with its stack where there are several."""
    stacks, layers = (
        [list_names(ds, name)[i] for i in matrices] for name in ("stack", "layer")
    )
    several = len(set(stacks)) > 1
    return [
        f"{a} {layer_name(b)}" if several and a else layer_name(b)
        for a, b in zip(stacks, layers, strict=True)
    ]


def _column_labels(ds: xr.Dataset) -> list[str]:
    """Return the name of each matrix, which is its part.

    The kind of attention is named where the model has several.
    """
    parts = list_names(ds, "part")
    kinds = list_names(ds, "layer_kind")
    attention = {kinds[i] for i in select_full_matrices(ds) if parts[i] in _ATTENTION}
    # a strict subset: the kind is one of several, and has to be told from the others
    return [
        f"{kind_word(kind).removesuffix('-attention')} {part}"
        if {kind} < attention
        else part
        for part, kind in zip(parts, kinds, strict=True)
    ]


def _by_matrix(ds: xr.Dataset, variable: str) -> xr.Dataset:
    """Return a variable of the matrices over all heads, layer × matrix.

    Shares of a rank that rounding hides are missing.
    """
    full = select_full_matrices(ds)
    values = ds[variable].isel(matrix=full)
    if variable == "rank_share":
        share = 100 * values.where(ds["told"].isel(matrix=full) > 0)
        values = share.assign_attrs(units="%", long_name="share of the full rank")
    layers = _layer_labels(ds, full)
    columns = _column_labels(ds)
    # attention first, in whatever order the model has its matrices; sorting is stable
    parts = list_names(ds, "part")
    order = sorted(full, key=lambda index: parts[index] not in _ATTENTION)
    matrices = [columns[index] for index in full]
    # a matrix is a pair of a layer and a column, which unstack() lays out as a table
    keys = pd.MultiIndex.from_arrays([layers, matrices], names=["block", "part"])
    labels = xr.Coordinates.from_pandas_multiindex(keys, "matrix")
    grid = values.drop_vars(list(values.coords)).assign_coords(labels)
    rows = {
        "block": list(dict.fromkeys(layers)),
        "part": list(dict.fromkeys(columns[index] for index in order)),
    }
    table = grid.unstack("matrix").sel(rows)
    table["block"].attrs["long_name"] = "layer"
    table["part"].attrs["long_name"] = "matrix"
    return table.to_dataset(name=variable).assign_attrs(ds.attrs)


@figure(
    "weight_ranks",
    "Share of its directions that each weight matrix uses.",
    table=("epsilon_rank", "rank_share", "told"),
    sentences=read_weight_ranks,
)
def weight_rank_map(ds: xr.Dataset, *, epsilon: float | None = None) -> go.Figure:
    """Draw the share of its directions that each matrix uses, layer × matrix.

    The share is that of its ε-rank.

    Args:
        ds: result of kind "weight_ranks".
        epsilon: one of the result's, the middle one if None.

    Returns:
        One map, layer × matrix, of shares between 0 and 1.

    Example:
        >>> fig = viz.weight_rank_map(probes.weight_ranks(lens, epsilon=0.1))
        >>> fig.layout.meta["title"]
        'singular values above 0.1 of the largest: chronos-nano'
    """
    one = ds.isel(epsilon=level_position(ds, epsilon))
    about = f"singular values above {float(one['epsilon']):g} of the largest"
    return draw_variable(_by_matrix(one, "rank_share"), "rank_share", about=about)


generic_figure(
    "weight_ranks",
    "effective_rank",
    "Effective rank of each weight matrix.",
    prepare=partial(_by_matrix, variable="effective_rank"),
    table=("stable_rank", "effective_rank", "participation_ratio", "rounding_floor"),
    sentences=read_weight_spectra,
)
generic_figure(
    "weight_ranks",
    "decade_count",
    "Singular values of each weight matrix by their size.",
    prepare=lambda ds: ds.isel(matrix=select_full_matrices(ds)),
    table=("decade_count",),
)
generic_figure(
    "row_angles",
    "closer",
    "Rows of one head that lie closer together than shuffled rows, layer by layer.",
    table=("within", "between", "closer", "closer_floor", "closer_significant"),
    sentences=summary(
        "Layers in which rows of {part} of one head are significantly closer together"
        " than shuffled rows: {closer_significant:which}.",
        "Largest difference of the angle to rows of other heads: {closer:highest °}.",
    ),
)


def read_spectra(ds: xr.Dataset, product: str) -> list[str]:
    """State along how many directions heads act."""
    one = ds.isel(product=position(ds, "product", product))
    energy = (one["singular_value"] ** 2).transpose("layer", "head", "mode")
    # a head of zeros has no directions, and would count as having one
    energy = energy.where(energy.sum("mode") > 0)
    # Directions before the sum reaches 90 %, and the one with which it does. 1e-12 is
    # for sums that reach it exactly but for rounding.
    few = (energy.cumsum("mode") / energy.sum("mode") < 0.9 - 1e-12).sum("mode") + 1
    return summarize(
        one,
        "Lowest stable rank: {stable_rank:lowest}; highest: {stable_rank:highest}. The "
        "largest possible is {modes}.",
        "90 % of the sum of squared singular values lie in {few:median} of {modes} "
        "directions for the median head ({few:min} to {few:max} over all heads).",
        noun="heads",
        modes=one.sizes["mode"],
        few=few.where(energy.notnull().any("mode")),
    )


generic_figure(
    "head_spectra",
    "stable_rank",
    "Stable rank of every head.",
    options={"product": "QK"},
)


@panels("head_spectra")
def _spectra(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for name in names(ds, "product"):
        table = frame(ds.sel(product=name), "stable_rank", "order")
        yield FigurePanel(
            draw_variable(ds, "stable_rank", product=name),
            table,
            read_spectra(ds, name),
        )
