"""Runs of calibration series on the tiny models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tsfm_lens.models import Lens, Run
from tsfm_lens.testing import example_case


@pytest.fixture(scope="session")
def calibration() -> Callable[[Lens], Run]:
    """A run over the series of the oracles, of several lengths; its decoder follows
    given values.
    """

    def run(lens: Lens) -> Run:
        batch = example_case(lens).batch
        horizon = example_case(lens).horizon
        forced_path = None
        if lens.adapter.readout == "token":
            forced_path = np.ones((len(batch), horizon))
        return lens.run(batch, horizon, forced_path=forced_path)

    return run


@pytest.fixture
def umask() -> Iterator[int]:
    """One that leaves something to the group and nothing to others, as few machines
    have it.
    """
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)
