"""Tiny models of every architecture, and runs of calibration series."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest

from tsfm_lens.models import Lens, Run, architectures, load
from tsfm_lens.models.extras import status
from tsfm_lens.testing import example_case


@cache
def _tiny(name: str) -> Lens:
    return load(architectures()[name].tiny(), check=False)


@pytest.fixture(scope="session")
def opened() -> Callable[[str], Lens]:
    """Name of an architecture to its tiny lens, built once; skips where its library is not installed."""

    def lens(name: str) -> Lens:
        extra = architectures()[name].extra
        if extra and not status()[extra].importable:
            pytest.skip(f"the extra {extra} is not installed")
        return _tiny(name)

    return lens


@pytest.fixture(scope="session")
def calibration() -> Callable[[Lens], Run]:
    """A run over the series of the oracles, of several lengths; its decoder follows given values."""

    def run(lens: Lens) -> Run:
        case = example_case(lens)
        batch, horizon = case.batch, case.horizon
        forced_path = np.ones((len(batch), horizon)) if lens.adapter.readout == "token" else None
        return lens.run(batch, horizon, forced_path=forced_path)

    return run


@pytest.fixture
def umask() -> Iterator[int]:
    """One that leaves something to the group and nothing to others, as few machines have it."""
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)
