"""Room for words on sheets, and figures for print: column widths, type, lines told apart without colour."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from tsfm_lens import viz
from tsfm_lens.errors import InputError
from tsfm_lens.viz import saving
from tsfm_lens.viz.printing import COLUMNS, PIXELS_PER_POINT, fits, for_print
from tsfm_lens.viz.sheet import sheet, shortened, text_width
from viz.marks import needs_browser

A_PIXEL = 0.2  # mm: sizes are whole pixels of the screen
DRAWN: dict[str, Callable[[Any], go.Figure]] = {
    "forecast_fan": lambda get: viz.forecast_fan(get("forecast"), samples=2),
    "layer_entropy": lambda get: viz.layer_entropy(get("logit")),
    "layer_gain": lambda get: viz.layer_gain(get("gain")),
    "ablation_heatmap": lambda get: viz.ablation_heatmap(get("ablation")),
    "ablation_forecasts": lambda get: viz.ablation_forecasts(get("ablation")),
    "attribution_heatmap": lambda get: viz.attribution_heatmap(get("attribution")),
    "attention_map": lambda get: viz.attention_map(get("attention")),
}


@pytest.fixture(params=sorted(DRAWN))
def figure(request: pytest.FixtureRequest) -> go.Figure:
    return DRAWN[request.param](request.getfixturevalue)


def test_markup_takes_no_room_and_lines_do_not_add_up() -> None:
    assert text_width("<b>ab</b>", 10) == text_width("ab", 10)
    assert (
        text_width("ab<br>abc\nab", 10)
        == text_width("abc", 10)
        == 0.5 * text_width("abc", 20)
    )
    lines = shortened("word " * 40, 200, 13, lines=3).split("\n")
    assert len(lines) == 3
    assert lines[-1].endswith("…")
    assert all(text_width(line, 13) <= 200 for line in lines)
    assert shortened("short", 200, 13) == "short"


def sizes(part: Any, key: str = "") -> list[float]:
    """Every type size of a figure, in pixels."""
    if isinstance(part, dict):
        own = [float(part["size"])] if key.endswith("font") and part.get("size") else []
        return own + [
            size for name, value in part.items() for size in sizes(value, name)
        ]
    return (
        [size for each in part for size in sizes(each, key)]
        if isinstance(part, list | tuple)
        else []
    )


def test_every_figure_has_the_width_and_type_of_a_journal(figure: go.Figure) -> None:
    before = figure.to_json()
    printed = for_print(figure)
    assert figure.to_json() == before
    meta = printed.layout.meta
    assert meta["width_mm"] in COLUMNS.values()
    assert printed.layout.width == round(meta["width_mm"] / 25.4 * 96)
    assert not printed.layout.title.text
    found = sizes({**printed.to_dict(), "meta": None})
    assert min(found) >= 6 * PIXELS_PER_POINT - 0.01
    assert max(found) <= 8 * PIXELS_PER_POINT
    assert (
        0
        < printed.layout.height - printed.layout.margin.t - printed.layout.margin.b
        < figure.layout.height
    )
    assert printed.layout.height <= 230 / 25.4 * 96
    assert [trace.type for trace in printed.data] == [
        trace.type for trace in figure.data
    ]
    assert meta["title"] == figure.layout.meta["title"]


@pytest.mark.parametrize("name", ["layer_entropy", "layer_gain", "ablation_forecasts"])
def test_lines_of_two_colours_differ_in_grey(
    name: str, request: pytest.FixtureRequest
) -> None:
    printed = for_print(DRAWN[name](request.getfixturevalue))
    lines = {
        (t.line.color, t.line.dash, t.mode)
        for t in printed.data
        if t.type == "scatter" and "lines" in t.mode
    }
    dashes = {
        colour: {(dash or "solid", mode) for c, dash, mode in lines if c == colour}
        for colour, _, _ in lines
    }
    assert len(dashes) >= 2
    forms = [form for each in dashes.values() for form in each]
    solid = [form for form in forms if form == ("solid", "lines")]
    assert len(forms) - len(set(forms)) == max(len(solid) - 1, 0)
    assert "6px,2px" in {dash for _, dash, _ in lines}


def test_a_figure_goes_into_the_narrowest_column_that_it_fits() -> None:
    # 500 pixels of the screen are 400 in print: 106 mm
    narrow, wide, widest, tall = (
        go.Figure(layout={"meta": {"min_width": width}, "height": height})
        for width, height in ((300, 500), (500, 500), (2000, 500), (300, 3000))
    )
    # a figure that somebody drew with plotly alone has no least width
    assert fits(go.Figure(go.Scatter(y=[1, 2])), COLUMNS["single"])
    for fig, column, width in (
        (narrow, None, 89),
        (wide, None, 183),
        (wide, 106, 106),
        (widest, None, 183),
    ):
        assert for_print(fig, column).layout.meta["width_mm"] == width
    assert for_print(wide).layout.meta["type_pt"] == 6
    for fig in (widest, tall):
        assert for_print(fig, "double").layout.meta["type_pt"] < 6
    assert for_print(tall).layout.meta["height_mm"] == pytest.approx(230, abs=A_PIXEL)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("single", r"not 89.*double"),
        (104, "not 104"),
        ("triple", r"'triple'.*single.*double"),
        (5, "5 mm"),
    ],
)
def test_a_column_in_which_nothing_can_be_read_is_refused(
    column: str | float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        for_print(go.Figure(layout={"meta": {"min_width": 500}}), column)


def test_panels_abreast_stand_below_each_other_in_a_narrow_column() -> None:
    canvas = sheet(
        [200],
        [1] * 4,
        titles=list("abcd"),
        column_gap=0.04,
        min_width=700,
        shared_yaxes=True,
    )
    for at, panel in enumerate(canvas):
        panel.line([0, 1], [0, at], f"line {at}")
    canvas.panel().y("height")
    wide = canvas.dress("Four panels")
    printed = for_print(wide, "single")
    assert (printed.layout.meta["width_mm"], printed.layout.meta["type_pt"]) == (89, 6)
    corners = [
        (x.domain[0], y.domain[0])
        for x, y in zip(printed.select_xaxes(), printed.select_yaxes(), strict=True)
    ]
    assert [round(left, 2) for left, _ in corners] == [0, 0.54] * 2
    assert corners[0][1] == corners[1][1] > 0.5 > corners[2][1] == corners[3][1] == 0
    # each title stands over its panel, and the first panel of each row says what the height is
    for note, (left, foot), word in zip(
        printed.layout.annotations, corners, "abcd", strict=True
    ):
        assert (note.text, note.x > left, note.y > foot) == (word, True, True)
    assert [axis.title.text for axis in printed.select_yaxes()] == [
        "height",
        None,
        "height",
        None,
    ]
    high = printed.layout.height - printed.layout.margin.t - printed.layout.margin.b
    share = printed.layout.yaxis.domain[1] - printed.layout.yaxis.domain[0]
    assert share * high == pytest.approx(0.8 * 200, abs=A_PIXEL)
    assert for_print(wide).layout.meta["width_mm"] == 183
    with pytest.raises(InputError, match="not 30"):
        for_print(wide, 30)


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.txt", tmp_path / "b.txt"
    good.write_text("old")
    with pytest.raises(TypeError):
        saving.write_together({good: b"new", bad: "text is not bytes"})  # type: ignore[dict-item]
    assert good.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert saving.write_together({good: b"new", bad: b"too"}) == [good, bad]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


@pytest.mark.browser
@needs_browser
def test_a_pdf_holds_the_whole_figure_at_its_size() -> None:
    """What is drawn first is the page's ground: all of the figure, from the corner on, at 3/4 of a point a pixel."""
    pytest.importorskip("kaleido")
    content = saving.rendered(go.Figure(layout={"width": 400, "height": 300}), "pdf")
    packed = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL)
    drawn = next(
        text for text in map(_unpacked, packed) if re.match(rb"[-\d. ]+ cm\n", text)
    )
    number = rb"(-?[\d.]+)"
    corner, inner = re.findall(rb" ".join([number] * 6) + rb" cm", drawn)[:2]
    assert float(corner[0]) * float(inner[0]) == pytest.approx(1 / PIXELS_PER_POINT)
    assert (float(corner[4]), float(inner[4]), float(inner[5])) == (0, 0, 0)
    assert b"\n0 0 400 300 re\n" in drawn


def _unpacked(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""
