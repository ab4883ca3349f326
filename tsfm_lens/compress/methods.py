"""Four methods of compression, and ranks by their effect on the forecast.

:func:`compressed` is the entry: it chooses ranks by a share, a threshold or one number
with :func:`chosen_ranks`, and truncates a model by one of :data:`METHODS`. The method
"measured" distributes ranks with :func:`allocated`, on folds of series that
:mod:`.moments` makes.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.ablation.points import Progress
from tsfm_lens.compress.layers import Factors, LowRankLinear, replace_layer
from tsfm_lens.compress.matrices import (
    compute_factors,
    factorised,
    matrices,
    matrices_by_name,
)
from tsfm_lens.compress.moments import FOLDS, ITEM, crossed, folds, shortage, weights
from tsfm_lens.compress.schedule import BlockShape, ranks_by_epsilon, ranks_by_share
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

__all__ = ["METHODS", "calibration_run", "chosen_ranks", "compressed", "deviation"]

WINDOWS = 8  # largest number of forecast origins of a series in a calibration
# shares of the full rank at which a matrix is tried
SHARES = (1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8)
# largest number of steps in which a budget of entries is counted
_AMOUNTS = 100_000


def deviation(run: Run, output: Tensor) -> np.ndarray:
    """Compute how far an output is from that of the unchanged model.

    For token models, it is the Kullback-Leibler divergence from the unchanged model's
    distribution, in nats. For all others, it is the mean square over quantiles and
    steps, in units of the variance of the context.

    Args:
        run: the forecast of the unchanged model.
        output: output of a forward of the changed model on ``run.encoded``.

    Returns:
        The deviation, 0 or more, (series,).

    Example:
        >>> bool(compress.deviation(run, lens.forward(run.encoded)).max() < 1e-6)
        True
    """
    if "plain output" not in run.cache:
        with torch.no_grad():
            # kept, since hundreds of candidates may be compared with it
            run.cache["plain output"] = run.lens.adapter.run(run.encoded.inputs)
    plain = run.cache["plain output"].double()
    changed = output.detach().double()
    if run.tokens_read:
        log_p = plain.log_softmax(-1)
        log_q = changed.log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1).mean(-1).cpu().numpy()
    variance = np.array([np.nanvar(series) for series in run.batch.values])
    # (series, quantile, step)
    difference = (changed - plain)[..., : run.horizon]
    mean_square = difference.square().mean(dim=(1, 2)).cpu().numpy()
    return np.asarray(mean_square / np.where(variance > 0, variance, 1.0))


def rank_effects(
    run: Run,
    candidates: Mapping[str, Sequence[int]],
    *,
    by_head: bool = False,
    progress: Progress | None = None,
) -> dict[str, dict[int, float]]:
    """Measure the deviation of the forecast with one matrix truncated.

    Each fold of series is forecast with factors that the other folds calibrate.

    Returns:
        The deviation by name and rank, summed over series.
    """
    by_name = matrices_by_name(run.lens, candidates)
    # layers are replaced below, which the run's own model must not see
    lens = copy.deepcopy(run.lens)
    count = 0
    model = lens.adapter.model
    # the full rank leaves the matrix as it is, so its effect stays 0 without a run
    effects = {name: dict.fromkeys(ranks, 0.0) for name, ranks in candidates.items()}
    for part, fold_weights in crossed(run, candidates):
        moments = fold_weights["moments"]
        # None without gradients
        sensitivities = fold_weights["sensitivity"]
        for name, ranks in candidates.items():
            matrix = by_name[name]
            full = matrix.form(by_head=by_head).full
            layer = model.get_submodule(matrix.path)
            smaller = [rank for rank in ranks if rank < full]
            # the factors of smaller ranks begin as those of the largest, so that one
            # decomposition serves all candidates
            widest = None
            if smaller:
                widest = compute_factors(
                    run.lens,
                    matrix,
                    max(smaller),
                    moments[name],
                    sensitivities and sensitivities[name],
                    by_head,
                )
            for rank in smaller:
                assert widest is not None
                replace_layer(
                    model,
                    matrix.path,
                    LowRankLinear(_leading(widest, rank), layer.bias, matrix.gain),
                )
                effects[name][rank] += _deviation(part, lens)
            replace_layer(model, matrix.path, layer)
            count += 1
            if progress is not None:
                progress(count, FOLDS * len(candidates))
    return effects


def _deviation(run: Run, other: Lens) -> float:
    """Sum the deviation over series."""
    with torch.no_grad():
        return float(deviation(run, other.adapter.run(run.encoded.inputs)).sum())


def _leading(factors: Factors, rank: int) -> Factors:
    """Keep the leading directions of each block."""
    down, up = factors
    if up.ndim == 3:
        return Factors(
            # (head · rank, in) holds the directions of each head one after the other
            down.reshape(len(up), -1, down.shape[-1])[:, :rank].flatten(0, 1),
            up[..., :rank].contiguous(),
        )
    if down.ndim == 3:
        return Factors(
            down[:, :rank].contiguous(),
            # (out, head · rank), likewise
            up.reshape(len(up), len(down), -1)[..., :rank].flatten(1),
        )
    return Factors(down[:rank].contiguous(), up[:, :rank].contiguous())


def allocate(
    effects: Mapping[str, Mapping[int, float]],
    forms: Mapping[str, BlockShape],
    budget: int,
) -> tuple[dict[str, int], float]:
    """Choose the ranks of least summed effect within a budget of entries.

    This is a knapsack problem with one item per matrix, solved by dynamic programming,
    so that the choice is optimal if the budget is at most 100,000 times the greatest
    common divisor of all sizes. For larger budgets, what a rank takes beyond the
    smallest rank of its matrix is rounded up.

    Returns:
        The rank of each matrix, and the summed effect of all.
    """
    sizes = {
        name: [forms[name].stored(rank) for rank in by_rank]
        for name, by_rank in effects.items()
    }
    if (spent := sum(map(min, sizes.values()))) > budget:
        raise InputError(
            f"no rank meets a budget of {budget:,} parameters: the smallest ranks that"
            f" were tried take {spent:,}; give that or more"
        )
    # amounts are counted in steps: exact in the common divisor, coarser only if the
    # table would have more than _AMOUNTS columns
    step = max(
        math.gcd(*(size for row in sizes.values() for size in row)),
        -(-budget // _AMOUNTS),
    )
    # steps that each rank takes beyond the smallest one of its matrix; rounded up, so
    # that the budget is never exceeded
    prices = {
        name: [-(-(size - min(row)) // step) for size in row]
        for name, row in sizes.items()
    }
    left = (budget - spent) // step
    choices = []
    # best[b]: the least summed effect of the matrices so far within b steps beyond
    # their smallest ranks
    best = np.zeros(left + 1)
    for name, by_rank in effects.items():
        table = np.full((len(by_rank), len(best)), np.inf)
        for row, price, effect in zip(
            table, prices[name], by_rank.values(), strict=True
        ):
            row[price:] = best[: max(len(row) - price, 0)] + effect
        # uint8 is enough: a matrix has fewer than 256 candidates
        choices.append(table.argmin(axis=0).astype(np.uint8))
        best = table.min(axis=0)
    ranks: dict[str, int] = {}
    for name, choice in reversed(list(zip(effects, choices, strict=True))):
        # backwards, since what is left for a matrix is known once the later ones are
        # paid
        ranks[name] = list(effects[name])[choice[left]]
        left -= prices[name][choice[left]]
    return {name: ranks[name] for name in effects}, float(best[-1])


def allocated(
    run: Run,
    uniform: Mapping[str, int],
    *,
    by_head: bool = False,
    progress: Progress | None = None,
) -> tuple[dict[str, int], bool]:
    """Choose ranks of least effect, and whether moments weight the truncation.

    The ranks store no more entries in all than the ``uniform`` ones. Three choices are
    measured on folds of series that did not calibrate them: the ranks of least summed
    effect, the uniform ranks, and the uniform ranks without weights.

    Returns:
        The ranks, and True if moments weight the truncation.
    """
    forms = {
        name: matrix.form(by_head=by_head)
        for name, matrix in matrices_by_name(run.lens, uniform).items()
    }
    candidates = {
        name: _candidates(forms[name], rank) for name, rank in uniform.items()
    }
    effects = rank_effects(run, candidates, by_head=by_head, progress=progress)
    budget = sum(forms[name].stored(rank) for name, rank in uniform.items())
    ranks, _ = allocate(effects, forms, budget)
    # single effects need not add up, so the choice is measured as a whole against
    # plainer ones
    choices = ((ranks, True), (dict(uniform), True), (dict(uniform), False))
    deviations = np.zeros(3)
    for part, fold_weights in crossed(run, uniform):
        for index, (choice, weighted) in enumerate(choices):
            options = fold_weights if weighted else {}
            smaller = factorised(run.lens, choice, by_head=by_head, **options)
            deviations[index] += _deviation(part, smaller)
    return choices[int(deviations.argmin())]


def _candidates(form: BlockShape, rank: int) -> list[int]:
    """List the ranks to try for a matrix.

    These are shares of the full rank, the given rank and its neighbours, and the full
    rank itself.

    Returns:
        Ranks, from the smallest on.
    """
    ranks = {max(1, round(share * form.full)) for share in SHARES}
    ranks |= {rank, max(1, rank // 2), rank + rank // 2, 2 * rank}
    # ranks whose factors store as many entries as the matrix save nothing
    return sorted(
        {tried for tried in ranks if form.factors(tried) < form.numbers} | {form.full}
    )


METHODS = ("svd", "weighted", "sensitive", "measured")
"""Methods of truncation.

