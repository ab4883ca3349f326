"""Size against error of compressed models, and their forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.panels import scene
from tsfm_lens.viz.select import array, median_position, model_of, names
from tsfm_lens.viz.sheet import blank, sheet, shortened
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import (
    BLUE,
    CATEGORICAL,
    GREY,
    INK,
    VERMILION,
    mixed,
    true_minus,
)

__all__ = ["compressed_forecasts", "size_and_error"]


_TITLE_WIDTH = 360  # pixels of a line over a panel
WORDS = {
    "svd": "plain truncation",
    "weighted": "weighted by inputs",
    "sensitive": "weighted by inputs and gradients",
    "measured": "weighted by both, ranks by measured effect",
}
_PANELS = 4
_WHOLE = 99.5  # percent: a model of which more is kept is not compressed


def read_curve(ds: xr.Dataset) -> list[str]:
    """State which point to take and why, and which series say so."""
    return [str(ds.attrs[key]) for key in ("why", "sources") if key in ds.attrs]


def read_quality(ds: xr.Dataset) -> list[str]:
    """State by how much the errors rise, and for how many series."""
    if not np.isfinite(ds["mase_rise"].values).any():
        return [
            "The errors are unknown: there is no truth, or a series has no seasonal "
            "error."
        ]
    rise, low, high = (
        100 * ds[f"mase_rise_{end}"] for end in ("estimate", "low", "high")
    )
    return summarize(
        ds,
        "{sources}",
        "MASE changes by {rise:signed %}; it falls for {falling:count} series.",
        "The 95 % interval over series goes from {low:signed %} to {high:signed %}.",
        "The two models share {overlap:percent} of their ten likeliest tokens "
        "(Jaccard).",
        rise=rise,
        low=low,
        high=high,
        falling=(ds["mase_rise"] < 0).where(ds["mase_rise"].notnull()),
    )


@figure(
    "compression",
    ("Rise of the error over the parameters kept, by method of compression."),
    table=(
        "parameters",
        "rank_ratio",
        "factor_ratio",
        "mase_rise",
        "mase_rise_low",
        "mase_rise_high",
        "harm_p",
        "wql_rise",
    ),
    sentences=read_curve,
)
def size_and_error(ds: xr.Dataset) -> go.Figure:
    """Draw how much the error rises over what is left of a model, a curve for each method.

    Example:
        >>> fig = viz.size_and_error(compress.pareto(run, run, [0.5], methods=["svd"]))
        >>> fig.layout.meta["title"]
        'Rise of MASE of chronos-nano by parameters kept'
    """
    canvas = blank(320, min_width=420)
    panel = next(iter(canvas))
    panel.level(0.0, colour=GREY, dash="dot")
    remaining = 100 * array(ds, "parameters", "method", "keep")
    rise, low, high = (
        100 * array(ds, f"mase_rise{end}", "method", "keep")
        for end in ("", "_low", "_high")
    )
    keeps, choice = names(ds, "keep"), str(ds.attrs.get("choice", ""))
    title = f"Rise of MASE of {model_of(ds)} by parameters kept"
    for index, method in enumerate(names(ds, "method")):
        order, colour = (
            np.argsort(remaining[index]),
            CATEGORICAL[index % len(CATEGORICAL)],
        )
        x, y, words = (
            remaining[index][order],
            rise[index][order],
            WORDS.get(method, method),
        )
        ends = [low[index][order], high[index][order]]
        panel.line(
            x,
            y,
            words,
            f"{words}, %{{customdata[0]}} kept<br>%{{x:.3g}} % of the parameters<br>MASE %{{y:+.2f}} % "
            "(%{customdata[1]:+.2f} to %{customdata[2]:+.2f})",
            colour=colour,
            dots=7,
            customdata=[
                [keeps[at], *pair]
                for at, pair in zip(order, zip(*ends, strict=True), strict=True)
            ],
            error_y={"type": "data", "color": colour, "thickness": 1, "width": 3}
            | {
                "array": np.maximum(ends[1] - y, 0),
                "arrayminus": np.maximum(y - ends[0], 0),
            },
        )
        for at, keep in enumerate(keeps):
            if choice == f"{method}, {float(keep):g} kept":
                ring = {"color": "rgba(0,0,0,0)", "line": {"color": INK, "width": 2}}
                panel.dots(
                    remaining[index][[at]],
                    rise[index][[at]],
                    "chosen",
                    "",
                    size=15,
                    marker=ring,
                )
                if remaining[index][at] < _WHOLE:
                    size, change = (
                        f"{remaining[index][at]:.3g} %",
                        true_minus(f"{rise[index][at]:+.2g} %"),
                    )
                    title = f"MASE changes by {change} with {size} of the parameters of {model_of(ds)}"
    panel.x("parameters kept (% of the model's)")
    panel.y("rise of MASE (%)")
    count = int(ds.attrs.get("n_series", 0))
    over = (
        f"geometric mean over {count} series, 95 % intervals"
        if count >= 3
        else "too few series for intervals"
    )
    remark = "ring: the choice" if choice else "no point is shown to be harmless"
    return canvas.dress(title, over, remark)


@figure("compression_quality", "Forecasts before and after compression.")
def compressed_forecasts(
    ds: xr.Dataset,
    *,
    series: Sequence[str | int] | None = None,
    context_steps: int | None = None,
) -> go.Figure:
    """Draw forecasts of a model and of a smaller one, a panel for each series.

    Example:
        >>> fig = viz.compressed_forecasts(compress.quality(run, lens))
        >>> fig.layout.meta["title"]
        'Forecasts of chronos-nano before and after compression'
    """
    rows = (
        list(range(min(ds.sizes["series"], _PANELS)))
        if series is None
        else list(series)
    )
    views = [scene(ds, each, context_steps, least=24) for each in rows]
    titles = []
    for view in views:
        mase = ds["mase"].values[:, view.place] if "mase" in ds else np.array([np.nan])
        errors = (
            f": MASE {mase[0]:.3g}, compressed {mase[-1]:.3g}"
            if np.isfinite(mase).all()
            else ""
        )
        titles.append(shortened(f"{view.id}{errors}", _TITLE_WIDTH, 12, 2))
    room = 15 * max(title.count("\n") + 1 for title in titles)
    canvas = sheet(
        [150] * len(views),
        [1],
        titles=titles,
        row_gap=50 + room,
        above=20 + room,
        min_width=420,
    )
    middle = median_position(ds["quantile"].values)
    levels = [float(level) for level in ds["quantile"].values]
    for panel, view in zip(canvas, views, strict=True):
        whole, other = array(
            ds, "quantile_forecast", "model", "quantile", "step", series=view.place
        )
        x, light = view.time.at(view.future), mixed(BLUE, 0.22)
        panel.band(x, whole[0], whole[-1], light, "whole model (interval)", legend=True)
        view.draw(panel)
        for end in (0, -1):
            word = f"quantile {levels[end]:.3g} of the compressed model"
            view.forecast(
                panel,
                other[end],
                "compressed model (interval)",
                VERMILION,
                0.9,
                "dash",
                word,
            )
        view.forecast(
            panel, whole[middle], "whole model (median)", BLUE, words="whole model"
        )
        view.forecast(
            panel,
            other[middle],
            "compressed model (median)",
            VERMILION,
            words="compressed model",
        )
        panel.x(view.time.title if view is views[-1] else "")
        panel.y(view.title)
    ahead = f"{ds.sizes['step']} steps ahead from {views[0].remark}"
    interval = f"interval: from the {levels[0]:.3g} to the {levels[-1]:.3g} quantile"
    return canvas.dress(
        f"Forecasts of {model_of(ds)} before and after compression", ahead, interval
    )


@panels("compression_quality")
def _forecasts(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for first in range(0, ds.sizes["series"], _PANELS):
        part = ds.isel(series=slice(first, first + _PANELS))
        yield FigurePanel(
            compressed_forecasts(part),
            frame(part, "mase", "wql"),
            read_quality(ds) if not first else [],
        )
