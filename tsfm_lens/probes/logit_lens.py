"""Logit lens: the forecast that each layer already holds, and lines of thought that die out on the way."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy.ndimage import gaussian_filter1d
from scipy.optimize import linear_sum_assignment
from scipy.signal import find_peaks, peak_widths
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.models.adapter import DECILES
from tsfm_lens.models.noise import rounding
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attribution import own_readout
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.given import of_kind
from tsfm_lens.registry import probe

__all__ = ["bin_quantiles", "count_peaks", "layer_gain", "lens_logits", "lines_of_thought", "logit_lens", "trace_lines"]

PEAK_HEIGHT = 0.02
PEAK_DISTANCE = 2
EFFECTIVE_PROBABILITY = 0.01

_SOURCE = "tsfm-lens paper, section 2 and figure 1C-D (S3-DLA, S3-ENT); "
_SOURCE += "nostalgebraist, interpreting GPT: the logit lens"


@probe("logit_lens")
def logit_lens(run: Run, *, levels: Sequence[float] = DECILES) -> xr.Dataset:
    """Read every layer's residual stream out through the model's own final norm and head.

    Args:
        run: the forecast to explain.
        levels: quantiles of a token model's lens distribution.

    Returns:
        Dataset of kind "logit_lens" over ``layer`` ("embed", "0", …), ``series``, ``step``, forecasts in data units.
        Token models: ``probability`` of every value bin, its ``value``, ``entropy`` in nats over the whole vocabulary,
        ``n_peaks``, ``effective_vocabulary``, ``quantile_forecast`` and ``point_forecast`` (the most probable bin).
        Patch models: ``quantile_forecast`` and its median as ``point_forecast``; with a distribution head its mean. The
        last layer is the model's own output along the run's path; ``native_median`` is of the library's own forecast;
        ``rounding`` (series) bounds its rounding error.

    Raises:
        InputError: a horizon longer than one pass, or hooks that change the model behind the last block.
        WiringError: the readout of the last layer is not the model's own forecast, by more than rounding.

    Example:
        >>> probes.logit_lens(run)["layer"].values.tolist()
        ['embed', '0', '1', '2']
    """
    names, streams = layer_streams(run)
    data = run.dataset().assign_coords(layer=names)
    data["native_median"] = (("series", "step"), run.forecast.median)
    readout = run.lens.emits
    data["rounding"] = ("series", rounding(run, data["native_median"].values))
    data.attrs = run.describe("logit_lens", "Logit lens", _SOURCE, readout=readout, first_step=run.first_step)
    if readout == "token":
        return _token_lens(run, streams, data, tuple(levels))
    return _quantile_lens(run, streams, data)


def layer_streams(run: Run) -> tuple[list[str], list[Tensor]]:
    """Return names and residual streams (series, pos, d_model) before the first and after every block."""
    stack = run.lens.wiring.output_stack
    dot = f"{stack.name}." if stack.name else ""
    points = [f"{dot}hook_embed", *(f"{stack.prefix}.{layer}.hook_resid_post" for layer in range(stack.n_layers))]
    acts = run.in_one_pass().record(points)
    return ["embed", *map(str, range(stack.n_layers))], [acts[point] for point in points]


def _token_lens(run: Run, streams: list[Tensor], data: xr.Dataset, levels: tuple[float, ...]) -> xr.Dataset:
    lens = run.lens
    first, values = lens.first_value_token, lens.bin_values(run.encoded).double().numpy()
    rows: list[tuple[np.ndarray, ...]] = []
    for stream in streams:
        with torch.no_grad():
            logits = own_readout(run, stream) if stream is streams[-1] else lens.readout(stream, run.encoded)
            p = torch.softmax(logits.double(), dim=-1).cpu()
        bins, wide = p[..., first:].numpy(), (p > EFFECTIVE_PROBABILITY).sum(-1).numpy()
        entropy, quantiles = torch.special.entr(p).sum(-1).numpy(), bin_quantiles(bins, values, levels)
        rows.append((bins.astype(np.float32), entropy, count_peaks(bins), wide, quantiles))
    probability, entropy, peaks, effective, quantiles = (np.stack(row) for row in zip(*rows, strict=True))
    best, where = probability.argmax(axis=-1), ("layer", "series", "step")
    return data.assign_coords(quantile=list(levels)).assign(
        probability=((*where, "bin"), probability),
        value=(("series", "bin"), values),
        entropy=(where, entropy, {"units": "nats"}),
        n_peaks=(where, peaks),
        effective_vocabulary=(where, effective),
        quantile_forecast=(("layer", "series", "quantile", "step"), quantiles),
        point_forecast=(where, np.take_along_axis(values[None, :, None], best[..., None], -1)[..., 0]),
    )


def _quantile_lens(run: Run, streams: list[Tensor], data: xr.Dataset) -> xr.Dataset:
    lens = run.lens
    with torch.no_grad():
        *below, last = streams
        quantiles = torch.stack([*(lens.readout(stream, run.encoded) for stream in below), own_readout(run, last)])
    array = quantiles[..., : run.horizon].cpu().double().numpy()
    middle = int(np.argmin(np.abs(np.array(lens.levels) - 0.5)))
    return data.assign_coords(quantile=list(lens.levels)).assign(
        quantile_forecast=(("layer", "series", "quantile", "step"), array),
        point_forecast=(("layer", "series", "step"), array[:, :, middle]),
    )


def count_peaks(probability: np.ndarray) -> np.ndarray:
    """Count modes of distributions over bins, (…, bin) -> (…): peaks of at least 0.02, two bins apart.

    Example:
        >>> int(probes.count_peaks(np.array([0.5, 0.0, 0.0, 0.0, 0.5])))
        2
    """
    flat = probability.reshape(-1, probability.shape[-1])
    # padding lets a mode in the first or last bin count
    padded = np.pad(flat, ((0, 0), (1, 1)))
    counts = [len(find_peaks(row, height=PEAK_HEIGHT, distance=PEAK_DISTANCE)[0]) for row in padded]
    return np.array(counts, dtype=int).reshape(probability.shape[:-1])


def bin_quantiles(probability: np.ndarray, values: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Compute quantiles of distributions over bins: the first value whose cumulative probability reaches the level.

    Args:
        probability: (series, step, bin), need not sum to 1 (mass on special tokens is left out).
        values: (series, bin), ascending.
        levels: between 0 and 1.

    Returns:
        (series, level, step).

    Example:
        >>> probes.bin_quantiles(np.full((1, 1, 4), 0.25), np.array([[1.0, 2.0, 3.0, 4.0]]), [0.5]).tolist()
        [[[2.0]]]
    """
    cumulative = np.cumsum(probability, axis=-1)
    cumulative /= cumulative[..., -1:]
    out = np.empty((probability.shape[0], len(levels), probability.shape[1]))
    for index, level in enumerate(levels):
        first = np.argmax(cumulative >= level - 1e-12, axis=-1)
        out[:, index] = np.take_along_axis(values, first, axis=-1)
    return out


