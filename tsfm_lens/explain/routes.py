"""Routes: the components through which a segment of the input reaches the forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import beta

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.notices import saying_once
from tsfm_lens.ablation.points import Progress, point_forecasts
from tsfm_lens.errors import InputError
from tsfm_lens.explain.masking import Reference, reference_words
from tsfm_lens.explain.segments import Segment
from tsfm_lens.explain.sides import Sides, two_sides
from tsfm_lens.explain.values import single_pass
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.hooks.wiring import Attention
from tsfm_lens.models.forecast import is_count
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import noise_floor, share_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.places import Place, listed, places_of
from tsfm_lens.registry import probe

__all__ = ["input_routes", "missed_by_search"]

_SOURCE = "Wang et al. 2022, arXiv:2211.00593; Goldowsky-Dill et al. 2023, arXiv:2304.05969 (path patching)"
# components up to which all are tried; how many are tried of more, and how many beside them at random
_ALL, _TOP, _SPOT = 96, 32, 8
LARGEST = 5
"""Routes of a segment that a search must find."""


@probe(
    "input_routes",
    lambda results: (single_pass(results.first),),
    words="input_routes of the first item",
    options={"parts": 6, "reference": "mean"},
)
@saying_once
def input_routes(
    run: Run,
    item: int | str = 0,
    *,
    target: int | str = 0,
    parts: Sequence[Segment] | Mapping[str, Any] | int | None = None,
    reference: Reference = "mean",
    components: Sequence[str | Component] | None = None,
    direct: bool = False,
    top: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure the part of each segment's effect on the forecast that goes through each component.

    The model reads the whole input and the input without the segment. For the effect of the segment through a
    component, that component alone writes its activation of the run without the segment. All later components respond
    freely; the effect is the change of the forecast. A chain of components carries one effect, and each of them has it
    in full; so these effects overlap. Direct effects of branches on the readout do not overlap. The total effect of a
    segment is the sum of three terms: these direct effects; the effect without any component (the tokens themselves,
    and the scale that the model takes from the series); and a ``rest``, the readout's interaction of them.

    Of many components, only the largest by gradient are tried: change of the activation times gradient. Their effects
    are exact. Components drawn at random beside them measure how often the search misses one.

    Args:
        run: the forecast to explain; in rollouts, components write in every pass what they write in the same pass of
            the rollout without the segment.
        item: of the run's batch: a position or a name.
        target: of the item's targets, by position or name.
        parts: segments, or arguments of :func:`tsfm_lens.explain.segments`, or its ``parts`` alone.
        reference: values of masked steps, see :func:`tsfm_lens.explain.reference_values`.
        components: heads and branches; all heads and MLPs of all stacks if None.
        direct: also the effect of each component on the readout alone, all later branches held.
        top: components that are tried for each segment; if None all of up to 96, and 32 of more.
        seed: of a shuffled reference, and of the components tried at random.
        progress: called with (segments done, of).

    Returns:
        Dataset of kind "input_routes" over (segment, component, step), in data units: ``effect``, NaN where it was not
        tried, ``estimate``, the same to first order where gradients exist, and ``direct``. Over (segment, step)
        ``total``, ``no_component``, ``no_attention`` (the change that is left with every attention held at what it
        writes with the segment) and ``rest``; over (segment, branch, step) ``branch_direct``. Over (segment, component)
        ``size``, the mean absolute effect, with what :func:`tsfm_lens.probes.findings.judge` adds, and ``share``, the
        part of the total effect that goes through the component (a projection: 0 none, 1 all, NaN where the total is
        noise). Over (segment) ``no_attention_share``. Attributes ``search`` ("full" or "gradient"), and of the latter
        ``spot_checks``, ``miss_rate`` (components drawn at random that are above the fifth largest that was tried) and
        ``miss_rate_high``, the end of its 95 % interval.

    Source:
        Wang et al. 2022; Goldowsky-Dill et al. 2023. Attribution patching: Nanda 2023.

    Raises:
        InputError: masking changes what tokens there are; top is no count; as in
            :func:`tsfm_lens.explain.attribute_inputs`.
        UnknownNameError: no such component, item or target.

    Example:
        >>> found = explain.input_routes(run, parts=2, reference="mean", components=["decoder.*.mlp"])
        >>> found["effect"].dims
        ('segment', 'component', 'step')
    """
    if top is not None and not is_count(top):
        raise InputError(f"top is {top!r}, expected how many components are tried, 1 or more")
    sides = two_sides(run, item, target, parts, reference, seed)
    search = _RouteSearch.of(sides, components, top, direct, seed)
    sums = _Sums(sides)
    for number in range(len(sides.segments)):
        without = sides.without([number])
        search.add(number, without)
        sums.add(number, without)
        if progress is not None:
            progress(number + 1, len(sides.segments))
    data = sides.dataset().assign_coords(component_coords(search.places))
    data = data.assign_coords(branch=[str(branch) for branch in sums.branches])
    data = data.assign(search.variables() | sums.variables())
    reference_name = reference_words(reference)
    facts = {"reference": reference_name, "target": sides.name, "rollout": int(sides.run.rollout), **search.facts()}
    units = sides.run.batch.units[sides.row]
    data.attrs = sides.run.describe("input_routes", "Routes of the input", _SOURCE, units=units, **facts)
    return _with_findings(data, sides)


