"""Figures of weights, streams and roll-outs show the numbers of their results."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.models import load


@cache
def results() -> dict[str, xr.Dataset]:
    lens, series = load("bolt-nano"), bundled("co2").tail(96)
    return {
        "spectra": probes.head_spectra(lens),
        "entropic_rank": probes.entropic_rank(lens, series),
        "layer_similarity": probes.layer_similarity(lens, series),
        "rollout": probes.rollout_maps(load("chronos-nano"), series, 12),
    }


def test_the_map_of_stable_ranks_holds_them() -> None:
    ds = results()["spectra"]
    fig = viz.stable_rank_map(ds, product="OV")
    np.testing.assert_array_equal(fig.data[0].z, ds["stable_rank"].sel(product="OV"))
    assert "stable rank" in fig.data[0].colorbar.title.text
    with pytest.raises(UnknownNameError, match="QK"):
        viz.stable_rank_map(ds, product="KQ")


def test_spectra_are_relative_to_the_largest() -> None:
    fig = viz.spectrum_lines(results()["spectra"])
    assert all(line.y[0] == 1 for line in fig.data)
    assert all((np.diff(line.y) <= 1e-12).all() for line in fig.data if np.isfinite(line.y).all())


def test_the_line_of_entropic_ranks_has_its_ceiling() -> None:
    ds = results()["entropic_rank"]
    fig = viz.entropic_rank_line(ds)
    np.testing.assert_array_equal(fig.data[0].y, ds["rank"])
    assert fig.layout.shapes[0].y0 == ds.attrs["heads"]


@pytest.mark.parametrize("measure", ["cka", "update_cosine"])
def test_the_similarity_map_is_square(measure: str) -> None:
    ds = results()["layer_similarity"]
    fig = viz.similarity_map(ds, measure=measure)
    np.testing.assert_array_equal(fig.data[0].z, ds[measure])
    with pytest.raises(InputError, match="cosine"):
        viz.similarity_map(ds, measure="angle")


def test_rollout_panels_are_sorted_by_entropy() -> None:
    ds = results()["rollout"]
    sharp, diffuse = viz.rollout_panels(ds, count=3), viz.rollout_panels(ds, heads="diffuse", count=3)
    assert len(sharp.data) == len(diffuse.data) == 3
    flat = ds["entropy"].values.ravel()
    place = np.unravel_index(flat.argmin(), ds["entropy"].shape)
    ordinary = [not word for word in ds["key_special"].values]
    np.testing.assert_array_equal(sharp.data[0].z, ds["attention"].values[place][ordinary])
    assert (sharp.data[0].y < 0).all()
    assert (sharp.data[0].x >= 0).all()
    with pytest.raises(InputError, match="sharp"):
        viz.rollout_panels(ds, heads="blunt")
