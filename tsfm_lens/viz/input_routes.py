"""Routes of the input through components to the forecast.

:func:`route_map` draws the largest routes of one item as ribbons, and
:func:`read_routes` describes them; those of many series are a generic figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.axes import layer_name
from tsfm_lens.core.registry import figure, frame
from tsfm_lens.viz.contributions import ARROWS, direction
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.panels import name_segments, name_target, name_unit
from tsfm_lens.viz.select import array, find_unit, kind_word, name_model
from tsfm_lens.viz.sheet import Panel, blank
from tsfm_lens.viz.summary import summarize, summary
from tsfm_lens.viz.theme import CATEGORICAL, mixed, number, plain
from tsfm_lens.viz.words import after_number, capital, measured

__all__ = ["route_map"]

_MAX_NAMES = 3
_ROW = 36  # pixels of a route
# Pixels of the narrowest and the widest ribbon.
_LEAST_WIDTH = 1.5
_MOST_WIDTH = 16


def read_routes(ds: xr.Dataset) -> list[str]:
    """Return sentences on through which components the most influential segments act.

    A sentence says what the parts sum to.
    """
    ds = ds.assign_coords(segment=name_segments(ds))
    movement = abs(ds["total"]).mean("step")
    order = np.argsort(-movement.values, kind="stable")[:_MAX_NAMES]
    leading = order[movement.values[order] > float(ds["total_floor"])]
    if not len(leading):
        return ["No segment moves the forecast by more than the noise."]
    # routes within rounding count as 0, so that sums over segments still have a value
    acting = ds["size"].where(ds["size_acts"] > 0).fillna(0.0)
    rest = abs(ds["rest"]).mean("step").sum() / movement.sum()
    return summarize(
        ds.isel(segment=leading),
        "{answer}",
        "Components that carry most over all segments: {carried:largest unit}.",
        "Share of the effect that bypasses attention (negative: attention overshoots;"
        " above 100 %: attention reverses the excess): {no_attention_share:each"
        " percent}.",
        "Direct contributions explain all but {rest:percent} of these effects; the rest"
        " is interaction in the output head.",
        "Gradients selected the {top} components that were tested. A random check of"
        " the others found {miss_rate:percent} missed (at most"
        " {miss_rate_high:percent}).",
        answer=_say_routes(ds, leading, acting),
        carried=acting.sum("segment"),
        rest=rest,
    )


def _say_routes(ds: xr.Dataset, leading: np.ndarray, acting: xr.DataArray) -> str:
    """State the largest route of each leading segment, beside all that it moves."""
    write = measured(find_unit(ds).strip())
    sites = _name_sites(ds)
    parts = []
    for segment in leading:
        movement = float(abs(ds["total"][segment]).mean())
        sizes = acting[segment].values
        text = f"{ds['segment'].values[segment]} moves it by {write(movement)} a step"
        if sizes.max() > 0:
            place, name = sites[int(sizes.argmax())]
            text += f", most through {place} {name} ({write(float(sizes.max()))})"
        parts.append(text)
    first, *others = parts
    first = capital(first).replace(
        "moves it", f"moves the forecast of {name_target(ds)}"
    )
    return f"{'; '.join([first, *others])}."


generic_figure(
    "route_effects",
    "carried",
    "Share of the input's effect that each component carries.",
    table=("carried",),
    sentences=summary(
        "Components that carry most of the input's influence{carried:basis}: "
        "{carried:largest percent}.",
        effect="carried",
        noun="components",
    ),
)


@dataclass(frozen=True)
class _Route:
    """A segment's way through one component, as it is drawn.

    Attributes:
        segment, component: positions in the result.
        row: counted from the top of the figure.
        effect: (step,), in data units.
    """

    segment: int
    component: int
    row: int
    effect: np.ndarray

    @property
    def size(self) -> float:
        """Mean absolute effect at a step."""
        return float(np.abs(self.effect).mean())


@figure(
    "input_routes",
    "Largest routes from the segments of the input to the forecast.",
    table=lambda ds: frame(ds, "size", "share").dropna(ignore_index=True),
    sentences=read_routes,
)
def route_map(ds: xr.Dataset, *, top: int = 8) -> go.Figure:
    """Draw the largest routes from segments through heads and MLPs to the forecast.

    A ribbon is a route, as wide as its mean effect at a step, which is written at its
    start.

    Args:
        ds: result of kind "input_routes".
        top: number of routes.

    Returns:
        One panel with a ribbon for each route, from its segment of the input at the
        left, past its head or MLP at its layer, to the forecast at the right.

    Example:
        >>> routes = explain.input_routes(driven, parts=2)
        >>> viz.route_map(routes).layout.meta["title"]
        'Routes to the forecast of target by chronos2-nano'
    """
    routes = _largest_routes(ds, top)
    canvas = blank(max(_ROW * len(routes), 90), min_width=640, below=32)
    # the names of the columns stand over them
    canvas.above = 30
    panel = canvas.panel()
    if not routes:
        panel.note("no route beyond the noise", 0.5, 0.5, xref="domain", yref="domain")
    segments = name_segments(ds)
    sites = _name_sites(ds)
    used = sorted({route.component for route in routes})
    columns = list(dict.fromkeys(sites[at][0] for at in used))
    end = len(columns) + 1
    unit = name_unit(ds)
    starts = list(dict.fromkeys(route.segment for route in routes))
    members = {at: [one for one in routes if one.component == at] for at in used}
    heights = _place_sites(members, sites)
    arrivals = _stacked(routes, (len(routes) - 1) / 2, routes)
    for component, through in members.items():
        place, name = sites[component]
        column = columns.index(place) + 1
        passes = _stacked(through, heights[component], routes)
        for route in through:
            colour = starts.index(route.segment) % (len(CATEGORICAL) - 1) + 1
            way = ARROWS[direction(float(route.effect.mean()), route.size)]
            x, y = _ribbon(
                (0, route.row), (column, passes[route.row]), (end, arrivals[route.row])
            )
            panel.line(
                x,
                y,
                "",
                f"{plain(segments[route.segment])}<br>through {plain(place)},"
                f" {plain(name)}<br>{number(route.size)} {plain(after_number(unit))}"
                f" {way}",
                colour=mixed(CATEGORICAL[colour], 0.55),
                width=_width(route, routes),
                # in print the dashes of a colour would cut a ribbon
                dash="solid",
            )
            text = f"{number(route.size)} {way}"
            panel.note(text, 0, route.row, xanchor="left", xshift=8)
    # after the ribbons, which would hide them
    for component, through in members.items():
        place, name = sites[component]
        column = columns.index(place) + 1
        reach = sum(_width(route, routes) for route in through) / 2
        _draw_bar(panel, column, heights[component], reach)
        panel.note(
            plain(name),
            column,
            heights[component],
            yanchor="bottom",
            yshift=reach + 4,
            size=12,
        )
    if routes:
        reach = sum(_width(route, routes) for route in routes) / 2
        _draw_bar(panel, end, (len(routes) - 1) / 2, reach)
    # the name of a segment stands at its first route
    firsts = {route.segment: route.row for route in reversed(routes)}
    panel.x(
        tickvals=list(range(end + 1)),
        ticktext=["input", *map(plain, columns), "forecast"],
        range=[-0.02, end + 0.2],
        side="top",
        showline=False,
        ticks="",
    )
    panel.y(
        tickvals=list(firsts.values()),
        ticktext=[plain(segments[segment]) for segment in firsts],
        range=[len(routes) - 0.4, -0.9],
        showline=False,
        ticks="",
    )
    acting = int((ds["size_acts"] > 0).sum())
    return canvas.finalize(
        f"Routes to the forecast of {name_target(ds)} by {name_model(ds)}",
        f"the {len(routes)} largest of {acting} routes",
        f"line: a route, as wide as its number, the mean effect at a step ({unit})",
        "↑ raises, ↓ lowers, ↕ both",
        "routes share effects, so numbers do not add up",
    )


def _largest_routes(ds: xr.Dataset, top: int) -> list[_Route]:
    """Return the largest routes that act, sorted by segment, then by size."""
    size = np.where(
        array(ds, "size_acts", "segment", "component") > 0,
        array(ds, "size", "segment", "component"),
        np.nan,
    )
    order = np.argsort(-size, axis=None, kind="stable")
    largest = order[: min(top, int(np.isfinite(size).sum()))]
    # stable: the largest route of a segment stays its first
    by_segment = sorted(largest, key=lambda at: at // size.shape[1])
    effect = array(ds, "effect", "segment", "component", "step")
    places = np.unravel_index(by_segment, size.shape)
    return [
        _Route(int(segment), int(component), row, effect[segment, component])
        for row, (segment, component) in enumerate(zip(*places, strict=True))
    ]


def _name_sites(ds: xr.Dataset) -> list[tuple[str, str]]:
    """Name the layer of each component, and the component within it."""
    several = len(set(ds["stack"].values)) > 1
    rows = zip(
        *(ds[name].values for name in ("stack", "layer", "component_kind", "head")),
        strict=True,
    )
    result = []
    for stack, layer, kind, head in rows:
        place = layer_name(layer) if layer >= 0 else "embedding"
        name = kind_word(str(kind))
        if head >= 0:
            name += f", head {head}"
        result.append((f"{stack}, {place}" if several else place, name))
    return result


def _place_sites(
    members: dict[int, list[_Route]], sites: list[tuple[str, str]]
) -> dict[int, float]:
    """Return the row of each component, which is the mean of its routes' rows.

    Components of one layer are a row apart, at least.
    """
    middles = {
        component: float(np.mean([route.row for route in through]))
        for component, through in members.items()
    }
    result: dict[int, float] = {}
    last: dict[str, float] = {}
    for component in sorted(middles, key=lambda at: middles[at]):
        place, _ = sites[component]
        height = max(middles[component], last.get(place, -1.0) + 1)
        result[component] = last[place] = height
    return result


def _width(route: _Route, routes: list[_Route]) -> float:
    """Return the pixels of a route's ribbon, the largest of which is the widest."""
    share = route.size / max(other.size for other in routes)
    return max(_MOST_WIDTH * share, _LEAST_WIDTH)


def _stacked(
    through: list[_Route], middle: float, routes: list[_Route]
) -> dict[int, float]:
    """Return where ribbons beside each other pass, by their rows, around a middle."""
    widths = np.array([_width(route, routes) for route in through]) / _ROW
    ends = middle - widths.sum() / 2 + np.cumsum(widths)
    return dict(zip((route.row for route in through), ends - widths / 2, strict=True))


def _draw_bar(panel: Panel, x: float, y: float, reach: float) -> None:
    """Draw a vertical bar at which ribbons pass, ``reach`` pixels to both sides."""
    half = reach / _ROW
    panel.line([x, x], [y - half, y + half], width=5, dash="solid")


def _ribbon(*points: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of a curve through points, level at each of them."""
    share = np.linspace(0, 1, 24)
    # the cubic polynomial from 0 to 1 that is level at both ends
    climb = share * share * (3 - 2 * share)
    x, y = (
        np.concatenate([a + (b - a) * part for a, b in pairwise(values)])
        for values, part in zip(zip(*points, strict=True), (share, climb), strict=True)
    )
    return x, y
