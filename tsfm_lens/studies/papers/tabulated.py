"""Measured numbers beside the printed ones, as one table of numbers, claims and their parts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.studies.papers.items import HOLDS, Item
from tsfm_lens.studies.papers.measuring import Found
from tsfm_lens.studies.papers.verdicts import FAILS, Tested, Verdict
from tsfm_lens.studies.papers.verdicts import HOLDS as IT_HOLDS

AS_NUMBER = {IT_HOLDS: 1.0, FAILS: 0.0}


@dataclass(frozen=True)
class _Row:
    """Row of one quantity; see :func:`tsfm_lens.studies.papers.reproduce.reproduce`."""

    quantity: str
    ours: float
    paper: float = np.nan
    estimate: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p: float = np.nan
    verdict: str = ""
    why: str = ""
    margin: str = ""
    unit: str = ""
    where: str = ""
    part_of: str = ""


_COORDS = ("quantity", "unit", "where", "part_of", "margin")


def table_of(item: Item, result: Found) -> xr.Dataset:
    """Tabulate numbers and claims over ``quantity``: printed ones first, each claim followed by its parts.

    Args:
        item: the table or figure.
        result: values and claims by the item's own quantities, others beside them.
    """
    paper_values = {value.quantity: value for value in item.values}
    names = [*(name for name in paper_values if name in result.values or name in result.claims)]
    names += [name for name in (*result.claims, *result.values) if name not in paper_values]
    rows: list[_Row] = []
    for name in names:
        paper: dict[str, Any] = {}
        if name in paper_values:
            paper = {"paper": float(paper_values[name].paper), "where": paper_values[name].where}
        if name in result.claims:
            rows += _claim(name, result.claims[name], paper)
            continue
        unit = paper_values[name].unit if name in paper_values else result.units.get(name, "")
        value = float(result.values[name])
        low, high = result.intervals.get(name, (np.nan, np.nan))
        rows.append(_Row(name, value, estimate=value, low=float(low), high=float(high), unit=unit, **paper))
    columns = {key: [row[key] for row in map(asdict, rows)] for key in asdict(rows[0])}
    data = xr.Dataset(
        {key: ("quantity", values) for key, values in columns.items() if key not in _COORDS},
        coords={key: ("quantity", columns[key]) for key in _COORDS},
    )
    return data.assign(difference=data["ours"] - data["paper"])


def _claim(words: str, verdict: Verdict, paper: dict[str, Any]) -> list[_Row]:
    """Return the row of a claim and those of its parts; one part without words of its own gives one row."""
    if len(verdict.parts) == 1 and not verdict.parts[0].words:
        return [_part(words, verdict.parts[0], paper)]
    ours = AS_NUMBER.get(verdict.outcome, np.nan)
    whole = _Row(words, ours, verdict=verdict.outcome, why=verdict.why, unit=HOLDS, **paper)
    return [whole, *(_part(f"{words}: {part.words}", part, {"part_of": words}) for part in verdict.parts)]


def _part(quantity: str, part: Tested, paper: dict[str, Any]) -> _Row:
    interval = part.interval
    numbers: dict[str, Any] = (
        {} if interval is None else {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
    )
    ours = AS_NUMBER.get(part.outcome, np.nan)
    return _Row(
        quantity, ours, p=part.p, verdict=part.outcome, why=part.why, margin=part.of, unit=HOLDS, **numbers, **paper
    )
