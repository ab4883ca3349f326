"""Minimal circuit: its graph, its faithfulness by size, and its forecasts.

:func:`circuit_graph` draws the components and the edges between them; the others are
drawn by :func:`generic_figure`. The circuit is found in
:mod:`tsfm_lens.probes.circuits`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import FigurePanel, check, figure, frame, panels
from tsfm_lens.viz.effects import ablation_word
from tsfm_lens.viz.findings import find_estimate
from tsfm_lens.viz.generic import draw_variable, generic_figure
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    array,
    forecast_series,
    kind_word,
    medians,
    name_model,
    names,
    shown,
)
from tsfm_lens.viz.sheet import Panel, blank
from tsfm_lens.viz.sites import OUTPUT, Sites, find_positions
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import (
    CATEGORICAL,
    GREY,
    INK,
    PURPLE,
    mixed,
    plain,
)
from tsfm_lens.viz.words import num

__all__ = ["circuit_graph"]
# Size in pixels of the area in which the nodes are drawn.
_HEIGHT = 340
_WIDTH = 640
_LAYER_GAP = 0.8  # further distance between layers, in columns
_WORTH_NAMING = 0.01  # cost in faithfulness below which a component is not named


def read_circuit(ds: xr.Dataset) -> list[str]:
    """State what the circuit is made of, and how well it does without the rest."""
    sites = find_positions(ds)
    # in the order of sites, which are sorted by depth
    inside = np.asarray(ds["in_circuit"].values, dtype=bool)[sites.order]
    kinds = xr.DataArray(inside, {"kind": ("component", sites.kind)}, ["component"])
    refused = np.asarray(ds["refused"].values, dtype=bool)
    cost = ds["cost"]
    tested = None
    if "minimal" not in ds.attrs:
        tested = "single components"
    return summarize(
        ds,
        "Components that are kept: {in_circuit:count}, namely {kinds:each whole}; "
        "everything else is {ablation}.",
        "Faithfulness {faithfulness:percent}: the circuit alone recovers this share "
        "of the way from no components to the whole model.",
        "Completeness {completeness:percent}: this share of that way is lost without "
        "the circuit.",
        "The circuit is minimal {minimal}: none of these can go as well.",
        "Only {tested} were removed, and no pairs: two components that cancel each"
        " other may be among these.",
        "Largest costs in faithfulness of components that the tolerance of "
        "{tolerance:percent} let go: {dropped:largest percent}.",
        "No verdict on {refusals}: ablating all components changes the forecast by "
        "less than the noise, or by less than {smallest:percent} of the range.",
        kinds=kinds.groupby("kind").sum(),
        ablation=ablation_word(ds),
        tested=tested,
        dropped=cost.where(cost >= _WORTH_NAMING),
        refusals=shown(np.array(names(ds, "series"))[refused].tolist()) or None,
    )


def read_circuit_forecasts(ds: xr.Dataset, series: int) -> list[str]:
    """State how far the forecast of each part is from that of the whole model."""
    forecast = ds["forecast"].isel(series=series)
    away = abs(forecast - forecast.sel(part="model")).mean("step")
    return summarize(
        ds.isel(series=[series]),
        "Mean distance from the whole model's forecast on {series}: {away:each unit}.",
        away=away.drop_sel(part="model"),
    )


@figure(
    "minimal_circuit",
    "A minimal circuit and the edges between its components.",
    beside=("edge_attribution",),
)
def circuit_graph(
    ds: xr.Dataset, edges: xr.Dataset | None = None, *, most: int = 30
) -> go.Figure:
    """Draw the model's heads and MLPs, those of the circuit filled.

    There is a column of nodes for each branch of a layer; the forecast is at the right.

    Args:
        ds: result of kind "minimal_circuit".
        edges: result of kind "edge_attribution" over the same components.
        most: number of edges that are drawn, the strongest by the mean over series.

    Returns:
        One panel without units: a node for each component and, with ``edges``, a line
        for each edge, the thicker the stronger.

    Example:
        >>> ds = probes.minimal_circuit(run, nodes=["decoder.*.mlp"], ranking="effects")
        >>> viz.circuit_graph(ds).layout.meta["title"]
        'Circuit of chronos-nano for the forecast of co2: 1 of 3 components'
    """
    sites = find_positions(ds)
    in_circuit = np.asarray(ds["in_circuit"].values, dtype=bool)[sites.order]
    board = _Board.of(sites)
    sheet = blank(_HEIGHT, max(420, 60 + 34 * len(set(board.x.tolist()))))
    panel = sheet.panel()
    # edges first, so that nodes lie above them
    count = 0
    if edges is not None:
        count = _draw_edges(panel, board, sites, in_circuit, edges, most)
    _draw_nodes(panel, board, sites, in_circuit)
    # what the edges that are drawn exceed, where the result has a test
    standing = ""
    if edges is not None:
        x, y = board.output
        panel.dots([x], [y], "", "the forecast", size=13, symbol="diamond")
        if find_estimate(edges, "score", "sender", "receiver") is not None:
            standing = " above rounding"
    panel.x(
        "layer", tickvals=board.ticks, ticktext=board.labels, ticks="", showline=False
    )
    panel.x(range=[-0.8, board.output[0] + (0.8 if edges is not None else -0.4)])
    # edges bend away from the middle, so they may reach higher than any node
    curves = [trace for trace in sheet.fig.data if trace.name == "edge"]
    heights = [float(np.abs(trace.y).max()) for trace in curves]
    distance = max(board.half_height, *heights, 0.0) + 0.7
    panel.y(visible=False, range=[-distance, distance])
    # the two shades in which _draw_edges draws negative scores
    negative = {str(trace.line.color) for trace in curves} & {
        mixed(PURPLE, 0.85),
        mixed(PURPLE, 0.3),
    }
    sign = "purple if negative, " if negative else ""
    legend = ""
    if edges is not None:
        legend = (
            f"diamond: the forecast; lines: the {count} strongest edges by"
            f" attribution{standing}, width by score, {sign}pale if an end is outside"
        )
    return sheet.finalize(
        f"Circuit of {name_model(ds)} for {_behaviour(ds)} of"
        f" {shown(names(ds, 'series'))}: {int(in_circuit.sum())} of {len(in_circuit)}"
        " components",
        _quality(ds),
        str(ds.attrs.get("refused", "")),
        f"circles: heads, squares: all else; pale: outside, {ablation_word(ds)}",
        legend,
    )


@dataclass(frozen=True)
class _Board:
    """Coordinates of the components, the forecast and the layers in the graph.

    Columns are 1 apart. Each is a branch of a layer, with its heads from top to bottom.

    Attributes:
        x, y: of the components.
        output: of the forecast.
        half_height: largest distance of a component from the middle.
        ticks, labels: of the axis of layers.
    """

    x: np.ndarray
    y: np.ndarray
    output: tuple[float, float]
    half_height: float
    ticks: list[float]
    labels: list[str]

    @classmethod
    def of(cls, sites: Sites) -> _Board:
        """Lay out sites, which are sorted by depth."""
        # the branch of each component: (stack, layer, kind)
        branches = list(zip(sites.stack, sites.layer.tolist(), sites.kind, strict=True))
        columns: dict[Any, float] = {}
        at = -1.0
        last = None
        for branch in dict.fromkeys(branches):
            layer = branch[:2]
            # branches of one layer are closer to each other than layers are
            at += 1 + (_LAYER_GAP if last is not None and layer != last else 0)
            columns[branch] = at
            last = layer
        x = np.array([columns[branch] for branch in branches])
        y = np.zeros(len(branches))
        for branch in columns:
            members = [i for i, other in enumerate(branches) if other == branch]
            order = np.argsort(sites.head[members], kind="stable")
            # centred around 0, with the first head at the top
            heights = (len(members) - 1) / 2 - np.arange(len(members))
            y[np.array(members)[order]] = heights
        layers = list(dict.fromkeys(branch[:2] for branch in branches))
        middles = [
            float(np.mean([v for branch, v in columns.items() if branch[:2] == layer]))
            for layer in layers
        ]
        several = len(set(sites.stack)) > 1
        labels = [
            f"{stack} {layer}" if several else str(layer) for stack, layer in layers
        ]
        return cls(
            x,
            y,
            (at + 1.2, 0.0),
            float(np.abs(y).max()),
            middles,
            [plain(label) for label in labels],
        )


def _draw_nodes(
    panel: Panel, board: _Board, sites: Sites, in_circuit: np.ndarray
) -> None:
    """Draw the components as nodes, those ``in_circuit`` filled."""
    # pixels of a node, by the room between rows and between columns
    height = _HEIGHT / (2 * board.half_height + 2)
    width = _WIDTH / (board.output[0] + 1)
    size = float(np.clip(0.75 * min(height, width), 7, 24))
    head_kinds = {
        kind for kind, head in zip(sites.kind, sites.head, strict=True) if head >= 0
    }
    colours = zip(dict.fromkeys(sites.kind), CATEGORICAL, strict=False)
    for kind, colour in colours:
        for inside in (True, False):
            members = [
                i
                for i, other in enumerate(sites.kind)
                if other == kind and in_circuit[i] == inside
            ]
            panel.dots(
                # a point without a place, as plotly shows no legend of an empty trace
                board.x[members] if members else [None],
                board.y[members] if members else [None],
                kind_word(kind),
                f"%{{customdata}}<br>{'in' if inside else 'outside'} the circuit",
                colour=colour if inside else mixed(colour, 0.1),
                size=size,
                symbol="circle" if kind in head_kinds else "square",
                marker={
                    "line": {
                        "color": colour if inside else mixed(colour, 0.4),
                        "width": 1,
                    }
                },
                mode="markers+text",
                text=[
                    str(sites.head[i]) if sites.head[i] >= 0 and size >= 13 else ""
                    for i in members
                ],
                textfont={"size": 10, "color": "#FFFFFF" if inside else GREY},
                customdata=[plain(sites.names[i]) for i in members],
            )


def _draw_edges(
    panel: Panel,
    board: _Board,
    sites: Sites,
    in_circuit: np.ndarray,
    edges: xr.Dataset,
    most: int,
) -> int:
    """Draw the strongest edges, and return how many.

    The weakest are drawn first, so that stronger ones lie above them.

    Returns:
        How many are drawn.
    """
    check(edges, "edge_attribution", "score")
    nodes = {
        name: (board.x[i], board.y[i], bool(in_circuit[i]))
        for i, name in enumerate(sites.names)
    }
    nodes[OUTPUT] = (*board.output, True)
    senders = names(edges, "sender")
    receivers = names(edges, "receiver")
    unknown = [name for name in (*senders, *receivers) if name not in nodes]
    if unknown:
        raise InputError(
            f"the edges name {unknown[0]}, which is not a component of this circuit's"
            " result"
        )
    values = array(edges, "score", "sender", "receiver", "series")
    scores = medians(values)
    noise = find_estimate(edges, "score", "sender", "receiver")
    if noise is not None:
        # an edge whose score is within rounding is not drawn
        scores = np.where(noise.acts > 0, noise.size, np.nan)
    # pairs that no edge joins have a score of exactly 0
    scores = np.where((values != 0).any(-1), scores, np.nan)
    sizes = np.abs(np.nan_to_num(scores)).ravel()
    strongest = np.argsort(-sizes, kind="stable")[: max(most, 0)].tolist()
    # positions of (sender, receiver)
    pairs = [
        (a, b)
        for a, b in (divmod(i, len(receivers)) for i in strongest)
        if np.isfinite(scores[a, b])
    ]
    largest = max((abs(float(scores[a, b])) for a, b in pairs), default=1.0)
    for a, b in reversed(pairs):
        x0, y0, starts_inside = nodes[senders[a]]
        x1, y1, ends_inside = nodes[receivers[b]]
        score = float(scores[a, b])
        # the nodes have neither of these two colours
        colour = PURPLE
        if score > 0:
            colour = INK
        # The term t(1 - t) bends the edge outwards, around the nodes between its ends.
        # With 3t² - 2t³, the way from one height to the other is level at both ends.
        t = np.linspace(0, 1, 25)
        height = min(0.36 * (x1 - x0), board.half_height + 1) * (
            1 if y0 + y1 >= 0 else -1
        )
        x = x0 + (x1 - x0) * t
        y = y0 + (y1 - y0) * (3 * t**2 - 2 * t**3) + height * t * (1 - t)
        hover = f"{plain(senders[a])} → {plain(receivers[b])}<br>score {score:.3g}"
        shade = mixed(colour, 0.85 if starts_inside and ends_inside else 0.3)
        width = 0.6 + 5.4 * abs(score) / largest
        panel.line(x, y, "edge", hover, colour=shade, width=width, legend=False)
    return len(pairs)


def _quality(ds: xr.Dataset) -> str:
    """Write faithfulness and completeness as medians over series, with ranges."""
    parts = []
    for name in ("faithfulness", "completeness"):
        effect = find_estimate(ds, name)
        size = float(ds[name].median())
        if not np.isfinite(size):
            parts.append(f"no verdict on {name}")
        elif effect is None:
            parts.append(f"{name} {num(size)}")
        else:
            parts.append(f"{name} {effect.told(0, over=True)}")
    return ", ".join(parts)


def _behaviour(ds: xr.Dataset) -> str:
    """Write in words what the circuit is for."""
    word = str(ds.attrs.get("behaviour", "forecast"))
    if word == "forecast":
        return "the forecast"
    return f"{word!r}"


@panels("minimal_circuit")
def _circuit(ds: xr.Dataset) -> Iterator[FigurePanel]:
    yield FigurePanel(
        circuit_graph(ds), frame(ds, "in_circuit", "taken", "cost"), read_circuit(ds)
    )
    for i in forecast_series(ds, MAX_DRAWN):
        table = frame(ds.isel(series=[i]), "forecast")
        text = read_circuit_forecasts(ds, i)
        label = names(ds, "series")[i]
        forecasts = draw_variable(ds, "forecast", series=i)
        yield FigurePanel(forecasts, table, text, series=label)
    curve = frame(ds, "curve").dropna(ignore_index=True)
    yield FigurePanel(draw_variable(ds, "curve"), curve)


generic_figure("minimal_circuit", "curve", "Faithfulness of circuits by size.")
generic_figure(
    "minimal_circuit",
    "forecast",
    "Forecasts of a minimal circuit and of its complement.",
    options={"series": 0},
)
