"""Any variable of a labelled result is drawn from its dimensions: the traces hold the
values of the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import xarray as xr

import planted
from refusals import expect_error
from specimens.marks import unexplained
from tsfm_lens import viz
from tsfm_lens.core import registry
from tsfm_lens.core.errors import InputError, UnknownNameError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import find, measurement
from tsfm_lens.viz.generic import generic_figure
from viz.marks import heatmaps

LABELS = {
    "layer": [0, 1, 2],
    "head": [0, 1],
    "series": ["a", "b", "c", "d"],
    "step": [0, 1, 2, 3, 4],
    "lag": [1, 2, 3],
    "component": ["0.mlp", "1.mlp"],
    "quantile": [0.1, 0.5, 0.9],
}


@pytest.fixture
def registered() -> Iterator[None]:
    """A measurement of somebody's own, without any figure."""
    texts = dict.fromkeys(("summary", "description"), "how much it leans")
    measurement("leaning", theme="Behaviour", title="Leaning", **texts)
    yield
    registry._MEASUREMENTS.pop("leaning")


def made(*dims: str, name: str = "lean") -> xr.Dataset:
    """Random values over some dimensions, one of them missing."""
    shape = tuple(len(LABELS[dim]) for dim in dims)
    values = np.random.default_rng(len(dims)).normal(size=shape)
    values.flat[1] = np.nan
    coords = {dim: LABELS[dim] for dim in dims}
    metadata = {"units": "degrees", "long_name": "angle of the tower"}
    array = xr.DataArray(values, coords, dims, attrs=metadata)
    return array.to_dataset(name=name).assign_attrs(kind="leaning", model="pisa")


def with_test(ds: xr.Dataset, name: str = "lean") -> xr.Dataset:
    """The same with a test over series, for which something acts everywhere."""
    return add_estimates(ds.fillna(0.5), name, floor=0.0)


@pytest.mark.parametrize("dims", [("layer", "head"), ("head", "layer")])
def test_layer_and_head_are_a_map(registered: None, dims: tuple[str, str]) -> None:
    ds = made(*dims)
    fig = viz.plot(ds)
    (cells,) = heatmaps(fig)
    np.testing.assert_array_equal(cells.z, ds["lean"].transpose("layer", "head"))
    # what is missing is an empty cell
    assert sum(np.isnan(np.ravel(np.asarray(cells.z, dtype=float)))) == 1
    assert cells.hoverongaps is False
    assert fig.layout.coloraxis.colorbar.title.text.startswith("angle of the tower")
    assert "(degrees)" in fig.layout.coloraxis.colorbar.title.text
    assert fig.layout.meta["title"] == "Leaning of pisa: angle of the tower"


@pytest.mark.parametrize("dims", [("layer", "series"), ("component", "series")])
def test_named_dimensions_are_a_heat_map(
    registered: None, dims: tuple[str, str]
) -> None:
    ds = made(*dims)
    fig = viz.plot(ds)
    (cells,) = heatmaps(fig)
    np.testing.assert_array_equal(cells.z, ds["lean"])
    assert list(cells.x) == LABELS["series"]
    assert (fig.layout.xaxis.title.text, fig.layout.yaxis.title.text) == dims[::-1]
    assert "empty: no value" in fig.layout.meta["subtitle"]


@pytest.mark.parametrize(
    "dims", [("step",), ("lag",), ("series", "step"), ("step", "series")]
)
def test_numbered_dimensions_are_lines(registered: None, dims: tuple[str, ...]) -> None:
    ds = made(*dims)
    ds[dims[0]].attrs["units"] = "hours"
    fig = viz.plot(ds)
    along = next(dim for dim in dims if dim != "series")
    if len(dims) > 1:
        names = LABELS["series"]
    else:
        names = [None]
    assert [trace.name for trace in fig.data] == names
    rows = ds["lean"].transpose(..., along).values.reshape(len(names), -1)
    for trace, row in zip(fig.data, rows, strict=True):
        assert "lines" in trace.mode
        np.testing.assert_array_equal(trace.x, LABELS[along])
        np.testing.assert_array_equal(trace.y, row)
    hours = ""
    if dims[0] == along:
        hours = " (hours)"
    assert fig.layout.xaxis.title.text == f"{along}{hours}"
    assert fig.layout.yaxis.title.text == "angle of the tower (degrees)"
    assert unexplained(fig) == []


@pytest.mark.parametrize("dim", ["head", "quantile"])
def test_legend_names_numbered_members(registered: None, dim: str) -> None:
    fig = viz.plot(made(dim, "step"))
    assert [trace.name for trace in fig.data] == [f"{dim} {n}" for n in LABELS[dim]]


