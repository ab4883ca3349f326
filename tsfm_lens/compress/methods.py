"""Four methods of compression, to a share, a threshold or a rank, and ranks by what each does to the forecast."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.ablation.points import Progress
from tsfm_lens.compress.layers import Factors, LowRankLinear, replace_layer
from tsfm_lens.compress.matrices import factorised, factors_of, matrices, matrices_by_name
from tsfm_lens.compress.moments import output_sensitivity, second_moments
from tsfm_lens.compress.schedule import BlockShape, ranks_by_epsilon, ranks_by_share
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

__all__ = ["METHODS", "calibration_run", "chosen_ranks", "compressed", "deviation"]

# shares of the full rank at which a matrix is tried
SHARES = (1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8)


def deviation(run: Run, output: Tensor) -> np.ndarray:
    """Compute the distance of a forward's output from the plain model's, (series,), 0 or more.

    Of a token model the Kullback-Leibler divergence of its distribution from the plain one, in nats; of all others the
    mean square over quantiles and steps, in units of the variance of the context.

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
    by_head: bool = False,
    progress: Progress | None = None,
) -> dict[str, dict[int, float]]:
    """Measure the deviation of the forecast with one matrix truncated, by name and rank; a mean over series."""
    by_name = matrices_by_name(run.lens, candidates)
    twin = copy.deepcopy(run.lens)
    model = twin.adapter.model
    effects: dict[str, dict[int, float]] = {}
    for count, (name, ranks) in enumerate(candidates.items()):
        matrix, full = by_name[name], by_name[name].form(by_head=by_head).full
        layer = model.get_submodule(matrix.path)
        moment = None if moments is None else moments[name]
        smaller = [rank for rank in ranks if rank < full]
        # the factors of smaller ranks begin as those of the largest
        widest = factors_of(run.lens, matrix, max(smaller), moment, None, by_head) if smaller else None
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
    """Choose the ranks of least summed effect that fit a budget of numbers, by marginal effect per number."""
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
    by_head: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Choose ranks that take no more than given ones and move the forecast least, or those, if they move it less."""
    by_name = matrices_by_name(run.lens, uniform)
    forms = {name: by_name[name].form(by_head=by_head) for name in uniform}
    candidates = {name: _candidates(forms[name], rank) for name, rank in uniform.items()}
    effects = rank_effects(run, candidates, moments=moments, by_head=by_head, progress=progress)
    budget = sum(forms[name].stored(rank) for name, rank in uniform.items())
    ranks, _ = allocate(effects, forms, budget)
    models = [factorised(run.lens, choice, moments=moments, by_head=by_head) for choice in (ranks, uniform)]
    together = [_mean_deviation(run, model) for model in models]
    return dict(uniform) if together[1] < together[0] else ranks


def _candidates(form: BlockShape, rank: int) -> list[int]:
    """List the ranks to try: shares of the full one, the given one and its neighbours, and the whole."""
    ranks = {max(1, round(share * form.full)) for share in SHARES}
    ranks |= {rank, max(1, rank // 2), rank + rank // 2, 2 * rank}
    # at and above this rank the matrix itself takes no more
    return sorted({each for each in ranks if form.factors(each) < form.numbers} | {form.full})


METHODS = ("svd", "weighted", "sensitive", "measured")
"""Plain truncation; weighted by what enters; by the sensitivity to what leaves, too; weighted by what enters, with
ranks by the deviation of the forecast that each matrix causes."""


def calibration_run(run: Run) -> Run:
    """Run the same series one horizon earlier, within one pass, to calibrate a model that sees nothing of the truth.

    Series too short for that are forecast as they are.

    Example:
        >>> earlier = compress.calibration_run(run)
        >>> earlier.horizon == run.horizon, earlier.batch.lengths[0] == run.batch.lengths[0] - run.horizon
        (True, True)
    """
    steps = min(run.horizon, run.lens.adapter.longest_pass)
    if min(run.batch.lengths) <= 2 * steps:
        return run.lens.run(run.batch, steps, seed=run.seed)
    batch, ends = run.batch.split(steps)
    forced_path = ends if run.tokens_read and np.isfinite(ends).all() else None
    return run.lens.run(batch, steps, truth=ends, forced_path=forced_path, seed=run.seed)


def chosen_ranks(
    lens: Lens,
    *,
    keep: float | None = None,
    epsilon: float | None = None,
    rank: int | None = None,
    of: Literal["rank", "parameters"] = "rank",
    mlps: bool = False,
    by_head: bool = False,
) -> dict[str, int]:
    """Choose ranks of all matrices by one number; InputError for none, several, or one out of range.

    Args:
        keep: share, above 0 and at most 1, of every matrix's rank, rounded, at least 1; or of its entries, see ``of``.
        of: "rank", or "parameters" for the largest rank whose factors have at most that share of the entries.
        epsilon: see :func:`ranks_by_epsilon`.
        rank: the same for all.
        mlps: the matrices of MLPs, too.
        by_head: ranks are those of each head.

    Example:
        >>> set(compress.chosen_ranks(lens, rank=3).values())
        {3}
    """
    if sum(value is not None for value in (keep, epsilon, rank)) != 1:
        raise InputError(f"keep={keep}, epsilon={epsilon}, rank={rank}; give exactly one of the three")
    by_name = matrices(lens, mlps=mlps)
    forms = {name: matrix.form(by_head=by_head) for name, matrix in by_name.items()}
    if keep is not None:
        return ranks_by_share(forms, keep, of=of)
    if rank is not None:
        if rank < 1:
            raise InputError(f"rank {rank}; expected 1 or more")
        return {name: min(rank, form.full) for name, form in forms.items()}
    assert epsilon is not None
    if not 0 < epsilon < 1:
        # refused before spectra are computed
        raise InputError(f"epsilon is {epsilon}, expected above 0 and below 1")
    spectra = {}
    for name, matrix in by_name.items():
        exact = parameters(lens.adapter.model, matrix.path)[0].detach().double()
        side = 1 if forms[name].blocks > 1 and matrix.of == "columns" else 0
        blocks = torch.stack(exact.chunk(forms[name].blocks, dim=side))
        spectra[name] = torch.linalg.svdvals(blocks).cpu().numpy()
    return ranks_by_epsilon(spectra, epsilon)


def compressed(
    run: Run,
    keep: float | None = None,
    *,
    epsilon: float | None = None,
    rank: int | None = None,
    method: str = "measured",
    of: Literal["rank", "parameters"] = "rank",
    mlps: bool = False,
    by_head: bool = False,
    progress: Progress | None = None,
) -> tuple[Lens, dict[str, int]]:
    """Compress a model to less rank.

    Args:
        run: the whole model on calibration series, over a horizon of one pass; "svd" does not look at them.
        keep, epsilon, rank, of, mlps, by_head: as in :func:`chosen_ranks`; one of the first three.
        method: "svd", "weighted", "sensitive" or "measured", which spreads what these ranks take by what each matrix
            does to the forecast.
        progress: called with the matrices measured and their number.

    Returns:
        The model, and the rank of every matrix that may be truncated, by name.

    Raises:
        UnknownNameError: no such method.

    Example:
        >>> smaller, ranks = compress.compressed(run, 0.25, method="svd")
        >>> compress.sizes(smaller)["attention"] / compress.sizes(lens)["attention"]
        0.5
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    ranks = chosen_ranks(run.lens, keep=keep, epsilon=epsilon, rank=rank, of=of, mlps=mlps, by_head=by_head)
    moments = None if method == "svd" else second_moments(run, ranks)
    sensitivity = output_sensitivity(run, ranks) if method == "sensitive" else None
    if method == "measured":
        ranks = allocated(run, ranks, moments=moments, by_head=by_head, progress=progress)
    name = f"{run.lens.model_id} ({method})"
    return factorised(run.lens, ranks, moments=moments, sensitivity=sensitivity, by_head=by_head, name=name), ranks
