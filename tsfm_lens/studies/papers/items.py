"""Printed numbers and claims of the papers, read from one YAML file a paper.

Read :class:`Item` first, one table or figure with its :class:`Value` entries, then
``BY_ID``, which maps every id to its item. Nothing is measured here: measures are
registered by id in :mod:`tsfm_lens.studies.papers.context`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tsfm_lens.core.errors import unknown_name

HOLDS = "claim: 1 holds, 0 does not, none is undecided or depends on ε or the data"


@dataclass(frozen=True)
class Value:
    """One number, or one claim that a test can check.

    ``paper`` is printed; ``formula`` follows from the paper's formula or theorem.
    """

    key: str
    quantity: str
    where: str
    paper: float = math.nan
    unit: str = ""
    formula: float = math.nan


@dataclass(frozen=True)
class Item:
    """Numbers of one table or figure."""

    id: str
    title: str
    source: str
    values: tuple[Value, ...]
    model: str = ""
    models: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    theory: bool = False
    note: str = ""
    why: str = ""
    """Reason why nothing of it is measured."""
    also: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids of the item."""
        return (self.id, *self.also)

    @property
    def words(self) -> dict[str, str]:
        """Quantities by key."""
        return {value.key: value.quantity for value in self.values}


def _item(name: str, source: str, entry: dict[str, Any]) -> Item:
    lists: dict[str, Any] = {
        key: tuple(entry.pop(key, ())) for key in ("models", "others", "also")
    }
    settings = {key: str(value) for key, value in entry.pop("settings", {}).items()}
    values = (
        *_cells(**entry.pop("table", {})),
        *_entries(entry.pop("values", {}), entry.pop("where", "")),
    )
    return Item(name, source=source, values=values, settings=settings, **lists, **entry)


def _cells(
    rows: Mapping[str, Sequence[float]] = MappingProxyType({}),
    quantity: str = "",
    columns: Sequence[str | int] = range(100),
    where: str | Sequence[str] = "",
    unit: str | Sequence[str] = "",
) -> Iterator[Value]:
    """Yield the values of a table row by row; columns without names are numbered."""
    for row, numbers in rows.items():
        for column, number in enumerate(numbers):
            name = quantity.format(row=row, column=columns[column])
            where_printed, of_unit = (
                value if isinstance(value, str) else value[column]
                for value in (where, unit)
            )
            yield Value(name, name, where_printed, number, of_unit)


def _entries(entries: Mapping[str, Any], where: str) -> Iterator[Value]:
    """Yield single values: each a number, the text of a claim, or a mapping."""
    for key, entry in entries.items():
        metadata = entry
        if isinstance(entry, int | float):
            metadata = {"paper": entry}
        if isinstance(metadata, str):
            metadata = {"claim": metadata}
        if "claim" in metadata:
            metadata = {
                "quantity": metadata.pop("claim"),
                "paper": 1,
                "unit": HOLDS,
                **metadata,
            }
        yield Value(**{"key": key, "quantity": key, "where": where, **metadata})


def _read(paper: str) -> dict[str, Any]:
    text = Path(__file__).with_name(f"{paper}.yaml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.load(
        text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    content["items"] = [
        _item(name, content["source"], entry)
        for name, entry in content["items"].items()
    ]
    return content


PAPERS = {
    paper: _read(paper)
    for paper in ("redundancies", "rank_structure", "samformer", "structured_attention")
}
"""Content of each paper's file."""
ITEMS: tuple[Item, ...] = tuple(
    item for content in PAPERS.values() for item in content["items"]
)
TABLE_3: list[dict[str, Any]] = list(PAPERS["redundancies"]["models"].values())
"""The paper's models and their evaluation (tables 2 and 3)."""
BY_ID = {name: item for item in ITEMS for name in item.ids}
"""Items by every id of theirs, and of their figures' panels."""
for _paper in PAPERS.values():
    for _figure, _letters in _paper["panels"].items():
        # a panel may be an item of its own
        BY_ID = {**{_figure + letter: BY_ID[_figure] for letter in _letters}, **BY_ID}


def find_item(name: str) -> Item:
    """Return the table or figure of an id; capitals do not matter."""
    if name.upper() not in BY_ID:
        raise unknown_name(
            "reported value",
            name.upper(),
            BY_ID,
            hint="`tsfm-lens reproduce --list` shows all.",
        )
    return BY_ID[name.upper()]
