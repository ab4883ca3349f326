"""Units of an explanation: stretches of the past, other variates, and covariates.

:func:`segments` cuts the input of one item into :class:`Segment`. Additive parts, such
as a trend, are made in :mod:`tsfm_lens.explain.parts`; masks of segments are in
:mod:`tsfm_lens.explain.masking`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.batch import Item, is_position, item_rows
from tsfm_lens.data.origins import on_grid
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.run import Run

__all__ = ["Segment", "segments"]

Kind = Literal["past", "variate", "past covariate", "known covariate"]
KINDS: tuple[Kind, ...] = ("past", "variate", "past covariate", "known covariate")
WAYS = ("past and future", "whole", "stretches")
"""How series other than the target are cut."""
EXACT = 12
"""Largest number of segments for which all 2 ** n masks are run."""
# six halvings take a context of 512 steps to a season of 12; more stretches would hold
# effects that no test of faithfulness can tell from zero
_MOST_REFINED = 8
_FEWEST = 4  # stretches of the target's past at least, whatever other series there are


@dataclass(frozen=True)
class Segment:
    """Stretch of one series of an item as the model sees it, or an additive part.

    Attributes:
        name: unique among the segments of an item.
        row: position of the series in its item.
        start, stop: steps ``[start, stop)``, counted from the forecast start: negative
            in the context, from 0 on in a known future.
        kind: "past" of the explained target, another "variate", "past covariate" or
            "known covariate".
        values: of an additive part, what hiding it subtracts at each step (time,); None
            for a stretch, whose values are replaced.
    """

    name: str
    row: int
    start: int
    stop: int
    kind: Kind
    # compare=False, since arrays compare elementwise and give no single bool
    values: np.ndarray | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return self.stop - self.start


def target_row(batch: SeriesBatch, target: int | str = 0) -> int:
    """Return the row of a target in its item.

    It is chosen by its position among targets, or by the name of its variate or series.
    """
    rows = [row for row, role in enumerate(batch.roles) if role == "target"]
    if isinstance(target, str):
        # ids come last and win where a variate has the name of another series
        by_name = {
            name: row
            for names in (batch.variates, batch.ids)
            for row in rows
            if (name := names[row])
        }
        if target not in by_name:
            raise unknown_name("target", target, by_name)
        return by_name[target]
    if not is_position(target, 0, len(rows)):
        raise InputError(
            f"target {target!r} of an item with {len(rows)}; expected a position from"
            " 0, or a name"
        )
    return rows[int(target)]


def token_edges(run: Run) -> tuple[int, ...]:
    """Return the context steps at which an input token begins or ends, ascending."""
    # of the first stack, which reads the series; edges in the future are left out
    spans = run.spans[run.lens.wiring.stacks[0].name]
    return tuple(sorted(edge for edge in {*spans.start, *spans.stop} if edge <= 0))


def segments(
    run_or_batch: Run | SeriesBatch,
    item: Item = None,
    *,
    target: int | str = 0,
    horizon: int | None = None,
    parts: int | None = None,
    season: int | None = None,
    others: str = "past and future",
    cuts: Sequence[Any] | None = None,
) -> tuple[Segment, ...]:
    """Cut the visible input of one item, each step of a series into one segment.

    The target's past is cut into stretches of equal length, counted back from the
    forecast start. Their length is a multiple of a season if it is at least half of
    one, and they end at the end of a token.

    Args:
        run_or_batch: a run, or series, which have no tokens.
        item: by position or name; the only one if None.
        target: by position among the item's targets, or by name.
        horizon: forecast steps; those of the run if None. A batch with known covariates
            needs it.
        parts: largest number of stretches of the target's past. If None, as many as
            make 12 segments with those of other series, but at least 4.
        season: steps of a season; the series' own if None; 1 if stretches need not be
            seasons.
        others: cut other series into "past and future", leave each "whole", or cut into
            "stretches" like the target.
        cuts: first steps of stretches of the target's past after the oldest, in steps
            from the forecast start or as dates; in place of ``parts`` and ``season``.

    Returns:
        The target's stretches from the oldest on, then the other series in their order.

    Raises:
        InputError: no such item or target, parts or season is not a number, others is
            none of these, a cut lies outside the past, or a known covariate ends before
            the horizon.

    Example:
        >>> [part.name for part in explain.segments(driven, parts=2)]
        ['target -72 to -37', 'target -36 to -1', 'cause, past', 'cause, future']
    """
    if others not in WAYS:
        raise unknown_name("way to cut a covariate", others, WAYS)
    full = run_or_batch.batch if isinstance(run_or_batch, Run) else run_or_batch
    rows = item_rows(full, item)
    batch = full.select(rows)
    steps = horizon
    if horizon is None and isinstance(run_or_batch, Run):
        steps = run_or_batch.horizon
    if steps is None and "known" in batch.roles:
        raise InputError(
            "series with known covariates are cut up to the horizon; give horizon=…, or"
            " a run"
        )
    ahead = 0 if steps is None else steps
    # its values are not needed: it raises if a known covariate ends before the horizon
    batch.known_future(ahead)
    if isinstance(run_or_batch, Run):
        item_run = run_or_batch.select(rows)
        edges = token_edges(item_run)
        # the model does not read older steps
        first = -min(batch.lengths[0], item_run.lens.context_length)
    else:
        first = -batch.lengths[0]
        # series alone have no tokens, so a stretch may end at any step
        edges = tuple(range(first, 1))
    target_index = target_row(batch, target)
    period = batch.seasonalities[target_index] if season is None else season
    # other series have a segment each, and a second one for a known future
    other_segments = len(batch) - 1
    if others == "past and future":
        other_segments += batch.roles.count("known")
    # EXACT segments in all, for which masks need no sampling
    count = max(EXACT - other_segments, _FEWEST) if parts is None else parts
    for name, value in (("parts", count), ("season", period)):
        if not is_count(value):
            raise InputError(
                f"{name}={value!r} is not a number; expected an integer of 1 or more"
            )
    width = _width(-first, count, period, edges)
    inner_cuts = _inner_cuts(batch, target_index, first, cuts)
    result = []
    other_rows = [row for row in range(len(batch)) if row != target_index]
    for row in [target_index, *other_rows]:
        stop = ahead if batch.roles[row] == "known" else 0
        way = "stretches" if row == target_index else others
        ranges = _ranges(first, stop, width, edges, way)
        if row == target_index and inner_cuts is not None:
            ranges = list(pairwise([first, *inner_cuts, 0]))
        for start, end in ranges:
            result.append(_segment(batch, row, target_index, start, end, (first, stop)))
    return tuple(result)


def _width(length: int, count: int, season: int, edges: Sequence[int]) -> int:
    """Return the length of a stretch, so that at most ``count`` of them cover a past.

    ``length`` is that of the past. A stretch is made of whole seasons and whole tokens
    where possible. ``edges`` are those of tokens.
    """
    # -(-a // b) rounds up
    width = -(-length // count)
    token = 1
    if len(edges) > 1:
        # the most common distance, since tokens that overlap add edges in between
        token = Counter(b - a for a, b in pairwise(edges)).most_common(1)[0][0]
    for unit in (math.lcm(season, token), season):
        # a stretch of half a unit or more is rounded up to whole units
        if 1 < unit < min(2 * width, length):
            return -(-width // unit) * unit
    if token <= width:
        return -(-width // token) * token
    return max(width, min(token, length))


def _ranges(
    first: int, stop: int, width: int, edges: Sequence[int], way: str
) -> list[tuple[int, int]]:
    """Return the ranges into which a series is cut, from the oldest on.

    The series has steps [first, stop); ``way`` is one of ``WAYS``.
    """
    if way == "whole":
        return [(first, stop)]
    # a set, as stop is 0 where there is no known future
    cuts = {first, 0, stop}
    if way == "stretches":
        # without an edge inside, first takes its place, and so adds no cut
        inner = [edge for edge in edges if first < edge < 0] or [first]
        cuts |= {_nearest(inner, aim) for aim in range(-width, first, -width)}
        # in the future there are no edges to go by
        cuts |= set(range(width, stop, width))
    return list(pairwise(sorted(cuts)))


def _inner_cuts(
    batch: SeriesBatch, row: int, first: int, cuts: Sequence[Any] | None
) -> list[int] | None:
    """Return cuts of a series' past as steps, sorted; None where none are given."""
    if cuts is None:
        return None
    steps = sorted(find_step(batch, row, cut) for cut in cuts)
    outside = [step for step in steps if not first < step < 0]
    if outside or len(set(steps)) < len(steps):
        raise InputError(
            f"cuts {list(cuts)!r} of {batch.ids[row]!r}: expected different steps from"
            f" {first + 1} to -1"
        )
    return steps


