"""The pictures of README and the site show what the code computes."""

from __future__ import annotations

import json
from pathlib import Path

import draw_pictures
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
KEPT = json.loads((draw_pictures.OUT / "linked.json").read_text())


def test_pictures_show_what_the_model_does() -> None:
    """The chosen head, the numbers and the sentence are those of the code at hand."""
    facts, state = draw_pictures.measure()
    found = facts.written
    assert found.keys() == KEPT.keys()
    for name, value in KEPT.items():
        if isinstance(value, float):
            # another machine may round the last digit otherwise
            assert abs(found[name] / value - 1) < 2e-3
        else:
            assert found[name] == value
    series = state["series"][0]
    assert state["names"][series["start"]] == KEPT["component"]
    assert series["truth"] is not None


@pytest.mark.usefixtures("inputs_explained_alone")
def test_figures_of_the_first_code_are_those_it_draws() -> None:
    """The figures below README's code have the titles of what it draws today."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    figures = draw_pictures.plots_of_code(page)
    titles = [draw_pictures.headline(fig) for fig in figures]
    assert titles == json.loads((draw_pictures.OUT / "lines.json").read_text())
    assert "images/lines.png" in page


def test_what_is_said_of_the_picture_is_seen() -> None:
    """The head copies, the forecast needs it, and it is a forecast worth showing."""
    assert KEPT["share"] > draw_pictures.COPIES
    assert KEPT["span_without"] < KEPT["span"] / 2
    assert KEPT["error"] < KEPT["naive_error"] < KEPT["error_without"]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_pages_say_what_the_picture_shows(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert "images/linked.png" in text
    assert KEPT["sentence"] in text


def test_pictures_have_the_sizes_of_their_places() -> None:
    """Pages of links take a card of 1280 x 640; the first picture is as wide."""
    with Image.open(draw_pictures.OUT / "card.png") as card:
        assert card.size == (1280, 640)
    with Image.open(draw_pictures.OUT / "linked.png") as picture:
        assert picture.width == 2 * picture.height
