"""Refusals of the package, in one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tsfm_lens.core.errors import LensError


def expect_error(
    message: str, call: Callable[..., object], *args: Any, **options: Any
) -> None:
    """Hold that a call is refused by an error of the package whose message has some
    words, a regular expression.
    """
    with pytest.raises(LensError, match=message):
        call(*args, **options)
