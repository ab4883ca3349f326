"""Measurements of the theory of ranks: numerical experiments and bounds, without a model."""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr

from tsfm_lens.studies._shim import shown_alone
from tsfm_lens.studies.rank_theory.figures import (
    chebyshev_curves,
    compression_rank_lines,
    compression_width_lines,
    head_spectra_lines,
    sketching_lines,
)
from tsfm_lens.studies.rank_theory.figures_bounds import (
    compression_bound_lines,
    embedding_bound_lines,
    growth_bound_lines,
    sketch_bound_dots,
)
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.words import listed, num


def read_compression_rank(ds: xr.Dataset) -> list[str]:
    """Describe the slope beside that of the theorem, and the distance to the bounds."""
    slope = array(ds, "slope", "scaling", "draw").mean(axis=1)
    error, bound = (array(ds, name, "scaling", "draw", "rank") for name in ("error", "bound"))
    rate = array(ds, "rate", "rank")
    powers = listed([f"{num(value)} ({name} weights)" for name, value in zip(names(ds, "scaling"), slope, strict=True)])
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
        str(rank) for rank, actual in zip(ds["rank"].values, ds["found_rank"].values, strict=True) if rank != actual
    ]
    return [f"Of ranks {listed(names(ds, 'rank'))} {listed(wrong) + ' are not' if wrong else 'every one is'} found."]


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


_WORDS = ("kind", "title", "source")
_entry = partial(
    shown_alone,
    theme="Theory",
    maker="made of no model: `tsfm_lens.studies.rank_theory` makes it",
    source="Flow of ranks",
    subject=lambda ds: ", ".join(f"{key} {value}" for key, value in ds.attrs.items() if key not in _WORDS),
)
MEASUREMENTS = (
    _entry(
        "theory_compression_rank",
        compression_rank_lines,
        read_compression_rank,
        ("error", "bound"),
        "error of an attention layer cut to the rank of its vocabulary, by rank",
        "Cutting attention to a rank",
        "Query, key and value are projected on the leading directions of the vocabulary; what is lost goes with the "
        "first singular value that is cut off.",
        "theorem 3, appendix J.1",
        "Error of a layer cut to a rank over the singular value that is cut off.",
        ("S0-J1A",),
    ),
    _entry(
        "theory_compression_width",
        compression_width_lines,
        read_compression_width,
        ("error",),
        "error of an attention layer cut to a fixed rank, by width",
        "Cutting attention of any width to one rank",
        "The theorem's rate has a factor √d, which is that of the norm of W_V: it is not there if the norm stays.",
        "theorem 3, appendix J.1",
        "Error of a layer cut to a fixed rank over its width.",
        ("S0-J1B",),
    ),
    _entry(
        "theory_sketching",
        sketching_lines,
        read_sketching,
        ("distance", "effective_index"),
        "how much of an input sparse sketches of several heads miss",
        "Sketches of several heads",
        "Each head sees a few random combinations of a few coordinates; together they span a part of the input's rows.",
        "appendix J.2",
        "What sketches of several heads miss, and where on the input's spectrum that is.",
        ("S0-J2", "S0-SKETCH"),
    ),
    _entry(
        "theory_head_spectra",
        head_spectra_lines,
        read_head_spectra,
        ("rank", "logit_deviation"),
        "spectra of an attention layer's output by its number of heads",
        "Heads raise rank",
        "More heads raise the rank of the output, provided that scores differ: where softmax is even, attention adds "
        "one direction at most.",
        "theorem 4, appendix J.3",
        "Singular values of a layer's output by heads.",
        ("S0-J3",),
    ),
    _entry(
        "theory_chebyshev",
        chebyshev_curves,
        read_chebyshev,
        ("found_rank",),
        "embeddings of a prescribed rank",
        "Embeddings of Chebyshev polynomials",
        "A value is embedded by as many polynomials as the rank is to be, each along a direction of its own.",
        "appendix I",
        "The curves that embeddings of several ranks draw in hidden space.",
        ("S0-F14",),
    ),
    _entry(
        "theory_embedding_bounds",
        embedding_bound_lines,
        read_embedding_bounds,
        ("singular_value", "bound"),
        "spectra of smooth and of small embeddings beside their bounds",
        "Bounds on embeddings",
        "The smoother an embedding of one value, the faster its singular values must fall; a residual MLP of patches "
        "has few that are large.",
        "theorems 1 and 2, corollary 2",
        "Spectra of embeddings and counts of singular values beside their bounds.",
        ("S0-TH1", "S0-TH2", "S0-C2", "S0-PATCH", "S0-QEMB", "S0-CEMB"),
    ),
    _entry(
        "theory_compression_bounds",
        compression_bound_lines,
        read_compression_bounds,
        ("error", "bound", "rate"),
        "errors of compressed attention beside their bounds, from both sides",
        "Bounds on compression",
        "The printed bound lacks a factor √L, which an input of one repeated token needs; other inputs lose a quarter "
        "of the next singular value whatever replaces W_V.",
        "theorems 3 and 5",
        "Errors of compression beside their bounds, from both sides.",
        ("S0-TH3", "S0-TH5", "S0-ATT", "S0-MHA"),
    ),
    _entry(
        "theory_growth_bounds",
        growth_bound_lines,
        read_growth_bounds,
        ("grown", "lower", "upper"),
        "growth of rank in one layer beside its bounds",
        "Bounds on the flow of ranks",
        "A layer cannot raise the rank of its input faster than with its number of heads, and one construction does "
        "so. The corollary's printed index has a sign that its proof has not.",
        "theorem 4, corollary 1",
        "Spectra of constructed and random layers beside their bounds.",
        ("S0-TH4", "S0-C1"),
    ),
    _entry(
        "theory_sketch_bounds",
        sketch_bound_dots,
        read_sketch_bounds,
        ("shared_error", "own_error"),
        "errors of a sketch for all heads and of one for each",
        "One sketch for all heads or one for each",
        "In this construction a sketch for each head is better than any one for all, at nearly the same rank a head.",
        "theorem 6",
        "Errors with one sketch for all heads and with one for each, beside what the theorem says.",
        ("S0-TH6",),
    ),
)