"svd" is plain; "weighted" weights by the inputs of a matrix, "sensitive" also by the
gradient at its output. "measured" chooses ranks by how much the forecast deviates on
series that did not give the factors.
"""


def calibration_run(run: Run, windows: int = WINDOWS) -> Run:
    """Run the same series from earlier origins, within one pass.

    Calibration thus does not see the truth. Origins are one horizon apart; the last is
    one horizon before the run's. A series has at most ``windows`` of them, and all but
    its last have a context of two horizons or more. A batch with a series too short for
    one origin is forecast unchanged.

    Args:
        run: the run that measures.
        windows: most origins of a series, 1 or more.

    Returns:
        The run from earlier origins, with their truth.

    Raises:
        InputError: ``windows`` is below 1.

    Example:
        >>> earlier = compress.calibration_run(run, windows=2)
        >>> earlier.horizon == run.horizon, len(earlier.batch) == 2 * len(run.batch)
        (True, True)
    """
    steps = min(run.horizon, run.lens.adapter.longest_pass)
    if windows < 1:
        raise InputError(f"windows={windows}: expected 1 or more")
    if run.full_batch is None:
        batch = run.batch
    else:
        batch = run.full_batch.split(run.horizon)[0]
    if min(batch.lengths) <= 2 * steps:
        return run.lens.run(run.batch, steps, seed=run.seed)
    parts = list[SeriesBatch]()
    futures = list[np.ndarray]()
    while len(parts) < windows:
        rows = [
            row
            for row, length in enumerate(batch.lengths)
            # the first window was checked above; later ones need one horizon of future
            # and two of context
            if length >= 3 * steps or not parts
        ]
        if not rows:
            break
        # each turn cuts one horizon off what the last one left, so that windows do not
        # overlap in their futures
        batch, future = batch.select(rows).split(steps)
        ids, groups = (
            [f"{name} {len(parts) + 1} earlier" for name in names]
            for names in (batch.ids, batch.groups)
        )
        static = [
            {**properties, ITEM: properties.get(ITEM, group)}
            for properties, group in zip(batch.static, batch.groups, strict=True)
        ]
        parts.append(
            replace(batch, ids=tuple(ids), groups=tuple(groups), static=tuple(static))
        )
        futures.append(future)
    truth = np.concatenate(futures)
    forced_path = None
    if run.tokens_read and np.isfinite(truth).all():
        forced_path = truth
    return run.lens.run(
        SeriesBatch.concat(parts),
        steps,
        truth=truth,
        forced_path=forced_path,
        seed=run.seed,
    )


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
    """Choose ranks of all matrices by one number.

    Args:
        lens: the model.
        keep: share, above 0 and at most 1, of every matrix's rank, rounded, at least 1;
            or of its entries, if ``of`` is "parameters".
        epsilon: above 0 and below 1: the numerical rank, at which the error of a
            truncated matrix is at most this share of its spectral norm.
        rank: the same for all.
        of: "rank", or "parameters" for the largest rank whose factors have at most that
            share of the entries.
        mlps: the matrices of MLPs, too.
        by_head: ranks are those of each head.

    Returns:
        Ranks by name of the matrix.

    Raises:
        InputError: none or several of ``keep``, ``epsilon`` and ``rank`` are given, or
            one is out of range.

    Example:
        >>> set(compress.chosen_ranks(lens, rank=3).values())
        {3}
    """
    if sum(value is not None for value in (keep, epsilon, rank)) != 1:
        raise InputError(
            f"keep={keep}, epsilon={epsilon}, rank={rank}; give exactly one of the"
            " three"
        )
    by_name = matrices(lens, mlps=mlps)
    forms = {name: matrix.form(by_head=by_head) for name, matrix in by_name.items()}
    if keep is not None:
        return ranks_by_share(forms, keep, of=of)
    if rank is not None:
        if rank < 1:
            raise InputError(f"rank {rank}; expected 1 or more")
        return {name: min(rank, form.full) for name, form in forms.items()}
    assert epsilon is not None
    spectra = {}
    for name, matrix in by_name.items():
        exact = parameters(lens.adapter.model, matrix.path)[0].detach().double()
        side = 0
        if forms[name].blocks > 1 and matrix.of == "columns":
            side = 1
        # (block, rows, columns), of which torch computes all spectra in one call
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
        run: the full model on calibration series, over a horizon of one pass; "svd"
            does not use the series.
        keep: share, above 0 and at most 1, of every matrix's rank, or of its entries,
            if ``of`` is "parameters". Give one of ``keep``, ``epsilon`` and ``rank``.
        epsilon: above 0 and below 1: the numerical rank, at which the error of a
            truncated matrix is at most this share of its spectral norm.
        rank: the same for all matrices.
        method: "svd", "weighted", "sensitive" or "measured". The last distributes the
            same number of entries by each matrix's effect on the forecast, without
            sensitivity if the model has no gradients.
        of: "rank", or "parameters" for the largest rank whose factors have at most that
            share of the entries.
        mlps: the matrices of MLPs, too.
        by_head: truncate every head by itself.
        progress: called with the number of matrices measured so far, and of all.

    Returns:
        The model, and the rank of every matrix that may be truncated, by name.

    Raises:
        UnknownNameError: no such method.
        InputError: a rank is out of range; "measured" has fewer than two series or
            windows.

    Warns:
        UserWarning: in the calibration, fewer vectors enter a matrix than it has
            columns.

    Example:
        >>> smaller, ranks = compress.compressed(run, 0.25, method="svd")
        >>> compress.sizes(smaller)["attention"] / compress.sizes(lens)["attention"]
        0.5
    """
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    ranks = chosen_ranks(
        run.lens,
        keep=keep,
        epsilon=epsilon,
        rank=rank,
        of=of,
        mlps=mlps,
        by_head=by_head,
    )
    runs = [run]
    weighted = method != "svd"
    gradients = method == "sensitive"
    if method == "measured":
        ranks, weighted = allocated(run, ranks, by_head=by_head, progress=progress)
        # all folds calibrate the final factors; only the measured effects had to keep
        # them apart
        runs = folds(run)
        gradients = run.lens.wiring.true_gradients
    options = {}
    if weighted:
        options = weights(runs, ranks, gradients)
    if weighted and (message := shortage(runs, ranks, gradients)):
        warnings.warn(message, stacklevel=2)
    name = f"{run.lens.model_id} ({method})"
    return factorised(run.lens, ranks, by_head=by_head, name=name, **options), ranks
