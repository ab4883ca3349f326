"""Components that carry the input's influence over many series."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.needs import SERIES
from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.select import array, kind_word, model_of, names, shown
from tsfm_lens.viz.sheet import Look, blank
from tsfm_lens.viz.standing import Standing
from tsfm_lens.viz.theme import CATEGORICAL, GREY, percent, plain
from tsfm_lens.viz.words import listed

__all__ = ["carried_dots"]
_ARMS, _ROWS = 10, 24  # components that are drawn by name
_MAX_NAMES = 3

ROUTE_EFFECTS = measurement(
    "route_effects",
    theme="Inputs",
    title="What carries the input",
    summary="part of the input's influence that each component carries over many series, and against nulls",
    description="Of every series, the effects of all segments through a component, over their effects in total. Hollow "
    "points are within the noise. A null (untrained twins, random components, shuffled series) says what a "
    "component carries where there is nothing to find.",
    source="Wang et al. 2022; Adebayo et al. 2018",
    needs=SERIES,
)


def read_carried(ds: xr.Dataset) -> list[str]:
    """Name the components that carry most of the input's influence over all series, against a null if there is one."""
    against = str(ds.attrs.get("against", ""))
    carried = Standing(ds, "carried_share" if against else "carried", "component")
    labels = names(ds, "component")
    most = [f"{labels[place]} ({carried.told(place, percent)})" for place in carried.named(_MAX_NAMES)]
    null = {"untrained": "components of untrained twins", "shuffled series": "itself on shuffled series"}
    beyond = f"than {null.get(against, 'random components of its kind')}" if against else "than the noise"
    if not most:
        return [f"No component carries more of the input's influence {beyond}."]
    return [f"Most of the input's influence goes through {listed(most)}; each carries more {beyond}."]


@ROUTE_EFFECTS.figure(
    "What part of the input's influence each component carries.",
    variables=("carried", "carried_estimate"),
    table=("carried",),
    sentences=read_carried,
)
def carried_dots(ds: xr.Dataset, *, components: int = _ROWS) -> go.Figure:
    """Draw what part of the input's influence goes through each component, over many series.

    Args:
        ds: of kind "route_effects".
        components: rows, those of the largest parts.

    Returns:
        A dot for each component with its 95 % interval over series, hollow within the noise; held against a null, parts
        of the sum over components, with a tick for what the null reaches.

    Example:
        >>> "carried_dots" in viz.__all__
        True
    """
    name = "carried_share" if "carried_share_estimate" in ds else "carried"
    mean = array(ds, f"{name}_estimate", "component")
    order = np.argsort(-mean, kind="stable")[:components]
    carried = finding(ds, name, "component")
    labels, kinds = names(ds, "component"), [kind_word(str(kind)) for kind in ds["component_kind"].values]
    sheet = blank(max(160, 20 * len(order)), min_width=480, below=64)
    panel = sheet.panel()
    if name == "carried_share":
        reach = array(ds, f"{name}_floor", "component", "series").mean(1)
        against = f"95 % of {ds.attrs.get('against', 'the null')}"
        tick: Look = {"symbol": "line-ns-open", "size": 12}
        panel.dots(reach[order], np.arange(len(order)), against, f"{against}<br>%{{x:.3g}}", colour=GREY, **tick)
    for place, kind in enumerate(dict.fromkeys(kinds)):
        rows = [row for row, i in enumerate(order) if kinds[i] == kind]
        if rows:
            members = order[rows]
            look: Look = {"colour": CATEGORICAL[place % len(CATEGORICAL)], "text": [plain(labels[i]) for i in members]}
            noise = None if carried is None else carried.at(members)
            panel.dots(mean[members], rows, kind, "%{text}<br>%{x:.3g}", noise=noise, across=True, **look)
    panel.upright(0.0)
    whole = "effect through it, over the effect of the input"
    panel.x("share of all components' effects" if name == "carried_share" else whole)
    ticks = [plain(labels[i]) for i in order]
    panel.y(tickvals=list(range(len(order))), ticktext=ticks, range=[len(order) - 0.5, -0.5])
    return sheet.dress(
        f"What carries the input through {model_of(ds)}",
        f"mean over {shown(names(ds, 'series'))}",
        f"the {len(order)} of {len(labels)} components that carry most" * (len(order) < len(labels)),
    )
