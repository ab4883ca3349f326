"""The first screen of a report in a real browser: tabs, linked view, cards, widths,
dark and light.
"""

from __future__ import annotations

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains

import planted
from browsing import (
    LEAST_CONTRAST,
    Linked,
    contrast,
    press,
    until,
    until_drawn,
    until_ready,
)
from tsfm_lens.report import build_report
from tsfm_lens.report.cards import make_cards
from tsfm_lens.viz.linked import linked_state

pytestmark = pytest.mark.browser
DEFAULT = (
    "forecast",
    "lens",
    "gain",
    "attribution",
    "ablation_effects",
    "attention_patterns",
    "head_states",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    every = planted.in_report()
    results = {name: every[name] for name in DEFAULT}
    return build_report(
        results,
        tmp_path_factory.mktemp("linked"),
        title="T",
        provenance={"model": "toy", "data": "a.csv"},
    )


@pytest.fixture(scope="module")
def driver(new_browser):
    browser = new_browser("--window-size=1400,1000")
    yield browser
    browser.quit()


@pytest.fixture
def screen(driver, page):
    driver.set_window_size(1400, 1000)
    driver.get(page.as_uri())
    until_ready(driver)
    return driver


def part(driver, name):
    return driver.find_element("css selector", f"[data-part={name}]")


def summary_text(driver) -> str:
    return Linked(driver).words()


def headline(driver) -> str:
    return part(driver, "headline").text


def visible(driver) -> str:
    return driver.find_element("css selector", ".cards").text


def test_tabs_switch_view_and_card_numbers(screen):
    """A tab switches the view and the numbers of the cards."""
    assert (
        screen.find_element("css selector", ".facts").text
        == "toy · 2 layers × 3 heads · 3 series · 5 steps"
    )
    # the strongest head of those that read a part of the series
    assert headline(screen).startswith(
        "Layer 1, head 2 reads 2001-01-22 for every step"
    )
    moved = "Without it the expected value moves by {} m on average, up at 5 of 5 steps"
    assert moved.format(12) in summary_text(screen)
    # the median is 1 above the truth; of the last season 8, 9, 8, 9, 8 the truth 10 to
    # 14 is 3.6 away
    assert "this forecast\n1\n" in visible(screen)
    assert "last season repeated (2 steps)\n3.6" in visible(screen)
    assert "layer 1, head 2: " in visible(screen)
    second = screen.find_elements("css selector", ".tabs input")[1]
    screen.execute_script(
        "arguments[0].focus()",
        screen.find_element("css selector", ".tabs input:checked"),
    )
    ActionChains(screen).send_keys("\ue014").perform()
    until(lambda: second.is_selected(), "the second tab is not selected")
    assert headline(screen).startswith(
        "Layer 1, head 2 reads 2001-01-21 for every step"
    )
    assert moved.format(24) in summary_text(screen)
    assert "last season repeated (2 steps)\n3.6" in visible(screen)


MARKS = """return plots.filter(plot => plot.dataset.drawn && plot.offsetWidth).flatMap(
  plot => (plot.layout.shapes || []).slice(shapes.get(plot).length).map(
    shape => [plot.closest("section").id, shape.xref, shape.x0, shape.x1, shape.y0]))"""


def test_chapters_mark_what_is_chosen(screen):
    """A click and a step are marked in the chapters that draw them, until cleared."""
    until_drawn(screen)
    view = Linked(screen)
    view.press_component("decoder.1.cross_attn.0")
    until(lambda: screen.execute_script(MARKS), "no component is marked")
    framed = screen.execute_script(MARKS)
    screen.execute_script(
        "const step = document.querySelector('[data-part=step]'); step.value = 2;"
        " step.dispatchEvent(new Event('input'))"
    )
    # a step is a line, which begins and ends there, unlike the frames of a component
    assert all(start != stop for _, _, start, stop, _ in framed)
    until(
        lambda: any(
            start == stop for *_, start, stop, _ in screen.execute_script(MARKS)
        ),
        "no step is marked",
    )
    # maps of attention: the panel of the head, the row of the step
    attention = f"s{DEFAULT.index('attention_patterns') + 1}"
    made = [
        (xref, y0)
        for section, xref, *_, y0 in screen.execute_script(MARKS)
        if section == attention
    ]
    # the third panel of the grid of two layers and two heads
    assert ("x3 domain", 0) in made
    assert all(f"x{panel} domain" in dict(made) for panel in (2, 3, 4))
    assert {y0 for _, y0 in made} == {0, 0.5}
    # and the keys of a brushed stretch, the last two of the context
    view.drag(22.5, 23.5, 24)
    until(
        lambda: [-2.5, -0.5] in [mark[2:4] for mark in screen.execute_script(MARKS)],
        lambda: str(screen.execute_script(MARKS)),
    )
    ActionChains(screen).send_keys("\ue00c").perform()


# of every chapter what is on the screen: the series that its figures are of, and those
# that it says not to draw
SEEN = """const there = each => each.offsetParent !== null;
const sections = document.querySelectorAll("section:not(#provenance)");
return Array.from(sections).map(section => ({
  figures: Array.from(section.querySelectorAll("figure")).filter(there)
    .map(each => each.dataset.series || ""),
  folded: Array.from(section.querySelectorAll("details > figure"))
    .filter(each => there(each.parentElement))
    .map(each => each.dataset.series || ""),
  notes: Array.from(section.querySelectorAll("p.note[data-series]")).filter(there)
    .map(each => each.textContent),
}));"""


def test_chapters_follow_tab_or_name_content(screen):
    """Chapters follow the tab or say what they draw."""
    for position, name in enumerate("abc"):
        screen.execute_script(
            "document.querySelectorAll('.tabs input')[arguments[0]].click()", position
        )
        chapters = screen.execute_script(SEEN)
        # the linked view is the chapter of the states of heads, the last one
        assert len(chapters) == len(DEFAULT) - 1
        for kind, chapter in zip(DEFAULT[:-1], chapters, strict=True):
            displayed = {*chapter["figures"], *chapter["folded"]}
            assert displayed, kind
            assert displayed <= {"", name}, kind
            # one first figure stands open under every tab
            assert chapter["figures"], kind
            # the attention is of the first series alone
            alone = kind == "attention_patterns" and name != "a"
            assert [
                name in note and "draws a" in note for note in chapter["notes"]
            ] == [True] * alone, kind
            if kind in (
                "forecast",
                "lens",
                "attribution",
                "ablation_effects",
            ):
                assert name in displayed, kind
    # a figure that was drawn under another tab is as wide as its place
    until_drawn(screen)
    screen.execute_script("document.querySelectorAll('.tabs input')[1].click()")
    script = """const plot = document.querySelector("figure[data-series=b] .plot");
    const layout = plot._fullLayout;
    return layout && Math.abs(layout.width - plot.clientWidth) < 2;"""
    until(lambda: screen.execute_script(script), "a figure is not as wide as its place")


def cells(driver) -> list[str]:
    return [cell.text for cell in driver.find_elements("css selector", ".cell")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_cell_can_be_read(screen, theme):
    """The text of every cell has a contrast of 4.5, in both themes, at every share."""
    screen.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
    script = """return Array.from(document.querySelectorAll(".cell")).flatMap(cell =>
      [0, 25, 50, 75, 100].map(share => {
        cell.style.setProperty("--share", `${share}%`);
        const style = getComputedStyle(cell);
        return [style.color, style.backgroundColor];
      }));"""
    pairs = screen.execute_script(script)
    Linked(screen).drag(20.5, 23.5, 24)
    pairs += screen.execute_script(script)
    assert len(pairs) == 2 * 8 * 5
    for text, ground in pairs:
        assert contrast(text, ground) >= LEAST_CONTRAST, (text, ground)


def test_numbers_stand_in_a_table(screen):
    """A button opens the numbers of the panels as tables."""
    Linked(screen).press("numbers")
    steps, components = screen.find_elements("css selector", ".linked table")
    rows = [row.text for row in components.find_elements("css selector", "tr")]
    assert rows[2].startswith("layer 0, head 1 1 1 reads 2001-01-23 for every step, 2")
    last = steps.find_elements("css selector", "tr")[-1].text
    # the truth is 10 to 14, and without head 2 of layer 1 the forecast is 12 higher
    assert last == "2001-01-29 14 14 13 15 26"
    image = part(screen, "context").find_element("css selector", "svg")
    assert "Layer 1, head 2 reads 2001-01-22" in image.get_attribute("aria-label")


def test_printing_leaves_page_as_it_was(screen):
    """Printing is light, and afterwards the theme and what is folded are as before."""
    state = """const page = document.documentElement;
    const open = document.querySelectorAll("details[open]").length;
    return [page.dataset.theme || "", open];"""
    send = "window.dispatchEvent(new Event(arguments[0]))"
    for theme in ("", "dark"):
        screen.execute_script(
            "const data = document.documentElement.dataset; delete data.theme;"
            "if (arguments[0]) data.theme = arguments[0];",
            theme,
        )
        screen.execute_script(send, "beforeprint")
        # where the numbers come from is printed once
        assert screen.execute_script(state) == ["light", 1]
        screen.execute_script(send, "afterprint")
        assert screen.execute_script(state) == [theme, 0]


def test_clicked_head_shows_name_and_effect(screen):
    press(
        screen,
        screen.find_element(
            "css selector", "[data-component='decoder.0.cross_attn.1']"
        ),
    )
    assert part(screen, "head").text == "layer 0, head 1"
    assert headline(screen).startswith("Layer 0, head 1 reads 2001-01-23 for every")
    assert "Without it the expected value moves by 1 m on average" in summary_text(
        screen
    )
    # the median is off by 1 with the head and by 2 without it
    assert "(mean absolute error 0 → 1 m)" in summary_text(screen)
    # the same place for every step
    assert "2 steps before the forecast: 75 % of its attention; 25 % is" in headline(
        screen
    )
    # and which components it is behind of
    assert (
        "It is number 7 of 8; layer 1, head 2 moves the forecast most (12 m)."
        in summary_text(screen)
    )
    # arrows move through the rows in order of computation, whose MLPs stand alone
    ActionChains(screen).send_keys("\ue015").perform()
    assert part(screen, "head").text == "layer 0, MLP"
    assert "moves by 5 m on average, up at 5 of 5 steps (mean" in summary_text(screen)
    assert headline(screen).startswith("Layer 0, MLP reads no other token")
    ActionChains(screen).send_keys("\ue015").perform()
    assert part(screen, "head").text == "layer 1, head 0"


def test_each_step_shows_its_attention(screen):
    """A step shows its own row of attention."""
    press(
        screen,
        screen.find_element(
            "css selector", "[data-component='decoder.1.cross_attn.0']"
        ),
    )
    weekly = "reads the same weekday of the week before: 75 % of its attention, 7 steps"
    assert weekly in headline(screen)
    slider = part(screen, "step")
    slider.send_keys("\ue014" * 3)
    assert headline(screen).startswith(
        "For 2001-01-27, layer 1, head 0 reads 2001-01-20, 7 steps back: 75 %"
    )
    assert slider.get_attribute("aria-valuetext") == "2001-01-27"
    # the map, too, is of the step
    assert "of 2001-01-27 is 10 m higher: 22 instead of 12" in summary_text(screen)
    assert cells(screen) == ["≈ 0", "+1", "+2", "+5", "+10", "+11", "+12", "+10"]
    ActionChains(screen).send_keys("\ue00c").perform()
    assert weekly in headline(screen)
    assert cells(screen) == ["≈ 0", "1", "2", "5", "10", "11", "12", "10"]


def test_brush_gives_share_of_every_head(screen):
    # the last two of 24 steps
    Linked(screen).drag(22.5, 23.5, 24)
    until(lambda: "brushed" in summary_text(screen), lambda: summary_text(screen))
    # heads look 1, 2 and 3 steps before the forecast, head 0 of layer 1 at the seven
    # steps further back
    assert cells(screen) == ["75 %", "75 %", "0 %", "", "0 %", "75 %", "0 %", ""]
    assert (
        "Layer 1, head 2 gives 0 % of its attention to the brushed 2 steps (2001-01-23"
        " to 2001-01-24)" in summary_text(screen)
    )
    assert "Attention" in part(screen, "maptitle").text
    assert "share" in part(screen, "scale").text
    assert "layer 0, head 0 gives most: 75 %" in summary_text(screen)
    # nobody is here to forecast anew, and a command says who can
    assert "tsfm-lens serve toy --data a.csv" in summary_text(screen)
    assert screen.execute_script("return String(getSelection())") == ""
    assert not part(screen, "live").is_displayed()
    assert Linked(screen).lines() == ["observed", "truth", "median", "without"]
    press(screen, part(screen, "clear"))
    assert "brushed" not in summary_text(screen)


def test_page_stays_small_at_every_width(screen, page):
    """The page is short and small at every width, dark and light."""
    assert page.stat().st_size < 3_000_000
    assert screen.execute_script("return document.documentElement.scrollHeight") < 8000
    for width in (1400, 800, 500):
        screen.set_window_size(width, 1000)
        wide, seen = screen.execute_script(
            "return [document.documentElement.scrollWidth, window.innerWidth]"
        )
        assert wide <= seen, width
    script = "return getComputedStyle(document.body).backgroundColor"
    light = screen.execute_script(script)
    press(screen, screen.find_element("id", "theme"))
    assert light == "rgb(255, 255, 255)" != screen.execute_script(script)
    plot = screen.find_element("css selector", ".plot")
    until(
        lambda: screen.execute_script("return arguments[0].dataset.drawn", plot),
        "no plot is drawn",
    )
    until(
        lambda: screen.execute_script("return Boolean(arguments[0]._fullLayout)", plot),
        "no plot is drawn",
    )
    assert (
        screen.execute_script("return arguments[0]._fullLayout.font.color", plot)
        == "rgba(220,220,220,1)"
    )
    assert screen.get_log("browser") == []


def test_large_model_shows_what_fits():
    """Of 6 heads with 20,000 queries on 24 tokens of 3 series the strongest alone fits,
    and the view says so.
    """
    ds = planted.explore()
    state = linked_state(ds.isel(query=np.arange(20_000) % 5))
    rows = [["rows" in head for head in series["states"]] for series in state["series"]]
    assert rows == [[False] * 6 + [True, False]] * 3
    assert state["notes"] == [
        "Attention at single steps is in this file for 1 of 6 heads, the strongest."
    ]
    assert all("mean" in series["states"][0] for series in state["series"])


def test_cards_show_what_is_available():
    """Cards are made of the results that there are."""
    every = planted.in_report()
    assert make_cards({"gain": every["gain"]}, {}) == []
    (card,) = make_cards({"f": every["forecast"].drop_vars("truth")}, {"f": "s1"})
    assert "the truth is not known yet" in card["cards"]["a"]["note"]
    # the median is 8, 2 and 0 too high
    (card,) = make_cards({"lens": every["patches"]}, {"lens": "s1"})
    assert card["cards"]["a"]["big"] == "mostly in layer 0"
    assert "from 8 m to 2 m" in card["cards"]["a"]["note"]
    # without a truth the last layer would be its own measure
    assert (
        make_cards({"lens": every["patches"].drop_vars("truth")}, {"lens": "s"}) == []
    )
