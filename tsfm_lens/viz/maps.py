"""Colour scales of maps: :func:`colour_scale` makes the colour axis of any map."""

from __future__ import annotations

from typing import Any

import numpy as np

from tsfm_lens.viz.theme import DIVERGING, SEQUENTIAL, plain


def colour_scale(
    title: str,
    values: np.ndarray | None = None,
    *,
    low: float | None = None,
    high: float | None = None,
    diverging: bool = False,
    root: bool = False,
    **bar: Any,
) -> dict[str, Any]:
    """Return a colour axis from ``low`` to ``high``.

    It is over ``values`` where these are not given. With ``root``, colours go by the
    square root of the distance from white, so that small values are seen beside large
    ones.
    """
    if values is None:
        finite = np.empty(0)
    else:
        finite = values[np.isfinite(values)]
    sizes = finite
    if diverging:
        sizes = np.abs(finite)
    if high is not None:
        top = high
    elif len(sizes):
        top = float(sizes.max())
    else:
        top = 1.0
    # both sides reach equally far, so that white is 0
    if diverging:
        top = top or 1.0
        low = -top
    elif low is None:
        low = 0.0
        if len(finite):
            low = float(finite.min())
    stops = SEQUENTIAL
    if diverging:
        stops = DIVERGING
    if root:
        # Plotly has no colours by a root, so the stops move instead: a stop at a share
        # d of the way from white goes to d². White is in the middle or at the start.
        white = 0.5 * diverging
        stops = tuple(
            (white + (at - white) * abs(at - white) / (1 - white), colour)
            for at, colour in stops
        )
    return {
        "colorscale": stops,
        "cmin": low,
        # plotly takes no empty range
        "cmax": top if top > low else low + 1,
        **({"cmid": 0.0} if diverging else {}),
        "colorbar": {
            "title": {"text": plain(title).replace("\n", "<br>"), "side": "right"},
            "nticks": 6,
            **bar,
        },
    }
