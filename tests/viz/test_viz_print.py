"""Figures for print: column widths, type sizes, lines told apart without colour, files written together."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
import pytest

from tsfm_lens import viz
from tsfm_lens.errors import InputError
from tsfm_lens.viz import printing, saving
from tsfm_lens.viz.printing import COLUMNS, PIXELS_PER_POINT, for_print

# sizes are whole pixels of the screen (0.26 mm, rounded) and whole points of the page
A_PIXEL, A_POINT = 0.2, 1.0

POINT = 96 / 72
DRAWN: dict[str, Callable[[Any], go.Figure]] = {
    "forecast_fan": lambda get: viz.forecast_fan(get("forecast"), samples=2),
    "logit_map": lambda get: viz.logit_map(get("logit")),
    "lens_forecast": lambda get: viz.lens_forecast(get("logit")),
    "layer_entropy": lambda get: viz.layer_entropy(get("logit")),
    "layer_gain": lambda get: viz.layer_gain(get("gain")),
    "ablation_heatmap": lambda get: viz.ablation_heatmap(get("ablation")),
    "ablation_forecasts": lambda get: viz.ablation_forecasts(get("ablation")),
    "attribution_bars": lambda get: viz.attribution_bars(get("attribution")),
    "attribution_heatmap": lambda get: viz.attribution_heatmap(get("attribution")),
    "attention_map": lambda get: viz.attention_map(get("attention")),
    "attention_grid": lambda get: viz.attention_grid(get("attention")),
}


@pytest.fixture(params=sorted(DRAWN))
def figure(request: pytest.FixtureRequest) -> go.Figure:
    return DRAWN[request.param](request.getfixturevalue)


def sizes(part: Any, key: str = "") -> Iterator[float]:
    """Every type size of a figure, in pixels."""
    if isinstance(part, dict):
        for name, value in part.items():
            if key.endswith("font") and name == "size":
                yield float(value)
            else:
                yield from sizes(value, name)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from sizes(each, key)
    elif isinstance(part, str):
        yield from map(float, re.findall(r"font-size:\s*([\d.]+)px", part))


def widths(fig: go.Figure) -> list[float]:
    lines = [t.line.width for t in fig.data if t.type == "scatter"] + [s.line.width for s in fig.layout.shapes]
    return [float(width) for width in lines if width]


def test_every_figure_has_the_width_type_and_lines_of_a_journal(figure: go.Figure) -> None:
    before = json.loads(figure.to_json())
    made = for_print(figure)
    assert json.loads(figure.to_json()) == before
    assert made.layout.meta["width_mm"] in COLUMNS.values()
    assert made.layout.width == round(made.layout.meta["width_mm"] / 25.4 * 96)
    assert not made.layout.title.text
    # screen type of 10 to 15 pixels is 7.5 to 11 points, so some of it must have changed
    found = [*sizes(made.to_dict())]
    assert found
    assert min(found) >= 7 * POINT - 0.01
    assert max(found) <= 8 * POINT + 0.01
    assert max(sizes(figure.to_dict())) > 8 * POINT + 0.01
    assert all(width >= 0.5 * POINT - 1e-9 for width in widths(made))
    room = made.layout.height - made.layout.margin.t - made.layout.margin.b
    assert 0 < room < figure.layout.height
    assert made.layout.height <= 230 / 25.4 * 96
    # what is drawn stays the same
    assert [t.type for t in made.data] == [t.type for t in figure.data]
    assert made.layout.meta["title"] == figure.layout.meta["title"]


@pytest.mark.parametrize("name", ["layer_entropy", "layer_gain", "ablation_forecasts"])
def test_lines_of_two_colours_differ_in_grey(name: str, request: pytest.FixtureRequest) -> None:
    made = for_print(DRAWN[name](request.getfixturevalue))
    lines = {(t.line.color, t.line.dash, t.mode) for t in made.data if t.type == "scatter" and "lines" in t.mode}
    dashes = {colour: {(dash or "solid", mode) for c, dash, mode in lines if c == colour} for colour, _, _ in lines}
    assert len(dashes) >= 2
    forms = [form for each in dashes.values() for form in each]
    solid = [form for form in forms if form == ("solid", "lines")]
    assert len(forms) - len(set(forms)) == max(len(solid) - 1, 0)
    assert "6px,2px" in {dash for _, dash, _ in lines}


def test_a_line_that_has_dashes_keeps_them_and_bars_get_hatches() -> None:
    dashed = go.Scatter(y=[1, 2], mode="lines", line={"color": printing.VERMILION, "dash": "dot"})
    fig = go.Figure([dashed, go.Bar(y=[1], marker_color=printing.VERMILION), go.Bar(y=[1], marker_color=printing.BLUE)])
    made = for_print(fig)
    assert made.data[0].line.dash == "dot"
    assert made.data[1].marker.pattern.shape == "/"
    assert made.data[2].marker.pattern.shape is None


def test_a_figure_goes_into_the_narrowest_column_that_it_fits() -> None:
    fig = go.Figure(layout={"meta": {"min_width": 300}})
    assert for_print(fig).layout.meta["width_mm"] == 89.0
    # 500 pixels of screen type at 13 are 500 * 7/13 points at 7: 95 mm
    wide = go.Figure(layout={"meta": {"min_width": 500}})
    assert for_print(wide).layout.meta["width_mm"] == 183.0
    assert for_print(wide, 96).layout.meta["width_mm"] == 96.0
    with pytest.raises(InputError, match=r"89 mm.*double"):
        for_print(wide, "single")
    with pytest.raises(InputError, match="94 mm"):
        for_print(wide, 94)
    with pytest.raises(InputError, match=r"'triple'.*single.*double"):
        for_print(fig, "triple")
    with pytest.raises(InputError, match="5 mm"):
        for_print(fig, 5)


def test_a_figure_that_was_written_as_json_is_printed_alike(figure: go.Figure) -> None:
    again = pio.from_json(figure.to_json())
    assert for_print(again).to_json() == for_print(figure).to_json()


def test_a_figure_taller_than_a_page_is_shortened() -> None:
    assert for_print(go.Figure(layout={"height": 3000})).layout.meta["height_mm"] == pytest.approx(230, abs=A_PIXEL)
    assert printing.type_size(30, 1.0) == pytest.approx(8 * PIXELS_PER_POINT)


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
@pytest.mark.skipif(
    not (shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")),
    reason="no Chromium on the path",
)
def test_a_pdf_page_is_as_wide_as_the_column(forecast: Any) -> None:
    pytest.importorskip("kaleido")
    content = saving.rendered(for_print(viz.forecast_fan(forecast), "single"), "pdf")
    box = re.search(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", content)
    assert box is not None
    assert float(box[1]) == pytest.approx(89 / 25.4 * 72, abs=A_POINT)
    # letters are embedded as outlines of a font, not as dots
    assert b"/FontFile" in content


@pytest.mark.browser
@pytest.mark.skipif(
    not (shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")),
    reason="no Chromium on the path",
)
def test_a_pdf_holds_the_whole_figure_at_its_size() -> None:
    """What is drawn first is the page's ground: all of the figure, from the corner on, at 3/4 of a point a pixel."""
    pytest.importorskip("kaleido")
    content = saving.rendered(go.Figure(layout={"width": 400, "height": 300}), "pdf")
    packed = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL)
    drawn = next(text for text in map(_unpacked, packed) if re.match(rb"[-\d. ]+ cm\n", text))
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
