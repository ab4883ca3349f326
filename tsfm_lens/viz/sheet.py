"""Drawing calls of figures: a sheet of panels, and the marks on them.

:func:`blank` and :func:`sheet` make a :class:`Sheet`, each :class:`Panel` of it draws
curves, points, bars and maps, and :meth:`Sheet.finalize` returns the figure. The module
also marks what is not significant, and explains the marks in the subtitle. Nothing here
reads a Dataset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tsfm_lens.viz.findings import NOT_SIGNIFICANT, EffectEstimate
from tsfm_lens.viz.theme import (
    GREY,
    INK,
    LABEL_TYPE,
    LETTER,
    PALE,
    USUAL,
    finalize,
    fit_axes,
    mixed,
    number,
    plain,
    true_minus,
    wrapped,
)
from tsfm_lens.viz.words import after_number

Style = dict[str, Any]
"""Settings of a plotly trace, shape or axis, by their plotly names."""

PRINTED = 500  # most cells of a map that have room for their numbers
# In a cell that is not significant, where its number has no room; size in pixels.
DOT = "·"
DOT_TYPE = 14
_X_TITLE = 20  # pixels of the title of a horizontal axis
_MAX_DOTS = 60  # most rows or columns of a map that have room for dots
# Without this plotly draws no lines and bands on a panel that has no trace yet.
_ALWAYS: Style = {"exclude_empty_subplots": False}
# Sizes of a colour bar in pixels.
_BAR_MARGIN = 96  # room to the right of the panels
_BAR_LENGTH = 320  # greatest length
_BAR_TICK = 36  # distance between two numbers


@dataclass
class Sheet:
    """Panels in rows and columns, and the room that they take.

    Attributes:
        positions: row and column of each panel; empty on a sheet of one panel.
        plot_height: height of all panels with the gaps between them, in pixels.
        min_width: least width of the figure, in pixels.
        above, below: pixels over and under the panels.
        legend: entries that the legend has so far.
        signs: words for the marks of what is not significant, such as "hollow"; a
            dict keeps their order.
        floors: the different noise floors of the panels, as text.
        has_band: whether a noise floor is drawn.
        has_x_title: whether all horizontal axes share a title.
    """

    fig: go.Figure
    positions: list[tuple[int, int]]
    plot_height: int
    min_width: float = 360
    below: int = 52
    above: int = 10
    legend: set[str] = field(default_factory=set)
    signs: dict[str, None] = field(default_factory=dict)
    floors: dict[str, None] = field(default_factory=dict)
    has_band: bool = False
    has_x_title: bool = False

    def panel(self, row: int = 1, col: int = 1) -> Panel:
        """Return one panel."""
        # a figure that make_subplots did not make refuses row and col
        return Panel(self, {"row": row, "col": col} if self.positions else {})

    def __iter__(self) -> Iterator[Panel]:
        if not self.positions:
            return iter([self.panel()])
        return (self.panel(*position) for position in self.positions)

    def x(self, title: str | None = None, **settings: Any) -> None:
        """Set every horizontal axis."""
        self.fig.update_xaxes(**_titled(title), **settings)

    def y(self, title: str | None = None, **settings: Any) -> None:
        """Set every vertical axis."""
        self.fig.update_yaxes(**_titled(title), **settings)

    def colours(self, scale: dict[str, Any]) -> None:
        """Set the colours of all maps, with a colour bar beside them.

        Args:
            scale: a plotly "coloraxis" with its "colorbar". The bar gets a length and a
                number of ticks where it has none.
        """
        bar = {"len": min(1.0, _BAR_LENGTH / self.plot_height), **scale["colorbar"]}
        length = bar["len"] * self.plot_height
        if bar.get("nticks") is None:
            bar["nticks"] = max(3, int(length / _BAR_TICK))
        title = wrapped(bar["title"]["text"], length)
        bar["title"] = {**bar["title"], "text": title}
        # the title of a vertical bar is turned, so each further line widens the margin
        margin = _BAR_MARGIN + 16 * title.count("<br>")
        self.fig.update_layout(coloraxis={**scale, "colorbar": bar}, margin_r=margin)

    def noisy(self, noise: EffectEstimate, sign: str = "") -> None:
        """Keep for the subtitle an effect's noise floor, and the mark ``sign``.

        The mark is that of members that are not significant.
        """
        if noise.floor > 0:
            # floors that differ by less than 1 % are written as one
            differs = noise.lowest < 0.99 * noise.floor
            bound = "up to " if differs else ""
            unit = after_number(noise.unit)
            self.floors[f"{bound}{number(noise.floor)} {unit}".strip()] = None
        if sign:
            self.signs[sign] = None

    def finalize(self, title: str, *remarks: str) -> go.Figure:
        """Give the figure its title, subtitle and size, and return it."""
        # last of all, since the marks to explain are collected while panels are drawn
        fit_axes(self.fig, max(self.min_width, USUAL), self.plot_height)
        remarks = (*remarks, self._noise_remark())
        titles = [axis.title.text for axis in self.fig.select_xaxes()]
        # the title of a colour bar may reach below the panels
        has_bar = self.fig.layout.coloraxis.colorbar.title.text
        if not (self.has_x_title or has_bar or any(titles)):
            self.below -= _X_TITLE
        return finalize(
            self.fig,
            title,
            true_minus("; ".join(remark for remark in remarks if remark)),
            plot_height=self.plot_height,
            above=self.above,
            below=self.below,
            min_width=self.min_width,
        )

    def _noise_remark(self) -> str:
        """Explain the marks and the noise floor; "" where there are none."""
        signs = ""
        if self.signs:
            signs = f"{' or '.join(self.signs)}: {NOT_SIGNIFICANT}"
        floor = ""
        # where panels have different floors, no single number is true of all of them
        if len(self.floors) == 1:
            floor = f"noise floor {next(iter(self.floors))}"
            if self.has_band:
                floor = f"{floor}, grey"
        if signs and floor:
            return f"{signs} ({floor})"
        return signs or floor


def blank(height: int = 300, min_width: int = 360, below: int = 52) -> Sheet:
    """Make a sheet of one panel; heights and widths in pixels."""
    return Sheet(go.Figure(), [], height, min_width=min_width, below=below)


def sheet(
    heights: Sequence[float],
    widths: Sequence[float] = (1,),
    *,
    titles: Sequence[str] | None = None,
    title_type: float = LABEL_TYPE,
    row_gap: float = 0,
    column_gap: float = 0.0,
    min_width: int = 360,
    above: int | None = None,
    below: int = 52,
    **options: Any,
) -> Sheet:
    """Make a sheet of rows and columns.

    Args:
        heights: of the rows, in pixels.
        widths: of the columns, relative to each other.
        titles: of the panels, row by row; no title where empty.
        title_type: size of the titles' type.
        row_gap: pixels between rows.
        column_gap: gap between columns, as a share of the width of all.
        min_width: narrowest width of the figure, in pixels.
        above: pixels above the panels; what the titles need if None.
        below: pixels below the panels.
        options: further arguments of plotly's ``make_subplots``.

    Returns:
        The sheet, with a panel for each cell.
    """
    # plotly takes heights and gaps as shares of the whole, and the whole has the gaps
    total = int(sum(heights) + row_gap * (len(heights) - 1))
    fig = make_subplots(
        rows=len(heights),
        cols=len(widths),
        row_heights=list(heights),
        column_widths=list(widths),
        vertical_spacing=row_gap / total if len(heights) > 1 else 0,
        horizontal_spacing=column_gap if len(widths) > 1 else 0,
        **options,
    )
    positions = [
        (row, col)
        for row in range(1, len(heights) + 1)
        for col in range(1, len(widths) + 1)
    ]
    style = {"yanchor": "bottom", "font": {"size": title_type}, "showarrow": False}
    # all at once: plotly looks at every note of a figure whenever one is added
    fig.layout.annotations = list(fig.layout.annotations) + [
        {"text": plain(title).replace("\n", "<br>"), **_over(fig, position), **style}
        for position, title in zip(positions, titles or (), strict=False)
        if title
    ]
    if above is None:
        above = 30 if titles is not None else 10
    room: Style = {"above": above, "min_width": min_width, "below": below}
    return Sheet(fig, positions, total, has_x_title="x_title" in options, **room)


def _over(fig: go.Figure, position: tuple[int, int]) -> Style:
    """Return the coordinates of a panel's title, centred over the panel."""
    plot = fig.get_subplot(*position)
    x, y = (axis.plotly_name.replace("axis", "") for axis in (plot.xaxis, plot.yaxis))
    return {"x": 0.5, "y": 1, "xref": f"{x} domain", "yref": f"{y} domain"}


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a sheet, and what can be drawn on it."""

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
        """Add a trace of a plotly class.

        A click on the entry ``group`` of the legend hides the trace; the entry is
        ``name`` if None.
        """
        entry = group or name
        # an entry is listed once a figure, for the panel that draws it first
        in_legend = legend and bool(name) and entry not in self.sheet.legend
        if in_legend:
            self.sheet.legend.add(entry)
        # An empty <extra> removes plotly's second box, which has the trace's name.
        # "none" instead of "skip" would still catch the pointer over other traces.
        if hover:
            box = {"hovertemplate": f"{hover}<extra></extra>"}
        else:
            box = {"hoverinfo": "skip"}
        if entry:
            # plotly shows and hides the traces of a group together
            membership = {"legendgroup": plain(entry)}
        else:
            membership = {}
        trace = kind(
            name=plain(name) or None, showlegend=in_legend, **membership, **box, **props
        )
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
        **more: Any,
    ) -> None:
        """Draw a curve, with dots of ``dots`` pixels on it, or without if that is 0."""
        marks: Style = {"marker": {"size": dots}} if dots else {}
        options: Style = {
            "mode": "lines+markers" if dots else "lines",
            "line": _stroke(colour, width, dash),
            **marks,
        }
        self.add(go.Scatter, name, hover, x=x, y=y, **{**options, **more})

    def band(
        self,
        x: Any,
        low: Any,
        high: Any,
        colour: str,
        name: str,
        *,
        legend: bool = False,
    ) -> None:
        """Draw the area between two curves."""
        style: Style = {
            "x": x,
            "mode": "lines",
            "line": {"width": 0, "color": colour},
            "group": name,
        }
        # an invisible lower edge, up to which the next trace is filled
        self.add(go.Scatter, f"{name} from", "", y=low, legend=False, **style)
        self.add(
            go.Scatter,
            name,
            "",
            y=high,
            fill="tonexty",
            fillcolor=colour,
            legend=legend,
            **style,
        )

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
        noise: EffectEstimate | None = None,
        across: bool = False,
        **more: Any,
    ) -> None:
        """Draw points; those of an effect may be hollow and have whiskers.

        ``noise`` is the effect: a member that is not significant is hollow, and
        whiskers span its range, along the horizontal axis with ``across``.
        """
        form: Style = {} if symbol is None else {"symbol": symbol}
        outline: Style = {"line": {"color": edge, "width": 0.5}} if edge else {}
        marker: Style = {
            "color": colour,
            "size": size,
            **form,
            **outline,
            # popped, or the caller's part of the marker would replace all of it below
            **more.pop("marker", {}),
        }
        if noise is not None:
            filled = symbol or "circle"
            marker["symbol"] = [
                f"{filled}-open" if faint else filled for faint in noise.pale
            ]
            self.sheet.noisy(noise, "hollow" if noise.pale.any() else "")
        sizes = x if across else y
        bars = _whiskers(noise, sizes, across=across)
        self.add(
            go.Scatter,
            name,
            hover,
            x=x,
            y=y,
            **{"mode": "markers", "marker": marker, **bars, **more},
        )

    def bars(
        self,
        positions: Any,
        lengths: Any,
        name: str = "",
        hover: str = "",
        *,
        colour: Any = GREY,
        across: bool = False,
        **more: Any,
    ) -> None:
        """Draw bars, upwards or, with ``across``, to the right."""
        if across:
            placement = {"x": lengths, "y": positions, "orientation": "h"}
        else:
            placement = {"x": positions, "y": lengths}
        self.add(go.Bar, name, hover, marker={"color": colour}, **placement, **more)

    def cells(
        self,
        z: np.ndarray,
        x: Any = None,
        y: Any = None,
        hover: str = "",
        *,
        write: Callable[[float], str] | None = None,
        printed: int = PRINTED,
        noise: EffectEstimate | None = None,
        **more: Any,
    ) -> None:
        """Draw a heat map of ``z`` (row, column) in the sheet's colours.

        Up to ``printed`` cells show their number as ``write`` writes it. ``noise`` is
        the effect in the cells, if any: where it is not significant the number is in
        parentheses; without numbers the cell has a dot or, in a large map, is pale.
        """
        placement = {
            name: value for name, value in (("x", x), ("y", y)) if value is not None
        }
        if noise is None:
            faint = np.zeros(z.shape, dtype=bool)
        else:
            # an empty cell has nothing that could be in parentheses or dotted
            faint = noise.pale & np.isfinite(z)
        numbered = False
        dotted = max(z.shape) <= _MAX_DOTS
        if write is not None and z.size <= printed:
            numbered = True
            texts = np.array(
                [[write(float(v)) if np.isfinite(v) else "" for v in row] for row in z],
                dtype=object,
            )
            texts = np.where(faint, "(" + texts + ")", texts)
            # plotly chooses a type that the cells have room for
            more = {**more, "text": texts.tolist(), "texttemplate": "%{text}"}
        options: Style = {
            "coloraxis": "coloraxis",
            "xgap": 1,
            "ygap": 1,
            "hoverongaps": False,
            **more,
        }
        # not by add(), since a map has a colour bar and no entry in the legend
        trace = go.Heatmap(
            z=z, hovertemplate=f"{hover}<extra></extra>", **placement, **options
        )
        self.sheet.fig.add_trace(trace, **self.at)
        if noise is not None:
            if numbered:
                sign = "in parentheses"
            elif dotted:
                sign = "dotted"
            else:
                sign = "pale"
            self.sheet.noisy(noise, sign if faint.any() else "")
        if faint.any() and not numbered:
            style: Style
            if dotted:
                # The text of the map itself is the caller's, whose hover boxes may show
                # it. So the dots are the text of a transparent map above it.
                opacity = 0.0
                style = {
                    "text": np.where(faint, DOT, "").tolist(),
                    "texttemplate": "%{text}",
                    "textfont": {"size": DOT_TYPE, "color": GREY},
                }
            else:
                opacity = 0.6
                style = {"xgap": 1, "ygap": 1}
            self.cover(
                faint,
                f"rgba(255,255,255,{opacity:g})",
                name=NOT_SIGNIFICANT,
                **style,
                **placement,
            )

    def cover(self, cells: np.ndarray, colour: str, **more: Any) -> None:
        """Draw one colour over the marked cells (row, column) of a map."""
        # both ends of the scale are this colour; a cell of NaN is left out
        style: Style = {
            "colorscale": [[0, colour], [1, colour]],
            "zmin": 0,
            "zmax": 1,
            "showscale": False,
        }
        # skipped, so that the hover boxes of the map beneath still show
        options: Style = {"hoverinfo": "skip", **style, **more}
        self.sheet.fig.add_trace(
            go.Heatmap(z=np.where(cells, 0.0, np.nan), **options), **self.at
        )

    def hline(self, y: float, *, dash: str | None = None) -> None:
        """Draw a line across the panel."""
        self.sheet.fig.add_hline(y=y, line=_stroke(GREY, 1, dash), **_ALWAYS, **self.at)

    def vline(
        self, x: float | str, *, colour: str = GREY, dash: str | None = None
    ) -> None:
        """Draw a line from the bottom of the panel to its top."""
        self.sheet.fig.add_vline(
            x=x, line=_stroke(colour, 1, dash), **_ALWAYS, **self.at
        )

    def shape(
        self, kind: str, x: Sequence[Any], y: Sequence[Any], **style: Any
    ) -> None:
        """Draw a plotly shape between two corners."""
        self.sheet.fig.add_shape(
            type=kind, x0=x[0], x1=x[1], y0=y[0], y1=y[1], **style, **self.at
        )

    def separators(self, positions: Sequence[float]) -> None:
        """Draw thin lines across the panel."""
        refs = self._axes()
        # not by hline(): plotly goes through all shapes for each that is added, and
        # "x domain" goes from 0 to 1 across the panel, whatever its range
        refs["xref"] += " domain"
        style: Style = {"type": "line", **refs, "line": {"color": GREY, "width": 1}}
        self._add_shapes(
            [{"y0": at, "y1": at, "x0": 0, "x1": 1, **style} for at in positions]
        )

    def frames(self, cells: np.ndarray, colour: str) -> None:
        """Draw a frame around the marked cells (row, column) of a map.

        The axes of the map count rows and columns from 0.
        """
        style: Style = {
            "type": "rect",
            **self._axes(),
            "line": {"color": colour, "width": 2},
        }
        # A cell reaches 0.5 to each side of its centre. Frames stay within it, so that
        # those of two neighbours do not cover each other.
        self._add_shapes(
            [
                {
                    "x0": col - 0.46,
                    "x1": col + 0.46,
                    "y0": row - 0.44,
                    "y1": row + 0.44,
                    **style,
                }
                for row, col in np.argwhere(cells)
            ]
        )

    def _add_shapes(self, shapes: list[dict[str, Any]]) -> None:
        """Add shapes to the figure, all at once.

        Plotly goes through every shape of a figure whenever one is added.
        """
        if shapes:
            self.sheet.fig.layout.shapes = [*self.sheet.fig.layout.shapes, *shapes]

    def _subplot(self) -> Any:
        """Return the panel's axes in the layout."""
        if self.at:
            return self.sheet.fig.get_subplot(**self.at)
        return self.sheet.fig.layout

    def _axes(self) -> dict[str, str]:
        """Name the panel's axes as shapes refer to them, such as "xref": "x2"."""
        subplot = self._subplot()
        names = {
            f"{letter}ref": getattr(subplot, f"{letter}axis").plotly_name
            for letter in "xy"
        }
        return {ref: name.replace("axis", "") for ref, name in names.items()}

    def floor(
        self, noise: EffectEstimate | None, *, signed: bool = True, across: bool = False
    ) -> None:
        """Draw a grey band over the noise floor, where it is known.

        The band begins at 0 unless effects are ``signed``, and spans values of the
        vertical axis or, with ``across``, of the horizontal one. It is left out where
        the largest floor exceeds every effect that is above its own floor.
        """
        if noise is None or not noise.floor > 0:
            return
        # series have floors of their own; a band of the largest one would hide members
        # that are above theirs
        above = noise.acts > 0
        if above.any() and noise.floor > np.abs(noise.size[above]).max():
            return
        self.sheet.noisy(noise)
        self.background_band(
            -noise.floor * signed, noise.floor, mixed(PALE, 0.7), across=across
        )
        self.sheet.has_band = True

    def background_band(
        self, low: float, high: float, colour: str, *, across: bool = False
    ) -> None:
        """Draw a band behind the marks, between two values of the vertical axis.

        With ``across`` they are values of the horizontal axis.
        """
        style: Style = {
            "line_width": 0,
            "fillcolor": colour,
            "layer": "below",
            **_ALWAYS,
        }
        if across:
            self.sheet.fig.add_vrect(x0=low, x1=high, **style, **self.at)
        else:
            self.sheet.fig.add_hrect(y0=low, y1=high, **style, **self.at)

    def note(self, text: str, x: Any, y: Any, *, size: float = 11, **more: Any) -> None:
        """Write a short text on the panel.

        Where ``xref`` or ``yref`` is "domain", x or y is a share of the panel.
        """
        # plotly puts the number of the panel's axis into "x domain", not into "domain"
        for axis in ("x", "y"):
            if more.get(f"{axis}ref") == "domain":
                more[f"{axis}ref"] = f"{axis} domain"
        is_at_top = more.get("yref") == "y domain" and y == 1
        if is_at_top and more.get("yanchor") == "bottom":
            # the text stands over the panel, where plotly gives no room by itself
            self.sheet.above = max(self.sheet.above, round(1.8 * size))
        font: Style = {"size": size}
        if "colour" in more:
            font["color"] = more.pop("colour")
        self.sheet.fig.add_annotation(
            text=text, x=x, y=y, showarrow=False, font=font, **more, **self.at
        )

    def x(self, title: str | None = None, **settings: Any) -> None:
        """Set title and settings of the horizontal axis."""
        self.sheet.fig.update_xaxes(**_titled(title), **settings, **self.at)

    def y(self, title: str | None = None, **settings: Any) -> None:
        """Set title and settings of the vertical axis."""
        self.sheet.fig.update_yaxes(**_titled(title), **settings, **self.at)


