"""Tiny lenses with weights so large that every head matters."""

from __future__ import annotations

import pytest

from tiny_lenses import fresh
from tsfm_lens.models import Lens
from tsfm_lens.testing import Case, example_case


@pytest.fixture(autouse=True)
def loads_are_interrupted(read_models_anew: None) -> None:
    """Models are loaded in threads, forks and interrupts."""


@pytest.fixture(scope="session")
def token_lens() -> Lens:
    return fresh("chronos")


@pytest.fixture(scope="session")
def patch_lens() -> Lens:
    return fresh("chronos-bolt")


@pytest.fixture(scope="session")
def token_case(token_lens: Lens) -> Case:
    return example_case(token_lens)


@pytest.fixture(scope="session")
def patch_case(patch_lens: Lens) -> Case:
    return example_case(patch_lens)
