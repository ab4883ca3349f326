"""Families of synthetic series, KernelSynth and chaotic systems.

Every generator maps (rng, count, length) to an array (count, length), and ``FAMILIES``
has them by name. Read :func:`seasonal` first, and :func:`kernelsynth` for the paper's
generator. The corpus is built from them in :mod:`tsfm_lens.studies.recipes.corpus`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import Tensor

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Family = Callable[[Generator, int, int], Array]

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


def pick(rng: Generator, count: int, *levels: float) -> Array:
    """Draw one of the values ``levels`` for each row: (count, 1)."""
    return rng.choice(levels, (count, 1))


def log_uniform(
    rng: Generator, low: float, high: float, size: int | tuple[int, ...]
) -> Array:
    """Draw values whose logarithms are uniform between those of two bounds."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def noise(rng: Generator, count: int, length: int, *levels: float) -> Array:
    """Draw normal noise (count, length), of one of the deviations for each row."""
    return rng.standard_normal((count, length)) * pick(rng, count, *levels)


def some(rng: Generator, count: int, share: float) -> NDArray[np.bool_]:
    """Draw (count, 1) a mask that is true for a share of the rows."""
    return rng.random((count, 1)) < share


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


def lengths_for_motifs(rng: Generator, count: int, length: int) -> Integers:
    """Draw motif periods, half of them log-uniform from 3 on, half from the calendar.

    At least two full repeats fit into three quarters of the series.
    """
    longest = max(4, int(length * 0.36))
    smooth = log_uniform(rng, 3.0, longest + 1.0, count).astype(np.int64)
    calendar = rng.choice(CALENDAR_PERIODS[longest >= CALENDAR_PERIODS], count)
    return np.where(rng.random(count) < 0.5, smooth, calendar)


def tile(shapes: Array, periods: Integers, phases: Integers, length: int) -> Array:
    """Repeat the first `periods[i]` values of `shapes[i]`, from `phases[i]` on.

    The result is (count, length).
    """
    index = (np.arange(length) + phases[:, None]) % periods[:, None]
    return np.take_along_axis(shapes, index, axis=1)


def motif_rough(rng: Generator, count: int, length: int) -> Array:
    """Draw exactly repeated motifs of independent values.

    The values are normal, uniform or heavy-tailed.
    """
    periods = lengths_for_motifs(rng, count, length)
    size = (count, int(periods.max()))
    kind = rng.integers(3, size=(count, 1))
    heavy = np.clip(rng.standard_t(3, size), -5, 5)
    normal = rng.standard_normal(size)
    shapes = np.choose(kind, [normal, rng.uniform(-1.7, 1.7, size), heavy])
    return tile(shapes, periods, rng.integers(periods), length)


def _smooth_shapes(rng: Generator, periods: Integers) -> Array:
    """Draw random closed curves: Brownian bridges.

    Half of them are smoothed over neighbours.
    """
    count = len(periods)
    widest = int(periods.max())
    walk = np.cumsum(rng.standard_normal((count, widest)), axis=1)
    last = np.take_along_axis(walk, periods[:, None] - 1, axis=1)
    bridge = walk - last * (np.arange(1, widest + 1) / periods[:, None])
    mellow = (
        0.25 * np.roll(bridge, 1, axis=1)
        + 0.5 * bridge
        + 0.25 * np.roll(bridge, -1, axis=1)
    )
    shapes = np.where(some(rng, count, 0.5), mellow, bridge)
    inside = np.arange(widest) < periods[:, None]
    mean = (shapes * inside).sum(1, keepdims=True) / periods[:, None]
    squares = ((shapes - mean) * inside) ** 2
    deviation = np.sqrt(squares.sum(1, keepdims=True) / periods[:, None])
    return (shapes - mean) / (deviation + 1e-6)


def motif_smooth(rng: Generator, count: int, length: int) -> Array:
    """Draw exactly repeated motifs with correlated values."""
    periods = lengths_for_motifs(rng, count, length)
    return tile(_smooth_shapes(rng, periods), periods, rng.integers(periods), length)


