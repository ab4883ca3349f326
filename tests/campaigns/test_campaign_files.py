"""Generated files: the package reads what a slow reader reads that is told how each is
written, or refuses.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
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
"""Cases with offsets out of range, with commas as the only decimal signs, of one
column, and with a spoiled column.
"""


def disagreement(
    batch: SeriesBatch, expected: dict[str, dict[Any, float | None]]
) -> str:
    """Where ids, times or values differ; "" if nowhere."""
    if list(batch.ids) != list(expected):
        return f"ids {batch.ids} instead of {list(expected)}"
    for row, (name, by_time) in enumerate(expected.items()):
        if isinstance(next(iter(by_time)), datetime):
            by_time = {time.replace(tzinfo=None): by_time[time] for time in by_time}
        wanted = pd.Series(by_time, dtype=float).sort_index()
        times = axis(batch, row, wanted.index)
        if len(times) != batch.lengths[row] or not wanted.index.isin(times).all():
            return f"{name}: times {times} instead of {list(wanted.index)}"
        if (times[0], times[-1]) != (wanted.index[0], wanted.index[-1]):
            return f"{name}: from {times[0]} to {times[-1]}"
        found = pd.Series(batch.values[row], times)
        # what the file does not say is missing
        if not found.equals(wanted.reindex(times)):
            return f"{name}: {found.compare(wanted.reindex(times))}"
    return ""


def axis(batch: SeriesBatch, row: int, times: pd.Index) -> pd.Index:
    """Times of the steps of a series, which begins and goes on as the times of the file
    do where it has none.
    """
    stamps = batch.timestamps(row)
    if stamps is not None:
        return stamps
    if isinstance(times, pd.DatetimeIndex):
        # too few for a frequency: in order
        assert batch.starts[row] == times[0]
        return times
    steps = times.to_series().diff().mode()
    step = 1
    if len(steps):
        step = int(steps.min())
    return pd.Index(times[0] + step * np.arange(batch.lengths[row]))


def check(number: int, folder: Path, counts: Counter) -> str:
    case = slow_reader.make(random.Random(number))
    path = folder / f"case{case.suffix}"
    path.write_bytes(case.content)
    kind = case.damage or "whole"
    try:
        expected, texts = slow_reader.fair_reading(case)
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
    hidden = [name for name in texts if repr(name) not in unread]
    if hidden:
        return f"case {number} ({kind}): no note tells of {hidden}"
    wrong = disagreement(batch, expected)
    local = next((note for note in batch.notes if "local clock" in note), None)
    if wrong and local:
        # the note says so: on the wall, not in UTC
        wrong = disagreement(batch, on_the_wall(case))
    if wrong:
        return f"case {number} ({kind}, {case.layout}, {case.time}): {wrong}"
    return ""


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


def test_sample_of_generated_and_reported_files(
    tmp_path: Path,
) -> None:
    """A sample of generated files, and files that were once read otherwise."""
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
