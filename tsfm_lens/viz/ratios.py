"""Logarithmic axes of errors over an error, with ticks in percent.

:func:`ratio_axis` makes the settings of such an axis, :func:`ratio_bounds` its ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tsfm_lens.viz.grid import LOG_AXIS
from tsfm_lens.viz.theme import percent

# errors beyond this factor are off the axis, or none below a few percent could be read
_MOST = 5.0
# changes that have a tick where there is room, the first ones before the others
_TICKS = (0, 1, -0.5, 4, -0.8, 0.5, -0.2, 2, 0.2, -0.1, 0.1, -0.05, 0.05, -0.02, 0.02)
_ROOM = 0.11  # least distance of ticks, as a share of the axis


def ratio_bounds(ratios: np.ndarray) -> tuple[float, float]:
    """Return the ends of an axis of ratios of errors, a factor each way at most."""
    known = ratios[np.isfinite(ratios)]
    low = max(float(known.min(initial=1.0)), 1 / _MOST)
    high = min(float(known.max(initial=1.0)), _MOST)
    # wider than the data, and with room where errors hardly differ
    return min(low, 0.98) / 1.03, max(high, 1.02) * 1.03


def ratio_axis(bounds: tuple[float, float]) -> dict[str, Any]:
    """Return the settings of a logarithmic axis of ratios, with ticks in percent."""
    low, high = bounds
    room = _ROOM * np.log(high / low)
    ticks: list[float] = []
    for tick in _TICKS:
        distances = [abs(np.log((1 + tick) / (1 + other))) for other in ticks]
        if low <= 1 + tick <= high and min(distances, default=room) >= room:
            ticks.append(tick)
    return {
        **LOG_AXIS,
        "range": np.log10(bounds).tolist(),
        "tickvals": [1 + tick for tick in ticks],
        "ticktext": [signed_percent(tick).removesuffix(" %") for tick in ticks],
        "tickangle": 0,
    }


def signed_percent(share: float) -> str:
    """Write a relative change in percent, three digits, with its sign; 0 has none."""
    if share > 0:
        return f"+{percent(share)}"
    return percent(share)
