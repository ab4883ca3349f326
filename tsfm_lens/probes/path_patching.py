"""Path patching: the effect of one component through another, other paths frozen.

A path leads from a sender, a head or branch, to a receiver after it, or to the output.
:func:`path_patching` measures its effect exactly; :func:`edge_attribution` estimates it
for all pairs from one gradient of the forecast. Both patch senders in groups, by
:func:`heard_in_groups`, which records how receivers respond. Effects through all paths
together are in :mod:`.patching` and :mod:`.effects`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
import torch
import xarray as xr
from scipy.stats import rankdata
from torch import Tensor

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.estimates import check_share
from tsfm_lens.core.registry import probe
from tsfm_lens.hooks.activations import Activations, Call
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.scopes import RunState
from tsfm_lens.models.adapter import check_gradients
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.probes.metric import GivenMetric, as_metric
from tsfm_lens.probes.patching import Direction, RunPair, _PatchEdit, contrast, slopes
from tsfm_lens.probes.sites import (
    PatchSite,
    find_site,
    later_branches,
    list_nodes,
    listed,
    parse_sites,
    site_coords,
)

__all__ = ["edge_attribution", "path_patching"]


OUTPUT = "output"
# Senders run together in groups of at least _SENDERS, or of as many as record at most
# _NUMBERS numbers (64 MiB in float32).
_SENDERS = 16
_NUMBERS = 2**24
# paths are gathered until there are this many, and then run together
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
    example={"senders": ["*.*.mlp"]},
    whole_batch=True,
)
def path_patching(
    clean: Run,
    corrupted: Run,
    *,
    senders: Sequence[str | Component] | None = None,
    receivers: Sequence[str | Component] | None = None,
    direction: Direction = "noise",
    screen: float | None = None,
    metric: GivenMetric | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Patch the path from each sender to each receiver.

    First the sender is patched from the source run, every later branch is frozen at
    what it writes in the base run, and each receiver's activation is recorded. Then
    only the receiver is set to that activation, and all later branches respond. (Wang
    et al. freeze attention only.)

    A screen saves most paths: :func:`edge_attribution` estimates all of them from one
    gradient, and only those of the largest estimates are patched. Edges that are
    reached by no gradient in any series may be missed.

    The null of a path is another path between components of the same kind, all of
    which are patched here; that of a circuit of paths is in :func:`circuit_curve`.

    Args:
        clean: the run to explain.
        corrupted: a run of the same series with something removed, of equal ids,
            starts, lengths and options.
        senders: heads and branches; the heads and MLPs of the output stack if None.
        receivers: the same, and "output" for the direct path to the forecast; if None,
            the heads and MLPs of the output stack and "output".
        direction: "noise" puts corrupted activations into the clean run, "denoise" does
            the reverse.
        screen: share of the paths between components that is patched, such as 0.1,
            those of the largest estimates; all if None. Paths to "output" are always
            patched, as they cost nothing further.
        metric: what to measure instead of the whole forecast: a function of (forecast,
            truth, series) that returns a number, named by its ``__name__``, or a name
            with it, ``{"peak": function}``.
        progress: called with the number of senders done, and of all.

    Returns:
        Dataset of kind "path_patching". NaN stands where a receiver does not come after
        the sender, and where a screen leaves a path out.

        - ``recovered`` (sender, receiver, series): share of the way from the unpatched
          forecast, or its metric, to the source's.
        - ``effect`` (sender, receiver, series): mean distance from the unpatched
          forecast, in data units.
        - ``metric_value`` (sender, receiver, series): the metric itself, where there is
          one.
        - ``forecast`` (sender, receiver, series, step): in data units.
        - ``screened_out`` (sender, receiver): with a screen, whether a path is left
          out.

        The first two come with what :func:`.estimates.add_estimates` adds, with the
        noise of both runs.

    Raises:
        InputError: the runs have other options, ids, lengths or starts, the corruption
            does nothing, or the metric is no finite number or is not corrupted; with a
            screen also what :func:`edge_attribution` refuses.
        UnknownNameError: no such component.

    Source:
        Wang et al. 2022; Goldowsky-Dill et al. 2023.

    Example:
        >>> data = probes.path_patching(
        ...     run, corrupted, senders=["decoder.0.mlp"], receivers=["output"]
        ... )
        >>> dict(data["recovered"].sizes)
        {'sender': 1, 'receiver': 1, 'series': 1}
    """
    lens = clean.lens
    measured = None if metric is None else as_metric(metric)
    sender_sites = list_nodes(lens, senders, "senders")
    nodes: list[str | Component] = [*writers(lens.wiring), OUTPUT]
    if receivers is not None:
        nodes = listed(receivers, "receivers")
    to_output = OUTPUT in nodes
    # parse_sites() refuses an empty list
    if nodes != [OUTPUT]:
        receiver_sites = parse_sites(lens, [node for node in nodes if node != OUTPUT])
    else:
        receiver_sites = []
    pair = sender_contrast(clean, corrupted, sender_sites, direction=direction)
    is_path = find_paths(clean.lens, sender_sites, receiver_sites)
    kept = is_path
    if screen is not None:
        check_share(screen, "screen")
    if screen is not None and is_path.any():
        estimates = _estimate_paths(
            clean, corrupted, sender_sites, receiver_sites, direction
        )
        kept = is_path & _screen(estimates, is_path, screen)
    # the output, if it is a receiver, is the last column
    shape = (len(sender_sites), len(receiver_sites) + to_output)
    forecasts = np.full((*shape, *pair.base.point.shape), np.nan)
    paths: dict[tuple[int, int], Variant] = {}
    groups = heard_in_groups(pair, sender_sites, receiver_sites)
    for row, (_, direct, receiver_acts) in enumerate(chain.from_iterable(groups)):
        for column in np.flatnonzero(kept[row]).tolist():
            patch = PatchFrom(receiver_sites[column].target, receiver_acts)
            paths[row, column] = Variant("path", (patch,))
        if to_output:
            forecasts[row, -1] = direct
        # paths of several senders are gathered to run together; the activations of
        # their receivers stay in memory until then
        if paths and (len(paths) >= _MOST_PATHS or row + 1 == len(sender_sites)):
            cells = tuple(zip(*paths, strict=True))
            # cells is (rows, columns), which numpy pairs up
            forecasts[cells] = point_forecasts(pair.base, list(paths.values()))
            paths.clear()
        if progress is not None:
            progress(row + 1, len(sender_sites))
    names = [str(receiver.target) for receiver in receiver_sites]
    if to_output:
        names.append(OUTPUT)
    coords = {**site_coords(sender_sites, "sender"), "receiver": names}
    result = pair.result(forecasts, coords, ("sender", "receiver"), measured)
    if screen is None:
        return result
    left_out = is_path & ~kept
    if to_output:
        left_out = np.pad(left_out, ((0, 0), (0, 1)))
    result = result.assign(screened_out=(("sender", "receiver"), left_out))
    return result.assign_attrs(screen=float(screen))


