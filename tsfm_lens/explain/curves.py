"""Deletion and insertion curves: changes of the forecast when segments are masked in an explanation's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.notices import saying_once
from tsfm_lens.ablation.points import Progress
from tsfm_lens.errors import InputError
from tsfm_lens.explain.attribution import attribute_inputs
from tsfm_lens.explain.masking import Reference, reference_words
from tsfm_lens.explain.segments import Segment, segment_coords, segments_in
from tsfm_lens.explain.values import Masks
from tsfm_lens.models.forecast import is_count
from tsfm_lens.models.noise import noise_floor
from tsfm_lens.models.run import Run
from tsfm_lens.registry import probe
from tsfm_lens.stats import CONFIDENCE

__all__ = ["deletion_curves"]

_SOURCE = "Samek et al. 2017, arXiv:1509.06321; Petsiuk et al. 2018, arXiv:1806.07421 (deletion and insertion)"
# orders of all segments that are drawn
_ORDERS = 64


def _explanations(results: Any) -> tuple[Run, dict[str, Any]]:
    """Take the attribution of the inputs, with attention for a rival."""
    attribution = results["input_attribution"]
    explanations, rival = {str(attribution.attrs["method"]): attribution}, "attention rollout"
    if rival not in explanations:
        how = {**_reference(results), "parts": segments_in(attribution)}
        explanations[rival] = attribute_inputs(results.first, method=rival, **how)
    return results.first, explanations


def _reference(results: Any) -> dict[str, Any]:
    """Mask as the attribution did, unless it is said otherwise."""
    own = results.options.get("deletion_curves", {})
    return {"reference": own.get("reference", results["input_attribution"].attrs["reference"])}


@probe("deletion_curves", _explanations, words="deletion_curves of attributions of the first item", options=_reference)
@saying_once
def deletion_curves(
    run: Run,
    explanations: Mapping[str, Any] | xr.Dataset,
    item: int | str = 0,
    *,
    target: int | str = 0,
    parts: Sequence[Segment] | Mapping[str, Any] | int | None = None,
    reference: Reference = "mean",
    orders: int = _ORDERS,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Mask segments in the order of each explanation, the largest first, and in random orders.

    Without the first segments of a true explanation the forecast is far away (deletion), and with them alone it is near
    (insertion). The area between the two curves is 0 on average for random orders.

    Args:
        run: the forecast that is explained.
        explanations: results of kind "input_attribution" by name, or scores (segment,), the first on trial; one result
            by itself stands for its method.
        item, target, parts, reference: as they were explained; segments of the first result if ``parts`` is None.
        orders: that are drawn.
        seed: of them, and of a shuffled reference.
        progress: called with the masks done and their number.

    Returns:
        Dataset of kind "deletion_curves": over (explanation, masked), in data units, ``deletion`` and ``insertion``,
        the mean absolute distance of the median forecast from the whole one without, or with only, the first
        ``masked`` segments; ``random_deletion`` and ``random_insertion`` (draw, masked), and their 95 % bands
        ``random_low`` and ``random_high`` (curve, masked); ``area`` (explanation), the area between the curves as a
        share of the distance with everything masked, ``random_area`` (draw), and ``p`` (explanation), the share of
        orders at random, itself counted, that are as good. ``order`` (explanation, rank), places of segments.

    Source:
        Samek et al. 2017; Petsiuk et al. 2018.

    Raises:
        InputError: no explanation, scores of another number than segments, fewer than two segments, orders is no
            count, or the forecast depends on the segments by no more than its noise.

    Example:
        >>> curves = explain.deletion_curves(run, {"newest first": [0, 1, 2]}, parts=3, reference="mean", orders=4)
        >>> curves["deletion"].sizes["masked"]
        4
    """
    if not is_count(orders):
        raise InputError(f"orders is {orders!r}, expected how many random orders are drawn, 1 or more")
    if isinstance(explanations, xr.Dataset):
        explanations = {str(explanations.attrs.get("method", "explanation")): explanations}
    if not explanations:
        raise InputError("there is no explanation to try: give results or scores by name")
    if parts is None:
        parts = next((segments_in(each) for each in explanations.values() if isinstance(each, xr.Dataset)), None)
    masks = Masks(run, parts, reference, item, target, seed, progress)
    players = len(masks.segments)
    if players < 2:
        raise InputError("there is one segment, which has no order; cut the input into more parts")
    scores = {name: scores_of(each, players) for name, each in explanations.items()}
    rankings = np.stack([np.argsort(-each, kind="stable") for each in scores.values()])
    rng = np.random.default_rng(seed)
    permutations = np.stack([rng.permutation(players) for _ in range(orders)])
    deletion, insertion = _curves(masks, np.concatenate([rankings, permutations]))
    everything = deletion[0, -1]
    if everything <= noise_floor(masks.run, lambda other, plain: np.abs(other - plain).mean(-1))[masks.row]:
        raise InputError(
            f"the forecast of {masks.name!r} changes by no more than its noise when all segments are "
            "masked, so that no order is better than another; choose another reference"
        )
    area = (deletion - insertion).mean(-1) / everything
    count, axes, tail = len(scores), ("explanation", "masked"), (1 - CONFIDENCE) / 2
    bands = np.quantile(np.stack([deletion[count:], insertion[count:]]), [tail, 1 - tail], axis=1)
    coords = segment_coords(masks.segments)
    coords |= {"explanation": list(scores), "masked": np.arange(players + 1), "curve": ["deletion", "insertion"]}
    data = masks.run.dataset().assign_coords(coords)
    data = data.assign(
        deletion=(axes, deletion[:count]),
        insertion=(axes, insertion[:count]),
        random_deletion=(("draw", "masked"), deletion[count:]),
        random_insertion=(("draw", "masked"), insertion[count:]),
        random_low=(("curve", "masked"), bands[0]),
        random_high=(("curve", "masked"), bands[1]),
        area=(axes[:1], area[:count]),
        random_area=(("draw",), area[count:]),
        p=(axes[:1], (1 + (area[count:] >= area[:count, None]).sum(-1)) / (1 + orders)),
        order=(("explanation", "rank"), rankings),
        everything_masked=((), float(everything)),
    )
    facts = {"reference": reference_words(reference), "target": masks.name, "orders": orders}
    data.attrs = masks.run.describe("deletion_curves", "Deletion and insertion", _SOURCE, units=masks.units, **facts)
    return data


