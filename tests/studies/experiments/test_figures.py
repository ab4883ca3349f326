"""Curves of grids of runs show the numbers of the record that is shipped, and the chapter reads them."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from tsfm_lens import viz
from tsfm_lens.errors import InputError
from tsfm_lens.report.build import panels_of
from tsfm_lens.studies import experiments
from tsfm_lens.studies.experiments import figures
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.printing import COLUMNS


@pytest.fixture(scope="module")
def toy() -> xr.Dataset:
    return experiments.record("toy")


def test_curves_are_those_of_the_runs_and_the_oracle_is_a_line(toy: xr.Dataset) -> None:
    drawn = figures.run_curves(toy).data
    oracle = [trace for trace in drawn if trace.name == "least-squares oracle"]
    assert list(oracle[0].y) == [toy.attrs["oracle"]] * 2
    for arm in toy["arm"].values.tolist():
        (mean,) = (trace for trace in drawn if trace.name == arm)
        assert_close(mean.y, np.exp(np.log(toy["curve"].sel(arm=arm)).mean("seed")), depth=20)
    thin = [trace for trace in drawn if trace.line.width == 0.8]
    assert len(thin) == toy.sizes["arm"] * toy.sizes["seed"]
    np.testing.assert_array_equal(thin[0].y, toy["curve"][0, 0])
    plain = figures.run_curves(toy.assign_attrs(oracle=np.nan))
    assert not [trace for trace in plain.data if trace.name == "least-squares oracle"]


def test_no_two_arms_look_alike(toy: xr.Dataset) -> None:
    many = xr.concat(
        [toy.isel(arm=[0]).assign_coords(arm=[f"arm {place}"]) for place in range(20)], "arm", data_vars="all"
    )
    errors = many.assign(test_mse=many["curve"].mean("epoch"), rho=("arm", [0.0] * 20))
    curves = [trace for trace in figures.run_curves(many).data if str(trace.name).startswith("arm")]
    points = [trace for trace in figures.run_errors_over(errors).data if trace.marker.size == 8]
    for drawn, colours in ((curves, [each.line.color for each in curves]), (points, [p.marker.color for p in points])):
        looks = [(colour, str(each.marker.symbol)) for colour, each in zip(colours, drawn, strict=True)]
        assert len(looks) == len(set(looks)) == 20


@pytest.mark.parametrize("name", experiments.record_names())
def test_every_record_is_drawn_tabulated_read_and_fits_a_column(name: str) -> None:
    record = experiments.record(name)
    plates = panels_of({record.attrs["kind"]: record})[record.attrs["kind"]]
    assert record.attrs["kind"] != "lab_runs" or len(plates[0].sentences) >= record.sizes["arm"]
    for plate in plates:
        assert len(plate.table)
        assert plate.sentences
        assert all(sentence.endswith(".") and "nan" not in sentence for sentence in plate.sentences)
        assert viz.for_print(plate.figure).layout.meta["width_mm"] in COLUMNS.values()


def grid() -> xr.Dataset:
    """Errors of a grid of ρ, and of two horizons; the last seed of the first arm has not ended."""
    arms = [
        "exchange 96 rho 0.5",
        "exchange 96 rho 0",
        "exchange 96 rho 0.1",
        "exchange 96 rho 1",
        "exchange 720 rho 1",
    ]
    errors = np.arange(20.0).reshape(5, 4) + 1
    errors[0, 3] = np.nan
    at = {"rho": ("arm", [0.5, 0.0, 0.1, 1.0, 1.0]), "horizon": ("arm", [96] * 4 + [720])}
    shape = ("arm", "seed")
    return xr.Dataset(
        {
            "test_mse": (shape, errors),
            "validation_mse": (shape, errors),
            "curve": ((*shape, "epoch"), errors[..., None]),
        },
        coords={"arm": arms, "seed": range(4), **at},
        attrs={"kind": "lab_runs", "title": "x"},
    )


def test_errors_are_those_of_the_runs_with_the_t_interval() -> None:
    data = grid()
    large = [trace for trace in figures.run_errors(data).data if trace.marker.size == 8]
    small = [trace for trace in figures.run_errors(data).data if trace.marker.size == 4]
    for place, values in enumerate(data["test_mse"].values):
        known = values[np.isfinite(values)]
        assert_close(large[place].x[0], known.mean(), depth=10)
        np.testing.assert_array_equal(small[place].x, known)
        low, high = stats.t.interval(0.95, len(known) - 1, known.mean(), stats.sem(known))
        assert_close(large[place].error_x.array[0], (high - low) / 2, depth=400)


def test_errors_over_a_setting_are_one_curve_for_arms_that_agree_but_for_it() -> None:
    data = grid()
    curves = [trace for trace in figures.run_errors_over(data).data if trace.mode == "lines"]
    assert [trace.name for trace in curves] == ["exchange 96", "exchange 720"]
    np.testing.assert_array_equal(curves[0].x, [0, 0.1, 0.5, 1])
    assert_close(curves[0].y, [6.5, 10.5, 2.0, 14.5], depth=10)
    by_horizon = [trace for trace in figures.run_errors_over(data, "horizon").data if trace.mode == "lines"]
    assert [list(trace.x) for trace in by_horizon if trace.name == "exchange rho 1"] == [[96, 720]]
    with pytest.raises(InputError, match="over='seed'"):
        figures.run_errors_over(data, "seed")
    plates = panels_of({"lab_runs": data})["lab_runs"]
    assert len(plates) == 4
    sentence = "exchange, H = 96: the lowest mean test error is that of rho 0.5 (2), before rho 0 (6.5)."
    assert sentence in plates[1].sentences
    plain = data.isel(arm=slice(0, 2)).drop_vars(("rho", "horizon")).assign_coords(arm=["a", "b"])
    reading = panels_of({"lab_runs": plain})["lab_runs"][1].reading
    assert reading == ["The lowest mean test error is that of a (2), before b (6.5)."]


def test_the_reading_says_who_reaches_the_oracle(toy: xr.Dataset) -> None:
    (plate,) = panels_of({"lab_runs": toy})["lab_runs"]
    by_arm = dict(zip(toy["arm"].values.tolist(), plate.sentences, strict=True))
    assert "within 1 % of the oracle with every seed" in by_arm["transformer + SAM"]
    assert "or more above the oracle" in by_arm["transformer"]
