"""Families of synthetic series, KernelSynth and chaotic systems.

Every generator maps a :class:`SeriesDraw` to an array (count, length), and ``FAMILIES``
has them by name. Read :func:`seasonal` first, and :func:`kernelsynth` for the paper's
generator. The corpus is built from them in :mod:`tsfm_lens.studies.recipes.corpus`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import Tensor

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

CALENDAR_PERIODS = np.array(
    [4, 5, 6, 7, 8, 10, 12, 12, 14, 16, 20, 24, 24, 26, 28, 30, 32, 36, 40, 48, 52, 60]
)
"""Seasons that calendars make, in steps."""

NESTED_PERIODS = np.array(
    [
        (24, 12, 6, 7, 8, 12, 4, 24, 48, 10),
        (7, 5, 7, 4, 3, 7, 13, 5, 7, 6),
    ]
)
"""A short season and how many of it make the long one, e.g. 24 hours x 7 days."""


@dataclass(frozen=True)
class SeriesDraw:
    """Random numbers that rows of series are made of.

    A method draws one number for each row, (count, 1), unless it says otherwise.

    Attributes:
        rng: generator, which every draw moves on.
        count: number of rows.
        length: steps of a row.
    """

    rng: Generator
    count: int
    length: int

    @property
    def size(self) -> tuple[int, int]:
        """Size of a draw of one number for each row."""
        return self.count, 1

    def pick(self, *levels: float) -> NDArray[Any]:
        """Draw one of the values ``levels``."""
        return self.rng.choice(levels, self.size)

    def uniform(self, low: float, high: float) -> Array:
        """Draw values between two bounds."""
        return self.rng.uniform(low, high, self.size)

    def log_uniform(self, low: float, high: float) -> Array:
        """Draw values whose logarithms are uniform between those of two bounds."""
        return np.exp(self.uniform(np.log(low), np.log(high)))

    def normal(self, mean: float = 0.0, deviation: float = 1.0) -> Array:
        """Draw normal values."""
        return self.rng.normal(mean, deviation, self.size)

    def integers(self, low: int | Integers, high: int | None = None) -> Integers:
        """Draw whole numbers below a bound, or from one to below another."""
        return self.rng.integers(low, high, self.size)

    def some(self, share: float) -> NDArray[np.bool_]:
        """Draw a mask that is true for a share of the rows."""
        return self.rng.random(self.size) < share

    def white(self) -> Array:
        """Draw independent normal values, (count, length)."""
        return self.rng.standard_normal((self.count, self.length))

    def noise(self, *levels: float) -> Array:
        """Draw normal noise (count, length), of one of the deviations for each row."""
        return self.white() * self.pick(*levels)


Family = Callable[[SeriesDraw], Array]


def fading(memory: Iterable[Array], shocks: Array) -> Array:
    """Add up shocks (row, length), of which each row remembers some.

    A row of ``memory`` has the factors on the value one step before, two before, ….
    """
    rows = zip(memory, shocks, strict=True)
    return np.stack(
        [lfilter([1.0], np.r_[1.0, -factors], row) for factors, row in rows]
    )


def unit(series: Array) -> Array:
    """Centre each row and scale it to unit standard deviation."""
    series = series - series.mean(axis=1, keepdims=True)
    return series / (series.std(axis=1, keepdims=True) + 1e-9)


def lengths_for_motifs(draw: SeriesDraw) -> Integers:
    """Draw motif periods, half of them log-uniform from 3 on, half from the calendar.

    At least two full repeats fit into three quarters of the series.
    """
    longest = max(4, int(draw.length * 0.36))
    smooth = draw.log_uniform(3.0, longest + 1.0).astype(np.int64)
    calendar = draw.pick(*CALENDAR_PERIODS[longest >= CALENDAR_PERIODS])
    return np.where(draw.some(0.5), smooth, calendar)


def tile(shapes: Array, periods: Integers, phases: Integers, length: int) -> Array:
    """Repeat the first `periods[i]` values of `shapes[i]`, from `phases[i]` on.

    Periods and phases are (count, 1), the result is (count, length).
    """
    index = (np.arange(length) + phases) % periods
    return np.take_along_axis(shapes, index, axis=1)


def motif_rough(draw: SeriesDraw) -> Array:
    """Draw exactly repeated motifs of independent values.

    The values are normal, uniform or heavy-tailed.
    """
    rng = draw.rng
    periods = lengths_for_motifs(draw)
    size = (draw.count, int(periods.max()))
    kind = draw.integers(3)
    heavy = np.clip(rng.standard_t(3, size), -5, 5)
    normal = rng.standard_normal(size)
    shapes = np.choose(kind, [normal, rng.uniform(-1.7, 1.7, size), heavy])
    return tile(shapes, periods, draw.integers(periods), draw.length)


def _smooth_shapes(draw: SeriesDraw, periods: Integers) -> Array:
    """Draw random closed curves: Brownian bridges.

    Half of them are smoothed over neighbours.
    """
    widest = int(periods.max())
    walk = np.cumsum(draw.rng.standard_normal((draw.count, widest)), axis=1)
    last = np.take_along_axis(walk, periods - 1, axis=1)
    bridge = walk - last * (np.arange(1, widest + 1) / periods)
    mellow = (
        0.25 * np.roll(bridge, 1, axis=1)
        + 0.5 * bridge
        + 0.25 * np.roll(bridge, -1, axis=1)
    )
    shapes = np.where(draw.some(0.5), mellow, bridge)
    inside = np.arange(widest) < periods
    mean = (shapes * inside).sum(1, keepdims=True) / periods
    squares = ((shapes - mean) * inside) ** 2
    deviation = np.sqrt(squares.sum(1, keepdims=True) / periods)
    return (shapes - mean) / (deviation + 1e-6)


def motif_smooth(draw: SeriesDraw) -> Array:
    """Draw exactly repeated motifs with correlated values."""
    periods = lengths_for_motifs(draw)
    shapes = _smooth_shapes(draw, periods)
    return tile(shapes, periods, draw.integers(periods), draw.length)


def harmonics(draw: SeriesDraw) -> Array:
    """Draw sums of one to four harmonics of a period that need not be an integer."""
    smooth = draw.log_uniform(4.0, draw.length * 0.6)
    calendar = draw.pick(*CALENDAR_PERIODS)
    periods = np.where(draw.some(0.5), smooth, calendar)
    terms = np.arange(1, 5)
    mask = terms <= draw.integers(1, 5)
    amplitude = draw.rng.normal(size=mask.shape) / terms * mask
    phase = draw.rng.uniform(0, 2 * np.pi, mask.shape)
    angle = 2 * np.pi * np.arange(draw.length) * terms[:, None] / periods[..., None]
    waves = amplitude[..., None] * np.sin(angle + phase[..., None])
    return unit(waves.sum(axis=1))


def autoregressive(draw: SeriesDraw) -> Array:
    """Draw AR(1) and AR(2).

    The second kind has complex roots, so it cycles without a fixed period.
    """
    warm = 100
    radius = 1.0 - draw.log_uniform(0.005, 0.7)
    angle = 2 * np.pi / draw.log_uniform(4.0, 40.0)
    cyclic = draw.some(0.5)
    first = np.where(cyclic, 2 * radius * np.cos(angle), radius)
    second = np.where(cyclic, -(radius**2), 0.0)
    shocks = replace(draw, length=draw.length + warm).white()
    # the filter starts at 0, so the first steps are not of the stationary process
    return unit(fading(np.hstack([first, second]), shocks)[:, warm:])


def random_walk(draw: SeriesDraw) -> Array:
    """Draw random walks with drift.

    One in four is integrated once more and is a smooth trend.
    """
    walk = np.cumsum(draw.white() + draw.normal(0, 0.15), axis=1)
    twice = np.cumsum(walk, axis=1) / draw.length
    return unit(np.where(draw.some(0.25), twice, walk))


def trend(draw: SeriesDraw) -> Array:
    """Draw linear, damped, exponential or once-broken trends with noise.

    Rows start near 0.
    """
    t = np.linspace(0, 1, draw.length)
    kind = draw.integers(4)
    knee = draw.uniform(0.2, 0.8)
    broken = t + draw.normal() * np.maximum(t - knee, 0)
    line = np.choose(
        kind, [t, 1 - np.exp(-3 * t * knee), np.expm1(2 * t * knee), broken]
    )
    added = draw.noise(0, 0.01, 0.05, 0.15)
    return unit(line * draw.pick(-1.0, 1.0) + added)


def white_noise(draw: SeriesDraw) -> Array:
    """Draw independent values: normal or skewed (log-normal)."""
    normal = draw.white()
    return unit(np.where(draw.some(0.7), normal, np.exp(0.6 * normal)))


def _any_season(draw: SeriesDraw) -> Array:
    """Draw a season of any shape, standard deviation about 1."""
    kind = draw.integers(3)
    return np.choose(kind, [motif_rough(draw), motif_smooth(draw), harmonics(draw)])


def seasonal(draw: SeriesDraw) -> Array:
    """Draw season, slow trend and short-memory noise, added or multiplied.

    Levels are mostly positive, as in business data.
    """
    season = _any_season(draw)
    is_trend = draw.some(0.5)
    trends = trend(draw)
    drift = unit(np.where(is_trend, trends, random_walk(draw)))
    drift = drift * draw.pick(0.0, 0.3, 1.0, 2.0)
    memory = draw.uniform(0, 0.8)
    white = np.sqrt(1 - memory * memory) * draw.white()
    remembered = fading(memory, white) * draw.pick(0.0, 0.05, 0.15, 0.4)
    growth = 1 + 0.15 * drift * draw.some(0.4)
    level = draw.log_uniform(0.5, 60.0) * draw.some(0.8)
    return level + drift + season * growth + remembered


def seasonal_walk(draw: SeriesDraw) -> Array:
    """Draw a motif that changes at every repeat, x(t) = x(t - q) + noise.

    Only the last repeat is up to date.
    """
    periods = lengths_for_motifs(draw)
    is_smooth = draw.some(0.5)
    smooth = _smooth_shapes(draw, periods)
    shapes = np.where(is_smooth, smooth, draw.rng.standard_normal(smooth.shape))
    change = draw.noise(0.05, 0.15, 0.3)
    # each value remembers the one a period before
    walks = fading((np.eye(period)[-1] for period in periods.ravel().tolist()), change)
    return tile(shapes, periods, draw.integers(periods), draw.length) + walks


def double_season(draw: SeriesDraw) -> Array:
    """Draw a short season inside a long one (day in week), with noise.

    The two are multiplied or added.
    """
    short, times = NESTED_PERIODS[:, draw.integers(NESTED_PERIODS.shape[1])]
    start, number = _number_days(draw, short, times)
    inner = tile(_smooth_shapes(draw, short), short, start, draw.length)
    is_working = np.arange(13) < times - 2
    days = np.where(is_working, 1.0, draw.uniform(0.2, 1.0))
    days = days + draw.rng.normal(0, 0.1, days.shape)
    outer = np.take_along_axis(days, number % times, axis=1)
    inner = inner + draw.uniform(1.5, 6.0)
    together = np.where(draw.some(0.5), inner * outer, inner + 2 * outer)
    return together + draw.noise(0.02, 0.1, 0.3)


def _number_days(
    draw: SeriesDraw, steps: Integers, days: int | Integers = 7
) -> tuple[Integers, Integers]:
    """Draw the step (row, 1) of a week that series start at, and number their days.

    The numbers are (row, length), from 0 on; a day has ``steps``.
    """
    start = draw.integers(days * steps)
    return start, (np.arange(draw.length) + start) // steps


def _with_busy_days(draw: SeriesDraw, shape: Array, day: Integers) -> Array:
    """Add to rows that every day is busier or quieter, and noise.

    The exponential is taken of about half of the rows, each times a factor.
    """
    days = replace(draw, length=int(day.max()) + 1)
    busy = days.noise(0.0, 0.1, 0.3)
    together = shape + np.take_along_axis(busy, day, axis=1)
    together = together + draw.noise(0.02, 0.1, 0.3)
    raised = draw.some(0.5)
    return np.where(raised, together, np.exp(draw.uniform(0.3, 1.0) * together))


def day_types(draw: SeriesDraw) -> Array:
    """Draw weeks of working days and days off, as of traffic or footfall.

    Each kind of day has a shape, and every day is busier or quieter.
    """
    steps = draw.pick(24, 24, 24, 12, 48, 8)
    work = _smooth_shapes(draw, steps)
    rest = _smooth_shapes(draw, steps)
    likeness = draw.uniform(0, 1)
    rest = likeness * work + (1 - likeness) * rest - draw.uniform(0, 1.5)
    start, day = _number_days(draw, steps)
    resting = day % 7 >= draw.pick(5, 5, 6)
    shapes = [tile(part, steps, start, draw.length) for part in (work, rest)]
    return _with_busy_days(draw, np.choose(resting, shapes), day)


def holidays(draw: SeriesDraw) -> Array:
    """Draw weeks with holidays of one to ten days.

    They are like days off, or quieter or busier than any other day.
    """
    steps = draw.pick(24, 24, 24, 12, 8, 1, 1)
    work, rest, feast = (
        _smooth_shapes(draw, np.maximum(steps, 2)) * (steps > 1) for _ in range(3)
    )
    rest_likeness = draw.uniform(0, 1)
    feast_share = draw.uniform(0, 1)
    rest = rest_likeness * work + (1 - rest_likeness) * rest - draw.uniform(0, 1.5)
    feast = feast_share * rest + (1 - feast_share) * feast
    feast = feast + draw.normal(-0.5, 1.0) * draw.some(0.5)
    start, day = _number_days(draw, steps)
    days = np.arange(int(day.max()) + 1)
    resting = days % 7 >= draw.pick(5, 5, 6)
    feasting = np.zeros((draw.count, days.size), dtype=bool)
    for _ in range(4):
        first = (draw.rng.random(draw.size) * (day[:, -1:] + 8)).astype(np.int64) - 4
        last = first + draw.integers(1, 11)
        feasting |= (first <= days) & (days < last) & draw.some(0.6)
    kind = np.take_along_axis(np.where(feasting, 2, resting), day, axis=1)
    shapes = [tile(part, steps, start, draw.length) for part in (work, rest, feast)]
    return _with_busy_days(draw, np.choose(kind, shapes), day)


def shocks(draw: SeriesDraw) -> Array:
    """Draw slow cycles with sudden jumps that fade, half of them with a season.

    Unemployment, prices and claims are such series.
    """
    slow = draw.uniform(0.2, 2.0) * random_walk(draw)
    for _ in range(3):
        since = np.arange(draw.length) - draw.integers(draw.length)
        fade = draw.log_uniform(2, 120)
        jump = draw.normal(0, 2.5) * draw.some(0.6)
        faded = np.exp(-np.maximum(since, 0) / fade)
        slow = slow + jump * np.where(since >= 0, faded, 0.0)
    season = draw.pick(0.0, 0.0, 0.1, 0.3) * _any_season(draw)
    return slow + season + draw.noise(0.01, 0.05, 0.15)


def walks(draw: SeriesDraw) -> Array:
    """Draw sums of shocks that are Gaussian, heavy-tailed, rare or with momentum.

    Some revert to a mean, are rounded, or vary in size over time.
    """
    kind = draw.integers(4)
    normal = draw.white()
    is_shock = draw.rng.random(normal.shape) < draw.log_uniform(0.02, 0.5)
    slow = fading(draw.uniform(0.2, 0.9), normal)
    heavy = np.clip(draw.rng.standard_t(3, normal.shape), -12, 12)
    shocks = np.choose(kind, [normal, heavy, normal * is_shock, slow])
    # calm and stormy times, on a third of the rows
    storm = np.cumsum(draw.white(), axis=1)
    storm = storm * draw.some(0.33) * 0.08
    shocks = shocks * np.exp(np.clip(storm, -1.5, 1.5))
    drift = draw.pick(0.0, 0.0, 0.1, -0.1, 0.4)
    shocks = shocks + shocks.std(axis=1, keepdims=True) * drift
    walk = fading(draw.pick(1.0, 1.0, 1.0, 0.98, 0.93), shocks)
    step = np.abs(np.diff(walk, axis=1)).mean(axis=1, keepdims=True) + 1e-9
    size = step * draw.pick(0.0, 0.0, 0.5, 1.5, 4.0)
    walk = walk + size * _any_season(draw)
    unit_of_record = step * draw.pick(0.5, 1.0, 3.0)
    rough = np.round(walk / unit_of_record) * unit_of_record
    return unit(np.where(draw.some(0.3), rough, walk))


def intermittent(draw: SeriesDraw) -> Array:
    """Draw counts: Poisson around a season, from mostly zero to dozens."""
    level = draw.uniform(np.log(0.3), np.log(60.0))
    rate = np.exp(level + 0.6 * _any_season(draw))
    return draw.rng.poisson(np.minimum(rate, 1e4)).astype(np.float64)


def level_shift(draw: SeriesDraw) -> Array:
    """Draw a season or noise whose level jumps once or twice."""
    is_season = draw.some(0.6)
    seasons = _any_season(draw)
    base = np.where(is_season, seasons, 0.3 * white_noise(draw))
    for _ in range(2):
        later = np.arange(draw.length) >= draw.integers(1, draw.length)
        base = base + draw.normal(0, 2.0) * later * draw.some(0.7)
    return base


FAMILIES: Mapping[str, Family] = {
    family.__name__: family
    for family in (
        motif_rough,
        motif_smooth,
        harmonics,
        seasonal,
        seasonal_walk,
        double_season,
        day_types,
        holidays,
        shocks,
        walks,
        intermittent,
        autoregressive,
        random_walk,
        trend,
        level_shift,
        white_noise,
    )
}
"""Generators of which a corpus has half of the rows at half the length, by name."""


PERIODS = (
    *(24, 48, 96, 168, 336, 672, 7, 14, 30, 60, 365),
    *(730, 4, 26, 52, 4, 6, 12, 4, 40, 10),
)
"""Periods of the bank in steps; 4 stands three times because three sampling rates share
it.
"""

SCALES = (0.1, 1.0, 10.0)
"""Of the kernels RBF and rational quadratic."""
MAX_KERNELS = 5
JITTER = 1e-6


def kernel_bank(length: int, period_scale: float = 1.0) -> Tensor:
    """Compute the covariances (33, length, length) of the bank on [0, 1].

    A `period_scale` of 1 gives the paper's periods.
    """
    grid = torch.linspace(0.0, 1.0, length, dtype=torch.float64)
    gap = (grid[:, None] - grid).abs()
    steps = gap * (length - 1)
    periods = [period * period_scale for period in PERIODS]
    periodic = [torch.sin(torch.pi * steps / period) ** 2 for period in periods]
    linear = grid[:, None] * grid
    same = torch.eye(length, dtype=torch.float64)
    return torch.stack(
        [
            *(torch.exp(-2.0 * part) for part in periodic),
            *(offset**2 + linear for offset in (0.0, 1.0, 10.0)),
            *(torch.exp(-0.5 * (gap / scale) ** 2) for scale in SCALES),
            *((1.0 + gap**2 / (2.0 * scale)) ** (-scale) for scale in SCALES),
            *(level * same for level in (0.1, 1.0)),
            torch.ones_like(gap),
        ]
    )


def compose(bank: Tensor, indices: np.ndarray, sums: np.ndarray) -> Tensor:
    """Join kernels of the bank left to right: a covariance (length, length)."""
    covariance = bank[indices[0]].clone()
    for index, by_sum in zip(indices[1:], sums[1:], strict=True):
        if by_sum:
            covariance = covariance.add_(bank[index])
        else:
            covariance = covariance.mul_(bank[index])
    return covariance


PERIOD_SCALES = (1.0, 1.0, 0.5, 2.0)
"""Factors on the periods of KernelSynth, each for a quarter of its rows.

