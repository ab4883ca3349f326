"""Regression in context: prompts, the least-squares oracle, the task, its runs and
their grid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tsfm_lens.studies import experiments
from tsfm_lens.studies.structured.forms import REGRESSORS
from tsfm_lens.studies.structured.training import (
    InContextTask,
    Prompts,
    errors_by_pairs,
    least_squares_in_context,
    make_regressor,
    oracle_errors,
)
from tsfm_lens.testing import assert_close
from tsfm_lens.training import Task

DATA = {"kind": "in-context", "inputs": 3, "epoch": 4, "held_out": 32}
OPTIMIZER = {
    "name": "adamw",
    "learning_rate": 0.01,
    "betas": [0.9, 0.95],
    "warm_up": 3,
    "schedule": "constant",
}


def config(
    model: str = "attention", *, data: dict[str, Any] | None = None, **fields: Any
) -> experiments.TrainConfig:
    options = {"width": 8, "layers": 1, "heads": 2, **fields.pop("options", {})}
    content = {
        "model": {"name": model, "options": options},
        "data": {**DATA, **(data or {})},
        "optimizer": OPTIMIZER,
        "plan": {"epochs": 2, "batch": 4, "patience": None},
        **fields,
    }
    return experiments.TrainConfig.model_validate(content)


class Oracle(nn.Module):
    """Least squares as a model."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return least_squares_in_context(x, y).float()


def test_least_squares_uses_earlier_pairs() -> None:
    """Least squares is that of numpy on the pairs before."""
    x, y = Prompts(inputs=5).draw(3, seed=1)
    found = least_squares_in_context(x, y)
    for prompt in range(3):
        for pairs in range(10):
            known, answers = (part[prompt, :pairs].double().numpy() for part in (x, y))
            if pairs:
                weight = np.linalg.lstsq(known, answers, rcond=None)[0]
            else:
                weight = np.zeros(5)
            assert_close(
                found[prompt, pairs],
                x[prompt, pairs].double().numpy() @ weight,
                depth=10**5,
                magnitude=10.0,
            )


def test_the_oracle_has_its_expected_error() -> None:
    count = 4096
    x, y = Prompts(inputs=4).draw(count, seed=2)
    errors = errors_by_pairs(Oracle(), x, y)
    expected = oracle_errors(4, 8)
    assert expected.tolist() == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0]
    squares = (least_squares_in_context(x, y) - y).square()
    off = (errors - expected)[:4].abs() / (squares.std(0)[:4] / count**0.5)
    # of four means none lies five standard errors off
    assert off.max() < 5
    assert_close(errors[4:], torch.zeros(4), depth=100, magnitude=1.0, dtype="float32")


def test_prompts_have_the_stated_moments() -> None:
    """Prompts depend on seed and parts alone and have the stated moments."""
    prompts = Prompts(inputs=6)
    x, y = prompts.draw(2000, 3, 1)
    assert x.shape == (2000, 12, 6)
    assert all(
        torch.equal(*pair)
        for pair in zip((x, y), prompts.draw(2000, 3, 1), strict=True)
    )
    assert not torch.equal(x, prompts.draw(2000, 3, 2)[0])
    assert not torch.equal(x, prompts.draw(2000, 4, 1)[0])
    # x ~ N(0, I/d): 144,000 squares of mean 1/6 and deviation √2/6
    assert abs(float(x.square().mean()) * 6 - 1) < 5 * (2 / x.numel()) ** 0.5
    # answers are linear: the last six follow from the first six
    weight = torch.linalg.solve(x[:5, :6].double(), y[:5, :6, None].double())
    assert_close(
        (x[:5].double() @ weight)[..., 0],
        y[:5],
        depth=10**5,
        magnitude=10.0,
        dtype="float32",
    )


def test_the_curriculum_rises_to_all_dimensions() -> None:
    """The curriculum rises from four dimensions to all."""
    prompts = Prompts(inputs=16, curriculum=12)
    assert prompts.sizes(0) == (4, 8)
    assert prompts.sizes(6) == (10, 20)
    assert [prompts.sizes(step) for step in (12, 500)] == [(16, 32)] * 2
    x, _ = prompts.draw(5, 0, step=6)
    assert x.shape == (5, 20, 16)
    assert x[..., 10:].count_nonzero() == 0
    assert x[..., :10].count_nonzero() == x[..., :10].numel()
    assert Prompts(inputs=16).sizes(0) == (16, 32)
    assert Prompts(inputs=2, curriculum=5).sizes(0) == (2, 4)


