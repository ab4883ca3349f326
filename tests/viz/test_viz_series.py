"""Forecast fans, logit maps and layer curves, checked as data."""

from __future__ import annotations

import numpy as np
import pytest

from tsfm_lens import viz
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import find
from tsfm_lens.data import SeriesBatch
from tsfm_lens.report.build import draw_results, render_page
from tsfm_lens.report.pipeline import make_heading
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.grid import choose_columns
from tsfm_lens.viz.logit_lens import visible_rows
from tsfm_lens.viz.panels import fitted_range
from tsfm_lens.viz.recipes import overlay
from viz.marks import heatmaps, named


def test_fan_draws_bands_median_and_truth(forecast):
    """A fan draws bands, the median, the context and the truth."""
    fig = viz.forecast_fan(forecast, series="roads")
    h = np.arange(6.0)
    assert [t.name for t in fig.data] == [
        "80 % interval from", "80 % interval", "50 % from", "50 %",
        "median forecast", "context", "observed",
    ]  # fmt: skip
    np.testing.assert_allclose(fig.data[0].y, 100 + h - 1.6)
    np.testing.assert_allclose(fig.data[1].y, 100 + h + 1.6)
    assert fig.data[1].fill == "tonexty"
    np.testing.assert_allclose(named(fig, "median forecast")[0].y, 100 + h)
    np.testing.assert_allclose(named(fig, "context")[0].y, 100.0 + np.arange(-12, 0))
    np.testing.assert_allclose(named(fig, "context")[0].x, np.arange(-12, 0))
    np.testing.assert_allclose(named(fig, "observed")[0].x, h)
    assert "80 % probability 98.4 to 101.6" in named(fig, "median forecast")[0].text[0]


@pytest.mark.parametrize(
    ("ids", "written"),
    [
        (["series-0/load", "series-0/temp"], ["load", "temp"]),
        # the names of several items tell them apart
        (["series-0/load", "series-1/load"], ["series-0/load", "series-1/load"]),
        (["shop/load", "shop/temp"], ["shop/load", "shop/temp"]),
        (["series-0", "series-1"], ["series-0", "series-1"]),
    ],
)
def test_a_single_item_has_no_invented_name(forecast, ids, written):
    """Titles and headings name a lone item by its columns, without a made-up id."""
    two = forecast.isel(series=[0, 1]).assign_coords(series=ids)
    title = viz.forecast_fan(two, series=ids[1]).layout.meta["title"]
    assert f"Forecast of {written[1]} by" in title
    sections = render_page(
        {"forecast": two}, draw_results({"forecast": two}), title="", provenance={}
    ).decode()
    assert f"on {', '.join(written)}</p>" in sections
    assert make_heading("m", SeriesBatch(np.ones((2, 4)), ids=ids)) == (
        f"m on {', '.join(written)}"
    )


def test_pages_count_drawn_series(forecast):
    """A page says how many of many series it draws."""
    names = [f"s{i}" for i in range(26)]
    many = forecast.isel(series=[0] * 26).assign_coords(series=names)
    panels = draw_results({"forecast": many})["forecast"]
    assert len(panels) == 24
    assert panels[0].sentences[0] == "The first 24 of 26 series are drawn."
    first = next(iter(find("forecast").draw_panels(many.isel(series=slice(24)))))
    assert "are drawn" not in " ".join(first.sentences)


def test_fan_marks_start_between_dates(dated_forecast):
    """A fan uses dates and marks the start between two days."""
    fig = viz.forecast_fan(dated_forecast, context_steps=3)
    assert not fig.layout.xaxis.title.text
    days = np.array(["2001-01-28", "2001-01-29", "2001-01-30"], dtype="datetime64[ns]")
    assert (
        np.asarray(named(fig, "context")[0].x, dtype="datetime64[ns]") == days
    ).all()
    assert str(fig.layout.shapes[0].x0).startswith("2001-01-30T12:00")


def test_fan_omits_padding_and_unknown_truth(forecast):
    """A fan leaves out padding and unknown truth."""
    forecast["context"][0, :20] = np.nan
    forecast["truth"][0] = np.nan
    fig = viz.forecast_fan(forecast)
    np.testing.assert_allclose(named(fig, "context")[0].x, np.arange(-10, 0))
    assert "10 context steps" in fig.layout.meta["subtitle"]
    assert not named(fig, "observed")


def test_fan_draws_paths_instead_of_bands(forecast):
    """A fan draws sampled paths in place of bands."""
    fig = viz.forecast_fan(forecast, samples=2)
    assert [path.y[0] for path in named(fig, "sampled paths")] == [0.0, 1.0]
    assert not named(fig, "80 % interval")


