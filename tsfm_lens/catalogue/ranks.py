"""Ranks: how many directions weights, embedded series and streams use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.computing import of_weights
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import listed, num
from tsfm_lens.viz import rank_histograms, weight_rank_map, weight_spectra
from tsfm_lens.viz.ranks import level_position, names_of, whole_matrices
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.theme import percent


def read_weight_ranks(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """What share of their directions the matrices use, and which uses the least."""
    place = level_position(ds, epsilon)
    level = f"{float(ds['epsilon'].values[place]):g}"
    share = array(ds, "rank_share", "matrix", epsilon=place)
    told = array(ds, "told", "matrix", epsilon=place) > 0
    parts, labels = names_of(ds, "part"), names(ds, "matrix")
    whole = [row for row in whole_matrices(ds) if told[row]]
    if not whole:
        return [f"At ε = {level} rounding of the weights hides every rank."]
    words = []
    for part in dict.fromkeys(parts[row] for row in whole):
        own = share[[row for row in whole if parts[row] == part]]
        words.append(f"{percent(float(np.median(own)))} in {part}")
    out = [f"At ε = {level} the median matrix uses, of all directions, {listed(words)}."]
    # what is the same in several matrices singles none out
    least = [row for row in whole if share[row] == share[whole].min()]
    if len(least) == 1:
        rank, full = int(ds["epsilon_rank"].values[place, least[0]]), int(ds["full"].values[least[0]])
        out.append(f"{labels[least[0]]} uses the smallest share, {rank} of {full} directions.")
    hidden = len(whole_matrices(ds)) - len(whole)
    if hidden:
        out.append(f"The ranks of {hidden} matrices are below what {ds.attrs['precision']} weights can tell.")
    return out


def read_weight_spectra(ds: xr.Dataset) -> list[str]:
    """How fast the spectra fall, told by measures without a threshold."""
    whole = whole_matrices(ds)
    effective, full = array(ds, "effective_rank", "matrix")[whole], np.asarray(ds["full"].values, dtype=float)[whole]
    known = np.isfinite(effective)
    if not known.any():
        return ["All matrices are zero."]
    shares = effective[known] / full[known]
    out = [
        f"The effective rank is {percent(float(np.median(shares)))} of the largest possible in the median matrix, "
        f"from {percent(float(shares.min()))} to {percent(float(shares.max()))}."
    ]
    floor = array(ds, "rounding_floor", "matrix")[whole]
    out.append(
        f"Weights are stored in {ds.attrs['precision']}: singular values below {num(float(np.nanmax(floor)))} of the "
        "largest may be rounding."
    )
    return out


def read_histograms(ds: xr.Dataset) -> list[str]:
    """How many singular values are within a power of ten of the largest, attention against MLP."""
    whole = whole_matrices(ds)
    first = array(ds, "decade_count", "matrix", "decade")[:, 0] / np.asarray(ds["full"].values, dtype=float)
    parts, out = names_of(ds, "part"), []
    for words, chosen in (("attention", ("W_Q", "W_K", "W_V", "W_O")), ("MLP", ("W_in", "W_gate", "W_out"))):
        own = first[[row for row in whole if parts[row] in chosen]]
        if len(own):
            out.append(
                f"Within a power of ten of the largest lie {percent(float(np.median(own)))} of the singular values of "
                f"the median {words} matrix, {percent(float(own.min()))} to {percent(float(own.max()))} over all."
            )
    return out


def _spectra_table(ds: xr.Dataset) -> pd.DataFrame:
    table = frame(ds, "singular_value")
    return table[np.isfinite(table["singular_value"])]


def _weight_ranks(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(weight_rank_map(ds), frame(ds, "epsilon_rank", "rank_share", "told"), read_weight_ranks(ds))
    measures = frame(ds, "stable_rank", "effective_rank", "participation_ratio", "rounding_floor")
    yield Plate(weight_rank_map(ds, measure="effective_rank"), measures, read_weight_spectra(ds))
    yield Plate(weight_spectra(ds), _spectra_table(ds), [])
    parts = names_of(ds, "part")
    part = "W_Q" if "W_Q" in parts else parts[0]
    yield Plate(rank_histograms(ds, part=part), frame(ds, "decade_count"), read_histograms(ds))


MEASUREMENTS = (
    Measurement(
        kind="weight_ranks",
        theme="Weights alone",
        about="how many directions every weight matrix uses: ε-rank, stable and effective rank, spectra by decade",
        heading="Ranks of the weights",
        guide="The ε-rank of a matrix counts its singular values above ε times the largest; cut off there, the matrix "
        "errs by at most ε of its norm. It is exact for the weights as they are stored.",
        compute=of_weights("weight_ranks"),
        plates=_weight_ranks,
        figures=(
            Figure("weight_rank_map", "What share of its directions each weight matrix uses."),
            Figure("weight_spectra", "Singular values of all weight matrices, layer by layer."),
            Figure("rank_histograms", "Singular values of a matrix by power of ten, layer by layer."),
        ),
        source="Flow of ranks, equation 1 and figures 4, 5, 6 and 10 (S0-ERANK, S0-FOR, S0-HIST)",
    ),
)
