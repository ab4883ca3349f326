"""Dates on the clock of the series that they are of.

Series of hours stand on the grid of UTC, without a gap in spring; their dates are shown
on the clock that they came with.
"""

from __future__ import annotations

import numpy as np
import pandas as pd


def on_clock(dates: np.ndarray, clock: str) -> pd.DatetimeIndex:
    """Return dates in UTC as those of a zone, with offsets, flattened.

    Dates of the clock "" have no zone, and stay as they are.
    """
    index = pd.DatetimeIndex(np.ravel(dates))
    if clock:
        return index.tz_localize("UTC").tz_convert(clock)
    return index
