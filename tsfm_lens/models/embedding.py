"""Embeddings of series: the vector of every token, and the steps that it covers.

Read :func:`embed_batch` first; :meth:`tsfm_lens.models.Lens.embed` makes a frame of
what it returns. :func:`embedding_stack` and :func:`embedding_point` say where in a
model the vectors are taken. Files larger than memory are embedded by
:mod:`tsfm_lens.sweep.embeddings`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch

from tsfm_lens.core.axes import EMBEDDING
from tsfm_lens.core.choices import check_pool
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Stack, Wiring
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.base import LensBase
from tsfm_lens.models.recording import Capture
from tsfm_lens.models.unread import unread_notes

FORECAST = "FORECAST"
"""Special of a token that covers steps after a series, in a stack that reads it."""


def _lasts(firsts: np.ndarray, count: int) -> np.ndarray:
    """Return the index of the last vector of each series, of so many vectors."""
    lasts: np.ndarray = np.append(firsts[1:], count) - 1
    return lasts


def _mean(vectors: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    counts = _lasts(firsts, len(vectors)) + 1 - firsts
    # sums of many tokens in single precision would lose digits
    sums = np.add.reduceat(vectors, firsts, axis=0, dtype=np.float64)
    means: np.ndarray = (sums / counts[:, None]).astype(np.float32)
    return means


def _max(vectors: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    largest: np.ndarray = np.maximum.reduceat(vectors, firsts, axis=0)
    return largest


def _first(vectors: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    chosen: np.ndarray = vectors[firsts]
    return chosen


def _last(vectors: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    chosen: np.ndarray = vectors[_lasts(firsts, len(vectors))]
    return chosen


_POOLING: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "mean": _mean,
    "max": _max,
    "first": _first,
    "last": _last,
}
"""Ways to make one vector of a series, by name.

