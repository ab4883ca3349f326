"""Chronos whose encoder scores by nested blocks of tokens.

Every arm, standard attention among them, is trained at equal steps, and measured by its
loss on series of another seed. Read :func:`level_record` first; the queue trains the
arms (:mod:`tsfm_lens.studies.queue.language`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import xarray as xr

from tsfm_lens.studies.recipes.lowrank import draw_held_out, make_run
from tsfm_lens.studies.recipes.recipe import LOW_RANK, TrainingRecipe
from tsfm_lens.studies.recipes.train import Trainer
from tsfm_lens.studies.structured.counts import level_attention_operations
from tsfm_lens.training import read_log
from tsfm_lens.training.losses import token_step_losses
from tsfm_lens.training.series_source import Corpus
from tsfm_lens.training.state import LOG

LEVELS: dict[str, list[int]] = LOW_RANK["levels"]
"""Ranks of the levels by arm; the standard one is dense."""
PER_FAMILY = 64


def level_run(arm: str, seed: int, steps: int | None = None) -> TrainingRecipe:
    """Return the run of an arm."""
    return make_run(f"levels {arm}", seed, steps, attention_levels=LEVELS[arm])


def level_record(run: TrainingRecipe, out: Path, corpus: Corpus) -> xr.Dataset | None:
    """Train a run in the folder ``out`` and compute its loss; None if it was stopped.

    The loss is on :data:`PER_FAMILY` series of each family, drawn by a seed that no run
    trained on.
    """
    trainer = Trainer(run, out, corpus, device="cpu")
    if not trainer.finish(quiet=True):
        return None
    stage = run.stages[-1].model_copy(update={"smoothing": 0.0})
    series = torch.from_numpy(np.stack(draw_held_out(run, PER_FAMILY).values)).float()
    past, future = series.tensor_split([stage.context], dim=1)
    with torch.no_grad():
        losses = token_step_losses(trainer.model.eval(), past, future, stage)
    curve = [line["loss"] for line in read_log(out / LOG)]
    data = xr.Dataset({"loss": float(losses.mean()), "curve": ("line", curve)})
    arm = run.name.removeprefix("levels ")
    data = data.expand_dims(arm=[arm], seed=[run.seed])
    return data.assign_coords(score_share=("arm", [_score_share(run)])).assign_attrs(
        kind="level_training",
        title="Chronos with scores by levels of tokens",
        steps=run.steps,
        rows=stage.rows,
        context=stage.context,
        horizon=stage.horizon,
        series=len(series),
    )


def _score_share(recipe: TrainingRecipe) -> float:
    """Return the multiply-adds of a recipe's scores over those of standard ones."""
    if not recipe.attention_levels:
        return 1.0
    # up to the end that closes every context
    tokens = -(-(recipe.stages[-1].context + 1) // 2**5) * 2**5
    full = tokens**2 * recipe.config["d_kv"]
    return float(level_attention_operations(tokens, recipe.attention_levels) / full)
