"""Weights and streams: spectra, entropic rank, similarity."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.computing import of_weights, on_all
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import capital, extremes, head_at, layers, listed, num, signed
from tsfm_lens.viz import entropic_rank_line, head_similarity_map, similarity_map, spectrum_lines, stable_rank_map
from tsfm_lens.viz.select import array, names, position


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
        return [
            f"From one layer to the next the stream changes most between {words[at]} and {words[at + 1]} "
            f"(CKA {num(steps[at])})."
        ] + ([f"At {listed(same)} the stream is the same for all tokens, so no CKA can be had."] if same else [])
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


def _spectra(ds: xr.Dataset) -> Iterator[Plate]:
    for product in names(ds, "product"):
        one = ds.sel(product=product)
        ranks = frame(one, "stable_rank", "order")
        yield Plate(stable_rank_map(ds, product=product), ranks, read_stable_rank(ds, product))
        values = frame(one, "singular_value")
        yield Plate(spectrum_lines(ds, product=product), values, read_spectra(ds, product))


def _entropic_rank(ds: xr.Dataset) -> Iterator[Plate]:
    table = frame(ds, "entropy").merge(frame(ds, "rank"), on="layer")
    yield Plate(entropic_rank_line(ds), table, read_entropic_rank(ds))


def _layer_similarity(ds: xr.Dataset) -> Iterator[Plate]:
    for measure in ("cka", "update_cosine"):
        words = read_layer_similarity(ds, measure)
        yield Plate(similarity_map(ds, measure=measure), frame(ds, measure), words)


def _head_similarity(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(head_similarity_map(ds), frame(ds, "cosine"), read_head_similarity(ds))


MEASUREMENTS = (
    Measurement(
        kind="spectra",
        theme="Weights alone",
        about="stable rank and singular spectra of W_Q W_Kᵀ and W_V W_O",
        heading="Spectra of the heads",
        guide="The singular values of each head's two products, from the weights alone: query–key says what a head "
        "matches, value–output what it moves. Few large ones mean that it acts along few directions.",
        compute=of_weights("head_spectra"),
        plates=_spectra,
        figures=(
            Figure("stable_rank_map", "Stable rank of every head."),
            Figure("spectrum_lines", "Singular values of every head."),
        ),
        helpers=("stable_rank",),
        source="tsfm-lens, definition 5.1 (S3-SRANK)",
    ),
    Measurement(
        kind="entropic_rank",
        theme="Activations",
        about="entropic rank of the heads of a layer",
        heading="Entropic rank",
        guide="How many different directions the heads of a layer write in. As many as heads: none repeats another.",
        compute=on_all("entropic_rank"),
        plates=_entropic_rank,
        figures=(Figure("entropic_rank_line", "Directions that the heads of a layer write in."),),
        source="tsfm-lens, appendix E",
        paper=("S3-F1E",),
    ),
    Measurement(
        kind="layer_similarity",
        theme="Activations",
        about="similarity of layers (CKA, cosine of updates)",
        heading="Similarity of layers",
        guide="How alike the residual stream is after different layers, and what the layers add to it. Neighbours that "
        "are almost the same change little.",
        compute=on_all("layer_similarity"),
        plates=_layer_similarity,
        figures=(Figure("similarity_map", "How alike the layers' streams are."),),
        source="Kornblith et al. 2019",
    ),
    Measurement(
        kind="head_similarity",
        theme="Activations",
        about="similarity of the heads of a layer",
        heading="Similarity of heads",
        guide="Whether the heads of a layer write in the same direction (1), at right angles (0) or against each other "
        "(−1).",
        compute=on_all("head_similarity"),
        plates=_head_similarity,
        figures=(Figure("head_similarity_map", "How alike the heads of a layer write."),),
        source="Kornblith et al. 2019",
    ),
)
