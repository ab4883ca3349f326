"""Figures of weights and streams show the numbers of their results."""

from __future__ import annotations

from functools import cache
from inspect import signature

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.models import load
from tsfm_lens.registry import measurements


@cache
def results() -> dict[str, xr.Dataset]:
    lens, series = load("bolt-nano"), bundled("co2").tail(96)
    return {
        "spectra": probes.head_spectra(lens),
        "entropic_rank": probes.entropic_rank(lens.run(series)),
        "layer_similarity": probes.layer_similarity(lens.run(series)),
        "head_similarity": probes.head_similarity(lens.run(series)),
    }


def test_the_map_of_stable_ranks_holds_them() -> None:
    ds = results()["spectra"]
    fig = viz.stable_rank_map(ds, product="OV")
    np.testing.assert_array_equal(fig.data[0].z, ds["stable_rank"].sel(product="OV"))
    assert fig.layout.coloraxis.colorbar.title.text == "stable rank"
    assert fig.layout.meta["title"] == "Stable rank of the value–output products of bolt-nano"
    with pytest.raises(UnknownNameError, match="QK"):
        viz.stable_rank_map(ds, product="KQ")


def test_spectra_are_relative_to_the_largest() -> None:
    fig = viz.spectrum_lines(results()["spectra"])
    assert all(line.y[0] == 1 for line in fig.data)
    assert all((np.diff(line.y) <= 1e-12).all() for line in fig.data if np.isfinite(line.y).all())


def test_the_line_of_entropic_ranks_has_its_ceiling() -> None:
    ds = results()["entropic_rank"]
    fig = viz.entropic_rank_line(ds)
    assert fig.data[-1].name == "all series"
    np.testing.assert_array_equal(fig.data[-1].y, ds["rank"])
    np.testing.assert_allclose(fig.data[0].y, np.exp(ds["entropy"].isel(series=0)))
    assert fig.layout.shapes[0].y0 == ds.attrs["heads"]


@pytest.mark.parametrize("measure", ["cka", "update_cosine"])
def test_the_similarity_map_is_square(measure: str) -> None:
    ds = results()["layer_similarity"]
    fig = viz.similarity_map(ds, measure=measure)
    np.testing.assert_array_equal(fig.data[0].z, ds[measure])
    with pytest.raises(InputError, match="cosine"):
        viz.similarity_map(ds, measure="angle")


def test_the_map_of_heads_has_a_panel_a_layer() -> None:
    ds = results()["head_similarity"]
    fig = viz.head_similarity_map(ds, layers=[2, 0])
    assert [note.text for note in fig.layout.annotations[:2]] == ["layer 2", "layer 0"]
    np.testing.assert_array_equal(fig.data[0].z, ds["cosine"].sel(layer="2"))
    np.testing.assert_array_equal(fig.data[1].z, ds["cosine"].sel(layer="0"))
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == (-1, 1)
    assert len({axis.matches or "x" for axis in fig.select_xaxes()}) == 1
    with pytest.raises(InputError, match="similarity_map draws that kind"):
        viz.head_similarity_map(results()["layer_similarity"])


def test_every_kind_names_its_renderers_and_they_refuse_others() -> None:
    other = xr.Dataset(attrs={"kind": "forecast"})
    for entry in measurements().values():
        for function in (figure.function for figure in entry.figures):
            if entry.theme == "Sweeps":
                with pytest.raises(InputError, match="is needed, this is 'Dataset'"):
                    function(other)
                continue
            with pytest.raises(InputError, match="is of kind 'nothing'"):
                function(xr.Dataset(attrs={"kind": "nothing"}))
            if entry.kind != "forecast":
                with pytest.raises(InputError, match="forecast_fan draws that kind"):
                    function(other)


def test_every_renderer_says_what_it_takes_and_refuses() -> None:
    for entry in measurements().values():
        for renderer in (figure.function for figure in entry.figures if entry.theme != "Sweeps"):
            if not renderer.__module__.startswith("tsfm_lens.viz"):
                continue
            assert next(iter(signature(renderer).parameters)) == "ds"
            sections = [
                line for line in (renderer.__doc__ or "").splitlines() if line in ("Args:", "Returns:", "Raises:")
            ]
            assert sections == ["Args:", "Returns:", "Raises:"]
