"""Tolerances: wide enough for another order of summation, too narrow for a wrong number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsfm_lens.testing import assert_close, last_digit, rounding


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(2, 2000), level=st.floats(-6, 6))
def test_another_order_of_summation_is_within_the_bound(seed, length, level):
    values = (np.random.default_rng(seed).standard_normal(length) * 10.0**level).astype(np.float32)
    forward, backward = np.cumsum(values)[-1], np.cumsum(values[::-1])[-1]
    assert_close(forward, backward, depth=length, magnitude=float(np.abs(values).sum()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_difference_above_the_roundings_is_refused(dtype):
    exact = torch.ones(4, dtype=dtype)
    off = exact.clone()
    off[2] += 20 * torch.finfo(dtype).eps
    assert_close(off, exact, depth=40)
    with pytest.raises(AssertionError, match="allowed"):
        assert_close(off, exact, depth=10)


NAN, INF = float("nan"), float("inf")
ALIKE = [([1.0, NAN], [1.0, NAN]), ([1.0, -INF], [1.0, -INF]), ([2.0, 2.0], 2), (np.float64(1 + 1e-7), torch.ones(()))]
APART = [
    ([1.0, NAN], [NAN, 1.0], "mismatch"),
    ([1.0, -INF], [1.0, INF], "mismatch"),
    ([2.0, 2.1], 2, "allowed"),
    ([1.0], [[1.0]], "shape"),
    (np.float64(1 + 1e-7), np.float64(1.0), "allowed"),
]


def test_missing_values_shapes_and_the_less_precise_type_decide():
    for actual, expected in ALIKE:
        assert_close(actual, expected, depth=1)
    for actual, expected, said in APART:
        with pytest.raises(AssertionError, match=said):
            assert_close(actual, expected, depth=1)
    with pytest.raises(ValueError, match="magnitude inf"):
        rounding(torch.float32, np.inf, depth=1)


@given(value=st.floats(-1e6, 1e6), decimals=st.integers(0, 6))
def test_a_print_is_within_its_last_digit(value, decimals):
    printed = float(f"{value:.{decimals}f}")
    assert abs(printed - value) <= last_digit(decimals)
    assert last_digit(decimals) < 10.0**-decimals
