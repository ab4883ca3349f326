"""Windows over a multivariate series, cut, standardised and split as the paper's benchmarks are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch, as_series, read_series
from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.studies.samformer.transformer import refuse_sizes

__all__ = ["SPLITS", "Benchmark", "Windows", "benchmark"]

_MONTH = 30 * 24
SPLITS: dict[str, tuple[int, int, int] | None] = {
    "ett-hourly": (12 * _MONTH, 4 * _MONTH, 4 * _MONTH),
    "ett-15min": (48 * _MONTH, 16 * _MONTH, 16 * _MONTH),
    "70/10/20": None,
}
"""Rows of training, validation and test, from the first row on; None for those shares of all rows (E1-8)."""


@dataclass(frozen=True)
class Windows:
    """All windows of a part of a series, at stride 1, with the steps that follow each.

    Attributes:
        values: (channel, time), standardised.
        length, horizon: L and H.
    """

    values: Tensor
    length: int
    horizon: int

    def __len__(self) -> int:
        return self.values.shape[1] - self.length - self.horizon + 1

    def take(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return the windows (window, channel, L) of these numbers and the steps that follow, (window, channel, H)."""
        both = self.values.unfold(1, self.length + self.horizon, 1)[:, which].transpose(0, 1)
        return both[..., : self.length], both[..., self.length :]


@dataclass(frozen=True)
class Benchmark:
    """Series in three parts; validation and test begin L steps early, so that their first forecast is new.

    Attributes:
        name: of the file, or as given.
        channels: their names.
        training, validation, test: windows of each.
        mean, deviation: (channel,), of the training rows, by which all are standardised.
    """

    name: str
    channels: tuple[str, ...]
    training: Windows
    validation: Windows
    test: Windows
    mean: np.ndarray
    deviation: np.ndarray

    @property
    def digest(self) -> str:
        """Short hash of the values and of their parts."""
        whole = hashlib.sha256()
        for part in (self.training, self.validation, self.test):
            whole.update(str(tuple(part.values.shape)).encode())
            whole.update(part.values.contiguous().numpy().tobytes())
        return whole.hexdigest()[:16]


def benchmark(
    source: str | Path | SeriesBatch | Any,
    *,
    length: int = 512,
    horizon: int = 96,
    split: str = "70/10/20",
    channels: Sequence[str] | None = None,
    name: str | None = None,
) -> Benchmark:
    """Read a multivariate series, split it, and standardise it by the mean and deviation of its training rows.

    Args:
        source: a file that :func:`tsfm_lens.data.read_series` reads, plain or .gz, with a column per channel, in .txt
            without names as LSTNet publishes them; or those series; or an array (channel, time).
        length, horizon: L and H.
        split: of ``SPLITS``: "ett-hourly" and "ett-15min" are 12, 4 and 4 months of 30 days, "70/10/20" shares in
            the order training, validation, test, as in the released code; the paper prints the last two exchanged.
        channels: names of the columns to take; all if None.
        name: of the data in results; the file's if None.

    Source:
        SAMformer, appendices A.1 and A.2; E1-8 for the order of the parts.

    Raises:
        InputError: the file cannot be read, a value is missing, channels differ in length, one is constant over the
            training rows, or a part is too short for a window.
        UnknownNameError: an unknown split or channel.

    Example:
        >>> waves = np.sin(np.arange(300) / np.array([[3.0], [7.0]]))
        >>> made = samformer.benchmark(waves, length=24, horizon=6)
        >>> len(made.training), len(made.validation), len(made.test)
        (181, 25, 55)
    """
    refuse_sizes(length=length, horizon=horizon)
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    file = Path(source) if isinstance(source, str | Path) else None
    if file:
        batch = read_series(file, header=False if ".txt" in file.suffixes else None)
    else:
        batch = source if isinstance(source, SeriesBatch) else as_series([source])
    if channels is not None:
        batch = batch.select(list(channels))
    values = _complete_values(batch)
    rows = _rows(split, values.shape[1])
    mean, deviation = _statistics(values[:, : rows[0]], batch.ids)
    standard = torch.from_numpy(((values - mean[:, None]) / deviation[:, None]).astype(np.float32))
    parts, start = [], 0
    for part, count in zip(("training", "validation", "test"), rows, strict=True):
        first = max(start - length, 0) if start else 0
        short = length + horizon - (start + count - first)
        if short > 0:
            raise InputError(
                f"the {part} part has {count} of {values.shape[1]} rows{' and the window before it' if start else ''}, "
                f"{short} fewer than a window of {length} steps and a horizon of {horizon} take; choose a smaller "
                "length or horizon, or give a longer series"
            )
        parts.append(Windows(standard[:, first : start + count], length, horizon))
        start += count
    title = name or (file.name if file else "series")
    return Benchmark(title, batch.ids, parts[0], parts[1], parts[2], mean, deviation)


def _complete_values(batch: SeriesBatch) -> np.ndarray:
    """Return (channel, time); refuse missing values and channels that end apart."""
    if len(set(batch.lengths)) > 1:
        longest, shortest = (batch.ids[int(find(batch.lengths))] for find in (np.argmax, np.argmin))
        raise InputError(
            f"channels have {min(batch.lengths)} ({shortest!r}) to {max(batch.lengths)} ({longest!r}) steps; expected "
            "one length"
        )
    values = np.stack([np.asarray(series, dtype=np.float64) for series in batch.values])
    gaps = np.argwhere(~np.isfinite(values))
    if len(gaps):
        channel, row = gaps[0]
        raise InputError(
            f"channel {batch.ids[channel]!r} has no value in row {row} ({len(gaps)} values are missing in all); "
            "fill the gaps first, these models take none"
        )
    return values


def _rows(split: str, total: int) -> tuple[int, int, int]:
    counts = SPLITS[split]
    if counts is None:
        training, test = int(total * 0.7), int(total * 0.2)
        return training, total - training - test, test
    if total < sum(counts):
        raise InputError(f"the split {split!r} takes {sum(counts)} rows, the series has {total}; choose '70/10/20'")
    return counts


def _statistics(values: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    mean, deviation = values.mean(axis=1), values.std(axis=1)
    constant = np.flatnonzero(values.max(axis=1, initial=-np.inf) == values.min(axis=1, initial=np.inf))
    if len(constant):
        raise InputError(
            f"channel {names[constant[0]]!r} is constant over the training rows and cannot be standardised; leave it "
            "out with channels=…"
        )
    return mean, deviation
