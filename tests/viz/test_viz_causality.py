"""Figures of patching, paths, effects and circuits show numbers of planted results."""

from __future__ import annotations

import numpy as np
import pytest

import planted
from tsfm_lens import viz
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


def test_circuit_cells_are_outlined() -> None:
    """The cells of the circuit are outlined, and the others have their cost."""
    ds = planted.circuit()
    fig = viz.circuit_map(ds)
    (cells,) = heatmaps(fig)
    shape = np.shape(cells.z)
    np.testing.assert_array_equal(np.ravel(cells.z), ds["cost"])
    outlined = np.zeros(shape, dtype=bool)
    for frame in fig.layout.shapes:
        outlined[round(frame.y0 + 0.44), round(frame.x0 + 0.46)] = True
    np.testing.assert_array_equal(outlined.ravel(), ds["in_circuit"])
    assert "faithfulness 0.9" in fig.layout.meta["subtitle"]
    assert "3 of 8 components" in fig.layout.meta["title"]