def harmonics(rng: Generator, count: int, length: int) -> Array:
    """Draw sums of one to four harmonics of a period that need not be an integer."""
    periods = log_uniform(rng, 4.0, length * 0.6, count)
    calendar = rng.choice(CALENDAR_PERIODS, count)
    periods = np.where(rng.random(count) < 0.5, periods, calendar)
    terms = np.arange(1, 5)
    mask = terms <= rng.integers(1, 5, (count, 1))
    amplitude = rng.normal(size=(count, 4)) / terms * mask
    phase = rng.uniform(0, 2 * np.pi, (count, 4))
    angle = 2 * np.pi * np.arange(length) * terms[:, None] / periods[:, None, None]
    waves = amplitude[..., None] * np.sin(angle + phase[..., None])
    return unit(waves.sum(axis=1))


def autoregressive(rng: Generator, count: int, length: int) -> Array:
    """Draw AR(1) and AR(2).

    The second kind has complex roots, so it cycles without a fixed period.
    """
    warm = 100
    radius = 1.0 - log_uniform(rng, 0.005, 0.7, count)
    angle = 2 * np.pi / log_uniform(rng, 4.0, 40.0, count)
    cyclic = rng.random(count) < 0.5
    first = np.where(cyclic, 2 * radius * np.cos(angle), radius)
    second = np.where(cyclic, -(radius**2), 0.0)
    shocks = rng.standard_normal((count, length + warm))
    # the filter starts at 0, so the first steps are not of the stationary process
    return unit(fading(np.stack([first, second], axis=1), shocks)[:, warm:])


def random_walk(rng: Generator, count: int, length: int) -> Array:
    """Draw random walks with drift.

    One in four is integrated once more and is a smooth trend.
    """
    steps = rng.standard_normal((count, length)) + rng.normal(0, 0.15, (count, 1))
    walk = np.cumsum(steps, axis=1)
    twice = np.cumsum(walk, axis=1) / length
    return unit(np.where(some(rng, count, 0.25), twice, walk))


def trend(rng: Generator, count: int, length: int) -> Array:
    """Draw linear, damped, exponential or once-broken trends with noise.

    Rows start near 0.
    """
    t = np.linspace(0, 1, length)
    kind = rng.integers(4, size=(count, 1))
    knee = rng.uniform(0.2, 0.8, (count, 1))
    slope = rng.normal(size=(count, 1))
    broken = t + slope * np.maximum(t - knee, 0)
    line = np.choose(
        kind, [t + 0 * knee, 1 - np.exp(-3 * t * knee), np.expm1(2 * t * knee), broken]
    )
    added = noise(rng, count, length, 0, 0.01, 0.05, 0.15)
    return unit(line * pick(rng, count, -1.0, 1.0) + added)


def white_noise(rng: Generator, count: int, length: int) -> Array:
    """Draw independent values: normal or skewed (log-normal)."""
    normal = rng.standard_normal((count, length))
    return unit(np.where(some(rng, count, 0.7), normal, np.exp(0.6 * normal)))


def _any_season(rng: Generator, count: int, length: int) -> Array:
    """Draw a season of any shape, standard deviation about 1."""
    kind = rng.integers(3, size=(count, 1))
    generators = (motif_rough, motif_smooth, harmonics)
    return np.choose(kind, [draw(rng, count, length) for draw in generators])


def seasonal(rng: Generator, count: int, length: int) -> Array:
    """Draw season, slow trend and short-memory noise, added or multiplied.

    Levels are mostly positive, as in business data.
    """
    season = _any_season(rng, count, length)
    is_trend = some(rng, count, 0.5)
    trends = trend(rng, count, length)
    drift = unit(np.where(is_trend, trends, random_walk(rng, count, length)))
    drift = drift * pick(rng, count, 0.0, 0.3, 1.0, 2.0)
    memory = rng.uniform(0, 0.8, (count, 1))
    white = np.sqrt(1 - memory * memory) * rng.standard_normal((count, length))
    remembered = fading(memory, white) * pick(rng, count, 0.0, 0.05, 0.15, 0.4)
    growth = 1 + 0.15 * drift * some(rng, count, 0.4)
    level = log_uniform(rng, 0.5, 60.0, (count, 1)) * some(rng, count, 0.8)
    return level + drift + season * growth + remembered


