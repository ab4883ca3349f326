"""Figures of patching, paths, effects and circuits show the numbers of their results."""

from __future__ import annotations

from functools import cache

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.data import bundled, remove_motif, shift_phase
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.models import architectures, load
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.noise import NOT_ABOVE

SENDERS = ["decoder.*.cross_attn.*", "decoder.*.mlp"]


@cache
def results() -> dict[str, xr.Dataset]:
    lens, series = load("bolt-nano"), bundled("co2").tail(80)
    other, motif = shift_phase(series, 6), remove_motif(series, -30, -18)
    nodes = [str(node) for glob in SENDERS for node in lens.components(glob)]
    two = bundled("co2", "elnino").tail(80)
    return {
        "patching": probes.activation_patching(lens.run(series, 12), lens.run(motif, 12)),
        "all": probes.activation_patching(
            lens.run(series, 12), lens.run(other, 12), at="heads", stack="decoder", positions="all", direction="noise"
        ),
        "attribution": probes.attribution_patching(lens.run(series, 12), lens.run(other, 12)),
        "estimate": probes.attribution_patching(lens.run(series, 12), lens.run(other, 12), exact=False),
        "paths": probes.path_patching(
            lens.run(series, 12),
            lens.run(other, 12),
            senders=nodes[6:],
            receivers=["decoder.1.*.*", "decoder.2.mlp", "output"],
        ),
        "edges": probes.edge_attribution(lens.run(series, 12), lens.run(other, 12), nodes=nodes),
        "effects": probes.causal_effects(lens.run(two, 12)),
        "circuit": probes.minimal_circuit(lens.run(series, 12), lens.run(other, 12), nodes=nodes, ranking="effects"),
    }


def undated(name: str) -> xr.Dataset:
    return results()[name].drop_vars(["context_timestamp", "forecast_timestamp"])


def heatmaps(fig: go.Figure) -> list[go.Heatmap]:
    """The maps, without what is drawn over cells in the noise."""
    return [trace for trace in fig.data if trace.type == "heatmap" and trace.name != NOT_ABOVE]


def line(fig: go.Figure, name: str) -> go.Scatter:
    return next(trace for trace in fig.data if trace.name == name)


@pytest.mark.parametrize("value", ["recovered", "effect"])
def test_cells_are_as_wide_as_their_tokens_and_special_ones_stand_beside(value: str) -> None:
    ds = undated("patching")
    tokens, special = heatmaps(viz.patching_map(ds, value=value))
    ordinary = ds["position_special"].values == ""
    np.testing.assert_array_equal(tokens.z, ds[value].values[:, ordinary, 0])
    np.testing.assert_array_equal(special.z, ds[value].values[:, ~ordinary, 0])
    assert list(special.x) == ["REG"]
    np.testing.assert_array_equal(tokens.x[:-1], ds["position_start"].values[ordinary] - 0.5)
    np.testing.assert_array_equal(tokens.x[1:], ds["position_stop"].values[ordinary] - 0.5)


def test_dates_put_cells_under_the_steps_that_they_cover() -> None:
    ds = results()["patching"]
    fig = viz.patching_map(ds)
    tokens = heatmaps(fig)[0]
    stamps = ds["context_timestamp"].values[0].astype("datetime64[ns]")
    inner = ds["position_start"].values[ds["position_special"].values == ""][1:]
    edges = np.asarray(tokens.x, dtype="datetime64[ns]")[1:-1]
    assert (stamps[inner - 1] < edges).all()
    assert (edges < stamps[inner]).all()


def test_both_series_and_the_stretch_where_they_differ_are_drawn() -> None:
    ds = undated("patching")
    fig = viz.patching_map(ds)
    for name, context in (("clean", "context"), ("corrupted", "corrupted_context")):
        drawn = line(fig, f"{name}, and its forecast")
        np.testing.assert_array_equal(drawn.y, np.concatenate([ds[context][0], ds[f"{name}_forecast"][0]]))
    shaded = [shape for shape in fig.layout.shapes if shape.type == "rect"]
    assert [(shape.x0, shape.x1) for shape in shaded] == [(-30.5, -18.5)]
    assert "12 of 80 steps" in fig.layout.meta["subtitle"]
    # a season moved everywhere leaves nothing to mark
    whole = viz.patching_map(undated("attribution"))
    assert not [shape for shape in whole.layout.shapes if shape.type == "rect"]


