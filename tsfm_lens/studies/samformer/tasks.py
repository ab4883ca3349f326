"""Training tasks: the toy problem and benchmarks of files, as the training loop takes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError
from tsfm_lens.studies.samformer.streams import stream
from tsfm_lens.studies.samformer.toy import LinearToy
from tsfm_lens.studies.samformer.windows import Benchmark

__all__ = ["BenchmarkTask", "ForecastTask", "Pairs", "ToyTask", "cosine_by_epoch", "errors_of"]


class Pairs(Protocol):
    """Numbered windows with the steps that follow them."""

    def __len__(self) -> int:
        """Return the number of pairs."""

    def take(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return windows (window, channel, L) and forecasts (window, channel, H) of these numbers."""


class HeldPairs:
    """Pairs in memory, as two tensors."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def take(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs of these numbers."""
        return self.x[which], self.y[which]


class ForecastTask:
    """Task of a model that learns to forecast from pairs.

    Every epoch goes through all pairs once, in an order drawn from the seed and the epoch's number; the last batch may
    be shorter. So a batch is a function of seed and step, and a resumed run equals an uninterrupted one.

    Args:
        name: title of the task.
        model: windows (batch, channel, L) to forecasts (batch, channel, H), on the device where it is trained.
        training, validation: pairs.
        batch: windows in a batch; 32 in the paper.
        seed: of the order.
        as_printed: whether the loss is equation 1 as printed, which adds the steps of a forecast up, H times the mean
            over all numbers that is reported and trained on otherwise (E1-1).
        settings: further settings that the weights depend on, for ``identity``, such as the optimiser's.

    Attributes:
        identity: JSON of all settings, those of the model among them.
        batches_per_epoch: steps in which every pair comes once.

    Raises:
        InputError: there is no pair, or the batch is below 1.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        training: Pairs,
        validation: Pairs,
        *,
        batch: int = 32,
        seed: int = 0,
        as_printed: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if min(len(training), len(validation), batch) < 1:
            raise InputError(
                f"{len(training)} training pairs, {len(validation)} of validation and batches of {batch}; expected at "
                "least 1 each"
            )
        self.name, self.model, self.training, self.validation = name, model, training, validation
        self.batch, self.seed, self.as_printed = batch, seed, as_printed
        self.batches_per_epoch = math.ceil(len(training) / batch)
        own = {"batch": batch, "seed": seed, "as_printed": as_printed, "pairs": [len(training), len(validation)]}
        of_model = {"model": type(model).__name__, **{f"model.{key}": value for key, value in _settings(model).items()}}
        self.identity = json.dumps({"task": name, **own, **of_model, **dict(settings or {})}, sort_keys=True)
        self._order: tuple[int, Tensor] | None = None

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def pairs_of(self, step: int) -> Tensor:
        """Return the numbers of the training pairs in the batch of a step."""
        epoch, place = divmod(step, self.batches_per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, torch.randperm(len(self.training), generator=stream(self.seed, epoch))
        return self._order[1][place * self.batch : (place + 1) * self.batch]

    def loss(self, step: int) -> Tensor:
        """Compute the mean squared error of the batch of a step, or equation 1 as printed."""
        x, y = (part.to(self.device) for part in self.training.take(self.pairs_of(step)))
        error = (self.model(x) - y).square().mean()
        return error * y.shape[-1] if self.as_printed else error

    def evaluate(self) -> dict[str, float]:
        """Compute the means of squared and absolute errors over the validation pairs, "mse" and "mae"."""
        return errors_of(self.model, self.validation)


def errors_of(model: nn.Module, pairs: Pairs, *, at_once: int = 256) -> dict[str, float]:
    """Compute mean squared ("mse") and absolute ("mae") errors over windows, channels and steps, in evaluation mode.

    Args:
        model: windows (batch, channel, L) to forecasts (batch, channel, H).
        pairs: that the errors are measured on.
        at_once: windows in a forward; it changes no result beyond rounding.

    Example:
        >>> made = samformer.benchmark(np.sin(np.arange(300) / np.array([[3.0], [7.0]])), length=24, horizon=6)
        >>> sorted(samformer.errors_of(samformer.LinearForecaster(24, 6), made.test))
        ['mae', 'mse']
    """
    training, device = model.training, next(model.parameters()).device
    model.eval()
    squared = absolute = torch.zeros((), dtype=torch.float64)
    count = 0
    try:
        with torch.no_grad():
            for start in range(0, len(pairs), at_once):
                x, y = pairs.take(torch.arange(start, min(start + at_once, len(pairs))))
                error = (model(x.to(device)).cpu() - y).double()
                squared, absolute = squared + error.square().sum(), absolute + error.abs().sum()
                count += error.numel()
    finally:
        model.train(training)
    return {"mse": float(squared) / count, "mae": float(absolute) / count}


class ToyTask(ForecastTask):
    """Task of a model on the toy problem (S1-TOY).

    Args:
        model: of the toy's sizes.
        toy: the problem; its pairs are made once and held.
        batch, seed, as_printed, settings: see :class:`ForecastTask`.

    Raises:
        InputError: the model's length, horizon or channels are not the toy's.
    """

    def __init__(self, model: nn.Module, toy: LinearToy | None = None, **options: Any) -> None:
        self.toy = LinearToy() if toy is None else toy
        _refuse_other_sizes(model, self.toy.length, self.toy.horizon, self.toy.channels)
        last = self.toy.training + self.toy.validation
        pairs = [HeldPairs(*self.toy.pairs(*ends)) for ends in ((0, self.toy.training), (self.toy.training, last))]
        settings = {f"toy.{key}": value for key, value in vars(self.toy).items()}
        options["settings"] = {**settings, **dict(options.get("settings") or {})}
        super().__init__("the toy problem", model, *pairs, **options)


class BenchmarkTask(ForecastTask):
    """Task of a model on a benchmark, split as :func:`tsfm_lens.studies.samformer.benchmark` does.

    Args:
        model: of the benchmark's sizes.
        data: the benchmark.
        batch, seed, as_printed, settings: see :class:`ForecastTask`.

    Raises:
        InputError: the model's length, horizon or channels are not those of the windows.
    """

    def __init__(self, model: nn.Module, data: Benchmark, **options: Any) -> None:
        self.data = data
        _refuse_other_sizes(model, data.training.length, data.training.horizon, len(data.channels))
        options["settings"] = {"data": data.name, "digest": data.digest, **dict(options.get("settings") or {})}
        super().__init__(f"{type(model).__name__} on {data.name}", model, data.training, data.validation, **options)

    def test(self) -> dict[str, float]:
        """Compute errors on the test part, "mse" and "mae", as the paper's tables 1 and 6 have them."""
        return errors_of(self.model, self.data.test)


