"""Answers on the flow of ranks from small models that were trained for its claims.

The records are of order 3 of the queue: a T5 of text and a Chronos of series of the
same sizes, Chronos-Bolt by patch, width and heads, and by schedules of ranks. Seeds are
the units of the tests; six of them decide one part, so margins are averaged over ε and
over the architectures that a claim is about. Read :func:`embedded` first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import xarray as xr

from tsfm_lens.studies.experiments.records import record
from tsfm_lens.studies.papers.context import from_record
from tsfm_lens.studies.papers.measures.low_rank import RATIOS, TABLE_3
from tsfm_lens.studies.papers.measures.models import (
    ALMOST_LINEAR,
    CONSTANT_WITHIN,
    EPSILON,
    trend,
)
from tsfm_lens.studies.papers.values import MeasuredValues, by_name
from tsfm_lens.studies.papers.verdicts import (
    POSITIVE,
    ClaimPart,
    judged_trends,
)

PAIRS = "text_and_series"
BOLT = "bolt_sizes"
WIDTHS = (64, 96)
PATCHES = ["patch 2", "base", "patch 8", "patch 16"]
HEADS = ["heads 2", "base", "heads 8"]
PAIR_MODELS = "a T5 and a Chronos of widths 64 and 96"
BOLT_MODEL = "Chronos-Bolt of width 64"
TEXT, SERIES = "text", "series"


def _answer(
    data: xr.Dataset,
    models: str,
    claims: Mapping[str, tuple[str, xr.DataArray]],
    means: Mapping[str, xr.DataArray],
) -> MeasuredValues:
    """Answer an item from a record of these models.

    Claims are given by what their margins are, and the margins (…, seed), which are
    averaged over all but seeds; means are of every arm or width of values (…, seed).
    """
    names = ("steps", "context", "rows")
    settings = {
        "model": models,
        "training": ", ".join(f"{name}: {data.attrs[name]}" for name in names),
        "seeds": data.sizes["seed"],
        "ε": "mean over " + ", ".join(map(str, EPSILON)),
        "intervals over": "seeds",
    }
    result = MeasuredValues(settings=settings)
    for claim, (of, margins) in claims.items():
        over = [dim for dim in margins.dims if dim != "seed"]
        result.judge(claim, margins.mean(over).values, of)
    for text, values in means.items():
        (by,) = (str(dim) for dim in values.dims if dim != "seed")
        label = "{}" if by == "arm" else f"{by} {{}}"
        result.means(f"{text}, {label}", by_name(values, by), POSITIVE)
    return result


def shares(spectrum: xr.DataArray, mode: str = "mode") -> xr.DataArray:
    """Return the share of relative singular values above ε, averaged over ε."""
    levels = xr.DataArray(np.array(EPSILON), dims="epsilon")
    above = (spectrum > levels).sum(mode) / spectrum.notnull().sum(mode)
    return above.mean("epsilon", skipna=False)


def _of_kind(values: xr.DataArray, kind: str) -> xr.DataArray:
    """Select models of text or of series, over (width, seed, …)."""
    arms = [f"{kind}, d = {width}" for width in WIDTHS]
    return values.sel(arm=arms).rename(arm="width").assign_coords(width=list(WIDTHS))


def _log(values: xr.DataArray) -> xr.DataArray:
    logs: xr.DataArray = xr.apply_ufunc(np.log, values)
    return logs


@from_record("S0-F2")
def embedded() -> MeasuredValues:
    """Compare embedded series with embedded text, and both vocabularies."""
    data = record(PAIRS)
    # text of the models of text, series of the models of series
    spectrum = data["embedding_spectrum"].sel(family="own series")
    # all directions may be above every ε, so that the whole spectrum is compared
    height = spectrum.mean("mode")
    near = data["neighbour_ratio"]
    return _answer(
        data,
        PAIR_MODELS,
        {
            "faster": (
                "mean relative singular value of text, less that of series",
                _of_kind(height, TEXT) - _of_kind(height, SERIES),
            ),
            "structured": (
                "distance of neighbours over that of others, text less series",
                _of_kind(near, TEXT) - _of_kind(near, SERIES),
            ),
        },
        {
            "mean relative singular value of embedded text or series": height,
            "share of directions of embedded text or series": shares(spectrum),
            "distance of neighbouring tokens over that of others": near,
        },
    )


@from_record("S0-F3")
def patches() -> MeasuredValues:
    """Compare embeddings of noise by patch, and angles of tokens with random ones."""
    data = record(BOLT)
    of_noise = data.sel(family="white noise")
    of_patches = shares(of_noise["embedding_spectrum"]).sel(arm=PATCHES)
    angle = of_noise["mean_angle"]
    return _answer(
        data,
        BOLT_MODEL,
        {
            "by_patch": (
                "Kendall's τ of the share of directions and patch",
                trend(of_patches, "arm"),
            ),
            "smaller_space": (
                "angle of random lines, less that of noise",
                data["random_angle"] - angle,
            ),
        },
        {
            "share of directions of noise": of_patches,
            "mean angle of tokens of noise": angle,
        },
    )


@from_record("S0-F4")
def widths() -> MeasuredValues:
    """Compare ranks of W_Q by width."""
    data = record(PAIRS)
    share = shares(data["query_spectrum"]).mean("layer")
    bolt = shares(record(BOLT)["query_spectrum"]).mean("layer")
    of_bolt = bolt.sel(arm=["base", "width 96"]).rename(arm="width")
    both = xr.concat(
        [_of_kind(share, SERIES), of_bolt.assign_coords(width=list(WIDTHS))], "model"
    )
    small, large = (_of_kind(share, TEXT).sel(width=w, drop=True) for w in WIDTHS)
    power = 1 + _log(large / small) / math.log(WIDTHS[1] / WIDTHS[0])
    return _answer(
        data,
        "a T5, a Chronos and a Chronos-Bolt of widths 64 and 96",
        {
            "stays_low": (
                "share of the full rank at width 64, less that at 96",
                -both.diff("width"),
            ),
            "linear": (f"power of d, less {ALMOST_LINEAR:g}", power - ALMOST_LINEAR),
        },
        {"share of the full rank of W_Q": share},
    )


@from_record("S0-F9")
def heads() -> MeasuredValues:
    """Compare ranks of W_Q and of its heads by number of heads, and angles of rows."""
    data = record(BOLT).sel(arm=HEADS)
    share = shares(data["query_spectrum"]).mean("layer")
    of_heads = data["head_spectrum"]
    size = of_heads.notnull().sum("head_mode")
    # heads that a model does not have are no ranks of 0
    rank = (shares(of_heads, "head_mode") * size).where(size > 0)
    rank = rank.mean(("layer", "head"))
    change = abs(_log(rank).diff("arm")).max("arm")
    within, between = data["angle_within"], data["angle_between"]
    return _answer(
        data,
        BOLT_MODEL,
        {
            "more_heads": (
                "Kendall's τ of the share of the full rank and heads",
                trend(share, "arm"),
            ),
            "head_constant": (
                f"log of {CONSTANT_WITHIN:g}, less that of the ratio of ranks of a"
                " head",
                math.log(CONSTANT_WITHIN) - change,
            ),
            "blocks": (
                "angle of rows of different heads, less that within a head",
                between - within,
            ),
        },
        {
            "share of the full rank of W_Q": share,
            "mean rank of W_Q of one head": rank,
            "angle of rows within a head": within,
            "angle of rows of different heads": between,
        },
    )


@from_record("S0-F10")
def weights() -> MeasuredValues:
    """Compare spectra of W_Q and of the MLP's first matrix, of series and of text."""
    data = record(PAIRS)
    queries, hidden = (shares(data[f"{name}_spectrum"]) for name in ("query", "mlp"))
    of_series = _of_kind(queries, SERIES)
    of = "share above ε"
    return _answer(
        data,
        PAIR_MODELS,
        {
            "weights_faster": (
                f"{of} of text, less that of series",
                _of_kind(queries, TEXT) - of_series,
            ),
            "deeper_weights": (
                f"Kendall's τ of the {of} and layer",
                trend(of_series, "layer"),
            ),
            "less_than_mlp": (
                f"{of} of the MLP, less that of W_Q",
                _of_kind(hidden, SERIES) - of_series,
            ),
        },
        {
            "share of W_Q above ε": queries.mean("layer"),
            "share of the MLP's first matrix above ε": hidden.mean("layer"),
        },
    )


