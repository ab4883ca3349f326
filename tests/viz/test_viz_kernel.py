"""Figures of attention as kernel regression show the numbers of their results."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import planted
from tsfm_lens import viz
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.viz.spectra import LEAST


@pytest.fixture
def kernel() -> xr.Dataset:
    """Two layers of two heads: bandwidths over three decades, one query without a bound, one bound below rounding."""
    rng = np.random.default_rng(0)
    missing = rng.uniform(0.1, 0.9, (2, 2, 3))
    bound = missing * rng.uniform(2, 50, (2, 2, 3))
    applicable = np.ones((2, 2, 3), dtype=bool)
    applicable[0, 1, 2], bound[0, 1, 2] = False, np.nan
    missing[1, 0, 0], bound[1, 0, 0] = 0.0, 1e-40
    bandwidth = np.sort(10 ** rng.uniform(-1.5, 1.5, (2, 2, 4)))
    return planted.kernel_regression(planted.rivers_and_roads(), missing, bound, applicable, bandwidth)


def test_bandwidths_are_a_line_a_head_and_their_median(kernel):
    fig = viz.kernel_bandwidths(kernel)
    first, second, median = fig.data[:3]
    np.testing.assert_array_equal(first.y, kernel["bandwidth"][0, 0])
    np.testing.assert_array_equal(second.y, kernel["bandwidth"][0, 1])
    np.testing.assert_allclose(median.y, kernel["bandwidth"][0].median("head"))
    assert list(first.x) == [1, 2, 3, 4]
    assert {axis.type for axis in fig.select_yaxes()} == {"log"}
    assert any((a.title.text or "").startswith("bandwidth<br>(residual") for a in fig.select_yaxes())
    # two heads and a median a layer; the legend names each kind of line once
    assert len(viz.kernel_bandwidths(kernel, layers=[1]).data) == 3
    assert sum(bool(trace.showlegend) for trace in fig.data) == 2
    with pytest.raises(UnknownNameError, match="no layer '7'"):
        viz.kernel_bandwidths(kernel, layers=[7])


def test_the_tilt_map_holds_the_shares_from_zero_on(kernel):
    fig = viz.tilt_map(kernel)
    np.testing.assert_array_equal(fig.data[0].z, kernel["tilt_share"])
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == (0, 2)
    assert fig.data[0].text[1][0] == "2.00"


def test_dots_of_the_bound_are_the_measured_pairs(kernel):
    fig = viz.concentration_bound_plot(kernel)
    assert [trace.name for trace in fig.data] == ["layer 0", "layer 1"]
    # one of the six pairs of layer 0 has no bound
    usable = kernel["applicable"].values[0]
    np.testing.assert_array_equal(fig.data[0].x, kernel["bound"].values[0][usable])
    np.testing.assert_array_equal(fig.data[0].y, kernel["missing"].values[0][usable])
    assert [tuple(row) for row in fig.data[0].customdata] == [(str(h), str(q)) for h, q in np.argwhere(usable)]
    # what double precision cannot tell from zero stands on the edge, which the subtitle says
    assert (fig.data[1].x[0], fig.data[1].y[0]) == (LEAST, LEAST)
    assert "11 of 12 meet the conditions" in fig.layout.meta["subtitle"]
    assert "below 1e−16: drawn there" in fig.layout.meta["subtitle"]
    line = fig.layout.shapes[0]
    assert (line.x0, line.x1) == (line.y0, line.y1)


def test_where_no_bound_holds_nothing_is_drawn(kernel):
    fig = viz.concentration_bound_plot(kernel.assign(applicable=kernel["applicable"] & False))
    assert all(len(trace.x) == 0 for trace in fig.data)
    assert "0 of 12" in fig.layout.meta["subtitle"]


def test_many_layers_get_colours_from_pale_to_dark(kernel):
    many = xr.concat([kernel.isel(layer=[0])] * 12, dim="layer").assign_coords(layer=[str(i) for i in range(12)])
    assert len({trace.marker.color for trace in viz.concentration_bound_plot(many).data}) == 12


@pytest.mark.parametrize("draw", [viz.kernel_bandwidths, viz.tilt_map, viz.concentration_bound_plot])
def test_other_kinds_are_refused(draw, kernel):
    kernel.attrs["kind"] = "spectra"
    with pytest.raises(InputError, match=r"of kind 'kernel_regression' is needed.*stable_rank_map"):
        draw(kernel)
