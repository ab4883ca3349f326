"""Tiny models of every architecture; a test is skipped where the model's library is not
installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from tsfm_lens import testing
from tsfm_lens.models import Lens, architectures, load

NAMES = list(architectures())
OURS = [
    name
    for name, entry in architectures().items()
    if entry.adapter.__module__.startswith("tsfm_lens.")
]
"""Architectures of this package, not those that others register."""


def having(trait: str) -> list[str]:
    """Names of the architectures whose models have a trait."""
    return [name for name in NAMES if trait in architectures()[name].traits]


ARCHETYPES = ("chronos", "chronos-bolt", "chronos-2", "ttm")
"""A model of tokens, one of patches with an encoder and a decoder, one with group
attention, one without attention.
"""


def archetypes(cases: Iterable[Any], *more: str) -> list[Any]:
    """Cases, each a name or begun by one; those of other models than the archetypes,
    and than those named besides, run with ``make exhaustive``.
    """
    found = []
    for case in cases:
        if isinstance(case, tuple):
            values = case
        else:
            values = (case,)
        if values[0] in (*ARCHETYPES, *more):
            marks = ()
        else:
            marks = pytest.mark.exhaustive
        found.append(pytest.param(*values, marks=marks))
    return found


ATTENDING = having("attention")
SUMMING = having("additive")
STORED = [name for name in NAMES if architectures()[name].blank is not None]
"""Architectures that have checkpoints."""


def tiny(name: str) -> Any:
    """A native model of its own."""
    entry = architectures()[name]
    if not entry.importable:
        pytest.skip(f"the extra {entry.extra} is not installed")
    return testing.tiny(name)


def fresh(name: str) -> Lens:
    """A lens of its own."""
    return load(tiny(name), check=False)


lens_of = cache(fresh)
"""The lens of a name that tests share."""
