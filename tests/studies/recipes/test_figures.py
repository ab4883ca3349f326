"""Figures of training at low rank show the numbers of the record that is shipped, and its chapters read them."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import registry, viz
from tsfm_lens.errors import UnknownNameError
from tsfm_lens.report.build import panels_of
from tsfm_lens.studies import recipes
from tsfm_lens.studies.recipes import figures
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.printing import COLUMNS

NAMES = ("attention", "spectra", "vocabulary")


@pytest.fixture(scope="module")
def records() -> dict[str, xr.Dataset]:
    return {name: recipes.low_rank_record(name) for name in NAMES}


def test_every_chapter_has_its_record(records: dict[str, xr.Dataset]) -> None:
    kinds = {kind for kind, each in registry.measurements().items() if each.theme == "Training"}
    assert kinds >= {record.attrs["kind"] for record in records.values()}
    with pytest.raises(UnknownNameError, match="vocabulary"):
        recipes.low_rank_record("vocabularies")


@pytest.mark.parametrize("name", NAMES)
def test_every_record_is_drawn_tabulated_read_and_fits_a_column(name: str, records: dict[str, xr.Dataset]) -> None:
    kind = records[name].attrs["kind"]
    (plate,) = panels_of({kind: records[name]})[kind]
    assert len(plate.table)
    assert all(sentence.endswith(".") and "nan" not in sentence for sentence in plate.sentences)
    assert viz.for_print(plate.figure).layout.meta["width_mm"] in COLUMNS.values()


@pytest.mark.parametrize("score", ["mase", "wql", "log_perplexity"])
def test_arms_stand_at_their_size_and_their_rise(score: str, records: dict[str, xr.Dataset]) -> None:
    ds = records["attention"]
    times = 1 if score == "log_perplexity" else 100
    dots = [trace for trace in figures.low_rank_skill(ds, score=score).data if trace.mode == "markers"]
    arms = ds["arm"].values.tolist()
    assert [trace.name for trace in dots] == [*arms, *arms]
    for trace, arm in zip(dots[: len(arms)], arms, strict=True):
        one = ds.sel(arm=arm)
        assert_close(
            [trace.x[0], trace.y[0]], [100 * one["stored_ratio"], times * one[f"{score}_rise_estimate"]], depth=4
        )
        if arm != "dense":
            assert_close(trace.error_y.array[0] + trace.y[0], times * one[f"{score}_rise_high"], depth=8)
            assert trace.marker.symbol[0].endswith("-open") != bool(one[f"{score}_rise_stands_out"])
    with pytest.raises(UnknownNameError, match="mase"):
        figures.low_rank_skill(ds, score="mas")


def test_lines_are_the_ranks_and_the_spectra_at_the_end(records: dict[str, xr.Dataset]) -> None:
    ds = records["vocabulary"]
    first = ds["moved_rank"].isel(training_step=-1, layer=0).mean("seed")
    lines = [trace for trace in figures.vocabulary_ranks(ds).data if (trace.name or "").startswith("ε")]
    shown = [np.asarray(trace.y, dtype=float) for trace in lines[ds.sizes["epsilon"] : 2 * ds.sizes["epsilon"]]]
    assert_close(np.stack(shown), first.transpose("epsilon", "vocabulary").values, depth=4)
    spectra = records["spectra"]
    lines = figures.training_spectra(spectra).data
    expected = spectra["singular_value"].isel(layer=0, training_step=-1).mean("seed").values
    assert_close(lines[spectra.sizes["training_step"] - 1].y, expected, depth=8, dtype=np.float32)
