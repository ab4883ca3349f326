"""Answers on the flow of ranks from small models that were trained for its claims.

The records are of order 3 of the queue: a T5 of text and a Chronos of series of the
same sizes, Chronos-Bolt by patch, width and heads, and by schedules of ranks. Seeds are
the units of the tests; six of them decide one part, so margins are averaged over ε and
over the architectures that a claim is about. Read :func:`embedded` first.
"""

from __future__ import annotations

import math

import numpy as np
import xarray as xr
from scipy.stats import kendalltau

from tsfm_lens.studies.experiments.records import record
from tsfm_lens.studies.papers.context import from_record
from tsfm_lens.studies.papers.measures.low_rank import RATIOS, TABLE_3
from tsfm_lens.studies.papers.measures.models import (
    ALMOST_LINEAR,
    CONSTANT_WITHIN,
    EPSILON,
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
PATCHES = {"patch 2": 2, "base": 4, "patch 8": 8, "patch 16": 16}
HEADS = {"heads 2": 2, "base": 4, "heads 8": 8}
TEXT, SERIES = "text", "series"


def _result(data: xr.Dataset, models: str) -> MeasuredValues:
    names = ("steps", "context", "rows")
    training = ", ".join(f"{name}: {data.attrs[name]}" for name in names)
    settings = {
        "model": models,
        "training": training,
        "seeds": data.sizes["seed"],
        "ε": "mean over " + ", ".join(map(str, EPSILON)),
        "intervals over": "seeds",
    }
    return MeasuredValues(settings=settings)


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


def _judge(result: MeasuredValues, claim: str, margins: xr.DataArray, of: str) -> None:
    """Add the verdict on a claim over seeds; other dimensions are averaged."""
    over = [dim for dim in margins.dims if dim != "seed"]
    result.judge(claim, margins.mean(over).values, of)


def _trend(values: xr.DataArray, dim: str) -> xr.DataArray:
    """Return Kendall's τ of values with their order along a dimension."""
    return xr.apply_ufunc(
        lambda row: kendalltau(range(len(row)), row).statistic,
        values,
        input_core_dims=[[dim]],
        vectorize=True,
    ).fillna(0)


def _add(result: MeasuredValues, text: str, values: xr.DataArray) -> None:
    """Add the mean over seeds of every arm or width, of (…, seed) values."""
    (by,) = (str(dim) for dim in values.dims if dim != "seed")
    label = "{}" if by == "arm" else f"{by} {{}}"
    result.means(f"{text}, {label}", by_name(values, by), POSITIVE)


@from_record("S0-F2")
def embedded() -> MeasuredValues:
    """Compare embedded series with embedded text, and both vocabularies."""
    data = record(PAIRS)
    result = _result(data, "a T5 and a Chronos of widths 64 and 96")
    # text of the models of text, series of the models of series
    spectrum = data["embedding_spectrum"].sel(family="own series")
    share = shares(spectrum)
    # all directions may be above every ε, so that the whole spectrum is compared
    height = spectrum.mean("mode")
    text, series = (_of_kind(height, kind) for kind in (TEXT, SERIES))
    _judge(
        result,
        "faster",
        text - series,
        "mean relative singular value of text, less that of series",
    )
    near = data["neighbour_ratio"]
    _judge(
        result,
        "structured",
        _of_kind(near, TEXT) - _of_kind(near, SERIES),
        "distance of neighbours over that of others, text less series",
    )
    _add(result, "mean relative singular value of embedded text or series", height)
    _add(result, "share of directions of embedded text or series", share)
    _add(result, "distance of neighbouring tokens over that of others", near)
    return result


@from_record("S0-F3")
def patches() -> MeasuredValues:
    """Compare embeddings of noise by patch, and angles of tokens with random ones."""
    data = record(BOLT)
    result = _result(data, "Chronos-Bolt of width 64")
    share = shares(data["embedding_spectrum"].sel(family="white noise"))
    of_patches = share.sel(arm=list(PATCHES))
    _judge(
        result,
        "by_patch",
        _trend(of_patches, "arm"),
        "Kendall's τ of the share of directions and patch",
    )
    angle = data["mean_angle"].sel(family="white noise")
    _judge(
        result,
        "smaller_space",
        data["random_angle"] - angle,
        "angle of random lines, less that of noise",
    )
    _add(result, "share of directions of noise", of_patches)
    _add(result, "mean angle of tokens of noise", angle)
    return result


@from_record("S0-F4")
def widths() -> MeasuredValues:
    """Compare ranks of W_Q by width."""
    data = record(PAIRS)
    result = _result(data, "a T5, a Chronos and a Chronos-Bolt of widths 64 and 96")
    share = shares(data["query_spectrum"]).mean("layer")
    bolt = shares(record(BOLT)["query_spectrum"]).mean("layer")
    of_series = _of_kind(share, SERIES)
    of_bolt = bolt.sel(arm=["base", "width 96"]).rename(arm="width")
    both = xr.concat([of_series, of_bolt.assign_coords(width=list(WIDTHS))], "model")
    narrow, wide = (both.sel(width=width, drop=True) for width in WIDTHS)
    _judge(
        result,
        "stays_low",
        narrow - wide,
        "share of the full rank at width 64, less that at 96",
    )
    small, large = (_of_kind(share, TEXT).sel(width=w, drop=True) for w in WIDTHS)
    power = 1 + _log(large / small) / math.log(WIDTHS[1] / WIDTHS[0])
    _judge(
        result, "linear", power - ALMOST_LINEAR, f"power of d, less {ALMOST_LINEAR:g}"
    )
    _add(result, "share of the full rank of W_Q", share)
    return result


@from_record("S0-F9")
def heads() -> MeasuredValues:
    """Compare ranks of W_Q and of its heads by number of heads, and angles of rows."""
    data = record(BOLT).sel(arm=list(HEADS))
    result = _result(data, "Chronos-Bolt of width 64")
    share = shares(data["query_spectrum"]).mean("layer")
    _judge(
        result,
        "more_heads",
        _trend(share, "arm"),
        "Kendall's τ of the share of the full rank and heads",
    )
    of_heads = data["head_spectrum"]
    size = of_heads.notnull().sum("head_mode")
    # heads that a model does not have are no ranks of 0
    rank = (shares(of_heads, "head_mode") * size).where(size > 0)
    rank = rank.mean(("layer", "head"))
    change = abs(_log(rank).diff("arm")).max("arm")
    _judge(
        result,
        "head_constant",
        math.log(CONSTANT_WITHIN) - change,
        f"log of {CONSTANT_WITHIN:g}, less that of the ratio of ranks of a head",
    )
    _judge(
        result,
        "blocks",
        data["angle_between"] - data["angle_within"],
        "angle of rows of different heads, less that within a head",
    )
    _add(result, "share of the full rank of W_Q", share)
    _add(result, "mean rank of W_Q of one head", rank)
    _add(result, "angle of rows within a head", data["angle_within"])
    _add(result, "angle of rows of different heads", data["angle_between"])
    return result


@from_record("S0-F10")
def weights() -> MeasuredValues:
    """Compare spectra of W_Q and of the MLP's first matrix, of series and of text."""
    data = record(PAIRS)
    result = _result(data, "a T5 and a Chronos of widths 64 and 96")
    queries, hidden = (shares(data[f"{name}_spectrum"]) for name in ("query", "mlp"))
    of_series = _of_kind(queries, SERIES)
    of = "share above ε"
    of_text = _of_kind(queries, TEXT)
    _judge(
        result,
        "weights_faster",
        of_text - of_series,
        f"{of} of text, less that of series",
    )
    trend = _trend(of_series, "layer")
    _judge(result, "deeper_weights", trend, f"Kendall's τ of the {of} and layer")
    of_mlp = _of_kind(hidden, SERIES)
    of = f"{of} of the MLP, less that of W_Q"
    _judge(result, "less_than_mlp", of_mlp - of_series, of)
    _add(result, "share of W_Q above ε", queries.mean("layer"))
    _add(result, "share of the MLP's first matrix above ε", hidden.mean("layer"))
    return result


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
            for number, rank in zip(numbers, ranks.values, strict=True):
                quantity = f"{level:g}-rank of {text}, vocabulary of rank {number}"
                result.add(quantity, rank)
        result.claims[claim] = judged_trends(parts, numbers, "run")
    return result


@from_record("S0-T2")
def truncated() -> MeasuredValues:
    """Read what truncation does to a T5 of text and a Chronos of series."""
    data = record(PAIRS)
    result = _result(data, "a T5 and a Chronos of widths 64 and 96")
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
    result = _result(data, "Chronos-Bolt of width 64, trained with the schedules")
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
