"""Scores of methods: how they are counted, and on which series."""

from __future__ import annotations

import csv
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from planted.model import ALIVE, stub
from test_pages import run_blocks
from tsfm_lens.studies.bench import planted
from tsfm_lens.studies.bench.models import seal_model
from tsfm_lens.studies.method_scores import scores as scoring
from tsfm_lens.studies.method_scores.methods import (
    EDGES,
    METHODS,
    PAIRS,
    PARTS,
    REPAIRED,
    Ranking,
    token_name,
    true_tokens,
)
from tsfm_lens.studies.method_scores.page import (
    PLANTED,
    UNTRAINED,
    long_tables,
    tables,
)
from tsfm_lens.studies.method_scores.scores import claim_marks, marks
from tsfm_lens.studies.method_scores.series import EvaluationCase, evaluation_case
from tsfm_lens.testing.tolerance import assert_close
from tsfm_lens.zoo.planted import (
    Gate,
    LinearTrend,
    LocalMean,
    PlantedPart,
    SeasonalCopy,
)
from tsfm_lens.zoo.planted.rules import Rule


@pytest.fixture(scope="module")
def on() -> EvaluationCase:
    """The stand-in on its series."""
    one = stub()
    return evaluation_case(one.lens(), one.card, series=6)


def _draws() -> list[tuple[np.ndarray, np.ndarray]]:
    """Scores with many ties, and labels of both kinds."""
    rng = np.random.default_rng(0)
    drawn = [
        (rng.integers(0, 4, 6).astype(float), rng.random(6) < 0.4) for _ in range(30)
    ]
    return [(scores, labels) for scores, labels in drawn if 0 < labels.sum() < 6]


def test_precision_averages_over_orders_of_ties() -> None:
    for scores, labels in _draws()[:6]:
        size = int(labels.sum())
        of_orders = []
        for order in permutations(range(len(scores))):
            best = np.array(order)[np.argsort(-scores[list(order)], kind="stable")][
                :size
            ]
            of_orders.append(labels[best].mean())
        found = marks(pd.Series(scores), pd.Series(labels))["precision"]
        assert_close(found, np.mean(of_orders), depth=1000)


def test_candidates_without_score_rank_last() -> None:
    """Candidates without a score come last, and equal ones have their worst rank."""
    found = marks(
        pd.Series([np.nan, 1.0, 2.0, 2.0]), pd.Series([True, False, False, True])
    )
    assert (
        found["worst_rank"],
        found["mean_rank"],
        found["true"],
        found["candidates"],
    ) == (4.0, 3.0, 2.0, 4.0)
    assert found["auroc"] == np.mean([0, 0, 1, 0.5])


