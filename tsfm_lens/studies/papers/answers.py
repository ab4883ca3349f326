"""Answers of `reproduce` that ship: what was measured of each item, one file an item.

They are written by ``python -m tsfm_lens.studies.papers``. Printed numbers are not in
them: :mod:`tsfm_lens.studies.papers.comparing` joins both. Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xarray as xr
import yaml

from tsfm_lens.studies.papers.comparing import compare_by_name
from tsfm_lens.studies.papers.items import Item
from tsfm_lens.studies.papers.values import MeasuredValues
from tsfm_lens.studies.papers.verdicts import NOT_RUN, Interval, Tested, Verdict

ANSWERS = Path(__file__).with_name("answers")


def write_answer(
    item: Item,
    result: MeasuredValues,
    models: Sequence[str],
    attrs: Mapping[str, Any],
    folder: Path = ANSWERS,
) -> None:
    """Write what was measured of an item, on which models."""
    content = asdict(result) | {"models": list(models), "attrs": dict(attrs)}
    # numbers of numpy become those of Python
    plain = json.loads(json.dumps(content, default=float))
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
    folder.mkdir(exist_ok=True)
    (folder / f"{item.id}.yaml").write_text(text, encoding="utf-8")


def read_answer(
    item: Item, folder: Path = ANSWERS
) -> tuple[MeasuredValues, list[str], dict[str, Any]] | None:
    """Read what was measured of an item; None if no record ships."""
    file = folder / f"{item.id}.yaml"
    if not file.exists():
        return None
    text = file.read_text(encoding="utf-8")
    content = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    models = content.pop("models")
    attrs = content.pop("attrs")
    content["claims"] = {
        name: Verdict(tuple(map(_read_part, claim["parts"])), claim["over"])
        for name, claim in content["claims"].items()
    }
    content["notes"] = tuple(content["notes"])
    return MeasuredValues(**content), models, attrs


def recorded(item: Item) -> xr.Dataset | None:
    """Return the recorded answer beside the paper's numbers; None if none ships.

    What is not measured is answered with its reason.
    """
    answer = read_answer(item)
    if answer is not None:
        return compare_by_name(item, *answer)
    if item.why:
        reason = Tested("", "", NOT_RUN, why=item.why)
        result = MeasuredValues(claims={item.title: Verdict((reason,))})
        return compare_by_name(item, result)
    return None


def _read_part(entry: dict[str, Any]) -> Tested:
    span = entry.pop("interval")
    return Tested(**entry, interval=span and Interval(**span))