def seasonal_walk(rng: Generator, count: int, length: int) -> Array:
    """Draw a motif that changes at every repeat, x(t) = x(t - q) + noise.

    Only the last repeat is up to date.
    """
    periods = lengths_for_motifs(rng, count, length)
    shapes = np.where(
        some(rng, count, 0.5),
        _smooth_shapes(rng, periods),
        rng.standard_normal((count, int(periods.max()))),
    )
    change = noise(rng, count, length, 0.05, 0.15, 0.3)
    # each value remembers the one a period before
    walks = fading((np.eye(period)[-1] for period in periods), change)
    return tile(shapes, periods, rng.integers(periods), length) + walks


def double_season(rng: Generator, count: int, length: int) -> Array:
    """Draw a short season inside a long one (day in week), with noise.

    The two are multiplied or added.
    """
    short, times = NESTED_PERIODS[:, rng.integers(NESTED_PERIODS.shape[1], size=count)]
    start = rng.integers(short * times)
    inner = tile(_smooth_shapes(rng, short), short, start, length)
    slot = (np.arange(length) + start[:, None]) // short[:, None] % times[:, None]
    is_working = np.arange(13) < times[:, None] - 2
    days = np.where(is_working, 1.0, rng.uniform(0.2, 1.0, (count, 1)))
    days = days + rng.normal(0, 0.1, days.shape)
    outer = np.take_along_axis(days, slot, axis=1)
    inner = inner + rng.uniform(1.5, 6.0, (count, 1))
    together = np.where(some(rng, count, 0.5), inner * outer, inner + 2 * outer)
    return together + noise(rng, count, length, 0.02, 0.1, 0.3)


def _number_days(
    rng: Generator, steps: Integers, length: int
) -> tuple[Integers, Integers]:
    """Draw the steps (row,) of a week that series start at, and number their days.

    The numbers are (row, length), from 0 on.
    """
    start = rng.integers(7 * steps)
    return start, (np.arange(length) + start[:, None]) // steps[:, None]


def _with_busy_days(rng: Generator, shape: Array, day: Integers) -> Array:
    """Add to rows that every day is busier or quieter, and noise.

    The exponential is taken of about half of the rows, each times a factor.
    """
    count, length = shape.shape
    busy = noise(rng, count, int(day.max()) + 1, 0.0, 0.1, 0.3)
    together = shape + np.take_along_axis(busy, day, axis=1)
    together = together + noise(rng, count, length, 0.02, 0.1, 0.3)
    raised = some(rng, count, 0.5)
    power = rng.uniform(0.3, 1.0, (count, 1))
    return np.where(raised, together, np.exp(power * together))


def day_types(rng: Generator, count: int, length: int) -> Array:
    """Draw weeks of working days and days off, as of traffic or footfall.

    Each kind of day has a shape, and every day is busier or quieter.
    """
    steps = rng.choice([24, 24, 24, 12, 48, 8], count)
    work = _smooth_shapes(rng, steps)
    rest = _smooth_shapes(rng, steps)
    likeness = rng.uniform(0, 1, (count, 1))
    rest = likeness * work + (1 - likeness) * rest - rng.uniform(0, 1.5, (count, 1))
    start, day = _number_days(rng, steps, length)
    resting = day % 7 >= pick(rng, count, 5, 5, 6)
    shapes = [tile(part, steps, start, length) for part in (work, rest)]
    return _with_busy_days(rng, np.choose(resting, shapes), day)


