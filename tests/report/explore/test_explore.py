"""The live linked view: what is chosen, in Python or in a browser, shows the numbers of
the model.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from browsing import Linked, until
from tiny_lenses import fresh
from tsfm_lens.core.errors import InputError, MissingExtraError, UnknownNameError
from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.models import Lens
from tsfm_lens.report.explore import opening, widget
from tsfm_lens.report.explore.widget import Explorer
from tsfm_lens.testing import assert_close, last_digit

H = 6
CONTEXT, TRUTH = bundled("co2").tail(46).split(H)
HEADS = ["decoder.1.cross_attn.2", "decoder.0.cross_attn.1"]


@pytest.fixture(scope="module", params=["chronos", "chronos-bolt"])
def lens(request: pytest.FixtureRequest) -> Lens:
    return fresh(request.param)


@pytest.fixture
def view(lens: Lens) -> Explorer:
    return lens.run(
        CONTEXT, H, truth=TRUTH[:1], num_samples=samples(lens), seed=5
    ).explore()


def samples(lens: Lens) -> int | None:
    if lens.adapter.readout == "token":
        return 9
    return None


def point(lens: Lens, batch: SeriesBatch = CONTEXT, *ablated: str) -> np.ndarray:
    """The library's own median; of a token model the expected value along the one path
    of the unchanged model.
    """
    if lens.adapter.readout != "token":
        with lens.ablate(*ablated):
            return lens.forecast(batch, H).median[0]
    encoded = lens.encode(batch, future=lens.median_path(CONTEXT, H))
    first = lens.adapter.first_value_token
    with lens.ablate(*ablated), torch.no_grad():
        logits = lens.forward(encoded)[0, :, first:].double()
    return (
        (torch.softmax(logits, dim=-1) * lens.bin_values(encoded)[0])
        .sum(-1)[:H]
        .numpy()
    )


def without(lens: Lens, *names: str) -> np.ndarray:
    return point(lens, CONTEXT, *names)


def masked(view: Explorer, start: int, stop: int) -> np.ndarray:
    """The median with the mean of the past in the place of a stretch, from the
    library's own forecast.
    """
    values = view.run.batch.values[0].copy()
    values[len(values) + start : len(values) + stop] = values.mean()
    return point(view.run.lens, dataclasses.replace(view.run.batch, values=(values,)))


def change(view: Explorer, forecast: np.ndarray) -> str:
    """What the view says of a forecast, its quantiles or its median, from the model's
    own numbers.
    """
    lens = view.run.lens
    token = lens.adapter.readout == "token"
    # the first step of a token model's decoder reads no value
    if token:
        later = slice(1, None)
    else:
        later = slice(None)
    plain = point(lens)[later]
    truth = TRUTH[0][later]
    errors = [
        three_digits(np.abs(item - truth).mean()) for item in (plain, forecast[later])
    ]
    shift = three_digits(np.abs(forecast[later] - plain).mean())
    up = int((forecast[later] > plain).sum())
    down = int((forecast[later] < plain).sum())
    ways = f"up at {up} of {len(plain)} steps"
    if down:
        ways += f" and down at {down}"
    statistic = "median"
    if token:
        statistic = "expected value"
    return (
        f"the {statistic} moves by {shift} ppm on average, {ways} (mean absolute error"
        f" {errors[0]} → {errors[1]} ppm)."
    )


def three_digits(value: float) -> str:
    if value >= 1000:
        return f"{value:.0f}"
    return f"{float(f'{value:.3g}'):g}"


def test_ablations_are_the_models_own(lens: Lens, view: Explorer) -> None:
    plain = point(lens)
    assert_close(view.forecast, plain, depth=100, dtype=np.float32)
    view.ablate(HEADS[0])
    one = without(lens, HEADS[0])
    assert_close(view.forecast, one, depth=100, dtype=np.float32)
    view.ablate(*HEADS)
    both = view.forecast
    assert not np.allclose(both, one)
    assert_close(both, without(lens, *HEADS), depth=100, dtype=np.float32)
    np.testing.assert_allclose(view.reply["without"]["line"], both, rtol=last_digit(4))
    # a set is forecast once, in whatever order
    view.ablate(*HEADS[::-1])
    assert view.forecast is both
    with pytest.raises(UnknownNameError, match=r"decoder\.1\.cross_attn\.3"):
        view.ablate("decoder.1.cross_attn.33")
    view.ablate()
    assert view.ablated == ()
    assert "last line of a notebook cell" in repr(view)
    assert_close(view.forecast, plain, depth=100, dtype=np.float32)


def test_a_brushed_stretch_is_left_out(view: Explorer) -> None:
    view.brush(-20, -5)
    assert view.marked == (-20, -5)
    assert_close(view.masked, masked(view, -20, -5), depth=100, dtype=np.float32)
    assert view.reply["brush"] == [20, 35]
    view.brush(-60, 0)
    assert "expected steps from -40 to 0" in view.error
    assert view.marked == (-20, -5)
    view.brush(0, 0)
    assert view.marked is None
    assert view.masked is None


def test_heads_are_selected_by_label(view: Explorer) -> None:
    """A head is selected by its labels."""
    view.select("1", 2)
    assert view.state["labels"][view.chosen] == "layer 1, cross-attention head 2"
    assert view.state["names"][view.reply["head"]] == HEADS[0]
    with pytest.raises(UnknownNameError):
        view.select("7", 2)


def test_refused_forecast_changes_nothing(
    view: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forecast that is refused is reported, and nothing changes."""
    view.ablate(HEADS[0])
    before = view.forecast
    monkeypatch.setattr(widget, "point_forecasts", refuse)
    view.ablate(*HEADS)
    assert view.reply["error"] == "no number at step 3 <b>"
    assert view.ablated == (HEADS[0],)
    assert view.forecast is before
    view.select("0", 0)
    view.ablate(HEADS[0])
    assert view.reply["error"] == ""


