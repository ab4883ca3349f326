"""Batch of series: the one form in which data enters a lens.

Read :class:`SeriesBatch` first; it checks on construction that its columns fit each
other, and every change returns a new batch. Below it are what readers of batches share:
held-out futures, items, and frequencies. Conversion of arrays, frames and files is in
:mod:`.coerce`, :mod:`.frames` and :mod:`.files`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.clocks import on_clock
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data.frequencies import (
    format_calendar,
    grid_date,
    read_offset,
    without_gaps,
)
from tsfm_lens.data.values import to_floats

# squares of larger values overflow single precision; the square of this one leaves room
# to sum a few hundred below 3.4e38
LARGEST = 1e18
ROLES = ("target", "past", "known")
"""Roles in the order of the series of a group; libraries stack them in this order."""
SEASONS = {"s": 3600, "min": 1440, "h": 24, "B": 5, "M": 12, "Q": 4}
"""Steps of a season, as gluonts assigns them to frequencies; 1 of all others."""
_MAX_NOTES = 3  # of one kind
# any date will do that is far from both ends of pandas' dates
_EPOCH = pd.Timestamp("2000-01-01")
# fields with one entry a series, which selecting and joining batches treat alike
COLUMNS = (
    *("ids", "starts", "units", "freqs", "seasonalities", "groups", "variates"),
    *("roles", "futures", "categories", "level_numbers", "static", "items"),
)


@dataclass(frozen=True, eq=False)
class SeriesBatch:
    """Series of possibly unequal length, and what is known of each.

    A multivariate item is a group of series, one per variate.

    Attributes:
        values: one read-only float64 array (time,) a series; NaN is a missing value.
        ids: one unique name per series; ``series-0``, ``series-1``, … if none are
            given.
        freq: pandas frequency alias shared by all series, None if unknown or mixed.
        starts: timestamp of each first value, None if unknown. One within a month,
            quarter or year of its frequency stands for that, and a note says so.
        units: unit of each series, "" if unknown.
        seasonality: season length in steps shared by all series, 1 if unknown or mixed.
        notes: remarks from reading, e.g. that gaps were filled with NaN.
        freqs, seasonalities: of each series; by default ``freq`` and ``seasonality``.
        groups: item of each series, by default its id; series of a group are adjacent
            and share their time axis.
        variates: name of each series within its group, "" if there is none.
        roles: "target", then "past" covariates of its group, then "known" ones, whose
            future is known.
        futures: values (time,) of each known covariate after the context; None of all
            others.
        categories: names of the categories of a covariate, whose values are their
            numbers from 0; None of others.
        level_numbers: what a model reads for each category and, last, for a missing
            value, where a longer history than this batch has told it; else None, and
            the values here tell it.
        static: properties of each series by name, which no model reads.
        items: series that each window was cut from; by default its own id.
        clock: zone of the clock that dates without an offset are of, where the series
            stand on that of UTC; "UTC" if their timestamps came with offsets, "" if
            they stand on the clock of their timestamps.

    Raises:
        InputError: a series is empty, infinite, all NaN or beyond single precision, a
            start is off the grid of its frequency, or the lists contradict each other.
    """

    values: tuple[np.ndarray, ...]
    ids: tuple[str, ...] = ()
    freq: str | None = None
    starts: tuple[pd.Timestamp | None, ...] = ()
    units: tuple[str, ...] = ()
    seasonality: int = 0
    notes: tuple[str, ...] = field(default=())
    freqs: tuple[str | None, ...] = ()
    seasonalities: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    variates: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    futures: tuple[np.ndarray | None, ...] = ()
    categories: tuple[tuple[str, ...] | None, ...] = ()
    level_numbers: tuple[np.ndarray | None, ...] = ()
    static: tuple[Mapping[str, Any], ...] = ()
    items: tuple[str, ...] = ()
    clock: str = ""

    def __post_init__(self) -> None:
        if not len(self.values):
            raise InputError("there is no series: expected at least one")
        count = len(self.values)
        # the dataclass is frozen, also for its own methods
        fill = partial(object.__setattr__, self)
        fill(
            "ids",
            tuple(map(str, self.ids)) or tuple(f"series-{i}" for i in range(count)),
        )
        # the order matters: seasons are found from frequencies, and groups and items
        # are named by ids
        fill("freqs", tuple(self.freqs) or (self.freq,) * count)
        for freq in set(self.freqs) - {None}:
            known_frequency(freq)
        seasons = tuple(self.seasonality or find_season(freq) for freq in self.freqs)
        fill("seasonalities", tuple(self.seasonalities) or seasons)
        fill("groups", tuple(map(str, self.groups)) or self.ids)
        fill("items", tuple(map(str, self.items)) or self.ids)
        defaults: dict[str, Any] = {
            "starts": None,
            "units": "",
            "variates": "",
            "roles": "target",
            "futures": None,
            "categories": None,
            "level_numbers": None,
            "static": {},
        }
        for name, default in defaults.items():
            # an empty tuple means that nothing was given, since a batch has at least
            # one series
            column = tuple(getattr(self, name)) or (default,) * count
            fill(name, tuple(map(str, column)) if default == "" else column)
        for name in COLUMNS:
            if len(getattr(self, name)) != count:
                raise InputError(
                    f"{count} series came with {len(getattr(self, name))} {name}"
                )
        check_unique(self.ids)
        # all columns have their length by now, on which ``strict`` zips rely from here
        # on
        starts, notes = _on_grid(self.starts, self.freqs, self.ids)
        fill("starts", starts)
        fill("notes", (*self.notes, *notes))
        fill("values", tuple(map(_context, self.values, self.ids)))
        # given or not, the shared value follows from the columns, so that ``replace``
        # cannot leave the two in contradiction
        fill("freq", self.freqs[0] if len(set(self.freqs)) == 1 else None)
        has_one_season = len(set(self.seasonalities)) == 1
        fill("seasonality", self.seasonalities[0] if has_one_season else 1)
        # after the values have been read, whose lengths it compares
        self._check_groups()
        columns = (self.futures, self.ids, self.values, self.starts, self.freqs)
        fill("futures", tuple(map(_future, *columns)))
        self._check_roles()

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        lengths = (
            f"{min(self.lengths)}–{max(self.lengths)}"
            if len(set(self.lengths)) > 1
            else str(self.lengths[0])
        )
        groups = f" in {len(set(self.groups))} groups" if self.multivariate else ""
        more = "…" if len(self) > 3 else ""
        notes = "".join(f"\n  note: {note}" for note in self.notes)
        return (
            f"SeriesBatch({len(self)} series of {lengths} steps{groups},"
            f" freq={self.freq!r}, ids={list(self.ids[:3])}{more}){notes}"
        )

    # loops over series ask for these of the whole batch, which never changes
    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of steps of each series."""
        return tuple(len(series) for series in self.values)

    @cached_property
    def multivariate(self) -> bool:
        """True if any group has more than one series."""
        return len(set(self.groups)) < len(self)

    @property
    def is_target(self) -> np.ndarray:
        """Mask (series,) of the series that are forecast; the others are covariates."""
        return np.array([role == "target" for role in self.roles])

    @cached_property
    def has_covariates(self) -> bool:
        """True if any series is a covariate."""
        return any(role != "target" for role in self.roles)

    def targets(self) -> SeriesBatch:
        """Return the batch without its covariates."""
        if self.has_covariates:
            return self.select(np.flatnonzero(self.is_target).tolist())
        return self

    @property
    def known_steps(self) -> int | None:
        """Steps after the context that all known covariates have; None without any."""
        lengths = [len(future) for future in self.futures if future is not None]
        return min(lengths, default=None)

    def known_future(self, horizon: int) -> np.ndarray:
        """Return the known future of all series, (series, step).

        Args:
            horizon: steps after the context.

        Returns:
            Values in data units, (series, step); NaN for series that are no known
            covariate.

        Raises:
            InputError: a known covariate ends before the horizon.
        """
        values = np.full((len(self), horizon), np.nan)
        for row, name, future in zip(values, self.ids, self.futures, strict=True):
            if future is None:
                continue
            if len(future) < horizon:
                shorter = f"give horizon={len(future)}, " if len(future) else ""
                raise InputError(
                    f"known covariate {name!r} ends {len(future)} steps after the"
                    f" context, and the horizon is {horizon}; {shorter}add rows of its"
                    " future, hold the end out (holdout=True), or give it as a past"
                    " covariate"
                )
            # ``row`` is a view of ``values``
            row[:] = future[:horizon]
        return values

    @property
    def group_index(self) -> np.ndarray:
        """Number of each series' group (series,), in order of first appearance."""
        numbers = {group: index for index, group in enumerate(self.rows_by_group())}
        return np.array([numbers[group] for group in self.groups])

    def rows_by_group(self) -> dict[str, list[int]]:
        """Return the rows of each group, in order of first appearance."""
        rows: dict[str, list[int]] = {}
        for row, group in enumerate(self.groups):
            rows.setdefault(group, []).append(row)
        return rows

    @property
    def n_variates(self) -> int:
        """Number of series per group.

        Raises:
            InputError: groups differ in it.
        """
        sizes = Counter(self.groups)
        first, expected = next(iter(sizes.items()))
        unequal = [
            f"{group!r} ({size})" for group, size in sizes.items() if size != expected
        ]
        if unequal:
            raise InputError(
                f"groups differ in their number of variates: {first!r} has {expected},"
                f" unlike {', '.join(unequal[:3])}; expected equally many in all, so"
                " select groups that agree"
            )
        return expected

    def _check_groups(self) -> None:
        """Refuse groups that are torn apart, or whose series differ in time axis."""
        if not self.multivariate:
            return
        axes = {
            "lengths": self.lengths,
            "frequencies": self.freqs,
            "starts": self.starts,
        }
        for group, members in self.rows_by_group().items():
            # rows are in ascending order, so that first and last tell whether others
            # are between
            if members[-1] - members[0] >= len(members):
                raise InputError(
                    f"the series of group {group!r} are at positions"
                    f" {', '.join(map(str, members))}; expected them one after the"
                    " other"
                )
            counts = Counter(self.variates[row] for row in members)
            repeats = [variate for variate, count in counts.items() if count > 1]
            if repeats:
                raise InputError(
                    f"group {group!r} has variate {repeats[0]!r} more than once; give"
                    " each its own name"
                )
            for name, column in axes.items():
                # an unknown start or frequency contradicts no other
                distinct = dict.fromkeys(
                    column[row] for row in members if column[row] is not None
                )
                if len(distinct) > 1:
                    raise InputError(
                        f"the series of group {group!r} have different {name}"
                        f" ({', '.join(map(str, distinct))}); variates of one group"
                        " share their time axis: pad with NaN what was not observed"
                    )

    def _check_roles(self) -> None:
        """Refuse roles that are unknown, out of order, or at odds with the futures."""
        latest: dict[str, int] = {}
        for name, group, role, future in zip(
            self.ids, self.groups, self.roles, self.futures, strict=True
        ):
            if role not in ROLES:
                raise unknown_name("role", role, ROLES)
            if (role == "known") != (future is not None):
                noun = "series" if role == "target" else "covariate"
                article = "no" if future is None else "a"
                raise InputError(
                    f"series {name!r} is a {role} {noun} and has {article} known"
                    " future; known covariates have one, and they alone"
                )
            order = ROLES.index(role)
            # a group of covariates alone has nothing to forecast
            if group not in latest and order:
                raise InputError(
                    f"group {group!r} begins with covariate {name!r}; expected its"
                    " target first"
                )
            if order < latest.get(group, 0):
                raise InputError(
                    f"{role} series {name!r} of {group!r} stands after a"
                    f" {ROLES[latest[group]]} covariate"
                )
            latest[group] = order

    def noted(self, notes: Sequence[str]) -> SeriesBatch:
        """Return the batch with further notes in front of its own.

        Args:
            notes: sentences, each once.

        Returns:
            A batch with these notes, then its own.
        """
        if not notes:
            return self
        # not ``replace``, which would check and copy all values again
        noted = copy(self)
        object.__setattr__(noted, "notes", (*notes, *self.notes))
        return noted

    def tail(self, steps: int) -> SeriesBatch:
        """Keep the last steps of every series.

        Args:
            steps: how many, at least 1; all where a series is shorter.

        Returns:
            The batch, whose starts are later where steps were cut.

        Raises:
            InputError: ``steps`` is below 1.
        """
        if steps < 1:
            raise InputError(f"tail({steps}): expected at least 1 step")
        first = [max(0, length - steps) for length in self.lengths]
        return self._slice(first, self.lengths)

    def split(self, horizon: int) -> tuple[SeriesBatch, np.ndarray]:
        """Hold the last ``horizon`` steps out.

        Args:
            horizon: steps that are held out of each series.

        Returns:
            The context, and the held-out future (series, horizon).

        Raises:
            InputError: a series has no more than ``horizon`` steps.
        """
        for name, length in zip(self.ids, self.lengths, strict=True):
            if length <= horizon or horizon < 1:
                raise InputError(
                    f"series {name!r} has {length} steps: cannot hold out {horizon} and"
                    " keep a context. Give a longer series or a horizon from 1 to its"
                    " length minus 1."
                )
        future = np.stack([series[-horizon:] for series in self.values])
        futures = tuple(
            # what is held out of a known covariate is known, and comes before what was
            # known already
            None if old is None else np.concatenate([new, old])
            for old, new in zip(self.futures, future, strict=True)
        )
        stop = [length - horizon for length in self.lengths]
        context = self._slice([0] * len(self), stop)
        # an earlier origin knows less of what its categories are worth
        return replace(context, futures=futures, level_numbers=()), future

    def windows(self, count: int, horizon: int, ahead: int = 0) -> SeriesBatch:
        """Return each series up to ``count`` forecast origins, the latest first.

        Origins are ``horizon`` steps apart.

        Args:
            count: most origins of a series.
            horizon: steps from one origin to the next.
            ahead: steps that will be held out of each.

        Returns:
            A batch with a series for each origin.

        Raises:
            InputError: a series has too few steps for so many windows.
        """
        shortest = min(self.lengths)
        # a single window is the batch itself, from which nothing is cut here
        if count > 1 and shortest <= (count - 1) * horizon + ahead:
            raise InputError(
                f"windows={count} of {horizon} steps need more than"
                f" {(count - 1) * horizon + ahead} steps, and series"
                f" {self.ids[self.lengths.index(shortest)]!r} has {shortest};"
                f" windows={max(-(-(shortest - ahead) // horizon), 1)} is the most"
            )
        parts = [self]
        for number in range(1, count):
            earlier = self.split(number * horizon)[0]
            suffix = f" −{number * horizon}"
            ids, groups = (
                tuple(f"{name}{suffix}" for name in names)
                for names in (self.ids, self.groups)
            )
            # notes of the batch are kept once, with its latest windows
            parts.append(
                replace(earlier, ids=ids, groups=groups, items=self.items, notes=())
            )
        return SeriesBatch.concat(parts)

    def _slice(self, first: Sequence[int], stop: Sequence[int]) -> SeriesBatch:
        values = tuple(
            series[a:b] for series, a, b in zip(self.values, first, stop, strict=True)
        )
        starts = tuple(
            start if start is None or not steps else _stamps(start, steps + 1, freq)[-1]
            for start, steps, freq in zip(self.starts, first, self.freqs, strict=True)
        )
        return replace(self, values=values, starts=starts)

    def timestamps(self, index: int = 0, ahead: int = 0) -> pd.DatetimeIndex | None:
        """Compute the timestamps of one series, and of steps after it.

        Args:
            index: position of the series.
            ahead: number of steps after its end.

        Returns:
            The timestamps; None if the start or the frequency of the series is unknown.
        """
        start = self.starts[index]
        if start is None or self.freqs[index] is None:
            return None
        return _stamps(start, self.lengths[index] + ahead, self.freqs[index])

    def dates(self, index: int = 0, ahead: int = 0) -> pd.DatetimeIndex | None:
        """Compute :meth:`timestamps` as the clock of the series shows them.

        Where the series stand on the grid of UTC, they have the offset of their zone.

        Args:
            index: position of the series.
            ahead: number of steps after its end.

        Returns:
            The timestamps; None if the start or the frequency of the series is unknown.
        """
        stamps = self.timestamps(index, ahead)
        if stamps is None or not self.clock:
            return stamps
        return on_clock(stamps.values, self.clock)

    def rows(self, which: str | int | Sequence[str | int]) -> list[int]:
        """Return the rows of series by id or position.

        The name of a group stands for all its series.

        Args:
            which: id, group or position of a series, or several of them.

        Returns:
            Positions in the batch.

        Raises:
            UnknownNameError: an id does not occur.
            InputError: a position is out of range, or no whole number.
        """
        rows = []
        keys: Iterable[Any] = [which]
        if isinstance(which, Iterable) and not isinstance(which, str):
            keys = which
        for key in keys:
            if isinstance(key, str):
                # an id goes before a group of the same name
                names = self.ids if key in self.ids else self.groups
                named = [row for row, name in enumerate(names) if name == key]
                if not named:
                    raise unknown_name(
                        "series", key, dict.fromkeys((*self.ids, *self.groups))
                    )
                rows += named
            elif not isinstance(key, int | np.integer) or isinstance(key, bool):
                raise InputError(
                    f"series {key!r} is neither an id nor a position; expected a text"
                    " or a whole number"
                )
            elif not -len(self) <= key < len(self):
                raise InputError(
                    f"series {key} is out of range: the batch has {len(self)}"
                )
            else:
                rows.append(int(key) % len(self))
        return rows

    def select(self, which: str | int | Sequence[str | int]) -> SeriesBatch:
        """Select series by id, group or position.

        Args:
            which: id, group or position of a series, or several of them.

        Returns:
            A batch of these series, in the order of ``which``.

        Raises:
            UnknownNameError: an id does not occur.
            InputError: a position is out of range, or the series of a group would no
                longer stand one after the other.
        """
        index = self.rows(which)
        fields: dict[str, Any] = {
            name: tuple(getattr(self, name)[i] for i in index)
            for name in ("values", *COLUMNS)
        }
        return replace(self, **fields)

    def to_frame(self) -> pd.DataFrame:
        """Return a long frame, one row per value.

        Its columns are id, group and variate if multivariate, role if there are
        covariates, timestamp (with its offset where the series have a zone, or step
        where it is unknown), and target.
        """
        columns: dict[str, Any] = {
            name: np.repeat(np.array(labels, dtype=object), self.lengths)
            for name, labels in self.labels().items()
        }
        stamps = [self.timestamps(index) for index in range(len(self))]
        has_dates = [dates is not None for dates in stamps]
        if any(has_dates):
            dates = joined_dates(stamps, self.lengths)
            columns["timestamp"] = on_clock(dates, self.clock)
        if not all(has_dates):
            steps = np.concatenate([np.arange(length) for length in self.lengths])
            columns["step"] = steps
            if any(has_dates):
                columns["step"] = np.where(
                    np.repeat(has_dates, self.lengths), np.nan, steps
                )
        columns["target"] = np.concatenate(self.values)
        return pd.DataFrame(columns)

    def labels(self) -> dict[str, tuple[str, ...]]:
        """Return what names each series in a long frame, by column.

        These are its id, in a multivariate batch its group and variate, and its role
        where there are covariates.
        """
        labels = {"id": self.ids}
        if self.multivariate:
            labels |= {"group": self.groups, "variate": self.variates}
            if self.has_covariates:
                labels["role"] = self.roles
        return labels

    @classmethod
    def concat(cls, batches: Sequence[SeriesBatch]) -> SeriesBatch:
        """Concatenate batches.

        Each series keeps its own frequency and season.

        Args:
            batches: one or more.

        Returns:
            One batch with the series of all, in order.

        Raises:
            InputError: there is no batch, an id repeats, or series of one group would
                not stand one after the other.
        """
        if not batches:
            raise InputError("there is no batch to put together")

        fields: dict[str, Any] = {
            name: tuple(value for batch in batches for value in getattr(batch, name))
            for name in ("values", "notes", *COLUMNS)
        }
        clocks = {batch.clock for batch in batches}
        # ``freq`` and ``seasonality`` are left out: they follow from the columns
        return cls(**fields, clock=clocks.pop() if len(clocks) == 1 else "")


