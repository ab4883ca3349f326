"""Room for words on sheets, and figures for print: column widths, type, lines told
apart without colour.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from tsfm_lens import viz
from tsfm_lens.core import io
from tsfm_lens.core.errors import InputError
from tsfm_lens.viz import saving
from tsfm_lens.viz.printing import (
    COLUMNS,
    LEAST_TYPE,
    PIXELS_PER_MM,
    PIXELS_PER_POINT,
    TALLEST,
    fits,
    for_print,
)
from tsfm_lens.viz.sheet import shortened
from viz.marks import needs_browser

WHOLE = 1  # pixel: widths of files are whole ones
A_PIXEL = 0.2  # mm: sizes are whole pixels of the screen
DRAWN: dict[str, Callable[[Any], go.Figure]] = {
    "forecast_fan": lambda get: viz.forecast_fan(get("forecast"), samples=2),
    "layer_gain": lambda get: viz.plot(get("gain"), "gain"),
    "ablation_heatmap": lambda get: viz.ablation_heatmap(get("ablation")),
    "ablation_forecasts": lambda get: viz.ablation_forecasts(get("ablation")),
    "attribution_heatmap": lambda get: viz.attribution_heatmap(get("attribution")),
    "attention_map": lambda get: viz.attention_map(get("attention")),
}


@pytest.fixture(params=sorted(DRAWN))
def figure(request: pytest.FixtureRequest) -> go.Figure:
    return DRAWN[request.param](request.getfixturevalue)


def test_long_text_is_cut_by_lines() -> None:
    """A text is cut off after its number of lines."""
    lines = shortened("word " * 40, 200, 13, lines=3).split("\n")
    assert len(lines) == 3
    assert lines[-1].endswith("…")
    assert shortened("short", 200, 13) == "short"


def sizes(part: Any, key: str = "") -> list[float]:
    """Every type size of a figure, in pixels."""
    if isinstance(part, dict):
        if key.endswith("font") and part.get("size"):
            font_sizes = [float(part["size"])]
        else:
            font_sizes = []
        return font_sizes + [
            size for name, value in part.items() for size in sizes(value, name)
        ]
    if isinstance(part, list | tuple):
        return [size for item in part for size in sizes(item, key)]
    return []


def test_figures_have_journal_width_and_type(figure: go.Figure) -> None:
    """Every figure has the width and the size of type of a journal."""
    before = json.loads(figure.to_json())
    printed = for_print(figure)
    assert json.loads(figure.to_json()) == before
    meta = printed.layout.meta
    assert meta["width_mm"] in COLUMNS.values()
    pixels = meta["width_mm"] * PIXELS_PER_MM
    assert printed.layout.width * meta["print_scale"] == pytest.approx(
        pixels, abs=WHOLE
    )
    assert not printed.layout.title.text
    found = sizes({**printed.to_dict(), "meta": None})
    assert min(found) * meta["print_scale"] >= LEAST_TYPE * PIXELS_PER_POINT
    assert max(found) * meta["print_scale"] <= 9 * PIXELS_PER_POINT
    assert meta["height_mm"] <= TALLEST
    assert [trace.type for trace in printed.data] == [
        trace.type for trace in figure.data
    ]
    assert meta["title"] == figure.layout.meta["title"]


@pytest.mark.parametrize("name", ["layer_gain", "ablation_forecasts"])
def test_two_coloured_lines_differ_in_grey(
    name: str, request: pytest.FixtureRequest
) -> None:
    printed = for_print(DRAWN[name](request.getfixturevalue))
    lines = {
        (t.line.color or t.marker.color, t.line.dash, t.mode)
        for t in printed.data
        if t.type == "scatter" and "lines" in t.mode
    }
    dashes = {
        colour: {(dash or "solid", mode) for c, dash, mode in lines if c == colour}
        for colour, _, _ in lines
    }
    assert len(dashes) >= 2
    forms = [form for item in dashes.values() for form in item]
    solid = [form for form in forms if form == ("solid", "lines")]
    assert len(forms) - len(set(forms)) == max(len(solid) - 1, 0)
    assert "6px,2px" in {dash for _, dash, _ in lines}


def test_figure_uses_narrowest_fitting_column() -> None:
    """A figure goes into the narrowest column that it fits."""
    # 600 pixels of the screen are 400 in print, on the smallest scale: 106 mm
    narrow, wide, widest, tall = (
        go.Figure(layout={"meta": {"min_width": width}, "height": height})
        for width, height in ((300, 500), (600, 500), (2000, 500), (300, 3000))
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
        assert for_print(fig, "double").layout.meta["type_pt"] < 5
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
def test_unreadably_narrow_column_is_refused(column: str | float, message: str) -> None:
    """A column in which nothing can be read is refused."""
    with pytest.raises(InputError, match=message):
        for_print(go.Figure(layout={"meta": {"min_width": 600}}), column)


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    good = tmp_path / "a.txt"
    bad = tmp_path / "b.txt"
    good.write_text("old")
    with pytest.raises(TypeError):
        saving.write_together({good: b"new", bad: "text is not bytes"})  # type: ignore[dict-item]
    assert good.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert saving.write_together({good: b"new", bad: b"too"}) == [good, bad]
    # moved in the order given: where the last one is, all are
    assert list(io.WRITTEN)[-2:] == [good, bad]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


@pytest.fixture
def drawing_server() -> Iterator[None]:
    """A browser that draws several files, as a caller may run one."""
    kaleido = pytest.importorskip("kaleido")
    kaleido.start_sync_server(page_generator=kaleido.PageGenerator(mathjax=False))
    yield
    kaleido.stop_sync_server()


@pytest.mark.browser
@pytest.mark.usefixtures("drawing_server")
@needs_browser
def test_saved_figure_has_column_width(tmp_path: Path) -> None:
    """In svg and png: 89 mm at 96 pixels an inch, type of at least 5 points."""
    fig = go.Figure(go.Bar(x=["a", "b"], y=[1, 2]), {"template": "tsfm_lens"})
    text = viz.save(fig, tmp_path / "bars.svg", column="single").read_text()
    width, view = re.search(r'width="([\d.]+)".*?viewBox="0 0 (\d+)', text).groups()
    assert float(width) == pytest.approx(89 * PIXELS_PER_MM, abs=WHOLE)
    shrink = float(width) / float(view)
    types = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)]
    assert shrink * min(types) >= LEAST_TYPE * PIXELS_PER_POINT
    png = viz.save(fig, tmp_path / "bars.png", column=89, scale=2).read_bytes()
    assert int.from_bytes(png[16:20]) == pytest.approx(
        178 * PIXELS_PER_MM, abs=2 * WHOLE
    )


@pytest.mark.browser
@needs_browser
def test_pdf_holds_whole_figure_at_size() -> None:
    """What is drawn first is the page's ground: all of the figure, from the corner on,
    at 3/4 of a point a pixel.
    """
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