def all_effects(sides: Sides, components: Any = None) -> tuple[list[Place], np.ndarray, np.ndarray]:
    """Return components, the effects of all segments through them (segment, component, step), and the total effects."""
    search = _RouteSearch.of(sides, components, None, False, 0)
    search.top, search.estimate = len(search.places), None
    total = np.empty((len(sides.segments), sides.run.horizon))
    for number in range(len(sides.segments)):
        without = sides.without([number])
        search.add(number, without)
        total[number] = sides.run.point[sides.row] - without.point[sides.row]
    return search.places, search.effect, total


def _with_findings(data: xr.Dataset, sides: Sides) -> xr.Dataset:
    """Add sizes against their noise floor, and shares of what is more than noise."""
    run, row = sides.run, sides.row
    floor = noise_floor(run, lambda other, plain: np.abs(other - plain).mean(-1))[row]
    total = data["total"].values
    length = np.square(total).sum(-1)
    way = np.zeros((len(total), *run.point.shape))
    way[:, row] = total
    significant = (np.abs(total).mean(-1) > floor) & (share_floor(run, way)[:, row] < 1)

    def share(values: np.ndarray) -> np.ndarray:
        """Project values (segment, …, step) on the total effect, (segment, …)."""
        by = total.reshape(len(total), *[1] * (values.ndim - 2), -1)
        along = (values * by).sum(-1)
        scale = np.where(significant, length, np.nan).reshape(len(total), *[1] * (along.ndim - 1))
        return np.asarray(along / scale)

    data["share"] = (("segment", "component"), share(data["effect"].values))
    data["no_attention_share"] = (("segment",), share(data["no_attention"].values))
    data["total_floor"] = ((), float(floor))
    data["size"] = (("segment", "component"), np.abs(data["effect"].values).mean(-1))
    data = data.assign_coords(target=[sides.name])
    sizes = data["size"].expand_dims(target=data["target"])
    return judge(data, "size", floor=float(floor), values=sizes, over="target", groups="segment")


def component_coords(places: Sequence[Place]) -> dict[str, Any]:
    """Return coordinates of components beside segments, whose own coordinates have the plain names."""
    return {
        "component": [str(place.target) for place in places],
        "stack": ("component", [place.stack for place in places]),
        "component_kind": ("component", [place.kind for place in places]),
        "layer_index": ("component", [place.layer for place in places]),
        "head": ("component", [-1 if place.head is None else place.head for place in places]),
    }