def test_layer_pairs_share_names_on_axes(registered: None) -> None:
    """Pairs of layers have the same names on both axes."""
    labels = [-1, 0, 1]
    coords = {"stream": labels, "other_stream": labels}
    values = xr.DataArray(np.eye(3), coords, ["stream", "other_stream"])
    ds = values.to_dataset(name="lean").assign_attrs(kind="leaning")
    (cells,) = heatmaps(viz.plot(ds))
    assert list(cells.x) == list(cells.y) == ["embedding", "layer 0", "layer 1"]


def test_rounding_differences_use_zero_based_colours(registered: None) -> None:
    """Values that differ by rounding alone have colours from zero."""
    ds = made("layer", "series")
    ds["lean"][:] = 1.0
    ds["lean"][0, 0] = np.nextafter(1.0, 0.0)
    assert viz.plot(ds).layout.coloraxis.cmin == 0.0


def test_registered_drawing_describes_its_values(registered: None) -> None:
    """A registered drawing says what its values are."""
    draw = generic_figure("leaning", "lean", "Lean of each head, by eye.")
    try:
        fig = draw(made("layer", "head"))
    finally:
        registry._FIGURES.pop("leaning")
    assert fig.layout.meta["title"].startswith("Lean of each head, by eye")


def test_many_lines_are_a_map(registered: None) -> None:
    ds = made("series", "step").isel(series=[0, 1, 2, 3] * 5)
    (cells,) = heatmaps(viz.plot(ds))
    np.testing.assert_array_equal(cells.z, ds["lean"])


def test_depth_is_a_line_members_dots(registered: None) -> None:
    """Values by layer alone are a line, and values of members are dots."""
    depth = made("layer")
    (line,) = viz.plot(depth).data
    assert list(line.x) == ["layer 0", "layer 1", "layer 2"]
    np.testing.assert_array_equal(line.y, depth["lean"])
    members = made("component")
    fig = viz.plot(members)
    np.testing.assert_array_equal(fig.data[0].x, members["lean"][:1])
    assert list(fig.layout.yaxis.ticktext) == LABELS["component"][:1]
    assert "1 without a value" in fig.layout.meta["subtitle"]
    assert fig.layout.xaxis.title.text == "angle of the tower (degrees)"


def test_significance_shows_as_whiskers_and_fill(
    registered: None,
) -> None:
    """Intervals are whiskers, and what is not significant is hollow."""
    ds = made("component").fillna(0.0)
    low = ds["lean"] - 0.5
    high = ds["lean"] + 0.25
    significant = ("component", [True, False])
    tested = ds.assign(lean_low=low, lean_high=high, lean_significant=significant)
    (dots,) = viz.plot(tested).data
    np.testing.assert_array_equal(dots.x, ds["lean"])
    np.testing.assert_allclose(dots.error_x.array, 0.25)
    np.testing.assert_allclose(dots.error_x.arrayminus, 0.5)
    assert list(dots.marker.symbol) == ["circle", "circle-open"]


@pytest.mark.parametrize("dims", [("component", "series"), ("layer", "head", "series")])
def test_tested_values_are_drawn_as_medians(
    registered: None, dims: tuple[str, ...]
) -> None:
    """What is tested over series is drawn as medians."""
    ds = with_test(made(*dims))
    fig = viz.plot(ds)
    if len(dims) == 2:
        drawn = fig.data[0].x
    else:
        drawn = heatmaps(fig)[0].z
    np.testing.assert_array_equal(drawn, ds["lean"].median("series"))
    assert "over 4 series" in fig.layout.meta["subtitle"]
    # one series has no median
    one = viz.plot(ds, "lean", series="b")
    if len(dims) == 2:
        drawn = one.data[0].x
    else:
        drawn = heatmaps(one)[0].z
    np.testing.assert_array_equal(drawn, ds["lean"].sel(series="b"))


def test_axis_names_a_median_and_its_unit(registered: None) -> None:
    """An axis says that medians are drawn, and in their unit, not in the series'."""
    ds = with_test(made("component", "series"))
    assert viz.plot(ds).layout.xaxis.title.text == "median angle of the tower (degrees)"
    ds["lean_size"].attrs["units"] = "share of the range"
    title = viz.plot(ds).layout.xaxis.title.text
    assert title == "median angle of the tower (share of the range)"
    one = viz.plot(ds, "lean", series="b")
    assert one.layout.xaxis.title.text == "angle of the tower (degrees)"
    alone = viz.plot(ds.isel(series=[1]), "lean")
    np.testing.assert_array_equal(alone.data[0].x, ds["lean"].sel(series="b"))


