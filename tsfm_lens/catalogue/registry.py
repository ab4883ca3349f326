"""Registry of all measurements by the kind of their results, those of this package and those that were added."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from tsfm_lens.catalogue.computing import Work
from tsfm_lens.catalogue.entry import THEMES, Figure, Measurement
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.registry import SHOWN, load_extensions

if TYPE_CHECKING:
    from tsfm_lens.models.run import Run

_PACKAGE = "tsfm_lens.catalogue"
_ADDED: dict[str, Measurement] = {}


@cache
def _own_measurements() -> dict[str, Measurement]:
    entries: list[Measurement] = []
    for module in iter_modules(import_module(_PACKAGE).__path__):
        entries += getattr(import_module(f"{_PACKAGE}.{module.name}"), "MEASUREMENTS", ())
    entries.sort(key=lambda each: THEMES.index(each.theme))
    return {each.kind: each for each in entries}


def measurements() -> dict[str, Measurement]:
    """Return every measurement by the kind of its result, theme by theme.

    Example:
        >>> "seasonality" in catalogue.measurements()
        True
    """
    load_extensions(SHOWN)
    entries = _own_measurements() | _ADDED
    return dict(sorted(entries.items(), key=lambda item: THEMES.index(item[1].theme)))


def find(kind: str) -> Measurement:
    """Look up a measurement by the kind of its result.

    Raises:
        UnknownNameError: there is none; the message has the nearest.

    Example:
        >>> catalogue.find("ablation").heading
        'Ablation'
    """
    entries = measurements()
    if kind not in entries:
        raise unknown_name("measurement", kind, entries, hint="`tsfm-lens measurements` lists them all.")
    return entries[kind]


def add(measurement: Measurement) -> None:
    """Add a measurement of your own to the catalogue: to reports, ``tsfm-lens figure`` and its list.

    Args:
        measurement: its renderers are looked up in :mod:`tsfm_lens.viz`, and may also be functions.

    Raises:
        InputError: its kind is taken, or it has a theme that is not one of :data:`THEMES`.

    Example:
        >>> catalogue.add(catalogue.find("forecast"))
        Traceback (most recent call last):
        tsfm_lens.errors.InputError: kind 'forecast' is taken by a measurement of tsfm_lens; choose another
    """
    if measurement.kind in _own_measurements():
        raise InputError(f"kind {measurement.kind!r} is taken by a measurement of tsfm_lens; choose another")
    if measurement.theme not in THEMES:
        raise InputError(f"theme={measurement.theme!r} is not known, choose one of {', '.join(THEMES)}")
    _ADDED[measurement.kind] = measurement


def figures() -> Iterator[tuple[Measurement, Figure]]:
    """Yield every way to draw a measurement, theme by theme; a renderer of several measurements comes several times.

    Example:
        >>> {figure.name for _, figure in catalogue.figures()} >= {"logit_map", "circuit_graph"}
        True
    """
    for measurement in measurements().values():
        for figure in measurement.figures:
            yield measurement, figure


def measured_by(item: str) -> list[Measurement]:
    """List the measurements of a reported value of the paper, by its id.

    Example:
        >>> [each.kind for each in catalogue.measured_by("S3-F22")]
        ['layer_gain']
    """
    return [each for each in measurements().values() if item in each.paper]


def work_on(run: Run) -> Work:
    """Return a run whose results are computed by this catalogue, each once.

    Example:
        >>> work = catalogue.work_on(run)
        >>> work.result("layer_gain") is work.result("layer_gain")
        True
    """
    return Work(run, lambda kind, work: find(kind).of(work, **work.options.get(kind, {})))
