"""Data behind figures as .csv, figures of one series, and fonts that are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import xarray as xr

from refusals import expect_error
from tsfm_lens import viz
from tsfm_lens.core.estimates import Result
from tsfm_lens.core.registry import figure
from tsfm_lens.testing import assert_close
from tsfm_lens.viz import saving
from tsfm_lens.viz.sheet import sheet


@figure("heights", "Heights.", table=["height"])
def height_bars(ds: xr.Dataset) -> go.Figure:
    """Bars of the heights, each series one."""
    return go.Figure(go.Bar(x=ds["series"].values, y=ds["height"].values[:, 0]))


def heights() -> Result:
    return Result(
        {"height": (("series", "place"), np.arange(6.0).reshape(3, 2))},
        {"series": ["a", "=b", "c"]},
        {"kind": "heights"},
    )


def written(fig: go.Figure, folder: Path) -> pd.DataFrame:
    return pd.read_csv(viz.save(fig, folder / "figure.csv"))


def test_registered_table_is_written(tmp_path: Path) -> None:
    table = written(height_bars(heights()), tmp_path)
    assert table["height"].tolist() == [0, 1, 2, 3, 4, 5]
    # a spreadsheet would run the name
    assert set(table["series"]) == {"a", "'=b", "c"}


def test_traces_are_written(tmp_path: Path) -> None:
    line = go.Scatter(x=[1, 2], y=[3.5, np.nan], name="line")
    line.error_y = {"array": [1.0, 2.0], "arrayminus": [0.5, 0.25]}
    heat = go.Heatmap(z=[[1, 2, 3], [4, 5, 6]], y=["low", "high"])
    legend = go.Scatter(x=[None], y=[None])
    table = written(go.Figure([line, heat, legend]), tmp_path)
    first = table[table["trace"] == "line"]
    assert first["x"].tolist() == [1, 2]
    assert first["y_minus"].tolist() == [0.5, 0.25]
    assert first["y_plus"].tolist() == [1.0, 2.0]
    cells = table[table["z"].notna()].set_index(["y", "x"])["z"]
    assert cells[("high", 2)] == 6
    assert len(table) == 2 + 6


def test_cells_between_edges_are_written(tmp_path: Path) -> None:
    days = pd.date_range("2020-01-01", periods=4)
    heat = go.Heatmap(z=[[1, 2, 3], [4, 5, 6]], x=days, y=[0.0, 0.5, 2.0])
    table = written(go.Figure(heat), tmp_path).set_index("z")
    assert table["y"].tolist() == [0, 0, 0, 0.5, 0.5, 0.5]
    assert table["y_end"].tolist() == [0.5, 0.5, 0.5, 2, 2, 2]
    ends = pd.to_datetime(table[["x", "x_end"]].loc[6])
    assert ends.tolist() == [days[2], days[3]]


def test_names_of_rows_and_panels_are_written(tmp_path: Path) -> None:
    canvas = sheet([100, 100], titles=["one <first>\nof two", "other"])
    for panel in canvas:
        panel.dots([3.5, 4.5, 5.5], [0, 1, 0.8])
        panel.y(tickvals=[0, 1], ticktext=["embed", "a &amp; b"])
        panel.x(tickvals=[3.5, 5.5], ticktext=["350 %", "550 %"])
    table = written(canvas.finalize("Two panels"), tmp_path)
    assert table["title"].tolist() == 3 * ["one <first> of two"] + 3 * ["other"]
    assert table["y_label"].tolist() == 2 * ["embed", "a & b", "a & b"]
    # texts of an axis of numbers name nothing
    assert "x_label" not in table


def test_figure_without_data_is_refused(tmp_path: Path) -> None:
    expect_error(r"\.json", viz.save, go.Figure(), tmp_path / "empty.csv")
    assert viz.save(go.Figure(), tmp_path / "empty.json").exists()


def test_two_figures_keep_their_names(forecast: xr.Dataset, tmp_path: Path) -> None:
    fan = viz.forecast_fan(forecast)
    pair = written(viz.compare([fan, fan], ["one", "other"]), tmp_path)
    assert len(pair) == 2 * len(written(fan, tmp_path))


@pytest.mark.parametrize("series", [0, 1, -1])
def test_one_series_is_drawn_as_in_the_whole(forecast: xr.Dataset, series: int) -> None:
    whole = Result(forecast.data_vars, forecast.coords, forecast.attrs)
    expected = viz.forecast_fan(forecast, series=series)
    drawn = viz.plot(whole.isel(series=series))
    assert [trace.name for trace in drawn.data] == [
        trace.name for trace in expected.data
    ]
    for ours, theirs in zip(drawn.data, expected.data, strict=True):
        assert np.array_equal(ours.y, theirs.y, equal_nan=True)


def test_averages_name_the_cure(forecast: xr.Dataset) -> None:
    whole = Result(forecast.data_vars, forecast.coords, forecast.attrs)
    mean = whole[["quantile_forecast"]].mean("series")
    expect_error(r"averaged over series.*isel\(series=0\)", viz.plot, mean)
    assert viz.plot(whole.isel(series=0)).data


def test_plain_dataset_of_one_series_names_the_cure(forecast: xr.Dataset) -> None:
    expect_error(r"isel\(series=\[0\]\)", viz.forecast_fan, forecast.isel(series=0))
    assert viz.forecast_fan(forecast.isel(series=[0])).data


def test_missing_font_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(saving, "_matched", lambda name: "DejaVu Sans")
    chosen = go.Figure(layout={"font": {"family": "Palatino, serif"}})
    with pytest.warns(UserWarning, match="'Palatino' is not installed"):
        saving.warn_of_fonts(chosen)
    assert saving.missing_fonts("Palatino, DejaVu Sans") == []
    saving.warn_of_fonts(go.Figure(layout={"font": {"family": "dejavu sans"}}))


def test_width_in_millimetres_is_refused(tmp_path: Path) -> None:
    fig = height_bars(heights())
    expect_error(r"pixels.*column=89", viz.save, fig, tmp_path / "a.pdf", width=89)
    assert not list(tmp_path.iterdir())


def test_name_of_a_drawn_variable_is_answered() -> None:
    with pytest.raises(AttributeError, match=r"result\.plot\('logit_lens_entropy'\)"):
        _ = viz.logit_lens_entropy  # type: ignore[attr-defined]


def test_option_that_gives_the_variable_is_named() -> None:
    lens = xr.Dataset({"entropy": ("layer", [1.0])}, attrs={"kind": "logit_lens"})
    expect_error(r"logits=True", viz.lens_logit_map, lens)


def test_contributions_are_written_with_series_and_unit(
    attribution: xr.Dataset, tmp_path: Path
) -> None:
    keys = ["decomposition", "series", "component", "quantile", "step"]
    # the table has all of the result, whatever is drawn
    for draw in (viz.attribution_bars, viz.attribution_heatmap):
        table = written(draw(attribution, series=1, quantile=0.5), tmp_path)
        values = table.set_index(keys)["attribution"].to_xarray()
        expected = attribution["attribution"].transpose(*keys)
        for dim in ("decomposition", "series", "component"):
            values = values.sel({dim: expected[dim].values})
        np.testing.assert_allclose(values, expected)
        units = table.groupby(["decomposition", "series"])["unit"].unique()
        assert units["logit", "rivers"].tolist() == ["logit"]
        assert len(set(map(tuple, units))) > 1


def test_weights_of_all_heads_are_written(
    attention: xr.Dataset, tmp_path: Path
) -> None:
    table = written(viz.attention_grid(attention), tmp_path)
    sums = table.groupby(["layer", "head", "query_start", "query_stop"])["pattern"]
    assert_close(sums.sum(), 1.0, depth=sums.size().max())
