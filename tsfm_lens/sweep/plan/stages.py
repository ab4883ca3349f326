"""Stages of a sweep for one model: first the variants known beforehand, then those that depend on results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.ablation.looks import Looks, plan_looks
from tsfm_lens.ablation.search import Answer, PairedErrors, Search, better, bisection, scan, sequential
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.evaluation import EvaluationSet
from tsfm_lens.errors import InputError
from tsfm_lens.models import Lens
from tsfm_lens.sweep.plan.config import HeadsAt, ModelConfig, SweepConfig
from tsfm_lens.sweep.plan.orders import parse_orders, rankings
from tsfm_lens.sweep.plan.recipes import Recipe, heads_of, is_for, read_recipe, to_entries
from tsfm_lens.sweep.plan.spec import Entry
from tsfm_lens.sweep.plan.variants import (
    component_entries,
    count_entries,
    head_entries,
    heads_per_layer_entries,
    layer_entries,
    plain_entry,
    range_entries,
)
from tsfm_lens.sweep.statistics.by_dataset import dataset_changes
from tsfm_lens.sweep.statistics.pooling import PLAIN, formula, per_series

Rows = Callable[[Sequence[Entry], int | None], pd.DataFrame]
"""Stored rows of some entries' variants, on the first so many looks; on all windows if None."""


@dataclass(frozen=True, eq=False)
class Stage:
    """Variants that can run without knowing more.

    Attributes:
        title: in words.
        entries: the variants, and why they are run.
        looks: on which windows: those of the first so many looks, all if None.
    """

    title: str
    entries: list[Entry]
    looks: int | None = None


def looks_of(config: SweepConfig, sets: Sequence[EvaluationSet]) -> tuple[Looks, list[tuple[str, str]]] | None:
    """Deal the series of all sets out to the looks of a sequential test, with their (set, item); None for others."""
    heads_at = config.variants.heads_at
    if heads_at is None or heads_at.search != "sequential":
        return None
    units = list(dict.fromkeys((dataset.name, window.item) for dataset in sets for window in dataset.windows))
    return plan_looks([name for name, _ in units], seed=config.seed), units


def parts_of(config: SweepConfig, sets: Sequence[EvaluationSet]) -> list[tuple[EvaluationSet, int, tuple[int, ...]]]:
    """List every chunk of a sweep: its set, the look that it belongs to, and the indices of its windows."""
    schedule = looks_of(config, sets)
    if schedule is None:
        return [(dataset, 0, indices) for dataset in sets for indices in dataset.chunks(config.chunk)]
    looks, units = schedule
    look_of = {units[unit]: look for look, members in enumerate(looks.added) for unit in members}
    chunks = []
    for dataset in sets:
        for look in range(len(looks.added)):
            indices_of_look = [
                i for i, window in enumerate(dataset.windows) if look_of[dataset.name, window.item] == look
            ]
            if indices_of_look:
                part = replace(dataset, windows=tuple(dataset.windows[i] for i in indices_of_look))
                chunks += [
                    (dataset, look, tuple(indices_of_look[i] for i in indices)) for indices in part.chunks(config.chunk)
                ]
    return chunks