def find_paths(
    lens: Lens, senders: Sequence[PatchSite], receivers: Sequence[PatchSite]
) -> np.ndarray:
    """Return whether each receiver comes after each sender, (sender, receiver).

    An effect cannot run backwards.
    """
    later = [later_branches(lens.wiring, sender.component) for sender in senders]
    paths = [[site.branch in branches for site in receivers] for branches in later]
    return np.array(paths, dtype=bool).reshape(len(senders), len(receivers))


def _estimate_paths(
    clean: Run,
    corrupted: Run,
    senders: Sequence[PatchSite],
    receivers: Sequence[PatchSite],
    direction: Direction,
) -> np.ndarray:
    """Return the scores of the paths by one gradient, (sender, receiver, series)."""
    check_gradients(clean.lens.wiring)
    pair = sender_contrast(
        clean.in_one_pass(), corrupted.in_one_pass(), senders, direction=direction
    )
    return edge_scores(pair, senders, receivers)[:, :-1]


def _screen(scores: np.ndarray, is_path: np.ndarray, share: float) -> np.ndarray:
    """Return the paths of the largest estimates, (sender, receiver).

    A path is ranked by its median over series or by its mean size, whichever is better:
    a gate may pass a path on half of the series, and be open on a few alone.
    """
    count = math.ceil(share * is_path.sum())
    sizes = [np.abs(np.median(scores, axis=-1)), np.abs(scores).mean(-1)]
    ranks = [rankdata(-size[is_path], method="ordinal") for size in sizes]
    best = np.argsort(np.min(ranks, axis=0), kind="stable")[:count]
    kept = np.zeros_like(is_path)
    kept[tuple(index[best] for index in np.nonzero(is_path))] = True
    return kept


