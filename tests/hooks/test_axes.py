"""Names of the axes that a reducer leaves, where lengths alone do not tell them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tsfm_lens.hooks import by_row
from tsfm_lens.hooks.recorder import axes_after

AXES = ("batch", "pos", "head", "d")


@pytest.mark.parametrize(
    ("reducer", "left"),
    [
        (lambda x: x.sum(1), ("batch", "head", "d")),
        (lambda x: x.sum(2), ("batch", "pos", "d")),
        (lambda x: x.sum((1, 3)), ("batch", "head")),
        (lambda x: torch.einsum("bphd,bpgd->bhg", x, x), ("axis_0", "axis_1", "axis_2")),
        # what asks for a number cannot be told without numbers, and lengths leave all open
        (lambda x: x.sum(1) * float(x.max()), ("axis_0", "axis_1", "axis_2")),
    ],
)
def test_axes_of_one_length_are_told_by_what_grows_with_them(
    reducer: Callable[[Tensor], Tensor], left: tuple[str, ...]
) -> None:
    value = torch.ones(2, 2, 2, 2)
    marked = by_row(reducer)
    assert axes_after(AXES, value, marked(value), marked) == left
