"""What stands out: planted leaders are found, and noise is not, at the rates that the tests promise."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tsfm_lens.errors import UnknownNameError
from tsfm_lens.probes.findings import judge


def effects(values: np.ndarray) -> xr.Dataset:
    return xr.Dataset({"effect": (("component", "series"), values)})


def test_a_planted_leader_is_found_in_its_group() -> None:
    rng = np.random.default_rng(2)
    values = 0.1 + 0.02 * rng.normal(size=(10, 8))
    values[3] += 0.5
    values[7] += 0.3
    found = judge(effects(values), "effect", floor=0.05, groups=["head"] * 5 + ["mlp"] * 5)
    assert np.flatnonzero(found["effect_leads"]).tolist() == [3, 7]
    assert found["effect_low"].values[3] < 0.6 < found["effect_high"].values[3]
    assert (found["effect_floor"] == 0.05).all()
    assert "Benjamini and Yekutieli" in judge(effects(values), "effect", floor=0.0, control="by").attrs["test"]
    with pytest.raises(UnknownNameError, match="holm"):
        judge(effects(values), "effect", floor=0.0, control="bonferroni")  # type: ignore[arg-type]


def test_one_series_is_spoken_of_as_it_is() -> None:
    found = judge(effects(np.array([[0.4], [0.3], [0.0], [np.nan]])), "effect", floor=0.05)
    assert found["effect_stands_out"].values.tolist() == [True, True, False, False]
    assert found["effect_leads"].values.tolist() == [True, False, False, False]
    assert found["effect_low"].values[0] == found["effect_high"].values[0] == 0.4
    assert found.attrs["test"] == "none"
    assert not judge(effects(np.array([[0.4], [0.38]])), "effect", floor=0.05)["effect_leads"].any()
    assert not judge(effects(np.array([[0.04], [0.0]])), "effect", floor=0.05)["effect_leads"].any()


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_signed_effects_count_by_their_size(sign: float) -> None:
    values = np.zeros((3, 5)) + 0.01 * np.random.default_rng(4).normal(size=(3, 5))
    values[1] += sign
    found = judge(effects(values), "effect", floor=0.05, signed=True)
    assert found["effect_stands_out"].values.tolist() == [False, True, False]
    assert found["effect_leads"].values.tolist() == [False, True, False]


def test_members_of_several_dimensions_are_judged_as_one_list_of_them() -> None:
    """Flattened by hand into components, the same effects have the same verdicts."""
    rng = np.random.default_rng(6)
    values = 0.1 * rng.normal(size=(4, 5, 3, 7))
    values[2, 1, 0] += 1.0
    values[0, 3, 2] -= 2.0
    grid = xr.DataArray(values, dims=("layer", "head", "metric", "series"), coords={"metric": ["a", "b", "c"]})
    floors = xr.DataArray(rng.uniform(0.05, 0.1, size=(3, 7)), dims=("metric", "series"))
    found = judge(xr.Dataset({"effect": grid}), "effect", floor=floors, signed=True, groups="metric")
    for at in range(3):
        flat = effects(values[:, :, at].reshape(20, 7))
        alone = judge(flat, "effect", floor=floors.values[at], signed=True)
        for part in ("estimate", "low", "high", "stands_out", "leads"):
            cell = found[f"effect_{part}"].isel(metric=at)
            np.testing.assert_array_equal(cell.values.reshape(-1), alone[f"effect_{part}"])
    assert found["effect_floor"].dims == ("metric", "series")
    assert np.argwhere(found["effect_leads"].values).tolist() == [[0, 3, 2], [2, 1, 0]]


def test_the_order_of_dimensions_and_another_sample_change_nothing() -> None:
    values = np.random.default_rng(7).normal(size=(6, 4)) + np.arange(4)
    data = xr.Dataset({"effect": (("sequence", "head"), values)})
    found = judge(data, "effect", floor=0.5, over="sequence")
    expected = judge(effects(values.T), "effect", floor=0.5)
    np.testing.assert_array_equal(found["effect_low"], expected["effect_low"])
    assert found.attrs["test"] == "t tests over sequences after Holm, 95 % intervals"
    summed = judge(data.mean("sequence"), "effect", floor=0.5, values=data["effect"], over="sequence")
    np.testing.assert_array_equal(summed["effect_leads"], found["effect_leads"])
    assert "sequence" not in summed["effect"].dims


def test_a_result_says_that_it_is_below_its_noise() -> None:
    rng = np.random.default_rng(8)
    data = effects(0.01 * rng.normal(size=(5, 6)))
    assert judge(data, "effect", floor=1.0).attrs["below_noise"] == "effect: the noise floor is above every effect"
    above = judge(effects(rng.normal(size=(5, 6))), "effect", floor=1e-3)
    assert above.attrs["below_noise"] == "effect: no effect stands out of the noise floor"
    assert "noise" not in judge(effects(np.ones((2, 6))), "effect", floor=0.1).attrs


def test_of_noise_in_two_dimensions_and_two_groups_none_stands_out_more_often_than_promised() -> None:
    rng = np.random.default_rng(9)
    wrong = np.zeros(2)
    for _ in range(200):
        data = xr.Dataset({"effect": (("sender", "receiver", "series"), rng.normal(size=(6, 2, 8)))})
        wrong += judge(data, "effect", floor=0.0, signed=True, groups=xr.DataArray(["a", "b"], dims="receiver"))[
            "effect_stands_out"
        ].any("sender")
    assert (wrong <= 10 + 4 * np.sqrt(200 * 0.05 * 0.95)).all()