def _whiskers(
    noise: EffectEstimate | None, values: Any, *, across: bool
) -> dict[str, Any]:
    """Return error bars from the drawn values to the ends of an effect's ranges.

    There are none where no member has a range.
    """
    if noise is None or not noise.spread:
        return {}
    # plotly takes distances from the mark, which may lie outside the range by rounding
    middle = np.asarray(values, dtype=float)
    bounds = {
        "array": np.maximum(noise.high - middle, 0),
        "arrayminus": np.maximum(middle - noise.low, 0),
    }
    return {
        f"error_{'x' if across else 'y'}": {
            "type": "data",
            "color": INK,
            "thickness": 1,
            "width": 3,
            **bounds,
        }
    }


def _titled(title: str | None) -> dict[str, str]:
    """Return the title of an axis, with markup escaped; nothing for None."""
    if title is None:
        return {}
    return {"title_text": plain(title).replace("\n", "<br>")}


def _stroke(colour: str, width: float, dash: str | None) -> dict[str, Any]:
    return {"color": colour, "width": width} | ({"dash": dash} if dash else {})


# markup has no width; <br> is left, since text_width splits lines at it
_TAG = re.compile(r"<(?!br)[^>]*>")


def text_width(text: str, size: float) -> float:
    """Estimate the width in pixels of the longest line of a text, without markup."""
    lines = re.split(r"<br>|\n", _TAG.sub("", text))
    return LETTER * size / LABEL_TYPE * max(map(len, lines))


def shortened(text: str, width: float, size: float, lines: int = 4) -> str:
    """Return a text in lines of at most ``width`` pixels, in type of a ``size``.

    A text of more than ``lines`` lines is cut off with an ellipsis.
    """
    letters = max(int(width * LABEL_TYPE / (LETTER * size)), 6)
    # wrap() returns no line at all of an empty one, which has to keep its place
    parts = [part for line in text.split("\n") for part in wrap(line, letters) or [""]]
    if len(parts) > lines:
        # one letter less, for the ellipsis
        last = parts[lines - 1][: letters - 1].rstrip()
        parts = [*parts[: lines - 1], last + "…"]
    return "\n".join(parts)
