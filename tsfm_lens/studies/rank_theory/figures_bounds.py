"""Bounds on embeddings and on attention with the bounded quantities: figures, sentences, measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.studies.declared import Declarations
from tsfm_lens.studies.rank_theory.figures import COMMON, LEAST, ROW, draws_in, seen
from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.sheet import Panel, blank, sheet
from tsfm_lens.viz.theme import BLUE, GREY, INK, PALE, VERMILION, mixed, plain
from tsfm_lens.viz.words import num

__all__ = ["compression_bound_lines", "embedding_bound_lines", "growth_bound_lines", "sketch_bound_dots"]


DECLARED = Declarations(Path(__file__).with_name("measurements.yaml"), **COMMON)


def read_embedding_bounds(ds: xr.Dataset) -> list[str]:
    """Count the singular values and the counts that exceed their bounds."""
    sigma, bound = (array(ds, name, "embedding", "index") for name in ("singular_value", "bound"))
    counts, most = array(ds, "count", "activation", "draw", "epsilon"), array(ds, "most", "epsilon")
    # below this no value differs from zero
    over, many = int((sigma > bound + 1e-12 * sigma[:, :1]).sum()), int((counts > most).sum())
    return [
        f"{over} of {sigma.size} singular values are above the bound of their smoothness, and {many} of {counts.size} "
        "counts of residual MLPs are above what they may be."
    ]


def read_compression_bounds(ds: xr.Dataset) -> list[str]:
    """Describe errors above their bound, the repeated token, and incompressible inputs."""
    error, bound = (array(ds, name, "heads", "draw", "rank") for name in ("error", "bound"))
    ratio = array(ds, "repeated_error", "length") / array(ds, "repeated_rate", "length")
    least, floor = array(ds, "least_error", "length_over", "rank"), array(ds, "floor", "rank")
    return [
        f"{int((error > bound).sum())} of {error.size} errors are above the bound; the nearest is at "
        f"{num(100 * (error / bound).max())} % of it.",
        f"One token, {names(ds, 'length')[-1]} times, is {num(ratio[-1])} times as far off as the printed rate.",
        f"What cannot be compressed loses {num((least / floor).min())} times σ/4 or more.",
    ]


def read_growth_bounds(ds: xr.Dataset) -> list[str]:
    """Count the values above the upper bounds, and compare the construction with the lower one."""
    relative, alone = (array(ds, name, "heads", "draw", "index") for name in ("relative", "alone"))
    upper, growth, lower = (array(ds, name, "heads", "index") for name in ("upper", "grown", "lower"))
    proof, printed = array(ds, "corollary", "form", "heads", "index")
    near = (growth / np.where(lower > 0, lower, np.nan))[lower > 0].min()
    return [
        f"{int((relative > upper[:, None]).sum())} of {relative.size} singular values are above the theorem's bound; "
        f"the construction keeps {num(near)} times what it is at least.",
        f"At one layer {int((alone > proof[:, None]).sum())} are above the corollary with the index of its proof and "
        f"{int((alone > printed[:, None]).sum())} with that printed.",
    ]


def read_sketch_bounds(ds: xr.Dataset) -> list[str]:
    """Describe whether a sketch for each head does better at every size."""
    shared, own = (array(ds, name, "size", "draw") for name in ("shared_error", "own_error"))
    holds = (shared >= array(ds, "shared_floor", "size")[:, None]) & (own <= array(ds, "own_bound", "size")[:, None])
    return [
        f"Both statements hold in {int(holds.sum())} of {holds.size} constructions; a sketch for each head is "
        f"{num((shared / own).min())} to {num((shared / own).max())} times as near as one for all."
    ]


@DECLARED.figure("theory_embedding_bounds", read_embedding_bounds)
def embedding_bound_lines(ds: xr.Dataset) -> go.Figure:
    """Draw spectra of embeddings of known smoothness with their bounds, and counts of residual MLPs with theirs.

    Example:
        >>> bounds = rank_theory.embedding_bounds(dimension=8, n_tokens=30, draws=1)
        >>> figures.embedding_bound_lines(bounds).layout.meta["title"]
        'Singular values of embeddings fall as fast as their smoothness asks'
    """
    sigma, bound = (array(ds, name, "embedding", "index") for name in ("singular_value", "bound"))
    x = array(ds, "index", "index")
    titles = [*names(ds, "embedding"), "residual MLPs"]
    figure = sheet([ROW, ROW], [1, 1, 1], titles=titles, row_gap=74, column_gap=0.12, min_width=560)
    panels = list(figure)
    for values, most, panel in zip(sigma, bound, panels, strict=False):
        _draw_with_bound(panel, x, values, np.where(most > LEAST * values[0], most, np.nan), "bound")
        panel.x("index")
        panel.y(gridcolor=PALE, **log_axis(np.append(seen(values, values[0]), most[np.isfinite(most)][:1])))
    epsilon, counts = array(ds, "epsilon", "epsilon"), array(ds, "count", "activation", "draw", "epsilon")
    last = panels[len(sigma)]
    last.line(epsilon, counts.max(axis=(0, 1)), "measured", "ε = %{x:g}<br>%{y} singular values", dots=5)
    last.line(epsilon, array(ds, "most", "epsilon"), "bound", "at most %{y:.3g}", colour=VERMILION, dash="dash")
    last.x("threshold ε")
    last.y("singular values above")
    panels[0].y("singular value")
    below = int(
        (sigma > bound * (1 + 1e-9) + 1e-12 * sigma[:, :1]).sum() + (counts > array(ds, "most", "epsilon")).sum()
    )
    return figure.dress(
        "Singular values of embeddings fall as fast as their smoothness asks",
        f"d = {ds.attrs['dimension']}, {ds.attrs['n_tokens']} tokens; {below} of {sigma.size + counts.size} are above "
        "their bounds",
    )


@DECLARED.figure("theory_compression_bounds", read_compression_bounds)
def compression_bound_lines(ds: xr.Dataset) -> go.Figure:
    """Draw theorem 3 in three panels: errors and their bound, one token repeated, and incompressible inputs.

    Example:
        >>> found = rank_theory.compression_bounds(width=8, heads=(2,), n_tokens=12, draws=2)
        >>> figures.compression_bound_lines(found).layout.meta["title"]
        'Errors of attention cut to a rank, from both sides'
    """
    rank, length = array(ds, "rank", "rank"), array(ds, "length", "length")
    error, bound, rate = (array(ds, name, "heads", "draw", "rank") for name in ("error", "bound", "rate"))
    titles = ["any tokens of a vocabulary", "one token repeated", "what none compresses"]
    figure = sheet([280], [1, 1, 1], titles=titles, column_gap=0.1, min_width=560)
    first, second, third = figure
    _draw_with_bound(first, rank, error.max(axis=(0, 1)), bound.min(axis=(0, 1)), "bound, with √L")
    first.line(rank, np.median(rate, axis=(0, 1)), "√d σ, as printed", "√d σ = %{y:.3g}", colour=GREY, dash="dot")
    first.x("rank")
    first.y("error (Frobenius norm)", gridcolor=PALE, **log_axis(np.append(error, bound)))
    ratio = array(ds, "repeated_error", "length") / array(ds, "repeated_rate", "length")
    second.line(length, ratio, "measured", "%{x} times<br>%{y:.3g} of √d σ", dots=6)
    second.line(length, np.sqrt(length), "√L", "", colour=VERMILION, dash="dash")
    second.level(1, dash="dot")
    second.x("times it is repeated", type="log", tickvals=length, ticktext=[f"{each:.0f}" for each in length])
    second.y("error over √d σ", gridcolor=PALE, **log_axis(ratio))
    least = array(ds, "least_error", "length_over", "rank")
    for row, words in enumerate(names(ds, "length_over")):
        third.line(rank, least[row], f"L = {words}", "least error %{y:.3g}", colour=mixed(BLUE, 0.4 + 0.3 * row))
    floor = array(ds, "floor", "rank")
    third.line(rank, floor, "σ/4", "at least %{y:.3g}", colour=VERMILION, dash="dash")
    third.x("rank")
    third.y(gridcolor=PALE, **log_axis(np.append(least, floor)))
    return figure.dress(
        "Errors of attention cut to a rank, from both sides",
        f"d = {ds.attrs['width']}, {draws_in(ds)}; {int((error > bound).sum())} of {error.size} errors are above the "
        "bound (left: the largest error, the smallest bound)",
        "right: the least error that any value matrix of the rank has",
    )


@DECLARED.figure("theory_growth_bounds", read_growth_bounds)
def growth_bound_lines(ds: xr.Dataset) -> go.Figure:
    """Draw the construction that grows fastest above random layers, with their bounds, a column per number of heads.

    Example:
        >>> figures.growth_bound_lines(rank_theory.growth_bounds(width=8, heads=(2,), draws=2)).layout.meta["title"]
        'How far one layer raises the rank of its input'
    """
    heads, x = names(ds, "heads"), array(ds, "index", "index")
    words = [f"{count} head{'s' * (count != '1')}" for count in heads]
    figure = sheet(
        [ROW, ROW], [1] * len(heads), titles=words + [""] * len(heads), row_gap=30, column_gap=0.06, shared_xaxes="all"
    )
    growth, lower = (array(ds, name, "heads", "index") for name in ("grown", "lower"))
    alone = array(ds, "alone", "heads", "draw", "index")
    proof, printed = array(ds, "corollary", "form", "heads", "index")
    first = array(ds, "input_singular_value", "index")
    for column in range(len(heads)):
        above, under = figure.panel(1, column + 1), figure.panel(2, column + 1)
        above.line(x, growth[column], "measured", "σ<sub>%{x}</sub> = %{y:.3g}")
        floor = np.where(lower[column] > 0, lower[column], np.nan)
        above.line(x, floor, "at least", "at least %{y:.3g}", colour=BLUE, dash="dash")
        _draw_with_bound(under, x, alone[column].max(axis=0), proof[column], "at most")
        under.line(x, printed[column], "at most, as printed", "%{y:.3g}", colour=mixed(VERMILION, 0.5), dash="dot")
        for panel in (above, under):
            panel.line(x, first, "input", "input %{y:.3g}", colour=GREY, dash="dot")
            panel.y(gridcolor=PALE, **log_axis(np.concatenate([first, proof.ravel()])))
        under.x("index")
    figure.panel(1, 1).y("construction")
    figure.panel(2, 1).y("random layer")
    relative, upper = array(ds, "relative", "heads", "draw", "index"), array(ds, "upper", "heads", "index")[:, None]
    return figure.dress(
        "How far one layer raises the rank of its input",
        "singular values of U + attention(U), those of the construction relative; "
        f"d = {ds.attrs['width']}, {draws_in(ds)}",
        f"deep models: {int((relative > upper).sum())} of {relative.size} above the bound; at D = 1 "
        f"{int((alone > proof[:, None]).sum())} above the corollary's, {int((alone > printed[:, None]).sum())} above "
        "that printed",
    )


@DECLARED.figure("theory_sketch_bounds", read_sketch_bounds)
def sketch_bound_dots(ds: xr.Dataset) -> go.Figure:
    """Draw errors with one sketch for all heads and with one for each, and their bounds by theorem 6, a row per size.

    Example:
        >>> figures.sketch_bound_dots(rank_theory.sketch_bounds(sizes=[(3, 6, 2)], draws=1)).layout.meta["title"]
        'A sketch for each head does better than one for all'
    """
    sizes = [plain(size) for size in names(ds, "size")]
    figure = blank(60 + 44 * len(sizes))
    panel, everything = figure.panel(), []
    for kind, words, limit, relation, colour in (
        ("shared_error", "one for all", "shared_floor", "at least", VERMILION),
        ("own_error", "one for each", "own_bound", "at most", BLUE),
    ):
        error, edge = array(ds, kind, "size", "draw").mean(axis=1), array(ds, limit, "size")
        panel.dots(error, sizes, words, f"{words}: %{{x:.3g}}", colour=colour, size=9)
        panel.dots(
            edge, sizes, f"{relation}, {words}", f"{relation} %{{x:.3g}}", colour=colour, size=12, symbol="line-ns-open"
        )
        everything += [*error, *edge]
    panel.x("error (spectral norm)", showgrid=True, gridcolor=PALE, **log_axis(np.array(everything)))
    panel.y(autorange="reversed")
    return figure.dress(
        "A sketch for each head does better than one for all",
        f"theorem 6's construction, {draws_in(ds)}; the least error with a value matrix of rank d̃ for all heads "
        "against factors of d̃ + 1 for each",
    )


def _draw_with_bound(panel: Panel, x: np.ndarray, values: np.ndarray, bound: np.ndarray, words: str) -> None:
    """Draw measured values, and their bound above them."""
    panel.line(x, seen(values, values[0]), "measured", "measured %{y:.3g}", colour=INK)
    finite = np.where(np.isfinite(bound), bound, np.nan)
    panel.line(x, finite, words, f"{words} %{{y:.3g}}", colour=VERMILION, dash="dash")
