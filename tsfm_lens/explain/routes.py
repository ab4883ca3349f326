"""Routes: the components through which a segment of the input reaches the forecast.

:func:`input_routes` is the measurement, by path patching between the runs of
:class:`PairedRuns`. Routes over many items are in :mod:`tsfm_lens.explain.over_items`,
and their test is :func:`tsfm_lens.explain.route_faithfulness`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy.stats import beta
from torch import Tensor

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.notices import with_messages_once
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import CONFIDENCE
from tsfm_lens.data.batch import Item
from tsfm_lens.explain.masking import Reference, reference_label
from tsfm_lens.explain.parts import Parts
from tsfm_lens.explain.segments import segment_coords
from tsfm_lens.explain.values import Masks, single_pass
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import noise_floor, share_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.patching import with_gradients
from tsfm_lens.probes.sites import (
    PatchSite,
    find_site,
    later_branches,
    listed,
    parse_sites,
    site_coords,
)

__all__ = ["input_routes"]

_MAX_BLOCKS = 48  # gradients that are taken at most, each of one or a few steps
# numbers in all gradients and activations in memory: 256 MiB in single precision
_NUMBERS = 2**26


@dataclass(eq=False)
class PairedRuns(Masks):
    """Run of one item in full, and runs of the same item with segments masked."""

    def without(self, hidden: Sequence[int]) -> Run:
        """Return a run of the item with some segments masked.

        ``hidden`` are positions of segments.
        """
        run = self.run
        batch = self.masked(
            np.isin(np.arange(len(self.segments)), hidden, invert=True)[None]
        )
        # masked() names copies "0/…", so that many can stand in one batch; this one has
        # to match the full run by its ids
        batch = replace(batch, ids=run.batch.ids, groups=run.batch.groups)
        # a decoder reads the same earlier outputs in both runs, so that all of the
        # effect enters through the context; in a rollout each run makes its own
        forced_path = None
        if run.tokens_read and not run.rollout:
            forced_path = run.path
        other = replace(
            run,
            batch=batch,
            truth=None,
            full_batch=None,
            forced_path=forced_path,
            _of=None,
        )
        # activations are patched by position, so position i has to cover the same steps
        # in both runs
        if other.spans != run.spans:
            names = ", ".join(self.segments[index].name for index in hidden[:3])
            raise InputError(
                f"{run.lens.model_id} drops tokens where {names} is masked, so that"
                " activations do not fit; choose another reference, such as 'mean' or"
                " 'seasonal naive'"
            )
        return other

    def total(self, without: Run) -> np.ndarray:
        """Compute by how much the target's forecast falls in another run of the item.

        Returns:
            (step,), in data units.
        """
        return self.run.point[self.row] - without.point[self.row]

    def change(self, variants: Sequence[Variant], of: Run | None = None) -> np.ndarray:
        """Compute how far the forecast under variants lies below that of the full run.

        Variants are of the run ``of``, which is the full run unless given.

        Returns:
            (variant, step), in data units.
        """
        if not variants:
            return np.empty((0, self.run.horizon))
        return (
            self.run.point[self.row]
            - point_forecasts(of or self.run, variants)[:, self.row]
        )

    def list_points(self, branches: Sequence[Component]) -> list[str]:
        """Return the hook points of branches' writes."""
        wiring = self.run.lens.wiring
        return [find_site(wiring, branch).point for branch in branches]

    @cached_property
    def branches(self) -> list[Component]:
        """Branches of all stacks, in order."""
        return [
            Component(stack.name, layer, row.kind)
            for stack in self.run.lens.wiring.stacks
            for layer in range(stack.n_layers)
            for row in stack.rows(layer)
        ]

    def directly(self, acts: Activations, components: Sequence[Any]) -> list[Variant]:
        """Return variants that show each component's direct effect on the output.

        The component writes what is recorded in ``acts``, and every later branch what
        it writes in the full run, so that none of them responds.
        """
        full = self.run.record(self.list_points(self.branches))
        wiring = self.run.lens.wiring
        return [
            Variant(
                f"{component} alone",
                (
                    PatchFrom(component, acts),
                    *(
                        PatchFrom(branch, full)
                        for branch in later_branches(wiring, component)
                    ),
                ),
            )
            for component in components
        ]

    @cached_property
    def floor(self) -> float:
        """Mean absolute change of the target's forecast by noise, in data units."""
        floor = noise_floor(
            self.run, lambda noisy, plain: np.abs(noisy - plain).mean(-1)
        )
        return float(floor[self.row])

    @property
    def differentiable(self) -> bool:
        """True if gradients of the forecast exist, in one pass over the horizon."""
        lens = self.run.lens
        return (
            bool(lens.wiring.true_gradients)
            and self.run.horizon <= lens.adapter.longest_pass
        )

    @cached_property
    def _blocks(self) -> list[np.ndarray]:
        """Blocks of forecast steps; a gradient is taken of the mean of each block."""
        n_spans = sum(len(spans) for spans in self.run.spans.values())
        n_tokens = n_spans * len(self.run.batch)
        # twice, for an activation and its gradient
        n_arrays = 2 * max(len(self.branches), 1)
        in_memory = _NUMBERS // (n_tokens * self.run.lens.d_model * n_arrays)
        n_blocks = max(1, min(_MAX_BLOCKS, in_memory))
        return np.array_split(
            np.arange(self.run.horizon), min(n_blocks, self.run.horizon)
        )

    def slopes(self, sites: Sequence[PatchSite]) -> Activations:
        """Return activations of the full run, with gradients of the forecast.

        The gradient of "POINT" is "POINT_grad", (block, …) over blocks of steps.
        """
        run = self.run.in_one_pass()

        def block_means(output: Tensor) -> Tensor:
            forecast = run.read(output, run.encoded)[self.row]
            return torch.stack([forecast[block].mean() for block in self._blocks])

        return with_gradients(run, sorted({site.point for site in sites}), block_means)

    def estimated(
        self, without: Run, sites: Sequence[PatchSite], slopes: Activations
    ) -> np.ndarray:
        """Estimate effects through sites to first order, from gradients (``slopes``).

        Returns:
            (site, step), in data units.
        """
        # gradients are of one pass, so the other run is taken in one pass too
        if without.rollout:
            if self.run.tokens_read:
                # of the full run, so that this pass differs from it in the context
                # alone
                path = self.run.in_one_pass().path
            else:
                path = None
            without = replace(without, rollout=False, forced_path=path, _of=None)
        masked_activations = without.record(sorted({site.point for site in sites}))
        effects = np.empty((len(sites), self.run.horizon))
        for values, site in zip(effects, sites, strict=True):
            change = slopes[site.point] - masked_activations[site.point]
            product = change * slopes[f"{site.point}_grad"]
            if site.head is not None:
                product = product[..., site.head, :]
            # (block, …) summed over all but the block: the inner product of change and
            # gradient, which is the first-order term of Taylor's series
            by_block = np.asarray(product.detach().double().flatten(1).sum(1).cpu())
            for block, effect in zip(self._blocks, by_block, strict=True):
                # the gradient is of the block's mean, so that every step of it gets the
                # same estimate
                values[block] = effect
        return effects

    def dataset(self) -> xr.Dataset:
        """Return context, segments, and the forecast with everything visible."""
        data = self.run.dataset().assign_coords(segment_coords(self.segments))
        return data.assign(forecast=(("step",), self.run.point[self.row]))