def all_writers(lens: Lens) -> list[Component]:
    """Return the heads and MLPs of every stack."""
    return [each for stack in lens.wiring.stacks for each in writers(lens.wiring, stack.name)]


@dataclass
class _RouteSearch:
    """Effects of segments through components, filled one segment at a time.

    Attributes:
        sides: runs with and without segments.
        places: candidates.
        top: how many are tried for each segment.
        seed: of the components tried at random beside them.
        effect, direct: (segment, component, step); NaN where not tried, ``direct`` None if not asked for.
        estimate: (segment, component, step), None without gradients.
        spots, misses: number of components tried at random, and of those that the search should have found.
    """

    sides: Sides
    places: list[Place]
    top: int
    seed: int
    effect: np.ndarray
    direct: np.ndarray | None
    estimate: np.ndarray | None
    spots: int = 0
    misses: int = 0

    @classmethod
    def of(cls, sides: Sides, components: Any, top: int | None, direct: bool, seed: int) -> _RouteSearch:
        """Start a search with no effect measured yet."""
        lens = sides.run.lens
        places = places_of(lens, all_writers(lens) if components is None else listed(components, "components"))
        if any(isinstance(place.target, str) for place in places):
            raise InputError("routes go through heads and branches; name components, and no residual stream")
        count = len(places) if top is None and len(places) <= _ALL else min(top or _TOP, len(places))
        has_gradients = sides.differentiable
        # without a gradient nothing says which to try
        count = count if has_gradients else len(places)
        shape = (len(sides.segments), len(places), sides.run.horizon)
        nothing = np.full(shape, np.nan)
        return cls(
            sides,
            places,
            count,
            seed,
            nothing,
            nothing.copy() if direct else None,
            nothing.copy() if has_gradients else None,
        )

    @property
    def full(self) -> bool:
        """True if every component is measured."""
        return self.top == len(self.places)

    def add(self, number: int, without: Run) -> None:
        """Find the effects of one segment, given the run without it."""
        candidates = np.arange(len(self.places))
        if self.estimate is not None:
            self.estimate[number] = self.sides.estimated(without, self.places, self._slopes)
        if not self.full:
            assert self.estimate is not None
            order = by_size(self.estimate[number])
            sample = np.random.default_rng([self.seed, number]).permutation(order[self.top :])[:_SPOT]
            candidates = np.concatenate([order[: self.top], sample])
        self._run(number, without, candidates)
        if not self.full:
            sizes = np.abs(self.effect[number]).mean(-1)
            least = np.sort(sizes[candidates[: self.top]])[::-1][:LARGEST][-1]
            self.spots += len(candidates) - self.top
            self.misses += int((sizes[candidates[self.top :]] > np.fmax(least, self.sides.floor)).sum())

    @cached_property
    def _slopes(self) -> Activations:
        return self.sides.slopes(self.places)

    def _run(self, number: int, without: Run, candidates: np.ndarray) -> None:
        places = [self.places[index] for index in candidates]
        acts = without.record(sorted({place.point for place in places}))
        through = [Variant(str(place.target), (PatchFrom(place.target, acts),)) for place in places]
        direct = self.sides.directly(acts, [place.target for place in places]) if self.direct is not None else []
        change = self.sides.change([*through, *direct])
        self.effect[number, candidates] = change[: len(places)]
        if self.direct is not None:
            self.direct[number, candidates] = change[len(places) :]

    def variables(self) -> dict[str, Any]:
        """Return the effects as variables of the result."""
        axes = ("segment", "component", "step")
        arrays: dict[str, Any] = {"effect": (axes, self.effect)}
        if self.direct is not None:
            arrays["direct"] = (axes, self.direct)
        if self.estimate is not None:
            arrays["estimate"] = (axes, self.estimate)
        return arrays

    def facts(self) -> dict[str, object]:
        """Return the search as attributes of the result."""
        if self.full:
            return {"search": "full"}
        rate = self.misses / self.spots if self.spots else 0.0
        # Clopper and Pearson; one-sided where nothing was missed
        high = beta.ppf(0.975, self.misses + 1, self.spots - self.misses) if self.misses < self.spots else 1.0
        checks = {"spot_checks": self.spots, "miss_rate": rate, "miss_rate_high": float(high)}
        return {"search": "gradient", "top": self.top, **checks}