@pytest.mark.parametrize("dims", [("layer", "head"), ("component",)])
@pytest.mark.parametrize("over", ["series", "step"])
def test_mean_over_series_is_drawn_itself(
    registered: None, dims: tuple[str, ...], over: str
) -> None:
    """A variable that is a mean is drawn, not the median of the test beside it."""
    values = made(*dims, over).fillna(0.5)["lean"]
    ds = values.mean(over).to_dataset().assign_attrs(kind="leaning", model="pisa")
    ds = ds.assign_coords({over: values[over]})
    ds = add_estimates(ds, "lean", floor=0.0, values=values, over=over)
    assert not np.allclose(ds["lean"], ds["lean_size"])
    fig = viz.plot(ds, "lean")
    if len(dims) == 1:
        drawn = fig.data[0].x
        title = fig.layout.xaxis.title.text
    else:
        drawn = heatmaps(fig)[0].z
        title = fig.layout.coloraxis.colorbar.title.text
    np.testing.assert_array_equal(drawn, ds["lean"])
    assert title.startswith("angle of the tower")
    assert "median" not in str(fig)


def test_remaining_dimensions_are_refused_with_options(registered: None) -> None:
    """Dimensions left over are refused, with the options that choose among them."""
    ds = made("layer", "head", "series")
    with pytest.raises(InputError, match="layer=, head=, series="):
        viz.plot(ds)
    (cells,) = heatmaps(viz.plot(ds, series=-1))
    np.testing.assert_array_equal(cells.z, ds["lean"].isel(series=-1))
    # an item alone needs no choice, and forecasts have a median
    (cells,) = heatmaps(viz.plot(ds.isel(layer=[2]).rename(series="group")))
    np.testing.assert_array_equal(cells.z, ds["lean"].isel(layer=2))
    levels = made("quantile", "series", "step")
    np.testing.assert_array_equal(
        [line.y for line in viz.plot(levels).data], levels["lean"].sel(quantile=0.5)
    )
    with pytest.raises(UnknownNameError, match="Closest: layer"):
        viz.plot(ds, laier=0, series=0)
    with pytest.raises(UnknownNameError, match="no head '7'"):
        viz.plot(ds, head=7)
    text = ds.assign(word=("head", ["a", "b"]), one=3.0)
    expect_error("holds text", viz.plot, text, "word")
    expect_error("is one number here, 3", viz.plot, text, "one")
    expect_error("Closest: lean", viz.plot, ds, "leen")
    lens = planted.everything()["lens"]
    expect_error("'map' means logit_map or lens_logit_map", viz.plot, lens, "map")


def test_kind_without_figure_has_panel(registered: None) -> None:
    """A kind of result without a figure has a panel and a table."""
    ds = with_test(made("component", "series"))
    (panel,) = find("leaning").draw_panels(ds)
    np.testing.assert_array_equal(panel.figure.data[0].x, ds["lean_size"])
    np.testing.assert_array_equal(panel.table["lean"], ds["lean"].values.ravel())
    assert [figure.name for figure in find("leaning").figures] == ["leaning"]
    # a page shows the first of what is to be chosen
    several = made("layer", "head", "series")
    (panel,) = find("leaning").draw_panels(several)
    np.testing.assert_array_equal(
        heatmaps(panel.figure)[0].z, several["lean"].isel(series=0)
    )
    assert registry.find_figure("head_spectra").variable == "stable_rank"


def test_an_array_needs_no_kind() -> None:
    array = made("layer", "head")["lean"]
    (cells,) = heatmaps(viz.plot(array, title="Towers"))
    np.testing.assert_array_equal(cells.z, array)
    assert viz.plot(array.isel(layer=0).rename(None)).layout.meta["title"] == "value"


def test_two_results_stand_side_by_side(registered: None) -> None:
    one = made("layer", "head")
    two = 2 * made("layer", "head")
    two.attrs = {**one.attrs, "model": "siena"}
    maps = heatmaps(viz.plot(one, two))
    for cells, ds in zip(maps, (one, two), strict=True):
        np.testing.assert_array_equal(cells.z, ds["lean"])


def test_variables_are_drawn_or_refused() -> None:
    """With numbers alone and few dimensions, none is refused; one variable of each
    kind is drawn: by its dimensions, its type, and whether it was tested.
    """
    seen = set()
    for name, ds in planted.everything().items():
        for variable in getattr(ds, "data_vars", ()):
            values = ds[variable]
            sizes = [dim for dim in values.dims if ds.sizes[dim] > 1]
            if values.dtype.kind not in "biuf" or not 0 < len(sizes) < 3:
                continue
            if not values.size or variable == "context":
                continue
            tested = f"{variable}_significant" in ds
            form = (*sizes, values.dtype.kind, tested)
            if form in seen:
                continue
            seen.add(form)
            fig = viz.generic.draw_variable(ds, str(variable))
            assert fig.data, (name, variable)
            assert unexplained(fig) == [], (name, variable)