def _curves(masks: Masks, orders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute distances (order, masked) from the whole forecast without, and with only, each order's first segments."""
    players = orders.shape[1]
    place = np.argsort(orders, axis=1)
    first = place[:, None, :] < np.arange(players + 1)[:, None]
    keep = np.stack([~first, first]).reshape(-1, players)
    forecasts = masks(np.concatenate([np.ones((1, players), dtype=bool), keep]))[:, masks.middle]
    distances = np.abs(forecasts[1:] - forecasts[0]).mean(-1)
    deletion, insertion = distances.reshape(2, len(orders), players + 1)
    return deletion, insertion


def scores_of(explanation: Any, players: int) -> np.ndarray:
    """Compute the importance of each segment, (segment,): mean size over steps at the median, or scores as given."""
    if isinstance(explanation, xr.Dataset):
        values = explanation["attribution"]
        if "quantile" in values.dims:
            values = values.isel(quantile=int(np.argmin(np.abs(values["quantile"].values - 0.5))))
        sizes = np.abs(values.transpose("segment", ...).values)
        scores = sizes.reshape(len(sizes), -1).mean(-1)
    else:
        scores = np.asarray(explanation, dtype=float)
    if scores.shape != (players,) or not np.isfinite(scores).all():
        raise InputError(f"an explanation has scores of shape {scores.shape}, expected {players} numbers, one a part")
    return scores
