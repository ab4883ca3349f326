"""Results for figures, tables and reports, from a store.

Read :func:`gather` first; each function that it calls builds the table for one
question, whose kind is its ``attrs["kind"]``. A cell is a variant of a model on one
chunk of a dataset's windows. As cells may be missing, only those are used in which all
variants of a model have the same windows, and notes say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.sweep.data.evaluation import SEASONAL_NAIVE
from tsfm_lens.sweep.planner.config import parse_config
from tsfm_lens.sweep.planner.search import is_random
from tsfm_lens.sweep.results.families import (
    CHANGE,
    EFFECTS,
    HEAVY,
    LEADS,
    SweepResults,
    chosen_and_drawn,
)
from tsfm_lens.sweep.statistics.changes import dataset_changes, resilience
from tsfm_lens.sweep.statistics.scores import (
    DISTANCES,
    KEYS,
    PLAIN,
    SUMS,
    formula,
    per_series,
)
from tsfm_lens.sweep.store import KEY_COLUMNS, SavedPlan, Store

# default of ``heads_at.tolerance``, for a sweep without heads_at
TOLERANCE = 0.01
# datasets whose rows are held at once
_BLOCK_DATASETS = 10
SOURCE = "tsfm-lens paper, sections 3 and 5"
TABLE_METRICS = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS")
# column of the tested distance -> end of its name in the tables
_DISTANCE = {"value": "", "lower": "_lower", "upper": "_upper"}
# which type pandas gives a column depends on which entries lack a value; the columns of
# these names have one type in the tables of every sweep
_TEXT_COLUMNS = (
    "model",
    "family",
    "member",
    "recipe",
    "selection",
    "label",
    "part",
    "order",
    "dataset",
    "metric",
    "attention",
    "leads",
    "distance_leads",
    "judged_by",
    "unit",
)
_FLAG_COLUMNS = ("significant", "diff_significant", "better", "order_significant")
_INTEGER_COLUMNS = (
    "seed",
    "first",
    "last",
    "layer",
    "head",
    "ablated",
    "of",
    "possible",
    "heads_ablated",
    "heads_total",
    "n_mlps",
    "n_layers",
    "tests",
    "units",
    "n_worse",
    "within",
    "largest_within",
    "kept",
    "n_resilient",
    "n_improved",
    "n_datasets",
)


def effects(results: SweepResults) -> pd.DataFrame | None:
    """Tabulate the effects of layers, groups, ranges and sets of components.

    Its kind is "sweep_effects".

    Returns:
        The table, None without such variants.
    """
    parts = []
    for model, entries in results.by_model(*EFFECTS):
        entries = entries.assign(
            part=entries["part"].fillna("both"), n_layers=results.layers[model]
        )
        # the largest effect is sought within one family and part
        parts += [
            _with_distance(results, group)
            for _, group in entries.groupby(["family", "part"], sort=False)
        ]
    names = [
        "model",
        "family",
        "label",
        "part",
        "first",
        "last",
        "n_layers",
        *_EFFECT_COLUMNS,
    ]
    return _table(results, "effects", "Ablated parts of the models", parts, names)


def single_heads(results: SweepResults) -> pd.DataFrame | None:
    """Tabulate the effect of every single head; its kind is "sweep_heads"."""
    parts = [
        _with_distance(results, entries.rename(columns={"kind": "attention"}))
        for _, entries in results.by_model("heads")
    ]
    names = ["model", "label", "layer", "attention", "head", *_EFFECT_COLUMNS]
    return _table(results, "heads", "Heads ablated one by one", parts, names)


def costs(results: SweepResults, tolerance: float) -> pd.DataFrame | None:
    """Tabulate what single layers and heads cost, unit by unit.

    A unit is a dataset, source or series, as in the tests. There is a row per entry and
    unit: ``member`` names the unit, ``member_change`` is the relative change of MASE on
    it. Its kind is "sweep_costs".

    Returns:
        The table, None without such variants.
    """
    parts = []
    for model, entries in results.by_model("layers", "heads"):
        tests = results.tested(model).query("of == ''")
        entries = entries[entries["variant"].isin(tests.index)]
        entries = entries.rename(columns={"kind": "attention"})
        # the largest cost is sought among parts of one kind
        for _, group in entries.groupby(["family", "part"], sort=False):
            measured = results.measured(group)
            logs = measured["variant"].map(tests["by_unit"])
            columns = {
                "member": measured["variant"].map(tests["members"]),
                "member_change": logs.map(np.expm1),
            }
            parts.append(measured.assign(**columns).explode(list(columns)))
    names = ["model", "family", "label", "part", "layer", "attention", "head"]
    return _table(
        results,
        "costs",
        "Cost of losing a layer or a head",
        parts,
        [*names, "member", "member_change", *CHANGE],
        tolerance=tolerance,
    )


def _with_distance(results: SweepResults, entries: pd.DataFrame) -> pd.DataFrame:
    """Add MASE, its change, and the distance of the forecast to some entries."""
    distances = results.tested(entries["model"].iloc[0], "spearman_distance")
    columns = {
        f"spearman_distance{suffix}": entries["variant"].map(distances[name])
        for name, suffix in _DISTANCE.items()
    }
    leads = results.leads(entries, "spearman_distance")
    columns |= {
        f"distance_{name}": entries["variant"].map(leads[name]) for name in LEADS
    }
    return results.with_relative_mase(results.measured(entries)).assign(**columns)


_EFFECT_COLUMNS = (
    *(f"distance_{name}" for name in LEADS),
    *(f"spearman_distance{suffix}" for suffix in _DISTANCE.values()),
    "baseline_relative_mase",
    "relative_mase",
    *CHANGE,
)


def curves(
    results: SweepResults, kept: pd.DataFrame | None, tolerance: float
) -> pd.DataFrame | None:
    """Tabulate the error over the number of heads ablated, by layer and order.

    Its kind is "sweep_curves".

    Returns:
        The table, None without such variants.
    """
    parts = [
        results.with_relative_mase(results.measured(entries))
        for _, entries in results.by_model("head_counts")
    ]
    if not parts:
        return None
    table = pd.concat(parts, ignore_index=True)
    # both are columns of objects, since entries of other families lack them
    table["share"] = table["ablated"].astype(float) / table["of"].astype(float)
    if kept is None:
        best = pd.DataFrame(columns=_BETTER_COLUMNS)
    else:
        best = kept[kept["better"]][_BETTER_COLUMNS]
    # a curve shows the leads of its whole layer, which are columns of ``kept``, instead
    # of those of single counts, which have the same names
    table = table.drop(columns=list(LEADS)).merge(
        best.rename(columns={"order": "better_order", "ablated": "within"}),
        on=["model", "layer"],
        how="left",
    )
    # where nothing was searched the better order is NaN, which equals no order
    table["better"] = table["order"] == table["better_order"]
    names = [
        "model",
        "layer",
        "order",
        "label",
        "ablated",
        "of",
        "share",
        "baseline_relative_mase",
        "relative_mase",
        *CHANGE,
    ]
    names += ["better", "within", "judged_by", "order_significant"]
    about = {"tolerance": tolerance}
    return _table(
        results, "curves", "Heads ablated in one layer", [table], names, **about
    )


_BETTER_COLUMNS = [
    "model",
    "layer",
    "order",
    "ablated",
    *LEADS,
    "judged_by",
    "order_significant",
]


def better_orders(search_rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Tabulate the result of a search by layer and order.

    ``better`` marks the order that counts in each layer.

    Returns:
        The table.
    """
    table = pd.DataFrame(search_rows)
    table["ablated"] = table["of"] - table["kept"]
    # must agree with search.better, by which the planner chose the heads of recipes: of
    # the orders that keep fewest heads, the one with the smallest change; random orders
    # come after all others, and of equal ones the first counts
    ranked = table.assign(random=table["order"].map(is_random)).sort_values(
        ["random", "kept", "change"], kind="stable"
    )
    first = ranked.drop_duplicates(["model", "layer"]).index
    return table.assign(better=table.index.isin(first))