def test_all_positions_at_once_make_a_bar_a_head() -> None:
    ds = results()["all"]
    bars = [trace for trace in viz.patching_map(ds).data if trace.type == "bar"]
    assert {bar.name for bar in bars} == {"self-attention", "cross-attention"}
    found = {f"decoder.{name}": height for bar in bars for name, height in zip(bar.text, bar.y, strict=True)}
    assert found == dict(zip(ds["component"].values, ds["recovered"].values[:, 0, 0], strict=True))
    # bars stand in the order of depth
    order = {x: name for bar in bars for x, name in zip(bar.x, bar.text, strict=True)}
    assert [order[i].split(".")[0] for i in range(len(order))] == sorted(name.split(".")[0] for name in order.values())


def test_patched_forecasts_are_those_that_recover_most() -> None:
    ds = results()["patching"]
    fig = viz.patched_forecasts(ds, top=4)
    lines = [trace for trace in fig.data if trace.name == "patched forecast"]
    recovered = ds["recovered"].values[..., 0]
    best = np.argsort(-recovered.ravel(), kind="stable")[:4]
    np.testing.assert_array_equal([trace.y for trace in lines], ds["forecast"].values[:, :, 0].reshape(-1, 12)[best])
    assert f"recovers {recovered.max():.3g}" in fig.layout.annotations[0].text
    assert "ppm" in " ".join(axis.title.text or "" for axis in fig.select_yaxes())
    with pytest.raises(InputError, match="top is 0"):
        viz.patched_forecasts(ds, top=0)


def test_the_estimate_is_drawn_against_the_exact_share() -> None:
    ds = results()["attribution"]
    fig = viz.attribution_patching_scatter(ds)
    exact, estimate = ds["recovered"].values, ds["first_order"].values
    layers = np.unique(ds["layer_index"].values)
    for layer in layers:
        mine, dots = ds["layer_index"].values == layer, line(fig, f"layer {layer}")
        np.testing.assert_array_equal(dots.x, exact[mine].ravel())
        np.testing.assert_array_equal(dots.y, estimate[mine].ravel())
        assert dots.showlegend
    assert fig.layout.coloraxis.cmax is None
    identity = line(fig, "estimate = exact")
    assert identity.x == identity.y
    subtitle = fig.layout.meta["subtitle"]
    assert f"mean absolute error {np.abs(estimate - exact).mean():.4g}" in subtitle
    assert f"rank correlation {ds.attrs['rank_correlation']:.4g}" in subtitle
    with pytest.raises(InputError, match="no variable 'recovered'"):
        viz.attribution_patching_scatter(results()["estimate"])
    deep = ds.isel(component=np.arange(16) % ds.sizes["component"])
    many = viz.attribution_patching_scatter(deep.assign_coords(layer_index=("component", np.arange(16))))
    assert (many.layout.coloraxis.cmin, many.layout.coloraxis.cmax) == (0, 15)


def test_paths_are_ordered_by_depth_and_missing_ones_are_not_zero() -> None:
    ds = results()["paths"]
    plain = viz.path_map(ds)
    assert np.isnan(plain.data[0].z).any()
    assert plain.data[0].hoverongaps is False
    assert plain.layout.plot_bgcolor != "#FFFFFF"
    rng = np.random.default_rng(0)
    mixed = ds.isel(sender=rng.permutation(ds.sizes["sender"]), receiver=rng.permutation(ds.sizes["receiver"]))
    drawn = viz.path_map(mixed)
    layers = [int(name.split(".")[0]) for name in drawn.layout.yaxis.ticktext]
    assert layers == sorted(layers)
    assert drawn.layout.xaxis.ticktext[-1] == "output"
    pairs = dict(zip(np.ravel(drawn.data[0].text), np.ravel(drawn.data[0].z), strict=True))
    for sender in ds["sender"].values:
        for receiver in ds["receiver"].values:
            value = float(ds["recovered"].sel(sender=sender, receiver=receiver).item())
            np.testing.assert_equal(pairs[f"{sender} → {receiver}"], value)
    with pytest.raises(UnknownNameError, match="recovered"):
        viz.path_map(ds, value="score")


def test_edges_without_a_path_are_left_out() -> None:
    ds = results()["edges"]
    z = np.array(viz.path_map(ds, value="score").data[0].z, dtype=float)
    score = ds["score"].values[..., 0]
    order = [int(i) for i in np.argsort(ds["layer_index"].values, kind="stable")]
    expected = score[np.ix_(order, [*order, -1])]
    np.testing.assert_array_equal(np.isnan(z), expected == 0)
    np.testing.assert_array_equal(np.nan_to_num(z), expected)


