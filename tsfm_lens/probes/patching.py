"""Patching of activations and of paths: one run's activations put into another, and what they recover."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.metrics import spearman_distance
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations, Call
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import Change, Intervention, PatchFrom, Rows, rows_in_place
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.state import RunState
from tsfm_lens.models.adapter import refuse_gradients
from tsfm_lens.models.noise import noise_floor, share_floor, told_apart
from tsfm_lens.models.recording import refuse_run
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.given import refuse_word
from tsfm_lens.probes.places import (
    Place,
    group_coords,
    later_branches,
    listed,
    nodes_of,
    place_coords,
    place_of,
    places_of,
    position_groups,
)
from tsfm_lens.registry import probe

__all__ = ["activation_patching", "attribution_patching", "edge_attribution", "path_patching"]

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

    The corruption should keep a series' mean and scale, which no patch carries over.

    Args:
        clean: the run to explain.
        corrupted: a run of the same series with something removed, of equal lengths (see
            :mod:`tsfm_lens.data.corruption`), made as the clean one is.
        at: "stream" (residual stream around each layer), "branches", "heads", or names and globs of places.
        stack: the stack whose tokens are patched; the first if None.
        positions: "all" tokens at once, "each" token, or that many tokens at a time; None makes at most 32 groups. In
            rollouts a group is the tokens that cover the same steps.
        direction: "denoise" puts clean activations into the corrupted run (what suffices), "noise" the other way (what
            is needed).
        progress: called with (done, of).

    Returns:
        Dataset of kind "patching" over (component, position, series): ``recovered``, the share of the way from the
        unpatched forecast to the source's (a projection, so it may lie outside 0 and 1); ``effect``, the mean distance
        from the unpatched forecast in data units; for both what :func:`tsfm_lens.probes.findings.judge` adds, with the
        noise of both runs; ``forecast`` (…, step); ``clean_forecast`` and ``corrupted_forecast`` (series, step);
        ``corrupted_context``. Positions have ``position_start``, ``position_stop`` in steps, and ``position_special``.

    Source:
        Meng et al. 2022; Heimersheim and Nanda 2024 on the two directions.

    Raises:
        InputError: the runs are not made alike or differ in length, the corruption does nothing, or places lie in
            several stacks while positions are told apart.
        UnknownNameError: no such place.

    Example:
        >>> data = probes.activation_patching(run, corrupted, positions="all")
        >>> dict(data["recovered"].sizes)
        {'component': 4, 'position': 1, 'series': 1}
    """
    places = places_of(clean.lens, at, stack)
    pair = contrast(clean, corrupted, places, direction=direction)
    groups, where = grid_of(pair, places, positions)
    forecasts = point_forecasts(pair.base, patches(pair, places, groups), progress)
    forecasts = forecasts.reshape(len(places), len(groups), *forecasts.shape[1:])
    parameters = {**pair.parameters(), "positions": str(positions)}
    attrs = clean.describe("patching", "Activation patching", _SOURCE, **parameters)
    return pair.result(forecasts, {**place_coords(places), **where}, attrs)


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
    return _steps_patch(place.target, pair.source_acts, start, stop, words)


def grid_of(
    pair: RunPair, places: Sequence[Place], positions: str | int | None
) -> tuple[list[list[int] | None], dict[str, Any]]:
    """Return token groups of the places' stack, [None] for all tokens at once, and their coordinates."""
    spans = {place.stack: pair.base.spans[place.stack] for place in places}
    first, *others = spans.values()
    if positions != "all":
        if others:
            raise InputError(
                f"the places lie in {' and '.join(sorted(spans))}, whose tokens are not the same; patch one stack at a "
                "time, or positions='all'"
            )
        groups = position_groups(first, positions)
        return list(groups), group_coords(first, groups)
    whole = [group_coords(tokens, [list(range(len(tokens)))]) for tokens in spans.values()]
    edges = {"position_start": min, "position_stop": max}
    coords = {name: ("position", [of(coord[name][1][0] for coord in whole)]) for name, of in edges.items()}
    return [None], {"position": [0], **coords, "position_special": ("position", [""])}


@dataclass(frozen=True, eq=False)
class _PointEdit:
    """Intervention that a function of (value, state, point) makes."""

    target: Component | str
    function: Callable[[Tensor, RunState, Point], Tensor]
    by_place: bool = True
    rows: Rows = None
    positions: Rows = None

    def change(self, point: Point) -> Change:
        """Return the function at one hook point."""
        return lambda value, state: self.function(value, state, point)


