"""Lines of thought: modes of the lens distribution through depth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.viz.logit_lens import logit_sheet
from tsfm_lens.viz.panels import Scene, fitted_range, scene
from tsfm_lens.viz.select import array, layer_name, model_of, names, positions, shown
from tsfm_lens.viz.sheet import Look, Panel, sheet
from tsfm_lens.viz.summary import summary
from tsfm_lens.viz.theme import (
    BLUE,
    GREY,
    PURPLE,
    SKY,
    VERMILION,
    mixed,
    number,
    percent,
    plain,
)
from tsfm_lens.viz.words import layer_names

__all__ = ["thought_counts", "thought_lines"]
_ROWS = 72  # of a panel
_REACH = 2.0  # ranges of the values beyond them up to which lines are followed


_LOOKS = {True: ("spurious line", VERMILION, "x"), False: ("other line", SKY, "circle")}


@figure(
    "lines_of_thought",
    "Modes of the lens distribution through depth.",
    table=(
        "start",
        "stop",
        "mean_value",
        "mass",
        "continuous",
        "survives",
        "spurious",
        "birth",
        "death",
    ),
    sentences=summary(
        "Lines of thought by depth: {lines:each whole}.",
        "Of them are spurious, as they neither continue the context nor reach the "
        "forecast: {spurious:each whole}; these hold at most {mass:percent} of the "
        "probability.",
        lines=lambda ds: ds["count"].sum("series"),
        spurious=lambda ds: ds["spurious_count"].sum("series"),
        mass=lambda ds: ds["spurious_mass"].max(),
    ),
)
def thought_lines(
    ds: xr.Dataset, *, series: str | int = 0, layers: Sequence[str | int] | None = None
) -> go.Figure:
    """Draw the logit map of every layer with its lines of thought, spurious ones apart."""
    places = positions(ds, "layer", layers)
    view = scene(ds, series, max(ds.sizes["step"], 12))
    labels = [names(ds, "layer")[i] for i in places]
    here = ds["line_series"].values == ds["series"].values[view.place]
    lines = np.flatnonzero(here & np.isin(ds["line_layer"].values.astype(str), labels))
    paths = array(ds, "path", "line", "step")
    bounds, cut = fitted_range(view.observations, paths[lines], _REACH)
    grid, _ = logit_sheet(ds, view, places, bounds, _ROWS)
    panels = dict(zip(labels, grid, strict=True))
    for line in lines:
        _line(
            panels[str(ds["line_layer"].values[line])], ds, view, int(line), paths[line]
        )
    # labels of neighbouring panels would run into each other
    grid.x(nticks=2 if len(panels) > 2 else 4)
    grid.min_width *= 1.15
    count = int(ds["spurious"].values[lines].sum())
    return grid.dress(
        f"Lines of thought of {model_of(ds)} on {view.id}: {count} of {len(lines)} spurious",
        "logit lens after each layer, probability in colours",
        "spurious: not continuous with the context, and gone in the last layer",
        "values beyond the axis are cut off" * cut,
        view.time.remark,
    )


@figure(
    "lines_of_thought",
    "Number of lines of thought by layer, and how many die out.",
    table=("count", "spurious_count"),
)
def thought_counts(ds: xr.Dataset) -> go.Figure:
    """Draw how many lines of thought each layer has, and how much probability its spurious ones hold."""
    labels, ids = layer_names(ds), names(ds, "series")
    spurious = array(ds, "spurious_count", "layer", "series")
    other = array(ds, "count", "layer", "series") - spurious
    mass = 100 * array(ds, "spurious_mass", "layer", "series")
    titles = ["lines of thought", "probability on spurious lines"]
    canvas = sheet([260], [1, 1], titles=titles, column_gap=0.13, min_width=640)
    left, right = canvas
    for word, counts, colour in (
        ("spurious", spurious, VERMILION),
        ("other", other, mixed(BLUE, 0.45)),
    ):
        hover = f"%{{x}}<br>%{{y:.3g}} {word} lines per series"
        left.bars(labels, counts.mean(axis=1), f"{word} lines", hover, colour=colour)
    several, tail = len(ids) > 1, "%{y:.3g} % on spurious lines"
    for name, line in zip(ids if several else [], mass.T, strict=False):
        look: Look = {
            "colour": mixed(GREY, 0.5),
            "width": 1,
            "text": [plain(name)] * len(labels),
        }
        right.line(labels, line, "one series", f"%{{text}}, %{{x}}<br>{tail}", **look)
    colour, name = (PURPLE, "mean over series") if several else (BLUE, ids[0])
    right.line(
        labels,
        mass.mean(axis=1),
        name,
        f"%{{x}}<br>{tail}",
        colour=colour,
        width=2,
        mode="lines+markers",
    )
    canvas.x("residual stream after", type="category")
    left.y(
        "lines per series" if several else "lines",
        **({} if several else {"tickformat": "d", "nticks": 5}),
    )
    right.y("probability (%)", rangemode="tozero")
    canvas.fig.update_layout(barmode="stack")
    title, which = (
        f"Lines of thought of {model_of(ds)}, layer by layer",
        f"{shown(ids)}, {ds.sizes['step']} steps",
    )
    return canvas.dress(
        title,
        which,
        "spurious: not continuous with the context, gone in the last layer",
    )


def _line(
    panel: Panel, ds: xr.Dataset, view: Scene, line: int, path: np.ndarray
) -> None:
    word, colour, symbol = _LOOKS[bool(ds["spurious"].values[line])]
    born, died = (layer_name(str(ds[end].values[line])) for end in ("birth", "death"))
    mass = (
        percent(float(ds["mass"].values[line]))
        if np.isfinite(ds["mass"].values[line])
        else number(np.nan)
    )
    panel.line(
        view.time.at(view.future),
        path,
        word,
        view.hover(f"{word}, from {born} to {died}, {mass} of the probability"),
        colour=colour,
        width=1.6,
        mode="lines+markers",
        connectgaps=True,
        # a mark at every step would be a bar
        marker={"symbol": symbol, "size": 5, "color": colour, "maxdisplayed": 8},
    )
