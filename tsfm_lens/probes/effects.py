"""Direct, indirect and total effects of components.

:func:`causal_effects` ablates each component twice: later components either respond or
are frozen at what they wrote. The difference shows self-repair. Effects through one
chosen component are in ``path_patching``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.estimates import SMALLEST_SHARE, add_estimates, check_share
from tsfm_lens.core.nulls import with_nulls
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import ratio
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.models.noise import marked_dataset, noise_floor, ranges, share_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.sites import (
    component_coords,
    find_site,
    head_or_kind,
    later_branches,
    listed,
)
from tsfm_lens.probes.zero_ablation import (
    check_nulls,
    forecast_ablations,
    forecast_nulls,
    make_ablations,
)

__all__ = ["causal_effects"]


@probe(
    title="Direct and total effects",
    theme="Causes",
    summary="direct, indirect and total effects; self-repair",
    description=(
        "Each component is ablated twice: with all later components frozen, and "
        "with all free to respond. Where later components undo part of the change, "
        "the model repairs itself."
    ),
    source=(
        "Pearl 2001 (direct and indirect effects); McGrath et al. 2023,"
        " arXiv:2307.15771; Rushing and Nanda 2024"
    ),
    example={"components": ["*.*.mlp"]},
)
def causal_effects(
    run: Run,
    *,
    components: Sequence[str | Component] | None = None,
    how: str = "zero",
    reference: Any = None,
    smallest: float = SMALLEST_SHARE,
    nulls: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Ablate each component with later branches free to respond, and with them frozen.

    The total effect is the change of the forecast if later branches respond. The direct
    effect is the change if they are frozen, and the indirect effect is the difference.
    Sharp logits saturate and hide direct effects.

    Args:
        run: the forecast to explain; in rollouts, a frozen branch writes what it wrote
            in the same plain pass.
        components: heads, branches or layers, by name or glob; heads and MLPs of the
            output stack if None.
        how: "zero", "mean", "resample" or "noise", which replaces the component. Draws
            take the run's seed.
        reference: activations, or series to record them on, from which "mean" and
            "resample" take their values.
        smallest: self-repair is undefined for direct effects whose mean size is up to
            this share of the series' range.
        nulls: draws beside each component, two forwards each: those of
            :func:`ablation_effects`, with later branches free and frozen.
        progress: called with (done, of).

    Returns:
        Dataset of kind "causal_effects":

        - ``total``, ``direct``, ``indirect`` (component, series, step): effects in data
          units.
        - ``total_share``, ``direct_share`` (component, series): their mean sizes over
          the range of context and forecast.
        - ``self_repair`` (component, series): 1 - <total, direct> / <direct, direct>;
          NaN where the direct effect is no larger than the noise floor or ``smallest``.
        - ``plain_forecast`` (series, step): without ablation, in data units.

        ``total_share``, ``direct_share`` and ``self_repair`` come with what
        :func:`.estimates.add_estimates` adds, without a token model's first step
        (attribute ``first_step``); with nulls the two shares also with what
        :func:`.nulls.with_nulls` adds.

    Source:
        Pearl 2001; McGrath et al. 2023 (self-repair of ablated layers); Rushing and
        Nanda 2024.

    Raises:
        InputError: ``smallest`` is not a share, or nulls of a rollout, or of another
            ablation than zero.
        UnknownNameError: no such component.

    Example:
        >>> data = probes.causal_effects(run, components="decoder.*.mlp")
        >>> sorted(name for name in data if "_" not in str(name))
        ['context', 'direct', 'indirect', 'total', 'truth']
    """
    check_share(smallest, "smallest")
    check_nulls(run, how, nulls)
    lens = run.lens
    if components is None:
        targets = writers(lens.wiring)
    else:
        targets = lens.components(*listed(components, "components"))
    later_by_target = {
        target: [
            branch
            for branch in later_branches(lens.wiring, target)
            # with later stacks frozen too, an encoder would have no direct effect at
            # all: the forecast reads it through their attention alone
            if branch.stack == target.stack
        ]
        for target in targets
    }
    later = {branch for branches in later_by_target.values() for branch in branches}
    branches = sorted(find_site(lens.wiring, branch).point for branch in later)
    # the last component has no later branch, but a recording needs a point
    activations = run.record(branches or ["unembed.hook_out"])
    free = make_ablations(run, targets, how, reference)
    frozen = {
        component: tuple(PatchFrom(branch, activations) for branch in branches)
        for component, branches in later_by_target.items()
    }
    variants = [
        Variant(f"direct {component}", (*ablations, *frozen[component]))
        for component, ablations in free.items()
    ]
    plain = run.point
    forecasts = forecast_ablations(run, free, how, progress, variants)
    data = marked_dataset(run, **component_coords(targets))
    total = forecasts[: len(targets)] - plain
    direct = forecasts[len(targets) :] - plain
    axes = ("component", "series", "step")
    parts = {
        "total": (axes, total),
        # a copy, as the first step is set to 0 below
        "direct": (axes, direct.copy()),
        "indirect": (axes, total - direct),
    }
    data = data.assign(parts | {"plain_forecast": (axes[1:], plain)})
    data.attrs = {
        "how": how,
        "rollout": int(run.rollout),
        "statistic": run.statistic,
        "smallest": smallest,
        "first_step": run.first_step,
    }
    # a token model's decoder reads no value at its first step
    steps = slice(run.first_step, None)
    spans = ranges(run, plain)
    heads = head_or_kind(data)

    def share(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        size = np.abs(other - plain)[..., steps].mean(-1)
        return ratio(size, spans)

    floor = noise_floor(run, share)
    for name, part in (("total_share", total), ("direct_share", direct)):
        # a share is of the difference of two forecasts, here given as such
        data[name] = (axes[:2], share(part, np.zeros(run.horizon)))
        data = add_estimates(data, name, floor=floor, groups=heads)
        if nulls:
            held = frozen if name == "direct_share" else None
            drawn = share(forecast_nulls(run, targets, nulls, held)[0], plain)
            effects = xr.DataArray(drawn, dims=("null", *axes[:2]))
            data = with_nulls(data, name, effects, floor=floor)
    # a quotient of a direct effect within the noise means nothing
    undefined = data["direct_share"].values <= np.fmax(floor, smallest)
    repair = self_repair(total[..., steps], direct[..., steps], undefined)
    data["self_repair"] = (axes[:2], repair)
    # the first step counts in no floor either; the result has a copy of the effects
    direct[..., : run.first_step] = 0.0
    floors = xr.DataArray(share_floor(run, direct), dims=axes[:2])
    return add_estimates(data, "self_repair", floor=floors, signed=True, groups=heads)


def self_repair(total: np.ndarray, direct: np.ndarray, none: np.ndarray) -> np.ndarray:
    """Return the share of a direct effect that later components undo.

    Effects are (…, step). The share (…) is NaN where the mask ``none`` (…) says that
    there is no direct effect.
    """
    # the projection of the total on the direct effect, which counts steps by their size
    share = ratio((total * direct).sum(-1), np.square(direct).sum(-1))
    return np.where(none, np.nan, 1.0 - share)
