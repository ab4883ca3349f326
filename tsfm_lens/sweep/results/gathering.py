"""A store as the results that figures, tables and reports are made of: one tidy table for each question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.ablation.search import is_random
from tsfm_lens.errors import InputError
from tsfm_lens.stats import holm
from tsfm_lens.sweep.plan.config import Statistics, parse_config
from tsfm_lens.sweep.run.cells import SavedPlan, read_saved
from tsfm_lens.sweep.statistics.changes import changes, dataset_changes, difference, resilience
from tsfm_lens.sweep.statistics.scores import (
    DISTANCES,
    PLAIN,
    SEASONAL_NAIVE,
    SUMS,
    dataset_metrics,
    formula,
    normalised,
    per_series,
)
from tsfm_lens.sweep.store.files import KEY_COLUMNS
from tsfm_lens.sweep.store.folder import Store

TOLERANCE = 0.01
# datasets whose rows are held at once
_TOGETHER = 10
SOURCE = "tsfm-lens paper, sections 3 and 5"
TABLE_METRICS = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS")
CHANGE = ("change", "lower", "upper", "p_value", "p_holm", "stands", "leads", "tests", "replicates")
_OF_PLAIN = {"change": 0.0, "lower": 0.0, "upper": 0.0, "p_value": 1.0, "p_holm": 1.0}
EFFECTS = ("layers", "groups", "ranges", "heads_per_layer", "components")
_DISTANCE = {"value": "", "lower": "_lower", "upper": "_upper"}
_WORDS = (
    *("model", "family", "recipe", "selection", "label", "part", "order", "dataset", "metric", "attention"),
    *("leads", "distance_leads", "judged_by"),
)
_FLAGS = ("stands", "diff_stands", "better", "order_stands")
_WHOLE = (
    *("seed", "first", "last", "layer", "head", "ablated", "of", "heads_ablated", "heads_total", "n_mlps", "n_layers"),
    *("tests", "replicates", "within", "largest_within", "kept", "n_resilient", "n_improved", "n_datasets"),
)


@dataclass(frozen=True, eq=False)
class Results:
    """A finished or unfinished sweep."""

    sums: pd.DataFrame
    plan: pd.DataFrame
    layers: Mapping[str, int]
    statistics: Statistics
    seed: int
    attrs: Mapping[str, Any] = field(default_factory=dict)
    _cache: dict[Any, Any] = field(default_factory=dict)

    def of(self, model: str, *families: str) -> pd.DataFrame:
        """Return the entries of a model in some families."""
        return self.plan[(self.plan["model"] == model) & self.plan["family"].isin(families)]

    def by_model(self, *families: str) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield each model with its entries in some families, if it has any beside the plain model."""
        for model in self.plan["model"].unique():
            entries = self.of(model, *families)
            if set(entries["variant"]) - {PLAIN}:
                yield model, entries

    def rows(self, model: str, variants: Sequence[str]) -> pd.DataFrame:
        """Return the sums of some variants of a model and of the plain one."""
        return self.sums[(self.sums["model"] == model) & self.sums["variant"].isin({PLAIN, *variants})]

    def changes(self, entries: pd.DataFrame, metric: str = "MASE") -> pd.DataFrame:
        """Test the :func:`changes` of the entries of one model, one family of tests; by variant."""
        model, variants = entries["model"].iloc[0], frozenset(entries["variant"])
        key = (model, metric, variants)
        if key not in self._cache:
            table = changes(self.rows(model, sorted(variants)), metric=metric, **self._resampling)
            self._cache[key] = table.set_index("variant")
        result: pd.DataFrame = self._cache[key]
        return result

    def measured(self, entries: pd.DataFrame, metric: str = "MASE") -> pd.DataFrame:
        """Return the entries of one family of tests with the columns of their change, and the test in words."""
        change, plain = self.changes(entries, metric), entries["variant"] == PLAIN
        table = entries.assign(
            metric=metric, **{name: entries["variant"].map(change[name]) for name in (*CHANGE, "method")}
        )
        for name, value in _OF_PLAIN.items():
            # the plain model changes nothing, for certain
            table[name] = table[name].mask(plain, value)
        # one of them is as good as another for the plain model, which is in no test
        table[["tests", "replicates", "method"]] = table[["tests", "replicates", "method"]].bfill().ffill()
        return table.assign(stands=table["stands"].eq(True))

    def beside(self, model: str, variant: str, others: Sequence[str], metric: str = "MASE") -> pd.Series:
        """Test the :func:`difference` of one variant and the mean of others."""
        rows = self.rows(model, [variant, *others])
        return difference(rows, variant, others, metric=metric, **self._resampling)

    def with_mase(self, entries: pd.DataFrame) -> pd.DataFrame:
        """Add MASE over that of the seasonal naive forecast to one model's entries, and the plain model's."""
        model = entries["model"].iloc[0]
        if model not in self._cache:
            ratios = self.mase_ratios(model)
            usable = ratios[ratios[PLAIN].gt(0)]
            # a variant without a metric on one of them has no mean over all of them
            finite = usable.gt(0) & np.isfinite(usable)
            with np.errstate(all="ignore"):
                logs = usable.apply(lambda column: np.log(column.to_numpy()).mean() if len(column) else np.nan)
                self._cache[model] = np.exp(logs).where(finite.all())
        mase = self._cache[model]
        return entries.assign(mase=entries["variant"].map(mase), baseline_mase=float(mase[PLAIN]))

    def mase_ratios(self, model: str) -> pd.DataFrame:
        """Compute (dataset, variant): MASE of a model's variants over that of the seasonal naive forecast."""
        rows = self.sums[(self.sums["model"] == model) | (self.sums["variant"] == SEASONAL_NAIVE)]
        ratios = normalised(dataset_metrics(rows, ["MASE"]))["MASE"]
        return ratios.droplevel("model").unstack("variant")

    @property
    def _resampling(self) -> dict[str, Any]:
        return {**self.statistics.model_dump(), "seed": self.seed}


