"""Activation patching: put activations of one run into another, and see how much of its forecast comes along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.contrast import Contrast, Direction, contrast
from tsfm_lens.probes.places import Place, group_coords, place_coords, places_of, position_groups
from tsfm_lens.probes.runs import Progress
from tsfm_lens.probes.trajectory import describe

_SOURCE = "Meng et al. 2022 (causal tracing); Heimersheim and Nanda 2024, arXiv:2404.15255"


def activation_patching(
    lens: Lens,
    clean: Any,
    corrupted: Any,
    horizon: int | None = None,
    *,
    at: str | Sequence[str | Component] = "stream",
    stack: str | None = None,
    positions: str | int | None = None,
    direction: Direction = "denoise",
    rollout: bool | None = None,
    along: Any = None,
    num_samples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Patch every place and token position of a clean run into the corrupted one, or the other way round.

    The corruption should keep a series' mean and scale: models normalise each series by its own, which no patch
    carries over.

    Args:
        lens: the model.
        clean: series.
        corrupted: the same series with something taken away, of equal lengths; see
            :mod:`tsfm_lens.data.corruption`.
        horizon: forecast steps; the model's prediction length if None.
        at: "stream" (residual stream before each layer, and after the last), "branches", "heads", or names and globs
            of components and residual hook points.
        stack: the stack whose tokens are patched; the first if None.
        positions: "all" tokens at once, "each" token, or that many tokens at a time; None makes at most 32 groups.
        direction: "denoise" puts clean activations into the corrupted run (what suffices), "noise" corrupted ones
            into the clean run (what is needed).
        rollout, along: see :func:`tsfm_lens.probes.runs.runs_of`. In a rollout, activations of the same pass and
            position are put in, in every pass.
        num_samples, seed: of rollouts.
        progress: called with (done, of).

    Returns:
        Dataset of kind "patching" over (component, position, series): ``recovered``, the share of the way from the
        unpatched forecast to the source's (0 none, 1 all; a projection, so it may lie outside); ``effect``, the mean
        distance from the unpatched forecast in data units; ``forecast`` (…, step); ``clean_forecast`` and
        ``corrupted_forecast`` (series, step); ``corrupted_context``. Positions have ``position_start``,
        ``position_stop`` in steps from the forecast start, and ``position_special``.

    Source:
        Meng et al. 2022; Heimersheim and Nanda 2024 on the two directions.

    Raises:
        InputError: the batches differ in length, the corruption does nothing, or places lie in several stacks while
            positions are told apart.
        UnknownNameError: no such place.
    """
    places = places_of(lens, at, stack)
    pair = contrast(
        lens,
        clean,
        corrupted,
        horizon,
        names=sorted({place.point for place in places}),
        direction=direction,
        rollout=rollout,
        along=along,
        num_samples=num_samples,
        seed=seed,
    )
    groups = groups_of(pair, places, positions)
    whole = positions == "all"
    variants = [
        Variant(
            f"{place.target}@{group[0]}",
            (PatchFrom(place.target, pair.source_acts, positions=None if whole else group),),
        )
        for place in places
        for group in groups
    ]
    forecasts = pair.base.forecasts(variants, progress)
    forecasts = forecasts.reshape(len(places), len(groups), *forecasts.shape[1:])
    data = pair.dataset().assign_coords({**place_coords(places), **_coords(pair, places, groups)})
    data["recovered"] = (("component", "position", "series"), pair.recovered(forecasts))
    data["effect"] = (("component", "position", "series"), pair.effect(forecasts))
    data["forecast"] = (("component", "position", "series", "step"), forecasts)
    data.attrs = describe(
        lens, "patching", "Activation patching", _SOURCE, **{**pair.parameters(), "positions": str(positions)}
    )
    return data


def patches(pair: Contrast, places: Sequence[Place], groups: Sequence[Sequence[int] | None]) -> list[Variant]:
    """One variant a place and group of positions (None: all), places first."""
    return [
        Variant(str(place.target), (PatchFrom(place.target, pair.source_acts, positions=group),))
        for place in places
        for group in groups
    ]


def groups_of(pair: Contrast, places: Sequence[Place], positions: str | int | None) -> list[list[int]]:
    """Token groups of the places' stack; one group if ``positions`` is "all".

    Raises:
        InputError: places of several stacks while positions are told apart.
    """
    stacks = sorted({place.stack for place in places})
    if len(stacks) > 1 and positions != "all":
        raise InputError(
            f"the places lie in {' and '.join(stacks)}, whose tokens are not the same; patch one stack at a time, or "
            "positions='all'"
        )
    return position_groups(pair.base.encoded.spans[stacks[0]], positions)


def _coords(pair: Contrast, places: Sequence[Place], groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    return group_coords(pair.base.encoded.spans[places[0].stack], groups)
