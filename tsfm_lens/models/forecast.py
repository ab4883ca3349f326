"""Forecasts in data units, and the checks of what is asked and of what comes back.

Read :class:`Forecast` first. :func:`context_dataset` makes the labelled part that every
result shares. Forecasts are made in :mod:`tsfm_lens.models.batching`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.clocks import on_clock
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.extensions import extensible, public_attributes
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.batch import joined_dates
from tsfm_lens.data.values import to_floats
from tsfm_lens.hooks.tl_names import refuse_logits
from tsfm_lens.models.architecture import Encoded, Prediction


@extensible
@dataclass(frozen=True)
class Forecast:
    """Prediction of a model for a batch of series.

    Attributes:
        quantiles: (series, quantile, step), data units; of covariates the model's
            output for them, NaN if none.
        levels: the quantile levels, in the order in which they were asked for.
        mean: (series, step); of quantile models their library's mean, or the median
            where it gives none (Chronos-2, TimesFM 3, Timestral, Toto 2, Moirai 2).
        samples: (series, sample, step), or None for a model that draws none.
        context: the series.
        attrs: provenance.
    """

    quantiles: np.ndarray
    levels: tuple[float, ...]
    mean: np.ndarray
    samples: np.ndarray | None
    context: SeriesBatch
    attrs: dict[str, object] = field(default_factory=dict)
    if not TYPE_CHECKING:
        # code for TransformerLens asks for logits: the error says where they are
        __getattr__ = refuse_logits

    @classmethod
    def of(
        cls,
        prediction: Prediction,
        levels: tuple[float, ...],
        context: SeriesBatch,
        attrs: dict[str, object],
    ) -> Forecast:
        """Make the forecast of a native prediction.

        Args:
            prediction: what an adapter returned, in data units.
            levels: levels of its quantiles, which are between 0 and 1.
            context: the series that were forecast.
            attrs: metadata, such as the model and the seed.

        Returns:
            The forecast as arrays.
        """
        # adapters return tensors on the CPU, in a precision that NumPy has
        if prediction.samples is None:
            samples = None
        else:
            samples = prediction.samples.numpy().astype(float)
        # libraries have quantiles last, a forecast has them before the steps
        quantiles = prediction.quantiles.permute(0, 2, 1).numpy().astype(float)
        mean = prediction.mean.numpy().astype(float)
        return cls(quantiles, levels, mean, samples, context, attrs)

    @classmethod
    def joined(cls, parts: Sequence[Forecast], context: SeriesBatch) -> Forecast:
        """Join the forecast of a batch from those of its parts, in order.

        Args:
            parts: forecasts of the parts, in the order of the series.
            context: the whole batch.

        Returns:
            The forecast of the whole batch.
        """
        if len(parts) == 1:
            return parts[0]
        samples = [part.samples for part in parts if part.samples is not None]
        return replace(
            parts[0],
            quantiles=np.concatenate([part.quantiles for part in parts]),
            mean=np.concatenate([part.mean for part in parts]),
            samples=np.concatenate(samples) if samples else None,
            context=context,
        )

    def __repr__(self) -> str:
        paths = ""
        if self.samples is not None:
            paths = f", {self.samples.shape[1]} sample paths"
        levels = f"quantiles {min(self.levels):g} to {max(self.levels):g}"
        return (
            f"Forecast({len(self.context)} series × {self.horizon} steps,"
            f" {levels}{paths})"
        )

    def __dir__(self) -> list[str]:
        return public_attributes(super().__dir__())

    @property
    def horizon(self) -> int:
        """Number of forecast steps."""
        return int(self.quantiles.shape[-1])

    @property
    def median(self) -> np.ndarray:
        """Quantile of level 0.5, (series, step)."""
        return self.quantile(0.5)

    def quantile(self, level: float) -> np.ndarray:
        """Return the forecast of one level, (series, step).

        Args:
            level: one of ``levels``.

        Returns:
            Values in data units, (series, step).

        Raises:
            InputError: the level was not forecast.
        """
        # levels that come from arithmetic may be off in their last digits
        for index, known in enumerate(self.levels):
            if abs(known - level) < 1e-9:
                return self.quantiles[:, index]
        raise InputError(
            f"quantile {level} was not forecast; levels are"
            f" {', '.join(map(str, self.levels))}"
        )

    def of_rows(self, rows: list[int], batch: SeriesBatch) -> Forecast:
        """Return the forecast of some of the series.

        Args:
            rows: positions of the series in this forecast.
            batch: these series.

        Returns:
            The forecast of these series.
        """
        if rows == list(range(len(self.context))):
            return self
        if self.samples is None:
            samples = None
        else:
            samples = self.samples[rows]
        parts: dict[str, Any] = {
            "quantiles": self.quantiles[rows],
            "mean": self.mean[rows],
            "samples": samples,
        }
        return replace(self, **parts, context=batch)

    def targets(self) -> Forecast:
        """Return the forecast of the targets alone.

        What the model emits for covariates is left out, since the future of known ones
        is given.

        Returns:
            The forecast of these series.
        """
        return self.of_rows(
            np.flatnonzero(self.context.is_target).tolist(), self.context.targets()
        )

    def to_dataset(self, truth: np.ndarray | None = None) -> xr.Dataset:
        """Return a labelled dataset of kind "forecast".

        Args:
            truth: (series, step) values, NaN where unknown; None if nothing is known.

        Returns:
            Dataset with the context, the truth where it is known, and quantiles in
            ascending order, in data units.
        """
        data = context_dataset(self.context, self.horizon, truth)
        seasons = list(self.context.seasonalities)
        # xarray selects ranges of labels only where these ascend
        order = np.argsort(self.levels, kind="stable")
        data = data.assign_coords(
            quantile=[self.levels[index] for index in order], season=("series", seasons)
        )
        data["quantile_forecast"] = (
            ("series", "quantile", "step"),
            self.quantiles[:, order],
        )
        if self.samples is not None:
            data["sample"] = (("series", "draw", "step"), self.samples)
        data.attrs = {"kind": "forecast", "title": "Forecast", **self.attrs}
        return data

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row per series and step.

        Returns:
            A frame with the columns id, group and variate if the batch is multivariate,
            step, timestamp if known (with its offset where the series have a zone),
            mean, and the quantiles.
        """
        context = self.context
        count = len(context)
        columns: dict[str, Any] = {
            name: np.repeat(np.array(labels, dtype=object), self.horizon)
            for name, labels in context.labels().items()
        }
        columns["step"] = np.tile(np.arange(self.horizon), count)
        dates = [
            context.timestamps(index, ahead=self.horizon) for index in range(count)
        ]
        if any(stamps is not None for stamps in dates):
            # arrays, which are cut in a tenth of the time of an index
            ahead = [
                None if stamps is None else stamps.values[-self.horizon :]
                for stamps in dates
            ]
            joined = joined_dates(ahead, [self.horizon] * count)
            columns["timestamp"] = on_clock(joined, context.clock)
        columns["mean"] = self.mean.ravel()
        for position, level in enumerate(self.levels):
            columns[str(level)] = self.quantiles[:, position].ravel()
        return pd.DataFrame(columns)


