"""Chronos whose encoder scores by nested blocks of tokens.

Every arm, standard attention among them, is trained at equal steps, and measured by its
loss on series of another seed. Read :func:`level_record` first; the queue trains the
arms (:mod:`tsfm_lens.studies.queue.language`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import xarray as xr

from tsfm_lens.studies.recipes.corpus import build_corpus
from tsfm_lens.studies.recipes.lowrank import (
    HELD_OUT_SEED,
    RecipeRun,
    make_run,
    open_trainer,
)
from tsfm_lens.studies.recipes.recipe import LOW_RANK, TrainingRecipe
from tsfm_lens.studies.structured.counts import level_attention_operations
from tsfm_lens.training import read_log
from tsfm_lens.training.losses import token_step_losses
from tsfm_lens.training.series_source import Corpus
from tsfm_lens.training.state import LOG

LEVELS: dict[str, list[int]] = LOW_RANK["levels"]
"""Ranks of the levels by arm."""
PER_FAMILY = 64


def level_runs(*, steps: int | None = None, seeds: int = 3) -> list[RecipeRun]:
    """List every run, seed by seed.

    The standard one is the dense run of training at low rank.
    """
    return [
        make_run(f"levels {name}", seed, steps, attention_levels=tuple(ranks))._replace(
            name=name
        )
        for seed in range(seeds)
        for name, ranks in LEVELS.items()
    ]


def level_record(runs: Sequence[RecipeRun], out: Path, corpus: Corpus) -> xr.Dataset:
    """Compute the losses of the finished runs below ``out``.

    They are on :data:`PER_FAMILY` series of each family, drawn by a seed that no run
    trained on.
    """
    stage = runs[0].recipe.stages[-1].model_copy(update={"smoothing": 0.0})
    held_out = build_corpus(
        dict.fromkeys(runs[0].recipe.corpus, PER_FAMILY), seed=HELD_OUT_SEED
    )
    series = torch.from_numpy(held_out.values[:, -stage.context - stage.horizon :])
    past, future = series.tensor_split([stage.context], dim=1)
    parts = []
    shares = {}
    for run in runs:
        model = open_trainer(run, out, corpus).model.eval()
        with torch.no_grad():
            losses = token_step_losses(model, past, future, stage)
        curve = [line["loss"] for line in read_log(out / run.folder / LOG)]
        part = xr.Dataset({"loss": float(losses.mean()), "curve": ("line", curve)})
        parts.append(part.expand_dims(arm=[run.name], seed=[run.seed]))
        shares[run.name] = _score_share(run.recipe)
    data = xr.merge(parts, join="outer", compat="no_conflicts").reindex(
        arm=list(shares)
    )
    first = runs[0].recipe
    return data.assign_coords(score_share=("arm", list(shares.values()))).assign_attrs(
        kind="level_training",
        title="Chronos with scores by levels of tokens",
        steps=first.steps,
        rows=first.stages[-1].rows,
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
