"""Legs of a training: rates that rise again, Muon, the mean of legs, checkpoints, and
wider models.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from chronos import BaseChronosPipeline
from safetensors.torch import load_file
from transformers import PreTrainedModel, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5LayerNorm

from recipe_runs import assert_same_weights, resumed, run
from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.studies.recipes.export import as_pipeline, export
from tsfm_lens.studies.recipes.models import build_model, widened
from tsfm_lens.studies.recipes.muon import MuonAdamW, layer_matrices
from tsfm_lens.studies.recipes.recipe import Phase, TrainingRecipe, recipe
from tsfm_lens.studies.recipes.recipe import recipe as find_recipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.testing import assert_close
from tsfm_lens.training.series_source import Corpus
from tsfm_lens.training.state import HISTORY


def test_learning_rates_rise_again_at_restarts() -> None:
    again = Phase(at=1000, learning_rate=1.0, decay=500)
    plan = find_recipe("chronos-nano").model_copy(
        update={
            "warmup": 100,
            "decay": 400,
            "steps": 2000,
            "learning_rate": 2.0,
            "restarts": (again,),
        }
    )
    rates = [plan.rate(step) for step in (0, 599, 999, 1000, 1099, 1499, 1999)]
    np.testing.assert_allclose(rates, [0.02, 2.0, 0.02, 0.01, 1.0, 1.0, 0.01])
    third = plan.model_copy(
        update={
            "steps": 3000,
            "restarts": (again, Phase(at=2000, learning_rate=0.5, decay=1000)),
        }
    )
    np.testing.assert_allclose(
        [third.rate(step) for step in (0, 599, 999, 1000, 1099, 1499, 1999)], rates
    )
    np.testing.assert_allclose(
        [third.rate(step) for step in (2099, 2499, 2999)], [0.4505, 0.2525, 0.005]
    )
    short = plan.model_copy(update={"steps": 800})
    np.testing.assert_allclose(
        [short.rate(step) for step in (399, 599, 799)], [2.0, 1.01, 0.02]
    )


def muon_leg(recipe: TrainingRecipe) -> TrainingRecipe:
    """The recipe with a second leg of four steps by Muon."""
    again = Phase(at=4, learning_rate=1e-2, decay=0, optimizer="Muon")
    return recipe.model_copy(update={"restarts": (again,), "warmup": 1, "steps": 8})


def test_muon_takes_matrices_of_layers_only(
    token_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path
) -> None:
    trainer = Trainer(muon_leg(token_recipe), tmp_path / "run", corpus, device="cpu")
    trainer.run(until=4, quiet=True)
    assert not isinstance(trainer.optimizer, MuonAdamW)
    trainer.train_step()
    assert isinstance(trainer.optimizer, MuonAdamW)
    rest, matrices = (
        {id(part) for part in group["params"]}
        for group in trainer.optimizer.param_groups
    )
    assert matrices == {id(weight) for weight in layer_matrices(trainer.model)}
    assert rest == {id(weight) for weight in trainer.model.parameters()} - matrices


def test_phases_of_muon_need_a_torch_that_has_it(
    token_recipe: TrainingRecipe,
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    plan = muon_leg(token_recipe)
    expect_error(r"Muon.*2\.9", Trainer, plan, tmp_path / "run", corpus)
    assert not (tmp_path / "run").exists()


def three_legs(
    recipe: TrainingRecipe, *, from_mean: bool, config: dict[str, int] | None = None
) -> TrainingRecipe:
    """The recipe with restarts at its third and sixth step of nine."""
    second = Phase(at=3, learning_rate=1e-2, decay=3)
    third = Phase(
        at=6, learning_rate=1e-2, decay=3, from_mean=from_mean, config=config or {}
    )
    return recipe.model_copy(
        update={"restarts": (second, third), "warmup": 1, "steps": 9}
    )


def test_legs_can_begin_from_means(
    tiny: TrainingRecipe, corpus: Corpus, tmp_path: Path
) -> None:
    """A leg begins from the mean of two checkpoints if it says so."""
    plan = three_legs(tiny, from_mean=True)
    full = run(plan, tmp_path / "whole", corpus)
    before, after = (
        load_file(tmp_path / "whole" / HISTORY / f"step-00000{step}.safetensors")
        for step in (3, 6)
    )
    assert any(not torch.equal(before[name], after[name]) for name in before)
    plain = Trainer(
        three_legs(tiny, from_mean=False), tmp_path / "plain", corpus, device="cpu"
    )
    plain.model.load_state_dict(
        {name: (before[name] + after[name]) / 2 for name in before}, strict=False
    )
    plain.step = 6
    plain.run(quiet=True)
    for name, weight in full.model.state_dict().items():
        # the mean is taken in another order of sums, and three steps go on from it
        assert_close(plain.model.state_dict()[name], weight, depth=1000)


WIDER = {
    "d_model": 24,
    "d_kv": 6,
    "d_ff": 20,
    "relative_attention_num_buckets": 256,
    "relative_attention_max_distance": 256,
}


def outputs(model: PreTrainedModel, length: int = 30) -> torch.Tensor:
    """Logits of random tokens, or quantiles of random series, with gradients."""
    generator = torch.Generator().manual_seed(0)
    if not isinstance(model, T5ForConditionalGeneration):
        series = torch.randn((3, length), generator=generator, dtype=model.dtype)
        series[0, : length // 3] = torch.nan
        return model(context=series).quantile_preds
    past, future = (
        torch.randint(3, model.config.vocab_size, (3, steps), generator=generator)
        for steps in (length, 7)
    )
    return model(input_ids=past, decoder_input_ids=future).logits


def trained(plan: TrainingRecipe) -> PreTrainedModel:
    """A model in double precision whose every weight differs from what it begins with;
    its norms have no epsilon.
    """
    model = build_model(
        plan.model_copy(update={"config": plan.config | {"layer_norm_epsilon": 0.0}})
    ).double()
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


@pytest.fixture
def double_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms that stay in double precision: T5's take their mean in single."""

    def forward(norm: T5LayerNorm, states: torch.Tensor) -> torch.Tensor:
        variance = states.square().mean(-1, keepdim=True)
        return norm.weight * states * torch.rsqrt(variance + norm.variance_epsilon)

    monkeypatch.setattr(T5LayerNorm, "forward", forward)