def tabulate_heads(
    results: SweepResults, tolerance: float, search: str
) -> pd.DataFrame | None:
    """Tabulate the number of heads that each layer must keep in each order.

    Its kind is "sweep_heads_at".

    Returns:
        The table, None without such variants.
    """
    if results.limits is None:
        return None
    table = results.limits.assign(
        judged_by=results.judged_by,
        order_significant=False,
        leads="",
        lead_share=np.nan,
    )
    for model, rows in table.groupby("model", sort=False):
        counts = results.of(str(model), "head_counts")
        # the variant of each layer without all of its heads, which is the same in every
        # order
        without_heads = (
            counts[counts["ablated"] == counts["of"]]
            .drop_duplicates("layer")
            .set_index("layer")["variant"]
        )
        if len(without_heads):
            leads = results.leads(counts[counts["variant"].isin(without_heads)])
        else:
            leads = pd.DataFrame(columns=LEADS)
        for name in LEADS:
            by_layer = without_heads.map(leads[name])
            table.loc[rows.index, name] = rows["layer"].map(by_layer)
        if set(counts["variant"]) - {PLAIN}:
            tests = results.tested(str(model), results.judged_by)
            # without another order to compare with, there is no column of differences
            is_lower = tests["significant"] & (tests.get("difference", 0.0) < 0)
            # an order has a test against each other one, and must have a significantly
            # lower error in all of them
            beats_all = is_lower.groupby(tests["of"]).all()
            test_names = "order in " + rows["layer"].astype(str)
            is_significant = rows["better"] & test_names.map(beats_all).eq(True)
            table.loc[rows.index, "order_significant"] = is_significant
    names = [
        "model",
        "layer",
        "order",
        "ablated",
        "of",
        "kept",
        "better",
        "change",
        "judged_by",
        "order_significant",
    ]
    about = {"tolerance": tolerance, "metric": results.judged_by, "search": search}
    title = "Heads that each layer must keep"
    return _table(
        results,
        "heads_at",
        title,
        [table],
        [*names, *LEADS, "evaluations", "total"],
        **about,
    )


