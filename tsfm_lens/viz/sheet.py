"""The grammar of figures: a sheet of panels, and the marks that are drawn on them.

A renderer says what stands on the axes, on which scale and in which words. How a curve, a fan, bars, points or a map
look, what their hover boxes and the legend show, and how much room all of it takes, is said here once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tsfm_lens.viz.noise import Finding
from tsfm_lens.viz.theme import GREY, INK, PALE, dress, mixed, number, plain

Look = dict[str, Any]
"""Settings of a mark or an axis."""

PRINTED = 500  # cells of a map that still have room for their number
_BAR_MARGIN, _BAR_LENGTH = 96, 320  # pixels beside the panels for a colour bar, and its longest
_DOTTED = 60  # rows or columns of a map that still have room for a dot each


@dataclass
class Sheet:
    """A figure being drawn.

    Attributes:
        fig: the figure; places: (row, column) of each panel, counted from 1.
        plot_height: of all panels together; above: room for the highest titles; min_width: all in pixels.
        below: pixels under the panels for ticks and titles.
        legend: what the legend has so far; each entry is listed once, however many panels have it.
        signs: how what does not stand out of the noise is drawn; floors: the noise floors that the figure has;
        banded: whether one is drawn.
    """

    fig: go.Figure
    places: list[tuple[int, int]]
    plot_height: int
    above: int = 10
    min_width: int = 360
    below: int = 52
    legend: set[str] = field(default_factory=set)
    signs: dict[str, None] = field(default_factory=dict)
    floors: dict[str, None] = field(default_factory=dict)
    banded: bool = False

    @property
    def room(self) -> dict[str, int]:
        """What ``dress`` needs to know."""
        return {"plot_height": self.plot_height, "above": self.above, "min_width": self.min_width}

    def panel(self, row: int = 1, col: int = 1, **axes: Any) -> Panel:
        """One panel; ``axes`` says which, where a place has two."""
        return Panel(self, {"row": row, "col": col, **axes} if self.places else {})

    def __iter__(self) -> Iterator[Panel]:
        return (self.panel(*place) for place in self.places) if self.places else iter([self.panel()])

    def x(self, title: str | None = None, **settings: Any) -> None:
        """Settings of every horizontal axis."""
        self.fig.update_xaxes(**_titled(title), **settings)

    def y(self, title: str | None = None, **settings: Any) -> None:
        """Settings of every vertical axis."""
        self.fig.update_yaxes(**_titled(title), **settings)

    def colours(self, scale: dict[str, Any]) -> None:
        """Colours of all maps, with a bar beside them that is no longer than needed to read it."""
        bar = {"len": min(1.0, _BAR_LENGTH / self.plot_height), **scale["colorbar"]}
        self.fig.update_layout(coloraxis={**scale, "colorbar": bar}, margin_r=_BAR_MARGIN)

    def noisy(self, noise: Finding, sign: str, drawn: bool) -> None:
        """Remember for the subtitle the floor of a finding, and the sign of what does not stand out if drawn."""
        if noise.floor > 0:
            self.floors[f"{number(noise.floor)} {noise.unit}".strip()] = None
        if drawn:
            self.signs[sign] = None

    def _noise_words(self) -> str:
        signs, floors = " or ".join(self.signs), list(self.floors)
        floor = f"the noise floor of {floors[0]}" if len(floors) == 1 else "the noise floor"
        band = " (grey band)" * self.banded
        if signs:
            return f"{signs}: not above {floor}{band}"
        return f"{floor.removeprefix('the ')}{band}" if len(floors) == 1 else ""

    def dress(self, title: str, *remarks: str, legend_rows: int | None = None) -> go.Figure:
        """The finished figure.

        Args:
            title: plain words.
            remarks: parts of the subtitle; empty ones are left out, what is drawn of the noise is added.
            legend_rows: lines of legend; one if there is any legend unless given.
        """
        right = self.fig.layout.margin.r
        rows = int(bool(self.legend)) if legend_rows is None else legend_rows
        words = "; ".join(remark for remark in (*remarks, self._noise_words()) if remark)
        fig = dress(self.fig, title, words, below=self.below, legend_rows=rows, **self.room)
        return fig if right is None else fig.update_layout(margin_r=right)


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a sheet, and what can be drawn on it.

    ``hover`` is always plotly's template of a hover box, "" for none; names are shown letter by letter.
    """

    sheet: Sheet
    at: dict[str, Any]

    def add(
        self,
        kind: Callable[..., Any],
        name: str,
        hover: str,
        *,
        legend: bool = True,
        group: str | None = None,
        **props: Any,
    ) -> None:
        """Add a trace; ``group``: with which entry of the legend it is hidden, its own unless given."""
        entry = group or name
        listed = legend and bool(name) and entry not in self.sheet.legend
        if listed:
            self.sheet.legend.add(entry)
        told = {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}
        shown = {"legendgroup": plain(entry)} if entry else {}
        trace = kind(name=plain(name) or None, showlegend=listed, **shown, **told, **props)
        self.sheet.fig.add_trace(trace, **self.at)

    def line(
        self,
        x: Any,
        y: Any,
        name: str = "",
        hover: str = "",
        *,
        colour: str = INK,
        width: float = 1.5,
        dash: str | None = None,
        dots: float = 0,
        noise: Finding | None = None,
        **more: Any,
    ) -> None:
        """A curve, with dots of a size on it; over a band of its interval where the noise is known."""
        if noise is not None and noise.spread:
            self.band(x, noise.low, noise.high, mixed(colour, 0.2), f"{name} interval")
        look: Look = {"color": colour, "width": width} | ({"dash": dash} if dash else {})
        marks: Look = {"marker": {"size": dots}} if dots else {}
        options: Look = {"mode": "lines+markers" if dots else "lines", "line": look, **marks}
        self.add(go.Scatter, name, hover, x=x, y=y, **{**options, **more})

    def band(self, x: Any, low: Any, high: Any, colour: str, name: str, *, legend: bool = False) -> None:
        """The area between two curves."""
        look: Look = {"x": x, "mode": "lines", "line": {"width": 0, "color": colour}, "group": name}
        self.add(go.Scatter, f"{name} from", "", y=low, legend=False, **look)
        self.add(go.Scatter, name, "", y=high, fill="tonexty", fillcolor=colour, legend=legend, **look)

    def dots(
        self,
        x: Any,
        y: Any,
        name: str = "",
        hover: str = "",
        *,
        colour: Any = INK,
        size: float = 7,
        symbol: Any = None,
        edge: str | None = None,
        noise: Finding | None = None,
        across: bool = False,
        **more: Any,
    ) -> None:
        """Points, with whiskers (``across``: along the horizontal axis) and hollow where the noise says so."""
        marker: Look = {"color": colour, "size": size}
        marker |= {"symbol": symbol} if symbol is not None else {}
        marker |= {"line": {"color": edge, "width": 0.5}} if edge else {}
        marker |= more.pop("marker", {})
        if noise is not None:
            marker["symbol"] = [f"{symbol or 'circle'}{'-open' * bool(pale)}" for pale in noise.pale]
            self.sheet.noisy(noise, "hollow", bool(noise.pale.any()))
        bars = _whiskers(noise, x if across else y, across=across)
        self.add(go.Scatter, name, hover, x=x, y=y, **{"mode": "markers", "marker": marker, **bars, **more})

    def bars(
        self,
        places: Any,
        lengths: Any,
        name: str = "",
        hover: str = "",
        *,
        colour: Any = GREY,
        across: bool = False,
        noise: Finding | None = None,
        **more: Any,
    ) -> None:
        """Bars upwards, or to the right (``across``), with whiskers and hatched where the noise says so."""
        where = {"x": lengths, "y": places, "orientation": "h"} if across else {"x": places, "y": lengths}
        marker: Look = {"color": colour}
        if noise is not None:
            shapes = ["/" * bool(pale) for pale in noise.pale]
            marker["pattern"] = {"shape": shapes, "fillmode": "replace", "size": 6, "solidity": 0.3}
            self.sheet.noisy(noise, "hatched", bool(noise.pale.any()))
        self.add(go.Bar, name, hover, marker=marker, **where, **_whiskers(noise, lengths, across=across), **more)

    def cells(
        self,
        z: np.ndarray,
        x: Any = None,
        y: Any = None,
        hover: str = "",
        *,
        write: Callable[[float], str] | None = None,
        printed: int = PRINTED,
        noise: Finding | None = None,
        **more: Any,
    ) -> None:
        """A heat map on the sheet's colours.

        Args:
            z: (row, column), NaN where there is nothing.
            x, y: labels or edges.
            write: how a number is written in its cell, none if None.
            printed: the most cells that get their number.
            noise: of (row, column); cells that do not stand out of it are drawn pale under a dot, or with their
                number in brackets.
        """
        where = {name: value for name, value in (("x", x), ("y", y)) if value is not None}
        kept = np.ones(z.shape, dtype=bool) if noise is None else noise.stands
        texts = [[write(float(v)) if np.isfinite(v) else "" for v in row] for row in z] if write else None
        if texts is not None and z.size <= printed:
            more |= {
                "text": [
                    [text * bool(k) for text, k in zip(*rows, strict=True)] for rows in zip(texts, kept, strict=True)
                ],
                "texttemplate": "%{text}",
                "textfont": {"size": 10 if z.shape[1] > 12 else 11},
            }
        else:
            texts = None
        options: Look = {"coloraxis": "coloraxis", "xgap": 1, "ygap": 1, "hoverongaps": False, **more}
        self.sheet.fig.add_trace(
            go.Heatmap(z=z, hovertemplate=f"{hover}<extra></extra>", **where, **options), **self.at
        )
        if noise is not None:
            veiled = noise.pale & np.isfinite(z)
            self.sheet.noisy(noise, "pale, dotted" if texts is None else "pale, in brackets", bool(veiled.any()))
            if veiled.any():
                self._veil(z, veiled, texts, where)

    def _veil(self, z: np.ndarray, veiled: np.ndarray, texts: list[list[str]] | None, where: dict[str, Any]) -> None:
        """White over cells that do not stand out, and a sign in each that needs no colour."""
        if texts is not None:
            signs = [
                [f"({text})" * bool(v) for text, v in zip(*rows, strict=True)]
                for rows in zip(texts, veiled, strict=True)
            ]
        else:
            signs = [["·" * bool(v and max(z.shape) <= _DOTTED) for v in row] for row in veiled]
        white = "rgba(255,255,255,0.6)"
        self.sheet.fig.add_trace(
            go.Heatmap(
                z=np.where(veiled, 0.0, np.nan),
                **where,
                name=NOT_ABOVE,
                colorscale=[[0, white], [1, white]],
                zmin=0,
                zmax=1,
                showscale=False,
                hoverinfo="skip",
                text=signs,
                texttemplate="%{text}",
                textfont={"size": 10 if texts is not None else 14, "color": GREY},
                xgap=1,
                ygap=1,
            ),
            **self.at,
        )

    def level(self, y: float, *, colour: str = GREY, width: float = 1, dash: str | None = None, **more: Any) -> None:
        """A line across the panel."""
        self.sheet.fig.add_hline(y=y, line=_stroke(colour, width, dash), **_ALWAYS, **more, **self.at)

    def upright(self, x: float, *, colour: str = GREY, width: float = 1, dash: str | None = None, **more: Any) -> None:
        """A line from the foot of the panel to its top."""
        self.sheet.fig.add_vline(x=x, line=_stroke(colour, width, dash), **_ALWAYS, **more, **self.at)

    def shape(self, kind: str, x: Sequence[Any], y: Sequence[Any], **look: Any) -> None:
        """A plotly shape between two corners."""
        self.sheet.fig.add_shape(type=kind, x0=x[0], x1=x[1], y0=y[0], y1=y[1], **look, **self.at)

    def frames(self, cells: np.ndarray, colour: str) -> None:
        """A frame around each cell (row, column) of a map whose rows and columns are counted from 0."""
        for row, col in np.argwhere(cells):
            self.shape("rect", (col - 0.46, col + 0.46), (row - 0.44, row + 0.44), line={"color": colour, "width": 2})

    def floor(self, noise: Finding | None, *, signed: bool = True, across: bool = False) -> None:
        """A grey band over what the noise alone reaches (``across``: along the horizontal axis), where it is known."""
        if noise is None or not noise.floor > 0:
            return
        self.stripe(-noise.floor * signed, noise.floor, mixed(PALE, 0.7), across=across)
        self.sheet.noisy(noise, "", drawn=False)
        self.sheet.banded = True

    def stripe(self, low: float, high: float, colour: str, *, across: bool = False) -> None:
        """A stripe behind the marks, from side to side (``across``: from foot to top)."""
        look: Look = {"line_width": 0, "fillcolor": colour, "layer": "below", **_ALWAYS}
        if across:
            self.sheet.fig.add_vrect(x0=low, x1=high, **look, **self.at)
        else:
            self.sheet.fig.add_hrect(y0=low, y1=high, **look, **self.at)

    def arrow(
        self, tail: tuple[float, float], tip: tuple[float, float], colour: str, width: float, head: float = 1
    ) -> None:
        """An arrow between two places on the axes."""
        place = self.sheet.fig.get_subplot(self.at["row"], self.at["col"])
        x, y = (axis.plotly_name.replace("axis", "") for axis in (place.xaxis, place.yaxis))
        where = {"x": tip[0], "y": tip[1], "ax": tail[0], "ay": tail[1], "xref": x, "yref": y, "axref": x, "ayref": y}
        look = {"showarrow": True, "arrowhead": 2, "arrowsize": head, "arrowwidth": width, "arrowcolor": colour}
        self.sheet.fig.add_annotation(text="", **where, **look)

    def note(self, text: str, x: Any, y: Any, *, size: float = 11, **more: Any) -> None:
        """A few words; with "domain" for ``xref`` or ``yref``, placed in shares of the panel."""
        for axis in ("x", "y"):
            if more.get(f"{axis}ref") == "domain":
                more[f"{axis}ref"] = f"{axis} domain"
        font = {"size": size} | ({"color": more.pop("colour")} if "colour" in more else {})
        self.sheet.fig.add_annotation(text=text, x=x, y=y, showarrow=False, font=font, **more, **self.at)

    def x(self, title: str | None = None, **settings: Any) -> None:
        """Title and settings of the horizontal axis."""
        self.sheet.fig.update_xaxes(**_titled(title), **settings, **self.at)

    def y(self, title: str | None = None, **settings: Any) -> None:
        """Title and settings of the vertical axis."""
        self.sheet.fig.update_yaxes(**_titled(title), **settings, **self.at)