def test_names_without_a_stack_are_read() -> None:
    lens, series = load(architectures()["timesfm-2.5"].tiny(), check=False), bundled("co2").tail(64)
    nodes = ["0.attn.1", "1.mlp", "2.attn.0"]
    ds = probes.path_patching(
        lens.run(series, 4), lens.run(shift_phase(series, 6), 4), senders=nodes, receivers=[*nodes, "output"]
    )
    fig = viz.path_map(ds)
    assert list(fig.layout.yaxis.ticktext) == nodes
    assert list(fig.layout.xaxis.ticktext) == [*nodes, "output"]
    odd = ds.assign_coords(receiver=[*nodes, "the end"])
    with pytest.raises(InputError, match="'the end' is no component"):
        viz.path_map(odd)


def test_self_repair_can_be_read_off_the_effects() -> None:
    ds = results()["effects"].isel(series=[0])
    fig = viz.effects_scatter(ds, series=0)
    traces = [trace for trace in fig.data if trace.customdata is not None]
    dots = {data[0]: (x, y) for t in traces for x, y, data in zip(t.x, t.y, t.customdata, strict=True)}
    repair = dict(zip(ds["component"].values, ds["self_repair"].values[:, 0], strict=True))
    direct = dict(zip(ds["component"].values, ds["direct"].values[:, 0], strict=True))
    assert max(direct, key=lambda name: np.abs(direct[name]).mean()) in dots
    assert len(dots) > 3
    for name, (x, y) in dots.items():
        assert x == pytest.approx(np.mean(np.abs(direct[name])))
        assert_close(1 - y / x, repair[name], depth=1000, magnitude=max(1.0, abs(y / x)))
    assert "ppm" in fig.layout.xaxis.title.text


def test_the_circuit_stands_filled_at_its_places() -> None:
    ds = results()["circuit"]
    fig = viz.circuit_graph(ds)
    nodes = [trace for trace in fig.data if trace.customdata is not None]
    inside = {name for trace in nodes for name in trace.customdata if "in the circuit" in trace.hovertemplate}
    assert inside == set(ds["component"].values[ds["in_circuit"].values])
    spots = {name: (x, y) for t in nodes for x, y, name in zip(t.x, t.y, t.customdata, strict=False)}
    assert len(set(spots.values())) == len(spots) == ds.sizes["component"]
    # deeper is further right, and heads of a branch share a column
    assert spots["decoder.0.mlp"][0] < spots["decoder.1.cross_attn.0"][0] == spots["decoder.1.cross_attn.3"][0]
    assert spots["decoder.1.cross_attn.0"][1] > spots["decoder.1.cross_attn.3"][1]
    assert f"faithfulness {ds['faithfulness'].item():.3g}" in fig.layout.meta["subtitle"]
    assert f"{int(ds['in_circuit'].sum())} of {ds.sizes['component']} components" in fig.layout.meta["title"]


def test_the_strongest_edges_are_drawn_as_wide_as_they_are_strong() -> None:
    circuit, edges = results()["circuit"], results()["edges"]
    fig = viz.circuit_graph(circuit, edges, most=8)
    drawn = [trace for trace in fig.data if trace.name == "edge"]
    best = np.sort(np.abs(edges["score"].values[..., 0]).ravel())[-8:]
    widths = np.array([trace.line.width for trace in drawn])
    assert len(drawn) == 8
    np.testing.assert_allclose((widths - widths.min()) / np.ptp(widths), (best - best[0]) / np.ptp(best))
    sender, receiver = np.unravel_index(np.abs(edges["score"].values[..., 0]).argmax(), edges["score"].shape[:2])
    names = f"{edges['sender'].values[sender]} → {edges['receiver'].values[receiver]}"
    assert names in drawn[-1].hovertemplate
    strange = edges.assign_coords(receiver=["encoder.0.mlp", *edges["receiver"].values[1:]])
    with pytest.raises(InputError, match=r"encoder\.0\.mlp"):
        viz.circuit_graph(circuit, strange)
    with pytest.raises(InputError, match="'edges' is needed"):
        viz.circuit_graph(circuit, results()["paths"])


def test_the_curve_has_the_sizes_that_were_tried() -> None:
    ds = results()["circuit"].copy(deep=True)
    ds["curve"].values[3] = np.nan
    fig = viz.circuit_curve(ds)
    known = np.isfinite(ds["curve"].values)
    np.testing.assert_array_equal(fig.data[0].x, np.flatnonzero(known))
    np.testing.assert_array_equal(fig.data[0].y, ds["curve"].values[known])
    level, size = (shape for shape in fig.layout.shapes if shape.type == "line")
    assert level.y0 == level.y1 == pytest.approx(0.9)
    assert size.x0 == size.x1 == ds["in_circuit"].values.sum()
