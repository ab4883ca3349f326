"""Ranks, spectra and angles of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.generic import draw_variable, generic_figure
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import (
    array,
    kind_word,
    layer_name,
    model_of,
    names,
    position,
)
from tsfm_lens.viz.sheet import Panel, blank, text_width
from tsfm_lens.viz.summary import summarize, summary
from tsfm_lens.viz.theme import BLUE, mixed, plain

__all__ = [
    "weight_rank_map",
    "weight_spectra",
]


_PALEST = 0.25  # colour of the first layer's line, the last one has 1
_LOWEST = 1e-9  # of the largest: smaller singular values are not drawn
_TYPE, _APART = (
    12,
    8,
)  # pixels: type of the labels of columns, and what is free between two
_BESIDE = 260  # pixels beside a map: names of layers and the colours
_ATTENTION = ("W_Q", "W_K", "W_V", "W_O")
_MAX_NUMBERED = 200  # cells that still have room for their number


def read_weight_ranks(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State the share of their directions that the matrices use, and which uses the least."""
    one = ds.isel(epsilon=level_position(ds, epsilon), matrix=whole_matrices(ds))
    told = one["told"].values > 0
    if not told.any():
        return [
            f"At ε = {float(one['epsilon']):g} rounding of the weights hides every rank."
        ]
    share = one["rank_share"][told]
    return summarize(
        one,
        "At ε = {epsilon} the median matrix uses this share of its directions: "
        "{parts:each percent}.",
        "Smallest share: {share:lowest percent}.",
        "Rounding of {precision} weights hides the ranks of {hidden:whole} matrices.",
        noun="matrices",
        parts=share.groupby("part").median(),
        share=share,
        hidden=None if told.all() else (~told).sum(),
    )


def read_weight_spectra(ds: xr.Dataset) -> list[str]:
    """State how fast the spectra fall, by measures without a threshold."""
    one = ds.isel(matrix=whole_matrices(ds))
    return summarize(
        one,
        "The effective rank is {shares:median percent} of the largest possible in the "
        "median matrix, from {shares:min percent} to {shares:max percent}.",
        "Weights are stored in {precision}: singular values below {rounding_floor:max} of "
        "the largest may be rounding.",
        shares=one["effective_rank"] / one["full"],
    )


@figure("weight_ranks", "Share of its directions that each weight matrix uses.")
def weight_rank_map(
    ds: xr.Dataset, *, epsilon: float | None = None, stack: str | None = None
) -> go.Figure:
    """Draw the layer × matrix map of the share of its directions that each matrix uses: its ε-rank."""
    place = level_position(ds, epsilon)
    valid = array(ds, "told", "matrix", epsilon=place) > 0
    values = np.where(
        valid, 100 * array(ds, "rank_share", "matrix", epsilon=place), np.nan
    )
    whole, parts, words = (
        whole_matrices(ds, stack=stack),
        names_of(ds, "part"),
        _column_words(ds),
    )
    layers, word = _layer_words(ds, whole), "share of the full rank (%)"
    rows = list(dict.fromkeys(layers))
    # attention first, whatever the order of writing
    columns = list(
        dict.fromkeys(
            words[i] for i in sorted(whole, key=lambda i: parts[i] not in _ATTENTION)
        )
    )
    table = np.full((len(rows), len(columns)), np.nan)
    for i, layer in zip(whole, layers, strict=True):
        table[rows.index(layer), columns.index(words[i])] = values[i]
    wide = max(text_width(column, _TYPE) for column in columns) + _APART
    canvas = blank(
        max(24 * len(rows), 130), min_width=round(_BESIDE + wide * len(columns))
    )
    panel = canvas.panel()
    hover = f"%{{y}}, %{{x}}<br>{word} %{{z:.3g}}"
    panel.cells(
        table, columns, rows, hover, write="{:.3g}".format, printed=_MAX_NUMBERED
    )
    canvas.colours(colour_scale(word, low=0.0, high=100.0))
    panel.x("matrix", type="category", ticks="")
    panel.y(
        type="category",
        autorange="reversed",
        ticks="",
        dtick=1 if len(rows) <= 24 else 2,
    )
    return canvas.dress(
        f"Ranks of the weights of {model_of(ds)}",
        f"singular values above {float(ds['epsilon'].values[place]):g} of the largest",
        ""
        if valid.all()
        else f"empty: hidden by rounding of {ds.attrs.get('precision', 'these')} weights",
    )


@figure("weight_ranks", "Singular values of all weight matrices, layer by layer.")
def weight_spectra(
    ds: xr.Dataset, *, stack: str | None = None, parts: Sequence[str] | None = None
) -> go.Figure:
    """Draw relative singular values of the weights, a panel per kind of matrix and a line per layer.

    Args:
        parts: "W_Q", …; all unless given.
    """
    whole = whole_matrices(ds, stack=stack, parts=parts)
    values = relative(
        array(ds, "singular_value", "matrix", "mode"),
        array(ds, "rounding_floor", "matrix"),
    )
    stacks, columns = names_of(ds, "stack"), _column_words(ds)
    several, panels = len({stacks[row] for row in whole}) > 1, dict[str, list[int]]()
    for row in whole:
        panels.setdefault(f"{stacks[row]} " * several + columns[row], []).append(row)
    grid = panel_grid([[title] for title in panels], row_height=150)
    for panel, rows in zip(grid, panels.values(), strict=True):
        depth_lines(
            panel,
            [layer_name(str(ds["layer"].values[row])) for row in rows],
            values[rows],
            "mode",
        )
    grid.y(**log_axis(values[whole]))
    title_axes(grid, "mode", "singular value / largest")
    remarks = [
        "a line per layer, the deeper the darker",
        "each spectrum relative to its largest value",
    ]
    return grid.dress(f"Spectra of the weights of {model_of(ds)}", *remarks)


