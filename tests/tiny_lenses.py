"""Tiny models of every architecture; a test is skipped where the model's library is not installed."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.models.extras import status

NAMES = sorted(architectures())
ATTENDING = [name for name in NAMES if name not in ("fracast", "tirex", "ttm")]
"""Architectures with heads."""
SUMMING = [name for name in NAMES if name != "fracast"]
"""Architectures whose stream is the sum of its writes."""


def tiny(name: str) -> Any:
    """A native model of its own."""
    entry = architectures()[name]
    if entry.extra and not status()[entry.extra].importable:
        pytest.skip(f"the extra {entry.extra} is not installed")
    return entry.tiny()


def fresh(name: str) -> Lens:
    """A lens of its own."""
    return load(tiny(name), check=False)


lens_of = cache(fresh)
"""The lens of a name that tests share."""
