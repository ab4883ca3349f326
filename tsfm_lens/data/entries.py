"""Items with covariates as other libraries write them: dicts with a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.covariates import number_categories
from tsfm_lens.data.floats import to_floats
from tsfm_lens.data.frequencies import stamp_frequency
from tsfm_lens.errors import InputError, unknown_name

FIELDS = (
    *("target", "start", "item_id", "past_covariates", "future_covariates"),
    *("feat_dynamic_real", "past_feat_dynamic_real", "feat_static_real", "feat_static_cat"),
)
"""Of gluonts's data entries and of Chronos-2's inputs."""


def is_entry(data: Any) -> bool:
    """Whether it is a dict with a target and at least one more of the known fields."""
    return isinstance(data, Mapping) and "target" in data and len(data) > 1 and set(data) & set(FIELDS) != {"target"}


def from_entries(entries: Sequence[Mapping[str, Any]], freq: str | None) -> SeriesBatch:
    """A batch of items with their covariates.

    ``feat_dynamic_real`` (feature, time and horizon) and the names in ``future_covariates`` are known covariates,
    ``past_feat_dynamic_real`` (feature, time) and the other ``past_covariates`` past ones; features without names are
    called by their field and number. Text is categories.

    Raises:
        UnknownNameError: an entry has another field.
        InputError: a covariate and its target differ in length, or a future has no past.
    """
    rows: dict[str, list[Any]] = {
        name: []
        for name in ("values", "ids", "groups", "variates", "roles", "futures", "categories", "static", "starts")
    }
    for number, entry in enumerate(entries):
        for field in entry:
            if field not in FIELDS:
                raise unknown_name("field of an entry", field, FIELDS)
        group = str(entry.get("item_id", f"series-{number}"))
        for row in _rows_of(entry, group):
            for name, value in row.items():
                rows[name].append(value)
    columns: dict[str, Any] = {name: tuple(column) for name, column in rows.items()}
    return SeriesBatch(**columns, freq=freq or _freq_of(entries))


def _freq_of(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """The frequency of the periods that all entries start with, None where there is no single one."""
    starts = [entry.get("start") for entry in entries]
    found = {start.freqstr if isinstance(start, pd.Period) else None for start in starts}
    known = found.pop() if len(found) == 1 else None
    return None if known is None else stamp_frequency(known)


def _rows_of(entry: Mapping[str, Any], group: str) -> list[dict[str, Any]]:
    targets = np.atleast_2d(to_floats(entry["target"], f"the target of {group!r}"))
    if targets.ndim != 2:
        raise InputError(f"the target of {group!r} has shape {targets.shape}, expected (time,) or (variate, time)")
    steps = targets.shape[1]
    covariates = _covariates(entry, group, steps)
    single = len(targets) == 1
    start = entry.get("start")
    start = start.to_timestamp() if isinstance(start, pd.Period) else start
    common = {
        "groups": group,
        "static": {name: entry[name] for name in ("feat_static_real", "feat_static_cat") if name in entry},
        "starts": None if start is None else pd.Timestamp(start),
    }
    rows: list[dict[str, Any]] = []
    for place, values in enumerate(targets):
        variate = "target" if single and covariates else "" if single else str(place)
        row = {"values": values, "variates": variate, "roles": "target", "futures": None, "categories": None}
        rows.append(common | row)
    for role in ("past", "known"):
        for name, (values, future, categories) in covariates.items():
            if (future is not None) == (role == "known"):
                row = {"values": values, "variates": name, "roles": role, "futures": future, "categories": categories}
                rows.append(common | row)
    return [row | {"ids": f"{group}/{row['variates']}" if row["variates"] else group} for row in rows]


def _covariates(
    entry: Mapping[str, Any], group: str, steps: int
) -> dict[str, tuple[np.ndarray, np.ndarray | None, tuple[str, ...] | None]]:
    """Past, future or None, and categories or None, by name."""
    found: dict[str, tuple[np.ndarray, np.ndarray | None, tuple[str, ...] | None]] = {}
    for field in ("past_feat_dynamic_real", "feat_dynamic_real"):
        for place, values in enumerate(np.atleast_2d(to_floats(entry.get(field, np.empty((0, steps))), field))):
            if len(values) < steps:
                raise InputError(f"{field} of {group!r} has {len(values)} steps and its target {steps}")
            ahead = values[steps:] if field == "feat_dynamic_real" else None
            if ahead is None and len(values) > steps:
                raise InputError(f"{field} of {group!r} has {len(values)} steps and its target {steps}")
            found[f"{field}/{place}"] = (values[:steps], ahead, None)
    pasts, futures = entry.get("past_covariates") or {}, entry.get("future_covariates") or {}
    for name in futures:
        if name not in pasts:
            raise InputError(f"covariate {name!r} of {group!r} has a future and no past_covariates")
    for name, given in pasts.items():
        values = _plain(given)
        if values.ndim != 1 or len(values) != steps:
            raise InputError(f"covariate {name!r} of {group!r} has shape {values.shape} and its target {steps} steps")
        ahead = _plain(futures[name]) if futures.get(name) is not None else None
        known = name in futures
        both = values if ahead is None else np.concatenate([values, ahead.astype(values.dtype, copy=False)])
        categories = None
        if values.dtype.kind in "OUS":
            both, categories = number_categories(both.astype(object), str(name))
        found[str(name)] = (both[:steps], both[steps:] if known else None, categories)
    return found


def _plain(values: Any) -> np.ndarray:
    array = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    return array if array.dtype.kind in "OUS" else array.astype(float)
