"""Curves of grids of runs show the numbers of the record that is shipped, and the chapter reads them."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import lab, viz
from tsfm_lens.report.build import plates_of
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.printing import COLUMNS


@pytest.fixture(scope="module")
def toy() -> xr.Dataset:
    return lab.record("toy")


def test_curves_are_those_of_the_runs_and_the_oracle_is_a_line(toy: xr.Dataset) -> None:
    drawn = viz.run_curves(toy).data
    oracle = [trace for trace in drawn if trace.name == "least-squares oracle"]
    assert list(oracle[0].y) == [toy.attrs["oracle"]] * 2
    for arm in toy["arm"].values.tolist():
        (mean,) = (trace for trace in drawn if trace.name == arm)
        assert_close(mean.y, np.exp(np.log(toy["curve"].sel(arm=arm)).mean("seed")), depth=20)
    thin = [trace for trace in drawn if trace.line.width == 0.8]
    assert len(thin) == toy.sizes["arm"] * toy.sizes["seed"]
    np.testing.assert_array_equal(thin[0].y, toy["curve"][0, 0])
    plain = viz.run_curves(toy.assign_attrs(oracle=np.nan))
    assert not [trace for trace in plain.data if trace.name == "least-squares oracle"]


@pytest.mark.parametrize("name", lab.record_names())
def test_every_record_is_drawn_tabulated_read_and_fits_a_column(name: str) -> None:
    record = lab.record(name)
    (plate,) = plates_of({record.attrs["kind"]: record})[record.attrs["kind"]]
    assert len(plate.table)
    assert len(plate.reading) >= record.sizes["arm"] or record.attrs["kind"] != "lab_runs"
    assert all(sentence.endswith(".") and "nan" not in sentence for sentence in plate.reading)
    assert viz.for_print(plate.figure).layout.meta["width_mm"] in COLUMNS.values()


def test_the_reading_says_who_reaches_the_oracle(toy: xr.Dataset) -> None:
    ((plate,),) = plates_of({"lab_runs": toy}).values()
    by_arm = dict(zip(toy["arm"].values.tolist(), plate.reading, strict=True))
    assert "within 1 % of the oracle with every seed" in by_arm["transformer + SAM"]
    assert "or more above the oracle" in by_arm["transformer"]
