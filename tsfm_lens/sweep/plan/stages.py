"""Stages of a sweep for one model: first the variants that need no results, then those that depend on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.models import Lens
from tsfm_lens.sweep.data.evaluation import EvaluationSet
from tsfm_lens.sweep.plan.config import ModelConfig, SweepConfig
from tsfm_lens.sweep.plan.looks import Looks, plan_looks
from tsfm_lens.sweep.plan.orders import needs_series, parse_orders, rankings
from tsfm_lens.sweep.plan.recipes import (
    Recipe,
    heads_of,
    is_for,
    read_recipe,
    to_entries,
)
from tsfm_lens.sweep.plan.search import (
    Answer,
    PairedErrors,
    Search,
    better,
    bisection,
    scan,
    sequential,
)
from tsfm_lens.sweep.plan.variants import PlanEntry, VariantPlanner
from tsfm_lens.sweep.statistics.changes import dataset_changes
from tsfm_lens.sweep.statistics.scores import PLAIN, formula, per_series

Rows = Callable[[Sequence[PlanEntry], int | None], pd.DataFrame]
"""Stored rows of some entries' variants, on the first so many looks; on all windows if None."""
_Place = tuple[int, str]


@dataclass(frozen=True, eq=False)
class SweepStage:
    """Variants that can run without further results, on the windows of the first ``looks`` looks (all if None)."""

    title: str
    entries: list[PlanEntry]
    looks: int | None = None


def looks_of(
    config: SweepConfig, sets: Sequence[EvaluationSet]
) -> tuple[Looks, list[tuple[str, str]]] | None:
    """Deal the series of all sets out to the looks of a sequential test, with their (set, item); None for others."""
    heads_at = config.variants.heads_at
    if heads_at is None or heads_at.search != "sequential":
        return None
    units = list(
        dict.fromkeys(
            (dataset.name, window.item)
            for dataset in sets
            for window in dataset.windows
        )
    )
    return plan_looks([name for name, _ in units], seed=config.seed), units


def parts_of(
    config: SweepConfig, sets: Sequence[EvaluationSet]
) -> list[tuple[EvaluationSet, int, tuple[int, ...]]]:
    """List every chunk of a sweep: its set, the look that it belongs to, and the indices of its windows."""
    schedule = looks_of(config, sets)
    if schedule is None:
        return [
            (dataset, 0, indices)
            for dataset in sets
            for indices in dataset.chunks(config.chunk)
        ]
    looks, units = schedule
    look_of = {
        units[unit]: look
        for look, members in enumerate(looks.added)
        for unit in members
    }
    chunks = []
    for dataset in sets:
        for look in range(len(looks.added)):
            of_look = [
                i
                for i, window in enumerate(dataset.windows)
                if look_of[dataset.name, window.item] == look
            ]
            if of_look:
                part = replace(
                    dataset, windows=tuple(dataset.windows[i] for i in of_look)
                )
                chunks += [
                    (dataset, look, tuple(of_look[i] for i in each))
                    for each in part.chunks(config.chunk)
                ]
    return chunks


