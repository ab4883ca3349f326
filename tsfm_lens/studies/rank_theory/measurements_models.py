"""Measurements of ranks: vocabularies on two directions, spectra by patch size, and queries model by model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.studies._shim import Figure, Measurement, Plate, of_weights, on_all
from tsfm_lens.studies.rank_theory.figures_models import model_rank_dots, patch_spectra, vocabulary_dots
from tsfm_lens.viz.needs import SERIES, VOCABULARY
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.weight_ranks import level_position, names_of
from tsfm_lens.viz.words import listed, num


def read_plane(ds: xr.Dataset) -> list[str]:
    """Describe the share of two directions, and the distance of tokens with neighbouring ids there."""
    share, ratio = float(ds["share"].sum()), float(ds["neighbour_ratio"])
    return [
        f"Along two directions lie {percent(share)} of the vocabulary's sum of squares.",
        f"There, tokens with neighbouring ids lie {num(ratio)} times as far apart as two others, in the median; where "
        "ids say nothing it would be 1.",
    ]


def read_patches(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """Describe the rank of embedded noise by patch size."""
    place = level_position(ds, epsilon)
    ranks, full = array(ds, "epsilon_rank", "embedding", epsilon=place), np.asarray(ds["full"].values)
    words = [
        f"{label} {int(rank)} of {int(most)}" + f" (patch {patch})" * (origin == "model")
        for label, rank, most, patch, origin in zip(
            names(ds, "embedding"), ranks, full, names_of(ds, "patch"), names_of(ds, "origin"), strict=True
        )
    ]
    return [f"At ε = {float(ds['epsilon'].values[place]):g} embedded noise uses so many directions: {listed(words)}."]


def read_models(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """Describe average ranks over widths, model by model."""
    place = level_position(ds, epsilon)
    rank, head = (array(ds, name, "model", epsilon=place) for name in ("rank", "head_rank"))
    widths, heads = (np.asarray(ds[name].values, dtype=float) for name in ("width", "heads"))
    words = [
        f"{name} {num(one)} of {num(width)} directions, {num(own)} a head with {int(count)} heads"
        for name, one, width, own, count in zip(names(ds, "model"), rank, widths, head, heads, strict=True)
        if np.isfinite(one)
    ]
    level = f"{float(ds['epsilon'].values[place]):g}"
    return [f"At ε = {level} the average W_Q uses: {listed(words)}." if words else f"At ε = {level} none can be told."]


def _plane(ds: xr.Dataset) -> Iterator[Plate]:
    table = ds["coordinate"].to_pandas().add_prefix("direction ").assign(value=ds["value"].values)
    yield Plate(vocabulary_dots(ds), table.reset_index(), read_plane(ds))


def _patches(ds: xr.Dataset) -> Iterator[Plate]:
    table: pd.DataFrame = frame(ds, "epsilon_rank")
    yield Plate(patch_spectra(ds), table, read_patches(ds))


def _models(ds: xr.Dataset) -> Iterator[Plate]:
    ranks = frame(ds, "rank", "rank_low", "rank_high", "head_rank", "head_rank_low", "head_rank_high")
    yield Plate(model_rank_dots(ds), ranks, read_models(ds))
    yield Plate(model_rank_dots(ds, against="heads"), ranks, [])


MEASUREMENTS = (
    Measurement(
        kind="vocabulary_plane",
        theme="Weights alone",
        about="where the tokens of a vocabulary lie along its two leading directions",
        heading="Vocabulary on two directions",
        guide="Each dot is the embedding of a token, along the two directions in which the vocabulary is largest. Bins "
        "of a value that were embedded by that value lie along a curve; tokens of text form a cloud.",
        compute=of_weights("studies.rank_theory.vocabulary_plane"),
        plates=_plane,
        figures=(Figure(vocabulary_dots, "Tokens of a vocabulary along its two leading directions."),),
        source="Flow of ranks, figure 2 b and c",
        paper=("S0-F2",),
        needs=VOCABULARY,
    ),
    Measurement(
        kind="spectra_by_patch",
        theme="Activations",
        about="spectra of embedded noise by patch size, beside random residual MLPs",
        heading="Embedding by patch size",
        guide="A patch of few steps cannot be embedded in many directions: noise is embedded by the model, and by "
        "residual MLPs of random weights whose patches are shorter and longer.",
        compute=on_all("studies.rank_theory.spectra_by_patch"),
        plates=_patches,
        figures=(Figure(patch_spectra, "Singular values of embedded noise by patch size."),),
        source="Flow of ranks, figure 3 a",
        paper=("S0-F3",),
        needs=SERIES,
    ),
    Measurement(
        kind="ranks_by_model",
        theme="Weights alone",
        about="average ranks of the queries of several models, by width and by number of heads",
        heading="Ranks of queries, model by model",
        guide="The average ε-rank of all W_Q of a model against its width, with contours of their ratio, and against "
        "the number of its heads, beside that of single heads.",
        compute=None,
        plates=_models,
        figures=(Figure(model_rank_dots, "Average ranks of queries by width or number of heads."),),
        helpers=("studies.rank_theory.ranks_by_model",),
        source="Flow of ranks, figures 4 and 9",
        paper=("S0-F4", "S0-F9"),
    ),
)
