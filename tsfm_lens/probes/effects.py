"""Direct, indirect and total effect of a component on the forecast, and the self-repair of what comes after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.models.ablating import ablated_variants
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attribution import component_coords
from tsfm_lens.probes.places import later_branches, listed
from tsfm_lens.probes.zero_ablation import reference_of

__all__ = ["causal_effects"]

_SOURCE = "Pearl 2001 (direct and indirect effects); McGrath et al. 2023, arXiv:2307.15771; Rushing and Nanda 2024"


def causal_effects(
    run: Run,
    *,
    components: Sequence[str | Component] | None = None,
    how: str = "zero",
    reference: Any = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Ablate each component twice: with all later branches free to respond, and with them held at what they wrote.

    The total effect is the change of the forecast with everything free. The direct effect is the change with every
    later attention and MLP held, so that the component acts on the forecast through the residual stream (and the
    final norm) alone. The indirect effect is their difference. Where later components undo part of the direct
    effect, the model repairs itself.

    Args:
        run: the forecast to explain. In rollouts, "held" means at what the branch wrote in the same pass of the plain
            rollout.
        components: heads, branches or layers of the stack that is read out, by name or glob; its heads and MLPs if
            None.
        how, reference: what takes a component's place; see :meth:`Lens.ablate`. Draws take the run's seed.
        progress: called with (done, of).

    Returns:
        Dataset of kind "effects" over (component, series, step), in data units: ``total``, ``direct``, ``indirect``;
        ``self_repair`` (component, series) = 1 - <total, direct> / <direct, direct>: 0 none, 1 all of the direct
        effect is undone, negative where later components add to it, and NaN where the direct effect is within
        rounding (:func:`tsfm_lens.models.noise.rounding`); ``plain_forecast`` (series, step).

    Source:
        Pearl 2001; McGrath et al. 2023 (self-repair of ablated layers); Rushing and Nanda 2024.

    Raises:
        InputError: a component of another stack: with the stack that is read out held, it has no direct effect.
        UnknownNameError: no such component.
    """
    lens = run.lens
    out = lens.wiring.output_stack.name
    chosen = writers(lens.wiring) if components is None else lens.components(*listed(components, "components"))
    for component in chosen:
        if component.stack != out:
            raise InputError(
                f"{component} writes to the {component.stack}'s stream; direct effects are of what writes to the "
                f"stream that is read out, that of the {out}"
            )
    data = run.dataset().assign_coords(component_coords(list(chosen)))
    branches = sorted({_point(lens, each) for c in chosen for each in later_branches(lens.wiring, _last(lens, c))})
    acts = run.record(branches or ["unembed.hook_out"])
    free, held = [], []
    known = reference_of(run, how, reference)
    made = ablated_variants(lens, chosen, how, known, horizon=run.horizon, seed=run.seed)
    for component, ablations in zip(chosen, made, strict=True):
        later = later_branches(lens.wiring, _last(lens, component))
        free.append(Variant(f"total {component}", ablations))
        held.append(Variant(f"direct {component}", (*ablations, *(PatchFrom(each, acts) for each in later))))
    forecasts, plain = point_forecasts(run, [*free, *held], progress), run.point
    total, direct = forecasts[: len(chosen)] - plain, forecasts[len(chosen) :] - plain
    axes = ("component", "series", "step")
    data["total"], data["direct"], data["indirect"] = (axes, total), (axes, direct), (axes, total - direct)
    data["self_repair"] = (axes[:2], self_repair(total, direct, rounding(run, plain)))
    data["plain_forecast"] = (axes[1:], plain)
    facts: dict[str, object] = {"how": how, "rollout": int(run.rollout), "statistic": run.statistic}
    data.attrs = run.describe("effects", "Direct and total effects", _SOURCE, **facts)
    return data


def self_repair(total: np.ndarray, direct: np.ndarray, rounding: np.ndarray) -> np.ndarray:
    """The share of a direct effect that later components undo.

    Args:
        total, direct: (…, step) in data units.
        rounding: (…) what counts as none: steps that are all within it are a direct effect of nothing.

    Returns:
        (…); NaN where there is no direct effect.
    """
    size = np.square(direct).sum(-1)
    none = (np.abs(direct).max(-1) <= rounding) | (size == 0)
    share = np.divide((total * direct).sum(-1), size, out=np.full(size.shape, np.nan), where=~none)
    return 1.0 - share


def _last(lens: Lens, component: Component) -> Component:
    """The component, or the last branch of a whole layer."""
    if component.kind is not None:
        return component
    last = lens.wiring.stack(component.stack).rows(component.layer)[-1]
    return Component(component.stack, component.layer, last.kind)


def _point(lens: Lens, branch: Component) -> str:
    return f"{lens.wiring.stack(branch.stack).prefix}.{branch.layer}.{branch.kind}.hook_out"
