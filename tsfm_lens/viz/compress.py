"""Costs of compression: size against error, a curve for each method; forecasts before and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.panels import scene
from tsfm_lens.viz.room import shortened
from tsfm_lens.viz.select import array, draws, median_position, model_of, names
from tsfm_lens.viz.sheet import blank, sheet
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, GREY, INK, VERMILION, mixed

__all__ = ["compressed_forecasts", "size_and_error"]

_TITLE_WIDTH = 360  # pixels of a line over a panel
WORDS = {
    "svd": "plain truncation",
    "weighted": "weighted by what enters",
    "sensitive": "weighted by what enters and by gradients",
    "measured": "weighted, ranks by measured effect",
}


@draws("compression", needs=("parameters", "mase_rise", "mase_rise_low", "mase_rise_high"))
def size_and_error(ds: xr.Dataset) -> go.Figure:
    """Draw how much the error rises over what is left of a model, a curve for each method.

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
    canvas = blank(320, min_width=440)
    panel = next(iter(canvas))
    panel.level(0.0, colour=GREY, dash="dot")
    remaining = 100 * array(ds, "parameters", "method", "keep")
    rise, low, high = (100 * array(ds, f"mase_rise{end}", "method", "keep") for end in ("", "_low", "_high"))
    keeps, choice = names(ds, "keep"), str(ds.attrs.get("choice", ""))
    for index, method in enumerate(names(ds, "method")):
        order, colour = np.argsort(remaining[index]), CATEGORICAL[index % len(CATEGORICAL)]
        x, y, words = remaining[index][order], rise[index][order], WORDS.get(method, method)
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
            if choice == f"{method}, {float(keep):g} kept":
                ring = {"color": "rgba(0,0,0,0)", "line": {"color": INK, "width": 2}}
                panel.dots(remaining[index][[at]], rise[index][[at]], "chosen", "", size=15, marker=ring)
    panel.x("numbers that are left (% of the model's)")
    panel.y("rise of MASE (%)")
    count = int(ds.attrs.get("n_series", 0))
    return canvas.dress(
        f"Size and error of {model_of(ds)}, compressed",
        f"geometric mean over {count} series, 95 % intervals" if count >= 3 else "too few series for intervals",
        "ring: the choice" if choice else "no point is known to be harmless",
    )


@draws("compression_quality", needs=("quantile_forecast",))
def compressed_forecasts(
    ds: xr.Dataset, *, series: Sequence[str | int] | None = None, context_steps: int | None = None
) -> go.Figure:
    """Draw forecasts of a model and of a smaller one, a panel for each series.

    Args:
        ds: of kind "compression_quality".
        series: ids or places to draw, at most the first four unless given.
        context_steps: how much of the context is drawn; two horizons (at least 24 steps) unless given.

    Returns:
        Panels under each other. The light band goes from the lowest to the highest quantile of the whole model, the
        dashed lines are those of the other; solid lines are medians.

    Example:
        >>> fig = viz.compressed_forecasts(compress.quality(run, lens))
        >>> fig.layout.meta["title"]
        'Forecasts of chronos-nano before and after compression'
    """
    rows = list(range(min(ds.sizes["series"], 4))) if series is None else list(series)
    views = [scene(ds, each, context_steps, least=24) for each in rows]
    titles = [shortened(_errors_of(ds, view.place, view.id), _TITLE_WIDTH, 12, 2) for view in views]
    lines = max(title.count("\n") + 1 for title in titles)
    canvas = sheet(
        [150] * len(views), [1], titles=titles, row_gap=50 + 15 * lines, above=20 + 15 * lines, min_width=440
    )
    middle = median_position(ds["quantile"].values)
    levels = [float(level) for level in ds["quantile"].values]
    for panel, view in zip(canvas, views, strict=True):
        whole, other = array(ds, "quantile_forecast", "model", "quantile", "step", series=view.place)
        x, light = view.time.at(view.future), mixed(BLUE, 0.22)
        panel.band(x, whole[0], whole[-1], light, "whole model (interval)", legend=True)
        view.draw(panel)
        for end in (0, -1):
            word = f"quantile {levels[end]:.3g} of the compressed model"
            view.forecast(panel, other[end], "compressed model (interval)", VERMILION, 0.9, "dash", word)
        view.forecast(panel, whole[middle], "whole model (median)", BLUE, words="whole model")
        view.forecast(panel, other[middle], "compressed model (median)", VERMILION, words="compressed model")
        panel.x(view.time.title if view is views[-1] else "")
        panel.y(view.title)
    return canvas.dress(
        f"Forecasts of {model_of(ds)} before and after compression",
        f"{ds.sizes['step']} steps ahead from {views[0].remark}",
        f"interval: from the {levels[0]:.3g} to the {levels[-1]:.3g} quantile",
    )


def _errors_of(ds: xr.Dataset, place: int, name: str) -> str:
    if "mase" not in ds or not np.isfinite(ds["mase"].values[:, place]).all():
        return name
    before, after = ds["mase"].values[:, place]
    return f"{name}: MASE {before:.3g}, compressed {after:.3g}"
