"""Plans in a store: what a sweep runs and why, written so that a report never sees half of one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from tsfm_lens.errors import InputError, StoreError, unknown_name
from tsfm_lens.sweep.plan.config import SweepConfig
from tsfm_lens.sweep.plan.variants import PlanEntry, plan_frame
from tsfm_lens.sweep.run.grid import Cell
from tsfm_lens.sweep.store.folder import Store


@dataclass(frozen=True, eq=False)
class SavedPlan:
    """A plan as a store holds it.

    Attributes:
        name: of the sweep, and a hash of its configuration.
        about: configuration, models, datasets, results of heads@k, and whether all of it has run.
        entries, cells: of `plan_frame`; a row per :class:`Cell`.
    """

    name: str
    about: dict[str, Any]
    entries: pd.DataFrame
    cells: pd.DataFrame


def plan_name(config: SweepConfig) -> str:
    """Name a sweep's plan: its own name, as far as a file can have it, and a hash of all that decides its results."""
    text = json.dumps(config.model_dump(mode="json", exclude_none=True, exclude={"memory", "devices"}), sort_keys=True)
    name = re.sub(r"[^\w.-]+", "-", config.name).strip(".-") or "sweep"
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def save_plan(
    store: Store, config: SweepConfig, about: Mapping[str, Any], entries: Sequence[PlanEntry], cells: Sequence[Cell]
) -> None:
    """Write a plan, unless the store holds one of this configuration that has all its cells and more.

    Raises:
        StoreError: it cannot be written.
    """
    name = plan_name(config)
    keys = {cell.key for cell in cells}
    if name in store.plans():
        with suppress(StoreError):
            before = read_saved(store, name)
            earlier_keys = set(before.cells["key"])
            # a run that resumes begins with less than it knew when it was stopped
            if earlier_keys > keys or (earlier_keys == keys and before.about["complete"] >= about["complete"]):
                return
    store.write_plan(name, about, entries=plan_frame(entries), cells=pd.DataFrame([asdict(cell) for cell in cells]))


def read_saved(store: Store, name: str | None = None) -> SavedPlan:
    """Read a plan of a store.

    Args:
        store: with plans.
        name: of the plan, or of the sweep if only one has it; may be left out where there is but one.

    Raises:
        InputError: there is no plan, or several and no name.
        StoreError: it is damaged.
        UnknownNameError: none of that name.
    """
    names = store.plans()
    if not names:
        raise InputError(f"no sweep was planned in {store.path}: run `tsfm-lens sweep CONFIG` first")
    matches = [plan for plan in names if name in (None, plan, plan.rpartition("-")[0])]
    if not matches:
        raise unknown_name("sweep", name, names)
    if len(matches) > 1:
        raise InputError(f"{store.path} holds several sweeps, name one of them: {', '.join(matches)}")
    about, tables = store.read_plan(matches[0])
    return SavedPlan(matches[0], about, tables["entries"], tables["cells"])
