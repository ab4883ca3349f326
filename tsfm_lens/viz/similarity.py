"""Similarity of layers and of heads by centred kernel alignment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.registry import ReportPanel, check, measurement
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale, two_digits
from tsfm_lens.viz.select import array, layer_name, layer_names, model_of, names, positions
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.theme import plain
from tsfm_lens.viz.words import capital, extremes, layers, listed, num, signed

__all__ = ["head_similarity_map", "similarity_map"]
_MAX_NUMBERED = 36  # cells of a panel that still have room for their number

LAYER_SIMILARITY = measurement(
    "layer_similarity",
    theme="Activations",
    title="Similarity of layers",
    summary="similarity of layers (CKA, cosine of updates)",
    description="How alike the residual stream is after different layers, and what the layers add to it. Neighbours"
    " that are almost the same change little.",
    source="Kornblith et al. 2019",
)


HEAD_SIMILARITY = measurement(
    "head_similarity",
    theme="Activations",
    title="Similarity of heads",
    summary="similarity of the heads of a layer",
    description="Whether the heads of a layer write in the same direction (1), at right angles (0) or against each "
    "other (−1).",
    source="Kornblith et al. 2019",
)


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


@LAYER_SIMILARITY.figure("How alike the layers' streams are.")
def similarity_map(ds: xr.Dataset, *, measure: str = "cka") -> go.Figure:
    """Draw how alike the layers of a stack are, each against each.

    Args:
        ds: of kind "layer_similarity".
        measure: "cka" of the residual streams, or "update_cosine" of what the layers add.

    Returns:
        A heat map; cosines in two colours around 0.
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
        "1: alike" + ("" if cka else ", −1: opposite"),
        f"empty: the {' and '.join(alike)}, the same at every token" if alike else "",
    )


@HEAD_SIMILARITY.figure(
    "How alike the heads of a layer write.", variables=("cosine",), table=("cosine",), sentences=read_head_similarity
)
def head_similarity_map(ds: xr.Dataset, *, layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw how alike the heads of a layer write, each against each, a panel per layer.

    Args:
        ds: of kind "head_similarity".
        layers: labels to draw, all unless given.

    Returns:
        Heat maps of the cosines, in two colours around 0; 1 on the diagonal.
    """
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
    return grid.dress(
        f"Similarity of the heads of {model_of(ds)}",
        attention_kind(ds),
        "cosine between what two heads of a layer write at a token, mean over tokens and series",
    )


@LAYER_SIMILARITY.panels
def _panels(ds: xr.Dataset) -> Iterator[ReportPanel]:
    for each in ("cka", "update_cosine"):
        yield ReportPanel(similarity_map(ds, measure=each), frame(ds, each), read_layer_similarity(ds, each))
