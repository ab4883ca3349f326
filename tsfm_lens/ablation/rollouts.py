"""The library's own forecast of many variants, rollouts included, at the cost of what differs between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tsfm_lens.ablation.draws import BlockDraws, Unsplittable
from tsfm_lens.ablation.engine import Variant, on_block
from tsfm_lens.ablation.sharing import SharedSource
from tsfm_lens.ablation.skipping import skipped
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.edit import resolve
from tsfm_lens.hooks.names import Point
from tsfm_lens.models.adapter import DECILES
from tsfm_lens.models.architecture import Prediction, rows_of
from tsfm_lens.models.forecast import Forecast, checked_request, refuse_non_finite
from tsfm_lens.models.lens import Lens

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


@dataclass(frozen=True)
class Request:
    """What is forecast: the arguments of ``lens.forecast``, checked."""

    lens: Lens
    batch: SeriesBatch
    horizon: int
    levels: tuple[float, ...]
    num_samples: int | None
    seed: int

    @property
    def rows(self) -> int:
        """Rows that hooks see of one variant."""
        return len(rows_of(self.batch, self.lens.adapter.packed))

    def alone(self, variant: Variant) -> Forecast:
        """The forecast of one variant by itself."""
        with self.lens.edit(*variant.interventions):
            return self.lens.forecast(
                self.batch, self.horizon, quantiles=self.levels, num_samples=self.num_samples, seed=self.seed
            )


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
    progress: Progress | None = None,
) -> VariantForecasts:
    """The library's own forecast of every variant, as ``lens.forecast`` inside ``lens.edit`` gives it.

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
        progress: called with the variants done and their number.

    Returns:
        Forecasts in the order of the variants.

    Raises:
        InputError: max_rows below 1, no variant, arguments that ``lens.forecast`` refuses, or a forecast that is not
            finite.
        UnknownNameError: a target does not exist; nothing has been run by then.
    """
    if max_rows is not None and max_rows < 1:
        raise InputError(f"max_rows is {max_rows}, expected at least 1")
    if not variants:
        raise InputError("there is no variant to forecast: expected at least one")
    steps, levels = checked_request(horizon, quantiles, num_samples, seed)
    request = Request(lens, as_series(series), steps, levels, num_samples, int(seed))
    for variant in variants:
        for intervention in variant.interventions:
            resolve(lens.registry, intervention)
    done = _Done(len(variants), progress)
    if not economy or not _fans_out(lens) or len(variants) == 1:
        return _collected([done.one(request.alone(variant)) for variant in variants], levels)
    abreast = max(1, (256 if max_rows is None else max_rows) // len(request.batch))
    fan = Fan(request)
    found: dict[int, Forecast] = {}
    for members in fan.groups(variants):
        for first in range(0, len(members), abreast):
            chunk = members[first : first + abreast]
            try:
                forecasts = fan.side_by_side([variants[index] for index in chunk])
            except Unsplittable:
                forecasts = [request.alone(variants[index]) for index in chunk]
            found |= {index: done.one(forecast) for index, forecast in zip(chunk, forecasts, strict=True)}
    return _collected([found[index] for index in range(len(variants))], levels)


def _fans_out(lens: Lens) -> bool:
    """Whether rows of one batch can stand for variants: a sampling model must say along which axis it draws."""
    in_use = any(point.fwd_hooks or point.bwd_hooks for point in lens.registry.hooked.values())
    return not in_use and (lens.adapter.readout == "quantile" or getattr(lens.adapter, "draw_axis", None) is not None)


class _Done:
    """Counts what is done."""

    def __init__(self, of: int, progress: Progress | None) -> None:
        self._of, self._progress, self._count = of, progress, 0

    def one(self, forecast: Forecast) -> Forecast:
        """One more."""
        self._count += 1
        if self._progress is not None:
            self._progress(self._count, self._of)
        return forecast


class Fan:
    """Runs variants as blocks of rows of one native batch.

    Args:
        request: what is forecast.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        wiring, model = request.lens.wiring, request.lens.adapter.model
        crossing = [row.keys_from for row in wiring.output_stack.attentions(0) if row.keys_from]
        self._encoder = crossing[0] if crossing else ""
        entry = wiring.stack(self._encoder).entry if crossing else ""
        self._source = SharedSource(model.get_submodule(entry), request.rows) if entry else None

    def groups(self, variants: Sequence[Variant]) -> list[list[int]]:
        """Variants that may run together: those that change the encoder, and those that share it."""
        touching = [self._touches_encoder(variant) for variant in variants]
        groups = [[index for index, each in enumerate(touching) if each is kind] for kind in (False, True)]
        return [group for group in groups if group]

    def _points(self, variant: Variant) -> Iterator[Point]:
        registry = self._request.lens.registry
        for intervention in variant.interventions:
            for name, _head in resolve(registry, intervention):
                yield registry.points[name]

    def _touches_encoder(self, variant: Variant) -> bool:
        return bool(self._encoder) and any(point.stack == self._encoder for point in self._points(variant))

    def side_by_side(self, variants: Sequence[Variant]) -> list[Forecast]:
        """The forecasts of variants that run together."""
        request, copies = self._request, len(variants)
        lens, rows = request.lens, request.rows
        placed = [
            on_block(intervention, block, rows)
            for block, variant in enumerate(variants)
            for intervention in variant.interventions
        ]
        with torch.no_grad(), self._running(variants), skipped(lens.registry, variants), lens.edit(*placed):
            found = lens.adapter.predict(
                repeated(request.batch, copies), request.horizon, request.levels, request.num_samples
            )
        return [_forecast(request, found, block) for block in range(copies)]

    @contextmanager
    def _running(self, variants: Sequence[Variant]) -> Iterator[None]:
        """One run of the lens's own over several blocks of rows; the random state is left as it was."""
        request, copies = self._request, len(variants)
        lens, state = request.lens, request.lens.registry.state
        devices = [lens.device] if lens.device.type == "cuda" else []
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=devices))
            torch.manual_seed(request.seed)
            if lens.adapter.readout != "quantile":
                outer = (request.num_samples or lens.adapter.samples) if lens.wiring.sample_major else 1
                stack.enter_context(BlockDraws(copies, request.seed, axis=lens.adapter.draw_axis, outer=outer))
            if self._source is not None:
                shared = not any(map(self._touches_encoder, variants))
                stack.enter_context(self._source.serving(copies, shared=shared, fold=self._folds(variants)))
            stack.callback(state.restart)
            state.restart(request.rows * copies, block_rows=request.rows)
            yield

    def _folds(self, variants: Sequence[Variant]) -> bool:
        """Whether keys and values may be held once a series: a decoder that samples, whose keys nobody looks at."""
        looked_at = {point.how for variant in variants for point in self._points(variant)}
        return self._request.lens.adapter.rollout == "tokens" and not looked_at & {"k", "v", "scores", "pattern"}


