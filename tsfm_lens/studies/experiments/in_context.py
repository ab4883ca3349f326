"""Experiment on regression in context: arms by scoring function, heads and width, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.studies.experiments.config import InContextData, ModelFields, TrainConfig
from tsfm_lens.studies.experiments.grid import Arm, gathered
from tsfm_lens.studies.structured import BlockTensorTrain, LowRank, MultiLevelLowRank, StructuredMatrix, oracle_errors

__all__ = ["IN_CONTEXT_ARMS", "WIDTH_ARMS", "in_context_arms", "in_context_results"]

IN_CONTEXT_ARMS: dict[str, dict[str, Any]] = {
    "1 head, rank 16": {"name": "attention", "heads": 1},
    "8 heads, rank 2": {"name": "attention", "heads": 8},
    "8 heads, MLR 1+1": {"name": "bilinear-mlr", "heads": 8, "ranks": [1, 1]},
    "8 heads, BTT": {"name": "bilinear-btt", "heads": 8},
    "1 head, MLR 1+1": {"name": "bilinear-mlr", "heads": 1, "ranks": [1, 1]},
    "1 head, BTT": {"name": "bilinear-btt", "heads": 1},
    "1 head, rank 4": {"name": "mlr-attention", "heads": 1, "ranks": [4]},
    "1 head, rank 2": {"name": "mlr-attention", "heads": 1, "ranks": [2]},
    "1 head, rank 1": {"name": "mlr-attention", "heads": 1, "ranks": [1]},
}
"""At a width of 16; one level of MLR attention is a head whose scores have a rank of their own."""
WIDTH_ARMS: dict[str, dict[str, Any]] = {
    "1 head": {"name": "attention", "heads": 1},
    "8 heads": {"name": "attention", "heads": 8},
    "8 heads, BTT": {"name": "bilinear-btt", "heads": 8},
}
"""Whose scores grow in rank with the width."""
WIDTHS = (16, 32, 64)


def in_context_arms(
    arms: Mapping[str, Mapping[str, Any]] = IN_CONTEXT_ARMS,
    *,
    inputs: int = 6,
    widths: Sequence[int] = (16,),
    layers: int = 2,
    epochs: int = 4,
    learning_rate: float = 5e-3,
    tokens: str = "pairs",
    **data: Any,
) -> dict[str, TrainConfig]:
    """Return the configurations of regression in context by arm and width.

    AdamW with betas 0.9 and 0.95 and no weight decay, as in the published code; batches of 32, a warm-up of 100 steps,
    and a rate that falls as a half cosine. MLPs have twice the width. Weights are drawn, and rates given, by μP: as
    torch draws them, scores begin near zero, and some seeds stay there for long.

    Args:
        arms: name of the scoring function, and options of the model.
        inputs: d of the prompts, which have 2 · d points.
        widths: D, the base of μP first.
        layers: of each; the paper has 6.
        epochs: of 250 steps.
        learning_rate: after the warm-up.
        tokens: "pairs", or "single" as in the paper, with which runs of this length end by whether they leave a plateau
            in time, see :class:`tsfm_lens.studies.structured.InContextRegressor`.
        data: fields of the prompts that differ.

    Example:
        >>> list(experiments.in_context_arms())[:2]
        ['1 head, rank 16, D = 16', '8 heads, rank 2, D = 16']
    """
    configs = {}
    for width in widths:
        for title, fields in arms.items():
            form = {key: fields[key] for key in fields if key != "name"}
            options = {"width": width, "layers": layers, "d_mlp": 2 * width, "tokens": tokens, **form}
            configs[f"{title}, D = {width}"] = TrainConfig.model_validate(
                {
                    "model": {"name": fields["name"], "options": options},
                    "data": {"kind": "in-context", "inputs": inputs, "epoch": 250, **data},
                    "optimizer": {
                        "name": "adamw",
                        "learning_rate": learning_rate,
                        "betas": [0.9, 0.95],
                        "warm_up": 100,
                        "base_width": widths[0],
                    },
                    "plan": {"epochs": epochs, "batch": 32, "patience": None},
                }
            )
    return configs


def form_of(fields: ModelFields) -> StructuredMatrix:
    """Return a head's scores as a matrix of the width, of the family that the model's name says."""
    width, heads = fields.options["width"], fields.options["heads"]
    if fields.name == "bilinear-btt":
        return BlockTensorTrain(width, width, fields.options.get("rank", 1))
    if fields.name == "bilinear-mlr":
        return MultiLevelLowRank(width, width, fields.options["ranks"])
    # of MLR attention between tokens of one finest block
    return LowRank(width, width, sum(fields.options.get("ranks", [width // heads])))


def in_context_results(arms: Sequence[Arm], out: str | Path) -> xr.Dataset:
    """Collect the results of runs in context, with those of the oracle.

    Args:
        arms: runs, all of one number of inputs and points; those that have not ended are left out.
        out: folder of their folders.

    Returns:
        Dataset of kind "in_context_runs": that of :func:`tsfm_lens.studies.experiments.gathered`, with ``oracle``
        (pairs,), the expected error of least squares, and by arm ``group`` (its name without the width), ``width``,
        ``heads``, ``score_rank``, the generic rank of a head's scores as a matrix (width, width), ``rank_ratio``,
        that over the inputs, and ``score_parameters``, the number of parameters of the matrix.

    Raises:
        InputError: no run has ended.

    Example:
        >>> experiments.record("in_context").attrs["kind"]
        'in_context_runs'
    """
    data = gathered(arms, out)
    config_of = {arm.name: arm.config for arm in arms}
    configs = [config_of[str(name)] for name in data["arm"].values]
    prompts = configs[0].data
    assert isinstance(prompts, InContextData)
    options = [config.model.options for config in configs]
    width = np.array([each["width"] for each in options])
    heads = np.array([each["heads"] for each in options])
    forms = [form_of(config.model) for config in configs]
    rank = np.array([form.generic_rank for form in forms])
    facts = {
        "inputs": prompts.inputs,
        "layers": options[0]["layers"],
        "tokens": options[0].get("tokens", "single"),
        "steps": prompts.epoch * configs[0].plan.epochs,
        "batch": configs[0].plan.batch,
        "learning_rate": configs[0].optimizer.learning_rate,
    }
    return (
        data.assign_coords(
            group=("arm", [str(name).rpartition(", D = ")[0] for name in data["arm"].values]),
            width=("arm", width),
            heads=("arm", heads),
            score_rank=("arm", rank),
            rank_ratio=("arm", rank / prompts.inputs),
            score_parameters=("arm", [form.n_parameters for form in forms]),
            pairs=np.arange(data.sizes["pairs"]),
        )
        .assign(oracle=("pairs", oracle_errors(prompts.inputs, data.sizes["pairs"]).numpy()))
        .assign_attrs(facts, kind="in_context_runs", title="Regression in context")
    )
