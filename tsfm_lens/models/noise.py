"""What a run's forecast is uncertain by, before anything is changed in the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tsfm_lens.hooks import sums
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

Measure = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Two forecasts (series, step) -> how far they are apart, (series,)."""

# every library scales series in float32 or better
_OUTER = torch.finfo(torch.float32).eps


def rounding(run: Run, plain: np.ndarray) -> np.ndarray:
    """How far rounding may move the forecasts ``plain`` (series, step) of a run, in data units, (series,).

    4 roundings in float32 of the largest value of context and forecast, for scaling in and out again, and, for what
    happens between, the square root of 100 roundings per block, in the precision of the weights, of the range of both.

    Source:
        Higham and Mary 2019, A new approach to probabilistic rounding error analysis: n independent roundings add up
        to about the square root of n, not to n.
    """
    inner = relative_rounding(run.lens)
    bounds = np.empty(len(run.batch))
    for row, context in enumerate(run.batch.values):
        known = np.concatenate([np.ravel(context), plain[row]]).astype(float)
        known = known[np.isfinite(known)]
        bounds[row] = 4 * _OUTER * np.abs(known).max(initial=0.0)
    return bounds + inner * ranges(run, plain)


def own_rounding(run: Run) -> np.ndarray:
    """The :func:`rounding` of the run's own point forecast, computed once."""
    known: np.ndarray | None = run.__dict__.get("_own_rounding")
    if known is None:
        known = run.__dict__["_own_rounding"] = rounding(run, run.point)
    return known


def relative_rounding(lens: Lens) -> float:
    """How far rounding may move a number that a forward ends in, relative to the size of what it is made of."""
    return sums.relative_rounding(lens.adapter.model, lens.wiring)


def ranges(run: Run, plain: np.ndarray) -> np.ndarray:
    """Largest less smallest value of each context and its forecast in ``plain`` (series, step), data units, (series,).

    What changes of a forecast are held against.
    """
    spread = np.zeros(len(run.batch))
    for row, context in enumerate(run.batch.values):
        known = np.concatenate([np.ravel(context), plain[row]]).astype(float)
        known = known[np.isfinite(known)]
        spread[row] = np.ptp(known) if known.size else 0.0
    return spread


def told_apart(run: Run, forecasts: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """Forecasts (…, series, step), replaced by ``plain`` (series, step) where they differ by rounding alone."""
    same = np.abs(forecasts - plain).max(-1) <= rounding(run, plain)
    return np.where(same[..., None], plain, forecasts)


def noise_floor(run: Run, measure: Measure) -> np.ndarray:
    """What a comparison of two forecasts gives when nothing in the model was changed, (series,).

    In rollouts of a sampling model, two seeds of the unchanged model are compared; they differ by more than two
    variants that draw the same random numbers, so that the floor errs on the safe side. Everything else takes no draw,
    and what is left is rounding: the forecast is held against itself with every step off by as much, all to one side
    or in turn to either, whichever the comparison minds more.

    Args:
        run: whose forecast variants are compared with.
        measure: of forecasts (series, step) and the plain one (series, step), (series,) from 0 on.
    """
    plain = run.point
    if run.rollout and run.forecast.samples is not None:
        return measure(run.redrawn.forecast.median, plain)
    off = own_rounding(run)[:, None]
    turn = np.where(np.arange(run.horizon) % 2, 1.0, -1.0)
    return np.fmax(measure(plain + off * turn, plain), measure(plain + off, plain))


def share_floor(run: Run, way: np.ndarray) -> np.ndarray:
    """The :func:`noise_floor` of a share of the way from the run's forecast to another, 1 being all of it, (…, series).

    A projection of noise may come out small by chance; so it is taken for no smaller than steps that err by themselves
    would make it.

    Args:
        run: whose forecast the way begins at.
        way: (…, series, step), data units.
    """
    length = np.square(way).sum(-1)

    def share(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        along = (other - plain) * way
        size = np.fmax(np.abs(along.sum(-1)), np.sqrt(np.square(along).sum(-1)))
        return np.divide(size, length, out=np.full(length.shape, np.inf), where=length > 0)

    return noise_floor(run, share)
