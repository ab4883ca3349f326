"""What a chapter of the report is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
import xarray as xr


@dataclass(frozen=True)
class Plate:
    """A figure, the table behind it, and what it shows in words; a name where it gets a file of its own."""

    figure: go.Figure
    table: pd.DataFrame
    reading: list[str]
    name: str = ""


@dataclass(frozen=True)
class Chapter:
    """How one kind of result is introduced and drawn, and what it is about: its model and series if None."""

    heading: str
    guide: str
    plates: Callable[[xr.Dataset], Iterator[Plate]]
    subject: Callable[[xr.Dataset], str] | None = None
