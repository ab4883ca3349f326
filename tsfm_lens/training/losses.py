"""Losses of Chronos and Chronos-Bolt on raw series, and their learning rate.

:func:`token_loss` is for models of value tokens, :func:`patch_loss` for models of
patches and quantiles; :class:`TrainingStage` has their settings. Batches come from
:mod:`.series_source`, the loop from :mod:`.loop`.
"""

from __future__ import annotations

import math

import torch
from chronos.chronos import ChronosConfig, MeanScaleUniformBins
from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedModel

from tsfm_lens.training.series_source import FAR_SHARE, SHORT_SHARE

FIRST_BIN = 3
"""Smallest token id that stands for a value: 0 pads, 1 ends, and 2 never occurs."""

FAR = 25.0
"""Largest distance of a future value that counts in the quantile loss.

It is from the context's mean, in standard deviations of the context.
"""


class TrainingStage(BaseModel):
    """One stage of a curriculum, from step `start` until the next stage starts.

    `context`, `horizon`, `rows`, `mix`, `far` and `short` describe the batches, see
    SeriesSource.batch.

    For token models, `smoothing` is the standard deviation of the labels in bins. The
    loss of the first forecast step has the weight `first_weight`, which falls to 1 over
    four steps. In every second row, a share `blank` of the decoder's inputs is blanked,
    and a share `own_share` is sampled from the model. A share `rollout` of the rows
    gets the model's own forecast as decoder input.

    For patch models, a `log_floor` above 0 makes the loss the mean of log(loss of a row
    + `log_floor`).
    """

    model_config = ConfigDict(frozen=True)

    start: int = Field(ge=0)
    context: int = Field(gt=0)
    horizon: int = Field(gt=0)
    rows: int = Field(gt=0)
    mix: dict[str, float]
    smoothing: float = 0.0
    first_weight: float = 1.0
    blank: float = Field(default=0.0, ge=0, lt=1)
    own_share: float = Field(default=0.0, ge=0, le=1)
    rollout: float = Field(default=0.0, ge=0, le=1)
    log_floor: float = Field(default=0.0, ge=0)
    far: float = Field(default=FAR_SHARE, ge=0, le=1)
    short: float = Field(default=SHORT_SHARE, ge=0, le=1)


def trapezoid_rate(
    step: int, peak: float, *, first: int, last: int, warmup: int, decay: int
) -> float:
    """Compute the learning rate at a step from ``first`` to ``last``.

    It rises to ``peak`` over ``warmup`` steps, is constant, and falls to 1 % over the
    last ``decay`` steps, or never if ``decay`` is 0.

    Returns:
        The learning rate.
    """
    up = min(1.0, (step - first + 1) / warmup)
    down = 0.0
    if decay:
        down = 0.99 * max(0.0, 1.0 - (last - step - 1) / decay)
    return peak * up * (1.0 - down)


def ordinal_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, *, smoothing: float, first_bin: int
) -> torch.Tensor:
    """Compute the cross-entropy (rows, steps) against smoothed labels, in nats.

    A label is a Gaussian around its bin, cut at the first and the last bin.

    Returns:
        The cross-entropy, (rows, steps), in nats.
    """
    # 1.2 % of a Gaussian lie beyond 2.5 standard deviations, and are left out
    distance = math.ceil(2.5 * smoothing)
    offsets = torch.arange(-distance, distance + 1, device=labels.device)
    bins = labels[..., None] + offsets
    # without smoothing, the only offset is 0, and the bound avoids 0 / 0
    weights = torch.exp(-0.5 * (offsets / max(smoothing, 1e-6)) ** 2)
    weights = weights * ((bins >= first_bin) & (bins < logits.shape[-1]))
    # the label of a gap lies below the first bin and keeps no weight; its loss is left
    # out by the caller
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
    # bins past the ends have no weight, but gather must not read there
    bins = bins.clamp(first_bin, logits.shape[-1] - 1)
    # cross-entropy against soft labels; weights sum to 1, so one logsumexp serves all
    return logits.logsumexp(-1) - (weights * logits.gather(-1, bins)).sum(-1)