def _steps_patch(
    target: Component | str, source: Activations, start: int, stop: int, special: frozenset[str]
) -> Intervention:
    """Replace tokens whose middle is from start to stop, and special ones, by those of another run."""

    def patch(value: Tensor, state: RunState, point: Point) -> Tensor:
        assert source.spans_at is not None
        first, offset = source.calls(point.name)[0].value.shape[1], state.offset.get(point.stack, 0)
        spans = source.spans_at(point.stack, state.step, offset, value.shape[1], first)
        tokens = zip(spans.start, spans.stop, spans.special, strict=True)
        inside = [word in special if word else start <= (begin + end - 1) / 2 < stop for begin, end, word in tokens]
        if not any(inside):
            return value
        mask = torch.tensor(inside, device=value.device).reshape(1, -1, *[1] * (value.ndim - 2))
        return torch.where(mask, PatchFrom(target, source).change(point)(value, state), value)

    return _PointEdit(target, patch)


Direction = Literal["denoise", "noise"]


@dataclass(frozen=True)
class RunPair:
    """Two runs, of batches of equal shape."""

    base: Run
    source: Run
    direction: Direction
    base_acts: Activations
    source_acts: Activations

    @property
    def way(self) -> np.ndarray:
        """Difference of the source's forecast from the base's, (series, step)."""
        return self.source.point - self.base.point

    def recovered(self, forecasts: np.ndarray) -> np.ndarray:
        """Measure how far forecasts (…, series, step) are on the way from base to source, (…, series)."""
        return ((forecasts - self.base.point) * self.way).sum(-1) / np.square(self.way).sum(-1)

    def result(
        self,
        forecasts: np.ndarray,
        coords: dict[str, Any],
        attrs: dict[str, object],
        dims: tuple[str, ...] = ("component", "position"),
    ) -> xr.Dataset:
        """Return patched forecasts (…, series, step), the share recovered and the effect in data units, judged."""
        axes, effect = (*dims, "series"), np.abs(forecasts - self.base.point).mean(-1)
        shares = {"recovered": (axes, self.recovered(forecasts)), "effect": (axes, effect)}
        data = self.dataset().assign_coords(coords).assign(shares | {"forecast": ((*axes, "step"), forecasts)})
        data.attrs = attrs
        return self.judged(data)

    def judged(self, data: xr.Dataset) -> xr.Dataset:
        """Add intervals, floors of both runs, and what stands out, for the effects that a result holds."""
        runs = (self.base, self.source)
        for name in ("recovered", "first_order", "score"):
            if name in data:
                floor = np.fmax(*(share_floor(run, self.way) for run in runs))
                data = judge(data, name, floor=floor, signed=True)
        if "effect" in data:
            floor = np.fmax(*(noise_floor(run, lambda a, b: np.abs(a - b).mean(-1)) for run in runs))
            data = judge(data, "effect", floor=floor)
        return data

    def dataset(self) -> xr.Dataset:
        """Return both contexts, both forecasts, and their coordinates."""
        clean, corrupted = (self.source, self.base) if self.direction == "denoise" else (self.base, self.source)
        axes = ("series", "step")
        forecasts = {"clean_forecast": (axes, clean.point), "corrupted_forecast": (axes, corrupted.point)}
        return clean.dataset().assign({"corrupted_context": corrupted.dataset()["context"]} | forecasts)

    def parameters(self) -> dict[str, object]:
        """Return attributes that say how a result was run."""
        return {"direction": self.direction, "rollout": int(self.base.rollout), "statistic": self.base.statistic}


def contrast(
    clean: Run,
    corrupted: Run,
    places: Sequence[Place],
    *,
    base_names: Sequence[str] = (),
    direction: Direction = "denoise",
) -> RunPair:
    """Record both runs, the source at the places."""
    refuse_word("direction", direction, ("denoise", "noise"))
    _refuse_unlike(clean, corrupted)
    source, base = (clean, corrupted) if direction == "denoise" else (corrupted, clean)
    if base.tokens_read and not base.rollout and source.forced_path is None:
        source = source.following(base.path)
    base_acts, source_acts = _record(base, base_names), _record(source, _points(places))
    same = (told_apart(base, source.point, base.point) == base.point).all(-1)
    if same.any():
        name = clean.batch.ids[int(np.argmax(same))]
        raise InputError(
            f"clean and corrupted forecasts of series {name!r} are the same, so there is nothing to recover: corrupt "
            "more, or what the model reads"
        )
    return RunPair(base, source, direction, base_acts, source_acts)


