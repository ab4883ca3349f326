"""The library's own forecast of many variants, rollouts included, at the cost of what differs between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.ablation.engine import OnePass, Variant, sweep
from tsfm_lens.ablation.fanout import NonFinite, Request, Sizes, all_finite, fanned_out, repeated
from tsfm_lens.ablation.notices import said_once
from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.edit import acts_by_row, resolve
from tsfm_lens.hooks.replay import OtherCalls
from tsfm_lens.models.adapter import DECILES
from tsfm_lens.models.architecture import stands_apart
from tsfm_lens.models.batching import DRAWN, cut
from tsfm_lens.models.draws import block_seed
from tsfm_lens.models.forecast import Forecast, checked_request
from tsfm_lens.models.joining import joined_forecast
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.memory import fitting, measured, out_of_memory

# variants below which the plain forecast costs more than replay spares
_FEW = 3
# tokens that run side by side in single forwards
_TOKENS = 2**15

Progress = Callable[[int, int], None]


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
    quantiles: Sequence[float] = DECILES,
    num_samples: int | None = None,
    seed: int = 0,
    max_rows: int | None = None,
    memory: int | None = None,
    economy: bool = True,
    non_finite: NonFinite = "refuse",
    progress: Progress | None = None,
) -> VariantForecasts:
    """The library's own forecast of every variant, as ``lens.forecast`` inside ``lens.edit`` gives it.

    Every forecast is made by the adapter's own ``predict``. Variants run side by side where that is declared
    ``rows_apart``; otherwise, and while hooks of the caller's own are set, they run one by one.

    Args:
        lens: the model.
        series: anything that ``as_series`` takes.
        horizon: forecast steps.
        variants: what to change in each.
        quantiles: levels between 0 and 1.
        num_samples: sample paths of a sampling model; its configured number if None.
        seed: of every variant's draws; all variants draw the same random numbers.
        max_rows: series times variants that run side by side.
        memory: bytes that the tensors of a run may take; half of what is free if None.
        economy: False runs one forecast a variant (the result is the same).
        non_finite: "refuse" raises where a forecast is no number; "keep" leaves NaN and infinity in the arrays of
            that variant, and nothing but NaN where its distribution cannot be drawn from. The others are as without
            it.
        progress: called with the variants done and their number.

    Returns:
        Forecasts in the order of the variants.

    Raises:
        InputError: max_rows below 1, no variant, arguments that ``lens.forecast`` refuses, non_finite is neither word,
            or it is "refuse" and a forecast is not finite.
        UnknownNameError: a target does not exist; nothing has been run by then.

    Example:
        >>> variants = [ablation.Variant.zero(head) for head in lens.components("decoder.0.cross_attn.*")]
        >>> ablation.forecast_variants(lens, run.batch, 12, variants, num_samples=4).quantiles.shape
        (4, 1, 9, 12)
    """
    if max_rows is not None and max_rows < 1:
        raise InputError(f"max_rows is {max_rows}, expected at least 1")
    if not variants:
        raise InputError("there is no variant to forecast: expected at least one")
    if non_finite not in get_args(NonFinite):
        raise InputError(f"non_finite is {non_finite!r}, expected 'refuse' or 'keep'")
    steps, levels = checked_request(horizon, quantiles, num_samples, seed)
    request = Request(lens, as_series(series), steps, levels, num_samples, int(seed), non_finite)
    for variant in variants:
        for intervention in variant.interventions:
            resolve(lens.registry, intervention)
    blocks = _blocks(request, variants)
    finished = 0

    def done(count: int) -> None:
        nonlocal finished
        finished += count
        if progress is not None:
            progress(finished // len(blocks), len(variants))

    with said_once(lens):
        of_blocks: list[list[Forecast]] = []
        for block in blocks:
            finished = len(of_blocks) * len(variants)
            of_blocks.append(_forecasts(block, variants, done, max_rows, memory, economy))
        joined = [joined_forecast(parts, request.batch) for parts in zip(*of_blocks, strict=True)]
        return _collected(joined, levels)


def _blocks(request: Request, variants: Sequence[Variant]) -> list[Request]:
    """The request, block by block where a model draws for more series than draw together.

    Interventions that look at several series keep the batch whole.
    """
    ranges = cut(request.batch, DRAWN) if request.draws else []
    registry = request.lens.registry
    alone = all(
        acts_by_row(intervention, registry.points[name])
        for variant in variants
        for intervention in variant.interventions
        for name, _head in resolve(registry, intervention)
    )
    if len(ranges) < 2 or not alone or registry.session.across_rows(parts=False):
        return [request]
    return [
        replace(request, batch=request.batch.select(range(*stretch)), seed=block_seed(request.seed, index))
        for index, stretch in enumerate(ranges)
    ]


def _forecasts(
    request: Request,
    variants: Sequence[Variant],
    done: Callable[[int], None],
    max_rows: int | None,
    memory: int | None,
    economy: bool,
) -> list[Forecast]:
    """The forecast of every variant; arguments as :func:`forecast_variants` takes them."""
    drawn_apart = request.draws and len(request.batch) > DRAWN
    if not economy or drawn_apart or not _fans_out(request.lens):
        return _one_by_one(request, variants, done)
    sizes, counted = Sizes(request, max_rows, memory), 0

    def count(number: int) -> None:
        nonlocal counted
        counted += number
        done(number)

    forecasts = single_passes(request, variants, sizes, count)
    if forecasts is None:
        if counted:
            done(-counted)
        forecasts = fanned_out(request, variants, sizes, done)
    return forecasts


def _one_by_one(request: Request, variants: Sequence[Variant], done: Callable[[int], None]) -> list[Forecast]:
    forecasts = []
    for variant in variants:
        forecasts.append(request.alone(variant))
        done(1)
    return forecasts


def _fans_out(lens: Lens) -> bool:
    """Whether rows of one batch can stand for variants.

    The adapter must declare it of its ``predict``, and a sampling model must say along which axis it draws.
    """
    draws = lens.adapter.readout != "quantile"
    known = stands_apart(lens.adapter) and (not draws or getattr(lens.adapter, "draw_axis", None) is not None)
    return known and not lens.registry.in_use


def single_passes(
    request: Request, variants: Sequence[Variant], sizes: Sizes, done: Callable[[int], None]
) -> list[Forecast] | None:
    """Forecasts of one pass each, made by the library's own code, with replay; None where that cannot be done.

    Nothing is read off a forward: whatever ``predict`` does around it is done for every variant. Modules before a
    variant's first change hand back what they gave in the plain forecast. They may, because the pass reads the series
    alone, which an adapter declares (:func:`rows_apart`), and because it is one pass, which is counted.
    """
    lens, adapter = request.lens, request.lens.adapter
    if adapter.readout != "quantile" or request.horizon > adapter.longest_pass or len(variants) < _FEW:
        return None
    peaks = sizes.peaks("forward")
    encoded = lens.encode(request.batch, horizon=request.horizon)

    def forecasts(copies: int) -> Tensor:
        batch = repeated(request.batch, copies)
        with request.seeded(copies):
            made = adapter.predict(batch, request.horizon, request.levels, request.num_samples)
        return torch.cat([made.quantiles, made.mean.unsqueeze(-1).to(made.quantiles)], dim=-1)

    def run(copies: int) -> Tensor:
        if peaks or not sizes.watched:
            return forecasts(copies)
        # the plain forecast, which comes first
        plain, peaks[1] = measured(partial(forecasts, copies), sizes.device)
        return plain

    def rows(held: int) -> int:
        longest = max(len(spans) for spans in encoded.spans.values())
        most = max(1, _TOKENS // longest // len(encoded.rows)) if sizes.given is None else sizes.most
        if not sizes.watched:
            return most * len(encoded.rows)
        fitting(peaks, sizes.limit)
        return min(most, (sizes.limit - held) // max(peaks[1], 1)) * len(encoded.rows)

    try:
        outputs = sweep(lens, OnePass.of(encoded, run), variants, max_rows=rows, done=done)
    except OtherCalls:
        return None
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return None
    if outputs is None:
        return None
    found = request.checked([_read_out(request, output) for output in outputs])
    lost = [index for index, forecast in enumerate(found) if not all_finite(forecast)]
    # what the library makes of no numbers is its own, and one such variant may spoil its neighbours
    for index, forecast in zip(lost, fanned_out(request, [variants[i] for i in lost], sizes, _nobody), strict=True):
        found[index] = forecast
    return found


def _nobody(_count: int) -> None:
    """Tell no one of variants that have been counted before."""


def _read_out(request: Request, output: Tensor) -> Forecast:
    values = output.cpu().double().numpy()
    return Forecast(values[..., :-1].swapaxes(1, 2), request.levels, values[..., -1], None, request.batch)


def _collected(forecasts: Sequence[Forecast], levels: tuple[float, ...]) -> VariantForecasts:
    drawn = [forecast.samples for forecast in forecasts if forecast.samples is not None]
    return VariantForecasts(
        np.stack([forecast.quantiles for forecast in forecasts]),
        levels,
        np.stack([forecast.mean for forecast in forecasts]),
        np.stack(drawn) if drawn else None,
    )
