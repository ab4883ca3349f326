"""Ranks across matrices under one budget, by the deviation of the forecast with each matrix truncated alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.ablation.points import Progress
from tsfm_lens.compress.factors import Factors
from tsfm_lens.compress.layers import LowRankLinear, replace_layer
from tsfm_lens.compress.matrices import factorised, factors_of, matrices_by_name
from tsfm_lens.compress.schedule import BlockShape
from tsfm_lens.errors import InputError
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

__all__ = ["Allocation", "allocate", "allocated", "deviation", "rank_effects"]

# shares of the full rank at which a matrix is tried
SHARES = (1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8)


@dataclass(frozen=True)
class Allocation:
    """Choice of ranks, and the deviations that were measured of it.

    Attributes:
        ranks: by name of the matrix.
        expected: sum of the deviations that each matrix causes alone.
        deviation: with all of them truncated; uniform: the same with ``uniform_ranks``, one share for all.
        effects: by name and rank, the deviation with that matrix alone truncated.
    """

    ranks: dict[str, int]
    expected: float
    deviation: float
    uniform: float
    uniform_ranks: dict[str, int]
    effects: dict[str, dict[int, float]]


def deviation(run: Run, output: Tensor) -> np.ndarray:
    """Compute the distance of a forward's output from the plain model's, (series,), 0 or more.

    Of a token model the Kullback-Leibler divergence of its distribution from the plain one, in nats, a mean over steps.
    Of all others the mean square over quantiles and steps, in units of the variance of the context.

    Args:
        run: of the plain model.
        output: of the other model on the run's encoded batch.

    Example:
        >>> bool(compress.deviation(run, lens.forward(run.encoded)).max() < 1e-6)
        True
    """
    if "plain output" not in run.cache:
        with torch.no_grad():
            run.cache["plain output"] = run.lens.adapter.run(run.encoded.inputs)
    plain = run.cache["plain output"].double()
    other = output.detach().double()
    if run.tokens_read:
        log_p, log_q = plain.log_softmax(-1), other.log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1).mean(-1).cpu().numpy()
    spread = np.array([np.nanvar(series) for series in run.batch.values])
    apart = (other - plain)[..., : run.horizon].square().mean(dim=(1, 2)).cpu().numpy()
    return np.asarray(apart / np.where(spread > 0, spread, 1.0))


def rank_effects(
    run: Run,
    candidates: Mapping[str, Sequence[int]],
    *,
    moments: Mapping[str, Tensor] | None = None,
    sensitivity: Mapping[str, Tensor] | None = None,
    by_head: bool = False,
    progress: Progress | None = None,
) -> dict[str, dict[int, float]]:
    """Measure the deviation of the forecast with one matrix truncated, by name and rank; a mean over series.

    It takes one forward for each matrix and rank. A full rank is 0 by definition.

    Args:
        run: the plain model on the calibration series, over a horizon of one pass.
        candidates: by name, the ranks to try.
        moments, sensitivity, by_head: as in :func:`factorised`.
        progress: called with the matrices done and their number.

    Raises:
        InputError: as in :func:`factorised`.

    Example:
        >>> effects = compress.rank_effects(run, {"encoder_blocks.0.self_attn.v": [1, 48]})
        >>> effects["encoder_blocks.0.self_attn.v"][1] > effects["encoder_blocks.0.self_attn.v"][48]
        True
    """
    by_name = matrices_by_name(run.lens, candidates)
    twin = copy.deepcopy(run.lens)
    model = twin.adapter.model
    effects: dict[str, dict[int, float]] = {}
    for count, (name, ranks) in enumerate(candidates.items()):
        matrix, full = by_name[name], by_name[name].form(by_head=by_head).full
        layer = model.get_submodule(matrix.path)
        inner, outer = (None if each is None else each[name] for each in (moments, sensitivity))
        smaller = [rank for rank in ranks if rank < full]
        # the factors of smaller ranks begin as those of the largest
        widest = factors_of(run.lens, matrix, max(smaller), inner, outer, by_head) if smaller else None
        effects[name] = dict.fromkeys(ranks, 0.0)
        for rank in smaller:
            assert widest is not None
            replace_layer(model, matrix.path, LowRankLinear(_leading(widest, rank), layer.bias, matrix.gain))
            effects[name][rank] = _mean_deviation(run, twin)
        parent, _, last = matrix.path.rpartition(".")
        setattr(model.get_submodule(parent), last, layer)
        if progress is not None:
            progress(count + 1, len(candidates))
    return effects


def _mean_deviation(run: Run, other: Lens) -> float:
    with torch.no_grad():
        return float(deviation(run, other.adapter.run(run.encoded.inputs)).mean())


def _leading(factors: Factors, rank: int) -> Factors:
    """Keep the leading directions of each block."""
    down, up = factors
    if up.ndim == 3:
        return Factors(down.reshape(len(up), -1, down.shape[-1])[:, :rank].flatten(0, 1), up[..., :rank].contiguous())
    if down.ndim == 3:
        return Factors(down[:, :rank].contiguous(), up.reshape(len(up), len(down), -1)[..., :rank].flatten(1))
    return Factors(down[:rank].contiguous(), up[:, :rank].contiguous())


def allocate(
    effects: Mapping[str, Mapping[int, float]], forms: Mapping[str, BlockShape], budget: int
) -> tuple[dict[str, int], float]:
    """Choose the ranks of least summed effect that fit a budget of numbers, by marginal effect per number.

    The choice is among the ranks that were tried: steps on the lower convex hull of each matrix, by falling effect per
    number, as long as they fit. It is off the best one by less than the step that did not fit.

    Args:
        effects: of each matrix, by rank.
        forms: of the matrices.
        budget: numbers that may be stored.

    Returns:
        Rank by name, and the sum of their effects.

    Raises:
        InputError: not even the smallest ranks fit.

    Example:
        >>> forms = {"a": compress.BlockShape(1, 8, 8), "b": compress.BlockShape(1, 8, 8)}
        >>> compress.allocate({"a": {1: 9.0, 2: 1.0}, "b": {1: 2.0, 2: 1.0}}, forms, 48)
        ({'a': 2, 'b': 1}, 3.0)
    """
    points = {
        name: _hull([(forms[name].stored(rank), effect, rank) for rank, effect in of.items()])
        for name, of in effects.items()
    }
    positions = dict.fromkeys(points, 0)
    spent = sum(hull[0][0] for hull in points.values())
    if spent > budget:
        raise InputError(
            f"no rank meets a budget of {budget:,} numbers: the smallest ranks that were tried take {spent:,}; give "
            "that or more"
        )
    steps = [
        (_slope(before, after), name, place)
        for name, hull in points.items()
        for place, (before, after) in enumerate(pairwise(hull), 1)
    ]
    for _, name, place in sorted(steps, key=lambda step: -step[0]):
        cost = points[name][place][0] - points[name][place - 1][0]
        if positions[name] == place - 1 and spent + cost <= budget:
            positions[name], spent = place, spent + cost
    selection = {name: points[name][place] for name, place in positions.items()}
    return {name: point[2] for name, point in selection.items()}, float(sum(point[1] for point in selection.values()))


def _hull(points: Sequence[tuple[int, float, int]]) -> list[tuple[int, float, int]]:
    """Return the points (cost, effect, rank) of falling effect on the lower convex hull, by cost."""
    hull: list[tuple[int, float, int]] = []
    for point in sorted(points):
        if hull and point[1] >= hull[-1][1]:
            continue
        if hull and point[0] == hull[-1][0]:
            hull.pop()
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(before: tuple[int, float, int], after: tuple[int, float, int]) -> float:
    return (before[1] - after[1]) / (after[0] - before[0])


def allocated(
    run: Run,
    uniform: Mapping[str, int],
    *,
    moments: Mapping[str, Tensor] | None = None,
    sensitivity: Mapping[str, Tensor] | None = None,
    by_head: bool = False,
    progress: Progress | None = None,
) -> Allocation:
    """Choose ranks of the size of given ones under which the forecast moves least, as far as measured.

    Args:
        run: the plain model on the calibration series, over a horizon of one pass.
        uniform: ranks by name, one share for all; what they take is the budget.
        moments, sensitivity, by_head: as in :func:`factorised`.
        progress: called with the matrices done and their number.

    Returns:
        The greedy choice, or ``uniform`` itself where all together move the forecast less under it.

    Raises:
        InputError: as in :func:`factorised`.

    Example:
        >>> names = [name for name in compress.matrices(lens) if "cross_attn" in name]
        >>> found = compress.allocated(run, dict.fromkeys(names, 4))
        >>> found.deviation <= found.uniform
        True
    """
    by_name = matrices_by_name(run.lens, uniform)
    forms = {name: by_name[name].form(by_head=by_head) for name in uniform}
    candidates = {name: _candidates(forms[name], rank) for name, rank in uniform.items()}
    how: dict[str, Any] = {"moments": moments, "sensitivity": sensitivity, "by_head": by_head}
    effects = rank_effects(run, candidates, **how, progress=progress)
    budget = sum(forms[name].stored(rank) for name, rank in uniform.items())
    ranks, estimate = allocate(effects, forms, budget)
    together = [_mean_deviation(run, factorised(run.lens, choice, **how)) for choice in (ranks, uniform)]
    best = dict(uniform) if together[1] < together[0] else ranks
    return Allocation(best, estimate, min(together), together[1], dict(uniform), effects)


def _candidates(form: BlockShape, rank: int) -> list[int]:
    """List the ranks to try: shares of the full one, the given one and its neighbours, and the whole."""
    ranks = {max(1, round(share * form.full)) for share in SHARES}
    ranks |= {rank, max(1, rank // 2), rank + rank // 2, 2 * rank}
    # at and above this rank the matrix itself takes no more
    return sorted({each for each in ranks if form.factors(each) < form.numbers} | {form.full})