def make_batch(rows: Sequence[Mapping[str, Any]], **common: Any) -> SeriesBatch:
    """Make a batch of its series, each a mapping of the same fields."""
    fields: dict[str, Any] = {
        # without rows, the empty batch that is made is refused by its own check
        name: tuple(row[name] for row in rows)
        for name in (rows[0] if rows else ("values",))
    }
    return SeriesBatch(**fields, **common)


def joined_dates(
    parts: Sequence[pd.DatetimeIndex | np.ndarray | None], counts: Sequence[int]
) -> np.ndarray:
    """Join the dates of series one after the other.

    Args:
        parts: of each series; None where its dates are unknown.
        counts: of dates that each has, or lacks.

    Returns:
        The dates of all series, NaT where they are unknown.
    """
    unknown = np.datetime64("NaT", "ns")
    dates = [
        np.full(count, unknown) if part is None else np.asarray(part)
        for part, count in zip(parts, counts, strict=True)
    ]
    return np.concatenate(dates)


# the series of a batch mostly share start, length and frequency
@lru_cache(maxsize=64)
def _stamps(start: pd.Timestamp, count: int, freq: str | None) -> pd.DatetimeIndex:
    """Generate timestamps from a start, within those that pandas can hold."""
    if freq is None:
        raise InputError("timestamps need a frequency: give freq=…")
    try:
        # an index cannot be changed, so that callers may share the one in the cache
        return pd.date_range(start, periods=count, freq=read_offset(freq))
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{count} steps of frequency {freq!r} from {start} on go beyond"
            f" {pd.Timestamp.max.date()}, the last date that pandas holds; shorten the"
            " horizon or the series, or leave the timestamps out"
        ) from error


