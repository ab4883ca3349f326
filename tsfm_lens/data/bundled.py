"""Real series that come with the package.

:func:`bundled` loads them from ``bundled_series/``, whose ``index.json`` describes each
series, with its source and licence; :func:`bundled_info` returns that description.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.data.batch import SeriesBatch

_FOLDER = files("tsfm_lens.data") / "bundled_series"


@dataclass(frozen=True)
class BundledSeries:
    """Description of one bundled series.

    Attributes:
        name: key for :func:`bundled`.
        title: what was measured, and where.
        field: discipline that the series comes from, e.g. "astronomy".
        unit: of the values.
        freq: pandas frequency alias.
        seasonality: season length in steps.
        start: timestamp of the first step.
        length: number of steps.
        source: who published the series, and the package that it was taken from.
        licence: terms under which it may be passed on.
    """

    name: str
    title: str
    field: str
    unit: str
    freq: str
    seasonality: int
    start: str
    length: int
    source: str
    licence: str


@cache
def _index() -> dict[str, BundledSeries]:
    text = (_FOLDER / "index.json").read_text(encoding="utf-8")
    return {entry["name"]: BundledSeries(**entry) for entry in json.loads(text)}


def bundled_names() -> tuple[str, ...]:
    """List the names of all bundled series.

    Returns:
        The names, as :func:`bundled` takes them.

    Example:
        >>> "pedestrians" in data.bundled_names()
        True
    """
    return tuple(_index())


def bundled_info(name: str) -> BundledSeries:
    """Return source, licence, field, unit and season of one bundled series.

    Args:
        name: of the series.

    Returns:
        What is known of the series.

    Raises:
        UnknownNameError: there is none of this name; the message has the nearest ones.

    Example:
        >>> data.bundled_info("co2").unit
        'ppm'
    """
    if name not in _index():
        raise unknown_name(
            "bundled series", name, _index(), hint="`tsfm-lens data` lists them all."
        )
    return _index()[name]


def bundled(*names: str) -> SeriesBatch:
    """Load one or several bundled series.

    Args:
        names: of the series; all of them if none is given, or "all" as on the command
            line.

    Returns:
        The series, in the order of their names.

    Raises:
        UnknownNameError: there is none of this name; the message has the nearest ones.

    Example:
        >>> data.bundled("co2", "nile").ids
        ('co2', 'nile')
    """
    if names in ((), ("all",)):
        names = bundled_names()
    batches = []
    for info in map(bundled_info, names):
        # opened as a resource, since the package may be inside an archive
        with (_FOLDER / f"{info.name}.csv").open(encoding="utf-8") as handle:
            # the file has no dates: they follow from start and frequency in the index
            values = pd.read_csv(handle)["value"].to_numpy(dtype=np.float64)
        batches.append(
            SeriesBatch(
                (values,),
                ids=(info.name,),
                freq=info.freq,
                starts=(pd.Timestamp(info.start),),
                units=(info.unit,),
                seasonality=info.seasonality,
            )
        )
    if len(batches) == 1:
        return batches[0]
    return SeriesBatch.concat(batches)
