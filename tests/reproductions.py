"""Access to the results of ``reproduce`` by quantity or by an item's key."""

from __future__ import annotations

from functools import cache

import xarray as xr

from tsfm_lens.models import Lens, load
from tsfm_lens.studies.papers.reproduce import find_item


@cache
def nano(name: str) -> Lens:
    return load(name)


def words(name: str, key: str) -> str:
    """The quantity of an item's key; a quantity that has none as it is."""
    return find_item(name).words.get(key, key)


def row(result: xr.Dataset, key: str) -> xr.Dataset:
    return result.sel(quantity=words(result.attrs["title"].split(":")[0], key))


def ours(result: xr.Dataset, key: str) -> float:
    return float(row(result, key)["ours"])


def verdict(result: xr.Dataset, key: str) -> str:
    return str(row(result, key)["verdict"].values)


def parts(result: xr.Dataset, key: str) -> list[str]:
    """The words of a claim's parts."""
    claim = words(result.attrs["title"].split(":")[0], key)
    return [
        str(part).removeprefix(f"{claim}: ")
        for part in result["quantity"].values[result["part_of"].values == claim]
    ]


def settings(result: xr.Dataset) -> dict[str, str]:
    """Our settings, those that differ from the paper's."""
    return dict(
        zip(
            result["setting"].values.tolist(),
            result["our_setting"].values.tolist(),
            strict=True,
        )
    )
