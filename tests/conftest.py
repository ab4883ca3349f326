"""Shared by all tests: one torch thread a worker, and seeded generators."""

from __future__ import annotations

import os

# read by torch and BLAS when they are first imported
os.environ.setdefault("OMP_NUM_THREADS", "1")

import random

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random numbers in every test, whatever ran before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
