"""Losses against brute force; resuming and exporting change nothing."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from chronos import BaseChronosPipeline
from chronos.chronos import ChronosConfig

from tsfm_lens.errors import CheckpointError, UnknownNameError
from tsfm_lens.zoo.export import export, native_model
from tsfm_lens.zoo.objectives import (
    FAR,
    blank_inputs,
    ordinal_cross_entropy,
    patch_loss,
    step_weights,
    token_loss,
    token_step_losses,
)
from tsfm_lens.zoo.recipes import BOLT_NANO, CHRONOS_NANO, Recipe, Stage, recipe
from tsfm_lens.zoo.train import LOG, Trainer, build_model, ordinal_embedding, run


def test_without_smoothing_the_loss_is_the_usual_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 20, generator=generator)
    labels = torch.randint(3, 20, (3, 5), generator=generator)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    ours = ordinal_cross_entropy(logits, labels, smoothing=0.0, first_bin=3)
    torch.testing.assert_close(ours.flatten(), expected)


def test_the_smoothed_loss_equals_its_definition_at_the_edges_too() -> None:
    logits = torch.randn(4, 12, generator=torch.Generator().manual_seed(1)).double()
    labels = torch.tensor([3, 4, 8, 11])
    for row, label in enumerate(labels.tolist()):
        target = np.zeros(12)
        for token in range(max(3, label - 4), min(12, label + 5)):
            target[token] = np.exp(-0.5 * ((token - label) / 1.5) ** 2)
        target /= target.sum()
        expected = -(target * logits[row].log_softmax(-1).numpy()).sum()
        ours = ordinal_cross_entropy(logits[row : row + 1], labels[row : row + 1], smoothing=1.5, first_bin=3)
        assert ours.item() == pytest.approx(expected)


def test_step_weights_fall_from_the_first_and_keep_the_mean() -> None:
    weights = step_weights(24, 3.0)
    assert weights.mean().item() == pytest.approx(1.0)
    np.testing.assert_allclose((weights / weights[-1])[:5], [3.0, 2.5, 2.0, 1.5, 1.0], rtol=1e-6)


def test_the_token_loss_is_the_native_one_where_both_are_defined(token_recipe: Recipe) -> None:
    model = build_model(token_recipe).eval()
    past, future = torch.randn(3, 24), torch.randn(3, 8)
    stage = Stage(start=0, context=24, horizon=8, rows=3, mix={})
    pipeline_config = token_recipe.config["chronos_config"]
    tokenizer = ChronosConfig(**pipeline_config).create_tokenizer()
    ids, mask, scale = tokenizer.context_input_transform(past)
    labels, _ = tokenizer.label_input_transform(future, scale)
    # the native loss with the end token left out of the mean, as it is never sampled
    native = model(input_ids=ids, attention_mask=mask, labels=labels[:, :-1].contiguous()).loss
    torch.testing.assert_close(token_step_losses(model, past, future, stage).mean(), native)
    torch.testing.assert_close(token_loss(model, past, future, stage), native)


def test_the_patch_loss_is_the_mean_quantile_loss(patch_recipe: Recipe) -> None:
    model = build_model(patch_recipe).eval()
    past, future = torch.randn(3, 24), torch.randn(3, 8)
    future[1, 2] = 10 * FAR
    forecast = model(context=past).quantile_preds.detach().double().numpy()
    total = 0.0
    for row in range(3):
        scale = past[row].double().numpy().std()
        for step in range(8):
            for index, level in enumerate(patch_recipe.config["chronos_config"]["quantiles"]):
                if (row, step) == (1, 2):
                    continue
                error = (future[row, step].item() - forecast[row, index, step]) / scale
                total += 2 * max(level * error, (level - 1) * error)
    stage = Stage(start=0, context=24, horizon=8, rows=3, mix={})
    assert patch_loss(model, past, future, stage).item() == pytest.approx(total / (3 * 9 * 8), rel=1e-4)


def test_neighbouring_bins_start_alike_and_distant_ones_do_not() -> None:
    table = ordinal_embedding(512, 64, 3, torch.Generator().manual_seed(0))[3:]
    cosine = torch.nn.functional.cosine_similarity(table[200][None], table)
    assert cosine.argmax() == 200
    assert cosine[201] > 0.8 > cosine[220] > cosine[400]


def test_every_second_row_loses_its_share_of_inputs() -> None:
    inputs = torch.full((200, 50), 7)
    blanked = blank_inputs(inputs, 0.25, 0, torch.Generator().manual_seed(0))
    assert torch.equal(blanked[::2], inputs[::2])
    assert set(blanked.unique().tolist()) == {0, 7}
    assert (blanked[1::2] == 0).double().mean().item() == pytest.approx(0.25, abs=0.02)


def test_blanking_leaves_the_labels_alone(token_recipe: Recipe) -> None:
    model = build_model(token_recipe).eval()
    past, future = torch.randn(4, 24), torch.randn(4, 8)
    stage = Stage(start=0, context=24, horizon=8, rows=4, mix={}, blank=0.9)
    whole = stage.model_copy(update={"blank": 0.0})
    # rows 0 and 2 keep their inputs, so their losses must not change
    kept = [token_step_losses(model, past[:1], future[:1], one) for one in (stage, whole)]
    assert torch.equal(*kept)
    lost = [token_step_losses(model, past, future, one) for one in (stage, whole)]
    assert not torch.allclose(*lost)


def test_the_rate_follows_its_schedule() -> None:
    schedule = ((-1, 0.0), (99, 1.0), (600, 1.0), (1000, 0.0))
    plan = CHRONOS_NANO.model_copy(update={"schedule": schedule, "learning_rate": 2.0})
    rates = [plan.rate(step) for step in (0, 49, 99, 500, 600, 800, 1000, 1200)]
    np.testing.assert_allclose(rates, [0.02, 1.0, 2.0, 2.0, 2.0, 1.0, 0.0, 0.0])


def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(tiny: Recipe, tmp_path: Path) -> None:
    whole = Trainer(tiny, tmp_path / "whole", device="cpu")
    run(whole)
    stopped = Trainer(tiny, tmp_path / "stopped", device="cpu")
    run(stopped, until=4)
    torch.manual_seed(99)
    resumed = Trainer(tiny, tmp_path / "stopped", device="cpu")
    resumed.resume()
    assert resumed.step == 4
    run(resumed)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    with (tmp_path / "stopped" / LOG).open() as log:
        assert [row[0] for row in csv.reader(log)] == ["4", "8"]


def test_training_lowers_the_loss_on_its_own_rows(tiny: Recipe, tmp_path: Path) -> None:
    plan = tiny.model_copy(update={"steps": 60, "stages": tiny.stages[:1], "learning_rate": 1e-2})
    trainer = Trainer(plan, tmp_path / "run", device="cpu")
    losses = [trainer.train_step() for _ in range(60)]
    assert np.mean(losses[-15:]) < 0.9 * np.mean(losses[:5])


def test_nothing_to_resume_is_said(tiny: Recipe, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="start without --resume"):
        Trainer(tiny, tmp_path / "empty", device="cpu").resume()


def test_the_native_pipeline_computes_exactly_what_was_trained(tiny: Recipe, tmp_path: Path) -> None:
    model = build_model(tiny).eval()
    export(model, tmp_path / "out")
    pipeline = BaseChronosPipeline.from_pretrained(str(tmp_path / "out"))
    past = torch.randn(2, 24)
    if tiny.kind == "patch":
        expected = model(context=past).quantile_preds
        got = native_model(pipeline)(context=past).quantile_preds
    else:
        ids, mask, _ = pipeline.tokenizer.context_input_transform(past)
        inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": torch.tensor([[0, 5], [0, 9]])}
        expected, got = model(**inputs).logits, native_model(pipeline)(**inputs).logits
    assert torch.equal(got, expected)
    assert pipeline.predict(past, prediction_length=8).shape[-1] == 8


def test_recipes_stay_small_and_unknown_names_are_answered() -> None:
    for plan in (CHRONOS_NANO, BOLT_NANO):
        assert 4 * sum(p.numel() for p in build_model(plan).parameters()) < 12e6
    with pytest.raises(UnknownNameError, match="chronos-nano"):
        recipe("chronos-mano")
