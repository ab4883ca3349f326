"""Numerical experiments on the rank of attention and of embeddings: figures, sentences, measurements."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, measurement
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.maps import two_digits
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.sheet import Panel, blank, sheet
from tsfm_lens.viz.theme import (
    BLUE,
    CATEGORICAL,
    GREY,
    PALE,
    VERMILION,
    mixed,
    number,
    plain,
)
from tsfm_lens.viz.words import listed, num

__all__ = [
    "chebyshev_curves",
    "compression_rank_lines",
    "compression_width_lines",
    "head_spectra_lines",
]
__all__ += ["sketching_lines"]

LEAST = 1e-17  # of a spectrum relative to its largest: double precision ends
ROW = 200  # pixels
_NO_PARAMETERS = ("kind", "title", "source")


def _parameters(ds: xr.Dataset) -> str:
    """List the parameters of an experiment."""
    facts = {key: ds.attrs[key] for key in ds.attrs if key not in _NO_PARAMETERS}
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def read_compression_rank(ds: xr.Dataset) -> list[str]:
    """Describe the slope beside that of the theorem, and the distance to the bounds."""
    slope = array(ds, "slope", "scaling", "draw").mean(axis=1)
    error, bound = (
        array(ds, name, "scaling", "draw", "rank") for name in ("error", "bound")
    )
    rate = array(ds, "rate", "rank")
    powers = listed(
        [
            f"{num(value)} ({name} weights)"
            for name, value in zip(names(ds, "scaling"), slope, strict=True)
        ]
    )
    return [
        f"The error grows as the power {powers} of the first singular value that is cut off; the theorem says 1.",
        f"It is at most {num((error / rate).max())} of √d σ, the printed rate, and {num((error / bound).max())} of "
        "what holds for every input, which has a factor √L more.",
    ]


def read_compression_width(ds: xr.Dataset) -> list[str]:
    """Describe the slope of each kind of weights with its interval, beside one half."""
    fits = [array(ds, name, "weights") for name in ("slope", "slope_low", "slope_high")]
    return [
        f"With {name} weights the error grows as the power {num(slope)} ({num(low)} to {num(high)}) of the width"
        + (", which agrees with √d." if low <= 0.5 <= high else ", which is not √d.")
        for name, slope, low, high in zip(names(ds, "weights"), *fits, strict=True)
    ]


def read_sketching(ds: xr.Dataset) -> list[str]:
    """Describe the growth of the effective index, and sparse sketches beside dense ones."""
    slope = array(ds, "slope", "sketch", "draw").mean(axis=1)
    sparse, dense = array(ds, "distance", "sketch", "draw", "heads").mean(axis=1)
    apart = 100 * np.abs(sparse / dense - 1).max()
    return [
        f"As many singular values as what the sparse sketch misses is large grow as the power {num(slope[0])} of the "
        "number of heads; in proportion would be 1.",
        f"Sparse and dense sketches of as many rows miss the same within {num(apart)} %.",
    ]


def read_head_spectra(ds: xr.Dataset) -> list[str]:
    """Describe ranks by heads where scores differ and where they do not."""
    ranks = np.median(array(ds, "rank", "input", "draw", "heads"), axis=1)
    deviation = array(ds, "logit_deviation", "input", "draw", "heads").mean(axis=(1, 2))
    heads, least = names(ds, "heads"), int(ds["input_rank"])
    return [
        f"Input {name}, whose scores deviate by {num(scores)}: from rank {least} to "
        f"{listed([f'{num(rank)} ({count})' for rank, count in zip(of, heads, strict=True)])}, heads in brackets."
        for name, scores, of in zip(names(ds, "input"), deviation, ranks, strict=True)
    ]


def read_chebyshev(ds: xr.Dataset) -> list[str]:
    """Describe whether every embedding has the rank that it was made for."""
    wrong = [
        str(rank)
        for rank, actual in zip(ds["rank"].values, ds["found_rank"].values, strict=True)
        if rank != actual
    ]
    return [
        f"Of ranks {listed(names(ds, 'rank'))} {listed(wrong) + ' are not' if wrong else 'every one is'} found."
    ]


measurement(
    "theory_compression_rank",
    title="Cutting attention to a rank",
    theme="Theory",
    summary=("error of an attention layer cut to the rank of its vocabulary, by rank"),
    description=(
        "Query, key and value are projected on the leading directions of the "
        "vocabulary; what is lost goes with the first singular value that is cut "
        "off."
    ),
    source="Flow of ranks, theorem 3, appendix J.1",
    paper=("S0-J1A",),
    maker="made of no model: `tsfm_lens.studies.rank_theory` makes it",
    subject=_parameters,
)


@figure(
    "theory_compression_rank",
    ("Error of a layer cut to a rank over the singular value that is cut off."),
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
    sentences=read_compression_rank,
)
def compression_rank_lines(ds: xr.Dataset) -> go.Figure:
    """Draw the error of a layer cut to a rank, over the first singular value cut off, and its bound with √L.

    Example:
        >>> fig = figures.compression_rank_lines(rank_theory.compression_by_rank(width=16, n_tokens=32, n_ranks=6))
        >>> fig.layout.meta["title"]
        'Error of attention cut to a rank grows with the singular value that is cut off'
    """
    x, ranks = array(ds, "next_singular_value", "rank"), names(ds, "rank")
    error, bound = (
        _rms(array(ds, name, "scaling", "draw", "rank")) for name in ("error", "bound")
    )
    slope = array(ds, "slope", "scaling", "draw").mean(axis=1)
    figure = blank(320)
    panel = figure.panel()
    for row, scaling in enumerate(names(ds, "scaling")):
        colour = CATEGORICAL[row % len(CATEGORICAL)]
        hover = f"{plain(scaling)} weights, rank %{{customdata}}<br>σ %{{x:.3g}}, error %{{y:.3g}}"
        panel.dots(
            x,
            error[row],
            f"{scaling}: slope {slope[row]:.2f}",
            hover,
            colour=colour,
            size=6,
            customdata=ranks,
        )
        panel.line(
            x,
            bound[row],
            "bound, with √L",
            "bound %{y:.3g}",
            colour=mixed(colour, 0.5),
            width=1,
        )
    _reference(panel, x, error[0], 1.0, "slope 1")
    panel.x("first singular value that is cut off", **log_axis(x))
    panel.y(
        "error (Frobenius norm)",
        gridcolor=PALE,
        **log_axis(np.concatenate([error.ravel(), bound.ravel()])),
    )
    return figure.dress(
        "Error of attention cut to a rank grows with the singular value that is cut off",
        f"d = {ds.attrs['width']}, {ds.attrs['n_tokens']} tokens, {_draws(ds)}",
        "slopes are of least-squares lines through ranks up to 3/4 of the width",
    )


measurement(
    "theory_compression_width",
    title="Cutting attention of any width to one rank",
    theme="Theory",
    summary="error of an attention layer cut to a fixed rank, by width",
    description=(
        "The theorem's rate has a factor √d, which is that of the norm of W_V: it "
        "is not there if the norm stays."
    ),
    source="Flow of ranks, theorem 3, appendix J.1",
    paper=("S0-J1B",),
    maker="made of no model: `tsfm_lens.studies.rank_theory` makes it",
    subject=_parameters,
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
    sentences=read_compression_width,
)
def compression_width_lines(ds: xr.Dataset) -> go.Figure:
    """Draw the error of a layer cut to a fixed rank over its width: a dot per draw, a line per kind of weights.

    Example:
        >>> found = rank_theory.compression_by_width(widths=(16, 32), rank=4, n_tokens=64, draws=2)
        >>> figures.compression_width_lines(found).layout.meta["title"]
        'Error of attention cut to rank 4, by width'
    """
    error, widths = (
        array(ds, "error", "weights", "draw", "width"),
        array(ds, "width", "width"),
    )
    fits = np.stack(
        [array(ds, name, "weights") for name in ("slope", "slope_low", "slope_high")],
        axis=-1,
    )
    middle, figure = _rms(error), blank(320)
    panel = figure.panel()
    for row, weights in enumerate(names(ds, "weights")):
        colour, (slope, low, high) = CATEGORICAL[row], fits[row]
        every = np.broadcast_to(widths, error[row].shape).ravel()
        panel.dots(
            every,
            error[row].ravel(),
            "",
            "one draw: %{y:.3g}",
            colour=mixed(colour, 0.3),
            size=3,
            legend=False,
        )
        words = f"{weights}: slope {slope:.2f} ({low:.2f} to {high:.2f})"
        panel.line(
            widths,
            middle[row],
            words,
            "d = %{x}<br>error %{y:.3g}",
            colour=colour,
            dots=6,
        )
    _reference(panel, widths, middle[0], 0.5, "slope 1/2")
    panel.x(
        "width d",
        type="log",
        tickvals=widths,
        ticktext=[str(int(width)) for width in widths],
    )
    panel.y("error (Frobenius norm)", gridcolor=PALE, **log_axis(error.ravel()))
    return figure.dress(
        f"Error of attention cut to rank {ds.attrs['rank']}, by width",
        f"{ds.attrs['n_tokens']} tokens, root mean square over {_draws(ds)}, slopes with 95 % intervals over them",
        "the error grows as √d if the norm of W_V does: theorem and orthogonal, not normalised",
    )


measurement(
    "theory_sketching",
    title="Sketches of several heads",
    theme="Theory",
    summary="how much of an input sparse sketches of several heads miss",
    description=(
        "Each head sees a few random combinations of a few coordinates; together "
        "they span a part of the input's rows."
    ),
    source="Flow of ranks, appendix J.2",
    paper=(
        "S0-J2",
        "S0-SKETCH",
    ),
    maker="made of no model: `tsfm_lens.studies.rank_theory` makes it",
    subject=_parameters,
)


@figure(
    "theory_sketching",
    ("What sketches of several heads miss, and where on the input's spectrum that is."),
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
    sentences=read_sketching,
)
def sketching_lines(ds: xr.Dataset) -> go.Figure:
    """Draw the errors of sketches of several heads, sparse, dense and best, and their places on the input's spectrum.

    Example:
        >>> found = rank_theory.sketching_by_heads(width=32, rank=2, heads=(1, 2, 4), decay=4.0)
        >>> figures.sketching_lines(found).layout.meta["title"]
        'What sketches of 2 rows a head miss of an input of width 32'
    """
    heads, spectrum = array(ds, "heads", "heads"), array(ds, "singular_value", "index")
    distance = array(ds, "distance", "sketch", "draw", "heads").mean(axis=1)
    index = array(ds, "effective_index", "sketch", "draw", "heads").mean(axis=1)
    figure = sheet(
        [280],
        [0.5, 0.5],
        titles=["singular values of the input", "sketching error"],
        column_gap=0.14,
    )
    left, right = figure
    positive = spectrum > LEAST
    places = np.arange(1, len(spectrum) + 1)[positive]
    left.line(places, spectrum[positive], "", "σ<sub>%{x}</sub> = %{y:.3g}")
    upright: dict[float, list[str]] = {}
    for count, place in zip(heads, index[0], strict=True):
        upright.setdefault(max(float(place), 1.0), []).append(f"{count:.0f}")
    for place, counts in upright.items():
        left.upright(place, colour=mixed(VERMILION, 0.6))
        left.note(
            ", ".join(counts),
            np.log10(place),
            1,
            yref="domain",
            yanchor="top",
            xanchor="left",
            size=10,
        )
    for row, (name, colour) in enumerate(
        zip(names(ds, "sketch"), (VERMILION, BLUE), strict=True)
    ):
        hover = f"{name}, %{{x}} heads<br>error %{{y:.3g}}"
        right.line(heads, distance[row], f"{name} sketch", hover, colour=colour, dots=6)
    right.line(
        heads,
        array(ds, "floor", "heads"),
        "best of as many rows",
        "%{y:.3g}",
        colour=GREY,
        dash="dot",
    )
    left.x("index", **log_axis(places.astype(float)))
    left.y("singular value", **log_axis(spectrum[positive]))
    right.x(
        "heads h",
        type="log",
        tickvals=heads,
        ticktext=[f"{count:.0f}" for count in heads],
    )
    right.y(gridcolor=PALE, **log_axis(distance.ravel()))
    slope = array(ds, "slope", "sketch", "draw").mean(axis=1)[0]
    return figure.dress(
        f"What sketches of {ds.attrs['rank']} rows a head miss of an input of width {ds.attrs['width']}",
        f"upright lines: as many singular values are as large as the sparse error at so many heads; {_draws(ds)}",
        f"their number grows as the power {slope:.2f} of the heads",
    )


measurement(
    "theory_head_spectra",
    title="Heads raise rank",
    theme="Theory",
    summary=("spectra of an attention layer's output by its number of heads"),
    description=(
        "More heads raise the rank of the output, provided that scores differ: "
        "where softmax is even, attention adds one direction at most."
    ),
    source="Flow of ranks, theorem 4, appendix J.3",
    paper=("S0-J3",),
    maker="made of no model: `tsfm_lens.studies.rank_theory` makes it",
    subject=_parameters,
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
    sentences=read_head_spectra,
)
def head_spectra_lines(ds: xr.Dataset) -> go.Figure:
    """Draw relative singular values of a layer's output, medians over draws, a line per number of heads.

    Example:
        >>> found = rank_theory.spectra_by_heads(width=16, n_tokens=32, heads=(1, 4), decay=1.0, draws=2)
        >>> figures.head_spectra_lines(found).layout.meta["title"]
        'Spectra of U + attention(U) by heads'
    """
    spectra = np.median(
        array(ds, "singular_value", "input", "draw", "heads", "index"), axis=1
    )
    ranks = np.median(array(ds, "rank", "input", "draw", "heads"), axis=1)
    deviation = array(ds, "logit_deviation", "input", "draw", "heads").mean(axis=(1, 2))
    x, first = array(ds, "index", "index"), array(ds, "input_singular_value", "index")
    titles = [
        (f"input {name}", f"scores deviate by {two_digits(float(scores))}")
        for name, scores in zip(names(ds, "input"), deviation, strict=True)
    ]
    grid, epsilon = (
        panel_grid(titles, row_height=280, most=2),
        float(ds.attrs["epsilon"]),
    )
    counts = names(ds, "heads")
    for place, panel in enumerate(grid):
        panel.line(
            x,
            _seen(first),
            "input",
            "input, σ<sub>%{x}</sub>: %{y:.3g}",
            colour=VERMILION,
            dash="dash",
        )
        for row, count in enumerate(counts):
            colour = mixed(BLUE, 0.25 + 0.75 * (row + 1) / len(counts))
            words = f"{count} head{'s' * (count != '1')}"
            hover = (
                f"{words}, σ<sub>%{{x}}</sub>: %{{y:.3g}}<br>rank {ranks[place, row]:g}"
            )
            panel.line(x, _seen(spectra[place, row]), words, hover, colour=colour)
        panel.level(epsilon, dash="dot")
    grid.y(
        gridcolor=PALE,
        **log_axis(np.array([max(float(np.nanmin(first)), 1e-8), 1.0])),
        range=[-8, 0.2],
    )
    title_axes(grid, "index", "relative singular value")
    rank_list = ", ".join(f"{rank:g}" for rank in ranks[0])
    return grid.dress(
        "Spectra of U + attention(U) by heads",
        f"d = {ds.attrs['width']}, {ds.attrs['n_tokens']} tokens, {_draws(ds)}",
        f"at ε = {epsilon:g} the input has rank {int(ds['input_rank'])}, the outputs of the first panel {rank_list}",
    )


measurement(
    "theory_chebyshev",
    title="Embeddings of Chebyshev polynomials",
    theme="Theory",
    summary="embeddings of a prescribed rank",
    description=(
        "A value is embedded by as many polynomials as the rank is to be, each "
        "along a direction of its own."
    ),
    source="Flow of ranks, appendix I",
    paper=("S0-F14",),
    maker="made of no model: `tsfm_lens.studies.rank_theory` makes it",
    subject=_parameters,
)


@figure(
    "theory_chebyshev",
    ("The curves that embeddings of several ranks draw in hidden space."),
    variables=(
        "coordinate",
        "found_rank",
    ),
    table=("found_rank",),
    sentences=read_chebyshev,
)
def chebyshev_curves(ds: xr.Dataset) -> go.Figure:
    """Draw the first two coordinates of embeddings of Chebyshev polynomials, a panel per rank.

    Example:
        >>> curves = rank_theory.chebyshev_curves(dimension=8, ranks=(1, 3), n_points=40)
        >>> figures.chebyshev_curves(curves).layout.meta["title"]
        'Embeddings of Chebyshev polynomials: the first two of 8 coordinates'
    """
    curves, values = (
        array(ds, "coordinate", "rank", "axis", "point"),
        np.asarray(ds["value"].values, dtype=float),
    )
    titles = [f"rank {rank}" for rank in names(ds, "rank")]
    columns = min(len(titles), 3)
    rows = -(-len(titles) // columns)
    grid = sheet(
        [ROW] * rows, [1] * columns, titles=titles, row_gap=60, column_gap=0.12
    )
    for place in grid.places[len(titles) :]:
        grid.panel(*place).x(visible=False)
        grid.panel(*place).y(visible=False)
    grid.places = grid.places[: len(titles)]
    for (across, up), panel in zip(curves, grid, strict=True):
        panel.line(
            across,
            up,
            "",
            "value %{customdata:.3g}",
            colour=BLUE,
            width=1,
            customdata=values,
        )
        panel.dots(
            across[[0, -1]],
            up[[0, -1]],
            "ends",
            "value %{customdata:.3g}",
            size=5,
            customdata=values[[0, -1]],
        )
    title_axes(grid, "coordinate 1", "coordinate 2")
    rank_list = ", ".join(str(int(rank)) for rank in ds["found_rank"].values)
    return grid.dress(
        f"Embeddings of Chebyshev polynomials: the first two of {ds.attrs['dimension']} coordinates",
        f"{len(values)} values from {number(values[0])} to {number(values[-1])}",
        f"ranks found: {rank_list}",
    )


def _reference(
    panel: Panel, x: np.ndarray, y: np.ndarray, slope: float, words: str
) -> None:
    """Draw a line of a slope through the middle of a curve."""
    ends = np.array([x.min(), x.max()])
    middle = np.exp(np.log(y).mean() + slope * (np.log(ends) - np.log(x).mean()))
    panel.line(ends, middle, words, "", colour=GREY, dash="dash")


def _rms(values: np.ndarray) -> np.ndarray:
    """Compute the root mean square over draws, the second axis."""
    return np.asarray(np.sqrt((values**2).mean(axis=1)))


def _seen(values: np.ndarray) -> np.ndarray:
    """Mask values that double precision cannot tell from zero."""
    return np.where(values > LEAST, values, np.nan)


def _draws(ds: xr.Dataset) -> str:
    count = ds.sizes["draw"]
    return f"{count} draws" if count > 1 else "one draw"
