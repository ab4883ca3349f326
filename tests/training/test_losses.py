"""Losses of token and patch models against their definitions, and inputs that models
draw themselves.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chronos.chronos import ChronosConfig
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

from closeness import close_in_float32
from tsfm_lens.testing import assert_close
from tsfm_lens.training.losses import (
    FAR,
    TrainingStage,
    blank_inputs,
    forecast_inputs,
    ordinal_cross_entropy,
    patch_loss,
    token_loss,
    token_step_losses,
)

SIZES = {
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 16,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "num_heads": 2,
}
IDS = {"pad_token_id": 0, "eos_token_id": 1}
STEPS = {"context_length": 24, "prediction_length": 8}
QUANTILES = [level / 10 for level in range(1, 10)]
TOKENS = {
    "tokenizer_class": "MeanScaleUniformBins",
    "tokenizer_kwargs": {"low_limit": -5.0, "high_limit": 5.0},
    "n_tokens": 64,
    "n_special_tokens": 2,
    "use_eos_token": True,
    "model_type": "seq2seq",
    "num_samples": 4,
    "temperature": 1.0,
    "top_p": 1.0,
    **IDS,
    **STEPS,
}


def token_model(top_k: int = 64) -> PreTrainedModel:
    """A token model of 64 ids."""
    config = {
        "chronos_config": TOKENS | {"top_k": top_k},
        "vocab_size": 64,
        "decoder_start_token_id": 0,
    }
    return T5ForConditionalGeneration(
        T5Config(**SIZES, **IDS, **config, dropout_rate=0.0)
    ).eval()


def patch_model() -> PreTrainedModel:
    """A patch model of four steps a patch."""
    chronos = {
        **STEPS,
        "input_patch_size": 4,
        "input_patch_stride": 4,
        "quantiles": QUANTILES,
        "use_reg_token": True,
    }
    config = {
        "chronos_config": chronos,
        "decoder_start_token_id": 0,
        "reg_token_id": 1,
        "vocab_size": 2,
    }
    return ChronosBoltModelForForecasting(
        T5Config(**SIZES, **IDS, **config, dropout_rate=0.0)
    ).eval()


def test_smoothed_loss_follows_its_definition() -> None:
    """The smoothed loss equals its definition, at the edges too."""
    logits = torch.randn(4, 12, generator=torch.Generator().manual_seed(1)).double()
    labels = torch.tensor([3, 4, 8, 11])
    for row, label in enumerate(labels.tolist()):
        target = np.zeros(12)
        for token in range(max(3, label - 4), min(12, label + 5)):
            target[token] = np.exp(-0.5 * ((token - label) / 1.5) ** 2)
        target /= target.sum()
        expected = -(target * logits[row].log_softmax(-1).numpy()).sum()
        ours = ordinal_cross_entropy(
            logits[row : row + 1], labels[row : row + 1], smoothing=1.5, first_bin=3
        )
        assert ours.item() == pytest.approx(expected)


def test_token_loss_equals_native_where_defined() -> None:
    """The token loss is the native one where both are defined."""
    model = token_model()
    past = torch.randn(3, 24)
    future = torch.randn(3, 8)
    stage = TrainingStage(start=0, context=24, horizon=8, rows=3, mix={})
    tokenizer = ChronosConfig(**model.config.chronos_config).create_tokenizer()
    ids, mask, scale = tokenizer.context_input_transform(past)
    labels, _ = tokenizer.label_input_transform(future, scale)
    # the native loss with the end token left out of the mean, as it is never sampled
    native = model(
        input_ids=ids, attention_mask=mask, labels=labels[:, :-1].contiguous()
    ).loss
    assert_close(
        token_step_losses(model, past, future, stage).mean(), native, depth=100
    )
    assert_close(token_loss(model, past, future, stage), native, depth=100)


def test_patch_loss_is_mean_quantile_loss() -> None:
    model = patch_model()
    past = torch.randn(3, 24)
    future = torch.randn(3, 8)
    future[1, 2] = 10 * FAR
    forecast = model(context=past).quantile_preds.detach().double()
    error = (future[:, None] - forecast) / past.double().std(1, correction=0)[
        :, None, None
    ]
    levels = torch.tensor(QUANTILES).double()[:, None]
    losses = 2 * torch.maximum(levels * error, (levels - 1) * error)
    # what lies too far away counts as 0
    losses[1, :, 2] = 0
    stage = TrainingStage(start=0, context=24, horizon=8, rows=3, mix={})
    found = patch_loss(model, past, future, stage)
    close_in_float32(found.item(), losses.mean(), depth=1000)


def test_floor_makes_rows_count_logarithmically() -> None:
    """With a floor, rows count by the logarithm of their loss."""
    model = patch_model()
    past = torch.randn(5, 24)
    future = torch.randn(5, 8)
    future[1, 2:] = torch.nan
    # no spread, no future: both are left out
    past[3] = 1.0
    future[4] = torch.nan
    stage = TrainingStage(start=0, context=24, horizon=8, rows=5, mix={})
    # the native loss of a row takes the mean over all of its steps, those that are
    # missing counting as 0
    there = (8, 2, 8)
    single = [
        patch_loss(model, past[row, None], future[row, None], stage).item()
        for row in range(3)
    ]
    rows = [loss * 8 / steps for loss, steps in zip(single, there, strict=True)]
    expected = np.mean(np.log(np.array(rows) + 0.1))
    given = patch_loss(model, past, future, stage.model_copy(update={"log_floor": 0.1}))
    close_in_float32(given.item(), expected, depth=1000)
    given.backward()
    assert all(
        weight.grad.isfinite().all()
        for weight in model.parameters()
        if weight.grad is not None
    )


def test_every_second_row_is_partly_blanked() -> None:
    """Every second row loses the given share of its inputs."""
    inputs = torch.full((200, 50), 7)
    blanked = blank_inputs(inputs, 0.25, 0, torch.Generator().manual_seed(0))
    assert torch.equal(blanked[::2], inputs[::2])
    assert set(blanked.unique().tolist()) == {0, 7}
    # five standard errors of a share of 100 rows of 50
    assert (blanked[1::2] == 0).double().mean().item() == pytest.approx(
        0.25, abs=5 * (0.25 * 0.75 / 5_000) ** 0.5
    )


def encoded(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Four rows of twelve tokens, two of them without the first five."""
    ids = torch.randint(3, 64, (4, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[2:, :5] = 0
    return {
        "states": (
            model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
        ),
        "mask": mask,
    }


def test_some_rows_follow_models_own_forecast() -> None:
    """A share of the rows continues from the model's own forecast."""
    model = token_model(top_k=1)
    inputs = torch.cat([torch.zeros(4, 1, dtype=torch.long), torch.full((4, 7), 9)], 1)
    given = encoded(model)
    led = forecast_inputs(model, inputs, given, 1.0, seed=0)
    # with one token to choose from it is the forecast that always takes the likeliest
    # value, here without a cache
    wanted = inputs[:, :1]
    for _ in range(7):
        logits = model(
            encoder_outputs=(given["states"],),
            attention_mask=given["mask"],
            decoder_input_ids=wanted,
        ).logits
        wanted = torch.cat([wanted, logits[:, -1:, 3:].argmax(-1) + 3], 1)
    assert torch.equal(led, wanted)
    assert torch.equal(forecast_inputs(model, inputs, given, 0.0, seed=0), inputs)
    some = forecast_inputs(model, inputs, given, 0.5, seed=1)
    replaced = (some != inputs).any(1)
    assert 0 < replaced.sum() < 4
    assert torch.equal(some, torch.where(replaced[:, None], wanted, inputs))


def test_own_forecasts_use_pipeline_draws() -> None:
    """The model's own forecasts are drawn as the pipeline draws them."""
    model = token_model(top_k=3)
    given = {
        name: part[:1].expand(4000, *part.shape[1:])
        for name, part in encoded(model).items()
    }
    draws = 4000
    inputs = torch.zeros(draws, 2, dtype=torch.long)
    first = forecast_inputs(model, inputs, given, 1.0, seed=0)[:, 1]
    one = {
        "encoder_outputs": (given["states"][:1],),
        "attention_mask": given["mask"][:1],
    }
    likeliest = model(**one, decoder_input_ids=inputs[:1, :1]).logits[0, 0, 3:].topk(3)
    assert set(first.tolist()) == set((likeliest.indices + 3).tolist())
    for token, share in zip(
        likeliest.indices + 3, likeliest.values.softmax(-1).tolist(), strict=True
    ):
        found = (first == token).double().mean().item()
        assert found == pytest.approx(
            share, abs=5 * (share * (1 - share) / draws) ** 0.5
        )


def test_model_draws_leave_labels_unchanged() -> None:
    """What the model draws changes its inputs and not its labels."""
    model = token_model()
    past = torch.randn(40, 24)
    future = torch.randn(40, 8)
    stage = TrainingStage(start=0, context=24, horizon=8, rows=40, mix={}, rollout=1.0)
    stages = stage, stage.model_copy(update={"rollout": 0})
    led, truth = (token_step_losses(model, past, future, one) for one in stages)
    # at the first step the inputs are the start in both cases
    assert_close(led[0], truth[0], depth=100)
    assert not torch.allclose(led[1:], truth[1:])


def test_future_gaps_cost_nothing() -> None:
    """Gaps in the future cost nothing and break nothing."""
    model = token_model()
    past = torch.randn(3, 24)
    future = torch.randn(3, 8)
    stage = TrainingStage(start=0, context=24, horizon=8, rows=3, mix={}, smoothing=1.0)
    future[:, 5] = torch.nan
    losses = token_step_losses(model, past, future, stage)
    assert losses[5].item() == 0.0
    losses.sum().backward()
    assert all(
        torch.isfinite(weight.grad).all()
        for weight in model.parameters()
        if weight.grad is not None
    )
