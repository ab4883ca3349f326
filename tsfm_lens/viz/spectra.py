"""Spectra of the heads' matrices, heads as kernels, and similarity of layers and heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale

from tsfm_lens.errors import InputError
from tsfm_lens.registry import ReportPanel, check, frame, measurement
from tsfm_lens.viz.attention import attention_kind, single_series
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.logit_lens import layer_axis
from tsfm_lens.viz.maps import HeadMap, colour_scale, head_maps, two_digits
from tsfm_lens.viz.needs import CROSS_ATTENTION
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.select import array, layer_name, model_of, names, position, positions
from tsfm_lens.viz.sheet import Look, Sheet, blank
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, GREY, PALE, SEQUENTIAL, mixed, number, percent, plain
from tsfm_lens.viz.words import capital, extremes, head_at, layer_names, layers, listed, num, signed

__all__ = [
    "concentration_bound_plot",
    "entropic_rank_line",
    "head_similarity_map",
    "kernel_bandwidths",
    "similarity_map",
    "spectrum_lines",
    "stable_rank_map",
    "tilt_map",
]

_PRODUCTS = {"QK": ("query–key", "W_Q W_Kᵀ"), "OV": ("value–output", "W_V W_O")}

SPECTRA = measurement("spectra")


def read_stable_rank(ds: xr.Dataset, product: str) -> list[str]:
    """Describe which heads act along few directions, and how the layers differ."""
    ranks = array(ds, "stable_rank", "layer", "head", product=position(ds, "product", product))
    if not np.isfinite(ranks).any():
        return ["All these products are zero."]
    low, high = extremes(ranks)
    out = [
        f"The stable rank goes from {num(ranks.flat[low])} ({head_at(ds, low)}) to {num(ranks.flat[high])} "
        f"({head_at(ds, high)}); the largest possible is {ds.sizes['mode']}."
    ]
    means = np.nanmean(ranks, axis=1)
    if len(means) > 1:
        words = layers(ds)
        out.append(
            f"On average over heads it is lowest in {words[int(np.nanargmin(means))]} ({num(np.nanmin(means))}) and "
            f"highest in {words[int(np.nanargmax(means))]} ({num(np.nanmax(means))})."
        )
    return out


def read_spectra(ds: xr.Dataset, product: str) -> list[str]:
    """State in how many directions most of a head's strength lies."""
    values = array(ds, "singular_value", "layer", "head", "mode", product=position(ds, "product", product))
    energy = np.square(values).reshape(-1, values.shape[-1])
    energy = energy[energy.sum(axis=1) > 0]
    if not len(energy):
        return ["All these products are zero."]
    shares = np.cumsum(energy, axis=1) / energy.sum(axis=1, keepdims=True)
    few = (shares < 0.9 - 1e-12).sum(axis=1) + 1
    return [
        f"Nine tenths of the sum of squared singular values lie in {int(np.median(few))} of {values.shape[-1]} "
        f"directions for the median head, {int(few.min())} to {int(few.max())} over all heads."
    ]


@SPECTRA.figure()
def stable_rank_map(ds: xr.Dataset, *, product: str = "QK") -> go.Figure:
    """Draw the layer × head map of the stable rank: dark heads spread their spectrum, light ones use few directions."""
    values = array(ds, "stable_rank", "layer", "head", product=position(ds, "product", product))
    return head_maps(
        ds,
        [HeadMap(values, "", "stable rank", write="{:.3g}".format)],
        f"Stable rank of the {_PRODUCTS[product][0]} products of {model_of(ds)}",
        _in_full(ds, product),
        f"1 is one direction, {ds.sizes['mode']} all of the head's",
    )