def by_dataset(
    results: SweepResults, kept: pd.DataFrame, tolerance: float
) -> pd.DataFrame | None:
    """Tabulate the error on every dataset, for two layers of each model.

    They are the layers that keep the most and the fewest heads. ``tolerance`` becomes
    an attribute of the table; ``largest_within`` is the largest number of heads of the
    layer whose ablation changes the error by less than the tolerance.

    Returns:
        The table, None without such variants.
    """
    parts: list[pd.DataFrame] = []
    for model, entries in results.by_model("head_counts"):
        best = kept[kept["better"] & (kept["model"] == model)]
        changes = results.tested(model)["change"]
        without_heads = entries[entries["ablated"] == entries["of"]].drop_duplicates(
            "layer"
        )
        # the curve of the better order may end before this variant, which all orders
        # share
        change_of_all = without_heads.set_index("layer")["variant"].map(changes)
        # layers that keep equally many heads are ranked by the change when all of their
        # heads are ablated
        layers = best.assign(
            change_of_all=best["layer"].map(change_of_all).astype(float)
        ).sort_values(["kept", "change_of_all"])
        # a model with a single layer has one panel
        most_and_fewest = [-1, 0][: len(layers)]
        for row in layers.iloc[most_and_fewest].to_dict("records"):
            in_layer = entries["layer"] == row["layer"]
            curve = entries[in_layer & (entries["order"] == row["order"])]
            curve = curve.sort_values("ablated")
            if len(curve):
                parts.append(_panel(results, curve, tolerance).assign(kept=row["kept"]))
    names = [
        "model",
        "layer",
        "kept",
        "order",
        "ablated",
        "of",
        "dataset",
        "relative_mase",
        "change",
        "largest_within",
    ]
    title = "Error on each dataset over heads ablated"
    return _table(results, "datasets", title, parts, names, tolerance=tolerance)


