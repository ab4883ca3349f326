"""Routes of the input through components to the forecast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.needs import SERIES
from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.room import shortened, text_width
from tsfm_lens.viz.select import array, kind_word, model_of, names, segment_words, unit_of
from tsfm_lens.viz.sheet import Panel, blank
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.theme import CATEGORICAL, GREY, mixed, number, percent, plain
from tsfm_lens.viz.words import capital, listed, measured

__all__ = ["route_map", "route_river"]
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


INPUT_ROUTES = measurement(
    "input_routes",
    theme="Inputs",
    title="Routes of the input",
    summary="effect of each segment of the input through each head and MLP, total and direct, with what it sums to",
    description="The model sees the series with and without a segment. The effect through a component is the change of "
    "the forecast when that component alone writes what it writes without the segment; a chain of components "
    "carries one effect, and each of them has it in full. The first number in a component's name is its "
    "layer, and one at its end the head, both counted from 0.",
    source="Wang et al. 2022; Goldowsky-Dill et al. 2023",
    needs=SERIES,
)


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
    kinds = [f"{stack} {kind_word(str(kind))}".strip() for stack, kind in zip(*_places(ds), strict=True)]
    by_kind = {kind: float(size[[each == kind for each in kinds]].max()) for kind in dict.fromkeys(kinds)}
    amount = measured(unit_of(ds))
    largest = [f"{kind} {amount(value)}" for kind, value in sorted(by_kind.items(), key=lambda item: -item[1])]
    return [
        f"Of all segments together, most goes through {names(ds, 'component')[int(size.argmax())]}. The largest of "
        f"each kind: {listed(largest)}."
    ]


def _places(ds: xr.Dataset) -> tuple[list[str], list[str]]:
    return [str(stack) for stack in ds["stack"].values], [str(kind) for kind in ds["component_kind"].values]


@dataclass(frozen=True)
class Column:
    """Nodes above one another.

    Attributes:
        labels, colours, notes: of the nodes; sizes: their heights in data units.
        low: the lower end of each, in the figure's units.
    """

    labels: list[str]
    sizes: np.ndarray
    colours: list[str]
    notes: list[str]
    low: np.ndarray


@INPUT_ROUTES.figure(
    "Through which components stretches of the input reach the forecast.",
    variables=("effect", "size", "total"),
    table=lambda ds: frame(ds, "size", "share").dropna(ignore_index=True),
    sentences=read_routes,
)
def route_river(ds: xr.Dataset, *, components: int = _ARMS) -> go.Figure:
    """Draw what each segment moves the forecast, as a river over components to the forecast's steps.

    Args:
        ds: of kind "input_routes".
        components: that are drawn by name; all others are one arm.

    Returns:
        Segments at the left, components in the middle, groups of forecast steps at the right. Arms are as wide as the
        mean absolute effect in data units. Effects through components of one chain overlap, so the river is wider than
        the effects of the segments. Hover boxes have these effects.
    """
    effect = np.abs(np.nan_to_num(array(ds, "effect", "segment", "component", "step")))
    none = np.abs(array(ds, "no_component", "segment", "step")) if "no_component" in ds else None
    labels, kinds = names(ds, "component"), [str(kind) for kind in ds["component_kind"].values]
    order = [int(i) for i in np.argsort(-effect.sum((0, 2)), kind="stable")]
    leading = sorted(i for i in order[:components] if effect[:, i].any())
    rest = [i for i in order if i not in leading]
    parts, arms, kind_of = [effect[:, i] for i in leading], [labels[i] for i in leading], [kinds[i] for i in leading]
    if rest and effect[:, rest].any():
        parts, arms, kind_of = [*parts, effect[:, rest].sum(1)], [*arms, f"{len(rest)} {_OTHERS}"], [*kind_of, ""]
    if none is not None:
        parts, arms, kind_of = [*parts, none], [*arms, _NONE], [*kind_of, ""]
    flow = np.stack(parts, axis=1)
    bins = np.array_split(np.arange(flow.shape[2]), min(_BINS, flow.shape[2]))
    steps = flow.shape[2]
    unit = unit_of(ds) or "data units"
    tints = {
        kind: CATEGORICAL[place % len(CATEGORICAL)] for place, kind in enumerate(dict.fromkeys(filter(None, kind_of)))
    }
    columns = _columns(ds, flow, arms, [tints.get(kind, GREY) for kind in kind_of], bins, unit)
    height = max(300, 2 * _LINE * max(sum(1 + label.count("<br>") for label in column.labels) for column in columns))
    sheet = blank(height, min_width=640, below=16)
    panel = sheet.panel()
    widths = flow.mean(2)
    late = np.stack([flow[..., steps_in].sum((0, 2)) / steps for steps_in in bins], axis=1)
    words = [kind_word(kind) if kind else "other" for kind in kind_of]
    _ribbons(panel, 0, columns[0], columns[1], widths, by_target=True, words=words, unit=unit)
    _ribbons(panel, 1, columns[1], columns[2], late, by_target=False, words=words, unit=unit)
    _nodes(panel, columns)
    room = max(text_width(label, _TYPE) for label in columns[0].labels) / 640
    panel.x(visible=False, range=[-0.1 - 2.6 * room, 2.45])
    panel.y(visible=False, range=[-0.03, 1.03])
    share = _share_words(ds)
    return sheet.dress(
        f"Routes of the input through {model_of(ds)}",
        f"forecast of {ds.attrs.get('target', '')}, mean absolute effect in {unit}; a chain of components carries one "
        "effect, and each of them has it in full",
        share,
    )


def _columns(
    ds: xr.Dataset, flow: np.ndarray, arms: list[str], tints: list[str], bins: Sequence[np.ndarray], unit: str
) -> list[Column]:
    """Build segments, components and groups of steps, of equal sums."""
    segments = segment_words(ds)
    total = np.abs(array(ds, "total", "segment", "step")).mean(1)
    size = flow.mean(2)
    steps = [f"step {b[0] + 1}" if len(b) == 1 else f"steps {b[0] + 1}–{b[-1] + 1}" for b in bins]
    late = np.array([flow[..., b].sum() for b in bins]) / flow.shape[2]
    moves = [
        f"{plain(name)}<br>moves the forecast by {number(t)} {plain(unit)}"
        for name, t in zip(segments, total, strict=True)
    ]
    through = [
        f"{plain(name)}<br>{number(s)} {plain(unit)} of all segments" for name, s in zip(arms, size.sum(0), strict=True)
    ]
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
        columns.append(Column([_fold(label) for label in labels], heights, colours, notes, top - heights))
    return columns


def _ribbons(
    panel: Panel,
    at: int,
    left: Column,
    right: Column,
    widths: np.ndarray,
    *,
    by_target: bool,
    words: list[str],
    unit: str,
) -> None:
    """Draw arms between two columns; widths (left, right) in data units."""
    scale = left.sizes.sum() / max(float(widths.sum()), np.finfo(float).tiny)
    starts = left.low + left.sizes
    ends = right.low + right.sizes
    for i in range(len(left.labels)):
        for j in range(len(right.labels)):
            width = widths[i, j] * scale
            if width <= 1e-3:
                starts[i] -= width
                ends[j] -= width
                continue
            arm = j if by_target else i
            colour = (right if by_target else left).colours[arm]
            x, y = _ribbon(at + _WIDE, at + 1 - _WIDE, starts[i], ends[j], width)
            panel.line(
                x,
                y,
                words[arm],
                colour=mixed(colour, 0.55),
                width=0,
                fill="toself",
                fillcolor=_thin(colour),
            )
            text = f"{left.labels[i]} → {right.labels[j]}<br>{number(widths[i, j])} {plain(unit)}"
            middle = (starts[i] + ends[j] - width) / 2
            panel.dots([at + 0.5], [middle], "", "%{text}", colour=colour, size=6, text=[text], opacity=0, legend=False)
            starts[i] -= width
            ends[j] -= width


def _thin(colour: str) -> str:
    """Return a colour through which arms beneath can be seen."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.42)"


