"""Routes of the input through components to the forecast, over many series, and their proof."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import frame, measurement
from tsfm_lens.viz.input_attribution import read_proof
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.needs import SERIES
from tsfm_lens.viz.noise import finding, judged
from tsfm_lens.viz.select import array, kind_word, model_of, names, shown, unit_of
from tsfm_lens.viz.sheet import Look, Panel, blank, sheet, shortened, text_width
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, GREY, INK, VERMILION, mixed, number, percent, plain
from tsfm_lens.viz.words import capital, listed, measured, segment_words

__all__ = ["carried_dots", "faithfulness_dots", "route_map", "route_river"]

_ARMS, _ROWS = 10, 24  # components that are drawn by name
_BINS = 6  # groups of forecast steps
_LINE = 19  # pixels that a line of a node's label needs
_NAME = 180  # pixels of a line of it
_TYPE = 11
_WIDE = 0.03  # of a node, in the distance of two columns
_OTHERS, _NONE = "other components", "no component: tokens and scale"
WORTH_A_WORD = 0.01  # of an effect
_BEND = 24  # points of a ribbon's edge
_MAX_NAMES = 3

INPUT_ROUTES = measurement("input_routes", needs=SERIES)


def read_routes(ds: xr.Dataset) -> list[str]:
    """Describe through which components the most influential segments act, and what the parts sum to."""
    amount, segments, components = measured(unit_of(ds)), names(ds, "segment"), names(ds, "component")
    size, total = array(ds, "size", "segment", "component"), array(ds, "total", "segment", "step")
    stands = array(ds, "size_stands_out", "segment", "component") > 0
    movement = np.abs(total).mean(1)
    out = []
    for place in np.argsort(-movement, kind="stable")[:_MAX_NAMES]:
        if movement[place] <= float(ds["total_floor"]):
            continue
        order = [i for i in np.argsort(-np.nan_to_num(size[place]), kind="stable") if stands[place, i]][:_MAX_NAMES]
        leading = [f"{components[i]} ({amount(size[place, i])})" for i in order]
        through = f" The most of it goes through {listed(leading)}." if leading else " No component stands out in it."
        words = past_attention(float(array(ds, "no_attention_share", "segment")[place]))
        past = f" {capital(words)}." if words else ""
        out.append(
            f"Masking {segments[place]} moves the forecast by {amount(movement[place])} on average.{through}{past}"
        )
    if not out:
        return ["No segment moves the forecast by more than the noise."]
    rest = np.abs(array(ds, "rest", "segment", "step")).mean(1).sum() / movement.sum()
    out.append(
        "What branches hand to the readout and what needs no component sum to these effects but for "
        f"{percent(rest)}, which the readout makes of them together."
    )
    if ds.attrs.get("search") == "gradient":
        rate, high = (percent(float(ds.attrs[name])) for name in ("miss_rate", "miss_rate_high"))
        out.append(
            f"Gradients chose the {ds.attrs['top']} components that were tried; of those drawn at random beside them "
            f"{rate} had been missed (at most {high})."
        )
    return out


def read_kinds(ds: xr.Dataset) -> list[str]:
    """Name the component that carries most of all segments, and the kinds of component by what they carry."""
    size = np.nan_to_num(array(ds, "size", "segment", "component")).sum(0)
    if not (array(ds, "size_stands_out", "segment", "component") > 0).any():
        return ["No component carries more than the noise."]
    places = zip(ds["stack"].values, ds["component_kind"].values, strict=True)
    kinds = [f"{stack} {kind_word(str(kind))}".strip() for stack, kind in places]
    by_kind = {kind: float(size[[each == kind for each in kinds]].max()) for kind in dict.fromkeys(kinds)}
    amount = measured(unit_of(ds))
    largest = [f"{kind} {amount(value)}" for kind, value in sorted(by_kind.items(), key=lambda item: -item[1])]
    return [
        f"Of all segments together, most goes through {names(ds, 'component')[int(size.argmax())]}. The largest of "
        f"each kind: {listed(largest)}."
    ]


class _Column(NamedTuple):
    """Nodes above one another, with height and lower end of each in the figure's units."""

    labels: list[str]
    sizes: np.ndarray
    colours: list[str]
    notes: list[str]
    low: np.ndarray


