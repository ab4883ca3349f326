"""Sharpness and gradient noise against dense Hessians, planted spectra and closed
forms.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.testing import assert_close
from tsfm_lens.training import gradient_noise, sharpness

DTYPES = (torch.float32, torch.float64)


def planted(
    values: list[float], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Callable[[], Tensor], Tensor]:
    """A quadratic whose Hessian has these eigenvalues, in a random basis: weights,
    loss, basis.
    """
    generator = torch.Generator().manual_seed(1)
    basis, _ = torch.linalg.qr(
        torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)
    )
    matrix = (
        basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T
    ).to(dtype)
    weights = torch.randn(len(values), generator=generator).to(dtype).requires_grad_()
    return weights, lambda: 0.5 * weights @ matrix @ weights, basis


class Small(nn.Module):
    """Attention with a fused kernel, a gated MLP and dropout, small enough for a dense
    Hessian.
    """

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.out = nn.Linear(4, 4)
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = x + self.drop(self.out(mixed))
        return self.head(F.silu(self.norm(x))).mean(1)


def trained(
    dtype: torch.dtype, *, batches: int = 1, dropout: float = 0.0
) -> tuple[Small, list[Callable[[], Tensor]]]:
    model = Small(dropout=dropout).to(dtype)
    data = [
        (torch.randn(5, 6, 4, dtype=dtype), torch.randn(5, 2, dtype=dtype))
        for _ in range(batches)
    ]
    return model, [lambda x=x, y=y: F.mse_loss(model(x), y) for x, y in data]  # type: ignore[misc]


def dense(model: nn.Module, losses: list[Callable[[], Tensor]]) -> Tensor:
    """The Hessian of the mean loss, column by column through torch's own function of a
    flat vector.
    """
    named = dict(model.named_parameters())
    sizes = [weight.numel() for weight in named.values()]
    shapes = [weight.shape for weight in named.values()]
    seen = [loss.__defaults__ for loss in losses]

    def of_flat(flat: Tensor) -> Tensor:
        parts = (
            part.view(shape)
            for part, shape in zip(flat.split(sizes), shapes, strict=True)
        )
        weights = dict(zip(named, parts, strict=True))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return torch.stack(
                [F.mse_loss(functional_call(model, weights, (x,)), y) for x, y in seen]
            ).mean()  # type: ignore[misc]

    flat = torch.cat([weight.detach().flatten() for weight in named.values()])
    return torch.autograd.functional.hessian(of_flat, flat)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "values",
    [
        [5.0, 3.0, 1.0, 0.5, 0.0],
        [2.0, 1.0, -7.0, -1.0],
        [3.0] * 4,
        [-1.0, -2.0, -2.0],
        [4.0],
        [9.0, 9.0, 1.0, -9.0],
    ],
)
def test_planted_spectra_are_found_at_ends(
    values: list[float], dtype: torch.dtype
) -> None:
    """Planted spectra are found at both ends."""
    weights, loss, basis = planted(values, dtype)
    found = sharpness(loss, [weights], tolerance=0)
    scale = max(map(abs, values))
    assert_close(found.largest, max(values), depth=100, magnitude=scale, dtype=dtype)
    assert_close(found.smallest, min(values), depth=100, magnitude=scale, dtype=dtype)
    assert_close(found.largest_residual, 0.0, depth=1000, magnitude=scale, dtype=dtype)
    assert abs(found.dominant) == max(abs(found.largest), abs(found.smallest))
    assert found.products <= len(values)
    # the direction lies in the eigenspace
    inside = basis[:, [value == max(values) for value in values]].to(dtype)
    assert_close((inside.T @ found.direction[0]).norm(), 1.0, depth=1000, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_transformer_eigenvalues_match_dense_hessian(
    dtype: torch.dtype,
) -> None:
    model, losses = trained(dtype, batches=2)
    hessian = dense(model, losses).double()
    values = torch.linalg.eigvalsh(hessian)
    scale = float(values.abs().max())
    for item in (losses, lambda: (losses[0]() + losses[1]()) / 2):
        found = sharpness(item, model, steps=100, tolerance=1e-3)
        assert found.converged
        # an eigenvalue lies within the residual; a random start makes it the outermost
        slack = torch.finfo(dtype).eps * 1000 * scale
        assert abs(found.largest - float(values[-1])) <= found.largest_residual + slack
        assert abs(found.smallest - float(values[0])) <= found.smallest_residual + slack
        assert found.largest_residual <= 1e-3 * scale
        assert found.products < 60
        # told of the vector, and not of what the recurrence believes
        flat = torch.cat([part.flatten() for part in found.direction]).double()
        assert_close(
            flat @ hessian @ flat,
            found.largest,
            depth=2000,
            magnitude=scale,
            dtype=dtype,
        )
        rest = (hessian @ flat - found.largest * flat).norm()
        assert_close(
            rest, found.largest_residual, depth=2000, magnitude=scale, dtype=dtype
        )
        assert_close(
            found.loss,
            sum(float(loss().detach()) for loss in losses) / 2,
            depth=100,
            dtype=dtype,
        )


def test_trace_matches_hessian_within_error() -> None:
    model, losses = trained(torch.float64)
    trace = float(dense(model, losses).trace())
    draws = [sharpness(losses, model, steps=1, seed=seed) for seed in range(200)]
    estimates = np.array([found.trace for found in draws])
    assert abs(estimates.mean() - trace) < 4 * estimates.std() / len(draws) ** 0.5
    reported = np.mean([found.trace_error**2 for found in draws]) ** 0.5
    assert 0.8 < reported / estimates.std() < 1.25


def test_outlier_eigenvalue_is_found_once() -> None:
    """Vectors that drift from orthogonal find a converged end again and again, and
    never come to the other.
    """
    # the other end is so dense that it takes as many steps as there are eigenvalues
    values = [1e3, *(1 + np.linspace(0, 1, 59) ** 2).tolist()]
    weights, loss, _ = planted(values)
    found = sharpness(loss, [weights], steps=60, tolerance=0)
    assert_close(found.largest, 1e3, depth=1000, magnitude=1e3)
    assert_close(found.smallest, 1.0, depth=1000, magnitude=1e3)


def test_same_seed_gives_same_bits() -> None:
    """The same seed gives the same bits, and global random numbers are left alone."""
    model, losses = trained(torch.float32, dropout=0.4)
    before = torch.get_rng_state()
    first = sharpness(losses, model)
    assert torch.equal(before, torch.get_rng_state())
    again = sharpness(losses, model)
    assert (first.largest, first.smallest, first.trace) == (
        again.largest,
        again.smallest,
        again.trace,
    )
    assert all(weight.grad is None for weight in model.parameters())
    # dropout is drawn once for all products, or the map would not be linear
    anew = sharpness(2 * losses, model)
    close_in_float32(
        anew.largest, first.largest, depth=1000, magnitude=abs(first.dominant)
    )


def test_unconverged_values_say_so() -> None:
    """Values that have not converged say so, and their residual bounds the error."""
    values = [float(value) for value in range(1, 60)]
    weights, loss, _ = planted(values)
    few = sharpness(loss, [weights], steps=4)
    assert not few.converged
    assert few.products == 4
    assert few.largest < 59 - few.tolerance * 59
    # a residual is one: some eigenvalue is that near
    assert min(abs(few.largest - value) for value in values) <= few.largest_residual


def test_linear_losses_are_flat() -> None:
    """A linear loss is flat, and so is a parameter that is not used."""
    weights = torch.ones(3, requires_grad=True)
    found = sharpness(lambda: weights.sum(), [weights])
    assert (found.largest, found.smallest, found.trace) == (0.0, 0.0, 0.0)
    weights, loss, _ = planted([3.0, -5.0, 1.0])
    found = sharpness(
        loss,
        [torch.ones(2, requires_grad=True, dtype=torch.float64), weights],
        tolerance=0,
    )
    assert_close(found.direction[0].norm(), 0.0, depth=200, magnitude=1.0)


def test_what_cannot_be_is_refused() -> None:
    weights = torch.ones(3, requires_grad=True)
    for losses, parameters, text in (
        (lambda: weights.sum() * torch.nan, [weights], "the loss is nan"),
        (lambda: weights, [weights], r"shape \(3,\)"),
        (lambda: 1.0, [weights], "float"),
        (lambda: torch.tensor(1.0), [weights], "depends on none"),
        ([lambda: torch.tensor(1.0)] * 2, [weights], "depends on none"),
        (lambda: weights.sum(), [torch.ones(1)], "requires_grad=False"),
        (lambda: weights.sum(), [], "no parameters"),
        ([], [weights], "no loss"),
        ([1], [weights], "a int as loss"),
        (
            lambda: weights.sum(),
            [torch.ones(1, dtype=torch.bfloat16, requires_grad=True)],
            "bfloat16",
        ),
        (
            lambda: weights.sum(),
            nn.Linear(1, 1).requires_grad_(False),
            "no parameters",
        ),
    ):
        expect_error(text, sharpness, losses, parameters)  # type: ignore[arg-type]
    for options in ({"steps": 0}, {"tolerance": -1.0}, {"tolerance": 1.0}):
        expect_error(
            "expected steps of 1 or more",
            sharpness,
            lambda: weights.sum(),
            [weights],
            **options,
        )  # type: ignore[arg-type]
    with torch.inference_mode(), pytest.raises(InputError, match="inference_mode"):
        sharpness(lambda: weights.sum(), [weights])


def test_missing_second_derivatives_are_named() -> None:
    """An operation without a second derivative is named."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return grad

    weights = torch.ones(3, requires_grad=True)
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    # without a look at the graph its products would be 0
    expect_error(
        "once_differentiable",
        sharpness,
        lambda: Once.apply(weights).square().sum(),
        [weights],
    )
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    expect_error(
        r"differentiated twice .*flash_attention",
        sharpness,
        lambda: fused(q, q, q)[0].sum(),
        [q],
    )


