"""Ablation sweeps over models, variants and benchmarks, with stored results.

Read :func:`run_sweep` first: it plans the cells of a configuration (:func:`plan`),
computes those that the store lacks (:func:`run`) and follows up on their results.
:func:`gather` then makes the tables with intervals and tests. The figures of these
tables are in :mod:`tsfm_lens.viz`, the page in :mod:`tsfm_lens.report.sweep`.
:func:`write_embeddings` keeps embeddings of a file in the same kind of store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsfm_lens.core.extensions import import_on_use

if TYPE_CHECKING:
    from tsfm_lens.sweep.data.dysts_sets import dysts_sets, dysts_systems
    from tsfm_lens.sweep.data.evaluation import EvaluationSet, Window
    from tsfm_lens.sweep.data.evaluation_sources import gluonts_set, holdout_sets
    from tsfm_lens.sweep.data.gift_eval import (
        GiftEvalConfig,
        gift_eval,
        gift_eval_configs,
        gift_eval_folder,
    )
    from tsfm_lens.sweep.embeddings import (
        EmbeddingsOutcome,
        iter_embeddings,
        read_embeddings,
        write_embeddings,
    )
    from tsfm_lens.sweep.engine.cells import run
    from tsfm_lens.sweep.engine.sweeping import Outcome, plan_sweep, run_sweep
    from tsfm_lens.sweep.planner.config import SweepConfig, parse_config, read_config
    from tsfm_lens.sweep.planner.table import plan
    from tsfm_lens.sweep.results.gathering import Gathered, gather
    from tsfm_lens.sweep.store import Store

# the store and its engines need no torch
__getattr__ = import_on_use(
    __name__,
    {
        "data.dysts_sets": ("dysts_sets", "dysts_systems"),
        "data.evaluation": ("EvaluationSet", "Window"),
        "data.evaluation_sources": ("gluonts_set", "holdout_sets"),
        "data.gift_eval": (
            "GiftEvalConfig",
            "gift_eval",
            "gift_eval_configs",
            "gift_eval_folder",
        ),
        "embeddings": (
            "EmbeddingsOutcome",
            "iter_embeddings",
            "read_embeddings",
            "write_embeddings",
        ),
        "engine.cells": ("run",),
        "planner.table": ("plan",),
        "planner.config": ("SweepConfig", "parse_config", "read_config"),
        "results.gathering": ("Gathered", "gather"),
        "engine.sweeping": ("Outcome", "plan_sweep", "run_sweep"),
        "store": ("Store",),
    },
)
__all__ = [
    "EmbeddingsOutcome",
    "EvaluationSet",
    "Gathered",
    "GiftEvalConfig",
    "Outcome",
    "Store",
    "SweepConfig",
    "Window",
    "dysts_sets",
    "dysts_systems",
    "gather",
    "gift_eval",
    "gift_eval_configs",
    "gift_eval_folder",
    "gluonts_set",
    "holdout_sets",
    "iter_embeddings",
    "parse_config",
    "plan",
    "plan_sweep",
    "read_config",
    "read_embeddings",
    "run",
    "run_sweep",
    "write_embeddings",
]


def __dir__() -> list[str]:
    return __all__