class ModelPlan:
    """The variants of one model, stage by stage.

    Args:
        lens: the model.
        model: its name and settings.
        config: the sweep.
        sets: what it is measured on.

    Attributes:
        first: what is known beforehand.
        later: how many variants may follow, at most.
        results: of heads@k, one per layer and order, once its stages are over.
        unfit: recipes that are written for other models.

    Raises:
        LensError: variants that the model does not have.
    """

    def __init__(self, lens: Lens, model: ModelConfig, config: SweepConfig, sets: Sequence[EvaluationSet]) -> None:
        self.lens, self.name, self.config = lens, model.title, config
        self._options: dict[str, Any] = {"how": config.how, "seed": config.seed}
        self._schedule = looks_of(config, sets)
        self._rankings = self._measure(sets)
        self._searches = self._begin()
        self.results: list[dict[str, Any]] = []
        self.first = [plain_entry(self.name), *self._static()]
        self.unfit: list[str] = []
        self._recipes = self._fitting()
        self.first += self._heavy_entries(by_search=False)
        pending = sum(search.of for search in self._searches.values())
        exact = config.variants.heads_at is not None and config.variants.heads_at.search == "scan"
        for (layer, order), search in self._searches.items():
            # every curve begins at the plain model; a scan needs all counts whatever they turn out to be
            counts = [search.of - count for count, _ in search.requests()] if exact else []
            self.first += self._counts(layer, order, [0, *counts])
        pending = 0 if exact else pending
        dependent = [recipe for recipe in self._recipes if recipe.measured]
        if dependent and not self._searches:
            raise InputError(f"recipe {dependent[0].name!r} goes by heads@k: give variants.heads_at as well")
        self.later = pending + len(dependent) * (1 + config.variants.random_seeds)

    def stages(self, rows: Rows) -> Iterator[Stage]:
        """Yield one stage after the other; the next begins when the rows of the last are there."""
        yield Stage("what is known beforehand", self.first)
        turn = 0
        while queries := {place: search.requests() for place, search in self._searches.items() if search.requests()}:
            turn += 1
            yield from self._round(queries, turn)
            self._answer(queries, rows)
        self.results = [self._line(layer, order, search) for (layer, order), search in self._searches.items()]
        heavy = self._heavy_entries(by_search=True)
        if heavy:
            yield Stage("recipes", [plain_entry(self.name), *heavy])

    def kept(self) -> dict[int, tuple[str, int]]:
        """Return by layer the best order, and the number of heads that it keeps."""
        layers = dict.fromkeys(layer for layer, _ in self._searches)
        best_orders = {}
        for layer in layers:
            results = {
                o: s.result for (index, o), s in self._searches.items() if index == layer and s.result is not None
            }
            order, best = better(results)
            best_orders[layer] = (order, best.kept)
        return best_orders

    def _measure(self, sets: Sequence[EvaluationSet]) -> dict[str, dict[int, list[int]]]:
        """Rank the heads of every layer, by order."""
        variants = self.config.variants
        names = [*(variants.heads_at.orders if variants.heads_at else ())]
        names += variants.heads_per_layer.orders if variants.heads_per_layer else ()
        orders = parse_orders(names)
        if not orders:
            return {}
        series, horizon = None, None
        if any(order.needs_series for order in orders):
            count = variants.heads_at.windows_for_orders if variants.heads_at else 16
            series, horizon = _windows_for_orders(self.lens, sets, count, self.config.seed)
        return rankings(self.lens, orders, series, horizon, seed=self.config.seed)

    def _begin(self) -> dict[tuple[int, str], Search]:
        settings = self.config.variants.heads_at
        if settings is None:
            return {}
        searches: dict[tuple[int, str], Search] = {}
        for order in map(str, parse_orders(settings.orders)):
            for layer, heads in self._rankings[order].items():
                if settings.layers is None or layer in settings.layers:
                    searches[layer, order] = self._search(settings, len(heads))
        missing = set(settings.layers or ()) - {layer for layer, _ in searches}
        if missing:
            valid = sorted(next(iter(self._rankings.values())))
            raise InputError(f"heads_at.layers has layer {min(missing)}, and {self.name} has {valid[0]} to {valid[-1]}")
        return searches

    def _search(self, settings: HeadsAt, of: int) -> Search:
        if settings.search == "sequential":
            assert self._schedule is not None
            return sequential(of, self._schedule[0], settings.tolerance, alpha=settings.alpha)
        return scan(of, settings.tolerance) if settings.search == "scan" else bisection(of, settings.tolerance)

    def _static(self) -> list[Entry]:
        variants, lens, name, options = self.config.variants, self.lens, self.name, self._options
        entries: list[Entry] = []
        if variants.layers:
            entries += layer_entries(lens, name, parts=variants.layers.parts, sizes=variants.layers.sizes, **options)
        if variants.ranges:
            for grow in variants.ranges.grow:
                entries += range_entries(lens, name, parts=variants.ranges.parts, grow=grow, **options)
        if variants.heads:
            entries += head_entries(lens, name, paired=variants.heads.paired, kind=variants.heads.kind, **options)
        if variants.heads_per_layer:
            for order in map(str, parse_orders(variants.heads_per_layer.orders)):
                counts = variants.heads_per_layer.counts
                entries += heads_per_layer_entries(lens, name, order, self._rankings[order], counts=counts, **options)
        return entries + component_entries(lens, name, variants.components, **options)

    def _fitting(self) -> list[Recipe]:
        """Return the recipes that this model can run."""
        fitting = []
        for source in self.config.variants.recipes:
            recipe = read_recipe(source)
            if is_for(recipe, self.lens) or self._is_scaled(recipe):
                fitting.append(recipe)
            else:
                self.unfit.append(source)
        return fitting

    def _is_scaled(self, recipe: Recipe) -> bool:
        return recipe.scale or self.config.variants.scale_recipes

    def _heavy_entries(self, *, by_search: bool) -> list[Entry]:
        """Plan recipes with as many heads at random, those that go by heads@k or the others."""
        best_orders = self.kept() if by_search else {}
        going = {layer: self._rankings[order][layer] for layer, (order, _) in best_orders.items()}
        heads_at_k = {layer: heads[: len(heads) - best_orders[layer][1]] for layer, heads in going.items()}
        entries: list[Entry] = []
        for recipe in self._recipes:
            if recipe.measured != by_search:
                continue
            if by_search and not self._takes(recipe, heads_at_k):
                # every head of its layers is needed, so that it would be the plain model
                continue
            entries += to_entries(
                recipe,
                self.lens,
                self.name,
                measured=heads_at_k,
                random_seeds=range(self.config.variants.random_seeds),
                scale=self._is_scaled(recipe),
                **self._options,
            )
        return entries

    def _takes(self, recipe: Recipe, heads_at_k: dict[int, list[int]]) -> bool:
        heads, mlps = heads_of(recipe, self.lens, measured=heads_at_k, scale=self._is_scaled(recipe))
        return bool(heads or mlps)

    def _counts(self, layer: int, order: str, counts: Sequence[int]) -> list[Entry]:
        return count_entries(
            self.lens, self.name, layer, order, self._rankings[order][layer], counts=list(counts), **self._options
        )

    def _round(self, queries: dict[tuple[int, str], list[tuple[int, int]]], turn: int) -> Iterator[Stage]:
        """Yield the stages of one round of all searches: one per look."""
        if turn == 1 and self.config.variants.heads_at is not None and self.config.variants.heads_at.search == "scan":
            # these ran with what is known beforehand
            return
        looks: dict[int, list[Entry]] = {}
        for (layer, order), requests in queries.items():
            of = self._searches[layer, order].of
            for count, look in requests:
                looks.setdefault(look, []).extend(self._counts(layer, order, [of - count]))
        for look, entries in sorted(looks.items()):
            partial = self._schedule is not None and look + 1 < len(self._schedule[0].added)
            # the plain model is what they are compared with
            with_plain = [plain_entry(self.name), *entries]
            yield Stage(f"heads@k, round {turn}", with_plain, look + 1 if partial else None)

    def _answer(self, queries: dict[tuple[int, str], list[tuple[int, int]]], rows: Rows) -> None:
        """Hand every search the answers to its requests."""
        entries_by_look: dict[int, list[Entry]] = {}
        variant: dict[tuple[int, str, int], str] = {}
        for (layer, order), requests in queries.items():
            of = self._searches[layer, order].of
            for count, look in requests:
                (entry,) = self._counts(layer, order, [of - count])
                variant[layer, order, count] = entry.spec.id
                entries_by_look.setdefault(look, []).append(entry)
        answer_of = {look: self._judge(entries, look, rows) for look, entries in entries_by_look.items()}
        for (layer, order), requests in queries.items():
            answers = {(count, look): answer_of[look](variant[layer, order, count]) for count, look in requests}
            self._searches[layer, order].answer(answers)

    def _judge(self, entries: Sequence[Entry], look: int, rows: Rows) -> Callable[[str], Answer]:
        """Return the function that answers a search about a variant."""
        if self._schedule is None:
            changes = self._changes(rows([plain_entry(self.name), *entries], None))
            # the plain model's change is 0
            return lambda variant: float(changes.get(variant, 0.0))
        errors = self._errors(rows([plain_entry(self.name), *entries], look + 1))
        return lambda variant: self._paired_errors(errors, variant, look)

    def _changes(self, rows: pd.DataFrame) -> pd.Series:
        """Compute the relative change of the geometric mean over datasets, by variant."""
        assert self.config.variants.heads_at is not None
        if set(rows["variant"]) <= {PLAIN}:
            return pd.Series(dtype=float)
        table = dataset_changes(rows, metric=self.config.variants.heads_at.metric)
        return np.expm1(np.log1p(table["change"]).groupby(table["variant"]).mean())

    def _errors(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Sum the error of each series, (dataset, item) × variant."""
        assert self.config.variants.heads_at is not None
        metric = self.config.variants.heads_at.metric
        columns, _ = formula(metric)
        sums = per_series(rows, [metric])
        return sums.pivot(index=["dataset", "item"], columns="variant", values=columns[0])

    def _paired_errors(self, errors: pd.DataFrame, variant: str, look: int) -> PairedErrors:
        assert self._schedule is not None
        looks, units = self._schedule
        errors_of_look = errors.loc[[units[unit] for unit in looks.added[look]]]
        return PairedErrors(errors_of_look[variant].to_numpy(), errors_of_look[PLAIN].to_numpy())

    def _line(self, layer: int, order: str, search: Search) -> dict[str, Any]:
        result = search.result
        assert result is not None
        return {
            "model": self.name,
            "layer": layer,
            "order": order,
            "of": result.of,
            "kept": result.kept,
            "change": float(result.change),
            "evaluations": float(result.evaluations),
            "total": result.of,
            "exact": bool(result.exact),
        }


def _windows_for_orders(lens: Lens, sets: Sequence[EvaluationSet], count: int, seed: int) -> tuple[SeriesBatch, int]:
    """Select windows of all sets, for scores of heads that are measured on data, and a horizon of one pass."""
    share = max(1, count // len(sets))
    batches = []
    for dataset in list(sets)[:count]:
        subset = dataset.sample(share, seed)
        batch, _ = subset.batch(range(len(subset)), int(lens.adapter.context_length))
        # names are unique within a set only
        batches.append(
            replace(
                batch,
                ids=tuple(f"{dataset.name}:{name}" for name in batch.ids),
                groups=tuple(f"{dataset.name}:{name}" for name in batch.groups),
            )
        )
    horizon = min(min(dataset.horizon for dataset in sets), lens.adapter.longest_pass)
    return SeriesBatch.concat(batches), horizon
