"""Figures of the theory, of vocabularies, patch sizes and models show their numbers, and sections read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner, Result

from tsfm_lens import load, viz
from tsfm_lens.cli import app
from tsfm_lens.errors import UnknownNameError
from tsfm_lens.models.architecture import architectures
from tsfm_lens.report.build import panels_of
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.rank_theory import figures, figures_bounds, figures_models, ranks_by_model
from tsfm_lens.studies.rank_theory import figures_models as rank_models
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


def named(fig: Any, start: str) -> list[Any]:
    return [trace for trace in fig.data if (trace.name or "").startswith(start)]


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


RANDOM = ("random, patch 1", "random, patch 8")


def plane(*, text: bool = False) -> xr.Dataset:
    """Five tokens on a parabola through their values."""
    values = np.arange(-2.0, 3.0)
    return xr.Dataset(
        {
            "coordinate": (("token", "direction"), np.stack([values, values**2], axis=1)),
            "value": ("token", np.full(5, np.nan) if text else values),
            "share": ("direction", [0.5, 0.25]),
            "neighbour_ratio": ((), 0.125),
        },
        coords={"token": range(10, 15), "direction": [1, 2]},
        attrs={"kind": "vocabulary_plane", "title": "plane", "model": "made"},
    )


def patches() -> xr.Dataset:
    """A model of patch 4, and random embeddings of patches 1 and 8; what is below 0.01 of the model is rounding."""
    values = np.array([[4, 2, 1, 1e-3], [2, 1, 0, 0], [1, 1, 1, 0.5]])
    return xr.Dataset(
        {
            "singular_value": (("embedding", "mode"), values),
            "epsilon_rank": (("epsilon", "embedding"), [[3, 2, 4]]),
            "full": ("embedding", [4, 4, 4]),
            "rounding_floor": ("embedding", [0.01, 0.0, 0.0]),
        },
        coords={
            "embedding": ["made", *RANDOM],
            "patch": ("embedding", [4, 1, 8]),
            "width": ("embedding", [4, 4, 4]),
            "origin": ("embedding", ["model", "random", "random"]),
            "epsilon": [0.1],
        },
        attrs={"kind": "spectra_by_patch", "title": "patches", "model": "made"},
    )


def models() -> xr.Dataset:
    """Two sizes of one architecture and another as wide as the first: ranks 10, 12 and 20, of heads 5, 6 and 7."""
    rank, head = np.array([[10.0, 12, 20]]), np.array([[5.0, 6, 7]])
    spread = {
        f"{name}{end}": (("epsilon", "model"), values + by)
        for name, values in (("rank", rank), ("head_rank", head))
        for end, by in (("", 0), ("_low", -1), ("_high", 2))
    }
    return xr.Dataset(
        spread,
        coords={
            "epsilon": [0.1],
            "model": ["small", "large", "other"],
            "width": ("model", [32, 64, 32]),
            "heads": ("model", [2, 4, 2]),
            "architecture": ("model", ["one", "one", "two"]),
            "reads": ("model", ["series", "series", "text"]),
        },
        attrs={"kind": "ranks_by_model", "title": "models", "model": "small, large, other"},
    )


RUNNER = CliRunner()
SERIES = ("--data", "bundled:nile", "--horizon", "6")


def run(*args: str) -> Result:
    return RUNNER.invoke(app, ["figure", *args])


@pytest.fixture(scope="module")
def bolt(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("checkpoint") / "tiny bolt"
    architectures()["chronos-bolt"].tiny().save_pretrained(path)
    return str(path)


def test_a_figure_of_several_models_takes_them_all(bolt: str, tmp_path: Path) -> None:
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


def test_models_stand_at_their_widths_within_contours_of_one_ratio() -> None:
    fig = figures_models.model_rank_dots(models())
    dots = {trace.name: trace for trace in fig.data if trace.mode == "markers"}
    assert {name: trace.y[0] for name, trace in dots.items()} == {"small": 10, "large": 12, "other": 20}
    # two of one width stand apart around it
    assert dots["small"].x[0] < 32 < dots["other"].x[0]
    assert_close(dots["small"].x[0] * dots["other"].x[0], 32.0**2, depth=10)
    assert (dots["small"].error_y.array[0], dots["small"].error_y.arrayminus[0]) == (2, 1)
    lines = [trace for trace in fig.data if trace.mode == "lines"]
    assert [(list(each.x), list(each.y)) for each in lines if len(each.x) == 2] == [([32, 64], [10, 12])]
    assert all(np.ptp(each.y / each.x) < 1e-9 for each in lines if len(each.x) > 2)
    # two of one architecture at one place are not joined
    alike = figures_models.model_rank_dots(models().assign_coords(width=("model", [32, 32, 64])))
    assert not [trace for trace in alike.data if trace.mode == "lines" and len(trace.x) == 2]
    by_heads = figures_models.model_rank_dots(models(), against="heads", epsilon=0.1)
    assert [trace.y[0] for trace in by_heads.data if trace.mode == "markers"] == [10, 12, 20, 5, 6, 7]
    for options in ({"against": "depth"}, {"epsilon": 0.3}):
        with pytest.raises(UnknownNameError, match=next(iter(options))):
            figures_models.model_rank_dots(models(), **options)
    assert "large 12 of 64 directions, 6 a head with 4 heads" in rank_models.read_models(models())[0]


PLANTED = {"plane": plane, "plane of text": lambda: plane(text=True), "patches": patches, "models": models}


@pytest.fixture(scope="module")
def results() -> dict[str, xr.Dataset]:
    return {kind: make() for kind, make in (SMALL | PLANTED).items()}


@pytest.mark.parametrize("kind", SMALL | PLANTED)
def test_every_chapter_is_drawn_tabulated_read_and_fits_a_column(kind: str, results: dict[str, xr.Dataset]) -> None:
    ds = results[kind]
    for plate in panels_of({ds.attrs["kind"]: ds})[ds.attrs["kind"]]:
        assert len(plate.table)
        assert plate.sentences or kind == "models"
        assert viz.for_print(plate.figure).layout.meta["width_mm"] in COLUMNS.values()
        if kind in SMALL:
            assert all(sentence.endswith(".") and "nan" not in sentence for sentence in plate.sentences)
            assert all(np.isfinite(column).any() for column in plate.table.select_dtypes("number").values.T)
