"""Evaluation cases: random series that a planted mechanism forecasts.

:func:`evaluation_case` draws series and runs a model on them and on altered copies;
:func:`untrained` makes a model without a mechanism for comparison.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.models import Lens, load
from tsfm_lens.models.run import Run
from tsfm_lens.testing import spread_weights
from tsfm_lens.zoo.planted.card import Card
from tsfm_lens.zoo.planted.draft import SPAN
from tsfm_lens.zoo.planted.planting import Planted
from tsfm_lens.zoo.planted.rules import (
    CovariateTimes,
    Gate,
    LinearTrend,
    LocalMean,
    Routes,
    Rule,
    SeasonalCopy,
    Staircase,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EvaluationCase:
    """Model, its card, and a contrast of two runs."""

    lens: Lens
    card: Card
    clean: Run
    corrupted: Run

    @cached_property
    def targets(self) -> list[int]:
        """Rows of the runs that are forecast; the others are covariates."""
        return np.flatnonzero(self.clean.batch.is_target).tolist()

    @cached_property
    def components(self) -> list[Component]:
        """Every head and MLP of every stack."""
        return [
            writer
            for stack in self.lens.wiring.stacks
            for writer in writers(self.lens.wiring, stack.name)
        ]

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Names of these components."""
        return tuple(map(str, self.components))

    @cached_property
    def read_out(self) -> list[Component]:
        """Heads and MLPs of the stack that is read out."""
        return writers(self.lens.wiring)


def evaluation_case(
    lens: Lens, card: Card, *, series: int = 12, noise: float = 0.0, seed: int = 0
) -> EvaluationCase:
    """Draw series and run the model on them and on their altered copies."""
    if isinstance(card.rule, CovariateTimes):
        return _with_covariates(lens, card, card.rule, series, noise, seed)
    rng = np.random.default_rng(seed)
    length = int(np.clip(SPAN, *card.context))
    pairs = [_pair(card.rule, length, index, noise, rng) for index in range(series)]
    clean, altered = zip(*pairs, strict=True)
    return compare(lens, card, clean, altered)


def compare(
    lens: Lens, card: Card, clean: Sequence[Array], altered: Sequence[Array]
) -> EvaluationCase:
    """Run the model on contexts and on altered copies, with its rule as the truth."""
    rule: Any = card.rule
    num_samples = 5 if lens.emits == "token" else None
    runs = []
    for values in (clean, altered):
        truth = np.stack([rule.forecast(context, card.horizon) for context in values])
        batch = SeriesBatch(tuple(values))
        run = lens.run(batch, card.horizon, truth=truth, num_samples=num_samples)
        runs.append(run)
    return EvaluationCase(lens, card, *runs)


def _with_covariates(
    lens: Lens, card: Card, rule: CovariateTimes, series: int, noise: float, seed: int
) -> EvaluationCase:
    """Draw targets that a known covariate moves, with an idle past covariate.

    In the altered copies, what is read of the known covariate is reversed.
    """
    from tsfm_lens.zoo.planted.chronos2 import draw_cases

    idle, noises = (np.random.default_rng([seed, stream]) for stream in (1, 2))
    horizon = card.horizon
    drawn = []
    for target, covariate in draw_cases((SPAN, SPAN), series, seed=seed):
        pasts = [target[:-horizon], covariate[:-horizon], idle.normal(size=SPAN)]
        for past in pasts:
            past += noise * past.std() * noises.normal(size=SPAN)
        driver = np.concatenate([pasts[1], covariate[-horizon:]])
        drawn.append((pasts[0], driver, pasts[2]))
    stretches = [np.arange(SPAN - ago, SPAN - ago + horizon) for ago in rule.ago]
    runs = []
    for direction in (1, -1):
        items = []
        truth = []
        for target, driver, other in drawn:
            known = driver.copy()
            for steps in stretches:
                known[steps] = driver[steps[::direction]]
            past, future = np.split(known, [SPAN])
            items.append(
                {
                    "target": target,
                    "past_covariates": {"other": other, "known": past},
                    "future_covariates": {"known": future},
                }
            )
            truth.append(rule.compute_forecast(target, past, future))
        batch = as_series(items)
        # only targets have a rule
        rows = np.full((len(batch), horizon), np.nan)
        rows[batch.is_target] = truth
        runs.append(lens.run(batch, horizon, truth=rows))
    return EvaluationCase(lens, card, *runs)


def _pair(
    rule: Rule,
    length: int,
    index: int,
    noise: float,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Draw a series and its altered copy, (time,) each, of one random scale."""
    scale = np.exp(rng.uniform(-1, 1))
    match rule:
        case SeasonalCopy():
            values = _season(rule.period, length, rng)
            order = _by_phase(rule.period, length, rng)
        case LocalMean() | Routes() | Staircase():
            # no whole number of patches, since a model may not know their order
            values = _autoregression(length, rng)
            order = np.roll(np.arange(length), length // 2 - 3)
            # both routes take turns
            if isinstance(rule, Routes) and (rule.margin(values) > 0) == index % 2:
                values = -values
        case LinearTrend():
            slope = rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 1.5)
            values = slope * np.linspace(-1, 1, length) + rng.uniform(-0.5, 0.5)
            order = np.arange(length)[::-1]
        case Gate():
            values = _season(rule.period, length, rng)
            order = rng.permutation(length)
    values = scale * (values + noise * values.std() * rng.standard_normal(length))
    altered = values[order]
    # open and shut gates alternate
    if isinstance(rule, Gate) and index % 2:
        return (altered, values)
    return (values, altered)


def _season(period: int, length: int, rng: np.random.Generator) -> Array:
    """Draw a motif over and over, ending with a whole one.

    It has a different value at every phase.
    """
    steps = rng.permutation(period) + rng.uniform(-0.3, 0.3, period)
    motif = 3.0 * (steps / max(period - 1, 1) - 0.5)
    return np.asarray(motif[np.arange(-length, 0) % period])


def _by_phase(period: int, length: int, rng: np.random.Generator) -> NDArray[np.int_]:
    """Reorder the steps within every period, the same way in each."""
    # no phase keeps its value, for any order of the phases
    phases = rng.permutation(period)
    successor = np.empty(period, dtype=int)
    successor[phases] = np.roll(phases, 1)
    # what comes before the first whole period stays
    first, whole = np.split(np.arange(length), [length % period])
    reordered = whole.reshape(-1, period)[:, successor]
    return np.concatenate([first, reordered.ravel()])


def _autoregression(length: int, rng: np.random.Generator) -> Array:
    """Draw a series whose local mean comes and goes, of standard deviation 1."""
    steps = rng.standard_normal(length)
    values = lfilter([1.0], [1.0, -0.9], steps)
    return np.asarray((values - values.mean()) / values.std())


def untrained(planted: Planted, seed: int = 0) -> Lens:
    """Build a copy of a planted model whose every weight is drawn anew.

    No mechanism was planted in it.
    """
    lens = load(copy.deepcopy(planted.model))
    width = getattr(getattr(lens.adapter.model, "config", None), "d_kv", None)
    # T5 does not scale q·k: this gain gives attention scores a standard deviation of 3
    # at any head size
    if width is None:
        dot_product = 1.0
    else:
        dot_product = (3.0 / width**0.5) ** 0.5
    spread_weights(
        lens.adapter.model,
        {".q.weight": dot_product, ".k.weight": dot_product},
        seed=seed,
    )
    lens.model_id = f"{lens.model_id} (weights drawn anew, seed {seed})"
    return lens
