"""Adapters: the interface between a native model and the lens.

Read :class:`Adapter` first. It does whatever the wiring table determines; a subclass in
``wirings/`` encodes series and runs the native forward. The functions below it refuse
requests that a model cannot meet. Hook points belong to :mod:`tsfm_lens.hooks`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import LayerNorm

from tsfm_lens.core.errors import InputError, WiringError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.block import Block, Steps
from tsfm_lens.hooks.native import put_output, rms_scale, without_gain
from tsfm_lens.hooks.wiring import Wiring
from tsfm_lens.models.architecture import (
    Encoded,
    Levels,
    Prediction,
    declare_row_independent,
)
from tsfm_lens.models.arguments import DECILES, check_covariates

ALL_DTYPES = ("float32", "bfloat16", "float16")


class Adapter(ABC):
    """Opened native model: series in, forecasts out.

    A subclass sets the attributes and defines ``encode`` and ``run``; token models also
    define ``head``, ``predict``, ``values`` and ``tokenize``. A subclass that overrides
    ``predict``, and forecasts every series by itself, decorates it with
    :func:`tsfm_lens.models.architecture.declare_row_independent`, so that variants of
    the model run side by side.

    Attributes:
        architecture: name of the wiring.
        native: the library's own object; ``model`` the torch module in it.
        wiring: table of the model's modules.
        readout: the head's output: "token" logits, "quantile" forecasts, or a
            "distribution", of which the readout is the mean.
        rollout: how the library goes on beyond one pass: "tokens" and "cache" append to
            a key-value cache, "refeed" encodes the extended context anew, "single"
            never does.
        restarts: whether a rollout of tokens that reaches the prediction length appends
            its forecast to the context and encodes that anew.
        multivariate: whether series of one group see each other.
        packed: whether series of one group share one token sequence.
        covariates: kinds that the library takes, of "past", "known" and "categories".
        joint_rollout: whether a rollout can run on items of several variates.
        rows_at_once: most rows of a native call, where its cost grows faster than their
            number; None for no bound.
        n_variates: the one number of variates that an item must have; None for any.
        draw_axis: axis of a sampling model's random tensors that its rows lie along;
            None where that is not known. Draws of token ids have rows first.
        samples: sample paths of a sampling model, unless others are requested.
        integers: whether series are token ids.
        context_length, prediction_length: steps; the latter is the default horizon.
        levels: quantile levels that the head emits; (0.5,) for the mean of a
            distribution.
        unrolled: those of ``levels`` that a rollout feeds back, each as a path of its
            own; all if None.
        package: installed package whose version a result should name.
        dtypes: precisions that the library runs in; ``ALL_DTYPES`` are those that
            ``load`` knows.
        feeds_gaps: whether a rollout appends missing values to the context, in place of
            the forecast.
        least_steps: context steps that a batch is padded to at least; above 0 only
            while a batch runs in parts.
    """

    architecture: str
    native: Any
    model: Any
    wiring: Wiring
    readout: Literal["token", "quantile", "distribution"] = "quantile"
    rollout: Literal["tokens", "cache", "refeed", "single"] = "single"
    restarts: bool = True
    multivariate: bool = False
    packed: bool = False
    covariates: tuple[str, ...] = ()
    joint_rollout: bool = True
    rows_at_once: int | None = None
    n_variates: int | None = None
    draw_axis: int | None = None
    samples: int = 20
    integers: bool = False
    context_length: int
    prediction_length: int
    levels: Levels = ()
    unrolled: Levels | None = None
    package: str = "torch"
    dtypes: tuple[str, ...] = ("float32",)
    feeds_gaps: bool = False
    least_steps: int = 0

    @abstractmethod
    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        """Encode series as native input, as the library's own pipeline does it.

        Token models also take ``future`` or ``tokens``, (series, step), for their
        decoder to read.

        Args:
            batch: the series, in data units.
            horizon: forecast steps of the forward; the model's own number if None.

        Returns:
            The model's input for one forward, with the steps that its tokens cover.
        """

    def numbered(self, batch: SeriesBatch) -> SeriesBatch:
        """Replace categories by the numbers that the model reads.

        A batch holds the code of each category; the base class returns it unchanged,
        for models that read those codes.

        Args:
            batch: series whose categories have codes from 0 on.

        Returns:
            The batch, in which categories have the model's own numbers.
        """
        return batch

    def with_level_numbers(self, batch: SeriesBatch) -> SeriesBatch:
        """Keep the numbers of categories that depend on the whole history.

        It is called before the history is cut to the context. The base class returns
        the batch unchanged, for models whose numbers do not depend on the history.

        Args:
            batch: series with their whole history.

        Returns:
            The batch with these numbers, ``level_numbers``.
        """
        return batch

    @abstractmethod
    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Run one differentiable native forward.

        Args:
            inputs: input of the model, as ``Encoded.inputs`` has it.

        Returns:
            Of token models logits (series, step, vocabulary), of all others quantiles
            in data units (series, quantile, step).
        """

    @declare_row_independent
    def predict(
        self, batch: SeriesBatch, horizon: int, levels: Levels, num_samples: int | None
    ) -> Prediction:
        """Run one native forward, and keep ``horizon`` steps of it.

        Models that roll out override this.

        Args:
            batch: the series, in data units.
            horizon: steps to forecast.
            levels: quantile levels between 0 and 1.
            num_samples: sample paths of a sampling model; its configured number if
                None.

        Returns:
            The forecast at these levels, in data units.
        """
        with torch.no_grad():
            quantiles = self.run(self.encode(batch, horizon=horizon).inputs)
        # a pass yields whole patches, which may reach beyond the horizon
        kept = quantiles[..., :horizon]
        return self.at(kept.transpose(1, 2).cpu(), levels)

    def at(
        self, quantiles: Tensor, levels: Levels, mean: Tensor | None = None
    ) -> Prediction:
        """Make a prediction at the requested levels by interpolation.

        Args:
            quantiles: (series, step, quantile), at the model's own levels.
            levels: requested levels between 0 and 1.
            mean: (series, step); the median stands for it if None.

        Returns:
            The prediction at these levels, in the unit of ``quantiles``.
        """
        if mean is None:
            mean = at_levels(quantiles, self.levels, (0.5,))[..., 0]
        return Prediction(at_levels(quantiles, self.levels, levels), None, mean)

    def of_paths(self, samples: Tensor, levels: Levels) -> Prediction:
        """Make a prediction from the quantiles and the mean of sample paths.

        Args:
            samples: sample paths (series, sample, step).
            levels: levels of the quantiles, between 0 and 1.

        Returns:
            The prediction, which keeps the paths.
        """
        # torch wants the levels in the dtype of the samples, and puts their axis first
        quantiles = torch.quantile(
            samples, torch.tensor(levels, dtype=samples.dtype), dim=1
        ).permute(1, 2, 0)
        return Prediction(quantiles, samples, samples.mean(dim=1))

    def final_norm(self, resid: Tensor, like: Tensor | None = None) -> Tensor:
        """Apply the last norm of the output stack, if it has one.

        Args:
            resid: residual stream, (…, pos, d_model).
            like: another stream of that shape, by whose scale the norm divides in place
                of that of ``resid``; None for its own scale.

        Returns:
            The normalised stream, of the same shape.

        Raises:
            WiringError: a frozen scale of a norm that is neither a LayerNorm nor a
                root-mean-square one.
        """
        path = self.wiring.output_stack.ln_final
        if not path:
            return resid
        norm = self.model.get_submodule(path)
        if like is None:
            result: Tensor = norm(resid)
            return result
        # a LayerNorm also subtracts a mean, which a factor alone cannot express
        if isinstance(norm, LayerNorm):
            return frozen_layer_norm(norm, resid, like)
        normalized = resid * rms_scale(norm, like)
        # T5 in half precision has a stream in single precision, but its norm returns
        # half precision: one position is normalised to learn which
        dtype = norm.forward(like[..., :1, :]).dtype
        return normalized.to(dtype)

    def head(self, normalized: Tensor, encoded: Encoded) -> Tensor:
        """Compute the head's output for a normalised residual stream.

        This is the native forward with the output of its last norm (or last block)
        replaced. It works for every patch model; one whose head can be called alone
        overrides it and spares the rest of the forward.

        Args:
            normalized: stream after the last norm, (…, batch, pos, d_model).
            encoded: the batch that it belongs to.

        Returns:
            Logits, or quantiles in data units (…, batch, quantile, step).
        """
        stack = self.wiring.output_stack
        path = stack.ln_final or stack.block(stack.n_layers - 1)
        leading = normalized.shape[:-3]
        # leading axes become copies of the batch, in the order in which
        # ``Encoded.repeated`` lays the inputs out
        stream = normalized.reshape(-1, *normalized.shape[-2:])

        def replace(_module: Any, _args: Any, output: Any) -> Any:
            return put_output(output, 0, stream)

        handle = self.model.get_submodule(path).register_forward_hook(replace)
        try:
            # the product of no axes is 1: then the batch itself runs
            quantiles = self.run(encoded.repeated(math.prod(leading)))
        finally:
            handle.remove()
        return quantiles.reshape(*leading, len(encoded.batch), *quantiles.shape[1:])

    def values(self, encoded: Encoded) -> Tensor:
        """Return the value of every output bin of a token model.

        Values are in data units, (batch, bin), in the order of the output.

        Args:
            encoded: the batch, whose scales turn bins into data units.

        Raises:
            InputError: the model has no output bins, since it is no token model.
        """
        raise InputError(
            f"{self.architecture} has no output bins: its head emits forecasts in data"
            " units"
        )

    def number_step(self, values: np.ndarray) -> float:
        """Return the smallest difference between values that the model can see.

        Args:
            values: the context, (time,), in data units.

        Returns:
            The difference in data units. In the base class it is the spacing of single
            precision at the largest absolute value.
        """
        # fmax passes over missing values
        largest = np.fmax.reduce(np.abs(values))
        # libraries take series in single precision, whatever the model runs in
        return float(np.spacing(np.float32(largest)))

    @property
    def longest_pass(self) -> int:
        """Longest horizon of a single forward."""
        return self.prediction_length

    def quantile_paths(self, horizon: int) -> int:
        """Return how many quantile paths a rollout feeds back.

        Args:
            horizon: steps of the forecast.

        Returns:
            The number of paths, 1 where one pass covers the horizon.
        """
        if horizon > self.longest_pass:
            return len(self.unrolled or self.levels) or 1
        return 1

    def relative_cost(self, horizon: int) -> int:
        """Return how many single passes a forecast costs at most.

        All passes after the first run every quantile path.

        Args:
            horizon: steps of the forecast.

        Returns:
            The number of passes of one row each, 1 or more.
        """
        later_passes = -(-horizon // self.longest_pass) - 1
        return 1 + later_passes * self.quantile_paths(horizon)

    @property
    def passes(self) -> int:
        """Number of forwards of one forecast."""
        return 1

    @property
    def device(self) -> torch.device:
        """Device of the native model."""
        result: torch.device = next(self.model.parameters()).device
        return result

    def longest(self, batch: SeriesBatch) -> int:
        """Return the steps of the longest series, cut to the context length.

        Args:
            batch: the series.

        Returns:
            The number of steps.
        """
        return min(self.padded_length(batch), self.context_length)

    def padded_length(self, batch: SeriesBatch) -> int:
        """Return the number of steps of the longest series.

        While a batch runs in parts, this is the longest series of all parts.

        Args:
            batch: the series.

        Returns:
            The number of steps, at least ``least_steps``.
        """
        return max(self.least_steps, *batch.lengths)

    def pad_batch(self, steps: int) -> Block[None]:
        """Pad shorter batches as if each had a series of ``steps`` steps.

        Parts of a batch are padded as the whole batch is, because padding can change
        what a library computes.

        Args:
            steps: length of the longest series of the whole batch.

        Returns:
            A block in which batches are padded so.
        """
        # stays empty if the block is interrupted before it has begun
        previous: list[int] = []

        def begin() -> None:
            previous.append(self.least_steps)
            self.least_steps = steps

        def end() -> None:
            for least_steps in previous:
                self.least_steps = least_steps

        return Block(Steps(None, begin, end))

    def lengthened(self, tensors: list[Tensor]) -> list[Tensor]:
        """Pad the first tensor (…, time) on the left to the least length.

        The library then pads the others to it.

        Args:
            tensors: native inputs, of which the first has time as its last axis.

        Returns:
            The tensors, of which the first is padded with NaN where it was too short.
        """
        longest = max(tensor.shape[-1] for tensor in tensors)
        if longest >= self.least_steps:
            return tensors
        first, *rest = tensors
        padding = self.least_steps - first.shape[-1]
        # libraries pad with NaN, too, which they read as missing
        padded = torch.nn.functional.pad(first, (padding, 0), value=float("nan"))
        return [padded, *rest]


def check_forecast_request(
    adapter: Adapter, horizon: int, num_samples: int | None
) -> None:
    """Refuse a forecast that a model cannot make."""
    if num_samples is not None and adapter.readout == "quantile":
        raise InputError(
            f"{adapter.architecture} emits quantiles and draws no samples; leave"
            " num_samples out"
        )
    if horizon > adapter.longest_pass and adapter.rollout == "single":
        raise InputError(
            f"horizon {horizon} is longer than the {adapter.longest_pass} steps that"
            f" {adapter.architecture} yields in one pass, and it has no rollout"
        )


def predicted(
    adapter: Adapter,
    batch: SeriesBatch,
    horizon: int,
    levels: Levels,
    num_samples: int | None,
) -> Prediction:
    """Return the adapter's prediction, and check its number of steps.

    Raises:
        WiringError: the prediction has another number of steps than was asked for.
    """
    prediction = adapter.predict(batch, horizon, levels, num_samples)
    steps = {int(prediction.quantiles.shape[1]), int(prediction.mean.shape[-1])}
    if prediction.samples is not None:
        steps.add(int(prediction.samples.shape[-1]))
    if steps != {horizon}:
        raise WiringError(
            f"predict of {adapter.architecture} gave"
            f" {', '.join(map(str, sorted(steps)))} steps, expected {horizon}. The"
            " predict of the base class runs one pass, of at most"
            f" {adapter.longest_pass} steps. Give {type(adapter).__name__} a predict"
            " that goes on beyond it, or set rollout = 'single', which refuses more"
        )
    return prediction


def frozen_layer_norm(norm: LayerNorm, x: Tensor, like: Tensor) -> Tensor:
    """Apply a LayerNorm with the standard deviation of ``like``.

    The mean that is subtracted is that of ``x`` itself: it is linear in ``x``, so the
    results for the parts of a stream still add up.

    Returns:
        The normalised stream, of the shape of ``x``.
    """
    out = without_gain(norm, x, like)
    if norm.weight is not None:
        out = out * norm.weight
    if norm.bias is None:
        return out
    return out + norm.bias


def default_horizon(adapter: Adapter, batch: SeriesBatch) -> int:
    """Return the prediction length, or fewer steps if covariates end earlier.

    Covariates that are known beforehand bound the horizon by the shortest of them.
    """
    known = batch.known_steps
    if known is None:
        return adapter.prediction_length
    return max(1, min(adapter.prediction_length, known))


def covered(adapter: Adapter, batch: SeriesBatch, horizon: int | None) -> int | None:
    """Refuse covariates that the model does not take.

    Returns:
        The horizon of a forward: the one that was given, or :func:`default_horizon` if
        none is given and the batch has covariates.
    """
    check_covariates(adapter.architecture, adapter.covariates, batch)
    if horizon is None and batch.has_covariates:
        return default_horizon(adapter, batch)
    return horizon


def check_tails(levels: Sequence[float], requested: Sequence[float]) -> None:
    """Refuse quantile levels beyond those that a model emits.

    Some libraries would return the quantile of the nearest level without a warning.
    """
    low = levels[0]
    high = levels[-1]
    # the tolerance is for levels that come from arithmetic, such as 3 · 0.1
    for level in requested:
        if not low - 1e-9 <= level <= high + 1e-9:
            nearest = low if level < low else high
            raise InputError(
                f"quantile {level} is outside {low} to {high}, which the model emits,"
                f" and tails are not extrapolated; the nearest is {nearest}"
            )


def at_levels(
    values: Tensor, levels: Sequence[float], requested: Sequence[float]
) -> Tensor:
    """Interpolate quantiles at other levels linearly between the neighbouring ones."""
    check_tails(levels, requested)
    # the model's own numbers pass as they are, without a rounding
    if tuple(requested) == tuple(levels):
        return values
    # levels that come from arithmetic may be off in their last digits
    tolerance = 1e-9
    interpolated = []
    for level in requested:
        # the first level that is not below the requested one
        right = min(int(np.searchsorted(levels, level - tolerance)), len(levels) - 1)
        if abs(levels[right] - level) < tolerance:
            interpolated.append(values[..., right])
            continue
        left = right - 1
        weight = (level - levels[left]) / (levels[right] - levels[left])
        interpolated.append(torch.lerp(values[..., left], values[..., right], weight))
    return torch.stack(interpolated, dim=-1)


def check_precision(adapter: Adapter, *values: Any) -> None:
    """Refuse precisions that the library does not run in; other values pass."""
    for value in values:
        name = str(value).removeprefix("torch.")
        if isinstance(value, torch.dtype) and name not in adapter.dtypes:
            raise InputError(
                f"{adapter.architecture} does not run in {name}; choose"
                f" {' or '.join(adapter.dtypes)}"
            )


def check_gradients(wiring: Wiring) -> None:
    """Refuse gradients in inference mode, or of a library that alters its backward."""
    # ``enable_grad`` has no effect in inference mode, as it has under ``no_grad``
    if torch.is_inference_mode_enabled():
        raise InputError(
            "there are no gradients under torch.inference_mode(); leave it,"
            " torch.no_grad() may stay on"
        )
    if not wiring.true_gradients:
        raise InputError(
            f"the gradients of {wiring.architecture} are not its derivatives (a"
            " rescaled backward pass, or steps of bfloat16 inside); use finite"
            " differences, or attribution by lens difference"
        )


def default_levels(adapter: Adapter) -> tuple[float, ...]:
    """Return the deciles, or the model's own levels if they span less.

    The model's own are returned where its head emits quantiles that do not reach from
    0.1 to 0.9.
    """
    levels = tuple(adapter.levels)
    if (
        adapter.readout != "quantile"
        or not levels
        or (levels[0] <= 0.1 + 1e-9 and levels[-1] >= 0.9 - 1e-9)
    ):
        return DECILES
    return levels


@cache
def versions(package: str) -> str:
    """List the versions of the packages that a result should name.

    Returns:
        Names and versions of this package, torch, transformers and the model's library.
    """
    # a dictionary keeps the order, and names a library once that is among the others
    names = dict.fromkeys(("tsfm-lens-toolbox", "torch", "transformers", package))
    return ", ".join(f"{name} {_version(name)}" for name in names)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    # a library on the path without its distribution runs as well
    except metadata.PackageNotFoundError:
        return "(unknown version)"
