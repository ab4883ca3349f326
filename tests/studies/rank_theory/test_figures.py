"""Figures of the theory show the numbers of the experiments, and their chapters tabulate and read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import registry, viz
from tsfm_lens.report.build import panels_of
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.rank_theory import figures, figures_bounds
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.printing import COLUMNS

SMALL: dict[str, Callable[[], xr.Dataset]] = {
    "compression_rank": lambda: rank_theory.compression_by_rank(
        width=16, n_tokens=32, n_ranks=8, draws=2, scalings=("theorem", "unit")
    ),
    "compression_width": lambda: rank_theory.compression_by_width(widths=(8, 16), rank=3, n_tokens=32, draws=3),
    "sketching": lambda: rank_theory.sketching_by_heads(width=32, rank=2, heads=(1, 2, 4), decay=6.0, draws=2),
    "head_spectra": lambda: rank_theory.spectra_by_heads(width=16, n_tokens=32, heads=(1, 4), decay=1.0, draws=3),
    "chebyshev": lambda: rank_theory.chebyshev_curves(dimension=8, ranks=(1, 2, 3, 5), n_points=30),
    "embedding_bounds": lambda: rank_theory.embedding_bounds(dimension=12, n_tokens=40, draws=2),
    "compression_bounds": lambda: rank_theory.compression_bounds(width=8, heads=(1, 2), n_tokens=12, draws=2),
    "growth_bounds": lambda: rank_theory.growth_bounds(width=12, heads=(1, 2, 3), draws=2),
    "sketch_bounds": lambda: rank_theory.sketch_bounds(sizes=[(2, 4, 2), (3, 6, 2)], draws=2),
}


@pytest.fixture(scope="module")
def results() -> dict[str, xr.Dataset]:
    return {kind: make() for kind, make in SMALL.items()}


def named(fig: Any, start: str) -> list[Any]:
    return [trace for trace in fig.data if (trace.name or "").startswith(start)]


def test_every_chapter_of_the_theory_has_its_experiment() -> None:
    kinds = {kind for kind, each in registry.measurements().items() if each.theme == "Theory"}
    assert kinds == {f"theory_{kind}" for kind in SMALL}


@pytest.mark.parametrize("kind", SMALL)
def test_every_chapter_is_drawn_tabulated_read_and_fits_a_column(kind: str, results: dict[str, xr.Dataset]) -> None:
    (plate,) = panels_of({kind: results[kind]})[kind]
    assert len(plate.table)
    assert plate.sentences
    assert all(sentence.endswith(".") and "nan" not in sentence for sentence in plate.sentences)
    assert all(np.isfinite(column).any() for column in plate.table.select_dtypes("number").values.T)
    assert viz.for_print(plate.figure).layout.meta["width_mm"] in COLUMNS.values()


def test_errors_by_rank_are_root_mean_squares_under_their_bounds(results: dict[str, xr.Dataset]) -> None:
    ds = results["compression_rank"]
    fig = figures.compression_rank_lines(ds)
    for scaling in ("theorem", "unit"):
        (dots,) = named(fig, f"{scaling}: slope {float(ds['slope'].sel(scaling=scaling).mean()):.2f}")
        np.testing.assert_array_equal(dots.x, ds["next_singular_value"])
        assert_close(dots.y, np.sqrt((ds["error"].sel(scaling=scaling) ** 2).mean("draw")).values, depth=20)
    (line,) = named(fig, "slope 1")
    assert_close(line.y[1] / line.y[0], line.x[1] / line.x[0], depth=50)
    assert len(named(fig, "bound")) == 2


def test_errors_by_width_show_every_draw_and_the_fit(results: dict[str, xr.Dataset]) -> None:
    ds = results["compression_width"]
    fig = figures.compression_width_lines(ds)
    low, high = (float(ds[name].sel(weights="orthogonal")) for name in ("slope_low", "slope_high"))
    (line,) = named(fig, "orthogonal")
    assert f"({low:.2f} to {high:.2f})" in line.name
    assert list(line.x) == [8, 16]
    faint = [trace for trace in fig.data if trace.mode == "markers"]
    assert sum(len(trace.x) for trace in faint) == ds["error"].size
    (line,) = named(fig, "slope 1/2")
    assert_close(line.y[1] / line.y[0], np.sqrt(2), depth=50)


def test_sketching_errors_stand_over_heads_and_on_the_spectrum(results: dict[str, xr.Dataset]) -> None:
    ds = results["sketching"]
    fig = figures.sketching_lines(ds)
    for name in ("sparse", "dense"):
        (line,) = named(fig, f"{name} sketch")
        assert_close(line.y, ds["distance"].sel(sketch=name).mean("draw").values, depth=10)
    uprights = [shape.x0 for shape in fig.layout.shapes]
    assert_close(np.array(uprights), ds["effective_index"].sel(sketch="sparse").mean("draw").values, depth=10)
    np.testing.assert_array_equal(named(fig, "best of as many rows")[0].y, ds["floor"])


def test_spectra_by_heads_are_medians_and_name_their_ranks(results: dict[str, xr.Dataset]) -> None:
    ds = results["head_spectra"]
    fig = figures.head_spectra_lines(ds)
    lines = named(fig, "4 heads")
    assert len(lines) == 2
    for line, name in zip(lines, ds["input"].values, strict=True):
        middle = ds["singular_value"].sel(input=name, heads=4).median("draw").values
        known = np.isfinite(line.y)
        np.testing.assert_array_equal(line.y[known], middle[known])
        assert (middle[~known] < 1e-16).all()
    assert f"rank {int(ds['input_rank'])}" in fig.layout.meta["subtitle"]
    assert len(named(fig, "input")) == 2


def test_chebyshev_curves_are_the_first_two_coordinates(results: dict[str, xr.Dataset]) -> None:
    ds = results["chebyshev"]
    curves = [trace for trace in figures.chebyshev_curves(ds).data if trace.mode == "lines"]
    assert len(curves) == 4
    for curve, rank in zip(curves, ds["rank"].values, strict=True):
        np.testing.assert_array_equal([curve.x, curve.y], ds["coordinate"].sel(rank=rank))


def test_bounds_lie_over_what_they_bound(results: dict[str, xr.Dataset]) -> None:
    fig = figures_bounds.embedding_bound_lines(results["embedding_bounds"])
    assert fig.layout.meta["subtitle"].endswith("0 of 120 are above their bounds")
    spoilt = results["embedding_bounds"].copy(deep=True)
    spoilt["bound"][0, 0] = spoilt["singular_value"][0, 0] / 2
    assert "1 of 120" in figures_bounds.embedding_bound_lines(spoilt).layout.meta["subtitle"]
    fig = figures_bounds.compression_bound_lines(results["compression_bounds"])
    (root,) = named(fig, "√L")
    (measured,) = [trace for trace in named(fig, "measured") if len(trace.x) == len(root.x) == 5]
    assert_close(measured.y, root.y, depth=1000)
    fig = figures_bounds.growth_bound_lines(results["growth_bounds"])
    assert len(named(fig, "at least")) == 3
    assert "0 above the corollary's" in fig.layout.meta["subtitle"]
    fig = figures_bounds.sketch_bound_dots(results["sketch_bounds"])
    assert_close(named(fig, "one for each")[0].x, results["sketch_bounds"]["own_error"].mean("draw").values, depth=10)
    assert list(named(fig, "at most")[0].x) == list(results["sketch_bounds"]["own_bound"].values)