Each is a function of the vectors of all series, (token, d_model), and of the index of
the first vector of each series.
"""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Vectors of a batch of series, each with its place in time.

    Attributes:
        labels: columns (vector,) by name: id, group and variate of several variates,
            token, start, end, special; of pooled vectors no token and no special.
        vectors: (vector, d_model), float32.
        notes: what the model does not read of the series, and how time is given.
    """

    labels: dict[str, np.ndarray]
    vectors: np.ndarray
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return a frame with a row for each vector, in the column ``vector``."""
        # the arrays of the column are views of one array
        return pd.DataFrame({**self.labels, "vector": list(self.vectors)})


def embedding_stack(wiring: Wiring, name: str | None = None) -> Stack:
    """Return the stack that series are embedded in.

    By default it is the encoder, the last one where it has several levels, since that
    one has read the whole series; a model without an encoder has a single stack.

    Raises:
        UnknownNameError: the model has no stack of this name.
    """
    if name is None:
        encoders = [stack for stack in wiring.stacks if stack.name.startswith("encod")]
        if encoders:
            return encoders[-1]
    return wiring.stack(name)


def embedding_point(stack: Stack, layer: int | None = None) -> str:
    """Return the hook point of the stream after a layer of a stack.

    Args:
        stack: of the model.
        layer: from 0 on; -1 for the stream before the first layer. None for what leaves
            the stack, after its last norm where it has one.

    Raises:
        InputError: the layer is no integer, or the stack has no such layer.
    """
    last = stack.n_layers - 1
    if layer is None:
        if not stack.ln_final:
            return f"{stack.prefix}.{last}.hook_resid_post"
        return ".".join(filter(None, (stack.name, "ln_final.hook_normalized")))
    is_integer = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
    if not is_integer or not EMBEDDING <= layer <= last:
        nearest = ""
        if is_integer:
            nearest = f"; the nearest is {min(max(layer, EMBEDDING), last)}"
        stack_name = f" of stack {stack.name!r}" if stack.name else ""
        raise InputError(
            f"layer {layer!r}{stack_name}, expected an integer from {EMBEDDING} (the"
            f" embedding) to {last}, or None for what leaves the stack{nearest}"
        )
    if layer == EMBEDDING:
        return f"{stack.prefix}.0.hook_resid_pre"
    return f"{stack.prefix}.{layer}.hook_resid_post"


def embed_batch(
    lens: LensBase,
    batch: SeriesBatch,
    layer: int | None = None,
    stack: str | None = None,
    pool: str | None = None,
) -> Embeddings:
    """Embed the series of a batch; arguments and errors as ``lens.embed``.

    The model runs up to the layer, with all hooks that are set.

    Returns:
        Labels, vectors and notes of every token, or of every series if pooled.
    """
    check_pool(pool)
    chosen = embedding_stack(lens.wiring, stack)
    point = embedding_point(chosen, layer)
    # models whose input has tokens for the forecast get one patch of them, as the
    # libraries' own embeddings do
    encoded = lens.encode(batch, horizon=1)
    capture = Capture(lens, batch, [], stop=point)
    with torch.no_grad():
        # numpy has no half precision of 8 exponent bits
        stream, _ = capture.forward(encoded, lambda value, _part: value.float().cpu())
    is_visible = encoded.shown(chosen.name)
    rows, tokens = is_visible.numpy().nonzero()
    vectors = stream[is_visible].numpy()
    spans = encoded.spans[chosen.name]
    series = _series_of_rows(encoded, spans, rows, tokens)
    # the tokens of variates that share a sequence are mixed in it
    if encoded.packed:
        order = np.lexsort((tokens, series))
        series, tokens, vectors = series[order], tokens[order], vectors[order]
    special = _special_names(spans)[tokens]
    lengths = np.array(batch.lengths)[series]
    # spans count from the forecast start; the first patch may begin in the padding
    start = np.maximum(np.array(spans.start)[tokens] + lengths, 0)
    end = np.maximum(np.array(spans.stop)[tokens] + lengths, 0)
    # from the first of the series, which are in order: the position in the native input
    # would depend on the padding
    numbers = np.arange(len(series)) - np.searchsorted(series, series)
    places = {"token": numbers.astype(np.int32), "special": special}
    if pool is not None:
        is_pooled = special == ""
        series, firsts = np.unique(series[is_pooled], return_index=True)
        _check_pooled(batch, series, chosen)
        vectors = _POOLING[pool](vectors[is_pooled], firsts)
        start, end = _pooled_bounds(pool, start[is_pooled], end[is_pooled], firsts)
        places = {}
    start, end, notes = _in_time(batch, series, start, end)
    labels = _series_labels(batch, series) | places | {"start": start, "end": end}
    names = [name for name in _ORDER if name in labels]
    notes = [*unread_notes(lens.adapter, batch), *notes]
    return Embeddings({name: labels[name] for name in names}, vectors, tuple(notes))


_ORDER = ("id", "group", "variate", "role", "token", "start", "end", "special")


def _series_of_rows(
    encoded: Encoded, spans: TokenSpans, rows: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """Return the series in the batch of each token, (token,).

    ``rows`` and ``tokens`` are its row and its position in the native input.
    """
    if not encoded.packed:
        return rows
    members = np.array(list(encoded.batch.rows_by_group().values()))
    series: np.ndarray = members[rows, np.array(spans.variate)[tokens]]
    return series


def _special_names(spans: TokenSpans) -> np.ndarray:
    """Return the special of each token, with :data:`FORECAST` beside those of spans."""
    special = np.array(spans.special, dtype=object)
    is_plain = special == ""
    reads_series = bool((is_plain & (np.array(spans.stop) <= 0)).any())
    # a decoder's tokens cover nothing but the forecast, and are its series
    if reads_series:
        special[is_plain & (np.array(spans.start) >= 0)] = FORECAST
    return special


def _check_pooled(batch: SeriesBatch, series: np.ndarray, stack: Stack) -> None:
    """Refuse to pool series of which no token is left."""
    if len(series) < len(batch):
        missing = sorted(set(range(len(batch))) - set(series.tolist()))
        raise InputError(
            f"series {batch.ids[missing[0]]!r} has only special tokens in stack"
            f" {stack.name!r}, and none is left to pool; leave pool out, and choose"
            " among the tokens by the column 'special'"
        )


def _pooled_bounds(
    pool: str, start: np.ndarray, end: np.ndarray, firsts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps that pooled vectors cover."""
    lasts = _lasts(firsts, len(start))
    if pool == "first":
        return start[firsts], end[firsts]
    if pool == "last":
        return start[lasts], end[lasts]
    return start[firsts], end[lasts]


def _series_labels(batch: SeriesBatch, series: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns that name the series of each vector."""
    columns: dict[str, tuple[str, ...]] = {"id": batch.ids}
    if batch.multivariate:
        columns |= {"group": batch.groups, "variate": batch.variates}
    if batch.has_covariates:
        columns["role"] = batch.roles
    return {
        name: np.array(values, dtype=object)[series] for name, values in columns.items()
    }


def _in_time(
    batch: SeriesBatch, series: np.ndarray, start: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return bounds as times, where all series have them; a note where only some do.

    ``series`` is the series of each vector, in ascending order.
    """
    has_time = [
        first is not None and freq is not None
        for first, freq in zip(batch.starts, batch.freqs, strict=True)
    ]
    if not all(has_time):
        notes = []
        if any(has_time):
            name = batch.ids[has_time.index(False)]
            notes.append(
                f"start and end count steps, since {name!r} has no timestamps or no"
                " frequency"
            )
        return start, end, notes
    times: dict[str, Any] = {
        name: np.empty(len(series), dtype="datetime64[ns]") for name in ("start", "end")
    }
    bounds = np.searchsorted(series, np.arange(len(batch) + 1))
    for index, (first, stop) in enumerate(pairwise(bounds)):
        members = slice(first, stop)
        if first == stop:
            continue
        # the end of the last token is the time of the step after it
        ahead = 1 + max(0, int(end[members].max()) - batch.lengths[index])
        stamps = batch.timestamps(index, ahead)
        assert stamps is not None
        times["start"][members] = stamps.values[start[members]]
        times["end"][members] = stamps.values[end[members]]
    return times["start"], times["end"], []
