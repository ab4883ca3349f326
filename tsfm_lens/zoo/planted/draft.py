"""Draft of a planted model: directions of its streams, its parts, and its error.

:class:`Draft` collects the parts while weights are set, and measures at the end how far
the model's forecasts are from its rule; :class:`Basis` holds the directions.
:func:`rule_error` is that measure for any lens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tsfm_lens.core.errors import LensError
from tsfm_lens.models import Lens, load
from tsfm_lens.zoo.planted.card import Attends, Card, PlantedPart, Query, Role
from tsfm_lens.zoo.planted.planting import Planted
from tsfm_lens.zoo.planted.rules import CovariateTimes, Reads, Rule, draw_contexts

__all__ = ["rule_error"]

N_TRIALS = 4
"""Random series that a builder tries a model on."""
N_CENTRING = 48
"""Series of white noise on which the constant part of the error is measured."""
SPAN = 96
"""Steps of the context over which the inputs of a mechanism are placed."""
BACK: Mapping[Reads, Sequence[float]] = {
    "recent": [0],
    "old": [0.875],
    "middle": [0.5],
    "spread": [0.25, 0.75],
}
"""Places that are read: 0 at the end of the context, 1 as far back as `SPAN` allows.

Together they read no part of the context much more often than another.
"""
HALF_OPEN = 4e-3
"""Size of ``Gate.margin`` up to which a model's gate is neither open nor shut."""

Array = NDArray[np.float64]
Trials = tuple[Array, Array, Sequence[Array]]
"""Forecasts (series, quantile, step), the rule's (series, step), and contexts."""


def rule_error(
    lens: Lens, rule: Rule, contexts: Iterable[Array], horizon: int
) -> float:
    """Compute the largest difference of median forecast and rule.

    Contexts are (time,) each. Each difference is divided by the mean absolute value of
    its context.

    Returns:
        The difference as a share.
    """
    # this rule needs a covariate, which contexts do not have
    assert not isinstance(rule, CovariateTimes)
    series = list(contexts)
    expected = np.stack([rule.forecast(context, horizon) for context in series])
    return _largest(lens.forecast(series, horizon).median, expected, series)


def _largest(median: Array, rule: Array, contexts: Sequence[Array]) -> float:
    distance = np.abs(median - rule).max(1)
    relative = [
        largest / np.abs(context).mean()
        for largest, context in zip(distance, contexts, strict=True)
    ]
    return float(max(relative))


