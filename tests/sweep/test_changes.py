"""Corrections for many tests, and choices against chance, against hand-made cases and simulated studies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from simulated_studies import STEPS, simulated, study

from refusals import expect_error
from tsfm_lens.sweep.statistics.changes import changes, dataset_changes, difference, resilience
from tsfm_lens.sweep.statistics.scores import per_series
from tsfm_lens.testing import assert_close

# how near an end of an interval comes to Student's t over four seeds
OF_SEEDS = 0.02


def test_resilient_and_improved_datasets_by_hand() -> None:
    names = "abcdef"
    factors = {"a": 0.9, "b": 0.999, "c": 1.0, "d": 1.049, "e": 1.05, "f": 2.0}
    plain = {name: [4.0] for name in names}
    frame = study({"plain": plain, "v": {name: [4.0 * factors[name]] for name in names}})
    frame.loc[(frame["variant"] == "v") & (frame["dataset"] == "e"), "scaled_error"] = 4.2 * STEPS
    found = resilience(frame).iloc[0]
    assert found[["n_resilient", "n_improved", "n_datasets", "n_left_out"]].tolist() == [4, 2, 6, 0]
    assert resilience(frame, tolerance=0.06).iloc[0]["n_resilient"] == 5
    table = dataset_changes(frame).set_index("dataset")["change"]
    assert table.to_dict() == pytest.approx({name: factor - 1 for name, factor in factors.items()})


def test_informed_against_random_choices() -> None:
    rng = np.random.default_rng(9)
    plain = {f"d{d}": list(rng.random(3) + 0.5) for d in range(30)}
    factors = {"informed": 1.1, "r0": 1.2, "r1": 1.3, "r2": 1.5, "r3": 1.2}
    errors = {v: {d: [e * factor for e in values] for d, values in plain.items()} for v, factor in factors.items()}
    frame = study({"plain": plain, **errors})
    found = difference(frame, "informed", ["r0", "r1", "r2", "r3"])
    assert found["change_informed"] == pytest.approx(0.1)
    assert found["change_random"] == pytest.approx(0.3)
    assert found["difference"] == pytest.approx(-0.2)
    # series and datasets all agree, so that only the choice of seeds varies: sd / sqrt(4), Student's t of 3 degrees
    spread = np.std([0.2, 0.3, 0.5, 0.2]) / 2
    reach = 3.182 * np.sqrt(4 / 3) * spread
    assert found["lower"] == pytest.approx(-0.2 - reach, abs=OF_SEEDS)
    assert found["upper"] == pytest.approx(-0.2 + reach, abs=OF_SEEDS)
    one = difference(frame, "informed", ["r1"])
    assert (one["lower"], one["upper"]) == (pytest.approx(-0.2), pytest.approx(-0.2))
    assert "taken as it is" in one["method"]
    same = study({"plain": plain, **dict.fromkeys(factors, errors["r1"])})
    nothing = difference(same, "informed", ["r0", "r1"])
    assert (nothing["difference"], nothing["p_value"]) == (0.0, 1.0)
    expect_error("r1", difference, frame, "informed", ["r11"])
    expect_error("random variants other than 'r1'", difference, frame, "r1", ["r1"])


@pytest.mark.parametrize("replay", [changes, lambda frame: difference(frame, "v1", ["v2"]), resilience])
def test_results_depend_on_rows_and_seed_only(replay: Callable[[pd.DataFrame], Any]) -> None:
    frame = simulated(np.random.default_rng(10), 4, 3, 0.1, 0.1, 2)
    shuffled = frame.sample(frac=1.0, random_state=1)
    one, again = pd.DataFrame(replay(frame)), pd.DataFrame(replay(shuffled))
    pd.testing.assert_frame_equal(one, again)
    pd.testing.assert_frame_equal(one, pd.DataFrame(replay(per_series(shuffled, ["MASE"]))))
    # stores give texts as categories, in whatever order they came
    coded = shuffled.astype(dict.fromkeys(["model", "variant", "dataset", "item"], "category"))
    for key in ("variant", "dataset", "item"):
        coded[key] = coded[key].cat.reorder_categories(list(coded[key].cat.categories)[::-1])
    pd.testing.assert_frame_equal(one, pd.DataFrame(replay(coded)))


def test_terms_of_one_set_say_no_more_than_one_of_them() -> None:
    """Three horizons on the same series, with the same errors, leave value, interval, p-value and units as they are."""
    rng = np.random.default_rng(4)
    sets = [f"set{k}/H/short" for k in range(5)]
    known = {variant: {name: list(rng.random(6) + 1) for name in sets} for variant in ("plain", "v")}
    more = {
        variant: {name.replace("short", term): errors for name, errors in of.items() for term in ("short", "long")}
        for variant, of in known.items()
    }
    alone, all_terms = (changes(study(errors)).iloc[0] for errors in (known, more))
    for name in ("value", "baseline", "change", "lower", "upper", "p_value"):
        assert_close(float(all_terms[name]), float(alone[name]), depth=1000)
    assert (all_terms["n_datasets"], alone["n_datasets"]) == (10, 5)
    assert "of 5 sources" in all_terms["method"]
    (one,) = changes(study({v: {n: of[n] for n in list(of)[:2]} for v, of in more.items()})).to_dict("records")
    assert "over 6 series of 2 datasets of 1 source" in one["method"]


def test_a_large_family_draws_as_many_replicates_as_it_needs() -> None:
    rng = np.random.default_rng(1)
    frame = simulated(rng, 12, 3, 0.0, 0.02, 80)
    found = changes(frame, replicates=100)
    assert set(found["replicates"]) == {3200}
    assert found["stands"].all()
    single = changes(frame[frame["variant"].isin(["plain", "v1"])], replicates=100)
    assert single[["replicates", "tests"]].to_numpy().tolist() == [[100, 1]]


def test_one_of_a_family_leads_only_if_it_differs_from_every_other() -> None:
    rng = np.random.default_rng(2)
    plain = {f"d{d}": list(rng.random(4) + 0.5) for d in range(12)}

    def harmed(by: float) -> dict[str, list[float]]:
        return {d: [e * (1 + by + 0.02 * rng.normal()) for e in values] for d, values in plain.items()}

    errors = {"plain": plain, "a": harmed(0.05), "b": harmed(0.05), "c": harmed(0.5), "d": harmed(0.06)}
    leads = changes(study(errors)).set_index("variant")["leads"].to_dict()
    assert leads == {"a": "", "b": "", "c": "highest", "d": ""}
    # measured on other series, it can be compared with none
    frame = study(errors)
    fewer = frame[~((frame["variant"] == "a") & (frame["dataset"] == "d3"))]
    assert set(changes(fewer)["leads"]) == {""}
