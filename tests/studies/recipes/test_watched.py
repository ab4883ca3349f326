"""A reference model is watched while it trains, through a lens on the model that is trained."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from tsfm_lens.models import Lens, load
from tsfm_lens.studies.recipes.corpus import Corpus
from tsfm_lens.studies.recipes.export import as_pipeline
from tsfm_lens.studies.recipes.recipe import TrainingRecipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.testing import assert_close
from tsfm_lens.training import Watch, attention_measures, patterns_of, read_watch


def test_the_zoo_trains_as_without_a_watch(patch_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path) -> None:
    ends, series = [], np.sin(np.arange(40.0))
    for watched in (False, True):
        trainer = Trainer(patch_recipe, tmp_path / str(watched), corpus, device="cpu")
        watch = None
        if watched:
            lens = load(as_pipeline(trainer.model), check=False)
            fixed = partial(trainer.task.loss, 0)
            watch = Watch(lens, series=series, loss=fixed, every=2, out=tmp_path, products=3)
        trainer.model.train()
        for _ in range(4):
            loss = trainer.train_step()
            if watch is not None:
                watch(trainer.step, loss=loss)
        assert all(module.training for module in trainer.model.modules())
        ends.append([weight.detach().numpy().tobytes() for weight in trainer.model.parameters()])
    assert ends[0] == ends[1]
    data = read_watch(tmp_path)
    assert data["step"].values.tolist() == [2, 4]
    last = {name: found.mean(0) for name, found in _measured(lens, series).items()}
    assert_close(data["entropy"].sel(step=4, layer="encoder.0.self_attn"), last["entropy"], depth=1)
    assert (data["sharpness"] >= data["lowest_curvature"]).all()


def _measured(lens: Lens, series: np.ndarray) -> dict[str, np.ndarray]:
    lens.adapter.model.eval()
    return attention_measures(patterns_of(lens, series)["encoder.0.self_attn"])