def depth_lines(
    panel: Panel, labels: Sequence[str], values: np.ndarray, axis: str
) -> None:
    """Draw relative spectra (line, mode) from the first to the last layer, the deeper the darker."""
    modes = np.arange(1, values.shape[1] + 1)
    for place, (label, line) in enumerate(zip(labels, values, strict=True)):
        strength = _PALEST + (1 - _PALEST) * (place + 1) / len(labels)
        hover = f"{plain(label)}, {axis} %{{x}}<br>%{{y:.3g}} of the largest"
        panel.line(modes, line, "", hover, colour=mixed(BLUE, strength))


def relative(values: np.ndarray, floor: np.ndarray | None = None) -> np.ndarray:
    """Divide singular values (…, mode), descending, by the largest; NaN where not drawn, or under ``floor`` (…,)."""
    top = values[..., :1]
    shares = np.divide(values, top, out=np.full_like(values, np.nan), where=top > 0)
    least = (
        np.full(values.shape[:-1], _LOWEST)
        if floor is None
        else np.fmax(floor, _LOWEST)
    )
    # a comparison with NaN is false
    return np.where(shares >= least[..., None], shares, np.nan)


def level_position(ds: xr.Dataset, epsilon: float | None) -> int:
    """Return the position of an ε, of the middle one for None."""
    return (
        (ds.sizes["epsilon"] - 1) // 2
        if epsilon is None
        else position(ds, "epsilon", str(float(epsilon)))
    )


def whole_matrices(
    ds: xr.Dataset, *, stack: str | None = None, parts: Sequence[str] | None = None
) -> list[int]:
    """Return places of the matrices over all heads, of one stack or all, of some parts or all."""
    mask = np.array([head == "" for head in names_of(ds, "head")])
    for name, labels in (
        ("stack", None if stack is None else [stack]),
        ("part", parts),
    ):
        available = names_of(ds, name)
        for each in labels or ():
            if each not in available:
                raise unknown_name(name, each, list(dict.fromkeys(available)))
        mask &= labels is None or np.isin(available, list(labels))
    return np.flatnonzero(mask).tolist()


def names_of(ds: xr.Dataset, coordinate: str) -> list[str]:
    """Return a coordinate of the matrices as strings."""
    return [str(value) for value in ds[coordinate].values]


def _layer_words(ds: xr.Dataset, matrices: list[int]) -> list[str]:
    """Name the layer of each matrix, with its stack where there are several."""
    stacks, layers = (
        [names_of(ds, name)[i] for i in matrices] for name in ("stack", "layer")
    )
    several = len(set(stacks)) > 1
    return [
        f"{a} {layer_name(b)}" if several and a else layer_name(b)
        for a, b in zip(stacks, layers, strict=True)
    ]


def _column_words(ds: xr.Dataset) -> list[str]:
    """Name each matrix by its part, with the kind of attention where the model has several."""
    parts, kinds = names_of(ds, "part"), names_of(ds, "layer_kind")
    attention = {kinds[i] for i in whole_matrices(ds) if parts[i] in _ATTENTION}
    return [
        f"{kind_word(kind).removesuffix('-attention')} {part}"
        if {kind} < attention
        else part
        for part, kind in zip(parts, kinds, strict=True)
    ]


@panels("weight_ranks")
def _panels(ds: xr.Dataset) -> Iterator[FigurePanel]:
    yield FigurePanel(
        weight_rank_map(ds),
        frame(ds, "epsilon_rank", "rank_share", "told"),
        read_weight_ranks(ds),
    )
    measures = frame(
        ds, "stable_rank", "effective_rank", "participation_ratio", "rounding_floor"
    )
    yield FigurePanel(weight_spectra(ds), measures, read_weight_spectra(ds))
    decades = draw_variable(ds.isel(matrix=whole_matrices(ds)), "decade_count")
    yield FigurePanel(decades, frame(ds, "decade_count"))


generic_figure(
    "row_angles",
    "closer",
    "Rows of one head that lie closer together than shuffled rows, layer by layer.",
    table=("within", "between", "closer", "closer_floor", "closer_significant"),
    sentences=summary(
        "Layers in which rows of {part} of one head are significantly closer together than "
        "shuffled rows: {closer_significant:which}.",
        "Largest difference of the angle to rows of other heads: {closer:highest °}.",
    ),
)


def read_spectra(ds: xr.Dataset, product: str) -> list[str]:
    """State along how many directions heads act."""
    one = ds.isel(product=position(ds, "product", product))
    energy = (one["singular_value"] ** 2).transpose("layer", "head", "mode")
    energy = energy.where(energy.sum("mode") > 0)
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
    for each in names(ds, "product"):
        table = frame(ds.sel(product=each), "stable_rank", "order")
        yield FigurePanel(
            draw_variable(ds, "stable_rank", product=each),
            table,
            read_spectra(ds, each),
        )