def effects(results: Results) -> pd.DataFrame | None:
    """Tabulate the effects of single layers, groups, ranges and sets of components; kind "sweep_effects"."""
    parts = []
    for model, entries in results.by_model(*EFFECTS):
        # one family of tests: the entries of one kind and part
        entries = entries.assign(part=entries["part"].fillna("both"), n_layers=results.layers[model])
        parts += [_with_distance(results, family) for _, family in entries.groupby(["family", "part"], sort=False)]
    names = ["model", "family", "label", "part", "first", "last", "n_layers", *_EFFECT_COLUMNS]
    return _table(results, "effects", "Ablated parts of the models", parts, names)


def single_heads(results: Results) -> pd.DataFrame | None:
    """Tabulate the effect of every single head, all heads of a model one family of tests; kind "sweep_heads"."""
    parts = [
        _with_distance(results, entries.rename(columns={"kind": "attention"}))
        for _, entries in results.by_model("heads")
    ]
    names = ["model", "label", "layer", "attention", "head", *_EFFECT_COLUMNS]
    return _table(results, "heads", "Heads ablated one by one", parts, names)


def _with_distance(results: Results, entries: pd.DataFrame) -> pd.DataFrame:
    """Add to one family of tests MASE, its change, and the distance of the forecast."""
    away = results.changes(entries, "spearman_distance")
    distance = {f"spearman_distance{end}": entries["variant"].map(away[name]) for name, end in _DISTANCE.items()}
    distance["distance_leads"] = entries["variant"].map(away["leads"])
    return results.with_mase(results.measured(entries)).assign(**distance)


_EFFECT_COLUMNS = (
    "distance_leads",
    *(f"spearman_distance{end}" for end in _DISTANCE.values()),
    *("baseline_mase", "mase", *CHANGE),
)


