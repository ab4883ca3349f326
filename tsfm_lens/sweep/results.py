"""A store as the results that figures, tables and reports are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.sweep.config import SweepConfig, parse_config
from tsfm_lens.sweep.effects import by_dataset, curves, effects, heads_at, recipes, selection
from tsfm_lens.sweep.frames import TABLE_METRICS, Results
from tsfm_lens.sweep.pooling import formula, per_series
from tsfm_lens.sweep.scores import DISTANCES, SUMS
from tsfm_lens.sweep.store import KEY_COLUMNS, Store

TOLERANCE = 0.01
VALUES = (*SUMS, *DISTANCES)
# datasets whose rows are held at once
_TOGETHER = 10


@dataclass(frozen=True, eq=False)
class Gathered:
    """What a report is made of.

    Attributes:
        title: of the sweep.
        results: Datasets by name: "effects", "curves", "heads_at", "datasets", "recipes", "selection", those that the
            sweep has.
        provenance: models, datasets, versions and settings.
        notes: what a reader must know: cells that are missing, results that are not part of this sweep.
    """

    title: str
    results: dict[str, xr.Dataset]
    provenance: dict[str, Any]
    notes: list[str]


def gather(folder: str | Path, name: str | None = None) -> Gathered:
    """All results of a sweep, as far as it has come.

    Args:
        folder: of the store.
        name: of the sweep, where a store holds several.

    Raises:
        StoreError: the folder is no store, or a file in it is damaged.
        InputError: no sweep has been planned there, several have and no name is given, or nothing is finished.
        UnknownNameError: no sweep of that name.
    """
    store = Store(folder, create=False)
    chosen = _chosen(store, name)
    about: dict[str, Any] = store.read_plan(f"{chosen}.about")
    config = parse_config(about["config"], f"the configuration in {folder}")
    entries, cells = store.read_plan(f"{chosen}.entries"), store.read_plan(f"{chosen}.cells")
    done = store.done()
    finished = cells["key"].isin(done)
    notes = _notes(about, int((~finished).sum()), len(cells), store.unused(cells["key"]))
    whole = _whole(cells, finished)
    plan = entries[_among(entries, whole)]
    plan = plan.drop_duplicates(["model", "family", "label", "variant"], ignore_index=True)
    if plan.empty:
        raise InputError(f"nothing of {chosen!r} is finished in {folder} yet: `tsfm-lens sweep` goes on with it")
    wanted = cells[finished & _among(cells, whole)]
    found = Results(
        _sums(store, wanted),
        plan,
        {title: model["layers"] for title, model in about["models"].items()},
        config.statistics,
        config.seed,
        _attrs(about, config),
    )
    return Gathered(config.name, _datasets(found, config, about), _provenance(about, config), notes)


def _chosen(store: Store, name: str | None) -> str:
    known = sorted(each.removesuffix(".about") for each in store.plans() if each.endswith(".about"))
    if not known:
        raise InputError(f"no sweep was planned in {store.path}: run `tsfm-lens sweep CONFIG` first")
    if name is None and len(known) > 1:
        raise InputError(f"{store.path} holds several sweeps, name one of them: {', '.join(known)}")
    if name is not None and name not in known:
        raise unknown_name("sweep", name, known)
    return name or known[0]


def _whole(cells: pd.DataFrame, finished: pd.Series) -> set[tuple[str, str]]:
    """(model, variant) of which every chunk is finished; a comparison is over the same windows or none."""
    chunks = cells.groupby("model")["chunk"].nunique()
    have = cells[finished].groupby(["model", "variant"])["chunk"].nunique()
    counts = have.reset_index(name="count")
    full = counts[counts["count"] == counts["model"].map(chunks)]
    return set(zip(full["model"], full["variant"], strict=True))


def _among(table: pd.DataFrame, whole: set[tuple[str, str]]) -> pd.Series:
    """Which rows are of a (model, variant) in a set."""
    keys = zip(table["model"], table["variant"], strict=True)
    return pd.Series([key in whole for key in keys], index=table.index)


def _sums(store: Store, wanted: pd.DataFrame) -> pd.DataFrame:
    """Sums a series, models by the names that the configuration gives them."""
    measures = [*TABLE_METRICS, "spearman_distance"]
    columns = [*KEY_COLUMNS, *dict.fromkeys(name for each in measures for name in formula(each)[0] if name in VALUES)]
    columns += ["n", "n_invalid"]
    parts = []
    # few datasets at a time, so that few rows are held
    block = wanted["dataset"].map({name: i // _TOGETHER for i, name in enumerate(wanted["dataset"].unique())})
    for _, own in wanted.groupby(["model", block], sort=False):
        rows = store.read(own["key"], list(dict.fromkeys(columns))).to_pandas()
        rows["model"] = own["model"].iloc[0]
        parts.append(per_series(rows, measures))
    return pd.concat(parts, ignore_index=True)


def _datasets(found: Results, config: SweepConfig, about: Mapping[str, Any]) -> dict[str, xr.Dataset]:
    asked = config.variants.heads_at
    tolerance = TOLERANCE if asked is None else asked.tolerance
    made: dict[str, xr.Dataset | None] = {"effects": effects(found), "curves": curves(found, tolerance)}
    if asked is not None:
        made["heads_at"] = heads_at(found, about["heads_at"], tolerance, asked.metric, asked.search)
        if made["heads_at"] is not None:
            made["datasets"] = by_dataset(found, made["heads_at"], tolerance)
    made |= {"recipes": recipes(found), "selection": selection(found)}
    return {name: each for name, each in made.items() if each is not None}


def _notes(about: Mapping[str, Any], missing: int, cells: int, unused: int) -> list[str]:
    notes = []
    if not missing and not about["complete"]:
        notes.append("This sweep is not finished: what it will run next depends on results.")
    if missing:
        notes.append(
            f"This sweep is not finished: {missing} of the {cells} cells planned so far are missing. Only variants "
            "that were run on every window are shown."
        )
    if unused:
        notes.append(f"The store holds {unused} cells of other configurations; none of them is used here.")
    notes += [f"{each['name']}: {note}" for each in about["datasets"] for note in each["notes"]]
    return notes


def _attrs(about: Mapping[str, Any], config: SweepConfig) -> dict[str, Any]:
    return {
        "sweep": config.name,
        "how": config.how,
        "seed": config.seed,
        "n_datasets": len(about["datasets"]),
        "n_windows": sum(each["windows"] for each in about["datasets"]),
        "distance_steps": config.distance_steps,
    }


def _provenance(about: Mapping[str, Any], config: SweepConfig) -> dict[str, Any]:
    return {
        "models": about["models"],
        "datasets": about["datasets"],
        "config": config.model_dump(mode="json"),
        "complete": about["complete"],
    }
