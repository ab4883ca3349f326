"""Tiny models of every architecture, and runs of calibration series."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tsfm_lens.models import Lens, Run
from tsfm_lens.testing import example_case


@pytest.fixture(scope="session")
def calibration() -> Callable[[Lens], Run]:
    """A run over the series of the oracles, of several lengths; its decoder follows given values."""

    def run(lens: Lens) -> Run:
        case = example_case(lens)
        batch, horizon = case.batch, case.horizon
        along = np.ones((len(batch), horizon)) if lens.adapter.readout == "token" else None
        return lens.run(batch, horizon, along=along)

    return run