def curves(results: Results, limits: pd.DataFrame | None, tolerance: float) -> pd.DataFrame | None:
    """Tabulate the error over the number of heads ablated, for each layer and order; kind "sweep_curves"."""
    parts = [results.with_mase(results.measured(entries)) for _, entries in results.by_model("head_counts")]
    if not parts:
        return None
    table = pd.concat(parts, ignore_index=True)
    table["share"] = table["ablated"].astype(float) / table["of"].astype(float)
    best = pd.DataFrame(columns=_BETTER_COLUMNS) if limits is None else limits[limits["better"]][_BETTER_COLUMNS]
    table = table.drop(columns="leads").merge(
        best.rename(columns={"order": "better_order", "ablated": "within"}), on=["model", "layer"], how="left"
    )
    table["better"] = table["order"] == table["better_order"]
    names = ["model", "layer", "order", "label", "ablated", "of", "share", "baseline_mase", "mase", *CHANGE]
    names += ["better", "within", "judged_by", "order_stands"]
    about = {"tolerance": tolerance}
    return _table(results, "curves", "Heads ablated in one layer", [table], names, **about)


_BETTER_COLUMNS = ["model", "layer", "order", "ablated", "leads", "judged_by", "order_stands"]


def heads_at(
    results: Results, search_rows: Sequence[Mapping[str, Any]], tolerance: float, metric: str, search: str
) -> pd.DataFrame | None:
    """Tabulate the number of heads that each layer must keep in each order; kind "sweep_heads_at"."""
    if not search_rows:
        return None
    table = pd.DataFrame(search_rows).assign(judged_by=metric, order_stands=False, leads="")
    table["ablated"] = table["of"] - table["kept"]
    # the order that keeps fewest heads, then changes least; those at random only among themselves
    ranked = table.assign(random=table["order"].map(is_random)).sort_values(["random", "kept", "change"], kind="stable")
    table["better"] = table.index.isin(ranked.drop_duplicates(["model", "layer"]).index)
    for model, rows_of_model in table.groupby("model", sort=False):
        counts = results.of(str(model), "head_counts")
        best_rows = table.loc[rows_of_model.index][table.loc[rows_of_model.index, "better"]]
        table.loc[best_rows.index, "order_stands"] = _orders_that_stand(results, counts, best_rows, metric)
        whole = counts[counts["ablated"] == counts["of"]].drop_duplicates("layer").set_index("layer")["variant"]
        if len(whole) > 1:
            leads = whole.map(results.changes(counts[counts["variant"].isin(whole)])["leads"])
            table.loc[rows_of_model.index, "leads"] = rows_of_model["layer"].map(leads).fillna("")
    names = ["model", "layer", "order", "ablated", "of", "kept", "better", "change", "judged_by", "order_stands"]
    about = {"tolerance": tolerance, "metric": metric, "search": search}
    title = "Heads that each layer must keep"
    return _table(results, "heads_at", title, [table], [*names, "leads", "evaluations", "total"], **about)


def _orders_that_stand(results: Results, counts: pd.DataFrame, best_rows: pd.DataFrame, metric: str) -> np.ndarray:
    """Tell, (row of ``best_rows``,), if each layer's better order beats all others at its number of heads."""
    p = np.full(len(best_rows), np.nan)
    for place, row in enumerate(best_rows.to_dict("records")):
        here = counts[(counts["layer"] == row["layer"]) & (counts["ablated"] == row["ablated"])]
        in_order = here.loc[here["order"] == row["order"], "variant"]
        others = here.loc[(here["order"] != row["order"]) & ~here["order"].map(is_random), "variant"]
        # all heads of a layer are the same in any order
        if len(in_order) and len(others) and not set(in_order) & set(others):
            pairs = [results.beside(row["model"], in_order.iloc[0], [other], metric) for other in others]
            p[place] = max(1.0 if pair["difference"] >= 0 else pair["p_value"] for pair in pairs)
    return holm(p) < 1 - results.statistics.confidence


