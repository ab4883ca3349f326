"""Fan-out of the library's own forecast: variants as blocks of rows of one native batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch

from tsfm_lens.ablation.draws import BlockDraws, GuardedDraws, Unsplittable
from tsfm_lens.ablation.engine import Variant, on_block
from tsfm_lens.ablation.sharing import SharedSource
from tsfm_lens.ablation.skipping import skipped
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.batch import COLUMNS
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.block import Block, together
from tsfm_lens.hooks.edit import resolve
from tsfm_lens.hooks.names import Point
from tsfm_lens.models import batching
from tsfm_lens.models.architecture import Prediction, rows_of
from tsfm_lens.models.forecast import Forecast, refuse_non_finite
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.memory import fitting, limit_of, measured, out_of_memory
from tsfm_lens.models.seeding import seeded

NonFinite = Literal["refuse", "keep"]

# needs of runs, so that the next batch of the same shape need not be measured
_PEAKS: WeakKeyDictionary[Lens, dict[tuple[object, ...], dict[int, int]]] = WeakKeyDictionary()
# numbers in the stream of a decoding step, rows and paths together: beyond them a CPU's products get no faster, and the
# rest leaves its cache
_ABREAST = 80_000
# variants side by side where only the memory of a device limits them
_MOST = 4096


@dataclass(frozen=True)
class Request:
    """Arguments of ``lens.forecast``, checked, and whether values may be no numbers."""

    lens: Lens
    batch: SeriesBatch
    horizon: int
    levels: tuple[float, ...]
    num_samples: int | None
    seed: int
    non_finite: NonFinite = "refuse"

    @property
    def rows(self) -> int:
        """Number of rows that hooks see of one variant."""
        return len(rows_of(self.batch, self.lens.adapter.packed))

    def alone(self, variant: Variant) -> Forecast:
        """Forecast one variant by itself.

        Raises:
            InputError: it is not finite, and such are not kept.
        """
        with self.lens.edit(*variant.interventions):
            try:
                return self._as_edited()
            except (RuntimeError, ValueError) as error:
                return self.undrawn(error)

    def _as_edited(self) -> Forecast:
        arguments = (self.batch, self.horizon)
        if self.non_finite == "refuse":
            return self.lens.forecast(*arguments, quantiles=self.levels, num_samples=self.num_samples, seed=self.seed)
        # the forecast of lens.forecast; none but a model that draws can come to a draw that fails
        native = batching.Request(self.lens, *arguments, self.levels, self.num_samples, self.seed)
        (whole,) = batching.parts_of(native, batching.blocks_of(native), len(self.batch), whole=True)
        with GuardedDraws() if self.draws else nullcontext() as guard:
            forecast = batching.forecast_part(native, whole)
        return self.nothing() if guard is not None and guard.has_failed else forecast

    @property
    def draws(self) -> bool:
        """True if the model forecasts by sample paths."""
        return self.lens.adapter.readout != "quantile"

    def seeded(self, copies: int) -> Block[None]:
        """Begin one run of the lens's own over several blocks of rows; the random state is left as it was."""
        block_rows = self.rows if copies > 1 else None
        running = self.lens.registry.state.running(self.rows * copies, block_rows=block_rows)
        return together(None, seeded(self.seed, self.lens.device), running)

    def nothing(self) -> Forecast:
        """Make the forecast of a model that cannot be drawn from: no numbers at all."""
        series, steps = len(self.batch), self.horizon
        samples = np.full((series, _paths(self), steps), np.nan) if self.draws else None
        quantiles = np.full((series, len(self.levels), steps), np.nan)
        return Forecast(quantiles, self.levels, np.full((series, steps), np.nan), samples, self.batch)

    def undrawn(self, error: Exception) -> Forecast:
        """Replace a forecast of which an error says that nothing can be drawn: no numbers at all.

        Raises:
            InputError: no numbers are not kept.
        """
        # how torch and its distributions refuse parameters that are no numbers
        if not any(
            words in str(error) for words in ("probability tensor contains", "found invalid values", "invalid Poisson")
        ):
            raise error
        return self.checked([self.nothing()])[0]

    def checked(self, forecasts: list[Forecast]) -> list[Forecast]:
        """Refuse forecasts that are no numbers, unless such are kept; return the others as they are.

        Raises:
            InputError: names the series and the first step.
        """
        for forecast in forecasts if self.non_finite == "refuse" else ():
            refuse_non_finite(forecast, self.lens.wiring.architecture)
        return forecasts


