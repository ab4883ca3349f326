"""Widening: the same outputs from a wider model, whose new weights learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.models.t5.modeling_t5 import T5LayerNorm

from recipe_runs import assert_same_weights, resumed, run
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.studies.recipes.corpus import Corpus
from tsfm_lens.studies.recipes.export import export
from tsfm_lens.studies.recipes.history import TrainingHistory, initial_model
from tsfm_lens.studies.recipes.models import build_model, widened
from tsfm_lens.studies.recipes.recipe import Phase, TrainingRecipe, recipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.testing import assert_close
from tsfm_lens.training.state import HISTORY

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
    if isinstance(model, ChronosBoltModelForForecasting):
        series = torch.randn((3, length), generator=generator, dtype=model.dtype)
        series[0, : length // 3] = torch.nan
        return model(context=series).quantile_preds
    past, future = (torch.randint(3, model.config.vocab_size, (3, steps), generator=generator) for steps in (length, 7))
    return model(input_ids=past, decoder_input_ids=future).logits


def trained(plan: TrainingRecipe) -> PreTrainedModel:
    """A model in double precision whose every weight differs from what it begins with; its norms have no epsilon."""
    model = build_model(plan.model_copy(update={"config": plan.config | {"layer_norm_epsilon": 0.0}})).double()
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


@pytest.fixture(params=["token_recipe", "patch_recipe"])
def t5_recipe(request: pytest.FixtureRequest) -> TrainingRecipe:
    """The tiny recipe of each kind that can be widened."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def double_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms that stay in double precision: T5's take their mean in single."""

    def forward(norm: T5LayerNorm, states: torch.Tensor) -> torch.Tensor:
        variance = states.square().mean(-1, keepdim=True)
        return norm.weight * states * torch.rsqrt(variance + norm.variance_epsilon)

    monkeypatch.setattr(T5LayerNorm, "forward", forward)


@pytest.mark.usefixtures("double_norms")
@pytest.mark.parametrize("changes", [*({name: WIDER[name]} for name in ("d_model", "d_kv", "d_ff")), WIDER])
def test_a_wider_model_gives_the_same_outputs(t5_recipe: TrainingRecipe, changes: dict[str, int]) -> None:
    model = trained(t5_recipe)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    wider = widened(model, changes, seed=0)
    assert all(getattr(wider.config, name) == value for name, value in changes.items())
    assert sum(weight.numel() for weight in wider.parameters()) > sum(weight.numel() for weight in model.parameters())
    assert_close(outputs(wider), outputs(model), depth=1000)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.usefixtures("double_norms")
@pytest.mark.parametrize(("name", "length"), [("chronos-nano", 300), ("bolt-nano", 512)])
def test_recipes_widen_their_models_at_all_distances_that_they_meet(name: str, length: int) -> None:
    plan = recipe(name)
    model, (changes,) = trained(plan), [phase.config for phase in plan.restarts if phase.config]
    assert_close(outputs(widened(model, changes, seed=0), length), outputs(model, length), depth=10_000)


def test_every_new_weight_learns(t5_recipe: TrainingRecipe) -> None:
    model = trained(t5_recipe)
    old = dict(model.named_parameters())
    wider = widened(model, WIDER, seed=0)
    optimizer = torch.optim.SGD(wider.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        optimizer.zero_grad()
        out = outputs(wider)
        (out * torch.randn(out.shape, generator=generator)).mean().backward()
        optimizer.step()
    # the decoder of a patch model has one position, so that its self-attention has nothing to choose
    idle = ["relative", "shared"]
    if t5_recipe.kind == "patch":
        idle += ["decoder.block.0.layer.0.SelfAttention.q", "decoder.block.0.layer.0.SelfAttention.k"]
    for name, weight in wider.named_parameters():
        assert weight.grad is not None
        if weight.ndim == 2 and not any(part in name for part in idle):
            # some of the last rows and columns, which are new, reach the loss by the second step
            rows, columns = (min(before, new - 1) for before, new in zip(old[name].shape, weight.shape, strict=True))
            assert weight.grad[rows:].abs().max() > 0, name
            assert weight.grad[:, columns:].abs().max() > 0, name


def test_what_cannot_grow_is_refused(token_recipe: TrainingRecipe, group_recipe: TrainingRecipe) -> None:
    model = build_model(token_recipe)
    with pytest.raises(InputError, match=r"only Chronos and Chronos-Bolt .* Chronos2Model"):
        widened(build_model(group_recipe), {"d_ff": 32}, seed=0)
    with pytest.raises(UnknownNameError, match=r"d_models.*d_model"):
        widened(model, {"d_models": 32}, seed=0)
    with pytest.raises(InputError, match="d_ff=8 is below the model's 16"):
        widened(model, {"d_ff": 8}, seed=0)
    with pytest.raises(InputError, match="two of the model's buckets"):
        widened(trained(token_recipe), WIDER | {"relative_attention_num_buckets": 64}, seed=0)


def growing(plan: TrainingRecipe) -> TrainingRecipe:
    """The recipe with a wider second leg from step 4 to 8."""
    again = Phase(at=4, learning_rate=1e-2, decay=4, optimizer="Muon", config=WIDER)
    return plan.model_copy(update={"restarts": (again,), "warmup": 1, "steps": 8})


def test_a_run_widens_where_the_recipe_says(token_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path) -> None:
    plan = growing(token_recipe)
    whole = run(plan, tmp_path / "whole", corpus)
    kept = {
        step: load_file(tmp_path / "whole" / HISTORY / f"step-00000{step}.safetensors")["shared.weight"].shape[1]
        for step in (4, 8)
    }
    assert kept == {4: 16, 8: 24}
    for until in (3, 4, 6):
        out = tmp_path / f"stopped-{until}"
        run(plan, out, corpus, until=until)
        again = resumed(plan, out, corpus)
        assert_same_weights(whole, again)
    history = TrainingHistory(tmp_path / "whole")
    assert [history[step].adapter.model.config.d_model for step in (4, 5, 8)] == [16, 24, 24]
    assert initial_model(plan).adapter.model.config.d_model == 24


def test_a_wider_leg_starts_from_a_narrow_checkpoint(
    token_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path
) -> None:
    plan = growing(token_recipe)
    whole = run(plan, tmp_path / "whole", corpus, until=4)
    export(whole.model, tmp_path / "narrow")
    whole.run(quiet=True)
    second = Trainer(plan, tmp_path / "second", corpus, device="cpu")
    second.go_on_from(tmp_path / "narrow")
    assert second.run(quiet=True)
    assert_same_weights(whole, second)


def test_a_narrower_leg_is_refused_at_once(token_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path) -> None:
    again = Phase(at=4, learning_rate=1e-2, decay=4, config={"d_ff": 8})
    plan = token_recipe.model_copy(update={"restarts": (again,), "steps": 8})
    with pytest.raises(InputError, match="d_ff=8 is below the model's 16"):
        Trainer(plan, tmp_path / "run", corpus, device="cpu")
    assert not (tmp_path / "run").exists()
