"""Figures of induction, motifs, parroting and lines of thought show the numbers of
their results.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.core.axes import layer_name
from tsfm_lens.core.registry import find_figures
from tsfm_lens.core.stats import holm, sign_test
from tsfm_lens.data import bundled
from tsfm_lens.models import load
from viz.marks import heatmaps


@cache
def results() -> dict[str, xr.Dataset]:
    lens = load("chronos-nano")
    series = bundled("co2").tail(96)
    # two instances, since heads share their attention among all that there are
    induction = probes.induction_scores(
        lens, repeats=2, n_sequences=12, prefix_from=0.32, offset=1, positions="all"
    )
    entropy = probes.head_entropy(lens.run(series, 12))
    return {
        "induction_scores": induction,
        "overlap": probes.induction_overlap(induction, entropy, prefix_from=0.32),
        "thought": probes.lines_of_thought(
            lens.run(bundled("elnino", "inflation").tail(96), 12)
        ),
    }


def test_induction_heads_are_counted_and_tested() -> None:
    ds = results()["induction_scores"]
    fig = viz.induction_corner(ds)
    # sign tests over sequences of all 24 scores together
    p = [
        sign_test(ds[f"{name}_by_sequence"].values - ds.attrs[key], sides=1)
        for name, key in (
            ("prefix_matching", "prefix_from"),
            ("copy_score", "copy_from"),
        )
    ]
    surely = (holm(np.ravel(p)).reshape(2, 3, 4) <= 0.05).all(0)
    is_induction = ds["induction"].values
    assert 0 < surely.sum() < is_induction.sum()
    count = f"{int(is_induction.sum())} of 12"
    assert count in fig.layout.meta["title"]
    (read,) = [figure.sentences for figure in find_figures("induction_scores")[:1]]
    assert "Induction heads" in read(ds)[0]
    assert count in read(ds)[0]
    assert f"significantly above both thresholds: {surely.sum()} of 12" in read(ds)[1]
    assert "0.32" in fig.layout.meta["subtitle"]
    significant = f"significant over all heads together: {surely.sum()}, undecided"
    assert significant in fig.layout.meta["subtitle"]


def test_every_head_stands_at_its_two_scores() -> None:
    """The figure of induction scores holds every head once, by its name; the shaded
    corner begins at the thresholds."""
    ds = results()["overlap"]
    fig = viz.induction_corner(ds)
    found = {
        name: (x, y)
        for trace in fig.data
        for name, x, y in zip(trace.text, trace.x, trace.y, strict=True)
    }
    assert found == {
        f"L{layer}H{head}": (
            float(ds["prefix_matching"].sel(layer=layer, head=head)),
            float(ds["copy_score"].sel(layer=layer, head=head)),
        )
        for layer in ds["layer"].values
        for head in ds["head"].values
    }
    (corner,) = (shape for shape in fig.layout.shapes if shape.type == "rect")
    assert (corner.x0, corner.y0) == (ds.attrs["prefix_from"], ds.attrs["copy_from"])
    count = ds["count"].values
    notes = " ".join(str(note.text) for note in fig.layout.annotations)
    assert f"past both: {int(count[0].sum())} of {int(count.sum())}" in notes
    assert f"sharp heads ({int(count[:, 0].sum())})" in {one.name for one in fig.data}


def test_lines_appear_in_their_layers_panel() -> None:
    """Every line is drawn in the panel of its layer."""
    ds = results()["thought"]
    fig = viz.thought_lines(ds, series="elnino")
    panels = {trace.xaxis: trace.name for trace in heatmaps(fig)}
    drawn = [
        trace for trace in fig.data if trace.name in ("spurious line", "other line")
    ]
    lines = np.flatnonzero(ds["line_series"].values == "elnino")
    assert len(drawn) == len(lines)
    for trace, line in zip(drawn, lines, strict=True):
        assert panels[trace.xaxis] == layer_name(ds["line_layer"].values[line])
        np.testing.assert_array_equal(trace.y, ds["path"].values[line])
        assert (trace.name == "spurious line") == bool(ds["spurious"].values[line])
        low, high = (
            fig.layout[trace.yaxis.replace("y", "yaxis")].range
            or fig.layout.yaxis.range
        )
        trimmed = "cut off" in fig.layout.meta["subtitle"]
        assert trimmed or (low < np.nanmin(trace.y) and np.nanmax(trace.y) < high)
    assert {trace.name for trace in drawn} == {"spurious line", "other line"}
    count = int(ds["spurious"].values[lines].sum())
    assert f"{count} of {len(lines)} spurious" in fig.layout.meta["title"]
    last = viz.thought_lines(ds, series="elnino", layers=["2"])
    assert len(heatmaps(last)) == 1
    assert not [trace for trace in last.data if trace.name == "spurious line"]
