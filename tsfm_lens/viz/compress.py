"""What compression costs: size against error, a curve for each method."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.select import array, draws, model_of, names
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.theme import CATEGORICAL, GREY, INK

__all__ = ["size_and_error"]

WORDS = {
    "svd": "plain truncation",
    "weighted": "weighted by what enters",
    "sensitive": "weighted by what enters and by gradients",
    "measured": "weighted, ranks by measured effect",
}


@draws("compression", needs=("parameters", "mase_rise", "mase_rise_low", "mase_rise_high"))
def size_and_error(ds: xr.Dataset) -> go.Figure:
    """How much the error rises over what is left of a model, a curve for each method.

    Args:
        ds: of kind "compression".

    Returns:
        The rise of MASE, a geometric mean over series with its 95 % interval, over the share of numbers that is left;
        the whole model is at 0. A ring is around the point that was chosen, where one was.

    Example:
        >>> fig = viz.size_and_error(compress.pareto(run, run, [0.5], methods=["svd"]))
        >>> fig.layout.meta["title"]
        'Size and error of chronos-nano, compressed'
    """
    made = blank(320, min_width=440)
    panel = next(iter(made))
    panel.level(0.0, colour=GREY, dash="dot")
    left = 100 * array(ds, "parameters", "method", "keep")
    rise, low, high = (100 * array(ds, f"mase_rise{end}", "method", "keep") for end in ("", "_low", "_high"))
    keeps, chosen = names(ds, "keep"), str(ds.attrs.get("choice", ""))
    for index, method in enumerate(names(ds, "method")):
        order, colour = np.argsort(left[index]), CATEGORICAL[index % len(CATEGORICAL)]
        x, y, words = left[index][order], rise[index][order], WORDS.get(method, method)
        ends = [low[index][order], high[index][order]]
        panel.line(
            x,
            y,
            words,
            f"{words}, %{{customdata[0]}} kept<br>%{{x:.3g}} % of the numbers<br>MASE %{{y:+.2f}} % "
            "(%{customdata[1]:+.2f} to %{customdata[2]:+.2f})",
            colour=colour,
            dots=7,
            customdata=[[keeps[at], *pair] for at, pair in zip(order, zip(*ends, strict=True), strict=True)],
            error_y={
                "type": "data",
                "array": np.maximum(ends[1] - y, 0),
                "arrayminus": np.maximum(y - ends[0], 0),
                "color": colour,
                "thickness": 1,
                "width": 3,
            },
        )
        for at, keep in enumerate(keeps):
            if chosen == f"{method}, {float(keep):g} kept":
                ring = {"color": "rgba(0,0,0,0)", "line": {"color": INK, "width": 2}}
                panel.dots(left[index][[at]], rise[index][[at]], "chosen", "", size=15, marker=ring)
    panel.x("numbers that are left (% of the model's)")
    panel.y("rise of MASE (%)")
    count = int(ds.attrs.get("n_series", 0))
    return made.dress(
        f"Size and error of {model_of(ds)}, compressed",
        f"geometric mean over {count} series, 95 % intervals" if count >= 3 else "too few series for intervals",
        "ring: the choice" if chosen else "no point is known to be harmless",
    )
