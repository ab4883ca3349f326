"""A store as the results that figures, tables and reports are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tsfm_lens.errors import InputError
from tsfm_lens.sweep.plan.config import SweepConfig, parse_config
from tsfm_lens.sweep.results import tables
from tsfm_lens.sweep.run.cells import SavedPlan, read_saved
from tsfm_lens.sweep.statistics.scores import DISTANCES, PLAIN, SEASONAL_NAIVE, SUMS, formula, per_series
from tsfm_lens.sweep.store.files import KEY_COLUMNS
from tsfm_lens.sweep.store.folder import Store

TOLERANCE = 0.01
# datasets whose rows are held at once
_TOGETHER = 10


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
    results = tables.Results(
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
    notes = _notes(record, is_finished, len(store.done() - set(cells["key"])), gaps)
    provenance = {"models": about["models"], "datasets": about["datasets"], "config": config.model_dump(mode="json")}
    provenance["complete"] = about["complete"]
    return Gathered(config.name, _tables(results, config, about), provenance, notes)


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
    measures = [*tables.TABLE_METRICS, "spearman_distance"]
    values = [name for measure in measures for name in formula(measure)[0] if name in (*SUMS, *DISTANCES)]
    columns = list(dict.fromkeys([*KEY_COLUMNS, *values, "n", "n_invalid"]))
    parts = []
    # few datasets at a time, so that few rows are held
    block = cells["dataset"].map({name: i // _TOGETHER for i, name in enumerate(cells["dataset"].unique())})
    for _, cells_of_block in cells.groupby(["model", block], sort=False):
        rows = store.read(cells_of_block["key"], columns).to_pandas().assign(model=cells_of_block["model"].iloc[0])
        parts.append(per_series(rows, measures))
    return pd.concat(parts, ignore_index=True)


def _tables(results: tables.Results, config: SweepConfig, about: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    settings, limits = config.variants.heads_at, None
    tolerance = TOLERANCE if settings is None else settings.tolerance
    if settings is not None:
        limits = tables.heads_at(results, about["heads_at"], tolerance, settings.metric, settings.search)
    by_name = {
        "effects": tables.effects(results),
        "heads": tables.single_heads(results),
        "curves": tables.curves(results, limits, tolerance),
        "heads_at": limits,
        "datasets": None if limits is None else tables.by_dataset(results, limits, tolerance),
        "recipes": tables.recipes(results),
        "selection": tables.selection(results),
    }
    return {name: table for name, table in by_name.items() if table is not None}


def _notes(record: SavedPlan, is_finished: pd.Series, n_unused: int, gaps: list[str]) -> list[str]:
    notes, about, missing = [], record.about, int((~is_finished).sum())
    if not missing and not about["complete"]:
        notes.append("This sweep is not finished: what it will run next depends on results.")
    if missing:
        words = "".join(f"; {reason}" for reason in gaps)
        notes.append(
            f"This sweep is not finished: of {len(is_finished)} cells planned so far {missing} "
            f"{'is' if missing == 1 else 'are'} missing. Variants are compared on the same windows only{words}."
        )
    if n_unused:
        what = "a cell" if n_unused == 1 else f"{n_unused} cells"
        notes.append(f"The store holds {what} of other configurations, which is not used here.")
    notes += [f"{dataset['name']}: {note}" for dataset in about["datasets"] for note in dataset["notes"]]
    heavy = record.entries[record.entries["family"].isin(["recipes", "random"])]
    for (model, recipe), entries in heavy.groupby(["model", "recipe"], sort=False):
        # where all random choices are the selected heads, there is nothing to compare
        if (entries["family"] == "random").any() and entries["variant"].nunique() == 1:
            notes.append(f"{model}: {recipe} takes all heads of its layers, so that no random choice differs from it.")
    return notes
