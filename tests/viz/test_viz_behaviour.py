"""Figures of induction, motifs, parroting and lines of thought show the numbers of their results."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError
from tsfm_lens.models import load
from tsfm_lens.viz.head_maps import HeadMap
from tsfm_lens.viz.theme import PALE


@cache
def results() -> dict[str, xr.Dataset]:
    lens, series = load("chronos-nano"), bundled("co2").tail(96)
    induction = probes.repeated_tokens(lens, n_sequences=8, prefix_from=0.25)
    entropy = probes.head_entropy(lens, series, 12)
    return {
        "induction": induction,
        "overlap": probes.induction_overlap(induction, entropy, prefix_from=0.25),
    }


def test_induction_maps_frame_the_induction_heads() -> None:
    ds = results()["induction"]
    fig = viz.induction_maps(ds)
    for trace, name in zip(fig.data, ("prefix_matching", "copy_score", "entropy"), strict=True):
        np.testing.assert_array_equal(trace.z, ds[name])
    framed = {(shape.xref, round(shape.y0 + 0.46), round(shape.x0 + 0.46)) for shape in fig.layout.shapes}
    assert 0 < int(ds["induction"].sum()) < ds["induction"].size
    assert framed == {
        (x, *place) for x in ("x", "x2", "x3") for place in map(tuple, np.argwhere(ds["induction"].values))
    }
    assert f"{int(ds['induction'].sum())} of 12" in fig.layout.meta["title"]
    assert "0.25" in fig.layout.meta["subtitle"]
    assert fig.layout.coloraxis3.reversescale
    assert len(viz.induction_maps(ds.drop_vars("entropy")).data) == 2


def test_colours_of_maps_leave_white_to_nothing() -> None:
    values = np.array([[1.0, 3.0]])
    assert HeadMap(values, "", "").colours()["cmin"] == pytest.approx(0.8)
    assert HeadMap(values, "", "", reverse=True).colours()["cmax"] == pytest.approx(3.2)
    assert HeadMap(values, "", "", low=0.0).colours()["cmin"] == 0
    both = HeadMap(np.array([[-4.0, 1.0, np.nan]]), "", "", diverging=True).colours()
    assert (both["cmin"], both["cmax"]) == (-4, 4)
    none = HeadMap(np.full((1, 2), np.nan), "", "").colours()
    assert none["cmin"] < none["cmax"]


def test_the_corner_holds_every_head_once_a_panel() -> None:
    ds = results()["overlap"]
    fig = viz.induction_corner(ds)
    points = [trace for trace in fig.data if trace.type == "scatter"]
    for x, y in (("prefix_matching", "copy_score"), ("prefix_matching", "normalised"), ("copy_score", "normalised")):
        wanted = sorted(zip(ds[x].values.ravel(), ds[y].values.ravel(), strict=True))
        panels: dict[str, list[tuple[float, float]]] = {}
        for trace in points:
            panels.setdefault(trace.xaxis, []).extend(zip(trace.x, trace.y, strict=True))
        assert any(sorted(found) == wanted for found in panels.values())
    assert [int(sum(trace.y)) for trace in fig.data if trace.type == "bar"] == [12, 12, 12]
    words = {f"{trace.name}" for trace in points if trace.showlegend}
    expected = {"both": ds["count"][0, 0], "induction": ds["count"][0, 1], "sharp": ds["count"][1, 0]}
    assert {f"{word} ({int(count)})" for word, count in expected.items() if count} <= words
    correlations = ds["correlation"].values
    shown = {note.text for note in fig.layout.annotations if str(note.text).startswith("r =")}
    assert shown == {f"r = {correlations[i, j]:+.2f}" for i, j in ((0, 1), (0, 2), (1, 2))}


def test_threshold_maps_hold_the_sweeps() -> None:
    ds = results()["overlap"]
    fig = viz.overlap_thresholds(ds)
    maps = [trace for trace in fig.data if trace.type == "heatmap"]
    np.testing.assert_array_equal(maps[0].z, ds["sweep_sharp_given_induction"])
    np.testing.assert_array_equal(maps[1].z, ds["sweep_induction_given_sharp"])
    np.testing.assert_array_equal(maps[2].z, ds["sweep_proportion_induction"])
    marks = [(trace.x[0], trace.y[0]) for trace in fig.data if trace.type == "scatter"]
    assert marks == [(0.38, 2.0), (0.38, 2.0), (0.25, 2.0)]
    assert fig.layout.plot_bgcolor == PALE
    with pytest.raises(InputError, match="induction_maps draws that kind"):
        viz.overlap_thresholds(results()["induction"])
