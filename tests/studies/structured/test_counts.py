"""Costs by formula against counts of the operations that torch really does, order by order."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tsfm_lens.studies.structured import (
    bilinear_level_operations,
    bilinear_train_operations,
    cheapest_order,
    key_cache_entries,
    level_attention_operations,
    level_blocks,
    standard_operations,
)
from tsfm_lens.testing import assert_close
from tsfm_lens.testing.tolerance import last_digit


def counted(work: object) -> int:
    """Multiply-adds of what is done."""
    assert callable(work)
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops() // 2


def cut(x: Tensor, blocks: int) -> Tensor:
    return x.unflatten(1, (blocks, -1)).transpose(0, 1)


def by_order(x: Tensor, ranks: Sequence[int], order: str) -> Tensor:
    """Scores of x with drawn factors, by one order of contraction, with batched products alone."""
    torch.manual_seed(0)
    width = x.shape[1]
    levels = []
    for rank, count in zip(ranks, level_blocks(len(ranks)), strict=True):
        left, right = (torch.randn(count, width // count, rank, dtype=x.dtype) for _ in range(2))
        levels.append((count, left, right))
    if order == "a":
        matrix = sum(torch.block_diag(*torch.bmm(left, right.mT)) for _, left, right in levels)
        assert isinstance(matrix, Tensor)
        return x @ matrix @ x.T
    total = x.new_zeros(len(x), len(x))
    keys = torch.zeros_like(x)
    for count, left, right in levels:
        parts = cut(x, count)
        if order == "b":
            inner = torch.bmm(parts, torch.bmm(left, right.mT))
            total = total + inner.transpose(0, 1).flatten(1) @ x.T
        elif order == "c":
            q, k = ((parts @ side).transpose(0, 1).flatten(1) for side in (left, right))
            total = total + q @ k.T
        else:
            wide = torch.bmm(parts @ right, left.mT).transpose(0, 1).flatten(1)
            keys = keys + wide
            if order == "d":
                total = total + x @ wide.T
    return x @ keys.T if order == "e" else total


@pytest.mark.parametrize(("tokens", "width", "ranks"), [(12, 16, (3, 2, 1)), (40, 16, (4, 4)), (8, 32, (1, 2, 3, 4))])
def test_bilinear_levels_cost_what_the_formula_says(tokens: int, width: int, ranks: tuple[int, ...]) -> None:
    x = torch.randn(tokens, width, dtype=torch.float64)
    costs = bilinear_level_operations(tokens, width, ranks)
    plain = by_order(x, ranks, "a")
    blocks = level_blocks(len(ranks))
    # adding the blocks of finer levels into the coarsest: D² / p_l additions, half a multiply-add each
    additions = sum(Fraction(width**2, 2 * count) for count in blocks[1:])
    for order, cost in costs.items():
        assert_close(by_order(x, ranks, order), plain, depth=2000)
        extra = additions if order == "a" else 0
        assert counted(lambda order=order: by_order(x, ranks, order)) + extra == cost, order


@pytest.mark.parametrize(
    ("tokens", "width", "ranks", "best"),
    [
        (256, 512, (8,) * 8, "e"),
        (256, 512, (64,), "c"),
        (256, 256, (16, 8, 4, 4), "c"),
        (64, 32, (1, 2, 4, 8), "e"),
        (64, 16, (4, 4, 4), "a"),
        (2048, 8, (4, 4), "a"),
    ],
)
def test_the_cheapest_order_counts_least(tokens: int, width: int, ranks: tuple[int, ...], best: str) -> None:
    costs = bilinear_level_operations(tokens, width, ranks)
    x = torch.randn(tokens, width)
    measured = {order: counted(lambda order=order: by_order(x, ranks, order)) for order in costs}
    assert cheapest_order(costs) == cheapest_order(measured) == best
    nominal = sum(rank * count for rank, count in zip(ranks, level_blocks(len(ranks)), strict=True))
    assert (costs["c"] <= costs["e"]) == (nominal <= width)


def test_standard_scores_and_one_level_cost_the_same() -> None:
    x, q, k = torch.randn(24, 16), torch.randn(16, 4), torch.randn(16, 4)
    assert counted(lambda: (x @ q) @ (x @ k).T) == standard_operations(24, 16, 4)
    assert standard_operations(24, 16, 4) == level_attention_operations(24, (4,), 16)
    assert bilinear_level_operations(24, 16, (4,))["c"] == standard_operations(24, 16, 4)


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("s", [1, 2])
def test_trains_of_balanced_factors_cost_the_derived_table(width: int, s: int) -> None:
    tokens, root = 20, int(width**0.5)
    assert bilinear_train_operations(tokens, width, s) == {
        "both": s * tokens**2 * width + 2 * s * tokens * width * root,
        "keys": tokens**2 * width + 2 * s * tokens * width * root,
    }


@pytest.mark.parametrize(
    ("ranks", "saving"),
    [
        ((8,) * 8, 4.0157),
        ((32, 8, 6, 4, 4, 4, 4, 2), 1.664),
        ((32, 10, 8, 8, 4, 2), 1.588),
        ((48, 16), 1.143),
        ((40, 16, 4, 4), 1.293),
    ],
)
def test_key_caches_are_smaller_by_the_papers_factors(ranks: tuple[int, ...], saving: float) -> None:
    digits = 4 if saving > 4 else 3
    assert abs(1024 * 64 / key_cache_entries(1024, ranks) - saving) <= last_digit(digits)
