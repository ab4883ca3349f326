"""Second moments of the inputs of each matrix, and of gradients at its output.

They weigh the truncation of a matrix: :func:`calibrate` sums them over the series of a
run, :func:`weights` shrinks them and hands them to :func:`.matrices.factorised`.
:func:`crossed` keeps series that calibrate apart from those on which effects are
measured.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tsfm_lens.compress.matrices import matrices_by_name
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.stats import FEWEST
from tsfm_lens.hooks.native import get_input
from tsfm_lens.models.adapter import check_gradients
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

DRAWS = 4
FOLDS = 2
"""Number of folds of the calibration series.

Each measures the effects of factors that the others calibrate.
"""
ITEM = "series that calibrates"
"""Property of a window that names the series it was cut from."""


class Moment(NamedTuple):
    """Second moment of one matrix as sums over series with their windows.

    All series count equally.
    """

    total: Tensor
    squares: float
    series: int
    vectors: int

    def plus(self, other: Moment) -> Moment:
        """Join the series of two."""
        counts = self.series + other.series, self.vectors + other.vectors
        return Moment(self.total + other.total, self.squares + other.squares, *counts)

    @property
    def shrunk(self) -> Tensor:
        """Mean, shrunk towards a multiple of the identity.

        The less the series agree, the more it is shrunk; fully for one series.

        Source:
            Ledoit and Wolf 2004 (Journal of Multivariate Analysis 88), section 3.2,
            with series in the place of vectors and n - 1 for n.
        """
        mean = self.total / self.series
        n = self.series
        identity = mean.trace() / len(mean) * torch.eye(len(mean), dtype=mean.dtype)
        # the squared error of the mean: the spread of the series' own moments around it
        # over n (n - 1)
        variance = (self.squares - n * float(mean.square().sum())) / max(n * (n - 1), 1)
        distance = float((mean - identity).square().sum())
        if n < 2:
            # of one series nothing says how far another would differ
            share = 1.0
        elif distance > 0:
            share = min(max(variance, 0.0) / distance, 1.0)
        else:
            share = 0.0
        return (1 - share) * mean + share * identity


def calibrate(
    run: Run,
    names: Iterable[str] | None = None,
    *,
    gradients: bool = False,
    draws: int = DRAWS,
) -> tuple[dict[str, Moment], dict[str, Moment]]:
    """Compute moments by name in forwards over a run's series, on its path.

    They are computed once for a run.

    Returns:
        The mean of x xᵀ over input vectors x and, on request, the sum of g gᵀ over
        gradients g at output vectors. The product of the latter with a small change's
        second moment is the deviation of the forecast.
    """
    by_name = matrices_by_name(run.lens, names)
    key = ("moments", gradients, draws, *by_name)
    if key in run.cache:
        return run.cache[key]
    if gradients:
        check_gradients(run.lens.wiring)
    # hooks on a copy need not be taken off
    lens = copy.deepcopy(run.lens)
    # a generator of its own, on the CPU, so that factors are the same on every device
    # and leave torch's state alone
    generator = torch.Generator().manual_seed(0)
    sums = dict[tuple[int, str], Tensor]()
    counts = defaultdict[tuple[int, str], int](int)

    def add(at: tuple[int, str], x: Tensor) -> None:
        rows = x.detach().reshape(-1, x.shape[-1]).double()
        # in double precision on the device, then kept on the CPU, where all matrices
        # together find room
        square = (rows.T @ rows).cpu()
        sums[at] = sums[at] + square if at in sums else square
        counts[at] += len(rows)

    def tap(
        name: str, _layer: nn.Module, args: Any, kwargs: Any, output: Tensor
    ) -> None:
        add((0, name), get_input(args, kwargs, 0))
        if gradients:
            output.register_hook(lambda gradient: add((1, name), gradient))

    for name, matrix in by_name.items():
        layer = lens.adapter.model.get_submodule(matrix.path)
        layer.register_forward_hook(partial(tap, name), with_kwargs=True)
    moments: tuple[dict[str, Moment], dict[str, Moment]] = ({}, {})
    repeats = 1
    if gradients:
        repeats = draws
    for parts in _groups(run):
        # repeated forwards, since backward() frees the graph
        for part in parts * repeats:
            with torch.set_grad_enabled(gradients):
                output = lens.adapter.run(part.encoded.inputs)
                if gradients:
                    _random_scalar(lens, part, output, generator).backward()
        for side, name in counts:
            # gradients add up over all vectors of a forecast, inputs are averaged over
            # vectors
            if side:
                size = repeats * sum(len(part.batch) for part in parts)
            else:
                size = counts[side, name]
            mean = sums[side, name] / size
            moment = Moment(
                mean, float(mean.square().sum()), 1, counts[side, name] // repeats
            )
            if name in moments[side]:
                moment = moments[side][name].plus(moment)
            moments[side][name] = moment
        # sums are of one series; joined, each counts the same, however long it is
        sums.clear()
        counts.clear()
    for side, name in product((0, 1) if gradients else (0,), by_name):
        label = "what enters"
        if side:
            label = "the gradient at what leaves"
        if name not in moments[side] or not bool(
            torch.isfinite(moments[side][name].total).all()
        ):
            fault = "is nothing: no pass calls it"
            if name in moments[side]:
                fault = "is not finite"
            raise InputError(
                f"{label} {name} on the calibration series {fault}; give other series"
            )
    run.cache[key] = moments
    return moments


def _groups(run: Run) -> Iterator[list[Run]]:
    """Split a run by series, and these by length and number of variates.

    A forward of such a part pads nothing.
    """
    for windows in _series(run, FEWEST):
        by_lengths = defaultdict[tuple[int, ...], list[int]](list)
        for rows in windows:
            by_lengths[tuple(run.batch.lengths[row] for row in rows)] += rows
        yield [run.select(rows) for rows in by_lengths.values()]


def _series(run: Run, fewest: int = 1) -> list[list[list[int]]]:
    """List the rows of each window of each series.

    Where there are fewer than ``fewest`` series, each window counts as one.
    """
    series = defaultdict[str, list[list[int]]](list)
    for group, rows in run.batch.rows_by_group().items():
        series[run.batch.static[rows[0]].get(ITEM, group)].append(rows)
    if len(series) >= fewest:
        return list(series.values())
    return [[rows] for windows in series.values() for rows in windows]


def folds(run: Run) -> list[Run]:
    """Split a run by series into folds, windows of one series together.

    Where there are fewer series than folds, it is split by windows.
    """
    if "folds" not in run.cache:
        series = _series(run, FOLDS)
        if len(series) < FOLDS:
            raise InputError(
                f"{len(series)} series or windows calibrate, and ranks by effect take"
                f" at least {FOLDS}: factors come from some and effects from others;"
                " give more series, longer ones, or method='weighted'"
            )
        parts = [
            [
                row
                for windows in series[first::FOLDS]
                for rows in windows
                for row in rows
            ]
            for first in range(FOLDS)
        ]
        run.cache["folds"] = [run.select(rows) for rows in parts]
    return run.cache["folds"]


def weights(
    runs: Sequence[Run], names: Iterable[str], gradients: bool
) -> dict[str, Any]:
    """Return the shrunk moments over runs as arguments of ``factorised``.

    See :func:`tsfm_lens.compress.factorised`.
    """
    inner, outer = (
        {
            name: reduce(Moment.plus, (item[name] for item in side)).shrunk
            for name in side[0]
        }
        for side in zip(
            *(calibrate(run, names, gradients=gradients) for run in runs), strict=True
        )
    )
    # without gradients the second side is empty, which factorised() would take for
    # missing names
    return {"moments": inner, "sensitivity": outer or None}


def crossed(run: Run, names: Iterable[str]) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Yield each fold, and the weights that the other folds give.

    A fold has the latest window of each of its series.
    """
    parts = folds(run)
    for part in parts:
        calibrating = [fold for fold in parts if fold is not part]
        # calibration_run() puts the latest window of a series first
        rows = [row for windows in _series(part) for row in windows[0]]
        yield (
            part.select(rows),
            weights(calibrating, names, run.lens.wiring.true_gradients),
        )


