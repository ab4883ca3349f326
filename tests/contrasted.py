"""Series that tiny models read, and pairs of them to contrast."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from tiny_lenses import lens_of
from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.models import Lens


def centred(*names: str) -> SeriesBatch:
    """Real series around zero: the few bins of a tiny token model then tell their values apart."""
    series = bundled(*names).tail(40)
    return replace(series, values=tuple(values - values.mean() for values in series.values))


@cache
def pair_for(name: str) -> tuple[SeriesBatch, SeriesBatch]:
    """Series and the same values backwards: what a model scales by is alike, to the last digits."""
    own = getattr(lens_of(name).adapter, "example", None)
    clean = own(0, 40) if own else centred("pedestrians", "electricity")
    return clean, replace(clean, values=tuple(values[::-1].copy() for values in clean.values))


def series_for(lens: Lens, *names: str, example: int = 0) -> Any:
    """Series that a model reads: real ones by name, or an example of its own."""
    own = getattr(lens.adapter, "example", None)
    return own(example, 40) if own else bundled(*(names or ["co2"])).tail(40)