_ALL = 96  # largest number of components that are all measured
_TOP = 32  # components that are measured for each segment where there are more
# Random components that are measured in addition: they tell how often the search by
# gradient misses a large one.
_SPOT = 8
LARGEST = 5
"""Routes of a segment that a search must find."""


def _same_stretches(results: Any) -> dict[str, Any]:
    """Choose the stretches of the inputs' explanation, if there is one."""
    inputs = results.computed.get("input_attribution")
    parts: Parts = 6
    # a run in one pass may have fewer steps, to which other segments are cut anew
    if inputs is not None and "part_values" not in inputs.coords:
        starts = inputs["start"].values[inputs["kind"].values == "past"]
        parts = {"cuts": sorted(starts.tolist())[1:]}
    return {"parts": parts, "reference": "mean"}


@probe(
    lambda results: (single_pass(results.first),),
    title="Routes of the input",
    theme="Inputs",
    summary=(
        "effect of each segment of the input through each head and MLP, total and "
        "direct, with its sum"
    ),
    description=(
        "The model runs with and without a segment. The effect through a component "
        "is the change of the forecast when only that component writes as if the "
        "segment were missing. Components in series carry the same effect, so these "
        "numbers do not add up. In a component's name the first number is its layer "
        "and a last one its head, from 0."
    ),
    source=(
        "Wang et al. 2022, arXiv:2211.00593; Goldowsky-Dill et al. 2023,"
        " arXiv:2304.05969 (path patching)"
    ),
    needs="series",
    computes="input_routes of the first item",
    one_item=True,
    options=_same_stretches,
    example={"parts": 3},
)
@with_messages_once
def input_routes(
    run: Run,
    item: Item = None,
    *,
    target: int | str = 0,
    parts: Parts = None,
    reference: Reference = "mean",
    components: Sequence[str | Component] | None = None,
    top: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure how much of each segment's effect goes through each component.

    The effect through a component is the change of the forecast if only this component
    writes its activation of the run without the segment, while later ones respond to
    it. Components that read one another carry the same effect, so these effects do not
    add up. The total effect has three parts that do: the direct effects of branches on
    the output head, the effect through no component, and ``rest``, their interaction in
    the output head. Of many components, only those of the largest gradient estimates
    and a few random ones are measured.

    Args:
        run: the forecast to explain.
        item: by position or name; the only one if None.
        target: of the item's targets, by position or name.
        parts: segments: their largest number in the target's past, a dict of ``parts``,
            ``season``, ``others`` and ``cuts``, or "adaptive" or "components".
        reference: values of masked steps: one of :data:`REFERENCES`, a dict with one
            for each role ("target", "past", "known"), or (time + horizon,) for each
            series.
        components: heads and branches; all heads and MLPs of all stacks if None.
        top: components to test for each segment; if None, all if there are up to 96,
            else 32.
        seed: of a shuffled reference, and of the random components.
        progress: called with the segments done and their number.

    Returns:
        Dataset of kind "input_routes", in data units.

        - Over (segment, component, step): ``effect``, NaN where it was not measured,
          and ``estimate``, the same to first order where gradients exist.
        - Over (segment, step): ``total``, ``no_component``, ``no_attention`` (every
          attention held at what it writes with the segment) and ``rest``. Over
          (segment, branch, step): ``branch_direct``.
        - Over (segment, component): ``size``, the mean absolute effect, with what
          :func:`.estimates.add_estimates` adds, and ``share``, the projection of the
          effect on the total (NaN where the total is noise).
        - Over (segment): ``no_attention_share``.

        The attribute ``search`` is "full" or "gradient". After a search by gradient
        there are ``spot_checks``, the number of random components; ``miss_rate``, the
        share of them above the fifth largest that was measured; and ``miss_rate_high``,
        the upper bound of its 95 % interval.

    Raises:
        InputError: masking changes the number of tokens; top is not a count; segments
            or the reference do not fit the item; the model cannot forecast the visible
            rest.
        UnknownNameError: no such component, reference, item or target.

    Source:
        Wang et al. 2022; Goldowsky-Dill et al. 2023. Attribution patching: Nanda 2023.

    Example:
        >>> found = explain.input_routes(
        ...     run, parts=2, reference="mean", components=["decoder.*.mlp"]
        ... )
        >>> found["effect"].dims
        ('segment', 'component', 'step')
    """
    if top is not None and not is_count(top):
        raise InputError(f"top is {top!r}, expected a number of components, 1 or more")
    pair = PairedRuns(run, parts, reference, item, target, seed)
    sites = _candidates(pair.run.lens, components)
    if top is None and len(sites) <= _ALL:
        count = len(sites)
    else:
        count = min(top or _TOP, len(sites))
    # without gradients nothing says which components to try, so all are measured
    full = not pair.differentiable or count == len(sites)
    slopes = pair.slopes(sites) if pair.differentiable else None
    axes = ("segment", "component", "step")
    blank = np.full((len(pair.segments), len(sites), pair.run.horizon), np.nan)
    effects = {"effect": blank.copy()}
    effects |= {} if slopes is None else {"estimate": blank.copy()}
    # only the output stack writes into what the output head reads; other stacks reach
    # the forecast through branches of the output stack
    branches = [
        branch
        for branch in pair.branches
        if branch.stack == pair.run.lens.wiring.output_stack.name
    ]
    terms = []
    checks = 0
    misses = 0
    for number in range(len(pair.segments)):
        without = pair.without([number])
        tried = np.arange(len(sites))
        if slopes is not None:
            effects["estimate"][number] = pair.estimated(without, sites, slopes)
        if not full:
            order = by_size(effects["estimate"][number])
            rng = np.random.default_rng([seed, number])
            sample = rng.permutation(order[count:])[:_SPOT]
            tried = np.concatenate([order[:count], sample])
        effects["effect"][number, tried] = _effects(
            pair, without, [sites[index] for index in tried]
        )
        if not full:
            sizes = np.abs(effects["effect"][number]).mean(-1)
            largest = np.sort(sizes[tried[:count]])[::-1][:LARGEST]
            threshold = largest[-1]
            checks += len(sample)
            # A random component was missed if it exceeds the fifth largest of those
            # that the gradient chose. One below the noise of the forecast is no miss.
            misses += int((sizes[sample] > np.fmax(threshold, pair.floor)).sum())
        terms.append(_terms(pair, without, branches))
        if progress is not None:
            progress(number + 1, len(pair.segments))
    data = pair.dataset().assign_coords(
        route_coords(sites) | {"branch": [str(branch) for branch in branches]}
    )
    data = data.assign({name: (axes, values) for name, values in effects.items()})
    for name in terms[0]:
        dims: tuple[str, ...] = ("segment", "step")
        if name == "branch_direct":
            dims = ("segment", "branch", "step")
        data[name] = (dims, np.stack([term[name] for term in terms]))
    data.attrs = {
        "units": pair.units,
        "reference": reference_label(reference),
        "target": pair.name,
        "rollout": int(pair.run.rollout),
        "search": "full" if full else "gradient",
    }
    if not full:
        # the upper bound of Clopper and Pearson (1934); it is 1 where all were missed
        high = 1.0
        if misses < checks:
            high = float(beta.ppf((1 + CONFIDENCE) / 2, misses + 1, checks - misses))
        rate = misses / checks if checks else 0.0
        data.attrs |= {
            "top": count,
            "spot_checks": checks,
            "miss_rate": rate,
            "miss_rate_high": high,
        }
    return _with_findings(data, pair)


def all_effects(
    pair: PairedRuns, components: Any = None
) -> tuple[list[PatchSite], np.ndarray, np.ndarray]:
    """Return components, effects of all segments through them, and total effects.

    Effects through components are (segment, component, step), total effects (segment,
    step), in data units.
    """
    sites = _candidates(pair.run.lens, components)
    runs = (pair.without([number]) for number in range(len(pair.segments)))
    results = [
        (_effects(pair, without, sites), pair.total(without)) for without in runs
    ]
    effect, total = (np.stack(values) for values in zip(*results, strict=True))
    return sites, effect, total


def route_coords(sites: Sequence[PatchSite]) -> dict[str, Any]:
    """Return coordinates of components for results that also have segments.

    There "kind" is that of the segments, so that of components is "component_kind".
    """
    return {
        "component_kind" if name == "kind" else name: coord
        for name, coord in site_coords(sites).items()
    }


def list_branches(lens: Lens) -> list[Component]:
    """Return the heads and MLPs of every stack."""
    return [
        writer
        for stack in lens.wiring.stacks
        for writer in writers(lens.wiring, stack.name)
    ]


def by_size(effects: np.ndarray) -> np.ndarray:
    """Return components of effects (component, step) by mean size, largest first.

    Returns their positions; components with NaN come first.
    """
    # a gradient that is not finite says nothing of its component, which is therefore
    # tried before all others
    return np.argsort(
        -np.nan_to_num(np.abs(effects).mean(-1), nan=np.inf), kind="stable"
    )


def _candidates(lens: Lens, components: Any) -> list[PatchSite]:
    """Return the sites of the components asked for, all heads and MLPs for None."""
    names: Sequence[str | Component] = list_branches(lens)
    if components is not None:
        names = listed(components, "components")
    sites = parse_sites(lens, names)
    # A site whose target is a string is a place of the residual stream. This holds what
    # all earlier components wrote, and so is no route of its own.
    if any(isinstance(site.target, str) for site in sites):
        raise InputError(
            "routes go through heads and branches; name components, not the residual"
            " stream"
        )
    return sites


def _effects(pair: PairedRuns, without: Run, sites: Sequence[PatchSite]) -> np.ndarray:
    """Compute effects through sites, (component, step)."""
    activations = without.record(sorted({site.point for site in sites}))
    return pair.change(
        [
            Variant(str(site.target), (PatchFrom(site.target, activations),))
            for site in sites
        ]
    )


def _terms(
    pair: PairedRuns, without: Run, branches: Sequence[Component]
) -> dict[str, np.ndarray]:
    """Return the terms (step,) of one segment's total effect.

    The direct effects of branches are (branch, step).
    """
    direct = pair.change(
        pair.directly(without.record(pair.list_points(branches)), branches)
    )
    wiring = pair.run.lens.wiring
    # made once: the run caches this recording for the segments that follow
    full = pair.run.record(pair.list_points(pair.branches))
    attentions = [
        Component(stack.name, layer, row.kind)
        for stack in wiring.stacks
        for layer in range(stack.n_layers)
        for row in stack.attentions(layer)
    ]
    no_component, no_attention = (
        # in the run without the segment, these components are given what they write
        # with it; the change that remains went through none of them
        pair.change(
            [Variant("fixed", tuple(PatchFrom(one, full) for one in components))],
            without,
        )[0]
        for components in (branches, attentions)
    )
    total = pair.total(without)
    terms = {
        "total": total,
        "no_component": no_component,
        "no_attention": no_attention,
        "branch_direct": direct,
    }
    # not 0: direct effects are of one branch at a time, while the final norm and the
    # output head read the sum of all
    return terms | {"rest": total - no_component - direct.sum(0)}


def _with_findings(data: xr.Dataset, pair: PairedRuns) -> xr.Dataset:
    """Add sizes with tests against noise, and shares of totals that exceed noise."""
    total = data["total"].values
    # share_floor() takes changes of all series of the item, (segment, series, step), of
    # which only the target's is not 0
    change = np.zeros((len(total), *pair.run.point.shape))
    change[:, pair.row] = total
    # A share of a total that is noise can be any number. So the total must exceed the
    # noise floor, and the floor of the share must be below 1.
    significant = (np.abs(total).mean(-1) > pair.floor) & (
        share_floor(pair.run, change)[:, pair.row] < 1
    )
    scale = np.where(significant, np.square(total).sum(-1), np.nan)
    # inner products with the total effect, over steps
    projections = (data["effect"].values * total[:, None]).sum(-1)
    data["share"] = (("segment", "component"), projections / scale[:, None])
    data["no_attention_share"] = (
        ("segment",),
        (data["no_attention"].values * total).sum(-1) / scale,
    )
    data["total_floor"] = ((), pair.floor)
    data["size"] = (("segment", "component"), np.abs(data["effect"].values).mean(-1))
    data = data.assign_coords(target=[pair.name])
    # add_estimates() compares over a dimension of series, which is the one target here
    sizes = data["size"].expand_dims(target=data["target"])
    return add_estimates(
        data, "size", floor=pair.floor, values=sizes, over="target", groups="segment"
    )