def by_dataset(results: Results, limits: pd.DataFrame, tolerance: float, cap: float = 0.25) -> pd.DataFrame | None:
    """Tabulate the error on every dataset in the layers of each model that keep most and fewest heads."""
    parts: list[pd.DataFrame] = []
    for model, entries in results.by_model("head_counts"):
        mine = limits[limits["better"] & (limits["model"] == model)]
        complete = results.changes(entries)["change"]
        ends = entries[entries["ablated"] == entries["of"]].drop_duplicates("layer")
        whole = ends.set_index("layer")["variant"].map(complete)
        layers = mine.assign(whole=mine["layer"].map(whole).astype(float)).sort_values(["kept", "whole"])
        # the two ends, or the only layer
        for row in layers.iloc[[-1, 0][: len(layers)]].to_dict("records"):
            own = (entries["layer"] == row["layer"]) & (entries["order"] == row["order"])
            line = entries[own].sort_values("ablated")
            if len(line):
                parts.append(_panel(results, line, tolerance).assign(kept=row["kept"]))
    names = ["model", "layer", "kept", "order", "ablated", "of", "dataset", "mase", "change", "largest_within"]
    title, about = "Error on each dataset over heads ablated", {"tolerance": tolerance, "cap": cap}
    return _table(results, "datasets", title, parts, names, **about)


