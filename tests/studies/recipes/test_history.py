"""The training history and figures of training at low rank, beside each checkpoint and
record alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import xarray as xr
from typer.testing import CliRunner

from refusals import expect_error
from tsfm_lens import probes
from tsfm_lens.core.errors import InputError
from tsfm_lens.studies.recipes.history import TrainingHistory, initial_model, main
from tsfm_lens.studies.recipes.recipe import TrainingRecipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.training import read_log
from tsfm_lens.training.series_source import Corpus
from tsfm_lens.training.state import LOG

SMALL: dict[str, Any] = {"motif": 4, "repeats": 3}


@pytest.fixture
def trained(
    token_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path
) -> TrainingHistory:
    Trainer(token_recipe, tmp_path / "run", corpus).run(quiet=True)
    return TrainingHistory(tmp_path / "run")


def test_scores_equal_each_checkpoint_s_own(trained: TrainingHistory) -> None:
    """Scores along a history are those of each checkpoint alone."""
    picked = {step: trained[step] for step in (0, 8)}
    data = probes.training_history(
        picked, losses=trained.losses, name="tiny", n_sequences=4, **SMALL
    )
    alone = probes.induction_scores(
        trained[8], n_sequences=4, decoding="forced", positions="all", **SMALL
    )
    np.testing.assert_array_equal(
        data["prefix_matching"].sel(training_step=8), alone["prefix_matching"]
    )
    np.testing.assert_array_equal(
        data["copy_score_low"].sel(training_step=8), alone["copy_score_low"]
    )
    assert float(data["copying"].sel(training_step=8)) == float(alone["copy_accuracy"])
    # a share of what an even spread has, and no longer nats
    assert alone["entropy"].attrs["units"] == "nats"
    assert "units" not in data["entropy_share"].attrs
    assert (
        0
        < float(data["entropy_share"].min())
        <= float(data["entropy_share"].max())
        <= 1
    )
    assert (
        dict(zip(data["loss_step"].values.tolist(), data["loss"].values, strict=True))
        == trained.losses
    )


def test_quantile_models_are_scored_by_motifs(
    patch_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path
) -> None:
    Trainer(patch_recipe, tmp_path, corpus).run(quiet=True)
    history = TrainingHistory(tmp_path)
    data = probes.training_history(history, motif=2, repeats=2, n_series=3)
    alone = probes.repeated_motif(history[8], motif=2, repeats=2, n_series=3)
    of_last = data.sel(training_step=8)
    np.testing.assert_array_equal(
        of_last["advantage_high"], alone["advantage_high"].sel(target="after_last")
    )
    assert float(of_last["copying"]) == pytest.approx(
        1 - float(alone["relative_copy_error"].mean())
    )
    assert data.sizes["training_step"] == len(history)
    assert not {"copy_score", "loss"} & set(data)


def test_what_is_no_run_is_refused(
    trained: TrainingHistory, token_recipe: TrainingRecipe, tmp_path: Path
) -> None:
    wide = token_recipe.model_copy(
        update={"config": token_recipe.config | {"num_heads": 4}}
    )
    with pytest.raises(InputError, match="step 5 has"):
        probes.training_history(
            {0: initial_model(token_recipe), 5: initial_model(wide)},
            n_sequences=2,
            **SMALL,
        )
    expect_error("no training run", TrainingHistory, tmp_path)
    with pytest.raises(InputError, match="nearest is that of step 8"):
        trained[11]
    expect_error("no checkpoints", probes.training_history, {})
    (trained.folder / LOG).unlink()
    expect_error("no training run", TrainingHistory, trained.folder)


def test_losses_of_other_measures_are_omitted(
    patch_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path
) -> None:
    first, second = patch_recipe.stages
    plan = patch_recipe.model_copy(
        update={
            "stages": (first, second.model_copy(update={"start": 4, "log_floor": 0.1}))
        }
    )
    Trainer(plan, tmp_path, corpus, device="cpu").run(quiet=True)
    steps = [line["step"] for line in read_log(tmp_path / LOG)]
    history = TrainingHistory(tmp_path)
    assert list(history.losses) == [step for step in steps if step <= 4]
    assert max(steps) == 8


def test_the_command_writes_a_readable_file(
    patch_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path
) -> None:
    Trainer(patch_recipe, tmp_path / "run", corpus).run(until=1, quiet=True)
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(
        app,
        [
            str(tmp_path / "run"),
            "--out",
            str(tmp_path / "history.nc"),
            "--motif",
            "2",
            "--repeats",
            "2",
        ],
    )
    assert done.exit_code == 0, done.output
    with xr.open_dataset(tmp_path / "history.nc", engine="scipy") as data:
        assert (data.attrs["kind"], data.attrs["model"]) == (
            "training_history",
            "bolt-nano",
        )
    assert [path.name for path in tmp_path.glob("history.nc*")] == ["history.nc"]