@SPECTRA.figure()
def spectrum_lines(ds: xr.Dataset, *, product: str = "QK", layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw singular values of every head, a panel per layer, each spectrum relative to its largest value."""
    rows = positions(ds, "layer", layers)
    values = array(ds, "singular_value", "layer", "head", "mode", product=position(ds, "product", product))[rows]
    top = values[..., :1]
    shares = np.divide(values, top, out=np.full_like(values, np.nan), where=top > 0)
    # what rounding leaves of a zero is no singular value
    shares[shares < 1e-12] = np.nan
    grid = head_lines(ds, rows, shares, "%{y:.3g} of the largest")
    title_axes(grid, "mode", "singular value / largest")
    remarks = [_in_full(ds, product), "each spectrum relative to its largest value"]
    return grid.dress(f"Spectra of the {_PRODUCTS[product][0]} products of {model_of(ds)}", *remarks)


def head_lines(ds: xr.Dataset, layers: list[int], values: np.ndarray, measure: str) -> Sheet:
    """Draw ``values`` (layer, head, mode), a panel per layer: a thin line per head, and the median over heads."""
    grid = panel_grid([(label,) for label in layer_names(ds, layers)], row_height=150)
    modes, several, tail = np.arange(1, values.shape[-1] + 1), "median over heads", f", mode %{{x}}<br>{measure}"
    for panel, lines in zip(grid, values, strict=True):
        for head, line in zip(names(ds, "head"), lines, strict=True):
            panel.line(modes, line, "one head", f"head {plain(head)}{tail}", colour=mixed(GREY, 0.55), width=1)
        panel.line(modes, medians(lines.T), several, several + tail, colour=BLUE, width=2)
    grid.y(**log_axis(values))
    return grid


def _in_full(ds: xr.Dataset, product: str) -> str:
    return " product ".join(_PRODUCTS[product]) + (f" of {attention_kind(ds)}" if "attention" in ds.attrs else "")


@SPECTRA.panels
def _spectra(ds: xr.Dataset) -> Iterator[ReportPanel]:
    for each in names(ds, "product"):
        one = ds.sel(product=each)
        yield ReportPanel(
            stable_rank_map(ds, product=each), frame(one, "stable_rank", "order"), read_stable_rank(ds, each)
        )
        yield ReportPanel(spectrum_lines(ds, product=each), frame(one, "singular_value"), read_spectra(ds, each))


LEAST = 1e-16  # a weight or bound below is drawn here: double precision ends

KERNEL_REGRESSION = measurement("kernel_regression", needs=CROSS_ATTENTION)


def read_bandwidths(ds: xr.Dataset) -> list[str]:
    """Describe how narrow kernels are, and how much they differ between directions."""
    widths = array(ds, "bandwidth", "layer", "head", "mode")
    narrow, wide = np.nanmin(widths, axis=-1), np.nanmax(widths, axis=-1)
    at = int(np.nanargmin(narrow))
    return [
        f"The narrowest kernel is that of {head_at(ds, at)}, with a bandwidth of {num(narrow.flat[at])} along its "
        f"first direction; in the median head the widest direction is {num(np.nanmedian(wide / narrow))} times as "
        "wide as the narrowest."
    ]


def read_tilt(ds: xr.Dataset) -> list[str]:
    """Count the heads in which keys draw attention by their length alone."""
    share = array(ds, "tilt_share", "layer", "head")
    low, high = extremes(share)
    strong = int((share >= 1).sum())
    return [
        f"The tilt is weakest in {head_at(ds, low)} ({num(share.flat[low])}) and strongest in {head_at(ds, high)} "
        f"({num(share.flat[high])}); it varies as much as the scores themselves, or more, in {strong} of "
        f"{share.size} heads."
    ]


def read_bound(ds: xr.Dataset) -> list[str]:
    """State where the bound holds, where it says something, and how close it comes."""
    missing, bound = (array(ds, name, "layer", "head", "query") for name in ("missing", "bound"))
    usable = array(ds, "applicable", "layer", "head", "query") > 0
    if not usable.any():
        return ["The conditions of the proposition hold nowhere, so it bounds nothing here."]
    informative = usable & (bound < 1)
    out = [
        f"The conditions hold for {int(usable.sum())} of {usable.size} heads and queries, and the bound is below 1 for "
        f"{int(informative.sum())} of them; everywhere else it is vacuous: no attention could exceed it."
    ]
    if informative.any():
        ratio = float(np.median(bound[informative] / np.maximum(missing[informative], 1e-16)))
        out.append(f"There it is {num(ratio)} times what is measured, in the median.")
    violations = int((missing[usable] > bound[usable] * (1 + 1e-6) + 1e-9).sum())
    excess = f"{violations} times, which it must not be" if violations else "nowhere"
    return [*out, f"It is exceeded {excess}."]


@KERNEL_REGRESSION.figure(table=("bandwidth",), sentences=read_bandwidths)
def kernel_bandwidths(ds: xr.Dataset, *, layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw how wide each head's Gaussian kernel is along each of its singular directions, a panel per layer."""
    rows = positions(ds, "layer", layers)
    grid = head_lines(ds, rows, array(ds, "bandwidth", "layer", "head", "mode")[rows], "bandwidth %{y:.3g}")
    title_axes(grid, "mode", "bandwidth (residual stream units)")
    title = f"Kernel bandwidths of the cross-attention of {model_of(ds)}"
    width = "standard deviation 1/√σ of the Gaussian kernel along each singular direction of W_Q W_Kᵀ"
    return grid.dress(title, width, "narrow: queries and keys must agree")


@KERNEL_REGRESSION.figure(table=("tilt_share", "identity_error"), sentences=read_tilt)
def tilt_map(ds: xr.Dataset) -> go.Figure:
    """Draw the layer × head map of the tilt: what keys get by their length alone, against all that tells them apart."""
    values = array(ds, "tilt_share", "layer", "head")
    top = float(np.nanmax(values))
    return head_maps(
        ds,
        [HeadMap(values, "", "tilt factor", low=0.0, high=top, write=two_digits)],
        f"Tilt of the cross-attention kernels of {model_of(ds)}",
        single_series(ds),
        "variance over keys of the tilt, relative to tilt and kernel together: near 0 the query decides, from 1 on "
        "the keys do",
    )


@KERNEL_REGRESSION.figure(table=("missing", "bound", "applicable"), sentences=read_bound)
def concentration_bound_plot(ds: xr.Dataset) -> go.Figure:
    """Draw the bound on the attention outside one key against what is measured, a dot per head and query."""
    missing = np.clip(array(ds, "missing", "layer", "head", "query"), LEAST, 1)
    bound = np.clip(array(ds, "bound", "layer", "head", "query"), LEAST, None)
    usable = array(ds, "applicable", "layer", "head", "query") > 0
    layers, canvas = layer_names(ds), blank(320)
    panel = canvas.panel()
    queries = np.broadcast_to(np.arange(bound.shape[-1]), bound.shape[1:])
    which = np.broadcast_to(np.array(names(ds, "head"))[:, None], bound.shape[1:])
    colours = CATEGORICAL[: len(layers)]
    if len(layers) > len(CATEGORICAL):
        # from pale to dark for many
        shades = [0.25 + 0.75 * row / (len(layers) - 1) for row in range(len(layers))]
        colours = sample_colorscale([list(pair) for pair in SEQUENTIAL], shades)
    hover = ", head %{customdata[0]}, query %{customdata[1]}<br>bound %{x:.3g}<br>measured %{y:.3g}"
    for row, (label, at, colour) in enumerate(zip(layers, usable, colours, strict=True)):
        look: Look = {
            "marker": {"opacity": 0.75},
            "customdata": np.stack([which[at], queries[at].astype(str)], axis=-1),
        }
        panel.dots(bound[row][at], missing[row][at], label, plain(label) + hover, colour=colour, size=6, **look)
    values = bound[usable]
    ends = (float(values.min()), float(values.max())) if len(values) else (LEAST, 1.0)
    low, high = np.log10(min(ends[0], 1e-1)) - 0.3, np.log10(max(ends[1], 1.0)) + 0.3
    lowest = np.log10(missing[usable].min()) - 0.3 if len(values) else low
    # on logarithmic axes shapes stand at the values, not at their logarithms
    panel.shape("line", (10**low, 1), (10**low, 1), line={"color": GREY, "width": 1})
    panel.shape("line", (1, 1), (0, 1), yref="y domain", line={"color": GREY, "width": 1, "dash": "dot"})
    up = [min(lowest, -1), 0.15]
    across, upwards = (log_axis(10.0 ** np.array(axis)) for axis in ((low, high), up))
    panel.x("bound on the attention outside the top key", range=[low, high], **across)
    panel.y("measured attention\noutside the top key", range=up, gridcolor=PALE, **upwards)
    informative = float((values < 1).mean()) if len(values) else 0.0
    return canvas.dress(
        f"Concentration of the cross-attention of {model_of(ds)} and its bound",
        f"{single_series(ds)}, a dot per head and query; {int(usable.sum())} of {usable.size} meet the conditions",
        f"the bound is below 1 and says something for {percent(round(informative, 3))}; on the line it is exact",
        f"below {number(LEAST)}: drawn there" if min(ends[0], missing.min()) <= LEAST else "",
    )


_MAX_NUMBERED = 36  # cells of a panel that still have room for their number

LAYER_SIMILARITY = measurement("layer_similarity")

HEAD_SIMILARITY = measurement("head_similarity")


def read_layer_similarity(ds: xr.Dataset, measure: str) -> list[str]:
    """Describe where the stream changes most, or which updates are alike."""
    axis = "stream" if measure == "cka" else "layer"
    values, words = array(ds, measure, axis, f"other_{axis}"), layers(ds, axis)
    if len(words) < 2:
        return ["There is only one to compare."]
    if measure == "cka":
        steps = np.diag(values, 1)
        if not np.isfinite(steps).any():
            return ["The stream is the same for all tokens after every layer, so no CKA can be had."]
        at = int(np.nanargmin(steps))
        same = [word for word, value in zip(words, np.diag(values), strict=True) if not np.isfinite(value)]
        out = f"From one layer to the next the stream changes most between {words[at]} and {words[at + 1]} "
        alike = [f"At {listed(same)} the stream is the same for all tokens, so no CKA can be had."] if same else []
        return [f"{out}(CKA {num(steps[at])}).", *alike]
    rows, columns = np.triu_indices(len(words), 1)
    pairs = values[rows, columns]
    low, high = extremes(pairs)
    return [
        f"The updates most alike are those of {words[rows[high]]} and {words[columns[high]]} "
        f"(cosine {signed(pairs[high])}), the least alike those of {words[rows[low]]} and {words[columns[low]]} "
        f"({signed(pairs[low])})."
    ]


def read_head_similarity(ds: xr.Dataset) -> list[str]:
    """Name the two heads that write most alike, and the layer whose heads do so most."""
    values, words, heads = array(ds, "cosine", "layer", "head", "other_head"), layers(ds), names(ds, "head")
    rows, columns = np.triu_indices(len(heads), 1)
    if not len(rows):
        return ["There is only one head a layer."]
    pairs = values[:, rows, columns]
    low, high = extremes(pairs)

    def pair(flat: int) -> str:
        layer, place = divmod(flat, len(rows))
        return f"heads {heads[rows[place]]} and {heads[columns[place]]} of {words[layer]} ({signed(pairs.flat[flat])})"

    means = pairs.mean(axis=1)
    return [
        f"Most alike are {pair(high)}, least alike {pair(low)}.",
        f"{capital(words[int(means.argmax())])} has the largest mean over pairs, {signed(means.max())}.",
    ]


@LAYER_SIMILARITY.figure()
def similarity_map(ds: xr.Dataset, *, measure: str = "cka") -> go.Figure:
    """Draw how alike the layers of a stack are, each against each.

    Args:
        measure: "cka" of the residual streams, or "update_cosine" of what the layers add.
    """
    if measure not in ("cka", "update_cosine"):
        raise InputError(f"measure {measure!r} is not known, choose 'cka' or 'update_cosine'")
    check(ds, "layer_similarity", measure)
    cka = measure == "cka"
    axis, word = ("stream", "linear CKA") if cka else ("layer", "cosine")
    labels = [layer_name(name) for name in names(ds, axis)]
    canvas = blank(min(max(34 * len(labels), 200), 560))
    panel, hover = canvas.panel(), f"%{{y}} and %{{x}}<br>{word} %{{z:.3f}}"
    values = array(ds, measure, axis, f"other_{axis}")
    panel.cells(values, labels, labels, hover, write=two_digits)
    alike = [label for label, row in zip(labels, values, strict=True) if not np.isfinite(row).any()]
    canvas.colours(colour_scale(word, low=0.0, high=1.0, diverging=not cka))
    panel.x(type="category", ticks="", nticks=12)
    panel.y(type="category", autorange="reversed", ticks="", nticks=24)
    what = "residual streams after each layer" if cka else "what each layer adds to the residual stream"
    return canvas.dress(
        f"Similarity of the layers' {'streams' if cka else 'updates'} in {model_of(ds)}",
        f"{word} of {what}, over all tokens",
        "1: alike" if cka else "1: alike, −1: opposite",
        f"empty: the {' and '.join(alike)}, the same at every token" if alike else "",
    )


@HEAD_SIMILARITY.figure(table=("cosine",), sentences=read_head_similarity)
def head_similarity_map(ds: xr.Dataset, *, layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw how alike the heads of a layer write, each against each, a panel per layer."""
    rows, heads = positions(ds, "layer", layers), names(ds, "head")
    labels = layer_names(ds, rows)
    grid = panel_grid([(label,) for label in labels], row_height=max(150, 16 * min(len(heads), 16)))
    hover = "heads %{y} and %{x}<br>cosine %{z:.3f}"
    cosines = array(ds, "cosine", "layer", "head", "other_head")[rows]
    for panel, value, label in zip(grid, cosines, labels, strict=True):
        panel.cells(value, heads, heads, f"{plain(label)}, {hover}", write=two_digits, printed=_MAX_NUMBERED)
    title_axes(grid, "head", "head")
    grid.x(type="category", ticks="")
    grid.y(type="category", ticks="", autorange="reversed")
    grid.colours(colour_scale("cosine", high=1.0, diverging=True))
    cosine = "cosine between what two heads of a layer write at a token, mean over tokens and series"
    return grid.dress(f"Similarity of the heads of {model_of(ds)}", attention_kind(ds), cosine)


@LAYER_SIMILARITY.panels
def _panels(ds: xr.Dataset) -> Iterator[ReportPanel]:
    for each in ("cka", "update_cosine"):
        yield ReportPanel(similarity_map(ds, measure=each), frame(ds, each), read_layer_similarity(ds, each))


ENTROPIC_RANK = measurement("entropic_rank")


def read_entropic_rank(ds: xr.Dataset) -> list[str]:
    """Describe where the heads write most apart."""
    rank, words, heads = array(ds, "rank", "layer"), layers(ds), int(ds.attrs.get("heads", 0))
    low, high = extremes(rank)
    most = f" of at most {heads}" if heads else ""
    out = [
        f"The heads write in most directions in {words[high]} ({num(rank[high])}{most}) and in fewest in "
        f"{words[low]} ({num(rank[low])})."
    ]
    each = np.exp(array(ds, "entropy", "layer", "series"))
    if each.shape[1] > 1:
        reach = np.ptp(each, axis=1)
        at = int(reach.argmax())
        out.append(f"The series differ most in {words[at]}: from {num(each[at].min())} to {num(each[at].max())}.")
    return out


@ENTROPIC_RANK.figure(
    table=lambda ds: frame(ds, "entropy").merge(frame(ds, "rank"), on="layer"), sentences=read_entropic_rank
)
def entropic_rank_line(ds: xr.Dataset) -> go.Figure:
    """Draw the entropic rank layer by layer: how many directions the heads of a layer write in."""
    labels, ids = layer_names(ds), names(ds, "series")
    heads, canvas = int(ds.attrs.get("heads", 0)), blank(280)
    panel, hover = canvas.panel(), "%{text}<br>entropic rank %{y:.3g}"
    thin: Look = {"colour": mixed(GREY, 0.55), "width": 1, "text": labels}
    for name, line in zip(ids, np.exp(array(ds, "entropy", "layer", "series")).T, strict=True):
        panel.line(labels, line, "one series each", f"{plain(name)}, {hover}", **thin)
    bold: Look = {"colour": BLUE, "width": 2.5, "mode": "lines+markers", "text": labels}
    panel.line(labels, array(ds, "rank", "layer"), "all series", f"all series, {hover}", **bold)
    if heads:
        panel.level(heads, dash="dot")
        words = f"{heads} heads: no two share a direction"
        panel.note(words, 1, heads, colour=GREY, xref="domain", xanchor="right", yanchor="bottom")
        panel.y(range=[0.9, heads + 0.12 * (heads - 0.9)])
    layer_axis(canvas, labels)
    panel.y("entropic rank (directions)")
    over = f"entropy averaged over tokens and {len(ids)} series"
    title = f"Entropic rank of the heads of {model_of(ds)}"
    return canvas.dress(title, attention_kind(ds), over, "1: all heads write along one line")