@pytest.mark.usefixtures("double_norms")
@pytest.mark.parametrize("part", ["d_model", "d_kv", "d_ff", "all"])
def test_wider_models_give_the_same_outputs(tiny: TrainingRecipe, part: str) -> None:
    if part == "all":
        changes = WIDER
    else:
        changes = {part: WIDER[part]}
    model = trained(tiny)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    wider = widened(model, changes, seed=0)
    assert all(getattr(wider.config, name) == value for name, value in changes.items())
    assert sum(weight.numel() for weight in wider.parameters()) > sum(
        weight.numel() for weight in model.parameters()
    )
    assert_close(outputs(wider), outputs(model), depth=1000)
    assert all(
        torch.equal(weight, before[name]) for name, weight in model.state_dict().items()
    )


@pytest.mark.usefixtures("double_norms")
@pytest.mark.parametrize(
    ("name", "length"),
    [("chronos-nano", 300), ("bolt-nano", 512)],
)
def test_recipes_widen_models_at_all_distances(name: str, length: int) -> None:
    """Recipes widen their models at all distances between tokens that they meet."""
    plan = recipe(name)
    model, (changes,) = (
        trained(plan),
        [phase.config for phase in plan.restarts if phase.config],
    )
    assert_close(
        outputs(widened(model, changes, seed=0), length),
        outputs(model, length),
        depth=10_000,
    )