def blank_inputs(
    inputs: torch.Tensor, share: float, blank_id: int, generator: torch.Generator
) -> torch.Tensor:
    """Replace `share` of the token ids (rows, steps) in every second row.

    They become `blank_id`.

    Returns:
        The token ids, of the same shape.
    """
    lost = torch.rand(inputs.shape, generator=generator) < share
    lost[::2] = False
    return torch.where(lost.to(inputs.device), blank_id, inputs)


@torch.no_grad()
def sampled_inputs(
    model: PreTrainedModel,
    inputs: torch.Tensor,
    encoded: dict[str, torch.Tensor],
    stage: TrainingStage,
    seed: int,
) -> torch.Tensor:
    """Replace a share of the inputs by samples of the model, in every second row.

    Samples are drawn in two passes; the model reads those of the first pass in the
    second (scheduled sampling in parallel, Duckworth et al. 2019).

    Returns:
        The token ids, of the same shape.
    """
    generator = torch.Generator(inputs.device).manual_seed(seed)
    odd_rows = slice(1, None, 2)
    mixture = inputs.clone()
    encoder = {
        "encoder_outputs": (encoded["states"][odd_rows],),
        "attention_mask": encoded["mask"][odd_rows],
    }
    for _ in range(2):
        logits = model(
            **encoder, decoder_input_ids=mixture[odd_rows], use_cache=False
        ).logits[:, :-1, FIRST_BIN:]
        probabilities = logits.softmax(-1).flatten(0, 1)
        bins = torch.multinomial(probabilities, 1, generator=generator)
        samples = (bins + FIRST_BIN).view(logits.shape[:2])
        draws = torch.rand(samples.shape, generator=generator, device=inputs.device)
        mask = draws < stage.own_share
        # the start token is no value and stays
        mixture[odd_rows, 1:] = torch.where(mask, samples, inputs[odd_rows, 1:])
    return mixture


@torch.no_grad()
def forecast_inputs(
    model: PreTrainedModel,
    inputs: torch.Tensor,
    encoded: dict[str, torch.Tensor],
    share: float,
    seed: int,
) -> torch.Tensor:
    """Replace the inputs of a share of the rows by forecasts of the model.

    Tokens are drawn as the model's pipeline draws them (Venkatraman et al. 2015).

    Returns:
        The token ids, of the same shape.
    """
    generator = torch.Generator(inputs.device).manual_seed(seed)
    rows = torch.rand(len(inputs), generator=generator, device=inputs.device) < share
    mixture = inputs.clone()
    encoder = {
        "encoder_outputs": (encoded["states"][rows],),
        "attention_mask": encoded["mask"][rows],
    }
    if not rows.any():
        return mixture
    n_bins = model.config.vocab_size - FIRST_BIN
    cache = None
    for step in range(1, inputs.shape[1]):
        out = model(
            **encoder,
            decoder_input_ids=mixture[rows, step - 1 : step],
            past_key_values=cache,
            use_cache=True,
        )
        cache = out.past_key_values
        likeliest = out.logits[:, -1, FIRST_BIN:].topk(
            min(n_bins, model.config.chronos_config["top_k"])
        )
        picks = torch.multinomial(likeliest.values.softmax(-1), 1, generator=generator)
        mixture[rows, step] = likeliest.indices.gather(-1, picks)[:, 0] + FIRST_BIN
    return mixture