def test_gradient_noise_matches_linear_regression() -> None:
    """The gradient noise of a linear regression is that of its formula."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(64, 5, generator=generator).double()
    y = torch.randn(64, generator=generator).double()
    w = torch.randn(5, generator=generator).double().requires_grad_()
    batches = [
        (x[start : start + 8], y[start : start + 8]) for start in range(0, 64, 8)
    ]
    losses = [lambda x=x, y=y: 0.5 * (x @ w - y).square().mean() for x, y in batches]
    found = gradient_noise(losses, [w])
    with torch.no_grad():
        gradients = torch.stack([x.T @ (x @ w - y) / len(x) for x, y in batches])
    variance = gradients.var(dim=0).sum()
    mean = gradients.mean(dim=0)
    squared = mean.square().sum() - variance / 8
    assert_close(
        [found.variance, found.squared_norm],
        torch.stack([variance, squared]),
        depth=200,
    )
    assert_close(
        found.scale,
        variance / squared,
        depth=2000,
        magnitude=float(variance / squared.abs()),
    )
    assert found.batches == 8


def test_gradient_noise_refuses_what_has_none() -> None:
    w = torch.zeros(1, requires_grad=True)
    for losses, text in (
        ([lambda: w.sum()], "at least 2"),
        ([lambda: torch.ones(())] * 2, "depend on none"),
    ):
        expect_error(text, gradient_noise, losses, [w])
    # a mean that the noise hides has no scale
    hidden = gradient_noise([lambda: (w * 1).sum(), lambda: (w * -1).sum()], [w])
    assert hidden.squared_norm < 0
    assert np.isnan(hidden.scale)
