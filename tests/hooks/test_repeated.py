"""Rows held once against the copies that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tsfm_lens.hooks.repeated import Repeated
from tsfm_lens.testing import assert_close

OUTER = 3
ROWS = 2
INNER = 2
WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def copies(single: Tensor) -> Tensor:
    """Row by row, as the definition says."""
    return torch.stack(
        [
            single[r]
            for _ in range(OUTER)
            for r in range(len(single))
            for _ in range(INNER)
        ]
    )


KEPT: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: F.linear(x, WEIGHT),
    "view": lambda x: x.view(len(x), 5, -1, 4),
    "transpose": lambda x: x.transpose(1, 2),
    "contiguous": lambda x: x.transpose(1, 2).contiguous(),
    "cat": lambda x: torch.cat([torch.tensor([]), x, x], dim=-2),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=0),
}
COPIED: dict[str, Callable[[Any], Any]] = {
    "rows folded away": lambda x: x.view(-1, 8),
    "rows moved": lambda x: x.transpose(0, 1),
    "cat of rows": lambda x: torch.cat([x, x]),
    "cat with others": lambda x: torch.cat(
        [x, copies(drawn(ROWS, 1, 8, seed=4))], dim=1
    ),
    "sum over rows": lambda x: x.sum(0),
    "plus rows": lambda x: x + drawn(len(x), 5, 8, seed=2),
    "numpy": lambda x: torch.from_numpy(x.numpy()),
}


@pytest.mark.parametrize("name", [*KEPT, *COPIED])
def test_repeated_rows_behave_like_copies(
    name: str,
) -> None:
    """What is made of rows held once is what is made of their copies."""
    single = drawn(ROWS, 5, 8)
    function = {**KEPT, **COPIED}[name]
    found = function(Repeated(single, OUTER, INNER))
    expected = function(copies(single))
    assert isinstance(found, Repeated) == (name in KEPT)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert_close(found + 0, expected, depth=10)


WRITES: dict[str, Callable[[Any], Any]] = {
    "method": lambda x: x.mul_(2),
    "item": lambda x: x.__setitem__((0, 0), 7.0),
    "out": lambda x: torch.add(torch.full((len(x), 5, 8), 3.0), 1, out=x),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("outer", [1, OUTER])
def test_writing_into_repeats_keeps_the_original(name: str, outer: int) -> None:
    """What is written stays where it is written and leaves the rows held once alone."""
    single = drawn(ROWS, 5, 8)
    before = single.clone()
    found = Repeated(single, outer, 1 if outer == 1 else INNER)
    expected = before.clone()
    if outer > 1:
        expected = copies(before)
    WRITES[name](found)
    WRITES[name](expected)
    assert torch.equal(single, before)
    assert torch.equal(found + 0, expected)
    assert_close(F.linear(found, WEIGHT), F.linear(expected, WEIGHT), depth=10)
