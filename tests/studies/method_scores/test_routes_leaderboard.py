"""The benchmark of explanations and its cases: the truth scores 1, its opposite 0,
routes find it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.studies.method_scores import leaderboard as explained
from tsfm_lens.zoo.planted import plant

PAIRS = [("seasonal-copy", "chronos-bolt"), ("covariate", "chronos-2")]
FEW = {"pairs": PAIRS, "seeds": 1, "series": 1}
SHOWN = Path(__file__).parents[3] / "docs" / "planted.md"


def the_truth(case: explained.ExplanationCase) -> np.ndarray:
    return np.nan_to_num(case.true_parts)


def test_truth_scores_one_and_opposites_zero() -> None:
    assert explained.benchmark(the_truth, **FEW)["auroc"].item() == 1.0
    assert (
        explained.benchmark(lambda case: -the_truth(case), **FEW)["auroc"].item() == 0.0
    )
    assert (
        explained.benchmark(lambda case: np.zeros(len(case.parts)), **FEW)[
            "auroc"
        ].item()
        == 0.5
    )
    assert (
        explained.benchmark(lambda case: case.true_components, "routes", **FEW)[
            "auroc"
        ].item()
        == 1.0
    )


def test_true_segments_move_the_planted_rule() -> None:
    """The true segments are those whose values move what the rule forecasts."""
    (case,) = explained.cases(PAIRS[:1], seeds=1, series=1)
    rule = plant(*PAIRS[0], seed=0).card.rule
    values = np.asarray(case.run.batch.values[0])
    plain = rule.forecast(values, case.run.horizon)  # type: ignore[union-attr, call-arg]
    for part, true in zip(case.parts, case.true_parts, strict=True):
        other = values.copy()
        other[part.start + len(values) : part.stop + len(values)] += 1.0
        moved = rule.forecast(other, case.run.horizon) != plain  # type: ignore[union-attr, call-arg]
        np.testing.assert_array_equal(moved, true > 0)


def test_only_routes_find_the_planted_parts() -> None:
    """Routes find what is planted, attention does not."""
    row = explained.benchmark("routes, exact", "routes", **FEW)
    assert row["auroc"].item() >= 0.95
    peak = explained.benchmark(
        "attention, its peak", "routes", **FEW | {"pairs": PAIRS[:1]}
    )
    assert row["auroc"].item() > peak["auroc"].item()


def test_the_shipped_table_shows_the_measurements() -> None:
    rows = pd.read_csv(SHOWN.with_suffix(".explanations.csv"))
    assert set(zip(rows["level"], rows["method"], strict=True)) <= set(
        explained.SHIPPED
    )
    page = SHOWN.read_text()
    assert (
        explained.tables(rows).strip()
        == page.split(explained.START)[1].split(explained.STOP)[0].strip()
    )
    board = explained.leaderboard(rows).set_index(["level", "method"])
    assert board.loc[("routes", "routes, exact"), "auroc"] >= 0.95
    assert (
        board.loc[("inputs", "shapley"), "low"]
        > board.loc[("inputs", "attention flow"), "high"]
    )
    # no order that looks at no model, nor its reverse, says much, over all models and
    # over covariates alone
    for item in explained.NAIVE:
        assert (
            board.loc[("inputs", item), ["auroc", "covariate"]] - 0.5
        ).abs().max() <= 0.1, item


def test_measuring_again_keeps_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the table is measured again, and the rest stays."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{explained.START}{explained.STOP}\nafter\n")
    monkeypatch.setattr(
        "tsfm_lens.studies.method_scores.leaderboard.mechanisms",
        lambda: tuple(PAIRS[:1]),
    )
    explained.main(page, seeds=1, series=1, only=["newest first"])
    # what is there is not measured again
    explained.main(page, seeds=1, series=2, only=["newest first"])
    explained.main(page, seeds=1, series=1, only=["random"])
    rows = pd.read_csv(page.with_suffix(".explanations.csv"))
    assert set(rows["method"]) == {"newest first", "random"}
    assert dict(rows.groupby("condition").size()) == {"planted": 10, "untrained": 2}
    text = page.read_text()
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "| random |" in text
    kept = page.with_suffix(".explanations.methods.csv").read_text()
    assert "naive,newest first," in kept
    explained.main(page, read=True)
    assert page.read_text() == text
    with pytest.raises(SystemExit, match="error"):
        explained.main(page, only=["tea leaves"])
    (tmp_path / "bare.md").write_text("bare")
    (tmp_path / "bare.explanations.csv").write_text(
        page.with_suffix(".explanations.csv").read_text()
    )
    with pytest.raises(SystemExit, match="no marks"):
        explained.main(tmp_path / "bare.md", read=True)


def test_what_is_no_method_is_refused() -> None:
    expect_error("shapley", explained.benchmark, "shaply", **FEW)
    with pytest.raises(InputError, match="level"):
        explained.benchmark(the_truth, "outputs", **FEW)  # type: ignore[arg-type]
    expect_error("expected", explained.benchmark, lambda case: [1.0], **FEW)

    def never(case: explained.ExplanationCase) -> np.ndarray:
        raise InputError("not this one")

    expect_error("explains none", explained.measured, never, **FEW)


def unlike(values: np.ndarray, period: int) -> float:
    """How unlike the last two periods are, which is what the gate goes by; its unit is
    of all values.
    """
    return float(np.abs(values[-period:] - values[-2 * period : -period]).mean())


def test_inputs_that_open_gates_are_unlabelled() -> None:
    """What only decides whether a gate opens is neither a true nor a false input."""
    rule: Any = plant("gate", "chronos-bolt", seed=0).card.rule
    for case in explained.cases([("gate", "chronos-bolt")], seeds=1, series=2):
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


def test_the_covariate_s_future_is_true() -> None:
    """Of a planted covariate the true segments are those that are known ahead."""
    (case,) = explained.cases(PAIRS[1:], seeds=1, series=1)
    by_name = dict(
        zip([part.name for part in case.parts], case.true_parts, strict=True)
    )
    assert {name for name, true in by_name.items() if true.all()} == {"known, future"}
    assert not any(
        true.any() for name, true in by_name.items() if name != "known, future"
    )
