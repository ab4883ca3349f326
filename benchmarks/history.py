"""What was measured when: a row per measurement in ``history.csv``, which the site
draws over time.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import tsfm_lens

HISTORY = Path(__file__).with_name("history.csv")
COLUMNS = (
    "date",
    "version",
    "commit",
    "measurement",
    "median",
    "low",
    "high",
    "remark",
)
_NUMBER = re.compile(r"-?[\d.]+(?:e-?\d+)?")
_RANGE = re.compile(r"([\d.]+)–([\d.]+)")


def append(
    rows: Iterable[tuple[str, str, str, str, bool | None]],
    remark: str,
    file: Path = HISTORY,
) -> int:
    """Add what was measured now, with date, version and commit.

    Args:
        rows: measurement, value, range or note, target, met.
        remark: on what it was measured.
        file: the history; made if it is not there.

    Returns:
        How many rows were added: those with a number.
    """
    day = datetime.now(UTC).date().isoformat()
    commit = _commit()
    made = []
    for name, value, note, _target, _met in rows:
        number = _NUMBER.match(value)
        if number is None:
            continue
        span = _RANGE.fullmatch(note)
        low, high = span.groups() if span else ("", "")
        made.append(
            (day, tsfm_lens.__version__, commit, name, number[0], low, high, remark)
        )
    new = not file.exists()
    with file.open("a", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerows(made)
    return len(made)


def _commit() -> str:
    """Of the checkout, with "+" where it has changes; "" where there is no git."""
    asked = [
        "git",
        "-C",
        str(HISTORY.parent),
        "describe",
        "--always",
        "--exclude=*",
        "--dirty=+",
    ]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
