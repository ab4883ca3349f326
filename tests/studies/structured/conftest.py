"""Tiny models of every architecture."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tsfm_lens.models import Lens, architectures, load


@cache
def _lens_of(name: str) -> Lens:
    return load(architectures()[name].tiny(), check=False)


@pytest.fixture(scope="session")
def lens_of() -> Callable[[str], Lens]:
    """A tiny model of an architecture, each made once."""
    return _lens_of