def refined_segments(
    run: Run,
    effects: Callable[[tuple[Segment, ...], Sequence[int]], np.ndarray],
    *,
    target: int | str = 0,
    season: int | None = None,
    others: str = "past and future",
) -> tuple[Segment, ...]:
    """Cut the target's past into stretches that are short where its effects are.

    From few stretches on, the one of largest effect is halved, until there are 8, or as
    many as :func:`segments` makes. Whole seasons, or whole tokens where there is none,
    are never cut, and so neither are the last steps before the forecast.

    Args:
        run: of one item.
        effects: gives the size of the effect of some segments of a whole cut, by their
            positions in it.
        target: by position among the item's targets, or by name.
        season: steps of a season; the series' own if None.
        others: cut other series into "past and future", leave each "whole", or cut into
            "stretches" like the target.

    Returns:
        The target's stretches from the oldest on, then the other series in their order.
    """
    row = target_row(run.batch, target)
    period = run.batch.seasonalities[row] if season is None else season
    edges = token_edges(run)
    even = segments(run, target=target, season=season, others=others)
    count = min(_MOST_REFINED, sum(part.row == row for part in even))
    current = segments(
        run, target=target, parts=max(1, count // 3), season=season, others=others
    )
    sizes: dict[Segment, float] = {}
    while True:
        stretches = [index for index, part in enumerate(current) if part.row == row]
        halves = {
            current[index]: _middle_cut(current[index], edges, period)
            for index in stretches
        }
        divisible = [part for part, cut in halves.items() if cut is not None]
        if len(halves) >= count or not divisible:
            return current
        # of a stretch that stays, the effect is known
        new = [index for index in stretches if current[index] not in sizes]
        parts = [current[index] for index in new]
        sizes |= dict(zip(parts, effects(current, new), strict=True))
        largest = max(divisible, key=sizes.__getitem__)
        # the oldest stretch begins where the past does, which is no cut
        starts = [part.start for part in halves][1:]
        cuts = [*starts, halves[largest]]
        current = segments(run, target=target, cuts=cuts, others=others)


def _middle_cut(part: Segment, edges: Sequence[int], season: int) -> int | None:
    """Return the cut nearest to the middle of a stretch, None where it stays whole."""
    allowed = [edge for edge in edges if part.start < edge < part.stop]
    if season > 1:
        in_seasons = [
            edge for edge in range(0, part.start, -season) if edge < part.stop
        ]
        # tokens that divide a season have all its ends as edges
        allowed = sorted({*allowed} & {*in_seasons}) or in_seasons
    if not allowed:
        return None
    return _nearest(allowed, (part.start + part.stop) // 2)


def _nearest(edges: Sequence[int], aim: int) -> int:
    """Return the edge that is nearest to a step."""
    return int(edges[np.abs(np.array(edges) - aim).argmin()])


def _segment(
    batch: SeriesBatch,
    row: int,
    target_index: int,
    start: int,
    stop: int,
    bounds: tuple[int, int],
) -> Segment:
    """Make a named segment; ``bounds`` are the steps [first, stop) of its series."""
    kind = find_kind(batch, row, target_index)
    if len(batch) == 1:
        name = "past"
    else:
        name = batch.variates[row] or batch.ids[row]
    if kind == "known covariate" and (start, stop) in ((bounds[0], 0), (0, bounds[1])):
        name += ", past" if stop == 0 else ", future"
    elif (start, stop) != bounds:
        name += f" {start} to {stop - 1}"
    return Segment(name, row, start, stop, kind)


def find_kind(batch: SeriesBatch, row: int, target: int) -> Kind:
    """Return the kind of a series' segments when a target is explained.

    ``target`` is the row of that target.
    """
    by_role: dict[str, Kind] = {"past": "past covariate", "known": "known covariate"}
    return by_role.get(batch.roles[row], "past" if row == target else "variate")


def find_step(batch: SeriesBatch, row: int, where: Any) -> int:
    """Return a step from the forecast start, given as a number or as a date."""
    # a bool is an int to Python, and is refused below
    if isinstance(where, int | np.integer) and not isinstance(where, bool):
        return int(where)
    # with as many future dates as the context has, since ``where`` may be in the future
    stamps = batch.timestamps(row, ahead=batch.lengths[row])
    try:
        date = pd.Timestamp(where)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where!r} is no step and no date") from error
    if stamps is None:
        raise InputError(
            f"{batch.ids[row]!r} has no dates; give steps from the forecast start"
            f" instead of {where!r}"
        )
    date = on_grid(date, batch, stamps)
    if not stamps[0] <= date <= stamps[-1]:
        dates = batch.dates(row, ahead=batch.lengths[row])
        assert dates is not None
        raise InputError(
            f"{where!r} lies outside of what the model is shown of {batch.ids[row]!r},"
            f" {dates[0]} to {dates[-1]}"
        )
    # a date between two steps is taken as the later step
    return int(stamps.searchsorted(date)) - batch.lengths[row]


def check_segments(parts: Sequence[Segment], batch: SeriesBatch, horizon: int) -> None:
    """Raise InputError unless segments fit their series and each other.

    They must lie inside of their series and have different names, and stretches must
    not overlap.
    """
    if not parts:
        raise InputError(
            "there are no segments to explain by; tsfm_lens.explain.segments(run) cuts"
            " an item"
        )
    duplicates = [
        name
        for name, times in Counter(part.name for part in parts).items()
        if times > 1
    ]
    if duplicates:
        raise InputError(
            f"two segments are called {duplicates[0]!r}; give each its own name"
        )
    by_row: dict[int, list[Segment]] = {}
    for part in parts:
        if not 0 <= part.row < len(batch):
            raise InputError(
                f"segment {part.name!r} is of series {part.row} of an item with"
                f" {len(batch)}"
            )
        first = -batch.lengths[part.row]
        last = 0
        if batch.roles[part.row] == "known":
            last = horizon
        if not first <= part.start < part.stop <= last:
            raise InputError(
                f"segment {part.name!r} covers steps {part.start} to {part.stop - 1},"
                f" and {batch.ids[part.row]!r} is shown from {first} to {last - 1}"
            )
        if part.values is not None and (
            np.shape(part.values) != (len(part),) or not np.isfinite(part.values).all()
        ):
            raise InputError(
                f"segment {part.name!r} has {np.shape(part.values)} values, expected"
                f" {len(part)} numbers"
            )
        for other in by_row.setdefault(part.row, []):
            additive = part.values is not None and other.values is not None
            if part.start < other.stop and other.start < part.stop and not additive:
                raise InputError(
                    f"segments {other.name!r} and {part.name!r} overlap; each step"
                    " belongs to one"
                )
        by_row[part.row].append(part)


def segment_coords(parts: Sequence[Segment]) -> dict[str, Any]:
    """Return coordinates of segments: name, row, start, stop and kind.

    Values of additive parts are included; they are NaN of stretches.
    """
    columns = {
        name: ("segment", [getattr(part, name) for part in parts])
        for name in ("row", "start", "stop", "kind")
    }
    coords: dict[str, Any] = {"segment": [part.name for part in parts], **columns}
    if any(part.values is not None for part in parts):
        # a table over all steps that any segment covers, NaN outside of a part
        first = min(part.start for part in parts)
        last = max(part.stop for part in parts)
        part_values = [
            np.full(len(part), np.nan) if part.values is None else part.values
            for part in parts
        ]
        margins = [(part.start - first, last - part.stop) for part in parts]
        padded = [
            np.pad(values, margin, constant_values=np.nan)
            for values, margin in zip(part_values, margins, strict=True)
        ]
        table = np.stack(padded)
        coords |= {
            "part_step": np.arange(first, last),
            "part_values": (("segment", "part_step"), table),
        }
    return coords


def read_segments(data: xr.Dataset) -> tuple[Segment, ...]:
    """Return the segments of a result, from the coordinates of segment_coords()."""
    columns = (
        data[name].values.tolist()
        for name in ("segment", "row", "start", "stop", "kind")
    )
    parts = [Segment(*values) for values in zip(*columns, strict=True)]
    if "part_values" not in data.coords:
        return tuple(parts)
    first = int(data["part_step"].values[0])
    table = data["part_values"].transpose("segment", "part_step").values
    part_values = [
        row[part.start - first : part.stop - first]
        for part, row in zip(parts, table, strict=True)
    ]
    return tuple(
        # values of an additive part are finite (check_segments), so a NaN means that
        # this is a stretch
        replace(part, values=None if np.isnan(values).any() else values)
        for part, values in zip(parts, part_values, strict=True)
    )