def shortage(runs: Sequence[Run], names: Iterable[str], gradients: bool) -> str:
    """Describe matrices with fewer input vectors than columns; "" for none.

    The text says how many forecast origins would be enough.
    """
    of_runs = [calibrate(run, names, gradients=gradients)[0] for run in runs]
    vectors = {
        name: sum(of_run[name].vectors for of_run in of_runs) for name in of_runs[0]
    }
    columns = {name: len(moment.total) for name, moment in of_runs[0].items()}
    few = [name for name in vectors if vectors[name] < columns[name]]
    if not few:
        return ""
    worst = min(few, key=lambda name: vectors[name] / columns[name])
    origins = sum(len(run.batch) for run in runs)
    return (
        f"{len(few)} of {len(vectors)} matrices see fewer vectors than they have"
        f" columns ({worst}: {vectors[worst]:,} of {columns[worst]:,}), so what is not"
        f" known of them counts evenly; {origins:,} forecast origins calibrate, and"
        f" {-(-columns[worst] * origins // vectors[worst]):,} would be enough: give"
        " more series, or windows=…"
    )


def _random_scalar(
    lens: Lens, run: Run, output: Tensor, generator: torch.Generator
) -> Tensor:
    """Compute a random scalar of an output.

    The mean square of its gradient is the curvature of the deviation.
    """
    if run.tokens_read:
        # the mean of the square of a score, d log p of a token drawn by p, is Fisher's
        # information, which is the Hessian of the Kullback-Leibler divergence; drawn
        # tokens are independent, so that in a sum over them cross terms vanish on
        # average
        logs = output.float().log_softmax(-1)
        flat = logs.detach().exp().flatten(0, -2).cpu()
        tokens = (
            torch.multinomial(flat, 1, generator=generator)
            .reshape(*logs.shape[:-1], 1)
            .to(logs.device)
        )
        return logs.gather(-1, tokens).sum()
    # in units of the context's spread, as deviation() is
    spread = np.array([np.nanstd(series) for series in run.batch.values])
    scale = torch.as_tensor(np.where(spread > 0, spread, 1.0)).to(output)
    # random signs s have E[s sᵀ] = 1, so that gradients g = Jᵀ s have the second moment
    # Jᵀ J of all outputs (Hutchinson 1990)
    signs = (torch.randint(0, 2, output.shape, generator=generator) * 2 - 1).to(output)
    return (output * signs / scale[:, None, None])[..., : run.horizon].sum()
