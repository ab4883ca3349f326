"""Lines of thought: alternative forecasts that a layer holds besides the final one.

:func:`lines_of_thought` defines modes, lines and threads, and which lines are spurious:
they do not continue the context, and end before the last layer. :func:`trace_lines`
finds them in given logit maps, so it needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr
from scipy.ndimage import gaussian_filter1d

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import probe
from tsfm_lens.models.run import Run
from tsfm_lens.probes.logit_lens import logit_lens

__all__ = ["lines_of_thought"]


_VARIABLES = ("context", "truth", "native_median", "probability", "value")


@dataclass
class _Line:
    """Line of one layer: value, half width and mass of its mode at each step.

    All three are (step,); without a mode they are NaN, 0 and 0.
    """

    path: np.ndarray
    half_width: np.ndarray
    mass: np.ndarray
    layer: int = -1
    series: int = -1
    continuous: bool = False
    survives: bool = False
    thread: int = -1

    @property
    def steps(self) -> np.ndarray:
        """Steps that have a mode."""
        return np.flatnonzero(np.isfinite(self.path))

    @property
    def start(self) -> int:
        """First step."""
        return int(self.steps[0])

    @property
    def stop(self) -> int:
        """Step after the last one."""
        return int(self.steps[-1]) + 1

    @property
    def spurious(self) -> bool:
        """Whether it neither continues the context nor exists in the last layer."""
        return not self.continuous and not self.survives


@probe(
    "first",
    title="Lines of thought",
    theme="Behaviour",
    summary=(
        "lines of thought: modes of the logit map that do not continue the context "
        "and die out"
    ),
    description=(
        "The modes of the lens distribution after each layer, joined along the "
        "forecast: alternatives that the model considers on the way."
    ),
    source="tsfm-lens, section 2",
    needs="tokens",
)
def lines_of_thought(run: Run, **rules: Any) -> xr.Dataset:
    """Trace the modes of every layer's logit map over steps and layers.

    The paper gives no algorithm. These are the rules here:

    - A *mode* is a peak of the slightly smoothed distribution over bins. Its mass is
      the probability between its neighbouring minima, its width the width at half its
      prominence.
    - Two modes are *within reach* if their distance is at most ``jump`` times the
      largest step of the context, plus half the width of the wider one.
    - A *line* joins modes of successive steps that are within reach, one to one: the
      nearest two first, then the nearest two of the rest. So where two lines move by
      more than the distance between them, each goes on as the other.
    - A line from the first forecast step is *continuous* if it begins within reach of
      the last context value. A later line is continuous if it begins within reach of a
      continuous line one step earlier.
    - Two lines of different layers are *at the same place* if they have at least the
      share ``overlap`` of the shorter one's steps in common, and are on average within
      reach there.
    - A line is *spurious* if it is not continuous and no line of the last layer is at
      its place.
    - A *thread* joins lines of successive layers at the same place, one to one, nearest
      first.

    Args:
        run: the forecast to explain, of a token model.
        rules: ``smooth=0.25``, standard deviation of the Gaussian that smooths, as a
            multiple of the context's largest step; ``height=0.05`` and
            ``prominence=0.05``, those that a mode must have, as shares of the
            distribution's maximum; ``distance=2``, fewest bins between two modes;
            ``jump=1.0``, reach as a multiple of the context's largest step;
            ``overlap=0.5``, least share of steps in common; ``gap=1``, most steps
            without a mode inside a line, each of which adds a ``jump`` to the reach;
            ``min_steps=2``, fewest modes of a line.

    Returns:
        Dataset of kind "lines_of_thought", with the maps, the series and forecasts.
        Over (layer, series):

        - ``count``: number of lines.
        - ``spurious_count``: number of spurious ones.
        - ``spurious_mass``: probability on spurious lines, mean over steps.

        Along ``line``:

        - ``line_layer``, ``line_series``: where it is.
        - ``start``, ``stop``: steps, the last one excluded.
        - ``length``: number of modes.
        - ``mean_value``: in data units.
        - ``mass``: probability, mean over all steps.
        - ``continuous``, ``survives``, ``spurious``: whether it is so.
        - ``thread``: number of its thread.
        - ``birth``, ``death``: the thread's first and last layer.
        - ``path``, ``path_mass`` (line, step): value in data units and probability; NaN
          and 0 without a mode.

        By series:

        - ``largest_step`` (series): ``jump`` times the context's largest step or a
          bin's width, whichever is larger, in data units.

    Source:
        tsfm-lens paper, section 2.3 and figure 1C, in words.

    Raises:
        InputError: the model has no output bins in the order of their values, or an
            option out of range.

    Example:
        >>> probes.lines_of_thought(run).sizes["line"] > 1
        True
    """
    lens = run.lens
    if lens.emits != "token":
        raise InputError(
            f"{lens.model_id} emits {lens.emits}s, which have no modes to follow; lines"
            " of thought need a token model such as Chronos. logit_lens and layer_gain"
            " show how the layers of any model differ"
        )
    if lens.takes_ids:
        raise InputError(
            f"{lens.model_id} forecasts token ids, whose neighbours mean nothing; lines"
            " of thought need bins of values"
        )
    return trace_lines(logit_lens(run), **rules)


def trace_lines(
    maps: xr.Dataset,
    *,
    smooth: float = 0.25,
    height: float = 0.05,
    prominence: float = 0.05,
    distance: int = 2,
    jump: float = 1.0,
    gap: int = 1,
    min_steps: int = 2,
    overlap: float = 0.5,
) -> xr.Dataset:
    """Trace lines of thought in given logit maps; see :func:`lines_of_thought`."""
    if smooth < 0 or not (0 < height < 1 and 0 < prominence < 1) or distance < 1:
        raise InputError(
            f"smooth {smooth}, height {height}, prominence {prominence}, distance"
            f" {distance}: expected a smoothing of 0 or more, shares of the highest"
            " mode between 0 and 1, and 1 or more bins"
        )
    if jump <= 0 or gap < 0 or min_steps < 1 or not 0 < overlap <= 1:
        raise InputError(
            f"jump {jump}, gap {gap}, min_steps {min_steps}, overlap {overlap}:"
            " expected a jump above 0, a gap of 0 or more, 1 or more steps, and an"
            " overlap above 0 and up to 1"
        )
    rules = SimpleNamespace(
        smooth=smooth,
        height=height,
        prominence=prominence,
        distance=distance,
        jump=jump,
        gap=gap,
        min_steps=min_steps,
        overlap=overlap,
    )
    probability = maps["probability"].transpose("layer", "series", "step", "bin").values
    values = maps["value"].transpose("series", "bin").values
    context = maps["context"].values
    n_layers, n_series, steps, _ = probability.shape
    changes = [np.abs(np.diff(past)) for past in context]
    largest_steps = [
        float(change[np.isfinite(change)].max(initial=0.0)) for change in changes
    ]
    bin_widths = [float(np.diff(np.sort(bin_values)).min()) for bin_values in values]
    # a constant context has steps of 0, but lines must be able to move by a bin
    step_limit = rules.jump * np.maximum(largest_steps, bin_widths)
    lines: list[_Line] = []
    for series in range(n_series):
        last_value = context[series][np.isfinite(context[series])][-1]
        by_layer = [
            _join_modes(layer_map[series], values[series], step_limit[series], rules)
            for layer_map in probability
        ]
        for layer, layer_lines in enumerate(by_layer):
            for line in layer_lines:
                line.layer = layer
                line.series = series
                distances = [
                    _line_distance(line, final, step_limit[series], rules.overlap)
                    for final in by_layer[-1]
                ]
                line.survives = bool(np.isfinite(distances).any())
            _mark_continuous(layer_lines, last_value, step_limit[series])
        # threads are numbered through all series
        next_thread = max((line.thread + 1 for line in lines), default=0)
        _mark_threads(by_layer, step_limit[series], rules.overlap, next_thread)
        lines += [line for layer_lines in by_layer for line in layer_lines]
    data = maps[[name for name in _VARIABLES if name in maps]]
    data["largest_step"] = (("series",), step_limit, {"units": "data units"})
    count = np.zeros((n_layers, n_series), dtype=int)
    spurious_count = np.zeros_like(count)
    spurious_mass = np.zeros((n_layers, n_series))
    for line in lines:
        cell = (line.layer, line.series)
        count[cell] += 1
        spurious_count[cell] += line.spurious
        spurious_mass[cell] += line.spurious * line.mass.sum() / steps
    data["count"] = (("layer", "series"), count)
    data["spurious_count"] = (("layer", "series"), spurious_count)
    data["spurious_mass"] = (("layer", "series"), spurious_mass)
    data = _add_table(data, lines, steps)
    metadata = {key: value for key, value in maps.attrs.items() if key != "readout"}
    title = "Lines of thought"
    source = "tsfm-lens paper, section 2.3 and figure 1C"
    data.attrs = {
        **metadata,
        "kind": "lines_of_thought",
        "title": title,
        "source": source,
        **vars(rules),
    }
    return data


def _find_modes(
    probability: np.ndarray,
    values: np.ndarray,
    step_limit: float,
    rules: SimpleNamespace,
) -> list[tuple[float, float, float]]:
    """Return value, half width and mass of each mode of a distribution over bins."""
    # scipy.signal takes half a second to import
    from scipy.signal import find_peaks, peak_widths

    bin_width = (values[-1] - values[0]) / (len(values) - 1)
    # standard deviation in bins; the limit is ``jump`` largest steps
    blur = rules.smooth * step_limit / (rules.jump * bin_width)
    density = probability
    if blur > 0:
        density = gaussian_filter1d(probability.astype(float), blur, mode="constant")
    # padding lets a mode in the first or last bin count, and moves indices by one
    padded = np.pad(density, 1)
    top = density.max()
    height = rules.height * top
    prominence = rules.prominence * top
    peaks, _ = find_peaks(
        padded, height=height, distance=rules.distance, prominence=prominence
    )
    if not len(peaks):
        return []
    _, _, left, right = peak_widths(padded, peaks)
    edges = np.interp([left - 1, right - 1], np.arange(len(values)), values)
    valleys = [
        low + int(np.argmin(density[low:high])) for low, high in pairwise(peaks - 1)
    ]
    # sums from one valley up to the next, of the distribution itself, not the smoothed
    masses = np.add.reduceat(probability, [0, *valleys])
    half_widths = (edges[1] - edges[0]) / 2
    return list(zip(values[peaks - 1], half_widths, masses, strict=True))


def _join_modes(
    probability: np.ndarray,
    values: np.ndarray,
    step_limit: float,
    rules: SimpleNamespace,
) -> list[_Line]:
    """Join the modes of one layer's map (step, bin) to lines."""
    steps = len(probability)
    lines: list[_Line] = []
    for step in range(steps):
        modes = _find_modes(probability[step], values, step_limit, rules)
        open_lines = [line for line in lines if line.stop >= step - rules.gap]
        cost = np.full((len(open_lines), len(modes)), np.inf)
        for row, line in enumerate(open_lines):
            last = line.stop - 1
            for column, (value, half_width, _) in enumerate(modes):
                distance = abs(line.path[last] - value)
                wider = max(line.half_width[last], half_width)
                if distance <= step_limit * (step - last) + wider:
                    cost[row, column] = distance
        matches = {column: open_lines[row] for row, column in _pair_nearest(cost)}
        for column, mode in enumerate(modes):
            if column in matches:
                line = matches[column]
            else:
                line = _Line(np.full(steps, np.nan), np.zeros(steps), np.zeros(steps))
                lines.append(line)
            line.path[step], line.half_width[step], line.mass[step] = mode
    return [line for line in lines if len(line.steps) >= rules.min_steps]


