"""The widget without a browser: clicks and controls change the traces to the numbers of the model."""

from __future__ import annotations

import numpy as np
import pytest

from tsfm_lens import viz
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError, MissingExtraError, UnknownNameError
from tsfm_lens.explore import opening
from tsfm_lens.explore.widget import Explorer
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.head_states import TRACES, scores

H = 6
CONTEXT, TRUTH = bundled("co2").tail(46).split(H)


@pytest.fixture(scope="module", params=["chronos", "chronos-bolt"])
def lens(request: pytest.FixtureRequest) -> Lens:
    return load(architectures()[request.param].tiny(), check=False)


@pytest.fixture
def view(lens: Lens) -> Explorer:
    samples = 9 if lens.adapter.readout == "token" else None
    return lens.run(CONTEXT, H, truth=TRUTH[:1], num_samples=samples, seed=5).explore()


def trace(view: Explorer, name: str):
    return view.figure.data[TRACES.index(name)]


def click(view: Explorer, layer: int, head: int) -> None:
    """What the browser sends for a click on a cell of the map."""
    points = {"trace_indexes": [0], "point_indexes": [[layer, head]], "xs": [head], "ys": [layer]}
    view.figure._js2py_pointsCallback = {"event_type": "plotly_click", "points": points}


def without(lens: Lens, view: Explorer, *names: str) -> np.ndarray:
    samples = 9 if lens.adapter.readout == "token" else None
    with lens.ablate(*names):
        return lens.forecast(CONTEXT, H, num_samples=samples, seed=5).quantiles[0]


def test_a_click_shows_another_head(view: Explorer) -> None:
    ds = view.states
    wanted = (0, 3) if view.chosen != (0, 3) else (1, 1)
    click(view, *wanted)
    assert view.chosen == wanted
    at = ds.isel(series=0, layer=wanted[0], head=wanted[1])
    np.testing.assert_allclose(trace(view, "write").y, at["write"])
    np.testing.assert_allclose(trace(view, "attention").z[0], 100 * at["attention"])
    for product in ("QK", "OV"):
        values = at["singular_value"].sel(product=product).values
        np.testing.assert_allclose(trace(view, product).y, values / values[0])
    assert list(trace(view, "chosen").x[:2]) == [wanted[1] - 0.5, wanted[1] + 0.5]
    assert view.head.value == wanted
    assert f"layer {wanted[0]}, head {wanted[1]}:" in view.words.value
    assert viz.theme.number(float(at["entropy"])) in view.words.value


def test_ablations_are_the_models_own(lens: Lens, view: Explorer) -> None:
    plain = np.array(trace(view, "median").y)
    middle = list(view.states["quantile"].values).index(0.5)
    np.testing.assert_array_equal(
        plain, lens.forecast(CONTEXT, H, num_samples=9 if lens.adapter.readout == "token" else None, seed=5).median[0]
    )
    assert trace(view, "ablated median").visible is False
    view.select("1", 2)
    view.toggle.value = True
    one = without(lens, view, "decoder.1.cross_attn.2")
    assert_close(trace(view, "ablated median").y, one[middle], depth=16, dtype=np.float32)
    assert trace(view, "ablated median").visible is True
    # the toggle belongs to the chosen head, the ablation stays
    view.select("0", 1)
    assert view.toggle.value is False
    view.toggle.value = True
    names = ["decoder.1.cross_attn.2", "decoder.0.cross_attn.1"]
    assert list(view.tags.value) == names
    two = without(lens, view, *names)
    assert not np.allclose(two, one)
    assert_close(trace(view, "ablated median").y, two[middle], depth=16, dtype=np.float32)
    assert_close(trace(view, "ablated low").y, two[0], depth=16, dtype=np.float32)
    assert_close(trace(view, "ablated band").y, two[-1], depth=16, dtype=np.float32)
    np.testing.assert_array_equal(view.forecast, two)
    # a set is forecast once, in whatever order
    both = view.forecast
    view.ablate(*names[::-1])
    assert view.forecast is both
    with pytest.raises(UnknownNameError, match=r"decoder\.1\.cross_attn\.3"):
        view.ablate("decoder.1.cross_attn.33")
    view.ablate(*names)
    shift = viz.theme.number(float(np.abs(two[middle] - plain).mean()))
    assert view.effect.value.startswith(f"without 2 heads the median moves by {shift} ppm")
    assert "mean absolute error" in view.effect.value
    # one taken out of the list, then all
    view.tags.value = names[1:]
    assert_close(trace(view, "ablated median").y, without(lens, view, names[1])[middle], depth=16, dtype=np.float32)
    view.empty.click()
    assert view.ablated == ()
    assert view.toggle.value is False
    assert trace(view, "ablated median").visible is False
    np.testing.assert_array_equal(trace(view, "median").y, plain)


def test_the_map_shows_every_score(view: Explorer) -> None:
    found = scores(view.states)
    assert len(found) == 7
    for key, (words, values) in found.items():
        view.score.value = key
        np.testing.assert_array_equal(trace(view, "scores").z, values)
        assert words == trace(view, "scores").colorbar.title.text.replace("<br>", " ")
    variable, product = "stable_rank QK".split()
    np.testing.assert_array_equal(found["stable_rank QK"][1], view.states[variable].sel(product=product))


def test_a_refused_forecast_is_said_and_nothing_changes(view: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise InputError("no number at step 3 <b>")

    view.select("1", 2)
    view.toggle.value = True
    monkeypatch.setattr(type(view.run.lens), "forecast", refuse)
    view.select("0", 0)
    view.toggle.value = True
    assert view.effect.value == "no number at step 3 &lt;b&gt;"
    assert view.toggle.value is False
    assert view.ablated == ((1, 2),)


def test_without_the_notebook_libraries(lens: Lens, monkeypatch: pytest.MonkeyPatch) -> None:
    real = opening.find_spec
    monkeypatch.setattr(opening, "find_spec", lambda name: None if name == "anywidget" else real(name))
    with pytest.raises(MissingExtraError, match=r'needs anywidget.*"tsfm-lens-toolbox\[notebook\]"'):
        lens.run(CONTEXT, H).explore()
