"""Progress of a sweep: its cells, and those of them that are finished.

:func:`stored_status` reads it from the plan that a run has stored. No model is opened
and no torch imported, since the status of a long sweep is asked for often.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

import pandas as pd

from tsfm_lens.core.errors import StoreError
from tsfm_lens.models.extras import installed
from tsfm_lens.sweep.data.evaluation import SEASONAL_NAIVE
from tsfm_lens.sweep.planner.config import NUMERICS, SweepConfig, plan_name
from tsfm_lens.sweep.store import SavedPlan, Store


@dataclass(frozen=True)
class SweepStatus:
    """Progress of a sweep, as far as its plan needs no results.

    ``cells`` and ``finished`` are numbers of cells, ``parts`` has a row per model and
    family, ``later`` is text on the variants that depend on results, and ``notes`` are
    remarks on the data, such as windows that had no value to be scored on.
    """

    cells: int
    finished: int
    parts: list[dict[str, Any]]
    later: str = ""
    notes: list[str] = field(default_factory=list)


def count_parts(
    entries: pd.DataFrame, cells: pd.DataFrame, finished: Collection[str]
) -> list[dict[str, Any]]:
    """Count the cells of each model and family, and those that are finished.

    A variant of several families counts in each of them.

    Args:
        entries: variants, with the columns ``model``, ``family`` and ``variant``.
        cells: with the columns ``key``, ``model`` and ``variant``.
        finished: keys of finished cells.

    Returns:
        A record of each model and family.
    """
    # the seasonal naive forecast is no entry of a plan, as no model makes it
    naive = pd.DataFrame(
        {"model": [SEASONAL_NAIVE], "family": "forecast", "variant": SEASONAL_NAIVE}
    )
    families = pd.concat([naive, entries[["model", "family", "variant"]]])
    merged = families.drop_duplicates().merge(cells, on=["model", "variant"])
    counted = merged.assign(finished=merged["key"].isin(list(finished)))
    parts = (
        counted.groupby(["model", "family"], sort=False)
        .agg(
            variants=("variant", "nunique"),
            cells=("key", "size"),
            finished=("finished", "sum"),
        )
        .reset_index()
        .replace({"model": {SEASONAL_NAIVE: "seasonal naive"}})
    )
    records: list[Any] = parts.to_dict("records")
    return records


def stored_status(config: SweepConfig, folder: str | Path) -> SweepStatus | None:
    """Read the progress of a sweep from the plan in its store.

    Cells count that were planned so far, those of searches included.

    Returns:
        The progress. None where the store has no such plan, or one that a new run may
        not follow: a file of the configuration is newer, or a library has another
        version.
    """
    folder = Path(folder)
    if not (folder / "store.json").exists():
        return None
    store = Store(folder, create=False)
    name = plan_name(config)
    if name not in store.plans():
        return None
    try:
        saved = store.read_plan(name)
    except StoreError:
        # a new run makes the plan again
        return None
    titles = {model.title for model in config.models}
    if not titles <= set(saved.cells["model"]) or _is_outdated(config, saved, store):
        return None
    finished = set(store.done())
    keys = set(saved.cells["key"])
    later = ""
    if not saved.about["complete"] and config.variants.heads_at is not None:
        later = "; further variants depend on results"
    notes = [
        f"{dataset['name']}: {note}"
        for dataset in saved.about["datasets"]
        for note in dataset["notes"]
    ]
    parts = count_parts(saved.entries, saved.cells, finished)
    return SweepStatus(len(keys), len(keys & finished), parts, later, notes)


def _is_outdated(config: SweepConfig, saved: SavedPlan, store: Store) -> bool:
    """Test if a plan was made with other files or versions than are here now."""
    for model in saved.about["models"].values():
        if model["numerics"] != NUMERICS:
            return True
        # as `provenance` of a lens writes them: torch 2.9.0, transformers 5.9.0
        for text in model["versions"].split(", "):
            package, _, version = text.partition(" ")
            if installed(package) not in (version, None):
                return True
    planned = store.plan_path(saved.name).stat().st_mtime
    fields = config.model_dump(mode="json")
    texts = [*_texts(fields["models"]), *_texts(fields["data"])]
    return any(path.stat().st_mtime > planned for path in _files(texts))


def _texts(content: Any) -> Iterator[str]:
    """Yield all texts of nested lists and mappings."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from _texts(value)
    elif isinstance(content, list):
        for value in content:
            yield from _texts(value)


def _files(texts: Collection[str]) -> Iterator[Path]:
    """Yield the files that texts name, and those of the folders that they name.

    A text may also be a glob.
    """
    for text in texts:
        # a text that is a path has a separator or an ending
        if "/" not in text and "." not in text:
            continue
        path = Path(text).expanduser()
        paths = [path]
        if not path.exists():
            paths = [Path(match) for match in glob(str(path), recursive=True)]
        for match in paths:
            if match.is_dir():
                yield from (file for file in match.rglob("*") if file.is_file())
            elif match.exists():
                yield match