@dataclass
class Draft:
    """Ground truth of a model while its weights are set.

    Attributes:
        context: least and largest number of observed values that the rule takes.
        horizon: steps of one forecast.
        squash: the model's transform of standardised values.
        scale: function of a context that gives the model's divisor of its values.
    """

    rule: Any
    context: tuple[int, int]
    horizon: int
    squash: Callable[[Array], Array] = np.asarray
    scale: Callable[[Array], Any] = np.std
    parts: list[PlantedPart] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    attends: list[Attends] = field(default_factory=list)

    def part(
        self,
        component: str,
        role: Role,
        does: str,
        query: Query | None = None,
        back: Sequence[int] = (),
        *,
        stands_in_for: str | None = None,
        **attention: Any,
    ) -> str:
        """Write down a part, and where it looks.

        All its attention goes there, unless another weight is stated.

        Returns:
            Its component.
        """
        self.parts.append(
            PlantedPart(
                component=component, role=role, does=does, stands_in_for=stands_in_for
            )
        )
        if query is not None:
            fields = {"weight": 1.0, "back": tuple(back), **attention}
            self.attends.append(Attends(component=component, query=query, **fields))
        return component

    def path(self, *components: str) -> None:
        """Write down that each component passes something on to the next."""
        self.edges += [edge for edge in pairwise(components) if edge not in self.edges]

    def finish(
        self, model: Any, contexts: Iterable[Array], *, allowed: float, **metadata: Any
    ) -> Planted:
        """Measure the error on some contexts, and put the card together."""
        quantiles, rule, series = self.tried(model, contexts)
        names = [metadata[key] for key in ("mechanism", "architecture", "seed")]
        # a rule that reads up to the end of the context has an ``ago`` of 0, no suffix
        moved_back = [ago for ago in self.rule.ago if ago]
        card = Card(
            name="-".join(map(str, [*names, *moved_back])),
            rule=self.rule,
            parts=tuple(sorted(self.parts, key=lambda part: part.component)),
            edges=tuple(self.edges),
            attends=tuple(self.attends),
            context=self.context,
            horizon=self.horizon,
            # levels are odd in number and symmetric, so that the middle one is the
            # median
            error=_largest(quantiles[:, quantiles.shape[1] // 2], rule, series),
            **metadata,
        )
        # ``not … <=`` instead of ``>``: NaN must be refused, too
        if not card.weight_noise and not card.error <= allowed:
            raise LensError(
                f"{card.name}: the median forecast is off the rule by {card.error:.3g}"
                f" mean absolute values, expected at most {allowed:.3g}: the weights do"
                " not hold the mechanism"
            )
        return Planted(model, card)

    def tried(self, model: Any, contexts: Iterable[Array]) -> Trials:
        """Return what the model and the rule forecast, and the series that were tried.

        Series near a gate's threshold are left out.
        """
        margin = getattr(self.rule, "margin", None)
        series = [
            context
            for context in contexts
            if margin is None or abs(margin(context)) > HALF_OPEN
        ]
        # unchecked, since the comparison with the rule below is the stronger test
        quantiles = load(model, check=False).forecast(series, self.horizon).quantiles
        return (
            quantiles,
            np.stack([self.rule.forecast(context, self.horizon) for context in series]),
            series,
        )

    def offsets(self, model: Any) -> Array:
        """Compute how far quantiles are from the rule, (quantile, step).

        Offsets are medians over series, in the squashed units that the readout gives.

        Returns:
            The offsets.
        """
        quantiles, rule, contexts = self.tried(model, self.easy())
        # both (series, 1, 1), beside quantiles of (series, quantile, step)
        loc, scale = (
            np.array([statistic(context) for context in contexts])[:, None, None]
            for statistic in (np.mean, self.scale)
        )
        actual, target = (
            self.squash((values - loc) / scale) for values in (quantiles, rule[:, None])
        )
        # a median, since an outlier of a series changes the model's norms, and so the
        # error
        return np.median(actual - target, axis=0)

    def easy(self) -> Iterable[Array]:
        """Return the series on which :meth:`offsets` are measured."""
        # always the same series, so that a seed's model does not depend on anything
        # else
        return np.random.default_rng(0).standard_normal((N_CENTRING, self.context[1]))

    def hard(self, seed: int = 0) -> Iterable[Array]:
        """Return series on which the error of the card is measured."""
        return draw_contexts(self.rule, N_TRIALS, self.context, seed=seed)


def steps_ago(reads: Reads, needed: int, unit: int) -> tuple[int, ...]:
    """Return how many last steps of the context a rule leaves out, for each place read.

    They are multiples of ``unit``. The ``needed`` steps before each stay within `SPAN`.
    """
    room = (SPAN - needed) // unit
    return tuple(round(fraction * room) * unit for fraction in BACK[reads])


def draw_choice(*choices: int) -> int:
    """Draw one of the choices at random."""
    return choices[int(torch.randint(len(choices), ()))]


def allot(width: int, sizes: Mapping[str, int]) -> dict[str, slice]:
    """Lay blocks of given sizes into a stream; the rest of it is the block "junk"."""
    stops = [*np.cumsum([0, *sizes.values()]).tolist(), width]
    return dict(zip([*sizes, "junk"], map(slice, stops, stops[1:]), strict=True))


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions (width, width) of a residual stream, in named blocks."""

    directions: Tensor
    blocks: Mapping[str, slice]

    @classmethod
    def draw(
        cls, width: int, sizes: Mapping[str, int], *, seed: int, rotate: bool
    ) -> Basis:
        """Lay blocks of given sizes into a stream.

        They lie along its axes, or are turned at random with ``rotate``.

        Returns:
            The basis.
        """
        axes = torch.eye(width, dtype=torch.float64)
        return cls(orthogonal(width, seed) if rotate else axes, allot(width, sizes))

    def __getitem__(self, name: str) -> Tensor:
        """Return directions of a block: (size, width)."""
        return self.directions[self.blocks[name]]

    def span(self, *names: str) -> Tensor:
        """Concatenate directions of several blocks: (directions, width)."""
        return torch.cat([self[name] for name in names])


def orthogonal(width: int, seed: int) -> Tensor:
    """Draw an orthogonal matrix (width, width) in double precision.

    It is uniform over all of them (Mezzadri, 2007).

    Returns:
        The matrix.
    """
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(
        torch.randn(width, width, generator=generator, dtype=torch.float64)
    )
    # the signs make the decomposition unique, and with it the draw uniform
    return q * r.diagonal().sign()


def add_weight_noise(model: nn.Module, level: float, seed: int) -> None:
    """Add Gaussian noise to every matrix of a model, in place.

    Vectors, the gains of norms, stay as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    # tied matrices appear once
    for weight in model.parameters():
        if weight.ndim > 1:
            noise = torch.randn(weight.shape, generator=generator)
            # scaled by each matrix's own size, since weights of parts differ by orders
            # of magnitude
            weight.data += level * weight.data.square().mean().sqrt() * noise.to(weight)