RULES = (
    SeasonalCopy(period=16),
    LocalMean(width=16),
    LinearTrend(width=8, lag=24),
    Gate(period=16, tolerance=0.3),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_twins_differ_in_their_forecasts(rule: Rule, noise: float) -> None:
    """Twins hold the same values and make another forecast."""
    one = stub()
    on = evaluation_case(
        one.lens(),
        one.card.model_copy(update={"rule": rule}),
        series=4,
        noise=noise,
    )
    clean = on.clean.batch.values
    twins = on.corrupted.batch.values
    assert on.clean.truth is not None
    for row, (one, other) in enumerate(zip(clean, twins, strict=True)):
        np.testing.assert_array_equal(np.sort(one), np.sort(other))
        spread = on.clean.truth[row] - rule.forecast(other, on.card.horizon)
        assert np.abs(spread).mean() > 0.1 * np.std(one)
        if isinstance(rule, SeasonalCopy) and not noise:
            for series in (one, other):
                np.testing.assert_array_equal(series[16:], series[:-16])
            assert (one != other).all()
        if isinstance(rule, Gate):
            assert (rule.seasonal(one), rule.seasonal(other)) == (
                row % 2 == 0,
                row % 2 == 1,
            )


def test_true_tokens_follow_the_rule(on: EvaluationCase) -> None:
    """The true tokens are those that the planted rule reads."""
    # 64 steps in patches of 4, of which the rule reads the last 16
    expected = {token_name(row, token) for row in range(6) for token in range(12, 16)}
    assert true_tokens(on) == expected


def test_backups_count_only_for_pair_methods(on: EvaluationCase) -> None:
    """Backups count only for methods that look for pairs."""
    parts = (
        *on.card.parts,
        PlantedPart(
            component="decoder.2.mlp",
            role="backup",
            does="waits",
            stands_in_for=ALIVE[1],
        ),
    )
    card = on.card.model_copy(update={"parts": parts})
    with_backup = EvaluationCase(on.lens, card, on.clean, on.corrupted)
    names = ("decoder.2.mlp", *ALIVE, "decoder.0.mlp")
    labels, counts, every = scoring.truth(with_backup, PARTS, names)
    assert (labels.tolist(), counts.tolist(), every) == (
        [False, True, True, False],
        [False, True, True, True],
        2,
    )
    labels, counts, every = scoring.truth(with_backup, REPAIRED, names)
    assert (labels.tolist(), counts.all(), every) == (
        [False, False, True, False],
        True,
        1,
    )
    pair = f"{ALIVE[1]} + decoder.2.mlp"
    assert scoring.truth(with_backup, PAIRS, (pair, "a + b"))[0].tolist() == [
        True,
        False,
    ]
    edges = (
        f"{ALIVE[0]}->{ALIVE[1]}",
        f"{ALIVE[1]}->decoder.2.mlp",
        "decoder.2.mlp->output",
    )
    labels, counts, every = scoring.truth(with_backup, EDGES, edges)
    assert (labels.tolist(), counts.tolist(), every) == (
        [True, False, False],
        [True, False, False],
        3,
    )
    # the backup's score is left out, however high it is
    found = scoring.score_ranking(
        with_backup, PARTS, Ranking(names, np.array([9.0, 2.0, 1.0, 0.0]))
    )
    assert (found["auroc"], found["worst_rank"], found["scope"]) == (1.0, 2.0, 1.0)


def test_decoys_are_counted_by_method(on: EvaluationCase, tmp_path: Path) -> None:
    decoy = PlantedPart(component="decoder.0.mlp", role="decoy", does="writes loudly")
    card = on.card.model_copy(update={"parts": (*on.card.parts, decoy)})
    case = EvaluationCase(on.lens, card, on.clean, on.corrupted)
    sealed = seal_model("stand-in", case, PLANTED)
    file = tmp_path / "decoys.csv"
    for name in ("zero ablation", "path patching"):
        planted.score_probe(sealed, METHODS[name], file)
    found = pd.read_csv(file)[["method", "decoy", "fooled", "claimed"]]
    assert found.to_numpy().tolist() == [
        ["zero ablation", "writes loudly", False, False]
    ]


def test_the_page_is_made_of_its_tables_and_goes_on(tmp_path: Path) -> None:
    """Cells that are there stay, old ones are made again, and each has its date."""
    chosen = ["sharp heads", "path patching", "zero ablation, of the range"]
    page = tmp_path / "planted.md"
    page.write_text(
        "# By hand\n\n<!-- from the scores -->\nold\n<!-- end of the scores"
        " -->\n\nSentences.\n"
    )
    options: dict[str, Any] = {
        "seeds": 1,
        "model": ["decoys-chronos-bolt"],
        "condition": [PLANTED, UNTRAINED],
    }
    planted.main(page, method=chosen[:2], **options)
    first = planted.read_scores(page)
    assert list(first.methods["method"]) == 2 * chosen[:2]
    assert first.methods["date"].notna().all()
    text = page.read_text()
    assert text.startswith("# By hand")
    assert text.endswith("Sentences.\n")
    assert "old" not in text
    assert "| path patching | edges |" in text
    file = planted.list_files(page)[0]
    dated = first.methods.assign(date=["2026-01-01", *["2026-02-01"] * 3])
    dated.to_csv(file, index=False)
    planted.main(page, method=chosen[::2], since="2026-01-02", **options)
    both = planted.read_scores(page)
    measured = both.methods[both.methods["date"] > "2026-02-01"]
    assert sorted(measured["method"]) == sorted([chosen[0], chosen[2], chosen[2]])
    assert len(both.methods) == 6
    assert not both.decoys.duplicated(["method", "component"]).any()
    assert tables(both) in page.read_text()
    text = page.read_text()
    page.write_text(text.replace("| path patching |", "| paths |"))
    planted.main(page, read=True)
    assert page.read_text() == text


def test_the_docs_page_shows_the_measurements() -> None:
    page = Path(__file__).parents[3] / "docs" / "planted.md"
    found = planted.read_scores(page)
    assert tables(found) in page.read_text()
    for name, table in long_tables(found).items():
        with page.with_suffix(f".{name}.csv").open(newline="") as file:
            assert [*csv.reader(file)] == [[*table], *table.values.tolist()]


def test_the_docs_page_scores_a_method_of_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page's example of declaring a method runs, and prints what it shows."""
    for name in ("last parts first", "last segments first"):
        monkeypatch.setitem(METHODS, name, [])
    assert run_blocks(Path(__file__).parents[3] / "docs" / "planted.md") == 2


def test_claims_are_counted() -> None:
    statements = pd.Series([True, True, False, False])
    labels = pd.Series([True, False, True, False])
    assert claim_marks(statements, labels) == {
        "claimed": 0.5,
        "claim_precision": 0.5,
        "claim_recall": 0.5,
    }
    nothing = claim_marks(pd.Series([False, False]), pd.Series([True, False]))
    assert np.isnan(nothing["claim_precision"])
    assert nothing["claim_recall"] == 0.0
