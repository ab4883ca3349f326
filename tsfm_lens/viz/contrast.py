"""Clean and corrupted run in a figure: both series, where they differ, and which way patching goes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tsfm_lens.registry import check
from tsfm_lens.viz.panels import mark_start, value_hover
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.sheet import Look, Panel
from tsfm_lens.viz.theme import BLUE, VERMILION, mixed
from tsfm_lens.viz.timeline import Timeline, timeline


def way(ds: xr.Dataset) -> tuple[str, str]:
    """Return which forecast is at 0 and which at 1 of the share recovered, such as "corrupted" and "clean"."""
    return ("clean", "corrupted") if ds.attrs.get("direction") == "noise" else ("corrupted", "clean")


@dataclass(frozen=True)
class Contrast:
    """Both contexts (time,) and both forecasts (step,) of one series, with their steps."""

    time: Timeline
    past: np.ndarray
    future: np.ndarray
    clean: np.ndarray
    corrupted: np.ndarray
    forecasts: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, ds: xr.Dataset, series: int) -> Contrast:
        """Read it from a result, from the first step known on."""
        check(ds, str(ds.attrs.get("kind")), "context", "corrupted_context", "clean_forecast", "corrupted_forecast")
        clean, corrupted = (array(ds, name, "time", series=series) for name in ("context", "corrupted_context"))
        places = np.flatnonzero(np.isfinite(clean) | np.isfinite(corrupted))
        first = int(places[0]) if len(places) else 0
        past, future = (np.array([int(v) for v in names(ds, dim)], dtype=int) for dim in ("time", "step"))
        ends = tuple(array(ds, f"{name}_forecast", "step", series=series) for name in ("clean", "corrupted"))
        return cls(timeline(ds, series), past[first:], future, clean[first:], corrupted[first:], (ends[0], ends[1]))

    @property
    def differ(self) -> np.ndarray:
        """Context steps where the two differ, (time,)."""
        size = np.nanmax(np.abs(self.clean), initial=0.0)
        return ~np.isclose(self.clean, self.corrupted, rtol=0, atol=1e-9 * size, equal_nan=True)

    def draw(self, panel: Panel, unit: str, *, tail: int | None = None) -> None:
        """Add both series with their forecasts, and shade where the contexts differ if only there."""
        start = 0 if tail is None else max(len(self.past) - tail, 0)
        differ = self.differ
        shade: Look = {"yref": "y domain", "layer": "below", "line_width": 0, "fillcolor": mixed(VERMILION, 0.1)}
        # shading all of it would mark nothing
        for first, last in [] if differ.all() else _runs(differ[start:]):
            ends = [self.time.scalar(self.past[start + step] + off) for step, off in ((first, -0.5), (last, 0.5))]
            panel.shape("rect", ends, (0, 1), **shade)
        steps = self.time.at(np.concatenate([self.past[start:], self.future]))
        for name, colour, context, forecast in (
            ("corrupted", VERMILION, self.corrupted, self.forecasts[1]),
            ("clean", BLUE, self.clean, self.forecasts[0]),
        ):
            values = np.concatenate([context[start:], forecast])
            panel.line(steps, values, f"{name}, and its forecast", value_hover(name, self.time, unit), colour=colour)
        mark_start(panel, self.time)


def when(ds: xr.Dataset, position: int) -> str:
    """Write the steps of a group of tokens in words; "" where all positions were patched at once."""
    if ds.attrs.get("positions") == "all":
        return ""
    word = str(ds["position_special"].values[position])
    if word:
        return f"{word} token"
    first, last = int(ds["position_start"].values[position]), int(ds["position_stop"].values[position]) - 1
    # a true minus, as all numbers of figures and sentences have
    return (f"step {first}" if first >= last else f"steps {first} to {last}").replace("-", "−")


def _runs(flags: np.ndarray, gap: int = 2) -> list[tuple[int, int]]:
    """Find first and last place of every run of True, runs at most ``gap`` apart joined."""
    places = np.flatnonzero(flags)
    parts = np.split(places, np.flatnonzero(np.diff(places) > gap) + 1)
    return [(int(part[0]), int(part[-1])) for part in parts if len(part)]
