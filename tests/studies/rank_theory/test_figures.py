"""Figures of the theory, of vocabularies, patch sizes and models show their numbers,
and sections read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner, Result

from tsfm_lens import load, testing, viz
from tsfm_lens.cli import app
from tsfm_lens.report.build import draw_results
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.rank_theory import figures, figures_models
from tsfm_lens.studies.rank_theory.of_models import ranks_by_model
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.printing import COLUMNS

SMALL: dict[str, Callable[[], xr.Dataset]] = {
    "compression_rank": lambda: rank_theory.compression_by_rank(
        width=16, n_tokens=32, n_ranks=8, draws=2
    ),
    "compression_width": lambda: rank_theory.compression_by_width(
        widths=(8, 16), rank=3, n_tokens=32, draws=3
    ),
    "sketching": lambda: rank_theory.sketching_by_heads(
        width=32, rank=2, heads=(1, 2, 4), decay=6.0, draws=2
    ),
    "head_spectra": lambda: rank_theory.spectra_by_heads(
        width=16, n_tokens=32, heads=(1, 4), decay=1.0, draws=3
    ),
    "chebyshev": lambda: rank_theory.chebyshev_curves(
        dimension=8, ranks=(1, 2, 3, 5), n_points=30
    ),
}


def test_errors_by_rank_keep_their_bounds(
    results: dict[str, xr.Dataset],
) -> None:
    """Errors by rank are root mean squares and lie under their bounds."""
    ds = results["compression_rank"]
    fig = figures.compression_rank_lines(ds)
    dots, line, bounds = fig.data
    assert dots.name == f"slope {float(ds['slope'].mean()):.2f}"
    for trace, name in ((dots, "error"), (bounds, "bound")):
        cut = ds["next_singular_value"]
        np.testing.assert_array_equal(trace.x, np.sort(cut))
        expected = np.sqrt((ds[name] ** 2).mean("draw")).sortby(cut)
        assert_close(trace.y, expected.values, depth=20)
    assert line.name == "slope 1"
    assert_close(line.y[1] / line.y[0], line.x[1] / line.x[0], depth=50)


RUNNER = CliRunner()
SERIES = ("--data", "bundled:nile", "--horizon", "6")


def run(*args: str) -> Result:
    return RUNNER.invoke(app, ["figure", *args])


@pytest.fixture(scope="module")
def bolt(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("checkpoint") / "tiny bolt"
    testing.tiny("chronos-bolt").save_pretrained(path)
    return str(path)


def test_figures_of_several_models_show_all(bolt: str, tmp_path: Path) -> None:
    args = (*SERIES, "--out", str(tmp_path), "--format", "json")
    result = run("model_rank_dots", bolt, "chronos-nano", *args)
    assert result.exit_code == 0, result.output
    drawn = tmp_path / "model_rank_dots-tiny-bolt-and-1-more.json"
    assert result.stdout.split() == [str(drawn), str(drawn.with_suffix(".txt"))]
    lenses = [load(bolt), load("chronos-nano")]
    expected = figures_models.model_rank_dots(ranks_by_model(lenses)).to_json()
    assert json.loads(drawn.read_text()) == json.loads(expected)
    text = drawn.with_suffix(".txt").read_text()
    models = [line for line in text.splitlines() if line.startswith("  model: ")]
    assert models == [f"  model: {bolt}.", "  model: chronos-nano."]
    # one alone is drawn alone
    assert run("model_rank_dots", bolt, *args).exit_code == 0
    assert (tmp_path / "model_rank_dots-tiny-bolt.json").exists()


@pytest.fixture(scope="module")
def results() -> dict[str, xr.Dataset]:
    return {kind: make() for kind, make in SMALL.items()}


@pytest.mark.parametrize("kind", SMALL)
def test_every_chapter_has_figure_and_table(
    kind: str, results: dict[str, xr.Dataset]
) -> None:
    """Every chapter has a figure and a table, and fits a column."""
    ds = results[kind]
    for plate in draw_results({ds.attrs["kind"]: ds})[ds.attrs["kind"]]:
        assert len(plate.table)
        assert viz.for_print(plate.figure).layout.meta["width_mm"] in COLUMNS.values()
        assert all(
            np.isfinite(column).any()
            for column in plate.table.select_dtypes("number").values.T
        )
