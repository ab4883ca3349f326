"""Grammar of figures: a sheet of panels, and the marks that are drawn on them.

A renderer says what stands on the axes, on which scale and in which words. How a curve, a fan, bars, points or a map
look, what their hover boxes and the legend show, and how much room all of it takes, is said here once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tsfm_lens.viz.lettering import along, folded_names, legend_pitch, legend_rows, wrapped_titles
from tsfm_lens.viz.marks import Canvas, titled
from tsfm_lens.viz.marks import Look as Look
from tsfm_lens.viz.marks import Panel as Panel
from tsfm_lens.viz.room import thin_dates, width_of_words, written
from tsfm_lens.viz.theme import dress, plain, true_minus

# pixels: beside the panels for a colour bar, its longest, the type of its title
_BAR_MARGIN, _BAR_LENGTH, _BAR_TYPE = 96, 320, 12
_USUAL = 640  # pixels: width for which a legend's rows are counted
_EXTRA_ROWS, _MANY = 1, 6  # rows by which a legend may be higher in a narrower figure, unless it has many


@dataclass
class Sheet(Canvas):
    """Panels in rows and columns, and the room that they take.

    Attributes:
        places: (row, column) of each panel, counted from 1; none on a sheet of one panel.
        plot_height: of all panels together; min_width: what the marks need, words come on top; in pixels.
        below: pixels under the panels for ticks and titles.
    """

    places: list[tuple[int, int]]
    plot_height: int
    min_width: int = 360
    below: int = 52

    def panel(self, row: int = 1, col: int = 1, **axes: Any) -> Panel:
        """Return one panel; ``axes`` says which, where a place has two."""
        return Panel(self, {"row": row, "col": col, **axes} if self.places else {})

    def __iter__(self) -> Iterator[Panel]:
        return (self.panel(*place) for place in self.places) if self.places else iter([self.panel()])

    def x(self, title: str | None = None, **settings: Any) -> None:
        """Set every horizontal axis."""
        self.fig.update_xaxes(**titled(title), **settings)

    def y(self, title: str | None = None, **settings: Any) -> None:
        """Set every vertical axis."""
        self.fig.update_yaxes(**titled(title), **settings)

    def colours(self, scale: dict[str, Any]) -> None:
        """Set colours of all maps, with a bar beside them that is no longer than needed to read it."""
        bar = {"len": min(1.0, _BAR_LENGTH / self.plot_height), **scale["colorbar"]}
        title = along(bar["title"]["text"], bar["len"] * self.plot_height, _BAR_TYPE)
        bar["title"] = {**bar["title"], "text": title}
        self.fig.update_layout(
            coloraxis={**scale, "colorbar": bar}, margin_r=_BAR_MARGIN + 1.3 * _BAR_TYPE * title.count("<br>")
        )

    def dress(self, title: str, *remarks: str) -> go.Figure:
        """Finish the figure.

        Args:
            title: plain words.
            remarks: parts of the subtitle; empty ones are left out, what is drawn of the noise is added.
        """
        right = self.fig.layout.margin.r
        thin_dates(self.fig)
        layout, traces = written(self.fig)
        self.fig.update_layout(folded_names(layout, traces, self.plot_height))
        self.fig.update_layout(wrapped_titles(layout, self.plot_height))
        words = true_minus("; ".join(remark for remark in (*remarks, self.noise_words) if remark))
        least, legend = self._least()
        below = self.below + round(legend * legend_pitch({})) - 5 * (legend > 0)
        # plotly gives a legend at most half of the figure
        spare = self.above + self.plot_height + below - 2 * (legend + 1) * legend_pitch({})
        plot = round(self.plot_height + max(0.0, -spare) * (legend > 0))
        room = {"plot_height": plot, "above": self.above, "min_width": least}
        fig = dress(self.fig, title, words, below=below, **room)
        if right is not None:
            fig.update_layout(margin_r=right)
        fig.layout.meta = {**fig.layout.meta, "legend_rows": legend}
        return fig

    def _least(self) -> tuple[int, int]:
        """Return the width from which on the figure can be read, and the rows of its legend where there is room."""
        layout, traces = written(self.fig)
        least = max(self.min_width, width_of_words(layout, traces))
        rows = legend_rows(layout, traces, max(least, _USUAL))
        # in a narrower figure the panels give up height, but not all of it
        while legend_rows(layout, traces, least) > rows + _EXTRA_ROWS * (rows < _MANY):
            least += 20
        return least, rows


def blank(height: int = 300, min_width: int = 360, below: int = 52) -> Sheet:
    """Make a sheet of one panel; heights and widths in pixels."""
    return Sheet(go.Figure(), [], height, min_width=min_width, below=below)


def sheet(
    heights: Sequence[float],
    widths: Sequence[float] = (1,),
    *,
    titles: Sequence[str] | None = None,
    title_type: float = 12,
    row_gap: float = 0,
    column_gap: float = 0.0,
    min_width: int = 360,
    above: int | None = None,
    below: int = 52,
    **options: Any,
) -> Sheet:
    """Make a sheet of rows and columns.

    Args:
        heights: of the rows in pixels; widths: of the columns, in any unit.
        titles: over the panels; title_type: their size in pixels.
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
    # all at once: plotly looks at every note of a figure whenever one is changed
    notes = fig.layout.to_plotly_json().get("annotations", ())
    fig.layout.annotations = [{**note, "font": {"size": title_type}, "yshift": 1} for note in notes]
    places = [(row, col) for row in range(1, len(heights) + 1) for col in range(1, len(widths) + 1)]
    room = (30 if titles is not None else 10) if above is None else above
    return Sheet(fig, places, total, above=room, min_width=min_width, below=below)
