"""Ranks: how many directions weights, embedded series and streams use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.computing import of_weights, on_all
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.catalogue.words import layers, listed, num, signed
from tsfm_lens.viz import (
    embedding_spectra,
    head_closeness,
    rank_flow_map,
    rank_flow_spectra,
    rank_histograms,
    rank_rise,
    row_angle_map,
    token_angle_map,
    weight_rank_map,
    weight_spectra,
)
from tsfm_lens.viz.ranks import level_position, names_of, whole_matrices
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.theme import percent


def read_weight_ranks(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State the share of their directions that the matrices use, and which uses the least."""
    place = level_position(ds, epsilon)
    level = f"{float(ds['epsilon'].values[place]):g}"
    share = array(ds, "rank_share", "matrix", epsilon=place)
    valid = array(ds, "told", "matrix", epsilon=place) > 0
    parts, labels = names_of(ds, "part"), names(ds, "matrix")
    whole = [row for row in whole_matrices(ds) if valid[row]]
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
    """State how fast the spectra fall, by measures without a threshold."""
    whole = whole_matrices(ds)
    effective, full = array(ds, "effective_rank", "matrix")[whole], np.asarray(ds["full"].values, dtype=float)[whole]
    finite = np.isfinite(effective)
    if not finite.any():
        return ["All matrices are zero."]
    shares = effective[finite] / full[finite]
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
    """State how many singular values are within a power of ten of the largest, attention against MLP."""
    whole = whole_matrices(ds)
    first = array(ds, "decade_count", "matrix", "decade")[:, 0] / np.asarray(ds["full"].values, dtype=float)
    parts, out = names_of(ds, "part"), []
    for words, members in (("attention", ("W_Q", "W_K", "W_V", "W_O")), ("MLP", ("W_in", "W_gate", "W_out"))):
        own = first[[row for row in whole if parts[row] in members]]
        if len(own):
            out.append(
                f"Within a power of ten of the largest lie {percent(float(np.median(own)))} of the singular values of "
                f"the median {words} matrix, {percent(float(own.min()))} to {percent(float(own.max()))} over all."
            )
    return out


def read_row_angles(ds: xr.Dataset) -> list[str]:
    """Count the layers in which rows of a head are closer than chance."""
    within, between, closer = (array(ds, name, "layer") for name in ("within", "between", "closer"))
    if not np.isfinite(closer).any():
        return ["There is only one head, or no rows but zeros, so nothing can be closer."]
    words, part = layers(ds), str(ds.attrs["part"])
    stands = np.flatnonzero(array(ds, "closer_stands_out", "layer") > 0)
    if not len(stands):
        return [
            f"In no layer are the rows of {part} of one head closer to each other than shuffled ones are by chance."
        ]
    most = int(stands[np.argmax(closer[stands])])
    return [
        f"Rows of {part} of one head are closer to each other than shuffled ones are by chance in {len(stands)} of "
        f"{len(words)} layers; most in {words[most]}, {num(within[most])}° against {num(between[most])}°."
    ]