def holidays(rng: Generator, count: int, length: int) -> Array:
    """Draw weeks with holidays of one to ten days.

    They are like days off, or quieter or busier than any other day.
    """
    steps = rng.choice([24, 24, 24, 12, 8, 1, 1], count)
    work, rest, feast = (
        _smooth_shapes(rng, np.maximum(steps, 2)) * (steps[:, None] > 1)
        for _ in range(3)
    )
    rest_likeness, feast_share = rng.uniform(0, 1, (2, count, 1))
    rest = rest_likeness * work + (1 - rest_likeness) * rest
    rest = rest - rng.uniform(0, 1.5, (count, 1))
    feast = feast_share * rest + (1 - feast_share) * feast
    feast = feast + rng.normal(-0.5, 1.0, (count, 1)) * some(rng, count, 0.5)
    start, day = _number_days(rng, steps, length)
    days = np.arange(int(day.max()) + 1)
    resting = days % 7 >= pick(rng, count, 5, 5, 6)
    feasting = np.zeros((count, days.size), dtype=bool)
    for _ in range(4):
        first = (rng.random((count, 1)) * (day[:, -1:] + 8)).astype(np.int64) - 4
        last = first + rng.integers(1, 11, (count, 1))
        feasting |= (first <= days) & (days < last) & some(rng, count, 0.6)
    kind = np.take_along_axis(np.where(feasting, 2, resting), day, axis=1)
    shapes = [tile(part, steps, start, length) for part in (work, rest, feast)]
    return _with_busy_days(rng, np.choose(kind, shapes), day)


def shocks(rng: Generator, count: int, length: int) -> Array:
    """Draw slow cycles with sudden jumps that fade, half of them with a season.

    Unemployment, prices and claims are such series.
    """
    t = np.arange(length)
    slow = rng.uniform(0.2, 2.0, (count, 1)) * random_walk(rng, count, length)
    for _ in range(3):
        jump_step = rng.integers(length, size=(count, 1))
        fade = log_uniform(rng, 2, 120, (count, 1))
        jump = rng.normal(0, 2.5, (count, 1)) * some(rng, count, 0.6)
        faded = np.exp(-np.maximum(t - jump_step, 0) / fade)
        slow = slow + jump * np.where(t >= jump_step, faded, 0.0)
    season = pick(rng, count, 0.0, 0.0, 0.1, 0.3) * _any_season(rng, count, length)
    return slow + season + noise(rng, count, length, 0.01, 0.05, 0.15)


def walks(rng: Generator, count: int, length: int) -> Array:
    """Draw sums of shocks that are Gaussian, heavy-tailed, rare or with momentum.

    Some revert to a mean, are rounded, or vary in size over time.
    """
    kind = rng.integers(4, size=(count, 1))
    normal = rng.standard_normal((count, length))
    is_shock = rng.random((count, length)) < log_uniform(rng, 0.02, 0.5, (count, 1))
    rare = normal * is_shock
    slow = fading(rng.uniform(0.2, 0.9, count), normal)
    heavy = np.clip(rng.standard_t(3, (count, length)), -12, 12)
    shocks = np.choose(kind, [normal, heavy, rare, slow])
    # calm and stormy times, on a third of the rows
    storm = np.cumsum(rng.standard_normal((count, length)), axis=1)
    storm = storm * some(rng, count, 0.33) * 0.08
    shocks = shocks * np.exp(np.clip(storm, -1.5, 1.5))
    drift = pick(rng, count, 0.0, 0.0, 0.1, -0.1, 0.4)
    shocks = shocks + shocks.std(axis=1, keepdims=True) * drift
    memory = rng.choice([1.0, 1.0, 1.0, 0.98, 0.93], count)
    walk = fading(memory, shocks)
    step = np.abs(np.diff(walk, axis=1)).mean(axis=1, keepdims=True) + 1e-9
    size = step * pick(rng, count, 0.0, 0.0, 0.5, 1.5, 4.0)
    walk = walk + size * _any_season(rng, count, length)
    unit_of_record = step * pick(rng, count, 0.5, 1.0, 3.0)
    rough = np.round(walk / unit_of_record) * unit_of_record
    return unit(np.where(some(rng, count, 0.3), rough, walk))


def intermittent(rng: Generator, count: int, length: int) -> Array:
    """Draw counts: Poisson around a season, from mostly zero to dozens."""
    level = rng.uniform(np.log(0.3), np.log(60.0), (count, 1))
    rate = np.exp(level + 0.6 * _any_season(rng, count, length))
    return rng.poisson(np.minimum(rate, 1e4)).astype(np.float64)