def _panel(
    results: SweepResults, curve: pd.DataFrame, tolerance: float
) -> pd.DataFrame:
    """Return a row per dataset and number of heads ablated.

    The entries of ``curve`` ablate heads of one layer, in one order.
    """
    model = curve["model"].iloc[0]
    changes = dataset_changes(results.rows(model, list(curve["variant"])))
    mase = (
        results.mase_ratios(model)
        .reset_index()
        .melt("dataset", var_name="variant", value_name="relative_mase")
    )
    table = curve.merge(mase, on="variant").merge(
        changes[["variant", "dataset", "change"]],
        on=["variant", "dataset"],
        how="left",
    )
    # changes are from the plain model, so it has no row among them
    table["change"] = table["change"].mask(table["variant"] == PLAIN, 0.0)
    # a change that is undefined is not below the tolerance either; -1 is how a table of
    # this module writes a missing integer
    within = table["ablated"].astype(int).where(table["change"] < tolerance, -1)
    largest = within.groupby(table["dataset"]).transform("max")
    return table.assign(largest_within=largest)


def recipes(results: SweepResults) -> pd.DataFrame | None:
    """Tabulate the change of every metric by heavy ablations.

    Its kind is "sweep_recipes".

    Returns:
        The table, None without such variants.
    """
    parts = []
    for model, entries in results.by_model(*HEAVY):
        rows = results.rows(model, list(entries["variant"]))
        counts = resilience(rows).set_index("variant")
        columns = {
            name: entries["variant"].map(counts[name])
            for name in ("n_resilient", "n_improved", "n_datasets")
        }
        entries = entries.assign(
            # a set of components has no recipe, and goes by its label
            recipe=entries["recipe"].fillna(entries["label"]),
            selection=entries["selection"].fillna("listed"),
            **columns,
        )
        by_metric = pd.concat(
            [results.measured(entries, metric) for metric in TABLE_METRICS]
        )
        # the metrics of an entry stand together
        parts.append(by_metric.sort_index(kind="stable").rename(columns=_COUNTS))
    names = [
        "model",
        "recipe",
        "selection",
        "seed",
        "label",
        *_COUNTS.values(),
        "metric",
        *CHANGE,
    ]
    return _table(
        results,
        "recipes",
        "Heavy ablations",
        parts,
        [*names, "n_resilient", "n_improved", "n_datasets"],
    )


# tag of an entry -> its column in the table of recipes
_COUNTS = {"ablated": "heads_ablated", "of": "heads_total", "mlps": "n_mlps"}
# column of the table of selections -> column of the test behind it
_DIFFERENCE = {
    "diff": "difference",
    "diff_lower": "lower",
    "diff_upper": "upper",
    "diff_p": "p_value",
    "diff_significant": "significant",
    "n_worse": "n_worse",
}


def selection(results: SweepResults) -> pd.DataFrame | None:
    """Compare heads chosen by a rule with as many random heads.

    Its kind is "sweep_selection". ``possible`` is the number of other sets of as many
    heads of each layer, -1 where the plan does not have it.

    Returns:
        The table, None without such variants.
    """
    parts: list[pd.DataFrame] = []
    for model, entries in results.by_model("recipes", "random"):
        for recipe, lines in entries.groupby("recipe", sort=False):
            chosen, draws = chosen_and_drawn(lines)
            if len(chosen) and len(draws):
                table = results.measured(pd.concat([chosen, draws]))
                tests = results.tested(model)
                test = tests[tests["of"] == f"choice of {recipe}"].iloc[0]
                is_chosen = table["family"] == "recipes"
                # the test is of the chosen heads; draws have no value in its columns
                columns = {
                    name: is_chosen.map({True: test[column]})
                    for name, column in _DIFFERENCE.items()
                }
                # plans of earlier versions do not say how many sets of heads there are
                possible = draws.get("possible", pd.Series([-1])).iloc[0]
                parts.append(table.assign(**columns, possible=possible))
    names = ["model", "recipe", "selection", "seed", "label", *CHANGE, *_DIFFERENCE]
    names.append("possible")
    return _table(
        results, "selection", "Informed and random choices of heads", parts, names
    )


