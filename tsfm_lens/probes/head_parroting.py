"""Context parroting head by head: which heads look back at the copied lag, and which the copying needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.metrics import mae
from tsfm_lens.ablation.points import Progress
from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.models.noise import noise_floor, relative_rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import pick_attention, refuse_variates
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.parroting import best_lag, lag_attention, naive_parrots, spread_of
from tsfm_lens.probes.zero_ablation import ablated_points
from tsfm_lens.registry import probe

__all__ = ["head_parroting"]


@probe("head_parroting")
def head_parroting(
    run: Run,
    *,
    lag: int | None = None,
    motif: int = 16,
    width: int = 1,
    kind: str | None = None,
    how: str = "zero",
    reference: Any = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure each head's part in parroting twice: by its attention, and by the forecast without it.

    A forecast parrots at the lag at which it differs least from its context repeated. That lag comes from the plain
    forecast, and ablated forecasts are compared with the same copy. Attention is correlation, ablation is cause: heads
    that look at the lag need not be those that copying depends on. A head that fetches the copy from a register token
    looks at no lag at all. On planted copies the loss of the copy finds the head, and its attention may not.

    In single forwards a token model's decoder reads the run's path as its own past whatever is ablated, so each step is
    measured alone. In rollouts a step's loss carries over to the next.

    Args:
        run: the forecast to explain.
        lag: steps, for every series; each series' own best lag if None.
        motif: length of the last stretch that the naive parrot looks for in the context.
        width: steps on either side of the lag that attention still counts at.
        kind: kind of attention; the last one over time of the stack that is read out if None.
        how, reference: see :func:`tsfm_lens.probes.zero_ablation.ablation_effects`.
        progress: called with (done, of) after each head.

    Returns:
        Dataset of kind "head_parroting" over (layer, head, series): ``mass``, the share of the head's attention at the
        lag and its multiples; ``copy_error_change`` and ``parrot_error_change``, by how much the ablated forecast lies
        further from the context repeated at the lag, and from what followed the best earlier match; with a truth
        ``truth_error_change``. All errors are mean absolute differences in standard deviations of the context, ablated
        minus plain: above 0 the head served the copy. For each of these what :func:`tsfm_lens.probes.findings.judge`
        adds; the floor of the mass is ``chance``. Over ``series``: ``lag``, ``chance`` (the share of tokens at the
        lag), ``vacuous`` (whether that is all of them, so that the mass says nothing), ``copy_error``,
        ``parrot_error``, ``truth_error`` of the plain forecast; ``forecast``, ``copy`` and ``parrot`` (series, step).
        The attribute ``statistic`` tells what the forecast is, see :attr:`tsfm_lens.models.run.Run.statistic`. NaN
        where a context is constant, too short for the motif, or incomplete where it would be copied.

    Source:
        tsfm-lens paper, sections 4 and 5 and figure 5, which ablate groups of heads.

    Raises:
        InputError: several variates, a motif below 2, a lag that is not shorter than every context, or a horizon whose
            attention cannot be followed (see :func:`tsfm_lens.probes.rollout.autoregressive_attention`).
        UnknownNameError: no such kind of attention.

    Example:
        >>> probes.head_parroting(run)["mass"].dims
        ('layer', 'head', 'series')
    """
    batch, steps = run.batch, run.horizon
    refuse_variates(batch)
    _refuse(batch, lag, motif)
    row, attention, layers = pick_attention(run.lens, None, kind)
    dot = f"{row.name}." if row.name else ""
    names = [f"{dot}{layer}.{attention}.{head}" for layer in layers for head in range(row.n_heads)]
    plain = run.point
    ablated = ablated_points(run, run.lens.components(*names), how, reference, progress)
    ablated = ablated.reshape(len(layers), row.n_heads, *plain.shape)
    # the lag that the library's forecast copies at, as context_parroting has it
    lags = np.array([best_lag(values, one) for values, one in zip(batch.values, run.forecast.median, strict=True)])
    lags = lags if lag is None else np.full(len(batch), lag)
    mass, chance, vacuous = _attention(run, lags, width, attention)
    data = run.dataset().assign_coords(layer=list(map(str, layers)), head=range(row.n_heads))
    data["mass"] = (("layer", "head", "series"), mass)
    data["chance"] = (("series",), chance)
    data["vacuous"] = (("series",), vacuous)
    data["lag"] = (("series",), np.where(lags > 0, lags, np.nan).astype(float), {"units": "steps"})
    copy, parrot = _copies(batch, lags, steps), naive_parrots(batch, steps, motif)[0]
    references = {"copy_error": copy, "parrot_error": parrot}
    if run.truth is not None:
        references["truth_error"] = data["truth"].values
    scales = np.array([spread_of(values) for values in batch.values])
    for name, target in references.items():
        error = mae(plain, target) / scales
        data[name] = (("series",), error)
        data[f"{name}_change"] = (("layer", "head", "series"), mae(ablated, target) / scales - error)
    data["forecast"], data["copy"], data["parrot"] = ((("series", "step"), each) for each in (plain, copy, parrot))
    settings: dict[str, object] = {"attention": attention, "motif": motif, "width": width, "how": how}
    settings |= {"rollout": int(run.rollout), "statistic": run.statistic}
    source = "tsfm-lens paper, sections 4 and 5"
    data.attrs = run.describe("head_parroting", "Context parroting by heads", source, **settings)
    data = judge(data, "mass", floor=chance * (1 + relative_rounding(run.lens)))
    for name, target in references.items():

        def change(other: np.ndarray, plain: np.ndarray, target: np.ndarray = target) -> np.ndarray:
            return np.abs(mae(other, target) - mae(plain, target)) / scales

        data = judge(data, f"{name}_change", floor=noise_floor(run, change), signed=True)
    return data


def _refuse(batch: SeriesBatch, lag: int | None, motif: int) -> None:
    if motif < 2:
        raise InputError(f"motif is {motif}, expected 2 or more steps")
    shortest = min(len(values) for values in batch.values)
    if lag is not None and not 1 <= lag < shortest:
        raise InputError(f"lag is {lag}, expected 1 to {shortest - 1}: the shortest context has {shortest} steps")


def _attention(run: Run, lags: np.ndarray, width: int, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mass at each lag (layer, head, series), that of an even spread, and whether all lies there."""
    maps = [lag_attention(run.select(i), max(int(lag), 1), width=width, kind=kind) for i, lag in enumerate(lags)]
    weight = np.where(lags > 0, 1.0, np.nan)
    mass = np.stack([each["mass"].values for each in maps], axis=-1)
    chance = np.array([float(each["chance"]) for each in maps]) * weight
    return mass * weight, chance, np.array([bool(each["vacuous"]) for each in maps])


def _copies(batch: SeriesBatch, lags: np.ndarray, steps: int) -> np.ndarray:
    """Repeat each context at its lag, (series, step)."""
    out = np.full((len(batch), steps), np.nan)
    for row, (values, lag) in enumerate(zip(batch.values, lags, strict=True)):
        if lag > 0:
            out[row] = values[len(values) - lag + np.arange(steps) % lag]
    return out
