"""Transformers with structured scores: every oracle on every form, regression in
context, and what is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tsfm_lens.core.errors import InputError, UnknownNameError, WiringError
from tsfm_lens.studies import experiments, structured
from tsfm_lens.studies.structured.forms import (
    BilinearLevels,
    BilinearTrain,
    ScoringForm,
    Standard,
    TokenLevels,
)
from tsfm_lens.studies.structured.models import Encoder, StepForecaster, make_forecaster
from tsfm_lens.studies.structured.training import redraw
from tsfm_lens.studies.structured.wiring import StepAdapter
from tsfm_lens.testing import check_wiring

WIDTH = 12
HEADS = 2
LAYERS = 2
T = 12
CHANNELS = 3

FORMS: dict[str, tuple[ScoringForm, ...]] = {
    "standard": (Standard(),),
    "window and global": (Standard(window=3), Standard()),
    "token levels": (TokenLevels((3, 2, 2), by_depth=True),),
    "bilinear levels": (BilinearLevels((4, 3, 1), norm=True),),
    "bilinear train": (BilinearTrain(),),
    "bilinear train and standard": (
        BilinearTrain(rank=2),
        Standard(),
    ),
}


def drawn(model: torch.nn.Module) -> torch.nn.Module:
    """Weights so large that every head moves the forecast."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            draw = torch.randn(weight.shape, generator=generator)
            if weight.ndim > 1:
                weight.copy_(
                    draw * (1.0 if "factor" in name else 1.5 * weight.shape[-1] ** -0.5)
                )
            else:
                weight.copy_(
                    1 + 0.2 * draw
                    if "norm" in name and "weight" in name
                    else 0.1 * draw
                )
    return model.eval()


def forecaster(name: str, *, causal: bool = True) -> StepForecaster:
    encoder = Encoder(WIDTH, LAYERS, HEADS, FORMS[name], d_mlp=20, causal=causal)
    made = drawn(StepForecaster(encoder, WIDTH, length=T, channels=CHANNELS))
    assert isinstance(made, StepForecaster)
    return made


@pytest.mark.parametrize("name", FORMS)
def test_every_oracle_holds(name: str) -> None:
    results = check_wiring(
        StepAdapter, forecaster(name, causal=name != "token levels"), quiet=True
    )
    assert all(result.passed for result in results), [
        result for result in results if not result.passed
    ]


def test_wrong_score_features_are_refused() -> None:
    """A wiring table with a wrong number of score features is refused."""

    class Wrong(StepAdapter):
        def __init__(self, native: StepForecaster) -> None:
            super().__init__(native)
            (stack,) = self.wiring.stacks
            rows = (replace(stack.writers[0], d_score=0), *stack.writers[1:])
            self.wiring = replace(self.wiring, stacks=(replace(stack, writers=rows),))

    with pytest.raises(WiringError, match=r"attn: q: the weight .*n_heads=2, d_head=6"):
        check_wiring(Wrong, forecaster("bilinear train"), quiet=True)


def test_runs_use_the_named_scoring_function(tmp_path: Path) -> None:
    """A run on a file uses the scoring function that was named."""
    rows = np.sin(np.arange(120)[:, None] / np.array([3.0, 7.0]))
    (tmp_path / "waves.csv").write_text(
        "a,b\n" + "\n".join(",".join(map(str, row)) for row in rows)
    )
    content = {
        "model": {
            "name": "mlr-attention",
            "options": {"width": 8, "heads": 2, "ranks": [3, 1]},
        },
        "data": {
            "kind": "file",
            "file": str(tmp_path / "waves.csv"),
            "length": 8,
            "horizon": 8,
        },
        "plan": {"epochs": 1, "patience": None},
    }
    found = experiments.train(
        experiments.TrainConfig.model_validate(content), tmp_path / "run", quiet=True
    )
    assert np.isfinite(found["test"]["mae"])
    _, task, _ = experiments.prepare(experiments.TrainConfig.model_validate(content))
    assert "TokenLevels" in task.identity
    content["data"]["horizon"] = 4  # type: ignore[index]
    with pytest.raises(InputError, match="a horizon of 4 steps after windows of 8"):
        experiments.prepare(experiments.TrainConfig.model_validate(content))
    with pytest.raises(ValidationError, match="'mlr-attention' is not for series"):
        experiments.TrainConfig.model_validate({**content, "data": {"kind": "toy"}})
    with pytest.raises(UnknownNameError, match="Closest: bilinear-mlr"):
        make_forecaster("mlr", 8, 8, 2)


def test_rates_by_width_reach_the_optimiser() -> None:
    arms = experiments.transfer_arms(widths=(16, 64), rates=(4e-3,))
    model = experiments.prepare(arms["μP, D = 64, 0.004"])[0]
    found = {group["share"] for group in model.optimizer.param_groups}
    assert found == {1.0, 16 / 64, 16 / 128}
    again = structured.make_regressor(
        "attention",
        structured.Prompts(6),
        width=64,
        layers=2,
        heads=16,
        d_mlp=128,
        tokens="pairs",
        scale="mup",
    )
    redraw(again, 0)
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.parameters(), model.model.parameters(), strict=True)
    )
    with pytest.raises(
        ValidationError, match="base_width is for models of structured scores"
    ):
        experiments.TrainConfig.model_validate(
            {
                "model": {"name": "linear"},
                "data": {"kind": "toy"},
                "optimizer": {"base_width": 8},
            }
        )
