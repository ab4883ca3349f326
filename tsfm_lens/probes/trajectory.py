"""The run that a probe looks at: a batch, the forecast, and one forward over the whole horizon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.data.batch import to_floats
from tsfm_lens.errors import InputError
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.forecast import Forecast, is_count
from tsfm_lens.models.lens import Lens


@dataclass(frozen=True)
class Trajectory:
    """A batch with the forecast whose making a probe explains.

    Attributes:
        batch: the context.
        encoded: native input of one forward that covers the horizon. For token models the decoder is
            teacher-forced, which equals the cached rollout along the same values.
        forecast: the model's own forecast.
        values: (series, step) along which the decoder is forced: the median forecast, or what the caller gave.
        tokens: (series, step) token ids of ``values`` for token models, else None.
        truth: (series, step) where known, else None.
        horizon: steps.
    """

    batch: SeriesBatch
    encoded: Encoded
    forecast: Forecast
    values: np.ndarray
    tokens: Tensor | None
    truth: np.ndarray | None
    horizon: int


def trajectory(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    truth: Any = None,
    along: Any = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> Trajectory:
    """Forecast a batch and prepare the forward that explains it.

    Args:
        lens: the model.
        series: the context, anything that ``as_series`` takes.
        horizon: steps, at most what one pass yields; the model's prediction length if None.
        truth: (series, step) what came after the context.
        along: (series, step) values to force a token model's decoder along; its median forecast if None.
        num_samples, seed: of the forecast.

    Raises:
        InputError: the horizon is longer than one pass of the model.
    """
    batch = as_series(series)
    limit = lens.adapter.longest_pass
    steps = checked_horizon(lens, horizon)
    if steps > limit:
        raise InputError(
            f"horizon {horizon} cannot be explained in one pass: {lens.model_id} forecasts at most {limit} steps "
            "before it feeds its forecast back. Choose a horizon from 1 to that."
        )
    forecast = lens.forecast(batch, steps, num_samples=num_samples, seed=seed)
    known = None if truth is None else to_floats(truth, "the truth")
    if lens.adapter.readout != "token":
        return Trajectory(batch, lens.encode(batch, horizon=steps), forecast, forecast.median, None, known, steps)
    own = forecast.samples[:, 0] if getattr(lens.adapter, "integers", False) else forecast.median  # type: ignore[index]
    values = own if along is None else to_floats(along, "along")
    if not np.isfinite(values).all():
        raise InputError("along holds values that are no numbers; a decoder is forced along finite values")
    if values.shape != (len(batch), steps):
        raise InputError(f"along has shape {values.shape}, expected (series, step) = {(len(batch), steps)}")
    encoded = lens.encode(batch, future=values)
    tokens = lens.adapter.tokens_of(torch.as_tensor(values), encoded)  # type: ignore[attr-defined]
    return Trajectory(batch, encoded, forecast, values, tokens, known, steps)


def checked_horizon(lens: Lens, horizon: Any) -> int:
    """Forecast steps; the model's prediction length for None.

    Raises:
        InputError: not a whole number of 1 or more.
    """
    steps = lens.adapter.prediction_length if horizon is None else horizon
    if not is_count(steps):
        raise InputError(f"horizon {horizon!r} is not a number of steps; expected an integer of 1 or more")
    return int(steps)


def describe(lens: Lens, kind: str, title: str, source: str, **parameters: object) -> dict[str, object]:
    """Attributes of a result: kind, title, source, provenance and the probe's parameters.

    ``statistic`` is "mean" where single forwards read out the mean of a distribution, not quantiles.
    """
    statistic = {"statistic": "mean"} if lens.adapter.readout == "distribution" else {}
    return {"kind": kind, "title": title, "source": source, **lens.provenance(), **statistic, **parameters}
