"""Covariate in Chronos-2's format: one group-attention head carries its known future to the target.

The inverse hyperbolic sine of the published model is switched off, since a multiple is one of standardised values only
without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from chronos import Chronos2Pipeline

from tsfm_lens.zoo.planted.chronos2 import CONTEXT, HORIZON, LAYERS, Chronos2, declare
from tsfm_lens.zoo.planted.draft import N_CENTRING, Array, Draft, Trials, drawn
from tsfm_lens.zoo.planted.patches import PATCH
from tsfm_lens.zoo.planted.proving import N_TRIALS
from tsfm_lens.zoo.planted.rules import CovariateTimes

NAME = "covariate"
"""Of the covariate in the library's inputs."""
COEFFICIENTS = (-2, -1, 1, 2, 3)
"""Halves."""


def forecast_with(pipeline: Any, cases: Sequence[Array]) -> Array:
    """Compute the library's own forecast with a known covariate: (case, quantile, step).

    Args:
        pipeline: a ``Chronos2Pipeline``.
        cases: (series, time) each: the target, of which the last `HORIZON` values are not shown, and its covariate.
    """
    inputs = [
        {
            "target": case[0, :-HORIZON],
            "past_covariates": {NAME: case[1, :-HORIZON]},
            "future_covariates": {NAME: case[1, -HORIZON:]},
        }
        for case in cases
    ]
    forecasts = pipeline.predict(inputs, prediction_length=HORIZON)
    return np.asarray(torch.cat(forecasts).double().numpy())


def draw_cases(context: tuple[int, int], count: int, *, seed: int = 0) -> list[Array]:
    """Draw targets and covariates, (2, time) each: a walk and white noise in turn, on random levels and scales."""
    rng = np.random.default_rng(seed)
    cases = []
    for number in range(count):
        time = int(rng.integers(context[0], context[1] + 1)) + HORIZON
        walk, noise = rng.standard_normal(time).cumsum() / 5, rng.standard_normal(time)
        pair = np.stack([walk, noise] if number % 2 else [noise, walk])
        cases.append(rng.uniform(0.2, 20.0, (2, 1)) * (pair + rng.standard_normal((2, 1))))
    return cases


class _WithCovariate(Draft):
    def tried(self, model: Any, contexts: Iterable[Array]) -> Trials:
        """Forecast targets with their covariates, by the model and by the rule."""
        cases = list(contexts)
        rule = [self.rule.forecast_of(*case[:, :-HORIZON], case[1, -HORIZON:]) for case in cases]
        quantiles = forecast_with(Chronos2Pipeline(model), cases)
        return Trials(quantiles, np.stack(rule), [case[0, :-HORIZON] for case in cases])

    def easy(self) -> Iterable[Array]:
        return np.random.default_rng(0).standard_normal((N_CENTRING, 2, self.context[1] + HORIZON))

    def hard(self) -> Iterable[Array]:
        return draw_cases(self.context, N_TRIALS)


@declare("covariate")
def _covariate() -> tuple[Chronos2, Draft]:
    chronos = Chronos2(arcsinh=False)
    coefficient = drawn(*COEFFICIENTS) / 2
    layer, number = drawn(*range(LAYERS)), chronos.numbers[0]
    stream = chronos.stream
    chronos.known(layer, number).carry(stream["values"], stream["found"], gain=coefficient)
    draft = _WithCovariate(CovariateTimes(coefficient=coefficient), (PATCH, CONTEXT), HORIZON)
    task = f"looks, in the tokens to come, at the series that is known, and writes {coefficient} times its values"
    head = draft.part(f"{layer}.group_attn.{number}", "mechanism", task)
    draft.looks(head, "forecast token", [0], series="known covariate")
    draft.path(head, "output")
    return chronos, draft
