"""Generated files: the package reads what a slow reader reads that is told how each is written, or refuses."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from campaigns import slow_reader
from tsfm_lens.core.errors import LensError
from tsfm_lens.data import SeriesBatch, read_series

# what may be read in two ways is refused, and these words say so
OPEN = ("may be", "may part", "thousands", "has no name")

PARTS = 10
FLAGGED = (
    3556,
    4826,
    5814,
    6255,
    7113,
    7122,
    7858,
    8472,
    8803,
    9266,
    9681,
    9736,
    10753,
)
"""Cases with offsets out of range, with commas as the only decimal signs, of one column, and with a spoiled column."""


def disagreement(
    batch: SeriesBatch, expected: dict[str, dict[Any, float | None]]
) -> str:
    """Where ids, times or values differ; "" if nowhere."""
    if list(batch.ids) != list(expected):
        return f"ids {batch.ids} instead of {list(expected)}"
    for row, (name, values) in enumerate(expected.items()):
        found = list(batch.values[row])
        places = _places(batch, row, list(values))
        if places is None:
            return f"{name}: times {batch.timestamps(row)} instead of {sorted(values)}"
        if (
            len(set(places)) != len(places)
            or sorted(places)[0] != 0
            or sorted(places)[-1] != len(found) - 1
        ):
            return f"{name}: {len(found)} steps with places {places}"
        known = dict(zip(places, values.values(), strict=True))
        for place, value in enumerate(found):
            want = known.get(place)
            if math.isnan(value) if want is None else value == want:
                continue
            return f"{name}: {value!r} at step {place} instead of {want!r}"
    return ""


def _places(batch: SeriesBatch, row: int, times: list[Any]) -> list[int] | None:
    """Positions of the times in the series, None if its timestamps lack one."""
    if not isinstance(times[0], datetime):
        ordered = sorted(times)
        apart = Counter(b - a for a, b in pairwise(ordered))
        most = max(apart.values(), default=1)
        step = min((size for size, count in apart.items() if count == most), default=1)
        return (
            None
            if any((time - ordered[0]) % step for time in times)
            else [(t - ordered[0]) // step for t in times]
        )
    stamps = batch.timestamps(row)
    if stamps is None:
        assert batch.starts[row] is not None
        # too few for a frequency: in order
        ordered = sorted(times)
        same = str(batch.starts[row]) == str(ordered[0].replace(tzinfo=None))
        return [ordered.index(time) for time in times] if same else None
    index = {stamp.to_pydatetime(): place for place, stamp in enumerate(stamps)}
    places = [index.get(time.replace(tzinfo=None)) for time in times]
    return None if None in places else [place for place in places if place is not None]


def check(number: int, folder: Path, counts: Counter) -> str:
    case = slow_reader.make(random.Random(number))
    path = folder / f"case{case.suffix}"
    path.write_bytes(case.content)
    kind = case.damage or "whole"
    try:
        expected, text = slow_reader.fair_reading(case)
    except slow_reader.Unreadable:
        expected = None
    try:
        batch = read_series(path, **case.options)
    except LensError as error:
        counts[kind, "refused"] += 1
        if not case.damage and not any(word in str(error) for word in OPEN):
            return f"case {number} is whole, but refused: {error}"
        return ""
    counts[kind, "read"] += 1
    if expected is None:
        return f"case {number} ({kind}) is damaged, or open, but read as {batch!r}"
    unread = next((note for note in batch.notes if note.startswith("not read: ")), "")
    hidden = [name for name in text if repr(name) not in unread]
    if hidden:
        return f"case {number} ({kind}): no note tells of {hidden}"
    wrong = disagreement(batch, expected)
    local = next((note for note in batch.notes if "local clock" in note), None)
    if wrong and local:
        # the note says so: on the wall, not in UTC
        wrong = disagreement(batch, on_the_wall(case))
    return (
        f"case {number} ({kind}, {case.layout}, {case.time}): {wrong}" if wrong else ""
    )


def on_the_wall(case: slow_reader.Case) -> dict[str, dict[Any, float | None]]:
    """The same values by what a local clock shows."""
    with pytest.MonkeyPatch.context() as patch:
        parsed = slow_reader.parsed
        patch.setattr(
            slow_reader,
            "parsed",
            lambda kind, text: parsed(kind, text).replace(tzinfo=None),
        )
        return slow_reader.fair_reading(case)[0]


def run(numbers: Sequence[int], folder: Path) -> Counter:
    counts: Counter = Counter()
    wrong = list(filter(None, (check(number, folder, counts) for number in numbers)))
    lines = [
        f"{kind:20} {counts[kind, 'read']:6} read {counts[kind, 'refused']:6} refused"
        for kind in sorted({kind for kind, _ in counts})
    ]
    print("\n" + "\n".join(lines), flush=True)  # noqa: T201
    assert not wrong, f"{len(wrong)} of {len(numbers)}:\n" + "\n".join(wrong[:25])
    return counts


def test_a_sample_of_generated_files_and_those_that_were_read_otherwise_once(
    tmp_path: Path,
) -> None:
    assert run(range(150), tmp_path)["whole", "read"] > 70
    run(FLAGGED, tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
def test_generated_files(
    part: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = int(os.environ.get("TSFM_LENS_CASES", "10000"))
    with capsys.disabled():
        run(
            range(1000 + part * cases // PARTS, 1000 + (part + 1) * cases // PARTS),
            tmp_path,
        )