def _table(
    results: SweepResults,
    kind: str,
    title: str,
    parts: Sequence[pd.DataFrame],
    names: Iterable[str],
    **attrs: Any,
) -> pd.DataFrame | None:
    """Build a tidy table of some columns.

    Where an entry has no integer it is -1, and where it has no text it is "".

    Returns:
        The table, None without a row.
    """
    if not parts:
        return None
    table = pd.concat(parts, ignore_index=True)[list(names)].copy()
    for name in table:
        if name in _TEXT_COLUMNS:
            table[name] = table[name].where(table[name].notna(), "").astype(str)
        elif name in _FLAG_COLUMNS:
            table[name] = table[name].eq(True)
        elif name in _INTEGER_COLUMNS:
            table[name] = pd.to_numeric(table[name]).fillna(-1).astype(int)
        else:
            table[name] = table[name].astype(float)
    about: dict[str, Any] = {"kind": f"sweep_{kind}", "title": title, "source": SOURCE}
    about["confidence"] = results.statistics.confidence
    if "unit" in table:
        # distinct pairs, such as (12, "sources"); entries without a test have no unit
        pairs = dict.fromkeys(zip(table["units"], table["unit"], strict=True))
        units = [f"{count} {unit}" for count, unit in pairs if unit]
        about |= {
            "test": f"exact sign test over {' or '.join(units)}",
            "correction": "Holm",
        }
    table.attrs.update(about | dict(results.attrs) | attrs)
    return table


@dataclass(frozen=True, eq=False)
class Gathered:
    """Results of which a report is made.

    Attributes:
        title: what was swept.
        results: tidy tables by name: "costs", "effects", "heads", "curves", "heads_at",
            "datasets", "recipes", "selection", as far as the sweep has them.
        provenance: models, datasets, versions and settings.
        notes: what a reader must know: cells that are missing, results that are not
            part of this sweep.
    """

    title: str
    results: dict[str, pd.DataFrame]
    provenance: dict[str, Any]
    notes: list[str]


