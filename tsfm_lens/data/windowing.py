"""Windows at the end of a series."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from tsfm_lens.data.evaluation import Window
from tsfm_lens.errors import InputError


def rolling_windows(
    item: str,
    values: np.ndarray,
    horizon: int,
    windows: int = 1,
    stride: int | None = None,
    start: pd.Timestamp | None = None,
) -> Iterator[Window]:
    """Cut the last windows of one item; each context is the whole history before its label.

    Args:
        item: its id.
        values: (variate, time); the windows are views of it.
        horizon: steps of each label.
        windows: how many.
        stride: steps from one label to the next; the horizon if None, so that labels do not overlap.
        start: timestamp of the first step.

    Returns:
        The windows in time order; the last label ends where the series ends.

    Raises:
        InputError: the first window would have no context, or a number is not positive.

    Source:
        Rolling evaluation of GIFT-Eval (Aksu et al. 2024); ``gluonts.dataset.split``.
    """
    stride = horizon if stride is None else stride
    for name, number in (("horizon", horizon), ("windows", windows), ("stride", stride)):
        if number < 1:
            raise InputError(f"{name} is {number}, expected 1 or more")
    length = values.shape[-1]
    least = steps_needed(horizon, windows, stride)
    if length < least:
        raise InputError(
            f"series {item!r} has {length} steps: {windows} windows of horizon {horizon}, {stride} steps apart, need "
            f"at least {least}"
        )
    for index in range(windows):
        cut = length - horizon - stride * (windows - 1 - index)
        yield Window(item, index, values[:, :cut], values[:, cut : cut + horizon], start)


def steps_needed(horizon: int, windows: int, stride: int) -> int:
    """Return the length of the shortest series that these windows fit, with one step of context for the first."""
    return horizon + stride * (windows - 1) + 1