def _pair_nearest(cost: np.ndarray) -> list[tuple[int, int]]:
    """Return pairs of rows and columns, the cheapest of all pairs first.

    Pairs of infinite cost are never made.
    """
    pairs = []
    rows = set(range(cost.shape[0]))
    columns = set(range(cost.shape[1]))
    for flat in np.argsort(cost, axis=None, kind="stable"):
        row, column = divmod(int(flat), cost.shape[1])
        if row in rows and column in columns and np.isfinite(cost[row, column]):
            pairs.append((row, column))
            rows.remove(row)
            columns.remove(column)
    return pairs


def _mark_continuous(
    lines: Sequence[_Line], last_value: float, step_limit: float
) -> None:
    """Mark lines that begin at the context's end, or branch off one that does."""
    # in order of their start, so that a line's possible origins are marked before it
    for line in sorted(lines, key=lambda item: item.start):
        begin = line.path[line.start]
        half_width = line.half_width[line.start]
        if line.start == 0:
            line.continuous = bool(abs(begin - last_value) <= step_limit + half_width)
            continue
        earlier = line.start - 1
        line.continuous = any(
            abs(begin - other.path[earlier])
            <= step_limit + max(half_width, other.half_width[earlier])
            for other in lines
            if other.continuous and other is not line
        )


