"""Experiments of the paper as grids of runs: the toy problem, and the benchmarks of tables 1, 6, 9 and 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tsfm_lens.errors import unknown_name
from tsfm_lens.studies.experiments.config import TrainConfig

__all__ = ["RHO", "TOY_ARMS", "TOY_OPTIMIZERS", "benchmark_arms", "rho_arms", "toy_arms"]

TOY_ARMS: dict[str, dict[str, Any]] = {
    "transformer": {"model": "transformer"},
    "random transformer": {"model": "random-transformer"},
    "sigma reparam": {"model": "sigma-reparam"},
    "transformer + SAM": {"model": "transformer", "rho": 0.5},
}
"""Of figures 1 to 3."""
TOY_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"model": "transformer"},
    "adamw 1e-5": {"model": "transformer", "name": "adamw", "weight_decay": 1e-5},
    "adamw 1e-4": {"model": "transformer", "name": "adamw", "weight_decay": 1e-4},
    "adamw 1e-3": {"model": "transformer", "name": "adamw", "weight_decay": 1e-3},
    "sgd": {"model": "transformer", "name": "sgd"},
}
"""Of figure 15."""

RHO: dict[str, dict[int, float]] = {
    "ETTh1": {96: 0.5, 192: 0.6, 336: 0.9, 720: 0.9},
    "ETTh2": {96: 0.5, 192: 0.8, 336: 0.6, 720: 0.8},
    "exchange": {96: 0.7, 192: 0.8, 336: 0.5, 720: 0.9},
}
"""ρ of SAMformer by data and horizon, table 4 (S1-T4)."""
MIXER_RHO: dict[str, dict[int, float]] = {
    "ETTh1": {96: 1.0, 192: 0.7, 336: 0.7, 720: 0.3},
    "ETTh2": {96: 0.9, 192: 0.1, 336: 0.0, 720: 0.4},
    "exchange": {96: 1.0, 192: 0.0, 336: 1.0, 720: 0.1},
}
SPLIT = {"ETTh1": "ett-hourly", "ETTh2": "ett-hourly", "exchange": "70/10/20"}
BENCHMARK_ARMS: dict[str, dict[str, Any]] = {
    "SAMformer": {"model": "samformer", "rho": RHO},
    "Transformer": {"model": "samformer"},
    "SAMformer fixed RevIN": {"model": "samformer", "rho": RHO, "options": {"affine": False}},
    "Transformer fixed RevIN": {"model": "samformer", "options": {"affine": False}},
    "TSMixer+SAM": {"model": "tsmixer", "rho": MIXER_RHO},
    "TSMixer": {"model": "tsmixer"},
    "identity attention": {"model": "identity-attention", "rho": RHO},
    "temporal attention": {"model": "temporal-attention"},
    "sigma reparam": {"model": "samformer", "options": {"sigma_reparam": True}},
    "SAMformer sigma reparam": {"model": "samformer", "rho": RHO, "options": {"sigma_reparam": True}},
    "linear": {"model": "linear"},
}


def toy_arms(
    arms: Mapping[str, Mapping[str, Any]] = TOY_ARMS,
    *,
    epochs: int = 30,
    learning_rate: float = 1e-2,
    watch: bool = False,
    **sizes: Any,
) -> dict[str, TrainConfig]:
    """Return the configurations of the toy problem by arm.

    Args:
        arms: model, and what differs of the optimiser.
        epochs: of each; the paper does not say.
        learning_rate: of Adam, falling by a half cosine; the paper does not say.
        watch: whether to measure sharpness and attention at every third epoch.
        sizes: of the problem, where they are not the paper's.

    Example:
        >>> {name: config.optimizer.rho for name, config in experiments.toy_arms().items()}["transformer + SAM"]
        0.5
    """
    configs = {}
    for name, fields in arms.items():
        optimizer = {key: value for key, value in fields.items() if key not in ("model", "options")}
        content: dict[str, Any] = {
            "model": {"name": fields["model"], "options": dict(fields.get("options", {}))},
            "data": {"kind": "toy", **sizes},
            "optimizer": {"learning_rate": learning_rate, **optimizer},
            "plan": {"epochs": epochs, "patience": None},
        }
        if watch:
            content["watch"] = {"every": 3, "measures": ["sharpness", "attention"], "snapshots": True}
        configs[name] = TrainConfig.model_validate(content)
    return configs


def benchmark_arms(
    file: str | Path, data: str, horizon: int, arms: Mapping[str, Mapping[str, Any]] = BENCHMARK_ARMS, **plan: Any
) -> dict[str, TrainConfig]:
    """Return a benchmark's configurations by arm: batches of 32, Adam at 1e-3, at most 300 epochs, patience 5.

    Args:
        file: of the data.
        data: "ETTh1", "ETTh2" or "exchange", for its split and ρ.
        horizon: 96, 192, 336 or 720.
        arms: model, and what differs of the optimiser.
        plan: fields of the plan that differ.

    Raises:
        UnknownNameError: other data, or a horizon without a ρ.

    Example:
        >>> experiments.benchmark_arms("ETTh1.csv", "ETTh1", 96)["ETTh1 96 SAMformer"].optimizer.rho
        0.5
    """
    if data not in RHO:
        raise unknown_name("benchmark", data, RHO)
    if horizon not in RHO[data]:
        raise unknown_name("horizon", str(horizon), map(str, RHO[data]))
    configs = {}
    for name, fields in arms.items():
        optimizer = {key: value for key, value in fields.items() if key not in ("model", "options", "rho")}
        rho = fields["rho"][data][horizon] if "rho" in fields else 0.0
        configs[f"{data} {horizon} {name}"] = TrainConfig.model_validate(
            {
                "model": {"name": fields["model"], "options": dict(fields.get("options", {}))},
                "data": {"kind": "file", "file": str(file), "split": SPLIT[data], "horizon": horizon},
                "optimizer": {"learning_rate": 1e-3, "rho": rho, **optimizer},
                "plan": plan,
            }
        )
    return configs


def rho_arms(file: str | Path, data: str, horizon: int, rhos: Sequence[float], **plan: Any) -> dict[str, TrainConfig]:
    """Return the configurations of SAMformer on a benchmark by ρ, from 0, which is Adam alone (figure 14).

    Args:
        file, data, horizon, plan: as :func:`benchmark_arms` takes them.
        rhos: radii of sharpness-aware minimisation.

    Raises:
        UnknownNameError: as in :func:`benchmark_arms`.

    Example:
        >>> list(experiments.rho_arms("ETTh1.csv", "ETTh1", 96, [0.0, 0.5]))
        ['ETTh1 96 rho 0', 'ETTh1 96 rho 0.5']
    """
    arms = {f"rho {rho:g}": {"model": "samformer", "rho": {data: {horizon: rho}}} for rho in rhos}
    return benchmark_arms(file, data, horizon, arms, **plan)