def refuse(*_args: object, **_options: object) -> None:
    raise InputError("no number at step 3 <b>")


def test_without_the_notebook_libraries(
    lens: Lens, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = opening.find_spec
    monkeypatch.setattr(
        opening, "find_spec", lambda name: None if name == "anywidget" else real(name)
    )
    with pytest.raises(
        MissingExtraError, match=r"anywidget not installed.*\[notebook\]"
    ):
        lens.run(CONTEXT, H).explore()


# what anywidget does with the module of a widget: its model has a state, and sends
PAGE = """<!doctype html><meta charset="utf-8"><style>%s</style>
<body data-jp-theme-light="%s"><div id="el" style="width: 1300px"></div>
<script type="module">%s
const listeners = [], state = %s;
window.sent = [];
window.arrive = reply => { state.reply = reply; listeners.forEach(each => each()); };
const model = {
  get: name => state[name],
  send: each => window.sent.push(each),
  on: (_, each) => listeners.push(each),
};
exported.render({el: document.getElementById("el"), model});
</script>"""


@pytest.fixture(scope="module")
def driver(new_browser: Any) -> Iterator[Any]:
    browser = new_browser("--window-size=1400,1100")
    yield browser
    browser.quit()


@pytest.mark.browser
def test_saved_page_shows_what_a_file_can(
    driver: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page made of a notebook, where no widget is drawn, has the view itself."""
    view = fresh("chronos-bolt").run(CONTEXT, H, truth=TRUTH[:1], seed=5).explore()
    shown: list[Any] = []
    monkeypatch.setattr(widget, "display", lambda each, **_: shown.append(each))
    view._ipython_display_()
    bundle, still = shown
    assert "application/vnd.jupyter.widget-view+json" in bundle
    page = tmp_path / "saved.html"
    page.write_text(f'<!doctype html><meta charset="utf-8">{still.data}')
    driver.get(page.as_uri())
    linked = Linked(driver)
    until(lambda: driver.find_elements("css selector", ".linked"), "nothing is drawn")
    assert "moves by" in linked.words()
    assert not linked.part("live").is_displayed()
    assert driver.get_log("browser") == []


@pytest.mark.browser
def test_every_press_shows_its_number(
    lens: Lens,
    view: Explorer,
    driver: Any,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as Jupyter marks its dark pages
    dark = "false" if samples(lens) is None else ""
    script = view._esm.replace("export default", "const exported =")
    state = json.dumps({"state": view.state, "reply": view.reply}).replace(
        "<", "\\u003c"
    )
    (tmp_path / "page.html").write_text(
        PAGE % (view._css, dark or "true", script, state)
    )
    driver.get((tmp_path / "page.html").as_uri())
    linked = Linked(driver)
    until(linked.words, lambda: f"not drawn: {driver.get_log('browser')}")

    def python() -> None:
        """Let Python answer what the browser has asked, as the kernel does."""
        for choice in driver.execute_script("return window.sent.splice(0)"):
            view._handle_custom_msg(choice, [])
            driver.execute_script("window.arrive(arguments[0])", view.reply)

    # a head by itself needs no answer
    linked.press_component(HEADS[0])
    assert linked.text("headline").startswith("Layer 1, cross-attention head 2 ")
    assert f"Without it {change(view, without(lens, HEADS[0]))}" in linked.words()
    assert linked.lines() == ["observed", "truth", "median", "without"]
    python()
    assert view.state["names"][view.chosen] == HEADS[0]
    # the toggle is of the selected head; while Python works the view says so and shows
    # no line of another set
    linked.press("ablate")
    assert linked.text("news") == "computing …"
    assert linked.lines() == ["observed", "truth", "median"]
    python()
    assert linked.text("news") == ""
    assert (
        f"Without the ablated component {change(view, without(lens, HEADS[0]))}"
        in linked.words()
    )
    # a shift-click puts another head into the set; what is pressed meanwhile is asked
    # when the answer is there
    linked.press_component(HEADS[1], shift=True)
    linked.press_component("decoder.0.cross_attn.0")
    python()
    python()
    assert linked.text("set") == ", ".join(HEADS)
    assert (
        f"Without the 2 ablated components {change(view, without(lens, *HEADS))}"
        in linked.words()
    )
    assert view.ablated == tuple(HEADS)
    assert view.state["names"][view.chosen] == "decoder.0.cross_attn.0"
    # a brushed stretch: the share of the head, and the forecast without it as a third
    # line
    linked.drag(20.5, 34.5, len(CONTEXT.values[0]))
    python()
    assert view.marked == (-20, -5)
    text = (
        "Without the brushed steps, their series' mean in their place,"
        f" {change(view, masked(view, -20, -5))}"
    )
    assert text in linked.words()
    assert "of its attention to the brushed 15 steps" in linked.words()
    assert linked.lines() == ["observed", "truth", "median", "without", "masked"]
    # a refusal stands in words, as they are, and nothing changes
    with monkeypatch.context() as patch:
        patch.setattr(widget, "point_forecasts", refuse)
        linked.press_component("decoder.1.mlp", shift=True)
        python()
    assert linked.text("news") == "no number at step 3 <b>"
    assert linked.text("set") == ", ".join(HEADS)
    linked.press("clear")
    linked.press("empty")
    python()
    python()
    assert (view.marked, view.ablated) == (None, ())
    assert linked.text("set") == "none"
    assert linked.text("headline").startswith("Layer 0, cross-attention head 0 ")
    assert (
        f"Without it {change(view, without(lens, 'decoder.0.cross_attn.0'))}"
        in linked.words()
    )
    # Python's own choices arrive as well
    view.select("1", 2)
    view.ablate(HEADS[1])
    driver.execute_script("window.arrive(arguments[0])", view.reply)
    assert linked.text("head") == "layer 1, cross-attention head 2"
    assert (
        f"Without the ablated component {change(view, without(lens, HEADS[1]))}"
        in linked.words()
    )
    colour = (
        "return getComputedStyle(document.querySelector('.linked')).backgroundColor"
    )
    assert driver.execute_script(colour) == (
        "rgb(26, 30, 35)" if dark else "rgb(255, 255, 255)"
    )
    assert driver.get_log("browser") == []
