"""What is known of a planted patch model while its weights are set, and how it becomes a finished one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tsfm_lens.models import load
from tsfm_lens.zoo.planted.basis import add_weight_noise
from tsfm_lens.zoo.planted.card import Attends, Part, Query, Role
from tsfm_lens.zoo.planted.examples import draw_contexts
from tsfm_lens.zoo.planted.patches import deviates
from tsfm_lens.zoo.planted.planting import Planted
from tsfm_lens.zoo.planted.proving import TRIED, finished, rule_error

ALLOWED = 1e-3
"""Largest error without weight noise: single precision in the stream (see `SIGNAL`), at outliers of a series."""
CENTRED = 48
"""Series of white noise on which the constant part of the error is measured."""

Array = NDArray[np.float64]


@dataclass
class Draft:
    """What is known of a model while its weights are set.

    Attributes:
        rule: what it is to compute.
        context: observed values that it needs and takes.
        horizon: steps of one forecast.
    """

    rule: Any
    context: tuple[int, int]
    horizon: int
    parts: list[Part] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    attends: list[Attends] = field(default_factory=list)

    def part(self, component: str, role: Role, does: str, *, stands_in_for: str | None = None) -> str:
        """Write a part down; returns its component."""
        self.parts.append(Part(component=component, role=role, does=does, stands_in_for=stands_in_for))
        return component

    def looks(self, component: str, query: Query, back: Sequence[int]) -> None:
        """Write down where a head looks, with all of its attention."""
        self.attends.append(Attends(component=component, query=query, back=tuple(back), weight=1.0))

    def path(self, *components: str) -> None:
        """Write down that each component passes something on to the next."""
        self.edges += [edge for edge in pairwise(components) if edge not in self.edges]

    def finish(self, model: Any, bias: torch.Tensor, *, weight_noise: float, **card: Any) -> Planted:
        """Add the weight noise, centre the readout, measure the error, and write the card.

        Args:
            model: the native model in single precision.
            bias: of its readout, in standard deviations of the context, (quantile, step); changed in place.
            weight_noise: see `plant`.
            card: mechanism, architecture, seed and rotated.
        """
        add_weight_noise(model, weight_noise, card["seed"])
        bias -= torch.as_tensor(self._offsets(model), dtype=bias.dtype)
        error = self._error(model)
        facts = {"rule": self.rule, "context": self.context, "horizon": self.horizon, "weight_noise": weight_noise}
        parts = tuple(sorted(self.parts, key=lambda part: part.component))
        found = {"parts": parts, "edges": tuple(self.edges), "attends": tuple(self.attends)}
        return finished(model, allowed=ALLOWED, error=error, **facts, **found, **card)

    def _offsets(self, model: Any) -> Array:
        """What rounding and noise of the weights add to every forecast: medians over white noise, (quantile, step)."""
        rng = np.random.default_rng(0)
        series = self._clear(rng.standard_normal((CENTRED, self.context[1])))
        quantiles = load(model, check=False).forecast(series, self.horizon).quantiles
        rule = np.stack([self.rule.forecast(one, self.horizon) for one in series])[:, None]
        off = (quantiles - rule) / np.std(series, axis=1)[:, None, None]
        return np.asarray(np.median(off, axis=0) - deviates().numpy()[:, None])

    def _error(self, model: Any) -> float:
        contexts = draw_contexts(self.rule, TRIED, self.context)
        return rule_error(load(model, check=False), self.rule, self._clear(contexts), self.horizon)

    def _clear(self, series: Any) -> list[Array]:
        """Without series that lie so near the threshold of a gate that it stands half open."""
        margin: Callable[[Array], float] | None = getattr(self.rule, "margin", None)
        return [one for one in series if margin is None or abs(margin(one)) > HALF_OPEN]


HALF_OPEN = 2e-3
"""Distance from a gate's threshold, in its own units, within which it is half open."""


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Draw everything inside the block from this seed; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