def _line_distance(
    one: _Line, other: _Line, step_limit: float, overlap: float
) -> float:
    """Return the mean distance of two lines over common steps.

    It is infinite if they are not at the same place.
    """
    both = np.isfinite(one.path) & np.isfinite(other.path)
    shorter = min(len(line.steps) for line in (one, other))
    if not both.any() or both.sum() < overlap * shorter:
        return float("inf")
    distance = float(np.abs(one.path - other.path)[both].mean())
    allowed = step_limit + float(
        np.maximum(one.half_width, other.half_width)[both].mean()
    )
    if distance <= allowed:
        return distance
    return float("inf")


def _mark_threads(
    by_layer: Sequence[Sequence[_Line]],
    step_limit: float,
    overlap: float,
    next_thread: int,
) -> None:
    """Set the thread of each line, new ones numbered from ``next_thread`` on."""
    before: Sequence[_Line] = []
    for layer_lines in by_layer:
        cost = np.full((len(before), len(layer_lines)), np.inf)
        for row, line in enumerate(before):
            for column, next_line in enumerate(layer_lines):
                cost[row, column] = _line_distance(line, next_line, step_limit, overlap)
        for row, column in _pair_nearest(cost):
            layer_lines[column].thread = before[row].thread
        for line in layer_lines:
            if line.thread < 0:
                line.thread = next_thread
                next_thread += 1
        before = layer_lines