_ALWAYS: Look = {"exclude_empty_subplots": False}  # or plotly leaves out what is drawn before the first trace
NOT_ABOVE = "not above the noise floor"


def blank(height: int = 300, min_width: int = 360, below: int = 52) -> Sheet:
    """A sheet of one panel; heights and widths in pixels."""
    return Sheet(go.Figure(), [], height, min_width=min_width, below=below)


def sheet(
    heights: Sequence[float],
    widths: Sequence[float] = (1,),
    *,
    titles: Sequence[str] | None = None,
    row_gap: float = 0,
    column_gap: float = 0.0,
    min_width: int = 360,
    above: int | None = None,
    below: int = 52,
    **options: Any,
) -> Sheet:
    """A sheet of rows and columns.

    Args:
        heights: of the rows in pixels; widths: of the columns, in any unit.
        titles: over the panels.
        row_gap: pixels between rows; column_gap: between columns, a share of the width.
        min_width, above, below: see :class:`Sheet`.
        options: of plotly's ``make_subplots``.
    """
    total = int(sum(heights) + row_gap * (len(heights) - 1))
    fig = make_subplots(
        rows=len(heights),
        cols=len(widths),
        row_heights=list(heights),
        column_widths=list(widths),
        vertical_spacing=row_gap / total if len(heights) > 1 else 0,
        horizontal_spacing=column_gap if len(widths) > 1 else 0,
        subplot_titles=[plain(title).replace("\n", "<br>") for title in titles] if titles is not None else None,
        **options,
    )
    fig.update_annotations(font={"size": 12}, yshift=1)
    places = [(row, col) for row in range(1, len(heights) + 1) for col in range(1, len(widths) + 1)]
    room = (30 if titles is not None else 10) if above is None else above
    return Sheet(fig, places, total, above=room, min_width=min_width, below=below)


def _whiskers(noise: Finding | None, values: Any, *, across: bool) -> dict[str, Any]:
    """Error bars of a trace over the intervals of its effects; none where there are no intervals."""
    if noise is None or not noise.spread:
        return {}
    middle = np.asarray(values, dtype=float)
    ends = {"array": np.maximum(noise.high - middle, 0), "arrayminus": np.maximum(middle - noise.low, 0)}
    return {f"error_{'x' if across else 'y'}": {"type": "data", "color": INK, "thickness": 1, "width": 3, **ends}}


def _titled(title: str | None) -> dict[str, str]:
    return {} if title is None else {"title_text": plain(title).replace("\n", "<br>")}


def _stroke(colour: str, width: float, dash: str | None) -> dict[str, Any]:
    return {"color": colour, "width": width} | ({"dash": dash} if dash else {})
