"""Resampling against explicit loops and Student's t, and what so many replicates can say."""

from __future__ import annotations

import numpy as np
import pandas as pd
from simulated_studies import row, simulated, study

from tsfm_lens.sweep.statistics.changes import changes
from tsfm_lens.testing import assert_close

# how near the bootstrap comes to Student's t: a p-value of few units
OF_STUDENT = 0.4


def test_terms_of_one_set_say_no_more_than_one_of_them() -> None:
    """Three horizons on the same series, with the same errors, leave value, interval, p-value and units as they are."""
    rng = np.random.default_rng(4)
    sets = [f"set{k}/H/short" for k in range(5)]
    known = {variant: {name: list(rng.random(6) + 1) for name in sets} for variant in ("plain", "v")}
    more = {
        variant: {name.replace("short", term): errors for name, errors in of.items() for term in ("short", "long")}
        for variant, of in known.items()
    }
    for fixed in ("sampled", "fixed"):
        alone, all_terms = (changes(study(errors), datasets=fixed).iloc[0] for errors in (known, more))
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
    single = changes(frame, replicates=100, family={v: v for v in frame["variant"].unique()})
    assert set(single["replicates"]) == {100}
    assert set(single["tests"]) == {1}


def test_one_of_a_family_leads_only_if_it_differs_from_every_other() -> None:
    rng = np.random.default_rng(2)
    plain = {f"d{d}": list(rng.random(4) + 0.5) for d in range(12)}

    def harmed(by: float) -> dict[str, list[float]]:
        return {d: [e * (1 + by + 0.02 * rng.normal()) for e in values] for d, values in plain.items()}

    errors = {"plain": plain, "a": harmed(0.05), "b": harmed(0.05), "c": harmed(0.5), "d": harmed(0.06)}
    leads = changes(study(errors)).set_index("variant")["leads"].to_dict()
    assert leads == {"a": "", "b": "", "c": "highest", "d": ""}
    alone = changes(study(errors), family={"c": "c"}).set_index("variant")["leads"]
    assert alone.to_dict() == dict.fromkeys("abcd", "")
    # measured on other series, it can be compared with none
    frame = study(errors)
    fewer = frame[~((frame["variant"] == "a") & (frame["dataset"] == "d3"))]
    assert set(changes(fewer)["leads"]) == {""}


def test_chance_makes_no_leader() -> None:
    rng, led = np.random.default_rng(3), 0
    for _ in range(60):
        led += bool((changes(simulated(rng, 10, 3, 0.05, 0.1, 6), replicates=300)["leads"] != "").any())
    # an end of six that are alike is called a leader in 5 % of studies at most, for each of two ends
    assert led <= 60 * 0.1 + 3 * (60 * 0.1 * 0.9) ** 0.5


def test_windows_of_one_series_are_not_resampled() -> None:
    rows = [
        row(v, "d", "only", error, window=w)
        for v, errors in (("plain", [1.0, 2.0, 3.0]), ("v", [2.0, 3.0, 5.0]))
        for w, error in enumerate(errors)
    ]
    found = changes(pd.DataFrame(rows)).iloc[0]
    assert found[["lower", "upper", "p_value"]].isna().all()
    assert found["method"].endswith("windows of one series are not independent")
