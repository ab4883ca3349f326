"""Two figures of one kind as one: each in its half, with the same values and colours at the same places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import plotly.graph_objects as go

from tsfm_lens.errors import InputError
from tsfm_lens.viz.lettering import legend_pitch, legend_rows
from tsfm_lens.viz.room import axis_of, lying_width, written
from tsfm_lens.viz.theme import dress, plain

__all__ = ["side_by_side"]
_GAPS = (0.08, 0.3)  # between the halves, a share of the panels: room for the labels of the right one
_WIDEST = 2400  # pixels of both
_HEADING = 30  # pixels over the panels for the names
_AXIS = re.compile(r"^([xy])(\d*)( domain)?$")
_OTHER = {"x": "y", "y": "x"}
Part = dict[str, Any]


def side_by_side(figures: Sequence[go.Figure], names: Sequence[str], title: str = "") -> go.Figure:
    """Draw two figures of the same renderer beside each other, as of two models.

    Axes of the same title get the same range, maps of the same meaning the same colours; what both have in their legend
    is listed once.

    Args:
        figures: two, of :mod:`tsfm_lens.viz`.
        names: over each half.
        title: that of the first figure if "".

    Returns:
        A dressed figure, as wide as both.

    Raises:
        InputError: there are not two; they move or are clicked, which two halves cannot share; they are too wide
            together; their colours mean different things.

    Example:
        >>> ablated = results["ablation"]
        >>> fig = viz.side_by_side([viz.ablation_heatmap(ablated)] * 2, ["one", "another"])
        >>> len(fig.data) == 2 * len(viz.ablation_heatmap(ablated).data)
        True
    """
    if len(figures) != 2 or len(names) != 2:
        raise InputError(f"two figures with a name each can stand side by side, not {len(figures)} with {len(names)}")
    for figure in figures:
        if figure.frames or figure.layout.sliders or "legend2" in figure.layout.to_plotly_json():
            raise InputError("a figure that plays, or that shows what was clicked, cannot stand beside another")
    least = round(2 * max(figure.layout.meta["min_width"] for figure in figures))
    if least > _WIDEST:
        raise InputError(f"two of these figures side by side need {least} pixels; draw each by itself")
    gap = min(max(_beside_panels(figures[1]) / least, _GAPS[0]), _GAPS[1])
    width = (1 - gap) / 2
    starts = (0.0, width + gap)
    halves = [_half(figure, place, starts[place], width) for place, figure in enumerate(figures)]
    _agree(*(layout for layout, _ in halves))
    layout = _join([layout for layout, _ in halves])
    traces = _list_once([trace for _, traces in halves for trace in traces])
    layout["annotations"] += [
        {
            "text": f"<b>{plain(name)}</b>",
            "x": starts[place] + width / 2,
            "y": 1,
            "yanchor": "bottom",
            "yshift": max(_above(figure) for figure in figures) - 4,
            "showarrow": False,
            "xref": "paper",
            "yref": "paper",
            "font": {"size": 13},
        }
        for place, name in enumerate(names)
    ]
    return _finish(go.Figure({"data": traces, "layout": layout}), figures, names, title)


def _finish(joint: go.Figure, figures: Sequence[go.Figure], names: Sequence[str], title: str) -> go.Figure:
    """Dress the finished figure, with the space that the higher of both needs."""
    metas = [figure.layout.meta for figure in figures]
    tallest = max(figures, key=lambda figure: figure.layout.height)
    above = max(_above(figure) for figure in figures)
    least = round(2 * max(meta["min_width"] for meta in metas))
    rows = legend_rows(joint.layout.to_plotly_json(), [trace.to_plotly_json() for trace in joint.data], least)
    legend = round(tallest.layout.meta.get("legend_rows", 0) * legend_pitch({}))
    below = int(tallest.layout.margin.b) - legend + round(rows * legend_pitch({}))
    panels = int(tallest.layout.height - tallest.layout.margin.t - tallest.layout.margin.b)
    words = [f"{name}: {meta['subtitle']}" for name, meta in zip(names, metas, strict=True) if meta["subtitle"]]
    subtitle = metas[0]["subtitle"] if metas[0]["subtitle"] == metas[1]["subtitle"] else "; ".join(words)
    fig = dress(
        joint,
        title or metas[0]["title"],
        subtitle,
        plot_height=panels,
        above=above + _HEADING,
        below=below,
        min_width=least,
    )
    fig.layout.meta = {**fig.layout.meta, "legend_rows": rows}
    fig.update_layout(margin_r=max(int(figure.layout.margin.r) for figure in figures))
    return fig


def _beside_panels(figure: go.Figure) -> float:
    """Return the pixels left of the panels of a figure, for labels and titles."""
    layout, traces = written(figure)
    return 1.15 * (figure.layout.width or 1000) - 1.15 * lying_width(layout, traces, figure.layout.width or 1000)


def _above(figure: go.Figure) -> int:
    """Return the pixels between the title of a figure and its panels."""
    return int(figure.layout.margin.t - figure.layout.meta["title_height"])


def _half(figure: go.Figure, place: int, start: float, width: float) -> tuple[Part, list[Part]]:
    """Return layout and traces of one figure, its axes renamed and moved into its half."""
    layout, traces = figure.layout.to_plotly_json(), [trace.to_plotly_json() for trace in figure.data]
    off = place * _axes_of(layout, traces)

    def rename(name: str) -> str:
        match = _AXIS.match(name)
        if not match:
            return name
        number = int(match[2] or 1) + off
        return f"{match[1]}{number if number > 1 else ''}{match[3] or ''}"

    def across(x: float) -> float:
        return start + width * x

    result: Part = {}
    for name, part in layout.items():
        if re.fullmatch(r"[xy]axis\d*", name):
            short = rename(name.replace("axis", ""))
            low, high = part.get("domain") or (0, 1)
            result[f"{short[0]}axis{short[1:]}"] = {
                **part,
                **({"domain": [across(low), across(high)]} if name[0] == "x" else {}),
                **{key: rename(part[key]) for key in ("matches", "overlaying", "scaleanchor") if key in part},
                "anchor": rename(part.get("anchor") or _OTHER[name[0]]),
            }
        elif re.fullmatch(r"coloraxis\d*", name):
            bar = part.get("colorbar", {})
            lying = bar.get("orientation") == "h"
            at = {"x": across(bar.get("x", 0.5)), "len": width * bar.get("len", 1)} if lying else {"x": across(1.02)}
            number = int(name.removeprefix("coloraxis") or 1) + 20 * place
            result[f"coloraxis{number}"] = {**part, "colorbar": {**bar, **at}}
        elif name in ("annotations", "shapes"):
            result[name] = [_move(each, rename, across) for each in part]
        elif name in ("barmode", "bargap", "showlegend"):
            result[name] = part
    for trace in traces:
        for letter in "xy":
            trace[f"{letter}axis"] = rename(trace.get(f"{letter}axis") or letter)
        if "coloraxis" in trace:
            trace["coloraxis"] = f"coloraxis{int(trace['coloraxis'].removeprefix('coloraxis') or 1) + 20 * place}"
    for letter in "xy":
        for name in {axis_of(trace, letter) for trace in traces} - set(result):
            ends = {"domain": [across(0), across(1)]} if letter == "x" else {}
            result[name] = {**ends, "anchor": rename(_OTHER[letter])}
    return result, traces


def _axes_of(layout: Part, traces: Sequence[Part]) -> int:
    """Return the highest number of an axis."""
    axes = [name for name in layout if re.fullmatch(r"[xy]axis\d*", name)]
    axes += [axis_of(trace, letter) for trace in traces for letter in "xy"]
    return max(int(re.sub(r"\D", "", name) or 1) for name in axes) if axes else 1


def _move(each: Part, rename: Any, across: Any) -> Part:
    """Move a note or a shape to its place in its half."""
    refs = {f"{letter}ref": rename(each.get(f"{letter}ref") or letter) for letter in "xy"}
    tails: Part = {key: rename(each[key]) for key in ("axref", "ayref") if key in each}
    result: Part = {**each, **refs, **tails}
    if each.get("xref") == "paper":
        result |= {key: across(each[key]) for key in ("x", "x0", "x1") if key in each}
    return result


def _agree(one: Part, other: Part) -> None:
    """Give axes of the same title the same range, and the same meaning the same colours."""
    for name, of_one, of_other in _pairs(one, other):
        letter = name[0]
        words = [part.get("title", {}).get("text") for part in (of_one, of_other)]
        if words[0] != words[1] or of_one.get("type") != of_other.get("type"):
            continue
        ends: list[Any] = [part.get("range") for part in (of_one, of_other)]
        if letter == "c":
            low = min(float(part["cmin"]) for part in (of_one, of_other))
            high = max(float(part["cmax"]) for part in (of_one, of_other))
            for part in (of_one, of_other):
                part |= {"cmin": low, "cmax": high}
            if of_one["colorbar"].get("orientation") != "h":
                # one bar says it for both
                of_one["showscale"] = False
        elif letter == "y" and None not in ends and all(end[0] < end[1] for end in ends):
            both = [min(end[0] for end in ends), max(end[1] for end in ends)]
            of_one["range"] = of_other["range"] = both
        elif letter == "y" and words[0] and ends == [None, None] and "matches" not in of_other and _free(of_one):
            of_other["matches"] = name.replace("axis", "")


def _free(axis: Part) -> bool:
    """Return whether plotly chooses the range of an axis of numbers."""
    return axis.get("type") in (None, "linear", "log") and "autorange" not in axis and "tickvals" not in axis


def _pairs(one: Part, other: Part) -> Iterator[tuple[str, Part, Part]]:
    """Yield axes and colour axes of both, in their order, under the name that the first has.

    Raises:
        InputError: colours mean different things.
    """
    for letter, pattern in (("x", r"xaxis\d*"), ("y", r"yaxis\d*"), ("c", r"coloraxis\d*")):
        groups = [
            [(name, part) for name, part in layout.items() if re.fullmatch(pattern, name)] for layout in (one, other)
        ]
        for (name, of_one), (_, of_other) in zip(*groups, strict=False):
            if letter == "c":
                words = [part.setdefault("colorbar", {}).get("title", {}).get("text") for part in (of_one, of_other)]
                if words[0] != words[1]:
                    meanings = " and ".join(repr(str(word).replace("<br>", " ")) for word in words)
                    raise InputError(f"colours of the two mean different things, {meanings}; draw each by itself")
            yield name, of_one, of_other


def _join(layouts: Sequence[Part]) -> Part:
    joint: Part = {"annotations": [], "shapes": []}
    for layout in layouts:
        for name, part in layout.items():
            if name in ("annotations", "shapes"):
                joint[name] += part
            else:
                joint[name] = part
    return joint


def _list_once(traces: list[Part]) -> list[Part]:
    """Show each entry of the legend once, in order."""
    entries: set[str] = set()
    for trace in traces:
        if trace.get("showlegend"):
            entry = trace.get("legendgroup") or trace.get("name") or ""
            trace["showlegend"] = entry not in entries
            entries.add(entry)
    return traces
