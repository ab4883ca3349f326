"""Catalogue of every measurement with its probe, figures, table and reading, each declared in one place.

A module of this package that has ``MEASUREMENTS`` is part of it.
"""

from tsfm_lens.catalogue.computing import (
    Compute,
    Work,
    between,
    first_item,
    of_results,
    of_sequences,
    of_weights,
    on_all,
    on_first,
)
from tsfm_lens.catalogue.entry import THEMES, Figure, Measurement, Needs, Plate
from tsfm_lens.catalogue.registry import add, figures, find, measured_by, measurements, work_on

__all__ = [
    "THEMES",
    "Compute",
    "Figure",
    "Measurement",
    "Needs",
    "Plate",
    "Work",
    "add",
    "between",
    "figures",
    "find",
    "first_item",
    "measured_by",
    "measurements",
    "of_results",
    "of_sequences",
    "of_weights",
    "on_all",
    "on_first",
    "work_on",
]
