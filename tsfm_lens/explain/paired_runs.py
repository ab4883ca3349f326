"""One item whole and with segments masked: runs under the same settings, with activations that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.errors import InputError
from tsfm_lens.explain.segments import segment_coords
from tsfm_lens.explain.values import MaskedItem
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import PatchFrom
from tsfm_lens.models.noise import noise_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.patching import with_gradients
from tsfm_lens.probes.places import Place, later_branches

# steps of a forecast that have gradients of their own at most, and numbers that are held of all gradients
_STEPS, _NUMBERS = 48, 2**26


@dataclass(eq=False)
class PairedRuns(MaskedItem):
    """One item's run with everything shown, and runs of the same item with segments masked."""

    def without(self, hidden: Sequence[int]) -> Run:
        """Run the item with some segments masked, as the whole one is run."""
        run = self.run
        batch = self.masked(np.isin(np.arange(len(self.segments)), hidden, invert=True)[None])
        # one copy is the item itself
        batch = replace(batch, ids=run.batch.ids, groups=run.batch.groups)
        # what a decoder reads as its own past is the same on both sides
        forced_path = run.path if run.tokens_read and not run.rollout else None
        other = replace(run, batch=batch, truth=None, full_batch=None, forced_path=forced_path, _of=None)
        if other.spans != run.spans:
            names = ", ".join(self.segments[index].name for index in hidden[:3])
            raise InputError(
                f"{run.lens.model_id} drops tokens where {names} is masked, so that activations do not fit; choose "
                "another reference, such as 'mean' or 'seasonal naive'"
            )
        return other

    def total(self, without: Run) -> np.ndarray:
        """Compute the loss of the target's forecast in another run of the item, (step,), in data units."""
        return np.asarray(self.run.point[self.row] - without.point[self.row])

    def change(self, variants: Sequence[Variant], of: Run | None = None) -> np.ndarray:
        """Compute the loss of the target's forecast under variants of a run, (variant, step), in data units."""
        if not variants:
            return np.empty((0, self.run.horizon))
        return self.run.point[self.row] - point_forecasts(of or self.run, variants)[:, self.row]

    def written_at(self, branches: Sequence[Component]) -> list[str]:
        """Return the hook points of branches' writes."""
        stack = self.run.lens.wiring.stack
        return [f"{stack(branch.stack).prefix}.{branch.layer}.{branch.kind}.hook_out" for branch in branches]

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
        """Build variants in which one component alone writes ``acts``, and every later branch its own write."""
        whole, wiring = self.run.record(self.written_at(self.branches)), self.run.lens.wiring
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
        """Estimate effects through places to first order, (place, step), in data units."""
        forced_path = self.run.in_one_pass().path if self.run.tokens_read else None
        once = without if not without.rollout else replace(without, rollout=False, forced_path=forced_path, _of=None)
        there = once.record(sorted({place.point for place in places}))
        effects = np.empty((len(places), self.run.horizon))
        for values, place in zip(effects, places, strict=True):
            product = (slopes[place.point] - there[place.point]) * slopes[f"{place.point}_grad"]
            if place.head is not None:
                product = product[..., place.head, :]
            by_block = np.asarray(product.detach().double().flatten(1).sum(1).cpu())
            for block, effect in zip(self._blocks, by_block, strict=True):
                values[block] = effect
        return effects

    def dataset(self) -> xr.Dataset:
        """Return context, coordinates of segments, and the forecast with everything visible."""
        data = self.run.dataset().assign_coords(segment_coords(self.segments))
        return data.assign(forecast=(("step",), self.run.point[self.row]))
