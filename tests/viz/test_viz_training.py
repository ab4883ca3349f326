"""Figures of watched trainings show the numbers of their results, and their sections
tabulate and read them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from refusals import expect_error
from tsfm_lens import viz
from tsfm_lens.core import registry
from tsfm_lens.report.build import draw_results
from tsfm_lens.training import Watch, attention_norms, together
from tsfm_lens.viz.printing import COLUMNS

HEADS = 2
TOKENS = 5
STEPS = (0, 10, 20, 30)


def patterns(step: int, sharp: float) -> dict[str, torch.Tensor]:
    """Attention that comes nearer to the identity with the steps; the second head is
    even.
    """
    share = sharp * step / STEPS[-1]
    head = share * torch.eye(TOKENS) + (1 - share) / TOKENS
    even = torch.full((TOKENS, TOKENS), 1 / TOKENS)
    return {
        name: torch.stack([head, even]).expand(3, HEADS, TOKENS, TOKENS)
        for name in ("0.attn", "1.attn")
    }


@cache
def watched(sharp: float = 0.9, name: str = "toy") -> xr.Dataset:
    model = torch.nn.Linear(3, 1)
    at = iter(STEPS)
    loss = lambda: model(torch.eye(3)).square().mean()  # noqa: E731
    options = {
        "patterns": lambda: patterns(next(at), sharp),
        "snapshots": 10,
        "inputs": 2,
    }
    watch = Watch(model, every=10, loss=loss, name=name, **options)  # type: ignore[arg-type]
    for step in STEPS:
        watch(step, loss=100.0 / (1 + step) ** 2)
    return watch.dataset()


@cache
def result(which: str) -> xr.Dataset:
    made: dict[str, Any] = {
        "one": watched,
        "several": lambda: together(
            {"Adam": [watched(0.9), watched(0.8)], "SAM": watched(0.5)}
        ),
        "norms": lambda: attention_norms(patterns(20, 0.9), name="toy"),
        "several norms": lambda: together(
            {n: attention_norms(patterns(20, s)) for n, s in (("a", 0.1), ("b", 0.9))}
        ),
    }
    found: xr.Dataset = made[which]()
    return found


WHICH = ("one", "several", "norms", "several norms")


@pytest.mark.parametrize("which", WHICH)
def test_chapters_are_drawn_and_fit_columns(which: str) -> None:
    """Every chapter is drawn, has a table and a reading, and fits a column."""
    ds = result(which)
    kind = ds.attrs["kind"]
    panels = draw_results({kind: ds})[kind]
    assert panels
    for panel in panels:
        assert len(panel.table)
        assert panel.sentences
        assert all(
            sentence.endswith(".") and "nan" not in sentence
            for sentence in panel.sentences
        )
        assert viz.for_print(panel.figure).layout.meta["width_mm"] in COLUMNS.values()
    for figure in registry.find(kind).figures:
        assert figure.draw(ds).data


def test_measures_are_drawn_as_they_are() -> None:
    ds = result("one")
    fig = viz.training_measures(ds)
    titles = [axis.title.text for axis in fig.select_yaxes()]
    starts = (
        "training loss",
        "sharpness",
        "entropy of",
        "nuclear norm",
        "diagonal mass",
        "numerical rank",
    )
    for title, start in zip(titles, starts, strict=True):
        assert title.replace("<br>", " ").startswith(start)
    lines = [trace for trace in fig.data if trace.mode == "lines+markers"]
    np.testing.assert_array_equal(lines[0].y, ds["loss"])
    np.testing.assert_array_equal(lines[1].y, ds["sharpness"])
    wide = viz.training_measures(
        ds.assign(sharpness_residual=0 * ds["sharpness"] + 0.25)
    )
    low, high = (
        trace for trace in wide.data if trace.mode == "lines" and trace.line.width == 0
    )
    np.testing.assert_allclose(np.subtract(high.y, low.y), 0.5)
    heads = [line.y for line in lines[2:6]]
    np.testing.assert_array_equal(
        heads, ds["entropy"].transpose("layer", "head", "step").values.reshape(4, -1)
    )
    # a loss that falls by more than a factor of 30 has a logarithmic axis, and all
    # layers have one log D
    assert next(axis.type for axis in fig.select_yaxes()) == "log"
    assert np.log(TOKENS) in [shape.y0 for shape in fig.layout.shapes]
    assert {"log 5", "identity", "one row for all", "even"} <= {
        note.text for note in fig.layout.annotations
    }


def test_runs_have_lines_seeds_have_bands() -> None:
    """Each of several runs has a line, with a band over its seeds."""
    ds = result("several")
    fig = viz.training_measures(ds)
    assert {trace.name for trace in fig.data if trace.showlegend} == {"Adam", "SAM"}
    entropy = ds["entropy"].mean(["layer", "head"])
    adam = [
        trace
        for trace in fig.data
        if trace.mode == "lines+markers" and trace.name == "Adam"
    ]
    bounds = [
        trace
        for trace in fig.data
        if trace.mode == "lines" and (trace.name or "").startswith("Adam")
    ]
    np.testing.assert_array_equal(adam[2].y, entropy.sel(run="Adam").mean("seed"))
    position = next(
        i
        for i, trace in enumerate(bounds)
        if np.array_equal(trace.y, entropy.sel(run="Adam").min("seed"))
    )
    np.testing.assert_array_equal(
        bounds[position + 1].y, entropy.sel(run="Adam").max("seed")
    )


def test_snapshots_stand_side_by_side() -> None:
    ds = result("one")
    fig = viz.attention_snapshots(ds, layer="0.attn", head=0, snapshots=[10, 30])
    for trace, step in zip(fig.data, (10, 30), strict=True):
        np.testing.assert_array_equal(
            trace.z, ds["pattern"].sel(snapshot=step, layer="0.attn", head=0, input=0)
        )
    for text, options in (
        ("snapshot", {"snapshots": [11]}),
        (r"0\.attn", {"layer": "attn"}),
    ):
        expect_error(text, viz.attention_snapshots, ds, **options)
    expect_error(
        "row is 2, expected an input from 0 to 1", viz.attention_snapshots, ds, row=2
    )