def _add_table(data: xr.Dataset, lines: Sequence[_Line], steps: int) -> xr.Dataset:
    """Add the variables that have one entry per line."""
    layers = data["layer"].values
    series = data["series"].values
    bounds: dict[int, tuple[int, int]] = {}
    for line in lines:
        low, high = bounds.get(line.thread, (line.layer, line.layer))
        bounds[line.thread] = min(low, line.layer), max(high, line.layer)
    data = data.assign_coords(
        line=range(len(lines)),
        line_layer=("line", [int(layers[line.layer]) for line in lines]),
        line_series=("line", [str(series[line.series]) for line in lines]),
    )
    names = ("start", "stop", "continuous", "survives", "spurious", "thread")
    columns: dict[str, list[Any]] = {
        name: [getattr(line, name) for line in lines] for name in names
    }
    columns["length"] = [len(line.steps) for line in lines]
    columns["mean_value"] = [float(np.nanmean(line.path)) for line in lines]
    columns["mass"] = [float(line.mass.sum() / steps) for line in lines]
    for index, name in enumerate(("birth", "death")):
        columns[name] = [int(layers[bounds[line.thread][index]]) for line in lines]
    for name, column in columns.items():
        data[name] = (("line",), np.array(column))
    data["path"] = (
        ("line", "step"),
        np.array([line.path for line in lines]).reshape(-1, steps),
    )
    data["path_mass"] = (
        ("line", "step"),
        np.array([line.mass for line in lines]).reshape(-1, steps),
    )
    return data