@probe("lens_logits", "first")
def lens_logits(run: Run) -> xr.Dataset:
    """Compute the logits themselves, where :func:`logit_lens` gives probabilities.

    Args:
        run: the forecast to explain, of a model that forecasts by tokens.

    Returns:
        Dataset of kind "lens_logits": ``logit`` (layer, series, step, bin); ``value`` (series, bin) in data units.

    Source:
        tsfm-lens paper, section 2 and figure 1C (S3-DLA).

    Raises:
        InputError: the model has no vocabulary, or a horizon longer than one pass.

    Example:
        >>> probes.lens_logits(run)["logit"].dims
        ('layer', 'series', 'step', 'bin')
    """
    lens = run.lens
    if lens.emits != "token":
        raise InputError(
            f"{lens.model_id} emits {lens.emits}s, not tokens of a vocabulary, so that there are no logits; "
            "logit_lens gives the forecast that each of its layers holds"
        )
    names, streams = layer_streams(run)
    first = lens.first_value_token
    with torch.no_grad():
        logits = [lens.readout(stream, run.encoded)[..., first:].float().cpu().numpy() for stream in streams]
    data = run.dataset().assign_coords(layer=names)
    data["logit"] = (("layer", "series", "step", "bin"), np.stack(logits))
    data["value"] = (("series", "bin"), lens.bin_values(run.encoded).double().cpu().numpy())
    source = "tsfm-lens paper, section 2 and figure 1C (S3-DLA)"
    data.attrs = run.describe("lens_logits", "Lens logits", source)
    return data


METRICS = ("sMAPE", "MAE", "RMSE")


def _reference(results: Any) -> dict[str, str]:
    """Choose the reference of the gain: the model's own forecast where there is no truth."""
    truth = results.run.truth
    return {"reference": "model" if truth is None or not np.isfinite(truth).any() else "truth"}


