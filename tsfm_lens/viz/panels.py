"""What several figures draw alike: a series with its truth, quantile bands, ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.theme import BLUE, GREY, INK, mixed, number, plain
from tsfm_lens.viz.timeline import Timeline, timeline


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One series around the start of its forecast, cut to what is drawn.

    Attributes:
        time: the timeline of context and forecast.
        past: steps of the drawn context, (time,); ``context`` its values in data units.
        future: forecast steps, (step,); ``truth`` their true values, NaN where unknown.
        hidden: how many older context values are not drawn.
    """

    time: Timeline
    past: np.ndarray
    context: np.ndarray
    future: np.ndarray
    truth: np.ndarray
    hidden: int

    @property
    def remark(self) -> str:
        """What a subtitle says about the context."""
        n = len(self.past)
        return f"last {n} of {n + self.hidden} context steps" if self.hidden else f"{n} context steps"


def scene(ds: xr.Dataset, series: int, context_steps: int | None) -> Scene:
    """Cut one series of a result to its last ``context_steps`` (None: five horizons, at least 60)."""
    future = np.array([int(v) for v in names(ds, "step")], dtype=int)
    past = np.array([int(v) for v in names(ds, "time")], dtype=int)
    context = array(ds, "context", "time", series=series) if "context" in ds else np.full(len(past), np.nan)
    seen = np.flatnonzero(np.isfinite(context))
    first = int(seen[0]) if len(seen) else len(past)
    limit = max(5 * len(future), 60) if context_steps is None else context_steps
    start = max(first, len(past) - limit)
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(len(future), np.nan)
    return Scene(
        time=timeline(ds, series),
        past=past[start:],
        context=context[start:],
        future=future,
        truth=truth,
        hidden=start - first,
    )


def value_hover(words: str, time: Timeline, unit: str) -> str:
    """The hover box of a line of values: what it is, when, how much."""
    return f"{plain(words)}<br>{time.hover}<br>%{{y:.4g}} {plain(unit)}<extra></extra>"


def draw_scene(fig: go.Figure, view: Scene, *, unit: str, legend: bool = True, **at: Any) -> None:
    """Add context, truth (where known) and a line at the start of the forecast to one panel."""
    fig.add_trace(
        go.Scatter(
            x=view.time.at(view.past),
            y=view.context,
            mode="lines",
            name="context",
            legendgroup="context",
            showlegend=legend,
            line={"color": INK, "width": 1.3},
            hovertemplate=value_hover("observed, given to the model", view.time, unit),
        ),
        **at,
    )
    if np.isfinite(view.truth).any():
        fig.add_trace(
            go.Scatter(
                x=view.time.at(view.future),
                y=view.truth,
                mode="lines",
                name="truth",
                legendgroup="truth",
                showlegend=legend,
                line={"color": INK, "width": 1.3, "dash": "2px,2px"},
                hovertemplate=value_hover("what came, unknown to the model", view.time, unit),
            ),
            **at,
        )
    mark_start(fig, view.time, **at)


def mark_start(fig: go.Figure, time: Timeline, **at: Any) -> None:
    """A thin vertical line between the last context step and the first forecast step."""
    where = time.at(-0.5)
    x = str(where) if time.stamps is not None else float(where)
    fig.add_shape(
        type="line",
        x0=x,
        x1=x,
        y0=0,
        y1=1,
        yref="y domain",
        line={"color": GREY, "width": 1, "dash": "dot"},
        **at,
    )


