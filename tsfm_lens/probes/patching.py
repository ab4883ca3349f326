"""Activation patching: activations of one run put into another, and the share of the forecast that they recover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import Change, Intervention, PatchFrom, Rows
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.state import RunState
from tsfm_lens.models.run import Run
from tsfm_lens.probes.contrast import Direction, RunPair, contrast
from tsfm_lens.probes.places import Place, group_coords, place_coords, places_of, position_groups
from tsfm_lens.registry import probe

__all__ = ["activation_patching"]

_SOURCE = "Meng et al. 2022 (causal tracing); Heimersheim and Nanda 2024, arXiv:2404.15255"


@probe("patching", "pair")
def activation_patching(
    clean: Run,
    corrupted: Run,
    *,
    at: str | Sequence[str | Component] = "stream",
    stack: str | None = None,
    positions: str | int | None = None,
    direction: Direction = "denoise",
    progress: Progress | None = None,
) -> xr.Dataset:
    """Patch every place and token position of a clean run into the corrupted one, or the other way round.

    The corruption should keep a series' mean and scale: models normalise each series by its own, which no patch
    carries over. A component that does the same on both series recovers nothing, however much the forecast needs it.
    Ablation finds a head that marks positions, and patching does not.

    In rollouts every pass takes activations of the same pass and position. A group of positions is then the tokens that
    cover the same steps, so that it stays in its place when the context is encoded anew.

    Args:
        clean: the run to explain.
        corrupted: a run of the same series with something removed, of equal lengths (see
            :mod:`tsfm_lens.data.corruption`), made as the clean one is. In single forwards of a token model both
            decoders follow the path of the run that is patched.
        at: "stream" (residual stream around each layer), "branches", "heads", or names and globs of places.
        stack: the stack whose tokens are patched; the first if None.
        positions: "all" tokens at once, "each" token, or that many tokens at a time; None makes at most 32 groups.
        direction: "denoise" puts clean activations into the corrupted run (what suffices), "noise" corrupted ones
            into the clean run (what is needed).
        progress: called with (done, of).

    Returns:
        Dataset of kind "patching" over (component, position, series): ``recovered``, the share of the way from the
        unpatched forecast to the source's (0 none, 1 all; a projection, so it may lie outside); ``effect``, the mean
        distance from the unpatched forecast in data units; for both what :func:`tsfm_lens.probes.findings.judge` adds,
        with the noise of both runs; ``forecast`` (…, step); ``clean_forecast`` and
        ``corrupted_forecast`` (series, step); ``corrupted_context``. Positions have ``position_start``,
        ``position_stop`` in steps from the forecast start, and ``position_special``.

    Source:
        Meng et al. 2022; Heimersheim and Nanda 2024 on the two directions.

    Raises:
        InputError: the runs are not made alike, the batches differ in length, the corruption does nothing, or places
            lie in several stacks while positions are told apart.
        UnknownNameError: no such place.

    Example:
        >>> data = probes.activation_patching(run, corrupted, positions="all")
        >>> dict(data["recovered"].sizes)
        {'component': 4, 'position': 1, 'series': 1}
    """
    places = places_of(clean.lens, at, stack)
    pair = contrast(clean, corrupted, names=sorted({place.point for place in places}), direction=direction)
    groups, where = grid_of(pair, places, positions)
    forecasts = point_forecasts(pair.base, patches(pair, places, groups), progress)
    forecasts = forecasts.reshape(len(places), len(groups), *forecasts.shape[1:])
    data = pair.dataset().assign_coords({**place_coords(places), **where})
    axes = ("component", "position", "series")
    shares = {"recovered": (axes, pair.recovered(forecasts)), "effect": (axes, pair.effect(forecasts))}
    data = data.assign(shares | {"forecast": ((*axes, "step"), forecasts)})
    parameters = {**pair.parameters(), "positions": str(positions)}
    data.attrs = clean.describe("patching", "Activation patching", _SOURCE, **parameters)
    return pair.judged(data)


def patches(pair: RunPair, places: Sequence[Place], groups: Sequence[list[int] | None]) -> list[Variant]:
    """Return one variant a place and group of positions (None: all), places first."""
    return [Variant(str(place.target), (_patch(pair, place, group),)) for place in places for group in groups]


def _patch(pair: RunPair, place: Place, group: list[int] | None) -> Intervention:
    if group is None or not pair.base.rollout:
        return PatchFrom(place.target, pair.source_acts, positions=group)
    spans = pair.base.spans[place.stack]
    ordinary = [token for token in group if not spans.special[token]]
    start = min((spans.start[token] for token in ordinary), default=0)
    stop = max((spans.stop[token] for token in ordinary), default=0)
    words = frozenset(spans.special[token] for token in group) - {""}
    return _PatchSteps(place.target, pair.source_acts, start, stop, words)


def grid_of(
    pair: RunPair, places: Sequence[Place], positions: str | int | None
) -> tuple[list[list[int] | None], dict[str, Any]]:
    """Return token groups of the places' stack, [None] for all tokens at once, and their coordinates.

    Raises:
        InputError: places of several stacks while positions are told apart.
    """
    spans = [pair.base.spans[stack] for stack in dict.fromkeys(place.stack for place in places)]
    if len(spans) > 1 and positions != "all":
        names = " and ".join(sorted({place.stack for place in places}))
        raise InputError(
            f"the places lie in {names}, whose tokens are not the same; patch one stack at a time, or positions='all'"
        )
    if positions != "all":
        groups = position_groups(spans[0], positions)
        return list(groups), group_coords(spans[0], groups)
    whole = [group_coords(tokens, [list(range(len(tokens)))]) for tokens in spans]
    edges = {"position_start": min, "position_stop": max}
    coords = {name: ("position", [of(coord[name][1][0] for coord in whole)]) for name, of in edges.items()}
    return [None], {"position": [0], **coords, "position_special": ("position", [""])}


@dataclass(frozen=True, eq=False)
class _PatchSteps:
    """Replacement of the tokens whose middle is from start to stop, and special ones, by those of another run."""

    target: Component | str
    source: Activations
    start: int
    stop: int
    special: frozenset[str]
    rows: Rows = None
    positions: Rows = None
    by_place: ClassVar[bool] = True

    def change(self, point: Point) -> Change:
        """Return a function that takes the stored value where a token belongs to the steps."""
        whole = PatchFrom(self.target, self.source).change(point)
        spans_at = self.source.spans_at
        assert spans_at is not None
        first = self.source.calls(point.name)[0].value.shape[1]

        def patch(value: Tensor, state: RunState) -> Tensor:
            offset = state.offset.get(point.stack, 0)
            spans = spans_at(point.stack, state.step, offset, value.shape[1], first)
            tokens = zip(spans.start, spans.stop, spans.special, strict=True)
            inside = [
                word in self.special if word else self.start <= (begin + end - 1) / 2 < self.stop
                for begin, end, word in tokens
            ]
            if not any(inside):
                return value
            mask = torch.tensor(inside, device=value.device).reshape(1, -1, *[1] * (value.ndim - 2))
            return torch.where(mask, whole(value, state), value)

        return patch
