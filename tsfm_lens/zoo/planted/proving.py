"""Proof that a planted model forecasts by its rule, and its card."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsfm_lens.errors import LensError
from tsfm_lens.models import Lens, load
from tsfm_lens.zoo.planted.basis import add_weight_noise
from tsfm_lens.zoo.planted.card import Card
from tsfm_lens.zoo.planted.examples import draw_contexts
from tsfm_lens.zoo.planted.planting import Planted, refuse_strangers
from tsfm_lens.zoo.planted.rules import CovariateTimes, Rule

__all__ = ["finished", "rule_error"]

N_TRIALS = 4
"""Random series that a builder tries a model on."""


def rule_error(lens: Lens, rule: Rule, contexts: Iterable[NDArray[np.float64]], horizon: int) -> float:
    """Compute the largest difference of median forecast and rule, in mean absolute values of the context.

    Args:
        lens: the model.
        rule: the expected forecast.
        contexts: (time,) each.
        horizon: forecast steps.
    """
    series = list(contexts)
    median = lens.forecast(series, horizon).median
    assert not isinstance(rule, CovariateTimes)
    expected = np.stack([rule.forecast(context, horizon) for context in series])
    scale = np.array([np.abs(context).mean() for context in series])
    return float((np.abs(median - expected) / scale[:, None]).max())


def finished(model: Any, *, allowed: float, error: float | None = None, **card: Any) -> Planted:
    """Add the weight noise, measure the error, and put the card together.

    Args:
        model: native model or pipeline with its weights set.
        allowed: largest error of a model without weight noise.
        error: measured by the caller, where the rule takes more than one series; the noise is then the caller's to add.
        card: the card's fields but `name` and `error`.

    Raises:
        CheckpointError: the card names a component that the model has not.
        LensError: without weight noise, the model does not do what its card says: the builder is wrong.
    """
    name = f"{card['mechanism']}-{card['architecture']}-{card['seed']}"
    draft = Card(name=name, error=0.0 if error is None else error, **card)
    lens = load(model, check=False)
    refuse_strangers(draft, lens)
    if error is None:
        if draft.weight_noise:
            add_weight_noise(lens.adapter.model, draft.weight_noise, draft.seed)
        contexts = draw_contexts(draft.rule, N_TRIALS, draft.context, seed=draft.seed)
        error = rule_error(lens, draft.rule, contexts, draft.horizon)
    if not draft.weight_noise and not error <= allowed:
        raise LensError(
            f"{name}: the median forecast is off the rule by {error:.3g} mean absolute values, expected at most "
            f"{allowed:.3g}: the weights do not hold the mechanism"
        )
    return Planted(model, draft.model_copy(update={"error": error}))