@INPUT_ROUTES.figure(table=lambda ds: frame(ds, "size", "share").dropna(ignore_index=True), sentences=read_routes)
def route_river(ds: xr.Dataset, *, components: int = _ARMS) -> go.Figure:
    """Draw what each segment moves the forecast, as a river over components to the forecast's steps.

    Args:
        components: that are drawn by name; all others are one arm.
    """
    effect = np.abs(np.nan_to_num(array(ds, "effect", "segment", "component", "step")))
    none = np.abs(array(ds, "no_component", "segment", "step")) if "no_component" in ds else None
    labels, kinds = names(ds, "component"), [str(kind) for kind in ds["component_kind"].values]
    order = [int(i) for i in np.argsort(-effect.sum((0, 2)), kind="stable")]
    leading = sorted(i for i in order[:components] if effect[:, i].any())
    rest = [i for i in order if i not in leading]
    every = [(effect[:, i], labels[i], kinds[i]) for i in leading]
    if rest and effect[:, rest].any():
        every.append((effect[:, rest].sum(1), f"{len(rest)} {_OTHERS}", ""))
    if none is not None:
        every.append((none, _NONE, ""))
    arms, kind_of = [arm for _, arm, _ in every], [kind for _, _, kind in every]
    flow = np.stack([part for part, _, _ in every], axis=1)
    steps = flow.shape[2]
    bins = np.array_split(np.arange(steps), min(_BINS, steps))
    unit = unit_of(ds) or "data units"
    tints = dict(zip(dict.fromkeys(filter(None, kind_of)), cycle(CATEGORICAL), strict=False))
    columns = _columns(ds, flow, arms, [tints.get(kind, GREY) for kind in kind_of], bins, unit)
    height = max(300, 2 * _LINE * max(sum(1 + label.count("<br>") for label in column.labels) for column in columns))
    sheet = blank(height, min_width=640, below=16)
    panel = sheet.panel()
    late = np.stack([flow[..., steps_in].sum((0, 2)) / steps for steps_in in bins], axis=1)
    words = [kind_word(kind) if kind else "other" for kind in kind_of]
    for at, amounts in enumerate((flow.mean(2), late)):
        _draw_ribbons(panel, at, columns, amounts, words, unit)
    for at, column in enumerate(columns):
        _draw_nodes(panel, at, column)
    room = max(text_width(label, _TYPE) for label in columns[0].labels) / 640
    panel.x(visible=False, range=[-0.1 - 2.6 * room, 2.45])
    panel.y(visible=False, range=[-0.03, 1.03])
    share = ""
    if "no_attention_share" in ds:
        largest = int(np.argmax(np.abs(array(ds, "total", "segment", "step")).mean(1)))
        bypass = float(array(ds, "no_attention_share", "segment")[largest])
        # next to nothing is not worth a word
        if np.isfinite(bypass) and abs(bypass) >= WORTH_A_WORD:
            share = f"{segment_words(ds)[largest]}: {past_attention(bypass)}"
    return sheet.dress(
        f"Routes of the input through {model_of(ds)}",
        f"forecast of {ds.attrs.get('target', '')}, mean absolute effect in {unit}; a chain of components carries one "
        "effect, and each of them has it in full",
        share,
    )


def _columns(
    ds: xr.Dataset, flow: np.ndarray, arms: list[str], tints: list[str], bins: Sequence[np.ndarray], unit: str
) -> list[_Column]:
    """Build segments, components and groups of steps, of equal sums."""
    segments = segment_words(ds)
    total = np.abs(array(ds, "total", "segment", "step")).mean(1)
    size = flow.mean(2)
    steps = [f"step {b[0] + 1}" if len(b) == 1 else f"steps {b[0] + 1}–{b[-1] + 1}" for b in bins]
    late = np.array([flow[..., b].sum() for b in bins]) / flow.shape[2]
    unit = plain(unit)
    moves = [f"{plain(a)}<br>moves the forecast by {number(t)} {unit}" for a, t in zip(segments, total, strict=True)]
    through = [f"{plain(a)}<br>{number(s)} {unit} of all segments" for a, s in zip(arms, size.sum(0), strict=True)]
    most = max(len(segments), len(arms), len(bins))
    gap = 0.45 / most
    scale = (1 - gap * (most - 1)) / max(float(size.sum()), np.finfo(float).tiny)
    columns = []
    for labels, sizes, colours, notes in (
        (segments, size.sum(1), [GREY] * len(segments), moves),
        (arms, size.sum(0), tints, through),
        (steps, late, [GREY] * len(steps), [plain(word) for word in steps]),
    ):
        heights = sizes * scale
        # what a column has fewer of is spread evenly
        space = (1 - heights.sum()) / max(len(labels) - 1, 1) if len(labels) > 1 else 0.0
        # the first stands at the top
        top = 1 - np.concatenate([[0.0], np.cumsum(heights + space)[:-1]])
        # two lines at most, safe for plotly
        folded = [plain(shortened(label, _NAME, _TYPE, 2)).replace("\n", "<br>") for label in labels]
        columns.append(_Column(folded, heights, colours, notes, top - heights))
    return columns