class ModelPlan:
    """The variants of one model, stage by stage."""

    def __init__(
        self,
        lens: Lens,
        model: ModelConfig,
        config: SweepConfig,
        sets: Sequence[EvaluationSet],
    ) -> None:
        self.lens, self.name, self.config, self.variants = (
            lens,
            model.title,
            config,
            config.variants,
        )
        self.planner = VariantPlanner(lens, self.name, config.how, config.seed)
        self._schedule = looks_of(config, sets)
        self._rankings = self._measure(sets)
        self._searches = self._begin()
        self.results: list[dict[str, Any]] = []
        self.unfit: list[str] = []
        self._recipes: list[Recipe] = []
        for source in self.variants.recipes:
            recipe = read_recipe(source)
            if is_for(recipe, lens) or self._is_scaled(recipe):
                self._recipes.append(recipe)
            else:
                self.unfit.append(source)
        self.first = [
            self.planner.plain(),
            *self._static(),
            *self._recipe_entries(measured=False),
        ]
        self._exact = (
            self.variants.heads_at is not None
            and self.variants.heads_at.search == "scan"
        )
        for place, search in self._searches.items():
            # every curve begins at the plain model; a scan needs all counts whatever they turn out to be
            counts = (
                [search.of - count for count, _ in search.requests()]
                if self._exact
                else []
            )
            self.first += self._counts(place, [0, *counts])
        dependent = [recipe for recipe in self._recipes if recipe.measured]
        if dependent and not self._searches:
            raise InputError(
                f"recipe {dependent[0].name!r} goes by heads@k: give variants.heads_at as well"
            )
        pending = (
            0 if self._exact else sum(search.of for search in self._searches.values())
        )
        self.later = pending + len(dependent) * (1 + self.variants.random_seeds)

    def stages(self, rows: Rows) -> Iterator[SweepStage]:
        """Yield one stage after the other; the next begins when the rows of the last are there."""
        yield SweepStage("what is known beforehand", self.first)
        turn = 0
        while queries := {
            place: search.requests()
            for place, search in self._searches.items()
            if search.requests()
        }:
            turn += 1
            # by look, then by place and number of heads kept
            entries: dict[int, dict[tuple[_Place, int], PlanEntry]] = defaultdict(dict)
            for place, requests in queries.items():
                for count, look in requests:
                    (entries[look][place, count],) = self._counts(
                        place, [self._searches[place].of - count]
                    )
            # a scan's ran with what is known beforehand
            for look, of_look in (
                sorted(entries.items()) if turn > 1 or not self._exact else ()
            ):
                partial = self._schedule is not None and look + 1 < len(
                    self._schedule[0].added
                )
                # the plain model is what they are compared with
                with_plain = [self.planner.plain(), *of_look.values()]
                yield SweepStage(
                    f"heads@k, round {turn}", with_plain, look + 1 if partial else None
                )
            answer_of = {
                look: self._judge(list(of_look.values()), look, rows)
                for look, of_look in entries.items()
            }
            for place, requests in queries.items():
                self._searches[place].answer(
                    {
                        (count, look): answer_of[look](
                            entries[look][place, count].spec.id
                        )
                        for count, look in requests
                    }
                )
        for (layer, order), search in self._searches.items():
            result = search.result
            assert result is not None
            line = {
                "model": self.name,
                "layer": layer,
                "order": order,
                "of": result.of,
                "kept": result.kept,
            }
            line |= {
                "change": float(result.change),
                "evaluations": float(result.evaluations),
            }
            self.results.append(
                {**line, "total": result.of, "exact": bool(result.exact)}
            )
        if recipes := self._recipe_entries(measured=True):
            yield SweepStage("recipes", [self.planner.plain(), *recipes])

    def _measure(
        self, sets: Sequence[EvaluationSet]
    ) -> dict[str, dict[int, list[int]]]:
        """Rank the heads of every layer, by order."""
        heads_at, per_layer = self.variants.heads_at, self.variants.heads_per_layer
        names = [
            *(heads_at.orders if heads_at else ()),
            *(per_layer.orders if per_layer else ()),
        ]
        series, horizon = None, None
        if any(map(needs_series, parse_orders(names))):
            count = heads_at.windows_for_orders if heads_at else 16
            series, horizon = _windows_for_orders(
                self.lens, sets, count, self.config.seed
            )
        return rankings(self.lens, names, series, horizon, seed=self.config.seed)

    def _begin(self) -> dict[_Place, Search]:
        settings = self.variants.heads_at
        if settings is None:
            return {}
        searches: dict[_Place, Search] = {}
        for order in parse_orders(settings.orders):
            for layer, heads in self._rankings[order].items():
                if settings.layers is not None and layer not in settings.layers:
                    continue
                of, tolerance = len(heads), settings.tolerance
                search = (
                    scan(of, tolerance)
                    if settings.search == "scan"
                    else bisection(of, tolerance)
                )
                if self._schedule is not None:
                    search = sequential(
                        of, self._schedule[0], tolerance, alpha=settings.alpha
                    )
                searches[layer, order] = search
        missing = set(settings.layers or ()) - {layer for layer, _ in searches}
        if missing:
            valid = sorted(next(iter(self._rankings.values())))
            raise InputError(
                f"heads_at.layers has layer {min(missing)}, but {self.name} has {valid[0]} to {valid[-1]}"
            )
        return searches

    def _static(self) -> list[PlanEntry]:
        """Plan the families that depend on no result."""
        variants, planner = self.variants, self.planner
        entries: list[PlanEntry] = []
        if variants.layers:
            entries += planner.layers(variants.layers.parts, variants.layers.sizes)
        if variants.ranges:
            for grow in variants.ranges.grow:
                entries += planner.ranges(grow, variants.ranges.parts)
        if variants.heads:
            entries += planner.heads(paired=variants.heads.paired)
        if variants.heads_per_layer:
            for order in parse_orders(variants.heads_per_layer.orders):
                entries += planner.heads_per_layer(
                    order, self._rankings[order], variants.heads_per_layer.counts
                )
        return entries + planner.components(variants.components)

    def _is_scaled(self, recipe: Recipe) -> bool:
        return recipe.scale or self.variants.scale_recipes

    def _recipe_entries(self, *, measured: bool) -> list[PlanEntry]:
        """Plan recipes with as many heads at random, those that go by heads@k or the others."""
        heads_at_k = self._heads_at_k() if measured else {}
        entries: list[PlanEntry] = []
        for recipe in self._recipes:
            options: dict[str, Any] = {
                "measured": heads_at_k,
                "scale": self._is_scaled(recipe),
            }
            # where every head of its layers is needed, it would be the plain model
            if recipe.measured == measured and (
                not measured or any(heads_of(recipe, self.lens, **options))
            ):
                entries += to_entries(
                    recipe,
                    self.planner,
                    random_seeds=range(self.variants.random_seeds),
                    **options,
                )
        return entries

    def _heads_at_k(self) -> dict[int, list[int]]:
        """Return by layer the heads that go in the better order, the first to go first."""
        going = {}
        for layer in dict.fromkeys(layer for layer, _ in self._searches):
            results = {
                order: search.result
                for (index, order), search in self._searches.items()
                if index == layer and search.result is not None
            }
            order, best = better(results)
            going[layer] = self._rankings[order][layer][: best.of - best.kept]
        return going

    def _counts(self, place: _Place, counts: Sequence[int]) -> list[PlanEntry]:
        layer, order = place
        return self.planner.head_counts(
            layer, order, self._rankings[order][layer], counts
        )

    def _judge(
        self, entries: Sequence[PlanEntry], look: int, rows: Rows
    ) -> Callable[[str], Answer]:
        """Return the function that answers a search about a variant."""
        assert self.variants.heads_at is not None
        metric, with_plain = (
            self.variants.heads_at.metric,
            [self.planner.plain(), *entries],
        )
        if self._schedule is not None:
            looks, units = self._schedule
            sums = per_series(rows(with_plain, look + 1), [metric])
            errors = sums.pivot(
                index=["dataset", "item"],
                columns="variant",
                values=formula(metric)[0][0],
            )
            of_look = errors.loc[[units[unit] for unit in looks.added[look]]]
            return lambda variant: PairedErrors(
                of_look[variant].to_numpy(), of_look[PLAIN].to_numpy()
            )
        table = rows(with_plain, None)
        changes = pd.Series(dtype=float)
        if set(table["variant"]) - {PLAIN}:
            # the relative change of the geometric mean over datasets
            by_dataset = dataset_changes(table, metric=metric)
            changes = np.expm1(
                np.log1p(by_dataset["change"]).groupby(by_dataset["variant"]).mean()
            )
        # the plain model's change is 0
        return lambda variant: float(changes.get(variant, 0.0))


def _windows_for_orders(
    lens: Lens, sets: Sequence[EvaluationSet], count: int, seed: int
) -> tuple[SeriesBatch, int]:
    """Select windows of all sets, for scores of heads that are measured on data, and a horizon of one pass."""
    share = max(1, count // len(sets))
    batches = []
    for dataset in list(sets)[:count]:
        subset = dataset.sample(share, seed)
        batch, _ = subset.batch(range(len(subset)), int(lens.adapter.context_length))
        # names are unique within a set only
        ids, groups = (
            tuple(f"{dataset.name}:{name}" for name in names)
            for names in (batch.ids, batch.groups)
        )
        batches.append(replace(batch, ids=ids, groups=groups))
    horizon = min(min(dataset.horizon for dataset in sets), lens.adapter.longest_pass)
    return SeriesBatch.concat(batches), horizon
