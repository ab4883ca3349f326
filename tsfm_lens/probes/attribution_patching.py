"""Attribution patching: activation patching to first order, one forward and one backward for all places at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from tsfm_lens.ablation.metrics import spearman_distance
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.adapter import refuse_gradients
from tsfm_lens.models.recording import refuse_run
from tsfm_lens.models.run import Run
from tsfm_lens.probes.contrast import Direction, RunPair, contrast
from tsfm_lens.probes.patching import grid_of, patches
from tsfm_lens.probes.places import Place, place_coords, places_of
from tsfm_lens.registry import probe

__all__ = ["attribution_patching"]

_SOURCE = "Nanda 2023 (attribution patching); Syed et al. 2023, arXiv:2310.10348"


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
        clean, corrupted, at, stack, positions, direction: see
            :func:`tsfm_lens.probes.patching.activation_patching`. Runs in rollouts are read in single forwards, which
            have the gradients.
        exact: also patch, to measure the estimate's error.
        progress: of the exact patching.

    Returns:
        Dataset of kind "attribution_patching" over (component, position, series): ``first_order``, the
        estimated share recovered; with ``exact`` also ``recovered`` and ``error`` = first_order - recovered, and
        attributes ``mean_absolute_error`` and ``rank_correlation`` over all cells; for both shares what
        :func:`tsfm_lens.probes.findings.judge` adds, with the noise of both runs.

    Source:
        Nanda 2023; Syed et al. 2023.

    Raises:
        InputError: the library's gradients are no derivatives, the batch is multivariate, or the horizon is longer
            than one pass.

    Example:
        >>> data = probes.attribution_patching(run, corrupted, exact=False)
        >>> data["first_order"].dims
        ('component', 'position', 'series')
    """
    lens = clean.lens
    refuse_gradients(lens.wiring)
    places = places_of(lens, at, stack)
    names = sorted({place.point for place in places})
    pair = contrast(clean.in_one_pass(), corrupted.in_one_pass(), names=names, direction=direction)
    acts = slopes(pair, names)
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
    data.attrs = pair.base.describe("attribution_patching", "Attribution patching", _SOURCE, **parameters)
    return pair.judged(data)


def slopes(pair: RunPair, names: Sequence[str]) -> Activations:
    """Record the base run with the gradients of the share recovered, under ``name + "_grad"``.

    Raises:
        InputError: a multivariate batch, whose series' gradients would mix; or a gradient that is not a number, as at
            the padding of shorter series in some models.
    """
    run, encoded = pair.base, pair.base.encoded
    if run.batch.multivariate:
        raise InputError("gradients of variates that see each other cannot be told apart; patch them exactly instead")
    way = torch.as_tensor(pair.source_forecast - pair.base_forecast)
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
    """Record activations of one forward and a loss's gradients at them; weights get none, which cost as much.

    Args:
        run: the forecast, in one pass.
        names: of hook points.
        loss: of the forward's output, one number or several (value,); gradients of several have a leading axis.
    """
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
