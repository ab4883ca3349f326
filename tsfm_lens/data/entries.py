"""Items with covariates as other libraries write them: dicts with a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.data.batch import SeriesBatch, check_unique
from tsfm_lens.data.floats import numbers_or_categories, plain_array, to_floats
from tsfm_lens.data.frequencies import stamp_frequency
from tsfm_lens.data.instants import times_of
from tsfm_lens.data.labels import label
from tsfm_lens.errors import InputError, unknown_name

FIELDS = (
    *("target", "start", "item_id", "past_covariates", "future_covariates"),
    *("feat_dynamic_real", "past_feat_dynamic_real", "feat_static_real", "feat_static_cat"),
)
"""Of gluonts's data entries and of Chronos-2's inputs."""
Covariates = dict[str, tuple[np.ndarray, np.ndarray | None, tuple[str, ...] | None]]
"""Past, future or None, and categories or None of each covariate, by name."""


def is_entry(data: Any) -> bool:
    """Return True for a dict with a target and at least one more of the fields."""
    return isinstance(data, Mapping) and "target" in data and len(data) > 1 and set(data) & set(FIELDS) != {"target"}


def from_entries(entries: Sequence[Mapping[str, Any]], freq: str | None) -> SeriesBatch:
    """Make a batch of items with their covariates."""
    rows: list[dict[str, Any]] = []
    for number, entry in enumerate(entries):
        for field in entry:
            if field not in FIELDS:
                raise unknown_name("field of an entry", field, FIELDS)
        item = entry.get("item_id")
        rows += _rows_of(entry, f"series-{number}" if item is None else label(item, f"item_id of entry {number}"))
    starts = [entry.get("start") for entry in entries]
    freqs = {start.freqstr if isinstance(start, pd.Period) else "" for start in starts}
    if freq is None and len(freqs) == 1 and "" not in freqs:
        freq = stamp_frequency(freqs.pop())
    columns: dict[str, Any] = {name: tuple(row[name] for row in rows) for name in (rows[0] if rows else ("values",))}
    return SeriesBatch(**columns, freq=freq)


def _rows_of(entry: Mapping[str, Any], group: str) -> list[dict[str, Any]]:
    """Return the series of an entry as fields of a batch: targets, past covariates, known ones."""
    targets = np.atleast_2d(to_floats(entry["target"], f"the target of {group!r}"))
    if targets.ndim != 2:
        raise InputError(f"the target of {group!r} has shape {targets.shape}, expected (time,) or (variate, time)")
    covariates = _features(entry, group, targets.shape[1]) | _named(entry, group, targets.shape[1])
    single = ("target" if covariates else "",)
    names = single if len(targets) == 1 else tuple(map(str, range(len(targets))))
    members: list[tuple[Any, ...]] = [
        (name, "target", values, None, None) for name, values in zip(names, targets, strict=True)
    ]
    for role in ("past", "known"):
        members += [
            (name, role, *each) for name, each in covariates.items() if (each[1] is not None) == (role == "known")
        ]
    start = entry.get("start")
    common = {
        "groups": group,
        "static": {name: entry[name] for name in ("feat_static_real", "feat_static_cat") if name in entry},
        "starts": None if start is None else start_time(start, f" of {group!r}"),
    }
    fields = ("variates", "roles", "values", "futures", "categories")
    rows = [dict(zip(fields, member, strict=True)) | common for member in members]
    return [row | {"ids": f"{group}/{row['variates']}" if row["variates"] else group} for row in rows]


def _features(entry: Mapping[str, Any], group: str, steps: int) -> Covariates:
    """Return gluonts's covariates, which have no names."""
    covariates: Covariates = {}
    for field in ("past_feat_dynamic_real", "feat_dynamic_real"):
        if entry.get(field) is None:
            continue
        rows = np.atleast_2d(to_floats(entry[field], f"{field} of {group!r}"))
        if rows.ndim != 2:
            raise InputError(f"{field} of {group!r} has shape {rows.shape}, expected (feature, time)")
        has_future = field == "feat_dynamic_real"
        if rows.shape[1] < steps or (not has_future and rows.shape[1] > steps):
            raise InputError(f"{field} of {group!r} has {rows.shape[1]} steps and its target {steps}")
        for place, values in enumerate(rows):
            covariates[f"{field}/{place}"] = (values[:steps], values[steps:] if has_future else None, None)
    return covariates


def _named(entry: Mapping[str, Any], group: str, steps: int) -> Covariates:
    """Return Chronos-2's covariates."""
    pasts, futures = (_by_name(entry, field, group) for field in ("past_covariates", "future_covariates"))
    for name in futures:
        if name not in pasts:
            raise InputError(f"covariate {name!r} of {group!r} has a future and no past_covariates")
    covariates: Covariates = {}
    for name, values in pasts.items():
        what = f"covariate {name!r} of {group!r}"
        past = plain_array(values, what)
        if past.ndim != 1 or len(past) != steps:
            raise InputError(f"{what} has shape {past.shape} and its target {steps} steps")
        future = plain_array([] if futures.get(name) is None else futures[name], f"the future of {what}")
        if future.ndim != 1:
            raise InputError(f"the future of {what} has shape {future.shape}, expected one axis: time")
        # categories are numbered over both, and numbers beside text stay what they are
        both = np.concatenate([past.astype(object), future.astype(object)])
        numbers, categories = numbers_or_categories(both, name)
        covariates[name] = (numbers[:steps], numbers[steps:] if name in futures else None, categories)
    return covariates


def _by_name(entry: Mapping[str, Any], field: str, group: str) -> dict[str, Any]:
    """Return the covariates of one field of an entry by their names as text, which are to differ."""
    covariates = entry.get(field)
    if covariates is None:
        return {}
    if not isinstance(covariates, Mapping):
        raise InputError(f"{field} of {group!r} is {type(covariates).__name__}, expected a dict of values by name")
    names = [label(name, f"a name in {field} of {group!r}") for name in covariates]
    check_unique(names, f"names in {field} of {group!r}")
    return dict(zip(names, covariates.values(), strict=True))


def start_time(value: Any, owner: str = "") -> pd.Timestamp:
    """Read the time of a first value, as a clock on the wall shows it."""
    try:
        if not isinstance(value, str | date | np.datetime64 | pd.Period):
            raise InputError(f"expected a date, not {type(value).__name__}")
        if value is pd.NaT or value != value:
            raise InputError("leave it out where it is unknown")
        year = isinstance(value, str) and len(value) == 4 and value.isdecimal()
        times = times_of(pd.Series([f"{value}-01" if year else value], dtype=object), "start")
        if times.steps:
            raise InputError("it counts steps")
    except (ValueError, OverflowError) as error:
        raise InputError(f"start={value!r}{owner} is no timestamp such as '2020-01-31 12:00': {error}") from error
    return pd.Timestamp(times.clock[0])
