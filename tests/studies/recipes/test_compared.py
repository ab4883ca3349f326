"""The experiment on training at low rank: runs that go on, and what is measured of them, beside counts and SVDs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from tsfm_lens.compress import sizes
from tsfm_lens.errors import InputError
from tsfm_lens.studies.recipes.corpus import Corpus
from tsfm_lens.studies.recipes.history import initial_model
from tsfm_lens.studies.recipes.lowrank import (
    ATTENTION,
    DENSE,
    SEEDS,
    VOCABULARIES,
    RecipeRun,
    attention_record,
    held_out,
    records,
    runs,
    trained,
)
from tsfm_lens.studies.recipes.recipe import AttentionRank, TrainingRecipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.testing import assert_close
from tsfm_lens.training.state import STATE


def test_arms_of_one_seed_come_first_and_differ_in_rank_alone() -> None:
    every = runs(vocabulary_seeds=2)
    assert len({arm.folder for arm in every}) == len(every) == SEEDS * len(ATTENTION) + 2 * len(VOCABULARIES)
    assert {arm.seed for arm in every[: len(ATTENTION) + len(VOCABULARIES)]} == {0}
    for arm in every:
        plain = {"name": DENSE, "attention_rank": None, "vocabulary_rank": None}
        assert arm.recipe.model_copy(update=plain) == every[0].recipe.model_copy(update={"seed": arm.seed})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def few(token_recipe: TrainingRecipe) -> list[RecipeRun]:
    """A dense arm, one by head and one vocabulary."""
    base = token_recipe.model_copy(update={"corpus": {"motif_smooth": 6}, "steps": 4})
    low = base.model_copy(update={"name": "constant", "attention_rank": AttentionRank(rank=2)})
    fixed = base.model_copy(update={"name": "vocabulary 2", "vocabulary_rank": 2})
    return [RecipeRun(recipe.name, 0, recipe) for recipe in (base.model_copy(update={"name": DENSE}), low, fixed)]


@pytest.fixture
def found(few: list[RecipeRun], corpus: Corpus, folder: Path) -> dict[str, xr.Dataset]:
    for arm in few:
        assert trained(arm, folder, corpus, quiet=True)
    return records(few, folder, corpus)


def test_records_are_counts_and_svds(
    found: dict[str, xr.Dataset], few: list[RecipeRun], folder: Path, corpus: Corpus
) -> None:
    attention, vocabulary, spectra = (found[name] for name in ("attention", "vocabulary", "spectra"))
    assert attention["arm"].values.tolist() == [DENSE, "constant"]
    held = [sizes(initial_model(arm.recipe)) for arm in few[:2]]
    assert attention["parameters"].values.tolist() == [each["all"] for each in held]
    # one head has 16 x 4 numbers a matrix, its factors of rank 2 have 2 x (16 + 4)
    assert float(attention["stored_ratio"][1]) == 2 * 20 / 64
    assert float(attention["rank_ratio"][1]) == 2 / 4
    logs = np.log(attention["mase"].values.astype(float))
    rise = np.expm1((logs[1] - logs[0])[np.isfinite(logs[1] - logs[0])].mean())
    assert_close(float(attention["mase_rise"][1, 0]), rise, depth=100, dtype=np.float32)
    assert not attention["mase_rise"][0].any()
    assert attention.sizes["series"] == len(held_out(few[0]))
    begun = initial_model(few[0].recipe).adapter.model.encoder.block[0].layer[0].SelfAttention.q.weight
    expected = torch.linalg.svdvals(begun.detach().double())
    assert_close(spectra["singular_value"].values[0, 0, 0], expected, depth=16, dtype=np.float32)
    # nothing has been added before the first step, and the first layer sees two directions
    assert not vocabulary["moved_rank"].isel(training_step=0).any()
    assert vocabulary["rank"].isel(training_step=0).max() > 2
    assert vocabulary["vocabulary"].values.tolist() == [2]


def test_an_ended_arm_stays_and_a_stopped_one_goes_on(few: list[RecipeRun], corpus: Corpus, tmp_path: Path) -> None:
    stopped = Trainer(few[1].recipe, tmp_path / few[1].folder, corpus, device="cpu")
    stopped.run(until=2, quiet=True)
    assert trained(few[1], tmp_path, corpus, quiet=True)
    assert trained(few[1], tmp_path / "whole", corpus, quiet=True)
    ends = [torch.load(room / few[1].folder / STATE, weights_only=True) for room in (tmp_path, tmp_path / "whole")]
    assert all(torch.equal(weight, ends[1]["model"][name]) for name, weight in ends[0]["model"].items())
    before = (tmp_path / few[1].folder / STATE).read_bytes()
    assert trained(few[1], tmp_path, corpus, quiet=True)
    assert (tmp_path / few[1].folder / STATE).read_bytes() == before


def test_arms_without_a_dense_one_are_not_compared(few: list[RecipeRun], corpus: Corpus, folder: Path) -> None:
    with pytest.raises(InputError, match="'dense'"):
        attention_record({few[1].name: {0: (few[1], folder)}}, corpus)