@from_record("S0-F4C")
def vocabularies() -> MeasuredValues:
    """Compare ranks of W_Q, and of what training added, by the vocabulary's rank."""
    data = record("vocabulary_sizes")
    numbers = data["vocabulary"].values.tolist()
    result = MeasuredValues(
        settings={
            "d": data.attrs["width"],
            "ranks of the vocabulary": numbers,
            "seeds": f"{data.sizes['seed']}, averaged",
            "intervals over": "vocabularies",
        }
    )
    of = "rank correlation of ε-rank and rank(Ξ)"
    for claim, name, text in (
        ("increases", "query_spectrum", "W_Q"),
        ("the same of what training added to W_Q", "moved_spectrum", "its change"),
    ):
        parts = []
        for level in EPSILON:
            ranks = (data[name] > level).sum("mode").mean(("seed", "layer"))
            parts.append(ClaimPart("", ranks.values, of, level))
            quantity = f"{level:g}-rank of {text}, vocabulary of rank {{}}"
            result.add_each(quantity, dict(zip(numbers, ranks.values, strict=True)))
        result.claims[claim] = judged_trends(parts, numbers, "run")
    return result


@from_record("S0-T2")
def truncated() -> MeasuredValues:
    """Read what truncation does to a T5 of text and a Chronos of series."""
    data = record(PAIRS)
    result = _answer(data, PAIR_MODELS, {}, {})
    loss = data["loss"] / data["loss"].sel(ratio=1.0)
    for ratio in RATIOS:
        row = f"ratio {ratio:g}"
        for text, values, kind in (
            ("log-perplexity of T5", loss, TEXT),
            ("overlap of the ten likeliest tokens of T5", data["overlap"], TEXT),
            ("overlap of the ten likeliest tokens", data["overlap"], SERIES),
        ):
            of_ratio = _of_kind(values, kind).sel(ratio=ratio).mean("width")
            result.mean(f"{text}, {row}", of_ratio.values, bounds=POSITIVE)
    return result


@from_record("S0-T3")
def schedules() -> MeasuredValues:
    """Read scores of Chronos-Bolt trained with schedules of ranks."""
    data = record("bolt_schedules")
    result = _answer(data, f"{BOLT_MODEL}, trained with the schedules", {}, {})
    dense = data.sel(arm="dense")
    for rank, growth in TABLE_3:
        one = data.sel(arm=f"1, growth {growth:g}")
        row = f"schedule ({rank:g}, {growth:g})"
        for name in ("wql", "mase"):
            rise = np.exp(_log(one[name] / dense[name]).mean("item").values)
            result.mean(f"zero-shot {name.upper()}, {row}", rise)
        space = one["all_numbers"] / dense["all_numbers"]
        result.add(f"space, {row}", space.mean())
    return result
