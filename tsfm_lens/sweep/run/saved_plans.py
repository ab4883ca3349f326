"""Plans in a store: what a sweep runs and why, written so that a report never sees half of one."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from tsfm_lens.errors import InputError, StoreError, UnknownNameError, unknown_name
from tsfm_lens.sweep.plan.config import SweepConfig
from tsfm_lens.sweep.plan.spec import Entry, plan_frame
from tsfm_lens.sweep.run.grid import Cell
from tsfm_lens.sweep.store.folder import Store


@dataclass(frozen=True, eq=False)
class SavedPlan:
    """A plan as a store holds it.

    Attributes:
        name: of the plan: the sweep's own, and a hash of its configuration.
        about: configuration, models, datasets, results of heads@k, and whether all of it has run.
        entries: of `plan_frame`.
        cells: a row per :class:`Cell`.
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
    store: Store, config: SweepConfig, about: Mapping[str, Any], entries: Sequence[Entry], cells: Sequence[Cell]
) -> None:
    """Write a plan, unless the store holds one of this configuration that has all its cells and more.

    The tables go first, under names of their own; the file that names them is replaced at once, last.

    Raises:
        StoreError: it cannot be written.
    """
    name = plan_name(config)
    keys = {cell.key for cell in cells}
    before = _whole(store, name)
    if before is not None:
        earlier_keys = set(before.cells["key"])
        # a run that resumes begins with less than it knew when it was stopped
        if earlier_keys > keys or (earlier_keys == keys and before.about["complete"] >= about["complete"]):
            return
    turn = hashlib.sha256(json.dumps([sorted(keys), about["complete"]]).encode()).hexdigest()[:8]
    store.write_plan(f"{name}.entries.{turn}", plan_frame(entries))
    store.write_plan(f"{name}.cells.{turn}", pd.DataFrame([asdict(cell) for cell in cells]))
    store.write_plan(f"{name}.about", {**about, "turn": turn})


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
    names = sorted(plan.removesuffix(".about") for plan in store.plans() if plan.endswith(".about"))
    if not names:
        raise InputError(f"no sweep was planned in {store.path}: run `tsfm-lens sweep CONFIG` first")
    matches = [plan for plan in names if name in (None, plan, plan.rpartition("-")[0])]
    if not matches:
        raise unknown_name("sweep", name, names)
    if len(matches) > 1:
        raise InputError(f"{store.path} holds several sweeps, name one of them: {', '.join(matches)}")
    result = _read_plan(store, matches[0])
    assert result is not None
    return result


def _whole(store: Store, name: str) -> SavedPlan | None:
    """Return the plan that a store holds; None if there is none, or it is damaged and to be written anew."""
    try:
        return _read_plan(store, name)
    except StoreError:
        return None


def _read_plan(store: Store, name: str) -> SavedPlan | None:
    try:
        about = store.read_plan(f"{name}.about")
    except UnknownNameError:
        return None
    try:
        entries, cells = (store.read_plan(f"{name}.{table}.{about['turn']}") for table in ("entries", "cells"))
    except UnknownNameError:
        raise StoreError(
            f"tables of the plan {name!r} are gone from {store.path / 'plans'}. Run the sweep again, which writes them "
            f"anew: tsfm-lens sweep CONFIG --store {shlex.quote(str(store.path))}"
        ) from None
    return SavedPlan(name, about, entries, cells)
