"""Two figures of one kind as one: each in its half, with the same values and colours at the same places."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import plotly.graph_objects as go

from tsfm_lens.errors import InputError
from tsfm_lens.viz.sheet import legend_rows
from tsfm_lens.viz.theme import LEGEND_ROW, dress, plain

__all__ = ["compare"]
_GAPS = (
    0.08,
    0.3,
)  # between the halves, a share of the panels: room for the labels of the right one
_WIDEST = 2400  # pixels of both
_HEADING = 30  # pixels over the panels for the names
SHIFT = 100  # numbers between the axes of one figure and those of the next
_AXIS = re.compile(r"(x|y|xaxis|yaxis|coloraxis)(\d*)( domain)?")
_REFERENCES = {
    *("xaxis", "xref", "axref", "yaxis", "yref", "ayref"),
    *("coloraxis", "anchor", "matches", "overlaying", "scaleanchor"),
}
Part = dict[str, Any]
Move = Callable[[float], float]


def compare(
    figures: Sequence[go.Figure], names: Sequence[str], title: str = ""
) -> go.Figure:
    """Draw two figures of the same renderer beside each other, on the same axes and colours, as of two models.

    Args:
        figures: two, of :mod:`tsfm_lens.viz`.
        names: over each half.
        title: that of the first figure if "".

    Raises:
        InputError: they cannot share a figure.

    Example:
        >>> ablated = results["ablation_effects"]
        >>> fig = viz.compare([viz.ablation_heatmap(ablated)] * 2, ["one", "another"])
        >>> len(fig.data) == 2 * len(viz.ablation_heatmap(ablated).data)
        True
    """
    if len(figures) != 2 or len(names) != 2:
        raise InputError(
            f"compare takes two figures and two names, not {len(figures)} and {len(names)}"
        )
    for figure in figures:
        if "legend2" in figure.layout.to_plotly_json():
            raise InputError(
                "a figure with a legend inside a panel cannot be drawn side by side"
            )
    metas, margins = (
        [fig.layout.meta for fig in figures],
        [fig.layout.margin for fig in figures],
    )
    least = round(2 * max(meta["min_width"] for meta in metas))
    if least > _WIDEST:
        raise InputError(
            f"two of these figures side by side need {least} pixels; draw each by itself"
        )
    gap = min(max(1.4 * metas[1]["left"] / least, _GAPS[0]), _GAPS[1])
    width = (1 - gap) / 2
    above = max(
        margin.t - meta["title_height"]
        for margin, meta in zip(margins, metas, strict=True)
    )
    starts = (0, width + gap)
    halves = [
        moved(fig, i * SHIFT, partial(_across, starts[i], width))
        for i, fig in enumerate(figures)
    ]
    _agree(*(layout for layout, _ in halves))
    notes = [note for layout, _ in halves for note in layout.pop("annotations", [])]
    shapes = [shape for layout, _ in halves for shape in layout.pop("shapes", [])]
    for place, name in enumerate(names):
        where = {
            "x": place * (width + gap) + width / 2,
            "y": 1,
            "yanchor": "bottom",
            "yshift": above - 4,
            "xanchor": "center",
        }
        on_paper = {
            "xref": "paper",
            "yref": "paper",
            "showarrow": False,
            "font": {"size": 13},
        }
        notes.append({"text": f"<b>{plain(name)}</b>", **where, **on_paper})
    traces = list_once([trace for _, traces in halves for trace in traces])
    layout = halves[0][0] | halves[1][0] | {"annotations": notes, "shapes": shapes}
    joint = go.Figure({"data": traces, "layout": layout})
    joint.layout.margin.r = max(margin.r for margin in margins)
    tallest = max(figures, key=lambda figure: figure.layout.height).layout
    words = [
        f"{name}: {meta['subtitle']}"
        for name, meta in zip(names, metas, strict=True)
        if meta["subtitle"]
    ]
    return dress(
        joint,
        title or metas[0]["title"],
        metas[0]["subtitle"]
        if metas[0]["subtitle"] == metas[1]["subtitle"]
        else "; ".join(words),
        plot_height=int(tallest.height - tallest.margin.t - tallest.margin.b),
        above=int(above) + _HEADING,
        below=int(tallest.margin.b) - LEGEND_ROW * tallest.meta["legend_rows"],
        legend=legend_rows(joint, least),
        min_width=least,
        left=metas[0]["left"],
        bare=2 * max(meta["bare_width"] for meta in metas),
    )


def _across(start: float, width: float, x: float) -> float:
    return start + width * x


def moved(
    figure: go.Figure, shift: int, across: Move, up: Move = lambda y: y
) -> tuple[Part, list[Part]]:
    """Return layout and traces of one figure, axes numbered from ``shift`` on, moved into its part of a sheet."""

    def later(name: Any) -> Any:
        match = _AXIS.fullmatch(name) if isinstance(name, str) and shift else None
        return (
            f"{match[1]}{int(match[2] or 1) + shift}{match[3] or ''}" if match else name
        )

    def renamed(part: Part) -> Part:
        return {
            key: later(value) if key in _REFERENCES else value
            for key, value in part.items()
        }

    moves, layout, result = (
        {"x": across, "y": up},
        figure.layout.to_plotly_json(),
        Part(),
    )
    traces = [
        {"xaxis": "x", "yaxis": "y", **trace.to_plotly_json()} for trace in figure.data
    ]
    for axis in [trace[f"{letter}axis"] for trace in traces for letter in "xy"]:
        layout.setdefault(axis.replace(axis[0], f"{axis[0]}axis"), {})
    for name, part in layout.items():
        if re.fullmatch(r"[xy]axis\d*", name):
            axis = renamed({"anchor": "y" if name[0] == "x" else "x", **part})
            axis["domain"] = [
                moves[name[0]](end) for end in part.get("domain") or (0, 1)
            ]
            result[later(name)] = axis
        elif name.startswith("coloraxis"):
            bar = part.get("colorbar", {})
            lying = bar.get("orientation") == "h"
            along, start = (across, 0.5) if lying else (up, 1.02)
            at = {
                "x": across(bar.get("x", start)),
                "y": up(bar.get("y", 1.02 if lying else 0.5)),
            }
            result[later(name)] = {
                **part,
                "colorbar": {**bar, **at, "len": along(bar.get("len", 1)) - along(0)},
            }
        elif name in ("annotations", "shapes"):
            result[name] = [
                renamed({"xref": "x", "yref": "y", **each}) for each in part
            ]
            for each in result[name]:
                for side, move in moves.items():
                    if each[f"{side}ref"] == "paper":
                        each |= {
                            key: move(each[key])
                            for key in (side, f"{side}0", f"{side}1")
                            if key in each
                        }
        elif name in ("barmode", "bargap", "showlegend"):
            result[name] = part
    for axis in [
        part for part in result.values() if isinstance(part, dict) and "matches" in part
    ]:
        model = result[
            axis["matches"].replace(axis["matches"][0], f"{axis['matches'][0]}axis")
        ]
        # plotly loses lines where an axis matches a later one and others match across
        if "range" in model:
            axis["range"] = model["range"]
            del axis["matches"]
    return result, [renamed(trace) for trace in traces]


def _agree(one: Part, other: Part) -> None:
    """Give axes of the same title the same range, and the same meaning the same colours."""
    for kind in ("yaxis", "coloraxis"):
        groups = [
            [name for name in layout if name.startswith(kind)]
            for layout in (one, other)
        ]
        for name, name_of_other in zip(*groups, strict=False):
            pair = one[name], other[name_of_other]
            if kind == "coloraxis":
                _share_colours(*pair)
            elif (
                len(
                    {
                        (part.get("title", {}).get("text"), part.get("type"))
                        for part in pair
                    }
                )
                == 1
            ):
                ends: list[Any] = [part.get("range") for part in pair]
                first, second = pair
                linear = first.get("type") in (
                    None,
                    "linear",
                    "log",
                ) and not first.keys() & {"autorange", "tickvals"}
                if all(end is not None and end[0] < end[1] for end in ends):
                    first["range"] = second["range"] = [
                        min(end[0] for end in ends),
                        max(end[1] for end in ends),
                    ]
                elif (
                    ends == [None, None]
                    and first.get("title", {}).get("text")
                    and "matches" not in second
                    and linear
                ):
                    second["matches"] = name.replace("axis", "")


def _share_colours(one: Part, other: Part) -> None:
    words = [
        str(part["colorbar"].get("title", {}).get("text")).replace("<br>", " ")
        for part in (one, other)
    ]
    if words[0] != words[1]:
        raise InputError(
            f"the colours of the two figures differ in meaning, {words[0]!r} and {words[1]!r}; draw each by itself"
        )
    ends = {
        "cmin": min(one["cmin"], other["cmin"]),
        "cmax": max(one["cmax"], other["cmax"]),
    }
    one |= ends
    other |= ends
    if one["colorbar"].get("orientation") != "h":
        # one bar says it for both
        one["showscale"] = False


def list_once(traces: list[Part]) -> list[Part]:
    """Show each entry of the legend once, in order."""
    entries: set[str] = set()
    for trace in traces:
        if trace.get("showlegend"):
            entry = trace.get("legendgroup") or trace.get("name") or ""
            trace["showlegend"] = entry not in entries
            entries.add(entry)
    return traces
