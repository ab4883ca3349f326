"""Forecast many variants by the library's own code, sharing what they have in common.

Read :func:`forecast_variants` first. It chooses between three ways with the same
result: one pass that replays what a variant leaves unchanged, one native batch in which
each variant is a block of rows, and a forecast of each variant by itself. All of them
run the library's own sampling and decoding, under the hooks of :mod:`tsfm_lens.hooks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from tsfm_lens.ablation.engine import (
    OnePass,
    Variant,
    iterate_points,
    side_by_side,
    sweep,
)
from tsfm_lens.ablation.notices import show_messages_once
from tsfm_lens.ablation.zeroed import skipped
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.data.batch import COLUMNS
from tsfm_lens.hooks.edit import is_row_wise
from tsfm_lens.hooks.repeated import Repeated
from tsfm_lens.hooks.replay import OtherCalls, map_tensors, shadowed
from tsfm_lens.models.adapter import check_forecast_request, default_levels, predicted
from tsfm_lens.models.architecture import Prediction, is_row_independent
from tsfm_lens.models.arguments import checked_request
from tsfm_lens.models.batching import (
    DRAWN,
    ForecastRequest,
    fitting,
    forecast_part,
    out_of_memory,
)
from tsfm_lens.models.draws import Piece, Unsplittable, block_seed, seeded
from tsfm_lens.models.forecast import Forecast, check_finite
from tsfm_lens.models.lens import Lens

NonFinite = Literal["refuse", "keep"]
Progress = Callable[[int, int], None]

# with fewer variants, the plain pass that replay needs costs more than replay saves
_FEW = 3
# most tokens of a single forward, over all variants
_TOKENS = 2**15
# most numbers in the residual stream of a decoding step, over all rows and paths; with
# more, a CPU multiplies no faster, and its cache no longer holds them
_ABREAST = 80_000
# most variants in one run where only the memory of a device limits them
_MOST = 4096


@dataclass(frozen=True, eq=False)
class VariantForecasts:
    """Forecasts of many variants of one model.

    Attributes:
        quantiles: (variant, series, quantile, step), data units.
        levels: the quantile levels, ascending.
        mean: (variant, series, step).
        samples: (variant, series, sample, step), None for a model that draws none.
    """

    quantiles: np.ndarray
    levels: tuple[float, ...]
    mean: np.ndarray
    samples: np.ndarray | None


def forecast_variants(
    lens: Lens,
    series: Any,
    horizon: int,
    variants: Sequence[Variant],
    *,
    quantiles: Sequence[float] | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    economy: bool = True,
    non_finite: NonFinite = "refuse",
    progress: Progress | None = None,
) -> VariantForecasts:
    """Forecast every variant by the library's own code, rollouts included.

    The result is that of ``lens.forecast`` inside ``lens.edit``.

    Variants run one by one where the adapter does not declare
    ``declare_row_independent``, and while the caller has hooks set.

    Args:
        lens: the model.
        series: anything that ``as_series`` takes.
        horizon: forecast steps.
        variants: what to forecast.
        quantiles: levels between 0 and 1. If None, the deciles, or the model's own
            levels where these do not reach from 0.1 to 0.9.
        num_samples: sample paths of a sampling model; its configured number if None.
        seed: seed of the draws; all variants draw the same random numbers.
        economy: False runs one forecast a variant (the result is the same).
        non_finite: "refuse" raises where a forecast is not a number; "keep" leaves NaN
            and infinity in that variant's arrays, and nothing but NaN where its
            distribution cannot be drawn from.
        progress: called with the number of variants that are done and that of all.

    Returns:
        Forecasts of all variants: ``quantiles`` (variant, series, quantile, step),
        ``mean``, and ``samples`` of a sampling model, in data units.

    Raises:
        InputError: no variant, arguments that ``lens.forecast`` refuses, non_finite is
            neither word, or it is "refuse" and a forecast is not finite.
        UnknownNameError: a target does not exist; nothing has been run by then.

    Example:
        >>> heads = lens.components("decoder.0.cross_attn.*")
        >>> variants = [ablation.Variant.zero(head) for head in heads]
        >>> forecasts = ablation.forecast_variants(
        ...     lens, run.batch, 12, variants, num_samples=4
        ... )
        >>> forecasts.quantiles.shape
        (4, 1, 9, 12)
    """
    if not variants:
        raise InputError("there is no variant to forecast: expected at least one")
    if non_finite not in get_args(NonFinite):
        raise InputError(f"non_finite is {non_finite!r}, expected 'refuse' or 'keep'")
    requested = default_levels(lens.adapter) if quantiles is None else quantiles
    steps, levels = checked_request(horizon, requested, num_samples, seed)
    check_forecast_request(lens.adapter, steps, num_samples)
    batch = as_series(series)
    request = VariantRequest(
        lens,
        batch,
        steps,
        levels,
        num_samples,
        int(seed),
        non_finite=non_finite,
    )
    points = list(iterate_points(lens, *variants))
    by_row = all(is_row_wise(*point) for point in points)
    # without ``parts``: a range below is a batch of its own, so that a hook that asks
    # which rows of the whole batch run would be told wrong ones
    by_row = by_row and not lens.registry.session.across_rows(parts=False)
    requests = [request]
    # ``lens.forecast`` seeds each range of series anew, so that each can run alone
    if request.draws and by_row and len(request.blocks) > 1:
        requests = [
            replace(
                request,
                batch=batch.select(range(*series_range)),
                seed=block_seed(request.seed, index),
            )
            for index, series_range in enumerate(request.blocks)
        ]
    by_request: list[list[Forecast]] = []

    def report(done: int) -> None:
        if progress is not None:
            # a variant is forecast once for each range of series, and counts as one
            n_forecasts = len(by_request) * len(variants) + done
            progress(n_forecasts // len(requests), len(variants))

    # else every variant would repeat the warnings of the library
    with show_messages_once(lens):
        for part in requests:
            by_request.append(_forecasts(part, variants, report, economy))
    forecasts = [
        Forecast.joined(parts, batch) for parts in zip(*by_request, strict=True)
    ]
    samples = [
        forecast.samples for forecast in forecasts if forecast.samples is not None
    ]
    return VariantForecasts(
        np.stack([forecast.quantiles for forecast in forecasts]),
        levels,
        np.stack([forecast.mean for forecast in forecasts]),
        np.stack(samples) if samples else None,
    )


@dataclass(frozen=True)
class VariantRequest(ForecastRequest):
    """Arguments of ``lens.forecast``, and whether to keep non-finite values."""

    lens: Lens
    non_finite: NonFinite = "refuse"

    def alone(self, variant: Variant) -> Forecast:
        """Forecast one variant by itself."""
        with self.lens.edit(*variant.interventions):
            try:
                # ``lens.forecast`` itself refuses values that are not finite
                if self.non_finite == "refuse":
                    return self.lens.forecast(
                        self.batch,
                        self.horizon,
                        quantiles=self.levels,
                        num_samples=self.num_samples,
                        seed=self.seed,
                    )
                stop = len(self.batch)
                drawing = None
                if self.draws:
                    # guarded draws note invalid probabilities instead of raising
                    drawing = self.drawing(self.pieces(0, stop), guarded=True)
                forecast = forecast_part(self, 0, stop, drawing=drawing)
                if drawing is not None and drawing.failures:
                    return self.nothing()
                return forecast
            # torch.multinomial and torch.poisson raise the first for parameters that
            # are not finite, torch.distributions the second
            except (RuntimeError, ValueError) as error:
                return self.undrawn(error)

    def predicted(self, copies: int) -> Prediction:
        """Forecast copies of the batch, one for each variant, in one native run.

        The random state is left as it was.

        Returns:
            The forecast of all copies, in data units.
        """
        lens = self.lens
        state = lens.registry.state
        rows = self.rows * copies
        block_rows = self.rows if copies > 1 else None
        # the run itself counts one forward of each row
        state.forwards += rows * (self.passes - 1)
        running = state.running(rows, block_rows=block_rows)
        with seeded(self.seed, lens.device), running:
            batch = repeated(self.batch, copies)
            return predicted(
                lens.adapter, batch, self.horizon, self.levels, self.num_samples
            )

    def nothing(self) -> Forecast:
        """Return the forecast of a model that cannot be drawn from: NaN everywhere."""
        series = len(self.batch)
        steps = self.horizon
        samples = None
        if self.draws:
            samples = np.full((series, self.paths, steps), np.nan)
        quantiles = np.full((series, len(self.levels), steps), np.nan)
        return Forecast(
            quantiles,
            self.levels,
            np.full((series, steps), np.nan),
            samples,
            self.batch,
        )

    def undrawn(self, error: Exception) -> Forecast:
        """Return a forecast of NaN if an error refuses the parameters of a draw.

        Any other error is raised. The forecast of NaN is refused like other non-finite
        ones, unless these are kept.
        """
        # torch and its distributions refuse NaN and infinity with these words; there is
        # no class of error for it
        texts = (
            "probability tensor contains",
            "found invalid values",
            "invalid Poisson",
        )
        if not any(text in str(error) for text in texts):
            raise error
        return self.checked([self.nothing()])[0]

    def checked(self, forecasts: list[Forecast]) -> list[Forecast]:
        """Refuse non-finite forecasts, unless they are kept.

        Returns:
            The forecasts as they are.
        """
        if self.non_finite == "refuse":
            for forecast in forecasts:
                check_finite(forecast, self.lens.wiring.architecture)
        return forecasts

    @cached_property
    def _encoder(self) -> str:
        """Name of the stack that gives a decoder its keys; "" if none does."""
        return next(
            (
                attention.keys_from
                for attention in self.lens.wiring.output_stack.attentions(0)
                if attention.keys_from
            ),
            "",
        )

    @cached_property
    def _source(self) -> SharedSource | None:
        """Encoder that variants may share; None without one."""
        # cached, so that one chunk of variants finds what an earlier one stored in it
        if not self._encoder:
            return None
        path = self.lens.wiring.stack(self._encoder).entry
        if not path:
            return None
        return SharedSource(self.lens.adapter.model.get_submodule(path), self.rows)

    def touches_encoder(self, variant: Variant) -> bool:
        """Return whether a variant changes the encoder of a decoder's keys."""
        points = iterate_points(self.lens, variant)
        return bool(self._encoder) and any(
            point.stack == self._encoder for _, point in points
        )

    def settled(self, variants: Sequence[Variant]) -> list[Forecast]:
        """Forecast variants together, and again those with non-finite forecasts.

        One such variant may make others non-finite, so they run again without the rest,
        and in halves if there is no rest.

        Returns:
            One forecast for each variant.
        """
        try:
            forecasts = self.checked(self.together(variants))
        except (RuntimeError, ValueError) as error:
            forecasts = [self.undrawn(error)] * len(variants)
        failures = [
            index
            for index, forecast in enumerate(forecasts)
            if not all_finite(forecast)
        ]
        if not failures or len(variants) == 1:
            return forecasts
        if len(failures) < len(variants):
            parts = [failures]
        else:
            half = len(failures) // 2
            # both are smaller than what failed, so that this ends with one variant at
            # the latest
            parts = [failures[:half], failures[half:]]
        for part in parts:
            again = self.settled([variants[index] for index in part])
            for index, forecast in zip(part, again, strict=True):
                forecasts[index] = forecast
        return forecasts

    def together(self, variants: Sequence[Variant]) -> list[Forecast]:
        """Forecast variants in one run, as blocks of its rows."""
        copies = len(variants)
        size = len(self.batch)
        is_shared = self._source is not None and not any(
            map(self.touches_encoder, variants)
        )
        drawing = None
        if self.draws:
            # each variant is a block of its own, all of one seed
            one_variant = Piece(self.seed, count=1, first=0, size=1)
            drawing = self.drawing([one_variant] * copies, guarded=True)
        with (
            torch.no_grad(),
            drawing or nullcontext(),
            # not held by a local name: an interrupt's traceback would keep that, and so
            # keep the block from ending
            (
                self._source.serving(copies, is_shared=is_shared)
                if self._source
                else nullcontext()
            ),
            skipped(self.lens.registry, variants),
            self.lens.edit(*side_by_side(variants, self.rows)),
        ):
            prediction = self.predicted(copies)
        failures = drawing.failures if drawing else set()
        forecasts = []
        for block in range(copies):
            if block in failures:
                forecasts.append(self.nothing())
                continue
            rows = slice(block * size, (block + 1) * size)
            part = map_tensors(prediction, itemgetter(rows))
            forecasts.append(Forecast.of(part, self.levels, self.batch, {}))
        return forecasts

    def fitting(self, most: int) -> int:
        """Count the variants, at most ``most``, that fit in memory side by side."""
        # rounded up, as is every quotient -(-a // b)
        items = -(-len(self.batch) // self.per_item)
        bytes_of_variant = items * self.need(items * most)
        return fitting(
            bytes_of_variant, most, self.lens.device, costs_more_in_parts=True
        )

    def abreast(self) -> int:
        """Count the variants that roll out side by side: as many as pay and fit."""
        n_series = len(self.batch)
        lens = self.lens
        # a GPU takes as many as possible: if its memory runs out, chunks are halved
        paying = _MOST
        if lens.device.type == "cpu":
            paying = _ABREAST // (lens.d_model * n_series * self.paths)
        # ``most`` is the adapter's own limit
        allowed = (self.most or _MOST) // n_series
        return self.fitting(max(1, min(paying, allowed)))


class SharedSource:
    """Encoder that runs once for all variants of a batch that share it.

    ``rows`` is the number of rows of one variant.
    """

    def __init__(self, encoder: nn.Module, rows: int) -> None:
        self._encoder = encoder
        self._rows = rows
        self._memo: tuple[list[Tensor], Any] | None = None

    def serving(self, copies: int, *, is_shared: bool) -> AbstractContextManager[None]:
        """Replace the encoder's forward in a run of ``copies`` variants.

        All copies get one output if ``is_shared``: none of them changes the encoder.

        Returns:
            A block in which the forward is replaced.
        """
        sharing = copies if is_shared else 1

        def replace_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
            return partial(self._encode, forward, sharing)

        return shadowed([(self._encoder, replace_forward)])

    def _encode(
        self, forward: Callable[..., Any], copies: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Run the encoder on one variant's rows, or return its earlier output."""
        # the arguments of a library may be nested in any way
        leaves, spec = tree_flatten((args, kwargs))
        if copies == 1 or not all(
            _blocks_are_equal(leaf, copies)
            for leaf in leaves
            if isinstance(leaf, Tensor)
        ):
            # one copy; as Repeated, its rows are still shared by the sample paths of a
            # series
            return self._repeat(forward(*args, **kwargs), 1)
        # the rows of the first variant, which stand for those of all
        leaves = [
            leaf[: len(leaf) // copies] if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        memo = self._memo
        if (
            memo is not None
            and len(memo[0]) == len(tensors)
            and all(map(torch.equal, memo[0], tensors))
        ):
            return self._repeat(memo[1], copies)
        args, kwargs = tree_unflatten(leaves, spec)
        output = forward(*args, **kwargs)
        # the first pass is kept, since every chunk of variants begins with it; the
        # later ones of a rollout follow from a chunk's own forecasts
        # clones, since these leaves are views: they would keep the rows of all
        # variants, and change with whatever the model writes into its inputs
        self._memo = self._memo or ([tensor.clone() for tensor in tensors], output)
        return self._repeat(output, copies)

    def _repeat(self, output: Any, copies: int) -> Any:
        """Repeat the rows of an encoder's output for so many variants."""

        def repeat(tensor: Tensor) -> Tensor:
            # an output may also hold tensors without an axis of rows
            holds_rows = tensor.ndim > 0 and len(tensor) % self._rows == 0
            return Repeated(tensor, copies) if holds_rows else tensor

        return map_tensors(output, repeat)


def _blocks_are_equal(tensor: Tensor, copies: int) -> bool:
    """Return whether a tensor holds the same rows for every variant."""
    if tensor.ndim == 0 or len(tensor) % copies:
        return False
    blocks = tensor.unflatten(0, (copies, -1))
    return torch.equal(blocks, blocks[:1].expand_as(blocks))


def _forecasts(
    request: VariantRequest,
    variants: Sequence[Variant],
    on_progress: Callable[[int], None],
    economy: bool,
) -> list[Forecast]:
    """Forecast every variant by the cheapest way that its adapter allows.

    ``on_progress`` is called with the number of variants that are done.

    Returns:
        One forecast for each variant.
    """
    adapter = request.lens.adapter
    # variants can be rows of one batch if the adapter declares its rows independent
    # and, where it draws, says along which axis
    is_declared = is_row_independent(adapter) and not (
        request.draws and adapter.draw_axis is None
    )
    # the draws of such a batch fall into several native calls
    is_drawn_in_parts = request.draws and len(request.batch) > DRAWN
    if (
        not economy
        or is_drawn_in_parts
        or not is_declared
        # hooks of the caller's own may act on chosen rows
        or request.lens.registry.in_use
    ):
        forecasts = []
        for done, variant in enumerate(variants, 1):
            forecasts.append(request.alone(variant))
            on_progress(done)
        return forecasts
    in_one_pass = _single_passes(request, variants, on_progress)
    if in_one_pass is None:
        return _forecast_blocks(request, variants, on_progress)
    return in_one_pass


def _single_passes(
    request: VariantRequest,
    variants: Sequence[Variant],
    on_progress: Callable[[int], None],
) -> list[Forecast] | None:
    """Forecast each variant in one pass of the library's own code, with replay.

    Returns:
        One forecast for each variant, None where that cannot be done.
    """
    # replay gives the right result: by ``declare_row_independent`` the input of a pass
    # does not depend on the forecast, and a second pass would raise OtherCalls
    lens = request.lens
    adapter = lens.adapter
    if (
        adapter.readout != "quantile"
        or request.horizon > adapter.longest_pass
        or len(variants) < _FEW
    ):
        return None
    encoded = lens.encode(request.batch, horizon=request.horizon)
    tokens_of_row = max(len(spans) for spans in encoded.spans.values())
    tokens_of_variant = tokens_of_row * len(encoded.rows)
    abreast = request.fitting(max(1, _TOKENS // tokens_of_variant))

    def run(copies: int) -> Tensor:
        # (row, step, quantile), and the mean as one more column behind the quantiles
        prediction = request.predicted(copies)
        mean = prediction.mean.unsqueeze(-1).to(prediction.quantiles)
        return torch.cat([prediction.quantiles, mean], dim=-1)

    try:
        outputs = sweep(
            lens,
            OnePass(encoded, run),
            variants,
            max_rows=abreast * len(encoded.rows),
            on_progress=on_progress,
        )
    except OtherCalls:
        # blocks of rows replay nothing, and allow any number of calls
        return None
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        # blocks of rows are halved until they fit
        return None
    results = []
    for output in outputs:
        values = output.cpu().double().numpy()
        # (series, step, quantile) becomes (series, quantile, step)
        quantiles = values[..., :-1].swapaxes(1, 2)
        mean = values[..., -1]
        results.append(Forecast(quantiles, request.levels, mean, None, request.batch))
    failures = [
        index
        for index, forecast in enumerate(request.checked(results))
        if not all_finite(forecast)
    ]
    # a library may react to NaN in one variant for the whole batch, and so change the
    # variants beside it
    again = _forecast_blocks(
        request, [variants[index] for index in failures], lambda _count: None
    )
    for index, forecast in zip(failures, again, strict=True):
        results[index] = forecast
    return results


def _forecast_blocks(
    request: VariantRequest,
    variants: Sequence[Variant],
    on_progress: Callable[[int], None],
) -> list[Forecast]:
    """Forecast every variant as a block of rows of one native batch.

    As many run side by side as fit.

    Returns:
        One forecast for each variant.
    """
    if not variants:
        return []
    results = dict[int, Forecast]()
    max_copies = request.abreast()
    touches = [request.touches_encoder(variant) for variant in variants]
    # variants that share the encoder run together, and then those that change it
    for changes in (False, True):
        remaining = [index for index, touch in enumerate(touches) if touch is changes]
        while remaining:
            # as few chunks as fit, of about equal size
            n_chunks = -(-len(remaining) // max_copies)
            copies = -(-len(remaining) // n_chunks)
            indices = remaining[:copies]
            chunk = [variants[index] for index in indices]
            try:
                forecasts = request.settled(chunk)
            except Unsplittable:
                # a draw has no axis that falls into one block a variant
                forecasts = [request.alone(variant) for variant in chunk]
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                if copies == 1:
                    raise InputError(
                        "one variant of this batch runs out of memory; forecast fewer"
                        " series or sample paths at once"
                    ) from error
                # for all chunks that follow, too: they have as many rows and would fail
                # again
                max_copies = copies // 2
                continue
            results |= dict(zip(indices, forecasts, strict=True))
            remaining = remaining[copies:]
            on_progress(len(results))
    return [results[index] for index in range(len(variants))]


def repeated(batch: SeriesBatch, copies: int) -> SeriesBatch:
    """Repeat the series once per variant, variant-major.

    Groups of different copies stay separate.

    Returns:
        The batch with all copies.
    """

    def label(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{copy}/{name}" for copy in range(copies) for name in names)

    # each is a tuple with an entry a series; times copies, it is repeated as a whole
    columns = {name: getattr(batch, name) * copies for name in ("values", *COLUMNS)}
    return replace(
        batch, **{**columns, "ids": label(batch.ids), "groups": label(batch.groups)}
    )


def all_finite(forecast: Forecast) -> bool:
    """Return whether all values of a forecast are finite."""
    parts = (forecast.quantiles, forecast.mean, forecast.samples)
    return all(part is None or bool(np.isfinite(part).all()) for part in parts)