def known_frequency(freq: Any) -> str:
    """Return a pandas alias, or a calendar of weekdays, whose steps go forward."""
    if not isinstance(freq, str | pd.DateOffset):
        raise InputError(
            f"freq={freq!r} is not a pandas frequency; one such as 'h', 'D', 'W', 'MS'"
            " or 'Mon-Sat' holds for all series"
        )
    return _known_frequency(freq)


@lru_cache
def _known_frequency(freq: str | pd.DateOffset) -> str:
    offset = None
    with warnings.catch_warnings(), suppress(ValueError):
        # pandas takes the letters one by one, and warns of an old one before it refuses
        # the word
        warnings.simplefilter("ignore", FutureWarning)
        offset = read_offset(freq)
    if offset is None:
        raise InputError(
            f"freq={freq!r} is not a pandas frequency; examples: 'h', 'D', 'W', 'MS',"
            " 'Mon-Sat'"
        ).with_cures({"freq": None})
    try:
        # an alias may have a multiple of 0 or less, as in "-1D"
        forward = _EPOCH + offset > _EPOCH
    except (pd.errors.OutOfBoundsDatetime, OverflowError) as error:
        raise InputError(
            f"freq={freq!r} is longer than the dates that pandas holds"
        ) from error
    if not forward:
        raise InputError(
            f"freq={freq!r} does not go forward in time; give a step above zero, such"
            " as 'D'"
        ).with_cures({"freq": None})
    # the ``freqstr`` of such an offset is "C", without weekdays and holidays
    if isinstance(freq, pd.offsets.CustomBusinessDay) and freq.n == 1:
        return format_calendar(
            np.flatnonzero(freq.calendar.weekmask), freq.calendar.holidays
        )
    if isinstance(freq, str):
        return freq
    return str(offset.freqstr)


