"""Forecasts of many variants by the library's own code, rollouts included, at the cost of their differences."""

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
    """Forecast every variant by the library's own code, as ``lens.forecast`` inside ``lens.edit`` does.

    Every forecast is made by the adapter's own ``predict``. Variants run side by side where that is declared
    ``rows_apart``; otherwise, and while hooks of the caller's own are set, they run one by one.

    Args:
        lens: the model.
        series: anything that ``as_series`` takes.
        horizon: forecast steps.
        variants: the models.
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
    count_of_runs = 0

    def note(count: int) -> None:
        nonlocal count_of_runs
        count_of_runs += count
        if progress is not None:
            progress(count_of_runs // len(blocks), len(variants))

    with said_once(lens):
        of_blocks: list[list[Forecast]] = []
        for block in blocks:
            count_of_runs = len(of_blocks) * len(variants)
            of_blocks.append(_forecasts(block, variants, note, max_rows, memory, economy))
        forecasts = [joined_forecast(parts, request.batch) for parts in zip(*of_blocks, strict=True)]
        return _collect(forecasts, levels)


def _blocks(request: Request, variants: Sequence[Variant]) -> list[Request]:
    """Split the request into blocks where a model draws for more series than draw together.

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
    on_progress: Callable[[int], None],
    max_rows: int | None,
    memory: int | None,
    economy: bool,
) -> list[Forecast]:
    """Forecast every variant; arguments as :func:`forecast_variants` takes them."""
    in_blocks = request.draws and len(request.batch) > DRAWN
    if not economy or in_blocks or not _fans_out(request.lens):
        return _one_by_one(request, variants, on_progress)
    sizes, total = Sizes(request, max_rows, memory), 0

    def count(number: int) -> None:
        nonlocal total
        total += number
        on_progress(number)

    forecasts = single_passes(request, variants, sizes, count)
    if forecasts is None:
        if total:
            on_progress(-total)
        forecasts = fanned_out(request, variants, sizes, on_progress)
    return forecasts


def _one_by_one(request: Request, variants: Sequence[Variant], on_progress: Callable[[int], None]) -> list[Forecast]:
    forecasts = []
    for variant in variants:
        forecasts.append(request.alone(variant))
        on_progress(1)
    return forecasts


def _fans_out(lens: Lens) -> bool:
    """Return whether rows of one batch can stand for variants.

    The adapter must declare it of its ``predict``, and a sampling model must say along which axis it draws.
    """
    draws = lens.adapter.readout != "quantile"
    is_declared = stands_apart(lens.adapter) and (not draws or getattr(lens.adapter, "draw_axis", None) is not None)
    return is_declared and not lens.registry.in_use


def single_passes(
    request: Request, variants: Sequence[Variant], sizes: Sizes, on_progress: Callable[[int], None]
) -> list[Forecast] | None:
    """Forecast one pass of each variant by the library's own code, with replay; None where that cannot be done.

    Nothing is read off a forward: every variant runs all of ``predict``. Modules before a variant's first change hand
    back their outputs of the plain forecast. They may, because the pass reads the series alone, which an adapter
    declares (:func:`rows_apart`), and because it is one pass, which is counted.
    """
    lens, adapter = request.lens, request.lens.adapter
    if adapter.readout != "quantile" or request.horizon > adapter.longest_pass or len(variants) < _FEW:
        return None
    peaks = sizes.peaks("forward")
    encoded = lens.encode(request.batch, horizon=request.horizon)

    def forecasts(copies: int) -> Tensor:
        batch = repeated(request.batch, copies)
        with request.seeded(copies):
            prediction = adapter.predict(batch, request.horizon, request.levels, request.num_samples)
        return torch.cat([prediction.quantiles, prediction.mean.unsqueeze(-1).to(prediction.quantiles)], dim=-1)

    def run(copies: int) -> Tensor:
        if peaks or not sizes.by_memory:
            return forecasts(copies)
        # the plain forecast, which comes first
        plain, peaks[1] = measured(partial(forecasts, copies), sizes.device)
        return plain

    def rows(replay_bytes: int) -> int:
        longest = max(len(spans) for spans in encoded.spans.values())
        most = max(1, _TOKENS // longest // len(encoded.rows)) if sizes.max_rows is None else sizes.most
        if not sizes.by_memory:
            return most * len(encoded.rows)
        fitting(peaks, sizes.limit)
        return min(most, (sizes.limit - replay_bytes) // max(peaks[1], 1)) * len(encoded.rows)

    try:
        outputs = sweep(lens, OnePass.of(encoded, run), variants, max_rows=rows, on_progress=on_progress)
    except OtherCalls:
        return None
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return None
    if outputs is None:
        return None
    results = request.checked([_as_forecast(request, output) for output in outputs])
    failures = [index for index, forecast in enumerate(results) if not all_finite(forecast)]
    # the library treats no numbers in its own way, and one such variant may spoil its neighbours
    for index, forecast in zip(
        failures, fanned_out(request, [variants[i] for i in failures], sizes, _nobody), strict=True
    ):
        results[index] = forecast
    return results


def _nobody(_count: int) -> None:
    """Tell no one of variants that have been counted before."""


def _as_forecast(request: Request, output: Tensor) -> Forecast:
    values = output.cpu().double().numpy()
    return Forecast(values[..., :-1].swapaxes(1, 2), request.levels, values[..., -1], None, request.batch)


def _collect(forecasts: Sequence[Forecast], levels: tuple[float, ...]) -> VariantForecasts:
    samples = [forecast.samples for forecast in forecasts if forecast.samples is not None]
    return VariantForecasts(
        np.stack([forecast.quantiles for forecast in forecasts]),
        levels,
        np.stack([forecast.mean for forecast in forecasts]),
        np.stack(samples) if samples else None,
    )