@probe("layer_gain", ("logit_lens",), options=_reference)
def layer_gain(lens_result: xr.Dataset, *, reference: str = "truth") -> xr.Dataset:
    """Compute the change of the lens forecast's error from each layer to the next.

    ``gain_l = 100 (m_l - m_{l-1}) / m_{l-1}`` for the errors m of point forecasts: negative is better. The first step
    of a token model's decoder, which reads no value, is left out and has an error of its own.

    Args:
        lens_result: from :func:`tsfm_lens.probes.logit_lens`.
        reference: "truth" measures against the values after the context, "model" against the model's own forecast.

    Returns:
        Dataset of kind "layer_gain": ``error`` and ``gain`` in percent (metric, layer, series), NaN for the first layer
        and after an error of 0, with what :func:`tsfm_lens.probes.findings.judge` adds for each metric (MAE, RMSE, and
        sMAPE, ``100 mean(|x - y| / (|x| + |y|))``); of token models ``first_step_error`` (layer, series).

    Source:
        tsfm-lens paper, appendix F (S3-GAIN).

    Raises:
        InputError: the result is of another kind, or holds no truth.

    Example:
        >>> probes.layer_gain(probes.logit_lens(run))["gain"].dims
        ('metric', 'layer', 'series')
    """
    lens_result = of_kind(lens_result, "logit_lens", "layer_gain")
    if reference == "truth":
        if "truth" not in lens_result or not np.isfinite(lens_result["truth"].values).any():
            raise InputError(
                "this logit lens knows no truth; make its run with truth=… or holdout=True, or use reference='model'"
            )
        target = lens_result["truth"]
    elif reference == "model":
        target = lens_result["point_forecast"].isel(layer=-1)
    else:
        raise InputError(f"reference={reference!r} is not known, choose 'truth' or 'model'")
    forecast, axes = lens_result["point_forecast"].transpose("layer", "series", "step"), ("metric", "layer", "series")
    first = int(lens_result.attrs.get("first_step", 0))
    predictions, targets = forecast.values, target.transpose("series", "step").values
    error = _errors(predictions[..., first:], targets[..., first:])
    gain = 100 * (error / _before(error) - 1)
    coords = {"metric": list(METRICS), "layer": forecast["layer"], "series": forecast["series"]}
    result = xr.Dataset({"error": (axes, error), "gain": (axes, gain)}, coords=coords)
    if first:
        result["first_step_error"] = (axes[1:], np.abs(predictions - targets)[..., 0])
    keep = ("model", "revision", "architecture", "versions", "seed", "horizon")
    result.attrs = {
        "kind": "layer_gain",
        "title": "Gain per layer",
        "source": "tsfm-lens paper, appendix F (S3-GAIN)",
        "reference": reference,
        **{key: lens_result.attrs[key] for key in keep if key in lens_result.attrs},
    }
    # each layer's forecast may be off by itself
    off = np.broadcast_to(lens_result.get("rounding", 0.0), targets.shape[:1])[:, None]
    turn = np.where(np.arange(targets.shape[-1]) % 2, 1.0, -1.0)
    shifts = [_errors((predictions + each)[..., first:], targets[..., first:]) for each in (off * turn, off + 0 * turn)]
    doubt = np.fmax(np.abs(shifts[0] - error), np.abs(shifts[1] - error))
    floor = np.full(gain.shape, np.nan)
    floor[:, 1:] = doubt[:, 1:] + doubt[:, :-1] * (1 + gain[:, 1:] / 100)
    floor *= 100 / _before(error)
    return judge(result, "gain", floor=xr.DataArray(floor, dims=axes), signed=True, groups="metric")


