"""Path patching: effect of one component through another, with every other path frozen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.core.registry import probe
from tsfm_lens.hooks.activations import Activations, Call
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.scopes import RunState
from tsfm_lens.models.adapter import refuse_gradients
from tsfm_lens.models.run import Run
from tsfm_lens.probes.patching import Direction, RunPair, _PointEdit, contrast, slopes
from tsfm_lens.probes.places import (
    Place,
    find_place,
    later_branches,
    list_nodes,
    listed,
    parse_places,
    place_coords,
)

__all__ = ["edge_attribution", "path_patching"]


OUTPUT = "output"
# least senders run together, numbers in memory up to which more of them are, and most
# paths gathered before a run
_SENDERS = 16
_NUMBERS = 2**24
_MOST_PATHS = 256


@probe(
    "pair",
    title="Path patching",
    theme="Causes",
    summary="path patching between components, through all inputs or through q, k or v",
    description=(
        "The effect of one component through one other, with every other path frozen."
    ),
    source=(
        "Wang et al. 2022, arXiv:2211.00593; Goldowsky-Dill et al. 2023,"
        " arXiv:2304.05969"
    ),
    cost="search",
    whole_batch=True,
)
def path_patching(
    clean: Run,
    corrupted: Run,
    *,
    senders: Sequence[str | Component] | None = None,
    receivers: Sequence[str | Component] | None = None,
    direction: Direction = "noise",
    progress: Progress | None = None,
) -> xr.Dataset:
    """Patch the path from each sender to each receiver.

    First the sender is patched from the source run, every later branch is frozen at the
    base run's write, and each receiver's activation is recorded. Then only the receiver
    is set to that activation, and all later branches respond. (Wang et al. freeze
    attention only.)

    Args:
        clean, corrupted, direction: see :func:`tsfm_lens.probes.activation_patching`.
        senders: heads and branches; the heads and MLPs of the output stack if None.
        receivers: the same, and "output" for the direct path to the forecast; if None,
            the senders and "output".
        progress: called with (done, of), in senders.

    Returns:
        Dataset of kind "path_patching" over (sender, receiver, series): ``recovered``
        and ``effect`` as in activation patching, with the same statistics, ``forecast``
        (…, step). NaN where a receiver does not come after the sender.

    Source:
        Wang et al. 2022; Goldowsky-Dill et al. 2023.

    Raises:
        InputError: as in activation patching.
        UnknownNameError: no such component.

    Example:
        >>> data = probes.path_patching(run, corrupted, senders=["decoder.0.mlp"], receivers=["output"])
        >>> dict(data["recovered"].sizes)
        {'sender': 1, 'receiver': 1, 'series': 1}
    """
    lens = clean.lens
    froms = list_nodes(lens, senders, "senders")
    targets: list[str | Component] = [*writers(lens.wiring), OUTPUT]
    if receivers is not None:
        targets = listed(receivers, "receivers")
    to_output = OUTPUT in targets
    if targets != [OUTPUT]:
        tos = parse_places(
            lens, [receiver for receiver in targets if receiver != OUTPUT]
        )
    else:
        tos = []
    pair = sender_contrast(clean, corrupted, froms, direction=direction)
    forecasts = np.full(
        (len(froms), len(tos) + to_output, *pair.base.point.shape), np.nan
    )
    paths: dict[tuple[int, int], Variant] = {}
    for row, (sender, direct, receiver_acts) in enumerate(
        chain.from_iterable(heard_in_groups(pair, froms, tos))
    ):
        later = set(later_branches(lens.wiring, sender.component))
        columns = [
            column for column, position in enumerate(tos) if position.branch in later
        ]
        paths |= {
            (row, column): Variant(
                "path", (PatchFrom(tos[column].target, receiver_acts),)
            )
            for column in columns
        }
        if to_output:
            forecasts[row, -1] = direct
        if paths and (len(paths) >= _MOST_PATHS or row + 1 == len(froms)):
            forecasts[tuple(zip(*paths, strict=True))] = point_forecasts(
                pair.base, list(paths.values())
            )
            paths.clear()
        if progress is not None:
            progress(row + 1, len(froms))
    names = [
        *(str(position.target) for position in tos),
        *([OUTPUT] if to_output else []),
    ]
    coords = {**place_coords(froms, "sender"), "receiver": names}
    return pair.result(forecasts, coords, ("sender", "receiver"))


def sender_contrast(
    clean: Run,
    corrupted: Run,
    senders: Sequence[Place],
    *,
    direction: Direction = "noise",
) -> RunPair:
    """Record a contrast: the senders' activations in the source, every branch's write
    in the base.
    """
    wiring = clean.lens.wiring
    later = {
        branch
        for sender in senders
        for branch in later_branches(wiring, sender.component)
    }
    branch_points = sorted({find_place(wiring, branch).point for branch in later})
    return contrast(
        clean, corrupted, senders, base_names=branch_points, direction=direction
    )


def heard_in_groups(
    pair: RunPair, senders: Sequence[Place], receivers: Sequence[Place]
) -> Iterator[list[tuple[Place, np.ndarray, Activations]]]:
    """Yield senders, forecasts (series, step) of their direct effects, and receivers'
    activations, in groups.
    """
    points = len({position.point for position in receivers})
    tokens = max(len(spans) for spans in pair.base.spans.values()) * len(
        pair.base.batch
    )
    fit = _NUMBERS // (tokens * pair.base.lens.d_model * max(points, 1))
    step = max(_SENDERS, fit)
    for first in range(0, len(senders), step):
        yield _run_together(pair, senders[first : first + step], receivers)


def _run_together(
    pair: RunPair, senders: Sequence[Place], receivers: Sequence[Place]
) -> list[tuple[Place, np.ndarray, Activations]]:
    run = pair.base
    stores: list[dict[str, list[Call]]] = [{} for _ in senders]
    variants = []
    for sender, store in zip(senders, stores, strict=True):
        later = later_branches(run.lens.wiring, sender.component)
        points = dict.fromkeys(
            position.point for position in receivers if position.branch in later
        )
        listeners = [
            _PointEdit(point, partial(_record_call, store), by_place=False)
            for point in points
        ]
        # a branch is recorded before it is held, so listeners come first
        patches = [PatchFrom(branch, pair.base_acts) for branch in later]
        variants.append(
            Variant(
                str(sender.target),
                (PatchFrom(sender.target, pair.source_acts), *listeners, *patches),
            )
        )
    direct = point_forecasts(run, variants)
    hook_points = run.lens.registry.points
    receiver_acts = [
        Activations(hook_points, run.rollout, run.batch.ids, recorded=store)
        for store in stores
    ]
    return list(zip(senders, direct, receiver_acts, strict=True))


def _record_call(
    store: dict[str, list[Call]], value: Tensor, state: RunState, point: Point
) -> Tensor:
    """Record an activation, which passes unchanged."""
    offset = state.offset.get(point.stack, 0)
    calls = store.setdefault(point.name, [])
    # a forecast may start again, as after a measurement of its memory
    if (state.step, offset) not in [(call.step, call.offset) for call in calls]:
        calls.append(Call(state.step, offset, value.detach().clone()))
    return value


@probe(
    "pair",
    title="Edge attribution",
    theme="Causes",
    summary="edge attribution",
    description="A gradient estimate of path patching for every pair of components.",
    source="Syed et al. 2023, arXiv:2310.10348; Hanna et al. 2024, arXiv:2403.17806",
    needs="gradients",
    example={"nodes": ["*.*.mlp"]},
    whole_batch=True,
)
def edge_attribution(
    clean: Run,
    corrupted: Run,
    *,
    nodes: Sequence[str | Component] | None = None,
    direction: Direction = "noise",
) -> xr.Dataset:
    """Score the edge from every component to every later one.

    The change of the receiver if only the sender changes is exact (one forward pass per
    sender). The effect of that change on the forecast comes from the gradient at the
    receiver. Edges to the output are exact.

    Args:
        clean, corrupted, direction: see :func:`tsfm_lens.probes.activation_patching`;
            in single forwards.
        nodes: heads and branches; the heads and MLPs of the output stack if None.

    Returns:
        Dataset of kind "edge_attribution" over (sender, receiver, series): ``score``,
        the estimated share of the way to the source's forecast; 0 where the receiver
        does not come after the sender; and, for possible edges, what
        :func:`.estimates.judge` adds, with the noise of both runs. The last receiver is
        "output".

    Source:
        Syed et al. 2023; Hanna et al. 2024. They also take the sender's effect on the
        receiver to first order.

    Raises:
        InputError: a library that rescales gradients, a multivariate batch, or as in
            activation patching.

    Example:
        >>> data = probes.edge_attribution(run, corrupted, nodes=["decoder.0.mlp", "decoder.1.mlp"])
        >>> data["receiver"].values.tolist()
        ['decoder.0.mlp', 'decoder.1.mlp', 'output']
    """
    lens = clean.lens
    refuse_gradients(lens.wiring)
    positions = list_nodes(lens, nodes, "nodes")
    pair = sender_contrast(
        clean.in_one_pass(), corrupted.in_one_pass(), positions, direction=direction
    )
    data = pair.dataset().assign_coords(place_coords(positions, "sender"))
    data = data.assign_coords(
        receiver=[*(str(position.target) for position in positions), OUTPUT]
    )
    scores = edge_scores(pair, positions)
    axes = ("sender", "receiver", "series")
    # receivers that come after the sender, and the output
    after = [later_branches(lens.wiring, position.component) for position in positions]
    possible = np.array(
        [
            [*(position.branch in later for position in positions), True]
            for later in after
        ]
    )
    result = pair.judged(
        data.assign(score=(axes, np.where(possible[..., None], scores, np.nan)))
    )
    return result.assign(score=(axes, scores))


def edge_scores(pair: RunPair, places: Sequence[Place]) -> np.ndarray:
    """Score edges, (sender, receiver and output, series); ``pair`` is from
    :func:`sender_contrast`.
    """
    at = slopes(pair, places)
    row_of = {position.target: row for row, position in enumerate(places)}
    columns: dict[str, list[int]] = {}
    for column, position in enumerate(places):
        columns.setdefault(position.point, []).append(column)
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
            # sums over tokens and width leave (sender, series), and a head axis at
            # heads
            products = (
                (changes * at[f"{point}_grad"])
                .sum(dim=(2, -1))
                .detach()
                .cpu()
                .double()
                .numpy()
            )
            heads = [
                head
                for column in receivers
                if (head := places[column].head) is not None
            ]
            if heads:
                shares = products[..., heads]
            else:
                shares = products[..., None]
            scores[np.ix_([row for row, _ in entries], receivers)] = shares.swapaxes(
                1, 2
            )
    return scores