def check_unique(ids: Sequence[str], what: str = "series ids") -> None:
    """Refuse names that occur more than once."""
    repeats = sorted(name for name, times in Counter(ids).items() if times > 1)
    if repeats:
        raise InputError(
            f"{what} must be unique; {', '.join(map(repr, repeats[:3]))} occurs more"
            " than once"
        )


def find_season(freq: str | None) -> int:
    """Return the season length of a frequency, in steps.

    It is the season of :data:`SEASONS` divided by the multiple of the frequency, or the
    number of days of a calendar of weekdays; 1 where there is no such whole number.
    """
    offset = None
    with suppress(ValueError):
        offset = read_offset(freq)
    if offset is None:
        return 1
    if isinstance(offset, pd.offsets.CustomBusinessDay) and offset.n == 1:
        return int(offset.calendar.weekmask.sum())
    # the anchor, as in W-SUN and QE-DEC, does not change the season
    base = str(offset.name).split("-")[0]
    # months and quarters end or begin: ME and MS are months
    base_season = SEASONS.get(base, SEASONS.get(base.rstrip("ES"), 1))
    season, remainder = divmod(base_season, offset.n)
    if remainder:
        return 1
    return season


def _on_grid(
    starts: Sequence[pd.Timestamp | None],
    freqs: Sequence[str | None],
    ids: Sequence[str],
) -> tuple[tuple[pd.Timestamp | None, ...], list[str]]:
    """Move starts onto the grids of their frequencies.

    Returns:
        The starts, and notes on those that were moved.
    """
    dates: dict[tuple[pd.Timestamp | None, str | None], pd.Timestamp | None] = {}
    notes = []
    for start, freq, name in zip(starts, freqs, ids, strict=True):
        # a panel has few different starts, and one note is enough for each
        if (start, freq) in dates:
            continue
        date = start
        if start is not None and freq is not None:
            try:
                # ``grid_date`` does not know which series it is about
                date = grid_date(start, freq)
            except InputError as error:
                raise InputError(f"series {name!r}: {error}") from error
        dates[start, freq] = date
        if date != start:
            notes.append(
                f"start {start} of {name!r} is read as the period of freq={freq!r} at"
                f" {date}"
            )
    if len(notes) > _MAX_NOTES:
        notes = [
            *notes[:_MAX_NOTES],
            f"… ({len(notes)} starts are read as the periods around them)",
        ]
    return tuple(dates[pair] for pair in zip(starts, freqs, strict=True)), notes