def _record(run: Run, names: Sequence[str]) -> Activations:
    return run.record(names) if names else Activations(run.lens.registry.points, run.rollout, run.batch.ids)


def _refuse_unlike(clean: Run, corrupted: Run) -> None:
    if clean.lens is not corrupted.lens:
        raise InputError(
            f"the clean run is of {clean.lens.model_id}, the corrupted of {corrupted.lens.model_id} as another lens; "
            "make both with the same lens"
        )
    for what in ("horizon", "rollout", "num_samples", "seed"):
        one, other = getattr(clean, what), getattr(corrupted, what)
        if one != other:
            raise InputError(f"the clean run has {what} {one}, the corrupted {other}; make both with the same {what}")
    batch, changed = clean.batch, corrupted.batch
    if batch.lengths != changed.lengths:
        raise InputError(
            f"the clean series have lengths {batch.lengths}, the corrupted {changed.lengths}: their tokens must "
            "stand at the same positions, so corrupt values without adding or removing steps"
        )
    if not np.array_equal(batch.group_index, changed.group_index):
        raise InputError("clean and corrupted series are grouped into items differently, so variates would differ")
    if batch.ids != changed.ids and set(batch.ids) == set(changed.ids):
        raise InputError(
            f"clean series are in the order {', '.join(batch.ids)}, corrupted in {', '.join(changed.ids)}; "
            "corrupted.select(clean.batch.ids) puts them in order"
        )