def read_embedding_ranks(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State how many directions the families use, and which single signals differ beyond their intervals."""
    place = level_position(ds, epsilon)
    level, families = f"{float(ds['epsilon'].values[place]):g}", names(ds, "family")
    rank, full = array(ds, "epsilon_rank", "family", epsilon=place), np.asarray(ds["full"].values)
    valid = array(ds, "told", "family", epsilon=place) > 0
    counts = [f"{name} {int(rank[i])} of {int(full[i])}" for i, name in enumerate(families) if valid[i]]
    if not counts:
        return [f"At ε = {level} rounding may hide every rank."]
    out = [f"At ε = {level} embedded tokens use so many directions: {listed(counts)}."]
    low, high = (array(ds, f"signal_rank_{end}", "family", epsilon=place) for end in ("low", "high"))
    several = [i for i in np.flatnonzero(high > low) if valid[i]]
    if len(several) > 1:
        most = max(several, key=lambda i: low[i])
        others = [i for i in several if i != most]
        if all(low[most] > high[i] for i in others):
            out.append(
                f"A single signal of {families[most]} uses the most directions, {num(low[most])} to {num(high[most])}; "
                f"one of any other family at most {num(max(high[i] for i in others))}."
            )
        else:
            out.append("Of the numbers of directions that single signals use, the intervals overlap.")
    return out


def read_token_angles(ds: xr.Dataset) -> list[str]:
    """State how far apart tokens lie, against random lines."""
    means = array(ds, "mean_angle", "family")
    angles = [f"{name} {num(means[i])}°" for i, name in enumerate(names(ds, "family")) if np.isfinite(means[i])]
    if not angles:
        return ["All tokens are zero, so they have no angles."]
    random = num(float(ds.attrs["random_angle"]))
    return [f"Mean angles between two tokens: {listed(angles)}; between random lines {random}°."]


def read_flow_map(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State the rank of the stream and of W_Q at both ends of the depth."""
    place = level_position(ds, epsilon)
    level = f"{float(ds['epsilon'].values[place]):g}"
    stream, weights = (
        array(ds, "epsilon_rank", "stream", epsilon=place),
        array(ds, "weight_rank", "layer", epsilon=place),
    )
    out = [
        f"At ε = {level} the stream uses {int(stream[0])} of {ds.sizes['mode']} directions at the embedding and "
        f"{int(stream[-1])} after the last layer."
    ]
    if len(weights) > 1:
        most = ds.sizes["weight_mode"]
        out.append(
            f"W_Q uses {int(weights[0])} of {most} directions in the first layer, {int(weights[-1])} in the last."
        )
    return out


def read_bound(ds: xr.Dataset) -> list[str]:
    """State whether theorem 4 says something of the model, and whether it holds there."""
    bound, values = array(ds, "bound", "layer", "mode"), array(ds, "singular_value", "stream", "mode")
    keys, outputs = (array(ds, name, "layer") for name in ("query_key_norm", "value_norm"))
    sentences = _read_measured_bound(ds)
    if np.isnan(bound).all():
        return [
            *sentences,
            f"Theorem 4 says nothing of this model: it asks for {ds.attrs['least_depth']} layers or more with "
            f"{ds.attrs['heads']} heads, of which there are {ds.sizes['layer']}, and for norms up to 1, where "
            f"query–key products reach {num(float(keys.max()))} and value–output products {num(float(outputs.max()))}.",
        ]
    finite = np.isfinite(bound)
    above = int((values[1:] / values[1:, :1] > bound)[finite].sum())
    outcome = "is exceeded nowhere" if not above else f"is exceeded {above} times: norms and MLPs are not part of it"
    return [
        *sentences,
        f"The bound of theorem 4 applies to {int(finite.any(1).sum())} of {len(bound)} layers and {outcome}.",
    ]


def _read_measured_bound(ds: xr.Dataset) -> list[str]:
    """State how near the attentions come to what they could add to the rank at most."""
    if "attention_bound" not in ds:
        return []
    bound, values = (array(ds, f"attention_{name}", "layer", "mode") for name in ("bound", "value"))
    says = np.isfinite(bound) & (bound < 1)
    if not says.any():
        return ["With measured constants the inequality behind theorem 4 allows the attentions any rank."]
    with np.errstate(divide="ignore"):
        near = float((bound[says] / values[says]).min())
    above = int((values > bound * (1 + 1e-6) + 1e-12)[says].sum())
    outcome = "is exceeded nowhere" if not above else f"is exceeded {above} times"
    return [
        f"With measured constants the inequality behind theorem 4 bounds {says.sum()} of {says.size} relative singular "
        f"values after the first attentions below 1, {outcome}, and is at least {num(near)} times what was measured."
    ]


def read_rank_rise(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """State whether the rank of single series rises, where that stands out of the spread over series."""
    place = level_position(ds, epsilon)
    level, words = f"{float(ds['epsilon'].values[place]):g}", layers(ds, "stream")
    estimate, low, high = (
        array(ds, f"rank_rise_{part}", "stream", epsilon=place) for part in ("estimate", "low", "high")
    )
    stands = np.flatnonzero(array(ds, "rank_rise_stands_out", "stream", epsilon=place) > 0)
    if not len(stands):
        return [f"At ε = {level} the rank of single series neither rises nor falls beyond what differs between series."]
    last = int(stands[-1])
    ends = f", {signed(low[last])} to {signed(high[last])}" if high[last] > low[last] else ""
    return [
        f"At ε = {level} the rank of single series differs from that of their embedding after {len(stands)} of "
        f"{len(words) - 1} layers; the last of these is {words[last]}, with "
        f"{signed(estimate[last])} directions{ends}."
    ]


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


def _row_angles(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(row_angle_map(ds), frame(ds, "block_angle"), read_row_angles(ds))
    facts = ("within", "between", "closer", "closer_floor", "closer_stands_out")
    yield Plate(head_closeness(ds), frame(ds, *facts), [])


def _embedding_ranks(ds: xr.Dataset) -> Iterator[Plate]:
    ranks = frame(ds, "epsilon_rank", "told", "signal_rank_estimate", "signal_rank_low", "signal_rank_high")
    yield Plate(embedding_spectra(ds), ranks, read_embedding_ranks(ds))
    facts = ("tokens", "full", "mean_angle", "stable_rank", "effective_rank", "participation_ratio", "rounding_floor")
    yield Plate(token_angle_map(ds), frame(ds, *facts), read_token_angles(ds))


def _flow_of_ranks(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(rank_flow_map(ds), frame(ds, "epsilon_rank", "rank_share", "told"), read_flow_map(ds))
    weights = frame(ds, "weight_rank").merge(frame(ds, "query_key_norm", "value_norm"), on="layer")
    yield Plate(rank_flow_spectra(ds), weights, read_bound(ds))
    rise = ("rank_rise_estimate", "rank_rise_low", "rank_rise_high", "rank_rise_stands_out")
    yield Plate(rank_rise(ds), frame(ds, *rise), read_rank_rise(ds))


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
        source="Flow of ranks, equation 1 and figure 10",
        paper=("S0-ERANK", "S0-HIST", "S0-F10"),
    ),
    Measurement(
        kind="row_angles",
        theme="Weights alone",
        about="angles between the rows of W_Q, and whether those of a head lie closer together",
        heading="Angles of queries",
        guide="A row of W_Q is a line in the stream that one dimension of a head looks along. Where the rows of a head "
        "lie close together, the head looks along few lines, and the map has dark blocks on its diagonal.",
        compute=of_weights("row_angles"),
        plates=_row_angles,
        figures=(
            Figure("row_angle_map", "Angles between the rows of W_Q, with the blocks of the heads."),
            Figure("head_closeness", "How much closer rows of one head lie than rows of different heads."),
        ),
        source="Flow of ranks, equation 2 and figures 9 and 12",
        paper=("S0-ANG", "S0-F9"),
    ),
    Measurement(
        kind="embedding_ranks",
        theme="Activations",
        about="how many directions embedded series use: signal families, own series, vocabulary; angles of tokens",
        heading="Ranks of embedded series",
        guide="Series are embedded as tokens of many dimensions, of which smooth ones use few. The same is shown for "
        "sinusoids, exponentials, white noise and zeros.",
        compute=on_all("embedding_ranks"),
        plates=_embedding_ranks,
        figures=(
            Figure("embedding_spectra", "Singular values of embedded families of signals."),
            Figure("token_angle_map", "Angles between embedded tokens, family by family."),
        ),
        helpers=("signal_families",),
        source="Flow of ranks, figures 2, 3 and 13",
        paper=("S0-F2", "S0-F3", "S0-F13"),
    ),
    Measurement(
        kind="flow_of_ranks",
        theme="Activations",
        about="how many directions the stream uses before each layer, and each W_Q, with the bound of theorem 4",
        heading="Flow of ranks",
        guide="Every layer mixes what it reads in ways that are not linear, so that the rank of the stream may grow "
        "with the depth, and with it the rank that the next layer can use.",
        compute=on_all("flow_of_ranks"),
        plates=_flow_of_ranks,
        figures=(
            Figure("rank_flow_map", "Ranks of the stream and of W_Q, layer by ε."),
            Figure("rank_flow_spectra", "Singular values of the stream and of W_Q through the depth."),
            Figure("rank_rise", "How the rank of single series rises through the depth."),
        ),
        source="Flow of ranks, section 4, figure 5 and theorem 4",
        paper=("S0-F5", "S0-F6"),
    ),
)
