"""One item whole and with segments masked: two runs under the same settings, with activations that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.explain.masking import Reference, masked, reference_rows
from tsfm_lens.explain.segments import Segment, given_parts, item_of, refuse_overlap, target_row
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.models.noise import noise_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attribution_patching import with_gradients
from tsfm_lens.probes.places import Place, later_branches

# steps of a forecast that have gradients of their own at most, and numbers that are held of all gradients
_STEPS, _NUMBERS = 48, 2**26


@dataclass(frozen=True, eq=False)
class Sides:
    """One item's run, and runs of the same item with segments masked.

    Attributes:
        run: of the item alone, everything shown.
        row: of the target in the item.
        segments: of the item.
        stands: values of masked steps, (time + horizon,) for each series.
        numeric: the item, categories as the numbers that the model reads.
    """

    run: Run
    row: int
    segments: tuple[Segment, ...]
    stands: tuple[np.ndarray, ...]
    numeric: SeriesBatch
    _cache: dict[tuple[int, ...], Run] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the target."""
        return self.run.batch.ids[self.row]

    def without(self, hidden: Sequence[int]) -> Run:
        """Run the item with some segments masked, as the whole one is run; the last such run is cached.

        Raises:
            InputError: other tokens than with everything shown.
        """
        key = tuple(sorted(hidden))
        if key not in self._cache:
            self._cache.clear()
            self._cache[key] = self._without(key)
        return self._cache[key]

    def _without(self, hidden: tuple[int, ...]) -> Run:
        run = self.run
        keep = np.isin(np.arange(len(self.segments)), hidden, invert=True)[None]
        batch = masked(self.numeric, self.segments, keep, self.stands, horizon=run.horizon)
        # one copy is the item itself
        batch = replace(batch, ids=run.batch.ids, groups=run.batch.groups)
        # what a decoder reads as its own past is the same on both sides
        along = run.path if run.tokens_read and not run.rollout else None
        other = replace(run, batch=batch, truth=None, whole=None, along=along, _of=None)
        if other.spans != run.spans:
            names = ", ".join(self.segments[index].name for index in hidden[:3])
            raise InputError(
                f"{run.lens.model_id} drops tokens where {names} is masked, so that activations do not fit; choose "
                "another reference, such as 'mean' or 'seasonal naive'"
            )
        return other

    def change(self, variants: Sequence[Variant], of: Run | None = None) -> np.ndarray:
        """Compute the loss of the target's forecast under variants of the run, (variant, step), in data units."""
        if not variants:
            return np.empty((0, self.run.horizon))
        return self.run.point[self.row] - point_forecasts(of or self.run, variants)[:, self.row]

    def written_at(self, branch: Component) -> str:
        """Return the hook point of a branch's write."""
        return f"{self.run.lens.wiring.stack(branch.stack).prefix}.{branch.layer}.{branch.kind}.hook_out"

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
        """Build variants in which one component alone writes ``acts``, and every later branch its own write.

        A component of an earlier stack then has no way to the readout.
        """
        whole = self.run.record([self.written_at(branch) for branch in self.branches])
        wiring = self.run.lens.wiring
        return [
            Variant(
                f"{component} alone",
                (PatchFrom(component, acts), *(PatchFrom(each, whole) for each in later_branches(wiring, component))),
            )
            for component in components
        ]

    @cached_property
    def floor(self) -> float:
        """Mean absolute change of the target's forecast when nothing is changed, in data units."""
        return float(noise_floor(self.run, lambda other, plain: np.abs(other - plain).mean(-1))[self.row])

    @property
    def differentiable(self) -> bool:
        """True if gradients of the forecast exist, in one pass over the horizon."""
        lens = self.run.lens
        return bool(lens.wiring.true_gradients) and self.run.horizon <= lens.adapter.longest_pass

    @cached_property
    def _blocks(self) -> list[np.ndarray]:
        """Forecast steps, one by one or a few together, whose gradients are taken."""
        tokens = sum(len(spans) for spans in self.run.spans.values()) * len(self.run.batch)
        branches = 2 * max(len(self.branches), 1)
        fit = max(1, min(_STEPS, _NUMBERS // (tokens * self.run.lens.d_model * branches)))
        return np.array_split(np.arange(self.run.horizon), min(fit, self.run.horizon))

    def slopes(self, places: Sequence[Place]) -> Activations:
        """Record activations at places of the whole run, with gradients of the forecast: (block of steps, …)."""
        run = self.run.in_one_pass()

        def means(output: Tensor) -> Tensor:
            forecast = run.read(output, run.encoded)[self.row]
            return torch.stack([forecast[block].mean() for block in self._blocks])

        return with_gradients(run, sorted({place.point for place in places}), means)

    def estimated(self, without: Run, places: Sequence[Place], slopes: Activations) -> np.ndarray:
        """Estimate effects through places to first order, (place, step), in data units.

        Steps that go together have their mean.

        NaN where there is no number, as at tokens that nobody reads.
        """
        along = self.run.in_one_pass().path if self.run.tokens_read else None
        once = without if not without.rollout else replace(without, rollout=False, along=along, _of=None)
        there = once.record(sorted({place.point for place in places}))
        effects = np.empty((len(places), self.run.horizon))
        for values, place in zip(effects, places, strict=True):
            for block, effect in zip(self._blocks, _products(place, slopes, there), strict=True):
                values[block] = effect
        return effects

    def dataset(self) -> xr.Dataset:
        """Return context, coordinates of segments, and the forecast with everything visible."""
        coords = segment_coords(self.segments)
        data = self.run.dataset().assign_coords(coords)
        return data.assign(forecast=(("step",), self.run.point[self.row]))


def segment_coords(parts: Sequence[Segment]) -> dict[str, Any]:
    """Return coordinates of segments, as every result about them has them."""
    facts = {name: ("segment", [getattr(part, name) for part in parts]) for name in ("row", "start", "stop", "kind")}
    return {"segment": [part.name for part in parts], **facts}


def _products(place: Place, slopes: Activations, there: Activations) -> np.ndarray:
    """Multiply an activation's loss on the other side by its gradient, summed over series and tokens: (block,)."""
    product = (slopes[place.point] - there[place.point]) * slopes[f"{place.point}_grad"]
    if place.head is not None:
        product = product[..., place.head, :]
    return np.asarray(product.detach().double().flatten(1).sum(1).cpu())


def two_sides(
    run: Run,
    item: int | str = 0,
    target: int | str = 0,
    parts: Any = None,
    reference: Reference = "mean",
    seed: int = 0,
) -> Sides:
    """Prepare one item of a run for masking; arguments as in :func:`tsfm_lens.explain.input_routes`.

    Raises:
        InputError: segments or the reference do not fit the item.
        UnknownNameError: no such item, target or reference.
    """
    alone = item_of(run, item)
    segments = given_parts(run, item, target, parts)
    renumber: Any = getattr(alone.lens.adapter, "numbered", None)
    numeric = alone.batch if renumber is None else renumber(alone.batch)
    refuse_overlap(segments, numeric, alone.horizon)
    stands = reference_rows(alone.batch, numeric, reference, alone.horizon, seed)
    return Sides(alone, target_row(alone.batch, target), segments, stands, numeric)