def _read_only(values: object, what: str) -> np.ndarray:
    """Copy a row of numbers as a read-only float64 array."""
    array = to_floats(values, what)
    if array.ndim != 1:
        raise InputError(f"{what} has shape {array.shape}, expected one axis: time")
    # ``to_floats`` has copied, so that the caller's array stays writeable
    array.flags.writeable = False
    return array


def _future(
    future: object,
    name: str,
    past: np.ndarray,
    start: pd.Timestamp | None,
    freq: str | None,
) -> np.ndarray | None:
    """Copy a covariate's known future, which has no gaps."""
    if future is None:
        return None
    values = _read_only(future, f"the future of {name!r}")
    gaps = np.flatnonzero(~np.isfinite(values))
    if len(gaps):
        raise InputError(
            f"the future of known covariate {name!r} has no number at step"
            f" {gaps[0] + 1} of {len(values)} after the context; fill the gap, or give"
            f" it as a past covariate{without_gaps(past, values, start, freq)}"
        )
    return values


def _context(values: object, name: str) -> np.ndarray:
    """Copy one series, which has a number and none that models cannot compute with."""
    array = _read_only(values, f"series {name!r}")
    if not len(array):
        raise InputError(f"series {name!r} is empty")
    if np.isnan(array).all():
        raise InputError(f"series {name!r} has only NaN values ({len(array)} steps)")
    # not all values are NaN by now, for which ``nanargmax`` raises
    largest = int(np.nanargmax(np.abs(array)))
    if np.isinf(array[largest]):
        raise InputError(
            f"series {name!r} is infinite at position {largest}; use NaN for missing"
            " values"
        )
    if abs(array[largest]) > LARGEST:
        raise InputError(
            f"series {name!r} has {array[largest]:.3g} at position {largest}; models"
            " compute in single precision, whose squares overflow beyond"
            f" {LARGEST:.0e}. Rescale the series."
        )
    return array


