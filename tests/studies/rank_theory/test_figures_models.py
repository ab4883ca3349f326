"""Figures and readings of vocabularies, patch sizes and models show planted numbers."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import viz
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.registry import find
from tsfm_lens.report.build import panels_of
from tsfm_lens.studies.rank_theory import figures_models
from tsfm_lens.studies.rank_theory import figures_models as rank_models
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.printing import COLUMNS

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


def test_bins_are_coloured_by_their_values_and_joined() -> None:
    fig = figures_models.vocabulary_dots(plane())
    line, dots = fig.data
    assert line.mode == "lines"
    for trace in (line, dots):
        np.testing.assert_array_equal(trace.x, np.arange(-2, 3))
        np.testing.assert_array_equal(trace.y, np.arange(-2, 3) ** 2)
    np.testing.assert_array_equal(dots.marker.color, np.arange(-2, 3))
    assert dots.customdata[0] == "10"
    assert fig.layout.coloraxis.colorbar.title.text.startswith("value of the bin")
    assert "(50 %" in fig.layout.xaxis.title.text
    assert "0.12 times" in fig.layout.meta["subtitle"]
    (cloud,) = figures_models.vocabulary_dots(plane(text=True)).data
    assert cloud.mode == "markers"
    assert isinstance(cloud.marker.color, str)
    assert rank_models.read_plane(plane())[0].startswith("Along two directions lie 75 %")


def test_spectra_of_longer_patches_are_darker() -> None:
    fig = figures_models.patch_spectra(patches())
    assert [line.name for line in fig.data] == ["random, patch 1", "made, patch 4", "random, patch 8"]
    short, made, long = fig.data
    assert (short.line.dash, made.line.dash, long.line.dash) == ("dot", "solid", "dot")
    # two directions are no curve
    assert (short.mode, long.mode) == ("lines+markers", "lines")
    np.testing.assert_array_equal(made.y, [1, 0.5, 0.25, np.nan])
    assert short.line.color != long.line.color
    assert rank_models.read_patches(patches()) == [
        "At ε = 0.1 embedded noise uses so many directions: made 3 of 4 (patch 4), random, patch 1 2 of 4 and random, "
        "patch 8 4 of 4."
    ]


def test_models_stand_at_their_widths_within_contours_of_one_ratio() -> None:
    fig = figures_models.model_rank_dots(models())
    dots = {trace.name: trace for trace in fig.data if trace.mode == "markers"}
    assert {name: trace.y[0] for name, trace in dots.items()} == {"small": 10, "large": 12, "other": 20}
    assert dots["large"].x[0] == 64
    # two of one width stand apart around it
    assert dots["small"].x[0] < 32 < dots["other"].x[0]
    assert_close(dots["small"].x[0] * dots["other"].x[0], 32.0**2, depth=10)
    assert (dots["small"].error_y.array[0], dots["small"].error_y.arrayminus[0]) == (2, 1)
    (joined,) = [trace for trace in fig.data if trace.mode == "lines" and len(trace.x) == 2]
    assert (list(joined.x), list(joined.y)) == ([32, 64], [10, 12])
    assert "grey lines join" in fig.layout.meta["subtitle"]
    # two of one architecture at one place are not joined, and no line is told of
    alike = figures_models.model_rank_dots(models().assign_coords(width=("model", [32, 32, 64])))
    assert not [trace for trace in alike.data if trace.mode == "lines" and len(trace.x) == 2]
    assert "grey lines join" not in alike.layout.meta["subtitle"]
    contours = [trace for trace in fig.data if trace.mode == "lines" and len(trace.x) > 2]
    ratios = [trace.y / trace.x for trace in contours]
    assert all(np.ptp(ratio) < 1e-9 for ratio in ratios)
    assert "rank over width 1, 0.5" in fig.layout.meta["subtitle"]
    by_heads = figures_models.model_rank_dots(models(), against="heads", epsilon=0.1)
    assert [trace.y[0] for trace in by_heads.data if trace.mode == "markers"] == [10, 12, 20, 5, 6, 7]
    assert not [trace for trace in by_heads.data if trace.mode == "lines" and len(trace.x) > 2]
    with pytest.raises(UnknownNameError, match="against"):
        figures_models.model_rank_dots(models(), against="depth")
    with pytest.raises(UnknownNameError, match="epsilon"):
        figures_models.model_rank_dots(models(), epsilon=0.3)
    assert "large 12 of 64 directions, 6 a head with 4 heads" in rank_models.read_models(models())[0]


@pytest.mark.parametrize("make", [plane, lambda: plane(text=True), patches, models])
def test_every_chapter_is_drawn_tabulated_read_and_fits_a_column(make: object) -> None:
    ds: xr.Dataset = make()  # type: ignore[operator]
    plates = panels_of({ds.attrs["kind"]: ds})[ds.attrs["kind"]]
    assert plates[0].sentences
    for plate in plates:
        assert len(plate.table)
        assert viz.for_print(plate.figure).layout.meta["width_mm"] in COLUMNS.values()


def test_a_result_of_several_models_says_what_makes_it() -> None:
    measurement = find("ranks_by_model")
    assert (
        measurement.origin
        == "made of several models: `studies.rank_theory.ranks_by_model` makes it, `tsfm-lens figure` draws it"
    )
    with pytest.raises(InputError, match="made of several models"):
        measurement.of(None)  # type: ignore[arg-type]
