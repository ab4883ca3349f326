"""Structured matrices against dense ones and counts; first weights and rates that carry
over between widths.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from refusals import expect_error
from tsfm_lens.studies import structured
from tsfm_lens.testing import assert_close


def of_levels(matrix: structured.MultiLevelLowRank) -> np.ndarray:
    """Σ_l ⊕_k L R', entry by entry."""
    out = np.zeros((matrix.out_features, matrix.in_features))
    for left, right in zip(matrix.left, matrix.right, strict=True):
        rows = left.shape[1]
        columns = right.shape[1]
        for i in range(matrix.out_features):
            for j in range(matrix.in_features):
                if i // rows == j // columns:
                    outer = left[i // rows, i % rows]
                    inner = right[j // columns, j % columns]
                    out[i, j] += outer.detach().numpy() @ inner.detach().numpy()
    return out


def of_train(matrix: structured.BlockTensorTrain) -> np.ndarray:
    """Σ_t L_β[α, γs + t] R_γ[δ, βs + t] at (αb + β, γd + δ)."""
    left = matrix.left.detach().numpy()
    right = matrix.right.detach().numpy()
    s = matrix.rank
    out = np.zeros((matrix.out_features, matrix.in_features))
    for alpha, beta, gamma, delta in np.ndindex(matrix.a, matrix.b, matrix.c, matrix.d):
        outer = left[beta, alpha, gamma * s :][:s]
        inner = right[gamma, delta, beta * s :][:s]
        out[alpha * matrix.b + beta, gamma * matrix.d + delta] = outer @ inner
    return out


CASES: dict[
    str, tuple[Callable[[], structured.StructuredMatrix], Callable[..., np.ndarray]]
] = {
    "low rank": (lambda: structured.MultiLevelLowRank(10, 6, (3,)), of_levels),
    "low-rank blocks": (
        lambda: structured.MultiLevelLowRank(12, 8, (2,), (4,)),
        of_levels,
    ),
    "diagonal": (lambda: structured.MultiLevelLowRank(7, 7, (1,), (7,)), of_levels),
    "levels": (lambda: structured.MultiLevelLowRank(16, 8, (3, 2, 1)), of_levels),
    "levels, one empty": (
        lambda: structured.MultiLevelLowRank(16, 8, (3, 0, 1)),
        of_levels,
    ),
    "levels of three": (
        lambda: structured.MultiLevelLowRank(18, 9, (2, 1), (1, 3)),
        of_levels,
    ),
    "train": (lambda: structured.BlockTensorTrain(16, 16), of_train),
    "train, all sizes apart": (
        lambda: structured.BlockTensorTrain(15, 24, 2),
        of_train,
    ),
}


def drawn(name: str) -> structured.StructuredMatrix:
    torch.manual_seed(0)
    return CASES[name][0]().double()


@pytest.mark.parametrize("name", CASES)
def test_matrices_follow_their_definition(
    name: str,
) -> None:
    """Product, number of weights, operations and rank follow the definition."""
    matrix = drawn(name)
    expected = CASES[name][1](matrix)
    assert_close(matrix.dense(), expected, depth=40)
    x = torch.randn(2, 3, matrix.in_features, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        product = matrix(x)
    assert_close(product, np.einsum("oi,abi->abo", expected, x.numpy()), depth=100)
    # torch counts a multiplication and an addition
    assert counter.get_total_flops() == 2 * 6 * matrix.n_parameters
    assert matrix.n_parameters == sum(part.numel() for part in matrix.parameters())
    assert np.linalg.matrix_rank(expected) == matrix.generic_rank


@pytest.mark.parametrize(
    "ranks",
    [
        (12,),
        (5, 5),
        (3, 2, 1),
        (8, 4, 4),
        (2, 2, 2, 2),
        (1, 1, 1, 1, 1),
        (0, 0, 4),
        (0, 3),
        (4, 4, 4, 4, 1),
    ],
)
def test_ranks_saturate_from_the_finest_level(
    ranks: tuple[int, ...],
) -> None:
    """The rank of levels saturates from the finest one up."""
    torch.manual_seed(1)
    matrix = structured.MultiLevelLowRank(32, 32, ranks).double()
    assert np.linalg.matrix_rank(matrix.dense().detach().numpy()) == matrix.generic_rank


def test_tensor_trains_approximate_matrices_best() -> None:
    """A train of the highest rank is any matrix, one of a lower rank the nearest."""
    torch.manual_seed(2)
    matrix = torch.randn(12, 20, dtype=torch.float64)
    for s in (1, 2, 3):
        train = structured.nearest_tensor_train(matrix, s)
        retained = sum(
            float(torch.linalg.svdvals(piece)[s:].square().sum())
            for piece in list_slices(matrix, 3, 4, 4, 5)
        )
        assert_close(
            (train.dense() - matrix).square().sum(),
            retained,
            depth=400,
            magnitude=float(matrix.square().sum()),
        )
    assert_close(train.dense(), matrix, depth=100)


def list_slices(
    matrix: torch.Tensor, a: int, b: int, c: int, d: int
) -> list[torch.Tensor]:
    return [
        matrix[beta::b, gamma * d : (gamma + 1) * d]
        for beta in range(b)
        for gamma in range(c)
    ]


def build_model(
    form: structured.ScoringForm, width: int
) -> structured.InContextRegressor:
    made = structured.InContextRegressor(
        4, 6, structured.Encoder(width, 2, 4, form), width
    )
    structured.redraw(made, seed=1)
    return made


def rates(model: nn.Module, rate: float, base: int) -> dict[str, float]:
    return {
        name: group["lr"]
        for group in structured.parameter_groups(model, rate, base)
        for name in group["names"]
    }


@pytest.mark.parametrize("width", [16, 64])
def test_rates_are_those_of_the_table(width: int) -> None:
    found = rates(build_model(structured.BilinearLevels((4, 2, 2)), width), 1e-3, 32)
    for level in range(3):
        assert_close(
            found[f"encoder.blocks.0.attn.q.factors.{level}"],
            1e-3 * 32 / (width / 2**level),
            depth=4,
        )
    found = rates(build_model(structured.BilinearTrain(rank=2), width), 1e-3, 32)
    for side, inputs in (("q", 2 * width**0.5), ("k", width**0.5)):
        assert_close(
            found[f"encoder.blocks.1.attn.{side}.factor"], 1e-3 * 32 / inputs, depth=4
        )
    assert_close(found["encoder.blocks.1.attn.v.weight"], 1e-3 * 32 / width, depth=4)
    assert_close(
        found["encoder.blocks.1.down.weight"], 1e-3 * 32 / (4 * width), depth=4
    )
    assert (
        found["embed.read_in.weight"]
        == found["embed.positions"]
        == found["encoder.norm.weight"]
        == 1e-3
    )


@pytest.mark.parametrize(("d_out", "d_in"), [(64, 64), (256, 64), (64, 256), (16, 512)])
def test_initial_weights_have_theoretical_norms(d_out: int, d_in: int) -> None:
    """First weights have the spectral norm of the theory."""
    draw = torch.randn(d_out, d_in, generator=torch.Generator().manual_seed(0))
    draw *= structured.first_deviation(d_out, d_in)
    assert 1 <= float(torch.linalg.matrix_norm(draw, 2)) / (d_out / d_in) ** 0.5 <= 3


LAYERS = {
    "levels": lambda width: structured.LevelFactor(width, 2, (4, 2, 2)),
    "train, keys": lambda width: structured.TrainFactor(width, 2, side="keys"),
    "train, queries": lambda width: structured.TrainFactor(width, 2, side="queries"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_steps_move_features_alike_across_widths(name: str) -> None:
    """A step of training moves features as much at every width."""
    moved: dict[bool, list[float]] = {True: [], False: []}
    for width in (64, 256, 1024):
        for scaled, out in moved.items():
            torch.manual_seed(0)
            layer = LAYERS[name](width)
            x = torch.randn(1, width)
            before = layer(x)
            before.sum().backward()
            if scaled:
                groups = structured.parameter_groups(layer, 1e-3, 64)
            else:
                groups = [{"params": layer.parameters(), "lr": 1e-3}]
            with torch.no_grad():
                for group in groups:
                    for part in group["params"]:
                        part += group["lr"] * part.grad.sign()
                out.append(float((layer(x) - before).square().mean().sqrt()))
    steady = moved[True]
    growing = moved[False]
    assert max(steady) / min(steady) < 2 < growing[-1] / growing[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: structured.MultiLevelLowRank(12, 12, (1,) * 4), "by 8 blocks"),
        (lambda: structured.MultiLevelLowRank(8, 6, (7,)), "0 to the width of 6"),
        (lambda: structured.MultiLevelLowRank(8, 6, (0,)), "leave nothing"),
        (lambda: structured.BlockTensorTrain(13, 16), "13 is a prime"),
        (lambda: structured.BilinearTrain(norm=True), "choose norm=False"),
        (lambda: structured.Standard(scale="sqr"), "sqrt"),
        (lambda: structured.token_blocks(9, 2, length=8), "9 tokens are more"),
        (lambda: structured.token_blocks(8, 5), "8 tokens are fewer"),
    ],
)
def test_sizes_that_mismatch_are_refused(
    make: Callable[[], object], message: str
) -> None:
    """Sizes that do not fit are refused, and the message names them."""
    expect_error(message, make)


def test_regressors_need_causal_encoders() -> None:
    """An encoder that sees the future is refused as a regressor."""
    ahead = structured.Encoder(12, 1, 2, structured.Standard(), causal=False)
    expect_error("not causal", structured.InContextRegressor, 2, 4, ahead, 12)