def missing_at_end(values: np.ndarray) -> int:
    """Count the missing values at the end of a series (time,)."""
    finite = np.flatnonzero(np.isfinite(values))
    if len(finite):
        return len(values) - 1 - int(finite[-1])
    return len(values)


def note_missing_ends(
    batch: SeriesBatch, candidates: Sequence[str] = ()
) -> SeriesBatch:
    """Return the batch with a note where targets end with missing values.

    ``candidates`` are columns that are not read and have values there.
    """
    missing = {
        name: missing_at_end(values)
        for name, values, is_target in zip(
            batch.ids, batch.values, batch.is_target, strict=True
        )
        if is_target
    }
    examples = [f"{name!r} with {steps}" for name, steps in missing.items() if steps]
    names = ", ".join(map(repr, candidates[:_MAX_NAMES])) or "…"
    cure = (
        f"if these rows are of the future, known=[{names}] reads their columns as known"
        " covariates; else drop them"
    )
    listing = ", ".join(examples[:3])
    if len(examples) > 3:
        listing += f", … ({len(examples)} series)"
    note = f"missing values at the end, after which forecasts begin: {listing}; {cure}"
    return batch.noted([note] if examples else [])


def hold_out(batch: SeriesBatch, horizon: int) -> tuple[SeriesBatch, np.ndarray]:
    """Return the context and the held-out truth (series, horizon).

    As :meth:`SeriesBatch.split`, but refuse a truth without any value of a target.
    """
    context, truth = batch.split(horizon)
    # one value of one target is enough to score, and errors leave gaps out
    if np.isfinite(truth).any(-1)[batch.is_target].any():
        return context, truth
    first = int(np.flatnonzero(batch.is_target)[0])
    steps = missing_at_end(batch.values[first])
    noun = "values" if steps > 1 else "value"
    raise InputError(
        f"series {batch.ids[first]!r} ends with {steps} missing {noun}: the truth of"
        f" all {horizon} steps is missing; drop these rows, name known covariates with"
        " known=[…], or hold nothing out (holdout=False)"
    )


