"""Figures of patching, paths, effects and circuits show the numbers of planted results."""

from __future__ import annotations

import numpy as np
import pytest

import planted
from refusals import expect_error
from tsfm_lens import viz
from tsfm_lens.core.errors import InputError
from viz.marks import heatmaps, named

UNDATED = planted.series(dated=False)


@pytest.mark.parametrize("value", ["recovered", "effect"])
def test_cells_are_as_wide_as_their_tokens_and_special_ones_stand_beside(
    value: str,
) -> None:
    ds = planted.patching(UNDATED)
    tokens, special = heatmaps(viz.patching_map(ds, value=value))
    np.testing.assert_array_equal(tokens.z, ds[value].values[:, :2, 0])
    np.testing.assert_array_equal(special.z, ds[value].values[:, 2:, 0])
    assert list(special.x) == ["EOS"]
    np.testing.assert_array_equal(tokens.x, [-24.5, -12.5, -0.5])
    dates = np.asarray(
        heatmaps(viz.patching_map(planted.patching()))[0].x, dtype="datetime64[h]"
    )
    assert list(dates.astype(str)) == [
        "2000-12-31T12",
        "2001-01-12T12",
        "2001-01-24T12",
    ]


def test_both_series_and_the_stretch_where_they_differ_are_drawn() -> None:
    ds = planted.patching(UNDATED)
    fig = viz.patching_map(ds)
    for name, context in (("clean", "context"), ("corrupted", "corrupted_context")):
        (drawn,) = named(fig, f"{name}, and its forecast")
        np.testing.assert_array_equal(
            drawn.y, np.concatenate([ds[context][0], ds[f"{name}_forecast"][0]])
        )
    assert [
        (shape.x0, shape.x1) for shape in fig.layout.shapes if shape.type == "rect"
    ] == [(-8.5, -0.5)]
    assert "8 of 24 steps" in fig.layout.meta["subtitle"]
    # a season moved everywhere leaves nothing to mark
    whole = viz.patching_map(ds.assign(corrupted_context=ds["context"] + 1))
    assert not [shape for shape in whole.layout.shapes if shape.type == "rect"]


def test_all_positions_at_once_make_a_bar_a_component() -> None:
    rows = planted.components(1, 2, ("self_attn",), whole=False)
    ds = planted.with_components(
        planted.patching().isel(position=[0]).assign_attrs(positions="all"), rows[::-1]
    )
    ds["recovered"][:, 0] = np.array([0.1, 0.2, 0.3])[:, None]
    bars = [trace for trace in viz.patching_map(ds).data if trace.type == "bar"]
    assert {bar.name: dict(zip(bar.text, bar.y, strict=True)) for bar in bars} == {
        "MLP": {"0.mlp": 0.1},
        "self-attention": {"0.self_attn.1": 0.2, "0.self_attn.0": 0.3},
    }


def test_paths_are_ordered_by_depth_and_missing_ones_are_not_zero() -> None:
    ds = planted.paths()
    drawn = viz.path_map(ds.isel(sender=[1, 0], receiver=[2, 1, 0]))
    assert drawn.data[0].hoverongaps is False
    assert drawn.layout.plot_bgcolor != "#FFFFFF"
    assert list(drawn.layout.yaxis.ticktext) == ["0.cross_attn.0", "1.mlp"]
    assert drawn.layout.xaxis.ticktext[-1] == "output"
    pairs = dict(
        zip(np.ravel(drawn.data[0].text), np.ravel(drawn.data[0].z), strict=True)
    )
    assert len(pairs) == 6
    for sender in ds["sender"].values:
        for receiver in ds["receiver"].values:
            value = float(ds["recovered"].sel(sender=sender, receiver=receiver)[0])
            np.testing.assert_equal(pairs[f"{sender} → {receiver}"], value)


def test_names_without_a_stack_are_read() -> None:
    nodes = ["0.attn.1", "1.mlp"]
    ds = planted.paths().assign_coords(
        sender=nodes, receiver=[*nodes, "output"], stack=("sender", ["", ""])
    )
    fig = viz.path_map(ds)
    assert list(fig.layout.yaxis.ticktext) == nodes
    assert list(fig.layout.xaxis.ticktext) == [*nodes, "output"]
    expect_error(
        "'the end' is neither a component",
        viz.path_map,
        ds.assign_coords(receiver=[*nodes, "the end"]),
    )


def test_the_circuit_stands_filled_at_its_places() -> None:
    ds = planted.circuit()
    fig = viz.circuit_graph(ds)
    nodes = [trace for trace in fig.data if trace.customdata is not None]
    inside = {
        name
        for trace in nodes
        for name in trace.customdata
        if "in the circuit" in trace.hovertemplate
    }
    assert inside == set(ds["component"].values[ds["in_circuit"].values])
    spots = {
        name: (x, y)
        for t in nodes
        for x, y, name in zip(t.x, t.y, t.customdata, strict=False)
    }
    assert len(set(spots.values())) == len(spots) == ds.sizes["component"]
    # deeper is further right, and heads of a branch share a column
    assert (
        spots["decoder.0.mlp"][0]
        < spots["decoder.1.cross_attn.0"][0]
        == spots["decoder.1.cross_attn.2"][0]
    )
    assert spots["decoder.1.cross_attn.0"][1] > spots["decoder.1.cross_attn.2"][1]
    assert "faithfulness 0.9" in fig.layout.meta["subtitle"]
    assert "3 of 8 components" in fig.layout.meta["title"]


def test_the_strongest_edges_are_drawn_as_wide_as_they_are_strong() -> None:
    circuit, edges = planted.circuit(), planted.edges()
    drawn = named(viz.circuit_graph(circuit, edges, most=2), "edge")
    assert [trace.line.width for trace in drawn] == pytest.approx([0.6 + 5.4 / 2, 6])
    assert "decoder.0.cross_attn.0 → output" in drawn[-1].hovertemplate
    with pytest.raises(InputError, match=r"encoder\.0\.mlp"):
        viz.circuit_graph(
            circuit,
            edges.assign_coords(
                receiver=["encoder.0.mlp", *edges["receiver"].values[1:]]
            ),
        )
    expect_error(
        "'edge_attribution' is needed", viz.circuit_graph, circuit, planted.paths()
    )
