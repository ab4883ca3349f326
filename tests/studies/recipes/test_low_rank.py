"""Models that begin at low rank, and the experiment on them: what they compute, train,
keep and measure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from recipe_runs import resumed, run
from refusals import expect_error
from tsfm_lens import load
from tsfm_lens.compress import Compressed, LowRankLinear, matrices, sizes
from tsfm_lens.core.ranks import epsilon_rank
from tsfm_lens.models import Lens
from tsfm_lens.studies.rank_theory.embeddings import ChebyshevEmbedding
from tsfm_lens.studies.recipes import levels
from tsfm_lens.studies.recipes.export import as_pipeline, export
from tsfm_lens.studies.recipes.history import TrainingHistory, initial_model
from tsfm_lens.studies.recipes.lowrank import (
    DENSE,
    draw_held_out,
    records,
    run_folder,
)
from tsfm_lens.studies.recipes.models import attention_ranks, build_model
from tsfm_lens.studies.recipes.recipe import AttentionRank, TrainingRecipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.studies.structured.forms import token_blocks
from tsfm_lens.studies.structured.matrices import level_blocks
from tsfm_lens.studies.structured.scores import Reach, reaching_scores, spread
from tsfm_lens.testing import assert_close
from tsfm_lens.training.series_source import Corpus

D = 16
D_HEAD = 4


def with_rank(recipe: TrainingRecipe, **options: Any) -> TrainingRecipe:
    return recipe.model_copy(update={"attention_rank": AttentionRank(**options)})


def opened(model: Any) -> Lens:
    return load(as_pipeline(model.eval()), check=False)


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(3, 35).reshape(2, 16)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    with torch.no_grad():
        found: torch.Tensor = model.eval()(
            input_ids=ids, attention_mask=mask, decoder_input_ids=ids[:, :5]
        ).logits
    return found


def compute_rank(weight: torch.Tensor) -> int:
    """Directions beyond rounding to float32."""
    return int(
        epsilon_rank(torch.linalg.svdvals(weight.detach().double()).numpy(), 1e-6)
    )


@pytest.mark.parametrize("sketch", ["by head", "shared"])
def test_low_ranks_change_attentions_only(tiny: TrainingRecipe, sketch: str) -> None:
    """Only attentions differ from the dense model, and they keep their norm."""
    dense = build_model(tiny)
    low = build_model(with_rank(tiny, rank=2, sketch=sketch))
    state = low.state_dict()
    known = matrices(opened(dense))
    paths = {matrix.path for matrix in known.values()}
    for name, weight in dense.state_dict().items():
        if name.removesuffix(".weight") not in paths:
            assert torch.equal(weight, state[name]), name
    for path in paths:
        layer = low.get_submodule(path)
        full = dense.get_submodule(path).weight
        assert isinstance(layer, LowRankLinear)
        assert_close(
            layer.weight.norm().item(),
            full.norm().item(),
            depth=D,
            dtype=torch.float32,
        )
        # no factor is the larger one
        assert_close(
            layer.up.norm().item(),
            layer.down.norm().item(),
            depth=D,
            dtype=torch.float32,
        )


def test_ranks_rise_to_head_size(
    token_recipe: TrainingRecipe,
) -> None:
    """Ranks rise by the schedule and end at the size of a head."""
    deep = token_recipe.model_copy(
        update={"config": token_recipe.config | {"num_layers": 4}}
    )
    lens = opened(build_model(deep))
    ranks = attention_ranks(lens, AttentionRank(rank=2, growth=0.6))
    # ceil(2 * (1 + i) ** 0.6) is 2, 4, 4, 5, of heads of four
    assert [ranks[f"encoder_blocks.{layer}.self_attn.v"] for layer in range(4)] == [
        2,
        4,
        4,
        4,
    ]
    assert ranks["decoder_blocks.0.cross_attn.o"] == 2


def test_fixed_vocabularies_have_rank_and_polynomials(
    token_recipe: TrainingRecipe,
) -> None:
    dense = build_model(token_recipe)
    model = build_model(token_recipe.model_copy(update={"vocabulary_rank": 3}))
    table = model.shared.weight.double()
    assert compute_rank(table) == 3
    values = torch.linspace(-5, 5, 61, dtype=torch.float64).numpy()
    expected = ChebyshevEmbedding.random(D, 3, largest=5.0, seed=0)(values).T
    scale = table[3:].norm() / torch.from_numpy(expected).norm()
    assert_close(
        table[3:], scale * torch.from_numpy(expected), depth=16, dtype=torch.float32
    )
    assert_close(table[3:].square().mean().item(), 1.0, depth=64, dtype=torch.float32)
    # the head begins as the dense model's, which scales what enters it
    model.shared.weight.data.copy_(dense.shared.weight)
    assert_close(logits(model), logits(dense), depth=100)


def test_training_leaves_only_a_fixed_vocabulary(
    token_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path
) -> None:
    recipe = with_rank(token_recipe, rank=1, growth=0.5).model_copy(
        update={"vocabulary_rank": 2, "weight_decay": 0.5}
    )
    trainer = Trainer(recipe, tmp_path / "run", corpus, device="cpu")
    before = {
        name: weight.clone() for name, weight in trainer.model.state_dict().items()
    }
    assert trainer.run(quiet=True)
    after = trainer.model.state_dict()
    same = {name for name, weight in before.items() if torch.equal(weight, after[name])}
    assert same == {
        "shared.weight",
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
    }
    assert compute_rank(after["shared.weight"]) == 2


@pytest.mark.parametrize("sketch", ["by head", "shared"])
def test_low_ranks_have_every_hook_point(
    tiny: TrainingRecipe, sketch: str, corpus: Corpus, tmp_path: Path
) -> None:
    """Trained models of low rank open with every hook point."""
    recipe = with_rank(tiny, rank=2, sketch=sketch)
    full = run(recipe, tmp_path / "whole", corpus)
    run(recipe, tmp_path / "stopped", corpus, until=4)
    again = resumed(recipe, tmp_path / "stopped", corpus)
    export(again.model, tmp_path / "kept")
    lens = load(tmp_path / "kept")
    last = TrainingHistory(tmp_path / "whole")[recipe.steps]
    for name, weight in full.model.state_dict().items():
        assert torch.equal(weight, lens.adapter.model.state_dict()[name]), name
        assert torch.equal(weight, last.adapter.model.state_dict()[name]), name
    assert list(lens.registry.points) == list(opened(build_model(tiny)).registry.points)
    assert sum(
        isinstance(module, LowRankLinear) for module in lens.adapter.model.modules()
    ) == len(matrices(lens))


def test_new_options_leave_old_identities_alone(
    token_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path
) -> None:
    identity = Trainer(token_recipe, tmp_path, corpus, device="cpu").task.identity
    assert not {"attention_rank", "vocabulary_rank"} & set(json.loads(identity))
    assert TrainingRecipe.model_validate_json(identity) == token_recipe
    narrow = token_recipe.model_copy(update={"vocabulary_rank": 2})
    assert Trainer(narrow, tmp_path, corpus, device="cpu").task.identity != identity


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention_rank": AttentionRank(rank=0)},
            "rank 0 of each head of .* expected 1 to 4",
        ),
        (
            {"attention_rank": AttentionRank(rank=5)},
            "rank 5 of each head of .* expected 1 to 4",
        ),
        (
            {"attention_rank": AttentionRank(rank=9, sketch="shared")},
            "rank 9 of .* expected 1 to 8",
        ),
        ({"attention_rank": AttentionRank(rank=2, growth=-0.5)}, "exponent -0.5"),
        ({"attention_levels": (3, 2)}, "from 1 that sum to 4"),
        ({"attention_levels": (5, -1)}, "from 1 that sum to 4"),
        ({"vocabulary_rank": 0}, "vocabulary of rank 0; expected 1 to .* 16"),
        ({"vocabulary_rank": 17}, "vocabulary of rank 17; expected 1 to .* 16"),
    ],
)
def test_impossible_ranks_are_refused_before_writing(
    changes: dict[str, Any],
    message: str,
    token_recipe: TrainingRecipe,
    corpus: Corpus,
    tmp_path: Path,
) -> None:
    """What a model cannot have is refused before anything is written."""
    expect_error(
        message,
        Trainer,
        token_recipe.model_copy(update=changes),
        tmp_path / "run",
        corpus,
        device="cpu",
    )
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def few(token_recipe: TrainingRecipe) -> list[TrainingRecipe]:
    """A dense arm and one by head."""
    base = token_recipe.model_copy(update={"corpus": {"motif_smooth": 6}, "steps": 4})
    return [
        base.changed(name=DENSE),
        base.changed(name="constant", attention_rank={"rank": 2}),
    ]


@pytest.fixture
def found(
    few: list[TrainingRecipe], corpus: Corpus, folder: Path
) -> dict[str, xr.Dataset]:
    for arm in few:
        run(arm, run_folder(folder, arm), corpus)
    return records(few, folder, corpus)


def test_records_are_of_svds(
    found: dict[str, xr.Dataset],
    few: list[TrainingRecipe],
    folder: Path,
    corpus: Corpus,
) -> None:
    attention, spectra = (found[name] for name in ("attention", "spectra"))
    assert attention["arm"].values.tolist() == [DENSE, "constant"]
    held = [sizes(initial_model(arm)) for arm in few[:2]]
    assert attention["parameters"].values.tolist() == [item["all"] for item in held]
    assert float(attention["rank_ratio"][1]) == 2 / 4
    logs = np.log(attention["mase"].values.astype(float))
    rise = np.expm1((logs[1] - logs[0])[np.isfinite(logs[1] - logs[0])].mean())
    assert_close(float(attention["mase_rise"][1, 0]), rise, depth=100, dtype=np.float32)
    assert not attention["mase_rise"][0].any()
    assert attention.sizes["series"] == len(draw_held_out(few[0]))
    begun = (
        initial_model(few[0])
        .adapter.model.encoder.block[0]
        .layer[0]
        .SelfAttention.q.weight
    )
    expected = torch.linalg.svdvals(begun.detach().double())
    assert_close(
        spectra["singular_value"].values[0, 0, 0], expected, depth=16, dtype=np.float32
    )


@pytest.mark.parametrize(
    ("tokens", "ranks"), [(16, (3, 2, 2)), (13, (2, 0, 1)), (9, (4,))]
)
def test_spread_features_give_scores_by_levels(
    tokens: int, ranks: tuple[int, ...]
) -> None:
    """Products of spread features are the scores by levels."""
    query, key = torch.randn(2, 2, tokens, sum(ranks), dtype=torch.float64)
    blocks = token_blocks(tokens, len(ranks))
    distance = Reach(ranks, blocks, causal=False)
    wide = [spread(part, ranks, blocks) for part in (query, key)]
    assert_close(wide[0] @ wide[1].mT, reaching_scores(query, key, distance), depth=20)
    counts = level_blocks(len(ranks))
    assert wide[0].shape[-1] == sum(
        rank * count for rank, count in zip(ranks, counts, strict=True)
    )


def test_one_level_is_the_native_model(
    token_recipe: TrainingRecipe,
) -> None:
    """One level is the native model, and several are not."""
    size = token_recipe.config["d_kv"]
    native = logits(build_model(token_recipe))
    one = logits(
        build_model(token_recipe.model_copy(update={"attention_levels": (size,)}))
    )
    assert_close(one, native, depth=300)
    several = logits(
        build_model(
            token_recipe.model_copy(update={"attention_levels": (size - 2, 1, 1)})
        )
    )
    assert (several - native).abs().max() > 1e3 * (one - native).abs().max()


def test_arms_are_trained_alike_and_measured(
    token_recipe: TrainingRecipe,
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update = {"steps": 2, "decay": 1, "config": {**token_recipe.config, "d_kv": 4}}
    monkeypatch.setattr(
        "tsfm_lens.studies.recipes.lowrank.BASE", token_recipe.model_copy(update=update)
    )
    monkeypatch.setattr(levels, "LEVELS", {"standard": (), "MLR 2+2": (2, 2)})
    monkeypatch.setattr(levels, "PER_FAMILY", 2)
    arms = [levels.level_run(arm, seed) for seed in range(2) for arm in levels.LEVELS]
    parts = [
        levels.level_record(arm, tmp_path / f"{arm.name} {arm.seed}", corpus)
        for arm in arms
    ]
    found = xr.combine_by_coords(parts)
    assert found["loss"].shape == (2, 2)
    assert np.isfinite(found["loss"]).all()
    # half the features see all keys, half those of their half
    shares = found["score_share"].sel(arm=["standard", "MLR 2+2"])
    assert shares.values.tolist() == [1.0, 0.75]
    # a run that has ended stays as it is
    again = levels.level_record(arms[0], tmp_path / "levels standard 0", corpus)
    xr.testing.assert_identical(again, parts[0])


def test_full_rank_leaves_the_dense_model(token_recipe: TrainingRecipe) -> None:
    dense = build_model(token_recipe)
    full = build_model(with_rank(token_recipe, rank=D_HEAD))
    assert not any(isinstance(module, Compressed) for module in full.modules())
    assert all(
        torch.equal(weight, full.state_dict()[name])
        for name, weight in dense.state_dict().items()
    )
