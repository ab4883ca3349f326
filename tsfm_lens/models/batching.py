"""Forecasts of a batch in parts, with the random draws of the whole batch.

Read :func:`forecast_in_parts` first: a checked :class:`ForecastRequest` is planned into
ranges of series, as many at once as memory allows, and a range that still runs out of
memory is halved. An item, all variates of one group or else a single series, is never
split. The memory that it needs is estimated from above, not measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch

from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models.adapter import (
    check_forecast_request,
    default_horizon,
    default_levels,
    predicted,
)
from tsfm_lens.models.architecture import Encoded, name_rows
from tsfm_lens.models.arguments import check_covariates, checked_request, is_count
from tsfm_lens.models.base import LensBase
from tsfm_lens.models.draws import (
    BlockDraws,
    Piece,
    block_seed,
    check_drawable,
    seeded,
)
from tsfm_lens.models.forecast import Forecast

BYTES_AT_ONCE = 2**30
"""Bytes that a part may need on a CPU, where larger parts run no faster.

On a GPU the part is as large as possible, until its memory runs out.
"""
LITTLE = 2**28
"""Bytes of recorded activations up to which the free memory is not looked up."""

# share of the free memory that results may take; the rest is left to other processes
_SHARE = 0.5
DRAWN = 64
"""Series whose sample paths are drawn together, in one native call."""

Range = tuple[int, int]
"""Start and stop of consecutive series of a batch that form whole items."""
T = TypeVar("T")


@dataclass(frozen=True)
class ForecastRequest:
    """Checked arguments of ``lens.forecast``."""

    lens: LensBase
    batch: SeriesBatch
    horizon: int
    levels: tuple[float, ...]
    num_samples: int | None = None
    seed: int = 0
    batch_size: int | None = None

    @property
    def draws(self) -> bool:
        """True if the model forecasts by sample paths."""
        return self.lens.adapter.readout != "quantile"

    @property
    def paths(self) -> int:
        """Number of rows of one series in the widest pass.

        A row is a sample path, or a quantile path if the horizon exceeds one pass.
        """
        adapter = self.lens.adapter
        if self.draws:
            return self.num_samples or adapter.samples
        return adapter.quantile_paths(self.horizon)

    @property
    def most(self) -> int | None:
        """Maximum number of series in a native call; None for no bound.

        There is a bound where the cost of a call grows faster than its rows.
        """
        rows = self.lens.adapter.rows_at_once
        if rows is None:
            return None
        return max(1, rows // self.paths)

    @cached_property
    def per_item(self) -> int:
        """Series of the largest item; all variates of one are forecast together."""
        return max(Counter(self.batch.groups).values())

    @cached_property
    def rows(self) -> int:
        """Number of rows of the whole batch, as hooks see them."""
        return len(name_rows(self.batch, self.lens.adapter.packed))

    @cached_property
    def blocks(self) -> list[Range]:
        """Ranges of series whose draws are one native call each.

        Without draws, the whole batch is one block.
        """
        # the size is a constant or the caller's, never what memory allows: the draws of
        # a series depend on its block, and must be the same on every machine
        if self.batch_size is not None:
            size = self.batch_size
        elif self.draws:
            size = DRAWN
        else:
            size = len(self.batch)
        return cut(self.batch, size)

    @property
    def joint(self) -> bool:
        """True if draws of a series depend on the series before it in the block."""
        # a token takes as many random numbers as the vocabulary has entries, so that a
        # part of a block can pass over those of other series. Other distributions draw
        # by rejection, which takes more numbers for some rows than for others.
        return self.draws and self.lens.adapter.readout != "token"

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Return the pieces of blocks that a range of series consists of.

        Pieces count items for multivariate models, and series for others.
        """
        unit = 1
        # a model that draws refuses to encode items of unequal numbers of variates
        if self.lens.adapter.multivariate:
            unit = self.per_item
        pieces = []
        for index, (first, last) in enumerate(self.blocks):
            low = max(first, start)
            high = min(last, stop)
            if low < high:
                pieces.append(
                    Piece(
                        seed=block_seed(self.seed, index),
                        count=(high - low) // unit,
                        first=(low - first) // unit,
                        size=(last - first) // unit,
                    )
                )
        return pieces

    @property
    def passes(self) -> int:
        """Number of passes of one series, summed over its paths.

        Each path has a pass per step for tokens, else as many as cover the horizon.
        """
        adapter = self.lens.adapter
        if adapter.rollout == "tokens":
            steps_per_pass = 1
        else:
            steps_per_pass = adapter.longest_pass
        return self.paths * -(-self.horizon // steps_per_pass)

    def drawing(self, pieces: Sequence[Piece], *, guarded: bool = False) -> BlockDraws:
        """Return the mode in which pieces draw what they would in their whole blocks.

        ``guarded`` is that of :class:`BlockDraws`.
        """
        adapter = self.lens.adapter
        # paths that are outermost in the batch axis each hold all series
        outer = 1
        if self.lens.wiring.sample_major:
            outer = self.paths
        return BlockDraws(
            pieces, axis=adapter.draw_axis or 0, outer=outer, guarded=guarded
        )

    def lengths(self) -> dict[str, int]:
        """Count the tokens that the largest item has in the widest pass, by stack."""
        adapter = self.lens.adapter
        group = np.asarray(self.batch.group_index)
        # an item is encoded with all its variates, and padded to the longest of them
        steps = np.array(self.batch.lengths) * np.bincount(group)[group]
        members = np.flatnonzero(group == group[np.argmax(steps)])
        item = self.batch.select(members.tolist())
        ahead = min(self.horizon, adapter.longest_pass)
        context = min(max(item.lengths), adapter.context_length)
        # the last pass of a rollout also reads the forecast so far, as further context
        growth = 1 + (self.horizon - ahead) / context
        encoded = adapter.encode(item, horizon=ahead)
        lengths = {
            stack: int(size * growth) for stack, size in count_tokens(encoded).items()
        }
        # a decoder reads the forecast, not the context
        if adapter.rollout == "tokens":
            lengths[self.lens.wiring.output_stack.name] = ahead
        return lengths

    def need(self, items: int) -> int:
        """Estimate from above the bytes that one item needs.

        The first estimate counts every time step as a token. If by it ``items`` items
        need more than ``BYTES_AT_ONCE`` together, a second one counts the true tokens.

        Returns:
            Bytes.
        """
        longest = min(max(self.batch.lengths), self.lens.adapter.context_length)
        # 8 more are for tokens that a model adds, such as an end of sequence
        tokens = (longest + self.horizon + 8) * self.per_item
        lengths = {stack.name: tokens for stack in self.lens.wiring.stacks}
        need = estimate_bytes(self.lens, lengths, self.paths, self.per_item)
        # the true number of tokens takes an encoding, which small batches are spared
        if need * items <= BYTES_AT_ONCE:
            return need
        return estimate_bytes(self.lens, self.lengths(), self.paths, self.per_item)


def check_request(
    lens: LensBase,
    series: Any,
    horizon: int | None = None,
    quantiles: Sequence[float] | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    batch_size: int | None = None,
) -> ForecastRequest:
    """Check the arguments of ``lens.forecast``; errors as there."""
    batch = series if isinstance(series, SeriesBatch) else as_series(series)
    adapter = lens.adapter
    check_covariates(adapter.architecture, adapter.covariates, batch)
    steps_ahead = default_horizon(lens.adapter, batch) if horizon is None else horizon
    requested = default_levels(lens.adapter) if quantiles is None else quantiles
    steps, levels = checked_request(steps_ahead, requested, num_samples, seed)
    check_forecast_request(lens.adapter, steps, num_samples)
    if batch_size is not None and not is_count(batch_size):
        raise InputError(
            f"batch_size {batch_size!r} is not a number of series; expected an integer"
            " of 1 or more"
        )
    return ForecastRequest(
        lens, batch, steps, levels, num_samples, int(seed), batch_size
    )


def cut(batch: SeriesBatch, max_series: int) -> list[Range]:
    """Cut a batch into ranges of at most ``max_series`` series.

    The variates of an item stay together.

    Returns:
        First position and position after the last, of each range.
    """
    if len(batch) <= max_series:
        return [(0, len(batch))]
    # the series of an item are adjacent in every batch, which SeriesBatch checks
    changes = np.flatnonzero(np.diff(batch.group_index)) + 1
    stops = [*changes.tolist(), len(batch)]
    ranges = []
    start = 0
    # a range ends where the next item would make it too long, and at the batch's end
    for stop, next_stop in zip(stops, [*stops[1:], None], strict=True):
        if next_stop is None or next_stop - start > max_series:
            ranges.append((start, stop))
            start = stop
    return ranges


def plan(
    request: ForecastRequest, batch_coupled: Sequence[str] = (), stored_bytes: int = 0
) -> list[Range]:
    """Plan the parts of a forecast.

    ``batch_coupled`` names the hooks that need the batch in one piece; ``stored_bytes``
    is the size of the activations that one item keeps.

    Returns:
        First position and position after the last, of each part.
    """
    if batch_coupled:
        return [(0, len(request.batch))]
    longest_block = max(stop - start for start, stop in request.blocks)
    items = -(-longest_block // request.per_item)
    # a joint block runs whole, whatever memory it needs
    if not request.joint:
        need = request.need(items) + stored_bytes
        device = request.lens.device
        items = fitting(need, items, device, costs_more_in_parts=request.draws)
    max_series = items * request.per_item
    if request.most is not None:
        # an item stays in one piece, even if it has more series than the bound
        max_series = min(max_series, max(request.most, request.per_item))
    ranges = []
    for start, stop in request.blocks:
        if stop - start == len(request.batch):
            block = request.batch
        else:
            block = request.batch.select(range(start, stop))
        n_parts = -(-len(block) // max_series)
        # parts of about equal size
        size = -(-len(block) // n_parts)
        ranges += [(start + first, start + last) for first, last in cut(block, size)]
    return ranges


def retry_halved(
    run: Callable[[int, int], T],
    batch: SeriesBatch,
    ranges: Iterable[Range],
    unsplittable_reason: str = "",
) -> list[T]:
    """Run ranges of a batch one after the other.

    A range that runs out of memory is run again as two halves. For a batch that cannot
    be split, ``unsplittable_reason`` is what the error says about it, else "".

    Returns:
        What ``run`` returned for each range, in order.

    Raises:
        InputError: memory runs out for one item, or for a batch that cannot be split.
    """
    results = []
    queue = list(ranges)
    while queue:
        start, stop = queue.pop(0)
        try:
            results.append(run(start, stop))
            continue
        # torch's allocator for the CPU raises a plain RuntimeError
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            halves = cut(batch.select(range(start, stop)), -(-(stop - start) // 2))
            if unsplittable_reason or len(halves) == 1:
                hint = unsplittable_reason or (
                    "shorten context or horizon, draw fewer paths or keep fewer"
                    " activations"
                )
                raise InputError(
                    f"{stop - start} series × {max(batch.lengths)} steps run out of"
                    f" memory; {hint}"
                ) from error
        # after the except clause, in which the traceback would keep the tensors of the
        # failed run. The halves come first, so that results stay in order.
        queue[:0] = [(start + first, start + last) for first, last in halves]
    return results


def explain_unsplittable(request: ForecastRequest, batch_coupled: Sequence[str]) -> str:
    """Explain how a forecast that must stay whole could run in parts.

    Returns:
        The text, "" if the forecast may be cut.
    """
    if batch_coupled:
        return by_row_hint(batch_coupled)
    if request.joint:
        return "give batch_size=…, which draws other paths"
    return ""


def by_row_hint(batch_coupled: Sequence[str]) -> str:
    """Explain how a batch that hooks keep whole could run in parts."""
    return (
        "mark what treats each row by itself with tsfm_lens.hooks.by_row (at"
        f" {batch_coupled[0]}), to run in parts"
    )


def forecast_part(
    request: ForecastRequest,
    start: int,
    stop: int,
    *,
    drawing: BlockDraws | None = None,
) -> Forecast:
    """Forecast some series of a batch by the library's own code.

    All hooks that are set act on it.

    Returns:
        The forecast of the part.
    """
    lens = request.lens
    adapter = lens.adapter
    is_full = stop - start == len(request.batch)
    batch = request.batch if is_full else request.batch.select(range(start, stop))
    longest = max(request.batch.lengths)
    same_length = max(batch.lengths) == longest
    # padding can change a library's numbers, so that a part is padded as the whole
    # batch would be
    padding = nullcontext() if same_length else adapter.pad_batch(longest)
    # for hooks that depend on rows: the index of the part's first row in the whole
    # batch, and how many rows that has; None if nothing is split
    location: tuple[int, int | None] = (0, None)
    if not is_full:
        # rows of a packed model are items
        first_row = len(set(request.batch.groups[:start])) if adapter.packed else start
        location = (first_row, request.rows)
    pieces = request.pieces(start, stop)
    # under the block's seed, a native call on one whole block draws the right numbers
    is_one_block = len(pieces) == 1 and pieces[0].is_full_block
    if drawing is None and request.draws and not is_one_block:
        drawing = request.drawing(pieces)
    seed = pieces[0].seed if drawing is None else drawing.seed
    rows = len(name_rows(batch, adapter.packed))
    # on a CPU torch refuses to draw from logits that give no probabilities; on a GPU
    # they are checked first, unless ``drawing`` checks them
    device = lens.device
    guarded = (
        device.type == "cpu"
        or adapter.readout != "token"
        or (drawing is not None and drawing.guarded)
    )
    with (
        seeded(seed, device),
        lens.running(rows, location),
        padding,
        lens.registry.attach(),
        drawing or nullcontext(),
        # last, so that it sees what other hooks make of the logits
        nullcontext() if guarded else guard_draws(lens),
    ):
        prediction = predicted(
            adapter, batch, request.horizon, request.levels, request.num_samples
        )
    # ``lens.running`` has counted one pass of each row
    lens.registry.state.forwards += rows * (request.passes - 1)
    return Forecast.of(
        prediction, request.levels, batch, {**lens.provenance(), "seed": request.seed}
    )


def guard_draws(lens: LensBase) -> AbstractContextManager[Any]:
    """Check the head's logits in each forward while a block runs.

    Returns:
        The handle of the torch hook, which a ``with`` statement takes off.
    """
    head = lens.adapter.model.get_submodule(lens.wiring.unembed.module)
    handle: AbstractContextManager[Any] = head.register_forward_hook(check_drawable)
    return handle


def forecast_in_parts(
    request: ForecastRequest, progress: Callable[[int, int], None] | None = None
) -> Forecast:
    """Forecast a batch in parts; errors as in ``lens.forecast``.

    ``progress`` is called with the number of series done and the number of all.

    Returns:
        The forecast of the whole batch.
    """

    def run(start: int, stop: int) -> Forecast:
        part = forecast_part(request, start, stop)
        if progress is not None:
            progress(stop, len(request.batch))
        return part

    with request.lens.registry.attach():
        batch_coupled = request.lens.registry.session.across_rows()
        ranges = plan(request, batch_coupled)
        unsplittable_reason = explain_unsplittable(request, batch_coupled)
        parts = retry_halved(run, request.batch, ranges, unsplittable_reason)
    return Forecast.joined(parts, request.batch)


def memory_limit(device: torch.device) -> int:
    """Return the bytes that results may take on a device: half of the free ones."""
    return int(_SHARE * free_bytes(device))


def free_bytes(device: torch.device) -> int:
    """Return the bytes that are free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    # imported here, since most forecasts never ask for the free memory
    import psutil  # type: ignore[import-untyped]

    return int(psutil.virtual_memory().available)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out.

    It may be that of a GPU, or of torch's allocator for the CPU.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # the words of CUDA, and of torch's allocator on Linux and on Windows
    phrases = ("out of memory", "can't allocate memory", "not enough memory")
    message = str(error)
    return isinstance(error, RuntimeError) and any(text in message for text in phrases)


def fitting(
    need: int, count: int, device: torch.device, *, costs_more_in_parts: bool = False
) -> int:
    """Return how many of ``count`` items run at once, at least one.

    Each needs ``need`` bytes. ``costs_more_in_parts`` says that a part costs as much as
    the whole, since it draws the random numbers of all; then a batch is split only
    where the free memory requires it.
    """
    # a GPU is faster with larger parts, and says when its memory runs out
    if device.type == "cuda" or need * count <= BYTES_AT_ONCE:
        return count
    limit = BYTES_AT_ONCE
    if costs_more_in_parts:
        limit = max(limit, memory_limit(device))
    return min(count, max(1, limit // need))


def count_tokens(encoded: Encoded) -> dict[str, int]:
    """Return the number of tokens of an item, by stack.

    Where items are packed, one sequence holds the tokens of all variates.
    """
    if encoded.packed:
        per_item = 1
    else:
        per_item = -(-len(encoded.batch) // encoded.n_items)
    return {stack: len(spans) * per_item for stack, spans in encoded.spans.items()}


def estimate_bytes(
    lens: LensBase, lengths: Mapping[str, int], paths: int = 1, variates: int = 1
) -> int:
    """Estimate from above the bytes that a run of one item holds at once.

    Counted are attention, stream, cache and output. ``lengths`` are numbers of tokens
    by stack, ``paths`` the rows of one series, ``variates`` the series of the item.

    Returns:
        Bytes.
    """
    wiring = lens.wiring
    # the constant factors guess from above how many copies live at once, here of the
    # logits
    n_floats = 6 * paths * variates * width_of_output(lens)
    # cross-attention also reads the tokens of another stack
    n_keys = sum(lengths.values())
    for stack in wiring.stacks:
        # the encoder runs once for all sample paths of a series
        rows = paths if stack is wiring.output_stack else 1
        tokens = lengths[stack.name]
        width = max(stack.d_model, stack.n_heads * stack.d_head)
        # attention scores, streams, and hidden layers of MLPs
        per_token = 3 * stack.n_heads * n_keys + 12 * width + 4 * stack.d_mlp
        # keys and values of every layer
        cache = 2 * stack.n_layers * width * n_keys
        n_floats += rows * (tokens * per_token + cache)
    # bytes of float32, in which most models run; half precision needs less
    return 4 * n_floats


def estimate_activation_bytes(
    lens: LensBase, names: Iterable[str], lengths: Mapping[str, int]
) -> dict[str, int]:
    """Estimate the bytes of one item's activations at some hook points, by name."""
    points = lens.registry.points
    wiring = lens.wiring
    output_width = width_of_output(lens)
    sizes = {}
    for name in names:
        stack = wiring.stack(points[name].stack)
        tokens = lengths[stack.name]
        if "cross" not in points[name].kind:
            keys = tokens
        else:
            keys = max(lengths.values())
        axes = {
            "batch": 1,
            "pos": tokens,
            "query": tokens,
            "key": keys,
            "head": stack.n_heads,
        }
        axes |= {"d_head": stack.d_head, "d_model": stack.d_model, "d_mlp": stack.d_mlp}
        # any other axis is one of the head's output, such as a vocabulary
        shape = [axes.get(axis, output_width) for axis in points[name].axes]
        sizes[name] = 4 * math.prod(shape)
    return sizes


def width_of_output(lens: LensBase) -> int:
    """Count the numbers that the head emits for a token."""
    unembed = lens.adapter.model.get_submodule(lens.wiring.unembed.module)
    return max(
        [len(weight) for weight in unembed.parameters() if weight.ndim], default=0
    )
