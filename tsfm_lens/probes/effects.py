"""Direct, indirect and total effect of a component on the forecast, and the self-repair of what comes after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import Progress
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import noise_floor, ranges, share_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import SMALLEST_SHARE, judge, refuse_no_share
from tsfm_lens.probes.places import component_coords, head_or_kind, later_branches, listed
from tsfm_lens.probes.zero_ablation import ablations_of, points_without
from tsfm_lens.registry import probe

__all__ = ["causal_effects"]

_SOURCE = "Pearl 2001 (direct and indirect effects); McGrath et al. 2023, arXiv:2307.15771; Rushing and Nanda 2024"


@probe("effects")
def causal_effects(
    run: Run,
    *,
    components: Sequence[str | Component] | None = None,
    how: str = "zero",
    reference: Any = None,
    smallest: float = SMALLEST_SHARE,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Ablate each component twice: with all later branches free to respond, and with them held at what they wrote.

    The total effect is the change of the forecast with everything free. The direct effect is the change with every
    later attention and MLP of the stack held. The component then acts on the forecast through the residual stream (and
    the final norm) alone; an encoder's, through the whole decoder. The indirect effect is total less direct. Where
    later components undo part of the direct effect, the model repairs itself.

    Sharp logits saturate and hide direct effects. In planted Chronos models the direct effect ranks parts near chance
    in most mechanisms, and mistakes a head that lifts the logits of all values alike for a part. The total effect does
    neither.

    Args:
        run: the forecast to explain; in rollouts, a held branch writes what it wrote in the same plain pass.
        components: heads, branches or layers, by name or glob; heads and MLPs of the stack that is read out if None.
        how, reference: what takes a component's place; see :meth:`Lens.ablate`. Draws take the run's seed.
        smallest: self-repair is undefined for direct effects whose mean size is up to this share of the series' range.
        progress: called with (done, of).

    Returns:
        Dataset of kind "effects" over (component, series, step), in data units: ``total``, ``direct``, ``indirect``;
        over (component, series) ``total_share`` and ``direct_share``, their mean sizes over the range of context and
        forecast, and ``self_repair`` = 1 - <total, direct> / <direct, direct>: 0 none, 1 all of the direct effect is
        undone, negative where later components add to it, and NaN where the direct effect is no larger than the noise
        floor or ``smallest``; for each of these what :func:`tsfm_lens.probes.findings.judge` adds. A token model's
        first step is left out of them, as in :func:`tsfm_lens.probes.ablation_effects`; the attribute ``first_step``
        says so. ``plain_forecast`` (series, step).

    Source:
        Pearl 2001; McGrath et al. 2023 (self-repair of ablated layers); Rushing and Nanda 2024.

    Raises:
        InputError: ``smallest`` is no share.
        UnknownNameError: no such component.

    Example:
        >>> data = probes.causal_effects(run, components="decoder.*.mlp")
        >>> sorted(name for name in data if "_" not in str(name))
        ['context', 'direct', 'indirect', 'total', 'truth']
    """
    refuse_no_share(smallest, "smallest")
    lens = run.lens
    targets = writers(lens.wiring) if components is None else lens.components(*listed(components, "components"))
    data = run.dataset().assign_coords(component_coords(targets))
    later = {c: [b for b in later_branches(lens.wiring, _last(lens, c)) if b.stack == c.stack] for c in targets}
    branches = sorted({_point(lens, branch) for behind in later.values() for branch in behind})
    acts = run.record(branches or ["unembed.hook_out"])
    free = ablations_of(run, targets, how, reference)
    variants = [
        Variant(f"direct {component}", (*ablations, *(PatchFrom(branch, acts) for branch in later[component])))
        for component, ablations in free.items()
    ]
    forecasts, plain = points_without(run, free, how, progress, beside=variants), run.point
    total, direct = forecasts[: len(targets)] - plain, forecasts[len(targets) :] - plain
    axes = ("component", "series", "step")
    parts = {"total": (axes, total), "direct": (axes, direct), "indirect": (axes, total - direct)}
    data = data.assign(parts | {"plain_forecast": (axes[1:], plain)})
    facts: dict[str, object] = {"how": how, "rollout": int(run.rollout), "statistic": run.statistic}
    facts |= {"smallest": smallest, "first_step": run.first_step}
    data.attrs = run.describe("effects", "Direct and total effects", _SOURCE, **facts)
    return _add_statistics(data, run, smallest)


def _add_statistics(data: xr.Dataset, run: Run, smallest: float) -> xr.Dataset:
    """Add shares of the range, self-repair, and their statistics; heads are compared with heads, and so on."""
    later, wide = slice(run.first_step, None), ranges(run, run.point)
    total, direct = (data[part].values[..., later] for part in ("total", "direct"))
    axes, groups = ("component", "series"), head_or_kind(data)

    def share(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        size = np.abs(other - plain)[..., later].mean(-1)
        return np.divide(size, wide, out=np.zeros_like(size), where=wide > 0)

    floor = noise_floor(run, share)
    for name, part in (("total_share", "total"), ("direct_share", "direct")):
        data[name] = (axes, share(data[part].values, np.zeros(run.horizon)))
        data = judge(data, name, floor=floor, groups=groups)
    none = data["direct_share"].values <= np.fmax(floor, smallest)
    data["self_repair"] = (axes, self_repair(total, direct, none))
    way = data["direct"].values.copy()
    way[..., : later.start] = 0.0
    return judge(data, "self_repair", floor=xr.DataArray(share_floor(run, way), dims=axes), signed=True, groups=groups)


def self_repair(total: np.ndarray, direct: np.ndarray, none: np.ndarray) -> np.ndarray:
    """Compute the share of a direct effect that later components undo.

    Args:
        total, direct: (…, step) in data units.
        none: (…) whether a direct effect counts as none.

    Returns:
        (…); NaN where there is no direct effect.
    """
    size = np.square(direct).sum(-1)
    valid = ~none & (size > 0)
    share = np.divide((total * direct).sum(-1), size, out=np.full(size.shape, np.nan), where=valid)
    return 1.0 - share


def _last(lens: Lens, component: Component) -> Component:
    """Return the component, or the last branch of a whole layer."""
    if component.kind is not None:
        return component
    last = lens.wiring.stack(component.stack).rows(component.layer)[-1]
    return Component(component.stack, component.layer, last.kind)


def _point(lens: Lens, branch: Component) -> str:
    return f"{lens.wiring.stack(branch.stack).prefix}.{branch.layer}.{branch.kind}.hook_out"
