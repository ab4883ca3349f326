"""Path patching: effect of one component through another, with every other path held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from torch import Tensor

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations, Call
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import Change, Intervention, PatchFrom, Rows, rows_in_place
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.state import RunState
from tsfm_lens.models.run import Run
from tsfm_lens.probes.contrast import Direction, RunPair, contrast
from tsfm_lens.probes.places import Place, later_branches, listed, place_coords, places_of
from tsfm_lens.registry import probe

__all__ = ["path_patching"]

_SOURCE = "Wang et al. 2022, arXiv:2211.00593; Goldowsky-Dill et al. 2023, arXiv:2304.05969"
OUTPUT = "output"
_INPUTS = ("all", "q", "k", "v")
# least senders run together, numbers in memory up to which more of them are, and most paths gathered before a run
_SENDERS, _NUMBERS, _MOST_PATHS = 16, 2**24, 256


@probe("paths", "pair")
def path_patching(
    clean: Run,
    corrupted: Run,
    *,
    senders: Sequence[str | Component] | None = None,
    receivers: Sequence[str | Component] | None = None,
    via: str = "all",
    direction: Direction = "noise",
    progress: Progress | None = None,
) -> xr.Dataset:
    """Patch the path from each sender to each receiver.

    First the sender is patched from the source run, while every later branch, attention and MLP alike, is held at the
    base run's write. Each receiver's activation under this change is recorded. Then only the receiver is set to that
    activation, and all behind it is free. (Wang et al. hold attention only, and their paths include MLPs.)

    A sender that does the same on both series passes no difference on. No path out of it is found, however much the
    forecast needs it: in planted Chronos models those of a head that marks the last period.

    Args:
        clean, corrupted, direction: see :func:`tsfm_lens.probes.patching.activation_patching`.
        senders: heads and branches; the heads and MLPs of the stack that is read out if None.
        receivers: likewise, and "output" for the direct path to the forecast; as the senders, and "output", if None.
        via: the input of receiving heads that changes: "all", "q", "k" or "v".
        progress: called with (done, of), in senders.

    Returns:
        Dataset of kind "paths" over (sender, receiver, series): ``recovered`` and ``effect`` as in activation
        patching, with the same statistics, ``forecast`` (…, step). NaN where a receiver does not come after the sender.

    Source:
        Wang et al. 2022; Goldowsky-Dill et al. 2023.

    Raises:
        InputError: no such input, or receivers that are no heads while ``via`` names one; as in activation patching.
        UnknownNameError: no such component.

    Example:
        >>> data = probes.path_patching(run, corrupted, senders=["decoder.0.mlp"], receivers=["output"])
        >>> dict(data["recovered"].sizes)
        {'sender': 1, 'receiver': 1, 'series': 1}
    """
    if via not in _INPUTS:
        raise InputError(f"via={via!r} is not known, choose one of {', '.join(_INPUTS)}")
    lens = clean.lens
    default: list[str | Component] = list(writers(lens.wiring))
    froms = places_of(lens, default if senders is None else listed(senders, "senders"))
    targets = [*default, OUTPUT] if receivers is None else listed(receivers, "receivers")
    to_output = OUTPUT in targets
    inner = [receiver for receiver in targets if receiver != OUTPUT]
    tos = places_of(lens, inner) if inner else []
    if via != "all":
        tos = [place for place in tos if place.head is not None] if receivers is None else tos
        if any(place.head is None for place in tos):
            raise InputError(f"via={via!r} is an input of heads; name only heads as receivers")
    pair = sender_contrast(clean, corrupted, froms, direction=direction)
    forecasts = np.full((len(froms), len(tos) + to_output, *pair.base_forecast.shape), np.nan)
    edges: list[tuple[int, int]] = []
    variants: list[Variant] = []

    def run_paths() -> None:
        """Run the gathered paths, so that no more than that are held."""
        if edges:
            forecasts[tuple(zip(*edges, strict=True))] = point_forecasts(pair.base, variants)
        edges.clear()
        variants.clear()

    for row, (sender, direct, receiver_acts) in enumerate(heard_by(pair, froms, tos, via)):
        later = set(later_branches(lens.wiring, component_at(sender)))
        columns = [column for column, place in enumerate(tos) if branch_at(place) in later]
        edges += [(row, column) for column in columns]
        variants += [Variant("path", (_receive(tos[column], receiver_acts, via),)) for column in columns]
        if to_output:
            forecasts[row, -1] = direct
        if len(variants) >= _MOST_PATHS:
            run_paths()
        if progress is not None:
            progress(row + 1, len(froms))
    run_paths()
    data = pair.dataset().assign_coords(place_coords(froms, "sender"))
    names = [*(str(place.target) for place in tos), *([OUTPUT] if to_output else [])]
    data = data.assign_coords(receiver=names)
    data["recovered"] = (("sender", "receiver", "series"), pair.recovered(forecasts))
    data["effect"] = (("sender", "receiver", "series"), pair.effect(forecasts))
    data["forecast"] = (("sender", "receiver", "series", "step"), forecasts)
    data.attrs = clean.describe("paths", "Path patching", _SOURCE, **pair.parameters(), via=via)
    return pair.judged(data)


def sender_contrast(clean: Run, corrupted: Run, senders: Sequence[Place], *, direction: Direction = "noise") -> RunPair:
    """Record a contrast: the senders' activations in the source, every branch's write in the base."""
    wiring = clean.lens.wiring
    branch_points = {
        f"{wiring.stack(branch.stack).prefix}.{branch.layer}.{branch.kind}.hook_out"
        for sender in senders
        for branch in later_branches(wiring, component_at(sender))
    }
    names = sorted({place.point for place in senders})
    return contrast(clean, corrupted, names=names, base_names=sorted(branch_points), direction=direction)


def heard_by(
    pair: RunPair, senders: Sequence[Place], receivers: Sequence[Place], via: str = "all"
) -> Iterator[tuple[Place, np.ndarray, Activations]]:
    """Yield each sender, its direct effect's forecast (series, step), and the activations of its receivers.

    Activations are those under the sender's change alone: heads' outputs or MLPs' writes, or with ``via`` heads'
    queries, keys or values.
    """
    for group in heard_in_groups(pair, senders, receivers, via):
        yield from group


def heard_in_groups(
    pair: RunPair, senders: Sequence[Place], receivers: Sequence[Place], via: str = "all"
) -> Iterator[list[tuple[Place, np.ndarray, Activations]]]:
    """Yield the results of :func:`heard_by` in lists, of as many senders as are run together."""
    points = len({place.point for place in receivers})
    tokens = max(len(spans) for spans in pair.base.spans.values()) * len(pair.base.batch)
    fit = _NUMBERS // (tokens * pair.base.lens.d_model * max(points, 1))
    step = max(_SENDERS, fit)
    for first in range(0, len(senders), step):
        yield _run_together(pair, senders[first : first + step], receivers, via)


def _run_together(
    pair: RunPair, senders: Sequence[Place], receivers: Sequence[Place], via: str
) -> list[tuple[Place, np.ndarray, Activations]]:
    run = pair.base
    stores: list[dict[str, list[Call]]] = [{} for _ in senders]
    variants = []
    for sender, store in zip(senders, stores, strict=True):
        later = later_branches(run.lens.wiring, component_at(sender))
        points = dict.fromkeys(_input(place, via) for place in receivers if branch_at(place) in later)
        listeners = [_Listener(point, store) for point in points]
        # a branch is recorded before it is held, so listeners come first
        patches = [PatchFrom(branch, pair.base_acts) for branch in later]
        variants.append(Variant(str(sender.target), (PatchFrom(sender.target, pair.source_acts), *listeners, *patches)))
    direct = point_forecasts(run, variants)
    receiver_acts = [
        Activations(run.lens.registry.points, run.rollout, run.batch.ids, recorded=store) for store in stores
    ]
    return list(zip(senders, direct, receiver_acts, strict=True))


@dataclass(frozen=True, eq=False)
class _Listener:
    """Recorder of an activation, which passes unchanged."""

    target: str
    store: dict[str, list[Call]]
    rows: Rows = None
    positions: Rows = None

    def change(self, point: Point) -> Change:
        """Return a function that records the value and returns it."""

        def record(value: Tensor, state: RunState) -> Tensor:
            offset = state.offset.get(point.stack, 0)
            calls = self.store.setdefault(point.name, [])
            # a forecast may start again, as after a measurement of its memory
            if (state.step, offset) not in [(call.step, call.offset) for call in calls]:
                calls.append(Call(state.step, offset, value.detach().clone()))
            return value

        return record


@dataclass(frozen=True, eq=False)
class _HeadInput:
    """Replacement of one head's queries, keys or values by those of another run."""

    target: str
    head: int
    source: Activations
    rows: Rows = None
    positions: Rows = None
    by_place: ClassVar[bool] = True

    def change(self, point: Point) -> Change:
        """Return a function that exchanges one head's part of the value."""

        def exchange(value: Tensor, state: RunState) -> Tensor:
            out = value.clone()
            out[..., self.head, :] = rows_in_place(self.source, point, value, state)[..., self.head, :].to(value)
            return out

        return exchange


def _receive(place: Place, receiver_acts: Activations, via: str) -> Intervention:
    if via == "all" or place.head is None:
        return PatchFrom(place.target, receiver_acts)
    return _HeadInput(_input(place, via), place.head, receiver_acts)


def _input(place: Place, via: str) -> str:
    """Return the hook point at which a receiver is recorded."""
    return place.point if via == "all" else place.point.replace("hook_z", f"hook_{via}")


def component_at(place: Place) -> Component:
    """Return the component at a place.

    Raises:
        InputError: it is a residual stream.
    """
    if isinstance(place.target, str):
        raise InputError(f"{place.target} is a residual stream; paths run between components")
    return place.target


def branch_at(place: Place) -> Component:
    """Return the branch that a place is, or is a head of."""
    component = component_at(place)
    return Component(component.stack, component.layer, component.kind)
