"""Second moments of the inputs of each matrix, and of gradients at its output.

They weigh the truncation of a matrix: :func:`calibrate` sums them over the series of a
run, :func:`weights` shrinks them and hands them to :func:`.matrices.factorised`.
:func:`crossed` keeps series that calibrate apart from those on which effects are
measured.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
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
"""Number of random scalars whose gradients are averaged, see _random_scalar."""
FOLDS = 2
"""Number of folds of the calibration series.

On each fold, effects are measured with factors that the other folds calibrate.
"""
ITEM = "series that calibrates"
"""Property of a window that names the series it was cut from."""


class Moment(NamedTuple):
    """Second moment of the inputs of one matrix, or of the gradients at its output.

    All series count equally.

    Attributes:
        total: sum over series of their own moments, (in, in) or (out, out).
        squares: sum over series of the squared Frobenius norms of their own moments.
        series: number of series.
        vectors: number of vectors that entered.
    """

    total: Tensor
    squares: float
    series: int
    vectors: int

    def plus(self, other: Moment) -> Moment:
        """Return the moment over the series of both."""
        counts = self.series + other.series, self.vectors + other.vectors
        return Moment(self.total + other.total, self.squares + other.squares, *counts)

    @property
    def shrunk(self) -> Tensor:
        """Mean over series, shrunk towards a multiple of the identity.

        The less the series agree, the more it is shrunk; a single series leaves only
        the multiple of the identity.

        Source:
            Ledoit and Wolf 2004 (Journal of Multivariate Analysis 88), section 3.2,
            with series in the place of vectors and n - 1 for n.
        """
        mean = self.total / self.series
        n = self.series
        identity = mean.trace() / len(mean) * torch.eye(len(mean), dtype=mean.dtype)
        # squared standard error of the mean: the summed squared distances of the
        # series' own moments from it, over n (n - 1)
        variance = (self.squares - n * float(mean.square().sum())) / max(n * (n - 1), 1)
        distance = float((mean - identity).square().sum())
        if n < 2:
            # a single series does not tell how much series differ
            share = 1.0
        elif distance > 0:
            share = min(max(variance, 0.0) / distance, 1.0)
        else:
            share = 0.0
        return (1 - share) * mean + share * identity


def calibrate(
    run: Run,
    names: Collection[str] | None = None,
    *,
    gradients: bool = False,
    draws: int = DRAWS,
) -> tuple[dict[str, Moment], dict[str, Moment]]:
    """Compute the moments of matrices in forwards over a run's series.

    They are computed once for a run. Token models are teacher-forced as in the run.

    Returns:
        By matrix, the mean of x xᵀ over input vectors x; and the sum G of g gᵀ over
        gradients g at output vectors, if ``gradients`` are asked for. A small change of
        the output, with the second moment D, makes the forecast deviate in proportion
        to the trace of G D.
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
    # of one series, by (side, name of the matrix): side 0 is the input, and side 1 the
    # gradient at the output
    sums = dict[tuple[int, str], Tensor]()
    counts = defaultdict[tuple[int, str], int](int)

    def add(key: tuple[int, str], vectors: Tensor) -> None:
        rows = vectors.detach().reshape(-1, vectors.shape[-1]).double()
        # multiplied on the device, but kept on the CPU, which has memory for the
        # moments of all matrices
        square = (rows.T @ rows).cpu()
        sums[key] = sums[key] + square if key in sums else square
        counts[key] += len(rows)

    def add_call(
        name: str, _layer: nn.Module, args: Any, kwargs: Any, output: Tensor
    ) -> None:
        add((0, name), get_input(args, kwargs, 0))
        if gradients:
            output.register_hook(lambda gradient: add((1, name), gradient))

    for name, matrix in by_name.items():
        layer = lens.adapter.model.get_submodule(matrix.path)
        layer.register_forward_hook(partial(add_call, name), with_kwargs=True)
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
            # gradients are summed over the vectors of a forecast and averaged over
            # forecasts; inputs are averaged over vectors
            if side:
                divisor = repeats * sum(len(part.batch) for part in parts)
            else:
                divisor = counts[side, name]
            mean = sums[side, name] / divisor
            moment = Moment(
                mean, float(mean.square().sum()), 1, counts[side, name] // repeats
            )
            if name in moments[side]:
                moment = moments[side][name].plus(moment)
            moments[side][name] = moment
        sums.clear()
        counts.clear()
    sides = (0, 1) if gradients else (0,)
    for side, name in product(sides, by_name):
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
    """Yield each series of a run as parts that need no padding.

    The windows in a part have the same lengths and number of variates.
    """
    for windows in _series(run, FEWEST):
        by_lengths = defaultdict[tuple[int, ...], list[int]](list)
        for rows in windows:
            by_lengths[tuple(run.batch.lengths[row] for row in rows)] += rows
        yield [run.select(rows) for rows in by_lengths.values()]


def _series(run: Run, fewest: int = 1) -> list[list[list[int]]]:
    """List the rows of a run by series and window, (series, window, row).

    Returns:
        Rows by series and window. If there are fewer than ``fewest`` series, each
        window stands for a series.
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

    Returns:
        The runs of the folds.
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
    runs: Sequence[Run], names: Collection[str], gradients: bool
) -> dict[str, Any]:
    """Return the shrunk moments over runs as arguments of ``factorised``.

    See :func:`tsfm_lens.compress.factorised`.
    """
    calibrations = [calibrate(run, names, gradients=gradients) for run in runs]

    def join(by_run: Sequence[dict[str, Moment]]) -> dict[str, Tensor]:
        return {
            name: reduce(Moment.plus, (moments[name] for moments in by_run)).shrunk
            for name in by_run[0]
        }

    moments = join([inputs for inputs, _ in calibrations])
    sensitivity = join([outputs for _, outputs in calibrations])
    # factorised() would miss names in an empty dict, which is what no gradients give
    return {"moments": moments, "sensitivity": sensitivity or None}


def crossed(run: Run, names: Collection[str]) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Yield each fold, and the weights that the other folds give.

    The other folds calibrate on all their windows; of the fold itself, only the latest
    window of each series is yielded.
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


def shortage(runs: Sequence[Run], names: Collection[str], gradients: bool) -> str:
    """Describe matrices with fewer input vectors than columns.

    The text says how many forecast origins would be enough.

    Returns:
        A sentence, "" if there are none.
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

    For its gradient g, the mean of g gᵀ is the curvature of the forecast's deviation.

    Returns:
        The scalar, which can be differentiated.
    """
    if run.tokens_read:
        # The scalar is the sum of log p over tokens drawn from p. For one token, the
        # mean of g gᵀ is Fisher's information, the Hessian of the Kullback-Leibler
        # divergence; tokens are drawn independently, so that products of the gradients
        # of two of them vanish on average.
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
    # E[s sᵀ] is the identity for random signs s, so that E[g gᵀ] = Jᵀ J for g = Jᵀ s,
    # with J the Jacobian of all outputs (Hutchinson 1990)
    signs = (torch.randint(0, 2, output.shape, generator=generator) * 2 - 1).to(output)
    return (output * signs / scale[:, None, None])[..., : run.horizon].sum()
