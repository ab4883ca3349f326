"""Numbers, lists and names as sentences write them.

Read :func:`num` and :func:`listed` first; :mod:`tsfm_lens.viz.summary` fills sentences
with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xarray as xr

from tsfm_lens.core.axes import layer_name
from tsfm_lens.viz.select import names
from tsfm_lens.viz.theme import nats, significant


def layer_names(ds: xr.Dataset, rows: Sequence[int] | None = None) -> list[str]:
    """Name the layers in words, all or those at some positions."""
    labels = [layer_name(label) for label in names(ds, "layer")]
    if rows is None:
        return labels
    return [labels[i] for i in rows]


def num(value: float) -> str:
    """Write three significant digits."""
    return significant(value, 3)


def signed(value: float) -> str:
    """Return three significant digits with a true sign.

    A negative zero has a plus.
    """
    sign = "" if value < 0 else "+"
    # adding 0.0 takes the sign off a zero, which would follow the plus
    return f"{sign}{num(value + 0.0)}"


def capital(text: str) -> str:
    """Write the text as a sentence begins."""
    return text[:1].upper() + text[1:]


def format_nats(entropy: float) -> str:
    """Write an entropy to three digits."""
    return nats(entropy, 3)


def listed(words: list[str]) -> str:
    """Join words with commas and an "and"."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def layers(ds: xr.Dataset, dim: str = "layer") -> list[str]:
    """Name the layers in words."""
    texts = [layer_name(v) for v in names(ds, dim)]
    return ["the embedding" if word == "embedding" else word for word in texts]


def after_number(unit: str) -> str:
    """Write a unit as it follows a number, with "×" before a power of ten."""
    if unit.startswith("10"):
        return f"× {unit}"
    return unit


def measured(unit: str) -> Callable[[float], str]:
    """Return a function that writes a value in this unit."""
    return lambda value: f"{num(value)} {after_number(unit)}".rstrip()


def verb(count: int, plural: str, single: str = "") -> str:
    """Inflect a verb for so many: "give" for two, "gives" for none and one."""
    if count > 1:
        return plural
    return single or f"{plural}s"
