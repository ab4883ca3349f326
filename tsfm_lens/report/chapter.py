"""What a chapter of the report is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd

from tsfm_lens.catalogue import Plate


@dataclass(frozen=True)
class Chapter:
    """How one kind of result of a sweep is introduced and drawn, and what it is about: its model and series if None."""

    heading: str
    guide: str
    plates: Callable[[pd.DataFrame], Iterator[Plate]]
    subject: Callable[[pd.DataFrame], str] | None = None
