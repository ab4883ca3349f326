"""Edge attribution: how much every path between two components matters, receivers to first order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr

from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.models.adapter import refuse_gradients
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attribution_patching import slopes
from tsfm_lens.probes.contrast import Direction, RunPair
from tsfm_lens.probes.path_patching import OUTPUT, branch_at, component_at, heard_in_groups, sender_contrast
from tsfm_lens.probes.places import Place, later_branches, listed, place_coords, places_of
from tsfm_lens.registry import probe

__all__ = ["edge_attribution"]

_SOURCE = "Syed et al. 2023, arXiv:2310.10348; Hanna et al. 2024, arXiv:2403.17806"


@probe("edges", "pair")
def edge_attribution(
    clean: Run,
    corrupted: Run,
    *,
    nodes: Sequence[str | Component] | None = None,
    direction: Direction = "noise",
) -> xr.Dataset:
    """Score the edge from every component to every later one.

    The receiver's change when the sender alone changes is exact (one forward a sender, as in path patching). Its effect
    on the forecast comes from the gradient at the receiver. Edges to the output are exact. A saturated gate or softmax
    has no gradient, so the edge into it is missed.

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
        InputError: the library's gradients are no derivatives, a multivariate batch, a horizon longer than one pass, or
            as in activation patching.

    Example:
        >>> data = probes.edge_attribution(run, corrupted, nodes=["decoder.0.mlp", "decoder.1.mlp"])
        >>> data["receiver"].values.tolist()
        ['decoder.0.mlp', 'decoder.1.mlp', 'output']
    """
    lens = clean.lens
    refuse_gradients(lens.wiring)
    places = places_of(lens, writers(lens.wiring) if nodes is None else listed(nodes, "nodes"))
    pair = sender_contrast(clean.in_one_pass(), corrupted.in_one_pass(), places, direction=direction)
    data = pair.dataset().assign_coords(place_coords(places, "sender"))
    data = data.assign_coords(receiver=[*(str(place.target) for place in places), OUTPUT])
    scores = edge_scores(pair, places)
    data.attrs = pair.base.describe("edges", "Edge attribution", _SOURCE, **pair.parameters())
    axes = ("sender", "receiver", "series")
    # receivers that come after the sender, and the output
    after = [later_branches(lens.wiring, component_at(place)) for place in places]
    possible = np.array([[*(branch_at(place) in later for place in places), True] for later in after])
    result = pair.judged(data.assign(score=(axes, np.where(possible[..., None], scores, np.nan))))
    return result.assign(score=(axes, scores))


def edge_scores(pair: RunPair, places: Sequence[Place]) -> np.ndarray:
    """Score edges, (sender, receiver and output, series); ``pair`` is from :func:`sender_contrast`."""
    at = slopes(pair, sorted({place.point for place in places}))
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