def test_tables_and_other_dimensions_are_refused(forecast, logit):
    with pytest.raises(InputError, match="not DataFrame"):
        viz.forecast_fan(forecast["truth"].to_dataframe())
    with pytest.raises(InputError, match=r"'quantile_forecast' has dimensions"):
        viz.lens_forecast(logit.assign(quantile_forecast=logit["entropy"]))


def test_visible_rows_against_a_loop():
    rng = np.random.default_rng(0)
    centres = np.sort(rng.normal(size=57))
    probability = rng.dirichlet(np.ones(57), size=(3, 4))
    edges, mass, outside = visible_rows(centres, probability, (-0.8, 1.1), 8)
    bounds = np.concatenate(
        [[1.5 * centres[0] - 0.5 * centres[1]], (centres[1:] + centres[:-1]) / 2,
         [1.5 * centres[-1] - 0.5 * centres[-2]]]
    )  # fmt: skip
    assert mass.shape[-1] <= 8
    assert edges[0] <= -0.8
    assert edges[-1] >= 1.1
    assert set(edges) <= set(bounds)
    for row in range(mass.shape[-1]):
        inside = (centres > edges[row]) & (centres < edges[row + 1])
        np.testing.assert_allclose(mass[..., row], probability[..., inside].sum(-1))
    assert_close(outside, 1 - mass.sum(-1).mean(-1), depth=1000, magnitude=1.0)


def test_logit_map_has_truth_at_bin(logit):
    """A logit map puts the planted bin where the truth is."""
    fig = viz.logit_map(logit, series="roads")
    maps = heatmaps(fig)
    assert [m.name for m in maps] == ["embedding", "layer 0", "layer 1"]
    last = maps[-1]
    edges = np.asarray(last.y)
    for step in range(6):
        row = int(np.argmax(np.asarray(last.z)[:, step]))
        # the planted bin is the one nearest to the truth, and bins are 5 wide
        assert edges[row] <= 100 + step + 2.5
        assert edges[row + 1] >= 100 + step - 2.5
    np.testing.assert_allclose(np.asarray(last.customdata).max(axis=0), 1.0)
    np.testing.assert_allclose([np.max(last.z), np.min(last.z)], [0.0, -3.0])
    assert "layer 1<br>" in [a.text for a in fig.layout.annotations]
    assert fig.layout.coloraxis.cmax == 0
    np.testing.assert_allclose(named(fig, "observed")[0].y, 100 + np.arange(6))


def test_lens_forecast_has_fan_per_layer(logit):
    """A forecast by layers has a fan for each layer, on shared axes."""
    fig = viz.lens_forecast(logit, layers=["embedding", 1])
    medians = named(fig, "median forecast")
    assert len(medians) == 2
    np.testing.assert_allclose(medians[1].y, np.arange(6))
    assert [a.text for a in fig.layout.annotations[:2]] == ["embedding", "layer 1"]
    low, high = fig.layout.yaxis.range
    assert fig.layout.yaxis2.range == (low, high)
    # holds the data and the last layer, not the wild first one (quantiles at ±160)
    assert low < -12
    assert high < 100
    assert "cut off" in fig.layout.meta["subtitle"]


def test_fitted_range_reports_what_it_cuts():
    """A fitted range holds the core of the values and reports what it cuts."""
    bounds, trimmed = fitted_range(
        np.array([0.0, 10.0]), np.array([-100.0, 12.0]), reach=0.5
    )
    assert trimmed
    assert bounds[0] <= -5
    assert bounds[0] > -7
    assert bounds[1] >= 12
    assert fitted_range(np.array([2.0]), np.array([np.nan]))[0][0] < 2
    assert fitted_range(np.array([2.0]), np.array([]))[0][1] > 2
    assert [choose_columns(n) for n in (1, 4, 5, 7, 9, 13)] == [1, 4, 3, 4, 3, 5]


def test_overlaid_forecasts_name_their_own_quantiles(forecast):
    """Forecasts of other levels say which interval each has."""
    levels = forecast["quantile"].values
    inner = forecast.isel(quantile=slice(1, len(levels) - 1))
    same = overlay({"a": forecast, "b": forecast}).layout.meta["subtitle"]
    both = overlay({"a": forecast, "b": inner}).layout.meta["subtitle"]
    outer_text, inner_text = (
        f"from the {some[0]:.3g} to the {some[-1]:.3g} quantile"
        for some in (levels, levels[1:-1])
    )
    assert f"intervals: {outer_text}" in same
    assert f"intervals: a {outer_text}; b {inner_text}" in both
