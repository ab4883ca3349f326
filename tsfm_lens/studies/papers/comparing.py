"""Table of measured numbers and verdicts beside those that a paper prints.

:func:`compare_by_name` joins what was measured, now or in a record, with an item of a
paper. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.studies.papers.items import HOLDS, TABLE_3, Item, Value
from tsfm_lens.studies.papers.values import MeasuredValues
from tsfm_lens.studies.papers.verdicts import AS_NUMBER, NOT_RUN, Interval, Tested
from tsfm_lens.zoo import checkpoint_names


def compare_by_name(
    item: Item,
    result: MeasuredValues,
    models: Sequence[str] = (),
    attrs: Mapping[str, Any] = MappingProxyType({}),
) -> xr.Dataset:
    """Compare measured numbers with the paper's, given the names of the models."""
    theirs = tuple(dict.fromkeys(filter(None, (*item.model.split(", "), *item.others))))
    caveat = ""
    if theirs and (not_of_paper := set(models) - set(theirs)):
        kind = "not the paper's model"
        if not_of_paper & {*checkpoint_names()}:
            kind = "embedded model: mechanics only"
        caveat = f"{kind}; the paper's values are for {', '.join(theirs)}"
    # tables 2 and 3 of the tsfm-lens paper are of all its figures
    evaluation: Mapping[str, Any] = next(
        (entry for entry in TABLE_3 if entry["model"] in (*models, item.model)), {}
    )
    paper: dict[str, str] = {
        name: str(evaluation[name])
        for name in ("context", "samples")
        if name in evaluation
    }
    paper |= item.settings
    if theirs:
        paper["model"] = ", ".join(theirs)
    ours = dict(result.settings)
    if caveat:
        ours = {"model": ", ".join(models), **ours}
    differ = {key: value for key, value in ours.items() if value != paper.get(key)}
    data = _table(item, result.by_key(item.words)).assign_coords(setting=list(differ))
    data["paper_setting"] = ("setting", [paper.get(key, "") for key in differ])
    data["our_setting"] = ("setting", list(differ.values()))
    data.attrs = {
        "kind": "reproduction",
        "title": f"{item.id}: {item.title}",
        "source": item.source,
        "paper_model": item.model,
        **attrs,
        "note": "; ".join(part for part in (caveat, item.note, *result.notes) if part),
        "over": next((claim.over for claim in result.claims.values()), ""),
    }
    return data


_EMPTY: dict[str, Any] = {
    **dict.fromkeys(
        ("ours", "paper", "formula", "estimate", "low", "high", "p"), np.nan
    ),
    **dict.fromkeys(("verdict", "why", "unit", "where", "part_of", "margin"), ""),
}


def _table(item: Item, result: MeasuredValues) -> xr.Dataset:
    """Tabulate numbers and claims over ``quantity``.

    Printed ones come first, and each claim is followed by its parts.
    """
    printed = {value.quantity: value for value in item.values}
    names = dict.fromkeys((*result.claims, *result.values))
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys((*printed, *names)):
        if name not in names:
            continue
        unprinted = Value(name, name, "", unit=result.units.get(name, ""))
        value = printed.get(name, unprinted)
        paper = {
            "paper": float(value.paper),
            "formula": float(value.formula),
            "where": value.where,
        }
        if name in result.claims:
            verdict = result.claims[name]
            if len(verdict.parts) == 1 and not verdict.parts[0].name:
                rows.append(_part_row(name, verdict.parts[0], **paper))
                continue
            row = {
                "quantity": name,
                "ours": AS_NUMBER.get(verdict.outcome, np.nan),
                "verdict": verdict.outcome,
                "why": verdict.why,
                "unit": HOLDS,
                **paper,
            }
            rows.append(row)
            rows += [
                _part_row(f"{name}: {part.name}", part, part_of=name)
                for part in verdict.parts
            ]
            continue
        number = float(result.values[name])
        low, high = result.intervals.get(name, (np.nan, np.nan))
        row = {
            "quantity": name,
            "ours": number,
            "estimate": number,
            "low": low,
            "high": high,
            "unit": value.unit,
            **paper,
        }
        rows.append(row)
    columns = {
        key: ("quantity", [{**_EMPTY, **row}[key] for row in rows])
        for key in ("quantity", *_EMPTY)
    }
    data = xr.Dataset(columns).set_coords(["unit", "where", "part_of", "margin"])
    return data.assign(difference=data["ours"] - data["paper"].fillna(data["formula"]))


def _part_row(quantity: str, part: Tested, **more: Any) -> dict[str, Any]:
    span = part.interval or Interval(np.nan, np.nan, np.nan)
    return {
        "quantity": quantity,
        "ours": AS_NUMBER.get(part.outcome, np.nan),
        "p": part.p,
        "verdict": part.outcome,
        "why": part.why,
        "margin": part.of,
        "unit": "" if part.outcome == NOT_RUN else HOLDS,
        "estimate": span.estimate,
        "low": span.low,
        "high": span.high,
        **more,
    }