def _ribbon(x0: float, x1: float, y0: float, y1: float, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the outline of a ribbon between two heights, by a cubic curve that leaves and arrives level."""
    t = np.linspace(0, 1, _BEND)
    way = 3 * t**2 - 2 * t**3
    upper = y0 + (y1 - y0) * way
    x = x0 + (x1 - x0) * t
    return np.concatenate([x, x[::-1]]), np.concatenate([upper, (upper - width)[::-1]])


def _nodes(panel: Panel, columns: Sequence[Column]) -> None:
    for at, column in enumerate(columns):
        for label, low, size, colour, note in _each(column):
            panel.shape("rect", (at - _WIDE, at + _WIDE), (low, low + size), line={"width": 0}, fillcolor=colour)
            middle = low + size / 2
            panel.dots([at], [middle], "", "%{text}", colour=colour, size=8, text=[note], opacity=0, legend=False)
            place = (
                {"xanchor": "right", "x": at - _WIDE - 0.01} if at == 0 else {"xanchor": "left", "x": at + _WIDE + 0.01}
            )
            back = {} if at != 1 else {"bgcolor": "rgba(255,255,255,0.75)", "borderpad": 0}
            panel.note(label, place["x"], middle, size=_TYPE, xanchor=place["xanchor"], yanchor="middle", **back)


def _fold(label: str) -> str:
    """Write a name in two lines at most, safe for plotly."""
    return plain(shortened(label, _NAME, _TYPE, 2)).replace("\n", "<br>")


def _each(column: Column) -> Iterator[tuple[str, float, float, str, str]]:
    yield from zip(column.labels, column.low, column.sizes, column.colours, column.notes, strict=True)


def _share_words(ds: xr.Dataset) -> str:
    """Write what share of the largest segment's effect has no route through attention."""
    if "no_attention_share" not in ds:
        return ""
    largest = int(np.argmax(np.abs(array(ds, "total", "segment", "step")).mean(1)))
    share = float(array(ds, "no_attention_share", "segment")[largest])
    words = past_attention(share)
    # next to nothing is not worth a word
    return f"{segment_words(ds)[largest]}: {words}" if words and abs(share) >= WORTH_A_WORD else ""


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


@INPUT_ROUTES.figure(
    "How much of each stretch's influence goes through each component.",
    variables=("size", "total"),
    table=("total", "no_component", "no_attention", "rest"),
    sentences=read_kinds,
)
def route_map(ds: xr.Dataset, *, components: int = _ROWS) -> go.Figure:
    """Draw how much of each segment's influence goes through each component.

    Args:
        ds: of kind "input_routes".
        components: rows, those of the largest effects.

    Returns:
        A map of component × segment in data units, the strongest component on top; pale cells do not stand out of the
        noise, and empty ones were not tried.
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
    panel.cells(
        size[order],
        list(range(len(segments))),
        list(range(len(labels))),
        hover,
        noise=None if noise is None else noise.at(order),
    )
    sheet.colours(colour_scale(f"mean absolute effect ({unit})", size, low=0.0))
    panel.x("segment of the input", tickvals=list(range(len(segments))), ticktext=segments, tickangle=40)
    panel.y(tickvals=list(range(len(labels))), ticktext=labels, autorange="reversed")
    more = f"the {len(labels)} of {size.shape[0]} components with the largest effects" * (len(labels) < size.shape[0])
    search = ""
    if ds.attrs.get("search") == "gradient":
        search = f"tried by gradient; {percent(float(ds.attrs['miss_rate']))} of spot checks were missed"
    return sheet.dress(
        f"What goes through which component of {model_of(ds)}",
        f"forecast of {ds.attrs.get('target', '')}",
        more,
        search,
    )