def _errors(forecast: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Compute sMAPE in percent, MAE and RMSE over known steps, (layer, series, step) -> (metric, layer, series)."""
    deviation = np.abs(forecast - target)
    size = np.abs(forecast) + np.abs(target)
    share = np.divide(deviation, size, out=np.zeros_like(deviation), where=size > 0)
    valid = np.isfinite(deviation)
    share = np.where(valid, share, np.nan)
    with warnings.catch_warnings():
        # a series may have no values at all
        warnings.simplefilter("ignore", RuntimeWarning)
        means = [np.nanmean(each, axis=-1) for each in (share, deviation, deviation**2)]
    return np.stack([100 * means[0], means[1], np.sqrt(means[2])])


def _before(error: np.ndarray) -> np.ndarray:
    """Return the error of the layer before, NaN where there is none or it is 0."""
    before = np.concatenate([np.full_like(error[:, :1], np.nan), error[:, :-1]], axis=1)
    return np.where(before > 0, before, np.nan)


_VARIABLES = ("context", "truth", "native_median", "probability", "value")


@dataclass
class _Trajectory:
    """Line of one layer: places, half widths and weights of its modes, (step,); NaN, 0 and 0 for none."""

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
        """Line that is neither continuous with the context nor there in the last layer."""
        return not self.continuous and not self.survives


@probe("lines_of_thought", "first")
def lines_of_thought(run: Run, **rules: Any) -> xr.Dataset:
    """Follow the modes of every layer's logit map along the forecast, and through depth; see :func:`trace_lines`.

    Args:
        run: the forecast to explain, of a token model.
        rules: options of :func:`trace_lines`.

    Raises:
        InputError: the model has no output bins in the order of their values, or an option out of range.

    Example:
        >>> probes.lines_of_thought(run).sizes["line"] > 1
        True
    """
    lens = run.lens
    if lens.emits != "token":
        raise InputError(
            f"{lens.model_id} reads out {lens.emits}s, which have no modes to follow; lines of thought need "
            "a token model such as Chronos. logit_lens and layer_gain show how the layers of any model differ"
        )
    if lens.takes_ids:
        raise InputError(
            f"{lens.model_id} forecasts token ids, whose neighbours mean nothing; lines of thought need bins of values"
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
    """Trace lines of thought in logit maps that are there already; the paper has words and no algorithm.

    - A *mode* is a peak of the slightly smoothed distribution over bins. Its weight is the probability between the
      valleys beside it, its width that at half its prominence.
    - Two modes are *within reach* if they are no further apart than the context's largest step times ``jump``, plus
      half the width of the wider one.
    - A *line* joins modes of successive steps that are within reach, the nearest first over all.
    - A line is *continuous* if it begins at the first step within reach of the last context value, or later, within
      reach of a continuous line's place one step earlier.
    - Two lines of different layers are *at the same place* if they share at least the part ``overlap`` of the shorter
      one's steps, and are within reach there on average.
    - A line is *spurious* if it is not continuous and no line of the last layer is at its place.
    - A *thread* joins lines of successive layers at the same place, one to one, nearest first.

    Args:
        maps: of kind "logit_lens" of a token model.
        smooth: standard deviation of the Gaussian over bins, in largest steps of the context; 0 smoothes nothing.
        height, prominence: of the lowest mode, as shares of the highest one's height.
        distance: fewest bins between two modes.
        jump, overlap: see above.
        gap: steps without a mode that a line may pass over; its reach grows with them.
        min_steps: modes of the shortest line.

    Returns:
        Dataset of kind "lines_of_thought", with the maps. Over (layer, series): ``count`` of lines, ``spurious_count``,
        and ``spurious_mass``, the probability on spurious lines, mean over steps. Along ``line``: ``line_layer``,
        ``line_series``, ``start`` and ``stop`` (steps, the last one excluded), ``length`` (modes), ``mean_value`` (data
        units), ``mass`` (mean over all steps), ``continuous``, ``survives``, ``spurious``, ``thread``, and ``birth``
        and ``death``, the thread's first and last layer. ``path`` and ``path_mass`` (line, step), NaN and 0 without a
        mode; ``largest_step`` (series), that of the context times ``jump``, at least one bin, in data units.

    Source:
        tsfm-lens paper, section 2.3 and figure 1C, in words.

    Raises:
        InputError: no such maps, or a parameter is out of range.

    Example:
        >>> probes.trace_lines(probes.logit_lens(run)).sizes["line"] > 1
        True
    """
    if smooth < 0 or not (0 < height < 1 and 0 < prominence < 1) or distance < 1:
        raise InputError(
            f"smooth {smooth}, height {height}, prominence {prominence}, distance {distance}: "
            "expected a smoothing of 0 or more, shares of the highest mode between 0 and 1, and 1 or more bins"
        )
    if jump <= 0 or gap < 0 or min_steps < 1 or not 0 < overlap <= 1:
        raise InputError(
            f"jump {jump}, gap {gap}, min_steps {min_steps}, overlap {overlap}: expected a "
            "jump above 0, a gap of 0 or more, 1 or more steps, and an overlap above 0 and up to 1"
        )
    shape = {"smooth": smooth, "height": height, "prominence": prominence, "distance": distance}
    rules = SimpleNamespace(**shape, jump=jump, gap=gap, min_steps=min_steps, overlap=overlap)
    if "probability" not in of_kind(maps, "logit_lens", "trace_lines"):
        raise InputError("lines of thought are traced in a token model's logit_lens; this is one without probabilities")
    probability = maps["probability"].transpose("layer", "series", "step", "bin").values
    values, context = maps["value"].transpose("series", "bin").values, maps["context"].values
    n_layers, n_series, steps, _ = probability.shape
    # steps of the context, and at least the width of a bin
    steps_of = [np.abs(np.diff(past)) for past in context]
    highest = [float(each[np.isfinite(each)].max(initial=0.0)) for each in steps_of]
    bins = [float(np.diff(np.sort(own)).min()) for own in values]
    largest = rules.jump * np.maximum(highest, bins)
    lines: list[_Trajectory] = []
    for series in range(n_series):
        finite = context[series][np.isfinite(context[series])]
        layers = [_lines(one[series], values[series], largest[series], rules) for one in probability]
        for layer, layer_lines in enumerate(layers):
            for line in layer_lines:
                line.layer, line.series = layer, series
                gaps = [_apart(line, end, largest[series], rules.overlap) for end in layers[-1]]
                line.survives = bool(np.isfinite(gaps).any())
            _mark_continuous(layer_lines, finite[-1], largest[series])
        first = max((line.thread + 1 for line in lines), default=0)
        _mark_threads(layers, largest[series], rules.overlap, first)
        lines += [line for layer_lines in layers for line in layer_lines]
    data = maps[[name for name in _VARIABLES if name in maps]]
    data["largest_step"] = (("series",), largest, {"units": "data units"})
    count, spurious, mass = (np.zeros((n_layers, n_series), dtype=kind) for kind in (int, int, float))
    for line in lines:
        at = (line.layer, line.series)
        count[at] += 1
        spurious[at] += line.spurious
        mass[at] += line.spurious * line.mass.sum() / steps
    for name, values in (("count", count), ("spurious_count", spurious), ("spurious_mass", mass)):
        data[name] = (("layer", "series"), values)
    data = _add_table(data, lines, steps)
    keep = {key: value for key, value in maps.attrs.items() if key != "readout"}
    title, source = "Lines of thought", "tsfm-lens paper, section 2.3 and figure 1C"
    data.attrs = {**keep, "kind": "lines_of_thought", "title": title, "source": source, **vars(rules)}
    return data


def _modes(
    probability: np.ndarray, values: np.ndarray, largest: float, rules: SimpleNamespace
) -> list[tuple[float, float, float]]:
    """Return value, half width and weight of each mode of one distribution over bins."""
    # padding lets a mode in the first or last bin count
    bin_width = (values[-1] - values[0]) / (len(values) - 1)
    blur = rules.smooth * largest / (rules.jump * bin_width)
    density = gaussian_filter1d(probability.astype(float), blur, mode="constant") if blur > 0 else probability
    padded, top = np.pad(density, 1), density.max()
    height, prominence = rules.height * top, rules.prominence * top
    peaks, _ = find_peaks(padded, height=height, distance=rules.distance, prominence=prominence)
    if not len(peaks):
        return []
    _, _, left, right = peak_widths(padded, peaks)
    places = np.arange(-1, len(values) + 1)
    edges = np.interp([left - 1, right - 1], places[1:-1], values)
    valleys = [a + int(np.argmin(density[a:b])) for a, b in pairwise(peaks - 1)]
    weights = np.add.reduceat(probability, [0, *valleys])
    return list(zip(values[peaks - 1], (edges[1] - edges[0]) / 2, weights, strict=True))


def _lines(probability: np.ndarray, values: np.ndarray, largest: float, rules: SimpleNamespace) -> list[_Trajectory]:
    """Join the modes of one layer's map (step, bin) to lines."""
    steps = len(probability)
    lines: list[_Trajectory] = []
    for step in range(steps):
        modes = _modes(probability[step], values, largest, rules)
        open_lines = [line for line in lines if line.stop >= step - rules.gap]
        cost = np.full((len(open_lines), len(modes)), np.inf)
        for (one, line), (other, (place, width, _)) in product(enumerate(open_lines), enumerate(modes)):
            last = line.stop - 1
            distance = abs(line.path[last] - place)
            if distance <= largest * (step - last) + max(line.width[last], width):
                cost[one, other] = distance
        matches = {other: open_lines[one] for one, other in _nearest(cost)}
        for number, mode in enumerate(modes):
            line = matches.get(number) or _Trajectory(-1, -1, np.full(steps, np.nan), np.zeros(steps), np.zeros(steps))
            if number not in matches:
                lines.append(line)
            line.path[step], line.width[step], line.mass[step] = mode
    return [line for line in lines if len(line.steps) >= rules.min_steps]


def _nearest(cost: np.ndarray) -> list[tuple[int, int]]:
    """Pair rows and columns: as many pairs of finite cost as there can be, of these the cheapest in all."""
    finite = np.isfinite(cost)
    if not finite.any():
        return []
    # dearer than all that is allowed together
    never = 1.0 + 2.0 * float(cost[finite].sum())
    rows, columns = linear_sum_assignment(np.where(finite, cost, never))
    return [(int(a), int(b)) for a, b in zip(rows, columns, strict=True) if finite[a, b]]


def _mark_continuous(lines: Sequence[_Trajectory], last_value: float, largest: float) -> None:
    """Mark lines that begin at the context's end, or branch off one that does."""
    for line in sorted(lines, key=lambda each: each.start):
        begin, width = line.path[line.start], line.width[line.start]
        if line.start == 0:
            line.continuous = bool(abs(begin - last_value) <= largest + width)
            continue
        earlier = line.start - 1
        line.continuous = any(
            abs(begin - other.path[earlier]) <= largest + max(width, other.width[earlier])
            for other in lines
            if other.continuous and other is not line
        )


def _apart(one: _Trajectory, other: _Trajectory, largest: float, overlap: float) -> float:
    """Return the mean distance of two lines over common steps; infinite if they are not at the same place."""
    both = np.isfinite(one.path) & np.isfinite(other.path)
    shorter = min(len(line.steps) for line in (one, other))
    if not both.any() or both.sum() < overlap * shorter:
        return float("inf")
    distance = float(np.abs(one.path - other.path)[both].mean())
    reach = largest + float(np.maximum(one.width, other.width)[both].mean())
    return distance if distance <= reach else float("inf")


def _mark_threads(layers: Sequence[Sequence[_Trajectory]], largest: float, overlap: float, first: int) -> None:
    """Give each thread a number, from ``first`` on."""
    before: Sequence[_Trajectory] = []
    for layer_lines in layers:
        cost = np.full((len(before), len(layer_lines)), np.inf)
        for (one, line), (other, next_line) in product(enumerate(before), enumerate(layer_lines)):
            cost[one, other] = _apart(line, next_line, largest, overlap)
        for one, other in _nearest(cost):
            layer_lines[other].thread = before[one].thread
        for line in layer_lines:
            if line.thread < 0:
                line.thread, first = first, first + 1
        before = layer_lines


def _add_table(data: xr.Dataset, lines: Sequence[_Trajectory], steps: int) -> xr.Dataset:
    """Add one entry a line."""
    layers, series = data["layer"].values, data["series"].values
    ends: dict[int, tuple[int, int]] = {}
    for line in lines:
        low, high = ends.get(line.thread, (line.layer, line.layer))
        ends[line.thread] = min(low, line.layer), max(high, line.layer)
    data = data.assign_coords(
        line=range(len(lines)),
        line_layer=("line", [str(layers[line.layer]) for line in lines]),
        line_series=("line", [str(series[line.series]) for line in lines]),
    )
    names = ("start", "stop", "continuous", "survives", "spurious", "thread")
    columns: dict[str, list[Any]] = {name: [getattr(line, name) for line in lines] for name in names}
    columns["length"] = [len(line.steps) for line in lines]
    columns["mean_value"] = [float(np.nanmean(line.path)) for line in lines]
    columns["mass"] = [float(line.mass.sum() / steps) for line in lines]
    for name, end in (("birth", 0), ("death", 1)):
        columns[name] = [str(layers[ends[line.thread][end]]) for line in lines]
    for name, column in columns.items():
        data[name] = (("line",), np.array(column))
    data["path"] = (("line", "step"), np.array([line.path for line in lines]).reshape(-1, steps))
    data["path_mass"] = (("line", "step"), np.array([line.mass for line in lines]).reshape(-1, steps))
    return data
