"""Forecasts of one item under masks, thousands of them in a batch.

:class:`Masks` is the forecast as a function of the visible segments, with a cache;
:func:`forecasts` is the same for one call. Quantiles of a model that draws come from
sample paths, with the random numbers that the item alone would use. Masked series are
made in :mod:`tsfm_lens.explain.masking`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from tsfm_lens.ablation.notices import with_messages_once
from tsfm_lens.ablation.points import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.batch import Item
from tsfm_lens.explain.masking import (
    OWN_MASK,
    MaskedBatch,
    Reference,
    category_numbers,
    checked_keep,
    in_numbers,
    mask_seen,
    masked,
    reference_rows,
)
from tsfm_lens.explain.parts import find_segments
from tsfm_lens.explain.segments import Segment, check_segments, target_row, token_edges
from tsfm_lens.models.adapter import default_levels
from tsfm_lens.models.batching import check_request, cut, forecast_part, plan
from tsfm_lens.models.draws import Piece
from tsfm_lens.models.noise import forecast_rounding, measured_rounding
from tsfm_lens.models.recording import forward_ranges
from tsfm_lens.models.run import Run

__all__ = ["Masks", "forecasts"]

# values in the masked series that are passed to the lens at once; it splits them again
# if memory is short
_NUMBERS = 2**21
_ROWS = 256  # rows of one forward of a model that draws
# Two forecasts count as the same if they differ by no more than this many times the
# bound on rounding.
_FAR = 10


@with_messages_once
def forecasts(
    run: Run,
    segments: Sequence[Segment],
    keep: Any,
    reference: Reference = "mean",
    *,
    item: Item = None,
    target: int | str = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> np.ndarray:
    """Compute a run's forecast of one target under each mask.

    It is the library's own forecast of the masked series, up to rounding. For a run in
    one pass it is the expected value at each step of a token model, which reads the
    run's own earlier outputs, and the mean of a distribution. In a rollout of a model
    that samples, every mask uses the random numbers that the item alone would use.

    Args:
        run: the forecast to explain.
        segments: stretches or additive parts of the item's input.
        keep: (mask, segment) whether a segment is shown.
        reference: values of masked steps: one of :data:`REFERENCES`, a dict with one
            for each role ("target", "past", "known"), or (time + horizon,) for each
            series.
        item: one of the run's batch, by position or name.
        target: one of the item's targets, by position or name.
        seed: of a shuffled reference.
        progress: called with the masks done and their number.

    Returns:
        (mask, quantile, step), in data units. Means and expected values stand as one
        quantile, 0.5.

    Raises:
        InputError: segments, masks or the reference do not fit the item; the model
            cannot forecast the visible rest.
        UnknownNameError: no such reference, item or target.

    Example:
        >>> parts = explain.segments(driven, parts=1)
        >>> keep = [[True, True, True], [True, True, False]]
        >>> explain.forecasts(driven, parts, keep).shape
        (2, 9, 8)
    """
    return Masks(
        run, segments, reference, item=item, target=target, seed=seed, progress=progress
    )(keep)


def list_levels(run: Run) -> tuple[float, ...]:
    """Return the quantile levels of a run's forecasts under masks.

    They are (0.5,) for a model that draws, in one pass, which has an expected value.
    """
    if run.lens.emits == "quantile" or run.rollout:
        return default_levels(run.lens.adapter)
    return (0.5,)


def name_statistic(run: Run) -> str:
    """Return what the forecasts under masks are.

    One of "quantiles", "quantiles of sample paths", "expected value" and "mean".
    """
    by_readout = {"quantile": "quantiles", "token": "expected value"}
    if takes_draws(run):
        return "quantiles of sample paths"
    return by_readout.get(run.lens.emits, "mean")


@dataclass(eq=False)
class Masks:
    """Forecast of one target as a function of its item's visible segments.

    Each mask is run once. Causal models whose adapter allows it (TimesFM 2.5) compute
    the common beginning of several masks once, up to rounding, if the reference has no
    missing values.

    Attributes:
        progress: called with the masks done and their number.
        repeats: number of seeds under which a rollout of a model that draws is run.
        row: position of the target in the item.
    """

    run: Run
    segments: Any = None
    reference: Reference = "mean"
    item: Item = None
    target: int | str = 0
    seed: int = 0
    progress: Progress | None = None
    repeats: int = 1
    row: int = field(init=False)
    # forecasts (quantile, step) by packed mask; init=False, so that replace() begins
    # with an empty cache
    _cache: dict[bytes, np.ndarray] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.run = self.run.item(self.item)
        self.row = target_row(self.run.batch, self.target)
        self.segments: tuple[Segment, ...] = find_segments(
            self.run, 0, self.target, self.segments, self._effects_alone
        )
        check_segments(self.segments, self.batch, self.run.horizon)

    def _effects_alone(
        self, segments: tuple[Segment, ...], positions: Sequence[int]
    ) -> np.ndarray:
        """Return how far hiding some segments, each alone, moves the median."""
        masks = replace(self, segments=segments, item=0, repeats=1, progress=None)
        count = len(segments)
        hidden = ~np.eye(count, dtype=bool)[list(positions)]
        keep = np.concatenate([np.ones((1, count), bool), hidden])
        values = masks(keep)[:, self.middle]
        return np.asarray(np.abs(values[1:] - values[0]).mean(-1))

    @cached_property
    def batch(self) -> SeriesBatch:
        """Series of the item, categories as the numbers that the model reads."""
        # a mask may leave a category out of the context, and the library would then
        # number the others anew
        return self.run.lens.adapter.numbered(self.run.batch)

    @property
    def name(self) -> str:
        """Name of the target."""
        return self.run.batch.ids[self.row]

    @property
    def units(self) -> str:
        """Units of the target."""
        return self.run.batch.units[self.row]

    @cached_property
    def stands(self) -> tuple[np.ndarray, ...]:
        """Values that replace each series where it is masked, (time + horizon,)."""
        series = self.run.batch
        tables = category_numbers(self.run.lens, series)
        rows = reference_rows(series, self.reference, self.run.horizon, self.seed)
        return tuple(
            in_numbers(codes, series, row, tables) for row, codes in enumerate(rows)
        )

    def masked(self, keep: Any) -> MaskedBatch:
        """Mask the series of the item.

        Args:
            keep: (mask, segment) whether a copy shows a segment.

        Returns:
            Copies of the item, mask by mask.
        """
        return masked(
            self.batch, self.segments, keep, self.stands, horizon=self.run.horizon
        )

    @cached_property
    def mask(self) -> str:
        """What the model does with missing values; see :func:`mask_seen`."""
        return mask_seen(self.run.lens, self.batch)

    @cached_property
    def middle(self) -> int:
        """Position of the quantile that is nearest to the median."""
        return int(np.argmin(np.abs(np.array(list_levels(self.run)) - 0.5)))

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Forecasts with all segments and with none of them visible, (quantile, step).

        Both are means over seeds.
        """
        both = np.repeat([[True], [False]], len(self.segments), axis=1)
        full, nothing = np.mean([seeded(both) for seeded in self.per_seed], axis=0)
        # only of quantile models: those of others have another statistic here than in
        # the run, or other random numbers
        if self.run.lens.emits == "quantile":
            gap = np.abs(full - self.run.forecast.quantiles[self.row]).max()
            # this bound is cheap, while that of the check takes one more forecast
            if gap > _FAR * forecast_rounding(self.run)[self.row]:
                self._check_same_forecast(gap)
        return full, nothing

    def _check_same_forecast(self, gap: float) -> None:
        """Raise InputError if a forecast is farther off than rounding moves it."""
        bound = _FAR * float(measured_rounding(self.run)[self.row])
        # written so that NaN is refused, too
        if not gap <= bound:
            raise InputError(
                f"the forecast of {self.name!r} is {gap:.3g} off the run's, where"
                f" rounding moves it by up to {bound:.3g}; explain whole items"
            )

    @cached_property
    def per_seed(self) -> tuple[Masks, ...]:
        """This object and copies of it under further seeds, ``repeats`` in all.

        Where nothing is drawn it is this object alone.
        """
        if self.repeats < 2 or not takes_draws(self.run):
            return (self,)
        seeds = [self]
        while len(seeds) < self.repeats:
            # repeats=1, as else each copy would make copies of its own
            seeds.append(replace(self, run=seeds[-1].run.redraw(), item=0, repeats=1))
        return tuple(seeds)

    @property
    def relative_cost(self) -> int:
        """Number of single passes that one forecast costs, at most."""
        if self.run.rollout:
            return self.run.lens.adapter.relative_cost(self.run.horizon)
        return 1

    @property
    def made(self) -> int:
        """Number of forecasts so far."""
        return len(self._cache)

    def __call__(self, keep: Any) -> np.ndarray:
        """Compute forecasts (mask, quantile, step) of masks (mask, segment)."""
        # cached forecasts hold only for the model and hooks that the run was made with
        self.run.check_unchanged()
        visible = checked_keep(keep, len(self.segments))
        keys = [row.tobytes() for row in np.packbits(visible, axis=1)]
        # a mask that is asked for twice is run once
        new = {key: index for index, key in enumerate(keys) if key not in self._cache}
        missing = np.array([*new.values()], int)
        if self._shares:
            # sorted so that masks that begin alike are in one chunk; the last key of
            # lexsort(), which is the oldest segment, counts most
            newest_first = np.argsort([part.start for part in self.segments])[::-1]
            missing = missing[np.lexsort(visible[missing][:, newest_first].T)]
        n_steps = max(self.batch.lengths) + self.run.horizon
        largest = max(1, _NUMBERS // (len(self.batch) * n_steps))
        # -(-a // b) rounds up; equal chunks leave no small last one
        n_chunks = max(1, -(-len(missing) // largest))
        size = max(1, -(-len(missing) // n_chunks))
        for first in range(0, len(missing), size):
            chunk = missing[first : first + size]
            new_keys = [keys[index] for index in chunk]
            values = self._forecast(visible[chunk])
            self._cache |= zip(new_keys, values, strict=True)
            if self.progress is not None:
                self.progress(first + len(chunk), len(missing))
        return np.stack([self._cache[key] for key in keys])

    def _forecast(self, visible: np.ndarray) -> np.ndarray:
        """Compute forecasts (mask, quantile, step) without the cache."""
        run = self.run
        self._check_rest_visible(visible)
        batch = self.masked(visible)
        if takes_draws(run):
            # before the next case, which is of models that draw, in one pass
            quantiles = _rollouts(run, batch, len(self.batch))
        elif run.lens.emits != "quantile":
            quantiles = _forwards(run, batch, len(visible))
        elif self._shares:
            quantiles = _in_prefixes(run, batch, self._prefixes(visible))
        else:
            quantiles = run.lens.forecast(batch, run.horizon, seed=run.seed).quantiles
        # (mask · series, quantile, step), mask by mask, as masked() orders the copies
        by_mask = quantiles.reshape(len(visible), len(self.batch), *quantiles.shape[1:])
        values = by_mask[:, self.row]
        forecast_exists = np.isfinite(values).all((1, 2))
        if not forecast_exists.all():
            hidden = [
                self.segments[index].name
                for index in np.flatnonzero(~visible[forecast_exists.argmin()])
            ]
            raise InputError(
                f"{run.lens.wiring.architecture} forecasts no value with"
                f" {', '.join(hidden[:3])} masked; choose another reference, such as"
                " 'mean' or 'seasonal naive'"
            )
        return values

    @cached_property
    def _shares(self) -> bool:
        """True if the model can compute the common beginning of several masks once.

        For that, no input of an early token may depend on a later step.
        """
        lens = self.run.lens
        series = self.batch
        full = [*series.values, *self.stands]
        # Not with hooks, which would see shared rows once and not for each mask. Not
        # with several series, which the model may read together.
        alone = len(series) == 1 and not lens.registry.in_use
        return (
            alone
            and hasattr(lens.adapter, "sharing")
            # the library fills a gap from both sides, so also from later steps
            and not any(np.isnan(values).any() for values in full)
        )

    def _prefixes(self, visible: np.ndarray) -> np.ndarray:
        """Return numbers of the beginnings of masks, (mask, token).

        Masks with the same number at a token show the same up to the end of the token.
        """
        columns = []
        # the first edge is where the oldest token begins; each other one ends a token
        for stop in token_edges(self.run)[1:]:
            before = [
                index for index, part in enumerate(self.segments) if part.start < stop
            ]
            if before:
                bits = np.packbits(visible[:, before], axis=1)
            else:
                bits = np.zeros((len(visible), 1), np.uint8)
            _, number = np.unique(bits, axis=0, return_inverse=True)
            columns.append(number.reshape(-1))
        return np.stack(columns, axis=1)

    def _check_rest_visible(self, visible: np.ndarray) -> None:
        """Raise InputError if a mask leaves no value from which gaps can be filled.

        That concerns models without a mask of their own, whose library fills the gaps
        of a series from its other values.
        """
        for row, name in enumerate(self.batch.ids):
            # only the reference "missing" is NaN throughout; models with a mask of
            # their own need nothing to fill from
            if not np.isnan(self.stands[row]).all() or self.mask == OWN_MASK:
                continue
            columns = [
                index
                for index, part in enumerate(self.segments)
                # an additive part is subtracted from values, and makes no gap
                if part.row == row and part.values is None
            ]
            n_in_segments = sum(len(self.segments[index]) for index in columns)
            rest_visible = n_in_segments < self.batch.lengths[row]
            if columns and not rest_visible and not visible[:, columns].any(1).all():
                raise InputError(
                    f"{self.run.lens.wiring.architecture} has no mask: its library"
                    f" fills gaps by {self.mask}, and of {name!r} nothing would be left"
                    " to fill from; choose reference='mean' or 'seasonal naive'"
                )


def takes_draws(run: Run) -> bool:
    """Test if the run's forecast comes from sample paths, and not from one forward."""
    return run.rollout and run.lens.emits != "quantile"


def _rollouts(run: Run, batch: MaskedBatch, rows: int) -> np.ndarray:
    """Return quantiles of sample paths, (series, quantile, step).

    ``rows`` is the number of series of one copy. Every copy draws the random numbers
    that the item alone would draw.
    """
    request = check_request(
        run.lens, batch, run.horizon, list_levels(run), run.num_samples, run.seed
    )
    # as many whole copies as fit into the largest part that plan() makes
    largest = max(stop - start for start, stop in plan(request))
    size = max(1, largest // rows) * rows
    parts = []
    for first in range(0, len(batch), size):
        stop = min(first + size, len(batch))
        drawing = request.drawing(
            # each copy is the first of a batch of one item, under the item's seed
            [Piece(request.seed, 1, 0, 1)] * ((stop - first) // rows)
        )
        parts.append(forecast_part(request, first, stop, drawing=drawing).quantiles)
    return np.concatenate(parts)


def _in_prefixes(run: Run, batch: MaskedBatch, prefixes: np.ndarray) -> np.ndarray:
    """Return the library's own forecast, common beginnings of masks only once.

    ``prefixes`` (row, token) are those of :meth:`Masks._prefixes`. Returns (series,
    quantile, step).
    """
    lens = run.lens
    request = check_request(lens, batch, run.horizon, seed=run.seed)
    parts = []
    with lens.registry.attach():
        for start, stop in plan(request):
            with lens.adapter.sharing(prefixes[start:stop]):  # type: ignore[attr-defined]
                parts.append(forecast_part(request, start, stop).quantiles)
    return np.concatenate(parts)


def _forwards(run: Run, batch: MaskedBatch, copies: int) -> np.ndarray:
    """Return the expected values or means of one pass, (series, 1, step).

    Token models read the run's own earlier outputs.
    """
    lens = run.lens
    if run.tokens_read:
        # copies stand mask by mask, so the path of all series of the item is repeated
        # as a whole
        encoded = lens.encode(batch, future=np.tile(run.path, (copies, 1)))
    else:
        encoded = lens.encode(batch, horizon=run.horizon)
    outputs = []
    with torch.no_grad():
        for start, stop in forward_ranges(lens, encoded):
            if stop - start == len(batch):
                chunk = encoded
            else:
                chunk = encoded.part(start, stop)
            rows = len(chunk.batch)
            n_parts = math.ceil(rows / _ROWS)
            # parts of whole items, since series of an item may attend to each other
            if n_parts < 2:
                parts = [chunk]
            else:
                ranges = cut(chunk.batch, -(-rows // n_parts))
                parts = [chunk.part(*bounds) for bounds in ranges]
            outputs += [
                # read at once, since logits over the vocabulary are thousands of times
                # larger than forecasts
                run.read(lens.forward(part), part).cpu().double().numpy()
                for part in parts
            ]
    return np.concatenate(outputs)[:, None]


def alone_as_forecast(run: Run, item: Item = None) -> Run:
    """Return one item's run, whose values under masks are the library's forecast.

    For a model that draws, this is the rollout of sample paths, with the random numbers
    that the item alone would use.
    """
    alone = origin = run.item(item)
    if alone.lens.emits == "quantile":
        return alone
    # item() may select from a selection, and random numbers depend on the batch of the
    # first run
    while origin._of is not None:
        origin = origin._of[0]
    is_alone = len(origin.batch) == len(alone.batch)
    # _of=None: or the item would take its rows from the forecast of the whole batch,
    # where its random numbers depend on its position
    return (alone if is_alone else replace(alone, _of=None)).as_rollout()


def draw_attrs(run: Run, row: int) -> dict[str, object]:
    """Return the attributes that results of sample paths have; none for other results.

    They are the number of paths, and how far the median at a step moves with others.
    """
    if not takes_draws(run):
        return {}
    distance = np.abs(
        run.redraw().forecast.median[row] - run.forecast.median[row]
    ).mean()
    return {
        "num_samples": run.num_samples or run.lens.adapter.samples,
        "redraw": float(distance),
    }


def single_pass(run: Run) -> Run:
    """Return the run in one pass, if its model draws samples or takes several passes.

    It has as many steps as one pass has. Every later pass would run all quantile paths
    for each component, at several times the cost of the first.
    """
    if takes_draws(run) or run.rollout:
        return run.shortened(run.lens.longest_pass).in_one_pass()
    return run
