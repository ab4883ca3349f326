"""Comparison of what methods say with the card of a planted model.

:func:`score_ranking` compares scores and claims, :func:`find_decoys` lists what a
method falls for, and :func:`as_noisy_as_it_bears` plants with noise that leaves the
card true.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any, Literal

import numpy as np
import pandas as pd

from tsfm_lens.core.stats import auroc, ratio
from tsfm_lens.studies.method_scores.methods import (
    ARROW,
    EDGES,
    INPUTS,
    PAIRS,
    REPAIRED,
    ROUTES,
    Labels,
    Ranking,
    Scores,
    edge_name,
    pair_name,
    true_segments,
    true_tokens,
)
from tsfm_lens.studies.method_scores.series import EvaluationCase, evaluation_case
from tsfm_lens.zoo.planted.card import Card
from tsfm_lens.zoo.planted.planting import Planted
from tsfm_lens.zoo.planted.rules import CovariateTimes

SAME = ("marks ", "tells the step")
"""How the tasks begin of parts that write the same whatever the values of the series.

No influence of the input passes through them.
"""
TOLERATED = 0.1
"""Largest tolerated error of a forecast, in mean absolute values of the context."""


def forecast_error(on: EvaluationCase) -> float:
    """Compute the largest distance of the median forecast from the rule.

    It is in mean absolute values of the context.
    """
    return float(_errors(on).max())


def as_noisy_as_it_bears(
    plant: Callable[[float], Planted],
    levels: Sequence[float],
    *,
    series: int,
    seed: int,
) -> Planted | None:
    """Plant with the first level of weight noise that leaves the card true.

    Returns:
        The model; None if no level does.
    """

    def run(planted: Planted) -> EvaluationCase:
        return evaluation_case(planted.lens(), planted.card, series=series, seed=seed)

    valid = _errors(run(plant(0.0))) <= TOLERATED
    if not valid.any():
        return None
    for planted in map(plant, levels):
        on = run(planted)
        if _errors(on)[valid].max() <= TOLERATED and keeps_its_roles(on, valid):
            return planted
    return None


def keeps_its_roles(on: EvaluationCase, valid: Labels) -> bool:
    """Check that decoys and backups still act as the card says.

    No decoy moves the forecast, and backups do so only without the part that they stand
    in for.
    """

    def shift(*components: str) -> float:
        return float(_shift(on, components)[valid].max(initial=0.0))

    backups = _backups(on.card)
    idle = (*on.card.components("decoy"), *backups)
    if any(shift(component) > TOLERATED for component in idle):
        return False
    return all(
        shift(backup, primary) >= 2 * shift(primary)
        for backup, primary in backups.items()
    )


def _backups(card: Card) -> dict[str, str]:
    """Return the part that each backup stands in for."""
    return {
        part.component: str(part.stands_in_for)
        for part in card.parts
        if part.role == "backup"
    }


def _errors(on: EvaluationCase) -> Scores:
    """Compute the distance (series,) of the median forecast from the rule.

    It is in mean absolute values of the context.
    """
    assert on.clean.truth is not None
    return _largest(on, on.clean.forecast.median - on.clean.truth)


def _shift(on: EvaluationCase, components: Sequence[str]) -> Scores:
    """Compute the change (series,) of the median forecast without components.

    It is in mean absolute values of the context.
    """
    run = on.clean
    with on.lens.ablate(*components) as lens:
        without = lens.forecast(
            run.batch, run.horizon, num_samples=run.num_samples, seed=run.seed
        )
    return _largest(on, without.median - run.forecast.median)


def _largest(on: EvaluationCase, difference: Scores) -> Scores:
    scales = np.array([np.abs(on.clean.batch.values[row]).mean() for row in on.targets])
    return np.asarray(np.abs(difference[on.targets]).max(-1) / scales)


def has_answer(card: Card, level: str) -> bool:
    """Return whether the card has an answer for methods of a level.

    Without a backup, for example, nothing repairs itself.
    """
    if level in (REPAIRED, PAIRS):
        return bool(card.components("backup"))
    if level == EDGES:
        return bool(card.edges)
    # a rule that reads nothing of the past has no tokens of it
    return level != INPUTS or not isinstance(card.rule, CovariateTimes)


def truth(
    on: EvaluationCase, level: str, names: Sequence[str]
) -> tuple[Labels, Labels, int]:
    """Label candidates by the card.

    Returns:
        Labels; which candidates count, (candidate,) each; and the number of true ones.
    """
    backups = _backups(on.card)
    uncounted = set(backups)
    match level:
        case "inputs":
            true = true_tokens(on)
        case "segments":
            true, uncounted = true_segments(on)
        case "edges":
            true = set(starmap(edge_name, on.card.edges))
        case "repaired":
            true, uncounted = set(backups.values()), set()
        case "pairs":
            true, uncounted = set(starmap(pair_name, backups.items())), set()
        case _:
            true = {
                part.component
                for part in on.card.parts
                if part.role == "mechanism"
                and not (level == ROUTES and part.does.startswith(SAME))
            }
    # an edge counts if both of its ends do
    counts = [uncounted.isdisjoint(name.split(ARROW)) for name in names]
    return np.array([name in true for name in names]), np.array(counts), len(true)


def score_ranking(on: EvaluationCase, level: str, result: Ranking) -> dict[str, float]:
    """Measure how well the result of a method agrees with the card."""
    labels, counts, n_true = truth(on, level, result.names)
    table = pd.DataFrame({"score": result.scores, "true": labels})[counts]
    # tokens are ranked within their series, segments within a step, too; the rest has
    # no colons and is one group
    groups = np.array([name.rpartition(":")[0] for name in result.names])[counts]
    by_group = [
        marks(group["score"], group["true"]) for _, group in table.groupby(groups)
    ]
    means: Any = pd.DataFrame(by_group).mean().to_dict()
    values = {"scope": float(ratio(labels.sum(), n_true)), **means}
    if result.claims is not None:
        values |= claim_marks(pd.Series(result.claims)[counts], table["true"])
    return values


def marks(scores: pd.Series, labels: pd.Series) -> dict[str, float]:
    """Compute all measures of agreement of scores with the truth.

    NaN, where a method says nothing of a candidate, ranks below every number. Of ties
    "precision" counts the expected share, and a rank is the worst.
    """
    best, worst = (_rank(scores, method) for method in ("min", "max"))
    size = labels.sum()
    # chance of each candidate to be among as many top ones as are true
    taken = ((size + 1 - best) / (worst + 1 - best)).clip(0, 1)
    return {
        "candidates": float(len(labels)),
        "true": float(size),
        "auroc": auroc(scores.to_numpy(), labels.to_numpy()),
        "precision": taken[labels].mean(),
        "worst_rank": worst[labels].max(),
        "mean_rank": worst[labels].mean(),
    }


def _rank(scores: pd.Series, method: Literal["min", "max"]) -> pd.Series:
    """Rank from 1 for the highest score; of ties the first or the last rank."""
    return scores.rank(method=method, ascending=False, na_option="bottom")


def claim_marks(claims: pd.Series, labels: pd.Series) -> dict[str, float]:
    """Compute all measures of agreement of yes or no claims with the truth."""
    return {
        "claimed": claims.mean(),
        "claim_precision": labels[claims].mean(),
        "claim_recall": claims[labels].mean(),
    }


def find_decoys(card: Card, name: str, result: Ranking) -> pd.DataFrame:
    """Return the decoys that a method named parts among, and if it falls for them."""
    true = set(card.components("mechanism")) & set(result.names)
    does = {part.component: part.does for part in card.parts if part.role == "decoy"}
    if not true:
        does = {}
    names = pd.Series(result.names)
    rows = pd.DataFrame(
        {
            "method": name,
            "component": names,
            "decoy": names.map(does),
            "fooled": _rank(pd.Series(result.scores), "max") <= len(true),
            "claimed": result.claims,
        }
    )
    return rows.dropna(subset="decoy")