def sender_contrast(
    clean: Run,
    corrupted: Run,
    senders: Sequence[PatchSite],
    *,
    direction: Direction = "noise",
) -> RunPair:
    """Return what paths from senders need of both runs.

    That is the senders' activations in the source run, and what every later branch
    writes in the base run.
    """
    wiring = clean.lens.wiring
    later = {
        branch
        for sender in senders
        for branch in later_branches(wiring, sender.component)
    }
    branch_points = sorted({find_site(wiring, branch).point for branch in later})
    return contrast(
        clean, corrupted, senders, base_names=branch_points, direction=direction
    )


def heard_in_groups(
    pair: RunPair, senders: Sequence[PatchSite], receivers: Sequence[PatchSite]
) -> Iterator[list[tuple[PatchSite, np.ndarray, Activations]]]:
    """Yield the senders of each group that runs together, patched with paths frozen.

    With each sender come the forecast (series, step) by its direct effect alone, and
    the activations that receivers then have.
    """
    n_points = len({receiver.point for receiver in receivers})
    n_positions = max(len(spans) for spans in pair.base.spans.values())
    # what one sender records at one point: (series, position, d_model)
    numbers = len(pair.base.batch) * n_positions * pair.base.lens.d_model
    size = max(_SENDERS, _NUMBERS // (numbers * max(n_points, 1)))
    for first in range(0, len(senders), size):
        yield _run_group(pair, senders[first : first + size], receivers)


def _run_group(
    pair: RunPair, senders: Sequence[PatchSite], receivers: Sequence[PatchSite]
) -> list[tuple[PatchSite, np.ndarray, Activations]]:
    """Patch each sender with later branches frozen, and record the receivers."""
    run = pair.base
    stores: list[dict[str, list[Call]]] = [{} for _ in senders]
    variants = []
    for sender, store in zip(senders, stores, strict=True):
        later = later_branches(run.lens.wiring, sender.component)
        points = dict.fromkeys(
            receiver.point for receiver in receivers if receiver.branch in later
        )
        listeners = [
            # by_place=False keeps the batch whole: a store has one entry per pass, not
            # one per part of a batch
            _PatchEdit(point, partial(_record_call, store), by_place=False)
            for point in points
        ]
        # edits act in this order: a receiver is recorded, and then frozen like the rest
        patches = [PatchFrom(branch, pair.base_acts) for branch in later]
        variants.append(
            Variant(
                str(sender.target),
                (PatchFrom(sender.target, pair.source_acts), *listeners, *patches),
            )
        )
    direct = point_forecasts(run, variants)
    hook_points = run.lens.registry.points
    receiver_activations = [
        Activations(hook_points, run.rollout, run.batch.ids, recorded=store)
        for store in stores
    ]
    return list(zip(senders, direct, receiver_activations, strict=True))


def _record_call(
    store: dict[str, list[Call]], value: Tensor, state: RunState, point: Point
) -> Tensor:
    """Record an activation, which passes unchanged."""
    offset = state.offset.get(point.stack, 0)
    calls = store.setdefault(point.name, [])
    # a forecast that runs out of memory starts again, and would record a pass twice
    if (state.step, offset) not in [(call.step, call.offset) for call in calls]:
        # cloned, as the value is a view of all variants' rows, into which the next edit
        # at this point writes
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
        clean: the run to explain, in one forward pass.
        corrupted: a run of the same series with something removed, of equal ids,
            starts, lengths and options.
        nodes: heads and branches; the heads and MLPs of the output stack if None.
        direction: "noise" puts corrupted activations into the clean run, "denoise" does
            the reverse.

    Returns:
        Dataset of kind "edge_attribution":

        - ``score`` (sender, receiver, series): estimated share of the way to the
          source's forecast, 0 where the receiver does not come after the sender.

        All other edges have what :func:`.estimates.add_estimates` adds, with the noise
        of both runs. The last receiver is "output".

    Raises:
        InputError: a library that rescales gradients, a multivariate batch, a horizon
            beyond one pass, runs that differ in options, ids, lengths or starts, or a
            corruption that does nothing.
        UnknownNameError: no such component.

    Source:
        Syed et al. 2023; Hanna et al. 2024. They also take the sender's effect on the
        receiver to first order.

    Example:
        >>> data = probes.edge_attribution(
        ...     run, corrupted, nodes=["decoder.0.mlp", "decoder.1.mlp"]
        ... )
        >>> data["receiver"].values.tolist()
        ['decoder.0.mlp', 'decoder.1.mlp', 'output']
    """
    lens = clean.lens
    check_gradients(lens.wiring)
    sites = list_nodes(lens, nodes, "nodes")
    pair = sender_contrast(
        clean.in_one_pass(), corrupted.in_one_pass(), sites, direction=direction
    )
    data = pair.dataset().assign_coords(site_coords(sites, "sender"))
    data = data.assign_coords(receiver=[*(str(site.target) for site in sites), OUTPUT])
    scores = edge_scores(pair, sites, sites)
    axes = ("sender", "receiver", "series")
    # every sender reaches the output
    possible = np.pad(
        find_paths(lens, sites, sites), ((0, 0), (0, 1)), constant_values=True
    )
    # NaN keeps impossible edges out of the tests; their score of 0 is put back after
    result = pair.test_effects(
        data.assign(score=(axes, np.where(possible[..., None], scores, np.nan)))
    )
    return result.assign(score=(axes, scores))


def edge_scores(
    pair: RunPair, senders: Sequence[PatchSite], sites: Sequence[PatchSite]
) -> np.ndarray:
    """Return scores of the edges from senders to sites, (sender, receiver, series).

    The last receiver is the output. ``pair`` is from :func:`sender_contrast`.
    """
    # activations of the base run, and under point + "_grad" their gradients
    base_acts = slopes(pair, sites)
    row_by_target = {site.target: row for row, site in enumerate(senders)}
    # the heads of an attention share a hook point, so columns are kept by point
    columns: dict[str, list[int]] = {}
    for column, site in enumerate(sites):
        columns.setdefault(site.point, []).append(column)
    scores = np.zeros((len(senders), len(sites) + 1, len(pair.base.batch)))
    for group in heard_in_groups(pair, senders, sites):
        rows = [row_by_target[sender.target] for sender, _, _ in group]
        scores[rows, -1] = pair.recovered(np.stack([direct for _, direct, _ in group]))
        for point, receivers in columns.items():
            # senders after all receivers at this point have recorded nothing here
            recorded = {
                row: activations[point]
                for row, (_, _, activations) in zip(rows, group, strict=True)
                if point in activations
            }
            if not recorded:
                continue
            # (sender, series, token, d_model), or (…, token, head, d_head) at heads
            changes = torch.stack(list(recorded.values())) - base_acts[point]
            # to first order, (sender, series) or (sender, series, head)
            effects = (changes * base_acts[f"{point}_grad"]).sum(dim=(2, -1))
            estimates = effects.detach().cpu().double().numpy()
            heads = [
                head for column in receivers if (head := sites[column].head) is not None
            ]
            # (sender, series, receiver)
            if heads:
                by_receiver = estimates[..., heads]
            else:
                by_receiver = estimates[..., None]
            scores[np.ix_(list(recorded), receivers)] = by_receiver.swapaxes(1, 2)
    return scores
