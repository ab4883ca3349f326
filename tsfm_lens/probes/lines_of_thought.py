"""Lines of thought: alternative forecasts that a layer holds besides the final one.

:func:`lines_of_thought` defines modes, lines and threads, and which lines are spurious:
they do not continue the context, and end before the last layer. :func:`trace_lines`
finds them in given logit maps, so it needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import xarray as xr
from scipy.ndimage import gaussian_filter1d
from scipy.signal import find_peaks, peak_widths

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import probe
from tsfm_lens.models.run import Run
from tsfm_lens.probes.logit_lens import logit_lens

__all__ = ["lines_of_thought"]


_VARIABLES = ("context", "truth", "native_median", "probability", "value")


@dataclass
class _Trajectory:
    """Line of one layer: value, half width and weight of its mode at each step.

    All three are (step,); without a mode they are NaN, 0 and 0.
    """

    layer: int
    series: int
    path: np.ndarray
    width: np.ndarray
    mass: np.ndarray
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

    - A *mode* is a peak of the slightly smoothed distribution over bins. Its weight is
      the probability between its neighbouring minima, its width the width at half its
      prominence.
    - Two modes are *within reach* if their distance is at most the context's largest
      step times ``jump``, plus half the width of the wider one.
    - A *line* joins modes of successive steps that are within reach, one to one: the
      nearest two first, then the nearest two of the rest. So two lines that move by
      more than their distance are crossed.
    - A line is *continuous* if it begins at the first step within reach of the last
      context value. A later line is continuous if it begins within reach of a
      continuous line one step earlier.
    - Two lines of different layers are *at the same place* if they share at least a
      part ``overlap`` of the shorter one's steps and are on average within reach there.
    - A line is *spurious* if it is not continuous and no line of the last layer is at
      its place.
    - A *thread* joins lines of successive layers at the same place, one to one, nearest
      first.

    Args:
        run: the forecast to explain, of a token model.
        rules: ``smooth=0.25``, standard deviation of the Gaussian over bins, in largest
            steps of the context; ``height=0.05`` and ``prominence=0.05`` of the lowest
            mode, as shares of the highest one's height; ``distance=2``, fewest bins
            between two modes; ``jump=1.0`` and ``overlap=0.5``, see above; ``gap=1``,
            steps without a mode that a line may pass over, with more reach;
            ``min_steps=2``, modes of the shortest line.

    Returns:
        Dataset of kind "lines_of_thought", with the maps. Over (layer, series):
        ``count`` of lines, ``spurious_count``, and ``spurious_mass``, the probability
        on spurious lines, mean over steps. Along ``line``: ``line_layer``,
        ``line_series``, ``start`` and ``stop`` (steps, the last one excluded),
        ``length`` (modes), ``mean_value`` (data units), ``mass`` (mean over all steps),
        ``continuous``, ``survives``, ``spurious``, ``thread``, and ``birth`` and
        ``death``, the thread's first and last layer. ``path`` and ``path_mass`` (line,
        step), NaN and 0 without a mode; ``largest_step`` (series), that of the context
        times ``jump``, at least one bin, in data units.

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
    # of a constant context every step is 0, so a step has at least the width of a bin
    changes = [np.abs(np.diff(past)) for past in context]
    highest = [
        float(change[np.isfinite(change)].max(initial=0.0)) for change in changes
    ]
    bins = [float(np.diff(np.sort(bin_values)).min()) for bin_values in values]
    largest = rules.jump * np.maximum(highest, bins)
    lines: list[_Trajectory] = []
    for series in range(n_series):
        finite = context[series][np.isfinite(context[series])]
        layers = [
            _join_modes(layer_map[series], values[series], largest[series], rules)
            for layer_map in probability
        ]
        for layer, layer_lines in enumerate(layers):
            for line in layer_lines:
                line.layer = layer
                line.series = series
                distances = [
                    _line_distance(line, final, largest[series], rules.overlap)
                    for final in layers[-1]
                ]
                line.survives = bool(np.isfinite(distances).any())
            _mark_continuous(layer_lines, finite[-1], largest[series])
        # threads are numbered through all series
        first = max((line.thread + 1 for line in lines), default=0)
        _mark_threads(layers, largest[series], rules.overlap, first)
        lines += [line for layer_lines in layers for line in layer_lines]
    data = maps[[name for name in _VARIABLES if name in maps]]
    data["largest_step"] = (("series",), largest, {"units": "data units"})
    count, spurious, mass = (
        np.zeros((n_layers, n_series), dtype=kind) for kind in (int, int, float)
    )
    for line in lines:
        cell = (line.layer, line.series)
        count[cell] += 1
        spurious[cell] += line.spurious
        mass[cell] += line.spurious * line.mass.sum() / steps
    for name, values in (
        ("count", count),
        ("spurious_count", spurious),
        ("spurious_mass", mass),
    ):
        data[name] = (("layer", "series"), values)
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
    probability: np.ndarray, values: np.ndarray, largest: float, rules: SimpleNamespace
) -> list[tuple[float, float, float]]:
    """Return value, half width and weight of each mode of a distribution over bins."""
    bin_width = (values[-1] - values[0]) / (len(values) - 1)
    # ``largest`` has the factor ``jump`` already
    blur = rules.smooth * largest / (rules.jump * bin_width)
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
    # weights are of the distribution itself, not of the smoothed one
    weights = np.add.reduceat(probability, [0, *valleys])
    return list(zip(values[peaks - 1], (edges[1] - edges[0]) / 2, weights, strict=True))


def _join_modes(
    probability: np.ndarray, values: np.ndarray, largest: float, rules: SimpleNamespace
) -> list[_Trajectory]:
    """Join the modes of one layer's map (step, bin) to lines."""
    steps = len(probability)
    lines: list[_Trajectory] = []
    for step in range(steps):
        modes = _find_modes(probability[step], values, largest, rules)
        open_lines = [line for line in lines if line.stop >= step - rules.gap]
        cost = np.full((len(open_lines), len(modes)), np.inf)
        for (one, line), (other, (value, width, _)) in product(
            enumerate(open_lines), enumerate(modes)
        ):
            last = line.stop - 1
            distance = abs(line.path[last] - value)
            if distance <= largest * (step - last) + max(line.width[last], width):
                cost[one, other] = distance
        matches = {other: open_lines[one] for one, other in _pair_nearest(cost)}
        for number, mode in enumerate(modes):
            line = matches.get(number) or _Trajectory(
                -1, -1, np.full(steps, np.nan), np.zeros(steps), np.zeros(steps)
            )
            if number not in matches:
                lines.append(line)
            line.path[step], line.width[step], line.mass[step] = mode
    return [line for line in lines if len(line.steps) >= rules.min_steps]


