"""Four methods of compression, to a share, a threshold or a rank."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from tsfm_lens.ablation.points import Progress
from tsfm_lens.compress.allocate import allocated
from tsfm_lens.compress.matrices import WeightMatrix, factorised, matrices
from tsfm_lens.compress.moments import output_sensitivity, second_moments
from tsfm_lens.compress.schedule import ranks_by_epsilon, ranks_by_share
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.hooks.weights import parameters
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

__all__ = ["METHODS", "calibration_run", "chosen_ranks", "compressed"]

METHODS = ("svd", "weighted", "sensitive", "measured")
"""Plain truncation; weighted by what enters; by the sensitivity to what leaves, too; weighted by what enters, with
ranks by the deviation of the forecast that each matrix causes."""


def calibration_run(run: Run) -> Run:
    """Run the same series one horizon earlier, within one pass; a model can be calibrated for ``run`` on it.

    It sees nothing of the run's truth. A token model's decoder follows the ends of the contexts; series too short for
    that are forecast as they are.

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
    """Choose ranks of all matrices by one number.

    Args:
        lens: the model.
        keep: share that is kept, see :func:`ranks_by_share`, with ``of``.
        epsilon: threshold, see :func:`ranks_by_epsilon`.
        rank: the same for all, at most the full one.
        mlps: the matrices of MLPs, too.
        by_head: ranks are those of each head.

    Raises:
        InputError: not exactly one number is given, or it is out of range.

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
    return ranks_by_epsilon({name: _spectra(lens, each, by_head) for name, each in by_name.items()}, epsilon)


def _spectra(lens: Lens, matrix: WeightMatrix, by_head: bool) -> np.ndarray:
    """Compute the singular values of each block, (block, j)."""
    weight, _ = parameters(lens.adapter.model, matrix.path)
    form, exact = matrix.form(by_head=by_head), weight.detach().double()
    blocks = torch.stack(exact.chunk(form.blocks, dim=1 if form.blocks > 1 and matrix.of == "columns" else 0))
    return torch.linalg.svdvals(blocks).cpu().numpy()


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
        method: "svd", "weighted", "sensitive" or "measured", which spreads what these ranks take over the matrices by
            what each does to the forecast, at the same size.
        progress: called with the matrices measured and their number.

    Returns:
        The model, and the rank of every matrix that may be truncated, by name.

    Raises:
        UnknownNameError: no such method.
        InputError: as in :func:`chosen_ranks`, :func:`second_moments`, :func:`output_sensitivity` and
            :func:`factorised`.

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
        ranks = allocated(run, ranks, moments=moments, by_head=by_head, progress=progress).ranks
    name = f"{run.lens.model_id} ({method})"
    return factorised(run.lens, ranks, moments=moments, sensitivity=sensitivity, by_head=by_head, name=name), ranks