def draw_bands(
    fig: go.Figure,
    view: Scene,
    quantiles: np.ndarray,
    values: np.ndarray,
    *,
    unit: str,
    legend: bool = True,
    bands: bool = True,
    statistic: str = "median",
    **at: Any,
) -> None:
    """Add the central intervals, widest first, and the median of a quantile forecast to one panel.

    Args:
        quantiles: levels, (quantile,). Two that sum to 1 make a band, left out unless ``bands``; 0.5 is the
            median, others are thin lines.
        values: the forecast in data units, (quantile, step).
        statistic: what the line at 0.5 is; see ``select.statistic_of``.
    """
    order = np.argsort(quantiles)
    quantiles, values = np.asarray(quantiles, dtype=float)[order], values[order]
    pairs = _pairs(quantiles)
    x = view.time.at(view.future)
    for rank, (low, high) in enumerate(pairs if bands else []):
        colour = mixed(BLUE, 0.16 + 0.3 * rank / max(len(pairs) - 1, 1))
        share = f"{100 * (quantiles[high] - quantiles[low]):.3g} %"
        style = {"width": 0, "color": colour}
        for edge, name in ((low, f"{share} from"), (high, share)):
            fig.add_trace(
                go.Scatter(
                    x=x,
                    y=values[edge],
                    mode="lines",
                    name=name,
                    hoverinfo="skip",
                    line=style,
                    legendgroup=share,
                    fill="tonexty" if edge == high else None,
                    fillcolor=colour,
                    showlegend=legend and edge == high,
                ),
                **at,
            )
    single = set(range(len(quantiles))) - {i for pair in pairs for i in pair}
    for i in sorted(single):
        middle = abs(quantiles[i] - 0.5) < 1e-6
        word = statistic if middle else f"quantile {quantiles[i]:.3g}"
        fig.add_trace(
            go.Scatter(
                x=x,
                y=values[i],
                mode="lines",
                name=f"{statistic} forecast" if middle else word,
                legendgroup=word,
                showlegend=legend,
                line={"color": BLUE, "width": 2 if middle else 1},
                text=[_interval_text(quantiles, values[:, t], pairs, unit) for t in range(values.shape[1])],
                hovertemplate=f"{view.time.hover}<br>{word} %{{y:.4g}} {plain(unit)}%{{text}}<extra></extra>",
            ),
            **at,
        )


def _pairs(quantiles: np.ndarray) -> list[tuple[int, int]]:
    """Places (low, high) of ascending levels that sum to 1, the widest pair first."""
    places = [(i, int(np.argmin(np.abs(quantiles - (1 - q))))) for i, q in enumerate(quantiles) if q < 0.499]
    return [(low, high) for low, high in places if abs(quantiles[low] + quantiles[high] - 1) < 1e-6]


def _interval_text(quantiles: np.ndarray, values: np.ndarray, pairs: list[tuple[int, int]], unit: str) -> str:
    return "".join(
        f"<br>with {100 * (quantiles[high] - quantiles[low]):.3g} % probability "
        f"{number(values[low])} to {number(values[high])} {plain(unit)}"
        for low, high in pairs
    )


def fitted_range(core: np.ndarray, others: np.ndarray, reach: float = 0.6) -> tuple[tuple[float, float], bool]:
    """An axis range that holds ``core`` and follows ``others`` at most ``reach`` spans beyond it.

    Returns:
        The range with a 4 % pad, and whether some of ``others`` lies outside it.
    """
    core = core[np.isfinite(core)]
    others = others[np.isfinite(others)]
    if not len(core):
        core = others if len(others) else np.array([0.0])
    low, high = float(core.min()), float(core.max())
    span = (high - low) or max(abs(high), 1.0) * 0.1
    if len(others):
        low = min(low, max(float(others.min()), low - reach * span))
        high = max(high, min(float(others.max()), high + reach * span))
    pad = 0.04 * (high - low or span)
    bounds = (low - pad, high + pad)
    cut = bool(len(others) and ((others < bounds[0]) | (others > bounds[1])).any())
    return bounds, cut


def medians(values: np.ndarray) -> np.ndarray:
    """The median of every row that has a finite value, NaN for the others. ``values``: (row, series)."""
    known = np.isfinite(values).any(axis=1)
    out = np.full(len(values), np.nan)
    out[known] = np.nanmedian(values[known], axis=1)
    return out
