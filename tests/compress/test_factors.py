"""Factors against the optimum of Eckart and Young, plainly and in the norm that inputs
give.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from refusals import expect_error
from tsfm_lens import compress
from tsfm_lens.compress import Factors, LowRankLinear
from tsfm_lens.testing import assert_close, rounding

OUT = 12
IN = 20


@pytest.fixture
def weight() -> Tensor:
    return torch.randn(OUT, IN, dtype=torch.float64)


def inputs(directions: int = IN, n: int = 400) -> Tensor:
    """Inputs of very unlike variance along mixed directions; of fewer than all, if
    asked.
    """
    return (
        torch.randn(n, directions) * 2.0 ** -torch.arange(directions)
    ).double() @ torch.randn(directions, IN, dtype=torch.float64)


def make_moment(x: Tensor) -> Tensor:
    return x.T @ x / len(x)


@pytest.mark.parametrize("rank", [1, 5, OUT])
def test_without_moment_it_is_truncated_svd(weight: Tensor, rank: int) -> None:
    """Without a moment of the inputs the factors are the truncated SVD."""
    u, s, v = np.linalg.svd(weight.numpy(), full_matrices=False)
    found = compress.product(compress.truncate(weight, rank))
    assert_close(found, (u[:, :rank] * s[:rank]) @ v[:rank], depth=IN)
    same = compress.product(compress.truncate(weight, rank, moment=torch.eye(IN)))
    assert_close(same, found, depth=IN)


@pytest.mark.parametrize("directions", [IN, 15, 4])
def test_no_equal_rank_matrix_is_nearer(weight: Tensor, directions: int) -> None:
    """No matrix of the same rank is nearer for these inputs."""
    x = inputs(directions)
    rank = 3
    factors = compress.truncate(weight, rank, moment=make_moment(x))
    assert factors.rank == rank
    found = float((x @ (weight - compress.product(factors)).T).square().sum())
    # what Eckart and Young leave of the outputs themselves, of which no product of rank
    # 3 can come nearer
    best = float(torch.linalg.svdvals(x @ weight.T)[rank:].square().sum())
    assert_close(
        found, best, depth=100 * IN, magnitude=float((x @ weight.T).square().sum())
    )
    plain = compress.product(compress.truncate(weight, rank))
    assert found < float((x @ (weight - plain).T).square().sum()) / 2
    for _ in range(100):
        # near the optimum, where a wrong one would be beaten
        other = Factors(
            factors.down + 0.01 * torch.randn_like(factors.down),
            factors.up + 0.01 * torch.randn_like(factors.up),
        )
        assert float((x @ (weight - compress.product(other)).T).square().sum()) > found


def test_few_input_directions_lose_nothing(weight: Tensor) -> None:
    """Inputs of no more directions than the rank lose nothing."""
    x = inputs(3)
    factors = compress.truncate(weight, 6, moment=make_moment(x))
    assert_close(
        linear(x, compress.product(factors)), linear(x, weight), depth=100 * IN
    )
    # the three ranks that are left go to the largest directions of the rest, not to
    # none
    beyond = torch.linalg.svdvals(weight - compress.product(factors))
    assert (
        int((beyond > rounding("float64", float(beyond[0]), depth=IN)).sum()) == OUT - 6
    )


def test_no_equal_rank_matrix_costs_less(weight: Tensor) -> None:
    """No matrix of the same rank changes the loss less, to the first order."""
    x = inputs()
    rank = 3
    gradients = torch.randn(OUT, OUT).double() * 2.0 ** -torch.arange(OUT)
    felt = gradients @ gradients.T
    moment = make_moment(x)

    def factorise(**options: Tensor) -> Factors:
        return compress.truncate(weight, rank, moment=moment, **options)

    def feels(factors: Factors) -> float:
        # what is added to the diagonal counts, too
        even = felt + 1e-3 * felt.diagonal().mean() * torch.eye(OUT)
        left = (weight - compress.product(factors)) @ x.T / len(x) ** 0.5
        return float((left * (even @ left)).sum())

    factors = factorise(sensitivity=felt)
    plain = factorise()
    found = feels(factors)
    assert torch.linalg.matrix_rank(compress.product(factors)) == rank
    assert found < feels(plain)
    for _ in range(100):
        near = (
            part + 0.003 * part.abs().mean() * torch.randn_like(part)
            for part in factors
        )
        assert feels(Factors(*near)) > found
    # all errors felt alike is as if nothing were said of it
    for alike in (2 * torch.eye(OUT), torch.zeros(OUT, OUT)):
        same = compress.product(factorise(sensitivity=alike))
        assert_close(same, compress.product(plain), depth=1000)


@pytest.mark.parametrize("of", ["rows", "columns"])
def test_heads_are_cut_off_by_themselves(weight: Tensor, of: str) -> None:
    moment = make_moment(inputs())
    size = IN // 4
    found = compress.product(
        compress.truncate(weight, 2, moment=moment, heads=4, of=of)
    )
    side = 1
    if of == "rows":
        side = 0
    blocks = zip(weight.chunk(4, side), found.chunk(4, side), strict=True)
    for head, (block, trimmed) in enumerate(blocks):
        if of == "rows":
            at = slice(None)
        else:
            at = slice(head * size, (head + 1) * size)
        head_moment = moment[at, at]
        alone = compress.product(compress.truncate(block, 2, moment=head_moment))
        assert torch.linalg.matrix_rank(trimmed) == 2
        errors = [
            compress.layers.relative_error(block, item, head_moment)
            for item in (trimmed, alone)
        ]
        # errors are small beside 1, which they are shares of
        assert_close(*errors, depth=100 * IN, magnitude=1.0)


@pytest.mark.parametrize(("heads", "of"), [(1, "rows"), (4, "rows"), (4, "columns")])
@pytest.mark.parametrize("gain", [1.0, 0.25])
def test_the_layer_computes_with_the_product(
    weight: Tensor, heads: int, of: str, gain: float
) -> None:
    bias = torch.randn(OUT).double()
    x = torch.randn(2, 5, IN).double()
    layer = LowRankLinear(compress.truncate(weight, 2, heads=heads, of=of), bias, gain)
    matrix = compress.product(layer.factors)
    assert_close(layer(x), gain * linear(x, matrix, bias), depth=IN)
    assert_close(
        LowRankLinear(layer.factors, None, gain)(x), gain * linear(x, matrix), depth=IN
    )
    assert (layer.out_features, layer.in_features) == (OUT, IN)
    names = {name for name, _ in layer.named_parameters()}
    assert names == {"down", "up", "bias"}
    with layer.as_matrix(weight):
        assert_close(layer(x), gain * linear(x, weight, bias), depth=IN)
    assert_close(layer(x), gain * linear(x, matrix, bias), depth=IN)


def test_weight_is_a_read_only_matrix(weight: Tensor) -> None:
    """The weight reads as a matrix and cannot be written to."""
    layer = LowRankLinear(compress.truncate(weight.float(), 3))
    read = layer.weight
    assert isinstance(read, Tensor)
    assert (read.shape, read.dtype, read.ndim) == ((OUT, IN), torch.float32, 2)
    matrix = compress.product(layer.factors).detach()
    assert torch.equal(read.T.detach(), matrix.T)
    assert torch.equal(torch.ones(2, OUT) @ read, torch.ones(2, OUT) @ matrix)
    expect_error("parameters that the layer holds", read.zero_)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: compress.truncate(w, 0), "rank 0"),
        (lambda w: compress.truncate(w, OUT + 1), "expected 1 to 12"),
        (lambda w: compress.truncate(w / 0, 1), "finite matrix"),
        (lambda w: compress.truncate(w[0], 1), "finite matrix"),
        (lambda w: compress.truncate(w, 1, heads=5), "equal rows"),
        (lambda w: compress.truncate(w, 1, heads=4, of="sides"), "'sides'"),
        (lambda w: compress.truncate(w, 1, moment=torch.eye(3)), r"finite \(20, 20\)"),
        (
            lambda w: compress.truncate(w, 1, moment=torch.zeros(IN, IN)),
            "nothing but zeros",
        ),
        (
            lambda w: compress.truncate(w, 1, moment=torch.full((IN, IN), torch.nan)),
            "finite",
        ),
    ],
)
def test_what_has_no_factors_is_refused(
    weight: Tensor, call: object, message: str
) -> None:
    expect_error(message, call, weight)  # type: ignore[operator]


def test_error_is_mean_over_inputs(weight: Tensor) -> None:
    x = inputs()
    other = torch.randn(OUT, IN).double()
    expected = (x @ (weight - other).T).square().sum() / (x @ weight.T).square().sum()
    assert compress.layers.relative_error(
        weight, other, make_moment(x)
    ) == pytest.approx(float(expected))
