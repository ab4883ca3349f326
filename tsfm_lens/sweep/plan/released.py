"""The released lists of heads@1pp, and which layers the paper's recipes take to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil

import yaml

from tsfm_lens.errors import InputError


@dataclass(frozen=True)
class Released:
    """heads@1pp of one model as its authors released them."""

    architecture: str
    model: str
    n_heads: int
    kept: tuple[int, ...]
    heads: Mapping[int, tuple[int, ...]] | None
    source: str


@cache
def released_lists() -> dict[str, Released]:
    """Read all released lists by architecture, in the order of the paper's figure 11."""
    lists = {}
    for name in ("timesfm-2.5", "toto-1", "chronos-bolt", "moirai-1.1"):
        text = (files("tsfm_lens.sweep.plan") / "released_lists" / f"{name}.yaml").read_text(encoding="utf-8")
        row = yaml.safe_load(text)
        ablated_heads = row.pop("heads", None)
        # a layer without an entry loses no head
        heads = ablated_heads and {layer: tuple(ablated_heads.get(layer, ())) for layer in range(len(row["kept"]))}
        lists[name] = Released(**{**row, "kept": tuple(row["kept"])}, heads=heads)
    return lists


# kept heads by layer, counted in the lists that the paper's authors released
RELEASED = {name: (entry.n_heads, entry.kept) for name, entry in released_lists().items()}
SAME_WEIGHTS = {"timesfm-2.5-transformers": "timesfm-2.5"}


def at_depth(layers: Sequence[int], of: int, n_layers: int) -> list[int]:
    """Return the layers of a model of another depth whose relative middle lies within one of ``layers``."""
    middles = [(layer + 0.5) / n_layers * of for layer in range(n_layers)]
    matching = [layer for layer, middle in enumerate(middles) if int(middle) in layers]
    if matching or not layers:
        return matching
    return [min(range(n_layers), key=lambda layer: min(abs(middles[layer] - depth - 0.5) for depth in layers))]


def middle_third(n_layers: int) -> list[int]:
    """Return the layers that the paper means by "middle layers": 7 to 13 of 20, as it says, 4 to 7 of 12."""
    if n_layers < 3:
        raise InputError(f"a statement about middle layers needs three layers or more, this model has {n_layers}")
    return list(range(ceil(n_layers / 3), ceil(2 * n_layers / 3)))
