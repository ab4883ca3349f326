"""Figures of the ranks of weight matrices: shares of the full rank, relative spectra, histograms by decade."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import unknown_name
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.room import text_width
from tsfm_lens.viz.select import array, draws, kind_word, layer_name, model_of, position
from tsfm_lens.viz.sheet import Panel, blank
from tsfm_lens.viz.theme import BLUE, mixed, plain

__all__ = ["rank_histograms", "weight_rank_map", "weight_spectra"]

_PALEST = 0.25  # colour of the first layer's line, the last one has 1
_LOWEST = 1e-9  # of the largest: smaller singular values are not drawn
_TYPE, _APART = 12, 8  # pixels: type of the labels of columns, and what is free between two
_BESIDE = 260  # pixels beside a map: names of layers and the colours
_MAX_NUMBERED = 200  # cells that still have room for their number
_MEASURES = {
    "rank_share": "share of the full rank (%)",
    "stable_rank": "stable rank",
    "effective_rank": "effective rank",
    "participation_ratio": "participation ratio",
}


@draws("weight_ranks", needs=("rank_share", "told"))
def weight_rank_map(
    ds: xr.Dataset, *, measure: str = "rank_share", epsilon: float | None = None, stack: str | None = None
) -> go.Figure:
    """Draw the layer × matrix map of how many directions each matrix uses.

    Args:
        ds: of kind "weight_ranks".
        measure: "rank_share" (the ε-rank over the largest possible), "stable_rank", "effective_rank" or
            "participation_ratio".
        epsilon: of the rank, one of the result's; the one in the middle unless given.
        stack: one stack, all unless given.

    Returns:
        A heat map; cells are empty where there is no such matrix, and where its weights cannot tell the rank.

    Example:
        >>> fig = viz.weight_rank_map(results["weight_ranks"])
        >>> fig.layout.meta["title"]
        'Ranks of the weights of chronos-nano'
    """
    if measure not in _MEASURES:
        raise unknown_name("measure", measure, _MEASURES)
    whole = whole_matrices(ds, stack=stack)
    values, remark = _values(ds, measure, epsilon)
    blocks = list(dict.fromkeys(_block(ds, row) for row in whole))
    # attention first, whatever the order of writing
    columns = list(dict.fromkeys(_column(ds, row) for row in sorted(whole, key=lambda row: not _in_attention(ds, row))))
    table = np.full((len(blocks), len(columns)), np.nan)
    for row in whole:
        table[blocks.index(_block(ds, row)), columns.index(_column(ds, row))] = values[row]
    several = len({stack_name for stack_name, _ in blocks}) > 1
    rows = [_in_words(*block, several=several) for block in blocks]
    wide = max(text_width(column, _TYPE) for column in columns) + _APART
    canvas = blank(max(24 * len(rows), 130), min_width=round(_BESIDE + wide * len(columns)))
    panel = canvas.panel()
    hover = f"%{{y}}, %{{x}}<br>{plain(_MEASURES[measure])} %{{z:.3g}}"
    panel.cells(table, columns, rows, hover, write="{:.3g}".format, printed=_MAX_NUMBERED)
    top = 100.0 if measure == "rank_share" else float(np.nanmax(table, initial=1.0))
    canvas.colours(colour_scale(_MEASURES[measure], low=0.0, high=top))
    panel.x("matrix", type="category", ticks="", tickangle=0)
    panel.y(type="category", autorange="reversed", ticks="", dtick=1 if len(rows) <= 24 else 2)
    return canvas.dress(f"Ranks of the weights of {model_of(ds)}", *remark)


def _values(ds: xr.Dataset, measure: str, epsilon: float | None) -> tuple[np.ndarray, list[str]]:
    """Return (matrix,) what is drawn, and what the subtitle says of it."""
    if measure != "rank_share":
        return array(ds, measure, "matrix"), [f"{_MEASURES[measure]}, 1 is one direction"]
    place = level_position(ds, epsilon)
    level = f"{float(ds['epsilon'].values[place]):g}"
    valid = array(ds, "told", "matrix", epsilon=place) > 0
    words = [f"singular values above {level} of the largest", "" if valid.all() else f"empty: {_precision_words(ds)}"]
    return np.where(valid, 100 * array(ds, "rank_share", "matrix", epsilon=place), np.nan), words


def _precision_words(ds: xr.Dataset) -> str:
    return f"below what {ds.attrs.get('precision', 'these')} weights can tell"


@draws("weight_ranks", needs=("singular_value",))
def weight_spectra(ds: xr.Dataset, *, stack: str | None = None, parts: Sequence[str] | None = None) -> go.Figure:
    """Draw relative singular values of the weights, a panel per kind of matrix and a line per layer.

    Args:
        ds: of kind "weight_ranks".
        stack: one stack, all unless given.
        parts: "W_Q", …; all unless given.

    Returns:
        Lines on a logarithmic axis, the deeper the layer the darker; stacks have panels of their own.

    Example:
        >>> fig = viz.weight_spectra(results["weight_ranks"], stack="encoder", parts=["W_Q"])
        >>> fig.layout.meta["title"]
        'Spectra of the weights of chronos-nano'
    """
    whole = whole_matrices(ds, stack=stack, parts=parts)
    values = relative(array(ds, "singular_value", "matrix", "mode"), array(ds, "rounding_floor", "matrix"))
    several = len({str(ds["stack"].values[row]) for row in whole}) > 1
    panels: dict[tuple[str, ...], list[int]] = {}
    for row in whole:
        panels.setdefault(((str(ds["stack"].values[row]),) if several else ()) + (_column(ds, row),), []).append(row)
    grid = panel_grid([[" ".join(title)] for title in panels], row_height=150)
    for panel, rows in zip(grid, panels.values(), strict=True):
        labels = [layer_name(str(ds["layer"].values[row])) for row in rows]
        depth_lines(panel, labels, values[rows], "mode")
    grid.y(**log_axis(values[whole]))
    title_axes(grid, "mode", "singular value / largest")
    return grid.dress(
        f"Spectra of the weights of {model_of(ds)}",
        "a line per layer, the deeper the darker",
        "each spectrum relative to its largest value",
    )


@draws("weight_ranks", needs=("decade_count",))
def rank_histograms(ds: xr.Dataset, *, part: str = "W_Q", stack: str | None = None) -> go.Figure:
    """Draw how many relative singular values of a matrix lie in each power of ten, a panel per layer.

    Args:
        ds: of kind "weight_ranks".
        part: "W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate" or "W_out".
        stack: one stack, all unless given.

    Returns:
        Bars, the largest singular values at the right.

    Source:
        Flow of ranks, figure 10 (S0-HIST).

    Example:
        >>> fig = viz.rank_histograms(results["weight_ranks"])
        >>> fig.layout.meta["title"]
        'Singular values of W_Q by decade, layer by layer, in chronos-nano'
    """
    whole = whole_matrices(ds, stack=stack, parts=[part])
    stacks, kinds = ({str(ds[name].values[row]) for row in whole} for name in ("stack", "layer_kind"))
    titles = []
    for row in whole:
        words = [_in_words(*_block(ds, row), several=len(stacks) > 1)]
        titles.append(words + [kind_word(str(ds["layer_kind"].values[row]))] * (len(kinds) > 1))
    counts = array(ds, "decade_count", "matrix", "decade")[:, ::-1]
    edges = np.asarray(ds["decade"].values, dtype=float)[::-1]
    labels = [f"{edge / 10:g} to {edge:g}" for edge in edges]
    shades = [mixed(BLUE, 0.25 + 0.75 * (place + 1) / len(edges)) for place in range(len(edges))]
    grid = panel_grid(titles, row_height=120)
    for panel, row, title in zip(grid, whole, titles, strict=True):
        hover = f"{plain(', '.join(title))}<br>%{{y}} singular values, %{{x}} of the largest"
        panel.bars(labels, counts[row], "", hover, colour=shades)
    grid.x(type="category", tickvals=labels, ticktext=[f"10<sup>{round(np.log10(edge))}</sup>" for edge in edges])
    title_axes(grid, "up to, of the largest", "singular values")
    return grid.dress(
        f"Singular values of {part} by decade, layer by layer, in {model_of(ds)}",
        "each bar counts what lies up to a power of ten and above the next",
    )


def depth_lines(panel: Panel, labels: Sequence[str], values: np.ndarray, axis: str) -> None:
    """Draw relative spectra (line, mode) from the first to the last layer, the deeper the darker."""
    modes = np.arange(1, values.shape[1] + 1)
    for place, (label, line) in enumerate(zip(labels, values, strict=True)):
        strength = _PALEST + (1 - _PALEST) * (place + 1) / len(labels)
        hover = f"{plain(label)}, {axis} %{{x}}<br>%{{y:.3g}} of the largest"
        panel.line(modes, line, "", hover, colour=mixed(BLUE, strength))


def relative(values: np.ndarray, floor: np.ndarray | None = None) -> np.ndarray:
    """Divide singular values (…, mode) by the largest; NaN where too small to be drawn, or hidden by rounding.

    Args:
        values: descending along the last axis.
        floor: (…,), relative: what rounding hides.
    """
    top = values[..., :1]
    shares = np.divide(values, top, out=np.full_like(values, np.nan), where=top > 0)
    least = np.full(values.shape[:-1], _LOWEST) if floor is None else np.fmax(floor, _LOWEST)
    # a comparison with NaN is false
    return np.where(shares >= least[..., None], shares, np.nan)


def level_position(ds: xr.Dataset, epsilon: float | None) -> int:
    """Return the position of an ε, of the middle one for None.

    Raises:
        UnknownNameError: the result has no such ε.
    """
    if epsilon is None:
        return (ds.sizes["epsilon"] - 1) // 2
    return position(ds, "epsilon", str(float(epsilon)))


def whole_matrices(ds: xr.Dataset, *, stack: str | None = None, parts: Sequence[str] | None = None) -> list[int]:
    """Return places of the matrices over all heads, of one stack or all, of some parts or all.

    Raises:
        UnknownNameError: there is no such stack or part.
    """
    mask = np.array([head == "" for head in names_of(ds, "head")])
    for name, labels in (("stack", None if stack is None else [stack]), ("part", parts)):
        available = names_of(ds, name)
        for each in labels or ():
            if each not in available:
                raise unknown_name(name, each, list(dict.fromkeys(available)))
        mask &= labels is None or np.isin(available, list(labels))
    return np.flatnonzero(mask).tolist()


def names_of(ds: xr.Dataset, coordinate: str) -> list[str]:
    """Return a coordinate of the matrices as strings."""
    return [str(value) for value in ds[coordinate].values]


def _block(ds: xr.Dataset, row: int) -> tuple[str, str]:
    return str(ds["stack"].values[row]), str(ds["layer"].values[row])


def _in_words(stack: str, layer: str, *, several: bool) -> str:
    return f"{stack} {layer_name(layer)}" if several and stack else layer_name(layer)


def _in_attention(ds: xr.Dataset, row: int) -> bool:
    return str(ds["part"].values[row]) in ("W_Q", "W_K", "W_V", "W_O")


def _column(ds: xr.Dataset, row: int) -> str:
    """Name the column of a matrix: its part, with the kind of attention where the model has several."""
    kind, part = str(ds["layer_kind"].values[row]), str(ds["part"].values[row])
    kinds = {str(ds["layer_kind"].values[other]) for other in whole_matrices(ds) if _in_attention(ds, other)}
    return f"{kind_word(kind).removesuffix('-attention')} {part}" if kind in kinds and len(kinds) > 1 else part
