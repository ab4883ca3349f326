"""Tolerances: wide enough for another order of summation, too narrow for a wrong
number.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tsfm_lens.testing import assert_close, rounding


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64]
)
def test_differences_above_rounding_are_refused(dtype):
    """A difference above the roundings is refused."""
    exact = torch.ones(4, dtype=dtype)
    off = exact.clone()
    off[2] += 20 * torch.finfo(dtype).eps
    assert_close(off, exact, depth=40)
    with pytest.raises(AssertionError, match="allowed"):
        assert_close(off, exact, depth=10)


NAN = float("nan")
INF = float("inf")
ALIKE = [
    ([1.0, NAN], [1.0, NAN]),
    ([1.0, -INF], [1.0, -INF]),
    ([2.0, 2.0], 2),
    (np.float64(1 + 1e-7), torch.ones(())),
]
APART = [
    ([1.0, NAN], [NAN, 1.0], "mismatch"),
    ([1.0, -INF], [1.0, INF], "mismatch"),
    ([2.0, 2.1], 2, "allowed"),
    ([1.0], [[1.0]], "shape"),
    (np.float64(1 + 1e-7), np.float64(1.0), "allowed"),
]


def test_closeness_checks_nan_shape_and_precision():
    """Missing values, shapes and the less precise type decide what is close."""
    for actual, expected in ALIKE:
        assert_close(actual, expected, depth=1)
    for actual, expected, messages in APART:
        with pytest.raises(AssertionError, match=messages):
            assert_close(actual, expected, depth=1)
    with pytest.raises(ValueError, match="magnitude inf"):
        rounding(torch.float32, np.inf, depth=1)
