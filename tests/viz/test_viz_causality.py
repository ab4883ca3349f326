"""Figures of patching, paths, effects and circuits show numbers of planted results."""

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
def test_cell_widths_follow_their_tokens(
    value: str,
) -> None:
    """Cells are as wide as their tokens, and special tokens stand beside them."""
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


def test_both_series_and_difference_are_drawn() -> None:
    """Both series and the stretch in which they differ are drawn."""
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
    full = viz.patching_map(ds.assign(corrupted_context=ds["context"] + 1))
    assert not [shape for shape in full.layout.shapes if shape.type == "rect"]


def test_positions_together_give_component_dots() -> None:
    """All positions at once make one dot for each component."""
    ds = planted.patching().isel(position=[0]).assign_attrs(positions="all")
    (dots,) = viz.patching_map(ds).data
    np.testing.assert_array_equal(dots.x, ds["recovered"][:, 0, 0])


def test_circuit_cells_are_filled() -> None:
    """The cells of the circuit are filled, at their places."""
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


def test_edge_widths_show_their_strength() -> None:
    """The strongest edges are drawn as wide as they are strong."""
    circuit = planted.circuit()
    edges = planted.edges()
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