def check_overflow(encoded: Encoded) -> None:
    """Refuse a batch whose mean or scale is beyond single precision."""
    is_finite = (encoded.loc.isfinite() & encoded.scale.isfinite()).cpu().numpy()
    if not is_finite.all():
        row = int(np.argmin(is_finite))
        size = np.nanmax(np.abs(encoded.batch.values[row]))
        raise InputError(
            f"the scale of series {encoded.batch.ids[row]!r} overflows:"
            f" {encoded.batch.lengths[row]} steps reach {size:.3g}, and models compute"
            " in single precision; rescale or shorten it"
        )


def check_finite(forecast: Forecast, architecture: str) -> None:
    """Refuse a forecast that is not all numbers."""
    if np.isfinite(forecast.quantiles).all() and np.isfinite(forecast.mean).all():
        return
    is_finite = np.isfinite(forecast.mean) & np.isfinite(forecast.quantiles).all(axis=1)
    # some libraries forecast targets alone: covariates are NaN
    is_finite |= ~forecast.context.is_target[:, None]
    if is_finite.all():
        return
    row, step = np.argwhere(~is_finite)[0]
    size = np.nanmax(np.abs(forecast.context.values[row]))
    raise InputError(
        f"{architecture} forecasts no number at step {step} of series"
        f" {forecast.context.ids[row]!r} ({int((~is_finite).any(axis=1).sum())} of"
        f" {len(is_finite)} series have NaN or infinity). The series reaches"
        f" {size:.3g}, and models compute in single precision: rescale it, or undo the"
        " intervention that does this."
    )