def token_step_losses(
    model: PreTrainedModel,
    past: torch.Tensor,
    future: torch.Tensor,
    stage: TrainingStage,
    *,
    seed: int = 0,
) -> torch.Tensor:
    """Compute the mean loss at each decoder position, (horizon,), in nats.

    Inputs are in data units, (rows, time).

    Returns:
        The losses, (horizon,).
    """
    chronos = ChronosConfig(**model.config.chronos_config)
    tokenizer = MeanScaleUniformBins(**chronos.tokenizer_kwargs, config=chronos)
    past = past.to(model.device)
    future = future.to(model.device)
    # the tokenizer is no module, and its tensor has to be moved to the device by hand
    tokenizer.boundaries = tokenizer.boundaries.to(model.device)
    ids, mask, scale = tokenizer._input_transform(past)
    end = torch.full_like(ids[:, :1], chronos.eos_token_id)
    ids = torch.cat([ids, end], 1)
    mask = torch.cat([mask, torch.ones_like(end, dtype=torch.bool)], 1)
    # by the scale of the past, since a forecast knows no other
    labels, label_mask, _ = tokenizer._input_transform(future, scale)
    start_id = model.config.decoder_start_token_id
    inputs = torch.cat([torch.full_like(labels[:, :1], start_id), labels[:, :-1]], 1)
    # encoded once for all passes of the decoder below
    states = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
    if stage.own_share:
        inputs = sampled_inputs(
            model, inputs, {"states": states, "mask": mask}, stage, seed
        )
    if stage.rollout:
        inputs = forecast_inputs(
            model, inputs, {"states": states, "mask": mask}, stage.rollout, seed
        )
    if stage.blank:
        inputs = blank_inputs(
            inputs, stage.blank, start_id, torch.Generator().manual_seed(seed)
        )
    logits = model(
        encoder_outputs=(states,),
        attention_mask=mask,
        decoder_input_ids=inputs,
        use_cache=False,
    ).logits
    loss = ordinal_cross_entropy(
        logits.float(), labels, smoothing=stage.smoothing, first_bin=FIRST_BIN
    )
    return (loss * label_mask).sum(0) / label_mask.sum(0).clamp(min=1)


def token_loss(
    model: PreTrainedModel,
    past: torch.Tensor,
    future: torch.Tensor,
    stage: TrainingStage,
    *,
    seed: int = 0,
) -> torch.Tensor:
    """Compute the scalar loss of a token model.

    The first forecast steps weigh more, because they set the phase.

    Returns:
        The scalar loss, in nats.
    """
    losses = token_step_losses(model, past, future, stage, seed=seed)
    # the weights fall to 1 over four steps; below, they are divided by their mean
    weights = 1.0 + (stage.first_weight - 1.0) * torch.clamp(
        1.0 - torch.arange(len(losses)) / 4.0, min=0.0
    )
    return (losses * (weights / weights.mean()).to(losses.device)).mean()


def near_future(
    past: torch.Tensor, future: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return futures near the context, and the spread of the context (rows, 1).

    Values further away than :data:`FAR` standard deviations of the context are NaN.
    """
    centre = past.nanmean(1, keepdim=True)
    spread = (past - centre).square().nanmean(1, keepdim=True).sqrt()
    return (
        torch.where((future - centre).abs() <= FAR * spread, future, torch.nan),
        spread,
    )


def log_quantile_loss(
    quantiles: torch.Tensor,
    levels: torch.Tensor,
    future: torch.Tensor,
    spread: torch.Tensor,
    floor: float,
) -> torch.Tensor:
    """Compute the mean over rows of log(loss + floor).

    The loss is the quantile loss of forecasts (rows, level, time), relative to the
    spread.

    Returns:
        The scalar loss.
    """
    levels = levels.to(future)[None, :, None]
    # NaN times 0 would stay NaN in the gradient
    present = ~future.isnan()
    target = torch.where(present, future, 0.0)[:, None]
    error = target - quantiles[..., : future.shape[1]]
    # with the factor 2 of the native loss
    pinball = 2 * torch.maximum(levels * error, (levels - 1) * error) / spread[:, None]
    losses = (pinball.mean(1) * present).sum(1) / present.sum(1)
    return (losses + floor).log().mean()


def patch_loss(
    model: PreTrainedModel,
    past: torch.Tensor,
    future: torch.Tensor,
    stage: TrainingStage,
) -> torch.Tensor:
    """Compute the quantile loss of a patch model per forecast step.

    It is the library's own loss on instance-normalised values, or the mean logarithm of
    the rows' losses if the stage has a ``log_floor``.

    Returns:
        The scalar loss.
    """
    past = past.to(model.device)
    future = future.to(model.device)
    future, spread = near_future(past, future)
    if not stage.log_floor:
        return model(context=past, target=future).loss / stage.horizon
    # a row without a spread has no relative error, and one without a future no error
    usable = (spread[:, 0] > 0) & (~future.isnan()).any(1)
    past = past[usable]
    future = future[usable]
    spread = spread[usable]
    return log_quantile_loss(
        model(context=past).quantile_preds,
        model.quantiles,
        future,
        spread,
        stage.log_floor,
    )
