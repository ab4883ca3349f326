"""Comparison of what methods say with the card of a planted model.

:func:`score_ranking` compares scores, :func:`find_decoys` lists what a method falls
for, and :func:`as_noisy_as_it_bears` plants with noise that leaves the card true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress

import numpy as np
import pandas as pd

from tsfm_lens.studies.method_scores.marks import (
    Labels,
    Scores,
    claim_marks,
    marks,
    ranks,
)
from tsfm_lens.studies.method_scores.methods import (
    ARROW,
    EDGES,
    INPUTS,
    PAIRS,
    REPAIRED,
    ROUTES,
    SEGMENTS,
    Ranking,
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
    clean = plant(0.0)
    valid = (
        _errors(evaluation_case(clean.lens(), clean.card, series=series, seed=seed))
        <= TOLERATED
    )
    for level in levels:
        planted = plant(level)
        on = evaluation_case(planted.lens(), planted.card, series=series, seed=seed)
        if (
            valid.any()
            and _errors(on)[valid].max() <= TOLERATED
            and keeps_its_roles(on, valid)
        ):
            return planted
    return None


def keeps_its_roles(on: EvaluationCase, valid: Labels) -> bool:
    """Check that decoys and backups still act as the card says.

    No decoy moves the forecast, and backups do so only without the part that they stand
    in for.
    """

    def shift(*components: str) -> float:
        return float(_shift(on, components)[valid].max(initial=0.0))

    if any(shift(decoy) > TOLERATED for decoy in on.card.components("decoy")):
        return False
    for part in on.card.parts:
        if part.role == "backup":
            primary = str(part.stands_in_for)
            if shift(part.component) > TOLERATED or shift(
                part.component, primary
            ) < 2 * shift(primary):
                return False
    return True


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


_LABELS: Mapping[str, Callable[[EvaluationCase], Mapping[str, float]]] = {
    INPUTS: true_tokens,
    SEGMENTS: true_segments,
}
DECOY = ("method", "component", "decoy", "fooled", "claimed")
"""Columns of the table of decoys."""


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
    card = on.card
    counts = np.ones(len(names), dtype=bool)
    backups = [part for part in card.parts if part.role == "backup"]
    idle = {part.component for part in backups}
    match level:
        case "inputs" | "segments":
            known: Mapping[str, float] = _LABELS[level](on)
            values = np.array([known[name] for name in names], dtype=float)
            total = int(np.nansum([*known.values()]))
            return values == 1, np.isfinite(values), total
        case "edges":
            true = {edge_name(*edge) for edge in card.edges}
            counts = np.array([not idle & set(name.split(ARROW)) for name in names])
        case "repaired":
            true = {str(part.stands_in_for) for part in backups}
        case "pairs":
            true = {
                pair_name(part.component, str(part.stands_in_for)) for part in backups
            }
        case _:
            true = {
                part.component
                for part in card.parts
                if part.role == "mechanism"
                and not (level == ROUTES and part.does.startswith(SAME))
            }
            counts = np.array([name not in idle for name in names])
    return np.array([name in true for name in names]), counts, len(true)


def score_ranking(on: EvaluationCase, level: str, result: Ranking) -> dict[str, float]:
    """Measure how well the result of a method agrees with the card."""
    labels, counts, n_true = truth(on, level, result.names)
    if n_true:
        scope = float(labels.sum() / n_true)
    else:
        scope = float("nan")
    scores = result.scores[counts]
    labels = labels[counts]
    # tokens are ranked within their series, segments within a step, too; the rest has
    # no colons and is one group
    groups = np.array(
        [name.rpartition(":")[0] for name in compress(result.names, counts)]
    )
    by_group = [
        marks(scores[groups == group], labels[groups == group])
        for group in np.unique(groups)
    ]
    means = pd.DataFrame(by_group).mean()
    values = {str(name): float(mean) for name, mean in means.items()}
    if result.claims is None:
        statements = {}
    else:
        statements = claim_marks(result.claims[counts], labels)
    return {"scope": scope, **values, **statements}


def find_decoys(card: Card, name: str, result: Ranking) -> pd.DataFrame:
    """Return the decoys that a method named parts among, and if it falls for them.

    Columns are :data:`DECOY`.
    """
    true = set(card.components("mechanism")) & set(result.names)
    if not true:
        return pd.DataFrame(columns=list(DECOY))
    decoys = [
        (part.component, part.does) for part in card.parts if part.role == "decoy"
    ]
    named = pd.DataFrame(
        {
            "component": result.names,
            "fooled": ranks(result.scores) <= len(true),
            "claimed": result.claims,
        }
    )
    rows = pd.DataFrame(decoys, columns=["component", "decoy"])
    return rows.merge(named, on="component").assign(method=name)[list(DECOY)]
