"""Cases of the benchmark: what counts as true is what the planted rule and its card say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tsfm_lens.studies.method_scores.leaderboard import ExplanationCase, cases
from tsfm_lens.zoo.planted import plant


def case_of(mechanism: str, architecture: str, *, twins: bool = False) -> tuple[list[ExplanationCase], Any]:
    found = list(cases([(mechanism, architecture)], seeds=1, series=1, twins=twins))
    return found, plant(mechanism, architecture, seed=0).card


def unlike(values: np.ndarray, period: int) -> float:
    """How unlike the last two periods are, which is what the gate goes by; its unit is of all values."""
    return float(np.abs(values[-period:] - values[-2 * period : -period]).mean())


def test_what_only_decides_about_a_gate_counts_neither_way() -> None:
    """By changing it: the last two periods become more or less alike, and the values that are read do not."""
    rule: Any = plant("gate", "chronos-bolt", seed=0).card.rule
    for case in cases([("gate", "chronos-bolt")], seeds=1, series=2):
        values = np.asarray(case.run.batch.values[0])
        read = np.abs(rule.inputs(values, case.run.horizon)) > 0
        for part, labels in zip(case.parts, case.true_parts, strict=True):
            steps = slice(part.start + len(values), part.stop + len(values))
            other = values.copy()
            other[steps] += np.arange(len(part))
            decides = unlike(other, rule.period) != unlike(values, rule.period)
            taken = read[:, steps].any(1)
            np.testing.assert_array_equal(labels == 1, taken)
            np.testing.assert_array_equal(np.isnan(labels), ~taken & decides)


def test_of_a_covariate_what_is_known_ahead_is_true() -> None:
    (case,), _ = case_of("covariate", "chronos-2")
    by_name = dict(zip([part.name for part in case.parts], case.true_parts, strict=True))
    assert {name for name, true in by_name.items() if true.all()} == {"known, future"}
    assert not any(true.any() for name, true in by_name.items() if name != "known, future")


@pytest.mark.parametrize(
    "pair", [("seasonal-copy", "chronos-bolt"), ("backup", "chronos-bolt"), ("local-mean", "chronos")]
)
def test_true_components_are_those_that_pass_values_on(pair: tuple[str, str]) -> None:
    (case,), card = case_of(*pair)
    true = {name for name, each in zip(case.components, case.true_components, strict=True) if each}
    mechanism = {part.component: part.does for part in card.parts if part.role == "mechanism"}
    assert true
    assert true <= set(mechanism)
    left_out = set(mechanism) - true
    assert all(mechanism[name].startswith(("marks ", "tells the step")) for name in left_out)
    assert not any(mechanism[name].startswith(("marks ", "tells the step")) for name in true)
    # what waits until another head is gone is no candidate
    assert not set(card.components("backup")) & set(case.components)


def test_twins_share_the_truth_and_not_the_weights() -> None:
    (planted, twin), _ = case_of("seasonal-copy", "chronos-bolt", twins=True)
    assert (planted.twin, twin.twin) == (False, True)
    assert twin.model == f"{planted.model}, untrained"
    np.testing.assert_array_equal(planted.true_components, twin.true_components)
    np.testing.assert_array_equal(planted.run.batch.values[0], twin.run.batch.values[0])
    assert not np.array_equal(planted.run.point, twin.run.point)
