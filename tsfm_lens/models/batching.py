"""Forecasts of a batch in parts: as many series at once as the memory allows, with the draws of the whole batch.

A batch that needs no more than the limit runs as one native call, whose numbers are the library's to the last bit.
Where it needs more, the need of one item is measured, and the batch runs in parts of equal size. Parts are padded as
the whole batch is, so that they differ from it by rounding alone: the order of a matrix product's sums may depend on
its number of rows.

Sample paths are defined by blocks of at most ``DRAWN`` series, each one native call under a seed of its own, whatever
the memory: one call for any number of series would hold a distribution for every path of every series at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.block import Block, together
from tsfm_lens.models.adapter import default_horizon, default_levels, refuse_covariates
from tsfm_lens.models.architecture import Adapter, rows_of
from tsfm_lens.models.base import LensBase
from tsfm_lens.models.draws import BlockwiseDraws, Piece, block_seed
from tsfm_lens.models.forecast import Forecast, checked_request, is_count
from tsfm_lens.models.memory import (
    VARIABLE,
    OverLimit,
    free_bytes,
    in_words,
    is_given,
    limit_of,
    measured,
    out_of_memory,
)
from tsfm_lens.models.seeding import seeded

DRAWN = 64
"""Series whose sample paths are drawn together, in one native call."""

# bytes at a time beyond which a larger batch is no faster on a CPU; below them results do not depend on what is free
_COMFORTABLE = 2**30
# bytes below which the free memory is not looked up
LITTLE = 2**28
# needs of items: (shape) -> bytes
_NEEDS: WeakKeyDictionary[LensBase, dict[tuple[Any, ...], int]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Request:
    """Checked arguments of ``lens.forecast``."""

    lens: LensBase
    batch: SeriesBatch
    horizon: int
    levels: tuple[float, ...]
    num_samples: int | None = None
    seed: int = 0
    batch_size: int | None = None
    memory: int | str | None = None

    @property
    def draws(self) -> bool:
        """True if the model forecasts by sample paths."""
        return self.lens.adapter.readout != "quantile"

    @property
    def paths(self) -> int:
        """Rows that a series has in the widest pass of the forecast."""
        return paths_of(self.lens.adapter, self.horizon, self.num_samples)

    @property
    def context(self) -> int:
        """Context steps that the model reads."""
        return min(max(self.batch.lengths), self.lens.adapter.context_length)

    @property
    def items(self) -> int:
        """Items of the batch; all variates of one are forecast together."""
        return len(set(self.batch.groups))


@dataclass(frozen=True)
class Part:
    """Series that run in one native call.

    Attributes:
        start, stop: place in the batch.
        pieces: blocks whose draws they share in; a single whole one is drawn by the library itself.
    """

    start: int
    stop: int
    pieces: tuple[Piece, ...]


def request_of(
    lens: LensBase,
    series: Any,
    horizon: int | None = None,
    quantiles: Sequence[float] | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    memory: int | str | None = None,
) -> Request:
    """Check the arguments of ``lens.forecast``; errors as there."""
    batch = as_series(series)
    refuse_covariates(lens.adapter, batch)
    steps_ahead = default_horizon(lens.adapter, batch) if horizon is None else horizon
    requested = default_levels(lens.adapter) if quantiles is None else quantiles
    steps, levels = checked_request(steps_ahead, requested, num_samples, seed)
    if batch_size is not None and not is_count(batch_size):
        raise InputError(f"batch_size {batch_size!r} is not a number of series; expected an integer of 1 or more")
    return Request(lens, batch, steps, levels, num_samples, int(seed), batch_size, memory)


def paths_of(adapter: Adapter, horizon: int, num_samples: int | None) -> int:
    """Count the rows of a series in the widest pass of a rollout: sample paths, or quantile paths beyond one pass."""
    if adapter.readout != "quantile":
        settings = getattr(adapter, "settings", None)
        count: int = getattr(adapter, "samples", 0) or getattr(settings, "num_samples", 20)
        return num_samples or count
    return len(getattr(adapter, "levels", ())) or 1 if horizon > adapter.longest_pass else 1


def cut(batch: SeriesBatch, most: int) -> list[tuple[int, int]]:
    """Cut a batch into ranges of at most so many series, (start, stop) each; the variates of an item stay together."""
    group = batch.group_index
    starts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(batch)]
    ranges, begin = [], 0
    for here, next_start in zip(starts[1:], [*starts[2:], None], strict=True):
        if next_start is None or next_start - begin > most:
            ranges.append((begin, here))
            begin = here
    return ranges


def blocks_of(request: Request) -> list[tuple[int, int]]:
    """Return the ranges of series whose draws are one native call each; the whole batch where nothing is drawn."""
    size = request.batch_size if request.batch_size is not None else DRAWN if request.draws else len(request.batch)
    return cut(request.batch, size)


def plan(request: Request, whole: Sequence[str] = ()) -> list[Part]:
    """Plan the parts of a forecast.

    Args:
        request: the forecast.
        whole: names of hook points for whose sake the batch must not be cut, if any.

    Raises:
        InputError: one item, or a batch or block that must not be cut, needs more than the limit.
    """
    blocks = blocks_of(request)
    at_once = len(request.batch) if whole else max(stop - start for start, stop in blocks)
    most = getattr(request.lens.adapter, "rows_at_once", None)
    if most is not None and not whole:
        # an item stays in one piece, however many series it has
        at_once = min(at_once, max(most, -(-len(request.batch) // request.items)))
    guess = int(generous(request) * at_once * request.items / len(request.batch))
    # a small forecast does not ask for the free memory
    fit = at_once if guess <= LITTLE and not is_given(request.memory) else _fit(request, whole, at_once, guess)
    return parts_of(request, blocks, fit, whole=bool(whole))


def _fit(request: Request, whole: Sequence[str], at_once: int, guess: int) -> int:
    """Count the series that fit in the memory at once; errors as in :func:`plan`."""
    limit = limit_of(request.memory, request.lens.device)
    comfortable = limit if is_given(request.memory) or request.draws else min(limit, comfort(request.lens.device))
    if guess <= comfortable:
        return at_once
    need, series_per_item = need_of_item(request, limit), len(request.batch) / request.items
    fit = int(max(comfortable // need, min(1, limit // need)) * series_per_item)
    is_joint = request.draws and request.lens.adapter.readout != "token"
    if fit < at_once and (whole or fit < series_per_item or is_joint):
        raise InputError(_does_not_fit(request, whole, int(need * at_once / series_per_item), limit, fit))
    return min(fit, at_once)


def parts_of(request: Request, blocks: Sequence[tuple[int, int]], fit: int, *, whole: bool) -> list[Part]:
    """Part a batch so that at most ``fit`` series run at once; one part if it is to stay whole."""
    seeds = [block_seed(request.seed, index) for index in range(len(blocks))]
    pieces = [Piece(seed, stop - start, 0, stop - start) for seed, (start, stop) in zip(seeds, blocks, strict=True)]
    if whole:
        return [Part(0, len(request.batch), tuple(pieces if request.draws else pieces[:1]))]
    parts = []
    for (start, stop), piece in zip(blocks, pieces, strict=True):
        series_of_block = request.batch if len(blocks) == 1 else request.batch.select(range(start, stop))
        number = -(-len(series_of_block) // fit)
        for first, last in cut(series_of_block, fit if number == 1 else min(fit, -(-len(series_of_block) // number))):
            share = Piece(piece.seed, last - first, first, piece.size)
            parts.append(Part(start + first, start + last, (share,)))
    return parts


def _does_not_fit(request: Request, whole: Sequence[str], need: int, limit: int, fit: int) -> str:
    series = f"{len(request.batch)} series × {request.context} steps, {request.paths} paths each"
    sizes = f"{in_words(need)}, {in_words(free_bytes(request.lens.device))} is free, memory allows {in_words(limit)}"
    how = f"raise memory=… or {VARIABLE}, "
    if whole:
        return (
            f"this forecast ({series}) needs {sizes}, and it cannot run in parts, since hooks on {whole[0]} may look "
            f"at several series at once; {how}give at most {max(fit, 1)} series at once, or mark functions that treat "
            "each row by itself with tsfm_lens.hooks.by_row"
        )
    if fit < 1:
        return (
            f"one item of this forecast ({series}) needs {sizes}; {how}shorten context or horizon, or draw fewer paths"
        )
    return (
        f"the sample paths of {request.lens.wiring.architecture} are drawn for a block of series at once, and a block "
        f"of this forecast ({series}) needs {sizes}; {how}or give batch_size={fit}, which draws other paths"
    )


def comfort(device: torch.device) -> int:
    """Return the bytes beyond which a larger part brings nothing; a GPU takes all it can get."""
    return 2**63 if device.type == "cuda" else _COMFORTABLE


def generous(request: Request) -> int:
    """Estimate from above the bytes that one item of a forecast needs."""
    has_variates = len(request.batch) > request.items
    variates = -(-len(request.batch) // request.items) if has_variates else 1
    return generous_run(request.lens, (request.context + request.horizon + 8) * variates, request.paths, variates)


def generous_run(lens: LensBase, tokens: int, paths: int, variates: int) -> int:
    """Estimate from above the bytes of a run of one item: every step of every variate a token, nothing shared."""
    wiring = lens.wiring
    numbers = 0
    for stack in wiring.stacks:
        rows = paths if stack is wiring.output_stack else 1
        width = max(stack.d_model, stack.n_heads * stack.d_head)
        line = (2 * stack.n_layers + 12) * width + 4 * stack.d_mlp
        numbers += rows * tokens * (3 * stack.n_heads * tokens + line)
    return 4 * (numbers + 6 * paths * variates * width_of_output(lens))


def width_of_output(lens: LensBase) -> int:
    """Count the numbers that the head emits for a token."""
    unembed = lens.adapter.model.get_submodule(lens.wiring.unembed.module)
    return max((len(weight) for weight in unembed.parameters() if weight.ndim), default=0)


def need_of_item(request: Request, limit: int) -> int:
    """Measure the bytes that the longest item of a batch needs, once for each shape.

    Raises:
        InputError: more than the limit.
    """
    lens, batch = request.lens, request.batch
    variates = -(-len(batch) // request.items)
    sizes_here = (request.context, request.horizon, request.paths, variates)
    fixed = (next(lens.parameters()).dtype, lens.device)
    needs = _NEEDS.setdefault(lens, {})
    wider = [
        need
        for (sizes, kind), need in needs.items()
        if kind == fixed and sizes[3] == variates and all(a >= b for a, b in zip(sizes, sizes_here, strict=True))
    ]
    if wider:
        return min(wider)
    with lens.registry.observed(lambda _point, _value: None):
        need = measured_or_refused(request, partial(item_forecast, request), limit)
    needs[sizes_here, fixed] = need
    return need


def item_forecast(request: Request) -> None:
    """Run the native forecast of the longest item alone."""
    batch, lens = request.batch, request.lens
    first = int(np.argmax(batch.lengths))
    item = batch.select([row for row, group in enumerate(batch.groups) if group == batch.groups[first]])
    with _under_seed(request, item):
        lens.adapter.predict(item, request.horizon, request.levels, request.num_samples)


def measured_or_refused(request: Request, work: Any, limit: int) -> int:
    """Measure the most bytes that a run of one item holds.

    Raises:
        InputError: more than the limit.
    """
    try:
        _, need = measured(work, request.lens.device, limit)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        if not isinstance(error, OverLimit):
            limit = min(limit, free_bytes(request.lens.device))
        raise InputError(_does_not_fit(request, (), limit, limit, 0).replace("needs ", "needs more than ", 1)) from None
    return max(need, 1)


def _under_seed(
    request: Request, batch: SeriesBatch, seed: int | None = None, place: tuple[int, int | None] = (0, None)
) -> Block[None]:
    """Begin one run of the lens's own under a seed, the request's if None; the random state is left as it was."""
    lens = request.lens
    rows = len(rows_of(batch, lens.adapter.packed))
    return together(None, seeded(request.seed if seed is None else seed, lens.device), lens.running(rows, place))


def forecast_part(request: Request, part: Part) -> Forecast:
    """Run the library's own forecast of some series of a batch, with all hooks that are set."""
    lens, adapter = request.lens, request.lens.adapter
    whole = part.stop - part.start == len(request.batch)
    batch = request.batch if whole else request.batch.select(range(part.start, part.stop))
    alike = max(batch.lengths) == max(request.batch.lengths)
    padding = nullcontext() if alike else adapter.padded_to(max(request.batch.lengths))  # type: ignore[attr-defined]
    with _under_seed(request, batch, part.pieces[0].seed, _place(request, part)), padding, lens.registry.attach():
        if len(part.pieces) == 1 and part.pieces[0].whole:
            prediction = adapter.predict(batch, request.horizon, request.levels, request.num_samples)
        else:
            with _draws_of(request, part) if request.draws else nullcontext():
                prediction = adapter.predict(batch, request.horizon, request.levels, request.num_samples)
    return Forecast(
        prediction.quantiles.permute(0, 2, 1).numpy().astype(float),
        request.levels,
        prediction.mean.numpy().astype(float),
        None if prediction.samples is None else prediction.samples.numpy().astype(float),
        batch,
        {**lens.provenance(), "seed": request.seed},
        prediction.distribution,
    )


def _place(request: Request, part: Part) -> tuple[int, int | None]:
    """Return the place of a part's rows in the batch, and the number of all rows there."""
    if part.stop - part.start == len(request.batch):
        return 0, None
    packed = request.lens.adapter.packed
    before = rows_of(request.batch.select(range(part.start)), packed) if part.start else ()
    return len(before), len(rows_of(request.batch, packed))


def _draws_of(request: Request, part: Part) -> BlockwiseDraws:
    """Return the mode under which a part draws its share of the blocks that it belongs to."""
    adapter = request.lens.adapter
    pieces = list(part.pieces)
    if adapter.multivariate:
        # rows are items, not series
        series_per_item = len(request.batch) // request.items
        pieces = [
            Piece(p.seed, p.count // series_per_item, p.first // series_per_item, p.size // series_per_item)
            for p in pieces
        ]
    axis = getattr(adapter, "draw_axis", None) or 0
    return BlockwiseDraws(pieces, axis=axis, outer=request.paths if request.lens.wiring.sample_major else 1)
