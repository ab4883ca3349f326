"""Tiny models of every architecture, and pairs of series to contrast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.models import Lens, architectures, load


@cache
def _lens_of(name: str) -> Lens:
    return load(architectures()[name].tiny(), check=False)


def _centred(*names: str) -> SeriesBatch:
    series = bundled(*names).tail(40)
    return replace(series, values=tuple(values - values.mean() for values in series.values))


@cache
def _pair_for(name: str) -> tuple[SeriesBatch, SeriesBatch]:
    own = getattr(_lens_of(name).adapter, "example", None)
    clean = own(0, 40) if own else _centred("pedestrians", "electricity")
    return clean, replace(clean, values=tuple(values[::-1].copy() for values in clean.values))


@pytest.fixture(scope="session")
def lens_of() -> Callable[[str], Lens]:
    """A tiny model of an architecture, each made once."""
    return _lens_of


@pytest.fixture(scope="session")
def centred() -> Callable[..., SeriesBatch]:
    """Real series around zero: the few bins of a tiny token model then tell their values apart."""
    return _centred


@pytest.fixture(scope="session")
def pair_for() -> Callable[[str], tuple[SeriesBatch, SeriesBatch]]:
    """Series and the same values backwards: what a model scales by is alike, to the last digits."""
    return _pair_for
