"""Figures in a real browser, on the screen and in both columns of print: no text lies
on another or is cut off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

import planted
import specimens
from planted.series import THREE, components
from tsfm_lens import viz
from tsfm_lens.report.build import draw_results
from tsfm_lens.viz.printing import (
    COLUMNS,
    LEAST_TYPE,
    PIXELS_PER_POINT,
    TALLEST,
    fits,
)
from tsfm_lens.viz.theme import untitled
from viz.marks import heatmaps

pytestmark = pytest.mark.browser

SCREEN = 900  # pixels of a figure in a notebook, or in a report that has room
NAME = "Wirkleistung Knoten Köln-Süd"
UNIT = "megawatt hours per day"
FEW = (
    "layer_similarity",
    "causal_effects",
    "seasonality_bias",
    "head_states",
)  # maps, points and bars, lines, panels of all kinds
DRAW = """
const [spec, width, height, done] = arguments, {data, layout} = JSON.parse(spec);
const plot = document.createElement("div");
document.getElementById("plot").replaceWith(plot);
plot.id = "plot";
plot.style = `width: ${width}px; height: ${height}px`;
Plotly.newPlot(plot, data, {...layout, width, height}, {staticPlot: true})
  .then(() => done(faults(plot)));
"""
Faults = Callable[[go.Figure, float], list[str]]


@pytest.fixture(scope="module")
def page(
    new_browser: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A page that can draw figures and find their faults."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    faults = Path(__file__).with_name("faults.js").read_text()
    scripts = "".join(
        f"<script>{script}</script>" for script in (get_plotlyjs(), faults)
    )
    path.write_text(
        "<!DOCTYPE html><meta charset='utf-8'><body style='margin: 0'><div"
        f" id='plot'></div>{scripts}"
    )
    browser = new_browser("--window-size=1600,1200")
    browser.get(path.as_uri())
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def faults(page: Any) -> Faults:
    """What cannot be read of a figure at a width in pixels."""

    def of(fig: go.Figure, width: float) -> list[str]:
        found: list[str] = page.execute_async_script(
            DRAW, fig.to_json(), width, fig.layout.height or 450
        )
        return found

    return of


def everywhere(fig: go.Figure) -> Iterator[tuple[str, go.Figure, float]]:
    """A figure as it is shown: wide, as narrow as pages make it, and in the columns of
    print that it fits.
    """
    narrow = fig.layout.meta["min_width"]
    yield "notebook", fig, max(SCREEN, narrow)
    yield "screen", untitled(fig), max(SCREEN, narrow)
    yield "narrow", untitled(fig), narrow
    for column, width in COLUMNS.items():
        # what is refused in one column goes into both, whatever it takes
        if column == "double" or fits(fig, width):
            printed = viz.for_print(fig, column)
            yield column, printed, printed.layout.width


def find_faults(
    faults: Faults, name: str, figures: Iterable[tuple[str, go.Figure]]
) -> tuple[int, list[str]]:
    """How many drawings were looked at, and what cannot be read of them."""
    count = 0
    found = []
    # a plate of a report is often the figure of a renderer
    drawn = {fig.to_json(): (figure, fig) for figure, fig in figures}
    for figure, fig in drawn.values():
        for where, visible, width in everywhere(fig):
            count += 1
            found += [
                f"{name}, {figure} ({where}): {fault}"
                for fault in faults(visible, width)
            ]
    return count, found


def readable() -> go.Figure:
    fig = go.Figure(
        go.Bar(x=["one", "two", "three"], y=[1, 2, 3]),
        {"height": 300, "template": viz.theme.TEMPLATE},
    )
    return fig.update_layout(
        margin={"l": 60, "r": 20, "t": 20, "b": 60},
        xaxis_title="name",
        yaxis_title="height",
    )


def title_over_a_panel(fig: go.Figure) -> None:
    fig.add_bar(x=["one"], y=[1], xaxis="x2", yaxis="y2")
    second_axis = {"anchor": "x2", "title": {"text": "words<br>in three<br>lines"}}
    fig.update_layout(
        xaxis_domain=[0, 0.48], xaxis2={"domain": [0.52, 1]}, yaxis2=second_axis
    )


ON_PAPER = {"y": 0.5, "xref": "paper", "yref": "paper"}
PLANTED: dict[str, Callable[[go.Figure], Any]] = {
    "overlap: words | words": lambda fig: [
        fig.add_annotation(text="words", x=x, **ON_PAPER) for x in (0.5, 0.52)
    ],
    "overlap: words | words that are turned": lambda fig: [
        fig.add_annotation(text=text, x=0.5, textangle=angle, **ON_PAPER)
        for text, angle in (("words that are turned", -90), ("words", 0))
    ],
    "cut: words": lambda fig: fig.add_annotation(
        text="words", x=1, xanchor="left", xshift=10, **ON_PAPER
    ),
    "cut by its panel: words that leave": lambda fig: fig.add_scatter(
        x=["three"],
        y=[2],
        mode="text",
        text="words that leave the panel at its side " * 3,
    ),
    "overlap: a name that is long | a name that is long": lambda fig: fig.update_xaxes(
        tickangle=0, ticktext=["a name that is long"] * 3, tickvals=[0, 0.5, 1]
    ),
    "legend over a panel": lambda fig: fig.update_layout(
        showlegend=True,
        legend={"x": 0.5, "y": 0.5, "yref": "paper", "yanchor": "middle"},
    ),
    "title over a panel: words": title_over_a_panel,
    "no room for a panel": lambda fig: fig.update_yaxes(domain=[0, 0.02]),
}


def test_readable_figure_has_no_fault(faults: Faults) -> None:
    """A figure that can be read has no fault."""
    assert faults(readable(), 400) == []
    turned = readable().update_xaxes(tickangle=-45)
    assert faults(turned, 400) == []


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_found(faults: Faults, fault: str) -> None:
    fig = readable()
    PLANTED[fault](fig)
    found = faults(fig, 400)
    first, *second = fault.removeprefix("overlap: ").split(" | ")
    assert any(
        fault in item or (second and f"{second[0]} | {first}" in item) for item in found
    ), found


@pytest.mark.parametrize("name", FEW)
def test_few_figures_have_readable_text(faults: Faults, name: str) -> None:
    """The words of a few figures can be read."""
    results = planted.in_report(
        [f"{NAME} {i}" for i in range(4)], units=UNIT, level=-123456.789
    )
    drawn = [
        (name, panel.figure) for panel in draw_results({name: results[name]})[name]
    ]
    assert find_faults(faults, name, drawn)[1] == []


@pytest.mark.parametrize("width", COLUMNS.values())
def test_sheets_have_large_readable_text(faults: Faults, page: Any, width: int) -> None:
    """The camera-ready figure of two models: ablation map, attention and lens of each,
    and the maps as a pair.
    """
    maps = viz.ablation_heatmap(planted.ablation())
    attention = viz.attention_map(planted.attention())
    lens = viz.lens_forecast(planted.quantile_lens())
    wide = width == COLUMNS["double"]
    if wide:
        pairs = [
            viz.compare([item] * 2, ["one", "another"]) for item in (maps, attention)
        ]
    else:
        pairs = [maps]
    for figures in (
        [[maps] * 2, [attention] * 2, lens] if wide else [maps, attention],
        pairs,
    ):
        sheet = viz.compose(figures, width)
        assert faults(sheet, sheet.layout.width) == []
        sizes = page.execute_script(
            "return [...document.querySelectorAll('#plot text')].map(t =>"
            " parseFloat(getComputedStyle(t).fontSize))"
        )
        scale = sheet.layout.meta["print_scale"]
        assert scale * min(sizes) / PIXELS_PER_POINT >= LEAST_TYPE
        assert sheet.layout.meta["height_mm"] <= TALLEST
        assert sheet.layout.meta["title"].startswith("a, ")


def test_sheets_leave_out_numbers_without_room(faults: Faults, page: Any) -> None:
    """Maps of many heads beside each other: no label touches that of its neighbour, and
    no number is smaller than the docs promise.
    """
    rows = components(heads=8)
    distances = np.linspace(0.001, 0.9, len(rows))
    distance = np.repeat(distances[:, None], len(THREE["series"]), axis=1)
    maps = viz.ablation_heatmap(planted.ablation(rows=rows, distance=distance))
    # plotly would choose 2 pixels for them
    sheet = viz.compose([[maps, maps], viz.forecast_fan(planted.forecast())], 183)
    assert faults(sheet, sheet.layout.width) == []
    sizes = page.execute_script(
        "return [...document.querySelectorAll('#plot text')].map(t =>"
        " parseFloat(getComputedStyle(t).fontSize))"
    )
    scale = sheet.layout.meta["print_scale"]
    assert scale * min(sizes) / PIXELS_PER_POINT >= LEAST_TYPE
    assert all(text for row in maps.data[0].text for text in row)
    labels = {text for trace in heatmaps(sheet) for row in trace.text for text in row}
    assert labels <= {"", "·"}


@pytest.mark.campaign
@pytest.mark.parametrize("source", specimens.SOURCES)
def test_every_figure_has_readable_text(faults: Faults, source: str) -> None:
    """Every figure of every result at every width."""
    results = specimens.specimens(source)
    count = 0
    found = []
    for name, result in results.items():
        drawings, unread = find_faults(
            faults, name, specimens.draw_all(name, result, results)
        )
        count = count + drawings
        found = found + unread
    logging.getLogger(__name__).info(
        "%s: %d drawings of %d results", source, count, len(results)
    )
    assert found == []
    assert count
