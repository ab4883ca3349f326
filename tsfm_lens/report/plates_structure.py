"""Chapters on weights and streams: spectra, entropic rank, similarity, kernels."""

from __future__ import annotations

from collections.abc import Iterator

import xarray as xr

from tsfm_lens.report import readings_structure as read
from tsfm_lens.report.chapter import Chapter, Plate
from tsfm_lens.report.tables import frame
from tsfm_lens.viz import (
    concentration_bound_plot,
    entropic_rank_line,
    head_similarity_map,
    kernel_bandwidths,
    similarity_map,
    spectrum_lines,
    stable_rank_map,
    tilt_map,
)
from tsfm_lens.viz.select import names


def _spectra(ds: xr.Dataset) -> Iterator[Plate]:
    for product in names(ds, "product"):
        one = ds.sel(product=product)
        ranks = frame(one, "stable_rank", "order")
        yield Plate(stable_rank_map(ds, product=product), ranks, read.read_stable_rank(ds, product))
        values = frame(one, "singular_value")
        yield Plate(spectrum_lines(ds, product=product), values, read.read_spectra(ds, product))


def _entropic_rank(ds: xr.Dataset) -> Iterator[Plate]:
    table = frame(ds, "entropy").merge(frame(ds, "rank"), on="layer")
    yield Plate(entropic_rank_line(ds), table, read.read_entropic_rank(ds))


def _layer_similarity(ds: xr.Dataset) -> Iterator[Plate]:
    for measure in ("cka", "update_cosine"):
        words = read.read_layer_similarity(ds, measure)
        yield Plate(similarity_map(ds, measure=measure), frame(ds, measure), words)


def _head_similarity(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(head_similarity_map(ds), frame(ds, "cosine"), read.read_head_similarity(ds))


def _kernel(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(kernel_bandwidths(ds), frame(ds, "bandwidth"), read.read_bandwidths(ds))
    yield Plate(tilt_map(ds), frame(ds, "tilt_share", "identity_error"), read.read_tilt(ds))
    yield Plate(concentration_bound_plot(ds), frame(ds, "missing", "bound", "applicable"), read.read_bound(ds))


CHAPTERS = {
    "spectra": Chapter(
        "Spectra of the heads",
        "The singular values of each head's two products, from the weights alone: query–key says what a head matches, "
        "value–output what it moves. Few large ones mean that it acts along few directions.",
        _spectra,
    ),
    "entropic_rank": Chapter(
        "Entropic rank",
        "How many different directions the heads of a layer write in. As many as heads: none repeats another.",
        _entropic_rank,
    ),
    "layer_similarity": Chapter(
        "Similarity of layers",
        "How alike the residual stream is after different layers, and what the layers add to it. Neighbours that are "
        "almost the same change little.",
        _layer_similarity,
    ),
    "head_similarity": Chapter(
        "Similarity of heads",
        "Whether the heads of a layer write in the same direction (1), at right angles (0) or against each other (−1).",
        _head_similarity,
    ),
    "kernel_regression": Chapter(
        "Attention as kernel regression",
        "A cross-attention head averages the context with weights that are a Gaussian kernel, in the singular "
        "directions of its query–key product, times a tilt towards long keys. A proposition bounds how much attention "
        "can fall outside one key.",
        _kernel,
    ),
}