def _panel(results: Results, line: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """Return a row per dataset and number of heads ablated in one order of one layer."""
    model = line["model"].iloc[0]
    by_set = dataset_changes(results.rows(model, list(line["variant"])))
    mase = results.mase_ratios(model).reset_index().melt("dataset", var_name="variant", value_name="mase")
    table = line.merge(mase, on="variant").merge(
        by_set[["variant", "dataset", "change"]], on=["variant", "dataset"], how="left"
    )
    table["change"] = table["change"].mask(table["variant"] == PLAIN, 0.0)
    within = table["ablated"].astype(int).where(table["change"] < tolerance, -1)
    return table.assign(largest_within=within.groupby(table["dataset"]).transform("max"))


def recipes(results: Results) -> pd.DataFrame | None:
    """Tabulate the cost of heavy ablations on every metric; kind "sweep_recipes"."""
    parts = []
    for model, entries in results.by_model("recipes", "random", "components"):
        counts = resilience(results.rows(model, list(entries["variant"]))).set_index("variant")
        words = {"recipe": entries["recipe"].fillna(entries["label"])}
        words["selection"] = entries["selection"].fillna("listed")
        of_sets = ("n_resilient", "n_improved", "n_datasets")
        entries = entries.assign(**words, **{name: entries["variant"].map(counts[name]) for name in of_sets})
        by_metric = pd.concat([results.measured(entries, metric) for metric in TABLE_METRICS])
        # the metrics of an entry stand together
        parts.append(by_metric.sort_index(kind="stable").rename(columns=_SIZES))
    names = ["model", "recipe", "selection", "seed", "label", *_SIZES.values(), "metric", *CHANGE]
    return _table(results, "recipes", "Heavy ablations", parts, [*names, "n_resilient", "n_improved", "n_datasets"])


_SIZES = {"ablated": "heads_ablated", "of": "heads_total", "mlps": "n_mlps"}
_DIFFERENCE = {"diff": "difference", "diff_lower": "lower", "diff_upper": "upper", "diff_p": "p_value"}


def selection(results: Results) -> pd.DataFrame | None:
    """Compare heads chosen by a rule with as many at random; kind "sweep_selection"."""
    parts: list[pd.DataFrame] = []
    for model, entries in results.by_model("recipes", "random"):
        first = len(parts)
        for _, lines in entries.groupby("recipe", sort=False):
            draws, recipe = lines[lines["family"] == "random"], lines[lines["family"] == "recipes"]
            # a draw of the very heads that were chosen is no other choice
            draws = draws[~draws["variant"].isin(recipe["variant"])]
            if draws.empty or recipe.empty:
                continue
            table = results.measured(pd.concat([recipe, draws]))
            contrast = results.beside(model, recipe["variant"].iloc[0], list(dict.fromkeys(draws["variant"])))
            for name, column in _DIFFERENCE.items():
                table[name] = np.where(table["family"] == "recipes", contrast[column], np.nan)
            parts.append(table)
        p_holm = holm(np.array([part["diff_p"].iloc[0] for part in parts[first:]]))
        for part, p in zip(parts[first:], p_holm, strict=True):
            part["diff_stands"] = (part["family"] == "recipes") & (p < 1 - results.statistics.confidence)
    names = ["model", "recipe", "selection", "seed", "label", *CHANGE, *_DIFFERENCE, "diff_stands"]
    return _table(results, "selection", "Informed and random choices of heads", parts, names)


def _table(
    results: Results, kind: str, title: str, parts: Sequence[pd.DataFrame], names: Iterable[str], **attrs: Any
) -> pd.DataFrame | None:
    """Build a tidy table of some columns; -1 where an entry has no whole number, and "" where it has no word."""
    if not parts:
        return None
    rows = pd.concat(parts, ignore_index=True)
    table = rows[list(names)].copy()
    for name in table:
        if name in _WORDS:
            table[name] = table[name].where(table[name].notna(), "").astype(str)
        elif name in _FLAGS:
            table[name] = table[name].eq(True)
        elif name in _WHOLE:
            table[name] = pd.to_numeric(table[name]).fillna(-1).astype(int)
        else:
            table[name] = table[name].astype(float)
    about: dict[str, Any] = {"kind": f"sweep_{kind}", "title": title, "source": SOURCE}
    about["confidence"] = results.statistics.confidence
    if "method" in rows:
        about |= {"test": "; ".join(dict.fromkeys(rows["method"].dropna())), "correction": "Holm"}
    table.attrs.update(about | dict(results.attrs) | attrs)
    return table


@dataclass(frozen=True, eq=False)
class Gathered:
    """Results that a report is made of.

    Attributes:
        title: of the sweep.
        results: tidy tables by name: "effects", "heads", "curves", "heads_at", "datasets", "recipes", "selection",
            those that the sweep has.
        provenance: models, datasets, versions and settings.
        notes: what a reader must know: cells that are missing, results that are not part of this sweep.
    """

    title: str
    results: dict[str, pd.DataFrame]
    provenance: dict[str, Any]
    notes: list[str]


def gather(folder: str | Path, name: str | None = None) -> Gathered:
    """Gather all results of a sweep, as far as it has come.

    Args:
        folder: of the store.
        name: of the sweep, where a store holds several.

    Raises:
        StoreError: the folder is no store, or a file in it is damaged.
        InputError: no sweep has been planned there, several have and no name is given, or nothing is finished.

    Example:
        >>> sweep.gather("sweep-demo.store").results  # doctest: +SKIP
    """
    store = Store(folder, create=False)
    record = read_saved(store, name)
    about, cells = record.about, record.cells
    config = parse_config(about["config"], f"the configuration in {folder}")
    is_finished = cells["key"].isin(store.done())
    comparable, gaps = _comparable(cells, is_finished)
    entries, keys = record.entries, ["model", "variant"]
    plan = entries[pd.MultiIndex.from_frame(entries[keys]).isin(pd.MultiIndex.from_frame(comparable[keys]))]
    plan = plan.drop_duplicates(["model", "family", "label", "variant"], ignore_index=True)
    if set(plan["variant"]) <= {PLAIN}:
        raise InputError(
            f"no variant of {record.name!r} is finished on a whole dataset in {folder} yet: `tsfm-lens sweep` goes on "
            "with it"
        )
    if SEASONAL_NAIVE not in set(comparable["variant"]):
        raise InputError(
            f"the seasonal naive forecast, against which errors are shown, is not in {folder}: `tsfm-lens sweep` goes "
            f"on with {record.name!r} and makes it"
        )
    results = Results(
        _sums(store, comparable),
        plan,
        {title: model["layers"] for title, model in about["models"].items()},
        config.statistics,
        config.seed,
        {
            "sweep": config.name,
            "how": config.how,
            "seed": config.seed,
            "n_datasets": len(about["datasets"]),
            "n_windows": sum(dataset["windows"] for dataset in about["datasets"]),
            "distance_steps": config.distance_steps,
        },
    )
    settings, limits = config.variants.heads_at, None
    tolerance = TOLERANCE if settings is None else settings.tolerance
    if settings is not None:
        limits = heads_at(results, about["heads_at"], tolerance, settings.metric, settings.search)
    by_name = {
        "effects": effects(results),
        "heads": single_heads(results),
        "curves": curves(results, limits, tolerance),
        "heads_at": limits,
        "datasets": None if limits is None else by_dataset(results, limits, tolerance),
        "recipes": recipes(results),
        "selection": selection(results),
    }
    notes = _notes(record, is_finished, len(store.done() - set(cells["key"])), gaps)
    provenance = {"models": about["models"], "datasets": about["datasets"], "config": config.model_dump(mode="json")}
    provenance["complete"] = about["complete"]
    tables = {name: table for name, table in by_name.items() if table is not None}
    return Gathered(config.name, tables, provenance, notes)


def _comparable(cells: pd.DataFrame, is_finished: pd.Series) -> tuple[pd.DataFrame, list[str]]:
    """Select the finished cells that can be compared: of each model, all variants on the same windows."""
    parts, words = [], []
    for model, cells_of_model in cells.groupby("model", sort=False):
        flags = is_finished[cells_of_model.index]
        # a search may have run a variant on a part of the windows only
        by_variant = flags.groupby(cells_of_model["variant"]).sum() == cells_of_model["chunk"].nunique()
        has_any = cells_of_model["variant"].map(flags.groupby(cells_of_model["variant"]).any())
        by_dataset = flags[has_any].groupby(cells_of_model.loc[has_any, "dataset"]).all()
        across = cells_of_model["variant"].map(by_variant)
        within = has_any & cells_of_model["dataset"].map(by_dataset).eq(True)
        # every change is one from the plain model; the seasonal naive forecast has none
        variants = cells_of_model["variant"]
        needs_plain = (variants == PLAIN).any()
        usable = [
            keep for keep in (across & flags, within & flags) if not needs_plain or (variants[keep] == PLAIN).any()
        ]
        if not usable:
            continue
        parts.append(cells_of_model[max(usable, key=lambda keep: keep.sum())])
        count, total = parts[-1]["dataset"].nunique(), cells_of_model["dataset"].nunique()
        if count < total and len(parts[-1]):
            words.append(f"{model} is shown on the {count} of {total} datasets that are finished")
    return pd.concat([*parts, cells[:0]]), words


def _sums(store: Store, cells: pd.DataFrame) -> pd.DataFrame:
    """Sum each series, with models by the names that the configuration gives them."""
    measures = [*TABLE_METRICS, "spearman_distance"]
    values = [name for measure in measures for name in formula(measure)[0] if name in (*SUMS, *DISTANCES)]
    columns = list(dict.fromkeys([*KEY_COLUMNS, *values, "n", "n_invalid"]))
    parts = []
    # few datasets at a time, so that few rows are held
    block = cells["dataset"].map({name: i // _TOGETHER for i, name in enumerate(cells["dataset"].unique())})
    for _, cells_of_block in cells.groupby(["model", block], sort=False):
        rows = store.read(cells_of_block["key"], columns).to_pandas().assign(model=cells_of_block["model"].iloc[0])
        parts.append(per_series(rows, measures))
    return pd.concat(parts, ignore_index=True)


def _notes(record: SavedPlan, is_finished: pd.Series, n_unused: int, gaps: list[str]) -> list[str]:
    notes, about, missing = [], record.about, int((~is_finished).sum())
    if not missing and not about["complete"]:
        notes.append("This sweep is not finished: what it will run next depends on results.")
    if missing:
        words = "".join(f"; {reason}" for reason in gaps)
        notes.append(
            f"This sweep is not finished: of {len(is_finished)} cells planned so far {missing} are missing. Variants "
            f"are compared on the same windows only{words}."
        )
    if n_unused:
        notes.append(f"The store holds cells of other configurations, {n_unused} that are not used here.")
    notes += [f"{dataset['name']}: {note}" for dataset in about["datasets"] for note in dataset["notes"]]
    return notes