def _pair_nearest(cost: np.ndarray) -> list[tuple[int, int]]:
    """Pair rows and columns one to one, the cheapest of all pairs first.

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
    lines: Sequence[_Trajectory], last_value: float, largest: float
) -> None:
    """Mark lines that begin at the context's end, or branch off one that does."""
    # by their start, as a line is compared with earlier ones that are marked already
    for line in sorted(lines, key=lambda item: item.start):
        begin = line.path[line.start]
        width = line.width[line.start]
        if line.start == 0:
            line.continuous = bool(abs(begin - last_value) <= largest + width)
            continue
        earlier = line.start - 1
        line.continuous = any(
            abs(begin - other.path[earlier])
            <= largest + max(width, other.width[earlier])
            for other in lines
            if other.continuous and other is not line
        )


def _line_distance(
    one: _Trajectory, other: _Trajectory, largest: float, overlap: float
) -> float:
    """Return the mean distance of two lines over common steps.

    It is infinite if they are not at the same place.
    """
    both = np.isfinite(one.path) & np.isfinite(other.path)
    shorter = min(len(line.steps) for line in (one, other))
    if not both.any() or both.sum() < overlap * shorter:
        return float("inf")
    distance = float(np.abs(one.path - other.path)[both].mean())
    allowed = largest + float(np.maximum(one.width, other.width)[both].mean())
    if distance <= allowed:
        return distance
    return float("inf")


def _mark_threads(
    layers: Sequence[Sequence[_Trajectory]], largest: float, overlap: float, first: int
) -> None:
    """Set the thread of each line, numbered from ``first`` on."""
    before: Sequence[_Trajectory] = []
    for layer_lines in layers:
        cost = np.full((len(before), len(layer_lines)), np.inf)
        for (one, line), (other, next_line) in product(
            enumerate(before), enumerate(layer_lines)
        ):
            cost[one, other] = _line_distance(line, next_line, largest, overlap)
        for one, other in _pair_nearest(cost):
            layer_lines[other].thread = before[one].thread
        for line in layer_lines:
            if line.thread < 0:
                line.thread = first
                first = first + 1
        before = layer_lines


def _add_table(
    data: xr.Dataset, lines: Sequence[_Trajectory], steps: int
) -> xr.Dataset:
    """Add the variables that have one entry per line."""
    layers = data["layer"].values
    series = data["series"].values
    bounds: dict[int, tuple[int, int]] = {}
    for line in lines:
        low, high = bounds.get(line.thread, (line.layer, line.layer))
        bounds[line.thread] = min(low, line.layer), max(high, line.layer)
    data = data.assign_coords(
        line=range(len(lines)),
        line_layer=("line", [str(layers[line.layer]) for line in lines]),
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
        columns[name] = [str(layers[bounds[line.thread][index]]) for line in lines]
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
