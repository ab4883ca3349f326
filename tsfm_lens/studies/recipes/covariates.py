"""Groups of a target and its covariates that training draws, and the loss of a model with covariates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tsfm_lens.training.losses import Stage, log_quantile_loss, near_future
from tsfm_lens.training.series_source import SHORTEST, SeriesSource

SHARES = (0.0, 0.25, 0.5, 0.5, 0.75, 0.9)
"""Shares of the target's variance that its covariates carry."""

KNOWN_SHARE = 0.8
"""Share of covariates whose future is known."""

EVENT_SHARE = 0.3
"""Share of covariates that are events: 1 now and then, 0 otherwise."""

LAGS = (0, 0, 0, 0, 1, 2, 3)
"""Steps by which a covariate leads the target."""

BENDS = (0.6, 0.1, 0.1, 0.1, 0.1)
"""Shares of effects that are a straight line, a V, a U, and a line above or below a point alone."""

MOST_GROUPS = 4
"""A batch of short contexts has up to this many times the groups of a whole one."""

DEVIATION_FLOOR = 1e-4
DRIVER_STEPS = 1_000_000_000
"""Steps from which on covariates of their own mixture are drawn: no target has them."""


@dataclass(frozen=True)
class Groups:
    """Batch in Chronos-2's own form, three rows per group: the target and two other series."""

    context: Tensor
    future: Tensor
    future_covariates: Tensor
    group_ids: Tensor


def standardised(series: Tensor) -> Tensor:
    """Standardise rows to mean 0 and standard deviation 1, gaps filled with 0."""
    present = ~series.isnan()
    count = present.sum(-1, keepdim=True).clamp(min=1)
    mean = series.nan_to_num(0.0).sum(-1, keepdim=True) / count
    centred = torch.where(present, series - mean, 0.0)
    return centred / (centred.square().sum(-1, keepdim=True) / count).sqrt().clamp(
        min=DEVIATION_FLOOR
    )


def bent(series: Tensor, bend: Tensor, kind: Tensor) -> Tensor:
    """Bend standardised series at the value `bend`, each by its kind of :data:`BENDS`, and standardise them again."""
    past = series - bend
    shapes = torch.stack(
        [series, past.abs(), past.square(), past.clamp(min=0), past.clamp(max=0)]
    )
    return standardised(shapes.gather(0, kind.expand_as(series)[None])[0])


def _size(stage: Stage, rng: np.random.Generator) -> tuple[int, int]:
    """Draw the groups and the context of a batch; with drivers, a share of the batches has a short context."""
    if not stage.drivers or rng.random() >= stage.short:
        return stage.rows, stage.context
    context = int(
        np.exp(rng.uniform(np.log(min(SHORTEST, stage.context)), np.log(stage.context)))
    )
    times = (stage.context + stage.horizon) / (context + stage.horizon)
    return int(stage.rows * min(MOST_GROUPS, times)), context


def _rows(
    source: SeriesSource, step: int, stage: Stage, member: np.ndarray, context: int
) -> tuple[Tensor, Tensor]:
    """Draw standardised series (group, 3, time), the last two drivers where they are members; and the target's gaps."""
    groups, sizes = len(member), {"context": context, "horizon": stage.horizon}
    parts = source.batch(step, mix=stage.mix, rows=3 * groups, **sizes)
    series = standardised(torch.cat(parts, 1)).view(groups, 3, -1)
    if stage.drivers:
        pair = source.batch(
            DRIVER_STEPS + step, mix=stage.drivers, rows=2 * groups, **sizes
        )
        causes = standardised(torch.cat(pair, 1)).view(groups, 2, -1)
        drives = torch.from_numpy(member).to(source.device)[..., None]
        series = torch.cat(
            [series[:, :1], torch.where(drives, causes, series[:, 1:])], 1
        )
    return series, parts[0].isnan().view(groups, 3, context)[:, :1]