def level_shift(rng: Generator, count: int, length: int) -> Array:
    """Draw a season or noise whose level jumps once or twice."""
    is_season = some(rng, count, 0.6)
    seasons = _any_season(rng, count, length)
    base = np.where(is_season, seasons, 0.3 * white_noise(rng, count, length))
    for _ in range(2):
        later = np.arange(length) >= rng.integers(1, length, size=(count, 1))
        jump = rng.normal(0, 2.0, (count, 1))
        base = base + jump * later * some(rng, count, 0.7)
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
"""Generators that need no cached corpus, by name."""


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


def kernel_bank(
    length: int, *, device: str | torch.device = "cpu", period_scale: float = 1.0
) -> Tensor:
    """Compute the covariances (33, length, length) of the bank on [0, 1].

    A `period_scale` of 1 gives the paper's periods.
    """
    grid = torch.linspace(0.0, 1.0, length, dtype=torch.float64, device=device)
    gap = (grid[:, None] - grid).abs()
    steps = gap * (length - 1)
    periods = [period * period_scale for period in PERIODS]
    periodic = [torch.sin(torch.pi * steps / period) ** 2 for period in periods]
    linear = grid[:, None] * grid
    same = torch.eye(length, dtype=torch.float64, device=device)
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


def kernelsynth(
    rng: Generator,
    count: int,
    length: int,
    *,
    device: str | torch.device = "cpu",
    period_scale: float = 1.0,
) -> np.ndarray:
    """Draw `count` series of `length` steps: array (count, length).

    Covariances that do not factor are drawn anew.
    """
    bank = kernel_bank(length, device=device, period_scale=period_scale)
    series = np.empty((count, length))
    row = 0
    while row < count:
        kernels = int(rng.integers(1, MAX_KERNELS + 1))
        covariance = compose(
            bank, rng.integers(len(bank), size=kernels), rng.random(kernels) < 0.5
        )
        # jitter relative to the variance: a product of linear kernels reaches 1e8
        diagonal = covariance.diagonal()
        diagonal += JITTER * max(float(diagonal.mean()), 1e-12)
        factor, failure = torch.linalg.cholesky_ex(covariance)
        if not failure:
            normal = torch.from_numpy(rng.standard_normal(length)).to(device)
            series[row] = (factor @ normal).numpy(force=True)
            row += 1
    return series


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


def flow_series(
    rng: Generator,
    count: int,
    length: int,
    *,
    flow: Flow,
    steps: tuple[float, float],
) -> Array:
    """Draw (count, length) a random coordinate of `count` trajectories.

    Each has its own sampling step within `steps`.
    """
    # the sampling step is too long to integrate by
    substeps = 4
    dt = log_uniform(rng, *steps, (count, 1)) / substeps
    start = rng.normal(size=(count, 3)) + np.array([1.0, 1.0, 5.0])
    attractor = rk4(flow, start, 0.02, WARM_UP)[-1]
    path = rk4(flow, attractor, dt, length * substeps)[::substeps]
    coordinate = rng.integers(3, size=count)
    return path[:, np.arange(count), coordinate].T


def logistic_series(rng: Generator, count: int, length: int) -> Array:
    """Draw (count, length) the logistic map x -> r x (1 - x), r in [3.5, 4].

    The range has periodic windows and chaos.
    """
    rate = rng.uniform(3.5, 4.0, size=count)
    x = rng.uniform(0.1, 0.9, size=count)
    series = np.empty((count, length))
    for step in range(-WARM_UP, length):
        x = rate * x * (1.0 - x)
        if step >= 0:
            series[:, step] = x
    return series


def chaotic(rng: Generator, count: int, length: int) -> Array:
    """Draw (count, length) a third each of Lorenz, Roessler and logistic-map series."""
    first, second, third = map(len, np.array_split(np.arange(count), 3))
    return np.concatenate(
        [
            flow_series(rng, first, length, flow=lorenz, steps=(0.02, 0.15)),
            flow_series(rng, second, length, flow=roessler, steps=(0.1, 0.8)),
            logistic_series(rng, third, length),
        ]
    )
