"""Time axis that context, truth, forecast and tokens share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.viz.select import names


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Steps relative to the start of the forecast, and the dates they fall on where these are known.

    Attributes:
        steps: every step, context (negative) and forecast (0 and up), ascending.
        stamps: datetime64[ns] of each step, or None.
    """

    steps: np.ndarray
    stamps: np.ndarray | None

    @property
    def title(self) -> str:
        """Title of an axis over this timeline."""
        return "date" if self.stamps is not None else "time (steps from the start of the forecast)"

    @property
    def short_title(self) -> str:
        """Title of a narrow axis; the figure's subtitle then says where steps count from."""
        return "date" if self.stamps is not None else "step"

    @property
    def remark(self) -> str:
        """Addition to a subtitle for ``short_title``."""
        return "" if self.stamps is not None else "step 0 is the first forecast"

    @property
    def hover(self) -> str:
        """Field of d3 that shows x of a trace in a hover box."""
        return "%{x|%Y-%m-%d %H:%M}" if self.stamps is not None else "step %{x}"

    def at(self, position: np.ndarray | float) -> np.ndarray:
        """Return axis coordinates of steps, whole or fractional; dates go on evenly beyond both ends."""
        where = np.asarray(position, dtype=float)
        if self.stamps is None:
            return where
        ticks = self.stamps.astype("datetime64[ns]").astype(np.int64)
        first, last = ticks[0], ticks[-1]
        inside = np.interp(where, self.steps, ticks - first)
        before = (ticks[1] - first) * np.minimum(where - self.steps[0], 0)
        after = (last - ticks[-2]) * np.maximum(where - self.steps[-1], 0)
        return (first + np.rint(inside + before + after).astype(np.int64)).astype("datetime64[ns]")

    def scalar(self, step: float) -> str | float:
        """Return one step as shapes and ranges take it."""
        where = self.at(float(step))
        return str(where) if self.stamps is not None else float(where)

    def label(self, step: int) -> str:
        """Write one step in words, with its date where known."""
        if self.stamps is None:
            return f"step {step}"
        return f"step {step} ({self.date(step)})"

    def date(self, step: int) -> str:
        """Write the date of one step, where these are known."""
        return f"{pd.Timestamp(self.at(float(step)).item()):%Y-%m-%d %H:%M}"


def as_text(dates: np.ndarray) -> list[str | None]:
    """Write dates as plotly reads them in every place, to the millisecond; None for none."""
    texts = np.datetime_as_string(dates, unit="ms")
    return [None if missing else str(text) for text, missing in zip(texts, np.isnat(dates), strict=True)]


def timeline(ds: xr.Dataset, series: int | None = None) -> Timeline:
    """Return the timeline of one series of a labelled result.

    Dates are used only when every step of the series has one and there are at least two.
    """
    pieces: list[np.ndarray] = []
    stamps: list[np.ndarray] = []
    dated = True
    for dim, coord in (("time", "context_timestamp"), ("step", "forecast_timestamp")):
        if dim not in ds.dims:
            continue
        pieces.append(np.array([int(v) for v in names(ds, dim)]))
        if coord not in ds.coords:
            dated = False
            continue
        labels = ds[coord]
        stamps.append(np.asarray((labels.isel(series=series or 0) if "series" in labels.dims else labels).values))
    steps = np.concatenate(pieces) if pieces else np.arange(0)
    if not dated or len(steps) < 2:
        return Timeline(steps=steps, stamps=None)
    dates = np.concatenate(stamps).astype("datetime64[ns]")
    valid = ~np.isnat(dates)
    # a padded context has no dates at its far left; the steps that have them must be all the rest
    first = int(np.argmax(valid))
    if valid.sum() < 2 or not valid[first:].all():
        return Timeline(steps=steps, stamps=None)
    return Timeline(steps=steps[first:], stamps=dates[first:])