@pytest.mark.parametrize("name", REGRESSORS)
def test_tasks_begin_at_the_answers_variance(name: str) -> None:
    """A task begins at the mean square of the answers."""
    prompts = Prompts(inputs=4)
    if name in ("attention", "bilinear-btt"):
        ranks = {}
    else:
        ranks = {"ranks": [2, 1]}
    model = make_regressor(name, prompts, width=8, layers=1, heads=2, seed=0, **ranks)
    task = InContextTask(model, prompts, batch=16, held_out=512)
    assert isinstance(task, Task)
    _, y = prompts.draw(16, 0, 0, 7)
    assert task.loss(7).item() == float(y.square().mean())
    assert_close(task.by_pairs(), task.y.double().square().mean(0), depth=600)
    # E f² = 1
    deviation = float(task.y.square().mean(1).std()) / 512**0.5
    assert abs(task.evaluate()["mse"] - 1) < 5 * deviation
    assert task.evaluate()["last"] == task.by_pairs()[-1]


def test_runs_equal_a_plain_training_loop(tmp_path: Path) -> None:
    found = experiments.train(config(), tmp_path / "run", quiet=True)
    prompts = Prompts(inputs=3)
    model = make_regressor("attention", prompts, width=8, layers=1, heads=2, seed=0)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.0
    )
    for step in range(8):
        optimizer.param_groups[0]["lr"] = 0.01 * min(1.0, (step + 1) / 3)
        x, y = prompts.draw(4, 0, 0, step)
        optimizer.zero_grad()
        (model(x, y) - y).square().mean().backward()
        optimizer.step()
    retained = load_file(tmp_path / "run" / "best.safetensors")
    assert all(
        torch.equal(retained[name], value) for name, value in model.state_dict().items()
    )
    assert found["by_pairs"] == errors_by_pairs(model, *prompts.draw(32, 0, 1)).tolist()
    assert found["validation"]["last"] == found["by_pairs"][-1]
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == found


@pytest.mark.parametrize("tokens", ["single", "pairs"])
@pytest.mark.parametrize("name", ["attention", "bilinear-btt"])
def test_predictions_see_earlier_pairs_only(name: str, tokens: str) -> None:
    """A prediction sees its own x and the pairs before, nothing else."""
    model = make_regressor(name, Prompts(3), width=8, layers=1, heads=2, tokens=tokens)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(
                torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
            )
    x, y = Prompts(3).draw(2, 0)
    by_x, by_y = torch.autograd.functional.jacobian(lambda a, b: model(a, b)[0], (x, y))
    earlier = torch.ones(6, 6, dtype=torch.bool)
    assert torch.equal(by_y[:, 0] != 0, earlier.tril(-1))
    assert torch.equal((by_x[:, 0] != 0).all(-1), earlier.tril(0))
    assert torch.equal((by_x[:, 0] != 0).any(-1), earlier.tril(0))


def test_runs_in_context_have_oracle_and_ranks(tmp_path: Path) -> None:
    """A run is gathered with the oracle and the rank of its scores."""
    made = experiments.in_context_arms(epochs=1, epoch=2, held_out=16)
    expected = {
        "1 head, rank 2": (2, 64),
        "8 heads, rank 2": (2, 64),
        "1 head, BTT": (16, 128),
    }
    for title, (rank, numbers) in expected.items():
        arm = f"{title}, D = 16"
        folder = tmp_path / arm
        experiments.train(made[arm], folder, quiet=True)
        data = experiments.grids.in_context_results(folder, arm)
        assert data.attrs["kind"] == "in_context_runs"
        assert data["score_rank"].values.tolist() == [rank]
        assert data["rank_ratio"].values.tolist() == [rank / 6]
        assert data["score_parameters"].values.tolist() == [numbers]
        retained = json.loads((folder / "result.json").read_text())
        assert data["by_pairs"][0, 0].values.tolist() == retained["by_pairs"]
        assert data["validation_last"].item() == retained["by_pairs"][-1]
        assert data["oracle"].values.tolist() == oracle_errors(6, 12).tolist()
        assert data.attrs["tokens"] == "pairs"
