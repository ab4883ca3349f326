"""Explanations of single forecasts, as methods that are scored on planted models.

They score segments of the input, at each forecast step, or the heads and MLPs that the
input acts through. :data:`EXPLANATIONS` holds them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.explain.attribution import METHODS, input_attribution
from tsfm_lens.explain.routes import input_routes
from tsfm_lens.explain.segments import Segment
from tsfm_lens.models.run import Run
from tsfm_lens.probes import attention_patterns
from tsfm_lens.studies.method_scores.methods import (
    ROUTES,
    SEGMENTS,
    Methods,
    Ranking,
    cut_forecasts,
    method,
    of_every_stack,
    of_heads,
    segment_names,
)
from tsfm_lens.studies.method_scores.series import EvaluationCase
from tsfm_lens.zoo.planted.draft import SPAN

REFERENCE = "mean"
"""Reference that replaces a masked step."""

Scores = Callable[[Run, tuple[Segment, ...]], Any]
"""Function from a forecast and its segments to scores, more meaning more important:
(segment,), or (segment, step)."""


def by_forecast(case: EvaluationCase, score: Scores, count: int | None = 1) -> Ranking:
    """Score segments of each forecast.

    Args:
        case: whose forecasts are explained.
        score: makes the scores of one; without steps they hold for every step.
        count: of forecasts, the first; all if None.

    Returns:
        The scores by :func:`~tsfm_lens.studies.method_scores.methods.segment_names`.

    Raises:
        InputError: scores of another shape.
    """
    names: list[str] = []
    scores = []
    for number, (run, parts) in enumerate(cut_forecasts(case, count)):
        given = np.asarray(score(run, parts), dtype=float)
        shape = (len(parts), run.horizon)
        if given.shape not in (shape, shape[:1]):
            raise InputError(
                f"scores of segments have shape {given.shape}, expected {shape} or"
                f" {shape[:1]}: (segment, step), or one a segment"
            )
        names += segment_names(number, parts, run.horizon)
        by_step = np.broadcast_to(given.reshape(len(parts), -1), shape)
        scores.append(by_step.ravel())
    return Ranking(tuple(names), np.concatenate(scores))


EXPLANATIONS: Methods = {}


_explanation = partial(method, known=EXPLANATIONS)


def _attribute(run: Run, parts: tuple[Segment, ...], method: Any) -> np.ndarray:
    data = input_attribution(run, method=method, reference=REFERENCE, parts=parts)
    median = data["attribution"].sel(quantile=0.5, method="nearest")
    return np.abs(median.transpose("segment", "step").values)


def _carriers(case: EvaluationCase) -> tuple[str, ...]:
    """Name heads and MLPs without backups, which act where another part is gone."""
    backups = case.card.components("backup")
    return tuple(name for name in case.nodes if name not in backups)


def _routes(case: EvaluationCase, effect: str) -> Ranking:
    """Score components by the mean size of an effect through them, over segments."""
    names = _carriers(case)
    ((run, parts),) = cut_forecasts(case, 1)
    routes = input_routes(run, parts=parts, reference=REFERENCE, components=names)
    if effect not in routes:
        raise InputError("no gradients")
    sizes = abs(routes[effect]).mean("step").sum("segment")
    return Ranking(names, sizes.values)


def _peak_attention(case: EvaluationCase) -> Ranking:
    """Score heads by the largest mean attention to any one token.

    MLPs have no attention, and get 0.
    """
    run = case.clean.item(0)

    def rank(stack: str, kind: str) -> Ranking:
        data = attention_patterns(run, stack=stack, kind=kind)
        return of_heads(data, data["pattern"].mean("query").max("key"))

    heads = of_every_stack(case, rank)
    names = _carriers(case)
    peaks = pd.Series(heads.scores, heads.names).reindex(names, fill_value=0.0)
    return Ranking(names, np.asarray(peaks))


def _draws(case: EvaluationCase) -> np.random.Generator:
    # the length of its name stands for the mechanism in the seed
    return np.random.default_rng([case.card.seed, 0, len(case.card.mechanism)])


def _draw_segments(case: EvaluationCase) -> Ranking:
    return by_forecast(case, lambda _, parts: _draws(case).random(len(parts)))


def _draw_routes(case: EvaluationCase) -> Ranking:
    names = _carriers(case)
    return Ranking(names, _draws(case).random(len(names)))


def _by_values(measure: Callable[[np.ndarray], Any]) -> Scores:
    """Return a function that scores a segment by a measure of its own values.

    The values are standardised by the past of their series.
    """

    def score(run: Run, parts: tuple[Segment, ...]) -> list[float]:
        futures = run.batch.known_future(run.horizon)
        scores = []
        for part in parts:
            past = np.asarray(run.batch.values[part.row])
            values = np.concatenate([past, futures[part.row]])
            standardised = (values - past.mean()) / past.std()
            stretch = slice(part.start + len(past), part.stop + len(past))
            scores.append(measure(standardised[stretch]))
        return scores

    return score


NAIVE: dict[str, Scores] = {
    "newest first": lambda _, parts: [part.stop for part in parts],
    "oldest first": lambda _, parts: [-part.start for part in parts],
    # steps count back from the forecast start: the middle of a context is -SPAN / 2
    "middle first": lambda _, parts: [
        -abs(part.start + part.stop + SPAN) for part in parts
    ],
    "farthest from the mean first": _by_values(lambda values: np.abs(values).mean()),
    "largest values first": _by_values(np.mean),
    "most varied first": _by_values(np.std),
}
"""Orders of segments that ignore the model, and cost nothing.

The reverse of an order is as naive: an AUROC far below 0.5 tells as much as one above.
"""

for _name in METHODS:
    _explanation(_name, SEGMENTS)(
        partial(by_forecast, score=partial(_attribute, method=_name))
    )
for _name, _score in NAIVE.items():
    _explanation(_name, SEGMENTS)(partial(by_forecast, score=_score, count=None))
_explanation("random", SEGMENTS)(_draw_segments)
for _name, _effect in (("exact", "effect"), ("first order", "estimate")):
    _explanation(f"routes, {_name}", ROUTES)(partial(_routes, effect=_effect))
_explanation("attention, its peak", ROUTES)(_peak_attention)
_explanation("random", ROUTES)(_draw_routes)