def gather(folder: str | Path, name: str | None = None) -> Gathered:
    """Gather all results that a sweep has so far.

    Args:
        folder: of the store.
        name: of the sweep, where a store holds several.

    Returns:
        Tables by kind, with their provenance, and notes on what is not finished.

    Raises:
        StoreError: the folder is not a store, or its plan cannot be read.
        InputError: the store has no sweep, or several and no name is given, or nothing
            is finished.

    Example:
        >>> sweep.gather("sweep-demo.store").results  # doctest: +SKIP
    """
    store = Store(folder, create=False)
    record = store.read_plan(name)
    about = record.about
    cells = record.cells
    config = parse_config(about["config"], f"the configuration in {folder}")
    is_finished = cells["key"].isin(store.done())
    comparable, gaps = _comparable(cells, is_finished)
    entries = record.entries
    keys = ["model", "variant"]
    finished = pd.MultiIndex.from_frame(comparable[keys])
    plan = entries[pd.MultiIndex.from_frame(entries[keys]).isin(finished)]
    # stages plan the plain model again, and other variants that they share
    plan = plan.drop_duplicates(
        ["model", "family", "label", "variant"], ignore_index=True
    )
    if set(plan["variant"]) <= {PLAIN}:
        raise InputError(
            f"no variant of {record.name!r} is finished on a whole dataset in {folder}"
            " yet: `tsfm-lens sweep` resumes it"
        )
    if SEASONAL_NAIVE not in set(comparable["variant"]):
        raise InputError(
            "the seasonal naive forecast, against which errors are shown, is not in"
            f" {folder}: `tsfm-lens sweep` resumes {record.name!r} and makes it"
        )
    settings = config.variants.heads_at
    search_rows = about["heads_at"]
    judged_by = "MASE"
    tolerance = TOLERANCE
    # what the searches for heads@k found
    limits = None
    if settings is not None:
        judged_by = settings.metric
        tolerance = settings.tolerance
        if search_rows:
            limits = better_orders(search_rows)
    sums, duplicates = counted_once(_sums(store, comparable, judged_by))
    layers = {title: model["layers"] for title, model in about["models"].items()}
    attrs = {
        "sweep": config.name,
        "how": config.how,
        "seed": config.seed,
        "n_datasets": len(about["datasets"]),
        "n_windows": sum(dataset["windows"] for dataset in about["datasets"]),
        "distance_steps": config.distance_steps,
    }
    results = SweepResults(
        sums, plan, layers, config.statistics, limits, judged_by, attrs
    )
    kept = None
    if settings is not None:
        kept = tabulate_heads(results, tolerance, settings.search)
    panels = None
    if kept is not None:
        panels = by_dataset(results, kept, tolerance)
    by_name = {
        "costs": costs(results, tolerance),
        "effects": effects(results),
        "heads": single_heads(results),
        "curves": curves(results, kept, tolerance),
        "heads_at": kept,
        "datasets": panels,
        "recipes": recipes(results),
        "selection": selection(results),
    }
    n_unused = len(store.done() - set(cells["key"]))
    notes = [*_notes(record, is_finished, n_unused, gaps), *duplicates]
    provenance = {
        "models": about["models"],
        "datasets": about["datasets"],
        "config": config.model_dump(mode="json"),
        "complete": about["complete"],
    }
    tables = {name: table for name, table in by_name.items() if table is not None}
    count = len(about["datasets"])
    noun = "dataset" if count == 1 else "datasets"
    title = f"Ablation sweep of {', '.join(layers)} on {count} {noun}"
    return Gathered(title, tables, provenance, notes)


def _comparable(
    cells: pd.DataFrame, is_finished: pd.Series
) -> tuple[pd.DataFrame, list[str]]:
    """Select the finished cells that can be compared, and say what is left out.

    For each model, they are cells of variants that all have the same windows.

    Returns:
        The cells, and notes.
    """
    parts = []
    gaps = []
    for model, model_cells in cells.groupby("model", sort=False):
        flags = is_finished[model_cells.index]
        variants = model_cells["variant"]
        datasets = model_cells["dataset"]
        # a search may have run a variant on a part of the windows only
        n_finished = flags.groupby(variants).sum()
        is_complete = n_finished == model_cells["chunk"].nunique()
        is_begun = variants.map(flags.groupby(variants).any())
        is_full = flags[is_begun].groupby(datasets[is_begun]).all()
        # two ways to have the same windows for all: only the variants that are finished
        # everywhere, or only the datasets on which every variant begun is finished; the
        # way with more cells is taken
        of_complete_variants = variants.map(is_complete)
        on_full_datasets = is_begun & datasets.map(is_full).eq(True)
        # every change is one from the plain model; the seasonal naive forecast has none
        needs_plain = (variants == PLAIN).any()
        usable = [
            mask
            for mask in (of_complete_variants & flags, on_full_datasets & flags)
            if not needs_plain or (variants[mask] == PLAIN).any()
        ]
        if not usable:
            continue
        parts.append(model_cells[max(usable, key=lambda mask: mask.sum())])
        count = parts[-1]["dataset"].nunique()
        total = datasets.nunique()
        if count < total and len(parts[-1]):
            gaps.append(
                f"{model} is shown on the {count} of {total} datasets that are finished"
            )
    # without any usable model the table is empty, but has its columns
    return pd.concat([*parts, cells[:0]]), gaps


