"""The libraries' own calls, written by hand: what a forecast through the lens is
compared with.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tsfm_lens.data import as_series
from tsfm_lens.models import Lens

SAMPLES = 4
"""Sample paths of the sampling models, on both sides."""


def native_call(
    lens: Lens, series: list[np.ndarray], horizon: int
) -> Callable[[], object]:
    """The forecast of univariate series of equal length without the lens.

    Args:
        lens: where the native model comes from.
        series: (time,) each.
        horizon: forecast steps.
    """
    name = lens.wiring.architecture
    native = lens.native
    model = lens.adapter.model
    tensors = [torch.tensor(values) for values in series]
    stacked = torch.tensor(np.stack(series), dtype=torch.float32, device=lens.device)
    seen = torch.ones_like(stacked, dtype=torch.bool)
    if name == "chronos":
        return lambda: native.predict_quantiles(
            tensors, prediction_length=horizon, num_samples=SAMPLES
        )
    if name in ("chronos-bolt", "chronos-2"):
        return lambda: native.predict_quantiles(tensors, prediction_length=horizon)
    if name == "t5":
        ids = stacked.long()
        options = {
            "do_sample": True,
            "min_new_tokens": horizon,
            "max_new_tokens": horizon,
        }
        return lambda: model.generate(
            input_ids=ids, num_return_sequences=SAMPLES, **options
        )
    if name == "timesfm-2.5":
        native.compile(lens.adapter._forecast_config(as_series(series), horizon))  # type: ignore[attr-defined]
        return lambda: native.forecast(horizon=horizon, inputs=list(series))
    if name == "timesfm-2.5-transformers":
        past = list(stacked)
        length = stacked.shape[1]
        options = {
            "forecast_context_len": length,
            "force_flip_invariance": False,
            "truncate_negative": False,
        }
        return lambda: model(past_values=past, **options)
    if name == "timesfm-3":
        return lambda: model.decode(stacked[:, None], horizon=horizon)
    if name == "timestral":
        plain = {"symmetric_averaging": False, "clip_nonnegative": False}
        return lambda: native.forecast(stacked, horizon, **plain)
    if name == "toto-2":
        ids = torch.zeros(len(stacked), 1, dtype=torch.long, device=lens.device)
        inputs = {
            "target": stacked[:, None],
            "target_mask": seen[:, None],
            "series_ids": ids,
        }
        return lambda: model.forecast(inputs, horizon=horizon)
    if name == "fracast":
        return lambda: native.forecast_batch(stacked.numpy(), horizon=horizon)
    if name == "tirex":
        return lambda: model.forecast(stacked, prediction_length=horizon)
    if name == "ttm":
        return lambda: model(
            stacked[:, -model.config.context_length :, None], return_loss=False
        )
    if name == "toto-1":
        from toto.data.util.dataset import MaskedTimeseries
        from toto.inference.forecaster import TotoForecaster

        three = stacked[:, None]
        steps = torch.zeros(len(stacked), 1, dtype=torch.int)
        zeros = torch.zeros_like(three)
        visible = MaskedTimeseries(three, seen[:, None], zeros, zeros, steps)
        options = {"num_samples": SAMPLES, "samples_per_batch": SAMPLES}
        return lambda: TotoForecaster(model).forecast(
            visible, prediction_length=horizon, **options
        )
    return _moirai(lens, stacked, seen, horizon)


def _moirai(
    lens: Lens, stacked: torch.Tensor, seen: torch.Tensor, horizon: int
) -> Callable[[], object]:
    forecast, _ = lens.adapter.library_input(as_series(list(stacked.cpu())), horizon)  # type: ignore[attr-defined]
    visible = {
        "past_target": stacked[..., None],
        "past_observed_target": seen[..., None],
        "past_is_pad": torch.zeros_like(seen),
    }
    if lens.adapter.readout == "distribution":
        draws = {"num_samples": SAMPLES}
    else:
        draws = {}
    return lambda: forecast(**visible, **draws)