@probe("attribution_patching", "pair")
def attribution_patching(
    clean: Run,
    corrupted: Run,
    *,
    at: str | Sequence[str | Component] = "stream",
    stack: str | None = None,
    positions: str | int | None = None,
    direction: Direction = "denoise",
    exact: bool = True,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Estimate what patching each place would recover, from the gradient at the unpatched run.

    A saturated gate or softmax has no gradient, so the estimate misses its part.

    Args:
        clean, corrupted, at, stack, positions, direction: see :func:`tsfm_lens.probes.activation_patching`.
        exact: also patch, to measure the estimate's error.
        progress: of the exact patching.

    Returns:
        Dataset of kind "attribution_patching" over (component, position, series): ``first_order``, the estimated share
        recovered; with ``exact`` also ``recovered``, ``error`` = first_order - recovered, and attributes
        ``mean_absolute_error`` and ``rank_correlation`` over all cells; for both shares what
        :func:`tsfm_lens.probes.findings.judge` adds, with the noise of both runs.

    Source:
        Nanda 2023; Syed et al. 2023.

    Raises:
        InputError: gradients that are no derivatives, a multivariate batch, or a horizon longer than one pass.

    Example:
        >>> probes.attribution_patching(run, corrupted, exact=False)["first_order"].dims
        ('component', 'position', 'series')
    """
    lens = clean.lens
    refuse_gradients(lens.wiring)
    places = places_of(lens, at, stack)
    pair = contrast(clean.in_one_pass(), corrupted.in_one_pass(), places, direction=direction)
    acts = slopes(pair, places)
    groups, where = grid_of(pair, places, positions)
    first_order = np.array([[_products(place, pair.source_acts, acts, group) for group in groups] for place in places])
    data = pair.dataset().assign_coords({**place_coords(places), **where})
    axes = ("component", "position", "series")
    data["first_order"] = (axes, first_order)
    parameters: dict[str, object] = {**pair.parameters(), "positions": str(positions)}
    if exact:
        forecasts = point_forecasts(pair.base, patches(pair, places, groups), progress)
        recovered = pair.recovered(forecasts).reshape(first_order.shape)
        data["recovered"], data["error"] = (axes, recovered), (axes, first_order - recovered)
        parameters["mean_absolute_error"] = float(np.abs(first_order - recovered).mean())
        parameters["rank_correlation"] = rank_correlation(first_order, recovered)
    source = "Nanda 2023 (attribution patching); Syed et al. 2023, arXiv:2310.10348"
    data.attrs = pair.base.describe("attribution_patching", "Attribution patching", source, **parameters)
    return pair.judged(data)


def _points(places: Sequence[Place]) -> list[str]:
    return sorted({place.point for place in places})


def slopes(pair: RunPair, places: Sequence[Place]) -> Activations:
    """Record the base run with the gradients of the share recovered, under ``name + "_grad"``."""
    run, encoded, names = pair.base, pair.base.encoded, _points(places)
    if run.batch.multivariate:
        raise InputError("gradients of variates that see each other cannot be told apart; patch them exactly instead")
    way = torch.as_tensor(pair.way)
    weight = way / way.square().sum(-1, keepdim=True)

    def share(output: Tensor) -> Tensor:
        forecast = run.read(output, encoded)
        return (forecast * weight.to(forecast)).sum()

    acts = with_gradients(run, names, share)
    for name in names:
        finite = acts[f"{name}_grad"].isfinite().flatten(1).all(1)
        if not finite.all():
            series = encoded.rows[int(finite.int().argmin())]
            raise InputError(
                f"{run.lens.wiring.architecture} has no finite gradient at {name} for series {series!r}, as where "
                "padding is divided by its zero norm; take series of one length, or one at a time, or patch exactly"
            )
    return acts


def with_gradients(run: Run, names: Sequence[str], loss: Callable[[Tensor], Tensor]) -> Activations:
    """Record activations of one forward and a loss's gradients at them; weights get none, which cost as much."""
    lens, leaves = run.lens, dict[str, list[Tensor]]()
    refuse_run(lens, rollout=False, gradients=True, loss=loss)

    def enter(value: Tensor, hook: HookPoint) -> Tensor:
        """Continue the forward from a leaf tensor, whether or not the model's weights are frozen."""
        leaf = value.view_as(value) if value.requires_grad else value.detach().requires_grad_()
        leaves.setdefault(str(hook.name), []).append(leaf)
        return leaf

    with torch.enable_grad(), lens.hooks([(name, enter) for name in names]):
        output, acts = lens.run_with_cache(run.encoded, names_filter=list(names))
        places = [(name, call) for name in names for call in range(len(leaves[name]))]
        tensors = [leaves[name][call] for name, call in places]
        losses = loss(output)
        of_each = [
            torch.autograd.grad(one, tensors, allow_unused=True, materialize_grads=True, retain_graph=True)
            for one in losses.reshape(-1)
        ]
        gradients = of_each[0] if not losses.ndim else [torch.stack(parts) for parts in zip(*of_each, strict=True)]
    for (name, call), gradient in zip(places, gradients, strict=True):
        acts.recorded.setdefault(f"{name}_grad", []).append(replace(acts.calls(name)[call], value=gradient))
    return acts


def _products(place: Place, source: Activations, base: Activations, group: Sequence[int] | None) -> np.ndarray:
    """Sum change times gradient over the tokens of a group, over all of them for None, (series,)."""
    change = source[place.point] - base[place.point]
    product = change * base[f"{place.point}_grad"]
    if place.head is not None:
        product = product[:, :, place.head]
    total = (product if group is None else product[:, list(group)]).sum(dim=(1, 2))
    return np.asarray(total.detach().cpu().double().numpy())


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Compute Spearman's correlation over all cells; 0 where one of them is constant."""
    return float(1.0 - spearman_distance(a.reshape(-1), b.reshape(-1))) if a.size > 1 else 0.0


_OF_PATHS = "Wang et al. 2022, arXiv:2211.00593; Goldowsky-Dill et al. 2023, arXiv:2304.05969"
OUTPUT = "output"
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

    The sender is patched from the source run while every later branch is held at the base run's write, and each
    receiver's activation is recorded. Then only the receiver is set to that activation, and all behind it is free.
    (Wang et al. hold attention only.)

    Args:
        clean, corrupted, direction: see :func:`tsfm_lens.probes.activation_patching`.
        senders: heads and branches; the heads and MLPs of the stack that is read out if None.
        receivers: likewise, and "output" for the direct path to the forecast; as the senders, and "output", if None.
        via: the input of receiving heads that changes: "all", "q", "k" or "v".
        progress: called with (done, of), in senders.

    Returns:
        Dataset of kind "paths" over (sender, receiver, series): ``recovered`` and ``effect`` as in activation patching,
        with the same statistics, ``forecast`` (…, step). NaN where a receiver does not come after the sender.

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
    refuse_word("via", via, ("all", "q", "k", "v"))
    lens = clean.lens
    froms = nodes_of(lens, senders, "senders")
    targets: list[str | Component] = [*writers(lens.wiring), OUTPUT]
    if receivers is not None:
        targets = listed(receivers, "receivers")
    to_output = OUTPUT in targets
    tos = places_of(lens, [receiver for receiver in targets if receiver != OUTPUT]) if targets != [OUTPUT] else []
    if via != "all":
        tos = [place for place in tos if place.head is not None] if receivers is None else tos
        if any(place.head is None for place in tos):
            raise InputError(f"via={via!r} is an input of heads; name only heads as receivers")
    pair = sender_contrast(clean, corrupted, froms, direction=direction)
    forecasts = np.full((len(froms), len(tos) + to_output, *pair.base.point.shape), np.nan)
    paths: dict[tuple[int, int], Variant] = {}
    for row, (sender, direct, receiver_acts) in enumerate(chain.from_iterable(heard_in_groups(pair, froms, tos, via))):
        later = set(later_branches(lens.wiring, sender.component))
        columns = [column for column, place in enumerate(tos) if place.branch in later]
        paths |= {(row, column): Variant("path", (receive(tos[column], receiver_acts, via),)) for column in columns}
        if to_output:
            forecasts[row, -1] = direct
        if paths and (len(paths) >= _MOST_PATHS or row + 1 == len(froms)):
            forecasts[tuple(zip(*paths, strict=True))] = point_forecasts(pair.base, list(paths.values()))
            paths.clear()
        if progress is not None:
            progress(row + 1, len(froms))
    names = [*(str(place.target) for place in tos), *([OUTPUT] if to_output else [])]
    attrs = clean.describe("paths", "Path patching", _OF_PATHS, **pair.parameters(), via=via)
    coords = {**place_coords(froms, "sender"), "receiver": names}
    return pair.result(forecasts, coords, attrs, ("sender", "receiver"))


def sender_contrast(clean: Run, corrupted: Run, senders: Sequence[Place], *, direction: Direction = "noise") -> RunPair:
    """Record a contrast: the senders' activations in the source, every branch's write in the base."""
    wiring = clean.lens.wiring
    later = {branch for sender in senders for branch in later_branches(wiring, sender.component)}
    branch_points = sorted({place_of(wiring, branch).point for branch in later})
    return contrast(clean, corrupted, senders, base_names=branch_points, direction=direction)


def heard_in_groups(
    pair: RunPair, senders: Sequence[Place], receivers: Sequence[Place], via: str = "all"
) -> Iterator[list[tuple[Place, np.ndarray, Activations]]]:
    """Yield senders, forecasts (series, step) of their direct effects, and receivers' activations, in groups."""
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
        later = later_branches(run.lens.wiring, sender.component)
        points = dict.fromkeys(_input(place, via) for place in receivers if place.branch in later)
        listeners = [_PointEdit(point, partial(_record_call, store), by_place=False) for point in points]
        # a branch is recorded before it is held, so listeners come first
        patches = [PatchFrom(branch, pair.base_acts) for branch in later]
        variants.append(Variant(str(sender.target), (PatchFrom(sender.target, pair.source_acts), *listeners, *patches)))
    direct, hook_points = point_forecasts(run, variants), run.lens.registry.points
    receiver_acts = [Activations(hook_points, run.rollout, run.batch.ids, recorded=store) for store in stores]
    return list(zip(senders, direct, receiver_acts, strict=True))


def _record_call(store: dict[str, list[Call]], value: Tensor, state: RunState, point: Point) -> Tensor:
    """Record an activation, which passes unchanged."""
    offset = state.offset.get(point.stack, 0)
    calls = store.setdefault(point.name, [])
    # a forecast may start again, as after a measurement of its memory
    if (state.step, offset) not in [(call.step, call.offset) for call in calls]:
        calls.append(Call(state.step, offset, value.detach().clone()))
    return value


def receive(place: Place, receiver_acts: Activations, via: str) -> Intervention:
    """Set a receiver, or one head's queries, keys or values, to those of another run."""
    head = place.head
    if via == "all" or head is None:
        return PatchFrom(place.target, receiver_acts)

    def exchange(value: Tensor, state: RunState, point: Point) -> Tensor:
        out = value.clone()
        out[..., head, :] = rows_in_place(receiver_acts, point, value, state)[..., head, :].to(value)
        return out

    return _PointEdit(_input(place, via), exchange)


def _input(place: Place, via: str) -> str:
    """Return the hook point at which a receiver is recorded."""
    return place.point if via == "all" else place.point.replace("hook_z", f"hook_{via}")


@probe("edges", "pair")
def edge_attribution(
    clean: Run, corrupted: Run, *, nodes: Sequence[str | Component] | None = None, direction: Direction = "noise"
) -> xr.Dataset:
    """Score the edge from every component to every later one.

    The receiver's change when the sender alone changes is exact (one forward a sender). Its effect on the forecast
    comes from the gradient at the receiver; edges to the output are exact.

    Args:
        clean, corrupted, direction: see :func:`tsfm_lens.probes.activation_patching`; in single forwards.
        nodes: heads and branches; the heads and MLPs of the stack that is read out if None.

    Returns:
        Dataset of kind "edges" over (sender, receiver, series): ``score``, the estimated share of the way to the
        source's forecast; 0 where the receiver does not come after the sender; and, for possible edges, what
        :func:`tsfm_lens.probes.findings.judge` adds, with the noise of both runs. The last receiver is "output".

    Source:
        Syed et al. 2023; Hanna et al. 2024. They also take the sender's effect on the receiver to first order.

    Raises:
        InputError: gradients that are no derivatives, a multivariate batch, or as in activation patching.

    Example:
        >>> data = probes.edge_attribution(run, corrupted, nodes=["decoder.0.mlp", "decoder.1.mlp"])
        >>> data["receiver"].values.tolist()
        ['decoder.0.mlp', 'decoder.1.mlp', 'output']
    """
    lens = clean.lens
    refuse_gradients(lens.wiring)
    places = nodes_of(lens, nodes, "nodes")
    pair = sender_contrast(clean.in_one_pass(), corrupted.in_one_pass(), places, direction=direction)
    data = pair.dataset().assign_coords(place_coords(places, "sender"))
    data = data.assign_coords(receiver=[*(str(place.target) for place in places), OUTPUT])
    scores = edge_scores(pair, places)
    source = "Syed et al. 2023, arXiv:2310.10348; Hanna et al. 2024, arXiv:2403.17806"
    data.attrs = pair.base.describe("edges", "Edge attribution", source, **pair.parameters())
    axes = ("sender", "receiver", "series")
    # receivers that come after the sender, and the output
    after = [later_branches(lens.wiring, place.component) for place in places]
    possible = np.array([[*(place.branch in later for place in places), True] for later in after])
    result = pair.judged(data.assign(score=(axes, np.where(possible[..., None], scores, np.nan))))
    return result.assign(score=(axes, scores))


def edge_scores(pair: RunPair, places: Sequence[Place]) -> np.ndarray:
    """Score edges, (sender, receiver and output, series); ``pair`` is from :func:`sender_contrast`."""
    at = slopes(pair, places)
    row_of = {place.target: row for row, place in enumerate(places)}
    columns: dict[str, list[int]] = {}
    for column, place in enumerate(places):
        columns.setdefault(place.point, []).append(column)
    scores = np.zeros((len(places), len(places) + 1, len(pair.base.batch)))
    for group in heard_in_groups(pair, places, places):
        rows = [row_of[sender.target] for sender, _, _ in group]
        scores[rows, -1] = pair.recovered(np.stack([direct for _, direct, _ in group]))
        for point, receivers in columns.items():
            entries = [
                (row, receiver_acts[point])
                for row, (_, _, receiver_acts) in zip(rows, group, strict=True)
                if point in receiver_acts
            ]
            if not entries:
                continue
            changes = torch.stack([value for _, value in entries]) - at[point]
            # sums over tokens and width leave (sender, series), and a head axis at heads
            products = (changes * at[f"{point}_grad"]).sum(dim=(2, -1)).detach().cpu().double().numpy()
            heads = [head for column in receivers if (head := places[column].head) is not None]
            shares = products[..., heads] if heads else products[..., None]
            scores[np.ix_([row for row, _ in entries], receivers)] = shares.swapaxes(1, 2)
    return scores
