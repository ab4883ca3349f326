"""Theme, escaping and saving."""

from __future__ import annotations

import json
import re

import plotly.graph_objects as go
import plotly.io as pio
import pytest

from refusals import expect_error
from tsfm_lens import viz
from tsfm_lens.core.errors import RenderError, install_command
from tsfm_lens.viz import theme


def test_import_keeps_plotlys_default_template():
    """Importing registers the template and leaves plotly's own as the default."""
    assert "tsfm_lens" in pio.templates
    assert pio.templates.default == "plotly"


def test_user_strings_show_letter_by_letter(forecast):
    name = "<b>x</b>&amp;%{x}$1$"
    model = "<i>m</i>"
    forecast = forecast.assign_coords(
        series=[name, "b"], units=("series", ["<u>€</u>", ""])
    )
    forecast.attrs["model"] = model
    fig = viz.forecast_fan(forecast)
    assert "&lt;b&gt;x&lt;/b&gt;&amp;amp;" in fig.layout.title.text
    assert "<i>" not in fig.layout.title.text
    assert fig.layout.yaxis.title.text == "value (&lt;u&gt;€&lt;/u&gt;)"
    assert all("<u>" not in (t.hovertemplate or "") for t in fig.data)
    assert theme.plain("%{x}") == "%&#123;x}"
    assert fig.layout.meta["title"] == f"Forecast of {name} by {model}"


def test_saved_html_is_self_contained(forecast, tmp_path):
    """Saved HTML is self-contained, and JSON is read back as it was."""
    fig = viz.forecast_fan(forecast)
    text = viz.save(fig, tmp_path / "new" / "fan.html").read_text()
    assert "<script src=" not in text
    assert "Plotly.newPlot" in text
    assert len(text) > 3_000_000
    assert (
        viz.save(fig, tmp_path / "fan.HTML", self_contained=False).stat().st_size
        < 200_000
    )
    again = pio.from_json(viz.save(fig, tmp_path / "fan.json").read_text())
    assert json.loads(again.to_json()) == json.loads(fig.to_json())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("fan.jpg", r"'fan\.jpg'.*\.html, \.json, \.png, \.svg, \.pdf"),
        ("afile/fan.html", "afile is a file; give a folder"),
        ("folder.html", r"folder.html' cannot be written: Is a directory"),
    ],
)
def test_unwritable_figure_is_refused_by_path(tmp_path, path, message):
    """A figure that cannot be written is refused, with its path."""
    (tmp_path / "afile").touch()
    (tmp_path / "folder.html").mkdir()
    expect_error(message, viz.save, go.Figure(), tmp_path / path)
    assert {file.name for file in tmp_path.iterdir()} == {"afile", "folder.html"}


@pytest.mark.parametrize("letters", ["ABCD", 1, None, ["a"]])
def test_unknown_panel_letters_are_refused(letters, forecast):
    """Letters of panels are there or not; any other value is refused."""
    expect_error("letters", viz.compose, [viz.forecast_fan(forecast)], letters=letters)


def test_missing_image_tools_are_named(tmp_path, monkeypatch):
    """Without kaleido or a browser the message says what to install."""
    pytest.importorskip("kaleido")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nothing"))
    with pytest.raises(
        RenderError,
        match=r"needs a Chrome or Chromium, and none was found.*BROWSER_PATH",
    ):
        viz.save(go.Figure(), tmp_path / "a.svg")
    monkeypatch.setattr("tsfm_lens.viz.saving.find_spec", lambda name: None)
    expect_error(
        re.escape(install_command("static")), viz.save, go.Figure(), tmp_path / "a.png"
    )
    assert not list(tmp_path.iterdir())
