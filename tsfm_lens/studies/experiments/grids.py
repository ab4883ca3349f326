"""Configurations of the papers' experiments, and what their runs have in common.

``grids.yaml`` holds what differs between arms; a function ``…_arms`` adds what they
share and returns a configuration for each arm. Read :func:`toy_arms` first. The queue
trains them (:mod:`tsfm_lens.studies.queue.trainings`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.registry import declarations
from tsfm_lens.studies.experiments.records import gathered, read_config
from tsfm_lens.studies.structured.matrices import (
    BlockTensorTrain,
    MultiLevelLowRank,
    StructuredMatrix,
)
from tsfm_lens.studies.structured.training import oracle_errors
from tsfm_lens.studies.train_config import InContextData, ModelFields, TrainConfig

__all__ = ["ENCODER_ARMS", "IN_CONTEXT_ARMS", "TRANSFER_ARMS", "WIDTH_ARMS"]
__all__ += [
    "benchmark_arms",
    "encoder_arms",
    "errors_by_rate",
    "in_context_arms",
    "toy_arms",
    "transfer_arms",
]

Fields = Mapping[str, Mapping[str, Any]]
"""By name of a configuration: ``model``, its ``options``, and what differs of the
``optimizer``.
"""

_FILE: dict[str, Any] = declarations(Path(__file__).with_name("grids.yaml"))
TOY_ARMS, TOY_OPTIMIZERS, ENCODER_ARMS, IN_CONTEXT_ARMS, WIDTH_ARMS, TRANSFER_ARMS = (
    _FILE[name]
    for name in (
        "toy",
        "toy optimizers",
        "encoders",
        "in context",
        "widths",
        "transfer",
    )
)
RHO: dict[str, dict[int, float]] = _FILE["radii"]["samformer"]
WIDTHS = (16, 32, 64)
RATES = tuple(1e-3 * 2**power for power in range(6))


def _config(
    grid: str, fields: Mapping[str, Any], *, watch: Any = None, **changes: Any
) -> TrainConfig:
    """Return a configuration from what a grid's arms share, and an entry of it.

    ``changes`` of data, optimizer, plan and options replace what is shared, and the
    entry's own replace both.
    """
    content: dict[str, Any] = {"watch": watch}
    for part in ("data", "optimizer", "plan", "options"):
        layers = (_FILE["common"][grid], changes, fields)
        content[part] = {
            key: value for layer in layers for key, value in layer.get(part, {}).items()
        }
    content["model"] = {"name": fields["model"], "options": content.pop("options")}
    return TrainConfig.model_validate(content)


def toy_arms(
    arms: Fields = TOY_ARMS, *, epochs: int = 30, watch: bool = False, **sizes: Any
) -> dict[str, TrainConfig]:
    """Return the configurations of the toy problem by arm.

    Adam's rate falls by a half cosine.

    ``watch`` measures sharpness and attention at every third epoch; ``sizes`` of the
    problem are the paper's.

    Example:
        >>> experiments.toy_arms()["transformer + SAM"].optimizer.rho
        0.5
    """
    watched = None
    if watch:
        measures = ["sharpness", "attention"]
        watched = {"every": 3, "measures": measures, "snapshots": True}
    plan = {"epochs": epochs}
    return {
        name: _config("toy", fields, data=sizes, plan=plan, watch=watched)
        for name, fields in arms.items()
    }


def benchmark_arms(file: str | Path, data: str, horizon: int) -> dict[str, TrainConfig]:
    """Return a benchmark's configurations by arm.

    They have batches of 32, Adam at 1e-3, at most 300 epochs and patience 5. Arms
    "rho …" are SAMformer with that ρ; at 0 the optimiser is Adam alone.

    ``data`` is "ETTh1", "ETTh2" or "exchange", for its split and ρ; the horizon 96,
    192, 336 or 720.

    Raises:
        UnknownNameError: other data, or a horizon without a ρ.

    Example:
        >>> arms = experiments.benchmark_arms("ETTh1.csv", "ETTh1", 96)
        >>> arms["ETTh1 96 SAMformer"].optimizer.rho
        0.5
    """
    if data not in RHO:
        raise unknown_name("benchmark", data, RHO)
    if horizon not in RHO[data]:
        raise unknown_name("horizon", str(horizon), map(str, RHO[data]))
    source = {"file": str(file), "split": _FILE["splits"][data], "horizon": horizon}
    configs = {}
    for name, fields in _FILE["benchmarks"].items():
        rho = 0.0
        if "rho" in fields:
            rho = _FILE["radii"][fields["rho"]][data][horizon]
        sizes = {}
        if fields["model"] == "tsmixer":
            sizes = _FILE["mixers"][data]
        configs[f"{data} {horizon} {name}"] = _config(
            "benchmarks", fields, data=source, optimizer={"rho": rho}, options=sizes
        )
    return configs


def encoder_arms(
    file: str | Path, *, horizons: Sequence[int] = (96, 192), epochs: int = 1
) -> dict[str, TrainConfig]:
    """Return the configurations of forecasting ETTh1 by arm and horizon (S2-ETT).

    Windows are as long as forecasts.

    Example:
        >>> list(experiments.encoder_arms("ETTh1.csv", horizons=(96,)))[:2]
        ['standard, T = 96', 'MLR attention 6+2, T = 96']
    """
    configs = {}
    for steps in horizons:
        source = {"file": str(file), "length": steps, "horizon": steps}
        for title, fields in ENCODER_ARMS.items():
            configs[f"{title}, T = {steps}"] = _config(
                "encoders", fields, data=source, plan={"epochs": epochs}
            )
    return configs


def in_context_arms(
    arms: Fields = IN_CONTEXT_ARMS,
    *,
    widths: Sequence[int] = (16,),
    epochs: int = 4,
    tokens: str = "pairs",
    **data: Any,
) -> dict[str, TrainConfig]:
    """Return the configurations of regression in context by arm and width.

    The first width is the base of μP.

    An epoch has 250 steps; ``tokens`` are "pairs" or the paper's "single"; ``data`` are
    fields of the prompts that differ.

    Example:
        >>> list(experiments.in_context_arms())[:2]
        ['1 head, rank 16, D = 16', '8 heads, rank 2, D = 16']
    """
    plan = {"epochs": epochs}
    optimizer = {"base_width": widths[0]}
    configs = {}
    for width in widths:
        options = {"width": width, "d_mlp": 2 * width, "tokens": tokens}
        changes = {"data": data, "plan": plan, "optimizer": optimizer}
        for title, fields in arms.items():
            configs[f"{title}, D = {width}"] = _config(
                "in context", fields, options=options, **changes
            )
    return configs


def transfer_arms(
    *,
    widths: Sequence[int] = WIDTHS,
    rates: Sequence[float] = RATES,
    epochs: int = 25,
) -> dict[str, TrainConfig]:
    """Return configurations of regression in context by learning rate (S2-F5).

    There is one for each arm, width and rate; an epoch has 40 steps.

    Arms named "μP" are drawn and given rates by it, the first width being the base;
    heads have 4 features.

    Example:
        >>> len(experiments.transfer_arms())
        54
    """
    configs = {}
    for title, fields in TRANSFER_ARMS.items():
        base = 0
        if title.startswith("μP"):
            base = widths[0]
        for width in widths:
            options = {"width": width, "heads": width // 4, "d_mlp": 2 * width}
            for rate in rates:
                optimizer = {"learning_rate": rate, "base_width": base}
                changes = {"optimizer": optimizer, "plan": {"epochs": epochs}}
                configs[f"{title}, D = {width}, {rate:g}"] = _config(
                    "transfer", fields, options=options, **changes
                )
    return configs


def score_form(fields: ModelFields) -> StructuredMatrix:
    """Return a head's scores as a matrix of the model's width.

    Its family is the one that the model's name says.
    """
    width = fields.options["width"]
    heads = fields.options["heads"]
    if fields.name == "bilinear-btt":
        return BlockTensorTrain(width, width, fields.options.get("rank", 1))
    if fields.name == "bilinear-mlr":
        return MultiLevelLowRank(width, width, fields.options["ranks"])
    # of MLR attention between tokens of one finest block
    rank = sum(fields.options.get("ranks", [width // heads]))
    return MultiLevelLowRank(width, width, (rank,))


def _sizes(config: TrainConfig) -> dict[str, Any]:
    prompts = config.data
    assert isinstance(prompts, InContextData)
    steps = prompts.epoch * config.plan.epochs
    return {
        "inputs": prompts.inputs,
        "layers": config.model.options["layers"],
        "steps": steps,
    }


def in_context_results(folder: Path, arm: str) -> xr.Dataset:
    """Collect the results of a run in context, as :func:`with_forms` describes them."""
    return with_forms(gathered(folder, arm), {arm: read_config(folder)})


def with_forms(data: xr.Dataset, arms: Mapping[str, TrainConfig]) -> xr.Dataset:
    """Add the oracle's errors (pairs,) and each arm's sizes and ranks to runs.

    Args:
        data: gathered runs in context.
        arms: configurations by the names of the arms, as :func:`in_context_arms` has
            them.
    """
    rows = []
    names = data["arm"].values.astype(str).tolist()
    for name in names:
        model = arms[name].model
        form = score_form(model)
        rows.append(
            {
                "group": name.rpartition(", D = ")[0],
                "width": model.options["width"],
                "heads": model.options["heads"],
                "score_rank": form.generic_rank,
                "score_parameters": form.n_parameters,
            }
        )
    first = arms[names[0]]
    metadata = {
        **_sizes(first),
        "tokens": first.model.options.get("tokens", "single"),
        "batch": first.plan.batch,
        "learning_rate": first.optimizer.learning_rate,
    }
    count = data.sizes["pairs"]
    data = data.assign_coords(
        {key: ("arm", [row[key] for row in rows]) for key in rows[0]}
    )
    data = data.assign_coords(pairs=np.arange(count))
    data = data.assign_coords(rank_ratio=data["score_rank"] / metadata["inputs"])
    oracle = oracle_errors(metadata["inputs"], count).numpy()
    return data.assign(oracle=("pairs", oracle)).assign_attrs(
        metadata, kind="in_context_runs", title="Regression in context"
    )


def errors_by_rate(data: xr.Dataset) -> xr.Dataset:
    """Split the arms of runs of :func:`transfer_arms` into what they differ in.

    Args:
        data: record of the runs, whose arms are named as there.

    Returns:
        ``mse`` on held-out prompts (parametrisation, width, rate, seed), NaN where a
        run is missing.

    Example:
        >>> data = experiments.errors_by_rate(experiments.record("transfer_rates"))
        >>> data["mse"].dims
        ('parametrisation', 'width', 'rate', 'seed')
    """
    names = pd.Series(data["arm"].values.astype(str))
    parts = names.str.extract(
        r"(?P<parametrisation>.*), D = (?P<width>\d+), (?P<rate>.*)"
    ).astype({"width": int, "rate": float})
    index = pd.MultiIndex.from_frame(parts)
    labels = xr.Coordinates.from_pandas_multiindex(index, "arm")
    table = data["validation_mse"].assign_coords(labels).unstack("arm")
    table = table.transpose(*parts, "seed").rename("mse")
    # in the given order, which unstacking sorts
    table = table.sel(parametrisation=parts["parametrisation"].unique())
    return table.to_dataset().assign_attrs(
        _sizes(next(iter(transfer_arms().values()))),
        kind="transfer_runs",
        title="Learning rates across widths",
    )