def _draw_ribbons(
    panel: Panel, at: int, columns: Sequence[_Column], widths: np.ndarray, words: list[str], unit: str
) -> None:
    """Draw arms between a column and the next; widths (left, right) in data units."""
    left, right = columns[at : at + 2]
    scale = left.sizes.sum() / max(float(widths.sum()), np.finfo(float).tiny)
    starts, ends = left.low + left.sizes, right.low + right.sizes
    # the outline of an arm is a cubic curve that leaves and arrives level
    t = np.linspace(0, 1, _BEND)
    rise, x = 3 * t**2 - 2 * t**3, at + _WIDE + (1 - 2 * _WIDE) * t
    for i, j in np.ndindex(len(left.labels), len(right.labels)):
        width, arm = widths[i, j] * scale, i if at else j
        if width > 1e-3:
            colour, upper = columns[1].colours[arm], starts[i] + (ends[j] - starts[i]) * rise
            outline = np.concatenate([upper, (upper - width)[::-1]])
            # arms beneath can be seen
            fill = "rgba({},{},{},0.42)".format(*(int(colour[k : k + 2], 16) for k in (1, 3, 5)))
            look: Look = {"colour": mixed(colour, 0.55), "width": 0, "fill": "toself", "fillcolor": fill}
            panel.line(np.concatenate([x, x[::-1]]), outline, words[arm], **look)
            text = f"{left.labels[i]} → {right.labels[j]}<br>{number(float(widths[i, j]))} {plain(unit)}"
            _draw_hidden(panel, at + 0.5, (starts[i] + ends[j] - width) / 2, text, colour, 6)
        starts[i] -= width
        ends[j] -= width


def _draw_hidden(panel: Panel, x: float, y: float, text: str, colour: str, size: float) -> None:
    """Draw a dot that cannot be seen, for its hover box."""
    panel.dots([x], [y], "", "%{text}", colour=colour, size=size, text=[text], opacity=0, legend=False)


def _draw_nodes(panel: Panel, at: int, column: _Column) -> None:
    """Draw a column of nodes with their names beside them."""
    ground = {"bgcolor": "rgba(255,255,255,0.75)", "borderpad": 0} if at == 1 else {}
    side: Look = {"xanchor": "left" if at else "right", "yanchor": "middle", **ground}
    for label, size, colour, note, low in zip(*column, strict=True):
        panel.shape("rect", (at - _WIDE, at + _WIDE), (low, low + size), line={"width": 0}, fillcolor=colour)
        _draw_hidden(panel, at, low + size / 2, note, colour, 8)
        x = at + _WIDE + 0.01 if at else at - _WIDE - 0.01
        panel.note(label, x, low + size / 2, size=_TYPE, **side)


def past_attention(share: float) -> str:
    """Write what share of an effect has no route through attention; "" where it is no number."""
    if not np.isfinite(share):
        return ""
    if abs(share) < WORTH_A_WORD:
        return "next to nothing of the effect bypasses attention"
    if share < 0:
        return f"what bypasses attention takes {percent(-share)} of the effect back: attention overshoots"
    if share > 1:
        return f"what bypasses attention is {percent(share)} of the effect: attention takes the rest back"
    return f"{percent(share)} of the effect bypasses attention"


@INPUT_ROUTES.figure(table=("total", "no_component", "no_attention", "rest"), sentences=read_kinds)
def route_map(ds: xr.Dataset, *, components: int = _ROWS) -> go.Figure:
    """Draw how much of each segment's influence goes through each component.

    Args:
        components: rows, those of the largest effects.
    """
    size = array(ds, "size", "segment", "component").T
    order = np.argsort(-np.nan_to_num(size).sum(1), kind="stable")[:components]
    unit = unit_of(ds) or "data units"
    noise = finding(ds, "size", "component", "segment", unit=unit)
    sheet = blank(max(160, 20 * len(order)), min_width=160 + 44 * size.shape[1], below=100)
    panel = sheet.panel()
    segments = [plain(name) for name in segment_words(ds)]
    labels = [plain(names(ds, "component")[i]) for i in order]
    hover = f"%{{x}} through %{{y}}<br>%{{z:.4g}} {plain(unit)}"
    x, y = list(range(len(segments))), list(range(len(labels)))
    panel.cells(size[order], x, y, hover, noise=None if noise is None else noise.at(order))
    sheet.colours(colour_scale(f"mean absolute effect ({unit})", size, low=0.0))
    panel.x("segment of the input", tickvals=x, ticktext=segments, tickangle=40)
    panel.y(tickvals=y, ticktext=labels, autorange="reversed")
    more = f"the {len(labels)} of {size.shape[0]} components with the largest effects" * (len(labels) < size.shape[0])
    search = ""
    if ds.attrs.get("search") == "gradient":
        search = f"tried by gradient; {percent(float(ds.attrs['miss_rate']))} of spot checks were missed"
    remarks = [f"forecast of {ds.attrs.get('target', '')}", more, search]
    return sheet.dress(f"What goes through which component of {model_of(ds)}", *remarks)


