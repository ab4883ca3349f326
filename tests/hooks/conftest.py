"""Tiny lenses with weights so large that every head matters."""

from __future__ import annotations

import pytest

from tsfm_lens import testing
from tsfm_lens.models import Lens, load
from tsfm_lens.testing import Case, example_case


@pytest.fixture(scope="session")
def token_lens() -> Lens:
    return load(testing.tiny("chronos"))


@pytest.fixture(scope="session")
def patch_lens() -> Lens:
    return load(testing.tiny("chronos-bolt"))


@pytest.fixture(scope="session")
def token_case(token_lens: Lens) -> Case:
    return example_case(token_lens)


@pytest.fixture(scope="session")
def patch_case(patch_lens: Lens) -> Case:
    return example_case(patch_lens)