Contexts are shorter than in the paper of KernelSynth.
"""


def kernelsynth(draw: SeriesDraw) -> Array:
    """Draw series of Gaussian processes, whose kernels are composed of the bank's.

    Covariances that do not factor are drawn anew.
    """
    rng = draw.rng
    series: list[Array] = []
    quarters = np.array_split(np.arange(draw.count), len(PERIOD_SCALES))
    for scale, rows in zip(PERIOD_SCALES, quarters, strict=True):
        bank = kernel_bank(draw.length, scale)
        last = len(series) + len(rows)
        while len(series) < last:
            kernels = int(rng.integers(1, MAX_KERNELS + 1))
            covariance = compose(
                bank, rng.integers(len(bank), size=kernels), rng.random(kernels) < 0.5
            )
            # jitter relative to the variance: a product of linear kernels reaches 1e8
            diagonal = covariance.diagonal()
            diagonal += JITTER * max(float(diagonal.mean()), 1e-12)
            factor, failure = torch.linalg.cholesky_ex(covariance)
            if not failure:
                normal = torch.from_numpy(rng.standard_normal(draw.length))
                series.append((factor @ normal).numpy())
    return np.reshape(series, (draw.count, draw.length))


Flow = Callable[[Array], Array]

WARM_UP = 500
"""Steps dropped before a flow is recorded, so that it is on its attractor."""


def lorenz(state: Array) -> Array:
    """Compute the derivative of Lorenz (1963): sigma 10, rho 28, beta 8/3.

    The state is (..., 3).
    """
    x, y, z = np.moveaxis(state, -1, 0)
    return np.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z], -1)


def roessler(state: Array) -> Array:
    """Compute the derivative of Roessler (1976): a = b = 0.2, c = 5.7.

    The state is (..., 3).
    """
    x, y, z = np.moveaxis(state, -1, 0)
    return np.stack([-y - z, x + 0.2 * y, 0.2 + z * (x - 5.7)], -1)


def rk4(flow: Flow, state: Array, dt: float | Array, steps: int) -> Array:
    """Integrate `flow` from `state` (n, d): array (steps, n, d).

    `dt` may differ between trajectories, (n, 1).
    """
    path = np.empty((steps, *state.shape))
    for step in range(steps):
        k1 = flow(state)
        k2 = flow(state + 0.5 * dt * k1)
        k3 = flow(state + 0.5 * dt * k2)
        k4 = flow(state + dt * k3)
        state = state + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        path[step] = state
    return path


def flow_series(draw: SeriesDraw, flow: Flow, steps: tuple[float, float]) -> Array:
    """Draw a random coordinate of trajectories.

    Each has its own sampling step within `steps`.
    """
    # the sampling step is too long to integrate by
    substeps = 4
    dt = draw.log_uniform(*steps) / substeps
    start = draw.rng.normal(size=(draw.count, 3)) + np.array([1.0, 1.0, 5.0])
    attractor = rk4(flow, start, 0.02, WARM_UP)[-1]
    path = rk4(flow, attractor, dt, draw.length * substeps)[::substeps]
    return np.take_along_axis(path, draw.integers(3)[None], axis=2)[..., 0].T


def logistic_series(draw: SeriesDraw) -> Array:
    """Draw the logistic map x -> r x (1 - x), r in [3.5, 4].

    The range has periodic windows and chaos.
    """
    rate = draw.uniform(3.5, 4.0)
    steps = [draw.uniform(0.1, 0.9)]
    for _ in range(WARM_UP + draw.length):
        steps.append(rate * steps[-1] * (1.0 - steps[-1]))
    return np.hstack(steps[-draw.length :])


def chaotic(draw: SeriesDraw) -> Array:
    """Draw a third each of Lorenz, Roessler and logistic-map series."""
    thirds = np.array_split(np.arange(draw.count), 3)
    first, second, third = (replace(draw, count=len(rows)) for rows in thirds)
    return np.concatenate(
        [
            flow_series(first, lorenz, (0.02, 0.15)),
            flow_series(second, roessler, (0.1, 0.8)),
            logistic_series(third),
        ]
    )


WHOLE: Mapping[str, Family] = {"kernelsynth": kernelsynth, "chaotic": chaotic}
"""Generators whose rows have their full length in a corpus, and unit deviation."""
