"""Readings of weights and streams: spectra, entropic rank, similarity, kernels."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.report.words import capital, extremes, head_at, layers, listed, num, signed
from tsfm_lens.viz.select import array, names, position


def read_stable_rank(ds: xr.Dataset, product: str) -> list[str]:
    """Which heads act along few directions, and how the layers differ."""
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
    """In how many directions most of a head's strength lies."""
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
    """Where the heads write most apart."""
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
    """Where the stream changes most, or which updates are alike."""
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
    """Which two heads write alike, and in which layer heads do so most."""
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


def read_bandwidths(ds: xr.Dataset) -> list[str]:
    """How narrow kernels are, and how much they differ between directions."""
    widths = array(ds, "bandwidth", "layer", "head", "mode")
    narrow, wide = np.nanmin(widths, axis=-1), np.nanmax(widths, axis=-1)
    at = int(np.nanargmin(narrow))
    return [
        f"The narrowest kernel is that of {head_at(ds, at)}, with a bandwidth of {num(narrow.flat[at])} along its "
        f"first direction; in the median head the widest direction is {num(np.nanmedian(wide / narrow))} times as "
        "wide as the narrowest."
    ]


def read_tilt(ds: xr.Dataset) -> list[str]:
    """In how many heads keys draw attention by their length alone."""
    share = array(ds, "tilt_share", "layer", "head")
    low, high = extremes(share)
    strong = int((share >= 1).sum())
    return [
        f"The tilt is weakest in {head_at(ds, low)} ({num(share.flat[low])}) and strongest in {head_at(ds, high)} "
        f"({num(share.flat[high])}); it varies as much as the scores themselves, or more, in {strong} of "
        f"{share.size} heads."
    ]


def read_bound(ds: xr.Dataset) -> list[str]:
    """Where the bound holds, where it says something, and how close it comes."""
    missing, bound = (array(ds, name, "layer", "head", "query") for name in ("missing", "bound"))
    usable = array(ds, "applicable", "layer", "head", "query") > 0
    if not usable.any():
        return ["The conditions of the proposition hold nowhere, so it bounds nothing here."]
    telling = usable & (bound < 1)
    out = [
        f"The conditions hold for {int(usable.sum())} of {usable.size} heads and queries, and the bound is below 1 for "
        f"{int(telling.sum())} of them; everywhere else it is vacuous: no attention could exceed it."
    ]
    if telling.any():
        ratio = float(np.median(bound[telling] / np.maximum(missing[telling], 1e-16)))
        out.append(f"There it is {num(ratio)} times what is measured, in the median.")
    broken = int((missing[usable] > bound[usable] * (1 + 1e-6) + 1e-9).sum())
    out.append("It is exceeded nowhere." if not broken else f"It is exceeded {broken} times, which it must not be.")
    return out
