"""Training groups of a model with covariates: a target, and up to two series that move it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tsfm_lens.training.losses import Stage
from tsfm_lens.training.series_source import SeriesSource

SHARES = (0.0, 0.25, 0.5, 0.5, 0.75, 0.9)
"""Shares of the target's variance that its covariates carry."""

KNOWN_SHARE = 0.8
"""Share of covariates whose future is known."""

EVENT_SHARE = 0.3
"""Share of covariates that are events: 1 now and then, 0 otherwise."""

LAGS = (0, 0, 0, 0, 1, 2, 3)
"""Steps by which a covariate leads the target."""

DEVIATION_FLOOR = 1e-4


@dataclass(frozen=True)
class Groups:
    """Batch in Chronos-2's own form, three rows per group: the target and two other series.

    Attributes:
        context: (row, context); NaN = not there.
        future: (row, horizon): the target of the forecast.
        future_covariates: (row, horizon): the known future of covariates, NaN elsewhere.
        group_ids: (row,): rows with one id see one another.
    """

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
    return centred / (centred.square().sum(-1, keepdim=True) / count).sqrt().clamp(min=DEVIATION_FLOOR)


def covariate_batch(
    source: SeriesSource, step: int, *, mix: Mapping[str, float], groups: int, context: int, horizon: int
) -> Groups:
    """Draw `groups` groups: target = own part + the effect of its covariates, by a share of the variance.

    In a third of the groups a covariate is alone instead (its own group), so that the model also meets plain series.
    """
    rng = np.random.default_rng([source.seed, step, 2])
    parts = source.batch(step, mix=mix, rows=3 * groups, context=context, horizon=horizon)
    series = standardised(torch.cat(parts, 1)).view(groups, 3, context + horizon)
    alone, others = series[:, 0], series[:, 1:]

    events = torch.from_numpy(rng.random((groups, 2, 1)) < EVENT_SHARE).to(source.device)
    height = source._to(rng.uniform(0.5, 1.8, (groups, 2, 1)))
    others = torch.where(events, standardised((others > height).float()), others)
    lag = torch.from_numpy(rng.choice(LAGS, (groups, 2, 1))).to(source.device)
    time = torch.arange(context + horizon, device=source.device)
    leading = others.gather(-1, (time - lag).clamp(min=0).expand_as(others))
    # one effect in five is not a straight line
    nonlinear = torch.from_numpy(rng.random((groups, 2, 1)) < 0.2).to(source.device)
    effect = torch.where(nonlinear, standardised(leading.abs()), leading)
    member = rng.random((groups, 2)) < 0.75
    weight = rng.normal(0, 1, (groups, 2)) * member
    weight = weight / np.maximum(np.linalg.norm(weight, axis=1, keepdims=True), 1e-9)
    share = rng.choice(SHARES, (groups, 1))
    pull = (source._to(weight)[..., None] * effect).sum(1)
    target = source._to(np.sqrt(1 - share)) * alone + source._to(np.sqrt(share)) * pull

    rows = torch.cat([target[:, None], others], 1)
    unit = source._to(np.exp(rng.normal(0, 1.5, (groups, 3, 1))))
    level = source._to(rng.normal(0, 2, (groups, 3, 1)) * (rng.random((groups, 3, 1)) < 0.5))
    rows = ((rows + level) * unit).view(3 * groups, -1)
    ids = np.arange(groups)[:, None].repeat(3, 1)
    ids[:, 1:] = np.where(member, ids[:, 1:], groups + np.arange(2 * groups).reshape(groups, 2))
    has_future = np.zeros((groups, 3), dtype=bool)
    has_future[:, 1:] = (rng.random((groups, 2)) < KNOWN_SHARE) & member
    future = rows[:, context:].contiguous()
    mask = torch.from_numpy(has_future.reshape(-1, 1)).to(source.device)
    return Groups(
        torch.where(
            parts[0].isnan().view(groups, 3, context)[:, :1].expand(-1, 3, -1).reshape(3 * groups, context),
            torch.nan,
            rows[:, :context],
        ),
        future,
        torch.where(mask, future, torch.nan),
        torch.from_numpy(ids.reshape(-1)).to(source.device),
    )


def group_loss(model: PreTrainedModel, groups: Groups, stage: Stage) -> torch.Tensor:
    """Compute the native quantile loss per forecast step and level of a model with covariates."""
    patch = model.chronos_config.output_patch_size
    loss = model(
        context=groups.context,
        group_ids=groups.group_ids,
        future_covariates=groups.future_covariates,
        future_target=groups.future,
        num_output_patches=-(-stage.horizon // patch),
    ).loss
    return loss / len(model.chronos_config.quantiles)
