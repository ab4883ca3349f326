"""What a run's forecast is uncertain by, before anything is changed in the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from tsfm_lens.models.run import Run

# every library scales series in float32 or better
_OUTER = torch.finfo(torch.float32).eps


def rounding(run: Run, plain: np.ndarray) -> np.ndarray:
    """What rounding may do to the forecasts ``plain`` (series, step) of a run, in data units, (series,).

    4 roundings in float32 of the largest value of context and forecast, for scaling in and out again, and, for what
    happens between, the square root of 100 roundings per block, in the precision of the weights, of the range of both.

    Source:
        Higham and Mary 2019, A new approach to probabilistic rounding error analysis: n independent roundings add up
        to about the square root of n, not to n.
    """
    blocks = sum(stack.n_layers for stack in run.lens.wiring.stacks)
    kinds = {each.dtype for each in run.lens.adapter.model.parameters() if each.is_floating_point()}
    inner = math.sqrt(100 * blocks) * max((torch.finfo(kind).eps for kind in kinds), default=_OUTER)
    found = np.empty(len(run.batch))
    for row, context in enumerate(run.batch.values):
        known = np.concatenate([np.ravel(context), plain[row]]).astype(float)
        known = known[np.isfinite(known)]
        found[row] = 4 * _OUTER * np.abs(known).max(initial=0.0) + inner * (np.ptp(known) if known.size else 0.0)
    return found


def told_apart(run: Run, forecasts: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """Forecasts (…, series, step), with those of ``plain`` (series, step) where only rounding is between them."""
    same = np.abs(forecasts - plain).max(-1) <= rounding(run, plain)
    return np.where(same[..., None], plain, forecasts)


def noise_floor(run: Run, measure: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """What a comparison of two forecasts gives where nothing was changed in the model, (series,).

    In rollouts of a sampling model, two seeds of the unchanged model are compared; they differ by more than two
    variants that draw the same random numbers, so that the floor errs on the safe side. Everything else takes no draw,
    and what is left is rounding: the forecast is held against itself with every other step off by as much.

    Args:
        run: whose forecast variants are compared with.
        measure: of forecasts (series, step) and the plain one (series, step), (series,).
    """
    plain = run.point
    if run.rollout and run.forecast.samples is not None:
        return measure(replace(run, seed=run.seed + 1, _of=None).forecast.median, plain)
    turn = np.where(np.arange(run.horizon) % 2, 1.0, -1.0)
    return measure(plain + rounding(run, plain)[:, None] * turn, plain)