_MAX_NAMES = 3  # of items, in a message
Item = int | str | None
"""An item: its position, the name of its group, or the id of one of its series.

None stands for the only item of a batch.
"""


def item_rows(batch: SeriesBatch, item: Item = None) -> list[int]:
    """Return the positions of the series of one item.

    Raises:
        InputError: None is given and there are several items, or a position is out of
            range.
        UnknownNameError: no item and no series has the name.
    """
    items = batch.rows_by_group()
    if item is None:
        if len(items) > 1:
            first = next(iter(items))
            visible = list(items)[:_MAX_NAMES]
            if len(items) > _MAX_NAMES:
                visible.append("…")
            names = ", ".join(visible)
            raise InputError(
                f"these are {len(items)} items ({names}), and one is explained at a"
                f" time; choose it with item={first!r}, or make a run of it alone with"
                f" run.select({first!r})"
            )
        item = 0
    if isinstance(item, str):
        name = item
        # an id goes before a group of the same name, as in ``SeriesBatch.rows``
        if item in batch.ids:
            name = batch.groups[batch.ids.index(item)]
        if name not in items:
            raise unknown_name("item", item, dict.fromkeys([*items, *batch.ids]))
        return items[name]
    if not is_position(item, -len(items), len(items)):
        raise InputError(
            f"item {item!r} of a batch of {len(items)}; expected a position from 0, or"
            " a name"
        )
    return list(items.values())[int(item)]


def is_position(value: Any, first: int, count: int) -> bool:
    """Test if a value counts something from ``first`` on."""
    return (
        isinstance(value, int | np.integer)
        # True is an int
        and not isinstance(value, bool)
        and bool(first <= value < count)
    )
