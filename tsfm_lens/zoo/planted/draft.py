"""Draft of a planted model while its weights are set, and the proof that it forecasts by its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tsfm_lens.errors import LensError
from tsfm_lens.models import Lens, load
from tsfm_lens.zoo.planted.basis import add_weight_noise
from tsfm_lens.zoo.planted.card import Attends, Card, PlantedPart, Query, Role
from tsfm_lens.zoo.planted.examples import draw_contexts
from tsfm_lens.zoo.planted.patches import DECILES, PATCH, deviates
from tsfm_lens.zoo.planted.planting import Planted, planter, refuse_strangers
from tsfm_lens.zoo.planted.rules import CovariateTimes, Rule

N_TRIALS = 4
"""Random series that a builder tries a model on."""
LARGEST_ERROR = 1e-3
"""Largest error without weight noise: single precision in the stream (see `SIGNAL`), at outliers of a series."""
N_CENTRING = 48
"""Series of white noise on which the constant part of the error is measured."""

Array = NDArray[np.float64]


def rule_error(lens: Lens, rule: Rule, contexts: Iterable[Array], horizon: int) -> float:
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
    """Add the weight noise, measure the error, and put the card together."""
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


@dataclass
class Draft:
    """Ground truth of a model while its weights are set.

    Attributes:
        rule: the computation to plant.
        context: observed values that it needs and takes.
        horizon: steps of one forecast.
        squash: the model's transform of standardised values.
        scale: the model's divisor of a context.
    """

    rule: Any
    context: tuple[int, int]
    horizon: int
    squash: Callable[[Array], Array] = np.asarray
    scale: Callable[[Array], Any] = np.std
    parts: list[PlantedPart] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    attends: list[Attends] = field(default_factory=list)

    def part(self, component: str, role: Role, does: str, *, stands_in_for: str | None = None) -> str:
        """Write a part down and return its component."""
        self.parts.append(PlantedPart(component=component, role=role, does=does, stands_in_for=stands_in_for))
        return component

    def looks(self, component: str, query: Query, back: Sequence[int], **how: Any) -> None:
        """Write down a head's attention, with all of its weight unless ``how`` has another ``weight``."""
        self.attends.append(Attends(component=component, query=query, back=tuple(back), **{"weight": 1.0, **how}))

    def path(self, *components: str) -> None:
        """Write down that each component passes something on to the next."""
        self.edges += [edge for edge in pairwise(components) if edge not in self.edges]

    def finish(self, model: Any, bias: torch.Tensor, *, weight_noise: float, **card: Any) -> Planted:
        """Add the weight noise, centre the readout, measure the error, and write the card."""
        add_weight_noise(model, weight_noise, card["seed"])
        off = self.tried(model, self.easy()).offsets(self.squash, self.scale) - deviates().numpy()[:, None]
        offset = off.reshape(len(off), -1, bias.shape[1]).mean(1)
        bias -= torch.as_tensor(offset, dtype=bias.dtype)
        error = self.tried(model, self.hard()).error()
        facts = {"rule": self.rule, "context": self.context, "horizon": self.horizon, "weight_noise": weight_noise}
        return finished(model, allowed=LARGEST_ERROR, error=error, **facts, **self.card_fields(), **card)

    def card_fields(self) -> dict[str, Any]:
        """Return parts, edges and attention, as fields of a card."""
        parts = tuple(sorted(self.parts, key=lambda part: part.component))
        return {"parts": parts, "edges": tuple(self.edges), "attends": tuple(self.attends)}

    def tried(self, model: Any, contexts: Iterable[Array]) -> Trials:
        """Forecast series by the model and by the rule; those near a gate's threshold are left out."""
        margin: Callable[[Array], float] | None = getattr(self.rule, "margin", None)
        series = [one for one in contexts if margin is None or abs(margin(one)) > HALF_OPEN]
        quantiles = load(model, check=False).forecast(series, self.horizon).quantiles
        return Trials(quantiles, np.stack([self.rule.forecast(one, self.horizon) for one in series]), series)

    def easy(self) -> Iterable[Array]:
        """Return series on which the constant part of the error is measured."""
        return np.random.default_rng(0).standard_normal((N_CENTRING, self.context[1]))

    def hard(self) -> Iterable[Array]:
        """Return series on which the error of the card is measured."""
        return draw_contexts(self.rule, N_TRIALS, self.context)


@dataclass(frozen=True)
class Trials:
    """Forecasts (series, quantile, step), the rule's values (series, step), and the contexts."""

    quantiles: Array
    rule: Array
    contexts: Sequence[Array]

    def error(self) -> float:
        """Compute the largest difference of median and rule, in mean absolute values of the context."""
        off = np.abs(self.quantiles[:, self.quantiles.shape[1] // 2] - self.rule).max(1)
        return float(max(most / np.abs(one).mean() for most, one in zip(off, self.contexts, strict=True)))

    def offsets(self, squash: Callable[[Array], Array], spread: Callable[[Array], Any]) -> Array:
        """Compute offsets of quantiles from the rule, medians over series, in the readout's scale: (quantile, step)."""
        loc, scale = (np.array([part(one) for one in self.contexts])[:, None, None] for part in (np.mean, spread))
        actual, target = (squash((part - loc) / scale) for part in (self.quantiles, self.rule[:, None]))
        return np.asarray(np.median(actual - target, axis=0))


HALF_OPEN = 4e-3
"""Distance from a gate's threshold, in its own units, within which it is half open."""


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Draw everything inside the block from this seed; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def draw_choice(*choices: int) -> int:
    """Draw one of the choices at random."""
    return choices[int(torch.randint(len(choices), ()))]


class Builder(Protocol):
    """Model under construction."""

    def finish(self, *, rotate: bool) -> Any:
        """Return the native model in single precision, its streams turned at random if asked for."""


Build = Callable[[], tuple[Builder, Draft]]


def declarer(
    architecture: str, readout: str, complete: Callable[[Any, Draft], None] | None = None
) -> Callable[[str], Callable[[Build], Build]]:
    """Return a decorator of functions that set a mechanism's weights and return a :class:`Builder` and its draft."""

    def declare(mechanism: str) -> Callable[[Build], Build]:
        def wrap(build: Build) -> Build:
            @planter(mechanism, architecture)
            def grow(*, seed: int, rotate: bool, weight_noise: float) -> Planted:
                with drawing(seed), torch.no_grad():
                    builder, draft = build()
                    if complete:
                        complete(builder, draft)
                    model = builder.finish(rotate=rotate)
                    bias = getattr(model, readout).residual_layer.bias.view(len(DECILES), PATCH)
                    facts: dict[str, Any] = {"mechanism": mechanism, "architecture": architecture}
                    return draft.finish(model, bias, seed=seed, rotated=rotate, weight_noise=weight_noise, **facts)

            return build

        return wrap

    return declare
