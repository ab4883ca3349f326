"""Room for words: figures are as wide as what is written in them, and titles as long as their axes."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import pytest

import planted
from tsfm_lens import viz
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.maps import HeadMap, colour_scale, head_maps
from tsfm_lens.viz.printing import COLUMNS, fits
from tsfm_lens.viz.room import _round_numbers, least_width, shortened, text_width
from tsfm_lens.viz.sheet import Sheet, blank, sheet

LONG = "thousand standard cubic metres per working day"


def least(made: Sheet) -> int:
    return made.dress("title").layout.meta["min_width"]


def test_markup_and_entities_take_no_room_and_lines_do_not_add_up() -> None:
    assert text_width("<b>a&amp;b</b>", 10) == text_width("a&b", 10)
    assert text_width("ab<br>abc\nab", 10) == text_width("abc", 10)
    assert text_width("abc", 20) == 2 * text_width("abc", 10)


def test_what_is_too_long_gets_lines_and_then_an_ellipsis() -> None:
    words = " ".join(["word"] * 40)
    lines = shortened(words, 200, 13, lines=3).split("\n")
    assert len(lines) == 3
    assert lines[-1].endswith("…")
    assert all(text_width(line, 13) < 230 for line in lines)
    assert shortened("short", 200, 13) == "short"


@pytest.mark.parametrize("words", ["title", LONG])
def test_titles_of_panels_and_axes_side_by_side_have_room(words: str) -> None:
    above = sheet([100], [1, 1, 1], titles=[words] * 3)
    below = sheet([100], [1, 1, 1])
    below.x(words)
    # a third of the panels each
    assert least(above) >= min(3 * text_width(words, 12), 360)
    assert least(below) >= min(3 * text_width(words, 13), 360)
    assert (least(below) > 360) == (words == LONG)


def test_numbers_of_a_map_have_room() -> None:
    made = blank()
    made.panel().cells(np.full((2, 6), -12345.678), write=lambda value: f"({value:.3f})")
    assert least(made) >= 6 * text_width("(-12345.678)", 11)


def test_names_at_the_left_have_room() -> None:
    names, made = [f"{LONG} {i}" for i in range(3)], blank()
    made.panel().bars(names, [1, 2, 3], across=True)
    assert least(made) >= text_width(names[0], 12)


def test_a_long_title_of_a_low_axis_has_several_lines() -> None:
    grid = panel_grid([("a",), ("b",)], row_height=90)
    title_axes(grid, "step", f"value ({LONG})")
    title = grid.dress("title").layout.yaxis.title.text
    assert title.startswith("value<br>(thousand")
    assert all(text_width(line, 13) < 90 + 60 for line in title.split("<br>"))


def test_labels_of_a_logarithmic_axis_are_written_here() -> None:
    """Plotly would set powers in larger type than all other labels."""
    few = log_axis(np.array([0.2, 2.0]))
    assert {"0.2", "0.5", "1", "2"} <= set(few["ticktext"])
    many = log_axis(np.array([1e-9, 1e4]))
    assert {"1", "10<sup>−8</sup>", "10<sup>4</sup>"} <= set(many["ticktext"])
    for axis in (few, many):
        assert set(axis) == {"type", "tickvals", "ticktext"}
        assert len(axis["tickvals"]) == len(axis["ticktext"])


def test_labels_of_a_logarithmic_axis_keep_apart() -> None:
    near = log_axis(np.array([1.0, 1.0001]))
    assert near["range"][1] - near["range"][0] > 0.5
    for low, high in ((0.3, 4.0), (1.0, 90.0), (2e-3, 0.4)):
        places = np.log10(log_axis(np.array([low, high]))["tickvals"])
        seen = places[(places >= np.log10(low)) & (places <= np.log10(high))]
        assert len(seen) >= 2
        assert np.diff(seen).min() > 0.1 * np.log10(high / low)


def test_a_long_title_of_a_colour_bar_has_several_lines() -> None:
    made = blank(150)
    made.colours(colour_scale(f"contribution ({LONG})", np.array([0.0, 1.0])))
    title = made.fig.layout.coloraxis.colorbar.title.text
    assert title.startswith("contribution<br>(thousand")
    assert all(text_width(line, 12) < 150 + 60 for line in title.split("<br>"))


def test_dates_get_few_labels() -> None:
    days, made = np.arange("2001-01-01", "2001-01-06", dtype="datetime64[D]"), blank()
    made.panel().line(days.astype("datetime64[ns]"), np.arange(5.0))
    axis = made.dress("title").layout.xaxis
    assert (axis.nticks, axis.tickangle) == (5, 0)


def test_more_than_three_maps_stand_in_two_rows() -> None:
    ds, values = planted.head_entropy(), np.full((2, 2), 0.5)
    fig = head_maps(ds, [HeadMap(values, f"map {i}", "share") for i in range(4)], "title")
    feet = [axis.domain[0] for axis in fig.select_yaxes()]
    assert feet[0] == feet[1] > feet[2] == feet[3] == 0
    # each bar under its own map
    bars = [axis.colorbar.y for axis in fig.select_coloraxes()]
    assert bars[0] < feet[0]
    assert bars[0] > feet[2]
    assert bars[2] < 0


def test_what_does_not_fit_a_column_by_its_words_is_refused() -> None:
    narrow, wide = (sheet([100], [1, 1, 1], titles=[words] * 3) for words in ("a", "words as long as these"))
    figures = [made.dress("title") for made in (narrow, wide)]
    assert [fits(fig, COLUMNS["single"]) for fig in figures] == [True, False]
    assert viz.for_print(figures[1]).layout.meta["width_mm"] == COLUMNS["double"]
    # a figure that somebody drew with plotly alone has no sizes of type
    assert fits(go.Figure(go.Scatter(y=[1, 2])), COLUMNS["single"])


def curves(count: int) -> go.Figure:
    made = blank()
    for place in range(count):
        made.panel().line([0, 1], [place, place], f"{LONG} {place}")
    return made.dress("title")


def test_a_legend_has_room_for_its_rows_on_the_screen_and_in_print() -> None:
    few, many = curves(2), curves(12)
    assert (few.layout.meta["legend_rows"], many.layout.meta["legend_rows"]) == (2, 12)
    # plotly gives a legend at most half of the figure
    assert many.layout.height >= 2 * 12 * 29
    rooms = [fig.layout.height - fig.layout.margin.t - fig.layout.margin.b for fig in (few, many)]
    assert rooms[0] == 300
    assert rooms[1] >= 300
    # in both columns two names stand side by side
    bottoms = [viz.for_print(fig, "double").layout.margin.b for fig in (few, many)]
    assert bottoms[1] - bottoms[0] < 7 * 29


def test_labels_of_two_panels_do_not_touch() -> None:
    near = sheet([100], [1, 1], column_gap=0.02)
    far = sheet([100], [1, 1], column_gap=0.2)
    for made in (near, far):
        for panel in made:
            panel.line([1_000_000.5, 2_000_000.5], [0, 1])
    assert least(near) > 2 * least(far)


def test_long_names_of_rows_take_two_lines_where_there_is_room() -> None:
    names = [f"{LONG} {i}" for i in range(3)]
    high, low = blank(300), blank(60)
    for made in (high, low):
        made.panel().bars(names, [1, 2, 3], across=True)
    assert all(text.count("<br>") == 1 for text in high.dress("title").layout.yaxis.ticktext)
    assert low.dress("title").layout.yaxis.ticktext is None


def test_labels_of_neighbours_count_where_plotly_writes_them() -> None:
    places, axis = [np.arange(-256.0, 25)], {"nticks": 2, "range": [-256.5, 25.5]}
    # -200 and 0 are the round numbers of this axis
    assert _round_numbers(axis, places) == pytest.approx([56.5 / 282, 256.5 / 282])
    assert _round_numbers({**axis, "range": [25.5, -256.5]}, places) == pytest.approx([25.5 / 282, 225.5 / 282])
    for free in ({}, {"nticks": 2, "type": "log"}, {"nticks": 2, "matches": "x9"}):
        assert _round_numbers(free, places) == [0.0, 1.0]
    attention = viz.attention_grid(planted.attention())
    assert viz.for_print(attention, "double").layout.meta["type_pt"] == 7


def test_what_fits_no_page_is_set_smaller() -> None:
    wide = sheet([100], [1] * 3, titles=[LONG] * 3).dress("title")
    tall = sheet([100] * 14, titles=["a"] * 14, row_gap=40).dress("title")
    for fig in (wide, tall):
        made = viz.for_print(fig, "double")
        assert made.layout.meta["type_pt"] < 7
        assert made.layout.meta["height_mm"] <= 230
    assert least_width(viz.for_print(wide, "double")) <= COLUMNS["double"] * 96 / 25.4
    assert viz.for_print(blank().dress("title")).layout.meta["type_pt"] == 7
