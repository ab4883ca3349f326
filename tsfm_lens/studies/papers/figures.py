"""Figures of the tsfm-lens paper by name, and the commands for those that no single run can draw."""

from __future__ import annotations

import re

from tsfm_lens.studies.papers import depth, heads, heavy
from tsfm_lens.studies.papers.items import Item
from tsfm_lens.studies.papers.values import ITEMS

ENTRIES = tuple(
    sorted((*depth.ENTRIES, *heads.ENTRIES, *heavy.ENTRIES), key=lambda e: (int(re.sub(r"\D", "", e.name)), e.name))
)


def _elsewhere(item: Item) -> str:
    name = item.id.removeprefix("S3-F")
    where = (
        f"`tsfm-lens reproduce {item.id}`, then `tsfm-lens sweep report {item.id}.store`"
        if item.sweep
        else f"a sweep over layers (`tsfm-lens sweep`); `tsfm-lens reproduce {item.id}` has its numbers on one model"
    )
    return f"figure {name} of the paper ({item.title}) is drawn from a sweep of ablations: {where}"


ELSEWHERE = {
    item.id.removeprefix("S3-F"): _elsewhere(item)
    for item in ITEMS
    if item.id.startswith("S3-F") and (item.sweep or item.id in ("S3-F2", "S3-F8", "S3-F9"))
}
"""Commands for figures that no single run can draw, by number."""
