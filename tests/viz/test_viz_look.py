"""Theme, colours, escaping and saving."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from specimens.marks import unexplained
from tsfm_lens import viz
from tsfm_lens.errors import InputError, RenderError
from tsfm_lens.viz import theme
from tsfm_lens.viz.saving import write_atomically
from tsfm_lens.viz.sheet import blank

needs_browser = pytest.mark.skipif(
    not (shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")),
    reason="no Chromium on the path",
)


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_importing_registers_the_template_and_imports_no_torch():
    code = (
        "import sys, plotly.io as pio; before = pio.templates.default; import tsfm_lens.viz; "
        "print(pio.templates.default == before, 'tsfm_lens' in pio.templates, 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["True", "True", "False"]


def test_sequential_scale_darkens_throughout_and_diverging_is_lightest_in_the_middle():
    light = [luminance(c) for _, c in theme.SEQUENTIAL]
    assert (np.diff(light) < 0).all()
    sides = [luminance(c) for _, c in theme.DIVERGING]
    assert (np.diff(sides[:4]) > 0).all()
    assert (np.diff(sides[3:]) < 0).all()
    positions = [p for p, _ in theme.DIVERGING]
    np.testing.assert_allclose(positions, 1 - np.array(positions[::-1]))


def test_the_two_ends_of_every_contrast_differ_for_red_green_blind_readers():
    # deuteranopia, severity 1, Machado et al. 2009, in linear RGB
    simulate = np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    )

    def seen(colour: str) -> np.ndarray:
        c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        return simulate @ np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)

    for a, b in ((theme.BLUE, theme.VERMILION), (theme.DIVERGING[1][1], theme.DIVERGING[5][1])):
        assert np.linalg.norm(seen(a) - seen(b)) > 0.3
    # the check can fail: pure red and a green of equal luminance look much the same
    assert np.linalg.norm(seen("#C00000") - seen("#3B7A00")) < 0.2


def test_user_strings_show_letter_by_letter(forecast):
    name, model = "<b>x</b>&amp;%{x}$1$", "<i>m</i>"
    forecast = forecast.assign_coords(series=[name, "b"], units=("series", ["<u>€</u>", ""]))
    forecast.attrs["model"] = model
    fig = viz.forecast_fan(forecast)
    assert "&lt;b&gt;x&lt;/b&gt;&amp;amp;" in fig.layout.title.text
    assert "<i>" not in fig.layout.title.text
    assert fig.layout.yaxis.title.text == "value (&lt;u&gt;€&lt;/u&gt;)"
    assert all("<u>" not in (t.hovertemplate or "") for t in fig.data)
    assert theme.plain("%{x}") == "%&#123;x}"
    assert fig.layout.meta["title"] == f"Forecast of {name} by {model}"


def test_heights_leave_the_panels_their_room(forecast):
    fig = viz.forecast_fan(forecast)
    room = fig.layout.height - fig.layout.margin.t - fig.layout.margin.b
    assert room == 300
    bare = theme.untitled(fig)
    assert bare.layout.title.text is None
    assert bare.layout.height - bare.layout.margin.t - bare.layout.margin.b == 300
    assert fig.layout.title.text


def test_save_html_is_self_contained(forecast, tmp_path):
    path = viz.save(viz.forecast_fan(forecast), tmp_path / "new" / "fan.html")
    text = path.read_text()
    assert "<script src=" not in text
    assert "Plotly.newPlot" in text
    assert len(text) > 3_000_000
    small = viz.save(viz.forecast_fan(forecast), tmp_path / "fan.HTML", self_contained=False)
    assert small.stat().st_size < 200_000


def test_save_json_round_trips(forecast, tmp_path):
    fig = viz.forecast_fan(forecast)
    path = viz.save(fig, tmp_path / "fan.json")
    again = pio.from_json(path.read_text())
    assert json.loads(again.to_json()) == json.loads(fig.to_json())


def test_save_refuses_an_unknown_suffix(tmp_path):
    with pytest.raises(InputError, match=r"'fan\.jpg'.*\.html, \.json, \.png, \.svg, \.pdf"):
        viz.save(go.Figure(), tmp_path / "fan.jpg")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_atomically(path, "text is not bytes")  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    write_atomically(path, b"new")
    assert path.read_text() == "new"


def test_without_kaleido_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("tsfm_lens.viz.saving.find_spec", lambda name: None)
    with pytest.raises(RenderError, match=r'pip install "tsfm-lens-toolbox\[static\]"'):
        viz.save(go.Figure(), tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_without_a_browser_the_message_says_so(tmp_path, monkeypatch):
    pytest.importorskip("kaleido")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nothing"))
    with pytest.raises(RenderError, match=r"needs a Chrome or Chromium, and none was found.*BROWSER_PATH"):
        viz.save(go.Figure(), tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


@needs_browser
@pytest.mark.browser
def test_static_images_have_the_size_asked_for(forecast, tmp_path):
    pytest.importorskip("kaleido")
    fig = viz.forecast_fan(forecast)
    png = viz.save(fig, tmp_path / "a.png", width=600, scale=1).read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(png[16:20], "big") == 600
    assert int.from_bytes(png[20:24], "big") == fig.layout.height
    assert viz.save(fig, tmp_path / "a.pdf").read_bytes()[:5] == b"%PDF-"
    svg = viz.save(fig, tmp_path / "a.svg").read_text()
    assert svg.startswith("<svg")
    assert "Forecast of rivers by toy" in svg


def test_marks_that_nothing_explains_are_found():
    """Dots beside a curve, in a figure whose axes name one value: the caption has to say which is which."""
    made = blank()
    made.panel().line([0, 1], [0, 1])
    made.panel().dots([0.5], [0.5])
    made.y("value")
    assert unexplained(made.dress("title")) == ["lines '' at ('x', 'y')", "markers '' at ('x', 'y')"]
    assert unexplained(made.dress("title", "dot: the best one")) == []
    alone = blank()
    alone.panel().line([0, 1], [0, 1])
    assert unexplained(alone.dress("title")) == ["lines '' at ('x', 'y')"]
    alone.y("value")
    assert unexplained(alone.dress("title")) == []
