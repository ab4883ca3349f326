"""Bounds on the difference of two floating-point computations of one number.

Read :func:`rounding`: a bound follows from the arithmetic alone, the precision, the
largest value and the number of roundings, and never from what a test happened to give.
:func:`assert_close` applies it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["assert_close", "last_digit", "rounding"]


def rounding(
    dtype: torch.dtype | np.dtype | type | str, magnitude: float, *, depth: int
) -> float:
    """Bound the difference of two orders of summation.

    The bound is ``depth`` roundings of the largest intermediate value.

    Args:
        dtype: the precision that the numbers were computed in, of torch or numpy.
        magnitude: the largest absolute value that enters the computation, not only its
            result.
        depth: roundings that an error passes through: the length of the longest sum, or
            about 100 a transformer block.

    Returns:
        An absolute tolerance (Higham 2002, section 3.1, with the unit in the last place
        for u).

    Raises:
        ValueError: ``magnitude`` is not finite or ``depth`` is below 1.

    Example:
        >>> testing.rounding("float32", 1.0, depth=100) < 2e-5
        True
    """
    if not np.isfinite(magnitude) or depth < 1:
        raise ValueError(
            f"no bound from magnitude {magnitude} and depth {depth}: give a finite one"
            " and at least 1"
        )
    if isinstance(dtype, torch.dtype):
        epsilon = float(torch.finfo(dtype).eps)
    else:
        epsilon = float(np.finfo(np.dtype(dtype)).eps)
    return depth * epsilon * abs(float(magnitude))


def last_digit(decimals: int) -> float:
    """Bound the difference of a number and its print to so many decimals.

    The bound is 0.6 of the last digit; negative decimals are tens.

    Args:
        decimals: digits after the point that are printed.

    Returns:
        The bound, in the unit of the number.

    Example:
        >>> testing.last_digit(2)
        0.006
    """
    # half a digit is rounding, the rest is for numbers that lie at the very half
    return 0.6 * 10.0**-decimals


def assert_close(
    actual: Any,
    expected: Any,
    *,
    depth: int,
    magnitude: float | None = None,
    dtype: Any = None,
    what: str = "",
) -> None:
    """Assert that two arrays are one computation done twice.

    Missing values and infinities must be in the same places.

    Args:
        actual: array, tensor or number.
        expected: the same in another way, of the same shape; one number may stand for a
            whole array of it.
        depth: roundings that an error passes through: the length of the longest sum, or
            about 100 a transformer block.
        magnitude: the largest value on the way; the largest of the two arrays if None.
        dtype: what the numbers were computed in; the less precise of the two arrays if
            None.
        what: the name in the message.

    Raises:
        AssertionError: shapes, missing values or infinities differ, or a difference
            exceeds the bound.

    Example:
        >>> total = np.float32(0.1) + np.float32(0.2)
        >>> testing.assert_close(total, np.float32(0.3), depth=1)
    """
    precision = dtype or _less_precise(actual, expected)
    values = _values(actual)
    targets = _values(expected)
    assert targets.ndim == 0 or values.shape == targets.shape, (
        f"{what}: shape {values.shape}, expected {targets.shape}"
    )
    # missing values and infinities are compared by their places, and are no magnitude
    finite = np.concatenate(
        [array[np.isfinite(array)].ravel() for array in (values, targets)]
    )
    largest = float(np.abs(finite).max(initial=0.0)) if magnitude is None else magnitude
    bound = rounding(precision, largest, depth=depth)
    note = (
        f"{what}: allowed {bound:.3g} ({depth} roundings of {largest:.3g} in"
        f" {precision})"
    )
    # absolute alone: an error of summation goes by the largest term, not by the result
    np.testing.assert_allclose(values, targets, rtol=0, atol=bound, err_msg=note)


def _less_precise(*arrays: Any) -> torch.dtype:
    """Return the coarsest type of several arrays."""
    dtypes = [
        array.dtype if isinstance(array, torch.Tensor) else np.asarray(array).dtype
        for array in arrays
    ]
    # by name, since types of torch and numpy do not compare, and numpy has no bfloat16
    names = {str(dtype).removeprefix("torch.") for dtype in dtypes}
    return next(
        (
            getattr(torch, name)
            for name in ("bfloat16", "float16", "float32")
            if name in names
        ),
        torch.float64,
    )


def _values(array: Any) -> np.ndarray:
    """Return an array or tensor as float64 of numpy."""
    if isinstance(array, torch.Tensor):
        return array.detach().to("cpu", torch.float64).numpy()
    return np.asarray(array, dtype=np.float64)
