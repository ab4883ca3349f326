"""Experiment on learning rates: transfer of the best rate from one width to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from tsfm_lens.studies.experiments.config import TrainConfig
from tsfm_lens.studies.experiments.grid import Arm, gathered

__all__ = ["RATES", "TRANSFER_ARMS", "transfer_arms", "transfer_results"]

RATES = tuple(1e-3 * 2**power for power in range(6))
TRANSFER_ARMS: dict[str, dict[str, Any]] = {
    "standard parametrisation": {"name": "attention"},
    "μP": {"name": "attention", "scale": "mup", "constant": 2.0},
    "μP, MLR attention": {"name": "mlr-attention", "ranks": [2, 1, 1], "scale": "mup", "constant": 2.0},
}
"""Heads of 4 features. "mup" divides scores by a head's features and multiplies them with the constant, the root of 4,
so that they begin as those of standard attention do."""


def transfer_arms(
    arms: Mapping[str, Mapping[str, Any]] = TRANSFER_ARMS,
    *,
    widths: Sequence[int] = (16, 32, 64),
    rates: Sequence[float] = RATES,
    inputs: int = 6,
    steps: int = 160,
    **data: Any,
) -> dict[str, TrainConfig]:
    """Return configurations of regression in context by arm, width and learning rate, with the other grid's optimiser.

    Args:
        arms: name of the scoring function, and options; those named "μP" are drawn and given rates by it, the first
            width being the base.
        widths: D; heads have 4 features each.
        rates: of AdamW.
        inputs: d.
        steps: of 32 prompts.
        data: fields of the prompts that differ.

    Example:
        >>> len(experiments.transfer_arms())
        54
    """
    configs = {}
    for title, fields in arms.items():
        for width in widths:
            for rate in rates:
                form = {key: fields[key] for key in fields if key != "name"}
                options = {"width": width, "layers": 2, "heads": width // 4, "d_mlp": 2 * width, "tokens": "pairs"}
                base = widths[0] if title.startswith("μP") else 0
                optimizer = {"name": "adamw", "learning_rate": rate, "betas": [0.9, 0.95], "warm_up": 50}
                configs[f"{title}, D = {width}, {rate:g}"] = TrainConfig.model_validate(
                    {
                        "model": {"name": fields["name"], "options": {**options, **form}},
                        "data": {"kind": "in-context", "inputs": inputs, "epoch": steps // 4, "held_out": 512, **data},
                        "optimizer": {**optimizer, "base_width": base, "schedule": "constant"},
                        "plan": {"epochs": 4, "batch": 32, "patience": None},
                    }
                )
    return configs


def transfer_results(arms: Sequence[Arm], out: str | Path) -> xr.Dataset:
    """Collect the results of runs, by parametrisation, width and rate.

    Args:
        arms: runs; those that have not ended are left out.
        out: folder of their folders.

    Returns:
        Dataset of kind "transfer_runs": ``mse`` (parametrisation, width, rate, seed), the error on held-out prompts at
        the end, NaN where a run has not ended.

    Raises:
        InputError: no run has ended.

    Example:
        >>> arms = {"μP": experiments.TRANSFER_ARMS["μP"]}
        >>> made = experiments.transfer_arms(arms, widths=(8, 16), rates=(1e-3,), inputs=2, steps=4, held_out=8)
        >>> runs = list(experiments.of_seeds(made, range(1)))
        >>> _ = experiments.run_arms(runs, folder / "transfer", quiet=True)
        >>> dict(experiments.transfer_results(runs, folder / "transfer")["mse"].sizes)
        {'parametrisation': 1, 'width': 2, 'rate': 1, 'seed': 1}
    """
    data = gathered(arms, out)
    config_of = {arm.name: arm.config for arm in arms}
    configs = [config_of[str(name)] for name in data["arm"].values]
    titles = [str(name).rsplit(", D = ", 1)[0] for name in data["arm"].values]
    places = {
        "parametrisation": titles,
        "width": [config.model.options["width"] for config in configs],
        "rate": [config.optimizer.learning_rate for config in configs],
    }
    cells = data["validation_mse"].assign_coords({name: ("arm", values) for name, values in places.items()})
    table = cells.drop_vars("arm").set_index(arm=list(places)).unstack("arm").transpose(*places, "seed")
    # in the order that they were given in, which unstacking sorts
    table = table.sel(parametrisation=list(dict.fromkeys(titles)))
    first = configs[0]
    steps = first.plan.epochs * first.data.epoch  # type: ignore[union-attr]
    facts = {"inputs": first.data.inputs, "layers": first.model.options["layers"], "steps": steps}  # type: ignore[union-attr]
    results = table.to_dataset(name="mse")
    return results.assign_attrs(facts, kind="transfer_runs", title="Learning rates across widths")