def cosine_by_epoch(
    first: float, batches_per_epoch: int, *, epochs: int = 300, floor: float = 1e-6
) -> Callable[[int], float]:
    """Return the learning rate by step: a half cosine from ``first`` to ``floor``, constant within an epoch.

    Source:
        SAMformer, appendix A.1, with the released code's floor: floor + (first − floor)(1 + cos(π e / epochs)) / 2.

    Example:
        >>> rate = samformer.cosine_by_epoch(1e-3, 100)
        >>> rate(0), rate(99) == rate(0), round(rate(100 * 150) * 1e3, 4)
        (0.001, True, 0.5005)
    """

    def rate(step: int) -> float:
        epoch = min(step // batches_per_epoch, epochs)
        return floor + (first - floor) * (1 + math.cos(math.pi * epoch / epochs)) / 2

    return rate


def _settings(model: nn.Module) -> dict[str, Any]:
    return dict(getattr(model, "settings", {}))


def _refuse_other_sizes(model: nn.Module, length: int, horizon: int, channels: int) -> None:
    for name, size in (("length", length), ("horizon", horizon), ("channels", channels)):
        of_model = getattr(model, name, None)
        if of_model not in (None, size):
            raise InputError(f"the model has {name}={of_model}, the data {name}={size}; make the model of that size")
