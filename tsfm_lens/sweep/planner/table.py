"""Plan of a sweep: from a configuration to tables of cells, stage by stage.

Read :func:`plan` first (the cells that need no results), then :meth:`ModelPlan.stages`:
a later stage depends on the rows of earlier ones, as a search for heads@k does. The
engines compute the cells of these tables, and the store keeps their results by key.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.models import Lens
from tsfm_lens.sweep.data.evaluation import SEASONAL_NAIVE, EvaluationSet
from tsfm_lens.sweep.planner.chunks import LEVELS, Chunk, ChunkTask, Schedule
from tsfm_lens.sweep.planner.config import NUMERICS, ModelConfig, SweepConfig, plan_name
from tsfm_lens.sweep.planner.models import (
    find_visible_steps,
    model_fingerprint,
    open_model,
)
from tsfm_lens.sweep.planner.orders import needs_series, parse_orders, rankings
from tsfm_lens.sweep.planner.recipes import (
    Recipe,
    is_applicable,
    read_recipe,
    select_targets,
    to_entries,
)
from tsfm_lens.sweep.planner.search import (
    Answer,
    PairedErrors,
    Search,
    better,
    bisection,
    scan,
    sequential,
)
from tsfm_lens.sweep.planner.variants import PlanEntry, VariantPlanner, VariantSpec
from tsfm_lens.sweep.statistics.changes import dataset_changes
from tsfm_lens.sweep.statistics.scores import PLAIN, formula, per_series
from tsfm_lens.sweep.store import cell_key

KEPT_COLUMNS = ("key", "model", "variant", "dataset", "chunk", "series")
"""Columns of a table of cells as a store keeps it."""
COLUMNS = (*KEPT_COLUMNS, "spec", "task")
"""Columns of a table of cells in memory, with the two that compute a cell."""
Rows = Callable[[pd.DataFrame], pd.DataFrame]
"""Function that reads the stored rows of the cells of a table."""
_DATASET_FIELDS = ("name", "domain", "source", "horizon", "seasonality", "freq")
_SearchKey = tuple[int, str]
"""Layer and order of one search."""


def plan(config: SweepConfig) -> pd.DataFrame:
    """Plan the cells of a sweep that need no results, one row each.

    Args:
        config: what is run, from :func:`read_config` or :func:`parse_config`.

    Returns:
        The ``key`` of a cell's content, ``model``, ``variant``, ``dataset``, number of
        the ``chunk`` and of its ``series``; ``spec`` and ``task`` are what computes it.
        ``run`` takes such a table.

    Raises:
        LensError: a model, dataset or variant of the configuration cannot be used.

    Example:
        >>> nile = {"source": "bundled", "names": ["nile"], "horizon": 4, "windows": 1}
        >>> content = {"models": [{"source": "bolt-nano"}], "data": [nile]}
        >>> content["variants"] = {"layers": {"sizes": [1]}}
        >>> config = sweep.parse_config(content)
        >>> sweep.plan(config)["dataset"].unique().tolist()
        ['bundled/nile']
    """
    return SweepPlan(config).first


@dataclass(frozen=True, eq=False)
class Stage:
    """Variants of a model that can run without further results, and their cells."""

    title: str
    entries: list[PlanEntry]
    cells: pd.DataFrame


class SweepPlan:
    """Plan of a sweep, model by model.

    ``device`` is where this process opens models; the one of the configuration if None.
    ``sets`` are those of the configuration, where they are read already.
    ``all_cells`` has a row for each cell of each model that needs no results, and
    ``first`` those with distinct keys.
    """

    def __init__(
        self,
        config: SweepConfig,
        device: str | None = None,
        sets: Sequence[EvaluationSet] | None = None,
    ) -> None:
        # what is wrong with data, models or variants shows before anything is written
        self.sets = config.evaluation_sets() if sets is None else sets
        self.lenses = {
            model.title: open_model(model, device) for model in config.models
        }
        self.models = {
            model.title: ModelPlan(config, model, self.lenses[model.title], self.sets)
            for model in config.models
        }
        _check_recipes(config.variants.recipes, list(self.models.values()))
        self.name = plan_name(config)
        self.block = config.block
        self.devices = config.devices
        self.naive = _naive_cells(self.sets, config.chunk)
        tables = [self.naive, *(model.first.cells for model in self.models.values())]
        self.all_cells = pd.concat(tables, ignore_index=True)
        # one model under two names has the same cells, which are computed once
        self.first = self.all_cells.drop_duplicates("key", ignore_index=True)
        self._config = config.model_dump(mode="json", exclude_none=True)

    @property
    def later_cells(self) -> int:
        """Number of cells, at most, whose variants depend on results."""
        return sum(model.later * len(model.tasks) for model in self.models.values())

    @property
    def notes(self) -> list[str]:
        """Remarks on the data, each with the name of its dataset."""
        return [
            f"{dataset.name}: {note}" for dataset in self.sets for note in dataset.notes
        ]

    def about(self, *, complete: bool) -> dict[str, Any]:
        """Describe the plan and what its searches have found, for reports."""
        models = {}
        for title, lens in self.lenses.items():
            stack = lens.wiring.output_stack
            sizes = {"layers": stack.n_layers, "heads": stack.n_heads}
            fingerprint = self.models[title].fingerprint
            models[title] = {**fingerprint, **lens.provenance(), **sizes}
        datasets = []
        for dataset in self.sets:
            metadata = {name: getattr(dataset, name) for name in _DATASET_FIELDS}
            metadata |= {"windows": len(dataset), "series": dataset.n_series}
            datasets.append(metadata | {"notes": list(dataset.notes)})
        results = [line for model in self.models.values() for line in model.results]
        return {
            "config": self._config,
            "complete": complete,
            "models": models,
            "datasets": datasets,
            "heads_at": results,
        }


def _check_recipes(sources: Sequence[str], models: Sequence[ModelPlan]) -> None:
    # the report groups variants by the name of their recipe
    counts = Counter(read_recipe(source).name for source in sources)
    for name, count in counts.items():
        if count > 1:
            raise InputError(
                f"two recipes are called {name!r}; give each its own name in its file"
            )
    for source in sources:
        if all(source in model.unfit for model in models):
            titles = ", ".join(model.name for model in models)
            raise InputError(
                f"recipe {source!r} is written for another model than {titles}; set"
                " variants.scale_recipes: true to take the same shares of heads at the"
                " same depths"
            )


def _naive_cells(sets: Sequence[EvaluationSet], size: int) -> pd.DataFrame:
    """Plan the cells of the seasonal naive forecast."""
    rows = []
    for dataset in sets:
        for number, indices in enumerate(dataset.chunks(size)):
            # full contexts, as the benchmark has them, whatever the models are shown
            chunk = Chunk(dataset, indices, None)
            key = cell_key(
                variant=SEASONAL_NAIVE,
                numerics=NUMERICS,
                levels=list(LEVELS),
                # gluonts computes the scores, and no model's fingerprint is here to
                # name it
                versions={"gluonts": version("gluonts")},
                dataset=dataset.name,
                windows=chunk.fingerprint,
            )
            task = ChunkTask(number, look=0, chunk=chunk)
            # its name stands in the columns of the model and of the variant
            names = SEASONAL_NAIVE, SEASONAL_NAIVE, dataset.name
            rows.append((key, *names, number, chunk.series, None, task))
    return pd.DataFrame(rows, columns=COLUMNS)


class ModelPlan:
    """Variants of one model and their cells, stage by stage.

    Attributes:
        first: stage that needs no results.
        later: number of variants, at most, in the stages after that.
        results: of the searches for heads@k, a line each, once they have ended.
        unfit: recipes of the configuration that are for another model.
        tasks: the chunks on which every variant is forecast.
        fingerprint: what determines the forecasts of the plain model.
    """

    def __init__(
        self,
        config: SweepConfig,
        model: ModelConfig,
        lens: Lens,
        sets: Sequence[EvaluationSet],
    ) -> None:
        self.lens = lens
        self.name = model.title
        self.variants = config.variants
        self.planner = VariantPlanner(lens, self.name, config.how, config.seed)
        self.fingerprint = model_fingerprint(lens, model)
        # in this order: the schedule is needed for tasks and searches, and the rankings
        # for searches
        heads_at = self.variants.heads_at
        self._schedule = None
        if heads_at is not None and heads_at.search == "sequential":
            self._schedule = Schedule.plan(sets, config.seed)
        self.tasks = self._chunk_tasks(config, model, sets)
        # by variant and chunk, since stages share variants
        self._keys: dict[tuple[str, int], str] = {}
        self._rankings = self._measured_rankings(sets, config.seed)
        self._searches = self._begun_searches()
        self.results: list[dict[str, Any]] = []
        self.unfit: list[str] = []
        self._recipes: list[Recipe] = []
        for source in self.variants.recipes:
            recipe = read_recipe(source)
            if is_applicable(recipe, lens) or self._is_scaled(recipe):
                self._recipes.append(recipe)
            else:
                self.unfit.append(source)
        self._scans = heads_at is not None and heads_at.search == "scan"
        dependent = [recipe for recipe in self._recipes if recipe.measured]
        if dependent and not self._searches:
            raise InputError(
                f"recipe {dependent[0].name!r} goes by heads@k: give variants.heads_at"
                " as well"
            )
        self.first = self._stage("what is known beforehand", self._first_entries())
        # at most: a search may end early, and a recipe may ablate nothing
        self.later = len(dependent) * (1 + self.variants.random_seeds)
        if not self._scans:
            self.later += sum(search.of for search in self._searches.values())

    def _chunk_tasks(
        self, config: SweepConfig, model: ModelConfig, sets: Sequence[EvaluationSet]
    ) -> list[ChunkTask]:
        context_length = find_visible_steps(self.lens, model)
        univariate = bool(self.fingerprint["univariate"])
        tasks: list[ChunkTask] = []
        for dataset in sets:
            reference = None
            if config.how in ("mean", "resample"):
                subset = dataset.sample(config.reference_windows, config.seed)
                reference = Chunk(
                    subset, range(len(subset)), context_length, univariate
                )
            if self._schedule is None:
                # without interim analyses all windows are of one look
                parts = [(0, indices) for indices in dataset.chunks(config.chunk)]
            else:
                parts = self._schedule.parts(dataset, config.chunk)
            for look, indices in parts:
                task = ChunkTask(
                    # numbered over all datasets, since ``_keys`` tells chunks apart by
                    # number alone
                    len(tasks),
                    look,
                    Chunk(dataset, indices, context_length, univariate),
                    reference,
                    model,
                    config.seed,
                    config.distance_steps,
                )
                tasks.append(task)
        return tasks

    def _stage(
        self, title: str, entries: list[PlanEntry], looks: int | None = None
    ) -> Stage:
        """Plan the cells of some variants.

        Only the windows of the first ``looks`` interim analyses are used, or all
        windows if that is None.

        Returns:
            The stage.
        """
        specs = {entry.spec.id: entry.spec for entry in entries}
        rows = []
        for task in self.tasks:
            if looks is not None and task.look >= looks:
                continue
            dataset = task.chunk.dataset
            series = task.chunk.series
            for name, spec in specs.items():
                key = self._key(spec, task)
                identity = key, self.name, name, dataset, task.number, series
                rows.append((*identity, spec, task))
        return Stage(title, entries, pd.DataFrame(rows, columns=COLUMNS))

    def _key(self, spec: VariantSpec, task: ChunkTask) -> str:
        cell = spec.id, task.number
        if cell not in self._keys:
            reference = None
            # by the variant's method, not the sweep's: the plain model has none, so
            # that sweeps of every method share its cells
            if spec.how in ("mean", "resample") and task.reference is not None:
                reference = task.reference.fingerprint
            assert task.model is not None
            self._keys[cell] = cell_key(
                model=self.fingerprint,
                # in the wiring's order, into which ``variant_spec`` puts them
                components=list(spec.components),
                how=spec.how,
                spec_seed=spec.seed,
                reference=reference,
                dataset=task.chunk.dataset,
                windows=task.chunk.fingerprint,
                num_samples=task.model.num_samples,
                seed=task.seed,
                distance_steps=task.distance_steps,
            )
        return self._keys[cell]

    def _first_entries(self) -> list[PlanEntry]:
        """Plan the variants that need no results."""
        entries = [
            self.planner.plain(),
            *self._static(),
            *self._recipe_entries(measured=False),
        ]
        for search_key, search in self._searches.items():
            # every curve begins at the plain model; a scan needs all counts whatever
            # they turn out to be
            counts = [0]
            if self._scans:
                counts += [search.of - count for count, _ in search.requests]
            entries += self._counts(search_key, counts)
        return entries

    def stages(self, rows: Rows) -> Iterator[Stage]:
        """Yield one stage after the other.

        The next stage begins when the rows of the last one are there.
        """
        yield self.first
        round_number = 0
        while any(search.requests for search in self._searches.values()):
            round_number += 1
            # by look, then by search and number of heads kept
            requests: dict[int, dict[tuple[_SearchKey, int], PlanEntry]] = defaultdict(
                dict
            )
            for search_key, search in self._searches.items():
                for count, look in search.requests:
                    # a search counts heads that stay, a variant those that are ablated
                    (entry,) = self._counts(search_key, [search.of - count])
                    requests[look][search_key, count] = entry
            title = f"heads@k, round {round_number}"
            stages = {
                look: self._search_stage(title, look, entries)
                for look, entries in sorted(requests.items())
            }
            # a scan asks once, for variants that ran in the first stage
            if round_number > 1 or not self._scans:
                yield from stages.values()
            answers: dict[_SearchKey, dict[tuple[int, int], Answer]] = defaultdict(dict)
            for look, stage in stages.items():
                answer = self._make_answer(rows(stage.cells), look)
                for (search_key, count), entry in requests[look].items():
                    answers[search_key][count, look] = answer(entry.spec.id)
            for search_key, values in answers.items():
                self._searches[search_key].answer(values)
        self.results += [
            self._result(search_key, search)
            for search_key, search in self._searches.items()
        ]
        if recipes := self._recipe_entries(measured=True):
            yield self._stage("recipes", [self.planner.plain(), *recipes])

    def _search_stage(
        self, title: str, look: int, entries: dict[tuple[_SearchKey, int], PlanEntry]
    ) -> Stage:
        """Plan the evaluations that searches request at a look.

        The plain model, with which they are compared, is among them.

        Returns:
            The stage.
        """
        # the last look has all windows, for which ``_stage`` takes None
        looks = None
        if self._schedule is not None and look + 1 < len(self._schedule.looks.added):
            looks = look + 1
        return self._stage(title, [self.planner.plain(), *entries.values()], looks)

    def _make_answer(self, rows: pd.DataFrame, look: int) -> Callable[[str], Answer]:
        """Return the function that gives a search its answer for a variant."""
        assert self.variants.heads_at is not None
        metric = self.variants.heads_at.metric
        if self._schedule is not None:
            # the first column of a metric in SUMS_OF_ERRORS is the sum of its errors;
            # the rest of the formula does not depend on the forecast, and cancels in
            # the relative change
            errors = per_series(rows, [metric]).pivot(
                index=["dataset", "item"],
                columns="variant",
                values=formula(metric)[0][0],
            )
            units = self._schedule.looks.added[look]
            added = errors.loc[[self._schedule.series[unit] for unit in units]]
            return lambda variant: PairedErrors(
                added[variant].to_numpy(), added[PLAIN].to_numpy()
            )
        changes = pd.Series(dtype=float)
        if set(rows["variant"]) - {PLAIN}:
            # the relative change of the geometric mean over datasets
            table = dataset_changes(rows, metric=metric)
            logs = np.log1p(table["change"])
            changes = np.expm1(logs.groupby(table["variant"]).mean())
        # the plain model's change is 0
        return lambda variant: float(changes.get(variant, 0.0))

    def _result(self, search_key: _SearchKey, search: Search) -> dict[str, Any]:
        assert search.result is not None
        layer, order = search_key
        line = {"model": self.name, "layer": layer, "order": order}
        return {**line, **search.result._asdict(), "total": search.result.of}

    def _measured_rankings(
        self, sets: Sequence[EvaluationSet], seed: int
    ) -> dict[str, dict[int, list[int]]]:
        """Rank the heads of every layer, by order."""
        heads_at = self.variants.heads_at
        per_layer = self.variants.heads_per_layer
        names = [
            *(heads_at.orders if heads_at else ()),
            *(per_layer.orders if per_layer else ()),
        ]
        series = None
        horizon = None
        if any(map(needs_series, parse_orders(names))):
            # default of heads_at.windows_for_orders
            count = 16
            if heads_at:
                count = heads_at.windows_for_orders
            series, horizon = _windows_for_orders(self.lens, sets, count, seed)
        return rankings(self.lens, names, series, horizon, seed=seed)

    def _begun_searches(self) -> dict[_SearchKey, Search]:
        settings = self.variants.heads_at
        if settings is None:
            return {}
        searches: dict[_SearchKey, Search] = {}
        for order in parse_orders(settings.orders):
            for layer, heads in self._rankings[order].items():
                if settings.layers is not None and layer not in settings.layers:
                    continue
                of = len(heads)
                tolerance = settings.tolerance
                if self._schedule is not None:
                    looks = self._schedule.looks
                    steps = sequential(of, looks, tolerance, settings.alpha)
                elif settings.search == "scan":
                    steps = scan(of, tolerance)
                else:
                    steps = bisection(of, tolerance)
                searches[layer, order] = Search(of, steps)
        missing = set(settings.layers or ()) - {layer for layer, _ in searches}
        if missing:
            valid = sorted(next(iter(self._rankings.values())))
            raise InputError(
                f"heads_at.layers has layer {min(missing)}, but {self.name} has"
                f" {valid[0]} to {valid[-1]}"
            )
        return searches

    def _static(self) -> list[PlanEntry]:
        """Plan the families that depend on no result."""
        variants = self.variants
        planner = self.planner
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
        """Plan recipes, each with random sets of as many heads.

        If ``measured``, they are the recipes that need heads@k measured on this model,
        else the other ones.

        Returns:
            Entries of the plan.
        """
        if measured:
            heads_at_k = self._heads_at_k()
        else:
            heads_at_k = {}
        entries: list[PlanEntry] = []
        for recipe in self._recipes:
            if recipe.measured != measured:
                continue
            options: dict[str, Any] = {
                "measured": heads_at_k,
                "scale": self._is_scaled(recipe),
            }
            # if its layers need all of their heads, the recipe ablates nothing, as the
            # plain model does
            if measured and not any(select_targets(recipe, self.lens, **options)):
                continue
            seeds = range(self.variants.random_seeds)
            entries += to_entries(recipe, self.planner, random_seeds=seeds, **options)
        return entries

    def _heads_at_k(self) -> dict[int, list[int]]:
        """Return by layer the heads ablated at heads@k, in the better order."""
        ablated = {}
        for layer in dict.fromkeys(layer for layer, _ in self._searches):
            results = {
                order: search.result
                for (index, order), search in self._searches.items()
                if index == layer and search.result is not None
            }
            order, best = better(results)
            ablated[layer] = self._rankings[order][layer][: best.of - best.kept]
        return ablated

    def _counts(self, search_key: _SearchKey, counts: Iterable[int]) -> list[PlanEntry]:
        layer, order = search_key
        heads = self._rankings[order][layer]
        return self.planner.head_counts(layer, order, heads, list(counts))


def _windows_for_orders(
    lens: Lens, sets: Sequence[EvaluationSet], count: int, seed: int
) -> tuple[SeriesBatch, int]:
    """Select windows of all sets, for scores of heads that are measured on data.

    Returns:
        The windows, and a horizon of one pass.
    """
    # equally many windows from each set, and at least one; if there are more sets than
    # windows, one from each of the first sets
    share = max(1, count // len(sets))
    batches = []
    for dataset in list(sets)[:count]:
        subset = dataset.sample(share, seed)
        batch, _ = subset.batch(range(len(subset)), int(lens.adapter.context_length))
        # names are unique within a set only
        ids = tuple(f"{dataset.name}:{name}" for name in batch.ids)
        groups = tuple(f"{dataset.name}:{name}" for name in batch.groups)
        batches.append(replace(batch, ids=ids, groups=groups))
    # scores of heads are of one forward, so that no rollout is needed
    horizon = min(min(dataset.horizon for dataset in sets), lens.adapter.longest_pass)
    return SeriesBatch.concat(batches), horizon