def _effects(
    source: SeriesSource, rng: np.random.Generator, others: Tensor, stage: Stage
) -> Tensor:
    """Draw what the covariates do to the target, each of unit variance: late, and some not in a straight line."""
    size = (len(others), 2, 1)
    lag = torch.from_numpy(rng.choice(LAGS, size)).to(source.device)
    time = torch.arange(others.shape[-1], device=source.device)
    leading = others.gather(-1, (time - lag).clamp(min=0).expand_as(others))
    if stage.drivers:
        kind = torch.from_numpy(rng.choice(len(BENDS), size, p=BENDS)).to(source.device)
        return bent(leading, source._to(rng.normal(0, 0.7, size)), kind)
    # one effect in five is not a straight line
    nonlinear = torch.from_numpy(rng.random(size) < 0.2).to(source.device)
    return torch.where(nonlinear, standardised(leading.abs()), leading)


def covariate_batch(source: SeriesSource, step: int, stage: Stage) -> Groups:
    """Draw a batch of groups: target = own part + the effect of its covariates, by a share of the variance."""
    rng = np.random.default_rng([source.seed, step, 2])
    groups, context = _size(stage, rng)
    # drivers take the place of members, which are known before they are drawn
    chance = np.random.default_rng([source.seed, step, 3])
    member = chance.random((groups, 2)) < stage.members
    series, gaps = _rows(source, step, stage, member, context)
    alone, others = series[:, 0], series[:, 1:]

    events = torch.from_numpy(rng.random((groups, 2, 1)) < EVENT_SHARE).to(
        source.device
    )
    height = source._to(rng.uniform(0.5, 1.8, (groups, 2, 1)))
    others = torch.where(events, standardised((others > height).float()), others)
    effect = _effects(source, rng, others, stage)
    joined = rng.random((groups, 2)) < stage.members
    member = member if stage.drivers else joined
    weight = rng.normal(0, 1, (groups, 2)) * member
    weight = weight / np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), 1e-9)
    share = rng.choice(SHARES, (groups, 1))
    pull = (source._to(weight)[..., None] * effect).sum(1)
    target = source._to(np.sqrt(1 - share)) * alone + source._to(np.sqrt(share)) * pull

    rows = torch.cat([target[:, None], others], 1)
    unit = source._to(np.exp(rng.normal(0, 1.5, (groups, 3, 1))))
    level = source._to(
        rng.normal(0, 2, (groups, 3, 1)) * (rng.random((groups, 3, 1)) < 0.5)
    )
    rows = ((rows + level) * unit).view(3 * groups, -1)
    ids = np.arange(groups)[:, None].repeat(3, 1)
    ids[:, 1:] = np.where(
        member, ids[:, 1:], groups + np.arange(2 * groups).reshape(groups, 2)
    )
    has_future = np.zeros((groups, 3), dtype=bool)
    has_future[:, 1:] = (rng.random((groups, 2)) < KNOWN_SHARE) & member
    future = rows[:, context:].contiguous()
    mask = torch.from_numpy(has_future.reshape(-1, 1)).to(source.device)
    return Groups(
        torch.where(
            gaps.expand(-1, 3, -1).reshape(3 * groups, context),
            torch.nan,
            rows[:, :context],
        ),
        future,
        torch.where(mask, future, torch.nan),
        torch.from_numpy(ids.reshape(-1)).to(source.device),
    )


def group_loss(model: PreTrainedModel, groups: Groups, stage: Stage) -> torch.Tensor:
    """Compute the native quantile loss per forecast step and level of a model with covariates, or its mean logarithm.

    Logarithms are of the loss in standard deviations of the context, of rows whose future is not given.
    """
    inputs = {
        "context": groups.context,
        "group_ids": groups.group_ids,
        "future_covariates": groups.future_covariates,
        "num_output_patches": -(
            -stage.horizon // model.chronos_config.output_patch_size
        ),
    }
    if not stage.log_floor:
        return model(**inputs, future_target=groups.future).loss / len(
            model.chronos_config.quantiles
        )
    future, spread = near_future(groups.context, groups.future)
    future = torch.where(groups.future_covariates.isnan(), future, torch.nan)
    usable = (spread[:, 0] > 0) & (~future.isnan()).any(1)
    quantiles = model(**inputs).quantile_preds[usable]
    return log_quantile_loss(
        quantiles, model.quantiles, future[usable], spread[usable], stage.log_floor
    )