def _sums(store: Store, cells: pd.DataFrame, judged_by: str) -> pd.DataFrame:
    """Add up each series, under its model's name in the configuration."""
    measures = [*TABLE_METRICS, "spearman_distance", judged_by]
    # formula returns the columns that a measure is made of, and the function of them
    values = [
        name
        for measure in measures
        for name in formula(measure)[0]
        if name in (*SUMS, *DISTANCES)
    ]
    columns = list(dict.fromkeys([*KEY_COLUMNS, *values, "n", "n_invalid"]))
    parts = []
    # few datasets at a time, so that few rows are held
    names = cells["dataset"].unique()
    block_by_name = {name: i // _BLOCK_DATASETS for i, name in enumerate(names)}
    block = cells["dataset"].map(block_by_name)
    for _, block_cells in cells.groupby(["model", block], sort=False):
        rows = store.read(block_cells["key"], columns).to_pandas()
        # cells are keyed by content: another configuration may have stored them under
        # another name of the model
        rows = rows.assign(model=block_cells["model"].iloc[0])
        parts.append(per_series(rows, measures))
    return pd.concat(parts, ignore_index=True)


def counted_once(sums: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Merge duplicate series of a dataset, and leave out duplicate datasets.

    A dataset is a duplicate if it has the same series as another.

    Returns:
        The sums, and notes on what was merged and left out.
    """
    naive = sums[sums["variant"] == SEASONAL_NAIVE].drop_duplicates(["dataset", "item"])
    # only distances that the report shows were read, so others may be absent
    values = naive.drop(columns=[*KEYS, *DISTANCES], errors="ignore")
    # equal sums mean equal series: the seasonal naive forecast has the same sums to the
    # last digit, whatever else ran in the same group
    hashes = pd.util.hash_pandas_object(values, index=False)
    renamed = naive.assign(
        item=naive["item"].groupby([naive["dataset"], hashes]).transform("first"),
        old=naive["item"],
    )
    is_duplicate = renamed["item"] != renamed["old"]
    first_items = renamed[is_duplicate].set_index(["dataset", "old"])["item"]
    if len(first_items):
        items = [
            first_items.get(key, key[1])
            for key in zip(sums["dataset"], sums["item"], strict=True)
        ]
        sums = (
            sums.assign(item=items)
            .groupby(list(KEYS), as_index=False, observed=True)
            .sum()
        )
    first: dict[tuple[int, ...], str] = {}
    notes = []
    duplicates = set()
    for name, dataset_hashes in hashes.groupby(naive["dataset"], sort=True):
        # as a set: datasets may list their series in another order, and a series twice
        other = first.setdefault(tuple(sorted(set(dataset_hashes))), str(name))
        if other != name:
            duplicates.add(name)
            notes.append(f"{name} holds the same series as {other}; they count once.")
    if duplicates:
        sums = sums[~sums["dataset"].isin(duplicates)]
    return sums, notes


def _notes(
    record: SavedPlan, is_finished: pd.Series, n_unused: int, gaps: list[str]
) -> list[str]:
    """Write notes on missing and unused cells, with the remarks on the datasets."""
    notes = []
    about = record.about
    missing = int((~is_finished).sum())
    if not missing and not about["complete"]:
        notes.append(
            "This sweep is not finished: what it will run next depends on results."
        )
    if missing:
        text = "".join(f"; {reason}" for reason in gaps)
        notes.append(
            f"This sweep is not finished: of {len(is_finished)} cells planned so far"
            f" {missing} are missing. Variants are compared on the same windows"
            f" only{text}."
        )
    if n_unused:
        notes.append(
            f"The store holds cells of other configurations, {n_unused} that are not"
            " used here."
        )
    notes += [
        f"{dataset['name']}: {note}"
        for dataset in about["datasets"]
        for note in dataset["notes"]
    ]
    return notes