ROUTE_EFFECTS = measurement("route_effects", needs=SERIES)


def read_carried(ds: xr.Dataset) -> list[str]:
    """Name the components that carry most of the input's influence over all series, against a null if there is one."""
    against = str(ds.attrs.get("against", ""))
    carried = judged(ds, "carried_share" if against else "carried", "component")
    labels = names(ds, "component")
    most = [f"{labels[place]} ({carried.told(place, percent)})" for place in carried.named(_MAX_NAMES)]
    null = {"untrained": "components of untrained twins", "shuffled series": "itself on shuffled series"}
    beyond = f"than {null.get(against, 'random components of its kind')}" if against else "than the noise"
    if not most:
        return [f"No component carries more of the input's influence {beyond}."]
    return [f"Most of the input's influence goes through {listed(most)}; each carries more {beyond}."]


@ROUTE_EFFECTS.figure(table=("carried",), sentences=read_carried)
def carried_dots(ds: xr.Dataset, *, components: int = _ROWS) -> go.Figure:
    """Draw what part of the input's influence goes through each component, over many series.

    Args:
        components: rows, those of the largest parts.

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
    fewer = f"the {len(order)} of {len(labels)} components that carry most" if len(order) < len(labels) else ""
    title, over = f"What carries the input through {model_of(ds)}", f"mean over {shown(names(ds, 'series'))}"
    return sheet.dress(title, over, fewer)


ROUTE_FAITHFULNESS = measurement("route_faithfulness", needs=SERIES)


@ROUTE_FAITHFULNESS.figure(
    table=("necessity", "sufficiency", "necessity_p", "sufficiency_p", "prediction_error", "overlap"),
    sentences=read_proof,
)
def faithfulness_dots(ds: xr.Dataset) -> go.Figure:
    """Draw what cutting, and restoring, the named routes of each segment does to its effect.

    Example:
        >>> "faithfulness_dots" in viz.__all__
        True
    """
    segments, unit = segment_words(ds), unit_of(ds) or "data units"
    canvas = sheet([max(230, 74 * len(segments))], [0.55, 0.45], column_gap=0.18, min_width=760, below=60)
    shares, change = canvas
    for place, (name, words, colour) in enumerate(
        (("necessity", "effect lost when cut", VERMILION), ("sufficiency", "effect back when restored", BLUE))
    ):
        at = np.arange(len(segments)) + 0.24 * (place - 0.5)
        random = array(ds, f"random_{name}", "segment", "draw")
        low, middle, high = 100 * np.quantile(random, [0.025, 0.5, 0.975], axis=1)
        bars = {"type": "data", "array": high - middle, "arrayminus": middle - low, "color": GREY, "thickness": 5}
        look: Look = {"colour": GREY, "size": 6, "symbol": "square", "error_x": bars | {"width": 0}}
        shares.dots(middle, at, "random components, 95 %", "random components, %{x:.0f} %", **look)
        value = 100 * array(ds, name, "segment")
        shares.dots(value, at, words, f"{words}<br>%{{x:.0f}} %", colour=colour, size=10)
    shares.upright(0.0)
    shares.upright(100.0, dash="dot")
    shares.x("share of the segment's effect", ticksuffix=" %")
    ticks: Look = {"tickvals": list(range(len(segments))), "ticktext": [plain(name) for name in segments]}
    shares.y(range=[len(segments) - 0.5, -0.5], **ticks)
    for name, look in (
        ("predicted", {"colour": INK, "dash": "dash"}),
        ("measured", {"colour": VERMILION, "width": 2.5}),
    ):
        values = array(ds, name, "step", segment=0, cut=-1)
        change.line(1 + np.arange(len(values)), values, f"{name} change", f"{name} %{{y:.4g}} {plain(unit)}", **look)
    change.level(0.0)
    change.x("forecast step")
    change.y(f"change of the forecast ({unit})")
    error = float(array(ds, "prediction_error", "segment")[0])
    right = f"at the right {segments[0]}, error of the prediction {number(100 * error)} %"
    title = f"Routes of {model_of(ds)}, cut and restored"
    return canvas.dress(title, f"forecast of {ds.attrs.get('target', '')}", right)
