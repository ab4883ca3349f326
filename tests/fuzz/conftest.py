"""Tiny lenses of every architecture, without their libraries' warnings."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """Libraries warn of every long horizon."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