def over_steps(truth: np.ndarray, horizon: int) -> np.ndarray:
    """Cut or extend a truth to (series, step); NaN beyond its end."""
    longer = np.full((len(truth), max(horizon - truth.shape[1], 0)), np.nan)
    return np.concatenate([truth[:, :horizon], longer], axis=1)


def checked_values(
    source: Any, shape: tuple[int, int], label: str = "the truth"
) -> np.ndarray:
    """Return a truth, or a path, as numbers (series, step)."""
    values = to_floats(source, label)
    if values.shape != shape:
        raise InputError(
            f"{label} has shape {values.shape}, expected (series, step) = {shape}"
        )
    return values


def context_dataset(
    batch: SeriesBatch, horizon: int, truth: np.ndarray | None = None
) -> xr.Dataset:
    """Return the dataset that all results share.

    It holds the context, the truth, their times, units, groups and variates.
    """
    width = max(len(series) for series in batch.values)
    context = np.full((len(batch), width), np.nan)
    for index, series in enumerate(batch.values):
        # contexts end together, so that step -1 is the last one of every series
        context[index, width - len(series) :] = series
    # one dataset at the end: xarray merges and aligns at every variable that is added
    # to one
    variables: dict[str, Any] = {"context": (("series", "time"), context)}
    coords: dict[str, Any] = {
        "series": list(batch.ids),
        "time": np.arange(-width, 0),
        "step": np.arange(horizon),
        "units": ("series", list(batch.units)),
    }
    if batch.multivariate:
        coords["group"] = ("series", list(batch.groups))
        coords["variate"] = ("series", list(batch.variates))
    if batch.items != batch.ids:
        coords["item"] = ("series", list(batch.items))
    if batch.has_covariates:
        levels = {
            name: list(words)
            for name, words in zip(batch.ids, batch.categories, strict=True)
            if words is not None
        }
        # as text, since a file keeps no mapping
        words = {"categories": json.dumps(levels)} if levels else {}
        coords["role"] = ("series", list(batch.roles), words)
        variables["known_future"] = (("series", "step"), batch.known_future(horizon))
    if truth is not None:
        values = checked_values(truth, (len(batch), horizon))
        variables["truth"] = (("series", "step"), values)
    stamps = [batch.timestamps(index, ahead=horizon) for index in range(len(batch))]
    if all(stamp is not None for stamp in stamps):
        times = np.full((len(batch), width + horizon), np.datetime64("NaT", "ns"))
        for row, stamp in zip(times, stamps, strict=True):
            assert stamp is not None
            row[width + horizon - len(stamp) :] = stamp.values
        # in UTC where there is a clock, on which figures and tables write them
        zone = {"clock": batch.clock} if batch.clock else {}
        coords["context_timestamp"] = (("series", "time"), times[:, :width], zone)
        coords["forecast_timestamp"] = (("series", "step"), times[:, width:], zone)
    return xr.Dataset(variables, coords)
