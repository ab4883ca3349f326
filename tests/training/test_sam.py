"""Sharpness-aware minimisation against its definition, and against the optimiser that
it wraps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.testing import assert_close
from tsfm_lens.training import SAM

BASES = {
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1),
    "SGD": lambda weights: torch.optim.SGD(
        weights, lr=0.05, momentum=0.9, nesterov=True
    ),
}
EACH_BASE = pytest.mark.parametrize("base", BASES.values(), ids=BASES)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def compute_loss(model: nn.Module, step: int) -> Tensor:
    given = torch.randn(
        8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step)
    )
    return (model(given) - given[:, :2].sin()).square().mean()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range
) -> list[Tensor]:
    def closure(step: int) -> Tensor:
        optimizer.zero_grad()
        loss = compute_loss(model, step)
        loss.backward()
        return loss

    for step in steps:
        optimizer.step(partial(closure, step))
    return [weight.detach().clone() for weight in model.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@EACH_BASE
def test_zero_neighbourhood_equals_base_optimiser(
    base: Callable[..., Any],
) -> None:
    """Without a neighbourhood it is the base optimiser, to the last bit."""
    plain = network()
    wrapped = network()
    expected = train(plain, base(plain.parameters()), range(8))
    assert same(
        train(wrapped, SAM(base(wrapped.parameters()), rho=0.0), range(8)), expected
    )


def test_step_follows_the_definition() -> None:
    """In numpy, on a quadratic of two groups: one norm over both, gradient at ω + ε̂,
    applied at ω.
    """
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((5, 5))
    curvature = matrix @ matrix.T / 10
    rate = 0.05
    rho = 0.7
    point = rng.standard_normal(5)
    first, second = (
        nn.Parameter(torch.tensor(part)) for part in (point[:2], point[2:])
    )
    optimizer = SAM(
        torch.optim.SGD([{"params": [first]}, {"params": [second]}], lr=rate), rho
    )
    form = torch.tensor(curvature)

    def closure() -> Tensor:
        optimizer.zero_grad()
        x = torch.cat([first, second])
        loss = 0.5 * x @ form @ x
        loss.backward()
        return loss

    for _ in range(6):
        expected_loss = 0.5 * point @ curvature @ point
        loss = optimizer.step(closure)
        slope = curvature @ point
        nearby = point + rho * slope / (np.linalg.norm(slope) + optimizer.eps)
        point = point - rate * curvature @ nearby
        assert_close(torch.cat([first, second]), point, depth=200)
        assert_close(loss, expected_loss, depth=200)


@EACH_BASE
def test_run_resumed_from_state_is_undisturbed(
    base: Callable[..., Any], tmp_path: Any
) -> None:
    """A run from a saved state ends as the undisturbed one."""
    full = network()
    expected = train(full, SAM(base(full.parameters()), 0.2), range(9))
    model = network()
    first = SAM(base(model.parameters()), 0.2)
    train(model, first, range(4))
    torch.save(
        {"model": model.state_dict(), "optimizer": first.state_dict()},
        tmp_path / "state.pt",
    )
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    other = network(seed=1)
    second = SAM(base(other.parameters()), 0.9)
    other.load_state_dict(saved["model"])
    second.load_state_dict(saved["optimizer"])
    assert second.rho == 0.2
    assert second.param_groups is second.base.param_groups
    assert second.state is second.base.state
    assert same(train(other, second, range(4, 9)), expected)


def test_copies_and_schedulers_use_base_groups() -> None:
    """Copies and schedulers work on the parameter groups of the base optimiser."""
    model = network()
    optimizer = SAM(torch.optim.Adam(model.parameters(), lr=0.1), 0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    train(model, optimizer, range(1))
    schedule.step()
    assert optimizer.base.param_groups[0]["lr"] < 0.1
    control = copy.deepcopy(optimizer)
    assert control.param_groups is control.base.param_groups
    further = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [further]})
    assert optimizer.base.param_groups[-1]["params"][0] is further


@pytest.mark.parametrize("fails_at", [1, 2], ids=["first gradient", "second gradient"])
@pytest.mark.parametrize("how", ["not finite", "an error"])
def test_weights_are_restored_after_failures(fails_at: int, how: str) -> None:
    """The weights are as before, whatever fails within a step."""
    model = network()
    before = [weight.detach().clone() for weight in model.parameters()]
    optimizer = SAM(torch.optim.Adam(model.parameters()), 0.5)
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        if calls == fails_at and how == "an error":
            raise KeyboardInterrupt
        loss = compute_loss(model, 0) * (float("nan") if calls == fails_at else 1.0)
        loss.backward()
        return loss

    with pytest.raises(KeyboardInterrupt if how == "an error" else InputError):
        optimizer.step(closure)
    assert same(list(model.parameters()), before)
    assert not optimizer.state


def test_unwrappable_optimisers_are_refused() -> None:
    """Optimisers that cannot be wrapped and steps without a closure are refused."""
    for rho in (-0.1, float("inf"), float("nan")):
        expect_error("rho=", SAM, torch.optim.Adam(network().parameters()), rho)
    expect_error(
        "LBFGS calls closures itself",
        SAM,
        torch.optim.LBFGS(network().parameters()),
        0.1,
    )
    optimizer = SAM(torch.optim.Adam(network().parameters()), 0.1)
    expect_error("step\\(closure\\)", optimizer.step)
    expect_error(
        "no eps and no rho", optimizer.load_state_dict, optimizer.base.state_dict()
    )