def repeated(batch: SeriesBatch, copies: int) -> SeriesBatch:
    """The series once a variant, variant-major; groups of different copies stay apart."""

    def named(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{copy}/{name}" for copy in range(copies) for name in names)

    columns = {name: getattr(batch, name) * copies for name in ("values", "starts", "units", "freqs")}
    return replace(
        batch,
        **columns,
        ids=named(batch.ids),
        groups=named(batch.groups),
        seasonalities=batch.seasonalities * copies,
        variates=batch.variates * copies,
    )


def _forecast(request: Request, found: Prediction, block: int) -> Forecast:
    own = slice(block * len(request.batch), (block + 1) * len(request.batch))
    forecast = Forecast(
        found.quantiles[own].permute(0, 2, 1).numpy().astype(float),
        request.levels,
        found.mean[own].numpy().astype(float),
        None if found.samples is None else found.samples[own].numpy().astype(float),
        request.batch,
    )
    refuse_non_finite(forecast, request.lens.wiring.architecture)
    return forecast


def _collected(forecasts: Sequence[Forecast], levels: tuple[float, ...]) -> VariantForecasts:
    drawn = [forecast.samples for forecast in forecasts if forecast.samples is not None]
    return VariantForecasts(
        np.stack([forecast.quantiles for forecast in forecasts]),
        levels,
        np.stack([forecast.mean for forecast in forecasts]),
        np.stack(drawn) if drawn else None,
    )