def test_every_new_weight_learns(tiny: TrainingRecipe) -> None:
    model = trained(tiny)
    old = dict(model.named_parameters())
    wider = widened(model, WIDER, seed=0)
    optimizer = torch.optim.SGD(wider.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        optimizer.zero_grad()
        out = outputs(wider)
        (out * torch.randn(out.shape, generator=generator)).mean().backward()
        optimizer.step()
    # the decoder of a patch model has one position, so that its self-attention has
    # nothing to choose
    idle = ["relative", "shared"]
    if tiny.kind == "patch":
        idle += [
            "decoder.block.0.layer.0.SelfAttention.q",
            "decoder.block.0.layer.0.SelfAttention.k",
        ]
    for name, weight in wider.named_parameters():
        assert weight.grad is not None
        if weight.ndim == 2 and not any(part in name for part in idle):
            # some of the last rows and columns, which are new, reach the loss by the
            # second step
            rows, columns = (
                min(before, new - 1)
                for before, new in zip(old[name].shape, weight.shape, strict=True)
            )
            assert weight.grad[rows:].abs().max() > 0, name
            assert weight.grad[:, columns:].abs().max() > 0, name


def test_what_cannot_grow_is_refused(
    token_recipe: TrainingRecipe,
) -> None:
    model = build_model(token_recipe)
    expect_error(r"d_models.*d_model", widened, model, {"d_models": 32}, seed=0)
    expect_error("d_ff=8 is below the model's 16", widened, model, {"d_ff": 8}, seed=0)
    with pytest.raises(InputError, match="two of the model's buckets"):
        widened(
            trained(token_recipe),
            WIDER | {"relative_attention_num_buckets": 64},
            seed=0,
        )


def growing(plan: TrainingRecipe) -> TrainingRecipe:
    """The recipe with a wider second leg from step 4 to 8."""
    again = Phase(at=4, learning_rate=1e-2, decay=4, optimizer="Muon", config=WIDER)
    return plan.model_copy(update={"restarts": (again,), "warmup": 1, "steps": 8})


@pytest.mark.parametrize(
    ("leg", "stops"), [("muon", (6,)), ("mean", (6, 7)), ("wider", (3, 4, 6))]
)
def test_legs_are_resumed(
    leg: str,
    stops: tuple[int, ...],
    token_recipe: TrainingRecipe,
    corpus: Corpus,
    tmp_path: Path,
) -> None:
    plans = {
        "muon": muon_leg,
        "mean": partial(three_legs, from_mean=True),
        "wider": growing,
    }
    plan = plans[leg](token_recipe)
    full = run(plan, tmp_path / "whole", corpus)
    for until in stops:
        run(plan, tmp_path / f"stopped-{until}", corpus, until=until)
        again = resumed(plan, tmp_path / f"stopped-{until}", corpus)
        assert_same_weights(full, again)


def test_the_native_pipeline_computes_trained_forecasts(
    tiny: TrainingRecipe, tmp_path: Path
) -> None:
    """The native pipeline computes exactly what was trained."""
    model = build_model(tiny).eval()
    export(model, tmp_path / "out")
    pipeline = BaseChronosPipeline.from_pretrained(str(tmp_path / "out"))
    past = torch.randn(2, 24)
    if tiny.kind == "token":
        ids, mask, _ = pipeline.tokenizer.context_input_transform(past)
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "decoder_input_ids": torch.tensor([[0, 5], [0, 9]]),
        }
        expected = model(**inputs).logits
        got = pipeline.inner_model(**inputs).logits
    else:
        expected, got = (
            item(context=past).quantile_preds for item in (model, pipeline.inner_model)
        )
    assert torch.equal(got, expected)
    levels = [0.1, 0.5, 0.9]
    torch.manual_seed(0)
    here, _ = as_pipeline(model).predict_quantiles(
        list(past), prediction_length=8, quantile_levels=levels
    )
    torch.manual_seed(0)
    there, _ = pipeline.predict_quantiles(
        list(past), prediction_length=8, quantile_levels=levels
    )
    assert all(torch.equal(one, two) for one, two in zip(here, there, strict=True))
