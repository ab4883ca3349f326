"""Experiment on ETTh1: one encoder by its scoring function, at several horizons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tsfm_lens.studies.experiments.config import TrainConfig

__all__ = ["ENCODER_ARMS", "encoder_arms"]

ENCODER_ARMS: dict[str, dict[str, Any]] = {
    "standard": {"name": "attention"},
    "MLR attention 6+2": {"name": "mlr-attention", "ranks": [6, 2]},
    "MLR attention 4+2+1+1": {"name": "mlr-attention", "ranks": [4, 2, 1, 1]},
    "bilinear MLR 4+2+2": {"name": "bilinear-mlr", "ranks": [4, 2, 2]},
    "bilinear BTT": {"name": "bilinear-btt"},
}
"""At a width of 32 and 4 heads. The paper's ranks of MLR attention are 48|16 and 40|16|4|4 of 64, here of 8."""


def encoder_arms(
    file: str | Path,
    arms: Mapping[str, Mapping[str, Any]] = ENCODER_ARMS,
    *,
    horizons: Sequence[int] = (96, 192),
    width: int = 32,
    heads: int = 4,
    epochs: int = 1,
    learning_rate: float = 2e-3,
) -> dict[str, TrainConfig]:
    """Return the configurations of forecasting by arm and horizon, windows being as long as forecasts.

    Args:
        file: of ETTh1, or another series that the split of ETT by hours fits.
        arms: name of the scoring function, and its arguments.
        horizons: T.
        width, heads: of two layers, whose MLPs have twice the width; the paper has 512 and 8.
        epochs: of batches of 32, 258 to 264 steps each; the paper takes 200 or 1,000, whichever is better.
        learning_rate: of Adam; the paper takes the best of 1e-5, 2e-4 and 5e-3.

    Example:
        >>> list(experiments.encoder_arms("ETTh1.csv", horizons=(96,)))[:2]
        ['standard, T = 96', 'MLR attention 6+2, T = 96']
    """
    configs = {}
    for steps in horizons:
        for title, fields in arms.items():
            form = {key: fields[key] for key in fields if key != "name"}
            options = {"width": width, "layers": 2, "heads": heads, "d_mlp": 2 * width, **form}
            configs[f"{title}, T = {steps}"] = TrainConfig.model_validate(
                {
                    "model": {"name": fields["name"], "options": options},
                    "data": {
                        "kind": "file",
                        "file": str(file),
                        "split": "ett-hourly",
                        "length": steps,
                        "horizon": steps,
                    },
                    "optimizer": {"learning_rate": learning_rate, "warm_up": 20},
                    "plan": {"epochs": epochs, "batch": 32, "patience": None},
                }
            )
    return configs
