"""Nulls: the same measurement where there is no effect, as the threshold of a claim."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.models.forecast import is_count
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import judge
from tsfm_lens.stats import CONFIDENCE, Control

__all__ = ["NULLS", "compared_to_null", "untrained_twin"]

Null = Literal["untrained", "random components", "shuffled series"]
NULLS: tuple[Null, ...] = ("untrained", "random components", "shuffled series")
"""What a claim is held against; see :func:`compared_to_null`."""
DRAWS = 3
"""Untrained twins, or orders of the series."""


def untrained_twin(lens: Lens, seed: int = 0) -> Lens:
    """Copy a model with the entries of each matrix and bias in random order; only sizes and gains of norms remain.

    Returns:
        The twin, on the same device; its ``model_id`` names the order.

    Source:
        Adebayo et al. 2018, arXiv:1810.03292, model parameter randomisation.

    Example:
        >>> explain.untrained_twin(lens).model_id
        'chronos-nano (weights in random order, seed 0)'
    """
    twin = copy.deepcopy(lens)
    twin.model_id = f"{lens.model_id} (weights in random order, seed {seed})"
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in twin.adapter.model.named_parameters():
            # gains of norms set the size of streams, and hold no direction in them
            if weight.ndim > 1 or "bias" in name:
                order = torch.randperm(weight.numel(), generator=generator).to(weight.device)
                weight.copy_(weight.reshape(-1)[order].reshape(weight.shape))
    return twin


def compared_to_null(
    probe: Callable[..., xr.Dataset],
    run: Run,
    null: Null = "untrained",
    *,
    name: str,
    groups: str | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    control: Control = "by",
    **options: Any,
) -> xr.Dataset:
    """Compare a probe's result with the same probe under a null, as shares of the sum over all members of each series.

    "untrained" are twins without learned structure: a component must be larger than 95 % of the components of its group
    in them, a segment than itself in each. Under "random components" it must be larger than 95 % of the others of its
    group. "shuffled series" are the same values in random order: a member must be larger than itself there.

    Args:
        probe: of a run, such as ``probes.ablation_effects`` or ``explain.route_effects``.
        run: the forecasts of the claim.
        null: one of :data:`NULLS`.
        name: the variable that is claimed, over (member, …, series), at least 0.
        groups: coordinate over members, within which they are compared; all are alike if None.
        draws: untrained twins, or orders.
        seed: of them.
        control: see :func:`tsfm_lens.probes.findings.judge`.
        options: of the probe.

    Returns:
        What the probe gives, with ``NAME_share``, and what ``judge`` adds to it: ``NAME_share_floor`` is what the null
        reaches, ``NAME_share_stands_out`` the larger shares. Attributes ``against`` and ``null_draws``.

    Source:
        Adebayo et al. 2018, arXiv:1810.03292 (sanity checks); Benjamini and Yekutieli 2001.

    Raises:
        UnknownNameError: no such null or control.
        InputError: the result has no such variable over series, or draws is no count.

    Example:
        >>> found = explain.compared_to_null(probes.ablation_effects, run, "untrained", name="mean_shift", draws=1)
        >>> found.attrs["against"]
        'untrained'
    """
    if null not in NULLS:
        raise unknown_name("null", null, NULLS)
    if not is_count(draws):
        raise InputError(f"draws is {draws!r}, expected how many twins or orders are drawn, 1 or more")
    data = probe(run, **options)
    if name not in data or "series" not in data[name].dims or data[name].ndim < 2:
        raise InputError(f"the result of kind {data.attrs.get('kind')!r} has no {name!r} over members and series")
    dims = [str(dim) for dim in data[name].dims if dim != "series"]
    own = _shares(data, name, dims)
    labels = np.zeros(own.shape[:-1], dtype=int)
    if groups is not None:
        numbers = data[groups].copy(data=np.unique(data[groups].values.astype(str), return_inverse=True)[1])
        labels = numbers.broadcast_like(data[name].isel(series=0)).transpose(*dims).values
    if null == "random components":
        floor = _of_others(own, labels)
    else:
        others = np.stack([_shares(probe(other, **options), name, dims) for other in null_runs(run, null, draws, seed)])
        floor = others.max(0)
        if null == "untrained" and "segment" not in dims:
            for label in np.unique(labels):
                # (draw, member, series) of one group
                floor[labels == label] = np.nanquantile(others[:, labels == label], CONFIDENCE, axis=(0, 1))
    share = f"{name}_share"
    data[share] = ((*dims, "series"), own)
    data = judge(data, share, floor=data[share].copy(data=floor), groups=groups, control=control)
    return data.assign_attrs(against=null, null_draws=0 if null == "random components" else draws)


def _shares(data: xr.Dataset, name: str, dims: list[str]) -> np.ndarray:
    """Compute shares of the sum over members, (member, …, series)."""
    values = np.abs(data[name].transpose(*dims, "series").values.astype(float))
    whole = np.nansum(values, axis=tuple(range(values.ndim - 1)))
    return np.divide(values, whole, out=np.zeros_like(values), where=whole > 0)


def _of_others(own: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Compute the 95 % quantile over all other members of the group, (member, …, series); infinity without any."""
    floor = np.full(own.shape, np.inf)
    for place in np.ndindex(*labels.shape):
        others = labels == labels[place]
        others[place] = False
        if others.any():
            floor[place] = np.nanquantile(own[others], CONFIDENCE, axis=0)
    return floor


def null_runs(run: Run, null: Null, draws: int, seed: int) -> list[Run]:
    """Repeat a run with untrained twins, or with its series in random order."""
    base: dict[str, Any] = {"forced_path": None, "_of": None}
    if null == "untrained":
        twins = [untrained_twin(run.lens, seed + draw) for draw in range(draws)]
        return [replace(run, lens=twin, _hooks=(), **base) for twin in twins]
    return [replace(run, batch=_shuffle(run.batch, [seed, draw]), full_batch=None, **base) for draw in range(draws)]


def _shuffle(batch: SeriesBatch, seed: list[int]) -> SeriesBatch:
    """Put values in random order, gaps where they were; the series of an item share one order, so they still agree."""
    values, futures = list(batch.values), list(batch.futures)
    for number, group in enumerate(dict.fromkeys(batch.groups)):
        rows = [row for row, name in enumerate(batch.groups) if name == group]
        rng = np.random.default_rng([*seed, number])
        order = rng.permutation(batch.lengths[rows[0]])
        ahead = rng.permutation(max((len(f) for row in rows if (f := batch.futures[row]) is not None), default=0))
        for row in rows:
            series, gaps = batch.values[row][order], np.isnan(batch.values[row])
            # observed values go where observed values were
            result = np.full(len(series), np.nan)
            result[~gaps] = series[~np.isnan(series)]
            values[row] = result
            future = batch.futures[row]
            futures[row] = None if future is None else future[ahead[ahead < len(future)]]
    return replace(batch, values=tuple(values), futures=tuple(futures))
