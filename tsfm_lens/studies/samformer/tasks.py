"""Training tasks: the toy problem, and benchmarks read from files.

:func:`benchmark` cuts a file into windows as the paper does; :class:`ToyTask` and
:class:`BenchmarkTask` are what a model is trained on, both a :class:`ForecastTask`. The
training loop is in :mod:`tsfm_lens.training`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data import SeriesBatch, as_series, read_series
from tsfm_lens.studies.samformer.models import check_sizes

__all__ = [
    "Benchmark",
    "BenchmarkTask",
    "ForecastTask",
    "LinearToy",
    "SPLITS",
    "SlidingWindows",
    "ToyTask",
    "benchmark",
    "cosine_by_epoch",
]


def stream(seed: int, *parts: int) -> torch.Generator:
    """Make an independent generator for every seed and tuple of parts.

    Raises:
        InputError: the seed is negative.
    """
    if seed < 0:
        raise InputError(f"seed={seed}, expected a whole number of at least 0")
    mixed = np.random.SeedSequence((seed, *parts)).generate_state(1)
    return torch.Generator().manual_seed(int(mixed[0]))


BLOCK = 500
"""Pairs that are drawn together."""
WEIGHT, PAIRS = range(2)
AT_ONCE = 256
"""Pairs that are forecast together in an evaluation."""


@dataclass(frozen=True)
class LinearToy:
    """Toy problem Y = X W_toy + ε with independent normal entries (S1-TOY).

    Windows X are (D, L), forecasts Y (D, H), and there is one W_toy (L, H).

    Attributes:
        training, validation, noise: pairs; standard deviation of ε.
    """

    length: int = 512
    horizon: int = 96
    channels: int = 7
    training: int = 10_000
    validation: int = 5_000
    noise: float = 1.0
    seed: int = 0

    def weight(self) -> Tensor:
        """Return W_toy, (L, H)."""
        return torch.randn(
            self.length, self.horizon, generator=stream(self.seed, WEIGHT)
        )

    def pairs(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Draw windows (pair, D, L) and forecasts (pair, D, H).

        Training pairs come first, then those of validation.
        """
        weight = self.weight()
        pairs = []
        # drawn in blocks, so that one pair is the same whichever others are asked for
        first = start // BLOCK
        for block in range(first, -(-stop // BLOCK)):
            generator = stream(self.seed, PAIRS, block)
            x = torch.randn(BLOCK, self.channels, self.length, generator=generator)
            noise = torch.randn(BLOCK, self.channels, self.horizon, generator=generator)
            # the whole product, because how it is rounded may depend on how many rows
            # it has
            pairs.append((x, x @ weight + self.noise * noise))
        skipped = first * BLOCK
        windows, forecasts = map(torch.cat, zip(*pairs, strict=True))
        selected = slice(start - skipped, stop - skipped)
        return windows[selected], forecasts[selected]


_MONTH = 30 * 24
SPLITS: dict[str, tuple[int, int, int] | None] = {
    "ett-hourly": (12 * _MONTH, 4 * _MONTH, 4 * _MONTH),
    "ett-15min": (48 * _MONTH, 16 * _MONTH, 16 * _MONTH),
    "70/10/20": None,
}
"""Rows of training, validation and test, from the first row on.

None stands for those shares of all rows (E1-8).
"""


@dataclass(frozen=True)
class SlidingWindows:
    """All windows of L steps of a part, each with the H steps after it.

    ``values`` are standardised, (channel, time); windows have stride 1.
    """

    values: Tensor
    length: int
    horizon: int

    def __len__(self) -> int:
        return self.values.shape[1] - self.length - self.horizon + 1

    def take(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return windows by number, and the steps that follow them.

        Returns:
            (window, channel, L) and (window, channel, H).
        """
        windows = self.values.unfold(1, self.length + self.horizon, 1)[:, which]
        past, future = windows.transpose(0, 1).tensor_split([self.length], -1)
        return past, future


@dataclass(frozen=True)
class Benchmark:
    """Series in three parts, for training, validation and test.

    Validation and test begin L steps early, so that their first forecast is new.
    ``mean`` and ``deviation``, (channel,), are of the training rows, by which all are
    standardised.
    """

    name: str
    channels: tuple[str, ...]
    training: SlidingWindows
    validation: SlidingWindows
    test: SlidingWindows
    mean: np.ndarray
    deviation: np.ndarray

    @property
    def digest(self) -> str:
        """Short hash of the values and of their parts."""
        digest = hashlib.sha256()
        for part in (self.training, self.validation, self.test):
            digest.update(str(tuple(part.values.shape)).encode())
            digest.update(part.values.numpy().tobytes())
        return digest.hexdigest()[:16]


def benchmark(
    source: str | Path | SeriesBatch | Any,
    *,
    length: int = 512,
    horizon: int = 96,
    split: str = "70/10/20",
    channels: Sequence[str] | None = None,
) -> Benchmark:
    """Read a multivariate series, split it, and standardise it.

    It is standardised by the mean and deviation of its training rows.

    Args:
        source: a file that :func:`tsfm_lens.data.read_series` reads, with a column per
            channel; or those series; or an array (channel, time).
        length, horizon: L and H.
        split: of ``SPLITS``: "ett-hourly" and "ett-15min" are 12, 4 and 4 months of 30
            days, "70/10/20" shares in the order training, validation, test, as in the
            released code; the paper prints the last two exchanged (E1-8).
        channels: names of the columns to take; all if None.

    Raises:
        InputError: the file cannot be read, a value is missing, channels differ in
            length, one is constant over the training rows, or a part is too short for a
            window.
        UnknownNameError: an unknown split or channel.

    Example:
        >>> waves = np.sin(np.arange(300) / np.array([[3.0], [7.0]]))
        >>> made = samformer.benchmark(waves, length=24, horizon=6)
        >>> len(made.training), len(made.validation), len(made.test)
        (181, 25, 55)
    """
    check_sizes(length=length, horizon=horizon)
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    name = "series"
    if isinstance(source, str | Path):
        file = Path(source)
        # benchmarks in .txt files have no header
        header = False if ".txt" in file.suffixes else None
        batch = read_series(file, header=header)
        name = file.name
    elif isinstance(source, SeriesBatch):
        batch = source
    else:
        batch = as_series([source])
    if channels is not None:
        batch = batch.select(list(channels))
    if len(set(batch.lengths)) > 1:
        longest = batch.ids[int(np.argmax(batch.lengths))]
        shortest = batch.ids[int(np.argmin(batch.lengths))]
        raise InputError(
            f"channels have {min(batch.lengths)} ({shortest!r}) to {max(batch.lengths)}"
            f" ({longest!r}) steps; expected one length"
        )
    values = np.stack([np.asarray(series, dtype=np.float64) for series in batch.values])
    gaps = np.argwhere(~np.isfinite(values))
    if len(gaps):
        channel, row = gaps[0]
        raise InputError(
            f"channel {batch.ids[channel]!r} has no value in row {row} ({len(gaps)}"
            " values are missing in all); fill the gaps first, these models take none"
        )
    return _split(values, batch.ids, length, horizon, split, name)


def _split(
    values: np.ndarray,
    channels: tuple[str, ...],
    length: int,
    horizon: int,
    split: str,
    name: str,
) -> Benchmark:
    """Split and standardise complete values (channel, time)."""
    total = values.shape[1]
    rows = SPLITS[split]
    if rows is None:
        training_rows = int(total * 0.7)
        test_rows = int(total * 0.2)
        rows = (training_rows, total - training_rows - test_rows, test_rows)
    elif total < sum(rows):
        raise InputError(
            f"the split {split!r} takes {sum(rows)} rows, the series has {total};"
            " choose '70/10/20'"
        )
    known = values[:, : rows[0]]
    mean = known.mean(axis=1)
    deviation = known.std(axis=1)
    constant = np.flatnonzero((known == known[:, :1]).all(axis=1))
    if len(constant):
        raise InputError(
            f"channel {channels[constant[0]]!r} is constant over the training rows and"
            " cannot be standardised; leave it out with channels=…"
        )
    bounds = []
    start = 0
    for part, count in zip(("training", "validation", "test"), rows, strict=True):
        first = max(start - length, 0)
        short = length + horizon - (start + count - first)
        if short > 0:
            before = " and the window before it" if start else ""
            raise InputError(
                f"the {part} part has {count} of {total} rows{before}, {short} fewer"
                f" than a window of {length} steps and a horizon of {horizon} take;"
                " choose a smaller length or horizon, or give a longer series"
            )
        start += count
        bounds.append((first, start))
    standard = torch.from_numpy((values - mean[:, None]) / deviation[:, None]).float()
    training, validation, test = (
        SlidingWindows(standard[:, first:stop], length, horizon)
        for first, stop in bounds
    )
    return Benchmark(name, channels, training, validation, test, mean, deviation)


class HeldPairs:
    """Windows and the steps that follow them in memory, as two tensors."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x = x
        self.y = y

    def __len__(self) -> int:
        return len(self.x)

    def take(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of these numbers."""
        return self.x[which], self.y[which]


WindowPairs = SlidingWindows | HeldPairs


class SquaredErrorTask:
    """Task of a model that is trained on its mean squared error.

    A subclass sets ``name``, ``batch`` and ``seed``, and calls :meth:`identify`.
    """

    name: str
    model: nn.Module

    def identify(self, *settings: Mapping[str, Any] | None) -> None:
        """Set ``identity``, the JSON of all settings that the weights depend on."""
        content = {"task": self.name}
        for part in settings:
            content |= part or {}
        self.identity = json.dumps(content, sort_keys=True)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def examples(self, step: int) -> tuple[Tensor, ...]:
        """Return the inputs of a step, and the targets last."""
        raise NotImplementedError

    def loss(self, step: int) -> Tensor:
        """Compute the mean squared error of the batch of a step."""
        *inputs, targets = (part.to(self.device) for part in self.examples(step))
        return (self.model(*inputs) - targets).square().mean()


class ForecastTask(SquaredErrorTask):
    """Task of a model that learns to forecast from pairs.

    Args:
        name, model: title; windows (batch, channel, L) to forecasts (batch, channel,
            H).
        training, validation, batch, seed: pairs; windows in a batch, and of the order.
        settings: further settings that the weights depend on, for ``identity``, the
            JSON of all.

    Raises:
        InputError: there is no pair, or the batch is below 1.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        training: WindowPairs,
        validation: WindowPairs,
        *,
        batch: int = 32,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if min(len(training), len(validation), batch) < 1:
            raise InputError(
                f"{len(training)} training pairs, {len(validation)} of validation and"
                f" batches of {batch}; expected at least 1 each"
            )
        self.name = name
        self.model = model
        self.training = training
        self.validation = validation
        self.batch = batch
        self.seed = seed
        self.batches_per_epoch = math.ceil(len(training) / batch)
        own = {
            "batch": batch,
            "seed": seed,
            # of a loss that runs could have once
            "as_printed": False,
            "pairs": [len(training), len(validation)],
            "model": type(model).__name__,
        }
        of_model = {
            f"model.{key}": value
            for key, value in getattr(model, "settings", {}).items()
        }
        self.identify(own, of_model, settings)
        self._order: tuple[int, Tensor] | None = None

    def list_pairs(self, step: int) -> Tensor:
        """Return the numbers of the training pairs in the batch of a step."""
        epoch, index = divmod(step, self.batches_per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = (
                epoch,
                torch.randperm(len(self.training), generator=stream(self.seed, epoch)),
            )
        return self._order[1][index * self.batch : (index + 1) * self.batch]

    def examples(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the training pairs of a step."""
        return self.training.take(self.list_pairs(step))

    def evaluate(self) -> dict[str, float]:
        """Compute mean errors over the validation pairs: "mse" and "mae"."""
        return compute_errors(self.model, self.validation)


def prediction_errors(
    model: nn.Module, batches: Iterable[tuple[Tensor, ...]]
) -> Iterator[Tensor]:
    """Yield the errors of batches, in evaluation mode.

    Batches are the inputs of the model, and the targets last. Errors are in float64, on
    the CPU.
    """
    training = model.training
    device = next(model.parameters()).device
    model.eval()
    try:
        for *inputs, targets in batches:
            with torch.no_grad():
                outputs = model(*(part.to(device) for part in inputs))
            yield (outputs.cpu() - targets).double()
    finally:
        model.train(training)


def compute_errors(model: nn.Module, pairs: WindowPairs) -> dict[str, float]:
    """Compute mean squared ("mse") and absolute ("mae") errors.

    They are over windows, channels and steps, in evaluation mode.
    """
    squared = absolute = count = 0.0
    rows = torch.arange(len(pairs)).split(AT_ONCE)
    for error in prediction_errors(model, map(pairs.take, rows)):
        squared += float(error.square().sum())
        absolute += float(error.abs().sum())
        count += error.numel()
    return {"mse": squared / count, "mae": absolute / count}


class ToyTask(ForecastTask):
    """Task of a model on the toy problem (S1-TOY), whose pairs are held in memory.

    Raises:
        InputError: the model's length, horizon or channels are not the toy's.
    """

    def __init__(
        self, model: nn.Module, toy: LinearToy | None = None, **options: Any
    ) -> None:
        self.toy = LinearToy() if toy is None else toy
        _check_sizes(model, self.toy.length, self.toy.horizon, self.toy.channels)
        last = self.toy.training + self.toy.validation
        pairs = [
            HeldPairs(*self.toy.pairs(*bounds))
            for bounds in ((0, self.toy.training), (self.toy.training, last))
        ]
        settings = {f"toy.{key}": value for key, value in vars(self.toy).items()}
        options["settings"] = settings | (options.get("settings") or {})
        super().__init__("the toy problem", model, *pairs, **options)


class BenchmarkTask(ForecastTask):
    """Task of a model on a benchmark.

    It is split by :func:`tsfm_lens.studies.samformer.benchmark`.

    Raises:
        InputError: the model's length, horizon or channels are not those of the
            windows.
    """

    def __init__(self, model: nn.Module, data: Benchmark, **options: Any) -> None:
        self.data = data
        part = data.training
        _check_sizes(model, part.length, part.horizon, len(data.channels))
        settings = {"data": data.name, "digest": data.digest}
        options["settings"] = settings | (options.get("settings") or {})
        super().__init__(
            f"{type(model).__name__} on {data.name}",
            model,
            data.training,
            data.validation,
            **options,
        )

    def test(self) -> dict[str, float]:
        """Compute mean errors on the test part, "mse" and "mae".

        These are the errors of the paper's tables 1 and 6.
        """
        return compute_errors(self.model, self.data.test)


def cosine_by_epoch(
    first: float, batches_per_epoch: int, *, epochs: int = 300, floor: float = 1e-6
) -> Callable[[int], float]:
    """Return the learning rate by step, a cosine of the epoch (S1-T3).

    In epoch e it is floor + (first − floor)(1 + cos(π e / epochs)) / 2.

    Example:
        >>> rate = samformer.cosine_by_epoch(1e-3, 100)
        >>> rate(0), rate(99) == rate(0), round(rate(100 * 150) * 1e3, 4)
        (0.001, True, 0.5005)
    """

    def rate(step: int) -> float:
        epoch = min(step // batches_per_epoch, epochs)
        return floor + (first - floor) * (1 + math.cos(math.pi * epoch / epochs)) / 2

    return rate


def _check_sizes(model: nn.Module, length: int, horizon: int, channels: int) -> None:
    """Raise InputError for a model of other sizes than the data.

    Its forecasts could be broadcast against the data.
    """
    sizes = {"length": length, "horizon": horizon, "channels": channels}
    for name, size in sizes.items():
        model_size = getattr(model, name, None)
        if model_size not in (None, size):
            raise InputError(
                f"the model has {name}={model_size}, the data {name}={size}; make the"
                " model of that size"
            )
