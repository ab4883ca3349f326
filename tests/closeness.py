"""Equality of two computations in single precision, which most numbers of tiny models
are compared by.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tsfm_lens.testing import assert_close


def close_in_float32(
    actual: Any,
    expected: Any,
    depth: int = 100,
    magnitude: float | None = None,
    what: str = "",
) -> None:
    """Hold that numbers differ by no more than so many roundings in float32; the
    default is that of one block.
    """
    assert_close(
        actual, expected, depth=depth, magnitude=magnitude, dtype=np.float32, what=what
    )
