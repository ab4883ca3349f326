"""Explanations answer as all methods do: the truth scores 1, its opposite 0, routes
find it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tsfm_lens.core.errors import InputError, UnknownNameError
from tsfm_lens.studies.bench import planted
from tsfm_lens.studies.bench.models import SealedModel, explained_in
from tsfm_lens.studies.bench.planted import score_probe
from tsfm_lens.studies.method_scores.explanations import (
    EXPLANATIONS,
    NAIVE,
    by_forecast,
)
from tsfm_lens.studies.method_scores.methods import (
    ROUTES,
    SEGMENTS,
    Method,
    Ranking,
    cut_forecasts,
    list_segments,
    true_segments,
)
from tsfm_lens.studies.method_scores.page import EXPLAINED, explanation_tables
from tsfm_lens.studies.method_scores.scores import SAME
from tsfm_lens.studies.method_scores.series import EvaluationCase

COPY = "seasonal-copy-chronos-bolt"
COVARIATE = "covariate-chronos-2"
SHOWN = Path(__file__).parents[3] / "docs" / "planted.md"


@pytest.fixture(scope="module", params=[COPY, COVARIATE])
def sealed(request: pytest.FixtureRequest) -> SealedModel:
    return explained_in(request.param, 0, "planted")


def scored(sealed: SealedModel, level: str, rank: Any) -> pd.Series:
    method = Method("mine", level, rank)
    (row,) = score_probe(sealed, [method]).iloc
    return row


def the_truth(case: EvaluationCase, sign: float) -> Ranking:
    true, _ = true_segments(case)
    names = list_segments(case)
    return Ranking(names, sign * np.array([name in true for name in names], float))


def labels_of(case: EvaluationCase, number: int) -> dict[str, np.ndarray]:
    """Labels of the segments of one forecast, (step,) each; NaN of what only decides
    whether a gate is open.
    """
    ((_, parts),) = cut_forecasts(case, 1)
    true, deciding = true_segments(case)
    labels = dict.fromkeys(true, 1.0) | dict.fromkeys(deciding, np.nan)
    names = {
        part.name: [f"{number}:{step}:{part.name}" for step in range(case.card.horizon)]
        for part in parts
    }
    return {
        part: np.array([labels.get(name, 0.0) for name in of_part])
        for part, of_part in names.items()
    }


@pytest.mark.parametrize(("sign", "auroc"), [(1, 1), (-1, 0), (0, 0.5)])
def test_truth_scores_one_and_opposites_zero(
    sealed: SealedModel, sign: float, auroc: float
) -> None:
    row = scored(sealed, SEGMENTS, partial(the_truth, sign=sign))
    assert row["auroc"] == auroc


def test_what_passes_the_input_on_is_true(sealed: SealedModel) -> None:
    """Parts that write the same for every series carry nothing of the input."""
    carriers = [
        part.component
        for part in sealed.case.card.parts
        if part.role == "mechanism" and not part.does.startswith(SAME)
    ]
    scores = np.array([name in carriers for name in sealed.case.nodes], dtype=float)
    row = scored(sealed, ROUTES, lambda case: Ranking(tuple(sealed.case.nodes), scores))
    assert row["auroc"] == 1.0
    assert row["true"] == len(carriers)


def test_true_segments_move_the_planted_rule() -> None:
    """The true segments are those whose values move what the rule forecasts."""
    case = explained_in(COPY, 0, "planted").case
    rule: Any = case.card.rule
    for number, (run, parts) in enumerate(cut_forecasts(case, 2)):
        values = np.asarray(run.batch.values[0])
        plain = rule.forecast(values, run.horizon)
        labels = labels_of(case, number)
        for part in parts:
            other = values.copy()
            other[part.start + len(values) : part.stop + len(values)] += 1.0
            moved = rule.forecast(other, run.horizon) != plain
            np.testing.assert_array_equal(moved, labels[part.name] > 0)


def test_only_routes_find_the_planted_parts(sealed: SealedModel) -> None:
    """Routes find what is planted, attention does not."""
    exact = score_probe(sealed, EXPLANATIONS["routes, exact"])["auroc"].item()
    assert exact >= 0.95
    attention = EXPLANATIONS["attention, its peak"]
    if sealed.case.card.architecture == "chronos-2":
        # series see each other, and so have no attention of their own
        with pytest.raises(InputError):
            score_probe(sealed, attention)
    else:
        assert exact > score_probe(sealed, attention)["auroc"].item()


def test_the_shipped_table_shows_the_measurements() -> None:
    rows = planted.read_scores(SHOWN).explanations
    methods = set(zip(rows["method"], rows["level"], strict=True))
    assert methods == {
        (name, method.level) for name in EXPLANATIONS for method in EXPLANATIONS[name]
    }
    start, stop = EXPLAINED
    page = SHOWN.read_text()
    shown = page.split(start)[1].split(stop)[0]
    assert explanation_tables(rows).strip() == shown.strip()
    own = rows[rows["condition"] == "planted"]
    means = own.groupby(["level", "method"])["auroc"].mean()
    assert means[ROUTES, "routes, exact"] >= 0.95
    assert means[SEGMENTS, "shapley"] > means[SEGMENTS, "attention flow"] + 0.1
    # no order that looks at no model, nor its reverse, says much, over all models and
    # over covariates alone
    naive = own[own["method"].isin(NAIVE)]
    for table in (naive, naive[naive["mechanism"] == "covariate"]):
        chance = table.groupby("method")["auroc"].mean() - 0.5
        assert chance.abs().max() <= 0.1


def test_a_part_of_the_table_is_measured_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    options: dict[str, Any] = {"seeds": 1, "model": [COPY], "condition": ["planted"]}
    planted.main(page, method=["newest first", "random"], **options)
    rows = planted.read_scores(page).explanations
    assert sorted(zip(rows["method"], rows["level"], strict=True)) == [
        ("newest first", SEGMENTS),
        ("random", ROUTES),
        ("random", SEGMENTS),
    ]
    assert "| random |" in page.read_text()
    kept = page.with_suffix(".explanations.methods.csv").read_text()
    assert "naive,newest first," in kept
    with pytest.raises(UnknownNameError, match="tea leaves"):
        planted.main(page, method=["tea leaves"])
    bare = tmp_path / "bare.md"
    bare.write_text("bare")
    file = page.with_suffix(".explanations.csv")
    bare.with_suffix(".explanations.csv").write_bytes(file.read_bytes())
    with pytest.raises(InputError, match="no marks"):
        planted.main(bare, read=True)
    with pytest.raises(InputError, match="nothing was measured"):
        planted.main(tmp_path / "none.md", read=True)


def test_what_is_no_score_of_a_segment_is_refused() -> None:
    sealed = explained_in(COPY, 0, "planted")
    with pytest.raises(InputError, match="one a segment"):
        by_forecast(sealed.case, lambda run, parts: [1.0])


def unlike(values: np.ndarray, period: int) -> float:
    """How unlike the last two periods are, which is what the gate goes by; its unit is
    of all values.
    """
    return float(np.abs(values[-period:] - values[-2 * period : -period]).mean())


def test_inputs_that_open_gates_are_unlabelled() -> None:
    """What only decides whether a gate opens is neither a true nor a false input."""
    case = explained_in("gate-chronos-bolt", 0, "planted").case
    rule: Any = case.card.rule
    for number, (run, parts) in enumerate(cut_forecasts(case, 2)):
        values = np.asarray(run.batch.values[0])
        read = np.abs(rule.inputs(values, run.horizon)) > 0
        labels = labels_of(case, number)
        for part in parts:
            steps = slice(part.start + len(values), part.stop + len(values))
            other = values.copy()
            other[steps] += np.arange(len(part))
            decides = unlike(other, rule.period) != unlike(values, rule.period)
            taken = read[:, steps].any(1)
            np.testing.assert_array_equal(labels[part.name] == 1, taken)
            np.testing.assert_array_equal(np.isnan(labels[part.name]), ~taken & decides)


def test_the_covariate_s_future_is_true() -> None:
    """Of a planted covariate the true segments are those that are known ahead."""
    labels = labels_of(explained_in(COVARIATE, 0, "planted").case, 0)
    future = labels.pop("known, future")
    assert (future == 1).all()
    assert not np.any(list(labels.values()))
