"""Ablation, attribution and attention figures, checked as data."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import planted
from refusals import expect_error
from tsfm_lens import viz
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.attention import attention_by_lag
from tsfm_lens.viz.forecast import naive_forecast
from tsfm_lens.viz.tokens import token_axis
from viz.marks import heatmaps, named


def test_ablation_heatmap_shows_medians_in_cells(ablation):
    """The ablation heatmap has every median in its cell."""
    fig = viz.ablation_heatmap(ablation)
    (cells,) = heatmaps(fig)
    assert list(cells.y) == ["layer 0", "layer 1"]
    heads = [f"{kind} {head}" for kind in ("self", "cross") for head in range(3)]
    assert list(cells.x) == [*heads, "MLP", "layer"]
    # components of a layer stand in this order in the result
    median = ablation["spearman_distance"].values.mean(1)
    np.testing.assert_allclose(np.array(cells.z, float), median.reshape(2, -1))
    # colours end at the strongest of all
    assert np.isclose(fig.layout.coloraxis.cmax, max(median))
    assert fig.layout.coloraxis.cmin == 0


def test_ablation_forecasts_show_strongest_components(ablation):
    """Forecasts under ablation are those of the strongest heads and MLPs."""
    fig = viz.ablation_forecasts(ablation, series="roads")
    strength = [
        c
        for c in ablation["component"].values
        if ablation["kind"].sel(component=c) != "layer"
    ]
    titles = [a.text.split("<br>")[0] for a in fig.layout.annotations]
    assert titles == strength[::-1][:6]
    ablated = named(fig, "ablated forecast")
    top = float(list(ablation["component"].values).index(strength[-1]))
    np.testing.assert_allclose(ablated[0].y, 100 + np.arange(6) + top)
    np.testing.assert_allclose(
        named(fig, "unablated forecast")[-1].y, 100.5 + np.arange(6)
    )


def test_layer_errors_are_those_of_the_result_beside_the_naive_one(gain, forecast):
    """Points are the mean absolute errors; the dashed line is that of the last season
    repeated, over the steps that errors are over."""
    ds = gain.assign(truth=forecast["truth"], context=forecast["context"])
    ds = ds.assign(error=abs(gain["gain"].fillna(3.0)))
    ds = ds.assign_coords(season=("series", [2, 2])).assign_attrs(first_step=1)
    points, naive = viz.layer_errors(ds, series="roads").data
    error = ds["error"].sel(metric="MAE", series="roads")
    np.testing.assert_allclose(points.y, error)
    _, repeated = naive_forecast(ds, 1)
    misses = np.abs(repeated - ds["truth"].sel(series="roads").values)[1:]
    np.testing.assert_allclose(naive.y, misses.mean())
    own = ds.drop_vars("truth").assign_attrs(reference="model")
    (points,) = viz.layer_errors(own, series="roads").data
    np.testing.assert_allclose(points.y, error[:-1])


def test_naive_error_of_0_keeps_the_axis_linear(gain, forecast):
    """Where the last season repeats, its line stands at 0, which no log axis has."""
    truth = np.resize(forecast["context"].values[:, -2:], forecast["truth"].shape)
    ds = gain.assign(context=forecast["context"], error=abs(gain["gain"]) + 1e-3)
    ds = ds.assign(truth=(("series", "step"), truth))
    ds["truth"][0] = np.resize(ds["context"].values[0, -2:], ds.sizes["step"])
    ds = ds.assign_coords(season=("series", [2, 2]))
    fig = viz.layer_errors(ds, series=0)
    assert set(fig.data[1].y) == {0.0}
    assert fig.layout.yaxis.type != "log"


def forest_of(fig):
    """Point and range by component, and the signs of each at every step."""
    dots = [trace for trace in fig.data if trace.type == "scatter"]
    sizes = {name: x for dot in dots for name, x in zip(dot.y, dot.x, strict=True)}
    sides = {name: dot.name.split()[0] for dot in dots for name in dot.y}
    (strip,) = heatmaps(fig)
    signs = dict(zip(strip.y, np.asarray(strip.z), strict=True))
    return sizes, sides, signs


def test_forest_has_the_largest_in_order_and_all_others(attribution):
    """Points are mean sizes of the largest, in the order of the model; the rest is
    summed, and colours and strip have the sign."""
    sizes, sides, signs = forest_of(viz.attribution_bars(attribution, top=4))
    fine = attribution.isel(component=attribution["kind"].values != "layer")
    values = fine["attribution"].sel(
        decomposition="logit", series="rivers", quantile=0.5
    )
    size = abs(values).mean("step").to_series()
    largest = size.sort_values(ascending=False, kind="stable").index[:4]
    expected = [name for name in size.index if name in set(largest)]
    rest = f"{len(size) - 4} others, summed"
    assert list(signs) == [*expected, rest]
    for name in expected:
        assert sizes[name] == pytest.approx(size[name])
        one = values.sel(component=name)
        np.testing.assert_array_equal(signs[name], np.sign(one))
        assert sides[name] == ("raises" if one.mean() >= 0 else "lowers")
    others = values.sum("component") - values.sel(component=expected).sum("component")
    assert sizes[rest] == pytest.approx(float(abs(others).mean()))


def test_forest_of_one_method_and_series(attribution):
    fig = viz.attribution_bars(
        attribution, decomposition="expected_value", series="rivers", top=100
    )
    sizes, sides, _ = forest_of(fig)
    assert sizes["embed"] == 5 * 3.5 * 10
    assert sides["embed"] == "lowers"
    assert "decoder.0" not in sizes
    assert "(m³/s)" in fig.layout.xaxis.title.text
    assert "completeness error 2 %" in fig.layout.meta["subtitle"]


def test_giant_contribution_makes_the_axis_logarithmic(attribution):
    """No point is cut: where sizes differ much, their axis is logarithmic."""
    assert viz.attribution_bars(attribution).layout.xaxis.type != "log"
    attribution["attribution"][:, 0] = 1e4
    fig = viz.attribution_bars(attribution)
    assert fig.layout.xaxis.type == "log"
    assert "log" in fig.layout.xaxis.title.text
    assert forest_of(fig)[0]["embed"] == 1e4


def test_attribution_uses_median_or_chosen_quantile(attribution):
    """An attribution is of the median or of the quantile asked for."""
    levels = xr.DataArray(
        [0.1, 0.5, 0.9], dims="quantile", coords={"quantile": [0.1, 0.5, 0.9]}
    )
    labels = {"decomposition": ["integrated", "linearised"]}
    whole = attribution["attribution"].squeeze("quantile", drop=True)
    patch = attribution.drop_dims("quantile").assign(attribution=whole * levels)
    patch = patch.assign_coords(labels)
    one, _, _ = forest_of(viz.attribution_bars(attribution, top=3))
    for asked, level in (({}, 0.5), ({"quantile": 0.9}, 0.9)):
        sizes, _, _ = forest_of(viz.attribution_bars(patch, top=3, **asked))
        assert sizes == pytest.approx({name: level * x for name, x in one.items()})
    expect_error(r"no quantile '0\.8'", viz.attribution_bars, patch, quantile=0.8)


def test_attribution_heatmap_is_symmetric_and_ordered(attribution):
    """The attribution heatmap is symmetric and in the order of the model."""
    fig = viz.attribution_heatmap(attribution, decomposition="expected_value", top=5)
    z = np.asarray(fig.data[0].z)
    axis = fig.layout.coloraxis
    fine = attribution.isel(component=attribution["kind"].values != "layer")
    order = [str(c) for c in fine["component"].values]
    visible = list(fig.data[0].y)
    assert visible == sorted(visible, key=order.index)
    assert len(visible) == 5
    truth = fine["attribution"].sel(
        decomposition="expected_value", series="rivers", quantile=0.5
    )
    np.testing.assert_allclose(z, truth.sel(component=visible).values)
    assert (axis.cmin, axis.cmid) == (-axis.cmax, 0)
    assert axis.cmax == np.abs(z).max()
    assert axis.colorbar.title.text == "contribution<br>(m³/s)"
    assert "5 largest of 11" in fig.layout.meta["subtitle"]


def test_tokens_cover_spans_with_gaps():
    """Tokens lie at their spans, with gaps between them."""
    ds = xr.Dataset(
        coords={
            "key_start": ("key", [4, -8, -1, 0]),
            "key_stop": ("key", [8, -4, -1, 4]),
            "key_special": ("key", ["", "", "EOS", ""]),
        }
    )
    axis = token_axis(ds, "key")
    edges, owner = axis.cells()
    np.testing.assert_allclose(edges, [-8.5, -4.5, -0.5, 3.5, 7.5])
    assert owner.tolist() == [1, -1, 3, 0]
    assert axis.special_labels() == ["EOS"]
    assert axis.words(0) == "steps 4 to 7"
    expect_error(
        r"cover the same steps",
        token_axis,
        ds.assign_coords(key_start=("key", [4, -8, -1, -5])),
        "key",
    )
    expect_error(
        r"token 0 covers no step",
        token_axis,
        ds.assign_coords(key_stop=("key", [4, -4, -1, 4])),
        "key",
    )
    expect_error("'query_start'", token_axis, ds, "query")


def test_attention_map_places_tokens_in_time(attention):
    """The attention map places tokens in time, and special ones beside them."""
    fig = viz.attention_map(attention, layer=1, head=0)
    pattern = attention["pattern"].values[1, 0]
    (cells,) = heatmaps(fig)
    # keys: three patches, a gap, REG; queries: two steps, a gap, START
    np.testing.assert_allclose(cells.x[:4], [-12.5, -8.5, -4.5, -0.5])
    np.testing.assert_allclose(cells.y[:3], [-0.5, 0.5, 1.5])
    rows = [1, 2, 0]
    columns = [0, 1, 2, 3]
    assert_close(
        np.asarray(cells.z)[np.ix_([0, 1, 3], [0, 1, 2, 4])],
        pattern[np.ix_(rows, columns)],
        depth=16,
    )
    assert "attends to steps -12 to -9" in cells.text[0][0]
    assert "REG token" in cells.text[0][4]
    assert (
        "right of the dotted line: REG; under the dotted line: START"
        in fig.layout.meta["subtitle"]
    )
    np.testing.assert_allclose(named(fig, "context")[0].x, np.arange(-12, 0))
    # the series stands over the map: zooming one zooms the other
    assert fig.layout.xaxis.matches == "x2"
    np.testing.assert_allclose(fig.layout.coloraxis.cmax, pattern.max())


def test_attention_grid_shares_axes_over_heads(attention):
    """The attention grid of tokens of one step draws every head on shared axes."""
    attention = attention.assign_coords(
        planted.tokens("key", (-3, -2, -1), (-2, -1, 0), special="REG")
    )
    fig = viz.attention_grid(attention)
    maps = heatmaps(fig)
    assert len(maps) == 4
    pattern = attention["pattern"].values
    z = np.asarray(maps[3].z)
    assert_close(z[:2, :3], pattern[1, 1, 1:, :3], depth=16, dtype=np.float32)
    assert_close(z[:2, 4], pattern[1, 1, 1:, 3], depth=16, dtype=np.float32)
    assert_close(z[3, 4], pattern[1, 1, 0, 3], depth=16, dtype=np.float32)
    assert np.isnan(z[2]).all()
    assert np.isnan(z[:, 3]).all()
    assert len({axis.range for axis in fig.select_xaxes()}) == 1
    texts = [a.text for a in fig.layout.annotations]
    assert {"head 0", "head 1", "layer 0", "layer 1"} <= set(texts)
    assert len(heatmaps(viz.attention_grid(attention, layers=[1], heads=[0]))) == 1


def test_attention_of_patches_is_a_curve_over_distances(attention):
    """A head that copies from eight steps back has one peak there, though its queries
    move; curve and special tokens sum to one."""
    labels = planted.tokens("query", (0, 4), (4, 8)) | {"season": ("series", [4])}
    attention = attention.isel(query=[1, 2]).assign_coords(labels)
    attention["pattern"][1, 0] = [[0, 0.9, 0, 0.1], [0, 0, 0.9, 0.1]]
    fig = viz.attention_grid(attention)
    assert not heatmaps(fig)
    assert len(fig.data) == 4
    curve = fig.data[2]
    assert dict(zip(curve.x, np.round(curve.y, 6), strict=True)) == {
        4: 0, 8: 0.9, 12: 0, 16: 0,
    }  # fmt: skip
    assert "REG 10%" in [note.text for note in fig.layout.annotations]
    ticks = fig.layout.xaxis.tickvals
    assert set(np.mod(ticks, 4)) == {0}
    lags, weights, aside = attention_by_lag(attention)
    assert np.round(weights.sum(-1) + aside, 6).tolist() == np.ones_like(aside).tolist()
    # a query of four steps of the horizon weighs twice one of two
    first, second = attention["pattern"].values[0, 1]
    expected = (4 * first[1] + 2 * second[2]) / 6
    np.testing.assert_allclose(weights[0, 1, list(lags).index(8)], expected)