class Sizes:
    """Numbers of variants that run side by side.

    Args:
        request: the forecast.
        max_rows: series times variants that run side by side; None leaves it to the memory and to the speed.
        memory: bytes; half of what is free if None.

    Raises:
        InputError: memory is no number of bytes.
    """

    def __init__(self, request: Request, max_rows: int | None, memory: int | None) -> None:
        self._request, self.device = request, request.lens.device
        self.limit = limit_of(memory, self.device)
        # rows alone set the size
        self.by_memory = memory is not None or max_rows is None
        rows = len(request.batch)
        pays = _ABREAST // (request.lens.d_model * rows * _paths(request)) if self.device.type == "cpu" else _MOST
        pays = min(pays, (getattr(request.lens.adapter, "rows_at_once", None) or _MOST) // rows)
        self.most = max(1, pays if max_rows is None else max_rows // rows)
        self.max_rows = max_rows

    def of(self, peaks: dict[int, int], remaining_count: int) -> int:
        """Return the size of the next chunk, by the peaks so far and the number of remaining variants."""
        fit = self.most
        if self.by_memory:
            if not peaks:
                return 1
            fit = min(self.most, fitting(peaks, self.limit))
        # chunks of equal size waste the least
        return -(-remaining_count // -(-remaining_count // fit))

    def watches(self, peaks: dict[int, int], copies: int, remaining_count: int) -> bool:
        """Return whether to measure a chunk: the first one, and larger ones than before while the memory binds."""
        if not self.by_memory or copies <= max(peaks, default=0):
            return False
        return not peaks or fitting(peaks, self.limit) < min(self.most, remaining_count)

    def peaks(self, kind: str) -> dict[int, int]:
        """Return bytes by number of variants, measured so far on batches of this shape; the dictionary is kept."""
        request = self._request
        shape = (len(request.batch), len(set(request.batch.groups)), max(request.batch.lengths), request.horizon)
        key = (kind, *shape, _paths(request), next(request.lens.parameters()).dtype, self.device)
        return _PEAKS.setdefault(request.lens, {}).setdefault(key, {})

    def shrink(self, size: int, error: BaseException) -> None:
        """Take half of a size that ran out of memory.

        Raises:
            InputError: it was a single variant.
        """
        if size == 1:
            raise InputError(
                "one variant of this batch runs out of memory; forecast fewer series or sample paths at once"
            ) from error
        self.most = size // 2


def _paths(request: Request) -> int:
    """Count the rows of a series in the widest pass of a rollout."""
    return batching.paths_of(request.lens.adapter, request.horizon, request.num_samples)


def fanned_out(
    request: Request, variants: Sequence[Variant], sizes: Sizes, on_progress: Callable[[int], None]
) -> list[Forecast]:
    """Forecast every variant, as many side by side as fit.

    Args:
        request: the forecast.
        variants: the models.
        sizes: their number side by side.
        on_progress: called with the number of variants that have come to their end.

    Raises:
        InputError: one variant needs more memory than there may be, or a forecast is not finite.
    """
    fan, results = Fan(request), dict[int, Forecast]()
    for remaining in fan.groups(variants):
        peaks = sizes.peaks("encoder" if fan.touches_encoder(variants[remaining[0]]) else "decoder")
        while remaining:
            copies = sizes.of(peaks, len(remaining))
            chunk = [variants[index] for index in remaining[:copies]]
            try:
                if sizes.watches(peaks, copies, len(remaining)):
                    forecasts, peaks[copies] = measured(partial(fan.settled, chunk), sizes.device)
                    # refuses a limit that not even this fits
                    fitting(peaks, sizes.limit)
                    if copies == 1 and sizes.of(peaks, len(remaining)) > 1:
                        # otherwise the first variant would run alone in the first group of a process and among others
                        # in a later one, and its last bits would differ
                        continue
                else:
                    forecasts = fan.settled(chunk)
            except Unsplittable:
                forecasts = [request.alone(variant) for variant in chunk]
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                sizes.shrink(copies, error)
                continue
            results |= dict(zip(remaining, forecasts, strict=False))
            remaining = remaining[copies:]
            on_progress(copies)
    return [results[index] for index in range(len(variants))]


class Fan:
    """Runner of variants as blocks of rows of one native batch.

    Args:
        request: the forecast.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        wiring, model = request.lens.wiring, request.lens.adapter.model
        sources = [row.keys_from for row in wiring.output_stack.attentions(0) if row.keys_from]
        self._encoder = sources[0] if sources else ""
        entry = wiring.stack(self._encoder).entry if sources else ""
        self._source = SharedSource(model.get_submodule(entry), request.rows) if entry else None

    def groups(self, variants: Sequence[Variant]) -> list[list[int]]:
        """Group variants that may run together: those that change the encoder, and those that share it."""
        touches_of = [self.touches_encoder(variant) for variant in variants]
        groups = [[index for index, touches in enumerate(touches_of) if touches is kind] for kind in (False, True)]
        return [group for group in groups if group]

    def _points(self, variant: Variant) -> Iterator[Point]:
        registry = self._request.lens.registry
        for intervention in variant.interventions:
            for name, _head in resolve(registry, intervention):
                yield registry.points[name]

    def touches_encoder(self, variant: Variant) -> bool:
        """Return whether a variant changes the source of a decoder's keys."""
        return bool(self._encoder) and any(point.stack == self._encoder for point in self._points(variant))

    def settled(self, variants: Sequence[Variant]) -> list[Forecast]:
        """Forecast variants that run together, none of them spoilt by another.

        One that is not finite may spoil its neighbours where a library mixes rows under a mask (0 times infinity is
        no number) or refuses a batch as a whole. So all that failed run again in ever smaller parts.

        Raises:
            InputError: a forecast is not finite, and such are not kept.
        """
        request = self._request
        try:
            forecasts = request.checked(self.side_by_side(variants))
        except (RuntimeError, ValueError) as error:
            forecasts = [request.undrawn(error)] * len(variants)
        failures = [index for index, forecast in enumerate(forecasts) if not all_finite(forecast)]
        if not failures or len(variants) == 1:
            return forecasts
        half = len(failures) if len(failures) < len(variants) else len(failures) // 2
        for part in filter(None, (failures[:half], failures[half:])):
            for index, forecast in zip(part, self.settled([variants[i] for i in part]), strict=True):
                forecasts[index] = forecast
        return forecasts

    def side_by_side(self, variants: Sequence[Variant]) -> list[Forecast]:
        """Forecast variants that run together."""
        request, copies = self._request, len(variants)
        lens, rows = request.lens, request.rows
        interventions = [
            on_block(intervention, block, rows)
            for block, variant in enumerate(variants)
            for intervention in variant.interventions
        ]
        drawing = self._draws(copies)
        with (
            torch.no_grad(),
            request.seeded(copies),
            drawing or nullcontext(),
            self._serving(variants),
            skipped(lens.registry, variants),
            lens.edit(*interventions),
        ):
            prediction = lens.adapter.predict(
                repeated(request.batch, copies), request.horizon, request.levels, request.num_samples
            )
        failures = drawing.failed_blocks if drawing else set()
        return [
            request.nothing() if block in failures else _forecast(request, prediction, block) for block in range(copies)
        ]

    def _draws(self, copies: int) -> BlockDraws | None:
        """Return what makes draws block by block, and notes the blocks whose draws turn out to be meaningless."""
        request, lens = self._request, self._request.lens
        if not request.draws:
            return None
        outer = _paths(request) if lens.wiring.sample_major else 1
        axis: int = lens.adapter.draw_axis  # type: ignore[attr-defined]
        return BlockDraws(copies, request.seed, axis=axis, outer=outer)

    def _serving(self, variants: Sequence[Variant]) -> AbstractContextManager[None]:
        """Share the encoder among variants that leave it as it is."""
        if self._source is None:
            return nullcontext()
        return self._source.serving(len(variants), is_shared=not any(map(self.touches_encoder, variants)))


def repeated(batch: SeriesBatch, copies: int) -> SeriesBatch:
    """Repeat the series once a variant, variant-major; groups of different copies stay apart."""

    def label(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{copy}/{name}" for copy in range(copies) for name in names)

    columns = {name: getattr(batch, name) * copies for name in ("values", *COLUMNS)}
    return replace(batch, **{**columns, "ids": label(batch.ids), "groups": label(batch.groups)})


def _forecast(request: Request, prediction: Prediction, block: int) -> Forecast:
    rows = slice(block * len(request.batch), (block + 1) * len(request.batch))
    return Forecast(
        prediction.quantiles[rows].permute(0, 2, 1).numpy().astype(float),
        request.levels,
        prediction.mean[rows].numpy().astype(float),
        None if prediction.samples is None else prediction.samples[rows].numpy().astype(float),
        request.batch,
    )


def all_finite(forecast: Forecast) -> bool:
    """Return whether all of a forecast is numbers."""
    parts = (forecast.quantiles, forecast.mean, forecast.samples)
    return all(part is None or bool(np.isfinite(part).all()) for part in parts)