@dataclass
class _Sums:
    """Terms of the total effects of segments, filled one segment at a time."""

    sides: Sides

    def __post_init__(self) -> None:
        segments, steps = len(self.sides.segments), self.sides.run.horizon
        self.total, self.no_component, self.no_attention = (np.full((segments, steps), np.nan) for _ in range(3))
        self.branch_direct = np.full((segments, len(self.branches), steps), np.nan)

    @cached_property
    def branches(self) -> list[Component]:
        """Branches of the stack that is read out, in order of writing."""
        stack = self.sides.run.lens.wiring.output_stack
        return [Component(stack.name, layer, row.kind) for layer in range(stack.n_layers) for row in stack.rows(layer)]

    def add(self, number: int, without: Run) -> None:
        """Find the sums of one segment, given the run without it."""
        sides = self.sides
        acts = without.record([sides.written_at(branch) for branch in self.branches])
        self.branch_direct[number] = sides.change(sides.directly(acts, self.branches))
        lens = sides.run.lens
        whole = sides.run.record([sides.written_at(each) for each in sides.branches])
        attentions = [each for each in sides.branches if isinstance(_row(lens, each), Attention)]
        variants = [
            Variant("no component", tuple(PatchFrom(branch, whole) for branch in self.branches)),
            Variant("no attention", tuple(PatchFrom(branch, whole) for branch in attentions)),
        ]
        plain = sides.run.point[sides.row]
        self.no_component[number], self.no_attention[number] = (
            plain - point_forecasts(without, [each])[0, sides.row] for each in variants
        )
        self.total[number] = plain - without.point[sides.row]

    def variables(self) -> dict[str, Any]:
        """Return the terms as variables of the result."""
        axes = ("segment", "step")
        rest = self.total - self.no_component - self.branch_direct.sum(1)
        sums = {"total": self.total, "no_component": self.no_component, "no_attention": self.no_attention}
        variables: dict[str, Any] = {name: (axes, values) for name, values in {**sums, "rest": rest}.items()}
        return {**variables, "branch_direct": (("segment", "branch", "step"), self.branch_direct)}


def _row(lens: Lens, branch: Component) -> object:
    return next(row for row in lens.wiring.stack(branch.stack).rows(branch.layer) if row.kind == branch.kind)


def by_size(effects: np.ndarray) -> np.ndarray:
    """Sort places of (component, step) by their mean size, largest first; NaN comes first."""
    return np.argsort(-np.nan_to_num(np.abs(effects).mean(-1), nan=np.inf), kind="stable")


def missed_by_search(routes: xr.Dataset, top: int, *, largest: int = LARGEST) -> float:
    """Compute the share of the largest routes of all segments that a search of so many components would miss.

    Args:
        routes: of kind "input_routes", of a full search of a model with gradients.
        top: components that would have been tried for each segment.
        largest: routes of each segment, among those that stand out of the noise, that should be found.

    Raises:
        InputError: the search was not full, or there are no estimates.

    Example:
        >>> found = explain.input_routes(run, parts=2, reference="mean", components=["decoder.*.mlp"])
        >>> explain.missed_by_search(found, 4)
        0.0
    """
    if routes.attrs.get("search") != "full" or "estimate" not in routes:
        raise InputError("misses are counted against a full search with estimates; give no top, and a run of one pass")
    misses, count = 0, 0
    for number in range(routes.sizes["segment"]):
        one = routes.isel(segment=number)
        candidates = set(by_size(one["estimate"].values)[:top])
        true = [place for place in by_size(one["effect"].values)[:largest] if one["size_stands_out"].values[place]]
        count += len(true)
        misses += len(set(true) - candidates)
    return misses / max(count, 1)
