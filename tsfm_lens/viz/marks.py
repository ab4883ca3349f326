"""Marks of the grammar of figures: what curves, fans, points, bars and maps look like on a panel.

What a result knows of its noise is drawn here, and nowhere else: bands, whiskers, hollow points, hatched bars, and maps
whose cells in the noise are pale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tsfm_lens.viz.noise import Finding
from tsfm_lens.viz.theme import GREY, INK, PALE, mixed, plain

Look = dict[str, Any]
"""Settings of a mark or an axis."""

PRINTED = 500  # cells of a map that still have room for their number
NOT_ABOVE = "does not stand out of the noise"
_MAX_DOTS = 60  # rows or columns of a map that still have room for a dot each
_ALWAYS: Look = {"exclude_empty_subplots": False}  # or plotly leaves out what is drawn before the first trace


@dataclass
class Canvas:
    """Figure that is being drawn, and what its legend and subtitle must say.

    Attributes:
        fig: the figure.
        above: pixels over the highest panels, for their titles and for notes.
        legend: what the legend has so far; each entry is listed once, however many panels have it.
        signs: how what does not stand out of the noise is drawn; floors: the noise floors that the figure has;
            has_band: whether one is drawn.
    """

    fig: go.Figure
    above: int = field(default=10, kw_only=True)
    legend: set[str] = field(default_factory=set, kw_only=True)
    signs: dict[str, None] = field(default_factory=dict, kw_only=True)
    floors: dict[str, None] = field(default_factory=dict, kw_only=True)
    has_band: bool = field(default=False, kw_only=True)

    def noisy(self, noise: Finding, sign: str = "") -> None:
        """Remember for the subtitle the floor of a finding, and the sign of what does not stand out if it is drawn."""
        if noise.floor > 0:
            self.floors[noise.floor_words] = None
        if sign:
            self.signs[sign] = None

    @property
    def noise_words(self) -> str:
        """Words of a subtitle on the noise that is drawn, "" if none is known."""
        signs = f"{' or '.join(self.signs)}: {NOT_ABOVE}" if self.signs else ""
        floor = f"noise floor {next(iter(self.floors))}{', grey' * self.has_band}" if len(self.floors) == 1 else ""
        return f"{signs} ({floor})" if signs and floor else signs or floor


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a sheet, and what can be drawn on it.

    ``hover`` is always plotly's template of a hover box, "" for none; names are shown letter by letter.
    """

    sheet: Canvas
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
        in_legend = legend and bool(name) and entry not in self.sheet.legend
        if in_legend:
            self.sheet.legend.add(entry)
        box = {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}
        membership = {"legendgroup": plain(entry)} if entry else {}
        trace = kind(name=plain(name) or None, showlegend=in_legend, **membership, **box, **props)
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
        """Draw a curve, with dots of a size on it."""
        look: Look = {"color": colour, "width": width} | ({"dash": dash} if dash else {})
        marks: Look = {"marker": {"size": dots}} if dots else {}
        options: Look = {"mode": "lines+markers" if dots else "lines", "line": look, **marks}
        self.add(go.Scatter, name, hover, x=x, y=y, **{**options, **more})

    def band(self, x: Any, low: Any, high: Any, colour: str, name: str, *, legend: bool = False) -> None:
        """Draw the area between two curves."""
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
        """Draw points, with whiskers (``across``: along the horizontal axis) and hollow where the noise says so."""
        marker: Look = {"color": colour, "size": size}
        marker |= {"symbol": symbol} if symbol is not None else {}
        marker |= {"line": {"color": edge, "width": 0.5}} if edge else {}
        marker |= more.pop("marker", {})
        if noise is not None:
            marker["symbol"] = [f"{symbol or 'circle'}{'-open' * bool(pale)}" for pale in noise.pale]
            self.sheet.noisy(noise, "hollow" * bool(noise.pale.any()))
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
        """Draw bars upwards, or to the right (``across``), with whiskers and hatched where the noise says so."""
        where = {"x": lengths, "y": places, "orientation": "h"} if across else {"x": places, "y": lengths}
        marker: Look = {"color": colour}
        if noise is not None:
            shapes = ["/" * bool(pale) for pale in noise.pale]
            marker["pattern"] = {"shape": shapes, "fillmode": "replace", "size": 6, "solidity": 0.3}
            self.sheet.noisy(noise, "hatched" * bool(noise.pale.any()))
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
        """Draw a heat map on the sheet's colours.

        Args:
            z: (row, column), NaN where there is nothing.
            x, y: labels or edges.
            write: how a number is written in its cell, none if None.
            printed: the most cells that get their number.
            noise: of (row, column); cells that do not stand out of it are drawn pale under a dot, or with their
                number in brackets.
        """
        where = {name: value for name, value in (("x", x), ("y", y)) if value is not None}
        pale = np.zeros(z.shape, dtype=bool) if noise is None else noise.pale & np.isfinite(z)
        texts = None
        if write is not None and z.size <= printed:
            texts = np.array([[write(float(v)) if np.isfinite(v) else "" for v in row] for row in z], dtype=object)
            font = {"size": 10 if z.shape[1] > 12 else 11}
            more |= {"text": np.where(pale, "", texts).tolist(), "texttemplate": "%{text}", "textfont": font}
        options: Look = {"coloraxis": "coloraxis", "xgap": 1, "ygap": 1, "hoverongaps": False, **more}
        trace = go.Heatmap(z=z, hovertemplate=f"{hover}<extra></extra>", **where, **options)
        self.sheet.fig.add_trace(trace, **self.at)
        if noise is not None:
            self.sheet.noisy(noise, f"pale, {'dotted' if texts is None else 'in brackets'}" * bool(pale.any()))
        if pale.any():
            small = max(z.shape) <= _MAX_DOTS
            signs = np.full(z.shape, "·" * small) if texts is None else "(" + texts + ")"
            self._veil(pale, np.where(pale, signs, "").tolist(), 14 if texts is None else 10, where)

    def _veil(self, pale: np.ndarray, signs: list[list[str]], size: float, where: Look) -> None:
        """Draw white over cells that do not stand out, and a sign in each that needs no colour."""
        white = "rgba(255,255,255,0.6)"
        look: Look = {"colorscale": [[0, white], [1, white]], "zmin": 0, "zmax": 1, "showscale": False}
        text: Look = {"text": signs, "texttemplate": "%{text}", "textfont": {"size": size, "color": GREY}}
        options: Look = {"name": NOT_ABOVE, "hoverinfo": "skip", "xgap": 1, "ygap": 1, **look, **text, **where}
        self.sheet.fig.add_trace(go.Heatmap(z=np.where(pale, 0.0, np.nan), **options), **self.at)

    def level(self, y: float, *, colour: str = GREY, width: float = 1, dash: str | None = None, **more: Any) -> None:
        """Draw a line across the panel."""
        self.sheet.fig.add_hline(y=y, line=_stroke(colour, width, dash), **_ALWAYS, **more, **self.at)

    def upright(self, x: float, *, colour: str = GREY, width: float = 1, dash: str | None = None, **more: Any) -> None:
        """Draw a line from the foot of the panel to its top."""
        self.sheet.fig.add_vline(x=x, line=_stroke(colour, width, dash), **_ALWAYS, **more, **self.at)

    def shape(self, kind: str, x: Sequence[Any], y: Sequence[Any], **look: Any) -> None:
        """Draw a plotly shape between two corners."""
        self.sheet.fig.add_shape(type=kind, x0=x[0], x1=x[1], y0=y[0], y1=y[1], **look, **self.at)

    def partings(self, places: Sequence[float], *, across: bool) -> None:
        """Draw thin lines across the panel, or from its foot to its top."""
        free, fixed = ("y", "x") if across else ("x", "y")
        refs = self._axes()
        refs[f"{fixed}ref"] += " domain"
        line = _stroke(GREY, 1, None)
        ends = [{f"{free}0": at, f"{free}1": at, f"{fixed}0": 0, f"{fixed}1": 1} for at in places]
        self._add_shapes([{"type": "line", **end, **refs, "line": line} for end in ends])

    def frames(self, cells: np.ndarray, colour: str) -> None:
        """Draw a frame around each cell (row, column) of a map whose rows and columns are counted from 0."""
        refs, line = self._axes(), {"color": colour, "width": 2}
        ends = [
            {"x0": col - 0.46, "x1": col + 0.46, "y0": row - 0.44, "y1": row + 0.44} for row, col in np.argwhere(cells)
        ]
        self._add_shapes([{"type": "rect", **end, **refs, "line": line} for end in ends])

    def _add_shapes(self, shapes: list[dict[str, Any]]) -> None:
        """Add shapes all at once: plotly looks at every shape of a figure whenever one is added."""
        if shapes:
            self.sheet.fig.layout.shapes = [*self.sheet.fig.layout.shapes, *shapes]

    def _axes(self) -> dict[str, str]:
        """Name the panel's axes, as shapes and notes refer to them."""
        if not self.at:
            return {"xref": "x", "yref": "y"}
        place = self.sheet.fig.get_subplot(**self.at)
        return {f"{letter}ref": place[letter == "y"].plotly_name.replace("axis", "") for letter in "xy"}

    def floor(self, noise: Finding | None, *, signed: bool = True, across: bool = False) -> None:
        """Draw a grey band over what the noise alone reaches (``across``: along the horizontal axis), where known.

        It is left out where the noise of one series exceeds every effect that stands out in the others.
        """
        if noise is None or not noise.floor > 0:
            return
        if noise.stands.any() and noise.floor > np.abs(noise.estimate[noise.stands]).max():
            return
        self.sheet.noisy(noise)
        # a subtitle must not name what cannot be seen
        if not noise.floor_is_tiny:
            self.stripe(-noise.floor * signed, noise.floor, mixed(PALE, 0.7), across=across)
            self.sheet.has_band = True

    def stripe(self, low: float, high: float, colour: str, *, across: bool = False) -> None:
        """Draw a stripe behind the marks, from side to side (``across``: from foot to top)."""
        look: Look = {"line_width": 0, "fillcolor": colour, "layer": "below", **_ALWAYS}
        if across:
            self.sheet.fig.add_vrect(x0=low, x1=high, **look, **self.at)
        else:
            self.sheet.fig.add_hrect(y0=low, y1=high, **look, **self.at)

    def arrow(
        self, tail: tuple[float, float], tip: tuple[float, float], colour: str, width: float, head: float = 1
    ) -> None:
        """Draw an arrow between two places on the axes."""
        refs = self._axes()
        where = {"x": tip[0], "y": tip[1], "ax": tail[0], "ay": tail[1], **refs}
        where |= {"axref": refs["xref"], "ayref": refs["yref"]}
        look = {"showarrow": True, "arrowhead": 2, "arrowsize": head, "arrowwidth": width, "arrowcolor": colour}
        self.sheet.fig.add_annotation(text="", **where, **look)

    def note(self, text: str, x: Any, y: Any, *, size: float = 11, **more: Any) -> None:
        """Write a few words; with "domain" for ``xref`` or ``yref``, placed in shares of the panel."""
        for axis in ("x", "y"):
            if more.get(f"{axis}ref") == "domain":
                more[f"{axis}ref"] = f"{axis} domain"
        if more.get("yref") == "y domain" and more.get("yanchor") == "bottom" and y == 1:
            # over the panels there is room for it
            self.sheet.above = max(self.sheet.above, round(1.8 * size))
        font = {"size": size} | ({"color": more.pop("colour")} if "colour" in more else {})
        self.sheet.fig.add_annotation(text=text, x=x, y=y, showarrow=False, font=font, **more, **self.at)

    def x(self, title: str | None = None, **settings: Any) -> None:
        """Set title and settings of the horizontal axis."""
        self.sheet.fig.update_xaxes(**titled(title), **settings, **self.at)

    def y(self, title: str | None = None, **settings: Any) -> None:
        """Set title and settings of the vertical axis."""
        self.sheet.fig.update_yaxes(**titled(title), **settings, **self.at)


def _whiskers(noise: Finding | None, values: Any, *, across: bool) -> dict[str, Any]:
    """Return error bars of a trace over the intervals of its effects; none where there are no intervals."""
    if noise is None or not noise.spread:
        return {}
    middle = np.asarray(values, dtype=float)
    ends = {"array": np.maximum(noise.high - middle, 0), "arrayminus": np.maximum(middle - noise.low, 0)}
    return {f"error_{'x' if across else 'y'}": {"type": "data", "color": INK, "thickness": 1, "width": 3, **ends}}


def titled(title: str | None) -> dict[str, str]:
    """Return the title of an axis, letter by letter; nothing for None."""
    return {} if title is None else {"title_text": plain(title).replace("\n", "<br>")}


def _stroke(colour: str, width: float, dash: str | None) -> dict[str, Any]:
    return {"color": colour, "width": width} | ({"dash": dash} if dash else {})
